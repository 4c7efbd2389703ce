"""Arguments that make no sense: each function returns a result or says in one line what is wrong.

One or two arguments of a valid call are replaced at random. `SEED` and the number of a case repeat
it.
"""

import copy
import random
import resource
import signal

import pytest
import torch
from torch import Tensor

import millisecond.ops.spconv as spconv
from millisecond import ops
from millisecond.ops import lab
from tests.helpers.dense_oracle import random_sites

SEED = 0
CASES = 40  # per function
LARGE = 2**31 - 1, 2**31, 2**40, 2**63, 2**70
NUMBERS = (0, -1, 1, 2, 7, *LARGE, True, 1.5, float("nan"), "3", None)
FLOATS = (0.0, -1.0, 1, 2**70, float("nan"), float("inf"), -float("inf"), 1e300, "3", None, True)
SEVERAL = ((), (0,), (3, 3), (3, 3, 3, 3, 3), (2**31 - 1,) * 3, (2**40, 5, 5), "333", 3, None)
MEMORY = 2 << 30  # bytes that a call may take: what asks for more fails, and does not fill the host
TIME = 20  # s
SHAPE, BATCH = (5, 6, 7), 2


def sites() -> Tensor:
    return random_sites(0, BATCH, SHAPE)


def features(rows: int = len(sites()), channels: int = 4) -> Tensor:
    return torch.randn(rows, channels)


def the_map() -> ops.KernelMap:
    return ops.submanifold_map(sites(), SHAPE, BATCH)


def clouds() -> tuple[Tensor, Tensor]:
    points = torch.rand(50, 4) * torch.tensor([7.0, 6, 5, 1])
    return points, torch.tensor([0, 20, 50], dtype=torch.int32)


GRID = ((0.0, 0.0, 0.0, 7.0, 6.0, 5.0), (1.0, 1.0, 1.0))  # range and size of voxels
DOWN = ops.ConvGeometry.of(3, 2, 1)


def boxes(*shape: int) -> Tensor:
    return torch.rand(*shape, 7) + 0.5


def spconv_layer(kind, **options):
    """A layer of spconv, made and called with the same random arguments."""

    def call(kernel_size, stride, padding, dilation, indices, values, spatial_shape, batch_size):
        x = spconv.SparseConvTensor(values, indices, spatial_shape, batch_size)
        layer = getattr(spconv, kind)(*options.values(), kernel_size, stride, padding, dilation)
        return layer(x).dense() if len(indices) else layer(x)

    return call


def conv_of(values, weight, bias, coords, spatial_shape, batch_size, kernel_size, dilation):
    kernel_map = ops.submanifold_map(coords, spatial_shape, batch_size, kernel_size, dilation)
    pooled = ops.sparse_max_pool(values, kernel_map)
    return pooled, lab.sparse_conv(values, weight, lab.pair_map(kernel_map), bias)


def voxel_pool(points, offsets, grid, reduction):
    found = ops.dynamic_voxelize(points, offsets, ops.VoxelGrid(*grid))
    return ops.voxel_pool(points, found, reduction)


def voxelize(points, offsets, grid, **limits):
    return ops.voxelize(points, offsets, ops.VoxelGrid(*grid), **limits)


def of_spconv() -> dict:
    window = {"kernel_size": 3, "stride": 1, "padding": 1, "dilation": 1}
    rest = {"spatial_shape": SHAPE, "batch_size": BATCH}
    return {**window, "indices": sites(), "values": features(), **rest}


def anchors() -> Tensor:
    return boxes(3, 4, 2, 2)


