"""Arrange an evaluation as one HTML page: tables, curves, a map of errors, the worst frames."""

from __future__ import annotations

if __name__ == "__main__":
    from millisecond.tools import program

    program.start(__file__)

import argparse
import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from millisecond.data.files import read_text, write_text
from millisecond.data.metric.evaluation import (
    LIMIT,
    NOTE,
    Overlaps,
    Result,
    errors_of_frames,
    evaluate,
    matches_of,
    verdicts_of,
)
from millisecond.data.metric.kitti import FALSE, MATCHED, MISSED, OPERATING_SCORE, Verdicts
from millisecond.data.metric.matching import SAMPLES
from millisecond.data.metric.overlap import DISTANCES, Boxes, Group
from millisecond.detector.detection_files import run_of
from millisecond.detector.draw.camera import photo_of
from millisecond.detector.draw.objects import object_rows
from millisecond.detector.draw.scene import SceneRenderer
from millisecond.detector.draw.sheets import Artist
from millisecond.detector.draw.style import Palette, Shown
from millisecond.tools.evaluate import (
    SplitDetections,
    add_lidar,
    draw_curves,
    from_files,
    groups_of,
    overlaps_of,
)
from millisecond.tools.program import command_line, number, output_path, parser_of, run

EXAMPLE = """examples:
  millisecond report results --root kitti --split val --output report.html
  millisecond report new --root mine --split val --against old --output report.html

RESULTS come from detect or from evaluate --output. The page is one file without links to others:
any browser shows it offline, and it can be printed. It has the figures of evaluate, in the LiDAR
frame; docs/evaluation.md explains them.
"""
USUAL = "--split --against --overlap"
GENERATOR = '<meta name="generator" content="millisecond report">'
WORST, MOST_CHANGED = 6, 10  # frames
CELL, SCALE = 5, 5  # of the map: metres, and pixels per metre
FARTHEST = 100  # metres
STYLE = """
body { font: 15px/1.45 sans-serif; color: #1b1f27; max-width: 1180px; margin: 2em auto;
       padding: 0 1em }
h1, h2, h3 { line-height: 1.2 } h2 { border-top: 1px solid #bbb; padding-top: 0.8em }
table { border-collapse: collapse; margin: 0.6em 0 } caption { text-align: left; padding: 0.3em 0 }
caption { font-weight: bold }
td, th { padding: 0.15em 0.7em; text-align: right; border-bottom: 1px solid #ddd }
td:first-child, th:first-child, td.text, th.text { text-align: left }
tr.class td { font-weight: bold; padding-top: 0.7em }
img { max-width: 100%; display: block; margin: 0.6em 0 } figure { margin: 0 }
.bar { display: inline-block; height: 0.8em; background: #3b6fb6; print-color-adjust: exact }
.beside { display: flex; flex-wrap: wrap; gap: 0 3em; align-items: flex-start }
svg { max-width: 100%; height: auto }
nav a { margin-right: 1.2em }
@media print {
  body { max-width: none; margin: 0; font-size: 11px } nav { display: none }
  figure, img, svg, tr, h2, h3 { break-inside: avoid } h2, h3, caption { break-after: avoid }
  .frame + .frame { break-before: page } img { max-height: 90vh }
}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    return run(lambda: report(options))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, EXAMPLE, USUAL)
    add = parser.add_argument
    add("detections", type=Path, metavar="RESULTS", help="folder of results, or a .parquet file")
    add("--root", type=Path, required=True, help="folder of a data set with labels")
    add("--split", default="val", help="frames: a name in ROOT/ImageSets, or all (default: val)")
    add("--output", type=output_path, metavar="HTML", required=True, help="write the page here")
    add("--against", type=Path, metavar="RESULTS", help="earlier results, to say what changed")
    add("--worst", type=number, default=WORST, help="frames that are drawn (default: %(default)s)")
    add_lidar(parser, "what is scored")
    options = parser.parse_args(arguments)
    options.command = command_line("report", arguments)
    return options


def report(options: argparse.Namespace) -> None:
    """Score the results, and those that they are compared with; write the page."""
    require_own_page(options.output)
    groups = groups_of(options)
    found = from_files(options)
    overlaps = overlaps_of(options.overlap or (), found.classes)
    own = Run.of(str(options.detections), found, overlaps, groups)
    other = None
    if options.against:
        earlier = from_files(argparse.Namespace(**{**vars(options), "detections": options.against}))
        other = Run.of(str(options.against), earlier, overlaps, groups)
    noted = run_of(options.detections)
    weights = f"fingerprint {noted['weights']}" if "weights" in noted else "not known"
    told = {"command": options.command, "weights": weights}
    write_page(options.output, own, other, groups, told, options.worst)


def require_own_page(path: Path) -> None:
    """Raise ValueError where a file exists that is not a page of this program."""
    if path.exists() and not (path.is_file() and GENERATOR in read_text(path)[:400]):
        raise ValueError(f"{path}: already exists and is not a report; give another name")


class Run(NamedTuple):
    """Results, scored."""

    name: str
    found: SplitDetections
    overlaps: Overlaps
    result: Result  # of data.metric.evaluation.evaluate
    truth: Boxes
    boxes: Boxes  # that were detected
    verdicts: Verdicts  # on both
    errors: tuple[np.ndarray, np.ndarray, np.ndarray]  # of frames: missed, false, badness

    @classmethod
    def of(
        cls, name: str, found: SplitDetections, overlaps: Overlaps, groups: Sequence[Group]
    ) -> Run:
        result = evaluate(found.detections, found.objects, overlaps, groups, found.frame_ids)
        truth, boxes, pairs, matches = matches_of(found.detections, found.objects, overlaps)
        verdicts = verdicts_of(matches, truth, boxes, pairs, overlaps)
        errors = errors_of_frames(matches, truth, boxes)
        return cls(name, found, overlaps, result, truth, boxes, verdicts, errors)


def write_page(
    path: Path,
    own: Run,
    other: Run | None,
    groups: Sequence[Group],
    told: Mapping[str, str],
    worst: int = WORST,
) -> None:
    """Write the page; it is complete or does not exist.

    told: where the results come from, by name. worst: how many frames are drawn.
    """
    sections = {
        "Average precision": ap_section(own.result, own.overlaps),
        "Precision over recall": curve_section(own, groups),
        "Recall by distance and points": recall_section(own),
        "Reliability of scores": reliability_section(own.result),
        "Confusion of classes": confusion_section(own.result["confusion"]),
        "Where errors are": map_section(own),
        "Worst frames": frame_section(own, worst),
    }
    if other is not None:
        sections[f"Against {other.name}"] = change_section(own, other, groups)
    links = "".join(f'<a href="#s{i}">{escape(name)}</a>' for i, name in enumerate(sections))
    parts = [
        f'<section id="s{i}"><h2>{escape(name)}</h2>{body}</section>'
        for i, (name, body) in enumerate(sections.items())
    ]
    title = f"Evaluation of {escape(own.name)}"
    head = f'<meta charset="utf-8">{GENERATOR}<title>{title}</title><style>{STYLE}</style>'
    origin = "".join(f"<br>{escape(name)}: {escape(text)}" for name, text in told.items())
    top = f"<h1>{title}</h1><p>{summary(own)}{origin}</p><nav>{links}</nav>"
    page = f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>{top}\n'
    write_text(path, page + "\n".join(parts) + "</body></html>\n")
    print(f"report: {path}")


def summary(own: Run) -> str:
    """What was scored, in a few words."""
    missed, false, _ = (int(values.sum()) for values in own.errors)
    matched = int((own.verdicts.detections == MATCHED).sum())
    return (
        f"{len(own.found.frame_ids)} frames, {len(own.truth.names)} labelled objects, "
        f"{len(own.boxes.names)} detections. At a score of {OPERATING_SCORE:g} or more: "
        f"{matched} matched, {missed} missed, {false} false."
    )


Cell = str | int | float | None


def table(
    head: Sequence[str], rows: Iterable[Sequence[Cell]], text: Sequence[int] = (), caption: str = ""
) -> str:
    """text: columns that are words, to the left. A row of one cell names a class."""

    def cell(value: Cell, column: int, tag: str, span: int = 1) -> str:
        told = "-" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)
        kind = ' class="text"' if column in text else ""
        wide = f' colspan="{span}"' if span > 1 else ""
        return f"<{tag}{kind}{wide}>{told if told.startswith('<span') else escape(told)}</{tag}>"

    lines = ["<tr>" + "".join(cell(name, i, "th") for i, name in enumerate(head)) + "</tr>"]
    for row in rows:
        if len(row) == 1:
            lines.append(f'<tr class="class">{cell(row[0], 0, "td", len(head))}</tr>')
        else:
            lines.append(f"<tr>{''.join(cell(value, i, 'td') for i, value in enumerate(row))}</tr>")
    name = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{name}{''.join(lines)}</table>"


def beside(parts: Iterable[str]) -> str:
    """Parts side by side, as many as there is room for."""
    return f'<div class="beside">{"".join(parts)}</div>'


def picture(pixels: np.ndarray, text: str) -> str:
    """[H, W, 3] uint8 as an image in the page."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG", optimize=True)
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img alt="{escape(text)}" src="data:image/png;base64,{data}">'


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def ap_section(result: Result, overlaps: Overlaps) -> str:
    """The table of AP, as evaluate prints it."""
    centres = [f"{limit:g} m" for limit in DISTANCES]
    head = ["", "objects", "BEV", "3-D", *centres, "mean", "recall", "precision"]
    rows: list[Sequence[Cell]] = []
    for name, groups in result["classes"].items():
        for least in overlaps[name]:
            rows.append([f"{name}, overlap {least:g}"])
            for title, figures in with_objects(groups):
                bev, volume = figures[f"bev@{least:g}"], figures[f"3d@{least:g}"]
                capped = "*" if 0 < figures["count"] < SAMPLES else ""
                aps = [bev["R40"], volume["R40"]]
                marked = [None if ap is None else f"{ap:.1f}{capped}" for ap in aps]
                sure = [100 * volume[key] for key in ("recall", "precision")]
                rows.append([title, figures["count"], *marked, *figures["centre"].values(), *sure])
    mean = result["mean"]
    rows += [["mean over classes"], ["", "", mean["bev"], mean["3d"], *[""] * 4, mean["centre"]]]
    return (
        paragraph(
            "BEV and 3-D are KITTI's AP R40 in percent, from above and in 3-D: the precision, "
            "averaged over 40 places of recall; 100 means that all objects are found before the "
            "first false detection. The columns in metres are nuScenes' AP, where a match is a "
            "distance between centres. Recall and precision are in 3-D, of detections that score "
            f"at least {OPERATING_SCORE:g}, in percent: the share of the objects that is found, "
            "and the share of the detections that is right."
        )
        + table(head, rows)
        + paragraph(NOTE)
    )


