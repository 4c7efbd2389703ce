"""SparseSequential: plain modules on features, and blocks that are computed in one call."""

import copy
from collections import OrderedDict
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import millisecond.ops.spconv as spconv
from millisecond.ops.spconv import fusion
from tests.helpers.dense_oracle import draws, random_sites

SHAPE = (7, 8, 9)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def tensor(channels=4, dtype=torch.float32, seed=0, device="cpu"):
    sites = random_sites(seed, 2, SHAPE)
    features = draws(seed, dtype)(len(sites), channels)
    return spconv.SparseConvTensor(features.to(device), sites.to(device), SHAPE, 2)


def block(c_in, c_out, conv=spconv.SubMConv3d, bias=False, **options):
    built = conv(c_in, c_out, 3, bias=bias, **options)
    return spconv.SparseSequential(built, nn.BatchNorm1d(c_out, eps=1e-3), nn.ReLU())


def network():
    torch.manual_seed(0)
    down = {"stride": 2, "padding": 1, "indice_key": "down"}
    net = spconv.SparseSequential(
        block(4, 16, indice_key="a"),
        block(16, 16, bias=True, indice_key="a"),
        block(16, 32, spconv.SparseConv3d, **down),
        nn.Linear(32, 32),
        block(32, 16, spconv.SparseInverseConv3d, indice_key="down"),
    )
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d):
            nn.init.uniform_(module.running_mean, -1, 1)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.uniform_(module.weight, -1, 2)
            nn.init.uniform_(module.bias, -1, 1)
    return net


def one_by_one(module, x):
    """The result of its modules, each called by itself."""
    for child in module.children():
        if type(child) is spconv.SparseSequential:
            x = one_by_one(child, x)
        elif isinstance(child, spconv.SparseModule):
            x = child(x)
        else:
            x = x.replace_feature(child(x.features))
    return x


def one_by_one_called(module, x):
    """The result of its modules, each called as it is."""
    for child in module.children():
        if isinstance(child, spconv.SparseModule):
            x = child(x)
        else:
            x = x.replace_feature(child(x.features))
    return x


def same(got, expected, tolerance=2e-5):
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def test_names():
    a, b = nn.ReLU(), nn.Identity()
    named = spconv.SparseSequential(OrderedDict(first=a, second=b))
    assert list(named.state_dict()) == []
    assert [name for name, _ in named.named_children()] == ["first", "second"]
    assert (named[0], named[-1], len(named)) == (a, b, 2)
    mixed = spconv.SparseSequential(a, last=b)
    mixed.add(nn.ReLU())
    assert [name for name, _ in mixed.named_children()] == ["0", "last", "2"]
    with pytest.raises(KeyError, match="last"):
        mixed.add(nn.ReLU(), "last")


def test_blocks_in_one_call_are_the_modules_one_after_another():
    net, x = network().eval(), tensor()
    with torch.no_grad():
        expected = one_by_one(net, x)
        for _ in range(2):  # the second call has kept weights, and foresees the maps
            y = net(x.replace_feature(x.features))
            same(y.features, expected.features)
            assert y.indices is x.indices
            assert set(y.indice_dict) == {"a", "down"}


def test_kept_weights_follow_their_tensors():
    net, x = network().eval(), tensor()
    with torch.no_grad():
        net(x)
        for name, parameter in [*net.named_parameters(), *net.named_buffers()]:
            if parameter.is_floating_point():
                parameter.mul_(1.5)
                same(net(x).features, one_by_one(net, x).features, 1e-4), name
        net.load_state_dict(network().state_dict())
        same(net(x).features, one_by_one(network().eval(), x).features)
        net[1][1].weight.data = net[1][1].weight.data * 2
        same(net(x).features, one_by_one(net, x).features)
        net[1][1].eps = 0.5
        same(net(x).features, one_by_one(net, x).features)
    net.train()
    net(x)
    net.eval()
    with torch.no_grad():
        same(net(x).features, one_by_one(net, x).features)
        half = net.to(torch.bfloat16)
        y = half(x.replace_feature(x.features.bfloat16()))
        assert y.features.dtype == torch.bfloat16


