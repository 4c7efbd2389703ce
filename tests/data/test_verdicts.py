"""Verdicts on single frames, against the whole metric and against the benchmark's rules once more,
object by object."""

from dataclasses import replace

import numpy as np
import pytest

from millisecond.data.kitti.labels import Labels
from millisecond.data.metric.kitti import (
    MIN_OVERLAP,
    OPERATING_SCORE,
    badness,
    count,
    default_overlap,
    evaluate,
    judge,
)
from tests.helpers.kitti_oracle import det_state, gt_state, overlap

TYPES = ["Car"] * 4 + ["Pedestrian"] * 3 + ["Cyclist"] * 3 + ["Van", "Person_sitting", "DontCare"]
BENCHMARK = {name: default_overlap(name) for name in MIN_OVERLAP}


def random_labels(rng, count, scored) -> Labels:
    """A crowd: objects overlap often, from above and in height; some are low in the image."""
    left, top = rng.uniform(0, 60, count), rng.uniform(0, 15, count)
    width, height = rng.uniform(30, 60, count), rng.uniform(15, 60, count)
    return Labels(
        types=rng.choice(TYPES, count),
        truncated=rng.choice([0, 0.2, 0.4, 0.6], count),
        occluded=rng.choice(4, count, p=[0.5, 0.2, 0.2, 0.1]),
        alpha=rng.uniform(-3, 3, count),
        bbox=np.stack([left, top, left + width, top + height], axis=1),
        size=rng.uniform([3, 1.4, 1.4], [4, 1.8, 1.8], (count, 3)),
        location=rng.uniform([-3, 1.5, 10], [3, 1.9, 14], (count, 3)),
        rotation_y=rng.choice([0.0, np.pi / 2, -3.0], count) + rng.normal(0, 0.1, count),
        score=rng.uniform(0, 1, count).round(2) if scored else None,
    )


def found_near(truth: Labels, rng) -> Labels:
    """Most objects, a little displaced, and a crowd of strangers."""
    cared = truth.select(truth.types != "DontCare")
    near = cared.select(rng.uniform(0, 1, len(cared)) < 0.8)
    near = replace(
        near,
        location=near.location + rng.normal(0, 0.12, (len(near), 3)),
        score=rng.uniform(0, 1, len(near)).round(2),
    )
    strangers = random_labels(rng, rng.integers(0, 6), True)
    strangers = strangers.select(strangers.types != "DontCare")
    pairs = {k: (v, getattr(strangers, k)) for k, v in vars(near).items()}
    return Labels(**{k: np.concatenate(pair) for k, pair in pairs.items()})


def rows(labels: Labels) -> list[dict]:
    names = [k for k, v in vars(labels).items() if v is not None]
    return [{k: getattr(labels, k)[i] for k in names} for i in range(len(labels))]


def by_hand(dets: list[dict], gts: list[dict], metric: str, least: dict[str, float]):
    """The verdicts, by the development kit's loop over the objects of one class after another."""
    truth, found = ["ignored"] * len(gts), ["ignored"] * len(dets)
    for name in least:
        states, free = [det_state(d, name, 2) for d in dets], [True] * len(dets)
        for j, state in enumerate(states):
            if state == 0:
                found[j] = "false"
        for i, gt in enumerate(gts):
            if gt_state(gt, name, 2) == -1:
                continue
            counts = gt_state(gt, name, 2) == 0
            touching = [
                (states[j] == 0, overlap(metric, det, gt) if states[j] == 0 else 0, -j)
                for j, det in enumerate(dets)
                if free[j] and states[j] != -1 and overlap(metric, det, gt) > least[name]
            ]
            if not touching:
                truth[i] = "missed" if counts else truth[i]
                continue
            sure, _, best = max(touching)
            free[-best] = False
            if counts and sure:
                truth[i] = found[-best] = "matched"
            elif dets[-best]["types"] == name:
                found[-best] = "ignored"
    return truth, found


def why(one: dict, others: list[dict], metric: str, least: float) -> str:
    """The kind of the reason why a box is missed or false, by the overlaps with all others."""
    shared = [(overlap(metric, one, other), other["types"] == one["types"]) for other in others]
    best = max((share for share, same in shared if same), default=0)
    if best > least:
        return "another"
    if best > 0:
        shown = min(round(best, 2), round(least - 0.01, 2))
        return f"best overlap {shown:.2f} < {least:.2f}"
    return "other class" if any(share > 0 for share, _ in shared) else "there"