def with_objects(groups: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(title, figures) for title, figures in groups.items() if figures["count"]]


def curve_section(own: Run, groups: Sequence[Group]) -> str:
    """The curves of every class."""
    parts = [
        paragraph(
            "The area below a curve is its AP. A curve of few objects ends early, as its AP is "
            "capped: the metric takes one place of recall for each object. At the right, the share "
            "of right boxes over the score: dots on the dashed line are scores to trust."
        )
    ]
    for name, figures in own.result["classes"].items():
        if not own.result["reliability"][name]:
            continue
        one = {"classes": {name: figures}, "reliability": own.result["reliability"]}
        parts.append(picture(draw_curves(one, own.overlaps, groups), f"curves of {name}"))
    unseen = [name for name, bins in own.result["reliability"].items() if not bins]
    told = paragraph(f"Without detections: {', '.join(unseen)}.") if unseen else ""
    return "".join(parts) + told


def recall_section(own: Run) -> str:
    """Recall of every group as a bar."""
    parts = []
    for name, figures in own.result["classes"].items():
        least, rows = own.overlaps[name][0], []
        for title, group in with_objects(figures):
            share = 100 * group[f"3d@{least:g}"]["recall"]
            bar = f'<span class="bar" style="width: {share:.0f}px"></span>'
            rows.append([title, group["count"], share, bar])
        if rows:
            head = ["", "objects", "recall", ""]
            parts.append(table(head, rows, text=[3], caption=f"{name}, overlap {least:g}"))
    said = f"Percent of the objects found in 3-D with a score of at least {OPERATING_SCORE:g}."
    return paragraph(said) + beside(parts)


