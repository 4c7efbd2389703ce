"""Open3D in a process of its own, behind a pipe; whether there is a display for its windows.

Open3D's native code ends its process where there is no usable OpenGL or Vulkan driver. It waits for
ever for some displays. It may crash when Python's interpreter ends with a window open. The program
itself is safe: it only sees a pipe that closes.
"""

import ctypes
import ctypes.util
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any

PATIENCE = 10.0  # seconds, enough for a busy machine


def display_problem() -> str:
    """Why there is no usable display; empty where there is one."""
    if sys.platform != "linux":
        return ""
    display = os.environ.get("DISPLAY")
    if not display and os.environ.get("WAYLAND_DISPLAY"):
        return "no display: under Wayland too Open3D needs an X server (XWayland); DISPLAY is empty"
    if not display:
        return "no display: DISPLAY is empty"
    answers: list[bool] = []
    probe = Thread(target=lambda: answers.append(_x_server_answers()), daemon=True)
    probe.start()
    probe.join(PATIENCE)  # a server that hangs takes the connection and says nothing
    return "" if any(answers) else f"no display: no X server answers at DISPLAY={display}"


def _x_server_answers() -> bool:
    library = ctypes.util.find_library("X11")
    if library is None:
        return False
    x11 = ctypes.CDLL(library)
    x11.XOpenDisplay.restype = ctypes.c_void_p
    display = x11.XOpenDisplay(None)
    if display:
        x11.XCloseDisplay(ctypes.c_void_p(display))
    return bool(display)


def processor_draws() -> bool:
    """Whether the graphics driver is Mesa's for the processor: there is no graphics card.

    Open3D takes Vulkan on Linux, and this driver's Vulkan compiles some shaders again for each
    drawing. Mesa 22.3 never frees them, 5 MB each time; Mesa 25.0 does.
    """
    cards = ("dri/render*", "nvidiactl", "dxg")
    return sys.platform == "linux" and not any(any(Path("/dev").glob(card)) for card in cards)


# EngineInstance::SelectBackend in Open3D's library; its Python module leaves it out.
SELECT_BACKEND = (
    "_ZN6open3d13visualization9rendering14EngineInstance13SelectBackendENS1_13RenderingTypeE"
)
OPENGL = 1  # of RenderingType


def select_opengl() -> bool:
    """Let Open3D draw with OpenGL, for which a display is needed. False where this Open3D has no
    such choice."""
    import open3d

    select = getattr(ctypes.CDLL(open3d.pybind.__file__), SELECT_BACKEND, None)
    if select is not None:
        select(OPENGL)
    return select is not None


LIBRARIES = "libusb-1.0-0 libgl1 libegl1 libx11-6 libgomp1 libvulkan1 mesa-vulkan-drivers"
REMEDY = f"try: {f'apt-get install {LIBRARIES}' if find_spec('open3d') else 'pip install open3d'}"


class Open3DProcess:
    """Runs serve(pipe, *arguments) in a process that lasts until `close`."""

    def __init__(self, serve: Callable[..., None], *arguments: Any):
        """serve: a function of a module, called with its end of the pipe first."""
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_run, args=(serve, other, *arguments), daemon=True)
        # Ctrl-C reaches all processes of the terminal; this one ends when the program says so. It
        # inherits that the signal is ignored, since Ctrl-C might come during the first imports.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._process.start()
        finally:
            signal.signal(signal.SIGINT, before)
            other.close()  # only the process holds it now, so the pipe shows its end

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
    with suppress(EOFError, OSError, ModuleNotFoundError):  # the program has gone, or no Open3D
        serve(pipe, *arguments)
    os._exit(0)  # without the end of the interpreter, in which the native code may crash
