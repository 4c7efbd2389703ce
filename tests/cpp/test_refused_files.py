"""Network files that are damaged, lie or do not agree with themselves: C++ says what is wrong."""

import shutil
import struct

import numpy as np
import pytest

from millisecond.detector.weights import find_weights
from tests.cpp import network_arrays
from tests.cpp.network_arrays import entry

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")


def refused(inspect, *paths) -> list[str]:
    """What is wrong with each file, in one line that names it."""
    result = inspect("faults", *paths)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.decode().splitlines()
    for line, path in zip(lines, paths, strict=True):
        assert line.startswith(f"2 {path}: ")  # MS_ERROR_FILE
    return lines


@pytest.fixture(scope="session")
def tiny(network_of, small):
    """The network file of `small`, and its arrays."""
    return network_of(small), network_arrays.read(network_of(small))


@pytest.mark.parametrize(
    ("blob", "fault"),
    [
        (b"", "is not a network file; millisecond export makes one"),
        (b"ms-net\r\n", "is not a network file"),
        (b"MS-NET\r\n" + bytes(100), "is not a network file"),
        (b"ms-net\n" + bytes(100), "is not a network file"),  # copied as text
        (b"ms-net\r\n" + struct.pack("<I", 2) + bytes(100), "is of version 2, and this library"),
        (b"ms-net\r\n" + struct.pack("<I", 1) + bytes(100), "its checksum differs"),
    ],
)
def test_other_files_are_refused(inspect, tmp_path, blob, fault):
    path = tmp_path / "other"
    path.write_bytes(blob)
    assert fault in refused(inspect, path)[0]


def test_a_weights_file_is_refused_with_the_remedy(inspect, tmp_path):
    others = find_weights("second"), tmp_path / "none.network", tmp_path
    weights, none, folder = refused(inspect, *others)
    assert "is not a network file; millisecond export makes one of a weights file" in weights
    assert "cannot be opened: No such file" in none
    assert "cannot be read: Is a directory" in folder


def test_an_empty_path_is_named(inspect):
    assert inspect("faults", "").stdout == b"2 path: is empty; give a network file\n"


@pytest.mark.parametrize(
    ("entries", "data", "count", "fault"),
    [
        ([], b"", 1, "no room for its list of arrays"),
        ([], b"", 2**32 - 1, "no room for its list of arrays"),
        ([entry("a", 1, 1)], b"abcd", 2, "no room for its list of arrays"),
        ([entry("a", 3, 1)], b"abcd", None, "array 0 is of an unknown type"),
        ([entry("a", 1)], b"", None, "array 0 has an impossible shape"),
        ([entry("a", 1, 0, 1)], b"abcd", None, "array 0 has an impossible shape"),
        ([entry("a", 1, 1, 0, 1)], b"abcd", None, "array 0 has an impossible shape"),
        ([entry("a", 1, 1)], b"abc", None, "array 0 is larger than the file"),
        ([entry("a", 1, 2**32 - 1)], b"abcd", None, "array 0 is larger than the file"),
        ([entry("a", 1, *[2**32 - 1] * 3)], b"abcd", None, "array 0 is larger than the file"),
        ([entry("a", 2, 2**16, 2**16, 2**16)], b"abcd", None, "array 0 is larger than the file"),
        ([entry("a", 1, 1), entry("b", 1, 1)], b"abcd", None, "array 1 is larger than the file"),
        ([entry("a", 1, 1)], b"abcde", None, "has 1 bytes more than its arrays"),
        ([entry("a" * 32, 3, 1)], b"abcd", None, "array 0 is of an unknown type"),
        ([entry("a", 1, 1)], b"abcd", None, "classes: is missing"),
    ],
)
def test_files_that_lie_are_refused_with_what_is_wrong(
    inspect, tmp_path, entries, data, count, fault
):
    path = network_arrays.stored(tmp_path / "wrong.network", entries, data, count=count)
    assert fault in refused(inspect, path)[0]


def test_every_damage_is_found(inspect, tiny, tmp_path):
    """Bits that turned, and files that were cut or have grown."""
    whole, random, blobs = tiny[0].read_bytes(), np.random.default_rng(0), []
    for place in [16, len(whole) - 1, *random.integers(16, len(whole), 40)]:
        changed = bytearray(whole)
        changed[place] ^= 1 << random.integers(8)
        blobs.append(changed)
    cuts = 20, len(whole) - 1, len(whole) - 4, *random.integers(20, len(whole), 10)
    blobs += [*(whole[:size] for size in cuts), whole + b"\0"]
    paths = [tmp_path / f"{number}.network" for number in range(len(blobs))]
    for path, blob in zip(paths, blobs, strict=True):
        path.write_bytes(blob)
    for line in refused(inspect, *paths):
        assert "is damaged or cut off: its checksum differs" in line


