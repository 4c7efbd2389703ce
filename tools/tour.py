"""The shipped weights at work: simulate a drive of 5 s, detect, follow, evaluate, draw.

The first steps are other programs; their command lines are shown, to be used on other data.
"""

if __name__ == "__main__":
    from millisecond.tools import program

    program.start(__file__)

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import Image

from millisecond.data.files import make_folder
from millisecond.data.frame import Frame
from millisecond.data.kitti.dataset import KittiDataset
from millisecond.data.kitti.labels import read_labels
from millisecond.data.live.scan import LiveScan
from millisecond.data.metric.kitti import MIN_OVERLAP, evaluate
from millisecond.detector.detection_files import read_result
from millisecond.detector.draw.birds_eye import draw_birds_eye
from millisecond.detector.draw.png import save_png
from millisecond.detector.draw.scene import SceneRenderer, SceneUnavailable
from millisecond.detector.draw.style import BACKGROUND, Palette, Shown
from millisecond.detector.following import LiveFrame, Trails
from millisecond.detector.tracking import Tracker
from millisecond.tools import detect, evaluate_tracks, simulate
from millisecond.tools.program import output_path, parser_of, run

EXAMPLE = """example:
  millisecond tour --output output/demo
"""
STREET = 200_102  # of no training
RATE = 10.0  # scans per second
SHOWN = (8, 20, 32, 44)  # scans of the film strip
POSTER, HEIGHT = 20, 576  # the scan of the large picture; pixels
SURE = 0.4  # least score of a box that is drawn
OVERLAP, MODERATE, SHARES = 0.5, 1, ("recall", "precision")
CELL = (640, 360)  # width and height of a picture of the strip, pixels
NEXT = """Next:
  millisecond demo {drive}
  millisecond visualize --root {drive} --detections {found}
  millisecond evaluate --detections {found} --labels {drive}/label_2
  millisecond train_demo --output output/train_demo"""
Command = list[str | Path]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__, EXAMPLE)
    parser.add_argument(
        "--output", type=output_path, required=True, help="folder for all that is written"
    )
    output = parser.parse_args(arguments).output
    return run(lambda: demonstrate(output))


def demonstrate(output: Path) -> int:
    """Every step in turn; returns the exit code of the one that failed, 0 if none did."""
    begin = time.monotonic()
    for title, program, command in steps(output):
        print(f"\n=== {title}", flush=True)
        name, *arguments = map(str, command)
        print(f"$ millisecond {shlex.join([name, *arguments])}", flush=True)
        if code := program(arguments):
            return code
    print(f"\n=== Evaluate\n{evaluation(output)}\n\n=== Draw", flush=True)
    for path in draw(output):
        print(path)
    print("\n" + NEXT.format(drive=output / "drive", found=output / "detections"))
    print(f"\nall in {time.monotonic() - begin:.0f} s")
    return 0


def steps(output: Path) -> list[tuple[str, Callable[[Sequence[str]], int], Command]]:
    """Titles, programs and their command lines: a program of this folder, then its arguments."""
    drive, found = output / "drive", output / "detections"
    scans, calib = drive / "velodyne_reduced", drive / "calib.txt"
    return [
        (
            "Simulate a street for 5 s, scanned from a car that moves in it",
            simulate.main,
            ["simulate", "--root", drive, "--drive", str(STREET)],
        ),
        (
            "Detect in its scans",
            detect.main,
            ["detect", scans, "--calib", calib, "--output", found],
        ),
        (
            "Follow the objects from scan to scan, and count the mistakes",
            evaluate_tracks.main,
            ["evaluate_tracks", found, "--root", drive],
        ),
    ]


