"""Velodyne packets in files and over the network, held against another driver's clouds, against
closed forms, and against each other."""

import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from millisecond.data.formats.clouds import read_cloud
from millisecond.data.live.scan import LiveScan, Trouble
from millisecond.data.live.source import open_source
from millisecond.data.live.velodyne import Packet, Turns
from tests.helpers import velodyne_packets
from tests.helpers.velodyne_packets import BANKS, HEADER, PERIOD, frame, packet, turning, write_pcap

pytest.importorskip("velodyne_decoder")

RECORDED = {  # the cloud of the other driver, and the turn that it was made of
    "vlp16": ("1673400472138016708.pcd", 3, [14981, 14845, 14868, 14720]),
    "vlp32": ("1713492677464078412.pcd", 0, [26710, 26335, 26317, 26338, 25605]),
}


def split(source) -> tuple[list[LiveScan], list[str]]:
    items = list(source)
    scans = [item for item in items if isinstance(item, LiveScan)]
    return scans, [item.text for item in items if isinstance(item, Trouble)]


def opened(name: Path | str) -> tuple[list[LiveScan], list[str]]:
    return split(open_source(str(name)))


@pytest.mark.parametrize("sensor", RECORDED)
def test_a_turn_is_what_another_driver_makes_of_it(sensors, sensor):
    """That driver (Nebula) lets all rays begin in one point; here they begin up to 18 mm above or
    below it. The azimuths of the lasers of one firing differ by up to 0.11 degrees."""
    from scipy.spatial import cKDTree

    name, turn, sizes = RECORDED[sensor]
    theirs = read_cloud(sensors / sensor / name).points
    scans, troubles = opened(sensors / sensor / f"{sensor}.pcap")
    assert [len(scan.points) for scan in scans] == sizes and not troubles
    ours = scans[turn].points
    for some, others in ((ours, theirs), (theirs, ours)):
        apart, nearest = cKDTree(others[:, :3]).query(some[:, :3])
        assert np.median(apart) < 0.01 and np.percentile(apart, 99) < 0.05
        height = np.abs(some[:, 2] - others[nearest, 2])[apart < 0.05]
        assert np.percentile(height, 95) < 0.02
    if sensor == "vlp16":  # the other cloud has no intensities
        apart, nearest = cKDTree(theirs[:, :3]).query(ours[:, :3])
        wrong = np.abs(255 * ours[:, 3] - theirs[nearest, 3]) > 1
        assert wrong.mean() < 0.05


@pytest.mark.parametrize("sensor", RECORDED)
def test_turns_are_those_of_the_times_between(sensors, sensor):
    scans, _ = opened(sensors / sensor / f"{sensor}.pcap")
    times = np.array([scan.time for scan in scans])
    np.testing.assert_allclose(np.diff(times)[:-1], 0.1, atol=0.002)
    assert open_source(str(sensors / sensor / f"{sensor}.pcap")).rate == pytest.approx(10, abs=0.05)
    assert [scan.name for scan in scans][:2] == ["000000", "000001"]


@pytest.mark.parametrize(
    ("period", "rate"),
    [(0.2, 5), (0.05, 20), (0.02, 10), (1e-9, 10)],  # the last two: the usual one
)
def test_the_rate_is_measured(tmp_path, monkeypatch, period, rate):
    """Also by five packets, after which the file is cut off."""
    monkeypatch.setattr(velodyne_packets, "PERIOD", period)
    frames = [(at, frame(data)) for at, data in turning("VLP-16", 1.2)]
    path = write_pcap(tmp_path / "a.pcap", frames)
    assert open_source(str(path)).rate == pytest.approx(rate, abs=0.01)
    path.write_bytes(path.read_bytes()[: 24 + 5 * (16 + HEADER + 1206) + 20])
    assert open_source(str(path)).rate == pytest.approx(rate, abs=0.01)
    [scan], troubles = opened(path)
    assert len(scan.points) == 5 * 12 * 32 and len(troubles) == 1


def test_bag_and_packets_give_the_same_turns(sensors):
    bag = sensors / "vlp16" / "1673400471837873222"
    scans, troubles = opened(bag)
    wanted, _ = opened(sensors / "vlp16" / "vlp16.pcap")
    assert not troubles
    assert_same(scans, wanted)


