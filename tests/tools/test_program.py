"""How the programs begin and end: from a bare checkout, on Ctrl-C, on a mistake."""

import argparse
import ast
import importlib
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from millisecond import __main__
from millisecond.data.files import replacing, write_json
from millisecond.data.formats.clouds import read_scan
from millisecond.data.packed import PackWriter
from millisecond.detector.weights import load_weights
from millisecond.tools import program
from tests.helpers.plain_files import write_plain_files
from tests.helpers.warm_processes import WarmProcess

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = [
    path for path in sorted((ROOT / "tools").glob("*.py")) if "def main(" in path.read_text()
]
BEGIN = """if __name__ == '__main__':
    from millisecond.tools import program
    program.start(__file__)"""


def start(tool: str, *arguments: object) -> subprocess.Popen:
    # -E -s: neither PYTHONPATH nor the user's packages are searched
    command = [sys.executable, "-E", "-s", str(ROOT / "tools" / f"{tool}.py"), *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **pipes)


# One program after the other, each with the project as if it were not imported yet, and with the
# other libraries that are there already: those take seconds.
HELP = """
import contextlib, runpy, sys, torch

others, path = set(sys.modules), list(sys.path)
for program in sys.argv[1:]:
    for name in set(sys.modules) - others:
        if name.split(".")[0] == "millisecond":
            del sys.modules[name]
    sys.argv, sys.path[:] = [program, "--help"], [program.rsplit("/", 1)[0], *path[1:]]
    with open(program.rsplit("/", 1)[1] + ".txt", "w") as file, contextlib.redirect_stdout(file):
        with contextlib.suppress(SystemExit):
            runpy.run_path(program, run_name="__main__")
"""


def test_every_program_runs_from_a_checkout_that_is_not_installed(tmp_path):
    blind = "import sys; sys.meta_path = [f for f in sys.meta_path if 'editable' not in repr(f)]"
    (tmp_path / "sitecustomize.py").write_text(blind)
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", HELP, *map(str, PROGRAMS)]
    run = subprocess.run(
        command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True, timeout=180
    )
    assert (run.returncode, run.stderr) == (0, "")
    for path in PROGRAMS:
        text = (tmp_path / f"{path.name}.txt").read_text()
        assert "usage" in text and (path.stem == "bench" or "example" in text), path
        assert str(ROOT) not in text, path  # a default that is a file of this project


OF_OTHERS = {  # options of other programs that a help names
    # of detect, evaluate_tracks and visualize
    "autolabel": {"--track", "--root", "--overlap", "--review"},
    "evaluate_tracks": {"--weights", "--track", "--output"},  # of detect
    "train": {"--nproc-per-node"},  # of torchrun
}


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_every_option_that_a_help_names_is_there(path, monkeypatch, capsys):
    """In the epilogue, the descriptions and the lines of options."""
    monkeypatch.setenv("COLUMNS", "100")
    module = importlib.import_module(f"millisecond.tools.{path.stem}")
    made: list[argparse.ArgumentParser] = []
    original = argparse.ArgumentParser.__init__

    def keep(self, *args, **kwargs):
        made.append(self)
        original(self, *args, **kwargs)

    monkeypatch.setattr(argparse.ArgumentParser, "__init__", keep)
    with pytest.raises(SystemExit):
        module.main(["--help-all"])
    text = capsys.readouterr().out + (module.__doc__ or "")
    known = {option for parser in made for option in parser._option_string_actions}
    named = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text))
    assert named <= known | OF_OTHERS.get(path.stem, set())
    assert max(map(len, text.splitlines())) <= 100
    metavars = set(re.findall(r"\b[A-Z]{3,}\b", text.partition("\n\n")[0]))
    outputs = set(re.findall(r"\b([A-Z]{3,})(?:/|\.txt)", module.__dict__.get("EXAMPLE", "")))
    assert outputs <= metavars | {"NAME", "FRAME"}


