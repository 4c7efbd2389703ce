"""Dataflows of a sparse convolution: in which order it reads, multiplies and adds.

All of them compute the same sums. docs/dataflows.md tells where each is fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from torch import Tensor

from ops.rulebook import KernelMap, Table

KINDS = ("implicit_gemm", "direct", "gather_scatter", "fetch_on_demand")
GROUPINGS = ("symmetric", "fixed", "adaptive")
MOST_OFFSETS = 125  # of a kernel whose pairs are listed: pairs.h
RANK_BITS = 25  # of the entries of Pairs.by_row: pairs.h


@dataclass(frozen=True)
class Dataflow:
    """How a convolution runs on a GPU; a CPU computes all of them by one code.

    implicit_gemm: tiles of output rows, all offsets in one kernel. direct: no kernel map, rows look
    their neighbours up (takes a `LocationMap`). gather_scatter: rows are gathered by offset,
    multiplied by cuBLAS and added up. fetch_on_demand: the same, but products read the rows where
    they stand.

    grouping of gather_scatter, which offsets share a batched product (Tang et al., TorchSparse,
    MLSys 2022): symmetric: an offset and the one opposite, which have equally many pairs. fixed:
    three groups. adaptive: neighbours as long as at most `epsilon` of a group's rows are padding;
    offsets of more than `threshold` pairs stay alone.
    """

    kind: str = "implicit_gemm"
    grouping: str = "adaptive"
    epsilon: float = 0.3
    threshold: int = 65536

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"dataflow: {self.kind!r} is none of {', '.join(KINDS)}")
        if self.grouping not in GROUPINGS:
            raise ValueError(f"grouping: {self.grouping!r} is none of {', '.join(GROUPINGS)}")
        if not 0 <= self.epsilon < 1:
            raise ValueError(f"epsilon: {self.epsilon} is not in [0, 1)")
        if self.threshold < 0:
            raise ValueError(f"threshold: {self.threshold} is negative")

    def __str__(self) -> str:
        if self.kind != "gather_scatter":
            return self.kind
        if self.grouping != "adaptive":
            return f"{self.kind} {self.grouping}"
        return f"{self.kind} adaptive {self.epsilon:g} {self.threshold}"

    @classmethod
    def parse(cls, text: str) -> Dataflow:
        """The inverse of str(); ValueError for any other text."""
        kind, *rest = text.split() or [""]
        try:
            if not rest:
                found = cls(kind)
            elif len(rest) == 1:
                found = cls(kind, rest[0])
            else:
                grouping, epsilon, threshold = rest
                found = cls(kind, grouping, float(epsilon), int(threshold))
        except ValueError as error:
            raise ValueError(f"dataflow {text!r}: {error}") from None
        if str(found) != text:
            raise ValueError(f"dataflow {text!r}: expected as in {str(found)!r}")
        return found


IMPLICIT_GEMM = Dataflow()


class Pairs(NamedTuple):
    """The pairs of a table, listed by offset and in the order of its rows."""

    table: Table
    sources: Tensor  # [pairs] int32
    targets: Tensor  # [pairs] int32: rows of the table
    row_ends: Tensor  # [N] int32: pairs of the rows up to this one, this one included
    # [pairs] int32: those of each row in the order of their offsets, as 2^25 * offset + number of
    # the pair among its offset's
    by_row: Tensor
    begin: tuple[int, ...]  # [V + 1] where each offset's pairs begin in the lists
    most: int  # pairs of one row
    symmetric: bool  # of a submanifold map

    @property
    def sizes(self) -> list[int]:
        """Pairs of each offset."""
        return [end - begin for begin, end in pairwise(self.begin)]

    @property
    def centre(self) -> int | None:
        """The offset of a submanifold map that pairs every row with itself."""
        return (len(self.begin) - 1) // 2 if self.symmetric else None

    @property
    def single(self) -> bool:
        """Whether every row has one pair, as in the inverse of a convolution without overlaps."""
        return self.most == 1 and self.begin[-1] == len(self.row_ends)


class PairMap(NamedTuple):
    """A kernel map with its pairs listed; takes the place of the map in any dataflow but direct."""

    forward: Table
    backward: Table | None
    pairs: Pairs  # of forward
    pairs_back: Pairs | None

    def reversed(self) -> PairMap:
        """The map of the inverse convolution."""
        if self.backward is None or self.pairs_back is None:
            raise ValueError("pair_map: backward is None, build the map with both directions")
        return PairMap(self.backward, self.forward, self.pairs_back, self.pairs)

    def kernel_map(self) -> KernelMap:
        """The map without the lists."""
        return KernelMap(self.forward, self.backward)


class Locations(NamedTuple):
    """Where the rows of a convolution look for their sources (location and offset table of Luo and
    Lai, 2024). A site's key is the number of its cell in the inputs' grid with its padding."""

    keys: Tensor | None  # [slots] int64 of a hash table, -1 = empty; None: an array of all cells
    rows: Tensor  # [slots] int32: row of the site with that key; [cells] of the array, -1 = none
    sites: Tensor  # [N] int64: the key of offset 0 of each row
    offsets: Tensor  # [V] int64: from there to the other offsets
    sources: int  # rows that may be found


class LocationMap(NamedTuple):
    """Takes the place of a kernel map in the direct dataflow."""

    forward: Locations
    backward: Locations

    def reversed(self) -> LocationMap:
        """The map of the inverse convolution."""
        return LocationMap(self.backward, self.forward)


def groups(sizes: Sequence[int], centre: int | None, dataflow: Dataflow) -> list[tuple[int, ...]]:
    """Offsets that share a batched product, of sizes pairs each; none of empty offsets.

    The centre of a submanifold map, which needs no gathering, stands alone at the end.
    """
    volume = len(sizes)
    units: list[tuple[int, ...]]
    if centre is None:
        units = [(v,) for v in range(volume)]
    else:
        units = [(v, volume - 1 - v) for v in range(volume // 2)]
    units = [unit for unit in units if sizes[unit[0]]]
    if dataflow.grouping == "symmetric":
        found = units
    elif dataflow.grouping == "fixed":
        third = -(-len(units) // 3) or 1
        found = [_joined(units[i : i + third]) for i in range(0, len(units), third)]
    else:
        found = _adaptive(units, sizes, dataflow.epsilon, dataflow.threshold)
    alone = [] if centre is None or not sizes[centre] else [(centre,)]
    return found + alone


def _adaptive(
    units: Sequence[tuple[int, ...]], sizes: Sequence[int], epsilon: float, threshold: int
) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    group: list[tuple[int, ...]] = []

    def padding(together: Sequence[tuple[int, ...]]) -> float:
        members = [sizes[v] for v in _joined(together)]
        return 1 - sum(members) / (len(members) * max(members))

    for unit in units:
        if sizes[unit[0]] > threshold:
            found += [(v,) for v in unit]
        elif group and padding([*group, unit]) > epsilon:
            found.append(_joined(group))
            group = [unit]
        else:
            group.append(unit)
    return found + ([_joined(group)] if group else [])


def _joined(units: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return sum(units, ())
