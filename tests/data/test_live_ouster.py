"""Recordings of an Ouster, made by Ouster's own library, beside the formula of Ouster's manual."""

import numpy as np
import pytest

from millisecond.data.live import ouster
from millisecond.data.live.inputs import find_inputs
from millisecond.data.live.scan import LiveScan, Trouble
from millisecond.data.live.source import open_source

START = 1_700_000_000_123_456_789  # nanoseconds
COLUMNS, TURN = 512, 100_000_000  # per turn; nanoseconds
PROFILES = {  # of packets: the step of a range in millimetres
    "LEGACY": 1,
    "RNG19_RFL8_SIG16_NIR16": 1,
    "RNG19_RFL8_SIG16_NIR16_DUAL": 1,
    "RNG15_RFL8_NIR8": 8,
}


def test_the_line_to_type_where_the_library_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ouster", None)
    (tmp_path / "drive.osf").write_bytes(b"")
    with pytest.raises(ValueError, match="pip install --no-deps ouster-sdk more-itertools"):
        open_source(str(tmp_path / "drive.osf"))


def test_json_of_others_is_not_metadata(tmp_path):
    for name, text in {"a.json": '{"boxes": []}', "ab.json": "[", "b.json": "{}"}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "a_0.json").write_text('{"lidar_data_format": {}}')
    assert ouster.metadata_of(tmp_path / "a.pcap") == [tmp_path / "a_0.json"]
    assert not ouster.metadata_of(tmp_path / "b.pcap")


@pytest.fixture
def core():
    return pytest.importorskip("ouster.sdk.core")


def sensor(core, profile="RNG19_RFL8_SIG16_NIR16", serial=122_300_001_234):
    info = core.SensorInfo.from_default(core.LidarMode._512x10)
    info.sn, info.init_id = serial, 5
    info.image_rev = "ousteros-image-prod-aries-v2.5.3+20230822"
    info.format.udp_profile_lidar = getattr(core.UDPProfileLidar, profile)
    info.config.udp_port_lidar, info.config.udp_port_imu = 7502, 7503
    return info


