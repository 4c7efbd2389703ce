"""What the KITTI metric says of each object and each detection of one frame."""

from collections.abc import Mapping

import numpy as np

from data.kitti.labels import Labels
from data.kitti.metric.evaluation import MIN_OVERLAP
from data.kitti.metric.matching import COUNTS, Matcher, detection_roles, truth_roles
from data.kitti.metric.objects import Objects, find_overlaps
from data.kitti.metric.verdicts import FALSE, IGNORED, MATCHED, MISSED, Verdicts

METRICS = ("3d", "bev")
HARD = 2  # the difficulty that counts most objects: all but those that KITTI leaves out
OWN_OVERLAP = 0.5  # of classes that KITTI does not evaluate


def default_overlap(name: str) -> float:
    """The least overlap of a match that KITTI asks of a class: 0.7 for cars, else 0.5."""
    return MIN_OVERLAP.get(name, (OWN_OVERLAP,))[0]


def judge(
    detections: Labels, truth: Labels, min_overlap: Mapping[str, float], metric: str = "3d"
) -> Verdicts:
    """Matches the detections of a frame, all that are given, with its labelled objects.

    The rules are those of `data.kitti.metric.evaluation` at the difficulty "hard": over many
    frames the matched and the false ones are the hits and the false ones of its recall and
    precision, if the detections are those that score enough.

    Args:
        detections: with a score.
        min_overlap: by the names of the classes that are judged. All others are ignored.
        metric: "3d" or "bev".
    """
    objects, found = Objects.of([truth]), Objects.of([detections])
    overlaps = find_overlaps(objects, found)
    result = Verdicts(
        np.full(len(truth), IGNORED),
        np.full(len(detections), IGNORED),
        np.full(len(detections), -1),
        np.full(len(detections), np.nan),
    )
    for name, least in min_overlap.items():
        roles, detected = truth_roles(objects, name, HARD), detection_roles(found, name, HARD)
        matcher = Matcher(overlaps, overlaps.iou[metric], least, roles, detected, found.scores)
        taken = matcher.taken(np.array([-np.inf]))[:, 0]
        hit = taken & matcher.hits
        a, b = matcher.truth[hit], matcher.detections[hit]
        own, own_found = objects.types == name.lower(), found.types == name.lower()
        # A counting object whose only detection is too low in the image is neither right nor wrong.
        result.truth[own & (roles == COUNTS)] = MISSED
        touched = matcher.truth[taken]
        result.truth[touched[own[touched]]] = IGNORED
        result.truth[a] = MATCHED
        result.detections[own_found & (detected == COUNTS)] = FALSE
        used = matcher.detections[taken]
        result.detections[used[own_found[used]]] = IGNORED
        result.detections[b] = MATCHED
        result.partner[b], result.overlap[b] = a, matcher.iou[hit]
    return result