def assert_same(scans: list[LiveScan], wanted: list[LiveScan]) -> None:
    assert len(scans) == len(wanted)
    for scan, other in zip(scans, wanted, strict=True):
        np.testing.assert_array_equal(scan.points, other.points)


ELEVATIONS = {  # degrees, from the manuals; of the two last ones the outermost
    "VLP-16": np.arange(-15, 16, 2),
    "HDL-32E": -30.67 + 4 / 3 * np.arange(32),
    "VLP-32C": np.array([-25, -15.639, 10.333, 15]),
    "VLS-128": np.array([-25, -19.582, 11.75, 15]),
}
FOUR_MILLIMETRES = ("VLP-32C", "VLS-128")  # per unit of length


@pytest.mark.parametrize("model", ELEVATIONS)
def test_a_round_room(tmp_path, model):
    """All rays of one length: the model is found, and the points lie where the manual says."""
    length = 5000
    metres = length * (0.004 if model in FOUR_MILLIMETRES else 0.002)
    frames = [(at, frame(data)) for at, data in turning(model, 2.5, length)]
    scans, troubles = opened(write_pcap(tmp_path / "room.pcap", frames))
    assert not troubles and len(scans) == 3
    for scan in scans[:2]:
        points = scan.points.astype(np.float64)
        distance = np.linalg.norm(points[:, :3], axis=1)
        np.testing.assert_allclose(distance, metres, atol=0.02)
        elevation = np.degrees(np.arcsin(points[:, 2] / distance))
        apart = np.abs(elevation[:, None] - ELEVATIONS[model]).min(axis=0)
        assert apart.max() < 0.15
        if model not in FOUR_MILLIMETRES:
            assert np.abs(elevation[:, None] - ELEVATIONS[model]).min(axis=1).max() < 0.15
        azimuth = np.degrees(np.arctan2(points[:, 1], points[:, 0]))
        share = np.histogram(azimuth, 36, (-180, 180))[0] / len(points)
        usual = np.median(share)
        assert share.min() > 0.95 * usual
        assert (share > 1.05 * usual).sum() <= 2  # a turn takes the packet that closes it whole
        np.testing.assert_allclose(points[:, 3], 51 / 255, rtol=1e-6)


def test_clockwise_from_the_front(tmp_path):
    """A sensor turns clockwise, and azimuth 0 is straight ahead: at 90 degrees it looks right."""

    def data(number):
        azimuths = (12 * number + np.arange(12)) * 40
        lengths = np.where((azimuths >= 8800) & (azimuths < 9200), 2000, 5000)
        return packet(azimuths, lengths[:, None], 0x22, number * 4.8 / 3600)

    frames = [(number * 4.8 / 3600, frame(data(number))) for number in range(80)]
    points = opened(write_pcap(tmp_path / "a.pcap", frames))[0][0].points
    near = points[np.linalg.norm(points[:, :3], axis=1) < 7, :3].mean(axis=0)
    assert near[1] < -3 and abs(near[0]) < 0.3


def test_both_echoes_of_a_ray_that_are_one_come_once(tmp_path):
    """With dual returns two blocks share their azimuth: the last echo, then the strongest one."""

    def data(number, far):
        azimuths = np.repeat(6 * number + np.arange(6), 2) * 40
        lengths = np.where(np.arange(12) % 2, 3000, far)
        return packet(azimuths, lengths[:, None], 0x22, number * 2.4 / 3600, kind=0x39)

    sizes = {}
    for far in (3000, 5000):
        frames = [(number * 2.4 / 3600, frame(data(number, far))) for number in range(160)]
        points = opened(write_pcap(tmp_path / "a.pcap", frames))[0][0].points
        distance = np.linalg.norm(points[:, :3], axis=1)
        sizes[far] = len(points)
        assert set(np.round(distance).astype(int)) == {6, round(0.002 * far)}
    assert sizes[5000] == 2 * sizes[3000]


