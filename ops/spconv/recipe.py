"""What a program's module does with a sparse tensor, read from its `forward`.

Residual blocks of other programs call convolution, normalisation and ReLU one by one, with
`replace_feature` between them. Where a `forward` does nothing but that, it runs once on symbols,
and the steps that it took are its recipe: runs of blocks that one operator call computes, and
calls of other modules. The results are those of the `forward`; the host has less to do.
"""

from __future__ import annotations

import dis
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.module import _has_any_global_hook

from millisecond.ops.spconv.core import SparseConvTensor

CONSTANTS = (bool, int, float, str, type(None))
OF_SYMBOLS = {"features", "replace_feature", "dim", "__dir__"}
OF_TORCH = {"nn", "functional", "relu", "add"}
BUILTINS = {"hasattr", "range", "len", "enumerate", "zip"}
# what reads names and calls, jumps, and keeps local variables
CHANGES = ("STORE_ATTR", "STORE_GLOBAL", "STORE_SUBSCR", "STORE_DEREF", "DELETE", "IMPORT", "YIELD")
OUTER = ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_CLOSURE", "LOAD_SUPER", "MAKE_FUNCTION")


class Unreadable(Exception):
    """A `forward` does more than a recipe says."""


RELU = nn.ReLU()  # of the function


# ---- symbols ------------------------------------------------------------------------------------


class Features:
    """The features of a sparse tensor."""

    def __init__(self, *of: Any):
        self.of, self.is_changed = of, False  # in place, by a step after it

    def _read(self) -> Features:
        if self.is_changed:
            raise Unreadable
        return self

    def dim(self) -> int:
        return 2

    def __add__(self, other: Any) -> Features:
        if not isinstance(other, Features):
            raise Unreadable
        return Added(self._read(), other._read())

    __iadd__ = None  # others have these features, too

    @classmethod
    def __torch_function__(
        cls, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Features:
        if function in (functional.relu, torch.relu) and not kwargs and len(args) == 1:
            return Rectified(args[0]._read(), RELU)
        if function is torch.add and not kwargs and len(args) == 2:
            return args[0] + args[1]
        raise Unreadable


class Normalised(Features):
    """(features, BatchNorm1d)"""


class Added(Features):
    """(features, features)"""


class Rectified(Features):
    """(features, ReLU)"""


class Sparse:
    """A sparse tensor: the input, or what a module gives for another one."""

    def __init__(self, module: Any = None, source: Any = None):
        self.module, self.source = module, source
        self.features = Features(self)
        self.base = self  # whose sites and maps it has
        self.uses = 0  # by modules

    def replace_feature(self, features: Any) -> Sparse:
        if not isinstance(features, Features):
            raise Unreadable
        other = object.__new__(Sparse)
        other.module, other.source, other.base, other.uses = None, None, self.base, 0
        other.features = features._read()
        return other


class Called:
    """A module as the attribute of another one; notes what it makes."""

    def __init__(self, module: nn.Module, made: list):
        self._module, self._made = module, made

    def __call__(self, x: Any) -> Any:
        module = self._module
        if isinstance(x, Sparse):
            x.features._read()
            x.uses += 1
            self._made.append(Sparse(module, x))
            return self._made[-1]
        if not isinstance(x, Features):
            raise Unreadable
        x._read()
        if type(module) is nn.BatchNorm1d:
            self._made.append(Normalised(x, module))
            return self._made[-1]
        if type(module) is nn.ReLU:
            x.is_changed = module.inplace
            return Rectified(x, module)
        raise Unreadable

    def __iter__(self) -> Iterator[Called]:
        if not isinstance(self._module, nn.ModuleList):
            raise Unreadable
        return (Called(module, self._made) for module in self._module)


class Self:
    """A module with its modules and constants alone; notes what was read."""

    def __init__(self, module: nn.Module):
        self.__dict__.update(_of=module, _read={}, _made=[])

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._of, name)
        self._read[name] = value
        if isinstance(value, nn.Module):
            return Called(value, self._made)
        if type(value) in CONSTANTS:
            return value
        raise Unreadable


# ---- recipes ------------------------------------------------------------------------------------


class Blocks(NamedTuple):
    """Blocks one after another."""

    source: int  # the number of the sparse tensor that they take
    modules: list  # fusion.Modules of each
    residual: int | None  # whose features are added before the last ReLU


class Call(NamedTuple):
    source: int
    module: nn.Module


class Recipe:
    """The steps of a `forward`; each makes the next sparse tensor, the input is number 0."""

    def __init__(
        self, steps: Sequence[Blocks | Call], result: int, read: dict[str, Any], training: bool
    ):
        self.steps, self.result, self._read, self._training = steps, result, read, training

    def is_of(self, module: nn.Module) -> bool:
        """Whether all is as it was when it was read."""
        own, modules = module.__dict__, module._modules
        if module.training is not self._training:
            return False
        for name, value in self._read.items():
            now = modules[name] if name in modules else own.get(name, value)
            if now is not value:
                return False
        return True

    def __call__(self, x: SparseConvTensor) -> SparseConvTensor:
        from millisecond.ops.spconv import fusion  # it knows convolutions, which are modules

        found = [x]
        for step in self.steps:
            source = found[step.source]
            if isinstance(step, Call):
                found.append(step.module(source))
                continue
            residual = None if step.residual is None else found[step.residual].features
            found.append(fusion.run_modules(step.modules, source, residual))
        return found[self.result]


