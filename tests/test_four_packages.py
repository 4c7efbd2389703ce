"""An installation of torch, numpy, pyyaml and safetensors alone: what runs in it, and how the rest
says which other package it needs."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from millisecond.__main__ import COMMANDS, completion

ROOT = Path(__file__).resolve().parents[1]
INSTALLED = ("torch", "numpy", "pyyaml", "safetensors")
# Each line runs in a fork: what is imported already takes seconds. Its output is in a file.
PROGRAM = """
import gc, os, sys
import numpy
from millisecond import Detector
from millisecond.__main__ import main
cloud = numpy.random.default_rng(0).uniform((0, -20, -2, 0), (40, 20, 0, 1), (500, 4))
print(len(Detector(device="cpu", precision="fp32")(cloud.astype("f4")).scores), flush=True)
gc.freeze()  # the end of a process would search through all that is imported
for number, line in enumerate(sys.argv[1:]):
    if not os.fork():
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{number}.{name}", os.O_CREAT | os.O_WRONLY), stream)
        sys.argv = line.split()
        if sys.argv[0].endswith(".py"):
            import runpy
            runpy.run_path(sys.argv[0], run_name="__main__")
        sys.exit(main())
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
TQDM = ("demo", "visualize", "check", "prepare", "evaluate", "suggest", "compare")
NEEDED = {
    **{f"millisecond {name}": "tqdm" for name in (*TQDM, "detect", "evaluate_tracks")},
    **{f"millisecond {name}": "pillow" for name in ("tour", "train_demo")},
    "millisecond train": "tensorboard",
    "millisecond bench pipeline": "pillow",
    "millisecond simulate --root streets --drive 3": "tqdm",
    str(ROOT / "tools" / "detect.py"): "tqdm",
}
WORKS = ["millisecond", "millisecond completion bash", "millisecond detect --help"]


def link_packages(site: Path, names: list[str]) -> None:
    """What pip would install for them, as links to what is installed here."""
    waiting, known = list(names), set()
    while waiting:
        if (name := waiting.pop()) in known:
            continue
        known.add(name)
        package = metadata.distribution(name)
        for top in {path.parts[0] for path in package.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(package.locate_file(top))
        wanted = map(Requirement, package.requires or ())
        waiting += [w.name for w in wanted if not w.marker or w.marker.evaluate({"extra": ""})]


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[str, tuple[int, str, str]]:
    """Exit code, stdout and stderr of each command line, and of the detection under its name."""
    folder = tmp_path_factory.mktemp("four")
    site = folder / "site"
    site.mkdir()
    link_packages(site, list(INSTALLED))
    lines = [*NEEDED, *WORKS]
    environment = os.environ | {"PYTHONPATH": f"{site}:{ROOT}", "OMP_NUM_THREADS": "1"}
    # -s -S: without the user's packages, without the virtual environment's
    command = [os.path.realpath(sys.executable), "-s", "-S", "-c", PROGRAM, *lines]
    run = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=240
    )
    found, *codes = run.stdout.split()
    results = {"a detection": (run.returncode, found, run.stderr)}
    for number, (line, code) in enumerate(zip(lines, codes, strict=True)):
        texts = ((folder / f"{number}.{name}").read_text() for name in ("out", "err"))
        results[line] = (int(code), *texts)
    assert not (folder / "streets").exists() or not any((folder / "streets").rglob("*.bin"))
    return results


def test_a_detection_runs(results):
    code, found, err = results["a detection"]
    assert code == 0 and int(found) > 0, err


@pytest.mark.parametrize("line", NEEDED, ids=lambda line: line.removeprefix(str(ROOT)))
def test_a_program_says_in_one_line_what_it_needs(results, line):
    code, out, err = results[line]
    package = NEEDED[line]
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1
    program = "detect" if line.endswith(".py") else " ".join(line.split()[:2])
    assert f"{program} needs {package} (" in err and err.endswith(f": pip install {package}\n")


def test_the_tracker_needs_no_extra(tmp_path):
    """`millisecond tour`, the first command that the program names, follows objects."""
    project = pytest.importorskip("tomllib").loads((ROOT / "pyproject.toml").read_text())
    link_packages(tmp_path, [Requirement(line).name for line in project["project"]["dependencies"]])
    command = [os.path.realpath(sys.executable), "-s", "-S", "-c"]
    run = subprocess.run(
        [*command, "from millisecond import Tracker; Tracker()"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr


def test_help_and_completion_work(results):
    for line in WORKS:
        code, out, err = results[line]
        assert (code, err) == (0, ""), line
        assert "usage: " in out or line.endswith("bash")
    assert results["millisecond completion bash"][1] == completion("bash") + "\n"
    assert all(name in results["millisecond"][1] for name in COMMANDS)
