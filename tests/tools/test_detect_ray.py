"""millisecond detect --ray: a cluster writes what one process writes, whoever is lost meanwhile."""

import json
import os
import pickle
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from millisecond.detector import Detector
from millisecond.detector.detection_table import read_table
from millisecond.detector.weights import save_weights
from millisecond.tools import detect as tool
from millisecond.tools import detecting
from tests.helpers.ros_bags import write_clouds
from tests.helpers.small_detector import build_small_network, cloud

ROOT = Path(__file__).resolve().parents[2]
ray = pytest.importorskip("ray")
fleet = pytest.importorskip("millisecond.tools.fleet")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of a core each, on one machine; the second one may be killed."""
    from ray.cluster_utils import Cluster

    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", str(ROOT))
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    patch.setenv("RAY_BACKEND_LOG_LEVEL", "fatal")
    patch.setenv("RAY_health_check_period_ms", "500")  # a node that is lost is noticed soon
    small = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=small)
    cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
    yield cluster
    cluster.shutdown()
    patch.undo()


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    config, model = build_small_network()
    path = tmp_path_factory.mktemp("weights") / "weights.safetensors"
    save_weights(path, model, config)
    return path


@pytest.fixture(scope="module")
def scans(tmp_path_factory) -> Path:
    """40 scans in two folders; one cannot be read."""
    folder = tmp_path_factory.mktemp("scans")
    for number in range(39):
        path = folder / ("", "b")[number % 2] / f"{number:03d}.bin"
        path.parent.mkdir(exist_ok=True)
        cloud(1000 + 10 * number, number).tofile(path)
    (folder / "b" / "bad.bin").write_bytes(b"12345")
    return folder


@pytest.fixture(scope="module", autouse=True)
def small_units():
    """8 units; an actor gets one at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detecting, "SHARD", 5)
        patch.setattr(fleet, "TOGETHER", 1)
        yield


@pytest.fixture(scope="module")
def one(tmp_path_factory, weights, scans) -> Path:
    """The table of one process."""
    path = tmp_path_factory.mktemp("one") / "one.parquet"
    assert run("--weights", weights, scans, "--output", path) == 2
    return path


def run(*arguments):
    try:
        return tool.main(["--device", "cpu", *(str(argument) for argument in arguments)])
    except SystemExit as end:
        return end.code


def error_of(capsys) -> str:
    said = capsys.readouterr().err.splitlines()
    (line,) = [line for line in said if "error: " in line]
    return line


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): re.sub(r'"milliseconds": [0-9.]+', "", path.read_text())
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_worker_and_a_node_are_killed(tmp_path, weights, scans, one, cluster, monkeypatch):
    """In the middle. The next run has twice as many nodes as were left, and a recording."""
    pytest.importorskip("rosbags")
    add, reports = tool.Report.add, []

    def add_and_kill(report, other):
        add(report, other)
        reports.append(other)
        if len(reports) == 1:
            os.kill(workers()[0], signal.SIGKILL)
        if len(reports) == 3:
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

    monkeypatch.setattr(tool.Report, "add", add_and_kill)
    output = ("--output", tmp_path / "all.parquet", "--ray", cluster.address)
    assert run("--weights", weights, scans, *output) == 2
    assert (tmp_path / "all.parquet").read_bytes() == one.read_bytes()
    assert len(reports) == 8 and not list(tmp_path.glob(".*"))
    assert len(read_table(one)) == 39

    monkeypatch.setattr(tool.Report, "add", add)
    cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
    bag = write_clouds(tmp_path / "drive.bag", "ros1", [cloud(1000 + n, n) for n in range(7)])
    common = ("--weights", weights, bag, scans / "*.bin", "--output")
    assert run(*common, tmp_path / "wide", "--ray", cluster.address) == 0
    assert run(*common, tmp_path / "narrow") == 0
    wide, narrow = contents(tmp_path / "wide"), contents(tmp_path / "narrow")
    for name, content in narrow.items():
        assert wide.pop(name) == content, name
    assert not wide and len(narrow) == 1 + 7 + 20


