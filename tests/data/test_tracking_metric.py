"""MOTA, MOTP, IDF1 and their counts: cases with known answers, and a brute-force oracle."""

import itertools

import numpy as np
import pytest

from millisecond.data.kitti.labels import Labels, read_labels
from millisecond.data.metric.tracking import (
    FrameOverlaps,
    Identified,
    count_tracks,
    evaluate_tracks,
    nearest_identities,
)


def frame(truth, tracks, pairs):
    """Ids of both sides and the overlaps of (object, track)."""
    iou = np.zeros((len(truth), len(tracks)))
    for (thing, track), value in pairs.items():
        iou[truth.index(thing), tracks.index(track)] = value
    return FrameOverlaps(np.array(truth, np.int64), np.array(tracks, np.int64), iou)


def test_perfect_tracks():
    counts = count_tracks([frame([1, 2], [8, 7], {(1, 7): 1, (2, 8): 1})] * 5)
    assert (counts.mota, counts.motp, counts.idf1) == (1, 1, 1)
    assert counts.misses == counts.false_positives == counts.switches == 0
    assert counts.fragmentations == 0 and counts.objects == 10


def test_a_switch_half_way():
    """Track 7 for three frames, then track 8 for one: Ristani's IDF1 keeps the longer."""
    first, second = frame([1], [7], {(1, 7): 0.5}), frame([1], [8], {(1, 8): 0.9})
    counts = count_tracks([first, first, first, second])
    assert counts.switches == 1 and counts.fragmentations == 0
    assert counts.mota == pytest.approx(1 - 1 / 4)
    assert counts.motp == pytest.approx((3 * 0.5 + 0.9) / 4)
    assert counts.idf1 == pytest.approx(2 * 3 / (4 + 4))


def test_a_switch_counts_after_a_gap_too_and_a_gap_is_a_fragmentation():
    seen, other = frame([1], [7], {(1, 7): 1}), frame([1], [8], {(1, 8): 1})
    missed = frame([1], [], {})
    counts = count_tracks([seen, missed, missed, other, missed, other])
    assert (counts.switches, counts.fragmentations, counts.misses) == (1, 2, 3)
    assert counts.mota == pytest.approx(1 - (3 + 1) / 6)


def test_an_object_that_was_not_there_was_not_missed():
    seen, nobody = frame([1], [7], {(1, 7): 1}), frame([], [], {})
    counts = count_tracks([seen, nobody, seen])
    assert (counts.fragmentations, counts.misses, counts.mota) == (0, 0, 1)


def test_a_match_is_kept_while_it_holds():
    """Track 8 overlaps more from the second frame on, but 7 had the object: CLEAR MOT keeps it."""
    start = frame([1], [7], {(1, 7): 0.9})
    contest = frame([1], [7, 8], {(1, 7): 0.3, (1, 8): 0.9})
    counts = count_tracks([start, contest, contest])
    assert (counts.switches, counts.false_positives) == (0, 2)
    assert counts.overlap == pytest.approx(0.9 + 0.3 + 0.3)
    lost = frame([1], [7, 8], {(1, 8): 0.9})
    assert count_tracks([start, contest, lost, contest]).switches == 1


def test_two_that_swap():
    straight = frame([1, 2], [7, 8], {(1, 7): 1, (2, 8): 1})
    crossed = frame([1, 2], [7, 8], {(1, 8): 1, (2, 7): 1})
    counts = count_tracks([straight] * 6 + [crossed] * 4)
    assert counts.switches == 2 and counts.mota == pytest.approx(1 - 2 / 20)
    assert counts.idf1 == pytest.approx(0.6)


def test_nothing_and_only_false_positives():
    empty = count_tracks([frame([], [], {})])
    assert np.isnan(empty.mota) and np.isnan(empty.motp) and np.isnan(empty.idf1)
    wrong = count_tracks([frame([1], [7, 8], {})] * 2)
    assert wrong.mota == -2 and wrong.idf1 == 0 and np.isnan(wrong.motp)


