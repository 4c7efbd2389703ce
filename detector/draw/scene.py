"""A scan and its boxes in 3-D, seen from behind and above the sensor, rendered by Open3D.

Open3D is imported inside the functions that need it. Pictures without a window are rendered in a
process of their own: where there is no usable OpenGL or Vulkan driver, Open3D ends its process.
"""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from data.boxes import box_corners
from data.kitti.calibration import EDGES
from detector.draw.style import (
    BACKGROUND,
    EMPTY,
    FAINT,
    GRID,
    TEXT,
    BoxSet,
    Colour,
    colour_of,
    dash,
    font,
    legend,
    ramp,
    tint,
)

LIBRARIES = "libusb-1.0-0 libgl1 libegl1 libx11-6 libgomp1 libvulkan1 mesa-vulkan-drivers"
REMEDY = f"try: apt-get install -y {LIBRARIES}"
EYE, TARGET = np.array([-11.0, 0.0, 8.0]), np.array([14.0, 0.0, -2.0])  # metres, LiDAR frame
FIELD_OF_VIEW = 42.0  # degrees, from top to bottom
SMOOTH = 2  # rendered this many times larger, then shrunk
HEIGHTS = (-2.0, 1.5)  # metres: the ends of the colour ramp
RINGS, GROUND = (10, 20, 30, 40, 50, 60, 70), -1.75  # metres from and below the sensor
SIDES = 6  # of a tube


class SceneUnavailable(RuntimeError):
    """Open3D cannot render here; the text is one line with the remedy."""


def _unavailable(reason: str) -> SceneUnavailable:
    return SceneUnavailable(f"no 3-D picture, Open3D cannot render here: {reason}; {REMEDY}")


class Mesh(NamedTuple):
    """Triangles with a colour a vertex."""

    vertices: np.ndarray  # [V, 3] float64
    triangles: np.ndarray  # [T, 3] int32
    colours: np.ndarray  # [V, 3] float64, 0 to 1


def box_tubes(ground_truth: BoxSet, detections: BoxSet) -> Mesh:
    """Box edges and heading lines as tubes, thicker with the distance so that all are visible.

    Ground truth is thin and dashed, detections are thick and solid.
    """
    meshes = []
    for shown, dashed in ((ground_truth, True), (detections, False)):
        corners = box_corners(np.asarray(shown.boxes, np.float64))
        middle, front = corners.mean(1), corners[:, [0, 3, 4, 7]].mean(1)
        out = (front - middle) / np.maximum(np.linalg.norm(front - middle, axis=1), 1e-6)[:, None]
        heading = np.stack([middle, front + 0.7 * out], axis=1)[:, None]
        lines = np.concatenate([corners[:, EDGES], heading], axis=1)  # [M, 13, 2, 3]
        for name, edges, centre in zip(shown.names, lines, middle, strict=True):
            distance = np.linalg.norm(centre - EYE)
            radius = (0.016 if dashed else 0.03) + (0.0008 if dashed else 0.0012) * distance
            segments = dash(edges, 0.25) if dashed else edges
            colour = tint(colour_of(name), 0.3) if dashed else colour_of(name)
            meshes.append(_tubes(segments, radius, np.array(colour) / 255))
    return _join(meshes)


def ground_rings() -> Mesh:
    """Thin arcs on the ground, one every 10 m, as the scale of the scene."""
    angle = np.radians(np.linspace(-50, 50, 61))
    arcs = []
    for metres in RINGS:
        arc = np.stack([metres * np.cos(angle), metres * np.sin(angle), 0 * angle + GROUND], axis=1)
        arcs.append(np.stack([arc[:-1], arc[1:]], axis=1))
    return _tubes(np.concatenate(arcs), 0.02, np.array(GRID) / 255)


