"""The 2-D backbone, the RPN of SECOND without its heads: blocks of convolutions over the
bird's-eye-view map, each followed by up-sampling to the map's size."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from millisecond.detector.models.layers import MapNorm, convolve
from millisecond.ops import norm_relu


class ConvBlock(nn.Module):
    """Convolution (or its transpose), BatchNorm, ReLU; folded: convolution with bias, ReLU."""

    def __init__(self, conv: nn.Conv2d | nn.ConvTranspose2d):
        super().__init__()
        self.conv = conv
        self.norm: MapNorm | None = MapNorm(conv.out_channels)

    def forward(self, features: Tensor) -> Tensor:
        """[B, C_in, H, W] -> [B, C_out, H', W']."""
        return joined([self], [features])

    def fold(self) -> None:
        """Moves the running statistics of the BatchNorm into the convolution, in place."""
        norm = self.norm
        assert norm is not None, "folded already"
        self.conv.weight, self.conv.bias = fuse_conv_bn_weights(
            self.conv.weight,
            self.conv.bias,
            norm.running_mean,
            norm.running_var,
            norm.eps,
            norm.weight,
            norm.bias,
            transpose=isinstance(self.conv, nn.ConvTranspose2d),
        )
        self.conv.requires_grad_(False)
        self.norm = None


def joined(blocks: Sequence[ConvBlock], features: Sequence[Tensor]) -> Tensor:
    """What each block makes of its features, side by side along the channels."""
    maps = [convolve(block.conv, values) for block, values in zip(blocks, features, strict=True)]
    norms = [block.norm for block in blocks]
    # not synchronised over processes
    if all(type(norm) is MapNorm and norm.training for norm in norms):
        return norm_relu(maps, norms)  # type: ignore[arg-type]  # none of them is None
    for i, norm in enumerate(norms):
        maps[i] = torch.relu_(maps[i] if norm is None else norm(maps[i]))
    return maps[0] if len(maps) == 1 else torch.cat(maps, dim=1)


class BevBackbone(nn.Module):
    """Blocks of 3x3 convolutions, the first of each strided. A transposed convolution up-samples
    the output of every block to the size of the input; the results are concatenated."""

    def __init__(
        self,
        in_channels: int,
        layers: Sequence[int],
        channels: Sequence[int],
        strides: Sequence[int],
        upsample_channels: Sequence[int],
    ):
        """One value per block in each list; `layers`: convolutions after the strided one."""
        super().__init__()
        self.blocks, self.upsamples = nn.ModuleList(), nn.ModuleList()
        scale = 1
        for count, wide, stride, up in zip(
            layers, channels, strides, upsample_channels, strict=True
        ):
            convs = [nn.Conv2d(in_channels, wide, 3, stride, padding=1, bias=False)]
            convs += [nn.Conv2d(wide, wide, 3, padding=1, bias=False) for _ in range(count)]
            self.blocks.append(nn.Sequential(*map(ConvBlock, convs)))
            scale *= stride
            back = nn.ConvTranspose2d(wide, up, scale, stride=scale, bias=False)
            self.upsamples.append(ConvBlock(back))
            in_channels = wide
        self.out_channels = sum(upsample_channels)

    def forward(self, features: Tensor) -> Tensor:
        """[B, C, Y, X] -> [B, sum of upsample_channels, Y, X]."""
        outputs = []
        for block in self.blocks:
            features = block(features)
            outputs.append(features)
        return joined(list(self.upsamples), outputs)  # type: ignore[arg-type]
