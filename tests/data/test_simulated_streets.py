"""The endless data set of streets: new ones in every epoch, the same ones again when asked."""

import numpy as np
import pytest

from millisecond.data.simulator import SimulatedStreets, simulate
from millisecond.data.simulator.sensors import find_sensor


def test_every_epoch_has_new_streets():
    streets = SimulatedStreets(3, first=50)
    epochs = [[streets.of_epoch(e)[i] for i in range(3)] for e in range(2)]
    assert [int(f.frame_id) for frames in epochs for f in frames] == list(range(50, 56))
    np.testing.assert_array_equal(epochs[1][1].points, simulate(54).points)
    assert len(streets) == 3
    with pytest.raises(IndexError):
        streets[3]


def test_what_the_frames_depend_on_is_in_the_signature():
    sensor = find_sensor("vlp-16")
    kinds = [
        SimulatedStreets(3),
        SimulatedStreets(4),
        SimulatedStreets(3, first=1),
        SimulatedStreets(3, sensor=sensor),
        SimulatedStreets(3, sensor=sensor, crop=False),
    ]
    assert len({streets.signature for streets in kinds}) == 5
    assert SimulatedStreets(3, sensor=find_sensor("hdl-64e")).signature == kinds[0].signature
    assert kinds[4][0].points[:, 0].min() < -1


@pytest.mark.parametrize(
    "wrong",
    [{"count": 0}, {"count": 10**9}, {"count": 9, "first": 2**64 - 3}, {"count": 1, "first": -1}],
)
def test_impossible_streets(wrong):
    with pytest.raises(ValueError, match="streets"):
        SimulatedStreets(**wrong)