def turns_of(core, info, count=3, step=1):
    rng, turns = np.random.default_rng(0), []
    for number in range(count):
        turn = core.LidarFrame(info)
        turn.frame_id, turn.status[:] = number + 1, 1
        turn.measurement_id[:] = np.arange(COLUMNS)
        turn.timestamp[:] = START + number * TURN + np.arange(COLUMNS) * (TURN // COLUMNS)
        for name in turn.fields:
            shape = (info.h, info.w)
            if name.startswith("RANGE"):
                far = rng.integers(1_000 // step, 90_000 // step, shape) * step
                turn.field(name)[:] = np.where(rng.random(shape) < 0.7, far, 0)
            elif name.startswith("REFLECTIVITY"):
                turn.field(name)[:] = rng.integers(0, 256, shape)
        turns.append(turn)
    return turns


def recorded(core, folder, kind, infos_and_turns):
    """A recording drive.pcap or drive.osf of some sensors."""
    from ouster.sdk import osf, pcap

    path = folder / f"drive.{kind}"
    if kind == "osf":
        with osf.Writer(str(path), [info for info, _ in infos_and_turns]) as writer:
            for place, (_, turns) in enumerate(infos_and_turns):
                for turn in turns:
                    writer.save(place, turn)
        return path
    [(info, turns)] = infos_and_turns
    form, packets = core.PacketFormat(info), []
    for turn in turns:
        packets += core.frame_to_packets(turn, form, info.init_id, info.sn)
    for number, packet in enumerate(packets):
        packet.host_timestamp = START + number * 1_000_000
    pcap.record(packets, str(path))
    path.with_suffix(".json").write_text(info.to_json_string())
    return path


def expected(info, turn):
    """The points of a turn, by the manual: "Lidar Range to XYZ", then lidar to sensor frame."""
    azimuth = -np.radians(info.beam_azimuth_angles)[:, None]
    altitude = np.radians(info.beam_altitude_angles)[:, None]
    encoder = 2 * np.pi * (1 - np.arange(COLUMNS) / COLUMNS)
    beam, lists = info.beam_to_lidar_transform, []
    for name in ("RANGE", "RANGE2"):
        if name in turn.fields:
            ranges = turn.field(name).astype(float)
            light = turn.field(name.replace("RANGE", "REFLECTIVITY"))
            along = ranges - np.hypot(beam[0, 3], beam[2, 3])
            flat = along * np.cos(altitude)
            x = flat * np.cos(encoder + azimuth) + beam[0, 3] * np.cos(encoder)
            y = flat * np.sin(encoder + azimuth) + beam[0, 3] * np.sin(encoder)
            z = along * np.sin(altitude) + beam[2, 3]
            echoes = ranges > 0
            lists.append(np.stack([x, y, z, light / 0.255], axis=-1)[echoes])
    points = np.concatenate(lists)
    move = info.lidar_to_sensor_transform
    points[:, :3] = points[:, :3] @ move[:3, :3].T + move[:3, 3]
    return points / 1000


@pytest.mark.parametrize("kind", ["pcap", "osf"])
@pytest.mark.parametrize("profile", PROFILES)
def test_points_are_where_the_manual_says(core, tmp_path, profile, kind):
    info = sensor(core, profile)
    turns = turns_of(core, info, step=PROFILES[profile])
    path = recorded(core, tmp_path, kind, [(info, turns)])
    source = open_source(str(path))
    assert (source.rate, source.live) == (10.0, False)
    items = list(source)
    scans = [item for item in items if isinstance(item, LiveScan)]
    assert len(scans) == len(turns)
    assert not [item for item in items if isinstance(item, Trouble) and item.lost]
    for number, (scan, turn) in enumerate(zip(scans, turns, strict=True)):
        assert (scan.stamp, scan.frame) == (START + number * TURN, "os_sensor")
        assert scan.points.dtype == np.float32
        np.testing.assert_allclose(scan.points, expected(info, turn), rtol=0, atol=5e-5)
    [found] = find_inputs([str(tmp_path / f"drive.{kind}")])
    assert (found.name, found.source) == ("drive", str(path))


def test_one_of_several_sensors_is_chosen_by_its_number(core, tmp_path):
    infos = [sensor(core, serial=number) for number in (11, 22)]
    pairs = [(info, turns_of(core, info, count=2 + i)) for i, info in enumerate(infos)]
    path = recorded(core, tmp_path, "osf", pairs)
    with pytest.raises(ValueError, match=r"2 sensors: 11, 22; choose one, e.g. .*drive.osf:11"):
        open_source(str(path))
    with pytest.raises(ValueError, match="no sensor 33 in it; it has 11, 22"):
        open_source(f"{path}:33")
    scans = [item for item in open_source(f"{path}:22") if isinstance(item, LiveScan)]
    assert len(scans) == 3
    info, turns = pairs[1]
    np.testing.assert_allclose(scans[2].points, expected(info, turns[2]), atol=5e-5)


def test_what_is_missing_is_told(core, tmp_path):
    info = sensor(core)
    path = recorded(core, tmp_path, "pcap", [(info, turns_of(core, info))])
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 5 // 6])  # in the 80th of 96 packets
    items = list(open_source(str(path)))
    assert sum(isinstance(item, LiveScan) for item in items) == 3
    assert any(
        "a turn of 240 columns of 512" in item.text for item in items if isinstance(item, Trouble)
    )

    other = sensor(core, "RNG15_RFL8_NIR8")  # another layout than the packets have
    path.with_suffix(".json").write_text(other.to_json_string())
    lost = [item.text for item in open_source(str(path)) if isinstance(item, Trouble) and item.lost]
    assert any("packets do not fit the metadata" in text for text in lost)
    assert any("no turn in it" in text for text in lost)

    path.with_suffix(".json").unlink()
    with pytest.raises(
        ValueError, match=r"an Ouster's need its metadata beside them, drive[.]json"
    ):
        open_source(str(path))
    broken = tmp_path / "broken.osf"
    broken.write_bytes(b"no such thing" * 100)
    with pytest.raises(ValueError, match=r"broken.osf: cannot be read as an Ouster's"):
        list(open_source(str(broken)))
