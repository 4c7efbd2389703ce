"""Find boxes in LiDAR scans: one JSON file a scan and, with a calibration, KITTI result files."""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

    from tools import program

    program.begin()

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data.files import make_folder, replacing
from data.kitti.calibration import Calibration
from data.kitti.labels import write_labels
from data.kitti.layout import USUAL_IMAGE, image_shape
from data.kitti.points import find_scans, read_points
from data.kitti.results import detections_to_labels
from detector.pipeline import PRECISIONS, Detector
from tools.program import run

EXAMPLE = """example:
  python tools/detect.py --weights second.safetensors kitti/training/velodyne \\
      --calib kitti/training/calib --output results

A scan is a .bin file of float32 (x, y, z, intensity). OUTPUT/000008.json holds boxes (x, y, z, l,
w, h, yaw in the LiDAR frame, metres and radians), scores, names and the time taken. With --calib,
points outside the camera's field of view are left out, as in training, and OUTPUT/000008.txt is
the result file that KITTI's evaluation takes. The image's size is that of ../image_2/000008.png
beside the scan's folder, 1242 x 375 where there is none.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    return run(lambda: detect_all(options))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("input", nargs="+", type=Path, help=".bin files, or folders of them")
    parser.add_argument("--weights", type=Path, required=True, help="weights file")
    parser.add_argument("--output", type=Path, required=True, help="folder to write to")
    parser.add_argument("--calib", type=Path, help="KITTI calibration file, or folder of them")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 (a GPU if there is one)")
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32", help="of the network")
    return parser.parse_args(arguments)


def detect_all(options: argparse.Namespace) -> None:
    scans = find_scans(options.input)
    calibrations = [find_calibration(options.calib, scan) for scan in scans]
    detector = Detector.from_weights(options.weights, options.device, options.precision)
    make_folder(options.output)
    total = 0
    for scan, calib in zip(tqdm(scans, unit="scan", disable=None), calibrations, strict=True):
        total += detect(detector, scan, calib, options.output)
    print(f"{total} boxes in {len(scans)} scans, written to {options.output}")


def find_calibration(calib: Path | None, scan: Path) -> Calibration | None:
    """The calibration of a scan: the file itself, or the one of the scan's name in the folder."""
    if calib is None:
        return None
    path = calib / f"{scan.stem}.txt" if calib.is_dir() else calib
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such calibration file")
    return Calibration.from_file(path)


def detect(detector: Detector, scan: Path, calibration: Calibration | None, output: Path) -> int:
    """Writes the results of a scan; returns the number of boxes."""
    points = read_points(scan)
    if calibration is not None:
        image = scan.resolve().parents[1] / "image_2" / f"{scan.stem}.png"
        shape = image_shape(image) if image.is_file() else USUAL_IMAGE
        points = points[calibration.in_image(points, shape)]
    start = time.perf_counter()
    boxes, scores, labels = (tensor.cpu().numpy() for tensor in detector(points))
    milliseconds = 1000 * (time.perf_counter() - start)
    names = [detector.config.class_names[label - 1] for label in labels]
    result = {
        "frame": scan.stem,
        "boxes": np.round(boxes.astype(float), 4).tolist(),
        "scores": np.round(scores.astype(float), 4).tolist(),
        "names": names,
        "milliseconds": round(milliseconds, 3),
    }
    with replacing(output / f"{scan.stem}.json") as temporary:
        temporary.write_text(json.dumps(result) + "\n", encoding="utf-8")
    if calibration is not None:
        labels = detections_to_labels(boxes, scores, names, calibration, shape)
        write_labels(output / f"{scan.stem}.txt", labels)
    return len(boxes)


if __name__ == "__main__":
    sys.exit(main())
