"""The network and its inference (`Detector`). Subpackages: models/, training/ and draw/."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millisecond.detector.detector import Detector

__all__ = ["Detector"]


def __getattr__(name: str) -> Any:
    """Imports it at its first use: the process of a window draws without torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from millisecond.detector.detector import Detector

    return Detector
