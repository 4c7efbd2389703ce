"""Inference of a program's network as CUDA graphs, which take no time of the host.

A graph is of a capacity of rows. How many of them count is on the GPU, at every level: what layers
find out by waiting for the GPU, a graph never knows. The rows behind hold anything, and no layer
reads them. The first input of a capacity goes through the network as it is, and its sites tell how
many rows each level needs.
"""

from __future__ import annotations

import math
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from math import prod
from threading import Lock, get_ident
from typing import Any

import torch
from torch import Tensor, nn

from millisecond.ops.capture import captured
from millisecond.ops.dense import dense
from millisecond.ops.dispatch import tf32_allowed
from millisecond.ops.geometry import ConvGeometry, level_shapes, linear_keys, same_device
from millisecond.ops.kernel_map import fits, index_pyramid
from millisecond.ops.layers import KeepsWeight
from millisecond.ops.rulebook import KernelMap, Level, Pyramid
from millisecond.ops.sites import (
    Foreseen,
    Ordered,
    PlainSites,
    Sites,
    WrongSites,
    sites_of,
    strided_in,
    strides_apart,
    submanifold_in,
    transposed_shape,
    turned,
)
from millisecond.ops.spconv.core import MAKE_SITES, SparseConvTensor, check_rows
from millisecond.ops.spconv.recipe import CONSTANTS

MOST_GRAPHS = 8  # of a network: the one that waited longest goes
LEAST_STEP = 128  # rows from a capacity to the next
SPARE = 1.2  # rows of the levels below, by rows that they would have
WAITS = "called a synchronizing CUDA operation"  # torch's warning
ROUNDING = 0.05  # relative: more than last bits, less than what a spare row does


def graphed(model: nn.Module) -> Graphed:
    """The network for inference as CUDA graphs: `fast = graphed(model)`, then `fast(x)`.

    The network takes a `SparseConvTensor`, and may take more tensors of shapes that stay the same.
    It returns sparse tensors, dense ones or features and indices of sites, also in dictionaries,
    lists and tuples. Results are new tensors without gradients; their `indice_dict` is empty.

    The first call of a number of rows, rounded up by at most an eighth, captures a graph. Where a
    level has more rows than a graph holds, or a parameter, buffer or module is another, a new one
    is captured. Sites that are there twice or outside of the grid, no rows, and a CPU take the
    network as it is. The network is in eval mode, and outside of its sparse layers each row is
    computed by itself.

    ValueError for training mode, features that want gradients, or a layer that has no graph;
    RuntimeError for a network that reads values back to the host, changes its own buffers, or mixes
    rows.
    """
    return Graphed(model)


class Graphed:
    """See `graphed`. Calls come one after another, from any thread and stream."""

    def __init__(self, model: nn.Module):
        if not isinstance(model, nn.Module):
            raise TypeError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
        self.model = model
        self._graphs: OrderedDict[tuple, Graph] = OrderedDict()
        self._state: list = []
        self._sources: list[tuple[Tensor, Tensor]] = []
        self._sorts = False  # whether graphs have to
        self._lock = Lock()
        self._done: torch.cuda.Event | None = None

    def __call__(self, x: SparseConvTensor, *tensors: Tensor) -> Any:
        _check_input(x, tensors)
        if not x.features.is_cuda or len(x.indices) == 0:
            _state_of(self.model)
            with torch.no_grad():
                return self.model(x, *tensors)
        with self._lock, torch.no_grad(), torch.cuda.device(x.features.device):
            stream = torch.cuda.current_stream()
            if self._done is not None:  # the call before may have had another stream
                stream.wait_event(self._done)
            try:
                return self._result(x, tensors)
            finally:
                self._done = stream.record_event()

    def _result(self, x: SparseConvTensor, tensors: Sequence[Tensor]) -> Any:
        key = _key_of(x, tensors)
        graph = self._graphs.get(key)
        if graph is not None:
            graph.start(x, tensors)
        state, held = _state_of(self.model)  # while the GPU works: it takes the host a while
        if state != self._state:
            torch.cuda.current_stream().synchronize()  # work on the graphs that go may be under way
            self._graphs.clear()
            graph, self._state = None, state
            # so that no other tensors get their places, and a graph reads no other's memory
            self._sources = [(tensor, tensor.detach()) for tensor in held]
        if graph is None or not graph.is_current():
            return self._capture(key, x, tensors, ())
        self._graphs.move_to_end(key)
        return graph.result() if graph.fits() else self._capture(key, x, tensors, graph.capacities)

    def _capture(
        self, key: tuple, x: SparseConvTensor, tensors: Sequence[Tensor], least: Sequence[int]
    ) -> Any:
        """The network's own result, and a graph for the next inputs of this kind, whose levels
        have room for so many rows at least."""
        sites = sites_of(x.indices, tuple(x.spatial_shape), x.batch_size)
        try:
            _, order = sites.ordered()
        except WrongSites:
            return self.model(x, *tensors)
        self._sorts = self._sorts or order is not None
        wanted = _call(self.model, x.features, sites, tensors)
        if _state_of(self.model)[0] != self._state:
            raise RuntimeError(
                f"graphed: {type(self.model).__name__} changes its parameters or buffers in each "
                "call, which a graph would not do; call it as it is"
            )
        self._graphs.pop(key, None)
        pool = next((graph._graph.pool() for graph in self._graphs.values()), None)
        with torch.inference_mode(False), torch.no_grad():
            spare = Spare(x, sites, self._sorts, least)
            graph = Graph(self.model, x, tensors, spare, pool)
            graph.check(x, tensors, wanted)
        self._graphs[key] = graph
        while len(self._graphs) > MOST_GRAPHS:
            self._graphs.popitem(last=False)
        return wanted


