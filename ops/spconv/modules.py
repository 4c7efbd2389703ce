"""Modules that take a `SparseConvTensor`, and the sequence of them, as in spconv 2."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import _has_any_global_hook

from millisecond.ops.spconv.core import SparseConvTensor
from millisecond.ops.spconv.recipe import following


class SparseModule(nn.Module):
    """A module whose input is a `SparseConvTensor` in a `SparseSequential` too.

    A program's own follows its recipe where its `forward` has one: see `ops.spconv.recipe`.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = cls.__module__.startswith(__name__.rpartition(".")[0])
        if isinstance(cls.__dict__.get("forward"), FunctionType) and not own:
            cls.forward = following(cls.forward)

    def __init__(self, name: str | None = None):
        super().__init__()
        self.name = name
        self._sparse_unique_name = ""


class SparseSequential(SparseModule):
    """Modules one after another: positional, by name, or in one OrderedDict.

    A plain module gets the features [N, C] alone. Where there is no row, those that need one are
    left out (normalisation).
    """

    def __init__(self, *args: nn.Module, **kwargs: nn.Module):
        super().__init__()
        self._structure: tuple[list, list] = [], []
        if len(args) == 1 and isinstance(args[0], OrderedDict):
            named = list(args[0].items())
        else:
            named = [(str(number), module) for number, module in enumerate(args)]
        for name, module in named:
            self.add_module(name, module)
        for name, module in kwargs.items():
            self.add(module, name)

    def __getitem__(self, idx: int) -> nn.Module:
        return list(self._modules.values())[idx]  # type: ignore[return-value]

    def __len__(self) -> int:
        return len(self._modules)

    def add(self, module: nn.Module, name: str | None = None) -> None:
        """Append a module; its name is its number unless given."""
        name = str(len(self._modules)) if name is None else name
        if name in self._modules:
            raise KeyError(f"{name}: this SparseSequential has a module of that name already")
        self.add_module(name, module)

    def forward(self, input: Any) -> Any:
        from millisecond.ops.spconv import (
            fusion,  # it knows convolutions, which are modules of this file
        )

        modules = _flat(self)
        if modules != self._structure[0]:
            self._structure = modules, fusion.blocks_in(modules)
        structure = self._structure[1]
        if _has_any_global_hook():  # somebody watches every module: one by one
            structure = [None] * len(modules)
        at = 0
        while at < len(modules):
            module = modules[at]
            if structure[at] is not None and isinstance(input, SparseConvTensor):
                blocks = fusion.run_of(structure[at::3], input.features)
                result = fusion.run(blocks, input) if blocks else None
                if result is not None:
                    input, at = result, at + 3 * len(blocks)
                    continue
            if is_spconv_module(module) or not isinstance(input, SparseConvTensor):
                input = module(input)
            elif len(input.indices) or not isinstance(module, _BatchNorm):
                input = input.replace_feature(module(input.features))
            at += 1
        return input

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_structure": ([], [])}

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        self._structure = [], []


def _flat(sequential: SparseSequential) -> list[nn.Module]:
    """Its modules, with the modules of a plain sequence in its place."""
    modules: list[nn.Module] = []
    for module in sequential._modules.values():
        if type(module) is SparseSequential and is_plain(module):
            modules += _flat(module)
        elif module is not None:
            modules.append(module)
    return modules


def is_plain(module: nn.Module) -> bool:
    """Whether nobody watches this module, and it has its class's forward."""
    own = module.__dict__  # attributes of modules take the host time
    return not (
        own["_forward_hooks"]
        or own["_forward_pre_hooks"]
        or own["_backward_hooks"]
        or own["_backward_pre_hooks"]
        or "forward" in own
    )


class _OfFeatures:
    """Before a module of torch: it computes on the features of a sparse tensor, or on a tensor."""

    def forward(self, input: Any) -> Any:
        compute: Callable[[Tensor], Tensor] = super().forward  # type: ignore[misc]
        if isinstance(input, SparseConvTensor):
            return input.replace_feature(compute(input.features))
        return compute(input)


class SparseBatchNorm(_OfFeatures, nn.BatchNorm1d):
    """BatchNorm1d of a sparse tensor's features."""


class SparseSyncBatchNorm(_OfFeatures, nn.SyncBatchNorm):
    """SyncBatchNorm of a sparse tensor's features."""


class SparseReLU(_OfFeatures, nn.ReLU):
    """ReLU of a sparse tensor's features."""


class SparseIdentity(nn.Identity):
    """A sparse tensor as it is."""


class ToDense(SparseModule):
    """[B, C, *spatial_shape] of a sparse tensor."""

    def forward(self, x: SparseConvTensor) -> Tensor:
        return x.dense()


class RemoveGrid(SparseModule):
    """Forgets `grid`, which nothing here uses."""

    def forward(self, x: SparseConvTensor) -> SparseConvTensor:
        x.grid = None
        return x


def is_spconv_module(module: Any) -> bool:
    """Whether a `SparseSequential` hands it the sparse tensor, not the features."""
    return isinstance(module, SparseModule | SparseBatchNorm | SparseReLU)


def is_sparse_conv(module: Any) -> bool:
    from millisecond.ops.spconv.convolution import SparseConvolution

    return isinstance(module, SparseConvolution)


def assign_name_for_sparse_modules(module: nn.Module) -> None:
    """Gives every sparse module its name in `module`."""
    for name, child in module.named_modules():
        if isinstance(child, SparseModule):
            child._sparse_unique_name = name
