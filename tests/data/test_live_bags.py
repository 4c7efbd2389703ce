"""Bags as sources: written by rosbags, of any kind, field layout and fault."""

import bz2
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from struct import pack, unpack
from threading import Timer
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import yaml

from millisecond.data.live.recording import Database, Recording
from millisecond.data.live.scan import LiveScan, Trouble
from millisecond.data.live.source import open_source
from tests.helpers.ros_bags import CLOUD, COMPRESSED, KINDS, Bag, records, write_clouds
from tests.helpers.velodyne_packets import turning

pytest.importorskip("rosbags")

RNG = np.random.default_rng(5)
CLOUDS = [
    np.concatenate([RNG.uniform(-50, 50, (200 + n, 3)), RNG.random((200 + n, 1))], axis=1).astype(
        np.float32
    )
    for n in range(5)
]
PACKETS = "velodyne_msgs/msg/VelodyneScan"


def name_of(tmp_path: Path, kind: str) -> Path:
    return tmp_path / ("bag.bag" if kind.startswith("ros1") else "bag")


def opened(name: Path | str) -> tuple[list[LiveScan], list[str]]:
    items = list(open_source(str(name)))
    scans = [item for item in items if isinstance(item, LiveScan)]
    return scans, [item.text for item in items if isinstance(item, Trouble)]


@pytest.mark.parametrize("kind", KINDS)
def test_clouds_of_every_kind_of_bag(tmp_path, kind):
    path = write_clouds(name_of(tmp_path, kind), kind, CLOUDS)
    files = [path] if kind == "ros1" else [path, *path.glob("*.db3"), *path.glob("*.mcap")]
    assert len(files) == (1 if kind == "ros1" else 2)
    for file in files:
        source = open_source(str(file))
        assert source.rate == pytest.approx(10) and not source.live
        scans, troubles = opened(file)
        assert [scan.name for scan in scans] == [f"{n:06d}" for n in range(5)] and not troubles
        np.testing.assert_allclose([scan.time for scan in scans], 1000 + np.arange(5) / 10)
        for scan, points in zip(scans, CLOUDS, strict=True):
            np.testing.assert_array_equal(scan.points, points)


@pytest.mark.parametrize("kind", COMPRESSED)
def test_compressed_bags(tmp_path, kind):
    scans, troubles = opened(write_clouds(name_of(tmp_path, kind), kind, CLOUDS))
    assert not troubles
    for scan, points in zip(scans, CLOUDS, strict=True):
        np.testing.assert_array_equal(scan.points, points)


def layout(fields: dict[str, str], size: int, order: str = "<", first: int = 0) -> np.dtype:
    """Fields one after the other with a hole of one byte each, in records of so many bytes."""
    offsets, at = [], first
    for kind in fields.values():
        offsets.append(at)
        at += np.dtype(kind).itemsize + 1
    formats = [order + kind for kind in fields.values()]
    return np.dtype(
        {"names": list(fields), "formats": formats, "offsets": offsets, "itemsize": size}
    )


LAYOUTS = {
    "doubles": layout({"x": "f8", "y": "f8", "z": "f8", "intensity": "f4"}, 40),
    "another order": layout({"ring": "u2", "intensity": "f4", "z": "f4", "x": "f4", "y": "f4"}, 32),
    "big endian": layout({"x": "f4", "y": "f4", "z": "f4", "intensity": "f4"}, 24, ">", 3),
    "bytes": layout({"x": "f4", "y": "f4", "z": "f4", "intensity": "u1"}, 20),
    "reflectivity": layout({"t": "u4", "x": "f4", "y": "f4", "z": "f4", "reflectivity": "u2"}, 30),
    "no intensity": layout({"x": "f4", "y": "f4", "z": "f4"}, 15),
}


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("name", LAYOUTS)
def test_any_layout_of_the_fields(tmp_path, name, rows):
    points, dtype = CLOUDS[0].copy(), LAYOUTS[name]
    points[:, 3] = RNG.integers(0, 256, len(points))
    data = records(points, dtype)
    if "reflectivity" in dtype.fields:
        data["reflectivity"] = points[:, 3]
    with Bag(tmp_path / "bag", "mcap") as bag:
        message = bag.cloud(data.reshape(rows, -1), 1.0, row_padding=7 if rows > 1 else 0)
        bag.write("/points", CLOUD, 1.0, message)
    [scan], troubles = opened(tmp_path / "bag")
    np.testing.assert_allclose(scan.points[:, :3], points[:, :3], rtol=1e-6)
    wanted = 0 if name == "no intensity" else points[:, 3] / 255
    np.testing.assert_allclose(scan.points[:, 3], wanted, rtol=1e-6)
    assert len(troubles) == (name not in ("bytes", "no intensity"))  # on the scale
    assert not any(one.lost for one in open_source(str(tmp_path / "bag")) if type(one) is Trouble)


