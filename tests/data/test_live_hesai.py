"""Hesai packets, held against another driver's clouds and against points that are put into them."""

import calendar
import struct
import time
from pathlib import Path

import numpy as np
import pytest

from millisecond.data.formats.clouds import read_cloud
from millisecond.data.live import hesai
from millisecond.data.live.bag import BagSource, _packets
from millisecond.data.live.queue import ScanQueue
from millisecond.data.live.scan import LiveScan, Trouble, Troubles
from millisecond.data.live.source import open_source
from millisecond.data.live.velodyne import Packet, Turns, rate_of
from tests.helpers import hesai_packets, velodyne_packets
from tests.helpers.hesai_packets import MODELS, PERIOD, START, packet, turning
from tests.helpers.ros_bags import KINDS, Bag
from tests.helpers.velodyne_packets import frame, write_pcap

pytest.importorskip("velodyne_decoder")

RECORDED = {  # the turn that the other driver's cloud is, and the sizes of all turns
    "hesai_40p": (2, [56682, 56723, 56762, 56821]),
    "hesai_xt32": (3, [62826, 63058, 63040, 63021, 187]),
}


def split(source) -> tuple[list[LiveScan], list[str]]:
    items = list(source)
    scans = [item for item in items if isinstance(item, LiveScan)]
    return scans, [item.text for item in items if isinstance(item, Trouble)]


def opened(name: Path | str) -> tuple[list[LiveScan], list[str]]:
    return split(open_source(str(name)))


def packets_of(bag: Path) -> list[Packet]:
    return list(_packets(BagSource(bag)._messages(Troubles())))


@pytest.mark.parametrize("sensor", RECORDED)
def test_a_turn_is_what_another_driver_makes_of_it(sensors, sensor):
    """That driver (Nebula) cuts turns and treats double echoes alike: the points are the same."""
    from scipy.spatial import cKDTree

    turn, sizes = RECORDED[sensor]
    [cloud] = (sensors / sensor).glob("*.pcd")
    theirs = read_cloud(cloud).points
    source = open_source(str(sensors / sensor))
    scans, troubles = split(source)
    assert source.rate == pytest.approx(10, abs=0.05) and not troubles
    assert [len(scan.points) for scan in scans] == sizes
    ours = scans[turn].points
    assert len(ours) == len(theirs)
    for some, others in ((ours, theirs), (theirs, ours)):
        apart, _ = cKDTree(others[:, :3]).query(some[:, :3])
        assert apart.max() < 0.0001
    np.testing.assert_allclose(np.diff([scan.time for scan in scans])[1:3], 0.1, atol=0.001)
    assert ours[:, 3].min() >= 0 and ours[:, 3].max() == 1 and len(np.unique(ours[:, 3])) > 50


def test_packets_and_bag_give_the_same_turns(sensors, tmp_path):
    bag = sensors / "hesai_xt32"
    frames = [(one.time, frame(one.data)) for one in packets_of(bag)]
    path = write_pcap(tmp_path / "xt32.pcap", frames)
    (tmp_path / "calibration.csv").write_bytes((bag / "calibration.csv").read_bytes())
    scans, troubles = opened(path)
    wanted, _ = opened(bag)
    assert not troubles and len(scans) == len(wanted)
    for scan, other in zip(scans, wanted, strict=True):
        np.testing.assert_array_equal(scan.points, other.points)


RNG = np.random.default_rng(11)
STEP = 2.0  # degrees between two firings
TURNED = ("Pandar40P", "Pandar64", "XT16", "XT32", "XT32M", "QT64", "QT128", "OT128", "Pandar128")
DUAL = [(model, 2) for model in ("Pandar40P", "XT32", "XT32M", "QT128")] + [("XT32M", 3)]
MODES = {1: 0x37, 2: 0x39, 3: 0x3D}


def calibration_of(folder: Path, channels: int) -> tuple[np.ndarray, np.ndarray]:
    """Writes one of random angles; returns elevations and azimuths [channels] in degrees."""
    angles = np.stack([RNG.uniform(-30, 30, channels), RNG.uniform(-9, 9, channels)]).round(3)
    lines = [f"{number},{up},{aside}" for number, (up, aside) in enumerate(angles.T, start=1)]
    RNG.shuffle(lines)
    (folder / "calibration.csv").write_text("\n".join(["Channel,Elevation,Azimuth", *lines]))
    return angles[0], angles[1]


