"""What the boxes of predictions refuse; tests/detector/test_postprocess.py has what they are."""

import pytest
import torch

from millisecond.ops import CellValues, bev_spread, select_boxes, select_boxes_of_cells


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"box_residuals": torch.zeros(2, 5, 6)}, r"box_residuals: expected \[2, 5, 7\], got"),
        ({"direction_logits": torch.zeros(2, 4, 2)}, "direction_logits: expected"),
        ({"anchors": torch.zeros(4, 7)}, r"anchors: expected \[5, 7\] float32, got \[4, 7\]"),
        ({"anchors": torch.zeros(5, 7).double()}, "float64"),
        ({"before_nms": 0}, "before_nms: expected at least 1, got 0"),
        ({"after_nms": -1}, "after_nms: expected at least 1, got -1"),
        ({"iou_threshold": 1.5}, "iou_threshold is 1.5"),
        ({"score": -0.1}, r"score is -0.1: it must lie in 0\.\.1"),
        (
            {"class_logits": torch.zeros(10, 3)},
            r"class_logits: expected \[B, A, K\], got \[10, 3\]",
        ),
        ({"class_logits": torch.zeros(2, 5, 3).int()}, "class_logits: expected .* of floats"),
        ({"box_residuals": torch.full((2, 5, 7), 3e38)}, r"boxes\[0\] is .* must be finite"),
    ],
)
def test_a_wrong_argument_is_one_line(change, message):
    arguments = {
        "class_logits": torch.zeros(2, 5, 3),
        "box_residuals": torch.zeros(2, 5, 7),
        "direction_logits": torch.zeros(2, 5, 2),
        "anchors": torch.ones(5, 7),
        "score": 0.4,
        "before_nms": 9,  # there are but five
        "iou_threshold": 0.5,
        "after_nms": 3,
    }
    found = select_boxes(**arguments)
    assert found.count.tolist() == [1, 1] and found.boxes.shape == (2, 3, 7)
    with pytest.raises(ValueError, match=message):
        select_boxes(**{**arguments, **change})


def test_a_score_of_the_least_stays_and_classes_hide_each_other_unless_told():
    logits = torch.tensor([[[0.0, -1], [-1, 2], [-0.1, -1]]])  # half; more; less
    others = torch.zeros(1, 3, 7), torch.zeros(1, 3, 2), torch.ones(3, 7)
    together = select_boxes(logits, *others, 0.5, 9, 0.3, 3)
    assert together.labels.tolist() == [[2, 0, 0]] and together.count.tolist() == [1]
    apart = select_boxes(logits, *others, 0.5, 9, 0.3, 3, per_class=True)
    assert apart.labels.tolist() == [[2, 1, 0]] and apart.scores[0, 1] == 0.5


def test_boxes_of_cells_are_those_of_their_sums():
    torch.manual_seed(1)
    values = [torch.randn(20 * factor**2, 24) for factor in (1, 2)]
    rows = [torch.randint(20, (2, 6 // f, 4 // f), dtype=torch.int32) for f in (1, 2)]
    cells, anchors = CellValues(values, rows, [1, 2], [4, 14, 4]), torch.rand(48, 7) * 9
    limits = 0.6, 40, 0.3, 9
    predictions = [part.view(2, 48, -1) for part in bev_spread(*cells)]
    wanted = select_boxes(*predictions, anchors, *limits)
    found = select_boxes_of_cells(cells, anchors, *limits)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert found.count.min() > 0
    with pytest.raises(ValueError, match=r"anchors: expected \[48, 7\] float32, got \[47, 7\]"):
        select_boxes_of_cells(cells, anchors[1:], *limits)
