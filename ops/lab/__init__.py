"""Code for measurements only: other ways to compute a sparse convolution, the tuner's choices among
them, the naive rungs of the ladder, dense 3-D convolution, and how all of these are timed. It
also has an example of every operator, networks written for spconv, and PointNet++'s kernels.

Benchmarks and tests import it, nothing else does. Its kernels, in csrc/, are a library of their
own that includes the headers of ops/csrc.
"""

from millisecond.ops.lab import naive
from millisecond.ops.lab.dataflow import Dataflow
from millisecond.ops.lab.dense_conv3d import dense_conv3d
from millisecond.ops.lab.layers import InverseConv, StridedConv, SubmanifoldConv, use_tuned
from millisecond.ops.lab.locations import LocationMap, location_map
from millisecond.ops.lab.pairs import PairMap, pair_map
from millisecond.ops.lab.sparse_conv import sparse_conv
from millisecond.ops.lab.tuned import Tuned, read_tuned

__all__ = [
    "Dataflow",
    "InverseConv",
    "LocationMap",
    "PairMap",
    "StridedConv",
    "SubmanifoldConv",
    "Tuned",
    "dense_conv3d",
    "location_map",
    "naive",
    "pair_map",
    "read_tuned",
    "sparse_conv",
    "use_tuned",
]
