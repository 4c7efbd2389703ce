"""Verdicts in pictures: crosses, captions, the legend."""

import numpy as np
import pytest

from millisecond.data.boxes import box_corners
from millisecond.data.metric.kitti import FALSE, IGNORED, MATCHED, MISSED
from millisecond.detector.draw import birds_eye
from millisecond.detector.draw.birds_eye import draw_birds_eye, draw_thumbnail
from millisecond.detector.draw.camera import draw_camera
from millisecond.detector.draw.scene import box_lines
from millisecond.detector.draw.style import VERDICT_COLOURS, BoxSet, Palette, Shown
from millisecond.detector.draw.text import legend
from millisecond.detector.draw.view import View
from tests.detector.test_draw import CAMERA, NO_POINTS, above, is_near

PLACES = ((20, 5), (30, -8), (40, 10))


def judged(*verdicts: str, scores: bool = True, by_error: bool = True) -> BoxSet:
    boxes = np.array([(x, y, -1, 6, 4, 1.5, 0) for x, y in PLACES[: len(verdicts)]], np.float32)
    found = Palette().paint(boxes, ("Car",) * len(boxes), np.full(len(boxes), 0.5))
    overlaps = np.where(np.array(verdicts) == MATCHED, 0.81, np.nan)
    return (found if scores else found._replace(scores=None)).judged(verdicts, overlaps, by_error)


@pytest.mark.parametrize("kind", ["ground truth", "detections"])
def test_what_is_wrong_has_a_cross_in_the_colour_of_its_verdict(kind):
    wrong = FALSE if kind == "detections" else MISSED
    shown = judged(MATCHED, wrong, IGNORED)
    sets = (shown, None) if kind == "ground truth" else (None, shown)
    picture = draw_birds_eye(Shown(NO_POINTS, *sets), view=View())
    for (x, y), verdict in zip(PLACES, (MATCHED, wrong, IGNORED), strict=True):
        # On a diagonal, half-way to the rear left corner; no heading line is there.
        row, column = above(x - 1.5, y + 1)
        near = picture[row - 1 : row + 2, column - 1 : column + 2].reshape(-1, 3)
        crossed = any(is_near(pixel, VERDICT_COLOURS[verdict], 60) for pixel in near)
        assert crossed == (verdict == wrong), verdict


def test_crosses_are_in_the_camera_too():
    image = np.full((375, 1242, 3), 90, dtype=np.uint8)
    sets = [judged(v, scores=False) for v in (MATCHED, FALSE)]  # no captions
    pictures = [draw_camera(image, CAMERA, Shown(None, None, shown)).astype(int) for shown in sets]
    counts = [
        (np.abs(picture[:375] - VERDICT_COLOURS[verdict]).max(axis=2) <= 2).sum()
        for picture, verdict in zip(pictures, (MATCHED, FALSE), strict=True)
    ]
    assert counts[1] > counts[0] > 0


def test_in_3d_each_verdict_has_a_shape_on_every_side():
    own = judged(MATCHED).boxes
    corners = box_corners(own.astype(float))[0]
    lines = {v: box_lines(judged(v), dashed=False)[0] for v in (MATCHED, FALSE, MISSED, IGNORED)}
    middles = {v: np.round(lines[v].mean(axis=1), 6) for v in lines}
    for face in (corners[:4], corners[4:], *(corners[[i, i - 1, i + 3, i + 4]] for i in (1, 2, 3))):
        crossings = (middles[FALSE] == np.round(face.mean(axis=0), 6)).all(axis=1).sum()
        lowest = face[:, 2].max() < own[0, 2]
        assert crossings == (0 if lowest else 2)
    assert len(lines[MATCHED]) == 13 and len(lines[MISSED]) == 13 + 5 * 4
    # Of an ignored box only the corners: no line but its heading goes through an edge's middle.
    lengths = np.linalg.norm(np.diff(lines[IGNORED][:-1], axis=1)[:, 0], axis=1)
    assert len(lengths) == 24 and lengths.max() == pytest.approx(0.2 * own[0, 3])


def test_captions_give_the_overlap_of_matches_only():
    assert judged(MATCHED, FALSE).captions() == ["Car 0.50 (0.81)", "Car 0.50 false"]
    assert judged(MATCHED, MISSED, scores=False).captions() == ["Car (0.81)", "Car missed"]


def test_captions_say_why_and_errors_get_the_room_first():
    reasons = ("", "best overlap 0.62 < 0.70", "hidden, 3")
    truth = judged(MATCHED, MISSED, IGNORED, scores=False)._replace(reasons=reasons, overlaps=None)
    found = judged(MATCHED, FALSE)._replace(scores=np.array([0.9, 0.4]))
    captions = [caption.text for caption in Shown(NO_POINTS, truth, found).captions()]
    assert captions == [
        "Car 0.40 false",
        "Car missed: best overlap 0.62 < 0.70",
        "Car 0.90 (0.81)",
        "Car ignored: hidden, 3",
    ]


def test_a_false_detection_on_a_larger_object_has_its_caption_first(monkeypatch):
    truth, found = judged(IGNORED, scores=False), judged(FALSE)
    found.boxes[0, 3:5] = 0.8
    found = found._replace(reasons=("there is a Misc",))
    written = []
    monkeypatch.setattr(birds_eye, "write", lambda _, at, text, *how, **more: written.append(text))
    draw_birds_eye(Shown(NO_POINTS, truth, found), view=View())
    captions = [text for text in written if text.startswith("Car ")]
    assert captions[:2] == ["Car 0.50 false: there is a Misc", "Car ignored"]


def test_the_legend_has_the_colours_of_the_verdicts_or_of_the_classes():
    def colours(by_error: bool) -> set:
        sets = {"detections": judged(MATCHED, FALSE, by_error=by_error)}
        return {tuple(c[:3]) for c in np.asarray(legend(sets, 2000)).reshape(-1, 4).tolist()}

    assert VERDICT_COLOURS[FALSE] in colours(True) and VERDICT_COLOURS[MISSED] not in colours(True)
    assert VERDICT_COLOURS[FALSE] not in colours(False)
    one, two = (legend({"detections": judged(*v)}, 2000) for v in ((FALSE,), (FALSE, FALSE)))
    assert one.size[1] == two.size[1] and not np.array_equal(np.asarray(one), np.asarray(two))


def test_a_thumbnail_fits_and_shows_the_boxes():
    picture = draw_thumbnail(
        Shown(NO_POINTS, None, judged(FALSE, MATCHED)), "height", None, (200, 150)
    )
    assert picture.shape[0] <= 150 and picture.shape[1] <= 200 and max(picture.shape) > 140
    for verdict in (FALSE, MATCHED):
        assert (np.abs(picture.astype(int) - VERDICT_COLOURS[verdict]).max(axis=2) < 80).any()
