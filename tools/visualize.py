"""Draw scans with ground truth and detections: in a window, or without a display into PNGs."""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

    from tools import program

    program.begin()

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from tqdm import tqdm

from data.files import make_folder
from data.frame import Frame
from data.kitti.calibration import Calibration
from data.kitti.dataset import KittiDataset
from data.kitti.labels import read_labels
from data.kitti.points import find_scans, read_points
from detector.draw.birds_eye import draw_birds_eye
from detector.draw.camera import draw_camera
from detector.draw.scene import SceneRenderer, SceneUnavailable
from detector.draw.style import BoxSet, save_png
from detector.draw.window import Window, has_display
from detector.pipeline import Detector
from tools.program import run

EXAMPLE = """examples:
  python tools/visualize.py --root /data/kitti --frames 000008 --weights second.safetensors
  python tools/visualize.py --root /data/kitti --split val --detections results --output pictures
  python tools/visualize.py scan.bin --detections results

Detections come from a folder of tools/detect.py's .json files or of KITTI result files (.txt), or
from a weights file that is run here. Where there is a display and no --output, a window opens: left
and right show another frame, the mouse turns the scene. Otherwise three pictures a frame are
written: NAME_birds_eye.png, NAME_scene.png and, if there is an image, NAME_camera.png.
"""
FOLDER = Path("output/pictures")

Finder = Callable[[Frame], BoxSet | None]


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    return run(lambda: visualize(options))


def visualize(options: argparse.Namespace) -> None:
    """Open the window, or write the pictures where there is no display."""
    frames = find_frames(options)
    find = finder(options)
    if options.output is None and has_display():
        show(frames, find)
    else:
        write(frames, find, options.output or FOLDER, options.colour_by)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scans", nargs="*", type=Path, help=".bin files, or folders of them")
    parser.add_argument("--root", type=Path, help="folder of a KITTI data set, instead of scans")
    parser.add_argument("--split", default="all", help="list in ROOT/ImageSets (default: all)")
    parser.add_argument("--frames", nargs="+", metavar="ID", help="of the split (default: all)")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--detections", type=Path, metavar="DIR", help="folder of results")
    source.add_argument("--weights", type=Path, help="weights file to detect with")
    parser.add_argument("--device", help="to detect on: cpu, cuda (a GPU if there is one)")
    parser.add_argument(
        "--score", type=float, default=0.3, help="least score that is drawn (default: %(default)s)"
    )
    parser.add_argument(
        "--colour-by", choices=("height", "intensity"), default="height", help="points from above"
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="write PNGs here, no window")
    return parser.parse_args(arguments)


class Frames(Sequence[Frame]):
    """Frames that are read when they are asked for."""

    def __init__(self, names: Sequence[str], read: Callable[[int], Frame], labelled: bool):
        self.names, self._read, self.labelled = names, read, labelled

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Frame:
        return self._read(index)


def find_frames(options: argparse.Namespace) -> Frames:
    """The frames that the command line names; what is not there is found before any is drawn."""
    if bool(options.scans) == bool(options.root):
        raise ValueError("give either .bin files (or folders of them) or --root, not both")
    if options.scans:
        scans = find_scans(options.scans)
        return Frames(
            [scan.stem for scan in scans],
            lambda index: Frame(scans[index].stem, read_points(scans[index])),
            labelled=False,
        )
    dataset = KittiDataset(options.root, options.split)
    ids = dataset.frame_ids
    missing = [name for name in options.frames or () if name not in ids]
    if missing:
        raise ValueError(
            f"frame {missing[0]} is not in split '{options.split}' of {options.root}, whose "
            f"{len(ids)} frames go from {ids[0]} to {ids[-1]}"
        )
    rows = [ids.index(name) for name in options.frames or ids]
    return Frames(
        [ids[row] for row in rows], lambda index: dataset[rows[index]], dataset.layout.labelled
    )


