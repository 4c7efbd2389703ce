"""The public face of anchor matching and losses; tests/detector judges their results."""

import pytest
import torch

from millisecond.ops import anchor_losses, anchor_sides, anchor_targets, match_anchors

ANCHOR = (0.0, 0.0, 0.0, 4.0, 2.0, 1.5, 0.0)


def anchors():
    """Two cells in x, two in y, one class, along x and along y: [2, 2, 1, 2, 7]."""
    grid = torch.tensor(ANCHOR).repeat(2, 2, 1, 2, 1)
    grid[:, 1, ..., 0] = 10
    grid[1, ..., 1] = 20
    grid[..., 1, 6] = torch.pi / 2
    return grid


def test_sides_of_the_rows_and_columns():
    columns, rows = anchor_sides(anchors())
    assert columns[:, 0].tolist() == [[[-2, 2], [-1, 1]], [[8, 12], [9, 11]]]
    assert rows[:, 0].tolist() == [[[-1, 1], [-2, 2]], [[19, 21], [18, 22]]]


def test_a_box_on_an_anchor_is_its_match_and_a_batch_may_hold_none():
    limits = torch.tensor([[0.6, 0.45]])
    box = torch.tensor(ANCHOR)
    box[0] = 10
    match = match_anchors(
        *anchor_sides(anchors()), limits, box[None, None], torch.ones(1, 1).long()
    )
    assert match.rows.tolist() == [[-1, -1, 0, -1, -1, -1, -1, -1]]  # across: 4 of 12 m^2
    assert match.positives.tolist() == [1]
    for thresholds, across in (((1 / 3, 0.1), 0), ((0.6, 1 / 3), -2)):  # a limit itself
        limit = torch.tensor([thresholds])
        rows = match_anchors(
            *anchor_sides(anchors()), limit, box[None, None], torch.ones(1, 1).long()
        ).rows
        assert rows.tolist() == [[-1, -1, 0, across, -1, -1, -1, -1]]
    targets = anchor_targets(anchors(), box[None, None], match.rows)
    assert targets.labels.tolist() == [[0, 0, 1, 0, 0, 0, 0, 0]]
    assert not targets.residuals.any()
    none = torch.zeros(1, 0, 7), torch.zeros(1, 0, dtype=torch.int64)
    assert (match_anchors(*anchor_sides(anchors()), limits, *none).rows == -1).all()


def test_wrong_input_is_named():
    sides, limits = anchor_sides(anchors()), torch.tensor([[0.6, 0.45]])
    labels = torch.ones(1, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"boxes: expected \[B, M, 7\] of floats, got \[3, 7\]"):
        match_anchors(*sides, limits, torch.zeros(3, 7), labels)
    with pytest.raises(ValueError, match=r"labels: expected \[1, 2\], got \[1, 3\]"):
        match_anchors(*sides, limits, torch.zeros(1, 2, 7), labels)
    predictions = [torch.zeros(1, 8, n) for n in (1, 7, 2)]
    rows, positives, weights = torch.zeros(1, 8).int(), torch.ones(1).int(), (1, 2, 3)
    truth = anchors(), torch.ones(1, 1, 7), rows, positives
    with pytest.raises(ValueError, match=r"weights: expected 3 \(class, box, direction\)"):
        anchor_losses(*predictions, *truth, (1, 2))
    with pytest.raises(ValueError, match=r"match: expected \[1, 8\], got \[1, 1\]"):
        anchor_losses(*predictions, *truth[:2], rows[:, :1], positives, weights)
    with pytest.raises(ValueError, match=r"not of floats: torch.float32, torch.float32, torch.int"):
        anchor_losses(*predictions[:2], predictions[2].int(), *truth, weights)
    doubles = [tensor.double() for tensor in predictions]
    with pytest.raises(ValueError, match=r"anchors: expected torch\.float64, got torch\.float32"):
        anchor_losses(*doubles, *truth, weights)
    exact = anchor_losses(*doubles, *(t.double() for t in truth[:2]), *truth[2:], weights)
    single = anchor_losses(*predictions, *truth, weights)
    assert exact[0].dtype == torch.float64 and single[0].item() == pytest.approx(exact[0].item())
