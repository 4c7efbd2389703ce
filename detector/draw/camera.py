"""A camera image with the boxes projected into it."""

import numpy as np
from PIL import Image, ImageDraw

from data.boxes import box_corners
from data.kitti.calibration import EDGES, Calibration
from detector.draw.style import (
    BACKGROUND,
    EMPTY,
    TEXT,
    BoxSet,
    colour_of,
    dash,
    draw_lines,
    font,
    legend,
    tint,
)

SMOOTH = 2  # lines are drawn this many times larger, then shrunk
NEAR = 0.5  # metres in front of the camera where edges are cut off
THIN = 30.0  # metres from which lines are thin
HALO = (0, 0, 0, 110)  # around the lines, for bright backgrounds
BAR = 34  # pixels below the image for title and legend
FRONT = [0, 4, 7, 3]  # corners of the front face


def project_edges(boxes: np.ndarray, calibration: Calibration) -> tuple[np.ndarray, np.ndarray]:
    """The 12 edges of each box in the image, cut off at the near plane.

    Args:
        boxes: [M, 7] LiDAR frame.

    Returns:
        End points [M, 12, 2, 2] in pixels, and [M, 12] bool: what of the edge lies in front of the
        near plane. The order of the edges is that of `data.kitti.calibration.EDGES`.
    """
    corners = box_corners(np.asarray(boxes, np.float64)).reshape(-1, 3)
    ends = calibration.lidar_to_rect(corners).reshape(-1, 8, 3)[:, EDGES]  # [M, 12, 2, 3]
    seen = (ends[..., 2] >= NEAR).any(-1)
    a, b = ends[..., 0, :], ends[..., 1, :]
    cut = [_cut(a, b), _cut(b, a)]
    pixels = calibration.rect_to_image(np.stack(cut, axis=-2).reshape(-1, 3))
    return pixels.reshape(-1, 12, 2, 2), seen


def _cut(end: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The end [..., 3] of an edge, moved along it to the near plane if it lies behind that."""
    depth, run = end[..., 2:], other[..., 2:] - end[..., 2:]
    share = (NEAR - depth) / np.where(run == 0, 1, run)
    return np.where(depth < NEAR, end + share * (other - end), end)


def draw_camera(
    image: np.ndarray,
    calibration: Calibration,
    ground_truth: BoxSet | None = None,
    detections: BoxSet | None = None,
    title: str = "",
) -> np.ndarray:
    """Draw boxes into an image [H, W, 3] uint8 and put title and legend below it.

    Ground truth has dashed edges, a detection solid ones, a caption and a tinted front face.
    """
    large = Image.fromarray(image).resize((image.shape[1] * SMOOTH, image.shape[0] * SMOOTH))
    _draw_set(large, calibration, ground_truth or EMPTY, dashed=True)
    _draw_set(large, calibration, detections or EMPTY, dashed=False)
    picture = Image.new("RGB", (image.shape[1], image.shape[0] + BAR), BACKGROUND)
    picture.paste(large.resize((image.shape[1], image.shape[0]), Image.Resampling.BOX))
    draw = ImageDraw.Draw(picture)
    _captions(draw, image.shape, calibration, detections or EMPTY)
    middle = image.shape[0] + BAR / 2
    draw.text((12, middle), title, TEXT, font(15), anchor="lm")
    known = {"ground truth": ground_truth, "detections": detections}
    left = 12 + font(15).getlength(title) + 30
    legend(draw, left, middle, {k: v for k, v in known.items() if v is not None})
    return np.asarray(picture)


def _far_first(shown: BoxSet) -> np.ndarray:
    return np.argsort(-np.linalg.norm(shown.boxes[:, :2], axis=1))


def _draw_set(large: Image.Image, calibration: Calibration, shown: BoxSet, dashed: bool) -> None:
    draw = ImageDraw.Draw(large, "RGBA")
    edges, seen = project_edges(shown.boxes, calibration)
    fronts = box_corners(shown.boxes)[:, FRONT]
    for i in _far_first(shown):
        colour = colour_of(shown.names[i])
        lines = edges[i, seen[i]] * SMOOTH
        if dashed:
            lines, colour = dash(lines, 6 * SMOOTH), tint(colour, 0.25)
        pixels, depth = calibration.lidar_to_image(fronts[i])
        if not dashed and (depth > NEAR).all():
            draw.polygon([tuple(p) for p in (pixels * SMOOTH).tolist()], fill=(*colour, 60))
        # Boxes far away get finer lines, or there would be nothing to see inside.
        width = SMOOTH + 1 if shown.boxes[i, 0] > THIN or dashed else 3 * SMOOTH
        draw_lines(draw, lines, HALO, width + 2 * SMOOTH)
        draw_lines(draw, lines, colour, width)


def _captions(
    draw: ImageDraw.ImageDraw, shape: tuple[int, ...], calibration: Calibration, shown: BoxSet
) -> None:
    """The score above each box, the near ones first; one that would cover another is left out."""
    letters, taken = font(12), np.zeros((0, 4))
    boxes = calibration.image_boxes(shown.boxes, shape[:2])
    captions = shown.captions()
    for i in _far_first(shown)[::-1]:
        left, top, right, bottom = boxes[i]
        width = letters.getlength(captions[i]) + 6
        u = min(max((left + right - width) / 2, 0), shape[1] - width)
        v = max(top - 16, 0)
        place = np.array([u, v, u + width, v + 15])
        apart = (place[:2] >= taken[:, 2:]) | (place[2:] <= taken[:, :2])
        if right <= left or bottom <= top or not captions[i] or not apart.any(1).all():
            continue
        taken = np.concatenate([taken, place[None]])
        draw.rectangle(tuple(place), fill=colour_of(shown.names[i]))
        draw.text((u + width / 2, v + 7.5), captions[i], BACKGROUND, letters, anchor="mm")
