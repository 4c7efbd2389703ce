"""A scan and its boxes seen from above: forward is up, left is left."""

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw

from millisecond.data.boxes import box_corners
from millisecond.data.metric.kitti import IGNORED
from millisecond.detector.draw.style import (
    BACKGROUND,
    EMPTY,
    FAINT,
    GRID,
    TEXT,
    BoxSet,
    Shown,
    colourings,
    draw_lines,
    mark,
    motion_lines,
    outline,
    point_colours,
    ramp,
    tint,
)
from millisecond.detector.draw.text import FreeSpace, legend, width, wrapped, write
from millisecond.detector.draw.view import View

SMOOTH = 2  # drawn this many times larger, then shrunk
LEFT, TOP, RIGHT, BOTTOM = 44, 40, 16, 50  # margins in pixels, without the legend
SENSOR: tuple[int, int, int] = (255, 255, 255)
HEADING = 0.7  # metres that the heading line goes beyond the front
TITLE, SMALL_TITLE, ROW = 17, 14, 17  # pixels: letters of one row, of more rows; from row to row
GLOW = np.array([255, 96, 0])  # colour of the ground where the score is 1
KEY = 90  # pixels, of a bar of colours


def draw_birds_eye(
    shown: Shown, colour_by: str = "height", view: View | None = None, high: int | None = None
) -> np.ndarray:
    """Points, boxes and title -> [H, W, 3] uint8 RGB. Ground truth is a faint area with a dashed
    edge, a detection a solid line; a line from the middle leads out of the front. Errors have a
    mark, ignored boxes only corners. The ground glows where the network's scores are known and
    high.

    colour_by: of the points, one of style.COLOURINGS. view: None for one that shows everything.
    high: pixels of a picture that is a part of another one, which has title and legend.
    """
    view = view or _whole(shown)
    if high is not None:
        deep = view.x[1] - view.x[0]
        view = view._replace(scale=(high - TOP - BOTTOM) / deep)
    plot = _plot(shown, colour_by, view)
    _captions(plot, view, shown)

    strip = legend(shown.sets if high is None else {}, view.size[0])
    below = strip.height if high is None else 0
    size = (LEFT + view.size[0] + RIGHT, high or TOP + view.size[1] + BOTTOM + below)
    picture = Image.new("RGB", size, BACKGROUND)
    picture.paste(plot, (LEFT, TOP))
    picture.paste(strip, (LEFT, size[1] - strip.height - 6), strip)
    draw = ImageDraw.Draw(picture)
    _axes(draw, view)
    key = _keys(picture, draw, shown, colour_by)
    title = shown.title if high is None else ""
    return np.asarray(_titled(picture, title, key - LEFT - 20))


def draw_thumbnail(
    shown: Shown, colour_by: str, view: View | None, room: tuple[int, int], captions: bool = False
) -> np.ndarray:
    """The same without title, axes and legend, not larger than (width, height) pixels."""
    view = view or _whole(shown)
    shrunk = min(limit / side for limit, side in zip(room, view.size, strict=True))
    view = view._replace(scale=view.scale * min(1.0, 0.999 * shrunk))
    plot = _plot(shown, colour_by, view)
    if captions:
        _captions(plot, view, shown)
    return np.asarray(plot)


def _whole(shown: Shown) -> View:
    return View.of_data(shown.points, [boxes.boxes for boxes in shown.sets.values()])


def _plot(shown: Shown, colour_by: str, view: View) -> Image.Image:
    plot = Image.fromarray(_canvas(shown, view, colour_by))
    _rings(plot, view)
    _motion(plot, view, shown.detections or EMPTY)
    _draw_set(plot, view, shown.ground_truth or EMPTY, dashed=True)
    _draw_set(plot, view, shown.detections or EMPTY, dashed=False)
    return plot.resize(view.size, Image.Resampling.BOX)


def _canvas(shown: Shown, view: View, colour_by: str) -> np.ndarray:
    """The plot, SMOOTH times larger, with nothing but the glow of the scores and points on it."""
    across, down = (side * SMOOTH for side in view.size)
    canvas = np.full((down, across, 3), BACKGROUND, dtype=np.uint8)
    if shown.scores is not None:
        glow = _glow(shown.scores, view).repeat(SMOOTH, axis=0).repeat(SMOOTH, axis=1)
        canvas[:] = glow
    points, low, high = shown.points, *zip(view.x, view.y, strict=True)
    inside = ((points[:, :2] >= low) & (points[:, :2] <= high)).all(axis=1)
    inside &= np.isfinite(points).all(axis=1)
    points, colours = points[inside], point_colours(shown, colour_by)[inside]
    # The brightest come last and stay on top.
    order = np.argsort(colours.max(axis=1), kind="stable")
    column, row = np.floor(view.pixels(points[order]) * SMOOTH).astype(np.int64).T
    colours = colours[order]
    for below in (-1, 0, 1):
        for right in (-1, 0, 1):
            u, v = column + right, row + below
            inside = (u >= 0) & (u < across) & (v >= 0) & (v < down)
            canvas[v[inside], u[inside]] = colours[inside]
    return canvas


