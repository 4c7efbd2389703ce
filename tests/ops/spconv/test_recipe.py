"""Modules of a program's own give what their `forward` gives, whether it is read or not."""

import copy
import gc
import io
import pickle
import threading
import weakref
from types import MethodType

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune

import millisecond.ops.spconv as spconv
from millisecond.ops.spconv import fusion
from millisecond.ops.spconv.recipe import KEPT
from tests.helpers.dense_oracle import draws, random_sites

SHAPE = (5, 6, 7)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
C = 16


def tensor(seed=0, device="cpu", channels=C):
    sites = random_sites(seed, 2, SHAPE).to(device)
    features = draws(seed, torch.float32)(len(sites), channels).to(device)
    return spconv.SparseConvTensor(features.requires_grad_(), sites, SHAPE, 2)


class Parts(spconv.SparseModule):
    """What the forwards below call."""

    flag = True

    def __init__(self, bias=False, downsample=None, inplace=False):
        super().__init__()
        self.conv1 = spconv.SubMConv3d(C, C, 3, bias=bias, indice_key="a")
        self.conv2 = spconv.SubMConv3d(C, C, 3, bias=bias, indice_key="a")
        self.single = spconv.SubMConv3d(C, C, 1, bias=bias)
        self.down = spconv.SparseConv3d(C, C, 3, 2, 1, bias=bias, indice_key="b")
        self.up = spconv.SparseInverseConv3d(C, C, 3, bias=bias, indice_key="b")
        self.bn1, self.bn2, self.bn3, self.bn4 = (nn.BatchNorm1d(C, eps=1e-3) for _ in range(4))
        self.relu, self.relu_too = nn.ReLU(inplace=inplace), nn.ReLU(inplace=inplace)
        self.convs = nn.ModuleList([self.conv1, self.conv2])
        self.norms = nn.ModuleList([self.bn1, self.bn2])
        self.downsample, self.name_of_norm, self.counts, self.calls = downsample, "bn1", [0], 0
        for norm in [module for module in self.modules() if isinstance(module, nn.BatchNorm1d)]:
            nn.init.uniform_(norm.running_mean, -1, 1)
            nn.init.uniform_(norm.running_var, 0.5, 2)
            nn.init.uniform_(norm.weight, 0.5, 2)
            nn.init.uniform_(norm.bias, -1, 1)

    @property
    def first_norm(self):
        return getattr(self, self.name_of_norm)

    @property
    def counted(self):
        self.calls += 1
        return self.calls % 2


def build(forward, device="cpu", **parts):
    torch.manual_seed(0)
    return type("Block", (Parts,), {"forward": forward})(**parts).to(device)


def projection(*more):
    return spconv.SparseSequential(spconv.SubMConv3d(C, C, 1), nn.BatchNorm1d(C), *more)


def plain(module):
    """A copy whose blocks have the forwards that the program wrote."""
    module = copy.deepcopy(module)
    for each in module.modules():
        if hasattr(type(each).forward, "__wrapped__"):
            each.forward = MethodType(type(each).forward.__wrapped__, each)
    return module


def results(module, device, grad, training, dtype):
    """Of two calls, with what they leave in the module."""
    found = []
    module.train(training).zero_grad()
    for each in module.modules():
        each.train(training and not hasattr(each, "is_frozen"))
    torch.manual_seed(1)
    for seed in range(2):
        x = tensor(seed, device)
        source = x.features
        with (
            torch.set_grad_enabled(grad),
            torch.autocast(device, dtype or torch.bfloat16, bool(dtype)),
        ):
            y = module(x)
        y = y[0] if isinstance(y, tuple) else y
        features = y if isinstance(y, torch.Tensor) else y.features
        found += [features.detach(), *(b.clone() for b in module.buffers())]
        found += [x.features.detach()]
        if not isinstance(y, torch.Tensor):
            found += [y.indices]
        if grad and features.requires_grad:
            (
                features.float() * draws(5, torch.float32)(*features.shape).to(device)
            ).sum().backward()
            found += [source.grad]
    return found + [p.grad for p in module.parameters()]


def agree(module, device="cpu", modes=None, dtype=None):
    other = plain(module)
    tolerance = 1e-1 if dtype else 2e-3 if device == "cuda" else 1e-4
    for grad, training in modes or [(False, False), (True, True), (True, False), (False, True)]:
        got, expected = (results(m, device, grad, training, dtype) for m in (module, other))
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def is_read(module):
    return bool(module.__dict__.get(KEPT))


