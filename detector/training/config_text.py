"""A chosen configuration as YAML with the reasons as comments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import yaml

from data.schema import plain
from detector.training.config_choice import Choice


def config_text(choice: Choice, title: Sequence[str]) -> str:
    """YAML that `parse_config` reads back to the choice; title: lines of comment at the top."""
    config, reasons = choice.config, choice.reasons
    lines = [f"# {line}" for line in title] + ["", "points:"]
    points = config.points
    lines += [
        f"  columns: {_flow(points.columns)}  # {reasons['points.columns']}",
        f"  features: {_flow(points.features)}  # what the network takes; any columns may follow",
        f"  intensity_scale: {points.intensity_scale:g}  # {reasons['points.intensity_scale']}",
        "",
        "classes:  # anchor: size (l, w, h) and bottom face in metres; IoU from which it is "
        "positive, below which negative",
    ]
    if "classes" in reasons:
        lines.append(f"  # {reasons['classes']}")
    for kind in config.classes:
        lines.append(f"  # {kind.name}: {reasons[f'classes.{kind.name}']}")
        lines.append(f"  - {_flow(asdict(kind))}")
    grid = config.grid
    lines += [
        "",
        "grid:  # metres: x forward, y left, z up",
        f"  # {reasons['grid.range']}; {reasons['z']}",
        f"  range: {_flow(grid.range)}",
        f"  voxel_size: {_flow(grid.voxel_size)}  # {reasons['grid.voxel_size']}",
        f"  max_points: {grid.max_points}",
    ]
    for key in ("max_voxels_train", "max_voxels_test"):
        lines.append(f"  {key}: {getattr(grid, key)}  # {reasons[f'grid.{key}']}")
    camera = "labels name only what the camera sees" if grid.crop_to_image else "there is no camera"
    lines += [f"  crop_to_image: {str(grid.crop_to_image).lower()}  # {camera}", ""]
    lines += ["model:", f"  encoder: {_flow(asdict(config.model.encoder))}"]
    lines += [f"  bev: {_flow(asdict(config.model.bev))}", ""]
    lines += [f"loss: {_flow(asdict(config.loss))}", ""]
    lines += [f"postprocess: {_flow(asdict(config.postprocess))}", ""]
    augment = asdict(config.augment)
    lines += ["augment:", "  sample:  # boxes per class that pasting fills a scene up to"]
    for name, number in augment.pop("sample").items():
        lines.append(f"    {_word(name)}: {number}  # {reasons[f'augment.sample.{name}']}")
    for section, values in (("augment", augment), ("train", asdict(config.train))):
        lines += ["", "train:"] if section == "train" else []
        for key, value in values.items():
            reason = reasons.get(f"{section}.{key}")
            lines.append(f"  {key}: {_flow(value)}" + (f"  # {reason}" if reason else ""))
    return "\n".join(lines) + "\n"


def _flow(value) -> str:
    """A value in one line."""
    text = yaml.safe_dump(plain(value), sort_keys=False, default_flow_style=True, width=10_000)
    return text.removesuffix("...\n").strip()


def _word(name: str) -> str:
    """A key, in quotes where YAML would read something else."""
    return _flow({name: 0})[1:-4]
