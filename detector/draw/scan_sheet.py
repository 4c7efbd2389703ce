"""A sheet of scans of two sets side by side, all seen from one viewpoint."""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from millisecond.detector.draw.style import BACKGROUND, FAINT, HEIGHTS, TEXT, ramp
from millisecond.detector.draw.text import shortened, write
from millisecond.detector.draw.view import Viewpoint

SIZE, CAPTION, GAP = (860, 420), 26, 8  # pixels
EYE, TARGET = np.array([-9.0, 0.0, 8.0]), np.array([16.0, 0.0, -1.0])  # metres, LiDAR frame
FIELD_OF_VIEW = 37.0  # degrees, from top to bottom


def draw_scan_sheet(
    titles: tuple[str, str], rows: Sequence[tuple[tuple[str, np.ndarray], tuple[str, np.ndarray]]]
) -> np.ndarray:
    """A row of two scans for each pair of (name, points [P, 4]), colours by height.

    Returns [H, W, 3] uint8 RGB; the titles stand above the columns.
    """
    width = GAP + 2 * (SIZE[0] + GAP)
    sheet = Image.new("RGB", (width, CAPTION + len(rows) * (SIZE[1] + CAPTION + GAP)), BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    for column, title in enumerate(titles):
        left = GAP + column * (SIZE[0] + GAP)
        write(draw, (left, CAPTION / 2 + 2), shortened(title, 16, SIZE[0]), TEXT, 16)
        for row, pair in enumerate(rows):
            name, points = pair[column]
            top = CAPTION + row * (SIZE[1] + CAPTION + GAP)
            sheet.paste(Image.fromarray(_view(points)), (left, top))
            write(draw, (left, top + SIZE[1] + CAPTION / 2), name, FAINT, 13)
    return np.asarray(sheet)


def _view(points: np.ndarray) -> np.ndarray:
    """[H, W, 3]: every point two by two pixels, the near ones over the far ones."""
    width, height = SIZE
    picture = np.empty((height, width, 3), dtype=np.uint8)
    picture[:] = BACKGROUND
    view = Viewpoint.looking(EYE, TARGET, FIELD_OF_VIEW, SIZE)
    places, depth = view.project(points[:, :3].astype(np.float64))
    shown = (depth > 0.5) & ((places >= 0) & (places < (width - 1, height - 1))).all(axis=1)
    order = np.flatnonzero(shown)[np.argsort(-depth[shown], kind="stable")]
    column, row = places[order].astype(int).T
    colours = ramp(points[order, 2], *HEIGHTS)
    for down in (0, 1):
        for right in (0, 1):
            picture[row + down, column + right] = colours
    return picture
