"""All views of a frame, one by one or as one picture; one picture of many frames, or of the scans
of two sets."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw
from tqdm import tqdm

from millisecond.detector.draw.birds_eye import draw_birds_eye
from millisecond.detector.draw.camera import draw_camera, draw_inset
from millisecond.detector.draw.objects import draw_object_table, object_rows
from millisecond.detector.draw.scene import SceneRenderer, SceneUnavailable
from millisecond.detector.draw.style import BACKGROUND, FAINT, HEIGHTS, TEXT, Shown, ramp
from millisecond.detector.draw.text import shortened, wrapped, write
from millisecond.detector.draw.view import View, Viewpoint

GAP = 16  # pixels between two pictures
RIGHT = 1280  # pixels, width of the column beside the bird's-eye view
PHOTO = (RIGHT, 560)  # pixels, largest size of a camera's image in a film
CELL = (400, 440)  # pixels, of a frame of the contact sheet
CAPTION, LINE, LINES = 26, 17, 3  # pixels above or below each, and of a further line; lines


class Artist:
    """Draws frames; without the 3-D scene where Open3D cannot render, which is said once."""

    def __init__(self, renderer: SceneRenderer, colour_by: str, view: View | None):
        """colour_by: of the points, one of style.COLOURINGS. view: of the bird's-eye view."""
        self.colour_by, self.view = colour_by, view
        self._renderer, self._in_3d = renderer, True

    def views(self, shown: Shown) -> dict[str, np.ndarray]:
        """Pictures [H, W, 3] uint8 by kind: birds_eye, scene and camera, those that can be drawn.
        The title is in all of them."""
        pictures = {"birds_eye": draw_birds_eye(shown, self.colour_by, self.view)}
        scene = self._scene(shown)
        if scene is not None:
            pictures["scene"] = scene
        if shown.photo is not None and shown.photo.calibration is not None:
            pictures["camera"] = draw_camera(shown.photo.image, shown.photo.calibration, shown)
        return pictures

    def sheet(self, shown: Shown) -> np.ndarray:
        """All views and the table of objects as one picture."""
        views, rows = self.views(shown), object_rows(shown)
        beside = [views[kind] for kind in ("scene", "camera") if kind in views]
        table = draw_object_table(rows, RIGHT)
        return side_by_side([views["birds_eye"], column([*beside, table])])

    def film_picture(self, shown: Shown) -> np.ndarray:
        """Camera and 3-D scene at the left, the same from above beside them. It has the same size
        for all scans of a recording."""
        self.view = self.view or View.of_data(shown.points, [])
        photo = [] if shown.photo is None else [draw_inset(shown, PHOTO)]
        scene = self._scene(shown)
        if scene is not None:
            left = column([*photo, scene])
            above = draw_birds_eye(shown, self.colour_by, self.view, high=len(left))
            return side_by_side([left, above])
        figures = "     ".join(f"{name} {value}" for name, value in shown.figures.items())
        shown = shown._replace(title=f"{shown.title}     {figures}".strip())
        above = draw_birds_eye(shown, self.colour_by, self.view)
        return side_by_side([column(photo), above]) if photo else above

    def _scene(self, shown: Shown) -> np.ndarray | None:
        if not self._in_3d:
            return None
        try:
            return self._renderer.draw(shown, self.colour_by, inset=False)
        except SceneUnavailable as error:
            self._in_3d = False
            tqdm.write(f"note: {error}; drawn from above alone", file=sys.stderr)
            return None


def column(pictures: Sequence[np.ndarray]) -> np.ndarray:
    """Pictures [H, W, 3] uint8 one below the other, made at most as wide as RIGHT."""
    images = list(map(Image.fromarray, pictures))
    for image in images:
        image.thumbnail((RIGHT, image.height))
    high = sum(image.height for image in images) + GAP * (len(images) - 1)
    whole, top = Image.new("RGB", (RIGHT, high), BACKGROUND), 0
    for image in images:
        whole.paste(image, (0, top))
        top += image.height + GAP
    return np.asarray(whole)


