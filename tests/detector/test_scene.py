"""The parts of a live scene: what is built again, colours, captions, trails, the camera's image."""

import numpy as np
import pytest

from millisecond.data.simulator import simulated_calibration
from millisecond.detector.draw.camera import draw_inset, project_edges
from millisecond.detector.draw.scene import (
    EYE,
    SceneContent,
    SceneRenderer,
    motion_tubes,
)
from millisecond.detector.draw.style import (
    BACKGROUND,
    CLASS_COLOURS,
    EMPTY,
    RAMP,
    VERDICT_COLOURS,
    BoxSet,
    Palette,
    Photo,
    Shown,
    colourings,
    motion_lines,
    point_colours,
)

CAMERA = simulated_calibration()


def boxes_of(*rows, scores=None) -> BoxSet:
    return Palette().paint(np.array(rows, np.float32), ("Car",) * len(rows), scores)


class Renderer:
    """An Open3DScene that counts what it is given."""

    def __init__(self):
        self.drawn = []


@pytest.mark.parametrize(("processor", "processes"), [(True, 3), (False, 1)])
def test_a_process_that_may_keep_memory_is_replaced(monkeypatch, processor, processes):
    """Five pictures, two of each process; of two processes the first is closed before."""
    told = []

    class Process:
        def __init__(self, *_):
            told.append("starts")

        def send(self, _):
            told.append("draws")

        def has_answer(self, _):
            return True

        def answer(self):
            return np.zeros((1440, 2560, 3), np.uint8)

        def close(self):
            told.append("ends")

    place = "millisecond.detector.draw.scene"
    monkeypatch.setattr(f"{place}.Open3DProcess", Process)
    monkeypatch.setattr(f"{place}.processor_draws", lambda: processor)
    monkeypatch.setattr(f"{place}.LASTS", 2)
    with SceneRenderer() as renderer:
        for _ in range(5):
            renderer.draw(Shown())
    assert told.count("draws") == 5
    lives = [event for event in told if event != "draws"]
    assert lives == ["starts", "ends"] * processes


def test_a_scene_builds_again_only_what_differs(monkeypatch):
    scene, found = Renderer(), boxes_of((15, 3, -1, 4, 1.8, 1.5, 0.0), scores=np.array([0.7]))
    points = np.random.default_rng(0).uniform(-9, 9, (50, 4)).astype(np.float32)
    no_material = "millisecond.detector.draw.scene.material"  # without Open3D
    monkeypatch.setattr(no_material, lambda _: None)
    monkeypatch.setattr(SceneContent, "_show_points", lambda *_: scene.drawn.append("points"))
    monkeypatch.setattr(SceneContent, "_show_mesh", lambda _, name, mesh: scene.drawn.append(name))
    content = SceneContent(scene, EYE, 2.5)
    trails = (np.array([[10.0, 3, -1], [15, 3, -1]]),)
    moved = found._replace(boxes=found.boxes + np.float32([1, 0, 0, 0, 0, 0, 0]))
    for shown, colour_by, new in (
        (found, "height", {"points", "rings", "ground truth", "detections", "trails"}),
        (found, "height", set()),
        (found._replace(scores=np.array([0.1])), "height", set()),  # a caption, no line
        (found._replace(trails=trails), "height", {"trails"}),
        (found._replace(trails=trails), "intensity", {"points"}),
        (moved._replace(trails=trails), "intensity", {"detections"}),
    ):
        scene.drawn.clear()
        content.show(Shown(points, EMPTY, shown), colour_by)
        assert set(scene.drawn) == new
    scene.drawn.clear()
    content.show(Shown(points[::-1].copy(), EMPTY, moved._replace(trails=trails)), "intensity")
    assert scene.drawn == ["points"]


def test_points_are_coloured_by_height_or_intensity():
    points = np.array([(0, 0, -2, 0.8), (0, 0, 1.5, 0), (0, 0, 99, np.nan)], np.float32)
    low, high, shown = RAMP[0], RAMP[-1], Shown(points)
    np.testing.assert_array_equal(point_colours(shown, "height"), [low, high, high])
    np.testing.assert_array_equal(point_colours(shown, "intensity"), [high, low, low])
    assert colourings(shown) == ("height", "intensity")
    np.testing.assert_array_equal(point_colours(shown, "error"), [low, high, high])


