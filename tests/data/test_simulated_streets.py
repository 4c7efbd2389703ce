"""The endless data set of streets: new ones in every epoch, the same ones again when asked."""

import numpy as np
import pytest

from data.simulator import SimulatedStreets, simulate
from data.simulator.sensors import find_sensor


def test_every_epoch_has_new_streets():
    streets = SimulatedStreets(3, first=50)
    epochs = [streets.of_epoch(epoch).frame_ids for epoch in range(4)]
    assert [int(name) for names in epochs for name in names] == list(range(50, 62))
    frame = streets.of_epoch(2)[1]
    assert frame.frame_id == "000057"
    np.testing.assert_array_equal(frame.points, simulate(57).points)
    assert len(streets) == 3
    with pytest.raises(IndexError):
        streets[3]


def test_what_the_frames_depend_on_is_in_the_signature():
    sensor = find_sensor("vlp-16")
    kinds = [
        SimulatedStreets(3),
        SimulatedStreets(3, first=1),
        SimulatedStreets(3, sensor=sensor),
        SimulatedStreets(3, sensor=sensor, crop=False),
    ]
    assert len({streets.signature for streets in kinds}) == 4
    assert SimulatedStreets(3, sensor=find_sensor("hdl-64e")).signature == kinds[0].signature
    assert kinds[3][0].points[:, 0].min() < -1


@pytest.mark.parametrize(
    "wrong", [{"count": 0}, {"count": 9, "first": 2**64 - 3}, {"count": 1, "first": -1}]
)
def test_impossible_streets(wrong):
    with pytest.raises(ValueError, match="streets"):
        SimulatedStreets(**wrong)
