"""A file that is not a scan is refused, an odd one is told, any other passes without a word."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from millisecond.data.checks.scans import Tally, oddities
from millisecond.data.checks.sensor import Mounting
from millisecond.data.formats.clouds import find_scans, read_cloud, read_points, read_scan
from millisecond.data.formats.points import require_scan
from millisecond.data.simulator import simulate
from millisecond.data.simulator.lidar import default_sensor
from millisecond.ops.transfer import clamp_intensity

RANGE, FEET = (0, -40, -3, 70.4, 40, 1), -1.78


@pytest.fixture(scope="module")
def street():
    return simulate(3).points


def all_round(points: np.ndarray) -> np.ndarray:
    """A full sweep: the street ahead and, turned, behind."""
    return np.concatenate([points, points * np.float32([-1, -1, 1, 1])])


@pytest.mark.parametrize("seed", range(20))
def test_simulated_scans_are_not_odd(seed):
    points = simulate(seed).points
    for cloud in (points, all_round(points), points[:50], points[:0]):
        require_scan(cloud, "scan")
        assert oddities(cloud, RANGE, FEET) == []


def test_real_scans_are_not_odd(kitti):
    for path in sorted(kitti.rglob("*.bin")):
        assert oddities(read_points(path), RANGE, FEET) == [], path


def columns(points: np.ndarray, count: int) -> np.ndarray:
    """The points with another number of columns, which a .bin file does not tell."""
    points = points[: len(points) // 60 * 60]
    ring, time = np.arange(len(points)) % 64, np.linspace(0, 0.1, len(points))
    wide = np.column_stack([points, ring, time])[:, :count]
    return np.ascontiguousarray(wide, "<f4").reshape(-1, 4)


NO_SCANS = {
    "three columns": (lambda p: columns(p, 3), "has 3 columns|seems to have 3 columns"),
    "five columns": (lambda p: columns(p, 5), "seems to have 5 columns"),
    "six columns": (lambda p: columns(p, 6), "seems to have 6 columns"),
    "float64": (lambda p: np.frombuffer(p.astype("<f8").tobytes(), "<f4"), "far too large"),
    "big-endian": (lambda p: np.frombuffer(p.astype(">f4").tobytes(), "<f4"), "far too large"),
    "whole numbers": (lambda p: np.frombuffer((p * 100).astype("<i4").tobytes(), "<f4"), "scan"),
    "chance": (lambda p: np.frombuffer(np.random.default_rng(0).bytes(64000), "<f4"), "far too"),
    "millimetres": (lambda p: p * np.float32([1000, 1000, 1000, 1]), "in metres"),
    "centimetres": (lambda p: p * np.float32([100, 100, 100, 1]), "in metres"),
    "PCL's eight columns": (
        lambda p: np.insert(np.insert(p, 3, 1, 1), [5, 5, 5], 0, 1).reshape(-1, 4),
        "seems to have 8 columns",
    ),
    "eight columns, the last four 0": (
        lambda p: np.c_[p, 0 * p].reshape(-1, 4),
        "seems to have 8 columns",
    ),
    "no intensities": (
        lambda p: p * np.float32([1, 1, 1, np.nan]),
        "intensities are not finite",
    ),
    "wild intensities": (lambda p: p + np.float32([0, 0, 0, 1e30]), "far too"),
    "no numbers": (lambda p: p * np.float32(np.nan), "are not finite"),
    "zeros": (lambda p: p * 0, "nothing was measured"),
}


@pytest.mark.parametrize("kind", NO_SCANS)
@pytest.mark.parametrize("ahead", [True, False])
def test_what_is_no_scan_is_refused(tmp_path, street, kind, ahead):
    spoil, said = NO_SCANS[kind]
    path = tmp_path / "scan.bin"
    np.asarray(spoil(street if ahead else all_round(street)), "<f4").tofile(path)
    with pytest.raises(ValueError, match=said) as caught:
        read_points(path)
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


def test_negative_intensities_ask_for_the_columns_that_were_named(street):
    with pytest.raises(ValueError, match=r"are its columns x, y, z, rcs, as points\.columns"):
        require_scan(street * np.float32([1, 1, 1, -1]), "scan", ("x", "y", "z", "rcs"))


ODD = {
    "intensity up to 255": lambda p: p * np.float32([1, 1, 1, 255 / p[:, 3].max()]),
    "divide it by 65535": lambda p: p * np.float32([1, 1, 1, 65535 / p[:, 3].max()]),
    "such as 1e+30": lambda p: np.vstack([p, np.float32([9, 1, -1, 1e30])]),
    "the ground seems to be at z = ": lambda p: p + np.float32([0, 0, 1.73, 0]),
    "no point in the grid": lambda p: p * np.float32([-1, -1, 1, 1]),
    "degrees to the left": lambda p: p[:, [1, 0, 2, 3]] * np.float32([-1, 1, 1, 1]),
    "overhead": lambda p: p * np.float32([1, -1, -1, 1]),
    "within 0.0": lambda p: p * np.float32([1e-3, 1e-3, 1e-3, 1]),
    "m tall": lambda p: p[:, [0, 2, 1, 3]],
}


@pytest.mark.parametrize("said", ODD)
def test_what_is_odd_is_told(street, said):
    points = ODD[said](street).astype(np.float32)
    require_scan(points, "scan")
    notes = oddities(points, RANGE, FEET)
    assert any(said in note.text for note in notes), notes
    assert all("\n" not in note.text for note in notes)


@pytest.mark.parametrize("height", [0.5, 1.0, 3.0])
def test_a_sensor_at_another_height_is_told_with_the_remedy(height):
    """The network's sensor was at 1.73 m; a shift by the remedy makes the scan usual."""
    sensor = replace(default_sensor(), height=height, roof=())
    for seed in range(12):
        points = simulate(seed, sensor=sensor).points
        (note,) = oddities(points, RANGE, FEET)
        shift = float(note.text.rpartition("--shift-z ")[2])
        assert abs(shift - (height - 1.73)) < 0.5, (seed, note)
        assert oddities(points + np.float32([0, 0, shift, 0]), RANGE, FEET) == []


