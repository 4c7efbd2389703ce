"""Random objects and detections for the nuScenes detection score. Only numpy is imported: the
development kit's own environment has no more of this project."""

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
    frames, count = int(rng.integers(1, 5)), int(rng.integers(5, 120))
    kinds = int(rng.integers(2, len(NAMES) + 1))
    truth = {"frames": np.sort(rng.integers(frames, size=count))}
    truth["names"] = np.array(NAMES)[rng.integers(kinds, size=count)]
    centre = rng.uniform((600, 1600, -1), (600 + 12, 1600 + 12, 1), (count, 3))
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