def finder(options: argparse.Namespace) -> Finder:
    """What gives the detections of a frame; None where there are none to be drawn."""
    if options.weights is not None:
        detector = Detector.from_weights(options.weights, options.device)
        names = detector.config.class_names

        def detect(frame: Frame) -> BoxSet:
            boxes, scores, labels = (x.cpu().numpy() for x in detector(frame.points))
            return best(BoxSet(boxes, tuple(names[i - 1] for i in labels), scores), options.score)

        return detect
    if options.detections is None:
        return lambda frame: None
    if not options.detections.is_dir():
        raise FileNotFoundError(f"{options.detections}: no such folder of detections")
    return lambda frame: best(
        read_detections(options.detections, frame.frame_id, frame.calibration), options.score
    )


def best(found: BoxSet, score: float) -> BoxSet:
    """The boxes with at least this score."""
    rows = np.flatnonzero(found.scores >= score)
    return BoxSet(found.boxes[rows], tuple(found.names[row] for row in rows), found.scores[rows])


def read_detections(folder: Path, name: str, calibration: Calibration | None) -> BoxSet:
    """The detections of a frame from folder/NAME.json or, with a calibration, folder/NAME.txt."""
    path = folder / f"{name}.json"
    if path.is_file():
        return _read_json(path)
    path = folder / f"{name}.txt"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file, nor one that ends in .json")
    if calibration is None:
        raise ValueError(f"{path}: boxes of a KITTI result need a calibration; draw with --root")
    labels = read_labels(path)
    if len(labels) and labels.score is None:
        raise ValueError(f"{path}: its lines have no score; these are labels, not results")
    boxes = calibration.boxes_from_camera(labels.boxes)
    scores = np.zeros(0) if labels.score is None else labels.score
    return BoxSet(boxes, tuple(labels.types.tolist()), scores)


def _read_json(path: Path) -> BoxSet:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        boxes = np.array(result["boxes"], np.float32).reshape(-1, 7)
        scores, names = np.array(result["scores"], float), tuple(map(str, result["names"]))
        if not len(boxes) == len(scores) == len(names):
            raise ValueError("boxes, scores and names are not equally many")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a result of tools/detect.py ({error})") from None
    return BoxSet(boxes, names, scores)


class Shown(NamedTuple):
    """What the pictures of a frame are drawn from."""

    points: np.ndarray
    ground_truth: BoxSet | None
    detections: BoxSet | None
    title: str


def prepare(frame: Frame, labelled: bool, find: Finder) -> Shown:
    ground_truth = BoxSet(frame.boxes, frame.names) if labelled else None
    title = f"{frame.frame_id}   {len(frame.points)} points"
    return Shown(frame.points, ground_truth, find(frame), title)


def write(frames: Frames, find: Finder, folder: Path, colour_by: str) -> None:
    """Write the pictures of all frames; without Open3D's, where it cannot render, said once."""
    make_folder(folder)
    written, in_3d = 0, True
    with SceneRenderer() as renderer:
        for frame in tqdm(frames, unit="frame", disable=None):
            shown = prepare(frame, frames.labelled, find)
            pictures = {"birds_eye": draw_birds_eye(*shown, colour_by)}
            if frame.image is not None:
                with Image.open(frame.image) as image:
                    pixels = np.asarray(image.convert("RGB"))
                pictures["camera"] = draw_camera(pixels, frame.calibration, *shown[1:])
            try:
                if in_3d:
                    pictures["scene"] = renderer.draw(*shown)
            except SceneUnavailable as error:
                in_3d = False
                tqdm.write(f"note: {error}", file=sys.stderr)
            for kind, picture in pictures.items():
                save_png(folder / f"{frame.frame_id}_{kind}.png", picture)
            written += len(pictures)
    print(f"{written} pictures written to {folder}")


def show(frames: Frames, find: Finder) -> None:
    """Open a window and keep it until the user closes it."""
    at, drawn = 0, 0

    def turn(key: str) -> None:
        nonlocal at
        if key == "q":
            window.close()
        elif key in ("left", "right"):
            at = (at + (1 if key == "right" else -1)) % len(frames)

    keys = "left, right: other frame    q: quit" if len(frames) > 1 else "q: quit"
    first = prepare(frames[0], frames.labelled, find)
    window = Window("millisecond", keys, turn)
    window.show(*first)
    while window.tick():
        if at != drawn:
            drawn = at
            window.show(*prepare(frames[at], frames.labelled, find))


if __name__ == "__main__":
    sys.exit(main())
