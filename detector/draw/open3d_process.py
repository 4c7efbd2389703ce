"""Open3D in a process of its own, behind a pipe.

Its native code ends its process where there is no usable OpenGL or Vulkan driver, waits for ever
for some displays, and may crash when Python's interpreter goes down with a window open. None of
that reaches the program, which sees a pipe that closes.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

LIBRARIES = "libusb-1.0-0 libgl1 libegl1 libx11-6 libgomp1 libvulkan1 mesa-vulkan-drivers"
REMEDY = f"try: apt-get install -y {LIBRARIES}"


class Open3DProcess:
    """Runs serve(pipe, *arguments) in a process that lasts until `close`."""

    def __init__(self, serve: Callable[..., None], *arguments: Any):
        """serve: a function of a module, called with its end of the pipe first."""
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_run, args=(serve, other, *arguments), daemon=True)
        # Ctrl-C reaches all processes of the terminal; this one ends when the program says so. It
        # inherits the signal's being ignored, for it might come during the first imports.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._process.start()
        finally:
            signal.signal(signal.SIGINT, before)
            other.close()  # now only the process holds it, so its end is seen here

    def send(self, message: Any) -> None:
        """Raises OSError where the process has ended."""
        self._pipe.send(message)

    def has_answer(self, seconds: float | None) -> bool:
        """Wait for a message or the process's end, at most so long."""
        return self._pipe.poll(seconds)

    def answer(self) -> Any:
        """The next message; raises EOFError where the process has ended."""
        return self._pipe.recv()

    def close(self) -> None:
        """End the process; it holds nothing that would be lost."""
        self._pipe.close()
        self._process.kill()
        self._process.join()
        self._process.close()


def _run(serve: Callable[..., None], pipe: Connection, *arguments: Any) -> None:
    sys.stderr = os.fdopen(os.dup(2), "w")  # Python's own errors are still seen
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # the native code talks a lot
        os.dup2(nowhere, stream)
    with suppress(EOFError, OSError):  # the program has gone
        serve(pipe, *arguments)
    os._exit(0)  # without the end of the interpreter, in which the native code may crash