@pytest.mark.parametrize("stamp", [1000.0, 0.0])
def test_the_rate_is_measured_by_the_stamps_or_else_by_the_record(tmp_path, stamp):
    with Bag(tmp_path / "bag", "mcap") as bag:
        for number, points in enumerate(CLOUDS):
            recorded = 1000 + number / (8 if stamp else 4)
            message = bag.cloud(records(points), stamp + number / 4 * bool(stamp))
            bag.write("/points", CLOUD, recorded, message)
    assert open_source(str(tmp_path / "bag")).rate == pytest.approx(4)
    scans, _ = opened(tmp_path / "bag")
    np.testing.assert_allclose([scan.time for scan in scans], 1000 + np.arange(5) / 4)


def test_rays_without_an_echo_are_left_out(tmp_path):
    points = CLOUDS[0].copy()
    points[::3, :3] = np.nan
    path = write_clouds(tmp_path / "bag", "sqlite3", [points])
    [scan], troubles = opened(path)
    np.testing.assert_array_equal(scan.points, points[np.arange(len(points)) % 3 != 0])
    assert not troubles


def test_topics(tmp_path):
    path = write_clouds(tmp_path / "a.bag", "ros1", CLOUDS[:2], ("/left/points", "/right/points"))
    line = r"2 topics with clouds: /left/points, /right/points; choose one, e\.g\. .*bag:/left/poi"
    with pytest.raises(ValueError, match=line):
        open_source(str(path))
    assert len(opened(f"{path}:/right/points")[0]) == 2
    with pytest.raises(ValueError, match="no topic /up with clouds; it has /left/points, /right/p"):
        open_source(f"{path}:/up")
    with Bag(tmp_path / "b.bag", "ros1") as bag:
        text = bag.types.types["std_msgs/msg/String"]
        bag.write("/talk", "std_msgs/msg/String", 1.0, text("hello"))
    with pytest.raises(ValueError, match=r"no topic of sensor_msgs/msg/PointCloud2 or .*String"):
        open_source(str(tmp_path / "b.bag"))


def test_other_topics_and_unknown_types_do_not_disturb(tmp_path):
    with Bag(tmp_path / "bag", "mcap") as bag:
        types = bag.types
        from rosbags.typesys import get_types_from_msg

        types.register(get_types_from_msg("float32 volts", "car_msgs/msg/Battery"))
        battery = types.types["car_msgs/msg/Battery"]
        for number, points in enumerate(CLOUDS):
            bag.write("/battery", "car_msgs/msg/Battery", 1 + number / 10, battery(12.0))
            cloud = bag.cloud(records(points), 1 + number / 10)
            bag.write("/points", CLOUD, 1 + number / 10, cloud)
    scans, troubles = opened(tmp_path / "bag")
    assert len(scans) == 5 and not troubles