def evaluation(output: Path) -> str:
    """How much was found, and how much of it is there."""
    dataset, found = KittiDataset(output / "drive", "all"), output / "detections"
    truth = [dataset.labels(place) for place in range(len(dataset))]
    results = [read_labels(found / f"{frame_id}.txt") for frame_id in dataset.frame_ids]
    lines = [f"in {len(dataset)} scans, boxes that score 0.5, overlap of the volumes 0.5:"]
    for name, metrics in evaluate(results, truth).items():
        figures = metrics["3d" if MIN_OVERLAP[name][0] == OVERLAP else f"3d@{OVERLAP}"]
        recall, precision = (round(100 * figures[key][MODERATE]) for key in SHARES)
        lines.append(
            f"  {name:11} {figures['count'][MODERATE]:4} labels of moderate difficulty, "
            f"{recall:3} % found; {precision:3} % of the boxes are right"
        )
    return "\n".join(lines)


def draw(output: Path) -> list[Path]:
    """Write a film strip with tracks and a large picture with ground truth; returns their paths."""
    make_folder(output)
    dataset = KittiDataset(output / "drive", "all")
    followed = follow(dataset, output / "detections")
    film, street = output / "film_strip.png", output / "street.png"
    with SceneRenderer() as renderer:
        cells = [draw_tracks(renderer, followed[place]) for place in SHOWN]
        save_png(film, tiled(cells))
        found = read_result(output / "detections" / f"{dataset.frame_ids[POSTER]}.json").found
        sure = found.select(np.flatnonzero(found.scores >= SURE))
        save_png(street, draw_poster(renderer, dataset[POSTER], sure))
    return [film, street]


def follow(dataset: KittiDataset, detections: Path) -> list[LiveFrame]:
    """The scans with detections, tracks and trails."""
    tracker, trails, frames = Tracker(), Trails(), []
    for place, frame in enumerate(dataset):
        found = read_result(detections / f"{frame.frame_id}.json").found
        tracks = tracker.update(found, place / RATE)
        scan = LiveScan(frame.points, place / RATE, f"{place / RATE:.1f} s")
        frames.append(LiveFrame(scan, found, tracks, trails.update(tracks)))
    return frames


def draw_tracks(renderer: SceneRenderer, frame: LiveFrame) -> np.ndarray:
    """[H, W, 3] in 3-D, or from above where Open3D cannot render."""
    objects = frame.objects(SURE)
    boxes = Palette(objects.names).paint(objects.boxes, objects.names, objects.scores)
    boxes = boxes._replace(ids=objects.ids, trails=objects.trails)
    shown = Shown(frame.scan.points, None, boxes, frame.scan.name)
    try:
        return renderer.draw(shown)
    except SceneUnavailable as error:
        print(f"note: {error}; drawn from above instead", file=sys.stderr)
        return draw_birds_eye(shown)


def draw_poster(renderer: SceneRenderer, frame: Frame, found) -> np.ndarray:
    """[H, W, 3]: in 3-D and from above side by side, with the ground truth of the known classes."""
    palette = Palette(found.names)
    known = [row for row, name in enumerate(frame.names) if name in MIN_OVERLAP]
    truth = palette.paint(frame.boxes[known], [frame.names[row] for row in known])
    boxes = palette.paint(found.boxes, found.names, found.scores)
    shown = Shown(frame.points, truth, boxes)
    pictures = [draw_birds_eye(shown)]
    with suppress(SceneUnavailable):  # said with the film strip
        pictures.insert(0, renderer.draw(shown))
    parts = []
    for picture in pictures:
        wide = round(picture.shape[1] * HEIGHT / picture.shape[0])
        whole = Image.fromarray(picture)
        parts.append(np.asarray(whole.resize((wide, HEIGHT), Image.Resampling.LANCZOS)))
    return np.concatenate(parts, axis=1)


def tiled(pictures: Sequence[np.ndarray]) -> np.ndarray:
    """[H, W, 3]: four pictures, two beside each other."""
    gap, (wide, high) = 4, CELL
    sheet = Image.new("RGB", (2 * wide + gap, 2 * high + gap), BACKGROUND)
    for number, picture in enumerate(pictures):
        whole = Image.fromarray(picture)
        whole.thumbnail(CELL, Image.Resampling.LANCZOS)
        row, column = divmod(number, 2)
        sheet.paste(whole, (column * (wide + gap), row * (high + gap)))
    return np.asarray(sheet)
