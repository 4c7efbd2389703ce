"""The KITTI benchmark's rules once more, object by object, sharing no code with the metric."""

from math import cos, hypot, sin


def shoelace(polygon):
    turned = polygon[1:] + polygon[:1]
    return sum(x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in zip(polygon, turned, strict=True)) / 2


def footprint(o):
    """Corners in the camera's x-z plane, counter-clockwise as seen with x right and z up."""
    (length, _, width), (x, _, z) = o["size"], o["location"]
    c, s = cos(o["rotation_y"]), sin(o["rotation_y"])
    local = [(-length, -width), (length, -width), (length, width), (-length, width)]
    return [(x + (c * u + s * v) / 2, z + (-s * u + c * v) / 2) for u, v in local]


def clip(polygon, window):
    """Sutherland and Hodgman: the part of a polygon inside a convex counter-clockwise one."""
    for (x0, y0), (x1, y1) in zip(window, window[1:] + window[:1], strict=True):
        side = [(x1 - x0) * (y - y0) - (y1 - y0) * (x - x0) for x, y in polygon]
        kept = []
        for i, (point, inside) in enumerate(zip(polygon, side, strict=True)):
            before, was = polygon[i - 1], side[i - 1]
            if (inside >= 0) != (was >= 0):
                t = was / (was - inside)
                kept.append(tuple(p + t * (q - p) for p, q in zip(before, point, strict=True)))
            if inside >= 0:
                kept.append(point)
        polygon = kept
    return polygon


def image_shared(a, b):
    width = min(a["bbox"][2], b["bbox"][2]) - max(a["bbox"][0], b["bbox"][0])
    height = min(a["bbox"][3], b["bbox"][3]) - max(a["bbox"][1], b["bbox"][1])
    return max(width, 0) * max(height, 0)


def image_area(o):
    return (o["bbox"][2] - o["bbox"][0]) * (o["bbox"][3] - o["bbox"][1])


def overlap(metric, det, gt):
    if metric == "bbox":
        shared = image_shared(det, gt)
        return shared / (image_area(det) + image_area(gt) - shared)
    (l0, h0, w0), (l1, h1, w1) = det["size"], gt["size"]
    if hypot(*(p - q for p, q in zip(det["location"], gt["location"], strict=True))) > 50:
        return 0
    polygon = clip(footprint(det), footprint(gt))
    shared = shoelace(polygon) if polygon else 0
    if metric == "bev":
        return shared / (l0 * w0 + l1 * w1 - shared)
    y0, y1 = det["location"][1], gt["location"][1]
    shared *= max(min(y0, y1) - max(y0 - h0, y1 - h1), 0)
    return shared / (l0 * h0 * w0 + l1 * h1 * w1 - shared)


def gt_state(o, name, level):
    height = o["bbox"][3] - o["bbox"][1]
    hard = height < (40, 25, 25)[level] or o["occluded"] > level
    hard = hard or o["truncated"] > (0.15, 0.3, 0.5)[level]
    neighbour = {"Car": "Van", "Pedestrian": "Person_sitting"}.get(name)
    if o["types"] == name:
        return 1 if hard else 0
    return 1 if o["types"] == neighbour else -1


def det_state(o, name, level):
    if o["bbox"][3] - o["bbox"][1] < (40, 25, 25)[level]:
        return 1
    return 0 if o["types"] == name else -1


def match(gts, dets, name, level, metric, least, threshold):
    """One pass over one frame. threshold None: collect scores; otherwise count at the threshold."""
    states = [det_state(d, name, level) for d in dets]
    free = [
        s != -1 and (threshold is None or d["score"] >= threshold)
        for s, d in zip(states, dets, strict=True)
    ]
    scores, similarity, false = [], 0.0, 0
    for gt in gts:
        state = gt_state(gt, name, level)
        if state == -1:
            continue
        best, best_overlap, best_score, only_ignored = None, 0.0, -1e7, False
        for j, det in enumerate(dets):
            shared = overlap(metric, det, gt) if free[j] else 0
            if shared <= least:
                continue
            if threshold is None:
                if det["score"] > best_score:
                    best, best_score = j, det["score"]
            elif states[j] == 0 and (shared > best_overlap or only_ignored):
                best, best_overlap, only_ignored = j, shared, False
            elif states[j] == 1 and best is None:
                best, only_ignored = j, True
        if best is None:
            continue
        free[best] = False
        if state == 0 and states[best] == 0:
            scores.append(dets[best]["score"])
            similarity += (1 + cos(gt["alpha"] - dets[best]["alpha"])) / 2
    for j, det in enumerate(dets):
        inside = metric == "bbox" and any(
            image_shared(det, gt) / image_area(det) > least
            for gt in gts
            if gt["types"] == "DontCare"
        )
        false += free[j] and states[j] == 0 and not inside
    return scores, similarity, false


def official(frames, name, level, metric, least):
    """(R11, R40) of the metric and, for bbox, of aos; count."""
    n = sum(gt_state(gt, name, level) == 0 for gts, _ in frames for gt in gts)
    scores = [s for f in frames for s in match(*f, name, level, metric, least, None)[0]]
    scores.sort(reverse=True)
    thresholds, recall = [], 0.0
    for i, score in enumerate(scores):
        reached = (i + 1) / n
        next_reached = (i + 2) / n if i < len(scores) - 1 else reached
        if next_reached - recall < recall - reached and i < len(scores) - 1:
            continue
        thresholds.append(score)
        recall += 1 / 40
    precision, orientation = [0.0] * 41, [0.0] * 41
    for i, threshold in enumerate(thresholds):
        passes = [match(*f, name, level, metric, least, threshold) for f in frames]
        hits, false = sum(len(p[0]) for p in passes), sum(p[2] for p in passes)
        precision[i] = hits / max(hits + false, 1)
        orientation[i] = sum(p[1] for p in passes) / max(hits + false, 1)

    def averages(curve):
        curve = [max(curve[i:]) for i in range(41)]
        return [100 * sum(curve[::4]) / 11, 100 * sum(curve[1:]) / 40]

    return averages(precision), averages(orientation), n
