"""Networks written against spconv 2's documented API, for spconv and for millisecond.ops.spconv.

A function that builds a network takes the engine: the module `spconv.pytorch`, or one that stands
in for it.
"""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

from torch import Tensor, nn

norm = partial(nn.BatchNorm1d, eps=1e-3, momentum=0.01)


def second(spconv: ModuleType, channels: int = 4) -> nn.Module:
    """SECOND's encoder with the names of OpenPCDet's VoxelBackBone8x."""

    def block(c_in: int, c_out: int, key: str, stride: Any = None, padding: Any = 1) -> nn.Module:
        if stride is None:
            conv = spconv.SubMConv3d(c_in, c_out, 3, bias=False, indice_key=key)
        else:
            window = {"stride": stride, "padding": padding, "bias": False, "indice_key": key}
            conv = spconv.SparseConv3d(c_in, c_out, 3, **window)
        return spconv.SparseSequential(conv, norm(c_out), nn.ReLU())

    class Second(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            first = spconv.SubMConv3d(channels, 16, 3, padding=1, bias=False, indice_key="subm1")
            self.conv_input = spconv.SparseSequential(first, norm(16), nn.ReLU())
            self.conv1 = spconv.SparseSequential(block(16, 16, "subm1"))
            self.conv2 = spconv.SparseSequential(
                block(16, 32, "spconv2", 2), block(32, 32, "subm2"), block(32, 32, "subm2")
            )
            self.conv3 = spconv.SparseSequential(
                block(32, 64, "spconv3", 2), block(64, 64, "subm3"), block(64, 64, "subm3")
            )
            self.conv4 = spconv.SparseSequential(
                block(64, 64, "spconv4", 2, (0, 1, 1)),
                block(64, 64, "subm4"),
                block(64, 64, "subm4"),
            )
            down = spconv.SparseConv3d(
                64, 128, (3, 1, 1), stride=(2, 1, 1), bias=False, indice_key="spconv_down2"
            )
            self.conv_out = spconv.SparseSequential(down, norm(128), nn.ReLU())

        def forward(self, x: Any) -> Tensor:
            x = self.conv_input(x)
            for layer in (self.conv1, self.conv2, self.conv3, self.conv4):
                x = layer(x)
            out = self.conv_out(x).dense()
            b, c, d, h, w = out.shape
            return out.view(b, c * d, h, w)

    return Second()


def residual_block(spconv: ModuleType, channels: int, key: str) -> nn.Module:
    """Two submanifold convolutions and the input added, as in VoxelResBackBone8x."""

    class Residual(spconv.SparseModule):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            window = {"padding": 1, "bias": True, "indice_key": key}
            self.conv1 = spconv.SubMConv3d(channels, channels, 3, **window)
            self.bn1, self.relu = norm(channels), nn.ReLU()
            self.conv2 = spconv.SubMConv3d(channels, channels, 3, **window)
            self.bn2 = norm(channels)

        def forward(self, x: Any) -> Any:
            out = self.conv1(x)
            out = out.replace_feature(self.bn1(out.features))
            out = out.replace_feature(self.relu(out.features))
            out = self.conv2(out)
            out = out.replace_feature(self.bn2(out.features))
            return out.replace_feature(self.relu(out.features + x.features))

    return Residual()


def residual(spconv: ModuleType, inputs: int = 4) -> nn.Module:
    """Residual blocks between strided convolutions, as in VoxelResBackBone8x."""

    def block(*arguments: Any, layer: str = "SparseConv3d", **window: Any) -> nn.Module:
        conv = getattr(spconv, layer)(*arguments, bias=False, **window)
        return spconv.SparseSequential(conv, norm(arguments[1]), nn.ReLU())

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = block(inputs, 16, 3, layer="SubMConv3d", padding=1, indice_key="subm1")
            self.levels = nn.ModuleList()
            for level, width in enumerate((16, 32, 64, 128), start=1):
                parts = [residual_block(spconv, width, f"res{level}") for _ in range(2)]
                if level > 1:
                    padding = (0, 1, 1) if level == 4 else 1
                    key = {"indice_key": f"down{level}"}
                    parts.insert(0, block(width // 2, width, 3, stride=2, padding=padding, **key))
                self.levels.append(spconv.SparseSequential(*parts))
            self.out = block(128, 128, (3, 1, 1), stride=(2, 1, 1), indice_key="out")

        def forward(self, x: Any) -> Tensor:
            x = self.stem(x)
            for level in self.levels:
                x = level(x)
            out = self.out(x).dense()
            return out.flatten(1, 2)

    return Residual()


def unet(spconv: ModuleType, channels: int = 32, levels: int = 3, inputs: int = 4) -> nn.Module:
    """Residual blocks, strided convolutions down, inverse ones up, skips added."""

    class Unet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            wide = [channels * 2**level for level in range(levels)]
            stem = spconv.SubMConv3d(inputs, channels, 5, padding=2, bias=False, indice_key="stem")
            self.stem = spconv.SparseSequential(stem, norm(channels), nn.ReLU())
            self.blocks, self.downs, self.ups, self.lasts = (nn.ModuleList() for _ in range(4))
            for level, width in enumerate(wide):
                self.blocks.append(residual_block(spconv, width, f"subm{level}"))
                if level + 1 == levels:
                    break
                down = spconv.SparseConv3d(
                    width, 2 * width, 2, stride=2, bias=False, indice_key=f"down{level}"
                )
                self.downs.append(
                    spconv.SparseSequential(down, norm(2 * width), nn.ReLU(inplace=True))
                )
                up = spconv.SparseInverseConv3d(
                    2 * width, width, 2, indice_key=f"down{level}", bias=False
                )
                self.ups.append(spconv.SparseSequential(up, norm(width), nn.ReLU(inplace=True)))
                self.lasts.append(residual_block(spconv, width, f"subm{level}"))

        def forward(self, x: Any) -> Tensor:
            x = self.stem(x)
            skips = []
            for block, down in zip(self.blocks, self.downs, strict=False):
                x = block(x)
                skips.append(x)
                x = down(x)
            x = self.blocks[-1](x)
            for up, last, skip in zip(
                reversed(self.ups), reversed(self.lasts), reversed(skips), strict=True
            ):
                x = up(x)
                x = last(x.replace_feature(x.features + skip.features))
            return x.features

    return Unet()


def positional_encoding(spconv: ModuleType, channels: int = 32, inputs: int = 6) -> nn.Module:
    """Point Transformer V3's stem and conditional positional encoding, two blocks of it."""

    class Encoding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = spconv.SparseSequential(
                conv=spconv.SubMConv3d(
                    inputs, channels, kernel_size=5, padding=1, bias=False, indice_key="stem"
                ),
                norm=norm(channels),
                act=nn.GELU(),
            )
            self.cpe = nn.ModuleList(
                nn.ModuleList(
                    (
                        spconv.SubMConv3d(
                            channels, channels, kernel_size=3, bias=True, indice_key="stage0"
                        ),
                        nn.Linear(channels, channels),
                        nn.LayerNorm(channels),
                    )
                )
                for _ in range(2)
            )

        def forward(self, x: Any) -> Tensor:
            x = self.stem(x)
            blocks: Any = self.cpe  # modules have no types
            for conv, linear, layer_norm in blocks:
                shortcut = x.features
                x = conv(x)
                x = x.replace_feature(shortcut + layer_norm(linear(x.features)))
            return x.features

    return Encoding()


def stack(spconv: ModuleType, channels: int, layers: int = 2) -> nn.Module:
    """Submanifold convolutions of one width and one indice_key, with norm and ReLU."""
    modules: list[nn.Module] = []
    for _ in range(layers):
        conv = spconv.SubMConv3d(channels, channels, 3, bias=False, indice_key="subm")
        modules += [conv, norm(channels), nn.ReLU()]

    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = spconv.SparseSequential(*modules)

        def forward(self, x: Any) -> Tensor:
            return self.layers(x).features

    return Stack()