@pytest.mark.parametrize(("model", "returns"), [*((model, 1) for model in TURNED), *DUAL])
@pytest.mark.parametrize("direction", [1, -1])
def test_points_that_are_put_into_packets_come_back(tmp_path, model, returns, direction):
    """In turns that begin where each channel's own azimuth passes 0."""
    made = MODELS[model]
    up, aside = calibration_of(tmp_path, made.channels)
    count, begin = round(2.5 * 360 / STEP), 100 * direction
    azimuths = begin + direction * STEP * np.arange(count)  # of firings
    shape = (count, returns, made.channels)
    ranges = (1000 + 1000 * np.arange(returns)[:, None] + RNG.integers(0, 900, shape)).astype(int)
    ranges[RNG.random(shape) < 0.3] = 0
    light = RNG.integers(0, 256, shape)
    frames, each = [], made.blocks // returns
    for first in range(0, count - each + 1, each):
        chosen = slice(first, first + each)
        rows = [part[chosen].reshape(made.blocks, -1) for part in (ranges, light)]
        seconds = first * STEP / 360 * PERIOD
        data = packet(model, azimuths[chosen].repeat(returns), *rows, seconds, MODES[returns])
        assert len(data) == made.size
        frames.append((seconds, frame(data)))
    sent = each * len(frames)
    path = write_pcap(tmp_path / "a.pcap", frames)
    scans, troubles = opened(path)
    assert not troubles
    azimuth, elevation = np.radians(azimuths[:, None, None] + aside), np.radians(up)
    metres = 0.004 * ranges
    flat = metres * np.cos(elevation)
    points = [flat * np.sin(azimuth), flat * np.cos(azimuth), metres * np.sin(elevation)]
    points = np.stack([*points, light / 255], axis=-1)[:sent]
    turn = np.broadcast_to(np.floor(direction * np.degrees(azimuth) / 360), shape)[:sent]
    assert len(scans) == 3
    for number, scan in enumerate(scans):
        wanted = points[(turn == number + turn.min()) & (metres[:sent] > 0)]
        np.testing.assert_allclose(scan.points, wanted, atol=2e-5)
    assert scans[0].time == START
    np.testing.assert_allclose(np.diff([scan.time for scan in scans])[1], PERIOD, atol=0.006)


def correction_file(start, azimuth, elevation, steps) -> bytes:
    """start: [3] degrees of the mirrors; azimuth, elevation: [128] degrees; steps: [2, 128, 180]
    in 0.02 degrees."""
    whole = [
        np.round(np.asarray(part) * 12800).astype("<i4") for part in (start, azimuth, elevation)
    ]
    head = b"\xee\xff\x01\x05" + bytes((128, 3, 3)) + bytes(8) + b"\x02"
    ends = np.roll(whole[0], -1)
    parts = [whole[0], ends, *whole[1:], steps.astype("i1")]
    return head + b"".join(part.tobytes() for part in parts) + bytes(32)


def test_the_mirrors_of_an_at128(tmp_path):
    """Each mirror's scan is a turn; the corrections hold between two steps of 2 degrees too."""
    start, azimuth = (50.0, 170.0, 290.0), np.linspace(-2, 2, 128)
    elevation, steps = np.linspace(12, -12, 128), RNG.integers(-40, 41, (2, 128, 180))
    content = correction_file(start, azimuth, elevation, steps)
    (tmp_path / "at128.dat").write_bytes(content)
    rotor = np.concatenate([begin + np.arange(16, 76, 0.75) for begin in start])
    ranges = RNG.integers(1000, 20000, (len(rotor), 128))
    frames = []
    for first in range(0, len(rotor), 2):
        pair = slice(first, first + 2)
        seconds = rotor[first] / 360 * 3 * PERIOD
        data = packet("AT128", rotor[pair], ranges[pair], 51, seconds)
        assert len(data) == MODELS["AT128"].size
        frames.append((seconds, frame(data)))
    source = open_source(str(write_pcap(tmp_path / "a.pcap", frames)))
    assert source.rate == pytest.approx(10, abs=0.1)
    scans, troubles = split(source)
    assert not troubles and [len(scan.points) for scan in scans] == [80 * 128] * 3
    begun = START + (16 + np.array(start)) / 360 * 3 * PERIOD
    np.testing.assert_allclose([scan.time for scan in scans], begun, atol=1e-5)
    for scan, begin, part in zip(scans, start, np.split(np.arange(len(rotor)), 3), strict=True):
        expected = []
        for one in part:
            more = [
                [np.interp(rotor[one] % 360, 2.0 * np.arange(181), [*row, row[0]]) for row in kind]
                for kind in 0.02 * steps
            ]
            turned = 2 * (rotor[one] - begin) - azimuth + more[0]
            raised, metres = np.radians(elevation + more[1]), 0.004 * ranges[one]
            flat, turned = metres * np.cos(raised), np.radians(turned)
            expected.append([flat * np.sin(turned), flat * np.cos(turned), metres * np.sin(raised)])
        wanted = np.concatenate([np.transpose(columns) for columns in expected])
        np.testing.assert_allclose(scan.points[:, :3], wanted, atol=1e-3)
    for spoilt, fault in ((content[:-1000], "cut off"), (b"\xee\xff\x01\x03", "version 1.5")):
        (tmp_path / "at128.dat").write_bytes(spoilt)
        with pytest.raises(ValueError, match=f"{fault}.*the AT128 holds such a file, save it"):
            open_source(str(tmp_path / "a.pcap"))


