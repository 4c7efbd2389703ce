"""Pictures, looked at where something must be."""

import numpy as np
import pytest
from PIL import Image

from millisecond.data.boxes import box_corners
from millisecond.data.calibration import EDGES
from millisecond.data.simulator import simulate, simulated_calibration
from millisecond.detector.draw.birds_eye import draw_birds_eye
from millisecond.detector.draw.camera import NEAR, draw_camera, project_edges, read_image
from millisecond.detector.draw.objects import CELL, GAP, SIDE, Portrait, draw_object_sheet
from millisecond.detector.draw.png import save_png
from millisecond.detector.draw.scene import (
    RINGS,
    TARGET,
    SceneRenderer,
    SceneUnavailable,
    box_tubes,
    ground_rings,
    usual_view,
)
from millisecond.detector.draw.sheets import Artist
from millisecond.detector.draw.style import (
    BACKGROUND,
    CLASS_COLOURS,
    EMPTY,
    BoxSet,
    Palette,
    Photo,
    Shown,
    dash,
)
from millisecond.detector.draw.text import FreeSpace
from millisecond.detector.draw.view import View
from tests.helpers.kitti_miniature import png
from tests.helpers.warm_processes import WarmProcess

NO_POINTS = np.zeros((0, 4), dtype=np.float32)
CAMERA = simulated_calibration()


def boxes_of(*rows, names=None, scores=None) -> BoxSet:
    names = names or ("Car",) * len(rows)
    return Palette().paint(np.array(rows, dtype=np.float32), names, scores)


def is_near(pixel: np.ndarray, colour, tolerance=40) -> bool:
    return np.abs(pixel.astype(int) - colour).max() <= tolerance


def above(x: float, y: float) -> tuple[int, int]:
    """Row and column in a bird's-eye view of View(): 12 pixels a metre, plot corner (40, 70.4)."""
    return round(40 + (70.4 - x) * 12), round(44 + (40 - y) * 12)


def test_the_ground_glows_where_scores_are_high():
    def scores(places):
        return ((places[:, 0] > 30) & (places[:, 1] > 0)).astype(float)

    picture = draw_birds_eye(Shown(NO_POINTS, scores=scores), view=View()).astype(int)
    plain = draw_birds_eye(Shown(NO_POINTS), view=View()).astype(int)
    row, column = above(45, 20)
    lit = np.abs(picture - plain).max(axis=2) > 100
    assert lit[row - 30 : row + 30, column - 30 : column + 30].all()
    for place in ((45, -20), (15, 20), (15, -20)):
        row, column = above(*place)
        assert not lit[row - 30 : row + 30, column - 30 : column + 30].any()


class PaintedScenes:
    """A renderer whose scenes are red."""

    def draw(self, shown, colour_by, inset):
        assert not inset  # the camera's image is beside the scene
        return np.full((720, 1280, 3), (200, 0, 0), np.uint8)


def test_a_film_has_camera_scene_and_ground_side_by_side():
    image, points = np.full((375, 1242, 3), (0, 200, 0), np.uint8), simulate(1).points
    artist = Artist(PaintedScenes(), "height", None)
    for photo in (Photo(image, CAMERA), None):
        first = artist.film_picture(Shown(points, title="one", photo=photo))
        later = artist.film_picture(Shown(points[:9], EMPTY, photo=photo, title="a long title" * 9))
        assert first.shape == later.shape
        red, green = ((first == colour).all(axis=2) for colour in ((200, 0, 0), (0, 200, 0)))
        assert red.sum() == 720 * 1280
        rows, columns = np.nonzero(red)
        beside, then = (picture[:, columns.max() + 1 :] for picture in (first, later))
        assert columns.min() == 0 and rows.max() == len(first) - 1
        many, few = ((part.max(axis=2) > 150).sum() for part in (beside, then))
        assert many > 1.5 * few > 0  # points, seen from above
        assert beside.shape[1] > 300 and not green[:, columns.max() + 1 :].any()
        assert green.any() == (photo is not None)
        if photo is not None:
            assert np.nonzero(green)[0].max() < rows.min() and green.sum() > 0.9 * 375 * 1242