def helps(capsys, *words: str) -> dict[str, str]:
    """What a command prints for --help and --help-all."""
    shown = {}
    for option in ("--help", "--help-all"):
        with pytest.raises(SystemExit, match="0"):
            importlib.import_module(f"millisecond.tools.{words[0]}").main([*words[1:], option])
        shown[option] = capsys.readouterr().out
    return shown


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_help_fits_a_screen_and_help_all_has_every_option(path, monkeypatch, capsys):
    """30 lines of 100 columns; the prompt takes one of them."""
    monkeypatch.setenv("COLUMNS", "100")
    for line, parser in __main__._below(path.stem, __main__._parser(path.stem)):
        short, whole = helps(capsys, *line.split()).values()
        assert short.count("\n") <= 29 and max(map(len, short.splitlines())) <= 100, line
        assert "example" in short, line
        of_parser = [one for one in parser._actions if one.option_strings]
        rows = {one.option_strings[-1]: f"\n  {', '.join(one.option_strings)}" for one in of_parser}
        assert len(rows) == len(of_parser) and all(row in whole for row in rows.values())
        shown = {option for option, row in rows.items() if row in short}
        others = len(rows) - len(shown) - 2  # the two helps
        assert (f"--help-all shows the other {others} options" in short) == (others > 0)
        assert {one.option_strings[-1] for one in of_parser if one.required} <= shown
        assert parser._usual == [] or set(parser._usual) < parser._option_string_actions.keys()
        paragraphs = (parser.epilog or "").rstrip().split("\n\n")
        told = [paragraph in short for paragraph in paragraphs]
        assert told == sorted(told, reverse=True) and all(p in whole for p in paragraphs)
        if not others:
            assert ("--help-all says more" in short) == (False in told)


def test_every_program_begins_alike():
    """Before it imports anything slow: found from a checkout, and silent on Ctrl-C."""
    assert len(PROGRAMS) > 12
    for path in PROGRAMS:
        statements = ast.parse(path.read_text()).body
        first = next(line for line in statements[1:] if not isinstance(line, ast.ImportFrom))
        assert ast.unparse(first) == BEGIN, path
        above = statements[: statements.index(first)]
        assert all(getattr(line, "module", "__future__") == "__future__" for line in above), path


def maps(process: subprocess.Popen) -> str:
    try:
        return Path(f"/proc/{process.pid}/maps").read_text()
    except OSError:
        return ""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ctrl_c_while_a_program_is_importing_is_no_traceback():
    tools = ("check", "train", "visualize")  # all begin alike
    running = {tool: start(tool, "--help") for tool in tools}
    waiting = dict(running)
    deadline = time.monotonic() + 180
    while waiting and time.monotonic() < deadline:
        for tool, process in list(waiting.items()):
            if "libtorch" in maps(process) or process.poll() is not None:
                process.send_signal(signal.SIGINT)
                del waiting[tool]
        time.sleep(0.002)
    codes = []
    for tool, process in running.items():
        _, err = process.communicate(timeout=180)
        assert err == "", (tool, err)
        codes.append(process.returncode)
    assert set(codes) <= {0, 130} and codes.count(130) >= 2, codes


def test_a_warning_is_one_line(tmp_path):
    root = write_plain_files(tmp_path, 4)
    (root / "labels/000001.txt").unlink()
    config = str(ROOT / "configs" / "second_small.yaml")
    command = [str(ROOT / "tools/prepare.py"), "--config", config, "--root", str(root)]
    said, _ = WarmProcess([*command, "--splits", "all"], {}).communicate(timeout=180)
    (line,) = [line for line in said.splitlines() if "left out" in line]
    assert line.startswith(f"warning: {root}/points: 000001 is without a label file")
    assert "warn_of_changes" not in said