def reliability_section(result: Result) -> str:
    parts = []
    for name, bins in result["reliability"].items():
        rows = []
        for row in bins:
            shares = 100 * row["score"], 100 * row["right"]
            rows.append([f"{row['low']:g}-{row['high']:g}", row["boxes"], *shares])
        if rows:
            head = ["score", "boxes", "mean score", "right"]
            parts.append(table(head, rows, caption=name))
    said = (
        "A score is reliable if it is the share of right boxes: mean score and share of right "
        "boxes, both in percent, are then alike. A few boxes say little."
    )
    return paragraph(said) + beside(parts)


def confusion_section(confusion: Mapping[str, Any]) -> str:
    rows = [
        [name, *counts] for name, counts in zip(confusion["rows"], confusion["counts"], strict=True)
    ]
    said = (
        f"Objects by the class of the detection within {LIMIT:g} m that scores at least "
        f"{OPERATING_SCORE:g}; in the last row, detections where no object is."
    )
    return paragraph(said) + table(["object", *confusion["columns"]], rows)


def map_section(own: Run) -> str:
    """Missed objects and false detections, seen from above."""
    missed, false = own.verdicts.truth == MISSED, own.verdicts.detections == FALSE
    maps = (
        error_map("missed objects", own.truth.boxes[missed]),
        error_map("false detections", own.boxes.boxes[false]),
    )
    said = f"Numbers in squares of {CELL} m, from above: forward is up, the triangle is the sensor."
    return paragraph(said) + beside(maps)


