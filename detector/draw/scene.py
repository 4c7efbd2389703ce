"""A scan and its boxes in 3-D, seen from behind and above the sensor, rendered by Open3D. The cloud
keeps its place in the graphics memory. Lines are meshes of tubes. Texts are drawn on the picture.

Open3D is imported inside the functions that need it, which run in a process of their own.
"""

import os
from collections import deque
from collections.abc import Iterator
from functools import cache
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from millisecond.data.boxes import box_corners
from millisecond.data.calibration import EDGES
from millisecond.detector.draw.camera import draw_inset
from millisecond.detector.draw.open3d_process import (
    REMEDY,
    Open3DProcess,
    display_problem,
    processor_draws,
)
from millisecond.detector.draw.style import (
    BACKGROUND,
    EMPTY,
    FAINT,
    GRID,
    TEXT,
    BoxSet,
    Colour,
    Shown,
    line_pieces,
    mark,
    motion_lines,
    outline,
    point_colours,
    tint,
)
from millisecond.detector.draw.text import SIZE, FreeSpace, legend, panel, shortened, write
from millisecond.detector.draw.view import Viewpoint, take

RINGS, GROUND = (10, 20, 30, 40, 50, 60, 70), -1.75  # metres from and below the sensor
RING = (66, 75, 92)  # colour
SIDES = 6  # of a tube
FACES = [[4, 5, 6, 7], [0, 1, 5, 4], [1, 2, 6, 5], [2, 3, 7, 6], [3, 0, 4, 7]]  # top and sides


class ColoredMesh(NamedTuple):
    """Triangles with a colour per vertex."""

    vertices: np.ndarray  # [V, 3] float64
    triangles: np.ndarray  # [T, 3] int32
    colours: np.ndarray  # [V, 3] float64, 0 to 1


def box_tubes(shown: BoxSet, dashed: bool, eye: np.ndarray) -> ColoredMesh:
    """The lines of boxes as tubes, thicker with the distance to the eye [3].

    dashed: thin and dashed, for ground truth; detections are thick and solid.
    """
    segments, colours, of_box = box_lines(shown, dashed)
    thin, slope = (0.016, 0.0008) if dashed else (0.03, 0.0012)
    radius = thin + slope * np.linalg.norm(shown.boxes[:, :3] - eye, axis=1)
    return _tubes(segments, radius[of_box], colours)


