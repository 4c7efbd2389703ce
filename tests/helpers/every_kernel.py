r"""Runs every CUDA kernel on small inputs, for compute-sanitizer to watch:

PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck \
    python tests/helpers/every_kernel.py

ops/lab/examples.py has the inputs.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from millisecond.ops.lab.examples import EXAMPLES, small_scene

# they take no tensor, or are autograd alone, which `Called` does not see
NOT_SEEN = {"index_workspace_words", "own_stream", "tile_sizes", "train_blocks", "train_conv"}


class Called(TorchDispatchMode):
    """Collects the names of our operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace in ("millisecond", "millisecond_lab"):
            self.names.add(function._schema.name.partition("::")[2])
        return function(*args, **(kwargs or {}))


def main() -> None:
    torch.manual_seed(0)
    scene = small_scene(torch.device("cuda"))
    for operators, example in EXAMPLES.items():
        with Called() as called:
            for _, call in example(scene):
                call()
        left_out = {*operators} - called.names - NOT_SEEN
        if left_out:
            raise SystemExit(f"{example.__name__} does not call {', '.join(sorted(left_out))}")
    torch.cuda.synchronize()
    print("every kernel ran")


if __name__ == "__main__":
    main()