def test_kept_weights_follow_data_that_is_replaced_twice():
    """The second time a tensor may get the memory of the first one."""
    net = spconv.SparseSequential(block(4, 16), block(16, 32)).eval()
    x, weight, places = tensor(), net[1][0].weight, []
    with torch.no_grad():
        for _ in range(8):
            wanted = one_by_one(copy.deepcopy(net), x).features
            torch.testing.assert_close(net(x).features, wanted)
            places.append(weight.data_ptr())
            weight.data = weight.data * 0.7
            weight.data = weight.data * 0.7
    assert all(one != other for one, other in pairwise(places))


def test_hooks_see_every_module():
    net, x = network().eval(), tensor()
    seen = []
    norm = net[2][1]
    norm.register_forward_hook(lambda *_: seen.append("norm"))
    net[1].register_forward_hook(lambda *_: seen.append("block"))
    with torch.no_grad():
        expected = one_by_one(net, x).features
        seen.clear()
        same(net(x).features, expected)
    assert seen == ["block", "norm"]


class Doubled(spconv.SubMConv3d):
    def forward(self, input):
        y = super().forward(input)
        return y.replace_feature(2 * y.features)


class OtherWeight(spconv.SubMConv3d):
    def _conv_forward(self, training, input, weight, *others, **named):
        return super()._conv_forward(training, input, 2 * weight, *others, **named)


@pytest.mark.parametrize("conv", [Doubled, OtherWeight])
def test_forwards_of_a_programs_own_are_called(conv):
    x = tensor()
    own = conv(4, 16, 3, bias=False, indice_key="a")
    own_net = spconv.SparseSequential(block(4, 4), own, nn.BatchNorm1d(16), nn.ReLU()).eval()
    plain = spconv.SubMConv3d(4, 16, 3, bias=False)
    with torch.no_grad():
        plain.weight.copy_(2 * own.weight)
        net = spconv.SparseSequential(own_net[0], plain, *list(own_net)[2:]).eval()
        same(own_net(x).features, net(x).features)


def test_forwards_that_are_replaced_are_called():
    net, x = network().eval(), tensor()
    with torch.no_grad():
        before = net(x).features
        for module in (net[1][0], net[1][1], net[2]):
            forward = module.forward
            module.forward = lambda *inputs, forward=forward: forward(*inputs) + 1
            after = net(x).features
            assert not torch.allclose(after, before)
            before = after
        same(after, one_by_one_called(net, x).features)