def test_messages_that_cannot_be_read_are_reported_and_the_rest_goes_on(tmp_path):
    faults = [
        {"width": 10**6},
        {"point_step": 14},
        {"height": 2, "row_step": 3},
        {"fields": []},
        {"data": np.zeros(9, np.uint8)},
    ]
    with Bag(tmp_path / "bag", "sqlite3") as bag:
        for number, change in enumerate([*faults, None, {}]):
            time = 1 + number / 10
            if change is None:
                bag.write_raw("/points", CLOUD, time, b"\0\1\0\0garbage")
            else:
                message = bag.cloud(records(CLOUDS[0]), time, **change)
                bag.write("/points", CLOUD, time, message)
    scans, troubles = opened(tmp_path / "bag")
    assert len(scans) == 1
    np.testing.assert_array_equal(scans[0].points, CLOUDS[0])
    assert "are not 1000000 points of 16; it is cut off; left out" in troubles[0]
    assert "a message cannot be read" in troubles[1]
    assert troubles[2].endswith("(so 5 times in all)") and len(troubles) == 3


def write_packets(path: Path, kind: str, parts: list[list[tuple[float, bytes]]]) -> Path:
    """Each part, of times and packets, is a message."""
    from rosbags.typesys import get_types_from_msg

    with Bag(path, kind) as bag:
        packet = "velodyne_msgs/msg/VelodynePacket"
        stamp = "time" if bag.ros1 else "builtin_interfaces/Time"
        bag.types.register(get_types_from_msg(f"{stamp} stamp\nuint8[1206] data", packet))
        scan = f"std_msgs/Header header\n{packet.replace('msg/', '')}[] packets"
        bag.types.register(get_types_from_msg(scan, PACKETS))
        for part in parts:
            messages = [
                bag.types.types[packet](bag.header(1000 + time).stamp, np.frombuffer(data, "u1"))
                for time, data in part
            ]
            header = replace(bag.header(1000 + part[0][0]), frame_id="roof")
            message = bag.types.types[PACKETS](header, messages)
            bag.write("/packets", PACKETS, 1000 + part[-1][0], message)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_packets_of_a_velodyne(tmp_path, kind):
    """They give the points that a round room has, and a packet of no sensor is left out."""
    packets = list(turning("VLP-16", 2))
    parts = [packets[first : first + 38] for first in range(0, 150, 38)]
    parts[0].insert(20, (0.02, bytes(1206)))
    path = write_packets(name_of(tmp_path, kind), kind, parts)
    source = open_source(str(path))
    assert source.rate == pytest.approx(10, abs=0.05)
    scans, troubles = opened(path)
    assert [text.partition(": ")[2] for text in troubles] == [
        "a packet of damaged blocks; left out"
    ]
    assert len(scans) == 2 and sum(len(scan.points) for scan in scans) >= 149 * 384
    for scan in scans:
        distance = np.linalg.norm(scan.points[:, :3], axis=1)
        np.testing.assert_allclose(distance, 10, atol=0.02)
        assert scan.frame == "roof"
    recorded = [round(1e9 * (1000 + part[-1][0])) for part in parts]
    assert [scan.recorded for scan in scans] == [recorded[1], recorded[-1]]
    file = path if path.is_file() else next(f for f in path.iterdir() if f.suffix != ".yaml")
    file.write_bytes(file.read_bytes()[:-10])
    assert "cut off or damaged" in opened(path)[1][-1]


def test_packets_of_no_sensor_have_the_usual_rate(tmp_path):
    path = write_packets(tmp_path / "bag", "mcap", [[(0.0, bytes(1206))] * 3])
    assert open_source(str(path)).rate == 10
    assert opened(path)[0] == []


