"""Rotated overlap against closed forms and a polygon clipper, NMS against a loop over all pairs."""

import math

import numpy as np
import pytest
import torch

from millisecond.ops import iou_3d, iou_bev, nms, overlap_bev, paired_overlap_bev
from tests.conftest import OVERLAP
from tests.helpers.boxes import box, random_boxes

PRECISIONS = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def corners(box) -> list[tuple[float, float]]:
    x, y, _, length, width, _, yaw = (float(value) for value in box)
    turn = complex(math.cos(yaw), math.sin(yaw))
    signs = ((1, 1), (-1, 1), (-1, -1), (1, -1))
    points = [complex(x, y) + turn * complex(i * length, j * width) / 2 for i, j in signs]
    return [(point.real, point.imag) for point in points]


def clipped_area(a, b) -> float:
    """Sutherland-Hodgman: polygon b cut by each side of a in turn, then the shoelace formula."""
    polygon, sides = corners(b), corners(a)
    for (x0, y0), (x1, y1) in zip(sides, sides[1:] + sides[:1], strict=True):
        inside = [(x1 - x0) * (y - y0) - (y1 - y0) * (x - x0) for x, y in polygon]
        cut = []
        for i, (x, y) in enumerate(polygon):
            before, now = inside[i - 1], inside[i]
            if (before < 0) != (now < 0):
                t = before / (before - now)
                px, py = polygon[i - 1]
                cut.append((px + t * (x - px), py + t * (y - py)))
            if now >= 0:
                cut.append((x, y))
        polygon = cut
    x, y = np.array(polygon or [(0.0, 0.0)]).T
    return float(abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2)


CLOSED_FORMS = {
    "half over": (box(), box(x=2), 4.0),
    "offset in both": (box(), box(x=1, y=-0.5), 4.5),
    "contained": (box(), box(l=1, w=0.5, yaw=0.7), 0.5),
    "containing": (box(l=1, w=0.5, yaw=0.7), box(), 0.5),
    "cross": (box(l=6, w=1), box(l=6, w=1, yaw=math.pi / 2), 1.0),
    "slanted cross": (box(l=9, w=1), box(l=9, w=1, yaw=math.pi / 6), 2.0),
    "octagon": (box(l=2, w=2), box(l=2, w=2, yaw=math.pi / 4), 8 * (math.sqrt(2) - 1)),
    "corner in": (box(l=2, w=2), box(x=1, l=2, w=2, yaw=math.pi / 4), 1 + 2 * (math.sqrt(2) - 1)),
    "quarter turn": (box(), box(yaw=math.pi / 2), 4.0),
    "turned round": (box(), box(yaw=math.pi), 8.0),
    "side touches": (box(), box(x=4), 0.0),
    "long side touches": (box(), box(y=2, l=1), 0.0),
    "corner touches": (box(), box(x=4, y=2), 0.0),
    "apart": (box(), box(x=3, y=30, yaw=1), 0.0),
}


@PRECISIONS
@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_overlap_closed_forms(name, dtype):
    a, b, expected = CLOSED_FORMS[name]
    overlap = overlap_bev(a.to(dtype), b.to(dtype)).item()
    assert overlap == pytest.approx(expected, abs=OVERLAP[dtype])
    if expected == 0:
        assert overlap == 0


@PRECISIONS
def test_overlap_matches_polygon_clipper(dtype):
    generator = torch.Generator().manual_seed(1)
    a, b = random_boxes(60, generator), random_boxes(50, generator)
    expected = torch.tensor([[clipped_area(p, q) for q in b] for p in a], dtype=torch.float64)
    assert 0.1 < (expected > 0).double().mean() < 0.9
    overlap = overlap_bev(a.to(dtype), b.to(dtype)).double()
    torch.testing.assert_close(overlap, expected, rtol=0, atol=OVERLAP[dtype])


def test_overlap_matches_monte_carlo():
    a, b = box(1, 2, l=4, w=2, yaw=0.4), box(1.5, 1.2, l=5, w=1.5, yaw=-0.9)
    points = np.random.default_rng(0).uniform([-3, -2], [5, 5], (400_000, 2))

    def inside(target):
        x, y, _, length, width, _, yaw = target[0].tolist()
        local = (points - (x, y)) @ np.array(
            [[math.cos(yaw), -math.sin(yaw)], [math.sin(yaw), math.cos(yaw)]]
        )
        return (abs(local) <= (length / 2, width / 2)).all(1)

    estimate = (inside(a) & inside(b)).mean() * 56
    assert overlap_bev(a, b).item() == pytest.approx(estimate, abs=0.04)


@PRECISIONS
@pytest.mark.parametrize("distance", [0.0, 70.0, 1e6])
def test_identical_boxes_have_iou_one(dtype, distance):
    generator = torch.Generator().manual_seed(2)
    boxes = random_boxes(200, generator).to(dtype)
    boxes[:, :2] += distance
    for row in boxes:
        assert iou_bev(row[None], row[None]).item() == 1
        assert iou_3d(row[None], row[None]).item() == pytest.approx(1, abs=OVERLAP[dtype])
    turned = boxes + torch.tensor([0, 0, 0, 0, 0, 0, math.pi], dtype=dtype)
    overlap = paired_overlap_bev(boxes, turned)
    area = boxes[:, 3] * boxes[:, 4]
    torch.testing.assert_close(overlap, area, rtol=0, atol=OVERLAP[dtype])


@PRECISIONS
def test_nearly_identical_boxes_are_continuous(dtype):
    generator = torch.Generator().manual_seed(3)
    boxes = random_boxes(300, generator).to(dtype)
    for size in (1e-3, 1e-5, 1e-7, 1e-9):
        moved = boxes + size * torch.randn(boxes.shape, generator=generator).to(dtype)
        overlap = paired_overlap_bev(boxes, moved)
        lost = (boxes[:, 3] * boxes[:, 4] - overlap).abs().max()
        assert lost < 60 * size + OVERLAP[dtype]