def _check_input(x: SparseConvTensor, tensors: Sequence[Tensor]) -> None:
    if not isinstance(x, SparseConvTensor):
        raise TypeError(
            f"x: graphed takes a SparseConvTensor, got {type(x).__name__}; give a module that "
            "makes of it what the network takes"
        )
    if any([not isinstance(tensor, Tensor) for tensor in tensors]):
        raise TypeError("tensors: graphed takes tensors alone after the SparseConvTensor")
    check_rows(x)
    same_device(features=x.features, **{f"tensors[{n}]": t for n, t in enumerate(tensors)})
    if torch.is_grad_enabled() and any([t.requires_grad for t in (x.features, *tensors)]):
        raise ValueError("features: they want gradients, graphed has none; call under no_grad()")
    if x.indice_dict:
        raise ValueError(
            f"indice_dict: has {list(x.indice_dict)}, graphed takes a tensor before any layer"
        )


def _state_of(model: nn.Module) -> tuple[list, list[Tensor]]:
    """What a graph has taken from a network: modules, and the tensors that they hold."""
    state: list = []
    tensors: list[Tensor] = []
    waiting: list[nn.Module | None] = [model]
    while waiting:  # modules() takes several times as long, in each call
        module = waiting.pop()
        if module is None:
            continue
        if module.training:
            raise ValueError(
                f"model: {type(module).__name__} is in training mode, graphed is for inference; "
                "call model.eval()"
            )
        state.append(id(module))
        held = *module._parameters.values(), *module._buffers.values()
        tensors += [tensor for tensor in held if tensor is not None]
        waiting += module._modules.values()
    for tensor in tensors:
        version = None if tensor.is_inference() else tensor._version
        state.append((id(tensor), tensor.data_ptr(), version))
    return state, tensors


def _key_of(x: SparseConvTensor, tensors: Sequence[Tensor]) -> tuple:
    """What a graph is made for."""
    kind, grid = x.features.device.type, (tuple(x.spatial_shape), x.batch_size)
    autocast = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind)
    types = x.features.device, x.features.dtype, x.indices.dtype, autocast, tf32_allowed()
    shapes = tuple([(tensor.shape, tensor.dtype) for tensor in tensors])
    return capacity_of(len(x.indices)), x.features.shape[1], grid, types, shapes


