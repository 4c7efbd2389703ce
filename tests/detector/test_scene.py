"""The parts of a live scene: what is built again, colours, captions, trails, the camera's image."""

import numpy as np
import pytest

from millisecond.data.simulator import simulated_calibration
from millisecond.detector.draw.camera import draw_inset, project_edges
from millisecond.detector.draw.scene import (
    EYE,
    SceneContent,
    point_colours,
    trail_colours,
    trail_tubes,
)
from millisecond.detector.draw.style import BACKGROUND, EMPTY, RAMP, BoxSet, Palette, Shown

CAMERA = simulated_calibration()


def boxes_of(*rows, scores=None) -> BoxSet:
    return Palette().paint(np.array(rows, np.float32), ("Car",) * len(rows), scores)


class Renderer:
    """An Open3DScene that counts what it is given."""

    def __init__(self):
        self.drawn = []


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
        (moved._replace(trails=trails), "intensity", {"detections", "trails"}),
    ):
        scene.drawn.clear()
        content.show(Shown(points, EMPTY, shown), colour_by)
        assert set(scene.drawn) == new
    scene.drawn.clear()
    content.show(Shown(points[::-1].copy(), EMPTY, moved._replace(trails=trails)), "intensity")
    assert scene.drawn == ["points"]


def test_points_are_coloured_by_height_or_intensity():
    points = np.array([(0, 0, -2, 0.8), (0, 0, 1.5, 0), (0, 0, 99, np.nan)], np.float32)
    low, high = np.array(RAMP[0]) / 255, np.array(RAMP[-1]) / 255
    np.testing.assert_allclose(point_colours(points, "height"), [low, high, high], atol=1e-6)
    np.testing.assert_allclose(point_colours(points, "intensity"), [high, low, low], atol=1e-6)


def test_captions_have_the_number_of_the_track():
    shown = boxes_of(*[(10, 0, 0, 4, 2, 1.5, 0)] * 2, scores=np.array([0.876, 0.5]))
    assert shown.captions() == ["Car 0.88", "Car 0.50"]
    assert shown._replace(ids=np.array([12, 0])).captions() == ["#12 Car 0.88", "Car 0.50"]


def test_trails_are_tubes_that_fade():
    shown = boxes_of(*[(10, 0, 0, 4, 2, 1.5, 0)] * 2)
    path = np.array([[0.0, 0, 0], [5, 0, 0], [10, 0, 0]])
    shown = shown._replace(trails=(path, path[:0]))
    segments, colours = trail_colours(shown)
    np.testing.assert_allclose(segments, [path[:2], path[1:]])
    now, past = np.array(shown.colours[0]) / 255, np.array(BACKGROUND) / 255
    away = np.linalg.norm(colours - now, axis=1) / np.linalg.norm(past - now)
    np.testing.assert_allclose(away, [0.9, 0.1])
    mesh = trail_tubes(shown, np.array([0.0, 0, 5]))
    assert np.abs(mesh.vertices[:, 1:]).max() < 0.1  # around the path
    assert mesh.vertices[:, 0].max() == pytest.approx(10, abs=0.1)


def test_an_inset_is_the_image_made_smaller_with_its_boxes():
    image = np.full((400, 1200, 3), 90, np.uint8)
    found = boxes_of((15, 0, -0.5, 4, 1.8, 1.5, 0.0), scores=np.array([0.7]))
    inset = draw_inset(image, CAMERA, found, (300, 300)).astype(int)
    assert inset.shape == (100, 300, 3)
    pixels, _ = project_edges(found.boxes, CAMERA)
    for u, v in pixels[0, 8:].mean(axis=1) / 4:  # the middles of the upright edges
        patch = inset[round(v) - 2 : round(v) + 3, round(u) - 2 : round(u) + 3]
        assert np.abs(patch - 90).max() > 60
    assert (inset[:, :20] == 90).all()
    assert (draw_inset(image, None, found, (300, 300)) == 90).all()
    assert draw_inset(image, None, found, (3000, 200)).shape == (200, 600, 3)
