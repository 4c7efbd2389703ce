"""Writes docs/api.md from signatures and docstrings: python -m docs.api

Shapes are read from the comments behind parameters and fields: `points: Tensor,  # [B, P, 3]`.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

PAGE = Path(__file__).with_name("api.md")
PACKAGE = "millisecond."  # before every module's name
# What a user may import. A module without `__all__` gives the functions and classes it defines.
MODULES = {
    "detector": "Boxes from points",
    "detector.tracking": "Tracks from boxes",
    "detector.following": "Detection in scans as they come",
    "detector.weights": "Weights files",
    "detector.config": "The configuration of a run",
    "detector.models.second": "The network",
    "detector.anchors": "Anchors",
    "detector.training.run": "Training",
    "ops": "Operators on tensors",
    "ops.lab": "Other dataflows, and what is measured beside the operators",
    "data.frame": "Frames and batches",
    "data.boxes": "Boxes in numpy, detections by name",
    "data.formats.clouds": "Files of scans",
    "data.datasets": "Data sets",
    "data.packed": "What all data sets have",
    "data.folder.dataset": "Plain files",
    "data.kitti.dataset": "KITTI's layout",
    "data.calibration": "KITTI's calibrations",
    "data.kitti.labels": "KITTI's labels",
    "data.metric.kitti": "KITTI's metric",
    "data.metric.evaluation": "The metric without a camera",
    "data.augment": "Augmentation",
    "data.simulator": "Simulated streets",
    "data.live.source": "Live sources",
    "data.live.scan": "Live scans",
    "data.live.messages": "ROS 2 messages of scans and objects, and MCAP files of them",
    "data.live.queue": "Sources played again, or read ahead by a thread",
}
HEAD = """# Python API

Every public name, by module. `python -m docs.api` writes this page from the docstrings; they also
have errors and details, e.g. `help(ops.nms)`. Arguments in brackets may be left out.

B batch, P points, N voxels or active sites, M output sites or objects, V kernel offsets, C
channels, A anchors, K classes. A box is x, y, z of the centre, length, width, height in metres,
and yaw in radians.

`{package}ops.spconv` has the names of spconv 2: [from_spconv.md](from_spconv.md). The C functions
are in [cpp.md](cpp.md).
"""
SHAPED = re.compile(
    r"^\s+\*{0,2}(\w+): [^#\n]*#\s*(?:.*?: )?(\[[^\]]*\](?: [a-z]+\d+\b)?)", re.MULTILINE
)


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    parts = [HEAD.format(package=PACKAGE)]
    for name, subject in MODULES.items():
        module = importlib.import_module(PACKAGE + name)
        rows = [row for public in public_names(module) for row in rows_of(module, public)]
        lines = "".join(f"| {call} | {text} | {shapes} |\n" for call, text, shapes in rows)
        parts.append(
            f"## `{PACKAGE}{name}`: {subject}\n\n| name | | shapes |\n|---|---|---|\n{lines}"
        )
    return "\n".join(parts)


def public_names(module: ModuleType) -> list[str]:
    """What the module exports; without `__all__` the functions and classes that it defines."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__, key=str.lower)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__ == module.__name__
    ]


def rows_of(module: ModuleType, name: str) -> Iterator[tuple[str, str, str]]:
    """Call, first sentence and shapes of a name, and of the methods of a class."""
    value = getattr(module, name)
    if inspect.ismodule(value):
        yield f"`{name}`", first_sentence(value), ""
        return
    if not callable(value):
        yield f"`{name}`", f"`{value!r}`".replace("|", "\\|"), ""
        return
    yield f"`{name}{arguments(value)}`", first_sentence(value), shapes(value)
    if not inspect.isclass(value) or hasattr(value, "_fields"):
        return
    for method, defined in vars(value).items():
        function = getattr(defined, "__func__", defined)
        if inspect.isfunction(function) and function.__doc__ and not method.startswith("_"):
            call = f"`{name}.{method}{arguments(function, bound=True)}`"
            yield call, first_sentence(function), shapes(function)


def arguments(value: object, bound: bool = False) -> str:
    """The names of the parameters, those that may be left out in brackets: (a, b[, c])."""
    parameters = list(inspect.signature(value).parameters.values())[bound:]
    named = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    needed = ", ".join(p.name for p in named if p.default is p.empty)
    optional = ", ".join(p.name for p in named if p.default is not p.empty)
    return f"({needed}{'[' + (', ' if needed else '') + optional + ']' if optional else ''})"


def first_sentence(value: object) -> str:
    paragraph = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    sentence = re.split(r"(?<!e\.g)(?<!al)(?<!i\.e)\.(?= [A-Z`])", paragraph, maxsplit=1)[0]
    return sentence.rstrip(".").replace("|", "\\|")


def shapes(value: object) -> str:
    """Shapes of the parameters of a function, or of the fields of a class."""
    source = inspect.getsource(value)
    if inspect.isfunction(value):
        source = re.split(r'^\s+"""', source, maxsplit=1, flags=re.MULTILINE)[0]
    else:
        source = re.split(r"^    def ", source, maxsplit=1, flags=re.MULTILINE)[0]
    return ", ".join(f"`{name}` {shape}" for name, shape in SHAPED.findall(source))


if __name__ == "__main__":
    main()