# ---- forwards that are read ---------------------------------------------------------------------


def replaced(out, features):
    if "replace_feature" in out.__dir__():
        return out.replace_feature(features)
    else:
        out.features = features
        return out


def after(x, *modules):
    """The features after conv, norm, ReLU."""
    conv, norm, relu = modules
    out = conv(x)
    return out.replace_feature(relu(norm(out.features)))


def residual(self, x):
    identity = x
    if x.features.dim() != 2:
        raise ValueError(f"{x.features.dim()}")
    out = self.conv1(x)
    out = replaced(out, self.first_norm(out.features))
    out = replaced(out, self.relu(out.features))
    out = self.conv2(out)
    out = replaced(out, self.bn2(out.features))
    if self.downsample is not None:
        identity = self.downsample(x)
    out = replaced(out, out.features + identity.features)
    return replaced(out, self.relu(out.features))


def of_functions(self, x):
    out = self.conv1(x)
    out = out.replace_feature(F.relu(self.bn1(out.features)))
    out = self.conv2(out)
    out = out.replace_feature(torch.add(x.features, self.bn2(out.features)))
    return out.replace_feature(torch.relu(out.features))


def in_a_loop(self, x):
    out = x
    for number, (conv, norm) in enumerate(zip(self.convs, self.norms)):  # noqa: B905
        out = conv(out)
        out = out.replace_feature(norm(out.features))
        if number < len(self.convs) - 1 or self.flag:
            out = out.replace_feature(self.relu(out.features))
    return out


def down_and_up(self, x):
    out = self.down(x)
    out = out.replace_feature(self.relu(self.bn1(out.features)))
    out = self.up(out)
    out = out.replace_feature(self.bn2(out.features) + x.features)
    return out.replace_feature(nn.functional.relu(out.features))


def of_another_branch(self, x):
    branch = self.single(x)
    out = self.conv1(x)
    out = out.replace_feature(self.relu(self.bn1(out.features)))
    out = self.conv2(out)
    out = out.replace_feature(self.bn2(out.features) + branch.features)
    return out.replace_feature(self.relu_too(out.features))


def no_relu(self, x):
    out = self.conv1(x)
    return out.replace_feature(self.bn1(out.features))


def used_twice(self, x):
    first = after(x, self.conv1, self.bn1, self.relu)
    branch = self.single(first)
    out = self.conv2(first)
    out = out.replace_feature(self.bn2(out.features) + branch.features)
    return out.replace_feature(self.relu(out.features))


READ = [residual, of_functions, in_a_loop, down_and_up, of_another_branch, used_twice, no_relu]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("forward", READ)
def test_forwards_that_are_read(forward, device):
    module = build(forward, device, bias=forward is residual, inplace=forward is down_and_up)
    agree(module, device)
    assert is_read(module)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("downsample", [projection, lambda: spconv.SubMConv3d(C, C, 3)])
def test_downsampling(downsample, device):
    module = build(residual, device, downsample=downsample())
    agree(module, device)
    assert is_read(module)


def test_inference_is_one_call(monkeypatch):
    module, calls = build(residual, downsample=projection()).eval(), []
    chain = fusion.ConvChain.forward
    monkeypatch.setattr(
        fusion.ConvChain, "forward", lambda self, *a: calls.append(self.count) or chain(self, *a)
    )
    with torch.no_grad():
        module(tensor())
    assert calls == [2]


@pytest.mark.parametrize("device", DEVICES)
def test_in_a_sequence_and_half(device):
    blocks = [build(residual, device), build(down_and_up, device), build(of_functions, device)]
    net = spconv.SparseSequential(*blocks)
    agree(net, device)
    agree(net, device, [(False, False)], torch.bfloat16)
    assert all(map(is_read, blocks))


@pytest.mark.parametrize("device", DEVICES)
def test_modes_of_the_modules(device):
    module = build(residual, device, downsample=projection())
    module.bn1.momentum = None
    for frozen in (module.bn1, module.bn2, module.downsample[1]):
        frozen.is_frozen = True
        agree(module, device, [(True, True), (False, True)])
    for parameter in module.bn2.parameters():
        parameter.requires_grad_(False)
    agree(module, device, [(True, True)])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(1, C), (None, 1)])