def test_points_in_boxes_have_the_colours_of_classes_and_errors():
    boxes = np.array([(10, 0, 0, 4, 2, 1.5, 0), (20, 0, 0, 1, 1, 2, 0)], np.float32)
    places = [(10, 0.9, 0.7, 0), (20, 0.4, 0.9, 0), (20, 0.6, 0, 0), (10, 0, 0.8, 0)]
    points, names = np.array(places, np.float32), ("Car", "Pedestrian")
    missed = Palette().paint(boxes[1:], names[1:]).judged(["missed"], None, False)
    for by_error in (False, True):  # of the boxes' lines
        false = Palette().paint(boxes[:1], names[:1], np.array([0.9]))
        shown = Shown(points, missed, false.judged(["false"], np.array([np.nan]), by_error))
        assert colourings(shown) == ("height", "intensity", "class", "error")
        by_class, by_verdict = (point_colours(shown, name) for name in ("class", "error"))
        for colours, known in ((by_class, CLASS_COLOURS), (by_verdict, VERDICT_COLOURS)):
            wanted = names if known is CLASS_COLOURS else ("false", "missed")
            assert colours[:2].tolist() == [list(known[name]) for name in wanted]
            assert colours[2:].max() < 100  # out of all boxes


def test_points_have_the_colours_that_the_camera_saw():
    """A cloud before a picture whose left half is red and whose right half is green."""
    image = np.zeros((375, 1242, 3), np.uint8)
    image[:, :621, 0] = image[:, 621:, 1] = 200
    points = np.array([(20, 3, 0, 0), (20, -3, 0, 0), (-20, 3, 0, 0)], np.float32)
    shown = Shown(points, photo=Photo(image, CAMERA))
    left, right, behind = point_colours(shown, "camera").tolist()
    assert (left, right) == ([200, 0, 0], [0, 200, 0]) and max(behind) < 100
    assert "camera" in colourings(shown)
    assert "camera" not in colourings(shown._replace(photo=Photo(image, None)))
    assert not Photo(image, None).colours(points)[1].any()


def test_captions_have_the_number_of_the_track():
    shown = boxes_of(*[(10, 0, 0, 4, 2, 1.5, 0)] * 2, scores=np.array([0.876, 0.5]))
    assert shown.captions() == ["Car 0.88", "Car 0.50"]
    assert shown._replace(ids=np.array([12, 0])).captions() == ["#12 Car 0.88", "Car 0.50"]


def test_trails_are_tubes_that_fade():
    shown = boxes_of(*[(10, 0, 0, 4, 2, 1.5, 0)] * 2)
    path = np.array([[0.0, 0, 0], [5, 0, 0], [10, 0, 0]])
    shown = shown._replace(trails=(path, path[:0]))
    segments, colours = motion_lines(shown)
    np.testing.assert_allclose(segments, [path[:2], path[1:]])
    now, past = np.array(shown.colours[0]) / 255, np.array(BACKGROUND) / 255
    away = np.linalg.norm(colours - now, axis=1) / np.linalg.norm(past - now)
    np.testing.assert_allclose(away, [0.9, 0.1])
    mesh = motion_tubes(shown, np.array([0.0, 0, 5]))
    assert np.abs(mesh.vertices[:, 1:]).max() < 0.1  # around the path
    assert mesh.vertices[:, 0].max() == pytest.approx(10, abs=0.1)


def test_an_arrow_leads_to_where_an_object_is_in_a_second():
    shown = boxes_of(*[(10, 0, 0, 4, 2, 1.5, 0)] * 3)
    shown = shown._replace(velocities=np.array([[3.0, 4.0], [0.2, 0.1], [np.nan, np.nan]]))
    segments, colours = motion_lines(shown)
    assert len(segments) == len(colours) == 3  # one moves: a shaft and two wings
    np.testing.assert_allclose(segments[0], [(10, 0, 0), (13, 4, 0)])
    wings = segments[1:, 1] - segments[0, 1]
    np.testing.assert_allclose(segments[1:, 0], [segments[0, 1]] * 2)
    assert (wings @ (3, 4, 0) < 0).all() and np.linalg.norm(wings, axis=1).max() < 1.5
    np.testing.assert_allclose(wings[0] @ (-4, 3, 0), -(wings[1] @ (-4, 3, 0)))


def test_an_inset_is_the_image_made_smaller_with_its_boxes():
    image = np.full((400, 1200, 3), 90, np.uint8)
    found = boxes_of((15, 0, -0.5, 4, 1.8, 1.5, 0.0), scores=np.array([0.7]))

    def photographed(camera):
        return Shown(detections=found, photo=Photo(image, camera))

    inset = draw_inset(photographed(CAMERA), (300, 300)).astype(int)
    assert inset.shape == (100, 300, 3)
    pixels, _ = project_edges(found.boxes, CAMERA)
    for u, v in pixels[0, 8:].mean(axis=1) / 4:  # the middles of the upright edges
        patch = inset[round(v) - 2 : round(v) + 3, round(u) - 2 : round(u) + 3]
        assert np.abs(patch - 90).max() > 60
    assert (inset[:, :20] == 90).all()
    assert (draw_inset(photographed(None), (300, 300)) == 90).all()
    assert draw_inset(photographed(None), (3000, 200)).shape == (200, 600, 3)