IN_ITS_OWN_GROUP = """
import os, runpy, sys
os.setsid()
_, *sys.argv = sys.argv
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_ctrl_c_at_work_is_one_line(tmp_path, processes):
    """The signal goes to the whole group, the processes that simulate too."""
    command = [str(ROOT / "tools" / "simulate.py"), "--root", str(tmp_path / "a")]
    command += ["--split", "train", "--streets", "9999", "--processes", str(processes)]
    process = WarmProcess(["-c", IN_ITS_OWN_GROUP, *command], {})
    while len(list(tmp_path.rglob("*.bin"))) < 4 and process.poll() is None:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    err, _ = process.communicate(timeout=180)
    lines = [line for line in err.replace("\r", "\n").splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith("simulating ")]  # the progress bar
    assert process.returncode == 130 and said == ["stopped; the same command goes on from here"]
    frames = {path.stem for path in (tmp_path / "a/training/velodyne").iterdir()}
    assert not list(tmp_path.rglob("*.tmp")) and len(frames) >= 4


def raising(error: BaseException):
    def action():
        raise error

    return action


def hiding(error: Exception, other: Exception) -> Exception:
    """An error that came while the other one was handled."""
    error.__context__ = other
    return error


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ValueError("x:\n  is  wrong"), 2, "error: x: is wrong\n"),
        (FileNotFoundError(2, "No such file", "f"), 2, "error: f: No such file\n"),
        (MemoryError("9 TiB"), 2, f"error: out of memory (9 TiB): {program.LESS_MEMORY}\n"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried\nto allocate 20 GiB"), 2, None),
        (RuntimeError("conv: out of memory"), 2, None),  # of the project's own kernels
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"),
            2,
            None,
        ),
        (hiding(RuntimeError("capture"), torch.OutOfMemoryError("CUDA out of memory")), 2, None),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: x"), 2, None),
        (KeyboardInterrupt(), 130, "stopped; go on\n"),
    ],
)
def test_how_an_action_ends(error, code, said, capsys):
    assert program.run(raising(error), stopped="stopped; go on") == code
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    if said is None:
        assert err.startswith("error: out of memory (")
        assert err.endswith(f"): {program.LESS_MEMORY}\n") and "capture" not in err
    else:
        assert err == said


@pytest.mark.parametrize(("again", "said"), [(60.0, "saved\n"), (0.0, "")])
def test_the_same_ctrl_c_twice_disturbs_nothing_that_is_saved(again, said, capsys, monkeypatch):
    """`timeout -s INT` and launchers send it to the program and to its whole group."""

    def action():
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)
            print("saved")

    monkeypatch.setattr(program, "AGAIN", again)
    before = signal.signal(signal.SIGINT, program._leave)
    try:
        assert program.run(action) == 130
        assert signal.getsignal(signal.SIGINT) is program._leave
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().out == said


def test_a_full_disk_behind_standard_output_has_a_name():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from tools.program import run; "
        "sys.exit(run(lambda: print('figures')))"
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, str(ROOT)], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (
        2,
        "error: standard output: No space left on device\n",
    )


def onto_a_full_disk(path: Path) -> None:
    with replacing(path) as temporary:
        temporary.symlink_to("/dev/full")
        temporary.write_text("figures")


def onto_a_folder(path: Path) -> None:
    path.mkdir()
    write_json(path, {})


def a_pack(path: Path) -> None:
    with PackWriter(path, "", {}) as writer:
        writer._data.close()
        writer._data = open("/dev/full", "ab")  # noqa: SIM115 - the writer closes it
        writer.append([np.zeros((9, 4), np.float32)])


@pytest.mark.parametrize("write", [onto_a_full_disk, onto_a_folder, a_pack])
def test_what_cannot_be_written_has_its_own_name(tmp_path, capsys, write):
    path = tmp_path / "figures.json"
    assert program.run(partial(write, path)) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {path}") and ".tmp" not in err
    assert "No space left on device" in err or "Is a directory" in err
    assert not list(tmp_path.glob(".*"))


def test_a_folder_that_is_named_like_a_file_is_said_to_be_one(tmp_path):
    for path, read in ((tmp_path / "x.bin", read_scan), (tmp_path / "w.safetensors", load_weights)):
        path.mkdir()
        with pytest.raises(FileNotFoundError, match=f"^{path}: is a folder, not a"):
            read(path)


def test_a_way_through_a_folder_to_be_made_leads_where_it_will(tmp_path):
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    assert program.output_path(f"{tmp_path}/new/../mine.txt").exists()


def test_a_fault_of_the_program_is_not_hidden():
    with pytest.raises(RuntimeError, match="a bug"):
        program.run(raising(RuntimeError("a bug")))


def test_a_reader_that_leaves_is_no_error(tmp_path):
    labels = tmp_path / "label_2"
    labels.mkdir()
    (labels / "000000.txt").write_text("")
    with start("evaluate", "--labels", labels, "--detections", labels) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode in (program.PIPE_CLOSED, 0)


def test_a_configuration_of_the_project_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "configs/second_kitti.yaml"
    assert program.config_file(name) == program.CONFIG
    assert program.config_file("second_kitti.yaml") == Path("second_kitti.yaml")  # the user's
    (tmp_path / "configs").mkdir()
    (tmp_path / name).write_text("")
    assert program.config_file(name) == Path(name)