NOT_READ = Recipe((), 0, {}, False)
_RECIPES: WeakKeyDictionary[nn.Module, Recipe | None] = WeakKeyDictionary()


def following(forward: Callable) -> Callable:
    """A module's `forward` that follows its recipe where it has one."""

    @wraps(forward)
    def follow(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or len(args) != 1 or kwargs or _has_any_global_hook():
            return forward(self, *args, **kwargs)
        recipe = _RECIPES.get(self, NOT_READ)
        if recipe is NOT_READ or (recipe is not None and not recipe.is_of(self)):
            recipe = _RECIPES[self] = _recipe(self, forward)
        if recipe is None or not isinstance(args[0], SparseConvTensor):
            return forward(self, *args, **kwargs)
        return recipe(args[0])

    return follow


def _recipe(module: nn.Module, forward: Callable) -> Recipe | None:
    try:
        _check_code(forward, module)
        symbol, x = Self(module), Sparse()
        result = forward(symbol, x)
        if not isinstance(result, Sparse):
            return None
        order = _Order(x)
        number = order.number(result)
        order.check(symbol._made)
        return Recipe(order.steps, number, symbol._read, module.training)
    except Exception:  # symbols are no tensors; what the `forward` raises, it raises when called
        return None


class _Order:
    """Steps in the order in which they can be computed."""

    def __init__(self, x: Sparse):
        self.steps: list[Blocks | Call] = []
        self._numbers = {id(x): 0}
        self._done: list = []  # what modules have made

    def check(self, made: list) -> None:
        """Raises Unreadable unless each module is called once for each of its calls, and modules
        that may draw random numbers in the same order."""
        if Counter(map(id, made)) != Counter(map(id, self._done)):
            raise Unreadable
        calls = [step.module for step in self.steps if isinstance(step, Call)]
        wanted = [x.module for x in made if isinstance(x, Sparse)]
        if calls != [module for module in wanted if any(module is call for call in calls)]:
            raise Unreadable

    def number(self, x: Sparse) -> int:
        """The number of a sparse tensor, with the steps that make it."""
        if id(x) not in self._numbers:
            step = self._call(x) if x.base is x else self._blocks(x)
            self.steps.append(step)
            self._numbers[id(x)] = len(self.steps)
        return self._numbers[id(x)]

    def _call(self, x: Sparse) -> Call:
        self._done.append(x)
        return Call(self.number(x.source), x.module)

    def _blocks(self, x: Sparse) -> Blocks:
        from millisecond.ops.spconv import fusion  # see Recipe

        modules: list = []
        residual = None
        while not modules or (x.base is not x and x.uses == 1 and id(x) not in self._numbers):
            features, relu = x.features, None
            if type(features) is Rectified:
                features, relu = features.of
            if type(features) is Added and not modules:
                one, other = features.of
                features, residual = (one, other) if type(one) is Normalised else (other, one)
            if type(features) is not Normalised or (modules and relu is None):
                raise Unreadable
            convolved, norm = features.of
            if type(convolved) is not Features or convolved.of[0] is not x.base:
                raise Unreadable
            found = fusion.block_of(x.base.module, norm, relu)
            if found is None:
                raise Unreadable
            modules.insert(0, found)
            self._done += [features, x.base]
            x = x.base.source
        return Blocks(self.number(x), modules, self._number_of(residual))

    def _number_of(self, features: Features | None) -> int | None:
        """The number of the sparse tensor with these features."""
        if features is None:
            return None
        if type(features) is not Features:
            raise Unreadable
        return self.number(features.of[0])


# ---- what a `forward` may say -------------------------------------------------------------------


def _check_code(function: Callable, module: nn.Module) -> None:
    """Raises Unreadable where a function does anything but read its arguments' modules, constants
    and features, and call them."""
    if type(function) is not FunctionType or function.__closure__:
        raise Unreadable
    for found in dis.get_instructions(function.__code__):
        name, operation = found.argval, found.opname
        if operation.startswith(CHANGES) or operation in OUTER:
            raise Unreadable
        if isinstance(name, CodeType):
            raise Unreadable
        if operation == "LOAD_GLOBAL":
            _check_global(name, function.__globals__, module)
        elif operation in ("LOAD_ATTR", "LOAD_METHOD"):
            known = name in OF_SYMBOLS or name in OF_TORCH
            if not known and not _is_readable(getattr(module, name, Unreadable)):
                raise Unreadable


def _is_readable(value: Any) -> bool:
    return isinstance(value, nn.Module) or type(value) in CONSTANTS


def _check_global(name: str, names: dict[str, Any], module: nn.Module) -> None:
    if name not in names:
        if name not in BUILTINS:
            raise Unreadable
        return
    value = names[name]
    if isinstance(value, ModuleType):
        if value not in (torch, nn, functional):
            raise Unreadable
    elif value not in (functional.relu, torch.relu, torch.add):
        _check_code(value, module)