def side_by_side(pictures: Sequence[np.ndarray]) -> np.ndarray:
    """Pictures [H, W, 3] uint8 from left to right, their upper edges in line."""
    wide = sum(picture.shape[1] for picture in pictures) + GAP * (len(pictures) - 1)
    whole, left = np.full((max(map(len, pictures)), wide, 3), BACKGROUND, np.uint8), 0
    for picture in pictures:
        whole[: len(picture), left : left + picture.shape[1]] = picture
        left += picture.shape[1] + GAP
    return whole


def compose_contact_sheet(cells: Sequence[tuple[str, np.ndarray]], columns: int) -> np.ndarray:
    """Captions and pictures, each not larger than CELL, in rows; captions take as many lines as the
    longest needs, up to LINES."""
    told = [wrapped(caption, 14, CELL[0]) for caption, _ in cells]
    lines = min(max(map(len, told)), LINES)
    above = CAPTION + LINE * (lines - 1)
    wide, high = CELL[0] + GAP, CELL[1] + above + GAP
    rows = -(-len(cells) // columns)
    sheet = Image.new("RGB", (columns * wide + GAP, rows * high + GAP), BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    for number, (caption, (_, picture)) in enumerate(zip(told, cells, strict=True)):
        left, top = GAP + number % columns * wide, GAP + number // columns * high
        rest = " ".join(caption[lines - 1 :])
        for line, text in enumerate([*caption[: lines - 1], rest]):
            text = shortened(text, 14, CELL[0])
            write(draw, (left, top + CAPTION / 2 + LINE * line), text, TEXT, 14)
        sheet.paste(Image.fromarray(picture), (left, top + above))
    return np.asarray(sheet)


SCAN, SCAN_GAP = (860, 420), 8  # pixels
EYE, TARGET = np.array([-9.0, 0.0, 8.0]), np.array([16.0, 0.0, -1.0])  # metres, LiDAR frame
FIELD_OF_VIEW = 37.0  # degrees, from top to bottom


def draw_scan_sheet(
    titles: tuple[str, str], rows: Sequence[tuple[tuple[str, np.ndarray], tuple[str, np.ndarray]]]
) -> np.ndarray:
    """A row of two scans for each pair of (name, points [P, 4]), colours by height.

    Returns [H, W, 3] uint8 RGB; the titles stand above the columns.
    """
    wide, high = SCAN[0] + SCAN_GAP, SCAN[1] + CAPTION + SCAN_GAP
    sheet = Image.new("RGB", (SCAN_GAP + 2 * wide, CAPTION + len(rows) * high), BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    for column, title in enumerate(titles):
        left = SCAN_GAP + column * wide
        write(draw, (left, CAPTION / 2 + 2), shortened(title, 16, SCAN[0]), TEXT, 16)
        for row, pair in enumerate(rows):
            name, points = pair[column]
            top = CAPTION + row * high
            sheet.paste(Image.fromarray(_seen_from_behind(points)), (left, top))
            write(draw, (left, top + SCAN[1] + CAPTION / 2), name, FAINT, 13)
    return np.asarray(sheet)


def _seen_from_behind(points: np.ndarray) -> np.ndarray:
    """[H, W, 3]: every point two by two pixels, the near ones over the far ones."""
    width, height = SCAN
    picture = np.full((height, width, 3), BACKGROUND, dtype=np.uint8)
    view = Viewpoint.looking(EYE, TARGET, FIELD_OF_VIEW, SCAN)
    places, depth = view.project(points[:, :3].astype(np.float64))
    shown = (depth > 0.5) & ((places >= 0) & (places < (width - 1, height - 1))).all(axis=1)
    order = np.flatnonzero(shown)[np.argsort(-depth[shown], kind="stable")]
    column, row = places[order].astype(int).T
    colours = ramp(points[order, 2], *HEIGHTS)
    for down in (0, 1):
        for right in (0, 1):
            picture[row + down, column + right] = colours
    return picture
