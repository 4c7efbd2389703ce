"""Draw scans with ground truth and detections: in a window, or without a display into PNGs."""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

    from tools import program

    program.begin()

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from data.detections import NamedDetections
from data.files import make_folder
from data.frame import Frame
from data.kitti.dataset import KittiDataset
from data.kitti.layout import Layout
from data.kitti.points import find_scans, read_points
from data.scan_checks import Tally
from detector.detector import Detector
from detector.draw.birds_eye import draw_birds_eye
from detector.draw.camera import draw_camera, read_image
from detector.draw.detection_files import find_detections, read_detections
from detector.draw.png import save_png
from detector.draw.scene import SceneRenderer, SceneUnavailable
from detector.draw.style import Palette
from detector.draw.view import View
from detector.draw.window import Window, WindowUnavailable
from tools.drawing import NOTHING, Account, Shown, detect
from tools.program import output_path, run
from tools.program import score as shown_score

EXAMPLE = """examples:
  python tools/visualize.py --root /data/kitti --frames 000008 --weights second.safetensors
  python tools/visualize.py --root /data/kitti --split val --detections results --output pictures
  python tools/visualize.py scan.bin --detections results

Detections come from a folder of tools/detect.py's .json files or of KITTI result files (.txt), the
newer where a frame has both, or from a weights file that is run here. Where there is a display and
no --output, a window opens: left and right show another frame, h shows all keys. Otherwise three
pictures per frame are written: NAME_birds_eye.png, NAME_scene.png and, if there is an image,
NAME_camera.png. A frame that cannot be drawn is reported and left out; the exit code is then 2.
"""
FOLDER = Path("output/pictures")
KEYS = {"left, right": "frame before, after"}


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    return run(lambda: visualize(options))


def visualize(options: argparse.Namespace) -> int:
    """Open the window, or write the pictures where there is no display."""
    source = find_source(options)
    if options.output is None:
        try:
            with Window(KEYS if len(source.names) > 1 else {}) as window:
                return show(source, window, options.score)
        except WindowUnavailable as error:
            print(f"note: {error}; writing PNGs", file=sys.stderr)
    return write(source, options.score, options.output or FOLDER, options.colour_by)


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
    parser.add_argument(
        "--classes",
        nargs="+",
        default=[],
        metavar="NAME",
        help="types that labels have besides KITTI's",
    )
    parser.add_argument("--device", help="to detect on: cpu, cuda (a GPU if there is one)")
    parser.add_argument(
        "--score",
        type=shown_score,
        default=0.3,
        help="least score that is drawn (default: %(default)s)",
    )
    parser.add_argument(
        "--colour-by", choices=("height", "intensity"), default="height", help="points from above"
    )
    parser.add_argument(
        "--output", type=output_path, metavar="DIR", help="write PNGs here, no window"
    )
    return parser.parse_args(arguments)


class Source(NamedTuple):
    """The frames to be drawn, read when they are asked for, and what is known of all of them."""

    names: Sequence[str]
    frame: Callable[[int], Frame]  # by place in names
    labelled: bool
    detections: Callable[[Frame, Tally], NamedDetections] | None
    palette: Palette
    view: View | None  # of the bird's-eye view: the detector's grid


def find_source(options: argparse.Namespace) -> Source:
    """What the command line names; what is not there is found before any frame is drawn."""
    if bool(options.scans) == bool(options.root):
        raise ValueError("give either .bin files (or folders of them) or --root, not both")
    detector, classes, view = None, list(options.classes), None
    if options.weights is not None:
        detector = Detector.from_weights(options.weights, options.device)
        classes = [*dict.fromkeys([*detector.config.class_names, *classes])]
        view = View.of_grid(detector.config.grid.range)
    crop = detector and detector.config.grid.crop_to_image
    names, frame, labelled = find_frames(options, classes, crop)
    detections = None
    if detector is not None:
        detections = partial(detect_in, detector)
    elif options.detections is not None:
        find_detections(options.detections, names)
        detections = partial(read_found, options.detections)
    return Source(names, frame, labelled, detections, Palette(classes), view)


