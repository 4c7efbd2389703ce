"""Convolutions with bias and ReLU one after another, as inference runs them."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from torch import Tensor, nn

from ops.cpu import conv_chain as cpu
from ops.cuda import conv_chain as cuda
from ops.dispatch import on_cpu_kernels, on_kernels
from ops.reference import conv_chain as reference
from ops.rulebook import KernelMap, Level


class ConvChain(nn.Module):
    """x -> relu(conv(x) + bias) for every weight in turn; no gradients.

    On CUDA the weights are kept in the order in which the tensor cores read them, and a kernel
    starts while the one before it still drains. float32 is computed in the precision that torch was
    set to when the weights came to the device. On a CPU they are in the order of its vectors.
    """

    weight_0: Tensor  # and so on, as bias_0: buffers of each convolution

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor]):
        """weights: [V, C_in, C_out] each; biases: [C_out] each, float32 whatever the weights."""
        super().__init__()
        self.count = len(weights)
        for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            self.register_buffer(f"weight_{layer}", weight.detach().clone())
            self.register_buffer(f"bias_{layer}", bias.detach().clone())
        self._arrange()

    def forward(self, features: Tensor, kernel_maps: Sequence[KernelMap]) -> Tensor:
        """[N_in, C_in] and one map for every convolution -> [N_out, C_out] of the last."""
        packed = self._packed_weights()
        return self._backend().conv_chain(features, packed, self._biases, kernel_maps)

    def bev_map(
        self, features: Tensor, kernel_maps: Sequence[KernelMap], level: Level, batch_size: int
    ) -> Tensor:
        """The rows, which are those of `level`, in a map [B, Z * C, Y, X], channel z * C + c,
        channels last."""
        packed = self._packed_weights()
        return self._backend().conv_chain_bev_map(
            features, packed, self._biases, kernel_maps, level, batch_size
        )

    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Weight [V, C_in, C_out] and bias [C_out] of each convolution."""
        weights = [getattr(self, f"weight_{layer}") for layer in range(self.count)]
        return list(zip(weights, self._biases, strict=True))

    def _backend(self) -> ModuleType:
        weight = self.weight_0
        return cuda if on_kernels(weight) else cpu if on_cpu_kernels(weight) else reference

    def _apply(self, fn, recurse: bool = True) -> ConvChain:
        biases = [getattr(self, f"bias_{layer}") for layer in range(self.count)]
        super()._apply(fn, recurse)
        for layer, bias in enumerate(biases):  # a cast of the module leaves them in float32
            moved = getattr(self, f"bias_{layer}")
            setattr(self, f"bias_{layer}", bias.to(moved.device))
        self._arrange()
        return self

    def _arrange(self) -> None:
        self._biases = [getattr(self, f"bias_{layer}") for layer in range(self.count)]
        self._packed = None
        if on_kernels(self.weight_0):  # now: tf32 is decided here, and graphs are captured later
            self._packed = self._packed_weights()

    def _packed_weights(self):
        """On a CPU first when they are used: most come there only to go on to a GPU."""
        backend = self._backend()
        if self._packed is not None and backend is not reference:
            return self._packed
        packed = backend.pack_weights([weight for weight, _ in self.layers()])
        self._packed = None if backend is reference else packed
        return packed

    def _load_from_state_dict(self, *arguments) -> None:
        super()._load_from_state_dict(*arguments)
        self._arrange()
