"""What a training says at its end, read from a log, here of made-up numbers; how it measures its
waiting for data."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from millisecond.detector.config import load_config
from millisecond.detector.training.monitor import Waits
from millisecond.detector.training.outcome import advice, outcome_of, read_records, table

CONFIG = load_config(
    Path(__file__).parents[2] / "configs/second_kitti.yaml", ["train.workers=4"]
)  # 80 epochs; a car needs 0.6


def log(aps, losses, recall=0.9, waited=0.01) -> list[dict]:
    """Records of a training with validations every five epochs. aps: of Car and Cyclist; losses: in
    the five epochs before each."""
    records = []
    for number, (pair, loss) in enumerate(zip(aps, losses, strict=True), 1):
        for epoch in range(5 * number - 4, 5 * number + 1):
            line = {"step": 10 * epoch, "epoch": float(epoch), "seconds": 6.0 * epoch}
            train = {"train/total": loss, "speed/share of waiting for data": waited}
            records.append(line | train)
        found = {
            f"AP {name}/3d/moderate": ap for name, ap in zip(("Car", "Cyclist"), pair, strict=True)
        }
        found |= {"anchors/recall of Car": recall, "validation/total": 2.0}
        records.append(line | found | {"AP Car/bev/moderate": 99.0})
    return records


def advised(*args, **kwargs) -> list[str]:
    return advice(outcome_of(log(*args, **kwargs)), CONFIG)


def test_the_table_has_the_best_of_each_class_and_its_epoch():
    outcome = outcome_of(log([(10, 30), (50, 20), (40, 25)], [3, 2, 1]))
    rows = [line.split() for line in table(outcome)]
    assert rows[1:] == [
        ["Car", "50.0", "10", "40.0"],
        ["Cyclist", "30.0", "5", "25.0"],
        ["mean", "35.0", "10", "32.5"],
    ]
    assert (outcome.steps, outcome.seconds, outcome.best.epoch) == (150, 90.0, 10)


def test_of_equal_ap_the_last_is_the_best():
    outcome = outcome_of(log([(0, 0), (0, 0)], [2, 1]))
    assert outcome.best.epoch == 10 and table(outcome)[1].split() == ["Car", "0.0", "10", "0.0"]


def test_a_class_without_objects_has_no_row():
    outcome = outcome_of(log([(10, None)], [1]))
    assert [line.split()[0] for line in table(outcome)[1:]] == ["Car"]
    assert outcome.best.mean == 10
    assert outcome_of(log([(None, None)], [1])).best.mean == 0


def test_a_training_without_validation_has_no_table_and_no_advice():
    nothing = outcome_of([])
    assert table(nothing) == advice(nothing, CONFIG) == [] and nothing.best is None


def test_ap_that_still_rises_asks_for_more_epochs():
    (line,) = advised([(40, 40), (44, 46)], [2, 1])
    assert "from 40.0 after epoch 5 to 45.0" in line and "train.epochs=160" in line


@pytest.mark.parametrize("aps", [[(40, 40)], [(40, 40), (40.4, 40.4)], [(41, 40), (40, 40)]])
def test_ap_that_has_settled_asks_for_nothing(aps):
    assert advised(aps, range(len(aps), 0, -1)) == []


def test_ap_that_falls_while_the_loss_falls_is_over_fitting():
    (line,) = advised([(40, 40), (60, 50), (50, 45), (40, 40)], [4, 3, 2, 1])
    assert "fell from 55.0 after epoch 10 to 40.0" in line and "over-fits" in line
    assert "from 3.50 to 1.50" in line and "train.epochs=10" in line


def test_ap_that_falls_while_the_loss_rises_is_not_over_fitting():
    assert advised([(60, 50), (40, 40)], [1, 2]) == []


def test_no_ap_at_all_asks_for_a_look_at_the_data():
    (line,) = advised([(0, 0), (0, 0)], [2, 1])
    assert "AP 0" in line and "millisecond check" in line


@pytest.mark.parametrize(("recall", "lines"), [(0.67, 1), (0.8, 0)])
def test_anchors_that_reach_few_boxes(recall, lines):
    found = advised([(40, 40)], [1], recall=recall)
    assert len(found) == lines
    assert all("Car: an anchor" in line and "0.6 with only 67%" in line for line in found)


def test_waiting_for_data_asks_for_workers():
    (line,) = advised([(40, 40)], [1], waited=0.35)
    assert line.startswith("35% of the time") and "train.workers=8" in line
    chosen = replace(CONFIG, train=replace(CONFIG.train, workers="auto"))
    (line,) = advice(outcome_of(log([(40, 40)], [1], waited=0.35)), chosen)
    assert line.startswith("35% of the time") and "more CPU cores help" in line


def test_a_log_with_a_line_half_written(tmp_path):
    path = tmp_path / "log.jsonl"
    assert read_records(path) == []
    path.write_text(json.dumps({"step": 3}) + '\n7\n[]\n{"step": "8"}\n{"step": 2')
    assert read_records(path) == [{"step": 3}]


class Device:
    """A GPU and its host on one clock: an event is passed when the GPU is done with its work."""

    def __init__(self):
        self.now = self.busy_until = 0.0  # seconds

    def __call__(self, enable_timing):  # instead of a torch.cuda.Event
        return Event(self)


class Event:
    def __init__(self, device):
        self.device = device

    def record(self):
        self.at = max(self.device.now, self.device.busy_until)

    def elapsed_time(self, other):
        return 1e3 * (other.at - self.at)


@pytest.mark.parametrize(("kind", "waited"), [("cuda", 0 + 2 + 4), ("cpu", 7 + 7 + 4)])
def test_waiting_is_the_time_without_work_for_the_device(monkeypatch, kind, waited):
    device = Device()
    monkeypatch.setattr(torch.cuda, "Event", device)
    monkeypatch.setattr(time, "perf_counter", lambda: device.now)
    waits = Waits(torch.device(kind))
    # what the GPU has to do, what the host does beside it, how long it then waits, in seconds
    for step, elsewhere, late in ((10, 1, 7), (4, 1, 7), (3, 6, 4)):
        device.busy_until = max(device.now, device.busy_until) + step
        device.now += elsewhere
        with waits.waiting():
            device.now += late
    assert waits.seconds() == pytest.approx(waited)
