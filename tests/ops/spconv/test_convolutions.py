"""The layers of ops.spconv against dense convolutions cut to the active sites, in float64."""

import pytest
import torch
from torch.nn import functional

import millisecond.ops.spconv as spconv
from millisecond.ops.geometry import ConvGeometry
from tests.helpers.dense_oracle import (
    STRIDED,
    assert_same,
    assert_same_gradients,
    draws,
    random_sites,
    read,
    scatter,
)

SUBMANIFOLD = [  # grid, kernel, dilation
    ((5, 6, 7), (3, 3, 3), (1, 1, 1)),
    ((5, 6, 7), (5, 5, 5), (1, 1, 1)),
    ((5, 6, 7), (1, 5, 3), (2, 1, 2)),
    ((8, 9), (3, 3), (1, 1)),
    ((8, 9), (3, 1), (3, 1)),
]
CONV = {2: functional.conv2d, 3: functional.conv3d}
TRANSPOSED = {2: functional.conv_transpose2d, 3: functional.conv_transpose3d}
C_IN, C_OUT, BATCH = 5, 3, 2


def layer(name, dims, *arguments, **options):
    """A float64 layer with random weight and bias."""
    built = getattr(spconv, f"{name}{dims}d")(*arguments, **options).double()
    draw = draws(3)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.copy_(draw(*parameter.shape))
    return built


def shuffled_sites(shape, seed=0):
    sites = random_sites(seed, BATCH, shape)
    order = torch.randperm(len(sites), generator=torch.Generator().manual_seed(seed))
    return sites[order].long()


def sparse(shape, channels=C_IN, seed=0):
    indices = shuffled_sites(shape, seed)
    features = draws(seed)(len(indices), channels).requires_grad_()
    return spconv.SparseConvTensor(features, indices, shape, BATCH)


def grid_of(x):
    return scatter(x.features, x.indices, x.spatial_shape, x.batch_size)


def mask_of(x):
    ones = torch.ones(len(x.indices), 1, dtype=torch.float64)
    return scatter(ones, x.indices, x.spatial_shape, x.batch_size)


def sites_set(indices):
    return {tuple(site) for site in indices.tolist()}


