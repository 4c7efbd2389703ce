"""Dataflows of a sparse convolution: in which order it reads, multiplies and adds.

All of them compute the same sums. docs/dataflows.md says where each is fast.
"""

from __future__ import annotations

from dataclasses import dataclass

KINDS = ("implicit_gemm", "direct", "gather_scatter", "fetch_on_demand")
GROUPINGS = ("symmetric", "fixed", "adaptive")


@dataclass(frozen=True)
class Dataflow:
    """How a convolution runs on a GPU; a CPU has one code for all dataflows.

    implicit_gemm: tiles of output rows, all offsets in one kernel. direct: no kernel map, rows look
    their neighbours up (takes a `LocationMap`). gather_scatter: rows are gathered by offset,
    multiplied by cuBLAS and added up. fetch_on_demand: the same, but products read the rows where
    they stand.

    grouping of gather_scatter: which offsets share a batched product (Tang et al., TorchSparse,
    MLSys 2022). symmetric: an offset and its opposite, which have equally many pairs. fixed: three
    groups. adaptive: neighbouring offsets, as long as at most `epsilon` of a group's rows are
    padding; offsets of more than `threshold` pairs stay alone.
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