def error_map(name: str, boxes: np.ndarray) -> str:
    """Numbers of boxes [N, 7] by their place, as an SVG."""
    inside = (np.abs(boxes[:, :2]) < FARTHEST).all(axis=1)
    places = np.floor(boxes[inside, :2] / CELL).astype(int)
    cells, counts = np.unique(places, axis=0, return_counts=True)
    low = np.minimum(cells.min(axis=0, initial=0), 0)
    high = np.maximum(cells.max(axis=0, initial=0) + 1, 4)
    side = CELL * SCALE
    (deep, wide), most = (high - low) * side, counts.max(initial=1)
    parts = []
    for (x, y), count in zip(cells.tolist(), counts.tolist(), strict=True):
        left, top, share = (high[1] - y - 1) * side, (high[0] - x - 1) * side, count / most
        shade = ", ".join(f"{235 - share * (235 - dark):.0f}" for dark in (20, 60, 130))
        ink = "#fff" if share > 0.5 else "#000"
        parts.append(
            f'<rect x="{left}" y="{top}" width="{side}" height="{side}" fill="rgb({shade})"/>'
            f'<text x="{left + side / 2}" y="{top + side / 2 + 4}" fill="{ink}">{count}</text>'
        )
    u, v = high[1] * side, high[0] * side
    radii = range(20 * SCALE, FARTHEST * SCALE + 1, 20 * SCALE)
    parts += [f'<circle cx="{u}" cy="{v}" r="{r}" fill="none" stroke="#999"/>' for r in radii]
    frame = f'x="-{2 * side}" width="{2 * side}" height="{deep}" fill="#fff"/>'
    parts += [f"<rect {frame}", f'<rect width="{wide}" height="{deep}" fill="none" stroke="#999"/>']
    for r in (r for r in radii if r < v):
        parts.append(f'<text x="-{side}" y="{v - r + 4}" fill="#555">{r // SCALE} m</text>')
    parts.append(f'<path d="M{u} {v - 8} l6 14 h-12 z" fill="#000"/>')
    outside = f", {(~inside).sum()} farther away" if not inside.all() else ""
    return (
        f"<figure><figcaption>{name}: {inside.sum()}{outside}</figcaption>"
        f'<svg width="{wide + 2 * side}" height="{deep}" font-size="11" text-anchor="middle" '
        f'viewBox="-{2 * side} 0 {wide + 2 * side} {deep}">{"".join(parts)}</svg></figure>'
    )