def _glow(scores: Callable[[np.ndarray], np.ndarray], view: View) -> np.ndarray:
    """[H, W, 3] uint8: the ground, which glows where the scores are high."""
    across, down = view.size
    x = view.x[1] - (np.arange(down) + 0.5) / view.scale
    y = view.y[1] - (np.arange(across) + 0.5) / view.scale
    places = np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1).reshape(-1, 2)
    return _shades(scores(places).reshape(down, across))


def _shades(scores: np.ndarray) -> np.ndarray:
    """[...] -> [..., 3] uint8; low scores are seen too."""
    return (BACKGROUND + np.sqrt(scores)[..., None] * (GLOW - BACKGROUND)).astype(np.uint8)


def _motion(plot: Image.Image, view: View, found: BoxSet) -> None:
    draw = ImageDraw.Draw(plot)
    segments, colours = motion_lines(found)
    for segment, colour in zip(view.pixels(segments) * SMOOTH, colours, strict=True):
        draw_lines(draw, segment[None], tuple((colour * 255).astype(int).tolist()), 2 * SMOOTH)


def _rings(plot: Image.Image, view: View) -> None:
    """Circles around the sensor, one every 10 m."""
    draw = ImageDraw.Draw(plot, "RGBA")
    u, v = view.pixels(np.zeros(2)) * SMOOTH
    for metres in range(10, 200, 10):
        r = metres * view.scale * SMOOTH
        draw.ellipse((u - r, v - r, u + r, v + r), outline=(*FAINT, 80), width=SMOOTH)
    draw.polygon([(u, v - 14), (u - 9, v + 8), (u + 9, v + 8)], fill=SENSOR)


def _footprints(boxes: np.ndarray, view: View) -> tuple[np.ndarray, np.ndarray]:
    """Corners [M, 4, 2] of the boxes and heading lines [M, 2, 2], pixels of the plot."""
    corners = box_corners(boxes)[:, :4, :2]
    front, middle = corners[:, [0, 3]].mean(1), corners.mean(1)
    out = front - middle
    reach = HEADING / np.maximum(np.linalg.norm(out, axis=1, keepdims=True), 1e-6)
    heading = np.stack([middle, front + out * reach], axis=1)
    return view.pixels(corners), view.pixels(heading)


def _draw_set(plot: Image.Image, view: View, shown: BoxSet, dashed: bool) -> None:
    draw = ImageDraw.Draw(plot, "RGBA")
    wide = SMOOTH if dashed else 2 * SMOOTH  # of heading lines
    edge = 2 * SMOOTH - 1 if dashed else 2 * SMOOTH + 1
    all_corners, headings = (places * SMOOTH for places in _footprints(shown.boxes, view))
    for i, (colour, corners) in enumerate(zip(shown.colours, all_corners, strict=True)):
        path, verdict = [tuple(c) for c in corners.tolist()], shown.verdict(i)
        line = tint(colour) if dashed else colour
        if dashed:
            draw.polygon(path, fill=(*colour, 70))
        if dashed or verdict == IGNORED:
            edges = np.stack([corners, np.roll(corners, -1, axis=0)], axis=1)
            draw_lines(draw, outline(edges, verdict, 5 * SMOOTH), line, edge)
        else:
            draw.line([*path, path[0], path[1]], line, edge, joint="curve")
        draw_lines(draw, headings[i][None], line, wide)
        draw_lines(draw, mark(corners, verdict), colour, 2 * SMOOTH)


