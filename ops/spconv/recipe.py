"""What a program's module does with a sparse tensor, read from its `forward`.

Residual blocks of other programs call convolution, normalisation and ReLU one by one, with
`replace_feature` between them. Where a `forward` does nothing but that, it runs once on symbols,
and the steps that it took are its recipe: runs of blocks that one operator call computes, and
calls of other modules. The results are what the `forward` gives; the host has less to do.

Symbols and the globals beside them know only what this file allows. All else raises, and then the
`forward` is called as it is. The recipe is read again where something that it came from changes.
"""

from __future__ import annotations

import dis
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from types import FunctionType
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.module import _has_any_global_hook

from millisecond.ops.spconv.core import SparseConvTensor

CONSTANTS = (bool, int, float, str, type(None))
KEPT = "a recipe"  # in a module's __dict__, or False where it has none; no name of an attribute
RELU = nn.ReLU()  # stands for the functions
# what no symbol sees: exceptions that are caught, changes of globals, functions in functions
REFUSED = ("SETUP_", "PUSH_EXC", "STORE_GLOBAL", "DELETE_GLOBAL", "MAKE_FUNCTION")
HARMLESS = {each.__name__: each for each in (enumerate, getattr, hasattr, len, range, zip)}


class Unreadable(Exception):
    """A `forward` does more than a recipe says."""


# ---- symbols ------------------------------------------------------------------------------------


class Symbol:
    """What stands for a value; it refuses what its class does not know."""

    def __init__(self, **known: Any):
        self.__dict__.update(known)

    def _refuse(self, *_: Any) -> Any:
        raise Unreadable

    __getattr__ = __setattr__ = __delattr__ = _refuse


class Features(Symbol):
    """The features of a sparse tensor: as a module gave them, or `_of` other features."""

    _of: tuple
    __eq__ = __bool__ = None  # type: ignore[assignment]  # numbers decide
    __iadd__ = None  # others have these features, too

    def dim(self) -> int:
        return 2

    def __add__(self, other: Any) -> Features:
        if not isinstance(other, Features):
            raise Unreadable
        return Added(_of=(self, other))


class Normalised(Features):
    """(features, BatchNorm1d)"""


class Added(Features):
    """(features, features)"""


class Rectified(Features):
    """(features, ReLU)"""


class Names(Symbol):
    """What `__dir__` of a sparse tensor gives."""

    def __contains__(self, name: str) -> bool:
        if name != "replace_feature":
            raise Unreadable
        return True


class Sparse(Symbol):
    """A sparse tensor: the input, or what a module gives for another one, its source."""

    _base: Sparse  # whose sites and maps it has
    _module: nn.Module
    _source: Sparse
    features: Features

    def __init__(self, **known: Any):
        super().__init__(**{"_base": self, "features": Features(_of=(self,))} | known)

    def replace_feature(self, features: Any) -> Sparse:
        if not isinstance(features, Features):
            raise Unreadable
        return Sparse(_base=self._base, features=features)

    def __dir__(self) -> Names:  # type: ignore[override]
        return Names()


class Called(Symbol):
    """A module as the attribute of another one."""

    _module: nn.Module
    _trace: Trace

    def __call__(self, x: Any) -> Any:
        module, made = self._module, self._trace.made
        if isinstance(x, Sparse):
            if not all(map(_only_computes, module.modules())):
                raise Unreadable
            made.append(Sparse(_module=module, _source=x))
        elif not isinstance(x, Features):
            raise Unreadable
        elif type(module) is nn.BatchNorm1d:
            made.append(Normalised(_of=(x, module)))
        elif type(module) is nn.ReLU:
            made.append(Rectified(_of=(x, module)))
        else:
            raise Unreadable
        return made[-1]

    def __len__(self) -> int:
        return len(self._module)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Called]:
        if type(self._module) is not nn.ModuleList:
            raise Unreadable
        return map(self._trace.called, self._module)


class Self(Symbol):
    """The module itself: its modules and constants, and properties that are made of them."""

    def __getattr__(self, name: str) -> Any:
        module, trace = self.__dict__["a symbol of"]  # no name of an attribute
        of_class = getattr(type(module), name, None)
        if type(of_class) is property:
            trace.properties.append((type(module), name, of_class))
            return trace.on_symbols(of_class.fget)(self)
        value = getattr(module, name, Unreadable)
        if module._modules.get(name, Unreadable) is not value:
            trace.constants[name] = value
        if isinstance(value, nn.Module):
            return trace.called(value)
        if type(value) not in CONSTANTS:
            raise Unreadable
        return value


