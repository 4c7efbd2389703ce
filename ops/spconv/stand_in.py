"""Standing in for the package `spconv` in the imports of other people's programs."""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

VERSION = "2.3.8"  # of spconv's face; programs ask for it

PACKAGE = "millisecond.ops.spconv"
PARTS = (  # one module here for both places where spconv has it
    "constants",
    "conv",
    "core",
    "cppconstants",
    "functional",
    "hash",
    "identity",
    "modules",
    "ops",
    "pool",
    "tables",
    "test_utils",
    "tools",
    "utils",
)


def install() -> None:
    """From now on `import spconv`, `import spconv.pytorch` and their modules give this package.

    Raises RuntimeError where the real spconv is loaded already: a program would use parts of both.
    """
    loaded = sys.modules.get("spconv")
    package = _package()
    if loaded is not None and loaded is not package:
        raise RuntimeError(
            "spconv: loaded already; call ops.spconv.install() before anything imports it"
        )
    for name in ("spconv", "spconv.pytorch"):
        sys.modules[name] = package
        for part in PARTS:
            sys.modules[f"{name}.{part}"] = importlib.import_module(f"{PACKAGE}.{part}")
    package.pytorch = package  # type: ignore[attr-defined]
    if not any(isinstance(finder, _NotHere) for finder in sys.meta_path):
        sys.meta_path.append(_NotHere())  # the last one: nobody else has found it
    if "cumm" not in sys.modules and find_spec("cumm") is None:
        _install_tensorview()


class _NotHere(MetaPathFinder):
    """Says what an import of a module of spconv's that is not here should do instead."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if not fullname.startswith("spconv.") or sys.modules.get("spconv") is not _package():
            return
        asking = sys._getframe(1).f_back  # behind Python's own search
        if asking is not None and asking.f_code is importlib.util.find_spec.__code__:
            return  # a program asks whether it is there, and gets None
        raise ModuleNotFoundError(
            f"{fullname}: not in ops.spconv; docs/from_spconv.md lists what is", name=fullname
        )


def _package() -> ModuleType:
    return importlib.import_module(PACKAGE)


def _install_tensorview() -> None:
    """`cumm.tensorview`, which programs import for `Point2VoxelCPU3d`, and for the activations that
    layers have."""
    from millisecond.ops.spconv.convolution import Activation
    from millisecond.ops.spconv.utils import HostArray

    cumm, tensorview = ModuleType("cumm"), ModuleType("cumm.tensorview")
    cumm.__path__ = []
    cumm.tensorview = tensorview  # type: ignore[attr-defined]
    tensorview.from_numpy = tensorview.from_numpy_nocheck = HostArray  # type: ignore[attr-defined]
    tensorview.Tensor = HostArray  # type: ignore[attr-defined]
    tensorview.gemm = SimpleNamespace(Activation=Activation)  # type: ignore[attr-defined]
    sys.modules["cumm"], sys.modules["cumm.tensorview"] = cumm, tensorview
