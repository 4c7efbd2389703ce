"""millisecond evaluate --benchmark: what is submitted is what was found, scored as the benchmark
scores."""

import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from millisecond.data.datasets.benchmarks import BENCHMARKS
from millisecond.data.metric.nuscenes import Boxes, Placed, detection_score
from millisecond.tools import evaluate as tool
from tests.helpers.nuscenes_cases import CASES, COLUMNS, case
from tests.helpers.published_trees import TREES, heading, times, write_argoverse

pytest.importorskip("scipy")
pytest.importorskip("pyarrow")
imported = import_module("millisecond.tools.import")
GOLDEN = Path(__file__).parents[1] / "data/nuscenes_scores.json"


def run(*arguments):
    try:
        return tool.main([str(argument) for argument in arguments])
    except SystemExit as end:
        return end.code


def write_results(root: Path, output: Path, noise: float = 0.0, tracks: bool = True) -> None:
    """The labels of an imported data set as `millisecond detect --track` writes results."""
    rng = np.random.default_rng(0)
    for path in sorted((root / "points").glob("*.pcd")):
        label = root / f"labels/{path.stem}.txt"
        lines = label.read_text().splitlines() if label.exists() else []
        rows = [line.split() for line in lines]
        boxes = np.array([row[:7] for row in rows], float).reshape(-1, 7)
        boxes += rng.normal(0, noise, boxes.shape) * (1, 1, 1, 0, 0, 0, 1)
        result = {"frame": path.stem, "boxes": boxes.tolist(), "names": [row[7] for row in rows]}
        result["scores"] = rng.uniform(0.3, 1, len(rows)).tolist()
        if tracks:
            result["ids"] = [1 + n for n in range(len(rows))]
            result["velocities"] = rng.normal(0, 3, (len(rows), 2)).tolist()
        output.mkdir(exist_ok=True)
        (output / f"{path.stem}.json").write_text(json.dumps(result))


@pytest.fixture(params=BENCHMARKS)
def tree(request, tmp_path):
    """The name of a data set, its folder, and its labels as results."""
    TREES[request.param](tmp_path / "in")
    arguments = [request.param, str(tmp_path / "in"), str(tmp_path / "out")]
    assert imported.main(arguments) == 0
    write_results(tmp_path / "out", tmp_path / "results")
    return request.param, tmp_path / "in", tmp_path / "results"


def test_the_score_is_the_development_kits():
    """Its own figures of random cases, made by tests/helpers/nuscenes_cases.py."""
    golden = np.array(json.loads(GOLDEN.read_text()))
    assert len(golden) == CASES and len(np.unique(golden[:, 0])) == CASES
    for seed, wanted in enumerate(golden):
        found, truth, frames = case(seed)
        sides = []
        for side in (found, truth):
            numbers, names, boxes, velocities, attributes, scores = (side[c] for c in COLUMNS)
            seen = np.ones(len(numbers), np.int64)
            rows = Boxes(frames, numbers, names, boxes, seen, scores)
            sides.append(Placed(rows, velocities, attributes))
        score = detection_score(*sides)
        own = [score.nds, score.ap, *score.errors.values()]
        np.testing.assert_allclose(own, wanted, atol=1e-8, err_msg=f"case {seed}")