def test_dual_returns_of_a_vls_128(tmp_path):
    """Each packet has one azimuth: two blocks per bank, and four that hold nothing."""

    def data(number, far):
        lengths = np.where(np.arange(12) % 2, 3000, far)
        made = packet(np.full(12, 20 * number), lengths[:, None], 0xA1, number / 18000, 0x39)
        blocks = np.frombuffer(made, np.uint8)[:1200].reshape(12, 100).copy()
        blocks[:8, :2] = np.repeat(np.array(BANKS, "<u2"), 2)[:, None].view(np.uint8)
        blocks[8:, :2] = blocks[8:, 4:] = 0
        return blocks.tobytes() + made[1200:]

    sizes = {}
    for far in (3000, 5000):
        frames = [(number / 18000, frame(data(number, far))) for number in range(3700)]
        scans, troubles = opened(write_pcap(tmp_path / "a.pcap", frames))
        assert not troubles and len(scans) == 3
        points = scans[0].points
        sizes[far] = len(points)
        distances = np.round(np.linalg.norm(points[:, :3], axis=1)).astype(int)
        assert set(distances) == {12, round(0.004 * far)}
    assert sizes[5000] == 2 * sizes[3000] and abs(sizes[3000] - 128 * 1800) < 128 * 4


def status_of_an_hdl64e(vertical: np.ndarray) -> bytes:
    """What an HDL-64E S2 says of itself, a byte per packet: vertical [64] degrees of its lasers."""
    lasers = b"".join(
        struct.pack("<B9hBB7x", number, round(100 * angle), *([0] * 8), 0, 255)
        for number, angle in enumerate(vertical)
    )
    calibrated = bytes((12, 1, 2, 3, 4, 5))
    values = b"UNIT#" + bytes(2) + lasers[:-7] + calibrated + bytes(20) + struct.pack("<H", 1820)
    assert len(values) == 1820
    status = b""
    for at in range(0, 1820, 7):
        for letter in b"HMSDNYGTV":
            status += bytes((letter, 1))
        for place, value in enumerate(values[at : at + 7]):
            status += bytes((ord("1") + place, value))
    return status


def turning_hdl64e(packets: int, vertical: np.ndarray) -> list[tuple[float, bytes]]:
    """Time and packet of an HDL-64E S2 with lasers at vertical [64] degrees, in a round room."""
    status, result = status_of_an_hdl64e(vertical), []
    for number in range(packets):
        azimuths = np.repeat(6 * number + np.arange(6), 2) * 17
        seconds = 6 * number * 17 / 36000 * 0.1
        kind, value = (status[(2 * number + place) % len(status)] for place in (0, 1))
        result.append((seconds, packet(azimuths, 5000, value, seconds, kind, banks=2)))
    return result


VERTICAL = 2 - 0.4 * np.arange(64)


def elevations(scan: LiveScan) -> np.ndarray:
    points = scan.points.astype(np.float64)
    return np.degrees(np.arcsin(points[:, 2] / np.linalg.norm(points[:, :3], axis=1)))


def test_an_hdl64e_with_its_own_calibration(tmp_path):
    frames = [(at, frame(data)) for at, data in turning_hdl64e(4160, VERTICAL)]
    source = open_source(str(write_pcap(tmp_path / "a.pcap", frames)))
    assert source.rate == pytest.approx(10, abs=0.01)
    scans, troubles = split(source)
    assert len(scans) == 12 and not troubles
    apart = np.abs(elevations(scans[0])[:, None] - VERTICAL)
    assert apart.min(axis=0).max() < 0.01 and apart.min(axis=1).max() < 0.01


def test_an_hdl64e_with_the_calibration_of_another(tmp_path):
    frames = [(at, frame(data)) for at, data in turning_hdl64e(500, VERTICAL)]
    path = write_pcap(tmp_path / "a.pcap", frames)
    scans, troubles = opened(path)
    assert len(scans) == 2
    assert len(troubles) == 1 and "the calibration of another HDL-64E-S3 is used" in troubles[0]
    assert troubles[0].endswith("say another series by e.g. ?model=HDL-64E-S2")
    assert not any(item.lost for item in open_source(str(path)) if isinstance(item, Trouble))
    # by the manual -24.8 to 2 degrees; the lasers begin up to 0.2 m above the centre
    assert -26 < elevations(scans[0]).min() < -22 and 1 < elevations(scans[0]).max() < 4
    scans, troubles = opened(f"{path}?model=hdl-64e-s1")
    assert len(scans) == 2 and "HDL-64E-S1" in troubles[0]