def frame_section(own: Run, worst: int) -> str:
    """The frames with most errors: their pictures, and each error with its reason."""
    _, _, badness = own.errors
    rows = [int(row) for row in np.argsort(-badness, kind="stable")[:worst] if badness[row] > 0]
    palette, parts = Palette(own.found.classes), [paragraph(FRAMES if rows else "No errors.")]
    with SceneRenderer() as renderer:
        artist = Artist(renderer, "height", None)
        for row in rows:
            shown = shown_of(own, row, palette)
            missed, false, bad = (values[row] for values in own.errors)
            title = f"{own.found.frame_ids[row]}: {missed:.0f} missed, {false:.0f} false"
            views = artist.views(shown)
            order = [views[kind] for kind in ("camera", "scene", "birds_eye") if kind in views]
            errors = [
                (one.name, one.distance, one.points, score_of(one.score), one.verdict)
                for one in object_rows(shown)
                if one.verdict.startswith((MISSED, FALSE))
            ]
            head = ["class", "distance, m", "points", "score", "verdict"]
            parts.append(
                f'<section class="frame"><h3>{escape(title)}, badness {bad:.2f}</h3>'
                + table(head, errors, text=[4])
                + "".join(picture(view, title) for view in order)
                + "</section>"
            )
    return "".join(parts)


FRAMES = (
    "Frames with the most errors, as evaluate lists them: badness is 1 for each missed object, its "
    "score for each false detection. Dashed boxes are labels, solid ones detections."
)


def score_of(score: float | None) -> str:
    return "" if score is None else f"{score:.2f}"


def shown_of(own: Run, row: int, palette: Palette) -> Shown:
    """A frame with the verdicts on its objects, and on detections that score enough."""
    frame, verdicts = own.found.dataset[row], own.verdicts
    there = own.truth.frames == row
    sure = (own.boxes.frames == row) & (own.boxes.scores >= OPERATING_SCORE)
    truth = palette.paint(own.truth.boxes[there], own.truth.names[there].tolist())
    found = palette.paint(
        own.boxes.boxes[sure], own.boxes.names[sure].tolist(), own.boxes.scores[sure]
    )
    truth = truth.judged(verdicts.truth[there], None, True, verdicts.truth_reasons[there])
    told = verdicts.overlap[sure], True, verdicts.reasons[sure]
    found = found.judged(verdicts.detections[sure], *told)
    return Shown(frame.points, truth, found, frame.frame_id, photo=photo_of(frame))


def change_section(own: Run, other: Run, groups: Sequence[Group]) -> str:
    """What became better and worse: figures, objects, frames."""
    rows: list[Sequence[Cell]] = []
    for name in own.overlaps:
        key = f"3d@{own.overlaps[name][0]:g}"
        rows.append([f"{name}, overlap {own.overlaps[name][0]:g}"])
        for title in ("all", *(group.title for group in groups)):
            now, then = (of.result["classes"][name][title][key] for of in (own, other))
            if now["R40"] or then["R40"]:  # neither without objects nor without detections
                pair = [(100 * of["recall"], 100 * of["precision"]) for of in (then, now)]
                change = f"{now['R40'] - then['R40']:+.1f}"
                rows.append([title, then["R40"], now["R40"], change, *pair[0], *pair[1]])
    head = ["3-D", "AP before", "AP now", "change", "recall before", "precision before"]
    lost, gained = (a.verdicts.truth == MISSED for a in (own, other))
    kinds, objects = (gained & ~lost, lost & ~gained, lost & gained), []
    for name in own.overlaps:
        of = own.truth.names == name
        objects.append([name, *(int((kind & of).sum()) for kind in kinds)])
    change = own.errors[2] - other.errors[2]
    order = np.argsort(-np.abs(change), kind="stable")[:MOST_CHANGED]
    frames: list[Sequence[Cell]] = []
    for i in order[change[order] != 0]:
        then, now = float(other.errors[2][i]), float(own.errors[2][i])
        frames.append([own.found.frame_ids[i], then, now, "worse" if now > then else "better"])
    named = ["object", "found now, missed before", "missed now, found before", "missed by both"]
    return (
        table([*head, "recall now", "precision now"], rows)
        + table(named, objects)
        + paragraph("The frames that changed most, by their badness:")
        + table(["frame", "before", "now", ""], frames, text=[3])
    )
