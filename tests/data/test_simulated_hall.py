"""Halls with classes of one's own: boxes that hold their points, and the files of them."""

import numpy as np
import pytest

from millisecond.data.boxes import points_in_boxes
from millisecond.data.datasets import open_dataset
from millisecond.data.formats.clouds import read_scan
from millisecond.data.schema import read_file
from millisecond.data.simulator.hall import MIN_POINTS, Site, SiteClass, simulate_hall
from millisecond.data.simulator.sensors import Sensor
from millisecond.data.simulator.trees import write_folder_tree

SENSOR = Sensor(elevations=tuple(range(-24, 16, 2)), azimuth_step=1.0, height=0.9, range_noise=0.0)
CRATE = SiteClass((3, 5), parts=((-1.0, 0.5, -0.5, 0.5, 0.0, 1.0), (0.5, 1.0, -0.2, 0.2, 0.0, 0.5)))
SITE = Site((20, 14, 5), {"Crate": CRATE, "Person": SiteClass((2, 3), like="pedestrian")}, 3)


@pytest.mark.parametrize("seed", range(4))
def test_boxes_hold_their_points(seed):
    frame = simulate_hall(seed, SITE, SENSOR)
    again = simulate_hall(seed, SITE, SENSOR)
    np.testing.assert_array_equal(frame.points, again.points)
    assert set(frame.names) == {"Crate", "Person"}
    counts = points_in_boxes(frame.points, frame.boxes + np.float32([0, 0, 0, 0.02, 0.02, 0.02, 0]))
    crates = np.array(frame.names) == "Crate"
    assert (counts.sum(axis=1)[crates] >= MIN_POINTS).all()
    # 2 m long but for 5 %, 1 m wide, standing on the floor 0.9 m below the sensor
    scale = frame.boxes[crates, 3] / 2
    np.testing.assert_allclose(frame.boxes[crates, 4:6], np.stack([scale, scale], 1), rtol=1e-5)
    bottom = frame.boxes[crates, 2] - frame.boxes[crates, 5] / 2
    np.testing.assert_allclose(bottom, -0.9, atol=1e-5)
    # walls: nothing is measured farther away than across the hall
    assert np.hypot(*frame.points[:, :2].T).max() < np.hypot(20, 14) + 0.1


@pytest.mark.parametrize("suffix", [".bin", ".pcd"])
def test_files_give_the_frames_back(tmp_path, suffix):
    root = tmp_path / "hall"
    write_folder_tree(root, range(2), "train", sensor=SENSOR, site=SITE, suffix=suffix)
    write_folder_tree(root, range(7, 8), "val", sensor=SENSOR, site=SITE, suffix=suffix)
    (found,) = open_dataset(root, "val", ["Crate", "Person"])
    frame = simulate_hall(7, SITE, SENSOR)
    np.testing.assert_array_equal(read_scan(root / f"points/000007{suffix}"), frame.points)
    assert found.names == frame.names
    np.testing.assert_allclose(found.boxes, frame.boxes, atol=1e-4)
    with pytest.raises(ValueError, match="says another sensor"):
        write_folder_tree(root, range(8, 9), "val", site=SITE, suffix=suffix)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("size: [20, 14]\nclasses: {A: {count: [1, 2], like: car}}", "size: "),
        ("size: [20, 14, 5]\nclasses: {}", "classes: needs at least one"),
        ("size: [20, 14, 5]\nclasses: {A: {count: [1, 2]}}", "give either parts or like"),
        ("size: [20, 14, 5]\nclasses: {A: {count: [2, 1], like: car}}", "A.count: [2, 1]"),
        ("size: [20, 14, 5]\nclasses: {A: {count: [1, 2], like: cat}}", "'cat' is none of"),
        (
            "size: [20, 14, 5]\nclasses: {A: {count: [1, 2], parts: [[1, 0, 0, 1, 0, 1]]}}",
            "is not a box",
        ),
    ],
)
def test_mistakes_in_a_site(tmp_path, text, expected):
    path = tmp_path / "hall.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError) as error:
        read_file(Site, path)
    assert str(error.value).startswith(f"{path}: ") and expected in str(error.value)
    assert "\n" not in str(error.value)
