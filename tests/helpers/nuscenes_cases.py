"""Random objects and detections for the nuScenes detection score, and what the benchmark's kit says
of them. The kit is not for numpy 2; in an environment of its own:

    pip install nuscenes-devkit==1.2.0
    python tests/helpers/nuscenes_cases.py > tests/data/nuscenes_scores.json
"""

import json

import numpy as np

CASES = 200
NAMES = (
    *("car", "truck", "bus", "trailer", "construction_vehicle", "pedestrian", "motorcycle"),
    *("bicycle", "traffic_cone", "barrier"),
)
ATTRIBUTES = ("", "vehicle.moving", "vehicle.parked", "pedestrian.standing")
COLUMNS = ("frames", "names", "boxes", "velocities", "attributes", "scores")


def case(seed: int) -> tuple[dict, dict, int]:
    """Detections and objects as columns, and the number of frames. Every fourth case has few
    scores, and so ties."""
    rng = np.random.default_rng(seed)
    frames, count = int(rng.integers(1, 5)), int(rng.integers(5, 60))
    kinds = int(rng.integers(2, len(NAMES) + 1))
    truth = {"frames": np.sort(rng.integers(frames, size=count))}
    truth["names"] = np.array(NAMES)[rng.integers(kinds, size=count)]
    centre = rng.uniform((600, 1600, -1), (612, 1612, 1), (count, 3))
    size = rng.uniform((0.5, 0.5, 0.5), (6, 3, 3), (count, 3))
    truth["boxes"] = np.column_stack([centre, size, rng.uniform(-np.pi, np.pi, count)])
    truth["velocities"] = rng.normal(0, 3, (count, 2))
    truth["velocities"][rng.uniform(size=count) < 0.2] = np.nan
    truth["attributes"] = np.array(ATTRIBUTES)[rng.integers(4, size=count)]
    truth["scores"] = np.zeros(count)
    rows = rng.integers(count, size=2 * count)
    found = {name: truth[name][rows] for name in COLUMNS}
    spread = rng.uniform(0, 1.2)
    found["boxes"] = found["boxes"] + rng.normal(0, spread, (len(rows), 7)) * (1, 1, 1, 0, 0, 0, 1)
    found["boxes"][:, 3:6] *= rng.uniform(0.7, 1.4, (len(rows), 3))
    found["velocities"] = np.nan_to_num(found["velocities"]) + rng.normal(0, 0.5, (len(rows), 2))
    scores = rng.uniform(size=len(rows))
    found["scores"] = scores.round(1) if seed % 4 == 0 else scores
    order = np.argsort(found["frames"], kind="stable")
    return {name: found[name][order] for name in COLUMNS}, truth, frames


def scores_of_the_kit(seed: int) -> list[float]:
    """NDS, mAP and the five mean errors."""
    from nuscenes.eval.common.config import config_factory
    from nuscenes.eval.common.data_classes import EvalBoxes
    from nuscenes.eval.detection.algo import accumulate, calc_ap, calc_tp
    from nuscenes.eval.detection.constants import TP_METRICS
    from nuscenes.eval.detection.data_classes import DetectionBox, DetectionMetrics

    def boxes_of(side: dict) -> EvalBoxes:
        sides = EvalBoxes()
        for frame in range(frames):
            for row in np.flatnonzero(side["frames"] == frame):
                x, y, z, length, width, height, yaw = side["boxes"][row]
                box = DetectionBox(
                    sample_token=str(frame),
                    translation=(x, y, z),
                    size=(width, length, height),
                    rotation=(np.cos(yaw / 2), 0, 0, np.sin(yaw / 2)),
                    velocity=tuple(side["velocities"][row]),
                    detection_name=str(side["names"][row]),
                    detection_score=float(side["scores"][row]),
                    attribute_name=str(side["attributes"][row]),
                )
                sides.add_boxes(str(frame), [box])
        return sides

    kit = config_factory("detection_cvpr_2019")
    found, truth, frames = case(seed)
    found, truth, metrics = boxes_of(found), boxes_of(truth), DetectionMetrics(kit)
    for name in kit.class_names:
        for limit in kit.dist_ths:
            data = accumulate(truth, found, name, kit.dist_fcn_callable, limit)
            metrics.add_label_ap(name, limit, calc_ap(data, kit.min_recall, kit.min_precision))
            if limit == kit.dist_th_tp:
                for error in TP_METRICS:
                    fewer = {"traffic_cone": TP_METRICS[2:], "barrier": TP_METRICS[3:]}  # as there
                    judged = error not in fewer.get(name, ())
                    value = calc_tp(data, kit.min_recall, error) if judged else np.nan
                    metrics.add_label_tp(name, error, value)
    return [metrics.nd_score, metrics.mean_ap, *metrics.tp_errors.values()]


if __name__ == "__main__":
    rows = ([round(value, 9) for value in scores_of_the_kit(seed)] for seed in range(CASES))
    print("[" + ",\n".join(map(json.dumps, rows)) + "]")
