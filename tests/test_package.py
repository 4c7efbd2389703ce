"""The installed package: one name, beside a user's own packages, from any folder; its command."""

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from millisecond.__main__ import COMMANDS, completion, page

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("millisecond", "ops", "data", "detector", "tools", "configs", "examples")
KINDS = (".py", ".yaml", ".cpp", ".cu", ".cuh", ".h", ".safetensors")
DETECT = """
import numpy, data, ops, tools
from millisecond import Detector, Tracker, ops as operators
assert ops.OWNER == data.OWNER == tools.OWNER == "the user" and Tracker()
assert operators.__name__ == "millisecond.ops"
cloud = numpy.random.default_rng(0).uniform((0, -20, -2, 0), (40, 20, 0, 1), (500, 4))
print(len(Detector(device="cpu")(cloud.astype("f4")).scores))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """site-packages with nothing but a wheel made from this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    for part in (*PARTS, "pyproject.toml", "setup.py", "README.md", "LICENSE"):
        source, copy = ROOT / part, folder / "source" / part
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, copy, ignore=ignored) if source.is_dir() else shutil.copy(
            source, copy.parent
        )
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", build, str(folder)],
        cwd=folder / "source",
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def run(*arguments, site, folder):
    environment = os.environ | {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


def test_the_wheel_holds_every_source_under_one_name(installed):
    names = [path.name for path in installed.iterdir() if path.suffix != ".dist-info"]
    assert names == ["millisecond"]
    for part in PARTS:
        home = installed / "millisecond" / ("" if part == "millisecond" else part)
        for path in (ROOT / part).rglob("*"):
            if path.suffix in KINDS:
                copy = home / path.relative_to(ROOT / part)
                assert copy.read_bytes() == path.read_bytes(), copy


def test_it_works_beside_packages_of_the_same_names(installed, tmp_path):
    for name in ("ops", "data", "tools", "detector", "configs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("OWNER = 'the user'\n")
    done = run("-c", DETECT, site=installed, folder=tmp_path)
    assert done.returncode == 0 and done.stdout.strip().isdecimal(), done.stderr


def test_a_command_runs_from_any_folder(installed, tmp_path):
    done = run("-m", "millisecond", "tune", "--help", site=installed, folder=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("usage: millisecond tune"), done


def test_the_wheel_writes_what_a_robot_builds(installed, tmp_path):
    done = run("-m", "millisecond", "export", "second", "robot", site=installed, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("LICENSE", "examples/detect.cpp"):
        assert (tmp_path / "robot" / name).read_bytes() == (ROOT / name).read_bytes()


def test_a_checkout_works_without_installing(tmp_path):
    missing = [tmp_path / "none", "--output", tmp_path / "results"]
    done = run("-m", "millisecond", "detect", *missing, site="", folder=ROOT)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


def test_the_page_names_every_program():
    text = page()
    for name in COMMANDS:
        assert re.search(rf"^  {name} +\S", text, re.MULTILINE)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) <= 29  # a screen, and the prompt
    programs = {
        path.stem for path in (ROOT / "tools").glob("*.py") if "def main(" in path.read_text()
    }
    assert set(COMMANDS) == programs


def test_an_unknown_command_is_one_line():
    done = run("-m", "millisecond", "detct", site="", folder=ROOT)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "detct: not a command of millisecond; there are tour, detect" in done.stderr


LINES = {
    "prep": "prepare",
    "train --res": "train --resume",
    "detect --precision bf": "detect --precision bf16",
    "detect sca": "detect scans",
    "detect --calib sca": "detect --calib scans",
    "bench pip": "bench pipeline",
    "bench operators --repe": "bench operators --repeats",
    "import nu": "import nuscenes",
    "completion z": "completion zsh",
}


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes_commands_options_choices_and_files(shell, tmp_path):
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "scans").mkdir()
    (tmp_path / "script").write_text(completion(shell))
    bare = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"]}[shell]
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        os.execvpe(shell, [shell, *bare, "-i"], os.environ | {"TERM": "dumb", "HOME": "."})

    def answer(line: str) -> str:
        os.write(terminal, line.encode() + b"\n")
        text = ""
        while not (found := re.search(r"<<(.+?)/?>>", text)):
            assert select.select([terminal], [], [], 30)[0], text
            text += os.read(terminal, 65536).decode(errors="replace")
        return found[1].strip()

    try:
        assert (
            answer("source ./script; millisecond() { echo '<'\"<$*>\"'>'; }; millisecond a") == "a"
        )
        assert {line: answer(f"millisecond {line}\t") for line in LINES} == LINES
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(terminal)
