"""Whether there is a display that windows can be opened on."""

import ctypes
import ctypes.util
import os
import sys
from threading import Thread

PATIENCE = 10.0  # seconds, on a machine that has much else to do


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