def test_the_ground_of_frames_on_the_ground_is_found(sensors):
    """Real frames of cars whose origin is at the ground, or on the rear axle."""
    for path in sorted((sensors / "other").glob("*/*.npy")):
        kinds = [note.kind for note in oddities(np.load(path), RANGE, FEET)]
        assert "ground" in kinds, path


def test_a_turned_scan_is_told_with_the_remedy(street):
    for turn in (-90, 90):
        mounting = Mounting(turn=turn)
        (note,) = [
            n for n in oddities(mounting.to_network(street), RANGE, FEET) if n.kind == "axes"
        ]
        assert note.text.endswith(f"--turn {-turn}")


def test_intensities_that_are_all_0_are_told_where_the_network_takes_them(street):
    points = street * np.float32([1, 1, 1, 0])
    assert [note.kind for note in oddities(points, RANGE, FEET)] == ["no intensity"]
    assert oddities(points, RANGE, FEET, ("x", "y", "z")) == []


def write_cloud(path, points: np.ndarray) -> None:
    """Points in a file, as float64 where it can hold them."""
    if path.suffix == ".bin":
        points.astype("<f4").tofile(path)
    elif path.suffix == ".npy":
        np.save(path, points)
    elif path.suffix == ".npz":
        np.savez(path, points)
    elif path.suffix == ".pcd":
        fields = "FIELDS x y z intensity\nSIZE 8 8 8 8\nTYPE F F F F\n"
        header = f"{fields}WIDTH {len(points)}\nDATA binary\n"
        path.write_bytes(header.encode() + points.astype("<f8").tobytes())
    else:
        names = "".join(f"property double {name}\n" for name in ("x", "y", "z", "intensity"))
        header = f"ply\nformat binary_little_endian 1.0\nelement vertex {len(points)}\n{names}"
        path.write_bytes(header.encode() + b"end_header\n" + points.astype("<f8").tobytes())


def test_a_place_on_an_axis_of_a_map_is_0_and_not_minus_0():
    points = np.tile(np.array([458123, -0.3, 0, 0], np.float32), (100, 1))
    with pytest.raises(ValueError, match=r"y = 0 m.*\(458123, 0\)"):
        require_scan(points, "scan")


@pytest.mark.parametrize("suffix", [".bin", ".npy", ".npz", ".pcd", ".ply"])
@pytest.mark.parametrize("place", [(458123, 5428456), (-30211, 250)])
@pytest.mark.parametrize("read", [read_scan, read_cloud])
def test_coordinates_of_a_map_are_told_with_their_offset(tmp_path, street, suffix, place, read):
    path = tmp_path / f"scan{suffix}"
    write_cloud(path, street + np.array([*place, 0, 0], np.float64))
    with pytest.raises(ValueError, match=r"\A[^\n]*of a map \(UTM[^\n]*\Z") as caught:
        read(path)
    x, y = (float(n) for n in str(caught.value).rpartition("-= (")[2].rstrip(")").split(","))
    assert str(caught.value).startswith(str(path))
    write_cloud(path, street + np.array([place[0] - x, place[1] - y, 0, 0]))
    read(path)