@pytest.mark.parametrize("kind", [*KINDS, "ros1 lz4", "mcap zstd", "sqlite3 zstd"])
def test_cut_off_bags_give_what_they_hold(tmp_path, kind):
    """Each cloud is larger than a chunk of the file."""
    scale = np.float32([50, 50, 50, 1])
    clouds = [scale * RNG.random((80_000, 4), dtype=np.float32) for _ in range(5)]
    path = write_clouds(name_of(tmp_path, kind), kind, clouds)
    file = path if path.is_file() else next(f for f in path.iterdir() if f.suffix != ".yaml")
    content = file.read_bytes()
    for share, least in ((0.999, 3), (0.5, 1)):
        file.write_bytes(content[: int(share * len(content))])
        scans, troubles = opened(path)
        assert least <= len(scans) <= 5 and Recording(path).topics == {"/points": CLOUD}
        for number, (scan, points) in enumerate(zip(scans, clouds, strict=False)):
            np.testing.assert_array_equal(scan.points, points)
            assert scan.recorded == 1_000_050_000_000 + number * 100_000_000
        assert len(troubles) == 1 and "cut off or damaged; played as far as it goes" in troubles[0]
    file.write_bytes(content[:2000])
    with pytest.raises(ValueError, match="no messages in this bag"):
        open_source(str(path))


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_bags_never_stop_the_program(tmp_path, kind):
    path = write_clouds(name_of(tmp_path, kind), kind, [points[:20] for points in CLOUDS])
    file = path if kind == "ros1" else next(f for f in path.iterdir() if f.suffix != ".yaml")
    content = file.read_bytes()
    rng = np.random.default_rng(1)
    for _ in range(8):
        damaged = bytearray(content)
        for place in rng.integers(0, len(content), 20):
            damaged[place] = rng.integers(256)
        file.write_bytes(damaged)
        try:
            assert all("\n" not in text for text in opened(path)[1])
        except ValueError as error:
            assert "\n" not in str(error)


def test_a_cut_off_bag_of_any_name(tmp_path):
    cloud = np.float32([50, 50, 50, 1]) * RNG.random((80_000, 4), dtype=np.float32)
    bag = write_clouds(tmp_path / "bag", "sqlite3", [cloud] * 5)
    content = next(bag.glob("*.db3")).read_bytes()
    path = tmp_path / "50%20 of #1?.db3"
    path.write_bytes(content[: int(0.999 * len(content))])
    scans, [trouble] = opened(path)
    np.testing.assert_array_equal(scans[0].points, cloud)
    assert "cut off or damaged" in trouble


def test_a_folder_of_bags_without_a_description(tmp_path):
    path = write_clouds(tmp_path / "bag", "mcap", CLOUDS)
    (path / "metadata.yaml").unlink()
    assert len(opened(path)[0]) == 5
    shutil.copy(path / "bag.mcap", path / "copy.mcap")
    with pytest.raises(
        ValueError, match=r"2 bags without a metadata\.yaml; name one, e\.g\. .*bag"
    ):
        open_source(str(path))


@pytest.mark.parametrize("name", ["a.bag", "a.db3", "a.mcap"])
@pytest.mark.parametrize("content", [b"", b"some text\n" * 50])
def test_files_that_are_no_bags(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name}: no messages in this bag") as error:
        open_source(str(tmp_path / name))
    assert "\n" not in str(error.value)


ENDLESS = "WITH RECURSIVE count(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM count) "
PROGRAMS = {
    "messages is a view": "CREATE VIEW messages AS " + ENDLESS + "SELECT x AS id, 1 AS topic_id, "
    "x AS timestamp, zeroblob(1000000) AS data FROM count",
    "messages is a virtual table": "CREATE VIRTUAL TABLE messages USING fts4(topic_id, timestamp, "
    "data)",
    "messages.data is computed": "CREATE TABLE messages (id INTEGER PRIMARY KEY, topic_id INTEGER, "
    "timestamp INTEGER, data BLOB AS (zeroblob(1000000000)) VIRTUAL)",
}
TOPICS = "CREATE TABLE topics (id INTEGER PRIMARY KEY, name TEXT, type TEXT, "
TOPICS += "serialization_format TEXT, offered_qos_profiles TEXT)"