def test_inputs_and_a_table_in_another_file_system(
    tmp_path, weights, scans, cluster, monkeypatch, capsys
):
    """As file:// here. The workers copy what they read; who gave the command copies the table."""
    pytest.importorskip("rosbags")
    monkeypatch.chdir(tmp_path)
    bag = write_clouds(tmp_path / "drive.bag", "ros1", [cloud(1000 + n, n) for n in range(5)])
    assert run("--weights", weights, bag, scans, "--output", tmp_path / "one.parquet") == 2
    there = tmp_path / "there" / "all.parquet"
    common = ("--weights", weights, bag.as_uri(), scans.as_uri(), "--output", there.as_uri())
    assert run(*common, "--ray", cluster.address) == 2
    assert f"written to {there.as_uri()}" in capsys.readouterr().out
    assert there.read_bytes() == (tmp_path / "one.parquet").read_bytes()
    there.unlink()  # as if it had not got there
    assert run(*common, "--ray", cluster.address, "--resume") == 2
    assert there.read_bytes() == (tmp_path / "one.parquet").read_bytes()
    assert not list(tmp_path.glob(".*"))


def workers() -> list[int]:
    """Processes of this test's cluster that detect."""
    children = psutil.Process().children(recursive=True)
    found = [child.pid for child in children if child.name().startswith("ray::MapW")]
    assert found
    return found


class FullDisk(detecting.TableWriter):
    """Has room for some parts."""

    def write(self, shard, kept):
        if shard.number[0] == 6:
            raise OSError(28, "No space left on device", str(self.part(shard.number)))
        super().write(shard, kept)


def test_a_full_disk_and_on_again(tmp_path, weights, scans, one, cluster, monkeypatch, capsys):
    """What was half finished is refused with other settings; without Ray it goes on."""
    common = ("--weights", weights, scans, "--output", tmp_path / "all.parquet")
    with monkeypatch.context() as patch:
        patch.setattr(detecting, "TableWriter", FullDisk)
        assert run(*common, "--ray", cluster.address) == 2
    parts = tmp_path / ".all.parquet.parts"
    line = error_of(capsys)
    assert f"{parts / '000006-000000.parquet'}: No space left on device" in line
    assert not (tmp_path / "all.parquet").exists()
    there = {path.name for path in parts.iterdir()} - {"run.json"}
    assert there and all(re.fullmatch(r"00000[0-57]-000000\.parquet", name) for name in there)

    again = (*common, "--ray", cluster.address, "--resume")
    assert run(*again, "--score", "0.5") == 2
    assert "begun with other --score" in error_of(capsys)
    state = parts / "run.json"
    told = json.loads(state.read_text())
    state.write_text(json.dumps({**told, "version": "0.0.1"}))
    assert run(*again) == 2
    assert "was begun by version 0.0.1" in error_of(capsys)
    state.write_text(json.dumps({**told, "weights": "0"}))
    assert run(*again) == 2
    assert "begun with other weights" in error_of(capsys)
    state.write_text(json.dumps(told))

    assert run(*common, "--resume") == 2
    scans = 5 * len(there) - ("000007-000000.parquet" in there)  # which has the bad one
    assert f"{scans} scans of an earlier run" in capsys.readouterr().out
    assert (tmp_path / "all.parquet").read_bytes() == one.read_bytes()
    assert run(*again) == 2  # all is there: nobody is asked
    assert "39 scans of an earlier run are there already" in capsys.readouterr().out
    assert (tmp_path / "all.parquet").read_bytes() == one.read_bytes()


@pytest.fixture
def task(tmp_path, weights, scans) -> fleet.Task:
    """What the workers of a run get."""
    words = ["--device", "cpu", "--weights", str(weights), str(scans)]
    options = tool.parse([*words, "--output", str(tmp_path / "all.parquet")])
    settings = detecting.settings_of(options, Detector.from_weights(weights, "cpu"), [])
    (tmp_path / ".token").touch()
    results = detecting.TableResults(detecting.TableWriter(tmp_path, 0.0))
    return fleet.Task(
        options, detecting.Begun(results), settings, Path.cwd(), tmp_path / ".token", 1
    )


def said_by_worker(task: fleet.Task, unit: detecting.Unit | None = None) -> object:
    worker = fleet.Worker(fleet.versions(), pickle.dumps(task))
    (said,) = worker({"units": [pickle.dumps([unit])]})["report"]
    return pickle.loads(said)


