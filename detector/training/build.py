"""A trainer from a configuration."""

from __future__ import annotations

import sys

import torch
from torch import nn

from detector.config_sections import TrainConfig
from detector.models.second import Second
from detector.models.sparse_encoder import no_graphs
from detector.training.distributed import Processes
from detector.training.ema import Ema
from detector.training.fused_adamw import FusedAdamW
from detector.training.gpu_trainer import GpuTrainer
from detector.training.losses import Criterion
from detector.training.schedule import OneCycle
from detector.training.state import TrainState
from detector.training.trainer import Trainer
from ops import Recipe

EPS = 1e-8  # of AdamW, torch's default


def build_trainer(
    model: Second,
    criterion: Criterion,
    settings: TrainConfig,
    total_steps: int,
    processes: Processes,
) -> Trainer:
    """A trainer at its first step; the model of rank 0 is the one that all start from. A model with
    dataflows that a CUDA graph cannot hold is trained without graphs, which a line says."""
    device = processes.device
    synchronised = settings.sync_batchnorm and processes.count > 1
    if synchronised:
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
    # OpenPCDet decays every weight, those of the BatchNorms and the biases too.
    if device.type == "cuda":
        recipe = Recipe(settings.beta2, EPS, settings.weight_decay, settings.clip_norm)
        state = TrainState(model, FusedAdamW(model, recipe, scaler, ema), scaler, ema)
        others = model.encoder.by_other_dataflows(settings.precision, training=True)
        if others and processes.first:
            print(f"warning: dataflows: {no_graphs(others)}", file=sys.stderr, flush=True)
        graphs = not synchronised and not others  # other processes are no part of a graph
        return GpuTrainer(state, criterion, schedule, settings, processes, graphs)
    decay = settings.weight_decay
    optimizer = torch.optim.AdamW(model.parameters(), eps=EPS, weight_decay=decay)
    state = TrainState(model, optimizer, scaler, ema)
    return Trainer(state, criterion, schedule, settings, processes)