def _only_computes(module: nn.Module) -> bool:
    """Whether a module makes its result from its input alone, and changes nothing but its
    statistics: a recipe may call it earlier than the `forward` does."""
    from millisecond.ops.spconv import fusion, modules  # they know this file

    kinds = nn.BatchNorm1d, nn.Identity, modules.SparseIdentity, modules.SparseSequential
    return type(module) in kinds or fusion.is_usual(module)


# ---- reading ------------------------------------------------------------------------------------


class Trace:
    """What a `forward` did on symbols, and what that came from."""

    def __init__(self, module: nn.Module):
        self.children = dict(module._modules)
        self.made: list = []  # by modules and ReLU, in order
        self.constants: dict[str, Any] = {}  # and modules: attributes of the module
        self.names: list[tuple[dict, str, Any]] = []  # globals: of where, name, value
        self.properties: list[tuple[type, str, property]] = []  # of a class: name, value
        self.functions: list[tuple[FunctionType, Any, Any]] = []  # with their code and defaults
        self._called: dict[nn.Module, Called] = {}

    def called(self, module: nn.Module) -> Called:
        if module not in self._called:
            self._called[module] = Called(_module=module, _trace=self)
        return self._called[module]

    def modules(self) -> list[nn.Module]:
        """All modules that are read, with the modules in them."""
        return [each for module in self._called for each in module.modules()]

    def on_symbols(self, function: Any) -> Callable:
        """The function with symbols as its globals; Unreadable where symbols do not see all that it
        does."""
        if type(function) is not FunctionType or function.__closure__ or function.__kwdefaults__:
            raise Unreadable
        if any(type(value) not in CONSTANTS for value in function.__defaults__ or ()):
            raise Unreadable
        if any(name.startswith("__") and name != "__dir__" for name in function.__code__.co_names):
            raise Unreadable
        self.functions.append((function, function.__code__, function.__defaults__))
        names: dict[str, Any] = {"__builtins__": HARMLESS}
        for found in dis.get_instructions(function.__code__):
            if found.opname.startswith(REFUSED):
                raise Unreadable
            if found.opname == "LOAD_GLOBAL" and found.argval not in names:
                value = function.__globals__.get(found.argval, Unreadable)
                self.names.append((function.__globals__, found.argval, value))
                if value is not Unreadable:
                    names[found.argval] = self._global(value)
        return FunctionType(function.__code__, names, function.__name__, function.__defaults__)

    def _global(self, value: Any) -> Any:
        if type(value) in CONSTANTS:
            return value
        relu = self.called(RELU)
        of_functional = Symbol(relu=relu)
        of_nn = Symbol(functional=of_functional)
        symbols = {
            torch: Symbol(relu=relu, add=_add, nn=of_nn),
            nn: of_nn,
            functional: of_functional,
            functional.relu: relu,
            torch.relu: relu,
            torch.add: _add,
        }
        return symbols[value] if value in symbols else self.on_symbols(value)


def _add(one: Any, other: Any) -> Features:
    return one + other


# ---- recipes ------------------------------------------------------------------------------------


class Blocks(NamedTuple):
    """Blocks one after another."""

    source: int  # the number of the sparse tensor that they take
    modules: list  # fusion.Modules of each
    residual: int | None  # whose features are added before the last ReLU


class Call(NamedTuple):
    source: int
    module: nn.Module


class ForwardRecipe:
    """The steps of a `forward`; each makes the next sparse tensor, the input is number 0."""

    def __init__(
        self, steps: Sequence[Blocks | Call], result: int, forward: Callable, trace: Trace
    ):
        self.steps, self.result, self.forward, self._read = steps, result, forward, trace
        self._modules = [(each, dict(each._modules)) for each in trace.modules()]

    def __reduce__(self) -> tuple:
        return type(None), ()  # a copy of the module reads its own

    def is_of(self, module: nn.Module, forward: Callable) -> bool:
        """Whether all is as it was when it was read."""
        read = self._read
        return (
            forward is self.forward
            and module._modules == read.children
            and all([each._modules == kept for each, kept in self._modules])
            and all([getattr(module, k, Unreadable) is v for k, v in read.constants.items()])
            and all([names.get(k, Unreadable) is v for names, k, v in read.names])
            and all([getattr(kind, k, None) is v for kind, k, v in read.properties])
            and all([f.__code__ is c and f.__defaults__ is d for f, c, d in read.functions])
        )

    def is_watched(self) -> bool:
        """Whether somebody would see that modules are not called, or in another order."""
        from millisecond.ops.spconv.modules import is_plain  # it knows this file

        return not all([is_plain(each) for each, _ in self._modules])

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


