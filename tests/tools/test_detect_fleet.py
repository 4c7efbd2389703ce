"""millisecond detect over everything that was recorded: in processes, from every source, to files
or a table, and on again after it was killed."""

import json
import math
import os
import random
import re
import signal
import time
from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch
from tqdm import tqdm

from millisecond.data.live.inputs import RecordedScans, ScanFile, Unit, find_inputs
from millisecond.data.live.pool import ReaderPool
from millisecond.detector import Detector
from millisecond.detector.detection_files import find_detections, names_in, read_detections
from millisecond.detector.detection_table import read_table
from millisecond.detector.inference import Detections
from millisecond.tools import detect as tool
from millisecond.tools.bench import main as bench
from millisecond.tools.evaluate import main as evaluate
from tests.helpers.ros_bags import KINDS, write_clouds
from tests.helpers.small_detector import cloud
from tests.helpers.velodyne_packets import frame, turning, write_pcap
from tests.helpers.warm_processes import WarmProcess

PATIENCE = 60  # seconds
PROGRAM = """
import os, sys, time
from multiprocessing import active_children
from pathlib import Path
from millisecond.detector import Detector
from millisecond.tools import detect, detecting
from tests.tools.test_detect_fleet import boxes_of

def stream(_, clouds):
    for number, points in enumerate(clouds):
        Path(os.environ["PIDS"]).write_text(" ".join(str(one.pid) for one in active_children()))
        time.sleep(float(os.environ["PAUSE"]))
        yield boxes_of(points)

detecting.SHARD = 5
detect.processes_for = lambda *_: int(os.environ["PROCESSES"])
detect.Detector.stream = stream
sys.exit(detect.main())
"""


def boxes_of(points):
    """Some boxes that tell which points they are of; none for every fifth number of points."""
    n = len(points) % 5
    boxes = np.ones((n, 7), np.float32)
    boxes[:, :2] = points[:n, :2]
    boxes[:, 6] = points[:n, 2] * 3
    scores, labels = torch.from_numpy(points[:n, 3].copy()), torch.ones(n, dtype=torch.int64)
    return Detections(torch.from_numpy(boxes), scores, labels), []


@pytest.fixture(params=[0, 1, 3], ids=lambda count: f"{count} processes")
def processes(request, monkeypatch):
    monkeypatch.setattr(tool, "processes_for", lambda *_: request.param)
    return request.param


@pytest.fixture
def quick(monkeypatch):
    """No network: it is judged elsewhere. As on a GPU, a result comes once the next two clouds
    were taken; until then nobody else may have the memory of its points."""

    def stream(_, clouds):
        taken = deque()
        for points in clouds:
            taken.append(points)
            if len(taken) == 3:
                yield boxes_of(taken.popleft())
        yield from map(boxes_of, taken)

    monkeypatch.setattr(Detector, "stream", stream)


@pytest.fixture
def scans(tmp_path):
    """37 scans in three folders; two cannot be read."""
    folder = tmp_path / "scans"
    for number in range(37):
        path = folder / ("", "b", "b/c")[number % 3] / f"{number:03d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        cloud(100 + number, number).tofile(path)
    (folder / "b" / "bad.bin").write_bytes(b"12345")
    np.save(folder / "worse.npy", np.zeros((3, 7), np.float32))
    return folder


def run(*arguments):
    try:
        return tool.main([str(argument) for argument in arguments])
    except SystemExit as end:
        return end.code


