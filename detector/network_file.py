"""The network file, which libmillisecond reads: a network with all that its kernels take, so that
the library computes nothing again and parses no text.

Little-endian, one after another without gaps:

- the head: 8 bytes `MAGIC`, then uint32 VERSION and the number of arrays;
- an entry for each array: 32 bytes of name, filled up with zeros; uint32 type (0 int32, 1 float32,
  2 bytes of UTF-8); uint32 [3] shape, zero behind the last axis;
- the numbers of each array in C order, in the order of the entries;
- uint32, the CRC-32 (as zlib has it) of all that stands before.

The CRC-32 finds every damage of up to 32 bits side by side, and of other damages all but one in
2^32, cut files too. Python has it in C, and in C++ it takes ten lines.

BatchNorms are folded into the weights, which are float32: a GPU rounds and packs them when the file
is opened, since both depend on the precision and on the kind of GPU. Biases [3, C_out] are as
`Inference` has them in fp32, fp16 and bf16; it rounds the biases of the bird's-eye-view map.
"""

import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from millisecond.data.files import replacing
from millisecond.detector.anchors import build_anchors
from millisecond.detector.config import Config
from millisecond.detector.cuda_graph import Capacity, capacity_of
from millisecond.detector.inference import Inference
from millisecond.detector.models.bev_rows import BevRows, Layer
from millisecond.detector.models.second import Second
from millisecond.detector.models.sparse_encoder import DOWNS
from millisecond.ops.anchors import DIRECTION_OFFSET, LARGEST_LOG_SIZE
from millisecond.ops.bev import PANEL
from millisecond.ops.geometry import level_shapes
from millisecond.ops.rulebook import Level

MAGIC, VERSION = b"ms-net\r\n", 1  # the ends of lines show what was copied as text
PRECISIONS = ("fp32", "fp16", "bf16")  # in the order of ms_type
MOST_POINTS, MOST_ROWS = 2**24, 10**9  # of a scan, that the library takes

_TYPES = (np.dtype("<i4"), np.dtype("<f4"), np.dtype("u1"))


def write(path: Path, config: Config, model: Second) -> None:
    """Writes the network file of a model (not folded) atomically."""
    host = {name: np.asarray(values) for name, values in _arrays(config, model).items()}
    head, numbers = [MAGIC + struct.pack("<II", VERSION, len(host))], []
    for name, values in host.items():
        kind = 2 if values.dtype == np.uint8 else int(values.dtype.kind == "f")
        shape = (*values.shape, 0, 0)[:3]
        head.append(struct.pack("<32sI3I", name.encode(), kind, *shape))
        numbers.append(values.astype(_TYPES[kind]).tobytes())
    blob = b"".join(head + numbers)
    with replacing(path) as temporary:
        temporary.write_bytes(blob + struct.pack("<I", zlib.crc32(blob)))


def _arrays(config: Config, model: Second) -> dict[str, Tensor | np.ndarray | Sequence]:
    """All of a file by name."""
    grid, limits, host = config.grid, config.postprocess, torch.device("cpu")
    anchors = build_anchors(config).reshape(-1, 7)
    models = [Inference(model, config, host, precision).model for precision in PRECISIONS]
    rows, empty = BevRows.of(models[0]), torch.zeros(0, 4, dtype=torch.int32)
    plan = rows.plan(Level(empty, None, config.bev_cells, None, None))
    sizes = zip(plan.shapes, plan.kinds, strict=True)
    arrays: dict[str, Tensor | np.ndarray | Sequence] = {
        "classes": np.frombuffer(" ".join(config.class_names).encode(), np.uint8),
        "point_width": [config.points.width],
        "grid.range": _floats(*grid.range),
        "grid.voxel_size": _floats(*grid.voxel_size),
        "grid.max_points": [grid.max_points],
        "grid.max_voxels": [grid.max_voxels_test],
        "grid.level": [int(grid.level)],
        "grid.relative": [int(grid.relative)],
        "encoder.shapes": level_shapes(grid.voxel_grid.sparse_shape, DOWNS),
        "encoder.downs": [(down.kernel_size, down.stride, down.padding) for down in DOWNS],
        "buckets": [(each.points, *each.rows) for each in _capacities(model)],
        "bev.windows": plan.windows,
        "bev.kept": plan.kept,
        "bev.capacities": [height * width + kinds for (height, width), kinds in sizes],
        "bev.kinds": plan.alike[1:],
        "bev.factors": rows.factors,
        "head.channels": models[0].head.groups(),
        "anchors": anchors,
        "boxes.score": _floats(limits.score),
        "boxes.before_nms": [min(limits.before_nms, len(anchors))],
        "boxes.iou": _floats(limits.iou),
        "boxes.after_nms": [limits.after_nms],
        "boxes.per_class": [int(limits.per_class)],
        "boxes.direction_offset": _floats(DIRECTION_OFFSET),
        "boxes.largest_log_size": _floats(LARGEST_LOG_SIZE),
    }
    layers = list(map(_layers, models))
    for name, (weight, _) in layers[0].items():
        arrays[f"{name}.weight"] = weight
        arrays[f"{name}.bias"] = torch.stack([of[name][1] for of in layers])
    return arrays


def _floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def _layers(model: Second) -> Mapping[str, Layer]:
    """Every convolution of a folded network by name."""
    assert model.encoder.chain is not None, "not folded"
    rows = BevRows.of(model)
    found = {f"encoder.{i}": layer for i, layer in enumerate(model.encoder.chain.layers())}
    of_blocks = [layer for block in rows.layers() for layer in block]
    found |= {f"bev.{i}": layer for i, layer in enumerate(of_blocks)}
    for i, (up, (weight, bias)) in enumerate(rows.ends()):
        room = (0, -len(bias) % PANEL)  # kernels compute whole panels of channels
        found |= {f"up.{i}": up, f"head.{i}": (pad(weight, room), pad(bias, room))}
    return found


def _capacities(model: Second) -> list[Capacity]:
    """Capacities of graphs; the last takes every scan, since the library runs nothing else."""
    found: list[Capacity] = []
    while len(found) < 2 or found[-1].rows != found[-2].rows or found[-2].points < MOST_POINTS:
        points, rows, _ = capacity_of(model, len(found))
        found.append(Capacity(min(points, MOST_POINTS), tuple(min(r, MOST_ROWS) for r in rows)))
    return found[:-1]