def test_a_live_hdl64e_shows_nothing_old(monkeypatch):
    """The turns while its calibration comes in would come all at once."""
    monkeypatch.setattr("millisecond.data.live.velodyne.STATUS", 4160)
    turns = Turns("udp:2368", live=True)
    times = [
        (at, item.time)
        for at, data in turning_hdl64e(5000, VERTICAL)
        for item in turns.add(Packet(data, at))
    ]
    assert len(times) == 2
    np.testing.assert_allclose(*np.transpose(times), atol=0.001)


def test_a_recording_that_vanishes_in_a_loop(tmp_path):
    frames = [(at, frame(data)) for at, data in turning("VLP-16", 1.5)]
    path = write_pcap(tmp_path / "a.pcap", frames)
    items = iter(open_source(str(path), loop=True))
    times = [next(items).time for _ in range(4)]
    np.testing.assert_allclose(np.diff(times)[1], 0.1, atol=1e-3)
    assert (np.diff(times) > 0).all()
    path.unlink()
    [trouble] = items
    assert "No such file" in trouble.text and "cannot be played again" in trouble.text


LINKS = {  # number of the link, and the bytes before the IP header
    "raw IP": (101, b""),
    "Linux, any interface": (113, bytes(14) + b"\x08\x00"),
    "loopback": (0, struct.pack("<I", 2)),
    "VLAN": (1, b"\xff" * 12 + b"\x81\x00\x00\x05\x08\x00"),
}


@pytest.mark.parametrize("name", LINKS)
def test_kinds_of_links(tmp_path, name):
    link, before = LINKS[name]
    packets = list(turning("VLP-16", 1.5))
    wanted, _ = opened(write_pcap(tmp_path / "a.pcap", [(at, frame(data)) for at, data in packets]))
    frames = [(at, before + frame(data)[14:]) for at, data in packets]
    scans, troubles = opened(write_pcap(tmp_path / "b.pcap", frames, link))
    assert_same(scans, wanted)
    assert not troubles


def test_pcapng(tmp_path):
    dpkt = pytest.importorskip("dpkt")
    frames = [(at, frame(data)) for at, data in turning("VLP-16", 1.5)]
    wanted, _ = opened(write_pcap(tmp_path / "a.pcap", frames))
    path = tmp_path / "a.pcapng"
    with path.open("wb") as file:
        writer = dpkt.pcapng.Writer(file)
        for at, content in frames:
            writer.writepkt(content, at)
    scans, troubles = opened(path)
    assert_same(scans, wanted)
    assert not troubles
    path.write_bytes(path.read_bytes()[:-500])
    assert "cut off or damaged" in opened(path)[1][0]


def spoiled(data: bytes, at: int, value: int) -> bytes:
    changed = bytearray(data)
    changed[at : at + 2] = struct.pack("<H", value)
    return bytes(changed)


def strangers(data: bytes) -> list[bytes]:
    """Frames that are not the sensor's packets, one per kind; frames of the first row are told.

    data: a packet of the sensor.
    """
    return [
        *(frame(data[:100]), frame(spoiled(data, 300, 0)), frame(spoiled(data, 102, 36000))),
        *(frame(data[:-1] + b"\x21"), frame(data, bytes((10, 0, 0, 1)))),
        *(frame(bytes(512)), b"\xff" * 12 + b"\x08\x06" + bytes(28), b"\xff" * 5),
    ]


KINDS = (
    "a packet of 100 bytes, a Velodyne's has 1206",
    "a packet of damaged blocks",
    "a packet of 360 degrees",
    "a packet of model HDL-32E, not VLP-16",
    "packets of 10.0.0.1 beside packets of 192.168.1.201",
)


