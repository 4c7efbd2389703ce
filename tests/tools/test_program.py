"""How the programs begin and end: from a bare checkout, on Ctrl-C, on a mistake."""

import ast
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools import program

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = [path for path in sorted((ROOT / "tools").glob("*.py")) if "main(" in path.read_text()]
BEGIN = """if __name__ == '__main__':
    import sys
    from pathlib import Path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tools import program
    program.begin()"""


def start(tool: str, *arguments: object, **options: object) -> subprocess.Popen:
    # -I: neither PYTHONPATH nor the folder of the tests nor the user's packages are searched
    command = [sys.executable, "-I", str(ROOT / "tools" / f"{tool}.py"), *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **pipes, **options)


# One program after the other, each with the project as if it were not imported yet, and with the
# other libraries that are there already: those take seconds.
HELP = """
import contextlib, runpy, sys, torch

others, path = set(sys.modules), list(sys.path)
for program in sys.argv[1:]:
    for name in set(sys.modules) - others:
        if name.split(".")[0] in ("data", "detector", "ops", "tools"):
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
        assert "usage" in text and (path.stem == "benchmark" or "example" in text), path


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
    tools = ("check_data", "train", "visualize")  # all begin alike
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


@pytest.mark.parametrize("processes", [1, 2])
def test_ctrl_c_at_work_is_one_line(tmp_path, processes):
    """The signal goes to the whole group, the processes that simulate too."""
    command = ["--root", tmp_path / "a", "--split", "train", "--streets", 9999]
    with start("simulate", *command, "--processes", processes, start_new_session=True) as process:
        while len(list(tmp_path.rglob("*.bin"))) < 4 and process.poll() is None:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=180)
    lines = [line for line in err.replace("\r", "\n").splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith("simulating ")]  # the progress bar
    assert process.returncode == 130 and said == ["stopped; the same command goes on from here"]
    frames = {path.stem for path in (tmp_path / "a/training/velodyne").iterdir()}
    assert not list(tmp_path.rglob("*.tmp")) and len(frames) >= 4


def raising(error: BaseException):
    def action():
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ValueError("x:\n  is  wrong"), 2, "error: x: is wrong\n"),
        (FileNotFoundError(2, "No such file", "f"), 2, "error: f: No such file\n"),
        (MemoryError("9 TiB"), 2, "error: out of memory (9 TiB)\n"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: x"), 2, None),
        (KeyboardInterrupt(), 130, "stopped; go on\n"),
    ],
)
def test_how_an_action_ends(error, code, said, capsys):
    assert program.run(raising(error), stopped="stopped; go on") == code
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert said is None or err == said


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
