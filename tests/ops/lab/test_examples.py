"""The examples run on a CPU, too, so that a mistake in one is seen without a GPU."""

import pytest
import torch

from millisecond.ops.lab import examples

# they need kernels, pinned memory, or weights of another type than the features
ON_A_GPU = {
    "collect",
    "conv_blocks",
    "conv_naive",
    "index_exactly",
    "index_with_capacities",
    "load_points",
    "stage_points",
    "stream_of_its_own",
}
ON_A_CPU = [example for example in examples.EXAMPLES.values() if example.__name__ not in ON_A_GPU]


@pytest.fixture(scope="module")
def scene():
    torch.manual_seed(0)
    return examples.small_scene(torch.device("cpu"))


@pytest.fixture(autouse=True)
def precision_of_before():
    """An example sets the precision of float32; other tests of this process have their own."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("example", ON_A_CPU, ids=lambda example: example.__name__)
def test_an_example_runs(example, scene, monkeypatch):
    monkeypatch.setattr(examples, "DTYPES", (torch.float32,))
    monkeypatch.setattr(examples, "CHANNELS", [(4, 16), (3, 5)])
    names = []
    for name, call in example(scene):
        call()
        names.append(name)
    assert names and len({*names}) == len(names)