@pytest.mark.parametrize("fault", PROGRAMS)
def test_a_database_that_is_a_program_is_refused(tmp_path, fault):
    path = tmp_path / "a.db3"
    with closing(sqlite3.connect(path)) as database:
        database.execute(TOPICS)
        database.execute("INSERT INTO topics VALUES (1, '/points', ?, 'cdr', '')", (CLOUD,))
        database.execute(PROGRAMS[fault])
        if "TABLE messages (" in PROGRAMS[fault]:
            database.execute("INSERT INTO messages (topic_id, timestamp) VALUES (1, 1)")
        database.commit()
    before = path.read_bytes()
    with pytest.raises(ValueError, match=fault) as error:
        open_source(str(path))
    assert "\n" not in str(error.value) and path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.db3"]


def test_a_database_whose_pages_have_no_end_is_refused(tmp_path):
    """Pages that lead to pages, each one some fifty times."""
    path, size = tmp_path / "a.db3", 512
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA page_size = {size}")
        database.execute(TOPICS)
        database.execute(
            "CREATE TABLE messages (id INTEGER PRIMARY KEY, topic_id INTEGER, "
            "timestamp INTEGER, data BLOB)"
        )
        database.execute("INSERT INTO topics VALUES (1, '/points', ?, 'cdr', '')", (CLOUD,))
        rows = [(1, number, bytes(100)) for number in range(200)]
        database.executemany(
            "INSERT INTO messages (topic_id, timestamp, data) VALUES (?, ?, ?)", rows
        )
        [(root,)] = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'messages'")
        database.commit()
    content = bytearray(path.read_bytes())
    pages, start = len(content) // size, (root - 1) * size
    inner = content[start : start + size]
    assert inner[0] == 5  # it leads to leaves
    cells = unpack(f">{int.from_bytes(inner[3:5], 'big')}H", inner[12 : 12 + 2 * inner[4]])
    for level in range(1, 6):  # the root leads to the first copy only, that to the second, ...
        page = bytearray(inner)
        if level < 5:
            for at in (8, *cells):
                page[at : at + 4] = pack(">I", pages + level + 1)
        content += page
    for at in (8, *cells):
        content[start + at : start + at + 4] = pack(">I", pages + 1)
    content[28:32] = pack(">I", pages + 5)
    path.write_bytes(content)
    with pytest.raises(ValueError, match="too many to be true"):
        open_source(str(path))


def test_values_of_other_types_in_a_database_are_reported(tmp_path):
    path = write_clouds(tmp_path / "bag", "sqlite3", CLOUDS)
    file = next(path.glob("*.db3"))
    with closing(sqlite3.connect(file)) as database:
        database.execute("UPDATE messages SET data = 'text' WHERE id = 2")
        database.execute("UPDATE messages SET timestamp = 'noon' WHERE id = 3")
        database.execute("INSERT INTO topics SELECT 7, x'00ff', 1, 'cdr', '', '' FROM topics")
        database.commit()
    for name in (path, file):
        scans, troubles = opened(name)
        assert [len(scan.points) for scan in scans] == [200, 203, 204]
        assert len(troubles) == 1 and "a message cannot be read" in troubles[0]


def test_ctrl_c_is_heard_while_a_database_is_searched(tmp_path):
    path = tmp_path / "a.db3"
    with closing(sqlite3.connect(path)) as database:
        database.execute(TOPICS)
        database.execute("CREATE TABLE messages (id INTEGER, topic_id INTEGER, timestamp, data)")
        database.commit()
    with pytest.raises(KeyboardInterrupt), Database(path)._opened() as database:
        alarm = Timer(0.2, signal.raise_signal, (signal.SIGINT,))
        alarm.start()
        database.execute(ENDLESS + "SELECT max(x) FROM count").fetchone()