@PRECISIONS
def test_overlap_is_symmetric(dtype):
    generator = torch.Generator().manual_seed(4)
    a, b = random_boxes(60, generator).to(dtype), random_boxes(70, generator).to(dtype)
    for function in (overlap_bev, iou_bev, iou_3d):
        forth, back = function(a, b), function(b, a)
        torch.testing.assert_close(forth, back.T, rtol=0, atol=OVERLAP[dtype])
        assert ((forth >= 0) & (forth.isfinite())).all()
    assert (iou_bev(a, b) <= 1).all()


def test_overlap_is_unchanged_by_rigid_motion():
    generator = torch.Generator().manual_seed(5)
    a, b = random_boxes(50, generator), random_boxes(50, generator)

    def moved(boxes, turn=0.83, shift=(31.0, -12.0)):
        x, y = boxes[:, 0], boxes[:, 1]
        out = boxes.clone()
        out[:, 0] = math.cos(turn) * x - math.sin(turn) * y + shift[0]
        out[:, 1] = math.sin(turn) * x + math.cos(turn) * y + shift[1]
        out[:, 6] += turn
        return out

    torch.testing.assert_close(overlap_bev(moved(a), moved(b)), overlap_bev(a, b))
    torch.testing.assert_close(iou_3d(moved(a), moved(b)), iou_3d(a, b))


def test_far_away_boxes_lose_no_digits():
    a, b = box(l=4, w=2, yaw=0.5), box(x=1, y=0.5, l=3, w=2, yaw=-0.25)
    expected = overlap_bev(a, b).item()
    far = torch.tensor([[2.0**20, -(2.0**20), 0, 0, 0, 0, 0]])  # a float32 steps by 1/8 m here
    overlap = overlap_bev(a.float() + far, b.float() + far).item()
    assert overlap == pytest.approx(expected, abs=1e-5)


@PRECISIONS
def test_boxes_without_size_overlap_nothing(dtype):
    flat = torch.cat([box(l=0), box(w=0), box(l=-4), box(l=-4, w=-2), box(l=0, w=0, h=0)]).to(dtype)
    for function in (overlap_bev, iou_bev, iou_3d):
        assert (function(flat, box(dtype=dtype)) == 0).all()
        assert (function(box(dtype=dtype), flat) == 0).all()
        assert (function(flat, flat) == 0).all()
    low = torch.cat([box(h=0), box(h=-1)]).to(dtype)
    assert (iou_3d(low, low) == 0).all()
    assert (iou_3d(low, box(dtype=dtype)) == 0).all()


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (box(z=0.75), 1 / 3),
        (box(z=1.5), 0.0),
        (box(z=9.0), 0.0),
        (box(x=2.0), 1 / 3),
        (box(x=2.0, z=0.75), 1 / 7),
        (box(h=0.5), 1 / 3),
    ],
)
def test_iou_3d_closed_forms(other, expected):
    assert iou_3d(box(), other).item() == pytest.approx(expected, abs=1e-12)


def test_pairs_are_the_diagonal_of_the_matrix(monkeypatch):
    generator = torch.Generator().manual_seed(6)
    a, b = random_boxes(300, generator), random_boxes(300, generator)
    whole = overlap_bev(a, b)
    monkeypatch.setattr("millisecond.ops.boxes.MATRIX_CHUNK", 1000)
    monkeypatch.setattr("millisecond.ops.boxes.PAIR_CHUNK", 7)
    assert torch.equal(overlap_bev(a, b), whole)
    assert torch.equal(paired_overlap_bev(a, b), whole.diagonal())


def test_no_boxes():
    none, one = torch.zeros(0, 7), box(dtype=torch.float32)
    for function in (overlap_bev, iou_bev, iou_3d):
        assert function(none, one).shape == (0, 1)
        assert function(one, none).shape == (1, 0)
        assert function(none, none).shape == (0, 0)
    assert paired_overlap_bev(none, none).shape == (0,)
    kept = nms(none, torch.zeros(0), 0.5, 3)
    assert kept.indices.tolist() == [-1, -1, -1]
    assert kept.count.tolist() == [0]


def test_wrong_input_is_named():
    good, scores = box(dtype=torch.float32).repeat(3, 1), torch.ones(3)
    bad = good.clone()
    bad[1, 6] = math.nan
    with pytest.raises(ValueError, match=r"b\[1\].*nan"):
        overlap_bev(good, bad)
    with pytest.raises(ValueError, match=r"boxes\[1\].*nan"):
        nms(bad, scores, 0.5, 3)
    with pytest.raises(ValueError, match=r"scores\[2\].*inf"):
        nms(good, torch.tensor([0.0, 1.0, math.inf]), 0.5, 3)
    with pytest.raises(ValueError, match=r"\(3, 8\)"):
        iou_bev(torch.zeros(3, 8), good)
    with pytest.raises(ValueError, match="float16"):
        iou_3d(good.half(), good.half())
    with pytest.raises(ValueError, match=r"float32.*float64"):
        iou_3d(good, good.double())
    with pytest.raises(ValueError, match="3 boxes but b has 2"):
        paired_overlap_bev(good, good[:2])
    with pytest.raises(ValueError, match=r"\(2,\)"):
        nms(good, scores[:2], 0.5, 3)
    with pytest.raises(ValueError, match="iou_threshold"):
        nms(good, scores, 1.5, 3)
    with pytest.raises(ValueError, match="max_output"):
        nms(good, scores, 0.5, -1)
