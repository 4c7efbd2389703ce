"""The ground-truth database against frames cut by hand, and packs that are stopped and damaged."""

import json
import pickle

import numpy as np
import pytest

from millisecond.data.augment import COLUMNS, GroundTruthDatabase, add_objects
from millisecond.data.frame import Frame
from millisecond.data.packed import Pack, PackWriter


def make_frame(frame_id: str, counts: list[int]) -> Frame:
    """Unit cubes 10 m apart, axis-parallel, with so many points at their centres."""
    boxes = np.array([[10 * i, 0, 0, 1, 1, 1, 0] for i in range(len(counts))], np.float32)
    points = np.concatenate(
        [np.full((n, 4), (10 * i, 0.1, 0.2, 0.3)) for i, n in enumerate(counts)]
    ).astype(np.float32)
    points[:, 3] += np.arange(len(points))
    difficulty = (np.arange(len(counts)) % 4 - 1).astype(np.int8)
    names = tuple(("Car", "Van")[i % 2] for i in range(len(counts)))
    return Frame(frame_id, points, boxes, names, difficulty)


FRAMES = [
    make_frame("000003", [9, 4, 5, 20, 0, 8]),
    make_frame("000004", [0]),
    make_frame("7", [6]),
]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "made" / "database_train"
    with PackWriter(path, "signature", COLUMNS) as writer:
        for frame in FRAMES:
            add_objects(writer, frame)
        writer.finish()
    return path


def test_objects_with_five_points_and_more(path):
    database = GroundTruthDatabase(path)
    assert database.frames.tolist() == ["000003"] * 4 + ["7"]
    assert database.names.tolist() == ["Car", "Car", "Van", "Van", "Car"]
    assert database.counts.tolist() == [9, 5, 20, 8, 6]
    assert database.difficulty.tolist() == [-1, 1, 2, 0, -1]
    np.testing.assert_array_equal(database.boxes[:, 0], [0, 20, 30, 50, 0])
    np.testing.assert_array_equal(database.points(2), FRAMES[0].points[18:38])


def test_selection(path):
    database = GroundTruthDatabase(path)
    assert database.select("Car").tolist() == [1]
    assert database.select("Van", 9).tolist() == [2]
    assert database.select("Tram").tolist() == []


def test_crops_are_copies_and_the_database_travels(path):
    database = GroundTruthDatabase(path)
    database.points(1)[:] = 0
    other = pickle.loads(pickle.dumps(database))
    assert other.points(1)[0, 0] == 20
    assert len(pickle.dumps(Pack(path))) < 1000


def test_database_of_nothing(tmp_path):
    with PackWriter(tmp_path / "empty", "", COLUMNS) as writer:
        add_objects(writer, FRAMES[1])
        writer.finish()
    database = GroundTruthDatabase(tmp_path / "empty")
    assert len(database) == 0 and database.boxes.shape == (0, 7)
    assert database.select("Car").tolist() == []


@pytest.mark.parametrize("cut_log", [0, 5, 60, 10**6])
@pytest.mark.parametrize("cut_data", [0, 100, 10**6])
def test_stopped_between_any_two_bytes(tmp_path, path, cut_log, cut_data):
    """What is on disk after a stop is a beginning of the journal and of the data."""
    again = tmp_path / "again"
    with PackWriter(again, "signature", COLUMNS) as writer:
        for frame in FRAMES[:2]:
            add_objects(writer, frame)
    for name, cut in (("again.journal", cut_log), ("again.partial", cut_data)):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[:cut])
    with PackWriter(again, "signature", COLUMNS) as writer:
        for frame in FRAMES[writer.steps :]:
            add_objects(writer, frame)
        writer.finish()
    for suffix in (".bin", ".npz"):
        assert again.with_suffix(suffix).read_bytes() == path.with_suffix(suffix).read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again.bin", "again.npz", "made"]


@pytest.mark.parametrize("name", ["a.bin", "a.npz", "a.journal", "a.partial"])
def test_a_file_of_others_is_not_written_over(tmp_path, name):
    (tmp_path / name).write_bytes(b"of another program")
    with pytest.raises(ValueError, match=f"{name}: already exists"):
        PackWriter(tmp_path / "a", "s", COLUMNS)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == b"of another program"


def test_a_flipped_bit_is_seen(path):
    data = path.with_suffix(".bin")
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    pack = Pack(path)
    with pytest.raises(ValueError, match=r"database_train\.bin: damaged \(checksum of entry"):
        for entry in range(len(pack)):
            pack[entry]


def test_other_work_is_begun_anew(tmp_path):
    with PackWriter(tmp_path / "a", "first", COLUMNS) as writer:
        add_objects(writer, FRAMES[0])
    with PackWriter(tmp_path / "a", "second", COLUMNS) as writer:
        assert writer.steps == 0
        writer.finish()
    assert len(Pack(tmp_path / "a")) == 0


def test_missing_and_damaged(path):
    with pytest.raises(FileNotFoundError, match="make it with millisecond prepare"):
        GroundTruthDatabase(path.with_name("other"))
    data = path.with_suffix(".bin")
    data.write_bytes(data.read_bytes()[:-16])
    with pytest.raises(ValueError, match=r"database_train\.bin: damaged \(752 bytes\)"):
        GroundTruthDatabase(path)
    index = path.with_suffix(".npz")
    columns = dict(np.load(index))
    np.savez(index, **{**columns, "offsets": np.sort(columns["offsets"])[[0, 2, 1, 3, 4, 5]]})
    with pytest.raises(ValueError, match=r"\.npz: damaged \(its offsets do not rise from 0\)"):
        GroundTruthDatabase(path)
    index.write_bytes(index.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"database_train\.npz: damaged"):
        GroundTruthDatabase(path)


def test_nothing_is_unpickled(path, tmp_path):
    class Hostile:
        def __reduce__(self):
            return (tmp_path.joinpath("owned").touch, ())

    np.savez(path.with_suffix(".npz"), offsets=np.array([Hostile()], object), signature="")
    with pytest.raises(ValueError, match="damaged"):
        GroundTruthDatabase(path)
    assert not (tmp_path / "owned").exists()


def test_journal_is_plain_json(tmp_path):
    with PackWriter(tmp_path / "a", "s", COLUMNS) as writer:
        add_objects(writer, FRAMES[2])
    step = json.loads((tmp_path / "a.journal").read_text().splitlines()[1])
    assert step["counts"] == [6] and step["frame"] == ["7"]