def calls() -> dict:
    """Functions of `ops` and layers of `ops.spconv`, each with valid arguments."""
    points, offsets = clouds()
    on_grid = {"coords": sites(), "spatial_shape": SHAPE, "batch_size": BATCH}
    window = {"kernel_size": 3, "dilation": 1}
    columns, rows = ops.anchor_sides(anchors())
    thresholds, labels = torch.tensor([[0.6, 0.4]] * 2), torch.ones(2, 3, dtype=torch.int64)
    convolved = {"values": features(), "weight": torch.randn(27, 4, 8), "bias": torch.randn(8)}
    logits = {
        "class_logits": torch.randn(2, 30, 3),
        "box_residuals": torch.randn(2, 30, 7),
        "direction_logits": torch.randn(2, 30, 2),
    }
    limits = {"score": 0.1, "before_nms": 20, "iou_threshold": 0.5, "after_nms": 5}
    neighbours = {"features": torch.randn(2, 9, 4), "rows": torch.randint(-1, 9, (2, 5, 3))}
    layers = {"in_channels": 4, "out_channels": 8, "kernel_size": 3}
    strided = {"kernel_size": 3, "stride": 2, "padding": 1, "dilation": 1, "dims": 3}
    voxels = {"vsize_xyz": (1.0, 1.0, 1.0), "coors_range_xyz": (0.0, 0, 0, 7, 6, 5)}
    voxels |= {"num_point_features": 4, "max_num_voxels": 20, "max_num_points_per_voxel": 3}
    found = ops.match_anchors(columns, rows, thresholds, boxes(2, 3), labels)
    return {
        "submanifold_map": (ops.submanifold_map, on_grid | window),
        "strided_map": (ops.strided_map, on_grid | {"geometry": DOWN}),
        "index_pyramid": (
            ops.index_pyramid,
            on_grid | {"downs": (DOWN,), "submanifold_kernel": 3, "capacities": (100, 50)},
        ),
        "ConvGeometry": (ops.ConvGeometry.of, strided),
        "location_map": (
            lab.location_map,
            on_grid | {"geometry": ops.ConvGeometry.of(3, 1, 1), "out_coords": sites()},
        ),
        "voxelize": (
            voxelize,
            {"points": points, "offsets": offsets, "grid": GRID, "max_points": 3}
            | {"max_voxels": 30, "capacity": 40},
        ),
        "voxel_pool": (
            voxel_pool,
            {"points": points, "offsets": offsets, "grid": GRID, "reduction": "max"},
        ),
        "dense": (ops.dense, {"features": features(), **on_grid}),
        "bev_map": (ops.bev_map, {"features": features(), **on_grid}),
        "SparseTensor": (
            lambda **given: ops.SparseTensor(**given).dense(),
            {"features": features(), **on_grid},
        ),
        "sparse_conv": (conv_of, convolved | on_grid | window),
        "nms": (
            ops.nms,
            {"boxes": boxes(9), "scores": torch.rand(9), "iou_threshold": 0.5, "max_output": 4}
            | {"labels": torch.ones(9, dtype=torch.int64)},
        ),
        "overlap_bev": (ops.overlap_bev, {"a": boxes(4), "b": boxes(5)}),
        "iou_bev": (ops.iou_bev, {"a": boxes(4), "b": boxes(5)}),
        "iou_3d": (ops.iou_3d, {"a": boxes(4), "b": boxes(5)}),
        "paired_overlap_bev": (ops.paired_overlap_bev, {"a": boxes(4), "b": boxes(4)}),
        "select_boxes": (ops.select_boxes, {**logits, "anchors": boxes(30), **limits}),
        "furthest_point_sampling": (
            ops.furthest_point_sampling,
            {"points": torch.rand(2, 9, 3), "samples": 4, "start": 1},
        ),
        "ball_query": (
            ops.ball_query,
            {"points": torch.rand(2, 9, 3), "centres": torch.rand(2, 5, 3), "radius": 0.4}
            | {"samples": 4},
        ),
        "three_nearest": (
            ops.three_nearest,
            {"points": torch.rand(2, 9, 3), "queries": torch.rand(2, 5, 3)},
        ),
        "group_points": (ops.group_points, neighbours),
        "interpolate": (ops.interpolate, neighbours | {"weights": torch.rand(2, 5, 3)}),
        "dense_conv3d": (
            lab.dense_conv3d,
            {"volume": torch.randn(1, 2, 4, 5, 6), "weight": torch.randn(3, 2, 3, 3, 3)}
            | {"rung": "tiled"},
        ),
        "match_anchors": (
            ops.match_anchors,
            {"columns": columns, "rows": rows, "thresholds": thresholds, "boxes": boxes(2, 3)}
            | {"labels": labels},
        ),
        "anchor_targets": (
            ops.anchor_targets,
            {"anchors": anchors(), "boxes": boxes(2, 3), "rows": found.rows},
        ),
        "anchor_sides": (ops.anchor_sides, {"anchors": anchors()}),
        "anchor_losses": (
            # on a CPU a row that is not of the boxes is torch's error
            lambda **given: ops.anchor_losses(**given, match=found.rows),
            {
                "class_logits": torch.randn(2, 48, 2),
                "box_residuals": torch.randn(2, 48, 7),
                "direction_logits": torch.randn(2, 48, 2),
                "anchors": anchors(),
                "boxes": boxes(2, 3),
                "positives": found.positives,
                "weights": (1.0, 2.0, 0.2),
            },
        ),
        "encode": (ops.encode, {"boxes": boxes(9), "anchors": boxes(9)}),
        "decode": (ops.decode, {"residuals": boxes(9), "anchors": boxes(9)}),
        "norm_relu": (
            lambda one, other: ops.norm_relu([one, other], [torch.nn.BatchNorm2d(3)] * 2),
            {"one": torch.randn(2, 3, 4, 5), "other": torch.randn(2, 3, 4, 5)},
        ),
        "conv_blocks": (
            lambda one, weight, residual: ops.conv_blocks(
                one, [weight], [the_map()], [torch.nn.BatchNorm1d(8)], residual
            ),
            {
                "one": features(),
                "weight": torch.randn(27, 4, 8),
                "residual": features(channels=8),
            },
        ),
        "ConvChain": (
            lambda one, weight, bias: ops.ConvChain([weight], [bias])(one, [the_map()]),
            {"one": features(), "weight": torch.randn(27, 4, 8), "bias": torch.randn(8)},
        ),
        "stage_points": (
            lambda one, other: ops.stage_points(
                [one, other], torch.zeros(50, 4), torch.zeros(2, dtype=torch.int32)
            ),
            {"one": torch.rand(9, 4), "other": torch.rand(20, 4)},
        ),
        "load_points": (
            ops.load_points,
            {"points": points, "offsets": offsets, "moves": torch.rand(2, 13)}
            | {"workspace": ops.load_workspace(2, torch.device("cpu"))},
        ),
        "load_workspace": (
            ops.load_workspace,
            {"batch_size": 2, "device": torch.device("cpu")},
        ),
        "SubmanifoldConv": (
            ops.SubmanifoldConv,
            layers | {"dilation": 1, "dims": 3, "groups": 2},
        ),
        "StridedConv": (ops.StridedConv, layers | strided | {"groups": 2}),
        "InverseConv": (ops.InverseConv, layers | {"dims": 3, "groups": 2}),
        "TransposedConv": (
            lambda **given: ops.TransposedConv(**given)(
                ops.SparseTensor(features(), sites(), SHAPE, BATCH)
            ),
            layers | strided | {"output_padding": 1, "groups": 2},
        ),
        "block_diagonal": (
            ops.block_diagonal,
            {"weight": torch.randn(27, 2, 8), "groups": 2},
        ),
        "SparseMaxPool": (ops.SparseMaxPool, strided),
        "SubMConv3d": (spconv_layer("SubMConv3d", c_in=4, c_out=8), of_spconv()),
        "SparseConv3d": (spconv_layer("SparseConv3d", c_in=4, c_out=8), of_spconv()),
        "SparseConvTranspose3d": (
            spconv_layer("SparseConvTranspose3d", c_in=4, c_out=8),
            of_spconv(),
        ),
        "SparseMaxPool3d": (spconv_layer("SparseMaxPool3d"), of_spconv()),
        "SparseAvgPool3d": (spconv_layer("SparseAvgPool3d"), of_spconv()),
        "PointToVoxel": (
            lambda pc, **given: spconv.utils.PointToVoxel(**given)(pc),
            {"pc": points, **voxels},
        ),
    }


