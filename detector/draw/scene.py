"""A scan and its boxes in 3-D, seen from behind and above the sensor, rendered by Open3D.

Open3D is imported inside the functions that need it, which run in a process of their own.
"""

import os
from multiprocessing.connection import Connection

import numpy as np
from PIL import Image, ImageDraw

from detector.draw.captions import FreeSpace
from detector.draw.display import display_problem
from detector.draw.open3d_process import REMEDY, Open3DProcess
from detector.draw.strips import legend
from detector.draw.style import BACKGROUND, EMPTY, FAINT, TEXT, BoxSet, ramp
from detector.draw.text import shortened, write
from detector.draw.tubes import GROUND, RINGS, box_tubes, ground_rings
from detector.draw.viewpoint import Viewpoint, take

EYE, TARGET = np.array([-11.0, 0.0, 8.0]), np.array([14.0, 0.0, -1.0])  # metres, LiDAR frame
FIELD_OF_VIEW = 42.0  # degrees, from top to bottom
SMOOTH = 2  # rendered this many times larger, then shrunk
HEIGHTS = (-2.0, 1.5)  # metres: the ends of the colour ramp
REACH = 300.0  # metres: what lies farther away is not drawn
BEHIND = 0.01  # share of the points behind the sensor from which rings go all round
PATIENCE = 300.0  # seconds for one picture


class SceneUnavailable(RuntimeError):
    """Open3D cannot render here; the text is one line with the remedy."""


def fill_scene(scene, points: np.ndarray, ground_truth: BoxSet, detections: BoxSet, size: float):
    """Replace what an Open3DScene shows by points [P, 4] (`size` pixels each) and boxes.

    The geometries are "points", "rings", "ground truth" and "detections"; what is empty is none.
    """
    import open3d as o3d

    scene.clear_geometry()
    vector = o3d.utility.Vector3dVector
    points = points[(np.abs(points[:, :3]) < REACH).all(axis=1)]
    if len(points):
        cloud = o3d.geometry.PointCloud(vector(points[:, :3].astype(np.float64)))
        cloud.colors = vector(ramp(points[:, 2], *HEIGHTS) / 255)
        scene.add_geometry("points", cloud, material(size))
    tubes = {
        "rings": ground_rings(len(points) > 0 and (points[:, 0] < -1).mean() > BEHIND),
        "ground truth": box_tubes(ground_truth, True, EYE),
        "detections": box_tubes(detections, False, EYE),
    }
    for name, tube in tubes.items():
        if len(tube.triangles):
            mesh = o3d.geometry.TriangleMesh(
                vector(tube.vertices), o3d.utility.Vector3iVector(tube.triangles)
            )
            mesh.vertex_colors = vector(tube.colours)
            # Without these the shader samples its (blank) texture at random places, and a software
            # driver may filter for minutes.
            mesh.triangle_uvs = o3d.utility.Vector2dVector(np.zeros((3 * len(tube.triangles), 2)))
            scene.add_geometry(name, mesh, material(size))


def material(point_size: float):
    """Colours as they are, points of so many pixels."""
    from open3d.visualization import rendering

    plain = rendering.MaterialRecord()
    plain.shader, plain.point_size = "defaultUnlit", point_size
    return plain


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

    def __enter__(self) -> "SceneRenderer":
        return self

    def __exit__(self, *_):
        if self._process is not None:
            self._process.close()

    def draw(
        self,
        points: np.ndarray,
        ground_truth: BoxSet | None = None,
        detections: BoxSet | None = None,
        title: str = "",
    ) -> np.ndarray:
        """Points [P, 4] and boxes -> [H, W, 3] uint8 RGB with title and legend.

        Raises SceneUnavailable where Open3D cannot render.
        """
        found = detections or EMPTY
        picture = self._render(points, ground_truth or EMPTY, found)
        image = Image.fromarray(picture).resize(self.size, Image.Resampling.BOX)
        draw = ImageDraw.Draw(image)
        known = {"ground truth": ground_truth, "detections": detections}
        sets = {name: shown for name, shown in known.items() if shown is not None}
        strip = legend(sets, self.size[0] - 40)
        top = self.size[1] - strip.height - 12
        image.paste(strip, (20, top), strip)
        self._write_captions(draw, found, FreeSpace((0, 40, self.size[0], top)))
        write(draw, (20, 24), shortened(title, 17, self.size[0] - 40), TEXT, 17, outlined=True)
        return np.asarray(image)

    def _write_captions(self, draw: ImageDraw.ImageDraw, found: BoxSet, space: FreeSpace) -> None:
        view, captions = usual_view(self.size), found.captions()
        for i, place, _ in view.place_scores(found, space):
            write(draw, tuple(place), captions[i], found.colours[i], 14, "mm", outlined=True)
        places, _ = view.project(ring_marks(self.size))
        for metres, place in zip(RINGS, places, strict=True):
            if take(space, place):
                write(draw, tuple(place), f"{metres} m", FAINT, 14, "mm", outlined=True)

    def _render(self, *scene) -> np.ndarray:
        """[SMOOTH * H, SMOOTH * W, 3] uint8 from the other process."""
        if self._process is None:
            self._process = Open3DProcess(_serve, self.size, not display_problem())
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


def ring_marks(size: tuple[int, int]) -> np.ndarray:
    """Where to write the distance of each ring, [R, 3]: far right in a picture of that size."""
    view, angle = usual_view(size), np.radians(np.linspace(-46, 0, 93))
    marks = []
    for metres in RINGS:
        arc = np.stack([metres * np.cos(angle), metres * np.sin(angle), 0 * angle + GROUND], axis=1)
        marks.append(arc[view.project(arc)[0][:, 0] < size[0] - 60][0])
    return np.array(marks)


def _serve(pipe: Connection, size: tuple[int, int], has_display: bool) -> None:
    """The rendering process: a picture for each scene that comes, or a line on what is wrong."""
    if not has_display:  # it would wait for ever for an X server that hangs
        os.environ.pop("DISPLAY", None)
    renderer = None
    picture: np.ndarray | str
    while True:
        scene = pipe.recv()
        try:
            renderer = renderer or _make_renderer(size)
            picture = _render(renderer, *scene)
        except (ImportError, OSError, RuntimeError) as error:
            picture = str(error).partition("\n")[0] or type(error).__name__
        pipe.send(picture)


def _make_renderer(size: tuple[int, int]):
    from open3d.visualization import rendering

    width, height = size
    renderer = rendering.OffscreenRenderer(SMOOTH * width, SMOOTH * height)
    prepare_scene(renderer.scene)
    return renderer


def _render(renderer, points: np.ndarray, ground_truth: BoxSet, detections: BoxSet) -> np.ndarray:
    fill_scene(renderer.scene, points, ground_truth, detections, 2.5 * SMOOTH)
    renderer.setup_camera(FIELD_OF_VIEW, TARGET, EYE, (0, 0, 1))
    return np.asarray(renderer.render_to_image()).copy()