def brute_force(frames):
    """The definitions once more, by trying every assignment: MOTA's counts and IDTP."""
    matches = switches = fragmentations = 0
    overlap, kept, latest, open_gap = 0.0, {}, {}, {}
    for truth, tracks, iou in frames:
        truth, tracks = truth.tolist(), tracks.tolist()
        pairs = {
            thing: track
            for thing, track in kept.items()
            if thing in truth
            and track in tracks
            and iou[truth.index(thing), tracks.index(track)] > 0
        }
        rest = [i for i, thing in enumerate(truth) if thing not in pairs]
        others = [j for j, track in enumerate(tracks) if track not in pairs.values()]
        padded = others + [None] * len(rest)
        best, choice = -1.0, {}
        for order in itertools.permutations(padded, len(rest)):
            chosen = {i: j for i, j in zip(rest, order, strict=True) if j is not None}
            total = sum(iou[i, j] for i, j in chosen.items())
            if total > best:
                best, choice = total, {i: j for i, j in chosen.items() if iou[i, j] > 0}
        pairs |= {truth[i]: tracks[j] for i, j in choice.items()}
        for thing in truth:
            if thing in pairs:
                matches += 1
                overlap += iou[truth.index(thing), tracks.index(pairs[thing])]
                switches += latest.get(thing, pairs[thing]) != pairs[thing]
                fragmentations += open_gap.get(thing, False)
                latest[thing], open_gap[thing] = pairs[thing], False
            elif thing in latest:
                open_gap[thing] = True
        kept = pairs
    things = sorted({t for f in frames for t in f.truth.tolist()})
    tracks = sorted({t for f in frames for t in f.tracks.tolist()}) + [None] * len(things)
    identified = 0
    for order in itertools.permutations(tracks, len(things)):
        pairs = dict(zip(things, order, strict=True))
        total = 0
        for f in frames:
            for i, thing in enumerate(f.truth.tolist()):
                j = np.flatnonzero(f.tracks == (pairs[thing] or -1))
                total += bool(len(j)) and f.iou[i, j[0]] > 0
        identified = max(identified, total)
    return matches, overlap, switches, fragmentations, identified


@pytest.mark.parametrize("seed", range(25))
def test_against_trying_every_assignment(seed):
    rng = np.random.default_rng(seed)
    frames = []
    for _ in range(6):
        truth = np.sort(rng.choice([1, 2, 3], rng.integers(0, 4), replace=False))
        tracks = rng.choice([1, 12, 13], rng.integers(0, 4), replace=False)
        iou = rng.uniform(0.25, 1, (len(truth), len(tracks)))
        iou[rng.uniform(size=iou.shape) < 0.5] = 0
        frames.append(FrameOverlaps(truth, tracks, iou))
    counts = count_tracks(frames)
    matches, overlap, switches, fragmentations, identified = brute_force(frames)
    assert counts.matches == matches and counts.overlap == pytest.approx(overlap)
    assert (counts.switches, counts.fragmentations) == (switches, fragmentations)
    assert counts.identified == identified
    assert counts.misses == sum(len(f.truth) for f in frames) - matches
    assert counts.false_positives == sum(len(f.tracks) for f in frames) - matches


def labels(*objects):
    """Objects (type, x, z) of the camera's frame, 4 m long, 2 m wide and high."""
    count = len(objects)
    bbox = [[100 + 10 * x, 100, 150 + 10 * x, 150] for _, x, _ in objects]
    return Labels(
        types=np.array([kind for kind, _, _ in objects], dtype=str),
        truncated=np.zeros(count),
        occluded=np.zeros(count, np.int64),
        alpha=np.zeros(count),
        bbox=np.array(bbox, np.float64).reshape(-1, 4),
        size=np.tile([4.0, 2.0, 2.0], (count, 1)),
        location=np.array([[x, 1.7, z] for _, x, z in objects]).reshape(-1, 3),
        rotation_y=np.zeros(count),
    )