def test_what_is_no_packet_is_reported_once_per_kind_and_the_rest_goes_on(tmp_path):
    good = [(at, frame(data)) for at, data in turning("VLP-16", 2.2)]
    clean, _ = opened(write_pcap(tmp_path / "clean.pcap", good))
    mixed = []
    for number, (at, content) in enumerate(good):
        mixed.append((at, content))
        if 30 <= number < 42:
            mixed += [(at, stranger) for stranger in strangers(content[HEADER:])]
    path = write_pcap(tmp_path / "mixed.pcap", mixed)
    scans, troubles = opened(path)
    assert_same(scans, clean)
    first = [f"{path}: {kind}; left out" for kind in KINDS]
    assert troubles == (
        first
        + [f"{text} (the 10th such case)" for text in first]
        + [f"{text} (so 12 times in all)" for text in first]
    )


def test_strangers_before_the_first_packet(tmp_path):
    good = list(turning("VLP-16", 1.2))
    wild = packet(np.arange(12), 100, 0x28, 0.0)
    frames = [(0.0, frame(wild))] * 2 + [(at, frame(data)) for at, data in good]
    path = write_pcap(tmp_path / "a.pcap", frames)
    scans, troubles = opened(path)
    assert len(scans) == 2
    text = f"{path}: a packet of model VLP-32C, not VLP-16; left out"
    assert troubles == [text, f"{text} (so 2 times in all)"]


def test_cut_off_anywhere(tmp_path):
    frames = [(at, frame(data)) for at, data in turning("VLP-16", 2.5)]
    whole = write_pcap(tmp_path / "whole.pcap", frames)
    content, size = whole.read_bytes(), 16 + HEADER + 1206
    wanted, _ = opened(whole)
    rng = np.random.default_rng(0)
    for packets in rng.integers(20, len(frames), 12):
        path = tmp_path / "cut.pcap"
        behind = int(rng.choice([0, 1, 15, 16, 17, size - 1]))
        path.write_bytes(content[: 24 + packets * size + behind])
        scans, troubles = opened(path)
        assert_same(scans[:-1], wanted[: len(scans) - 1])
        assert sum(len(scan.points) for scan in scans) >= (packets - 1) * 12 * 32 - 48
        assert [text.split(": ")[1] for text in troubles] == (
            ["cut off or damaged; played as far as it goes"] if behind else []
        )


def test_a_frame_of_gigabytes_is_not_waited_for(tmp_path):
    frames = [(at, frame(data)) for at, data in turning("VLP-16", 1.2)]
    path = write_pcap(tmp_path / "a.pcap", frames)
    with path.open("ab") as file:
        file.write(struct.pack("<IIII", 1, 0, 0xFFFFFFF0, 0xFFFFFFF0) + bytes(3000))
    tracemalloc.start()
    try:
        scans, troubles = opened(path)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()
    assert len(scans) == 2 and "cut off or damaged" in troubles[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a file of network packets, or cut off"),
        (b"\0" * 500, "not a file of network packets, or cut off"),
        (struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1), "no packets of a Velodyne"),
    ],
)
def test_files_that_are_no_recordings(tmp_path, content, message):
    path = tmp_path / "a.pcap"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        open_source(str(path))


def test_models_that_do_not_fit(tmp_path):
    frames = [(at, frame(data)) for at, data in turning("VLP-16", 0.5)]
    path = write_pcap(tmp_path / "a.pcap", frames)
    assert len(opened(f"{path}?model=VLP-16")[0]) == 1
    with pytest.raises(ValueError, match=r"packets of a VLP-16, not of a HDL-32E; leave out \?mod"):
        open_source(f"{path}?model=HDL-32E")
    with pytest.raises(ValueError, match="the model OS1 is not one of HDL-64E, HDL-64E-S1, "):
        open_source(f"{path}?model=OS1")


@pytest.mark.parametrize(("start", "size"), [("55aa055a", 1248), ("55aa5aa5", 1210)])
def test_a_robosense_is_named(tmp_path, start, size):
    packet = bytes.fromhex(start).ljust(size, b"\1")
    path = write_pcap(tmp_path / "a.pcap", [(i / 100, frame(packet)) for i in range(20)])
    match = "packets of a Robosense sensor, which is none of .* or its clouds as PointCloud2"
    with pytest.raises(ValueError, match=match):
        open_source(str(path))


