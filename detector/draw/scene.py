"""A scan and its boxes in 3-D, seen from behind and above the sensor, rendered by Open3D.

Open3D is imported inside the functions that need it. Pictures without a window are rendered in a
process of their own: where there is no usable OpenGL or Vulkan driver, Open3D ends its process.
"""

import multiprocessing
import os
from multiprocessing.connection import Connection

import numpy as np
from PIL import Image, ImageDraw

from detector.draw.style import (
    BACKGROUND,
    EMPTY,
    FAINT,
    TEXT,
    BoxSet,
    Colour,
    colour_of,
    font,
    legend,
    ramp,
)
from detector.draw.tubes import GROUND, RINGS, box_tubes, ground_rings

LIBRARIES = "libusb-1.0-0 libgl1 libegl1 libx11-6 libgomp1 libvulkan1 mesa-vulkan-drivers"
REMEDY = f"try: apt-get install -y {LIBRARIES}"
EYE, TARGET = np.array([-11.0, 0.0, 8.0]), np.array([14.0, 0.0, -2.0])  # metres, LiDAR frame
FIELD_OF_VIEW = 42.0  # degrees, from top to bottom
SMOOTH = 2  # rendered this many times larger, then shrunk
HEIGHTS = (-2.0, 1.5)  # metres: the ends of the colour ramp
PATIENCE = 300.0  # seconds for one picture


class SceneUnavailable(RuntimeError):
    """Open3D cannot render here; the text is one line with the remedy."""


def fill_scene(scene, points: np.ndarray, ground_truth: BoxSet, detections: BoxSet, size: float):
    """Replace what an Open3DScene shows by points [P, 4] (`size` pixels each) and boxes."""
    import open3d as o3d
    from open3d.visualization import rendering

    scene.clear_geometry()
    material = rendering.MaterialRecord()
    material.shader, material.point_size = "defaultUnlit", size
    vector = o3d.utility.Vector3dVector
    points = points[np.isfinite(points).all(axis=1)]
    if len(points):
        cloud = o3d.geometry.PointCloud(vector(points[:, :3].astype(np.float64)))
        cloud.colors = vector(ramp(points[:, 2], *HEIGHTS) / 255)
        scene.add_geometry("points", cloud, material)
    tubes = {"rings": ground_rings(), "boxes": box_tubes(ground_truth, detections, EYE)}
    for name, tube in tubes.items():
        if len(tube.triangles):
            mesh = o3d.geometry.TriangleMesh(
                vector(tube.vertices), o3d.utility.Vector3iVector(tube.triangles)
            )
            mesh.vertex_colors = vector(tube.colours)
            # Without these the shader samples its (blank) texture at random places, and a software
            # driver may filter for minutes.
            mesh.triangle_uvs = o3d.utility.Vector2dVector(np.zeros((3 * len(tube.triangles), 2)))
            scene.add_geometry(name, mesh, material)


def prepare_scene(scene) -> None:
    """Background and light of an Open3DScene: colours are shown as they are."""
    scene.set_background(np.array([*BACKGROUND, 255]) / 255)
    scene.view.set_post_processing(False)
    scene.show_axes(False)


class SceneRenderer:
    """Renders scenes off-screen, in another process that stays up for the next picture.

    Use it as a context manager.
    """

    def __init__(self, width: int = 1280, height: int = 720):
        self.size = (width, height)
        self._pipe = self._process = None

    def __enter__(self) -> "SceneRenderer":
        return self

    def __exit__(self, *_):
        if self._process is not None:
            self._pipe.close()
            self._process.join(5)
            self._process.kill()

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
        image = Image.fromarray(np.maximum(picture, np.uint8(BACKGROUND)))
        image = image.resize(self.size, Image.Resampling.BOX)
        draw = ImageDraw.Draw(image)
        places, _ = project(ring_marks(self.size), self.size)
        for metres, place in zip(RINGS, places, strict=True):
            _write(draw, place, f"{metres} m", FAINT)
        _write_scores(draw, self.size, found)
        draw.text((20, 24), title, TEXT, font(17), anchor="lm")
        known = {"ground truth": ground_truth, "detections": detections}
        legend(draw, 20, image.height - 24, {k: v for k, v in known.items() if v is not None})
        return np.asarray(image)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, self.size), daemon=True)
        self._process.start()
        other.close()  # now only the process holds it, so its end is seen here

    def _render(self, *scene) -> np.ndarray:
        """[SMOOTH * H, SMOOTH * W, 3] uint8 from the other process."""
        if self._process is None:
            self._start()
        try:
            self._pipe.send(scene)
            answer = self._pipe.recv() if self._pipe.poll(PATIENCE) else "it takes too long"
        except (EOFError, OSError):
            answer = "it ended its process"
        if isinstance(answer, str):
            raise SceneUnavailable(f"no 3-D picture, Open3D cannot render here: {answer}; {REMEDY}")
        return answer


