"""Compiles sources while other tests run: those use one core most of the time."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from millisecond.ops.library import cache_folder

Command = Sequence[object]


class BackgroundCompiler:
    """Runs compilers beside the tests, with less priority than theirs.

    A command that once succeeded does not run again until its key changes; torch's cache of
    extensions has the keys.
    """

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory()
        self._known = cache_folder().parent / "millisecond_compiled_sources"
        self._known.mkdir(parents=True, exist_ok=True)
        self._pool = ThreadPoolExecutor(os.cpu_count())
        self._jobs: list[Future[str]] = []

    def start(
        self,
        jobs: Callable[[Path], Sequence[Command]],
        key_of: Callable[[Command, Path], str],
    ) -> None:
        """Runs the commands that `jobs` gives for a folder to write into. key_of(command, folder):
        a name that changes with all that the compiler reads."""
        folder = Path(self._folder.name)
        for command in jobs(folder):
            known = self._known / key_of(command, folder)
            if not known.exists():
                self._jobs.append(self._pool.submit(_compile, command, known))

    def errors(self) -> str:
        """What the compilers that failed said, once all have ended."""
        return "".join(job.result() for job in self._jobs)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._folder.cleanup()


def _compile(command: Command, known: Path) -> str:
    result = subprocess.run(["nice", *map(str, command)], capture_output=True, text=True)
    if result.returncode:
        return f"{command}: {result.stderr}"
    known.touch()
    return ""