def test_residuals_that_are_broadcast(shape, device):
    def forward(self, x):
        out = self.conv1(x)
        out = out.replace_feature(self.bn1(out.features) + self.wider(x).features)
        return out.replace_feature(self.relu(out.features))

    class Wider(spconv.SubMConv3d):
        pass

    module = build(forward, device).eval()
    module.wider = Wider(C, 1, 1).to(device)
    if shape[0]:
        module.wider = spconv.SparseConv3d(C, C, SHAPE, bias=False).to(device)  # to a single row
    x = tensor(0, device)
    if shape[0]:
        x.indices, x.batch_size = x.indices[x.indices[:, 0] == 0], 1
        x.features = x.features[: len(x.indices)]
    with torch.no_grad():
        expected = plain(module)(x)
        torch.testing.assert_close(module(x).features, expected.features, rtol=1e-3, atol=1e-3)
    assert is_read(module)


def test_no_rows_and_repeated_sites():
    module = build(residual).eval()
    x = tensor()
    empty = spconv.SparseConvTensor(x.features[:0], x.indices[:0], SHAPE, 2)
    twice = spconv.SparseConvTensor(x.features, x.indices.clone(), SHAPE, 2)
    twice.indices[1] = twice.indices[0]
    with torch.no_grad():
        for each in (empty, twice):
            expected = plain(module)(each.replace_feature(each.features))
            torch.testing.assert_close(module(each).features, expected.features)


# ---- forwards that are called as they are -------------------------------------------------------


FLAG, COUNTS = True, [0]


def norm_twice(self, x):
    return after(after(x, self.conv1, self.bn1, self.relu), self.conv2, self.bn1, self.relu)


def conv_twice(self, x):
    return after(after(x, self.conv1, self.bn1, self.relu), self.conv1, self.bn2, self.relu)


def norm_of_the_downsampling(self, x):
    out = self.conv1(x)
    out = out.replace_feature(self.bn1(out.features))
    out = out.replace_feature(out.features + self.downsample(x).features)
    return out.replace_feature(self.relu(out.features))


def from_the_first_block(self, x):
    first = after(x, self.conv1, self.bn1, self.relu)
    out = self.conv2(first)
    out = out.replace_feature(self.bn2(out.features) + first.features)
    return out.replace_feature(self.relu(out.features))


def unused(self, x):
    after(x, self.conv2, self.bn2, self.relu)
    return after(x, self.conv1, self.bn1, self.relu)


def unused_in_place(self, x):
    out = self.conv1(x)
    self.relu(out.features)
    return out.replace_feature(self.bn1(out.features))


def in_place(self, x):
    out = self.conv1(x)
    out.features += x.features
    return out


def add_(self, x):
    out = self.conv1(x)
    out.features.add_(1)
    return out


def counting(self, x):
    self.counts[0] += 1
    return self.conv1(x).replace_feature(x.features * self.counts[0])


def counting_in_a_global(self, x):
    COUNTS[0] += 1
    return after(x, self.conv1, self.bn1, self.relu)


def counting_in_a_default(self, x, counts=[0]):  # noqa: B006
    counts += [1]
    return x.replace_feature(x.features * len(counts))


def counting_in_an_attribute(self, x):
    self.calls += 1
    out = after(x, self.conv1, self.bn1, self.relu)
    return out if self.calls % 2 else x


def counting_in_a_property(self, x):
    return after(x, self.conv1, self.bn1, self.relu) if self.counted else x


def by_rows(self, x):
    return after(x, self.conv1, self.bn1, self.relu) if len(x.features) > 120 else x


def by_shape(self, x):
    return after(x, self.conv1, self.bn1, self.relu) if x.spatial_shape[0] > 5 else x


def by_names(self, x):
    return after(x, self.conv1, self.bn1, self.relu) if "indices" in x.__dir__() else x


def by_an_attribute(self, x):
    return after(x, self.conv1, self.bn1, self.relu) if hasattr(x, "indices") else x


def by_class(self, x):
    return after(x, self.conv1, self.bn1, self.relu) if self.__class__.__name__ == "Self" else x


def by_fields(self, x):
    return x if "bn1" in self.__dict__["_modules"] else self.conv1(x)


def at_random(self, x):
    return after(x, self.conv1, self.bn1, self.relu) if torch.rand(()) < 0.5 else x


