"""Pictures of frames as PNG files: single views, sheets, a contact sheet."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data.files import make_folder
from data.kitti.metric.verdicts import count
from detector.draw.birds_eye import draw_birds_eye, draw_thumbnail
from detector.draw.camera import draw_camera, read_image
from detector.draw.frame_sheet import CELL, RIGHT, compose_contact_sheet, compose_sheet
from detector.draw.object_table import draw_object_table, object_rows
from detector.draw.png import save_png
from detector.draw.scene import SceneRenderer, SceneUnavailable
from detector.draw.view import View
from tools.visualizing.content import Content, Studio

KINDS = ("views", "sheets", "contact")
CONTACT, COLUMNS = 48, 4  # most frames on a contact sheet, and how many of them side by side


class Artist:
    """Draws frames; without the 3-D scene where Open3D cannot render, which is said once.

    Use it as a context manager.
    """

    def __init__(self, colour_by: str, view: View | None):
        """colour_by: "height" or "intensity" of the points. view: of the bird's-eye view."""
        self.colour_by, self.view = colour_by, view
        self._renderer, self._in_3d = SceneRenderer(), True

    def __enter__(self) -> Artist:
        self._renderer.__enter__()
        return self

    def __exit__(self, *reason):
        self._renderer.__exit__(*reason)

    def views(self, content: Content) -> dict[str, np.ndarray]:
        """Pictures [H, W, 3] uint8 by kind: birds_eye, scene and camera, those that can be drawn.

        Raises ValueError or OSError for an image that cannot be read.
        """
        frame, shown = content
        image = None if frame is None or frame.image is None else read_image(frame.image)
        pictures = {"birds_eye": draw_birds_eye(*shown, self.colour_by, self.view)}
        scene = self._scene(content) if self._in_3d else None
        if scene is not None:
            pictures["scene"] = scene
        if image is not None and frame is not None and frame.calibration is not None:
            pictures["camera"] = draw_camera(image, frame.calibration, *shown[1:])
        return pictures

    def sheet(self, content: Content) -> np.ndarray:
        """All views and the table of objects as one picture; raises as `views`."""
        views, shown = self.views(content), content.shown
        rows = object_rows(shown.points, shown.ground_truth, shown.detections)
        beside = [views[kind] for kind in ("scene", "camera") if kind in views]
        return compose_sheet(views["birds_eye"], [*beside, draw_object_table(rows, RIGHT)])

    def _scene(self, content: Content) -> np.ndarray | None:
        try:
            return self._renderer.draw(*content.shown, colour_by=self.colour_by)
        except SceneUnavailable as error:
            self._in_3d = False
            tqdm.write(f"note: {error}", file=sys.stderr)
            return None


def write_pictures(
    studio: Studio, order: Sequence[int], kind: str, by_error: bool, artist: Artist, folder: Path
) -> int:
    """Write the pictures of all frames in this order; returns the exit code.

    kind: "views" for NAME_birds_eye.png and so on, "sheets" for NAME_sheet.png, "contact" for one
    picture of many frames.
    """
    make_folder(folder)
    names, written = studio.source.names, 0
    if kind == "contact":
        order = order[:CONTACT]
    cells = []
    for place in tqdm(order, unit="frame", disable=None):
        try:
            content = studio.content(place, by_error)
            if kind == "contact":
                cells.append(_cell(content, artist))
                continue
            pictures = (
                artist.views(content) if kind == "views" else {"sheet": artist.sheet(content)}
            )
        except (ValueError, OSError) as error:
            studio.account.bad(names[place], error)
            continue
        for name, picture in pictures.items():
            save_png(folder / f"{names[place]}_{name}.png", picture)
        written += len(pictures)
    if cells:
        save_png(folder / "contact_sheet.png", compose_contact_sheet(cells, COLUMNS))
        written = 1
        if len(names) > CONTACT:
            print(f"the contact sheet has {CONTACT} of {len(names)} frames; --frames picks others")
    print(f"{written} pictures written to {folder}")
    return studio.account.close(len(order))


def _cell(content: Content, artist: Artist) -> tuple[str, np.ndarray]:
    points, truth, found, title = content.shown
    if truth is not None and truth.verdicts and found is not None:
        title = f"{title.split()[0]}   {count(truth.verdicts, found.verdicts)}"
    picture = draw_thumbnail(points, truth, found, artist.colour_by, artist.view, CELL)
    return title, picture