def test_a_box_matches_from_the_overlap_on():
    """Boxes 4 m long, apart by d along their length: IoU of the volumes is (4 - d) / (4 + d)."""
    truth = Identified([labels(("Car", 0, 20))], [np.array([1])])
    for apart, matches in ((2.39, 1), (2.41, 0)):  # 0.252, 0.248
        tracks = Identified([labels(("Car", apart, 20))], [np.array([5])])
        counts = evaluate_tracks(tracks, truth, ["Car"])["Car"]
        assert counts.matches == matches
    tracks = Identified([labels(("Car", 1, 20))], [np.array([5])])
    assert evaluate_tracks(tracks, truth, ["Car"])["Car"].motp == pytest.approx(0.6)
    assert evaluate_tracks(tracks, truth, ["Car"], min_iou=0.7)["Car"].matches == 0


def test_neighbours_and_regions_are_not_judged():
    objects = labels(("Car", 0, 20), ("Van", 10, 20), ("DontCare", 30, 20), ("Car", 30, 40))
    truth = Identified([objects], [np.array([1, 2, 0, 3])])
    found = labels(("Car", 0, 20), ("Car", 10, 20), ("Car", 30, 60), ("Car", 20, 20))
    tracks = Identified([found], [np.array([1, 2, 3, 4])])
    counts = evaluate_tracks(tracks, truth, ["Car", "Van"])
    # on the van and in the region: not judged; at x = 20: wrong; the second car is missed
    assert (counts["Car"].matches, counts["Car"].false_positives) == (1, 1)
    assert (counts["Van"].misses, counts["Van"].boxes) == (1, 0)
    both = counts["Car"] + counts["Van"]
    assert (both.objects, both.misses, both.false_positives) == (3, 2, 1)
    # a car in the region is right; 52 of 100 parts in it are not judged, 48 of 100 are
    found = labels(("Car", 30, 40), ("Car", 32.4, 80), ("Car", 32.6, 95))
    counts = evaluate_tracks(Identified([found], [np.array([1, 2, 3])]), truth, ["Car"])["Car"]
    assert (counts.matches, counts.false_positives) == (1, 1)


def test_sides_that_do_not_fit_together():
    one = Identified([labels(("Car", 0, 20))], [np.array([1])])
    none = Identified([], [])
    twice = Identified([labels(("Car", 0, 20), ("Car", 9, 20))], [np.array([1, 1])])
    short = Identified([labels(("Car", 0, 20), ("Car", 9, 20))], [np.array([1])])
    for tracks, word in ((none, "0 frames"), (twice, "twice"), (short, "1 ids")):
        with pytest.raises(ValueError, match=word):
            evaluate_tracks(tracks, one, ["Car"])


def test_identities_by_nearest_centre():
    frames = [
        labels(("Car", 0, 20), ("Car", 5, 20), ("DontCare", 9, 9)),
        labels(("Car", 4, 20), ("Car", 1, 20), ("Van", 0, 20)),  # both moved by a metre
        labels(("Car", 2, 20)),
        labels(("Car", 4.5, 20)),  # too far
        labels(),
        labels(("Car", 4.5, 20)),  # it was away
    ]
    found = [ids.tolist() for ids in nearest_identities(frames)]
    assert found == [[1, 2, 0], [2, 1, 3], [1], [4], [], [5]]
    assert nearest_identities([]) == []


def test_identities_on_the_real_drive_are_those_of_the_sizes(kitti):
    """KITTI gives an object one size in all frames, which the rule does not look at."""
    folder = kitti / "sequences" / "2011_09_26_drive_0005_sync" / "label_2"
    frames = [read_labels(path) for path in sorted(folder.glob("*.txt"))]
    sizes, ids = {}, {}
    for objects, numbers in zip(frames, nearest_identities(frames), strict=True):
        for kind, size, number in zip(objects.types, objects.size, numbers, strict=True):
            if kind != "DontCare":
                ids.setdefault(int(number), set()).add((str(kind), *size.tolist()))
                sizes.setdefault((str(kind), *size.tolist()), set()).add(int(number))
    assert len(ids) == len(sizes) == 15
    assert all(len(found) == 1 for found in [*ids.values(), *sizes.values()])