def test_hooks_of_all_modules():
    net, x, seen = network().eval(), tensor(), []
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, *_: seen.append(type(module).__name__)
    )
    with torch.no_grad():
        net(x)
    hook.remove()
    assert (seen.count("BatchNorm1d"), seen.count("SubMConv3d")) == (4, 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(dtype):
    net, x = network(), tensor()
    with torch.autocast("cpu", dtype):
        y = net(x)
        assert spconv.SubMConv3d(4, 4, 3)(x).features.dtype == dtype
    y.features.float().square().mean().backward()
    assert all(p.grad.dtype == torch.float32 for p in net.parameters())
    with torch.autocast("cpu", dtype), torch.no_grad():
        assert net.eval()(x).features.dtype == dtype


def test_compiled():
    net, x = network().eval(), tensor()
    with torch.no_grad():
        expected = net(x).features
        compiled = torch.compile(net, backend="eager")
        same(compiled(x).features, expected)


def test_the_number_of_voxels_is_recorded():
    conv = spconv.SparseConv3d(4, 4, 3, 2, 1, record_voxel_count=True)
    assert list(conv.state_dict()) == ["weight", "bias", "max_num_voxels_during_training"]
    y = conv(tensor())
    assert conv.get_max_num_voxels().item() == len(y.indices)
    plain = spconv.SparseConv3d(4, 4, 3, 2, 1)
    conv.load_state_dict(plain.state_dict())  # of a network that recorded nothing


def test_under_ddp():
    net, x = network(), tensor()
    one_by_one(net, x).features.square().mean().backward()
    expected = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        wrapped = nn.parallel.DistributedDataParallel(net)
        wrapped(x).features.square().mean().backward()
        # Where the module is the last owner of the group, the group ends under Python's lock and
        # joins gloo's thread, which may wait for that lock.
        del wrapped
    finally:
        torch.distributed.destroy_process_group()
    for parameter, gradient in zip(net.parameters(), expected, strict=True):
        same(parameter.grad, gradient)


@pytest.mark.parametrize("gone", [("bias",), ("weight", "bias"), ("running_mean", "running_var")])
@pytest.mark.parametrize("device", DEVICES)
def test_normalisation_that_lost_its_tensors(gone, device):
    net, x = network().eval().to(device), tensor(device=device)
    with torch.no_grad():
        net(x)
        for name in gone:
            setattr(net[1][1], name, None)
        for training in (False, True):
            same(net.train(training)(x).features, one_by_one(net, x).features, 1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_statistics_that_are_not_tracked_any_more(device):
    net, x = network().to(device), tensor(device=device)
    norm = net[1][1]
    norm.track_running_stats = False
    before = norm.running_mean.clone()
    same(net(x).features, one_by_one(net, x).features, 1e-4)
    assert torch.equal(norm.running_mean, before)


@pytest.mark.parametrize(("bias", "together"), [(True, 1), (False, 2)])
def test_a_norm_after_two_convolutions_with_biases_is_one_call_for_each(bias, together):
    """In training: the biases of one call move its running means at once."""
    first, second = (spconv.SubMConv3d(16, 16, 3, bias=bias) for _ in range(2))
    norm = nn.BatchNorm1d(16)
    blocks = [fusion.block_of(conv, norm, nn.ReLU()) for conv in (first, second)]
    on_gpu = SimpleNamespace(dtype=torch.float32, device=torch.device("cuda"), shape=(9, 16))
    assert len(fusion.run_of(blocks, on_gpu)) == together
    blocks[1] = fusion.block_of(second, nn.BatchNorm1d(16), nn.ReLU())
    assert len(fusion.run_of(blocks, on_gpu)) == 2


@pytest.mark.parametrize("name", ["running_mean", "weight"])
def test_norms_with_a_tensor_of_inference_mode(name):
    net, x = network().eval(), tensor()
    norm = net[1][1]
    with torch.inference_mode():
        made = torch.rand_like(norm.running_mean)
        setattr(norm, name, nn.Parameter(made) if name == "weight" else made)
    with torch.no_grad():
        same(net(x).features, one_by_one(net, x).features)
    with torch.inference_mode():
        made += 1
    with torch.no_grad():
        same(net(x).features, one_by_one(net, x).features)


class Doubled(nn.Module):
    def forward(self, tensor):
        return 2 * tensor


def test_norms_that_are_parametrized_later():
    net, x = network().eval(), tensor()
    with torch.no_grad():
        net(x)
        nn.utils.parametrize.register_parametrization(net[1][1], "weight", Doubled())
        same(net(x).features, one_by_one(net, x).features)


@pytest.mark.parametrize("owner, name", [(0, "weight"), (0, "bias"), (1, "weight"), (1, "bias")])
def test_parameters_that_are_computed_from_others(owner, name):
    net = spconv.SparseSequential(
        spconv.SubMConv3d(4, 4, 3).double(), nn.BatchNorm1d(4).double(), nn.ReLU()
    )
    x = tensor(dtype=torch.float64)
    with torch.no_grad():
        net[1].bias.fill_(0.3)
    twice = copy.deepcopy(net)
    with torch.no_grad():
        twice[owner].get_parameter(name).mul_(2)
    nn.utils.parametrize.register_parametrization(net[owner], name, Doubled())
    for training in (True, False):
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                same(net.train(training)(x).features, twice.train(training)(x).features)
