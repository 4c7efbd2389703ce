"""Processes of their own that begin with torch and the project imported, which takes seconds."""

import multiprocessing
import os
import re
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

# Forked from a process that has done nothing but imports, so it has no threads.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["pytest", "torch._dynamo", "millisecond.tools.train"])


class WarmProcess:
    """Does what `python PROGRAM...` does, in one thread, and is used like a subprocess.Popen.

    Its stdout and stderr come together. What Python does after a program, such as atexit, is left
    out.
    """

    def __init__(self, program: Sequence[str], environment: Mapping[str, str]):
        self._output = tempfile.NamedTemporaryFile("r")  # noqa: SIM115 as long as this object lives
        arguments = ([*program], {**environment}, self._output.name)
        self._process = _CONTEXT.Process(target=_run, args=arguments)
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def told(self, pattern: str, timeout: float = 60.0) -> str:
        """The first part of its output that a pattern matches, once it is there."""
        end = time.monotonic() + timeout
        while (found := re.search(pattern, Path(self._output.name).read_text())) is None:
            assert self.poll() is None and time.monotonic() < end, self._output.read()
            time.sleep(0.05)
        return found[0]

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired("a warm process", timeout)
        return self._output.read(), None


def _run(program: list[str], environment: dict[str, str], output: str) -> None:
    with open(output, "w") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    os.environ.update(environment)
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork", force=True)  # again, for its own children
    first, *rest = program
    if first == "-c":
        sys.argv = [first, *rest[1:]]
        exec(rest[0], {"__name__": "__main__"})
    elif first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = program
        runpy.run_path(first, run_name="__main__")
