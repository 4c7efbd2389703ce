"""Play a folder of scans at 10 Hz through the detector: in a window, or into numbered PNGs."""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

    from tools import program

    program.begin()

import argparse
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from data.files import make_folder
from data.kitti.points import find_scans, read_points
from detector.draw.birds_eye import draw_birds_eye
from detector.draw.scene import SceneRenderer, SceneUnavailable
from detector.draw.style import BoxSet, save_png
from detector.draw.window import Window, has_display
from detector.pipeline import Detector
from tools.program import run

EXAMPLE = """examples:
  python tools/demo.py 2011_09_26_drive_0005_sync/velodyne_reduced --weights second.safetensors
  python tools/demo.py scans --weights second.safetensors --output film

Scans are played in the order of their names. A machine that needs more than 100 ms for a scan plays
them more slowly and leaves none out. Latency is the time from points to boxes; frames a second are
those shown, or with PNGs those that detection alone would reach.
"""
PERIOD = 0.1  # seconds between two scans
FOLDER = Path("output/film")


class Shown(NamedTuple):
    """What a picture shows of one scan."""

    points: np.ndarray
    ground_truth: None
    detections: BoxSet
    title: str


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    return run(lambda: show(options))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="folder of .bin files")
    parser.add_argument("--weights", type=Path, required=True, help="weights file")
    parser.add_argument("--device", help="to detect on: cpu, cuda (a GPU if there is one)")
    parser.add_argument(
        "--score", type=float, default=0.3, help="least score that is drawn (default: %(default)s)"
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="write PNGs here, no window")
    return parser.parse_args(arguments)


def show(options: argparse.Namespace) -> None:
    """Open the window, or write the film where there is no display."""
    scans = find_scans([options.source])
    detector = Detector.from_weights(options.weights, options.device)
    detector(read_points(scans[0]))  # the first call makes ready what the others find
    if options.output is None and has_display():
        play(scans, detector, options.score)
    else:
        film(scans, detector, options.score, options.output or FOLDER)


def detect(detector: Detector, scan: Path, score: float) -> tuple[np.ndarray, BoxSet, float]:
    """The points, the boxes with at least this score, and the seconds from points to boxes."""
    points = read_points(scan)
    start = time.perf_counter()
    boxes, scores, labels = (tensor.cpu().numpy() for tensor in detector(points))
    seconds = time.perf_counter() - start
    names = detector.config.class_names
    rows = np.flatnonzero(scores >= score)
    found = BoxSet(boxes[rows], tuple(names[labels[i] - 1] for i in rows), scores[rows])
    return points, found, seconds


def title_of(scan: Path, latency: float, periods: Sequence[float]) -> str:
    rate = len(periods) / sum(periods)
    return f"{scan.stem}     latency {1000 * latency:.0f} ms     {rate:.1f} frames a second"


def play(scans: Sequence[Path], detector: Detector, score: float) -> None:
    """Show one scan after the other until the last, or until the window is closed."""
    paused = False

    def key(name: str) -> None:
        nonlocal paused
        if name == "space":
            paused = not paused
        elif name == "q":
            window.close()

    window = Window("millisecond", "space: pause    q: quit", key)
    periods, due = deque([PERIOD], maxlen=10), time.perf_counter()
    last = due
    with ThreadPoolExecutor(1) as pool:  # detects while the window goes on answering
        for scan in scans:
            result = pool.submit(detect, detector, scan, score)
            while paused or not result.done() or time.perf_counter() < due:
                if not window.tick():
                    return
            points, found, latency = result.result()
            now = time.perf_counter()
            periods.append(now - last)
            last, due = now, max(due + PERIOD, now)
            window.show(*Shown(points, None, found, title_of(scan, latency, periods)))
    while window.tick():
        pass


def film(scans: Sequence[Path], detector: Detector, score: float, folder: Path) -> None:
    """Write 000000.png, 000001.png and so on."""
    make_folder(folder)
    shown = frames(tqdm(scans, unit="scan", disable=None), detector, score)
    with SceneRenderer() as renderer:
        draw = renderer.draw
        for number, frame in enumerate(shown):
            try:
                picture = draw(*frame)
            except SceneUnavailable as error:
                tqdm.write(f"note: {error}; drawn from above instead", file=sys.stderr)
                draw = draw_birds_eye
                picture = draw(*frame)
            save_png(folder / f"{number:06d}.png", picture)
    print(f"{len(scans)} pictures written to {folder}")


def frames(scans: Sequence[Path], detector: Detector, score: float) -> Iterator[Shown]:
    """Scans with what was found in them."""
    latencies = deque(maxlen=10)
    for scan in scans:
        points, found, latency = detect(detector, scan, score)
        latencies.append(latency)
        yield Shown(points, None, found, title_of(scan, latency, latencies))


if __name__ == "__main__":
    sys.exit(main())
