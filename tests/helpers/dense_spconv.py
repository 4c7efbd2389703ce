"""spconv's public face on dense grids: what models on `ops.spconv` are judged by.

It is slow and simple: every convolution is torch's dense one, cut to the active sites.
"""

import torch
from torch import nn
from torch.nn.functional import conv3d, conv_transpose3d

from tests.helpers.dense_oracle import read, scatter


class SparseModule(nn.Module):
    pass


class SparseConvTensor:
    def __init__(self, features, indices, spatial_shape, batch_size, keys=None):
        self.features, self.indices = features, indices
        self.spatial_shape, self.batch_size = list(spatial_shape), batch_size
        self.keys = {} if keys is None else keys

    def replace_feature(self, features):
        return self.at(features, self.indices, self.spatial_shape)

    def at(self, features, indices, shape):
        return SparseConvTensor(features, indices, shape, self.batch_size, self.keys)

    def dense(self):
        return scatter(self.features, self.indices, self.spatial_shape, self.batch_size)

    def mask(self):
        ones = torch.ones(len(self.indices), 1, dtype=torch.float64)
        return scatter(ones, self.indices, self.spatial_shape, self.batch_size)


class _Conv(SparseModule):
    def __init__(self, c_in, c_out, kernel_size, stride=1, padding=0, bias=True, indice_key=None):
        super().__init__()
        self.kernel = _three(kernel_size)
        self.stride, self.padding, self.key = _three(stride), _three(padding), indice_key
        self.weight = nn.Parameter(torch.empty(c_out, *self.kernel, c_in))
        self.bias = nn.Parameter(torch.empty(c_out)) if bias else None


class SubMConv3d(_Conv):
    def forward(self, x):
        padding = [size // 2 for size in self.kernel]
        grid = conv3d(x.dense(), self.weight.movedim(-1, 1), self.bias, padding=padding)
        return x.replace_feature(read(grid, x.indices))


class SparseConv3d(_Conv):
    def forward(self, x):
        window = {"stride": self.stride, "padding": self.padding}
        grid = conv3d(x.dense(), self.weight.movedim(-1, 1), self.bias, **window)
        reached = conv3d(x.mask(), torch.ones(1, 1, *self.kernel, dtype=torch.float64), **window)
        indices = (reached[:, 0] > 0).nonzero().int()
        x.keys[self.key] = x, self
        return x.at(read(grid, indices), indices, grid.shape[2:])


class SparseInverseConv3d(_Conv):
    def __init__(self, c_in, c_out, kernel_size, indice_key, bias=True):
        super().__init__(c_in, c_out, kernel_size, bias=bias, indice_key=indice_key)

    def forward(self, x):
        before, down = x.keys[self.key]
        window = {"stride": down.stride, "padding": down.padding}
        grid = conv_transpose3d(x.dense(), self.weight.movedim(-1, 0), self.bias, **window)
        missing = [n - m for n, m in zip(before.spatial_shape, grid.shape[2:], strict=True)]
        grid = nn.functional.pad(grid, [n for m in reversed(missing) for n in (0, m)])
        return before.at(read(grid, before.indices), before.indices, before.spatial_shape)


class SparseSequential(SparseModule):
    def __init__(self, *modules, **named):
        super().__init__()
        for name, module in [*((str(i), m) for i, m in enumerate(modules)), *named.items()]:
            self.add_module(name, module)

    def forward(self, x):
        for module in self.children():
            sparse = isinstance(module, SparseModule)
            x = module(x) if sparse else x.replace_feature(module(x.features))
        return x


def _three(size):
    return (size,) * 3 if isinstance(size, int) else tuple(size)