def test_a_detection_has_its_edges_where_it_ends():
    found = boxes_of((20, 5, -1, 6, 4, 1.5, 0), scores=np.array([0.9]))
    picture = draw_birds_eye(Shown(NO_POINTS, None, found), view=View())
    for place in ((23, 5.5), (17, 5.5), (21, 7), (21, 3)):  # front, back, left, right
        assert is_near(picture[above(*place)], CLASS_COLOURS["Car"]), place
    assert is_near(picture[above(23.5, 5)], CLASS_COLOURS["Car"], 90)  # the heading, out in front
    for place in ((16.5, 5), (18, 5.5), (21, 8)):  # behind, inside, beside
        assert is_near(picture[above(*place)], BACKGROUND), place


def test_a_turned_box_is_turned_to_the_left():
    turn = np.radians(30)
    found = boxes_of((30, 0, -1, 8, 3, 1.5, turn), names=("Van",), scores=np.array([0.5]))
    picture = draw_birds_eye(Shown(NO_POINTS, None, found), view=View())
    front = (30 + 4 * np.cos(turn) - 1 * np.sin(turn), 4 * np.sin(turn) + 1 * np.cos(turn))
    window = np.array(above(*front))
    around = picture[window[0] - 1 : window[0] + 2, window[1] - 1 : window[1] + 2].reshape(-1, 3)
    assert any(is_near(pixel, CLASS_COLOURS["Van"]) for pixel in around)


def test_ground_truth_is_an_area_and_a_detection_is_not():
    truth = boxes_of((20, 5, -1, 6, 4, 1.5, 0), names=("Cyclist",))
    inside = draw_birds_eye(Shown(NO_POINTS, truth), view=View())[above(18, 6)]
    assert not is_near(inside, BACKGROUND, 20)
    assert inside[0] > 1.5 * inside[2]  # yellow
    picture = draw_birds_eye(Shown(NO_POINTS, None, truth), view=View())
    assert is_near(picture[above(18, 6)], BACKGROUND, 5)


def test_points_lie_where_they_are_and_strays_do_no_harm():
    points = np.array(
        [
            [25, -10, 1.5, 0.1],
            [500, 0, 0, 0],
            [-5, 0, 0, 0],
            [3e38, 0, 0, 0],
            [np.nan, 1, 1, 1],
            [9, np.inf, 0, 0],
        ],
        dtype=np.float32,
    )
    picture = draw_birds_eye(Shown(points), view=View())
    assert is_near(picture[above(25, -10)], (255, 255, 255), 120)
    nothing = draw_birds_eye(Shown(NO_POINTS), view=View())
    assert (picture != nothing).any(axis=2).sum() <= 9
    assert nothing.shape == picture.shape and nothing.shape[1] == 960 + 60


@pytest.mark.parametrize(("words", "higher"), [(1, 0), (16, 0), (60, 85)])
def test_a_long_title_is_whole_and_leaves_the_plot_as_it_is(words, higher):
    points = np.array([[25, -10, 1.5, 0.1]], dtype=np.float32)
    view = View.of_range((0, 20), (-10, 10))  # the narrowest there is
    plain = draw_birds_eye(Shown(points), view=view)
    titled = draw_birds_eye(Shown(points, title="seven 7" * words), view=view)
    assert titled.shape == (plain.shape[0] + higher, *plain.shape[1:])
    assert (titled[40 + higher :] == plain[40:]).all()


def test_the_view_agrees_with_the_closed_form():
    places = np.random.default_rng(0).uniform((0, -40), (70, 40), (50, 2))
    rows, columns = np.array([above(*place) for place in places]).T
    pixels = View().pixels(places) + (44, 40)  # noqa: RUF005 - a sum
    assert np.abs(pixels[:, 0] - columns).max() <= 0.5 + 1e-9
    assert np.abs(pixels[:, 1] - rows).max() <= 0.5 + 1e-9


