"""Libraries that only some sources need."""

from importlib import import_module
from types import ModuleType


def require(module: str, library: str) -> ModuleType:
    """The module of a library. Raises ValueError with the line to type where it is missing."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ValueError(
            f"{library} is needed for this source ({error}); type: pip install -e '.[live]'"
        ) from None
