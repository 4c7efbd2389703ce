"""Sources by name: what a mistyped one says, and what a missing library does."""

import sys

import pytest

from millisecond.data.live.source import open_source
from tests.helpers.ros_bags import write_clouds
from tests.helpers.velodyne_packets import frame, turning, write_pcap

pytest.importorskip("rosbags")
pytest.importorskip("velodyne_decoder")

MISTAKES = {
    "nothing": "nothing: no such file or folder; a source is a folder of .bin, .npy, .npz, .pcd",
    "street:": "street:: say street:SEED with a number",
    "street:-1": "street:-1: say street:SEED with a number",
    "udp:": "udp:: say udp:PORT or udp://ADDRESS:PORT, e.g. udp:2368",
    "udp:70000": "udp:70000: say udp:PORT",
    "udp://2368": "udp://2368: say udp:PORT",
    "udp://203.0.113.1:2368": "udp://203.0.113.1:2368: cannot listen there (Cannot assign",
    "udp:2368?model=VLP": "udp:2368?model=VLP: the model VLP is not one of HDL-64E, ",
    "notes.txt": "notes.txt: not a source by its name; a source is",
    "empty": "empty: no .bin, .npy, .npz, .pcd, .ply, .las files in this folder",
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises((ValueError, OSError)) as error:
        open_source(name)
    assert str(error.value).startswith(MISTAKES[name]) and "\n" not in str(error.value)


def test_names_with_signs_that_mean_something(tmp_path):
    path = write_clouds(tmp_path / "a:b?model=c.bag", "ros1", [])
    with pytest.raises(ValueError, match="no messages in this bag"):
        open_source(str(path))


@pytest.mark.parametrize("library", ["rosbags", "velodyne-decoder", "dpkt"])
def test_a_missing_library(tmp_path, monkeypatch, library):
    if library == "rosbags":
        path = write_clouds(tmp_path / "a.bag", "ros1", [])
        missing = "rosbags.rosbag1"
    else:
        frames = [(time, frame(data)) for time, data in turning("VLP-16", 0.2)]
        path = write_pcap(tmp_path / "a.pcap", frames)
        missing = library.replace("-", "_")
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ValueError, match=rf" needs {library} \(.*\): pip install {library}$"):
        open_source(str(path))
