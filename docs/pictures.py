"""Every picture of README and docs, and what draws it.

python -m docs.pictures            draws all again, as `make pictures` does, in minutes
python -m docs.pictures NAME ...   draws some, e.g. street.png drawings/tiles.png

`DRAWINGS` come from operators, pages and figures: a test draws them again and compares the pixels.
`SHOTS` come from programs, which take longer. docs/pictures.yaml says by a digest what each of them
shows: the weights, the streets and the drawing code. A test compares it with what is there now.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import io
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import yaml
from matplotlib.figure import Figure
from PIL import Image

from docs import figures
from docs.drawings import example, few_labels, street
from millisecond.data.live.queue import ScanQueue
from millisecond.data.live.source import open_source
from millisecond.data.simulator import simulate
from millisecond.data.simulator.street import WORLD
from millisecond.detector.detector import Detector
from millisecond.detector.draw.scene import SceneRenderer
from millisecond.detector.draw.sheets import Artist
from millisecond.detector.draw.style import Palette, Shown
from millisecond.detector.draw.view import View
from millisecond.detector.following import LiveDetection
from millisecond.tools import (
    autolabel,
    demo,
    detect,
    evaluate,
    suggest,
    tour,
    visualize,
    visualizing,
)
from millisecond.tools import simulate as simulating
from millisecond.tools.benchmarks.dense3d import draw_occupancies

DOCS = Path(__file__).parent
SHOWN = DOCS / "pictures.yaml"
STAGES = DOCS / "points_to_boxes.md"
NOTEBOOK = DOCS.parent / "examples" / "points_to_boxes.ipynb"
WEIGHTS = "second_small"  # what a CPU detects with
FIRST, STREETS = 100_000, 24  # of no training
POSTERS = (3, 38, 9, 37, 44, 29)  # streets of simulator.png
REVIEWED = 5  # scans of a drive
FILMED = "street:6", 12  # README's example, and its scan of the picture
LARGEST = (1420, 1140)  # pixels
Picture = np.ndarray  # [H, W, 3] uint8

# ---- from operators, pages and figures -----------------------------------------------------------


def pixels(figure: Figure) -> Picture:
    with io.BytesIO() as file:
        figure.savefig(file, dpi=110, facecolor="white")
        plt.close(figure)
        return read(file)


def read(file: Path | io.BytesIO) -> Picture:
    return np.asarray(Image.open(file).convert("RGB"))


@functools.cache
def walk() -> tuple[dict[str, Picture], dict[str, Any]]:
    """Runs points_to_boxes.ipynb: its pictures by their names on the page, and its variables."""
    drawn, known, path = [], {}, list(sys.path)
    for cell in json.loads(notebook())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), known)
        if "figure" in known:
            drawn.append(pixels(known.pop("figure")))
    sys.path[:] = path
    return dict(zip(stage_names(), drawn, strict=True)), known


def stage_names() -> list[str]:
    return re.findall(r"\]\((drawings/\w+\.png)\)", page())


def page() -> str:
    return STAGES.read_text(encoding="utf-8")


def notebook() -> str:
    """points_to_boxes.md as a notebook, which draws the pictures itself."""
    cells = [
        _cell("code", 'import sys\n\nsys.path.append("..")  # the checkout, for docs.drawings')
    ]
    text = re.sub(r"^!\[.*?\]\(.*?\)\n\n", "", page(), flags=re.M)
    text = re.sub(r"\]\((?!http|#)(.*?)\)", _from_examples, text)
    for part in re.split(r"^(```python\n.*?^```)$", text, flags=re.M | re.S):
        code = part.removeprefix("```python\n").removesuffix("```")
        cells.append(_cell("code" if code != part else "markdown", code))
    about = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    whole = {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 4}
    return json.dumps(whole, indent=1) + "\n"


def _from_examples(link: re.Match[str]) -> str:
    return f"](../docs/{link[1]})".replace("../docs/../", "../")


def _cell(kind: str, text: str) -> dict:
    cell = {"cell_type": kind, "metadata": {}, "source": text.strip().splitlines(keepends=True)}
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def occupancies() -> Picture:
    """The times of dense_convolution.md."""
    rows, crossings = [], []
    for name, cells in figures.read("dense3d")["figures"]["occupancy"].items():
        channels, _, precision = name.partition(" channels, ")
        kind = {"channels": int(channels), "precision": precision}
        for share in [column for column in cells if column.endswith(" %")]:
            times = {"sparse_ms": float(cells[share]), "dense_ms": float(cells["dense"])}
            rows.append(kind | times | {"occupancy": float(share.split()[0]) / 100})
        below = re.findall(r"\d+", cells["sparse is faster"])
        crossings.append(kind | {"below": int(below[0]) / 100 if below else 1.0})
    return draw_occupancies(rows, crossings, "NVIDIA H200")


FIGURES = {
    "drawings/cloud.png": street.draw_cloud,
    "drawings/sites.png": example.draw_sites,
    "drawings/rulebook.png": example.draw_rulebook,
    "drawings/gather.png": example.draw_gather,
    "drawings/bitmap.png": example.draw_bitmap,
    "drawings/tiles.png": street.draw_tiles,
}
DRAWINGS: dict[str, Callable[[], Picture]] = {
    **{name: lambda draw=draw: pixels(draw()) for name, draw in FIGURES.items()},
    **{name: lambda name=name: walk()[0][name] for name in stage_names()},
    "few_labels.png": few_labels.draw,
    "dense_occupancy.png": occupancies,
}

# ---- from programs -------------------------------------------------------------------------------


class Workshop:
    """What several pictures need, each made once, in a folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    @functools.cached_property
    def tour(self) -> Path:
        _run(tour, "--output", self.folder / "tour")
        return self.folder / "tour"

    @functools.cached_property
    def streets(self) -> Path:
        root = self.folder / "streets"
        numbers = "--first", FIRST, "--streets", STREETS
        _run(simulating, "--root", root, "--split", "val", *numbers)
        return root

    @functools.cached_property
    def results(self) -> Path:
        scans, output = self.streets / "training", self.folder / "results"
        calib = "--calib", scans / "calib"
        _run(detect, scans / "velodyne", *calib, "--weights", WEIGHTS, "--output", output)
        return output

    def view(self, name: str, frames: range, *options: str) -> Picture:
        """A picture that `millisecond visualize` writes of some streets."""
        output = self.folder / "views" / name
        source = "--root", self.streets, "--detections", self.results, "--frames", *frames
        _run(visualize, *source, *options, "--output", output)
        return read(output / name)