def files(folder: Path) -> dict[str, str]:
    """All files by name, without the times that detections took."""
    return {
        str(path.relative_to(folder)): re.sub(r'"milliseconds": [0-9.]+', "", path.read_text())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def error_of(capsys) -> str:
    said = capsys.readouterr().err.splitlines()
    (line,) = [line for line in said if line.startswith("error: ")]
    return line


def test_processes_write_what_the_detector_finds_scan_by_scan(
    tmp_path, weights, scans, processes, capsys
):
    for path in list(scans.rglob("*.bin"))[9:]:
        path.unlink()
    (scans / "b" / "bad.bin").write_bytes(b"12345")
    assert run("--weights", weights, scans, "--device", "cpu", "--output", tmp_path / "out") == 2
    detector, names = Detector.from_weights(weights, "cpu"), []
    for path in scans.rglob("*.bin"):
        if path.name == "bad.bin":
            continue
        names.append(str(path.relative_to(scans).with_suffix("")))
        result = json.loads((tmp_path / "out" / f"{names[-1]}.json").read_text())
        found = detector(np.fromfile(path, "<f4").reshape(-1, 4))
        assert result["frame"] == names[-1]
        np.testing.assert_allclose(np.array(result["boxes"])[:, :6], found.boxes[:, :6], atol=6e-5)
        np.testing.assert_array_equal(np.float32(result["scores"]), found.scores)
    assert set(files(tmp_path / "out")) == {".results", *(f"{name}.json" for name in names)}
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert "worse.npy" in said[0] and "bad.bin" in said[1]
    assert f"2 of {len(names) + 2} scans could not be read" in said[1]


def test_any_number_of_processes_writes_the_same(tmp_path, weights, scans, quick, monkeypatch):
    written = []
    for count in (0, 1, 2, 5):
        monkeypatch.setattr(tool, "processes_for", lambda *_, count=count: count)
        output = tmp_path / f"out{count}"
        assert run("--weights", weights, scans, "--output", output) == 2
        written.append(files(output))
    assert len(written[0]) == 38 and all(one == written[0] for one in written)


def test_scans_larger_than_the_shared_memory(tmp_path, weights, quick, processes, monkeypatch):
    monkeypatch.setattr("millisecond.data.live.pool.BLOCK", 1 << 14)
    clouds = {f"{count:05d}": cloud(count, count) for count in (2001, 2, 5002, 700, 701, 702, 99)}
    for name, points in clouds.items():
        points.tofile(tmp_path / f"{name}.bin")
    assert run("--weights", weights, tmp_path, "--output", tmp_path / "out") == 0
    for name, points in clouds.items():
        boxes = json.loads((tmp_path / "out" / f"{name}.json").read_text())["boxes"]
        expected = boxes_of(points)[0].boxes
        np.testing.assert_allclose(np.reshape(boxes, (-1, 7))[:, :6], expected[:, :6], atol=6e-5)


@pytest.mark.parametrize("overlapped", [False, True])
def test_the_progress_line_says_how_busy_the_detector_is(
    tmp_path, weights, monkeypatch, capsys, overlapped
):
    """By a clock of its own: 3 s in the detector for a scan, 1 s to read it."""
    for number in range(10):
        cloud(10, number).tofile(tmp_path / f"{number}.bin")
    now = [0.0]

    def stream(_, clouds):
        before = None
        for points in clouds:
            now[0] += 3
            if not overlapped:
                yield boxes_of(points)
            elif before is not None:
                yield boxes_of(before)
            before = points
        if overlapped:
            yield boxes_of(before)

    def read(*arguments):
        now[0] += 1
        return read_scan(*arguments)

    read_scan = tool.read_scan
    monkeypatch.setattr(tool.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(tool, "read_scan", read)
    monkeypatch.setattr(Detector, "stream", stream)
    monkeypatch.setattr(tool, "tqdm", lambda **options: tqdm(**options | {"disable": False}))
    assert run("--weights", weights, tmp_path, "--device", "cpu", "--output", tmp_path / "out") == 0
    assert re.search(r"10/10 .*detector busy 75 %", capsys.readouterr().err)


class Killed:
    """A run in a process of its own, which detects slowly."""

    def __init__(self, tmp_path: Path, weights: Path, *arguments, processes=2, pause=0.004):
        self._pids = tmp_path / "pids"
        self._pids.unlink(missing_ok=True)
        settings = {"PROCESSES": processes, "PAUSE": pause, "PIDS": self._pids}
        command = ["-c", PROGRAM, "--weights", weights, *arguments]
        environment = {name: str(value) for name, value in settings.items()}
        self._process = WarmProcess([str(word) for word in command], environment)

    def end(self, number: int, after: float, results: Path | None = None) -> str:
        """Sends the signal so many seconds after the first scan, or after the first new file below
        `results`; what it printed."""
        until = time.monotonic() + PATIENCE

        def count() -> float:
            try:
                return sum(1 for _ in results.rglob("[!.]*[0-9].*"))
            except FileNotFoundError:  # the run removes them at its end
                return math.inf

        before = count() if results else 0
        ready = (lambda: count() > before) if results else self._pids.is_file
        while not ready() and self._process.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.001)
        time.sleep(after)
        self._process.send_signal(number)
        said, _ = self._process.communicate(timeout=PATIENCE)
        for pid in self._pids.read_text().split() if self._pids.is_file() else ():
            while alive(int(pid)):
                assert time.monotonic() < until, "a process was left behind"
                time.sleep(0.01)
        self.code = self._process.returncode
        return said


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("count", [0, 2])
def test_killed_and_resumed_it_writes_the_same(tmp_path, weights, scans, quick, capsys, count):
    """At any place, several times; nothing is there in part meanwhile."""
    assert run("--weights", weights, scans, "--output", tmp_path / "whole") == 2
    whole, output = files(tmp_path / "whole"), tmp_path / "out"
    for _ in range(4):
        killed = Killed(tmp_path, weights, scans, "--output", output, "--resume", processes=count)
        killed.end(signal.SIGKILL, random.uniform(0, 0.03), output)
        there = {name: text for name, text in files(output).items() if name.endswith(".json")}
        assert there.items() <= whole.items()
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*.json")}
    capsys.readouterr()
    assert run("--weights", weights, scans, "--output", output, "--resume") == 2
    said = capsys.readouterr()
    assert files(output) == whole
    assert before and all(path.stat().st_mtime_ns == when for path, when in before.items())
    assert f"{len(before)} scans of an earlier run are there already" in said.out
    assert "2 of 39 scans could not be read" in said.err
    assert run("--weights", weights, scans, "--output", output, "--resume") == 2
    assert "37 scans of an earlier run are there already" in capsys.readouterr().out


@pytest.mark.parametrize("count", [0, 2])
def test_ctrl_c_is_one_line_and_leaves_no_process(tmp_path, weights, scans, count):
    output = tmp_path / "out"
    killed = Killed(tmp_path, weights, scans, "--output", output, processes=count, pause=0.1)
    said = killed.end(signal.SIGINT, 0.2)
    assert killed.code == 130
    assert said.splitlines()[-1] == "stopped; the same command with --resume goes on"
    assert "Traceback" not in said and not list(output.rglob("*.tmp"))


def test_tracks_are_the_same_after_a_kill(tmp_path, weights, scans, quick):
    options = ("--weights", weights, scans, "--track", "--output")
    assert run(*options, tmp_path / "whole") == 2
    killed = Killed(tmp_path, *options[1:], tmp_path / "out")
    killed.end(signal.SIGKILL, 0.05)
    assert run(*options, tmp_path / "out", "--resume") == 2
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_what_cannot_go_on_is_one_line(tmp_path, weights, scans, quick, capsys, trained):
    from millisecond.detector.weights import save_weights

    output, common = tmp_path / "out", ("--weights", weights, scans, "--output")
    assert run(*common, output) == 2
    (output / "000.json").unlink()
    before = files(output)
    capsys.readouterr()
    for change, word in (
        (["--score", 0.5], "--score"),
        (["--track"], "--track"),
        (["--shift-z", 1], "weights"),
    ):
        assert run(*common, output, "--resume", *change) == 2
        assert word in error_of(capsys)
    (scans / "new.bin").write_bytes(cloud(10).tobytes())
    assert run(*common, output, "--resume") == 2
    assert "begun with other scans" in error_of(capsys)
    (scans / "new.bin").unlink()
    other = tmp_path / "other.safetensors"
    changed = {name: value * 1.01 for name, value in trained[1].state_dict().items()}
    original = trained[1].state_dict()
    trained[1].load_state_dict(changed)
    save_weights(other, trained[1], trained[0])
    trained[1].load_state_dict(original)
    assert run("--weights", other, scans, "--output", output, "--resume") == 2
    assert "begun with other weights" in error_of(capsys)
    for old, said in ((r'"version": "[^"]*"', "version 0.0.1"), (r"^{.*\n", "an older version")):
        mark = output / ".results"
        mark.write_text(re.sub(old, '"version": "0.0.1"' if "v" in old else "", mark.read_text()))
        before[".results"] = mark.read_text()
        assert run(*common, output, "--resume") == 2
        assert f"was begun by {said}" in error_of(capsys)
    assert files(output) == before


def test_two_runs_into_one_table(tmp_path, weights, scans, capsys):
    pytest.importorskip("pyarrow")
    table = tmp_path / "all.parquet"
    killed = Killed(tmp_path, weights, scans, "--output", table, pause=0.2)
    while not (tmp_path / "pids").is_file():
        time.sleep(0.01)
    assert run("--weights", weights, scans, "--output", table) == 2
    assert "is writing there" in error_of(capsys)
    killed.end(signal.SIGKILL, 0)


@pytest.fixture
def small_parts(monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr("millisecond.tools.detecting.SHARD", 5)


def rows_of(table: Path) -> dict[str, list]:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(table).to_pydict()


@pytest.mark.parametrize("track", [(), ("--track", "--rate", 5)])
def test_a_table_has_what_the_files_have(
    tmp_path, weights, scans, quick, processes, small_parts, track
):
    table, output = tmp_path / "all.parquet", tmp_path / "out"
    if track:  # objects that stay where they are
        for path in scans.rglob("0*.bin"):
            cloud(100 + int(path.stem), 1).tofile(path)
    common = ("--weights", weights, scans, *track, "--score", 0.2, "--output")
    assert run(*common, output) == run(*common, table) == 2
    rows = rows_of(table)
    assert list(rows) == ["scan", "time", *"xyzlwh", "yaw", "score", "class", "track"]
    scan, found = np.array(rows["scan"]), 0
    results = {str(p.relative_to(output).with_suffix("")): p for p in output.rglob("*.json")}
    for name, path in results.items():
        result = json.loads(path.read_text())
        mine = np.flatnonzero(scan == name)
        boxes = np.array(
            [[rows[key][row] for key in rows if len(key) == 1 or key == "yaw"] for row in mine]
        )
        np.testing.assert_array_equal(boxes.reshape(-1, 7), np.reshape(result["boxes"], (-1, 7)))
        assert [rows["score"][row] for row in mine] == result["scores"]
        assert [rows["class"][row] for row in mine] == result["names"]
        assert [rows["track"][row] for row in mine] == result.get("ids", [None] * len(mine))
        for reader in (output, table):
            find_detections(reader, [name])
            assert names_in(reader, [name]) == sorted(set(result["names"]))
        one, other = (read_detections(reader, name, None) for reader in (output, table))
        np.testing.assert_array_equal(one.boxes, other.boxes)
        np.testing.assert_array_equal(one.scores, other.scores)
        assert one.names == other.names
        found += len(mine)
    assert found == len(scan) > 20
    if track:
        order = list(dict.fromkeys(rows["scan"]))
        assert order == sorted(order, key=tool.by_name) and max(rows["track"]) >= 1
    assert len(set(rows["time"])) == len(set(scan))
    assert [path.name for path in tmp_path.glob(".*")] == []
    for missing in ("b/bad", "none"):
        with pytest.raises(FileNotFoundError, match=r"all\.parquet"):
            read_detections(table, missing, None)


def test_a_table_after_kills_has_the_same_bytes(tmp_path, weights, scans, quick, small_parts):
    whole, table = tmp_path / "whole.parquet", tmp_path / "all.parquet"
    assert run("--weights", weights, scans, "--output", whole) == 2
    for _ in range(3):
        killed = Killed(tmp_path, weights, scans, "--output", table, "--resume")
        killed.end(signal.SIGKILL, random.uniform(0, 0.03), tmp_path / f".{table.name}.parts")
        if table.exists():
            break
    assert run("--weights", weights, scans, "--output", table, "--resume") == 2
    assert table.read_bytes() == whole.read_bytes()
    assert run("--weights", weights, scans, "--output", table, "--resume") == 2
    assert table.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.glob(".*")) == []


def test_a_table_that_goes_on_tells_all_bad_scans(
    tmp_path, weights, scans, quick, small_parts, capsys
):
    table = tmp_path / "all.parquet"
    common = ("--weights", weights, scans, "--output", table)
    assert run(*common) == 2
    first = capsys.readouterr().err
    assert run(*common, "--resume") == 2
    said = capsys.readouterr()
    assert [line for line in said.err.splitlines() if line.startswith("error")] == [
        line for line in first.splitlines() if line.startswith("error")
    ]
    assert run(*common, "--resume", "--score", 0.5) == 2
    assert "begun with other --score" in error_of(capsys)


def test_a_foreign_table_is_kept(tmp_path, weights, scans, quick, capsys):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = tmp_path / "all.parquet"
    parquet.write_table(pyarrow.table({"scan": ["a"]}), table)
    before = table.read_bytes()
    assert run("--weights", weights, scans, "--output", table) == 2
    assert "all.parquet: not a table of millisecond detect" in error_of(capsys)
    table.write_bytes(b"12345")
    assert run("--weights", weights, scans, "--output", table) == 2
    assert "all.parquet" in error_of(capsys)
    assert table.read_bytes() == b"12345" and len(before) > 5


def test_a_table_needs_its_package(tmp_path, weights, scans, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    assert run("--weights", weights, scans, "--output", tmp_path / "all.parquet") == 2
    assert "needs pyarrow" in error_of(capsys)
    assert not (tmp_path / "all.parquet").exists()
    assert run("--format", "text", scans, "--output", tmp_path / "all.parquet") == 2


@pytest.mark.parametrize("kind", KINDS)
def test_bags(tmp_path, weights, quick, processes, kind):
    pytest.importorskip("rosbags")
    clouds = [cloud(1000 + number, number) for number in range(21)]
    bag = write_clouds(tmp_path / ("drive.bag" if kind == "ros1" else "drive"), kind, clouds)
    cloud(77).tofile(tmp_path / "one.bin")
    output = tmp_path / "out"
    inputs = (tmp_path / "one.bin", bag, write_pcap_of_turns(tmp_path))
    assert run("--weights", weights, *inputs, "--output", output) == 0
    for number, points in enumerate(clouds):
        result = json.loads((output / "drive" / f"{number:06d}.json").read_text())
        expected = boxes_of(points)[0]
        boxes = np.reshape(result["boxes"], (-1, 7))
        np.testing.assert_allclose(boxes[:, :6], expected.boxes[:, :6], atol=6e-5)
    assert (output / "one.json").is_file() and len(list((output / "turns").iterdir())) >= 2


def test_recordings_and_files_stay_in_the_order_of_the_command(
    tmp_path, weights, quick, small_parts, processes
):
    pytest.importorskip("rosbags")
    bag = write_clouds(tmp_path / "drive.bag", "ros1", [cloud(101 + n % 3, n) for n in range(13)])
    for number in range(8):
        cloud(101 + number % 4).tofile(tmp_path / f"{number}.bin")
    files = [tmp_path / f"{number}.bin" for number in range(8)]
    table = tmp_path / "all.parquet"
    assert run("--weights", weights, *files[:7], bag, files[7], "--output", table) == 0
    wanted = [*"0123456", *(f"drive/{number:06d}" for number in range(13)), "7"]
    assert list(dict.fromkeys(rows_of(table)["scan"])) == wanted


def write_pcap_of_turns(folder: Path) -> Path:
    pytest.importorskip("velodyne_decoder")
    packets = ((time, frame(data)) for time, data in turning("VLP-16", 3.2))
    return write_pcap(folder / "turns.pcap", packets)


def test_a_bag_that_is_cut_off_is_told_and_goes_on(tmp_path, weights, quick, processes, capsys):
    pytest.importorskip("rosbags")
    bag = write_clouds(tmp_path / "drive.bag", "ros1", [cloud(6000, n) for n in range(30)])
    bag.write_bytes(bag.read_bytes()[: bag.stat().st_size * 2 // 3])
    (tmp_path / "none.bag").write_bytes(b"#ROSBAG")
    cloud(77).tofile(tmp_path / "one.bin")
    output = tmp_path / "out"
    assert run("--weights", weights, tmp_path, "--output", output) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(said) == 2 and "drive.bag" in said[0] and "none.bag" in said[1]
    assert len(list((output / "drive").iterdir())) > 3 and (output / "one.json").is_file()
    before = files(output)
    assert run("--weights", weights, tmp_path, "--output", output, "--resume") == 2
    assert files(output) == before


def test_the_times_of_a_drive_are_in_the_table(tmp_path, weights, quick, small_parts):
    clouds = tmp_path / "drive" / "velodyne_points" / "data"
    clouds.mkdir(parents=True)
    stamps = [f"2011-09-26 13:02:{25 + number}.000000000" for number in range(3)]
    (clouds.parent / "timestamps.txt").write_text("\n".join(stamps))
    for number in range(3):
        cloud(101 + number).tofile(clouds / f"{number:010d}.bin")
    table = tmp_path / "all.parquet"
    assert run("--weights", weights, tmp_path / "drive", "--output", table) == 0
    rows = rows_of(table)
    times = dict(zip(rows["scan"], rows["time"], strict=True))
    assert list(times) == [f"{number:010d}" for number in range(3)]
    assert np.diff(list(times.values())).tolist() == [1.0, 1.0]
    assert times["0000000000"] == 1317042145.0


def names(*inputs) -> list[str]:
    return [one.name for one in find_inputs([str(one) for one in inputs])]


def test_names_of_scans(tmp_path, scans):
    every = names(scans)
    assert len(every) == len(set(every)) == 39 and {"000", "b/001", "b/c/002"} <= set(every)
    assert names(scans / "b" / "001.bin", scans / "000.bin") == ["001", "000"]
    assert names(scans / "*" / "0*0.bin") == ["b/010"]
    assert set(names(scans / "**" / "*.bin")) == {name for name in every if name != "worse"}
    (scans / "some.txt").write_text(f"000.bin\n\nb/001.bin\n{scans}/b/004.bin\nb/c\n")
    listed = names(scans / "some.txt")
    assert listed[:3] == ["000", "b/001", "004"] and listed[3] == "002"
    (scans / ".hidden").mkdir()
    cloud(9).tofile(scans / ".hidden" / "x.bin")
    assert names(scans) == every
    assert all(isinstance(one, ScanFile) for one in find_inputs([str(scans)]))


def test_folders_behind_links_are_searched(tmp_path):
    """But never the same one in a circle."""
    for name in ("data/monday/a", "drive/b", "other/c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        cloud(9).tofile(tmp_path / f"{name}.bin")
    links = ("monday", "../data/monday"), ("self", "."), ("other", "../other"), ("up", "../..")
    for link, end in links:
        (tmp_path / "drive" / link).symlink_to(end)
    (tmp_path / "other" / "back").symlink_to("../drive")
    assert names(tmp_path / "drive") == ["b", "monday/a", "other/c"]


def test_sources_that_cannot_be_read(tmp_path, scans):
    (scans / "list.txt").write_text("000.bin\nnone.bin\n")
    (scans / "empty.txt").write_text("\n")
    (scans / "twice.txt").write_text("list.txt\n")
    for name, said in (
        ("udp:2368", "has no end"),
        ("street:7", "has no end"),
        (scans / "*.las", "no file has such a name"),
        (scans / "list.txt", r"list\.txt, line 2: .*none\.bin: no such file"),
        (scans / "empty.txt", "names no scans"),
        (scans / "twice.txt", "a list in a list"),
        (scans / "none", "no such file or folder"),
        (scans / "none.bag", "no such file or folder"),
    ):
        with pytest.raises((ValueError, OSError), match=said):
            find_inputs([str(name)])


def test_names_that_would_be_written_over(tmp_path):
    pytest.importorskip("rosbags")
    bag = write_clouds(tmp_path / "b.bag", "ros1", [cloud(1000)])
    (tmp_path / "b").mkdir()
    cloud(9).tofile(tmp_path / "b" / "000000.bin")
    with pytest.raises(ValueError, match="overwrite"):
        find_inputs([str(tmp_path)])
    (tmp_path / "b" / "000000.bin").rename(tmp_path / "b.bin")  # whose results are b.json
    assert sorted(names(tmp_path)) == ["b", "b"]
    assert find_inputs([f"{bag}:/points"]) == [RecordedScans("b", f"{bag}:/points")]
    (tmp_path / "c").mkdir()
    folder = write_clouds(tmp_path / "c" / "ros2", "mcap", [cloud(1000)])  # a bag, not files in it
    assert find_inputs([str(tmp_path / "c")]) == [RecordedScans("ros2", str(folder))]


def test_another_file_system_has_what_the_local_one_has(
    tmp_path, weights, scans, quick, processes, capsys
):
    """As file:// here; s3:// and others differ in pyarrow alone."""
    pytest.importorskip("pyarrow")
    pytest.importorskip("rosbags")
    write_clouds(scans / "drive.bag", "ros1", [cloud(1000 + n, n) for n in range(9)])
    (scans / ".hidden").mkdir()
    cloud(9).tofile(scans / ".hidden" / "x.bin")
    (tmp_path / "one.txt").write_text(f"{scans.as_uri()}\n")
    said = []
    for number, source in enumerate((scans, scans.as_uri() + "/", tmp_path / "one.txt")):
        assert run("--weights", weights, source, "--output", tmp_path / f"out{number}") == 2
        lines = capsys.readouterr().err.splitlines()
        said.append([line for line in lines if line.startswith("error: ")])
    folders = [files(tmp_path / f"out{number}") for number in range(3)]
    assert folders[0] == folders[1] == folders[2] and "drive/000008.json" in folders[0]
    assert said[0] == said[1] == said[2] and len(said[0]) == 2
    assert names((scans / "b" / "001.bin").as_uri()) == ["001"]
    inner = tmp_path / "kitti" / "velodyne_points" / "data"
    inner.mkdir(parents=True)
    cloud(9).tofile(inner / "0000000007.bin")
    assert names(inner.parents[1].as_uri()) == names(inner.parents[1]) == ["0000000007"]


def test_a_table_in_another_file_system(
    tmp_path, weights, scans, quick, small_parts, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    common, there = ("--weights", weights, scans, "--output"), tmp_path / "there" / "all.parquet"
    assert run(*common, tmp_path / "other.parquet") == 2
    assert run(*common, there.as_uri()) == 2
    assert rows_of(there) == rows_of(tmp_path / "other.parquet")
    assert f"written to {there.as_uri()}" in capsys.readouterr().out
    assert run(*common, there.as_uri()) == 2
    assert error_of(capsys).endswith("all.parquet: is there already; give another --output")
    there.unlink()
    (tmp_path / "x.bin").write_bytes(b"12345")
    assert run("--weights", weights, tmp_path / "x.bin", "--output", there.as_uri()) == 2
    assert not there.exists()  # the table here is another run's
    assert run(*common, there.as_uri(), "--resume") == 2
    assert rows_of(there) == rows_of(tmp_path / "other.parquet")
    shards = tmp_path / "there" / "shards.parquet"
    for number in (1, 2):
        assert run(*common, shards.as_uri(), "--shard", f"{number}/2") in (0, 2)
    assert read_table(shards).keys() == read_table(there).keys()
    assert run(*common, (tmp_path / "folder").as_uri()) == 2
    assert "only a .parquet file may be a URI" in capsys.readouterr().err


def test_a_file_system_that_cannot_be_reached_is_one_line(tmp_path, weights, monkeypatch, capsys):
    pytest.importorskip("pyarrow")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    for uri, said in (
        ("s3://bucket/drives?endpoint_override=127.0.0.1:1&scheme=http", "bucket"),
        ("nowhere://bucket/drives", "nowhere"),
        ((tmp_path / "none").as_uri(), "none: no such file or folder"),
        (tmp_path.as_uri(), "files there"),
    ):
        assert run("--weights", weights, uri, "--output", tmp_path / "out") == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ") and said in line


def test_evaluate_reads_a_table(tmp_path, kitti_miniature_results, capsys):
    root, output, table = kitti_miniature_results
    printed = []
    for detections in (output, table):
        common = ["--root", root, "--split", "val", "--detections", detections]
        assert evaluate([str(word) for word in common]) == 0
        printed.append(capsys.readouterr().out.replace(str(detections), ""))
    assert printed[0] == printed[1] and "Car" in printed[0]


@pytest.fixture
def kitti_miniature_results(tmp_path, weights, monkeypatch):
    pytest.importorskip("pyarrow")
    from tests.helpers.kitti_miniature import write_miniature

    root = write_miniature(tmp_path / "kitti")
    always = lambda _, clouds: (boxes_of(points[: len(points) // 5 * 5 - 1]) for points in clouds)  # noqa: E731
    monkeypatch.setattr(Detector, "stream", always)
    output, table = tmp_path / "out", tmp_path / "all.parquet"
    clouds = root / "training" / "velodyne"
    for name in (output, table):
        assert run("--weights", weights, clouds, "--output", name) == 0
    return root, output, table


def test_the_benchmark(tmp_path, weights, monkeypatch, capsys):
    monkeypatch.setattr("millisecond.tools.bench.SWEEPS", 1)
    for number in range(2):
        cloud(3000, number).tofile(tmp_path / f"{number}.bin")
    brief = ["--count", "2", "--scans", "5", "--device", "cpu", "--weights", str(weights)]
    files = ["--frames", str(tmp_path), "--json", str(tmp_path / "fleet.json")]
    assert bench(["fleet", *brief, *files]) == 0
    result = json.loads((tmp_path / "fleet.json").read_text())
    assert (result["scans"], result["processes"], result["precision"]) == (5, 0, "fp32")
    stages = ["np.fromfile", "read", "is it a scan?", "check", "detector alone", "everything"]
    for kind in ("2 scans", "1 simulated sweeps"):
        rows = {row["stage"]: row for row in result["stages"] if row["set"] == kind}
        assert list(rows)[: len(stages)] == stages
        assert all(row["per_second"] * row["ms"] == pytest.approx(1000) for row in rows.values())
    printed = capsys.readouterr().out
    assert result["device"] in printed and all(stage in printed for stage in stages)


class UnluckyClerk:
    columns = None

    def skips(self, name, number):
        return False

    def read(self, name, scan):
        if name == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return np.zeros((2, 4), np.float32), None

    def write(self, batch):
        raise OSError(28, "No space left on device", "x.json")


def test_what_a_process_ends_with_is_told():
    """A process that is killed, or has no disk left, ends the run."""

    for inputs, error in ((["0", "1"], MemoryError), (["2"], OSError)):
        with ReaderPool(1) as pool, pytest.raises(error):
            pool.begin(UnluckyClerk())
            for chunk in pool.read([Unit(0, [ScanFile(name, Path(name)) for name in inputs])]):
                chunk.write("anything")
                chunk.release()
            pool.finish()


@pytest.mark.parametrize("count", [2, 3])
def test_shards_together_are_what_one_run_finds(
    tmp_path, weights, scans, quick, processes, small_parts, count
):
    one, shards = tmp_path / "one.parquet", tmp_path / "shards.parquet"
    common = ("--weights", weights, scans)
    codes = {run(*common, "--output", one)}
    for number in range(count, 0, -1):
        codes.add(run(*common, "--output", shards, "--shard", f"{number}/{count}"))
    assert codes <= {0, 2}  # a scan cannot be read, in one of the shards
    names = [f"{number}-of-{count}.parquet" for number in range(1, count + 1)]
    assert sorted(path.name for path in shards.iterdir()) == names
    rows = [rows_of(shards / name) for name in names]
    joined = {key: [value for part in rows for value in part[key]] for key in rows[0]}
    assert joined == rows_of(one)
    wanted, found = read_table(one), read_table(shards)
    assert wanted.keys() == found.keys()
    for name, (boxes, _) in wanted.items():
        np.testing.assert_array_equal(boxes.boxes, found[name][0].boxes)
    whole = (shards / names[0]).read_bytes()
    (shards / names[0]).unlink()
    with pytest.raises(FileNotFoundError, match=f"{names[0]} is not there, of {count} shards"):
        read_table(shards)
    (shards / names[0]).write_bytes(whole)
    (shards / "again.parquet").write_bytes(whole)
    with pytest.raises(ValueError, match="another table there has the scan"):
        read_table(shards)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--shard", "4/3"), "'4/3' is not a part such as 3/8"),
        (("--shard", "0/3"), "'0/3' is not a part such as 3/8"),
        (("--shard", "1/2", "--track"), "not with --track"),
        (("--shard", "1/2", "--output", "folder"), "goes with a .parquet output"),
    ],
)
def test_shards_that_make_no_sense_are_refused(tmp_path, weights, scans, capsys, options, line):
    assert run("--weights", weights, scans, "--output", tmp_path / "x.parquet", *options) == 2
    assert line in capsys.readouterr().err


def test_more_shards_than_scans_are_refused(tmp_path, weights, scans, capsys):
    options = ("--output", tmp_path / "x.parquet", "--shard", "9/900")
    assert run("--weights", weights, scans, *options) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: --shard 9/900: there are only") and err.count("\n") == 1