def test_wild_intensities_are_clamped_and_scales_kept(street):
    points = torch.from_numpy(street)
    assert clamp_intensity(points) is points
    for scale in (1, 255, 65535):
        scaled = points * torch.tensor([1, 1, 1, float(scale)])
        wild = scaled.clone()
        wild[5, 3], wild[6, 3], wild[7, 3], wild[8, 3] = 1e30, -1e30, torch.inf, torch.nan
        clamped = clamp_intensity(wild)
        assert clamped[5, 3] == scale and clamped[6, 3] == 0
        assert clamped[7, 3].isinf() and clamped[8, 3].isnan()  # dropped by the voxelizer
        assert torch.equal(clamped[9:], scaled[9:]) and torch.equal(clamped[:5], scaled[:5])
        assert wild[5, 3] == 1e30  # what was given is left alone


def test_arrays_in_npy(tmp_path, street):
    for kind in ("<f4", ">f4", "<f8", "<f2"):
        np.save(tmp_path / "scan.npy", street.astype(kind))
        points = read_points(tmp_path / "scan.npy")
        assert points.dtype == np.float32 and points.dtype.isnative
        np.testing.assert_array_equal(points, street.astype(kind).astype(np.float32))
    np.save(tmp_path / "scan.npy", np.asfortranarray(street))
    np.testing.assert_array_equal(read_points(tmp_path / "scan.npy"), street)
    np.save(tmp_path / "scan.npy", street[:, :3])  # without intensities
    bare = street * np.float32([1, 1, 1, 0])
    np.testing.assert_array_equal(read_points(tmp_path / "scan.npy"), bare)
    np.testing.assert_array_equal(read_scan(tmp_path / "scan.npy"), bare)


def header(claim: str) -> bytes:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {claim}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


BAD_FILES = {
    "wide.npy": (lambda p: np.save(p, np.zeros((9, 5), np.float32)), r"shape \[9, 5\]"),
    "whole.npy": (lambda p: np.save(p, np.zeros((9, 4), int)), "floating-point"),
    "objects.npy": (lambda p: np.save(p, np.array([{}]), allow_pickle=True), "not an array"),
    "claim.npy": (lambda p: p.write_bytes(header("(1 << 40, 4)") + bytes(64)), "not an array"),
    "huge.npy": (lambda p: p.write_bytes(header("(1099511627776, 4)") + bytes(64)), "not an arr"),
    "cut.npy": (lambda p: p.write_bytes(header("(9, 4)")[:40]), "not an array"),
    "archive.npy": (lambda p: np.savez(p.open("wb"), a=np.zeros(3)), "not an array"),
    "array.bin": (lambda p: np.save(p.open("wb"), np.zeros((9, 4))), r"rename it to array\.npy"),
    "text.bin": (lambda p: p.write_text("1.0 2.0 3.0 0.5\n" * 20), "text file"),
    "cloud.bin": (lambda p: p.write_bytes(b"# .PCD v0.7 - \n" + bytes(33)), "this is a PCD file"),
    "mesh.bin": (lambda p: p.write_bytes(b"ply\nformat binary_little_endian" + bytes(16)), "PLY"),
    "five.bin": (lambda p: p.write_bytes(bytes(20 * 9)), "or has it 5 columns"),
    "sparse.bin": (lambda p: p.write_bytes(b"") or os.truncate(p, 1 << 40), "more than a scan has"),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("name", BAD_FILES)
def test_files_that_hold_no_scan(tmp_path, name):
    write, said = BAD_FILES[name]
    write(tmp_path / name)
    with pytest.raises(ValueError, match=said) as caught:
        read_points(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value) and "\n" not in str(caught.value)


def test_folders_of_both_kinds(tmp_path, street):
    street.tofile(tmp_path / "b.bin")
    np.save(tmp_path / "a.npy", street)
    (tmp_path / "notes.txt").write_text("")
    assert [path.name for path in find_scans([tmp_path])] == ["a.npy", "b.bin"]
    np.save(tmp_path / "b.npy", street)
    with pytest.raises(ValueError, match="overwrite"):
        find_scans([tmp_path])


def test_a_tally_tells_each_kind_once(street):
    tally = Tally()
    for name in ("a", "b", "c"):
        tally.add(name, oddities(street * np.float32([1, 1, 1, 255]), RANGE, FEET))
    (line,) = tally.lines()
    assert line.startswith("a: intensity up to") and line.endswith("(so in 3 scans)")