def test_a_bag_that_was_compressed_as_a_whole(tmp_path):
    zstd = pytest.importorskip("rosbags.rosbag2.storage_mcap").zstd
    path = write_clouds(tmp_path / "bag", "sqlite3", CLOUDS)
    file, description = next(path.glob("*.db3")), path / "metadata.yaml"
    whole = zstd.compress(file.read_bytes())
    file.with_suffix(".db3.zstd").write_bytes(whole)
    file.unlink()
    told = yaml.safe_load(description.read_text())
    inside = told["rosbag2_bagfile_information"]
    inside |= {"compression_format": "zstd", "compression_mode": "FILE"}
    inside["relative_file_paths"] = [f"{name}.zstd" for name in inside["relative_file_paths"]]
    description.write_text(yaml.safe_dump(told))
    assert [len(scan.points) for scan in opened(path)[0]] == [200, 201, 202, 203, 204]
    full = mock.patch("shutil.disk_usage", return_value=SimpleNamespace(free=4000))
    with full, pytest.raises(ValueError, match=r"zstd: inflates to more than half of the free"):
        open_source(str(path))


@pytest.mark.parametrize("kind", COMPRESSED)
def test_a_chunk_of_a_whole_bag_has_a_limit_too(tmp_path, monkeypatch, kind):
    path = write_clouds(name_of(tmp_path, kind), kind, CLOUDS)
    monkeypatch.setattr("millisecond.data.live.recording.LARGEST_CHUNK", 1000)
    scans, troubles = opened(path)
    assert not scans
    if "sqlite3" in kind:
        assert "a message cannot be read" in troubles[0]
    else:
        [trouble] = troubles
        assert "inflates to" in trouble and "more than 1000" in trouble


BOMBED = """
import resource, sys
import bz2, lz4.frame, rosbags.rosbag1, rosbags.rosbag2
from millisecond.data.live.source import open_source
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for name in sys.argv[1:]:
    try:
        print(*open_source(name))
    except ValueError as error:
        print(error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
HUGE = 420 << 20  # bytes; compression leaves a few of them


def write_bomb(path: Path, kind: str, size: int) -> Path:
    """A cut-off bag with a chunk of HUGE bytes that says that it has so many."""
    zstd = pytest.importorskip("rosbags.rosbag2.storage_mcap").zstd
    lz4 = pytest.importorskip("lz4.frame")
    kind, packing = kind.split()
    packed = {"bz2": lambda: 20 * bz2.compress(bytes(HUGE // 20), 1)}
    packed |= {"lz4": lambda: lz4.compress(bytes(HUGE)), "zstd": lambda: zstd.compress(bytes(HUGE))}
    content, name = packed[packing](), packing.encode()
    good = write_clouds(path, kind, CLOUDS[:1])
    if kind == "ros1":
        fields = (b"op=\x05", b"compression=" + name, b"size=" + pack("<I", size))
        header = b"".join(pack("<I", len(field)) + field for field in fields)
        old = good.read_bytes()
        start = old[: old.index(b"op=\x05") - 8]
        chunk = pack("<I", len(header)) + header + pack("<I", len(content)) + content
    else:
        good = next(good.glob("*.mcap"))
        start = good.read_bytes()
        start = start[: 9 + 8 + int.from_bytes(start[9:17], "little")]
        record = pack("<QQQI", 0, 1, size, 0) + pack("<I", len(name)) + name
        record += pack("<Q", len(content)) + content
        chunk = b"\x06" + pack("<Q", len(record)) + record
    good.write_bytes(start + chunk)
    return good


def test_chunks_that_inflate_to_too_much_are_refused_before_they_fill_the_memory(tmp_path):
    files = []
    for kind in ("ros1 bz2", "ros1 lz4", "mcap zstd", "mcap lz4"):
        for size in (HUGE, 3000) if "mcap" in kind else (HUGE,):
            (tmp_path / f"{kind} {size}").mkdir()
            files.append(write_bomb(name_of(tmp_path / f"{kind} {size}", kind), kind, size))
    done = subprocess.run(
        [sys.executable, "-c", BOMBED, *map(str, files)], capture_output=True, text=True, timeout=90
    )
    assert not done.stderr and done.returncode == 0
    *lines, kilobytes = done.stdout.splitlines()
    assert len(lines) == len(files) and all("no messages in this bag" in line for line in lines)
    assert int(kilobytes) < 300 << 10