@pytest.mark.parametrize(
    ("number", "name"),
    [(0x77, "model with the number 119"), (0x31, "Velarray"), (0x23, "VLP-32A or VLP-32B")],
)
def test_models_that_are_not_read_are_named(tmp_path, number, name):
    strange = [(at, data[:-1] + bytes((number,))) for at, data in turning("VLP-16", 2)]
    path = write_pcap(tmp_path / "a.pcap", [(at, frame(data)) for at, data in strange])
    with pytest.raises(ValueError, match=f"packets of a {name}, which is none of HDL-64E, HDL-3"):
        open_source(str(path))
    turns, good = Turns("udp:2368", live=True), list(turning("VLP-16", 4))
    taken = [data for pair in zip(strange, good[150:], strict=False) for data in pair]
    scans, troubles = split(item for at, data in taken for item in turns.add(Packet(data, at)))
    assert len(scans) == 1 and len(troubles) == 3 and name in troubles[0]


SENSOR, STRAY, OTHER = "192.168.1.201", "127.0.0.2", "192.168.1.202"


def sent(model: str, sender: str, begin: float, end: float, length=5000) -> list[Packet]:
    """What a sensor sends between two times, in seconds."""
    packets = turning(model, (end - begin) / PERIOD, length)
    return [Packet(data, begin + at, sender) for at, data in packets]


def lengths_of(scans: list[LiveScan]) -> list[int]:
    """Of the rays of each scan, all of one length, in metres."""
    return [round(float(np.median(np.linalg.norm(scan.points[:, :3], axis=1)))) for scan in scans]


def added(packets: list[Packet]) -> tuple[list[LiveScan], list[str]]:
    """What a live sensor gives: packets in the order of their times."""
    turns = Turns("udp:2368", live=True)
    packets = sorted(packets, key=lambda packet: packet.time)
    return split(item for packet in packets for item in turns.add(packet))


@pytest.mark.parametrize("strays", [1, 5, 60])
def test_strays_before_the_sensor_do_not_keep_it_out(strays):
    first = sent("VLP-16", STRAY, 0, 1)[:strays]
    scans, troubles = added(first + sent("VLP-16", SENSOR, 2, 4.5, 4000))
    assert len(scans) >= (23 if strays < 12 else 12) and set(lengths_of(scans)) == {8}
    if strays > 12:
        assert f"udp:2368: the VLP-16 at {STRAY} sends no more" in " ".join(troubles)
    else:
        assert f"packets of {STRAY} beside packets of {SENSOR}" in troubles[0]


def test_the_followed_sensor_changes_when_it_is_silent_and_not_before():
    packets = sent("VLP-16", SENSOR, 0, 3.2, 4000) + sent("HDL-32E", OTHER, 0.1, 8)
    scans, troubles = added(packets + sent("VLP-16", SENSOR, 7, 8, 4000))
    lengths = lengths_of(scans)
    change = lengths.index(10)
    assert set(lengths[:change]) == {8} and set(lengths[change:]) == {10}
    assert 29 <= change <= 33 and len(lengths) - change >= 25
    [line] = [line for line in troubles if "beside" not in line]
    assert line == (
        f"udp:2368: the VLP-16 at {SENSOR} sends no more; the HDL-32E at {OTHER} is followed"
    )


def test_a_silence_of_everything_changes_nothing():
    scans, troubles = added(
        sent("VLP-16", SENSOR, 0, 1)
        + sent("VLP-16", STRAY, 20, 21)[:3]
        + sent("VLP-16", SENSOR, 30, 31)
    )
    assert len(scans) >= 17 and len(troubles) == 1 and "beside" in troubles[0]


def test_of_two_models_at_one_address_the_one_that_sends_more_is_followed():
    packets = sent("HDL-32E", SENSOR, 0, 3) + sent("VLP-16", SENSOR, 0.0001, 3, 4000)
    scans, troubles = added(packets)
    assert len(scans) >= 28 and set(lengths_of(scans)) == {10}
    assert troubles[0] == "udp:2368: a packet of model VLP-16, not HDL-32E; left out"
    assert all("VLP-16, not HDL-32E" in line for line in troubles) and len(troubles) == 4