def other_tensor(value: Tensor, chance: random.Random) -> Tensor:
    """A tensor of another type, shape, device or of wild values; or the same in another layout."""
    kinds = torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool
    wild = float("nan"), float("inf"), -1, 2**31 - 1, -(2**31), 1e30
    changes = [
        lambda: value.to(chance.choice(kinds)),
        lambda: value.to("meta"),
        lambda: value[:0],
        lambda: value[..., :0],
        lambda: value[:-1],
        lambda: torch.cat((value, value)),
        lambda: value[None],
        lambda: value.flatten(),
        lambda: value.flip(0),
        lambda: (
            value.mT.contiguous().mT if value.ndim > 1 else torch.stack((value, value), 1)[:, 0]
        ),
        lambda: value.detach().float().clone().requires_grad_(),
        lambda: _with(value, chance, wild) if value.numel() else value,
    ]
    return chance.choice(changes)()


def _with(value: Tensor, chance: random.Random, wild: tuple) -> Tensor:
    changed, number = value.clone(memory_format=torch.contiguous_format), chance.choice(wild)
    if not value.is_floating_point():
        number = int(max(-(2**31), min(2**31 - 1, number))) if number == number else -7
    changed.view(-1)[chance.randrange(value.numel())] = number
    return changed


def hostile(value, chance: random.Random):
    """Something else in the place of a valid argument."""
    if isinstance(value, Tensor):
        return other_tensor(value, chance)
    if isinstance(value, torch.device):
        return value
    if isinstance(value, tuple):
        named = hasattr(value, "_fields")  # a geometry or a grid
        if not named and chance.random() < 0.4:
            return chance.choice(SEVERAL)
        parts, place = list(value), chance.randrange(len(value))
        parts[place] = hostile(parts[place], chance)
        return type(value)(*parts) if named else tuple(parts)
    if isinstance(value, str):
        return chance.choice(("", "none", 3, None))
    return chance.choice(FLOATS if isinstance(value, float) else NUMBERS + SEVERAL)