def capacity_of(rows: int) -> int:
    """More rows than these, by an eighth at most or 128."""
    step = max(1 << max(rows.bit_length() - 4, 0), LEAST_STEP)
    return (rows // step + 1) * step


def _call(model: nn.Module, features: Tensor, sites: Sites, tensors: Sequence[Tensor]) -> Any:
    """The network on these sites, also where it makes a sparse tensor of their indices itself."""

    def make(indices: Tensor, shape: Sequence[int], batch_size: int) -> Sites:
        if sites.are(indices, shape, batch_size):
            return sites
        if isinstance(sites, BoundedSites):
            raise RuntimeError(
                f"graphed: the network makes a tensor of {list(shape)} on other indices than x, "
                "which has no graph; give it the indices and spatial_shape of x"
            )
        return sites_of(indices, shape, batch_size)

    before = MAKE_SITES.set(make)
    try:
        x = SparseConvTensor(features, sites.indices, sites.shape, sites.batch_size)
        return model(x, *tensors)
    finally:
        MAKE_SITES.reset(before)


# ---- sites of a capacity ------------------------------------------------------------------------


class Spare:
    """How many rows the levels of one input have, with rows to spare: always more than count."""

    def __init__(self, x: SparseConvTensor, sites: Sites, sorts: bool, least: Sequence[int] = ()):
        """sites: of the input, with the maps that the network asked for; sorts: rows may be in any
        order; least: rows of the levels, in the order in which they are made."""
        self.sites, self.sorts, self._least = sites, sorts, least
        self.rows = capacity_of(len(x.indices))
        self._scale = SPARE * self.rows / len(x.indices)

    def begin(self, indices: Tensor, count: Tensor) -> BoundedSites:
        """The first level of a call."""
        self.levels: list[BoundedSites] = []
        self.capacities: list[int] = [self.rows]
        self.overflows: list[Tensor] = []
        return BoundedSites(indices, count, self.sites, self)

    def room(self, sites: Sites) -> int:
        """The capacity of another level, no two the same: it tells whose rows a tensor has."""
        cells = sites.batch_size * prod(sites.shape)
        number = len(self.capacities)
        rows = min(capacity_of(math.ceil(len(sites.indices) * self._scale)), cells + 1)
        rows = max(rows, *self._least[number : number + 1], 0)
        while rows in self.capacities:
            rows += 1
        self.capacities.append(rows)
        return rows


class BoundedSites(Sites):
    """Sites up to a count, with bounded maps: nothing is read back. The pattern, sites of another
    input, was asked for the same maps: it tells the capacities, and which maps one call builds."""

    def __init__(self, indices: Tensor, count: Tensor, pattern: Sites, spare: Spare):
        super().__init__(indices, pattern.shape, pattern.batch_size)
        if isinstance(pattern, PlainSites):
            raise ValueError(f"spatial_shape: {pattern.shape}, graphed takes 2 or 3 dimensions")
        self.count, self._pattern, self._spare = count, pattern, spare
        is_first = not spare.levels
        spare.levels.append(self)
        if not (is_first and spare.sorts):
            self._ordered = indices.int().contiguous(), None
        foreseen = pattern._record.foreseen() if is_first and pattern._record else None
        if foreseen is not None and foreseen.downs:
            self._build(foreseen)

    def follow(self, layer: Any) -> None:
        """All is known."""

    def dense(self, features: Tensor) -> Tensor:
        coords, order = self.ordered()
        rows = features if order is None else features.index_select(0, order)
        return dense(rows, coords, self.shape, self.batch_size, self.count)

    def begun(self, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> KernelMap:
        if (kernel, dilation) not in self._submanifold:
            if max(dilation) > 1:
                raise ValueError(f"dilation: {dilation} of a submanifold layer has no graph")
            coords, order = self.ordered()
            level = self._index(coords, self.shape, (), [], kernel, True).levels[0]
            assert level.submanifold is not None  # asked for
            self._submanifold[kernel, dilation] = submanifold_in(order, level.submanifold)
        return self._submanifold[kernel, dilation]

    def strided(
        self,
        geometry: ConvGeometry,
        transposed: bool = False,
        output_padding: Sequence[int] = (),
        both_ways: bool | None = None,
    ) -> tuple[Sites, KernelMap]:
        key = geometry, transposed, tuple(output_padding)
        if key not in self._strided:
            pattern = self._pattern._strided[key][0]
            grid, window, (coords, order) = self.shape, geometry, self.ordered()
            if transposed:
                shape = transposed_shape(self.shape, geometry, output_padding)
                apart = strides_apart(self.shape, shape, geometry)
                if apart is None:
                    raise ValueError(f"padding: {geometry} of a transposed layer has no graph")
                grid, window = apart
                # numbers of the host cannot be copied in a capture
                columns = zip(coords.unbind(1), (1, *geometry.stride), strict=True)
                coords = torch.stack([column * step for column, step in columns], dim=1)
            rooms = [self._spare.room(pattern)]
            level = self._index(coords, grid, (window,), rooms, (1,) * len(grid), False).levels[1]
            assert level.down is not None  # only level 0 has none
            kernel_map = turned(level.down) if transposed else level.down
            self._strided[key] = self._outputs(key, level), strided_in(order, kernel_map)
        return self._strided[key]

    def _build(self, foreseen: Foreseen) -> None:
        """All maps of the first chain of levels, in one call."""
        downs, kernel, last, inverted = foreseen
        pattern, rooms = self._pattern, []
        for down in downs:
            pattern = pattern._strided[down, False, ()][0]
            rooms.append(self._spare.room(pattern))
        coords, _ = self.ordered()
        pyramid = self._index(coords, self.shape, downs, rooms, kernel, last, inverted)
        self._take(pyramid, downs, kernel)

    def _made(self, down: ConvGeometry, below: Level) -> Sites:
        return self._outputs((down, False, ()), below)

    def _outputs(self, key: tuple, level: Level) -> Sites:
        assert level.count is not None  # with capacities there is one
        return BoundedSites(level.coords, level.count, self._pattern._strided[key][0], self._spare)

    def _index(
        self,
        coords: Tensor,
        shape: tuple[int, ...],
        downs: Sequence[ConvGeometry],
        rooms: Sequence[int],
        kernel: tuple[int, ...],
        last: bool,
        transposed: bool = True,
    ) -> Pyramid:
        if coords.is_cuda and not fits(self.batch_size, level_shapes(shape, downs)):
            raise ValueError(f"spatial_shape: {shape} is too large for the index of a graph")
        grid, capacities = (shape, self.batch_size), [len(coords), *rooms]
        of_rows = capacities, self.count
        found = index_pyramid(coords, *grid, downs, kernel, last, *of_rows, transposed)
        assert found.overflow is not None  # with capacities there is one
        self._spare.overflows.append(found.overflow)
        return found

    def _sort(self) -> Ordered:
        row = torch.arange(len(self.indices), device=self.indices.device)
        keys = linear_keys(self.indices, self.shape)
        keys = torch.where(row < self.count, keys, torch.iinfo(keys.dtype).max)
        order = keys.argsort(stable=True)
        return self.indices.int().index_select(0, order), order


# ---- a graph ------------------------------------------------------------------------------------


class Graph:
    """The network for inputs of one kind: after `start` comes `fits`, and if so, `result`."""

    def __init__(
        self,
        model: nn.Module,
        x: SparseConvTensor,
        tensors: Sequence[Tensor],
        spare: Spare,
        pool: Any,
    ):
        """x: one of the inputs; spare: of its sites; pool: memory that all graphs of the network
        share, which run one after another."""
        self._features = x.features.new_zeros(spare.rows, x.features.shape[1])
        self._indices = x.indices.new_full((spare.rows, x.indices.shape[1]), -1)
        self._count = torch.zeros(1, dtype=torch.int32, device=x.indices.device)
        self._tensors = [torch.empty_like(tensor) for tensor in tensors]
        self._load(x, tensors)

        def run() -> tuple[Any, Tensor]:
            sites = spare.begin(self._indices, self._count)
            result = _call(model, self._features, sites, self._tensors)
            return result, torch.cat([level.count for level in spare.levels] + spare.overflows)

        kind = x.features.device.type
        autocast = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        with torch.autocast(*autocast, cache_enabled=False):  # copies of weights go when it ends
            if x.features.is_cuda:
                _rehearse(run, type(model).__name__)
            self._graph, (self._found, self._numbers) = captured(run, pool=pool)
        for part in _parts(self._found):
            if isinstance(part, SparseConvTensor):  # the maps' memory serves other graphs
                part._sites, part.indice_dict = None, {}
        self.capacities = spare.capacities
        layers = [layer for layer in model.modules() if isinstance(layer, KeepsWeight)]
        self._kept = [(layer, layer._kept_weight()) for layer in layers]
        self._weights = [vars(kept).copy() for _, kept in self._kept]  # the graph reads them
        self._rows: dict[int, int | None] = {}  # the level whose rows a tensor has, by its id
        self._counts: list[int] = []

    def is_current(self) -> bool:
        """Whether no layer has forgotten the weight that it kept, as `eval()` makes it do."""
        return all([layer._kept_weight() is kept for layer, kept in self._kept])

    def _load(self, x: SparseConvTensor, tensors: Sequence[Tensor]) -> None:
        rows = len(x.indices)
        self._features[:rows].copy_(x.features)
        self._indices[:rows].copy_(x.indices)
        self._indices[rows:].fill_(-1)
        self._count.fill_(rows)
        for tensor, given in zip(self._tensors, tensors, strict=True):
            tensor.copy_(given)

    def start(self, x: SparseConvTensor, tensors: Sequence[Tensor]) -> None:
        """Begins to work on an input."""
        self._load(x, tensors)
        self._graph.replay()

    def fits(self) -> bool:
        """Waits for the work; whether every level had room for its rows."""
        numbers = self._numbers.tolist()  # sync: the only wait of a call
        levels = len(self.capacities)
        self._counts = numbers[:levels]
        return not any(numbers[levels:])

    def result(self) -> Any:
        """What the network returned, in new tensors."""
        return self._copy(self._found, {})

    def _copy(self, found: Any, done: dict[int, Tensor]) -> Any:
        if isinstance(found, SparseConvTensor):
            copy = found.shadow_copy()
            copy.features = self._copy(found.features, done)
            copy.indices, copy.indice_dict = self._copy(found.indices, done), {}
            return copy
        if isinstance(found, Tensor):
            if id(found) not in done:
                level = self._rows[id(found)]
                rows = found if level is None else found[: self._counts[level]]
                done[id(found)] = rows.clone()
            return done[id(found)]
        if isinstance(found, dict):
            return type(found)({key: self._copy(value, done) for key, value in found.items()})
        if isinstance(found, list | tuple):
            values = [self._copy(value, done) for value in found]
            return type(found)(*values) if hasattr(found, "_fields") else type(found)(values)
        return found

    def check(self, x: SparseConvTensor, tensors: Sequence[Tensor], wanted: Any) -> None:
        """Raises unless the graph gives for this input what the network gave, whatever the spare
        rows hold."""
        self._features.fill_(math.nan)
        self.start(x, tensors)
        self.fits()  # its levels were made for this input
        for mine, own in zip_longest(_parts(self._found), _parts(wanted)):
            if isinstance(mine, Tensor) and isinstance(own, Tensor):
                self._rows[id(mine)] = self._level_of(mine, own)
            elif not _are_alike(mine, own):
                raise TypeError(
                    f"graphed: the network returns {_short(own)}, which is {_short(mine)} in its "
                    "graph; it may return sparse tensors, tensors, and dicts, lists and tuples"
                )
        for mine, own in zip(_parts(self.result()), _parts(wanted), strict=True):
            if isinstance(own, Tensor) and not _is_close(mine, own):
                raise RuntimeError(
                    "graphed: the result is not the network's own; it computes across rows (a "
                    "mean, a sort, attention) outside of sparse layers: call it as it is"
                )

    def _level_of(self, mine: Tensor, own: Tensor) -> int | None:
        if mine.shape == own.shape:
            return None
        if mine.shape[1:] == own.shape[1:] and mine.shape[0] in self.capacities:
            level = self.capacities.index(mine.shape[0])
            if self._counts[level] == own.shape[0]:
                return level
        raise RuntimeError(
            f"graphed: the network returns {list(own.shape)}, which is {list(mine.shape)} in its "
            "graph; rows of a tensor may be sites of one level"
        )


_COMPARED = (*CONSTANTS, tuple, type)


def _parts(value: Any) -> Iterator[Any]:
    """What a result holds, one after another, and what holds it."""
    if isinstance(value, SparseConvTensor):
        yield value
        yield from (value.features, value.indices)
    elif isinstance(value, dict):
        yield (type(value), *value)
        for each in value.values():
            yield from _parts(each)
    elif isinstance(value, list | tuple):
        yield type(value), len(value)
        for each in value:
            yield from _parts(each)
    else:
        yield value


def _are_alike(mine: Any, own: Any) -> bool:
    if isinstance(mine, SparseConvTensor) and isinstance(own, SparseConvTensor):
        grids = [(list(each.spatial_shape), each.batch_size) for each in (mine, own)]
        return grids[0] == grids[1]
    return mine is own or (type(own) in _COMPARED and mine == own)


def _is_close(mine: Tensor, own: Tensor) -> bool:
    mine, own = mine.float(), own.float()
    if not torch.equal(mine.isnan(), own.isnan()):
        return False
    finite = mine.isfinite() & own.isfinite()
    apart, size = torch.where(finite, mine - own, 0).norm(), torch.where(finite, own, 0).norm()
    return bool(apart <= ROUNDING * size)


def _short(value: Any) -> str:
    return repr(value) if type(value) in CONSTANTS else type(value).__name__


def _rehearse(call: Callable[[], Any], name: str) -> None:
    """RuntimeError where the call waits for the GPU. A capture would fail there, and torch's
    allocator has no more captures after one that fails."""
    places: list[str] = []
    here = get_ident()

    def note(message: Any, category: Any, filename: str, lineno: int, *others: Any) -> None:
        if WAITS in str(message) and get_ident() == here:
            places.append(f"{filename}:{lineno}")
        else:
            show(message, category, filename, lineno, *others)

    with warnings.catch_warnings():
        show, warnings.showwarning = warnings.showwarning, note  # type: ignore[assignment]
        warnings.filterwarnings("always", f".*{WAITS}")
        warnings.filterwarnings("ignore", "Synchronization debug mode")  # a prototype, it says
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    if places:
        raise RuntimeError(
            f"graphed: {name} has no graph: it reads values back to the host, or brings them from "
            f"there, at {places[0]}; call it as it is"
        )