def box_lines(shown: BoxSet, dashed: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Edges, heading lines and marks: segments [S, 2, 3], colours [S, 3] from 0 to 1, the row of
    the box [S] int64. Errors have a mark on each face but the lowest one."""
    corners = box_corners(np.asarray(shown.boxes, np.float64))
    middle, front = corners.mean(1), corners[:, [0, 3, 4, 7]].mean(1)
    out = (front - middle) / np.maximum(np.linalg.norm(front - middle, axis=1), 1e-6)[:, None]
    heading = np.stack([middle, front + 0.7 * out], axis=1)[:, None]
    pieces = [np.zeros((0, 2, 3))]
    for i, own in enumerate(corners):
        verdict = shown.verdict(i)
        faces = [mark(own[face], verdict) for face in FACES]
        edges = outline(own[EDGES], verdict, 0.25 if dashed else None)
        pieces.append(np.concatenate([edges, heading[i], *faces]))
    of_box = np.repeat(np.arange(len(corners)), [len(piece) for piece in pieces[1:]])
    colours = _shares([tint(colour) if dashed else colour for colour in shown.colours])
    return np.concatenate(pieces), colours[of_box], of_box


def motion_tubes(shown: BoxSet, eye: np.ndarray) -> ColoredMesh:
    """The paths of the boxes' centres, and arrows of their speed."""
    segments, colours = motion_lines(shown)
    radius = 0.02 + 0.0012 * np.linalg.norm(segments.mean(axis=1) - eye, axis=1)
    return _tubes(segments, radius, colours)


def ground_rings(all_round: bool) -> ColoredMesh:
    """Thin circles on the ground, or arcs ahead, one every 10 m, as the scale of the scene."""
    reach = 180 if all_round else 50  # degrees
    segments = ring_segments(reach)
    radius = np.repeat(0.012 + 0.0006 * np.array(RINGS), len(segments) // len(RINGS))
    return _tubes(segments, radius, np.tile(_shares([RING]), (len(segments), 1)))


def ring_segments(reach: int) -> np.ndarray:
    """[S, 2, 3]: all rings, so many degrees to the left and to the right."""
    angle = np.radians(np.arange(-reach, reach + 1, 2))
    return np.concatenate([line_pieces(_ring(metres, angle)) for metres in RINGS])


def _ring(metres: float, angle: np.ndarray) -> np.ndarray:
    """[N, 3] places on the ground, so far from the sensor."""
    return np.stack([metres * np.cos(angle), metres * np.sin(angle), 0 * angle + GROUND], axis=1)


def _shares(colours) -> np.ndarray:
    """Colours as [N, 3] from 0 to 1."""
    return np.array(colours, np.float64).reshape(-1, 3) / 255


def _tubes(segments: np.ndarray, radius: np.ndarray, colours: np.ndarray) -> ColoredMesh:
    """Prisms of SIDES sides around segments [S, 2, 3], longer than the segments by a radius at each
    end.

    radius: [S] metres. colours: [S, 3].
    """
    along = segments[:, 1] - segments[:, 0]
    along = along / np.maximum(np.linalg.norm(along, axis=1, keepdims=True), 1e-9)
    helper = np.where(np.abs(along[:, 2:]) > 0.9, (1.0, 0, 0), (0, 0, 1.0))
    first = np.cross(along, helper)
    first /= np.maximum(np.linalg.norm(first, axis=1, keepdims=True), 1e-9)
    second = np.cross(along, first)
    turn = np.arange(SIDES) * 2 * np.pi / SIDES
    ring = np.cos(turn)[:, None] * first[:, None] + np.sin(turn)[:, None] * second[:, None]
    ring *= radius[:, None, None]
    ends = segments + np.stack([-along, along], axis=1) * radius[:, None, None]
    vertices = (ends[:, :, None] + ring[:, None]).reshape(-1, 3)  # [S * 2 * SIDES, 3]
    i = np.arange(SIDES)
    j = (i + 1) % SIDES
    sides = np.concatenate([np.stack([i, j, j + SIDES], 1), np.stack([i, j + SIDES, i + SIDES], 1)])
    caps = np.stack([np.zeros(SIDES - 2, int), i[1:-1], i[2:]], 1)
    one = np.concatenate([sides, caps[:, ::-1], caps + SIDES])
    triangles = (one + np.arange(len(segments))[:, None, None] * 2 * SIDES).reshape(-1, 3)
    return ColoredMesh(vertices, triangles.astype(np.int32), np.repeat(colours, 2 * SIDES, axis=0))


REACH = 300.0  # metres: points farther away are not drawn
BEHIND = 0.01  # share of the points behind the sensor from which rings go all round
LEAST = 1 << 14  # points for which there is room
KEPT = 8  # clouds; the renderer reads their memory while it is behind


class SceneContent:
    """Changes only the parts that differ from before: a new view or caption builds nothing again.

    The geometries are "points", "rings", "trails", "ground truth" and "detections"; an empty one
    does not exist.
    """

    def __init__(self, scene, eye: np.ndarray, point_size: float):
        """scene: an Open3DScene. eye [3]: the place from which lines have the right thickness."""
        self._scene, self._eye = scene, eye
        self._material = material(point_size)
        self._room = 0  # points
        self._clouds: deque = deque(maxlen=KEPT)
        self._made: dict[str, object] = {}  # the input of each geometry

    def show(self, shown: Shown, colour_by: str) -> None:
        """Points, coloured by one of style.COLOURINGS, and boxes."""
        points, colours = visible_points(shown, colour_by)
        ground_truth, detections = shown.ground_truth or EMPTY, shown.detections or EMPTY
        if self._is_new("points", (points.tobytes(), colours.tobytes())):
            self._show_points(points, colours)
        all_round = bool(len(points)) and bool((points[:, 0] < -1).mean() > BEHIND)
        if self._is_new("rings", all_round):
            self._show_mesh("rings", ground_rings(all_round))
        if self._is_new("ground truth", _key(ground_truth)):
            self._show_mesh("ground truth", box_tubes(ground_truth, True, self._eye))
        if self._is_new("detections", _key(detections)):
            self._show_mesh("detections", box_tubes(detections, False, self._eye))
        segments, colours = motion_lines(detections)
        if self._is_new("trails", (segments.tobytes(), colours.tobytes())):
            self._show_mesh("trails", motion_tubes(detections, self._eye))

    def _is_new(self, name: str, made_of: object) -> bool:
        if name in self._made and self._made[name] == made_of:
            return False
        self._made[name] = made_of
        return True

    def _show_points(self, points: np.ndarray, shades: np.ndarray) -> None:
        import open3d as o3d
        from open3d.visualization import rendering

        if not len(points):
            self._scene.remove_geometry("points")
            self._room = 0
            return
        grown = len(points) > self._room
        if grown:
            self._room = max(LEAST, 1 << (len(points) - 1).bit_length())
        # The rest repeats the first point: the renderer cannot change the number of points.
        places, colours = np.empty((2, self._room, 3), np.float32)
        places[: len(points)], places[len(points) :] = points[:, :3], points[0, :3]
        colours[: len(points)] = shades / np.float32(255)
        colours[len(points) :] = colours[0]
        tensor: Any = o3d.core.Tensor  # its types leave out arrays
        cloud = o3d.t.geometry.PointCloud(tensor(places))
        cloud.point.colors = tensor(colours)
        self._clouds.append(cloud)
        if grown:
            self._scene.remove_geometry("points")
            self._scene.add_geometry("points", cloud, self._material, False)
            self._scene.scene.set_geometry_culling("points", False)  # by the first cloud's bounds
        else:
            flags = rendering.Scene.UPDATE_POINTS_FLAG | rendering.Scene.UPDATE_COLORS_FLAG
            self._scene.scene.update_geometry("points", cloud, flags)

    def _show_mesh(self, name: str, tube: ColoredMesh) -> None:
        import open3d as o3d

        vector = o3d.utility.Vector3dVector
        self._scene.remove_geometry(name)
        if len(tube.triangles):
            mesh = o3d.geometry.TriangleMesh(
                vector(tube.vertices), o3d.utility.Vector3iVector(tube.triangles)
            )
            mesh.vertex_colors = vector(tube.colours)
            # Without these the shader samples its (blank) texture at random places, and a software
            # driver may filter for minutes.
            mesh.triangle_uvs = o3d.utility.Vector2dVector(np.zeros((3 * len(tube.triangles), 2)))
            self._scene.add_geometry(name, mesh, self._material)


def visible_points(shown: Shown, colour_by: str) -> tuple[np.ndarray, np.ndarray]:
    """The points [P, 4] that are drawn, only finite ones, and their colours [P, 3] uint8."""
    x, y, z = np.abs(shown.points[:, :3].T)
    near = (x < REACH) & (y < REACH) & (z < REACH)
    shown = shown if near.all() else shown._replace(points=shown.points[near])
    return shown.points, point_colours(shown, colour_by)


def _key(shown: BoxSet) -> tuple:
    return (shown.boxes.tobytes(), shown.colours, shown.verdicts)


def material(point_size: float):
    """Colours as they are, points of so many pixels."""
    from open3d.visualization import rendering

    plain = rendering.MaterialRecord()
    plain.shader, plain.point_size = "defaultUnlit", point_size
    return plain


MARGIN = 20  # pixels to the picture's edges
TITLE = 17  # pixels, size of its letters
INSET = (540, 300)  # pixels, the largest width and height of the camera's image


def lay_over(picture: np.ndarray, view: Viewpoint, marks: np.ndarray, shown: Shown) -> np.ndarray:
    """The picture [H, W, 3] uint8, as seen from `view`, with all texts; marks: [R, 3] where the
    distances of the rings are written."""
    image = Image.fromarray(picture)
    draw = ImageDraw.Draw(image)
    wide, high = view.size
    strip = legend(shown.sets, wide - 2 * MARGIN)
    top = high - strip.height - 12
    image.paste(strip, (MARGIN, top), strip)
    taken: list[tuple[int, ...]] = [(0, 0, wide, 40)]
    room = wide - 2 * MARGIN
    if shown.photo is not None:
        inset = framed(shown)
        taken.append(_paste(image, inset, wide - MARGIN - inset.width, MARGIN))
        room -= inset.width + MARGIN
    if shown.figures:
        taken.append(_paste(image, panel(shown.figures), MARGIN, 40))
    space = FreeSpace((0, 0, wide, top), np.array(taken, np.float64))
    for text, colour, place, _ in placed_texts(view, marks, shown, space):
        write(draw, tuple(place), text, colour, SIZE, "mm", outlined=True)
    title = shortened(shown.title, TITLE, room)
    write(draw, (MARGIN, 24), title, TEXT, TITLE, outlined=True)
    return np.asarray(image)


def placed_texts(
    view: Viewpoint, marks: np.ndarray, shown: Shown, space: FreeSpace
) -> Iterator[tuple[str, Colour, np.ndarray, float]]:
    """Captions of boxes and distances of rings that find room, as seen from `view`: text, colour,
    pixel of the middle, depth. marks: as in `lay_over`."""
    for caption, place, depth in view.place_captions(shown.captions(), space):
        yield caption.text, caption.colour, place, depth
    for metres, place, depth in zip(RINGS, *view.project(marks), strict=True):
        if depth > 0 and take(space, place, f"{metres} m"):
            yield f"{metres} m", FAINT, place, float(depth)


def framed(shown: Shown) -> Image.Image:
    """The camera's image, made small, with boxes and a thin frame."""
    inset = draw_inset(shown, INSET)
    image = Image.new("RGBA", (inset.shape[1] + 2, inset.shape[0] + 2), (*GRID, 255))
    image.paste(Image.fromarray(inset), (1, 1))
    return image


def _paste(image: Image.Image, part: Image.Image, left: int, top: int) -> tuple[int, ...]:
    """Returns the place that it takes."""
    image.paste(part, (left, top), part)
    return left, top, left + part.width, top + part.height


EYE, TARGET = np.array([-11.0, 0.0, 8.0]), np.array([14.0, 0.0, -1.0])  # metres, LiDAR frame
FIELD_OF_VIEW = 42.0  # degrees, from top to bottom
AT_FIRST = (1280, 720)  # pixels of a window
SMOOTH = 2  # rendered this many times larger, then shrunk
PATIENCE = 300.0  # seconds for one picture
LASTS = 200  # pictures of a process whose driver may keep memory of each, see processor_draws


class SceneUnavailable(RuntimeError):
    """Open3D cannot render here; the text is one line with the remedy."""


def prepare_scene(scene) -> None:
    """Background and light of an Open3DScene: colours are shown as they are."""
    share = np.array(BACKGROUND) / 255
    # The background alone is taken for sRGB and decoded, so it is encoded here.
    encoded = np.where(share <= 0.0031308, 12.92 * share, 1.055 * share ** (1 / 2.4) - 0.055)
    scene.set_background(np.append(encoded, 1.0))
    scene.view.set_post_processing(False)
    scene.show_axes(False)


class SceneRenderer:
    """Renders scenes off-screen, in another process that stays up for the next picture.

    Use it as a context manager.
    """

    def __init__(self, width: int = 1280, height: int = 720):
        self.size = (width, height)
        self._process: Open3DProcess | None = None
        self._drawn = 0  # pictures of this process

    def __enter__(self) -> "SceneRenderer":
        return self

    def __exit__(self, *_):
        if self._process is not None:
            self._process.close()

    def draw(self, shown: Shown, colour_by: str = "height", inset: bool = True) -> np.ndarray:
        """[H, W, 3] uint8 RGB with title and legend; colour_by: one of style.COLOURINGS. inset:
        with the camera's image, where there is one.

        Raises SceneUnavailable where Open3D cannot render.
        """
        picture = self._render(shown._replace(scores=None), colour_by)
        picture = np.asarray(Image.fromarray(picture).resize(self.size, Image.Resampling.BOX))
        shown = shown if inset else shown._replace(photo=None)
        return lay_over(picture, usual_view(self.size), ring_marks(self.size), shown)

    def _render(self, *scene) -> np.ndarray:
        """[SMOOTH * H, SMOOTH * W, 3] uint8 from the other process."""
        if self._process is not None and self._drawn >= LASTS and processor_draws():
            self._process.close()
            self._process = None
        if self._process is None:
            self._process = Open3DProcess(_serve, self.size, not display_problem())
            self._drawn = 0
        self._drawn += 1
        try:
            self._process.send(scene)
            in_time = self._process.has_answer(PATIENCE)
            answer = self._process.answer() if in_time else "it takes too long"
        except (EOFError, OSError):
            answer = "it ended its process"
        if isinstance(answer, str):
            raise SceneUnavailable(f"no 3-D picture, Open3D cannot render here: {answer}; {REMEDY}")
        return answer


def usual_view(size: tuple[int, int]) -> Viewpoint:
    """The viewpoint of all pictures, and of a window at first."""
    return Viewpoint.looking(EYE, TARGET, FIELD_OF_VIEW, size)


@cache
def ring_marks(size: tuple[int, int]) -> np.ndarray:
    """Where to write the distance of each ring, [R, 3]: far right in a picture of that size."""
    view, angle = usual_view(size), np.radians(np.linspace(-46, 0, 93))
    marks = []
    for metres in RINGS:
        arc = _ring(metres, angle)
        marks.append(arc[view.project(arc)[0][:, 0] < size[0] - 60][0])
    return np.array(marks)


def _serve(pipe: Connection, size: tuple[int, int], has_display: bool) -> None:
    """The rendering process: a picture for each scene that comes, or a line with the error."""
    if not has_display:  # it would wait for ever for an X server that hangs
        os.environ.pop("DISPLAY", None)
    renderer = content = None
    picture: np.ndarray | str
    while True:
        scene = pipe.recv()
        try:
            if renderer is None or content is None:
                renderer = _make_renderer(size)
                content = SceneContent(renderer.scene, EYE, 2.5 * SMOOTH)
            content.show(*scene)
            picture = np.asarray(renderer.render_to_image()).copy()
        except (ImportError, OSError, RuntimeError) as error:
            picture = str(error).partition("\n")[0] or type(error).__name__
        pipe.send(picture)


def _make_renderer(size: tuple[int, int]):
    from open3d.visualization import rendering

    width, height = size
    renderer = rendering.OffscreenRenderer(SMOOTH * width, SMOOTH * height)
    prepare_scene(renderer.scene)
    renderer.setup_camera(FIELD_OF_VIEW, TARGET, EYE, (0, 0, 1), 0.1, 1000.0)  # metres seen
    return renderer
