"""millisecond detect --ray: a cluster writes what one process writes, whoever is lost meanwhile."""

import json
import os
import pickle
import re
import signal
import sys
from pathlib import Path

import numpy as np
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


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of a core each, on one machine; the second one may be killed."""
    from ray.cluster_utils import Cluster

    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", str(ROOT))
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    patch.setenv("RAY_BACKEND_LOG_LEVEL", "fatal")
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


@pytest.fixture(autouse=True)
def small_units(monkeypatch):
    """8 units; an actor gets one at a time."""
    monkeypatch.setattr(detecting, "SHARD", 5)
    monkeypatch.setattr(fleet, "TOGETHER", 1)


@pytest.fixture
def one(tmp_path, weights, scans) -> Path:
    """The table of one process."""
    assert run("--weights", weights, scans, "--output", tmp_path / "one.parquet") == 2
    return tmp_path / "one.parquet"


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
    """In the middle; a node more than there were takes part in the next run."""
    add, reports = tool.Report.add, []

    def add_and_kill(report, other):
        add(report, other)
        reports.append(other)
        if len(reports) == 1:
            os.kill(workers()[0], signal.SIGKILL)
        if len(reports) == 3:
            cluster.remove_node(list(cluster.worker_nodes)[0], allow_graceful=False)

    monkeypatch.setattr(tool.Report, "add", add_and_kill)
    output = ("--output", tmp_path / "all.parquet", "--ray", cluster.address)
    assert run("--weights", weights, scans, *output) == 2
    assert (tmp_path / "all.parquet").read_bytes() == one.read_bytes()
    assert len(reports) == 8 and not list(tmp_path.glob(".*"))
    assert len(read_table(one)) == 39

    monkeypatch.setattr(tool.Report, "add", add)
    for _ in range(3):
        cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
    wide = ("--output", tmp_path / "wide", "--ray", cluster.address)
    assert run("--weights", weights, scans, *wide) == 2
    assert run("--weights", weights, scans, "--output", tmp_path / "narrow") == 2
    assert contents(tmp_path / "wide") == contents(tmp_path / "narrow")


def workers() -> list[int]:
    """Processes of this test's cluster that detect."""
    children = psutil.Process().children(recursive=True)
    found = [child.pid for child in children if child.name().startswith("ray::MapW")]
    assert found
    return found
