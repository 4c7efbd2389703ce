"""Whatever is handed to a program, it ends with 0 or 2 and says one line; nothing else changes."""

import sys
from types import SimpleNamespace

import pytest

from tests.helpers.fuzz.cases import fuzz
from tests.helpers.fuzz.judge import call, snapshot


def test_fuzz(request):
    options = request.config.option
    assert not fuzz(options.seconds, options.seed, options.case)


def said(code, line=""):
    return lambda _: print(line, file=sys.stderr) or code


def failing(error):
    def main(_):
        raise error

    return main


@pytest.mark.parametrize(
    ("main", "wrong"),
    [
        (said(0), ""),
        (said(2, "error: x"), ""),
        (said(2), "0 lines"),
        (said(2, "error: x\nerror: y"), "2 lines"),
        (said(0, "error: x"), "exit code 0"),
        (said(1), "exit code 1"),
        (said(2, "error: " + "x" * 2000), "a line of 2007 characters"),
        (failing(KeyError("x")), "Traceback"),
        (failing(SystemExit(3)), "exit code 3"),
        (lambda _: bytearray(1 << 40), "MemoryError"),
    ],
)
def test_the_judge(tmp_path, main, wrong):
    found = call(SimpleNamespace(main=main), [], tmp_path)
    assert wrong in found and bool(wrong) == bool(found)


def test_a_change_is_seen(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("x")
    before = snapshot(tmp_path, ["out"])
    (tmp_path / "out").write_text("y")
    assert snapshot(tmp_path, ["out"]) == before
    (tmp_path / "in" / "a").write_text("z")
    assert snapshot(tmp_path, ["out"]) != before