def of_dropout(self, x):
    out = after(x, self.conv1, self.bn1, self.relu)
    return out.replace_feature(F.dropout(out.features, 0.5, self.training))


def after_an_error(self, x):
    try:
        return x.replace_feature(x.features * 2)
    except:  # noqa: E722
        return self.conv1(x)


def without_gradients(self, x):
    with torch.no_grad():
        return after(x, self.conv1, self.bn1, self.relu)


def of_a_lambda(self, x):
    double = lambda y: y.replace_feature(y.features + y.features)  # noqa: E731
    return double(after(x, self.conv1, self.bn1, self.relu))


def of_functions_of_functions(self, x):
    return [after(y, self.conv1, self.bn1, self.relu) for y in [x, x]][-1]


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x

    @staticmethod
    def backward(context, gradient):
        return -gradient


def of_autograd(self, x):
    out = after(x, self.conv1, self.bn1, self.relu)
    return out.replace_feature(Sign.apply(out.features))


def a_pair(self, x):
    return after(x, self.conv1, self.bn1, self.relu), x


def features_alone(self, x):
    return after(x, self.conv1, self.bn1, self.relu).features


def with_more(self, x, *others, scale=2):
    return after(x, self.conv1, self.bn1, self.relu).replace_feature(x.features * scale)


def a_parameter(self, x):
    out = self.conv1(x)
    return out.replace_feature(self.bn1(out.features) * self.conv1.weight.sum())


def counting_for_all(self, x):
    global FLAG
    FLAG = not FLAG
    return after(x, self.conv1, self.bn1, self.relu) if FLAG else x


CALLED = [
    value
    for name, value in list(globals().items())
    if getattr(value, "__code__", None) and value.__code__.co_varnames[:2] == ("self", "x")
]
CALLED = [forward for forward in CALLED if forward not in READ]


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("forward", CALLED)
def test_forwards_that_are_called(forward, inplace):
    global FLAG, COUNTS
    module = build(forward, inplace=inplace)
    if forward is norm_of_the_downsampling:
        module.downsample = spconv.SparseSequential(spconv.SubMConv3d(C, C, 1), module.bn1)
    modes = [(True, True), (False, False)]
    results_of, other = [], plain(module)
    for each in (module, other):
        FLAG, COUNTS[:] = True, [0]
        if forward is counting_in_a_default:
            forward.__defaults__ = ([0],)
        found = [results(each, "cpu", *mode, None) for mode in modes]
        results_of.append((found, each.calls, each.counts, COUNTS[0], FLAG))
    torch.testing.assert_close(*results_of, rtol=1e-4, atol=1e-4)
    assert not is_read(module)


def doubling(module):
    """One that doubles the features of a convolution."""
    forward = module.forward
    module.forward = lambda x: forward(x).replace_feature(2 * forward(x).features)


def changed_relu(module):
    module.relu = nn.ReLU6()


