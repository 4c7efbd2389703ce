"""A scan and its boxes seen from above: forward is up, left is left."""

from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from data.boxes import box_corners
from detector.draw.style import (
    BACKGROUND,
    EMPTY,
    FAINT,
    GRID,
    TEXT,
    BoxSet,
    colour_of,
    dash,
    draw_lines,
    font,
    legend,
    ramp,
    tint,
)

SMOOTH = 2  # drawn this many times larger, then shrunk
HEIGHTS = (-2.0, 1.5)  # metres above the sensor: the ends of the colour ramp
LEFT, TOP, RIGHT, BOTTOM = 44, 40, 16, 70  # margins in pixels
SENSOR: tuple[int, int, int] = (255, 255, 255)


class View(NamedTuple):
    """Which metres the picture shows and how large."""

    x: tuple[float, float] = (0.0, 70.4)
    y: tuple[float, float] = (-40.0, 40.0)
    scale: float = 12.0  # pixels a metre

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the plot without its margins, pixels."""
        return round((self.y[1] - self.y[0]) * self.scale), round(
            (self.x[1] - self.x[0]) * self.scale
        )

    def plot_pixels(self, points: np.ndarray) -> np.ndarray:
        """LiDAR points [..., 2 or more] -> [..., 2] pixels (right, down) from the plot's corner."""
        right = (self.y[1] - points[..., 1]) * self.scale
        return np.stack([right, (self.x[1] - points[..., 0]) * self.scale], axis=-1)

    def pixels(self, points: np.ndarray) -> np.ndarray:
        """LiDAR points [..., 2 or more] -> [..., 2] pixels (right, down) of the whole picture."""
        return self.plot_pixels(points) + np.array([LEFT, TOP])


def draw_birds_eye(
    points: np.ndarray,
    ground_truth: BoxSet | None = None,
    detections: BoxSet | None = None,
    title: str = "",
    colour_by: str = "height",
    view: View | None = None,
) -> np.ndarray:
    """Draw points [P, 4] and boxes; a set that is None stays out of the legend too.

    Args:
        colour_by: "height" or "intensity" of the points.

    Returns:
        [H, W, 3] uint8 RGB. Ground truth is a faint area with a dashed edge, a detection a solid
        line with its score; a line from the middle leads out of the front.
    """
    view = view or View()
    plot = Image.fromarray(_canvas(points, view, colour_by))
    _rings(plot, view)
    _areas(plot, view, ground_truth or EMPTY)
    _outlines(plot, view, detections or EMPTY)
    plot = plot.resize(view.size, Image.Resampling.BOX)

    picture = Image.new(
        "RGB", (view.size[0] + LEFT + RIGHT, view.size[1] + TOP + BOTTOM), BACKGROUND
    )
    picture.paste(plot, (LEFT, TOP))
    draw = ImageDraw.Draw(picture)
    _axes(draw, view)
    _scores(draw, view, detections or EMPTY)
    draw.text((LEFT, TOP / 2), title, TEXT, font(17), anchor="lm")
    _ramp_key(picture, draw, colour_by)
    known = {"ground truth": ground_truth, "detections": detections}
    legend(draw, LEFT, picture.height - 20, {k: v for k, v in known.items() if v is not None})
    return np.asarray(picture)


def _canvas(points: np.ndarray, view: View, colour_by: str) -> np.ndarray:
    """The plot, SMOOTH times larger, with nothing but points on it."""
    width, height = view.size
    canvas = np.full((height * SMOOTH, width * SMOOTH, 3), BACKGROUND, dtype=np.uint8)
    points = points[np.isfinite(points).all(axis=1)]
    value, ends = (points[:, 2], HEIGHTS) if colour_by == "height" else (points[:, 3], (0.0, 0.8))
    # The brightest come last and stay on top.
    order = np.argsort(value, kind="stable")
    column, row = np.floor(view.plot_pixels(points[order]) * SMOOTH).astype(np.int64).T
    colours = ramp(value[order], *ends)
    for down in (0, 1, 2):
        for right in (0, 1, 2):
            u, v = column + right - 1, row + down - 1
            inside = (u >= 0) & (u < canvas.shape[1]) & (v >= 0) & (v < canvas.shape[0])
            canvas[v[inside], u[inside]] = colours[inside]
    return canvas


def _rings(plot: Image.Image, view: View) -> None:
    """Circles around the sensor, one every 10 m."""
    draw = ImageDraw.Draw(plot, "RGBA")
    u, v = view.plot_pixels(np.zeros(2)) * SMOOTH
    for metres in range(10, 200, 10):
        r = metres * view.scale * SMOOTH
        draw.ellipse((u - r, v - r, u + r, v + r), outline=(*FAINT, 80), width=SMOOTH)
    draw.polygon([(u, v - 14), (u - 9, v + 8), (u + 9, v + 8)], fill=SENSOR)


def _footprints(boxes: np.ndarray, view: View) -> tuple[np.ndarray, np.ndarray]:
    """Corners [M, 4, 2] of the boxes and heading lines [M, 2, 2], enlarged plot pixels."""
    corners = box_corners(boxes)[:, :4, :2]
    front, middle = corners[:, [0, 3]].mean(1), corners.mean(1)
    out = front - middle
    reach = 0.7 / np.maximum(np.linalg.norm(out, axis=1, keepdims=True), 1e-6)
    heading = np.stack([middle, front + out * reach], axis=1)
    return view.plot_pixels(corners) * SMOOTH, view.plot_pixels(heading) * SMOOTH