def _run(program, *arguments: object) -> None:
    if code := program.main([*map(str, arguments)]):
        raise RuntimeError(f"{program.__name__} ended with {code}")


def poster(shop: Workshop) -> Picture:
    return read(shop.tour / "street.png")


def film_strip(shop: Workshop) -> Picture:
    return read(shop.tour / "film_strip.png")


def birds_eye(shop: Workshop) -> Picture:
    return shop.view("100011_birds_eye.png", range(100_011, 100_012))


def sheet(shop: Workshop) -> Picture:
    options = "--pictures", "sheets", "--boxes", "error"
    return shop.view("100008_sheet.png", range(100_008, 100_009), *options)


def contact_sheet(shop: Workshop) -> Picture:
    options = "--pictures", "contact", "--boxes", "error", "--order", "worst"
    return shop.view("contact_sheet.png", range(100_000, 100_008), *options)


def curves(shop: Workshop) -> Picture:
    output = shop.folder / "curves.png"
    source = "--detections", shop.results, "--root", shop.streets, "--split", "val"
    _run(evaluate, *source, "--classes", "Car", "--metric", "lidar", "--curves", output)
    return read(output)


def posters(shop: Workshop) -> Picture:
    """Streets with their ground truth, two beside each other."""
    palette, rows = Palette(), []
    with SceneRenderer() as renderer:
        for seed in POSTERS:
            frame = simulate(seed)
            title = f"{frame.frame_id}   {len(frame.points)} points"
            truth = palette.paint(frame.boxes, frame.names)
            picture = Image.fromarray(renderer.draw(Shown(frame.points, truth, title=title)))
            rows.append(np.asarray(picture.resize(tour.CELL, Image.Resampling.LANCZOS)))
    pairs = zip(rows[::2], rows[1::2], strict=True)
    return np.concatenate([np.concatenate(pair, axis=1) for pair in pairs])


def hall(shop: Workshop) -> Picture:
    """The hall that own_data.md describes."""
    text = (DOCS / "own_data.md").read_text(encoding="utf-8")
    root = shop.folder / "robot"
    (site,) = re.findall(r"^```yaml\n(size: .*?)^```", text, re.M | re.S)
    (shop.folder / "hall.yaml").write_text(site, encoding="utf-8")
    files = "--sensor", "hdl-32e", "--site", shop.folder / "hall.yaml"
    numbers = "--split", "val", "--streets", 1, "--first", 100_012
    _run(simulating, "--root", root, "--layout", "folder", *numbers, *files)
    output = shop.folder / "hall"
    _run(visualize, "--root", root, "--no-detections", "--output", output)
    return read(output / "100012_birds_eye.png")


