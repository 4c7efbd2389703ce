"""Sensors from files: what is impossible gets one line that names file, key and value."""

import re
from pathlib import Path

import pytest

from millisecond.data.simulator.sensors import find_sensor, sensor_names
from millisecond.tools import simulate

GOOD = "elevations: [-15, -5, 5]\nazimuth_step: 0.2\nheight: 1.6\n"


def test_a_users_own_sensor(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD.replace("[-15, -5, 5]", "[5, -15, -5]") + "field_of_view: 90\n")
    sensor = find_sensor(path)
    assert sensor.elevations == (-15, -5, 5) and sensor.laser_heights == (0, 0, 0)
    assert len(sensor.azimuths()) == 450 and len(sensor.azimuths(60)) == 300


def test_named_sensors_are_known():
    assert set(sensor_names()) == {"hdl-64e", "hdl-32e", "vlp-16", "os1-128", "solid-state"}
    beams = {name: len(find_sensor(name).elevations) for name in sensor_names()}
    assert [beams[n] for n in ("hdl-64e", "hdl-32e", "vlp-16", "os1-128")] == [64, 32, 16, 128]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[-15, -5, 5]", "[]"), "elevations: no beams"),
        (("elevations: [-15, -5, 5]\n", ""), "elevations: is missing"),
        (("-15, -5, 5", "-15, -5, -5"), "elevations: the beam at -5 degrees is repeated"),
        (("-15, -5, 5", "-15, null, 5"), "elevations.1: None is not a number"),
        (("-15, -5, 5", "-15, .nan, 5"), "elevations.1: "),
        (("-15, -5, 5", "-95, -5, 5"), "elevations: -95 is not between -90 and 90"),
        (("height: 1.6", "height: 1.6\nlaser_heights: [0, -5, 0]"), "laser_heights: -5 is not"),
        (("height: 1.6", "height: 1.6\ntilt: [0, -25]"), "tilt: [0.0, -25.0] is over 20"),
        (("height: 1.6", "height: 1.6\nlaser_heights: [0, 0]"), "laser_heights: 2 values for 3"),
        (("height: 1.6", "height: 1.6\nfield_of_view: 0"), "field_of_view: 0 is not from 0.2"),
        (("height: 1.6", "height: 1.6\nfield_of_view: 400"), "field_of_view: 400 is not from"),
        (("0.2", "0"), "azimuth_step: 0 is not from 0.01"),
        (("height: 1.6", "height: 1.6\nrange: 100"), "range: unknown key; the nearest"),
        (("height: 1.6", "height: 1.6\nmin_range: 90\nmax_range: 80"), "min_range: 90 is not"),
        (("height: 1.6", "height: 1.6\nreturns: 3"), "returns: 3 is not from 1 to 2"),
        (("height: 1.6", "height: 1.6\nroof: [1, -1, 0.5, 1.7]"), "roof: front 1, back -1"),
        (("height: 1.6", "height: 1.6\nheight: 1.7"), "'height' is given twice"),
        (("[-15", "[[-15"), "is not YAML"),
    ],
)
def test_bad_files_get_one_line_and_write_nothing(tmp_path, capsys, change, said):
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD.replace(*change))
    with pytest.raises(ValueError, match=re.escape(said)):
        find_sensor(path)
    root = tmp_path / "root"
    command = ["--root", str(root), "--split", "train", "--streets", "1", "--sensor", str(path)]
    assert simulate.main(command) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {path}: ") and err.count("\n") == 1
    assert not root.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sensor", "hdl-65e"], "sensor 'hdl-65e': is neither"),
        (["--sensor", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["--streets", "0"], "--streets 0"),
        (["--first", str(2**65)], "give at least one, with numbers from 0"),
        (["--root", "/proc/nowhere"], "/proc/nowhere"),
        (["--sensor", "sky.yaml", "--no-crop"], "scan 000000 has no point"),
        (["--sensor", "sky.yaml", "--layout", "folder"], "scan 000000 has no point"),
    ],
)
def test_mistakes_get_one_line(tmp_path, capsys, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    Path("sky.yaml").write_text("elevations: [60, 70]\nazimuth_step: 1\nheight: 1.7\n")
    command = ["--root", "root", "--split", "train", "--streets", "1", *arguments]
    assert simulate.main(command) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1
    assert [path.name for path in Path(tmp_path).rglob("*")] == ["sky.yaml"]


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_drive_of_no_street_leaves_nothing(tmp_path, capsys, seed):
    assert simulate.main(["--root", str(tmp_path / "drive"), f"--drive={seed}"]) == 2
    err = capsys.readouterr().err
    assert f"seed {seed}: is not from 0 to {2**64 - 1}" in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_root_keeps_its_sensor(tmp_path, capsys):
    command = ["--root", str(tmp_path), "--split", "train", "--streets", "1", "--processes", "1"]
    assert simulate.main([*command, "--sensor", "vlp-16", "--no-crop"]) == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    capsys.readouterr()
    for other in (["--sensor", "hdl-32e", "--no-crop"], ["--sensor", "vlp-16"]):
        assert simulate.main([*command, *other]) == 2
        err = capsys.readouterr().err
        assert "says another sensor, or another crop" in err and err.count("\n") == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert find_sensor(tmp_path / "simulated_sensor.yaml") == find_sensor("vlp-16")
    assert simulate.main([*command, "--sensor", "vlp-16", "--no-crop"]) == 0
