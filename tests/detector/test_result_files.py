"""Results in .json files: what is not a result is named in one line."""

import json

import numpy as np
import pytest

from millisecond.detector.detection_files import read_detections, read_result

GOOD = {"boxes": [[10, 0, -1, 4, 2, 1.5, 0]], "scores": [0.5], "names": ["Car"]}
READERS = (
    lambda path: read_detections(path.parent, path.stem, None),
    lambda path: read_result(path)[0],
)


@pytest.mark.parametrize("read", READERS)
def test_wrong_values_are_a_mistake(tmp_path, read):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(GOOD))
    np.testing.assert_allclose(read(path).boxes, GOOD["boxes"])
    for wrong in (
        {"scores": [[0.5]]},
        {"scores": 0.5},
        {"scores": ["0_0"]},
        {"boxes": [["1_0", 0, -1, 4, 2, 1.5, 0]]},
        {"scores": [0.5, 0.5]},
        {"scores": [float("nan")]},
        {"names": 1},
        {"boxes": [[10**400, 0, -1, 4, 2, 1.5, 0]]},
        {"boxes": [[10, 0, -1, 4, 0, 1.5, 0]]},
        {"boxes": [[10, 0, -1, 4]]},
    ):
        path.write_text(json.dumps(GOOD | wrong))
        with pytest.raises(ValueError, match=r"\A[^\n]*a.json: not a result of millisecond detect"):
            read(path)
