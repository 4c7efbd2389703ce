"""A camera image with the boxes projected into it."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw

from millisecond.data.boxes import box_corners
from millisecond.data.calibration import EDGES, Calibration
from millisecond.detector.draw.style import (
    BACKGROUND,
    EMPTY,
    BoxSet,
    Photo,
    Shown,
    draw_lines,
    mark,
    outline,
    tint,
)
from millisecond.detector.draw.text import FreeSpace, legend, width, write

if TYPE_CHECKING:
    from millisecond.data.frame import Frame

SMOOTH = 2  # lines are drawn this many times larger, then shrunk
NEAR = 0.5  # metres in front of the camera where edges are cut off
THIN = 30.0  # metres from which lines are thin
HALO = (0, 0, 0, 110)  # around the lines, for bright backgrounds
BETWEEN = (0, 0, 0, 215)  # the gaps of dashed lines, so that dashes are seen on anything
MARGIN, PADDING = 12, 5  # pixels beside the title and legend, and above and below them
FRONT = [0, 4, 7, 3]  # corners of the front face


def read_image(path: Path) -> np.ndarray:
    """An image file as [H, W, 3] uint8 RGB; ValueError, naming the file, for another file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as image:
                return np.asarray(image.convert("RGB"))
    except FileNotFoundError:
        raise
    # Pillow says SyntaxError of a broken PNG; its bombs are images too large to be drawn.
    except (
        OSError,
        SyntaxError,
        ValueError,
        Image.DecompressionBombError,
        Image.DecompressionBombWarning,
    ) as error:
        raise ValueError(f"{path}: not an image that can be read ({error})") from None


def photo_of(frame: Frame) -> Photo | None:
    """The image of a frame, if it has one; raises as `read_image`."""
    if frame.image is None:
        return None
    return Photo(read_image(frame.image), frame.calibration)


def project_edges(boxes: np.ndarray, calibration: Calibration) -> tuple[np.ndarray, np.ndarray]:
    """The 12 edges of each box [M, 7] in the image, in the order of EDGES and cut off at the near
    plane: end points [M, 12, 2, 2] in pixels, and [M, 12] bool: whether a part of the edge lies in
    front of that plane."""
    corners = box_corners(np.asarray(boxes, np.float64)).reshape(-1, 3)
    ends = calibration.lidar_to_rect(corners).reshape(-1, 8, 3)[:, EDGES]  # [M, 12, 2, 3]
    seen = np.any(ends[..., 2] >= NEAR, axis=-1)
    a, b = ends[..., 0, :], ends[..., 1, :]
    cut = [_cut(a, b), _cut(b, a)]
    pixels = calibration.rect_to_image(np.stack(cut, axis=-2).reshape(-1, 3))
    return pixels.reshape(-1, 12, 2, 2), seen


def _cut(end: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The end [..., 3] of an edge, moved along it to the near plane if it lies behind that."""
    depth, run = end[..., 2:], other[..., 2:] - end[..., 2:]
    share = (NEAR - depth) / np.where(run == 0, 1, run)
    return np.where(depth < NEAR, end + share * (other - end), end)


def draw_camera(image: np.ndarray, calibration: Calibration, shown: Shown) -> np.ndarray:
    """Draw boxes into an image [H, W, 3] uint8 and put title and legend below it.

    Ground truth has dashed edges, a detection solid ones, a caption and a tinted front face.
    """
    high, wide = image.shape[:2]
    large = Image.fromarray(image).resize((wide * SMOOTH, high * SMOOTH))
    _draw_set(large, calibration, shown.detections or EMPTY, dashed=False)
    _draw_set(large, calibration, shown.ground_truth or EMPTY, dashed=True)
    strip = legend(shown.sets, wide - 2 * MARGIN, shown.title)
    picture = Image.new("RGB", (wide, high + strip.height + 2 * PADDING), BACKGROUND)
    picture.paste(large.resize((wide, high), Image.Resampling.BOX))
    picture.paste(strip, (MARGIN, high + PADDING), strip)
    _captions(ImageDraw.Draw(picture), (high, wide), calibration, shown)
    return np.asarray(picture)


def draw_inset(shown: Shown, room: tuple[int, int]) -> np.ndarray:
    """The image of the camera [H, W, 3] uint8, made to fit into (width, height) pixels, with the
    boxes where its calibration is known."""
    assert shown.photo is not None, "no image"
    image, calibration = shown.photo
    scale = min(room[0] / image.shape[1], room[1] / image.shape[0])
    wide, high = (max(1, round(side * scale)) for side in image.shape[1::-1])
    small = Image.fromarray(image).resize((wide, high), Image.Resampling.BOX)
    if calibration is None:
        return np.asarray(small)
    calibration = replace(calibration, p2=np.diag([scale, scale, 1.0]) @ calibration.p2)
    large = small.resize((wide * SMOOTH, high * SMOOTH))
    _draw_set(large, calibration, shown.detections or EMPTY, dashed=False)
    _draw_set(large, calibration, shown.ground_truth or EMPTY, dashed=True)
    small = large.resize((wide, high), Image.Resampling.BOX)
    _captions(ImageDraw.Draw(small), (high, wide), calibration, shown)
    return np.asarray(small)


def _draw_set(large: Image.Image, calibration: Calibration, shown: BoxSet, dashed: bool) -> None:
    draw = ImageDraw.Draw(large, "RGBA")
    edges, seen = project_edges(shown.boxes, calibration)
    fronts = box_corners(shown.boxes)[:, FRONT]
    for i in np.argsort(-np.linalg.norm(shown.boxes[:, :2], axis=1)):  # far boxes first
        lines, colour, verdict = edges[i, seen[i]] * SMOOTH, shown.colours[i], shown.verdict(i)
        # Boxes far away get finer lines, so that their inside stays visible.
        thick = 3 if shown.boxes[i, 0] > THIN else 6 - 2 * dashed
        pixels, depth = calibration.lidar_to_image(fronts[i])
        in_front = (depth > NEAR).all()
        if in_front and not dashed:
            draw.polygon([tuple(p) for p in (pixels * SMOOTH).tolist()], fill=(*colour, 60))
        if in_front:
            lines_of_mark = mark(pixels * SMOOTH, verdict)
            draw_lines(draw, lines_of_mark, HALO, 3 + 2 * SMOOTH)
            draw_lines(draw, lines_of_mark, colour, 4)
        drawn = outline(lines, verdict, 8 * SMOOTH if dashed else None)
        if dashed:
            draw_lines(draw, lines, BETWEEN, thick + 2)
        else:
            draw_lines(draw, drawn, HALO, thick + 2 * SMOOTH)
        draw_lines(draw, drawn, tint(colour, 0.5) if dashed else colour, thick)


def _captions(
    draw: ImageDraw.ImageDraw, shape: tuple[int, int], calibration: Calibration, shown: Shown
) -> None:
    """The text above each box; one that would cover another is left out."""
    space = FreeSpace((0, 0, shape[1], shape[0]))
    for box, text, colour in shown.captions():
        left, top, right, bottom = calibration.image_boxes(box[None], shape)[0]
        if right <= left or bottom <= top:
            continue
        wide = width(text, 13) + 4
        u = min(max((left + right - wide) / 2, 0), shape[1] - wide)
        v = max(top - 18, 0)
        if space.take(np.array([[u, v, u + wide, v + 16]])) is not None:
            write(draw, (u + wide / 2, v + 8), text, colour, 13, "mm", outlined=True)
