"""millisecond detect into an MCAP file: read back by rosbags, against the JSON of the same run."""

import errno
import json
import math
import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from millisecond.data.live import messages
from millisecond.data.live.scan import LiveScan, Trouble
from millisecond.data.live.source import open_source
from millisecond.detector import Detector
from millisecond.detector.inference import Detections
from millisecond.tools import detect as tool
from tests.helpers.ros_bags import CLOUD, Bag, records, write_clouds
from tests.helpers.small_detector import cloud
from tests.helpers.velodyne_packets import frame, turning, write_pcap

reader = pytest.importorskip("rosbags.highlevel")
DELETE_ALL = 3
FAMILIES = {"boxes": 1, "labels": 9, "trails": 4}  # and the types that RViz has for them
IMAGE = "sensor_msgs/msg/CompressedImage"
MARKERS = "visualization_msgs/msg/MarkerArray"


def run(*arguments):
    try:
        return tool.main([str(argument) for argument in arguments])
    except SystemExit as end:
        return end.code


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Finds two cars that drive and turn, one of them in every scan, in any points."""

    def stream(_, clouds):
        for place, points in enumerate(clouds):
            assert len(points)
            boxes = torch.tensor([[10 + 0.5 * place, 3, -1, 4, 1.8, 1.5, 0.3 * place - 2]] * 2)
            boxes[1, :2] = torch.tensor([20.0, -5.0])
            count = 1 + place % 2 if place > 3 else 2
            scores, labels = torch.tensor([0.9, 0.8]), torch.tensor([1, 1])
            yield Detections(boxes[:count], scores[:count], labels[:count]), []

    monkeypatch.setattr(Detector, "stream", stream)


def written(path: Path) -> tuple[dict[str, list], dict[str, str]]:
    """Of each topic of a file: (time of the log, message), by the definitions in the file alone;
    its type."""
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    found, kinds = defaultdict(list), {}
    with reader.AnyReader([path], default_typestore=get_typestore(Stores.EMPTY)) as bag:
        for connection in bag.connections:
            assert get_types_from_msg(connection.msgdef.data, connection.msgtype)
            kinds[connection.topic] = connection.msgtype
        for connection, time, data in bag.messages():
            message = bag.deserialize(data, connection.msgtype)
            found[connection.topic.removeprefix("/millisecond/")].append((time, message))
    return found, kinds


def numbers(message, *names):
    return [getattr(message, name) for name in names]


def box_of(pose, size):
    turn = pose.orientation
    assert turn.x == turn.y == 0 and math.hypot(turn.z, turn.w) == pytest.approx(1)
    yaw = 2 * math.atan2(turn.z, turn.w)
    return [*numbers(pose.position, "x", "y", "z"), *numbers(size, "x", "y", "z"), yaw]


def require_same(expected: dict, detections, markers) -> None:
    """A JSON result, and the messages of the same scan."""
    boxes = np.reshape(expected["boxes"], (-1, 7))
    ids = expected.get("ids", [0] * len(boxes))
    places = [box_of(one.bbox.center, one.bbox.size) for one in detections.detections]
    cubes = [one for one in markers.markers if one.ns == "boxes"]
    for some in (places, [box_of(cube.pose, cube.scale) for cube in cubes]):
        some = np.reshape(some, (-1, 7))
        np.testing.assert_allclose(some[:, :6], boxes[:, :6], atol=6e-5)
        turned = some[:, 6] - boxes[:, 6]
        np.testing.assert_allclose(np.sin(turned / 2), 0, atol=6e-5)
    results = [one.results for one in detections.detections]
    assert all(len(some) == 1 for some in results)
    assert [some[0].hypothesis.class_id for some in results] == expected["names"]
    scores = [some[0].hypothesis.score for some in results]
    np.testing.assert_allclose(scores, expected["scores"], rtol=1e-8)
    assert [one.id for one in detections.detections] == [str(n) if n else "" for n in ids]
    first, *others = markers.markers
    assert first.action == DELETE_ALL and all(one.action == 0 for one in others)
    assert len({(one.ns, one.id) for one in others}) == len(others)
    assert all(one.type == FAMILIES[one.ns] for one in others)
    texts = [one.text for one in others if one.ns == "labels"]
    for text, name, number, score in zip(texts, expected["names"], ids, scores, strict=True):
        assert text == f"{name} {f'#{number} ' * (number > 0)}{score:.2f}"


@pytest.mark.parametrize("track", [[], ["--track"], ["--track", "--ego"]], ids=len)
def test_messages_tell_what_the_json_tells(tmp_path, weights, track, monkeypatch):
    speed = np.array([2.0, 0, 0]) if "--ego" in track else np.zeros(3)  # of the sensor

    def pose(_, time):
        moved = np.eye(4)
        moved[:3, 3] = speed * time
        return moved

    monkeypatch.setattr(tool, "EgoMotion", lambda: pose)
    scans, file = tmp_path / "scans", tmp_path / "new" / "drive.mcap"
    clouds = [cloud(300 + n, n) for n in range(6)]
    for number, points in enumerate(clouds):
        scans.mkdir(exist_ok=True)
        points.tofile(scans / f"{number}.bin")
    for output in (tmp_path / "json", file):
        assert run("--weights", weights, scans, *track, "--output", output) == 0
    assert [path.name for path in file.parent.iterdir()] == ["drive.mcap"]
    found, _ = written(file)
    assert set(found) == {"points", "detections", "markers"}
    paths = defaultdict(list)  # of the tracks' boxes
    for place, points in enumerate(clouds):
        expected = json.loads((tmp_path / "json" / f"{place}.json").read_text())
        seen = {topic: items[place] for topic, items in found.items()}
        assert all(time == place * 10**8 for time, _ in seen.values())
        headers = [seen[topic][1].header for topic in ("points", "detections")]
        for header in (*headers, *(one.header for one in seen["markers"][1].markers)):
            assert header.stamp.sec * 10**9 + header.stamp.nanosec == place * 10**8
            assert header.frame_id == "lidar"
        require_same(expected, seen["detections"][1], seen["markers"][1])
        assert seen["points"][1].data.tobytes() == points.tobytes()
        for number, box in zip(expected.get("ids", ()), expected["boxes"], strict=bool(track)):
            paths[number].append(box[:3] + speed * place / 10)  # in the world
        trails = [one for one in seen["markers"][1].markers if one.ns == "trails"]
        assert len(trails) == sum(len(paths[number]) > 1 for number in expected.get("ids", ()))
        for trail in trails:
            path = paths[expected["ids"][trail.id]]
            points = [numbers(point, "x", "y", "z") for point in trail.points]
            np.testing.assert_allclose(points, path - speed * place / 10, atol=6e-5)
    assert not track or max(map(len, paths.values())) == 5
    # the file is a source like any bag, with the same points
    again = [one for one in open_source(str(file)) if isinstance(one, LiveScan)]
    assert [one.points.tobytes() for one in again] == [points.tobytes() for points in clouds]
    assert run("--weights", weights, file, "--output", tmp_path / "again") == 0
    assert len([*(tmp_path / "again" / "drive").glob("*.json")]) == len(clouds)


def test_the_topics_of_a_bag_stay_beside_the_new_ones(tmp_path, weights, capsys):
    clouds = [cloud(100 + n, n) for n in range(3)]
    with Bag(tmp_path / "bag", "mcap") as bag:
        text = bag.types.types["std_msgs/msg/String"]
        for place, points in enumerate(clouds):
            time = 1000 + place / 10
            bag.write("/said", "std_msgs/msg/String", time - 0.01, text(f"scan {place}"))
            message = bag.cloud(records(points), time - 500)
            message.header.frame_id = "roof"
            message.header.stamp.sec = 1_700_000_000 + place
            message.header.stamp.nanosec = 123_456_789  # more than a float of seconds tells
            bag.write("/points", CLOUD, time, message)
        bag.write("/said", "std_msgs/msg/String", 2000, text("the end"))
    output = tmp_path / "out.mcap"
    assert run("--weights", weights, tmp_path / "bag", "--output", output) == 0
    before, kinds = written(tmp_path / "bag")
    after, new_kinds = written(output)
    assert set(after) == {"/said", "/points", "detections", "markers"}
    assert kinds.items() <= new_kinds.items()
    with reader.AnyReader([tmp_path / "bag"]) as one, reader.AnyReader([output]) as other:
        raw = [
            [(c.topic, time, bytes(data)) for c, time, data in some.messages() if c.topic in before]
            for some in (one, other)
        ]
    assert raw[0] == raw[1] and len(raw[0]) == 7
    times = [time for time, _ in before["/points"]]
    for topic in ("detections", "markers"):  # beside the cloud by the log, with the cloud's stamp
        assert [time for time, _ in after[topic]] == times
    for place, (_, message) in enumerate(after["detections"]):
        assert str(message.header) == str(before["/points"][place][1].header)  # of two stores
    assert not [line for line in capsys.readouterr().err.splitlines() if line.startswith("note")]


def test_topics_of_a_bag_that_cannot_stay_are_told(tmp_path, weights, capsys):
    from rosbags.typesys import Stores, get_typestore

    with Bag(tmp_path / "bag", "mcap") as bag:
        image = bag.types.types[IMAGE](bag.header(5), "", np.zeros(0, np.uint8))
        for topic in ("/millisecond/image", "/millisecond/detections"):
            bag.write(topic, IMAGE, 1000, image)
        old = get_typestore(Stores.ROS2_FOXY)  # whose markers have no textures
        digest, (text, _) = old.hash_rihs01(MARKERS), old.generate_msgdef(MARKERS, ros_version=2)
        writer = bag._writer
        for topic, told in (("/old", text), ("/own", "int8 x\n")):
            kind = MARKERS if topic == "/old" else "own_msgs/msg/Own"
            one = writer.add_connection(topic, kind, msgdef=told, rihs01=digest)
            writer.write(one, 10**12, b"\0\1\0\0\0\0\0\0")
        bag.write("/points", CLOUD, 1000, bag.cloud(records(cloud(50, 1)), 1000))
    assert run("--weights", weights, tmp_path / "bag", "--output", tmp_path / "out.mcap") == 0
    said = capsys.readouterr().err
    assert f"note: /old: not copied, since it has another version of {MARKERS}" in said
    assert "note: /millisecond/detections: the new messages take the place" in said
    found, kinds = written(tmp_path / "out.mcap")
    assert kinds["/own"] == "own_msgs/msg/Own" and found["/own"][0][1].x == 0
    assert "/old" not in kinds and {len(items) for items in found.values()} == {1}
    assert kinds["/millisecond/image"] == IMAGE != kinds["/millisecond/detections"]


def test_a_bag_that_is_cut_off_keeps_what_it_has(tmp_path, weights, capsys):
    write_clouds(tmp_path / "bag", "mcap", [cloud(300 + n, n) for n in range(9)])
    (whole,) = (tmp_path / "bag").glob("*.mcap")
    part = tmp_path / "part.mcap"
    part.write_bytes(whole.read_bytes()[:-20])
    assert run("--weights", weights, part, "--output", tmp_path / "out.mcap") == 2
    assert "note: " in capsys.readouterr().err
    after = written(tmp_path / "out.mcap")[0]
    before = written(tmp_path / "bag")[0]["/points"]
    assert [bytes(m.data) for _, m in after["/points"]] == [bytes(m.data) for _, m in before]
    assert len(after["detections"]) == len(before) == 9


def test_what_a_database_lacks_is_told(tmp_path, weights, capsys):
    kind = "own_msgs/msg/Own"
    with Bag(tmp_path / "bag", "sqlite3") as bag:
        bag.write("/points", CLOUD, 1000, bag.cloud(records(cloud(50, 1)), 1000))
        contents = {"/own": b"\0\1\0\0\7", "/text": b"no bytes", "/before": b"time"}
        for topic, data in contents.items():
            one = bag._writer.add_connection(topic, kind, msgdef="int8 x\n", rihs01="none")
            bag._writer.write(one, 10**12, data)
    (file,) = (tmp_path / "bag").glob("*.db3")
    with closing(sqlite3.connect(file)) as database:
        database.execute("UPDATE messages SET data = 'text' WHERE data = ?", (b"no bytes",))
        database.execute("UPDATE messages SET timestamp = -1 WHERE data = ?", (b"time",))
        database.commit()
    assert run("--weights", weights, tmp_path / "bag", "--output", tmp_path / "out.mcap") == 0
    said = capsys.readouterr().err
    assert f"note: /own: copied without the definition of {kind}" in said
    for topic in ("/text", "/before"):
        assert f"note: {topic}: a message cannot be read; left out" in said
    with reader.AnyReader([tmp_path / "out.mcap"]) as bag:
        own = [data for c, _, data in bag.messages() if c.msgtype == kind]
    assert own == [b"\0\1\0\0\7"]


def test_bags_of_ros_1_and_packets_give_the_new_topics_alone(tmp_path, weights, capsys):
    write_clouds(tmp_path / "one.bag", "ros1", [cloud(50, n) for n in range(2)])
    assert run("--weights", weights, tmp_path / "one.bag", "--output", tmp_path / "a.mcap") == 0
    assert "one.bag: its own topics are not copied" in capsys.readouterr().err
    pytest.importorskip("velodyne_decoder")
    packets = ((time, frame(data)) for time, data in turning("VLP-16", 3.2))
    write_pcap(tmp_path / "two.pcap", packets)
    assert run("--weights", weights, tmp_path / "two.pcap", "--output", tmp_path / "b.mcap") == 0
    assert "topics" not in capsys.readouterr().err
    for name, source in (("a.mcap", "one.bag"), ("b.mcap", "two.pcap")):
        found, _ = written(tmp_path / name)
        items = [one for one in open_source(str(tmp_path / source)) if not isinstance(one, Trouble)]
        assert set(found) == {"points", "detections", "markers"} and items
        for scan, (_, message) in zip(items, found["points"], strict=True):
            assert message.data.tobytes() == scan.points.tobytes()
            stamp = message.header.stamp
            assert stamp.sec + stamp.nanosec / 1e9 == pytest.approx(scan.time, abs=1e-9)


def test_the_image_of_a_drive_is_in_the_file(tmp_path, weights):
    for number in range(2):
        for folder in ("velodyne", "image_2"):
            (tmp_path / folder).mkdir(exist_ok=True)
        cloud(50, number).tofile(tmp_path / "velodyne" / f"{number:06d}.bin")
    Image.new("RGB", (8, 4)).save(tmp_path / "image_2" / "000001.png")
    output = tmp_path / "out.mcap"
    assert run("--weights", weights, tmp_path / "velodyne", "--output", output) == 0
    ((time, message),) = written(output)[0]["image"]
    assert time == 10**8 and message.format == "png"
    assert message.data.tobytes() == (tmp_path / "image_2" / "000001.png").read_bytes()


def test_mistakes_are_one_line_and_leave_nothing(tmp_path, weights, capsys, monkeypatch):
    scans, bag = tmp_path / "scans", write_clouds(tmp_path / "bag", "sqlite3", [cloud(50, 1)])
    scans.mkdir()
    for place in (1, 2):
        cloud(50, place).tofile(scans / f"{place}.bin")
    (tmp_path / "there.mcap").write_bytes(b"precious")
    before = sorted(tmp_path.rglob("*"))

    def said(*arguments, output="out.mcap"):
        assert run("--weights", weights, *arguments, "--output", tmp_path / output) == 2
        assert sorted(tmp_path.rglob("*")) == before
        lines = capsys.readouterr().err.splitlines()
        return next(line for line in lines if "error: " in line)

    for option in ("--resume", "--ray"):
        assert f"{option}: not with an .mcap output" in said(scans, option)
    assert "--shard goes with a .parquet output" in said(scans, "--shard", "1/1")
    assert "--format text: not with an .mcap" in said(scans, "--format", "text")
    assert "there.mcap: is there already" in said(scans, output="there.mcap")
    assert (tmp_path / "there.mcap").read_bytes() == b"precious"
    assert "holds one recording, or scans in files" in said(scans, bag)
    assert "scan's time is 10000000000.0 s" in said(scans, "--track", "--rate", 1e-10)
    for place in (1, 2):
        (scans / f"{place}.bin").write_bytes(b"12345")
    assert "1.bin" in said(scans)
    cloud(50, 1).tofile(scans / "1.bin")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("rosbags.rosbag2.Writer.write", full)
    assert str(tmp_path / "out.mcap") in said(scans)

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("rosbags.rosbag2.Writer.write", stopped)
    assert run("--weights", weights, scans, "--output", tmp_path / "out.mcap") == 130
    assert "stopped; nothing is written" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_times_that_a_message_cannot_tell():
    for time in (-1, 2**31, math.nan, math.inf):
        with pytest.raises(ValueError, match="can tell 0 to 2147483648 s"):
            messages.header_of(time, "lidar")
    for time in (0.0, 0.1, 1317042273.964389, 1700000000.9999999):
        stamp = messages.header_of(time, "lidar").stamp
        assert 0 <= stamp.nanosec < 10**9
        assert stamp.sec + stamp.nanosec / 1e9 == pytest.approx(time, rel=0, abs=1e-9)
