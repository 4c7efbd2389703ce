"""Clouds one behind another; on a GPU as on a CPU."""

import pytest
import torch

from ops.upload import header_words, upload

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("channels", [4, 5])
def test_clouds_lie_behind_where_they_begin(device, channels):
    room = 800_000
    staged, out = (torch.full((room,), -1, dtype=torch.int32) for _ in range(2))
    if device == "cuda":
        staged, out = staged.pin_memory(), out.cuda()
    for sizes in ((7,), (0,), (20_000,), (3, 0, 60_000, 1), (40_000, 41_000, 9), (0, 0, 0, 0)):
        clouds = [torch.randn(size, channels) for size in sizes]
        clouds[-1] = clouds[-1].flip(0).T.contiguous().T  # as numpy may hand it over
        before = out.clone()
        upload(clouds, staged, out)
        wanted = [0]
        for size in sizes:
            wanted.append(wanted[-1] + size)
        first, words = header_words(len(sizes)), channels * wanted[-1]
        assert first % 4 == 0 and out[: len(wanted)].tolist() == wanted
        found = out[first : first + words].view(torch.float32).view(-1, channels)
        assert torch.equal(found.cpu(), torch.cat(clouds))
        assert torch.equal(out[first + words :], before[first + words :])
        if device == "cuda":
            torch.cuda.synchronize()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clouds": [torch.zeros(3, 4).double()]}, r"clouds: expected \[P, C\] float32 on the"),
        ({"clouds": [torch.zeros(12)]}, r"got \[12\] torch.float32 on cpu"),
        ({"out": torch.zeros(15, dtype=torch.int32)}, r"out: expected \[16 or more\] int32, got"),
        ({"staged": torch.zeros(16)}, r"staged: expected \[16 or more\] int32"),
    ],
)
def test_a_wrong_argument_is_one_line(change, message):
    memory = torch.zeros(16, dtype=torch.int32)
    arguments = {"clouds": [torch.ones(3, 4)], "staged": memory, "out": memory.clone()}
    upload(**arguments)
    with pytest.raises(ValueError, match=message):
        upload(**{**arguments, **change})


@pytest.mark.gpu
def test_operator_is_well_behaved():
    memory = torch.zeros(4016, dtype=torch.int32)
    arguments = [torch.ones(1000, 4)], memory.pin_memory(), memory.cuda()
    upload(*arguments)
    with pytest.raises(RuntimeError, match="clouds take 4004 words, staged has 4000"):
        torch.ops.millisecond.upload(arguments[0], memory[:4000].pin_memory(), arguments[2])