@pytest.mark.parametrize("length", [0.3, 1.0, 3.7, 40.0])
def test_dashes_cover_about_half_of_a_line(length):
    a, b = np.array([1.0, 2, 3]), np.array([1.0, 2, 3]) + np.array([0.6, 0, 0.8]) * length
    dashes = dash(np.stack([a, b])[None], 0.5)
    np.testing.assert_allclose(dashes[0, 0], a)
    np.testing.assert_allclose(dashes[-1, 1], b)
    covered = np.linalg.norm(dashes[:, 1] - dashes[:, 0], axis=1).sum()
    assert covered == pytest.approx(length / 2, rel=0.35) or len(dashes) == 1
    assert len(dash(np.zeros((0, 2, 2)), 1.0)) == 0


def test_edges_in_the_image_join_the_projected_corners():
    frame = simulate(0)
    edges, seen = project_edges(frame.boxes, CAMERA)
    for box, lines, visible in zip(frame.boxes, edges, seen, strict=True):
        pixels, depth = CAMERA.lidar_to_image(box_corners(box[None])[0])
        if depth.min() > NEAR:
            np.testing.assert_allclose(lines, pixels[EDGES], atol=0.05)
            assert visible.all()


def test_edges_end_at_the_near_plane():
    # Beside the camera: half of the box is behind it.
    box = np.array([[1.0, 3.0, -1.0, 4.0, 1.6, 1.5, 0.3]])
    edges, seen = project_edges(box, CAMERA)
    corners = CAMERA.lidar_to_rect(box_corners(box)[0])
    for line, visible, (i, j) in zip(edges[0], seen[0], EDGES, strict=True):
        along = np.linspace(0, 1, 400)[:, None]
        places = corners[i] + along * (corners[j] - corners[i])
        places = places[places[:, 2] >= NEAR]
        assert visible == bool(len(places))
        if not visible:
            continue
        pixels = CAMERA.rect_to_image(places)
        run = line[1] - line[0]
        share = (pixels - line[0]) @ run / (run @ run)
        assert share.min() > -1e-3 and share.max() < 1 + 1e-3
        off = pixels - line[0] - share[:, None] * run
        np.testing.assert_allclose(off, 0, atol=1e-6 * np.abs(pixels).max())


def test_the_camera_picture_has_boxes_in_it_and_a_legend_below():
    image = np.full((375, 1242, 3), 90, dtype=np.uint8)
    found = boxes_of((12, 2, -1, 4, 1.8, 1.5, 0.0), scores=np.array([0.8]))
    picture = draw_camera(image, CAMERA, Shown(None, None, found, "frame"))
    assert picture.shape[1] == 1242 and picture.shape[0] > 375
    bottom_left = CAMERA.lidar_to_image(np.array([[10.0, 2.9, -1.75], [10.0, 1.1, -1.75]]))[0]
    u, v = np.round(bottom_left.mean(0)).astype(int)  # the middle of the lower edge at the back
    patch = picture[v - 1 : v + 2, u].astype(int)
    assert any(is_near(pixel, CLASS_COLOURS["Car"]) for pixel in patch)
    assert is_near(picture[10, 10], (90, 90, 90), 0)


@pytest.mark.parametrize("grey", [0, 128, 255])
def test_ground_truth_is_seen_on_any_image(grey):
    image = np.full((375, 1242, 3), grey, dtype=np.uint8)
    truth = boxes_of((12, 2, -1, 4, 1.8, 1.5, 0.0), (45, -4, -1, 4, 1.8, 1.5, 0.3))
    picture = draw_camera(image, CAMERA, Shown(None, truth, None)).astype(int)
    edges, _ = project_edges(truth.boxes, CAMERA)
    for start, end in edges[:, [0, 2, 8]].reshape(-1, 2, 2):
        count = int(np.linalg.norm(end - start)) + 1
        places = np.round(start + np.linspace(0, 1, count)[:, None] * (end - start)).astype(int)
        contrast = np.abs(picture[places[:, 1], places[:, 0]] - grey).max(axis=1)
        # On black only the dashes are seen, on white the gaps too.
        assert (contrast > 75).mean() > 0.35 and contrast.max() > 100


