"""A scan and its boxes in 3-D, seen from behind and above the sensor, rendered by Open3D.

Open3D is imported inside the functions that need it, which run in a process of their own.
"""

import os
from collections.abc import Mapping
from functools import cache
from multiprocessing.connection import Connection

import numpy as np
from PIL import Image

from detector.draw.display import display_problem
from detector.draw.open3d_process import REMEDY, Open3DProcess
from detector.draw.overlay import Overlay, lay_over
from detector.draw.scene_content import SceneContent
from detector.draw.style import BACKGROUND, EMPTY, BoxSet
from detector.draw.tubes import GROUND, RINGS
from detector.draw.viewpoint import Viewpoint

EYE, TARGET = np.array([-11.0, 0.0, 8.0]), np.array([14.0, 0.0, -1.0])  # metres, LiDAR frame
FIELD_OF_VIEW = 42.0  # degrees, from top to bottom
SMOOTH = 2  # rendered this many times larger, then shrunk
PATIENCE = 300.0  # seconds for one picture


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
        figures: Mapping[str, str] | None = None,
        inset: np.ndarray | None = None,
        colour_by: str = "height",
    ) -> np.ndarray:
        """Points [P, 4] and boxes -> [H, W, 3] uint8 RGB with title and legend.

        figures: names and values at the upper left. inset: [h, w, 3] uint8, at the upper right.
        colour_by: "height" or "intensity" of the points.
        Raises SceneUnavailable where Open3D cannot render.
        """
        picture = self._render(points, ground_truth or EMPTY, detections or EMPTY, colour_by)
        picture = np.asarray(Image.fromarray(picture).resize(self.size, Image.Resampling.BOX))
        known = {"ground truth": ground_truth, "detections": detections}
        sets = {name: shown for name, shown in known.items() if shown is not None}
        overlay = Overlay(sets, title, figures or {}, inset)
        return lay_over(picture, usual_view(self.size), ring_marks(self.size), overlay)

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


@cache
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
