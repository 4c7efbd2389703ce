"""How well a network finds cars and people on the labelled frames of other sensors:

python -m tests.helpers.other_sensors any

Labels with 10 points and more within 50 m count, seen from above; what matches others is left out,
and so are boxes on vehicles of other names, where a car is looked for.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from millisecond.data.boxes import NamedDetections
from millisecond.data.frame import Frame
from millisecond.data.metric.overlap import Boxes, detections_in, find_pairs, objects_of
from millisecond.detector.detector import Detector

SENSORS = Path(__file__).resolve().parents[3] / "shared" / "sensors"
NEAR, FEW = 50.0, 10  # metres, points
NAMES = {
    "Car": ("Car", "Pickup_Truck", "REGULAR_VEHICLE", "TYPE_VEHICLE", "car"),
    "Pedestrian": (
        *("Pedestrian", "Pedestrian_with_Object", "PEDESTRIAN", "TYPE_PEDESTRIAN", "pedestrian"),
    ),
}
OVERLAPS = {"Car": 0.5, "Pedestrian": 0.25}
VEHICLE = 0.3  # overlap of a box of a car with a vehicle of another name, from which it is left out
RECALLS = np.arange(1, 41) / 40


class Found(NamedTuple):
    """Detections of a class in all frames, those left out taken away."""

    scores: np.ndarray  # [N]
    right: np.ndarray  # [N] bool
    ahead: np.ndarray  # [N] bool: of the right ones, whether they look as the label does


def labelled_frames(folder: Path = SENSORS) -> Iterator[tuple[str, Frame]]:
    """(data set, frame) of all frames with boxes."""
    texts = [*sorted(folder.glob("other/*/*.txt")), *sorted(folder.glob("nuscenes/*.txt"))]
    for text in texts:
        if (array := text.with_suffix(".npy")).exists():
            points = np.load(array)
        else:
            points = np.fromfile(text.with_suffix(".bin"), np.float32).reshape(-1, 5)[:, :4]
        rows = [line.split() for line in text.read_text().splitlines()]
        boxes = np.array([[float(value) for value in row[:7]] for row in rows])
        given = [row[7] for row in rows]
        names = [next((k for k, of in NAMES.items() if name in of), name) for name in given]
        if text.parent.name == "pandaset":  # its headings look backwards; some lie across the car
            across = (np.array(names) == "Car") & (boxes[:, 3] < boxes[:, 4])
            boxes[across] = boxes[across][:, [0, 1, 2, 4, 3, 5, 6]]
            boxes[:, 6] += np.pi
        points = np.ascontiguousarray(points, np.float32)
        difficulty = np.zeros(len(names), np.int8)
        yield text.parent.name, Frame(text.stem, points, boxes, tuple(names), difficulty)


def near(boxes: np.ndarray) -> np.ndarray:
    """Whether boxes [7] or [7, N] are within NEAR."""
    return np.hypot(boxes[0], boxes[1]) < NEAR


def judged(frame: Frame, detections: NamedDetections, name: str) -> Found:
    """Each detection takes, best score first, the label that it overlaps most of those free."""
    known, found = objects_of(frame), detections_in(frame, detections)
    of_class = np.array([other == name for other in found.names], bool)
    truth, boxes = Boxes.of([known]), Boxes.of([found])
    pairs = find_pairs(truth, boxes)
    best = np.zeros((len(known.boxes), len(found.boxes)))
    best[pairs.truth, pairs.detections] = pairs.bev
    names = np.array(known.names)
    count = (names == name) & (known.points >= FEW)
    count &= near(known.boxes.T)
    free, rows = count.copy(), []
    for row in np.flatnonzero(of_class)[np.argsort(-found.scores[of_class], kind="stable")]:
        fits = best[:, row] >= OVERLAPS[name]
        if (fits & free).any():
            taken = int(np.argmax(np.where(free, best[:, row], -1)))
            free[taken] = False
            ahead = np.cos(found.boxes[row, 6] - known.boxes[taken, 6]) > 0
            rows.append((found.scores[row], True, ahead))
            continue
        other = name == "Car" and (best[names != name, row] >= VEHICLE).any()
        left_out = other or (fits & (names == name) & ~count).any()
        if not left_out and near(found.boxes[row]):
            rows.append((found.scores[row], False, False))
    scores, right, ahead = np.array(rows).reshape(-1, 3).T
    return Found(scores, right.astype(bool), ahead.astype(bool))


def quality(scores: np.ndarray, right: np.ndarray, count: int) -> tuple[float, float, float]:
    """AP R40, and recall and precision of scores of at least 0.5. count: of labels."""
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(right[order])
    recall, precision = hits / count, hits / np.arange(1, len(hits) + 1)
    ap = float(np.mean([precision[recall >= least].max(initial=0) for least in RECALLS]))
    sure = scores >= 0.5
    return ap, right[sure].sum() / count, right[sure].mean() if sure.any() else np.nan


def line(found: Found, count: int) -> str:
    """The quality, and the share that looks the right way."""
    ahead = found.ahead[found.right].mean() if found.right.any() else np.nan
    return "AP {:5.1f}  recall, precision {:3.0f}, {:3.0f}  right way {:3.0f}".format(
        *(100 * value for value in (*quality(found.scores, found.right, count), ahead))
    )


def main(weights: str) -> None:
    detector, found, counts = Detector.from_weights(weights), {}, {}
    for group, frame in labelled_frames():
        detector.forget()  # the frames are of many recordings
        named = detector.detect(frame.points)[0].named(detector.config.class_names)
        counting = (objects_of(frame).points >= FEW) & near(frame.boxes.T)
        for name in NAMES:
            one = judged(frame, named, name)
            for key in ((group, name), ("all", name)):
                found.setdefault(key, []).append(one)
                own = sum(n == name and bool(k) for n, k in zip(frame.names, counting, strict=True))
                counts[key] = counts.get(key, 0) + own
    for (group, name), parts in sorted(found.items()):
        whole = Found(*map(np.concatenate, zip(*parts, strict=True)))
        print(f"{group:10} {name:10} {counts[group, name]:4}  {line(whole, counts[group, name])}")


if __name__ == "__main__":
    main(sys.argv[1])