CHANGES = {
    "another module": lambda m: setattr(m, "conv1", spconv.SubMConv3d(C, C, 3)),
    "another norm": lambda m: setattr(m, "bn2", nn.BatchNorm1d(C)),
    "another property": lambda m: setattr(m, "name_of_norm", "bn3"),
    "a module where none was": lambda m: setattr(m, "downsample", projection()),
    "a module in a list": lambda m: m.convs.__setitem__(0, spconv.SubMConv3d(C, C, 3)),
    "dropout": lambda m: setattr(m, "downsample", projection(nn.Dropout())),
    "synchronised norms": nn.SyncBatchNorm.convert_sync_batchnorm,
    "a flag": lambda m: setattr(m, "flag", False),
    "a flag of the class": lambda m: setattr(type(m), "flag", False),
    "a forward": lambda m: doubling(m.conv2),
    "another activation": changed_relu,
    "in place": lambda m: setattr(m.relu, "inplace", True),
    "weight_norm": lambda m: nn.utils.parametrizations.weight_norm(m.conv1),
    "old weight_norm": lambda m: nn.utils.weight_norm(m.conv1),
    "spectral_norm": lambda m: nn.utils.parametrizations.spectral_norm(m.conv2),
    "old spectral_norm": lambda m: nn.utils.spectral_norm(m.conv2),
    "a parametrized norm": lambda m: nn.utils.parametrize.register_parametrization(
        m.bn1, "weight", nn.Softplus()
    ),
    "pruned": lambda m: prune.l1_unstructured(m.conv1, "weight", 0.5),
    "its class": lambda m: setattr(m, "__class__", type(build(no_relu))),
    "an instance's forward": lambda m: setattr(m, "forward", lambda x: x),
    "a hook": lambda m: (
        m.conv1.register_forward_hook(lambda _, inputs, y: y.replace_feature(2 * y.features))
        and None
    ),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("forward", [residual, in_a_loop])
@pytest.mark.parametrize("change", CHANGES)
def test_changes_after_the_first_call(change, forward):
    module = build(forward).eval()
    with torch.no_grad():
        module(tensor())
        assert is_read(module)
    torch.manual_seed(0)
    CHANGES[change](module)
    modes = [(False, False), (True, True)]
    if change == "synchronised norms":
        modes = modes[:1]
    if change == "an instance's forward":
        assert module(x := tensor()) is x
    else:
        agree_in_place(module, modes)


def agree_in_place(module, modes):
    """As `agree`, of a module that cannot be copied: the plain forward comes first."""
    state = copy.deepcopy(module.state_dict())
    follow, found = type(module).forward, []
    for forward in (follow.__wrapped__, follow):
        module.load_state_dict(state)
        type(module).forward = forward
        found.append([results(module, "cpu", *mode, None) for mode in modes])
        found[-1] = [[None if t is None else t.clone() for t in each] for each in found[-1]]
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_hooks_see_the_modules_in_order():
    module, seen = build(residual, downsample=projection()).eval(), []
    handles = []
    with torch.no_grad():
        module(tensor())
        for name, each in module.named_modules():
            handles.append(each.register_forward_pre_hook(lambda *_, name=name: seen.append(name)))
        module(tensor())
        order = "conv1 bn1 relu conv2 bn2 downsample downsample.0 downsample.1 relu"
        assert seen == ["", *order.split()]
        for handle in handles:
            handle.remove()
    seen.clear()
    agree(module)
    assert is_read(module) and not seen


def test_a_helper_that_is_replaced(monkeypatch):
    module = build(residual)
    for factor in (1, 2, 1):
        agree(module, modes=[(False, False)])
        monkeypatch.setitem(
            globals(), "replaced", lambda out, f, factor=factor: out.replace_feature(f * factor)
        )
    agree(module, modes=[(False, False)])


def test_a_property_that_is_replaced():
    module = build(residual)
    agree(module, modes=[(False, False)])
    type(module).first_norm = property(lambda self: self.bn3)
    agree(module, modes=[(False, False)])
    assert is_read(module)


@pytest.mark.parametrize("changed", ["__defaults__", "__code__"])
def test_a_function_that_changes_in_place(changed):
    """As where a notebook loads a file again."""

    def forward(self, x, last=True):
        out = after(x, self.conv1, self.bn1, self.relu)
        out = self.conv2(out)
        out = out.replace_feature(self.bn2(out.features))
        return out.replace_feature(self.relu(out.features)) if last else out

    module = build(forward)
    agree(module, modes=[(False, False)])
    new = {"__defaults__": (False,), "__code__": no_relu.__code__}
    setattr(forward, changed, new[changed])
    agree(module, modes=[(False, False)])
    assert is_read(module)


def test_a_forward_that_a_notebook_loads_again():
    """IPython's autoreload gives the old function the new one's code and attributes."""
    module = build(no_relu)
    agree(module, modes=[(False, False)])
    old, new = type(module).forward, type(build(residual)).forward
    old.__code__, old.__dict__ = new.__code__, new.__dict__
    expected = build(residual)
    expected.load_state_dict(module.state_dict())
    with torch.no_grad():
        got, wanted = (each.eval()(tensor()).features for each in (module, plain(expected)))
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    assert is_read(module)


def test_attributes_of_any_name():
    module = build(no_relu)
    module._recipe = module.recipe = {"a": 1}
    agree(module)
    assert is_read(module) and module._recipe == module.recipe == {"a": 1}


def test_flags_of_the_program(monkeypatch):
    def forward(self, x):
        return after(x, self.conv1, self.bn1, self.relu) if FLAG else x

    module = build(forward)
    for flag in (True, False, True):
        monkeypatch.setitem(globals(), "FLAG", flag)
        agree(module, modes=[(False, False)])
        assert is_read(module)


class Noisy(spconv.SubMConv3d):
    def forward(self, x):
        y = super().forward(x)
        return y.replace_feature(y.features + torch.rand_like(y.features))


@pytest.mark.parametrize("first", [nn.ReLU(inplace=True), nn.Dropout(), Noisy(C, C, 3)])
def test_downsampling_that_must_come_after_the_blocks(first):
    module = build(residual, downsample=spconv.SparseSequential(first, *projection()))
    module.conv1 = Noisy(C, C, 3)
    agree(module, modes=[(False, True), (False, False)])
    module.conv1 = spconv.SubMConv3d(C, C, 3)
    agree(module, modes=[(False, True), (False, False)])


def test_inheritance():
    class First(Parts):
        forward = residual

    class Second(First):
        def forward(self, x):
            y = super().forward(x)
            return y.replace_feature(2 * y.features)

    class Third(Second):
        pass

    class Static(spconv.SparseModule):
        @staticmethod
        def forward(x):
            return x

    class Callables(spconv.SparseModule):
        forward = nn.Identity().forward

    x = tensor()
    assert Static()(x) is x and Callables()(x) is x
    torch.manual_seed(0)
    second, first = Second().eval(), First().eval()
    first.load_state_dict(second.state_dict())
    third = Third().eval()
    third.load_state_dict(second.state_dict())
    with torch.no_grad():
        once = First.forward(second, x).features
        torch.testing.assert_close(once, first(x).features)
        torch.testing.assert_close(2 * once, second(x).features)
        torch.testing.assert_close(2 * once, third(x).features)


def test_two_inputs_and_keywords():
    def forward(self, x, other=None):
        out = after(x, self.conv1, self.bn1, self.relu)
        return out if other is None else out.replace_feature(out.features + other.features)

    module, x = build(forward).eval(), tensor()
    other = plain(module)
    with torch.no_grad():
        for inputs, named in [((x,), {}), ((x, x), {}), ((x,), {"other": x}), ((), {"x": x})]:
            got, expected = module(*inputs, **named), other(*inputs, **named)
            torch.testing.assert_close(got.features, expected.features)
    assert is_read(module)


def test_tensors_of_a_programs_own_class():
    class Noted(spconv.SparseConvTensor):
        def replace_feature(self, features):
            return super().replace_feature(features + 1)

    module, x = build(no_relu).eval(), tensor()
    own = Noted(x.features, x.indices, SHAPE, 2)
    with torch.no_grad():
        y = module(x)
        torch.testing.assert_close(module(own).features, plain(module)(own).features)
        assert not torch.allclose(module(own).features, y.features)


class Pickled(Parts):
    forward = residual


def test_copies():
    module = Pickled(downsample=projection()).eval()
    names, saved = list(module.state_dict()), io.BytesIO()
    agree(module)
    assert list(module.state_dict()) == names
    torch.save(module, saved)
    saved.seek(0)
    copies = [
        pickle.loads(pickle.dumps(module)),
        torch.load(saved, weights_only=False),
        copy.deepcopy(module),
        copy.copy(module),
    ]
    for each in copies[:3]:
        nn.init.zeros_(each.bn2.weight)  # of a module that is not the other one's
    replica = copies[3]
    replica._modules = dict(module._modules, conv1=copies[0].conv1)
    for each in [*copies, module]:
        agree(each)
        assert is_read(each)


def test_nothing_keeps_a_module():
    module = build(residual, downsample=projection())
    module(tensor())
    assert is_read(module)
    gc.disable()
    try:
        seen = weakref.ref(module)
        del module
        assert seen() is None
    finally:
        gc.enable()
    module = build(residual)
    module(tensor())
    module.conv1.register_forward_hook(module._get_name)  # a circle of the program's own
    seen = weakref.ref(module)
    del module
    gc.collect()
    assert seen() is None


def test_threads():
    module, found = build(residual, downsample=projection()).eval(), []
    start = threading.Barrier(4)

    def call():
        start.wait()
        with torch.no_grad():
            found.append(module(tensor()).features)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for features in found:
        torch.testing.assert_close(features, plain(module)(tensor()).features)


def test_compiled():
    net = spconv.SparseSequential(build(no_relu), build(no_relu)).eval()
    with torch.no_grad():
        expected = plain(net)(tensor()).features
        net[0](tensor())  # one is read, one is not
        compiled = torch.compile(net, backend="eager")
        torch.testing.assert_close(compiled(tensor()).features, expected)