def _captions(plot: Image.Image, view: View, shown: Shown) -> None:
    """A text beside each box, on a side where it covers no other box and no other text."""
    draw = ImageDraw.Draw(plot)
    sets = [boxes.boxes for boxes in shown.sets.values()] or [EMPTY.boxes]
    outlines = np.concatenate(_footprints(np.concatenate(sets), view), axis=1)  # [M, 6, 2]
    taken = np.concatenate([outlines.min(1), outlines.max(1)], axis=1)
    space = FreeSpace((0, 0, *view.size), taken)
    for box, text, colour in shown.captions():
        own = np.concatenate(_footprints(box[None], view), axis=1)[0]
        w, h = extent = np.array([width(text, 13), 13])
        near = taken[((taken[:, :2] <= own.max(axis=0)) & (taken[:, 2:] >= own.min(axis=0))).all(1)]
        corners: list[tuple[float, float]] = []
        for around in (own, near.reshape(-1, 2)):  # beside the box, or beside all that it lies on
            (u0, v0), (u1, v1) = around.min(axis=0), around.max(axis=0)
            u, v = (u0 + u1 - w) / 2, (v0 + v1 - h) / 2
            corners += [(u1 + 4, v), (u0 - 4 - w, v), (u, v0 - 3 - h), (u, v1 + 3)]
        place = space.take(np.concatenate([corners, corners + extent], axis=1))
        if place is not None:
            at = (place[0], place[1] + h / 2)
            write(draw, at, text, colour, 13, outlined=True)


def _axes(draw: ImageDraw.ImageDraw, view: View) -> None:
    """Ticks every 10 m: x along the left edge, y along the bottom."""
    across, down = view.size
    draw.rectangle((LEFT, TOP, LEFT + across, TOP + down), outline=GRID)
    for metres in range(int(np.ceil(view.x[0] / 10)) * 10, int(view.x[1]) + 1, 10):
        v = TOP + view.pixels(np.array([metres, 0.0]))[1]
        draw.line((LEFT - 5, v, LEFT, v), FAINT)
        write(draw, (LEFT - 8, v), f"{metres}", FAINT, 12, "rm")
    for metres in range(int(np.ceil(view.y[0] / 10)) * 10, int(view.y[1]) + 1, 10):
        u = LEFT + view.pixels(np.array([0.0, metres]))[0]
        draw.line((u, TOP + down, u, TOP + down + 5), FAINT)
        write(draw, (u, TOP + down + 8), f"{metres}", FAINT, 12, "mt")
    write(draw, (LEFT - 8, TOP - 12), "x, m", FAINT, 12, "rm")
    write(draw, (LEFT + across, TOP + down + 24), "y, m", FAINT, 12, "rt")


def _titled(picture: Image.Image, title: str, room: float) -> Image.Image:
    """The picture with its whole title in so many pixels, in smaller rows if it takes several."""
    rows, size = [title], TITLE
    if width(title, size) > room:
        rows, size = wrapped(title, SMALL_TITLE, room), SMALL_TITLE
    # Two rows leave the plot in its place, so that it does not move in a film.
    higher = ROW * max(0, len(rows) - 2)
    whole = Image.new("RGB", (picture.width, picture.height + higher), BACKGROUND)
    whole.paste(picture, (0, higher))
    middle = (TOP + higher - ROW * (len(rows) - 1)) / 2
    for number, row in enumerate(rows):
        write(ImageDraw.Draw(whole), (LEFT, middle + ROW * number), row, TEXT, size)
    return whole


def _keys(picture: Image.Image, draw: ImageDraw.ImageDraw, shown: Shown, colour_by: str) -> float:
    """What colours of points and ground mean, at the right of the title; returns the pixel where
    that begins."""
    bar, right = np.linspace(0, 1, KEY), picture.width - RIGHT
    if colour_by == "height" or colour_by not in colourings(shown):
        right = _key(picture, draw, right, ramp(bar, 0, 1), "height, m   -2", "1.5")
    elif colour_by == "intensity":
        right = _key(picture, draw, right, ramp(bar, 0, 1), "intensity   0", "0.8")
    else:
        write(draw, (right, TOP // 2), text := f"points by {colour_by}", FAINT, 12, "rm")
        right -= round(width(text, 12))
    if shown.scores is not None:
        right = _key(picture, draw, right - 24, _shades(bar), "score   0", "1")
    return right


def _key(
    picture: Image.Image,
    draw: ImageDraw.ImageDraw,
    right: int,
    colours: np.ndarray,
    low: str,
    high: str,
) -> int:
    """A bar of colours [KEY, 3] between two texts that ends at a pixel; returns where it begins."""
    middle = TOP // 2
    write(draw, (right, middle), high, FAINT, 12, "rm")
    left = right - round(width(high, 12)) - 6 - KEY
    picture.paste(Image.fromarray(colours[None].repeat(9, axis=0)), (left, middle - 4))
    write(draw, (left - 6, middle), low, FAINT, 12, "rm")
    return left - 6 - round(width(low, 12))