def find_frames(
    options: argparse.Namespace, classes: Sequence[str], crop: bool | None
) -> tuple[Sequence[str], Callable[[int], Frame], bool]:
    """Names, the frame at a place among them, and whether they have ground truth.

    crop: to the image, as the detector's training had it; None: where there are images.
    """
    if options.scans:
        scans = find_scans(options.scans)
        names = [scan.stem for scan in scans]
        return names, lambda place: Frame(names[place], read_points(scans[place])), False
    if crop is None:
        crop = Layout.find(options.root, options.split, labels=False).has_images
    dataset = KittiDataset(options.root, options.split, classes, crop=crop, labels=False)
    ids = dataset.frame_ids
    missing = [name for name in options.frames or () if name not in ids]
    if missing:
        raise ValueError(
            f"frame {missing[0]} is not in split '{options.split}' of {options.root}, whose "
            f"{len(ids)} frames go from {ids[0]} to {ids[-1]}"
        )
    rows = [ids.index(name) for name in options.frames or ids]
    return [ids[row] for row in rows], lambda place: dataset[rows[place]], dataset.layout.labelled


def detect_in(detector: Detector, frame: Frame, notes: Tally) -> NamedDetections:
    found, left_out = detect(detector, frame.points)
    notes.add(f"frame {frame.frame_id}", left_out + detector.examine(frame.points))
    return found


def read_found(folder: Path, frame: Frame, _: Tally) -> NamedDetections:
    return read_detections(folder, frame.frame_id, frame.calibration)


def prepare(frame: Frame, source: Source, account: Account) -> Shown:
    truth = source.palette.paint(frame.boxes, frame.names) if source.labelled else None
    title, found = f"{frame.frame_id}   {len(frame.points)} points", None
    if source.detections is not None:
        found, left_out = account.best(frame.frame_id, source.detections(frame, account.notes))
        title += left_out
    return Shown(frame.points, truth, found, title)


def write(source: Source, score: float, folder: Path, colour_by: str) -> int:
    """Write the pictures of all frames; without Open3D's, where it cannot render, said once."""
    make_folder(folder)
    account, written, in_3d = Account(score, source.palette, at_once=False), 0, True
    with SceneRenderer() as renderer:
        for place, name in enumerate(tqdm(source.names, unit="frame", disable=None)):
            try:
                frame = source.frame(place)
                shown = prepare(frame, source, account)
                image = None if frame.image is None else read_image(frame.image)
            except (ValueError, OSError) as error:
                account.bad(name, error)
                continue
            pictures = {"birds_eye": draw_birds_eye(*shown, colour_by, source.view)}
            if image is not None:
                pictures["camera"] = draw_camera(image, frame.calibration, *shown[1:])
            try:
                if in_3d:
                    pictures["scene"] = renderer.draw(*shown)
            except SceneUnavailable as error:
                in_3d = False
                tqdm.write(f"note: {error}", file=sys.stderr)
            for kind, picture in pictures.items():
                save_png(folder / f"{name}_{kind}.png", picture)
            written += len(pictures)
    print(f"{written} pictures written to {folder}")
    return account.close(len(source.names))


def show(source: Source, window: Window, score: float) -> int:
    """Show the frames that the user turns to, until the window is closed."""
    account, at, drawn = Account(score, source.palette, at_once=True), 0, None
    while window.open:
        if at != drawn:
            shown = prepare_or_tell(at, source, account)
            place = f"     {at + 1} of {len(source.names)}" if len(source.names) > 1 else ""
            window.show(*shown._replace(title=shown.title + place))
            drawn = at
        for key in window.wait():
            at = (at + {"left": -1, "right": 1}.get(key, 0)) % len(source.names)
    return account.close(len(source.names))


def prepare_or_tell(place: int, source: Source, account: Account) -> Shown:
    """A frame to be shown; of one that cannot be, nothing but a title that says why."""
    try:
        return prepare(source.frame(place), source, account)
    except (ValueError, OSError) as error:
        return NOTHING._replace(title=account.bad(source.names[place], error))


if __name__ == "__main__":
    sys.exit(main())
