"""Weights of another training as the beginning of this one."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from detector.config import Config
from detector.models.second import Second
from detector.weights import load_weights, restore

PARTS = ("encoder", "backbone", "head.classes", "head.boxes", "head.directions")


def start_from(model: Second, config: Config, source: Path) -> list[str]:
    """Copies into a fresh model the weights of a file that fit it by name and shape.

    The heads belong to the classes and their anchors: they are kept only where both networks have
    the same classes in the same order. What does not fit stays as it was initialised.

    Returns one line per part of the network that says what was kept and what is new. Raises
    FileNotFoundError, or ValueError where the file is damaged, holds values that are not finite,
    or where nothing of it fits; the model is unchanged then.
    """
    theirs, given = load_weights(source)
    own = model.state_dict()
    same_classes = theirs.class_names == config.class_names
    kept = {
        name: tensor
        for name, tensor in given.items()
        if name in own
        and tensor.shape == own[name].shape
        and (same_classes or not name.startswith("head."))
    }
    if not any(tensor.ndim > 1 for tensor in kept.values()):  # convolutions, not BatchNorms
        raise ValueError(
            f"{source}: no weight fits this network by name and shape; leave --from out, or take "
            f"the sizes of its configuration: model.encoder.channels "
            f"{list(theirs.model.encoder.channels)}, model.bev.channels "
            f"{list(theirs.model.bev.channels)}"
        )
    restore(model, own | kept, source)
    lines = [f"weights: {source}"]
    for part in PARTS:
        if part.startswith("head.") and not same_classes:
            old, new = ", ".join(theirs.class_names), ", ".join(config.class_names)
            lines.append(f"  {part}: new, for the classes are {new} instead of {old}")
        else:
            lines.append(f"  {part}: {_told(part, own, given, kept)}")
    return lines


def _told(
    part: str, own: dict[str, Tensor], given: dict[str, Tensor], kept: dict[str, Tensor]
) -> str:
    """What of a part was kept, and the shapes of what is new."""
    names = [name for name in own if name.startswith(f"{part}.")]
    new = [name for name in names if name not in kept]
    if not new:
        return "kept"
    told = [f"{name.removeprefix(f'{part}.')} {_shapes(name, own, given)}" for name in new[:3]]
    told += [f"{len(new) - 3} more"] * (len(new) > 3)
    some = "new" if len(new) == len(names) else f"{len(names) - len(new)} of {len(names)} kept, new"
    return f"{some}: {', '.join(told)}"


def _shapes(name: str, own: dict[str, Tensor], given: dict[str, Tensor]) -> str:
    if name not in given:
        return f"{list(own[name].shape)}"
    return f"{list(own[name].shape)} instead of {list(given[name].shape)}"