def test_echoes_of_a_ray_that_are_nearly_one_come_once(tmp_path):
    """The sensor cannot tell them apart; the last one stays."""
    ranges = np.tile([[2500], [2510], [5000], [5050]], (2, 1))
    frames = [(number / 100, frame(packet("XT32", (number % 360,) * 8, ranges, mode=0x39)))
              for number in range(400)]  # fmt: skip
    scans, _ = opened(write_pcap(tmp_path / "a.pcap", frames))
    far = np.linalg.norm(scans[0].points[:, :3], axis=1)
    assert set((100 * far).round().astype(int)) == {1004, 2000, 2020}
    assert len(far) == 360 * 2 * 3 * 32


FIELDS = {  # degrees of elevation, from the manuals, and the number of channels
    "Pandar40P": (-25, 15, 40),
    "Pandar64": (-25, 15, 64),
    "XT16": (-15, 15, 16),
    "XT32": (-16, 15, 32),
    "XT32M": (-20.8, 19.5, 32),
    "QT64": (-52.1, 52.1, 64),
    "QT128": (-52.6, 52.6, 128),
    "OT128": (-25, 15, 128),
}


@pytest.mark.parametrize("model", FIELDS)
def test_without_a_calibration_the_manual_tells_the_angles(tmp_path, model):
    low, high, channels = FIELDS[model]
    path = write_pcap(tmp_path / "a.pcap", [(at, frame(data)) for at, data in turning(model, 1.2)])
    scans, [note] = opened(path)
    assert note.startswith(
        f"{path}: no calibration.csv in {tmp_path}; the manual's angles are used"
    )
    assert len(scans[0].points) == pytest.approx(360 * channels, rel=0.05)
    points = scans[0].points.astype(np.float64)
    np.testing.assert_allclose(np.linalg.norm(points[:, :3], axis=1), 10, atol=1e-3)
    up = np.degrees(np.arcsin(points[:, 2] / 10))
    np.testing.assert_allclose((up.min(), up.max()), (low, high), atol=0.3)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("1,2,3\n2,3,4\n", "its 2 lines are not one for each channel from 1 to 16"),
        ("1,2\n", "a line is not a channel, an elevation and an azimuth"),
        ("".join(f"{n},nan,0\n" for n in range(1, 17)), "an angle is not between -180 and 180"),
    ],
)
def test_a_calibration_of_another_sensor_is_told(tmp_path, text, fault):
    (tmp_path / "calibration.csv").write_text(text)
    frames = [(at, frame(data)) for at, data in turning("XT16", 1.2)]
    scans, [note] = opened(write_pcap(tmp_path / "a.pcap", frames))
    assert len(scans) == 2 and f"calibration.csv: {fault}" in note and "the manual's" in note


def test_a_sensor_whose_angles_nobody_knows_is_refused(tmp_path):
    for model, name in (("Pandar128", r"calibration\.csv"), ("AT128", r"\*\.dat")):
        frames = [(at, frame(data)) for at, data in turning(model, 0.2)]
        with pytest.raises(ValueError, match=rf"a\.pcap: no {name} in .*the {model} holds such a"):
            open_source(str(write_pcap(tmp_path / "a.pcap", frames)))