def _tubes(segments: np.ndarray, radius: float, colour: np.ndarray) -> Mesh:
    """Prisms of SIDES sides around segments [S, 2, 3], longer than those by a radius a side."""
    along = segments[:, 1] - segments[:, 0]
    along = along / np.maximum(np.linalg.norm(along, axis=1, keepdims=True), 1e-9)
    helper = np.where(np.abs(along[:, 2:]) > 0.9, (1.0, 0, 0), (0, 0, 1.0))
    first = np.cross(along, helper)
    first /= np.linalg.norm(first, axis=1, keepdims=True)
    second = np.cross(along, first)
    turn = np.arange(SIDES) * 2 * np.pi / SIDES
    ring = radius * (
        np.cos(turn)[:, None] * first[:, None] + np.sin(turn)[:, None] * second[:, None]
    )
    ends = segments + np.stack([-along, along], axis=1) * radius
    vertices = (ends[:, :, None] + ring[:, None]).reshape(-1, 3)  # [S * 2 * SIDES, 3]
    i = np.arange(SIDES)
    j = (i + 1) % SIDES
    sides = np.concatenate([np.stack([i, j, j + SIDES], 1), np.stack([i, j + SIDES, i + SIDES], 1)])
    caps = np.stack([np.zeros(SIDES - 2, int), i[1:-1], i[2:]], 1)
    one = np.concatenate([sides, caps[:, ::-1], caps + SIDES])
    triangles = (one + np.arange(len(segments))[:, None, None] * 2 * SIDES).reshape(-1, 3)
    return Mesh(vertices, triangles.astype(np.int32), np.tile(colour, (len(vertices), 1)))


def _join(meshes: list[Mesh]) -> Mesh:
    starts = np.cumsum([0, *(len(mesh.vertices) for mesh in meshes)])
    triangles = [mesh.triangles + start for mesh, start in zip(meshes, starts, strict=False)]
    return Mesh(
        np.concatenate([np.zeros((0, 3)), *(mesh.vertices for mesh in meshes)]),
        np.concatenate([np.zeros((0, 3), np.int32), *triangles]),
        np.concatenate([np.zeros((0, 3)), *(mesh.colours for mesh in meshes)]),
    )


def fill_scene(scene, points: np.ndarray, ground_truth: BoxSet, detections: BoxSet, size: float):
    """Replace what an Open3DScene shows by points [P, 4] (`size` pixels each) and boxes."""
    import open3d as o3d
    from open3d.visualization import rendering

    scene.clear_geometry()
    material = rendering.MaterialRecord()
    material.shader, material.point_size = "defaultUnlit", size
    vector = o3d.utility.Vector3dVector
    if len(points):
        cloud = o3d.geometry.PointCloud(vector(points[:, :3].astype(np.float64)))
        cloud.colors = vector(ramp(points[:, 2], *HEIGHTS) / 255)
        scene.add_geometry("points", cloud, material)
    tubes = {"rings": ground_rings(), "boxes": box_tubes(ground_truth, detections)}
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
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=_hush)

    def __enter__(self) -> "SceneRenderer":
        return self

    def __exit__(self, *_):
        self._pool.shutdown(wait=True, cancel_futures=True)

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
        sets = (ground_truth or EMPTY, detections or EMPTY)
        try:
            picture = self._pool.submit(_render, self.size, points, *sets).result(timeout=300)
        except BrokenProcessPool as error:
            raise _unavailable("it ended its process") from error
        except (ImportError, OSError, RuntimeError) as error:
            raise _unavailable(str(error).partition("\n")[0] or type(error).__name__) from error
        image = Image.fromarray(np.maximum(picture, np.uint8(BACKGROUND)))
        image = image.resize(self.size, Image.Resampling.BOX)
        draw = ImageDraw.Draw(image)
        places, _ = project(ring_marks(self.size), self.size)
        for metres, place in zip(RINGS, places, strict=True):
            _write(draw, place, f"{metres} m", FAINT)
        _write_scores(draw, self.size, sets[1])
        draw.text((20, 24), title, TEXT, font(17), anchor="lm")
        known = {"ground truth": ground_truth, "detections": detections}
        legend(draw, 20, image.height - 24, {k: v for k, v in known.items() if v is not None})
        return np.asarray(image)


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


def _hush() -> None:
    """Send what the renderer's native code prints to nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


_renderers: dict = {}  # of the rendering process: one renderer a size, for making one is slow


def _render(size, points: np.ndarray, ground_truth: BoxSet, detections: BoxSet) -> np.ndarray:
    from open3d.visualization import rendering

    if size not in _renderers:
        _renderers[size] = rendering.OffscreenRenderer(*(SMOOTH * side for side in size))
        prepare_scene(_renderers[size].scene)
    renderer = _renderers[size]
    fill_scene(renderer.scene, points, ground_truth, detections, 2.5 * SMOOTH)
    renderer.setup_camera(FIELD_OF_VIEW, TARGET, EYE, (0, 0, 1))
    return np.asarray(renderer.render_to_image()).copy()