def require_reasons(verdicts, found: Labels, truth: Labels, metric: str, least: dict) -> set[str]:
    """The reasons are those by hand; returns their kinds."""
    dets, gts = rows(found), [gt for gt in rows(truth) if gt["types"] != "DontCare"]
    sides = (
        (verdicts.truth, verdicts.truth_reasons, rows(truth), dets, "missed", "found as "),
        (verdicts.detections, verdicts.reasons, dets, gts, "false", "there is a "),
    )
    kinds = set()
    for marks, reasons, own, others, wrong, strange in sides:
        for mark, reason, one in zip(marks, reasons, own, strict=True):
            assert bool(reason) == (mark != "matched")
            if mark == wrong:
                kind = why(one, others, metric, least[one["types"]])
                assert reason.startswith(strange) if kind == "other class" else kind in reason
                kinds.add(f"{wrong}, {kind.split()[0]}")
            if mark == "ignored" and wrong == "missed" and one["types"] in least:
                hidden, low = one["occluded"] > 2, one["bbox"][3] - one["bbox"][1] < 25
                cut_off = one["truncated"] > 0.5
                known = {"hidden, 3": hidden, "cut off, 0.60": cut_off, "lower than 25 pixels": low}
                kinds.add(reason)
                assert known.get(reason, not (hidden or low or cut_off)), reason
            if mark == "ignored" and wrong == "false" and one["types"] in least:
                low = one["bbox"][3] - one["bbox"][1] < 25
                near = [
                    f"on a {gt['types']}" + f", {why}" * (gt["types"] == one["types"])
                    for gt, why in zip(rows(truth), verdicts.truth_reasons, strict=True)
                    if overlap(metric, one, gt) > least[one["types"]]
                ]
                kinds.add(reason)
                assert low if reason == "lower than 25 pixels" else reason in near, reason
    return kinds


def test_verdicts_are_those_of_the_rules_object_by_object():
    rng, seen, kinds = np.random.default_rng(0), set(), set()
    for case in range(60):
        truth = random_labels(rng, rng.integers(0, 9), False)
        found = found_near(truth, rng)
        for metric in ("3d", "bev"):
            least = {name: float(rng.choice([0.3, 0.5, 0.7])) for name in MIN_OVERLAP}
            verdicts = judge(found, truth, least, metric)
            truths, detections = by_hand(rows(found), rows(truth), metric, least)
            assert verdicts.truth.tolist() == truths, case
            assert verdicts.detections.tolist() == detections, case
            seen |= {("truth", v) for v in truths} | {("found", v) for v in detections}
            kinds |= require_reasons(verdicts, found, truth, metric, least)
            assert ((verdicts.partner == -1) == (verdicts.detections != "matched")).all()
            for j in np.flatnonzero(verdicts.partner >= 0):
                i = verdicts.partner[j]
                shared = overlap(metric, rows(found)[j], rows(truth)[i])
                assert verdicts.overlap[j] == pytest.approx(shared, abs=1e-9)
                assert truths[i] == detections[j] == "matched"
            assert (np.isnan(verdicts.overlap) == (verdicts.partner < 0)).all()
    assert len(seen) == 6  # every verdict occurs, and every reason
    assert {kind.split(", ")[1] for kind in kinds if "missed" in kind} >= {"best", "there"}
    assert kinds >= {"false, another", "false, best", "false, other", "false, there"}
    assert kinds >= {"hidden, 3", "cut off, 0.60", "lower than 25 pixels"}
    assert kinds >= {"on a Van", "on a Car, hidden, 3"}


@pytest.mark.parametrize("metric", ["3d", "bev"])
def test_counts_over_many_frames_are_the_evaluations(metric):
    rng = np.random.default_rng(1)
    truths = [random_labels(rng, 8, False) for _ in range(40)]
    found = [found_near(truth, rng) for truth in truths]
    figures = evaluate(found, truths)
    for name, least in BENCHMARK.items():
        matched = false = 0
        for dets, gts in zip(found, truths, strict=True):
            sure = dets.select(dets.score >= OPERATING_SCORE)
            verdicts = judge(sure, gts, BENCHMARK, metric)
            own, own_found = gts.types == name, sure.types == name
            counted = count(verdicts.truth[own], verdicts.detections[own_found])
            matched, false = matched + counted.matched, false + counted.false
        hard = {key: values[2] for key, values in figures[name][metric].items()}
        assert matched > 5 and false > 5, (name, least)
        assert matched == pytest.approx(hard["recall"] * hard["count"])
        assert matched / (matched + false) == pytest.approx(hard["precision"])


def test_a_frame_is_as_bad_as_its_errors():
    rng = np.random.default_rng(2)
    truth = random_labels(rng, 8, False)
    found = found_near(truth, rng)
    verdicts = judge(found, truth, BENCHMARK)
    counted = count(verdicts.truth, verdicts.detections)
    assert badness(verdicts, np.ones(len(found))) == counted.missed + counted.false
    assert badness(verdicts, np.zeros(len(found))) == counted.missed
    nothing = found.select(np.zeros(len(found), bool))
    assert not judge(nothing, truth, BENCHMARK).detections.size