def changed(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


def test_what_is_no_packet_is_reported_and_the_rest_goes_on():
    good = [Packet(data, at) for at, data in turning("Pandar40P", 2.5)]
    first = good[0].data
    strangers = {
        first[:1000]: "a packet of 1000 bytes, of a Pandar40P it has 1262 or more",
        changed(first, 248, b"\0\0"): "a packet of damaged blocks",
        changed(first, 2, struct.pack("<H", 40000)): "a packet of 400 degrees",
        changed(first, 1254, b"\x99"): "a Pandar40P's packet with the unknown return mode 0x99",
        changed(packet("XT32", range(8), 1000), 9, b"\0"): "a XT32's packet that counts its ranges",
        next(velodyne_packets.turning("VLP-16", 1))[1]: "a packet of model VLP-16, not Pandar40P",
    }
    turns = Turns("udp:2368", live=True)
    mixed = [*good[:20], *(Packet(data, good[20].time) for data in strangers), *good[20:]]
    scans, troubles = split(item for one in mixed for item in turns.add(one))
    clean = Turns("udp:2368", live=True)
    wanted, _ = split(item for one in good for item in clean.add(one))
    assert len(scans) == len(wanted) == 2
    for scan, other in zip(scans, wanted, strict=True):
        np.testing.assert_array_equal(scan.points, other.points)
    assert "no calibration.csv" in troubles.pop(0)
    for line, start in zip(troubles, strangers.values(), strict=True):
        assert line.startswith(f"udp:2368: {start}") and line.endswith("; left out")


@pytest.mark.parametrize(
    ("at", "value", "name"),
    [
        (2, b"\x01\x08", "JT16"),
        (2, b"\x01\x04\xa0\x00\x80\x02", "JT128"),
        (2, b"\x09\x01", r"Hesai sensor \(protocol 9\.1, 32 channels, 8 blocks\)"),
        (2, b"\x03\x02\0\0\x80\x02\0\x04\x01\x40", "QT128 with a channel configuration of its own"),
    ],
)
def test_models_that_are_not_read_are_named(tmp_path, at, value, name):
    frames = [(when, frame(changed(data, at, value))) for when, data in turning("XT32", 0.5)]
    path = write_pcap(tmp_path / "a.pcap", frames)
    with pytest.raises(ValueError, match=f"packets of a {name}, which is none of HDL-64E, .*AT128"):
        open_source(str(path))


def test_a_model_is_named_by_the_user(tmp_path):
    frames = [(at, frame(data)) for at, data in turning("XT32", 0.5)]
    path = write_pcap(tmp_path / "a.pcap", frames)
    assert len(opened(f"{path}?model=xt32")[0]) == 1
    with pytest.raises(ValueError, match=r"packets of a XT32, not of a OT128; leave out \?model="):
        open_source(f"{path}?model=OT128")


def test_another_return_mode_ends_the_turn():
    single = list(turning("XT32", 0.5))
    dual = list(turning("XT32", 1.2, mode=0x39, returns=2))
    turns = Turns("a.pcap")
    items = [item for at, data in [*single, *dual] for item in turns.add(Packet(data, at))]
    scans, _ = split([*items, *turns.finish()])
    firings = [scan.points.shape[0] / 32 for scan in scans]
    assert firings[0] == 184 and sum(firings) == 184 + 432  # 46 and 108 packets


@pytest.mark.parametrize("model", FIELDS)
def test_the_clock_of_a_sensor_tells_days_and_the_rate(monkeypatch, model):
    for month, day in ((1, 1), (12, 31)):
        begin = calendar.timegm((2024, month, day, 0, 0, 9))
        monkeypatch.setattr(hesai_packets, "START", begin)
        [one] = [hesai.HesaiPacket(model, data) for _, data in [next(turning(model, 1))]]
        assert one.time == begin
    monkeypatch.setattr(hesai_packets, "PERIOD", 0.05)
    packets = [Packet(data, at) for at, data in turning(model, 1)]
    assert rate_of(packets, "a.pcap", "") == pytest.approx(20, abs=0.1)


def test_a_sensor_that_stands_still_fills_no_memory(monkeypatch):
    monkeypatch.setattr(hesai, "MOST", 50)
    turns, data = Turns("udp:2368", live=True), packet("XT16", (30,) * 8, 2500)
    scans, _ = split(
        item for number in range(171) for item in turns.add(Packet(data, number / 1e3))
    )
    assert [len(scan.points) for scan in scans] == [50 * 8 * 16] * 3


@pytest.mark.parametrize("model", FIELDS)
def test_damaged_packets_never_stop_the_program(model):
    """Bytes of headers, tails and all else are changed, or packets are cut off."""
    rng, turns, items = np.random.default_rng(2), Turns("udp:2368", live=True), []
    for number, (at, data) in enumerate(turning(model, 3, step=3)):
        content = bytearray(data)
        if number > 12 and rng.random() < 0.4:
            for place in (rng.integers(14), rng.integers(len(data)), -1 - rng.integers(60)):
                content[place] = rng.integers(256)
            content = content[: rng.integers(len(data))] if rng.random() < 0.2 else content
        items += turns.add(Packet(bytes(content), at))
    scans, troubles = split([*items, *turns.finish()])
    assert scans and all(np.isfinite(scan.points).all() for scan in scans)
    assert len(troubles) > 2 and all("\n" not in line for line in troubles)


def test_lost_packets_leave_a_gap_and_nothing_else():
    packets = [Packet(data, at) for at, data in turning("XT32", 4)]  # of 8 degrees each
    turns = Turns("udp:2368", live=True)
    kept = [one for number, one in enumerate(packets) if not 50 <= number < 90]
    scans, _ = split(item for one in kept for item in turns.add(one))
    assert [len(scan.points) // 32 for scan in scans] == [360, 40, 360]


def test_a_whole_turn_takes_milliseconds():
    """72,000 points of a Pandar40P; a busy machine may take ten times as long as a free one."""
    packets = list(turning("Pandar40P", 2.1, step=0.2))
    angles, _ = hesai.calibrated("Pandar40P", Path("nowhere"))
    decoder = hesai.Decoder("Pandar40P", angles)
    begin = time.process_time()
    turns = [done for at, data in packets if (done := decoder.decode(at, data))]
    assert len(turns) == 2 and len(turns[1][1]) == 1800 * 40
    assert time.process_time() - begin < 0.2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("package", ["pandar_msgs", "nebula_msgs"])
def test_bags(tmp_path, kind, package):
    from rosbags.typesys import get_types_from_msg

    one, scan, data = {
        "pandar_msgs": ("PandarPacket", "PandarScan", "uint8[1500] data\nuint32 size"),
        "nebula_msgs": ("NebulaPacket", "NebulaPackets", "uint8[] data"),
    }[package]
    calibration_of(tmp_path, 32)
    name = tmp_path / ("bag.bag" if kind == "ros1" else "bag")
    with Bag(name, kind) as bag:
        stamp = "time" if bag.ros1 else "builtin_interfaces/Time"
        single, many = f"{package}/msg/{one}", f"{package}/msg/{scan}"
        bag.types.register(get_types_from_msg(f"{stamp} stamp\n{data}", single))
        text = f"std_msgs/Header header\n{package}/{one}[] packets"
        bag.types.register(get_types_from_msg(text, many))
        for part in np.array_split(np.arange(90), 4):
            chosen = [list(turning("XT32", 2))[number] for number in part]
            messages = []
            for at, content in chosen:
                values = np.frombuffer(content, "u1")
                if package == "pandar_msgs":
                    values = (np.pad(values, (0, 1500 - len(values))), len(values))
                else:
                    values = (values,)
                kind_of = bag.types.types[single]
                messages.append(kind_of(bag.header(1000 + at).stamp, *values))
            header = bag.header(1000 + chosen[0][0])
            bag.write(
                "/packets", many, 1000 + chosen[-1][0], bag.types.types[many](header, messages)
            )
    if kind != "ros1":  # the calibration lies in the folder of the bag
        (tmp_path / "calibration.csv").rename(name / "calibration.csv")
    source = open_source(str(name))
    assert source.rate == pytest.approx(10, abs=0.05)
    scans, troubles = split(source)
    assert not troubles and sum(len(scan.points) for scan in scans) == 720 * 32
    for one_scan in scans:
        np.testing.assert_allclose(np.linalg.norm(one_scan.points[:, :3], axis=1), 10, atol=1e-3)


def test_packets_of_the_network(tmp_path, monkeypatch):
    import socket

    monkeypatch.chdir(tmp_path)
    up, _ = calibration_of(tmp_path, 16)
    packets = [data for _, data in turning("XT16", 3)]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (
        ScanQueue(open_source(f"udp://127.0.0.1:{port}")) as queue,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        for data in packets:
            sender.sendto(data, ("127.0.0.1", port))
            time.sleep(0.0005)
        scan = queue.get(60)
    assert isinstance(scan, LiveScan) and len(scan.points) == pytest.approx(360 * 16, rel=0.05)
    points = scan.points.astype(np.float64)
    raised = np.degrees(np.arcsin(points[:, 2] / np.linalg.norm(points[:, :3], axis=1)))
    assert np.abs(raised[:, None] - up).min(axis=0).max() < 0.01
