"""PCD and PLY files as Open3D and as hands write them; intensities of any scale."""

import struct

import numpy as np
import pytest

from millisecond.data.checks.sensor import IntensityScale
from millisecond.data.formats.clouds import read_cloud, read_scan
from millisecond.data.formats.points import Cloud


def some_points(count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    points = rng.uniform(-60, 60, (count, 4)).astype(np.float32)
    points[:, 3] = rng.random(count, dtype=np.float32)
    return points


def write_with_open3d(path, points: np.ndarray, **options) -> None:
    o3d = pytest.importorskip("open3d")
    cloud = o3d.t.geometry.PointCloud()
    cloud.point.positions = o3d.core.Tensor(np.ascontiguousarray(points[:, :3]))
    cloud.point.intensity = o3d.core.Tensor(np.ascontiguousarray(points[:, 3:]))
    assert o3d.t.io.write_point_cloud(str(path), cloud, **options)


ROUNDED = {"ascii": 5e-9, "ascii ply": 5e-5}  # metres: Open3D writes so many digits
KINDS = {
    "ascii": (".pcd", {"write_ascii": True}),
    "binary": (".pcd", {}),
    "compressed": (".pcd", {"compressed": True}),
    "ascii ply": (".ply", {"write_ascii": True}),
    "binary ply": (".ply", {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_reads_what_open3d_writes(tmp_path, kind):
    suffix, options = KINDS[kind]
    points = some_points(500)
    write_with_open3d(tmp_path / f"a{suffix}", points, **options)
    found, dtype = read_cloud(tmp_path / f"a{suffix}")
    np.testing.assert_allclose(
        found, points, rtol=1e-6 * (kind in ROUNDED), atol=ROUNDED.get(kind, 0)
    )
    assert dtype == np.float32


@pytest.mark.parametrize("seed", range(8))
def test_compressed_clouds_that_repeat_themselves(tmp_path, seed):
    """Long and short repeats, near and far, also of bytes that were only just written."""
    rng = np.random.default_rng(seed)
    few = some_points(int(rng.integers(1, 300)), seed)
    points = few[rng.integers(0, len(few), int(rng.integers(1, 4000)))]
    points[rng.random(len(points)) < 0.3] = points[0]
    points[:, int(rng.integers(4))] = np.float32(rng.integers(3))
    write_with_open3d(tmp_path / "a.pcd", points + np.float32(1), compressed=True)
    np.testing.assert_array_equal(read_cloud(tmp_path / "a.pcd").points, points + np.float32(1))


PCD = """# .PCD v0.7 - Point Cloud Data file format
VERSION 0.7
FIELDS ring _ z y x Intensity
SIZE 2 1 4 8 4 1
TYPE U U F F F U
COUNT 1 3 1 1 1 1
WIDTH {count}
HEIGHT 1
VIEWPOINT 0 0 0 1 0 0 0
POINTS {count}
DATA {data}
"""
RECORD = np.dtype(
    [("ring", "<u2"), ("_", "u1", 3), ("z", "<f4"), ("y", "<f8"), ("x", "<f4"), ("i", "u1")]
)


def records(points: np.ndarray) -> np.ndarray:
    rows = np.zeros(len(points), RECORD)
    rows["x"], rows["y"], rows["z"] = points[:, :3].T
    rows["i"], rows["ring"], rows["_"] = 255 * points[:, 3], 7, 9
    return rows


@pytest.mark.parametrize("data", ["ascii", "binary"])
def test_fields_of_any_order_type_and_number(tmp_path, data):
    points = some_points(40)
    points[:, 3] = np.arange(40) / 255
    rows = records(points)
    body = rows.tobytes()
    if data == "ascii":
        lines = [
            f"{ring} 9 9 9 {z} {y} {x} {intensity}" for ring, _, z, y, x, intensity in rows.tolist()
        ]
        body = "\n".join(lines).encode()
    path = tmp_path / "a.pcd"
    path.write_bytes(PCD.format(count=40, data=data).encode() + body)
    cloud = read_cloud(path)
    np.testing.assert_allclose(cloud.points[:, :3], points[:, :3], rtol=1e-6)
    np.testing.assert_array_equal(cloud.points[:, 3], np.arange(40))
    assert cloud.intensity == np.uint8
    scaled, notes = IntensityScale()(cloud)
    np.testing.assert_allclose(scaled[:, 3], points[:, 3], rtol=1e-6)
    assert not notes


def test_big_endian_ply_with_a_table_before_and_one_behind(tmp_path):
    points = some_points(30)
    header = (
        "ply\r\nformat binary_big_endian 1.0\r\ncomment by hand\r\nelement camera 2\r\n"
        "property short id\r\nproperty double angle\r\nelement vertex 30\r\nproperty uchar red\r\n"
        "property float x\r\nproperty float y\r\nproperty float z\r\n"
        "property float scalar_Intensity\r\nelement face 1\r\n"
        "property list uchar int vertex_indices\r\nend_header\r\n"
    )
    body = struct.pack(">hdhd", 1, 0.5, 2, 0.25)
    body += b"".join(struct.pack(">Bffff", 200, *point) for point in points.tolist())
    path = tmp_path / "a.ply"
    path.write_bytes(header.encode() + body + struct.pack(">B3i", 3, 0, 1, 2))
    np.testing.assert_array_equal(read_cloud(path).points, points)


def test_points_without_an_echo_are_left_out(tmp_path):
    points = some_points(50)
    points[::2, :3] = np.nan
    write_with_open3d(tmp_path / "a.pcd", points)
    np.testing.assert_array_equal(read_cloud(tmp_path / "a.pcd").points, points[1::2])


def test_a_cloud_without_intensities(tmp_path):
    path = tmp_path / "a.ply"
    path.write_text(
        "ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nproperty float y\n"
        "property float z\nend_header\n1 2 3\n"
    )
    cloud = read_cloud(path)
    assert cloud.points.tolist() == [[1, 2, 3, 0]] and cloud.intensity is None
    assert IntensityScale()(cloud)[1] == []  # the detector says it, see data.scan_checks
    assert read_scan(path).tolist() == [[1, 2, 3, 0]]


PLY = "ply\nformat ascii 1.0\nelement vertex 2\nproperty float x\n{more}end_header\n"
XYZ = "property float y\nproperty float z\n"
FACES = XYZ + "element face 2\nproperty list uchar int a\nproperty uchar red\n"
PACKED = PCD.replace("{data}", "binary_compressed")
MISTAKES = {
    "no header.pcd": ("1 2 3\n", "no line DATA"),
    "lists.ply": (PLY.format(more=XYZ + "property list uchar int a\n"), "vertex has a list"),
    "short.ply": (PLY.format(more=XYZ) + "1 2 3 4 5", "5 numbers do not hold 2 rows of vertex"),
    "words.ply": (PLY.format(more=XYZ) + "1 2 3 4 5 six", "'six' is not a number"),
    "grouped.ply": (PLY.format(more=XYZ) + "1 2 3 4 5 1_0", "'1_0' is not a number"),
    "more.ply": (PLY.format(more=XYZ) + "1 2 3 4 5 6 7 8 9", "3 numbers are behind 2 points"),
    "float count.ply": (PLY.format(more=FACES.replace("uchar", "float")), "'property list float"),
    "no y.ply": (PLY.format(more="") + "1 2", "no field y; a cloud has the fields x, y, z"),
    "odd.ply": (PLY.format(more="property color y\n"), "'property color y'"),
    "no vertex.ply": ("ply\nformat ascii 1.0\nend_header\n", "no element vertex"),
    "type.pcd": (PCD.replace("TYPE U", "TYPE X"), "field ring of TYPE X and SIZE 2"),
    "length.pcd": (PCD.replace("SIZE 2 ", "SIZE "), "not of one length"),
    "negative.pcd": (PCD.replace("HEIGHT 1", "HEIGHT -1"), "HEIGHT -1: not numbers"),
    "count.pcd": (PCD.replace("COUNT 1 3 1 1 1 1", "COUNT 1 3 1 1 1 0"), "or one of COUNT 0"),
    "empty.pcd": ("FIELDS\nSIZE\nTYPE\nWIDTH 0\nHEIGHT 1\nDATA ascii\n", "has no FIELDS"),
    "lie.pcd": (PCD.replace("HEIGHT 1", "HEIGHT 2"), "3 POINTS are not WIDTH x HEIGHT, 3 x 2"),
    "data.pcd": (PCD.replace("{data}", "zip"), "DATA zip is none of ascii, binary"),
    "cut.pcd": (PCD.replace("{data}", "binary") + "12345", "5 bytes are not 3 points of 22"),
    "wide.pcd": (PCD.replace("HEIGHT 1", "HEIGHT 1 1"), "WIDTH and HEIGHT are one number each"),
    "packed.pcd": (PACKED, "no points behind its header"),
    "part.pcd": (PACKED + "\5\0\0\0B\0\0\0\0A \5", "4 bytes that give 66 are not 5 that give 3"),
    "back.pcd": (PACKED + "\4\0\0\0B\0\0\0\0A \5", "gives 1 bytes, it should give 66"),
    "huge.pcd": (
        PCD.replace("{count}", "99999999999").replace("{data}", "binary"),
        "are more than a scan has",
    ),
}


def ply_of(form: str, vertices: int, faces: list[list[int]]) -> bytes:
    """Two points as float32, and faces of any length, each with a colour."""
    header = PLY.format(more=FACES).replace("ascii", form).replace("vertex 2", f"vertex {vertices}")
    points = [(1.0, 2.0, 3.0), (4.0, 5.0, 6.0)]
    if form == "ascii":
        lines = [*points, *([len(face), *face, 9] for face in faces)]
        return (header + "\n".join(" ".join(map(str, line)) for line in lines)).encode()
    order = "<" if "little" in form else ">"
    body = b"".join(struct.pack(f"{order}3f", *point) for point in points)
    for face in faces:
        body += struct.pack(f"{order}B{len(face)}iB", len(face), *face, 9)
    return header.encode() + body


FORMS = ("ascii", "binary_little_endian", "binary_big_endian")


@pytest.mark.parametrize("form", FORMS)
def test_a_ply_file_is_read_with_faces_behind_its_points(tmp_path, form):
    path = tmp_path / "a.ply"
    path.write_bytes(ply_of(form, 2, [[0, 1, 0], [1, 0, 1, 0, 0]]))
    assert read_cloud(path).points.tolist() == [[1, 2, 3, 0], [4, 5, 6, 0]]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("what", ["points", "faces", "lists", "negative", "junk", "cut"])
def test_a_ply_file_that_is_not_as_its_header_says(tmp_path, form, what):
    """Fewer points than there are, other faces, a list that does not end, bytes behind all."""
    faces = [[0, 1, 0], [1, 0, 1, 0, 0]]
    content = ply_of(form, 1 if what == "points" else 2, faces)
    if what == "faces":
        content = ply_of(form, 2, faces * 2)
    elif what == "lists":
        content = content.replace(b"face 2", b"face 2000000")
    elif what == "negative":
        content = content.replace(b"uchar int", b"char int").replace(b"\x05", b"\xff")
        content = content.replace(b"\n5 ", b"\n-1 ")
    elif what == "junk":
        content += b" 7 7 7"
    elif what == "cut":
        content = content[:-3]
    path = tmp_path / "a.ply"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"\A[^\n]*header[^\n]*\Z"):
        read_cloud(path)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("suffix", [".ply", ".pcd"])
def test_numbers_that_their_type_does_not_hold_are_no_points(tmp_path, suffix):
    path, body = tmp_path / f"a{suffix}", "1 2 3\n1e300 5 6\n"
    header = "FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nWIDTH 2\nDATA ascii\n"
    path.write_text((PLY.format(more=XYZ) if suffix == ".ply" else header) + body)
    assert read_cloud(path).points.tolist() == [[1, 2, 3, 0]]


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(tmp_path, name):
    content, message = MISTAKES[name]
    path = tmp_path / name
    if "{count}" in content:
        content = content.format(count=3, data="ascii")
    path.write_text(content)
    with pytest.raises(ValueError, match=r"\A[^\n]*\Z") as error:
        read_cloud(path)
    assert str(error.value).startswith(str(path)) and message in str(error.value)


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_give_one_line_or_points(tmp_path, kind):
    """Cut anywhere, or with some bytes replaced: never another error than ValueError."""
    suffix, options = KINDS[kind]
    path = tmp_path / f"a{suffix}"
    write_with_open3d(path, some_points(20), **options)
    whole = path.read_bytes()
    rng = np.random.default_rng(3)
    for _ in range(60):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole), int(rng.integers(1, 4))):
            damaged[place] = rng.integers(256)
        if rng.random() < 0.5:
            damaged = damaged[: rng.integers(len(whole))]
        path.write_bytes(damaged)
        try:
            assert read_cloud(path).points.shape[1:] == (4,)
        except ValueError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(("highest", "full"), [(0.9, 1), (90, 255), (255, 255), (3000, 65535)])
def test_intensities_come_out_between_0_and_1(highest, full):
    points = some_points(1000)
    points[:, 3] *= highest
    scaled, notes = IntensityScale()(Cloud(points, np.dtype(np.float32)))
    np.testing.assert_allclose(scaled[:, 3], points[:, 3] / full, rtol=1e-6)
    np.testing.assert_array_equal(scaled[:, :3], points[:, :3])
    assert [note.kind for note in notes] == (["intensity"] if full > 1 else [])


def test_a_dark_scan_keeps_the_scale_of_a_bright_one():
    bright, dark = some_points(1000), some_points(1000)
    bright[:, 3] *= 200
    dark[:, 3] *= 0.9
    scale = IntensityScale()
    scale(Cloud(bright, np.dtype(np.float32)))
    scaled, notes = scale(Cloud(dark, np.dtype(np.float32)))
    np.testing.assert_allclose(scaled[:, 3], dark[:, 3] / 255, rtol=1e-6)
    assert not notes


@pytest.mark.filterwarnings("error:invalid value")
def test_a_damaged_intensity_is_no_warning():
    points = some_points(1000)
    points.view(np.uint32)[5, 3] = 0x7F800001  # a signalling NaN
    scaled, _ = IntensityScale()(Cloud(points, np.dtype(np.float32)))
    assert np.flatnonzero(np.isnan(scaled[:, 3])).tolist() == [5]


def test_a_single_wild_intensity_is_cut_to_1():
    points = some_points(1000)
    points[5, 3] = 1e4
    scaled, notes = IntensityScale()(Cloud(points, np.dtype(np.float32)))
    assert scaled[5, 3] == 1 and not notes