def review(shop: Workshop) -> Picture:
    """An object of autolabel's list, as the window shows it, but for its camera."""
    drive, labelled = shop.folder / "drive", shop.folder / "labelled"
    scans = sorted((shop.tour / "drive" / "velodyne_reduced").iterdir())[:REVIEWED]
    (drive / "velodyne_reduced").mkdir(parents=True)
    for scan in scans:
        shutil.copy(scan, drive / "velodyne_reduced")
    shutil.copy(shop.tour / "drive" / "calib.txt", drive)
    _run(autolabel, drive, "--weights", WEIGHTS, "--output", labelled)
    listed, names = autolabel.ObjectList(labelled), [scan.stem for scan in scans]
    steps = visualizing.Review(listed, names, Palette(), ())
    points = np.fromfile(scans[names.index(steps.frame)], "<f4").reshape(-1, 4)
    with SceneRenderer() as renderer:
        return renderer.draw(steps.over(Shown(points, title=steps.frame), follow=False))


def live_film(shop: Workshop) -> Picture:
    """A picture of the film that README's example makes, but for its latencies."""
    detector = Detector.from_weights(WEIGHTS, "cpu")
    with ScanQueue(open_source(FILMED[0]), fast=True) as scans, SceneRenderer() as renderer:
        with LiveDetection(scans, detector, limit=FILMED[1], scored=True) as frames:
            shown = demo.LiveView(detector.config.class_names, demo.Choices(0.3), frames.statistics)
            last = [shown.shown(frame, 0) for frame in demo.frames_of(frames, shown)][-1]
        return Artist(renderer, "height", View.of_grid(detector.range)).film_picture(
            last._replace(figures={})
        )


def suggested(shop: Workshop) -> Picture:
    output = shop.folder / "suggested.png"
    source = WEIGHTS, "--root", shop.streets, "--split", "val", "--device", "cpu"
    _run(suggest, *source, "--count", 4, "--picture", output)
    return read(output)


SHOTS: dict[str, Callable[[Workshop], Picture]] = {
    "street.png": poster,
    "live.png": film_strip,
    "live_film.png": live_film,
    "suggest.png": suggested,
    "visualize_birds_eye.png": birds_eye,
    "visualize_sheet.png": sheet,
    "visualize_contact.png": contact_sheet,
    "curves.png": curves,
    "simulator.png": posters,
    "own_data.png": hall,
    "autolabel_review.png": review,
}
WITHOUT_WEIGHTS = ("simulator.png", "own_data.png")

# ---- what a picture shows ------------------------------------------------------------------------


def shows(name: str) -> str:
    """Digest for a picture of a program: of the weights, the streets, and the code that draws."""
    weights = "" if name in WITHOUT_WEIGHTS else figures.checksum(WEIGHTS)
    drawing = [_code(path) for path in sorted((DOCS.parent / "detector" / "draw").glob("*.py"))]
    parts = [weights, str(WORLD), str((FIRST, STREETS)), inspect.getsource(SHOTS[name]), *drawing]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _code(path: Path) -> str:
    """A file without its comments, docstrings and white space."""
    text = re.sub(r'""".*?"""|#[^\n]*', "", path.read_text(encoding="utf-8"), flags=re.S)
    return "".join(text.split())


def noted() -> dict[str, str]:
    """The digests of the pictures that are there."""
    return yaml.safe_load(SHOWN.read_text(encoding="utf-8")) if SHOWN.exists() else {}


def differs(drawn: Picture, shown: Picture) -> float:
    """Share of pixels that are clearly different; 1 for another size. On another kind of processor
    the noise of a simulated scan has other last bits, so a few may be."""
    if drawn.shape != shown.shape:
        return 1.0
    return float((np.abs(drawn.astype(int) - shown).max(-1) > 16).mean())


def draw(names: list[str], folder: Path = DOCS) -> None:
    """Draws pictures again. A file stays as it is where no pixel would change."""
    if unknown := set(names) - DRAWINGS.keys() - SHOTS.keys():
        known = ", ".join([*DRAWINGS, *SHOTS])
        raise ValueError(f"{', '.join(sorted(unknown))}: no such picture; there are {known}")
    with TemporaryDirectory() as temporary:
        shop, digests = Workshop(Path(temporary)), noted()
        for name in names:
            drawn = DRAWINGS[name]() if name in DRAWINGS else SHOTS[name](shop)
            image, path = Image.fromarray(drawn), folder / name
            if name in SHOTS:  # a repository keeps every version
                image.thumbnail(LARGEST, Image.Resampling.LANCZOS)
                keeps_hues = Image.Quantize.FASTOCTREE  # also of the few pixels of a rare class
                image = image.quantize(256, keeps_hues, dither=Image.Dither.NONE)
            if not path.exists() or differs(np.asarray(image.convert("RGB")), read(path)):
                path.parent.mkdir(parents=True, exist_ok=True)
                image.save(path, optimize=True)
            if name in SHOTS:
                digests[name] = shows(name)
                SHOWN.write_text(yaml.safe_dump(digests), encoding="utf-8")
            print(path)
    NOTEBOOK.write_text(notebook(), encoding="utf-8")


if __name__ == "__main__":
    try:
        draw(sys.argv[1:] or [*DRAWINGS, *SHOTS])
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