def test_both_are_seen_where_they_coincide():
    image = np.full((375, 1242, 3), 90, dtype=np.uint8)
    row = (12, 2, -1, 4, 1.8, 1.5, 0.0)
    found = boxes_of(row, scores=np.array([0.8]))
    alone = draw_camera(image, CAMERA, Shown(None, None, found)).astype(int)
    both = draw_camera(image, CAMERA, Shown(None, boxes_of(row), found)).astype(int)
    green = np.abs(alone - CLASS_COLOURS["Car"]).max(axis=2) <= 40
    changed = np.abs(both - alone).max(axis=2) > 60
    assert 0.1 < changed[green].mean() < 0.9


@pytest.mark.parametrize("kind", ["cut off", "no image", "too large"])
def test_an_image_that_cannot_be_read_is_one_line(kind, tmp_path):
    path = tmp_path / "image.png"
    if kind == "cut off":
        noise = np.random.default_rng(0).integers(0, 256, (90, 90, 3), dtype=np.uint8)
        Image.fromarray(noise).save(path)
        path.write_bytes(path.read_bytes()[:9000])
    elif kind == "no image":
        path.write_text("P5")
    else:
        path.write_bytes(png(12_000, 12_000))
    with pytest.raises(ValueError, match=r"image\.png: not an image"):
        read_image(path)


def test_scores_lie_above_their_boxes_and_apart():
    rows = [(8 + 5 * i, 4 * np.sin(i), -1, 4, 1.8, 1.5, 0.3 * i) for i in range(12)]
    shown = boxes_of(*rows, scores=np.linspace(0.3, 0.9, 12))
    view = usual_view((1280, 720))
    captions = Shown(detections=shown).captions()
    placed = list(view.place_captions(captions, FreeSpace((0, 0, 1280, 720))))
    assert len(placed) > 6 and placed[0][0].text == "Car 0.90"
    boxes = []
    for caption, middle, depth in placed:
        edges, depths = view.project(box_corners(caption.box[None])[0])
        assert middle[1] + 9 < edges[:, 1].min()
        assert depths.min() < depth < depths.max()
        np.testing.assert_allclose(view.project(view.point(middle, depth)[None])[0][0], middle)
        boxes.append(middle)
    for i, one in enumerate(boxes):
        for other in boxes[:i]:
            assert abs(one - other)[0] >= 56 or abs(one - other)[1] >= 18


def test_rings_are_ahead_or_all_round():
    for all_round, reach in ((False, 50), (True, 180)):
        x, y, _ = ground_rings(all_round).vertices.T
        assert np.degrees(np.abs(np.arctan2(y, x))).max() == pytest.approx(reach, abs=1)
        away = np.hypot(x, y)[:, None] - RINGS
        assert np.abs(away).min(axis=1).max() < 0.1


def test_tubes_follow_the_edges():
    truth = boxes_of((20, 5, -1, 6, 4, 1.5, 0.4))
    eye = np.array([0.0, 0, 5])
    solid, dashed = box_tubes(truth, False, eye), box_tubes(truth, True, eye)
    assert solid.triangles.max() < len(solid.vertices) and len(dashed.triangles) > 100
    corners = box_corners(truth.boxes.astype(float))[0]
    a, b = corners[EDGES[:, 0]], corners[EDGES[:, 1]]
    middle, out = corners.mean(0), np.array([np.cos(0.4), np.sin(0.4), 0])
    heading = np.stack([middle, middle + 3.7 * out])
    a, b = np.vstack([a, heading[:1]]), np.vstack([b, heading[1:]])
    for mesh in (solid, dashed):
        offset = mesh.vertices[:, None] - a
        share = ((offset * (b - a)).sum(-1) / ((b - a) ** 2).sum(-1)).clip(0, 1)
        away = np.linalg.norm(offset - share[..., None] * (b - a), axis=-1).min(1)
        assert away.max() < 0.1
    assert len(box_tubes(EMPTY, True, eye).triangles) == 0


