"""Verdicts in pictures: crosses, captions, the legend."""

import numpy as np
import pytest

from millisecond.data.metric.kitti import FALSE, IGNORED, MATCHED, MISSED
from millisecond.detector.draw.birds_eye import draw_birds_eye, draw_thumbnail
from millisecond.detector.draw.camera import draw_camera
from millisecond.detector.draw.scene import box_tubes
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


def test_crosses_are_in_the_camera_and_in_3d_too():
    image = np.full((375, 1242, 3), 90, dtype=np.uint8)
    sets = [judged(v, scores=False) for v in (MATCHED, FALSE)]  # no captions
    pictures = [draw_camera(image, CAMERA, Shown(None, None, shown)).astype(int) for shown in sets]
    counts = [
        (np.abs(picture[:375] - VERDICT_COLOURS[verdict]).max(axis=2) <= 2).sum()
        for picture, verdict in zip(pictures, (MATCHED, FALSE), strict=True)
    ]
    assert counts[1] > counts[0] > 0
    eye = np.zeros(3)
    for dashed in (False, True):
        plain, crossed = (box_tubes(judged(v), dashed, eye) for v in (IGNORED, FALSE))
        assert len(crossed.triangles) > len(plain.triangles)


def test_captions_give_the_overlap_of_matches_only():
    assert judged(MATCHED, FALSE).captions() == ["0.50 (0.81)", "0.50"]
    assert judged(MATCHED, MISSED, scores=False).captions() == ["", ""]


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