def unchanged(value, before) -> bool:
    if not isinstance(value, Tensor) or value.is_meta:
        return True
    return torch.equal(value.detach().nan_to_num(0.5), before.detach().nan_to_num(0.5))


@pytest.fixture
def bounded():
    """Memory and time of a call are limited."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))

    def late(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "you tried to allocate" in str(error)


def shown(value) -> str:
    if isinstance(value, Tensor):
        return f"{list(value.shape)} {value.dtype} {value.device}"
    return repr(value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", calls())
def test_a_result_or_one_line(name, bounded):
    function, valid = calls()[name]
    function(**valid)
    chance = random.Random(f"{SEED} {name}")
    for case in range(CASES):
        given = dict(valid)
        for argument in chance.sample(list(valid), min(len(valid), chance.choice((1, 1, 2)))):
            given[argument] = hostile(valid[argument], chance)
        before = copy.deepcopy(given)
        changed = {k: shown(v) for k, v in given.items() if v is not valid[k]}
        signal.alarm(TIME)
        try:
            function(**given)
        except (ValueError, TypeError, NotImplementedError) as error:
            assert len(str(error).splitlines()) == 1, f"case {case}: {changed}: {error}"
        except Exception as error:
            if not out_of_memory(error):
                pytest.fail(f"case {case}: {changed}: {type(error).__name__}: {error}")
        finally:
            signal.alarm(0)
        for argument, value in given.items():
            assert unchanged(value, before[argument]), f"case {case}: {changed}: {argument}"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda c: ops.submanifold_map(c[:, :3], (2**40, 5), 1),
            "spatial_shape: expected less than 2.31, got 1099511627776",
        ),
        (
            lambda c: ops.submanifold_map(c, (2**31 - 1,) * 3, 2),
            "spatial_shape: 2 grids of .* have 2.60 cells or more; take a smaller one",
        ),
        (
            lambda c: ops.submanifold_map(c, SHAPE, 2**31),
            "batch_size: expected less than 2.31, got 2147483648",
        ),
        (
            lambda c: ops.index_workspace(SHAPE, -1, (), torch.device("cpu")),
            "batch_size: expected at least 0, got -1",
        ),
        (
            lambda c: ops.index_pyramid(c, SHAPE, BATCH, (DOWN,), capacities=(9, -1)),
            "capacities: expected at least 0, got -1",
        ),
        (
            lambda c: DOWN.output_shape((5, 2**32, 5)),
            r"kernel_size: \(3, 3, 3\) does not fit a grid of \(5, 4294967296, 5\)",
        ),
        (
            lambda c: spconv.SparseConv3d(4, 4, 3, stride=0),
            r"stride: expected 3 whole numbers from 1 up, got \(0, 0, 0\)",
        ),
        (
            lambda c: spconv.SparseMaxPool3d(3, stride=0),
            r"stride: expected 3 whole numbers from 1 up, got \(0, 0, 0\)",
        ),
        (
            lambda c: spconv.SparseConvTensor(features(), c, (2**31, 5, 5), 1),
            "spatial_shape: expected less than 2.31, got 2147483648",
        ),
        (
            lambda c: ops.submanifold_map(c.numpy(), SHAPE, BATCH),
            "coords: expected a tensor, got ndarray; torch.as_tensor makes one of it",
        ),
        (
            lambda c: ops.SparseTensor(features(), c.numpy(), SHAPE, BATCH),
            "coords: expected a tensor, got ndarray; torch.as_tensor",
        ),
        (
            lambda c: ops.voxelize(clouds()[0].numpy(), clouds()[1], ops.VoxelGrid(*GRID)),
            "points: expected a tensor, got ndarray; torch.as_tensor",
        ),
        (
            lambda c: ops.voxelize(clouds()[0], [0, 50], ops.VoxelGrid(*GRID)),
            "offsets: expected a tensor, got list; torch.as_tensor",
        ),
        (
            lambda c: ops.furthest_point_sampling(clouds()[0][None, :, :3].numpy(), 1),
            "points: expected a tensor, got ndarray; torch.as_tensor",
        ),
    ],
)
def test_thing_value_and_remedy_are_named(call, message):
    with pytest.raises(ValueError, match=message) as error:
        call(sites())
    assert "\n" not in str(error.value)


def test_stride_and_padding_of_a_submanifold_layer_are_without_effect():
    x = spconv.SparseConvTensor(features(), sites(), SHAPE, BATCH)
    torch.manual_seed(0)
    expected = spconv.SubMConv3d(4, 8, 3)(x).features
    torch.manual_seed(0)
    assert torch.equal(spconv.SubMConv3d(4, 8, 3, stride=0, padding=-1)(x).features, expected)