def test_the_scene_is_seen_from_behind():
    size = (800, 600)
    places = TARGET + np.array([[0, 0, 0], [0, 3, 0], [0, 0, 3]])
    pixels, depth = usual_view(size).project(places)
    np.testing.assert_allclose(pixels[0], (400, 300), atol=1e-9)
    assert pixels[1, 0] < 400 and pixels[2, 1] < 300
    assert (depth > 0).all()


def test_the_rendered_scene_shows_a_box_where_it_projects():
    found = boxes_of((15, 3, -1, 4, 1.8, 1.5, 0.0), names=("Pedestrian",), scores=np.array([0.7]))
    points = np.random.default_rng(0).uniform((5, -9, -2, 0), (40, 9, -1.7, 1), (500, 4))
    with SceneRenderer(640, 360) as renderer:
        try:
            picture = renderer.draw(Shown(points.astype(np.float32), None, found))
            empty = renderer.draw(Shown(NO_POINTS))
        except SceneUnavailable as error:
            pytest.skip(str(error))
    assert picture.shape == (360, 640, 3)
    corners = box_corners(found.boxes)[0]
    for i, j in ((0, 1), (2, 3), (6, 7), (0, 4)):
        u, v = usual_view((640, 360)).project(corners[[i, j]].mean(0, keepdims=True))[0][0]
        patch = picture[round(v) - 1 : round(v) + 2, round(u) - 1 : round(u) + 2].reshape(-1, 3)
        assert any(is_near(pixel, CLASS_COLOURS["Pedestrian"], 60) for pixel in patch)
    red = (empty[..., 0].astype(int) - empty[..., 1]) > 60
    assert not red.any()


def test_nothing_imports_open3d_before_it_is_needed():
    modules = "detector, detector.draw.birds_eye, detector.draw.camera, detector.draw.window"
    code = f"import sys, {modules}\nassert 'open3d' not in sys.modules"
    process = WarmProcess(["-c", code], {})
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said


def test_a_picture_is_written_whole(tmp_path):
    picture = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    save_png(tmp_path / "new" / "a.png", picture)
    with Image.open(tmp_path / "new" / "a.png") as image:
        np.testing.assert_array_equal(np.asarray(image), picture)
        assert image.text == {"Software": "millisecond"}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.png"]


def test_only_pictures_of_this_program_are_replaced(tmp_path):
    black, white = np.zeros((4, 4, 3), np.uint8), np.full((4, 4, 3), 255, np.uint8)
    save_png(tmp_path / "own.png", black)
    save_png(tmp_path / "own.png", white)
    with Image.open(tmp_path / "own.png") as image:
        assert np.asarray(image).min() == 255
    Image.fromarray(black).save(tmp_path / "holiday.png")
    (tmp_path / "notes.png").write_text("no picture at all")
    for name in ("holiday.png", "notes.png"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(ValueError, match=f"{name}: .* not a picture of this program"):
            save_png(tmp_path / name, white)
        assert (tmp_path / name).read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 3


def test_objects_are_drawn_from_above_and_from_the_side():
    """A row of points along the top edge of a box that heads to the left, one half at its front."""
    box = np.array([10, 5, 0, 4, 2, 3, np.pi / 2], np.float32)
    points = np.zeros((20, 4), np.float32)
    points[:, :3] = np.column_stack([np.full(20, 10), np.linspace(5, 7, 20), np.full(20, 1.4)])
    sheet = draw_object_sheet([[Portrait(points, box, (255, 0, 0), ("Car", "20 points"))]])
    from_above = sheet[GAP : GAP + CELL, GAP : GAP + CELL]
    from_the_side = sheet[GAP + CELL + 1 : GAP + CELL + SIDE, GAP : GAP + CELL]
    for view, (right, down) in ((from_above, (-1, 0)), (from_the_side, (1, -1))):
        rows, columns = np.nonzero(view.min(axis=2) > 200)
        height, width = view.shape[:2]
        assert len(rows) and (np.sign(columns.mean() - width / 2) == right)
        assert abs(rows.mean() - height / 2) < 3 if down == 0 else rows.max() < height / 2
        assert (view == (255, 0, 0)).all(axis=2).sum() > 100
