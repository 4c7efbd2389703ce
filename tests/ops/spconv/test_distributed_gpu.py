"""Networks of ops.spconv under torch's DistributedDataParallel: two processes of one frame each."""

import pytest
import torch

from tests.helpers.minute_training import start_on_gpus, succeed
from tests.helpers.spconv_replica import build, gradients_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


def test_both_have_the_mean_of_the_gradients_twice_to_the_bit(tmp_path):
    succeed(start_on_gpus(2, ["-m", "tests.helpers.spconv_replica", "cuda", str(tmp_path)]))
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    device = torch.device("cuda")
    alone = [gradients_of(build(device), rank, device) for rank in range(2)]
    for i, (name, _) in enumerate(build(device).named_parameters()):
        wanted = (alone[0][i].double() + alone[1][i].double()) / 2
        found = first[0][i]
        assert (found - wanted).norm() <= 1e-6 * wanted.norm(), name
        for other in (first[1][i], second[0][i], second[1][i]):
            assert torch.equal(other, found), name
