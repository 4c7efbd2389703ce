"""One GPU stands for others: routes, tiles and launches are chosen by what they allow."""

import ctypes

from millisecond.ops import library

# capability, what the kernels were compiled for, multiprocessors, bytes of shared memory of a block
DEVICES = {
    "8.0": (80, 80, 108, 163 * 1024),  # A100
    "8.6": (86, 86, 28, 99 * 1024),  # RTX 3060
    "8.7": (87, 87, 16, 163 * 1024),  # Jetson Orin
    "8.9": (89, 89, 58, 99 * 1024),  # L4
    "10.0": (100, 100, 132, 227 * 1024),  # B200, of whose 148 multiprocessors an H100 has 132
    "12.0": (120, 120, 70, 99 * 1024),  # RTX 5070 Ti
}


def stand_for(device: str | None) -> None:
    """The operators of this process run as on this device from now on; None: as on the real one."""
    library.extension()
    kernels = ctypes.CDLL(str(library.library_path(library.read_sources())))
    limits = (ctypes.c_int * 4)(*DEVICES[device]) if device else None
    kernels.millisecond_replace_device_limits(limits)
