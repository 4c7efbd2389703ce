"""A trainer from a configuration: seeds, weights of another training to begin with (fine-tuning),
optimiser and schedule."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from millisecond.detector.config import Config, Precision, TrainConfig
from millisecond.detector.models.second import Second
from millisecond.detector.training.checkpoints import Ema, TrainState
from millisecond.detector.training.distributed import Processes
from millisecond.detector.training.gpu_trainer import FusedAdamW, GpuTrainer
from millisecond.detector.training.losses import Criterion
from millisecond.detector.training.trainer import OneCycle, Trainer
from millisecond.detector.weights import load_weights, restore
from millisecond.ops import Recipe


def fix_randomness(seed: int, deterministic: bool) -> None:
    """Seeds torch; `deterministic` makes it choose kernels whose results are always the same."""
    torch.manual_seed(seed)
    torch.backends.cudnn.benchmark = not deterministic
    torch.use_deterministic_algorithms(deterministic)
    if deterministic:
        # no operator here reads what it has not written, and a fill per tensor takes its time
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it


HEADS = ("head.classes", "head.boxes", "head.directions", "head.velocities")
PARTS = ("encoder", "backbone", *HEADS)


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
        if not any(name.startswith(f"{part}.") for name in own):  # a network without velocities
            continue
        if part.startswith("head.") and not same_classes:
            old, new = ", ".join(theirs.class_names), ", ".join(config.class_names)
            lines.append(f"  {part}: new, for the classes are {new} instead of {old}")
        else:
            lines.append(f"  {part}: {_told(part, own, given, kept)}")
    return lines


def _told(
    part: str, own: dict[str, Tensor], given: dict[str, Tensor], kept: dict[str, Tensor]
) -> str:
    """The line of a part: whether it was kept, or else the names and shapes that are new."""
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


def precision_on(device: torch.device, precision: Literal["auto", Precision]) -> Precision:
    """The precision of a training that says so; for `auto` fp16 on a GPU, fp32 on a CPU."""
    if precision != "auto":
        return precision
    # every GPU that the kernels are made for multiplies fp16 faster
    return "fp16" if device.type == "cuda" else "fp32"


EPS = 1e-8  # of AdamW, torch's default


def build_trainer(
    model: Second,
    criterion: Criterion,
    settings: TrainConfig,
    total_steps: int,
    processes: Processes,
) -> Trainer:
    """A trainer at its first step; the model of rank 0 is the one that all start from."""
    device = processes.device
    settings = replace(settings, precision=precision_on(device, settings.precision))
    if settings.sync_batchnorm and processes.count > 1:
        if device.type != "cuda":
            raise ValueError("train.sync_batchnorm: true works on GPUs only; set it to false")
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = model.to(device).train()
    processes.copy_first([*model.parameters(), *model.buffers()])
    scaler = torch.amp.GradScaler(device.type, enabled=settings.precision == "fp16")
    ema = Ema(model, settings.ema) if settings.ema else None
    schedule = OneCycle(
        total_steps, settings.lr, settings.div_factor, settings.pct_start, settings.momentum
    )
    criterion = criterion.to(device)
    # OpenPCDet decays every parameter, BatchNorms and biases too.
    if device.type == "cuda":
        recipe = Recipe(settings.beta2, EPS, settings.weight_decay, settings.clip_norm)
        state = TrainState(model, FusedAdamW(model, recipe, scaler, ema), scaler, ema)
        return GpuTrainer(state, criterion, schedule, settings, processes)
    decay = settings.weight_decay
    optimizer = torch.optim.AdamW(model.parameters(), eps=EPS, weight_decay=decay)
    state = TrainState(model, optimizer, scaler, ema)
    return Trainer(state, criterion, schedule, settings, processes)