def project(points: np.ndarray, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """LiDAR points [N, 3] -> pixels [N, 2] of a picture of size (width, height), and depth [N]."""
    forward = (TARGET - EYE) / np.linalg.norm(TARGET - EYE)
    right = np.cross(forward, (0, 0, 1))
    right /= np.linalg.norm(right)
    seen = (points - EYE) @ np.stack([right, np.cross(forward, right), forward], axis=1)
    focal = size[1] / 2 / np.tan(np.radians(FIELD_OF_VIEW) / 2)
    depth = seen[:, 2:]
    return focal * seen[:, :2] / np.maximum(depth, 1e-3) + np.array(size) / 2, depth[:, 0]


def ring_marks(size: tuple[int, int]) -> np.ndarray:
    """Where to write the distance of each ring, [R, 3]: far right in a picture of that size."""
    angle = np.radians(np.linspace(-46, 0, 93))
    marks = []
    for metres in RINGS:
        arc = np.stack([metres * np.cos(angle), metres * np.sin(angle), 0 * angle + GROUND], axis=1)
        marks.append(arc[project(arc, size)[0][:, 0] < size[0] - 60][0])
    return np.array(marks)


def _write_scores(draw: ImageDraw.ImageDraw, size: tuple[int, int], shown: BoxSet) -> None:
    """The score above each box, the near ones first; one that would cover another is left out."""
    tops = shown.boxes[:, :3] + (shown.boxes[:, 5:6] / 2 + 0.45) * (0, 0, 1)
    pixels, depth = project(tops, size)
    captions, taken = shown.captions(), np.zeros((0, 2))
    for i in np.argsort(depth):
        if depth[i] > 0 and (np.abs(taken - pixels[i]) > (34, 16)).any(1).all():
            taken = np.concatenate([taken, pixels[i : i + 1]])
            _write(draw, pixels[i], captions[i], colour_of(shown.names[i]))


def _write(draw: ImageDraw.ImageDraw, place: np.ndarray, text: str, colour: Colour) -> None:
    at = (float(place[0]), float(place[1]))
    draw.text(at, text, colour, font(14), "mm", stroke_width=2, stroke_fill=BACKGROUND)


def _serve(pipe: Connection, size: tuple[int, int]) -> None:
    """The rendering process: a picture for each scene that comes, or a line on what is wrong."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # the renderer's native code talks a lot
        os.dup2(nowhere, stream)
    renderer = None
    while True:
        try:
            scene = pipe.recv()
        except EOFError:
            return
        try:
            renderer = renderer or _make_renderer(size)
            pipe.send(_render(renderer, *scene))
        except (ImportError, OSError, RuntimeError) as error:
            pipe.send(str(error).partition("\n")[0] or type(error).__name__)


def _make_renderer(size: tuple[int, int]):
    from open3d.visualization import rendering

    renderer = rendering.OffscreenRenderer(*(SMOOTH * side for side in size))
    prepare_scene(renderer.scene)
    return renderer


def _render(renderer, points: np.ndarray, ground_truth: BoxSet, detections: BoxSet) -> np.ndarray:
    fill_scene(renderer.scene, points, ground_truth, detections, 2.5 * SMOOTH)
    renderer.setup_camera(FIELD_OF_VIEW, TARGET, EYE, (0, 0, 1))
    return np.asarray(renderer.render_to_image()).copy()
