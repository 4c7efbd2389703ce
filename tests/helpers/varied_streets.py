"""How well networks find objects on streets that vary more than the streets of their training:

python -m tests.helpers.varied_streets second second_small

The streets are `simulate_varied` of the seeds 700000 to 700099, in the view of KITTI's camera. The
overlaps are KITTI's, vans count as cars where they were taught so.
"""

import sys
from collections.abc import Sequence

import numpy as np

from millisecond.data.frame import Frame
from millisecond.data.metric.evaluation import default_overlaps, matches_of
from millisecond.data.metric.overlap import detections_in, objects_of
from millisecond.data.simulator import simulate_varied
from millisecond.detector.detector import Detector
from tests.helpers.other_sensors import quality

SEEDS = range(700_000, 700_100)


def through_kittis(seed: int) -> bool:
    """Whether KITTI's sensor scans the street: the first number that `simulate_varied` draws."""
    return bool(np.random.default_rng((seed, 1)).random() < 0.5)


def judge(weights: str, frames: Sequence[Frame], of_kitti: np.ndarray) -> None:
    detector = Detector.from_weights(weights)
    classes, found, known = detector.config.class_names, [], []
    taught = detector.config.taught
    for frame in frames:
        detector.forget()
        found.append(detections_in(frame, detector.detect(frame.points)[0].named(classes)))
        objects = objects_of(frame)
        known.append(objects._replace(names=[taught.get(name, name) for name in objects.names]))
    everything = np.ones(len(frames), bool)
    for group, own in (("all", everything), ("other sensors than KITTI's", ~of_kitti)):
        rows = np.flatnonzero(own)
        truth = [known[row] for row in rows]
        matches = matches_of([found[row] for row in rows], truth, default_overlaps(classes))[3]
        for name, matched in matches.items():
            scores, right = map(np.asarray, (matched.judged().scores, matched.judged().right))
            count = sum(name == other for objects in truth for other in objects.names)
            figures = (100 * value for value in quality(scores, right, count))
            text = "AP {:5.1f}  recall, precision {:3.0f}, {:3.0f}".format(*figures)
            print(f"{weights}, {group}: {name:10} {count:4}  {text}", flush=True)


if __name__ == "__main__":
    streets = [simulate_varied(seed) for seed in SEEDS]
    for given in sys.argv[1:]:
        judge(given, streets, np.array([through_kittis(seed) for seed in SEEDS]))
