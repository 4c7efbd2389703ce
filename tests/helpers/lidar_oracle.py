"""The scores of data.metric once more, box by box, sharing no code with it.

An object is a dict: name, box, points, and score of detections. A frame is (objects, detections).
"""

from math import cos, hypot, inf, sin

from tests.helpers.kitti_oracle import clip, shoelace


def footprint(box):
    x, y, _, length, width, _, yaw = box
    local = [(-length, -width), (length, -width), (length, width), (-length, width)]
    c, s = cos(yaw) / 2, sin(yaw) / 2
    return [(x + c * u - s * v, y + s * u + c * v) for u, v in local]


def iou(kind, a, b):
    polygon = clip(footprint(a), footprint(b))
    shared = shoelace(polygon) if polygon else 0.0
    sizes = [box[3] * box[4] for box in (a, b)]
    if kind == "3d":
        low = max(box[2] - box[5] / 2 for box in (a, b))
        high = min(box[2] + box[5] / 2 for box in (a, b))
        shared *= max(high - low, 0)
        sizes = [size * box[5] for size, box in zip(sizes, (a, b), strict=True)]
    return shared / (sum(sizes) - shared)


def apart(a, b):
    return hypot(a["box"][0] - b["box"][0], a["box"][1] - b["box"][1])


def within(o, group):
    by, low, high = group
    value = o["points"] if by == "points" else hypot(o["box"][0], o["box"][1])
    return low <= value < high


def match(frame, name, kind, least, group, threshold):
    """Scores of the hits, and the number of false ones, of one frame; threshold None: the hits
    when every object takes its best-scored detection."""
    objects, detections = frame
    free = [
        d
        for d in detections
        if d["name"] == name and (threshold is None or d["score"] >= threshold)
    ]
    hits = []
    for o in (o for o in objects if o["name"] == name):
        able = [d for d in free if iou(kind, o["box"], d["box"]) > least]
        if not able:
            continue
        by_score = threshold is None
        best = max(able, key=lambda d: d["score"] if by_score else iou(kind, o["box"], d["box"]))
        free = [d for d in free if d is not best]
        if o["points"] and within(o, group):
            hits.append(best["score"])
    return hits, sum(within(d, group) for d in free)


def r40(frames, name, kind, least, group):
    """(count, AP R40 in percent, recall and precision at a score of 0.5)."""
    count = sum(
        o["name"] == name and o["points"] > 0 and within(o, group) for f in frames for o in f[0]
    )
    if not count:
        return 0, None
    scores = [s for f in frames for s in match(f, name, kind, least, group, None)[0]]
    scores.sort(reverse=True)
    thresholds, wanted = [], 0.0
    for i, score in enumerate(scores):
        here, following = (i + 1) / count, (i + 2) / count
        if i + 1 < len(scores) and following - wanted < wanted - here:
            continue
        thresholds.append(score)
        wanted += 1 / 40
    precision = [0.0] * 41
    for i, threshold in enumerate([*thresholds, 0.5]):
        passes = [match(f, name, kind, least, group, threshold) for f in frames]
        hits, false = sum(len(p[0]) for p in passes), sum(p[1] for p in passes)
        if i < len(thresholds):
            precision[i] = hits / max(hits + false, 1)
    ap = 100 * sum(max(precision[i:]) for i in range(1, 41)) / 40
    return count, ap, hits / count, hits / max(hits + false, 1)


def centre_ap(frames, name, limit, group):
    """nuScenes' AP in percent, after `accumulate` and `calc_ap` of its kit.

    The places of recall are i * 0.01, as numpy.linspace makes them: rounding decides on which side
    of a step of the curve a place lies."""
    real = [[o for o in objects if o["name"] == name and o["points"]] for objects, _ in frames]
    count = sum(within(o, group) for objects in real for o in objects)
    if not count:
        return None
    found = [(d["score"], n, d) for n, f in enumerate(frames) for d in f[1] if d["name"] == name]
    found = [found[i] for i in sorted(range(len(found)), key=lambda i: (found[i][0], i))][::-1]
    taken, hits = set(), []
    for _, n, d in found:
        nearest, best = inf, None
        for j, o in enumerate(real[n]):
            if (n, j) not in taken and apart(o, d) < nearest:
                nearest, best = apart(o, d), j
        hit = nearest < limit
        if hit:
            taken.add((n, best))
        if within(real[n][best] if hit else d, group):
            hits.append(hit)
    curve, right = [], 0
    for rank, hit in enumerate(hits, start=1):
        right += hit
        curve.append((right / count, right / rank))
    if not right:
        return 0.0
    return 100 * sum(max(interpolated(curve, i * 0.01) - 0.1, 0) for i in range(11, 101)) / 90 / 0.9


def interpolated(curve, recall):
    """Precision at a recall: constant before the curve, 0 after it, straight lines between; the
    last point of those with that very recall."""
    if recall > curve[-1][0]:
        return 0.0
    before = [point for point in curve if point[0] <= recall]
    after = [point for point in curve if point[0] > recall]
    if not before:
        return curve[0][1]
    if not after:
        return before[-1][1]
    (x0, y0), (x1, y1) = before[-1], after[0]
    return y0 + (recall - x0) / (x1 - x0) * (y1 - y0)