@pytest.mark.parametrize(("shape", "kernel", "dilation"), SUBMANIFOLD)
def test_submanifold_keeps_the_callers_rows(shape, kernel, dilation):
    x = sparse(shape)
    conv = layer(
        "SubMConv", len(shape), C_IN, C_OUT, kernel, dilation=dilation, padding=7, stride=2
    )
    y = conv(x)
    padding = [k // 2 * d for k, d in zip(kernel, dilation, strict=True)]
    weight = conv.weight.movedim(-1, 1)
    grid = CONV[len(shape)](grid_of(x), weight, conv.bias, padding=padding, dilation=dilation)
    assert y.indices is x.indices
    assert y.spatial_shape == list(shape)
    leaves = [x.features, conv.weight, conv.bias]
    assert_same_gradients(y.features, read(grid, x.indices), leaves)


@pytest.mark.parametrize(("shape", *"ksp", "dilation"), STRIDED)
def test_strided_then_inverse(shape, k, s, p, dilation):
    dims, x = len(shape), sparse(shape)
    window = {"stride": s, "padding": p, "dilation": dilation}
    conv = layer("SparseConv", dims, C_IN, C_OUT, k, **window, indice_key="down")
    y = conv(x)
    grid = CONV[dims](grid_of(x), conv.weight.movedim(-1, 1), conv.bias, **window)
    reached = CONV[dims](mask_of(x), torch.ones(1, 1, *k, dtype=torch.float64), **window)
    assert y.spatial_shape == list(grid.shape[2:])
    assert len(y.indices) == len(sites_set(y.indices))
    assert sites_set(y.indices) == sites_set((reached[:, 0] > 0).nonzero())
    leaves = [x.features, conv.weight, conv.bias]
    assert_same_gradients(y.features, read(grid, y.indices), leaves)

    y.features = y.features.detach().requires_grad_()
    inverse = layer("SparseInverseConv", dims, C_OUT, 4, k, indice_key="down")
    back = inverse(y)
    assert back.indices is x.indices
    assert back.spatial_shape == list(shape)
    geometry = ConvGeometry(k, s, p, dilation)
    rest = zip(shape, geometry.output_shape(shape), *geometry, strict=True)
    more = [n - ((m - 1) * t - 2 * q + d * (size - 1) + 1) for n, m, size, t, q, d in rest]
    weight = inverse.weight.movedim(-1, 0)
    up = TRANSPOSED[dims](grid_of(y), weight, **window, output_padding=more)
    expected = read(up, x.indices) + inverse.bias
    assert_same_gradients(back.features, expected, [y.features, inverse.weight, inverse.bias])


@pytest.mark.parametrize("output_padding", [0, 1])
@pytest.mark.parametrize(("shape", *"ksp", "dilation"), STRIDED[:1] + STRIDED[2:3] + STRIDED[4:5])
def test_transposed(shape, k, s, p, dilation, output_padding):
    dims, x = len(shape), sparse(shape)
    more = [min(output_padding, step - 1) for step in s]
    conv = layer("SparseConvTranspose", dims, C_IN, C_OUT, k, s, p)
    conv.output_padding = more
    y = conv(x)
    window = {"stride": s, "padding": p, "output_padding": more}
    grid = TRANSPOSED[dims](grid_of(x), conv.weight.movedim(-1, 0), conv.bias, **window)
    ones = torch.ones(1, 1, *k, dtype=torch.float64)
    reached = TRANSPOSED[dims](mask_of(x), ones, **window)
    assert y.spatial_shape == list(grid.shape[2:])
    assert sites_set(y.indices) == sites_set((reached[:, 0] > 0).nonzero())
    leaves = [x.features, conv.weight, conv.bias]
    assert_same_gradients(y.features, read(grid, y.indices), leaves)


@pytest.mark.parametrize(("c_in", "c_out", "groups"), [(4, 6, 2), (5, 5, 5), (3, 6, 3)])
@pytest.mark.parametrize("name", ["SubMConv", "SparseConv", "SparseConvTranspose"])
@pytest.mark.parametrize(("shape", "k"), [((5, 6, 7), 3), ((8, 9), 5), ((8, 9), 1)])
def test_groups(shape, k, name, c_in, c_out, groups):
    dims, x = len(shape), sparse(shape, c_in)
    stride = {} if name == "SubMConv" else {"stride": 2}
    conv = layer(name, dims, c_in, c_out, k, padding=k // 2, groups=groups, **stride)
    assert conv.weight.shape == (c_out, *(k,) * dims, c_in // groups)
    y, window = conv(x), stride | {"padding": k // 2, "groups": groups}
    weight = conv.weight.movedim(-1, 1)
    if name == "SparseConvTranspose":
        weight = weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
        grid = TRANSPOSED[dims](grid_of(x), weight, conv.bias, **window)
    else:
        grid = CONV[dims](grid_of(x), weight, conv.bias, **window)
    leaves = [x.features, conv.weight, conv.bias]
    assert_same_gradients(y.features, read(grid, y.indices), leaves)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-4)])
def test_groups_in_a_network_without_gradients(dtype, tolerance):
    """What is kept of a weight follows its changes."""
    x = sparse((5, 6, 7), 32)
    drawn = spconv.SubMConv3d(32, 16, 3, groups=2).weight  # as torch's: a group's inputs count
    assert 0.9 < drawn.abs().max() * drawn[0].numel() ** 0.5 <= 1
    conv = layer("SubMConv", 3, 32, 16, 3, groups=2)
    network = spconv.SparseSequential(conv, torch.nn.BatchNorm1d(16), torch.nn.ReLU())
    network = network.to(dtype).eval()
    for _ in range(2):
        weight, bias = conv.weight.movedim(-1, 1).double(), conv.bias.double()
        grid = functional.conv3d(grid_of(x), weight, bias, padding=1, groups=2)
        wanted = read(grid, x.indices).relu() / (1 + network[1].eps) ** 0.5
        with torch.no_grad():
            rows = network(x.replace_feature(x.features.to(dtype))).features
            conv.weight *= 2
        assert_same(rows.double(), wanted, tolerance)


def test_a_window_follows_its_numbers_and_is_no_attribute():
    x, conv = sparse((5, 6, 7)), layer("SparseConv", 3, C_IN, C_OUT, 3)
    conv._window = "of the program"
    assert conv(x).spatial_shape == [3, 4, 5]
    conv.stride = [2, 2, 2]
    assert conv(x).spatial_shape == [2, 2, 3]
    conv.stride[2] = 1
    assert conv(x).spatial_shape == [2, 2, 5]
    assert conv._window == "of the program"


def test_a_kernel_of_size_one_reads_its_weight_as_spconv_does():
    x = sparse((5, 6, 7))
    conv = layer("SparseConv", 3, C_IN, C_OUT, 1)
    expected = x.features @ conv.weight.reshape(C_IN, C_OUT) + conv.bias
    assert_same(conv(x).features, expected)
    strided = layer("SparseConv", 3, C_IN, C_OUT, 1, 2)(x)  # no matrix product: it has fewer sites
    even = (x.indices[:, 1:] % 2 == 0).all(1)
    assert len(strided.features) == int(even.sum())


@pytest.mark.parametrize("dims", [2, 3])
def test_pools_see_active_sites_alone(dims):
    shape = (5, 6, 7)[:dims]
    x = sparse(shape)
    largest = getattr(spconv, f"SparseMaxPool{dims}d")(3, 2, 1)(x)
    mean = getattr(spconv, f"SparseAvgPool{dims}d")(3, 2, 1)(x)
    rows = {tuple(site): row for row, site in enumerate(x.indices.tolist())}
    assert len(largest.indices) > 0
    for number, (frame, *site) in enumerate(largest.indices.tolist()):
        low = [2 * c - 1 for c in site]
        window = torch.cartesian_prod(*(torch.arange(c, c + 3) for c in low)).tolist()
        read_rows = [rows[(frame, *cell)] for cell in window if (frame, *cell) in rows]
        assert_same(largest.features[number], x.features[read_rows].max(0).values)
        assert_same(mean.features[number], x.features[read_rows].mean(0))


def test_a_pool_is_inverted():
    x = sparse((5, 6, 7))
    pooled = spconv.SparseMaxPool3d(2, indice_key="pool")(x)
    inverse = layer("SparseInverseConv", 3, C_IN, C_IN, 2, indice_key="pool", bias=False)
    with torch.no_grad():
        inverse.weight.copy_(torch.eye(C_IN, dtype=torch.float64)[:, None, None, None])
    back = inverse(pooled)
    there = {tuple(site): row for row, site in enumerate(pooled.indices.tolist())}
    cells = [there.get((b, z // 2, y // 2, x_ // 2)) for b, z, y, x_ in x.indices.tolist()]
    expected = [torch.zeros(C_IN).double() if c is None else pooled.features[c] for c in cells]
    assert_same(back.features, torch.stack(expected))


def test_global_pools_of_frames_some_of_which_are_empty():
    features = draws(0)(7, 4)
    indices = torch.tensor([[b, i, i, i] for i, b in enumerate((2, 0, 2, 2, 0, 2, 0))])
    x = spconv.SparseConvTensor(features, indices, (8, 8, 8), 4)
    largest, mean = spconv.SparseGlobalMaxPool()(x), spconv.SparseGlobalAvgPool()(x)
    assert largest.shape == mean.shape == (4, 4)
    for frame in range(4):
        own = features[indices[:, 0] == frame]
        assert_same(largest[frame], own.max(0).values if len(own) else torch.zeros(4).double())
        assert_same(mean[frame], own.mean(0) if len(own) else torch.zeros(4).double())


def test_no_rows_and_empty_frames():
    none = spconv.SparseConvTensor(torch.zeros(0, 4), torch.zeros(0, 4).int(), (9, 9, 9), 3)
    net = spconv.SparseSequential(
        spconv.SubMConv3d(4, 16, 3, indice_key="a"),
        torch.nn.BatchNorm1d(16),
        torch.nn.ReLU(),
        torch.nn.Linear(16, 8),
        spconv.SparseConv3d(8, 8, 3, 2, 1, indice_key="b"),
        spconv.SparseMaxPool3d(2),
        spconv.SparseConvTranspose3d(8, 4, 2, 2),
        spconv.ToDense(),
    )
    for x in (none, spconv.SparseConvTensor(torch.ones(2, 4), _middle_frame(), (9, 9, 9), 3)):
        y = net(x)
        assert y.shape == (3, 4, 4, 4, 4)
        assert y[0].abs().sum() == y[2].abs().sum() == 0


def _middle_frame():
    return torch.tensor([[1, 2, 3, 4], [1, 0, 0, 1]], dtype=torch.int32)


class Grouped(spconv.SubMConv3d):
    """Groups, as a program writes them: each with its part of the weight."""

    def forward(self, input):
        parts = []
        width = self.in_channels = self.out_channels = len(self.weight) // 2
        for group in (slice(0, width), slice(width, None)):
            x = spconv.SparseConvTensor(
                input.features[:, group], input.indices, input.spatial_shape, input.batch_size
            )
            weight = self.weight[group, ..., group].contiguous()
            y = self._conv_forward(
                self.training, x, weight, self.bias[group], None, act_type=self.act_type
            )
            parts.append(y.features)
        return input.replace_feature(torch.cat(parts, dim=1))


def test_a_layer_with_other_weights():
    x = sparse((5, 6, 7), channels=4)
    conv = Grouped(4, 4, 3).double()
    got = conv(x).features
    first, second = conv.weight[:2, ..., :2].movedim(-1, 1), conv.weight[2:, ..., 2:].movedim(-1, 1)
    weight = torch.cat((first, second))
    grid = functional.conv3d(grid_of(x), weight, conv.bias, padding=1, groups=2)
    assert_same_gradients(got, read(grid, x.indices), [x.features, conv.weight, conv.bias])


@pytest.mark.parametrize("name", ["None_", "ReLU", "Sigmoid", "LeakyReLU"])
def test_the_activation_that_a_layer_is_given(name):
    x = sparse((5, 6, 7))
    kind = spconv.convolution.Activation[name]
    conv = layer("SubMConv", 3, C_IN, 16, 3)
    plain, apply = (
        conv(x).features,
        {
            "None_": lambda rows: rows,
            "ReLU": functional.relu,
            "Sigmoid": torch.sigmoid,
            "LeakyReLU": lambda rows: functional.leaky_relu(rows, 0.1),
        }[name],
    )
    conv.act_type, conv.act_alpha = kind, 0.1
    assert_same(conv(x, x.replace_feature(plain)).features, apply(2 * plain))
    norm = torch.nn.BatchNorm1d(16).double()
    network = spconv.SparseSequential(conv, norm, torch.nn.ReLU()).eval()
    with torch.no_grad():
        assert_same(
            network.float()(x.replace_feature(x.features.float())).features.double(),
            norm(apply(plain).float()).relu().double(),
            1e-4,
        )
    assert spconv.SparseConvolution(3, 4, 4, 3, act_type=kind).act_type is kind