def test_what_a_worker_refuses(task, scans, tmp_path):
    other = {**task.settings, "weights": "0" * 16}
    assert "has another weights" in str(said_by_worker(task._replace(settings=other)))
    unseen = task._replace(token=tmp_path / "elsewhere" / ".token")
    assert f"does not see {tmp_path / 'elsewhere'}" in str(said_by_worker(unseen))
    away = detecting.ScanFile("x", tmp_path / "none" / "x.bin")
    said = said_by_worker(task, detecting.Unit(0, [away]))
    assert str(said).endswith(f"does not see {tmp_path / 'none'}")
    away = away._replace(uri=(tmp_path / "none").as_uri())
    said = said_by_worker(task, detecting.Unit(0, [away]))
    assert str(said).endswith(f"does not see {away.uri}")
    bag = detecting.RecordedScans("x", str(tmp_path / "x.bag:/points"))
    assert "x.bag:/points" in str(said_by_worker(task, detecting.Unit(0, (), bag)))


def test_scans_that_end_every_worker_end_the_run(task, scans):
    unit = detecting.Unit(3, [detecting.ScanFile("000", scans / "000.bin")])
    for _ in range(fleet.TRIES):
        report = said_by_worker(task, unit)
        assert report.done + report.there == 1
    assert f"000.bin, or a scan after it: {fleet.TRIES} workers" in str(said_by_worker(task, unit))


def test_a_worker_that_has_failed_fails_for_good(task, scans):
    worker = fleet.Worker({**fleet.versions(), "torch": "0.1"}, pickle.dumps(task))
    for _ in range(2):
        (said,) = worker({"units": [pickle.dumps([])]})["report"]
        assert "another torch" in str(pickle.loads(said))


def node(alive=True, **resources) -> dict:
    return {"Alive": alive, "Resources": resources}


def test_the_workers_of_a_cluster():
    nodes = [node(CPU=16, GPU=2), node(CPU=64, GPU=4), node(CPU=8), node(False, CPU=4, GPU=4)]
    assert fleet.workers_of(nodes, None) == ("cuda", 6, 8)
    assert fleet.workers_of(nodes, "cpu") == ("cpu", 1 + 2 + 8, 8)
    assert fleet.workers_of(nodes[2:], None) == ("cpu", 1, 8)
    with pytest.raises(ValueError, match="no machine of the cluster has a GPU"):
        fleet.workers_of(nodes[2:], "cuda")
    with pytest.raises(ValueError, match="neither GPUs nor cores"):
        fleet.workers_of([node()], None)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--ray", "127.0.0.1:1"), "--ray 127.0.0.1:1: no cluster answers there"),
        (("--ray", "scans"), "--ray scans: is not an address; say HOST:PORT"),
        (("--ray", "--track"), "--ray: not with --track or --shard"),
        (("--device", "cuda:1", "--ray"), "--device cuda:1: with --ray say cpu or cuda"),
    ],
)
def test_what_makes_no_sense_is_one_line(tmp_path, weights, scans, capsys, options, line):
    assert run("--weights", weights, scans, "--output", tmp_path / "x.parquet", *options) == 2
    assert line in error_of(capsys)


def test_the_weights_have_to_be_named(tmp_path, scans, capsys):
    assert run(scans, "--output", tmp_path / "out", "--ray") == 2
    assert "--ray goes with --weights" in error_of(capsys)


def test_ray_needs_its_extra(tmp_path, weights, scans, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert run("--weights", weights, scans, "--output", tmp_path / "out", "--ray") == 2
    line = error_of(capsys)
    assert line.startswith("error: --ray needs") and "pip install 'millisecond[fleet]'" in line


def test_weights_that_look_back_and_two_runs(tmp_path, weights, scans, cluster, capsys):
    common = (scans, "--output", tmp_path / "out", "--ray", cluster.address)
    assert run("--weights", "any", *common) == 2
    assert "what any finds in a scan depends on the scans before it" in error_of(capsys)
    (tmp_path / "out").mkdir()
    script = "import sys, time; from millisecond.data.files import locked\n"
    script += "with locked(__import__('pathlib').Path(sys.argv[1])): print(flush=True); input()"
    words = [sys.executable, "-c", script, str(tmp_path / "out")]
    other = subprocess.Popen(words, stdin=-1, stdout=-1, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    other.stdout.readline()
    assert run("--weights", weights, *common) == 2
    assert f"process {other.pid} is writing there" in error_of(capsys)
    other.communicate(b"\n")
