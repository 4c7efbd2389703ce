"""Compiles sources while other tests run: those use one core most of the time."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path


class BackgroundCompiler:
    """Runs compilers beside the tests, with less priority than theirs."""

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory()
        self._pool = ThreadPoolExecutor(os.cpu_count())
        self._jobs: list[Future[str]] = []

    def start(self, jobs: Callable[[Path], Sequence[Sequence[object]]]) -> None:
        """Runs the commands that `jobs` gives for a folder to write into."""
        self._jobs += [self._pool.submit(_compile, job) for job in jobs(Path(self._folder.name))]

    def errors(self) -> str:
        """What the compilers that failed said, once all have ended."""
        return "".join(job.result() for job in self._jobs)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._folder.cleanup()


def _compile(command: Sequence[object]) -> str:
    result = subprocess.run(["nice", *map(str, command)], capture_output=True, text=True)
    return f"{command}: {result.stderr}" if result.returncode else ""