def _edges(corners: np.ndarray) -> np.ndarray:
    return np.stack([corners, np.roll(corners, -1, axis=0)], axis=1)


def _areas(plot: Image.Image, view: View, shown: BoxSet) -> None:
    draw = ImageDraw.Draw(plot, "RGBA")
    for name, corners, heading in zip(shown.names, *_footprints(shown.boxes, view), strict=True):
        colour = colour_of(name)
        draw.polygon([tuple(c) for c in corners.tolist()], fill=(*colour, 70))
        draw_lines(draw, dash(_edges(corners), 5 * SMOOTH), tint(colour), 2 * SMOOTH - 1)
        draw_lines(draw, heading[None], tint(colour), SMOOTH)


def _outlines(plot: Image.Image, view: View, shown: BoxSet) -> None:
    draw = ImageDraw.Draw(plot)
    for name, corners, heading in zip(shown.names, *_footprints(shown.boxes, view), strict=True):
        path = [tuple(c) for c in corners.tolist()]
        draw.line([*path, path[0], path[1]], colour_of(name), 2 * SMOOTH + 1, joint="curve")
        draw_lines(draw, heading[None], colour_of(name), 2 * SMOOTH)


def _scores(draw: ImageDraw.ImageDraw, view: View, shown: BoxSet) -> None:
    """A score beside each box, on a side where it covers no other box and no other score."""
    letters = font(13)
    corners = view.pixels(box_corners(shown.boxes)[:, :4, :2])
    low, high = corners.min(1), corners.max(1)
    taken = np.concatenate([low, high], axis=1)
    frame = (LEFT, TOP, LEFT + view.size[0], TOP + view.size[1])
    order = np.argsort(-shown.scores) if shown.scores is not None else []
    captions = shown.captions()
    for i in order:
        w, h = letters.getlength(captions[i]), 13
        (u0, v0), (u1, v1) = low[i], high[i]
        u, v = (u0 + u1 - w) / 2, (v0 + v1 - h) / 2
        places = [(u1 + 4, v), (u0 - 4 - w, v), (u, v0 - 3 - h), (u, v1 + 3)]
        for u, v in places:
            box = np.array([u, v, u + w, v + h])
            if _free(box, np.delete(taken, i, axis=0), frame):
                colour = colour_of(shown.names[i])
                draw.text(
                    (u, v + h / 2),
                    captions[i],
                    colour,
                    letters,
                    "lm",
                    stroke_width=2,
                    stroke_fill=BACKGROUND,
                )
                taken = np.concatenate([taken, box[None]])
                break


def _free(box: np.ndarray, taken: np.ndarray, frame: tuple[float, ...]) -> bool:
    inside = box[0] >= frame[0] and box[1] >= frame[1] and box[2] <= frame[2] and box[3] <= frame[3]
    apart = (box[:2] >= taken[:, 2:]) | (box[2:] <= taken[:, :2])
    return bool(inside and apart.any(1).all())


def _axes(draw: ImageDraw.ImageDraw, view: View) -> None:
    """Ticks every 10 m: x along the left edge, y along the bottom."""
    letters = font(12)
    width, height = view.size
    draw.rectangle((LEFT, TOP, LEFT + width, TOP + height), outline=GRID)
    for metres in range(int(np.ceil(view.x[0] / 10)) * 10, int(view.x[1]) + 1, 10):
        _, v = view.pixels(np.array([metres, 0.0]))
        draw.line((LEFT - 5, v, LEFT, v), FAINT)
        draw.text((LEFT - 8, v), f"{metres}", FAINT, letters, anchor="rm")
    for metres in range(int(np.ceil(view.y[0] / 10)) * 10, int(view.y[1]) + 1, 10):
        u, _ = view.pixels(np.array([0.0, metres]))
        draw.line((u, TOP + height, u, TOP + height + 5), FAINT)
        draw.text((u, TOP + height + 8), f"{metres}", FAINT, letters, anchor="mt")
    draw.text((LEFT - 8, TOP - 8), "x, m", FAINT, letters, anchor="rm")
    draw.text((LEFT + width, TOP + height + 24), "y, m", FAINT, letters, anchor="rt")


def _ramp_key(picture: Image.Image, draw: ImageDraw.ImageDraw, colour_by: str) -> None:
    """The colours of the points, at the right of the title."""
    low, high, unit = (
        ("-2", "1.5", "height, m") if colour_by == "height" else ("0", "0.8", "intensity")
    )
    letters, width = font(12), 90
    right, middle = picture.width - RIGHT, TOP // 2
    draw.text((right, middle), high, FAINT, letters, anchor="rm")
    left = right - round(letters.getlength(high)) - 6 - width
    bar = ramp(np.linspace(0, 1, width), 0, 1)[None].repeat(9, axis=0)
    picture.paste(Image.fromarray(bar), (left, middle - 4))
    draw.text((left - 6, middle), f"{unit}   {low}", FAINT, letters, anchor="rm")