def change(name, place, value):
    """Puts a number into an array."""

    def changed(arrays):
        arrays[name][place] = value

    return changed


def cut(name, axis=0):
    """Takes the last of an array's rows away."""

    def changed(arrays):
        arrays[name] = np.delete(arrays[name], -1, axis)

    return changed


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda arrays: arrays.pop("head.1.bias"), "head.1.bias: is missing"),
        (lambda arrays: arrays.update(anchors=np.int32([[1]])), "anchors: is of another type"),
        (cut("anchors", 1), "anchors: is [5760, 6] instead of [any, 7]"),
        (cut("anchors"), "head.channels: do not fit the classes and anchors"),
        (cut("encoder.3.bias", 1), "encoder.3.bias: is [3, 7] instead of [3, 8]"),
        (cut("encoder.11.weight"), "encoder.11.weight: is [2, 8, 16] instead of [3, 8, any]"),
        (cut("bev.2.weight", 1), "bev.2.weight: is [9, 7, 16] instead of [9, 8, any]"),
        (change("classes", slice(None), ord(" ")), "classes: there is none"),
        (change("point_width", 0, 3), "point_width: 3 is not from 4 to 1024"),
        (change("grid.voxel_size", 1, np.nan), "grid.range: there are no voxels between"),
        (change("grid.range", 3, -np.inf), "grid.range: there are no voxels between"),
        (change("grid.max_points", 0, 0), "grid.max_points: 0 is not from 1"),
        (change("grid.level", 0, 2), "grid.level: 2 is not from 0 to 1"),
        (change("encoder.shapes", (0, 0), 10), "level 1 does not follow from encoder.downs"),
        (change("encoder.shapes", (4, 2), 2**30), "encoder.shapes: 1073741824 is not from 1"),
        (change("encoder.downs", (2, 1, 1), 0), "level 3 does not follow from encoder.downs"),
        (change("encoder.downs", (3, 0, 0), 17), "encoder.downs: 17 is not from 0 to 16"),
        (change("buckets", (1, 2), 1), "buckets: do not rise"),
        (cut("buckets"), "buckets: the last holds"),
        (change("bev.windows", (1, 0), 0), "bev.windows: number 1 is impossible"),
        (change("bev.windows", (1, 2), 3), "bev.windows: number 1 is impossible"),
        (change("bev.windows", (2, 1), 1), "bev.capacities: map 2 has no room for all its cells"),
        (change("bev.capacities", 2, 188), "bev.capacities: map 2 has no room for all its cells"),
        (change("bev.kinds", (1, 3), 100), "bev.capacities: map 0 has no room for all its cells"),
        (change("bev.kinds", (0, 3), 2), "bev.kinds: the first row is not 0 or 1"),
        (cut("bev.kinds", 1), "bev.kinds: do not fit the windows"),
        (change("bev.kept", 1, 3), "bev.kept: the blocks do not fit the windows"),
        (change("bev.kept", 0, 5), "bev.kept: 5 is not from 0 to 4"),
        (change("bev.factors", 1, 2), "bev.factors: block 1 does not become as large as the map"),
        (change("head.channels", 1, 13), "head.channels: do not fit the classes and anchors"),
        (cut("head.0.weight", 2), "head.0.bias: is [3, 128] instead of [3, 127]"),
        (change("boxes.score", 0, 2), "boxes.score: 2.000000 is not from 0.000000 to 1.000000"),
        (change("boxes.iou", 0, np.nan), "boxes.iou: nan is not from"),
        (change("boxes.before_nms", 0, 10**9), "boxes.before_nms: 1000000000 is not from 1 to"),
        (change("boxes.after_nms", 0, 2**31 - 1), "boxes.after_nms: 2147483647 is not from 1 to"),
    ],
)
def test_arrays_that_do_not_agree_are_refused(inspect, tiny, tmp_path, damage, fault):
    arrays = {name: values.copy() for name, values in tiny[1].items()}
    damage(arrays)
    assert fault in refused(inspect, network_arrays.write(tmp_path / "wrong.network", arrays))[0]


def test_damaged_files_never_crash(inspect, tiny):
    """Most damages get a checksum that agrees, so that the checks behind it meet them."""
    result = inspect("fuzz", tiny[0], 400)
    assert result.returncode == 0, result.stderr
    assert 200 < int(result.stdout) < 400  # the others changed a weight, or nothing