def following(forward: Callable) -> Callable:
    """A module's `forward` that follows its recipe where it has one."""

    @wraps(forward)
    def follow(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        forward = follow.__wrapped__  # a notebook that loads the file again puts the new one there
        if (
            torch.compiler.is_compiling()
            or len(args) != 1
            or kwargs
            or type(args[0]) is not SparseConvTensor
            or type(self).forward is not follow  # called by another one
            or _has_any_global_hook()
        ):
            return forward(self, *args, **kwargs)
        recipe = self.__dict__.get(KEPT)
        if recipe is None or (recipe and not recipe.is_of(self, forward)):
            recipe = self.__dict__[KEPT] = _recipe(self, forward)
        if not recipe or recipe.is_watched():
            return forward(self, *args)
        return recipe(args[0])

    return follow


def _recipe(module: nn.Module, forward: Callable) -> ForwardRecipe | Literal[False]:
    trace, x = Trace(module), Sparse()
    try:
        result = trace.on_symbols(forward)(Self(**{"a symbol of": (module, trace)}), x)
        if not isinstance(result, Sparse):
            return False
        order = _Order(x, trace.made)
        number = order.number(result)
        order.check()
        return ForwardRecipe(order.steps, number, forward, trace)
    except Exception:  # an error of the program itself comes again in the real call
        return False


class _Order:
    """Steps in the order in which they can be computed."""

    def __init__(self, x: Sparse, made: list):
        self.steps: list[Blocks | Call] = []
        self._numbers, self._made = {id(x): 0}, made
        self._uses = Counter(id(each._source) for each in made if isinstance(each, Sparse))
        self._done: list = []  # what modules have made

    def check(self) -> None:
        """Raises Unreadable unless the steps make each result once, and no module with a state is
        there twice: then the order of the calls does not matter."""
        called = [each._module for each in self._made if isinstance(each, Sparse)]
        called += [each._of[1] for each in self._made if isinstance(each, Normalised)]
        inner = [id(each) for module in called for each in module.modules()]
        if len({*inner}) < len(inner) or Counter(map(id, self._made)) != Counter(self._done):
            raise Unreadable

    def number(self, x: Sparse) -> int:
        """The number of a sparse tensor, with the steps that make it."""
        if id(x) not in self._numbers:
            step = self._call(x) if x._base is x else self._blocks(x)
            self.steps.append(step)
            self._numbers[id(x)] = len(self.steps)
        return self._numbers[id(x)]

    def _call(self, x: Sparse) -> Call:
        self._done.append(id(x))
        return Call(self.number(x._source), x._module)

    def _blocks(self, x: Sparse) -> Blocks:
        from millisecond.ops.spconv import fusion  # see ForwardRecipe

        modules: list = []
        residual = None
        while not modules or (x._base is not x and self._uses[id(x)] == 1):
            features, relu = x.features, None
            if type(features) is Rectified:
                self._done.append(id(features))
                features, relu = features._of
            if type(features) is Added and not modules:
                one, other = features._of
                features, residual = (one, other) if type(one) is Normalised else (other, one)
            if type(features) is not Normalised or (modules and relu is None):
                raise Unreadable
            convolved, norm = features._of
            if type(convolved) is not Features or convolved._of[0] is not x._base:
                raise Unreadable
            found = fusion.block_of(x._base._module, norm, relu)
            if found is None:
                raise Unreadable
            modules.insert(0, found)
            self._done += [id(features), id(x._base)]
            x = x._base._source
        return Blocks(self.number(x), modules, self._number_of(residual))

    def _number_of(self, features: Features | None) -> int | None:
        """The number of the sparse tensor with these features."""
        if features is None:
            return None
        if type(features) is not Features:
            raise Unreadable
        return self.number(features._of[0])
