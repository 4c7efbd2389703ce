"""Streams of our own: torch gives them to nobody else."""

import threading

import pytest
import torch

from millisecond.ops.capture import captured
from millisecond.ops.transfer import own_stream

pytestmark = pytest.mark.gpu


def test_no_stream_of_torch_is_ours():
    ours = {own_stream(0, number, -1).cuda_stream for number in (5, 6)}
    assert len(ours) == 2 and own_stream(0, 5, -1).cuda_stream in ours
    theirs = {torch.cuda.Stream(priority=p).cuda_stream for p in (0, -1) for _ in range(40)}
    assert not ours & theirs


def test_graphs_are_captured_while_other_threads_use_all_streams_of_torch():
    stop, wrong = threading.Event(), []

    def work() -> None:
        streams = [torch.cuda.Stream() for _ in range(40)]
        while not stop.is_set():
            for stream in streams:
                with torch.cuda.stream(stream):
                    ones = torch.ones(1000, device="cuda")
                    wrong.extend([1] if int((ones * 3).sum()) != 3000 else [])

    thread = threading.Thread(target=work)
    thread.start()
    try:
        x = torch.zeros(1000, device="cuda")
        graphs = [captured(lambda n=number: x + n) for number in range(12)]
    finally:
        stop.set()
        thread.join()
    for number, (graph, result) in enumerate(graphs):
        graph.replay()
        assert (result == number).all()
    assert not wrong
