"""Check a data set and pack what training reads: its clouds, and a ground-truth database."""

if __name__ == "__main__":
    from millisecond.tools import program

    program.start(__file__)

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from millisecond.data.augment import GroundTruthDatabase
from millisecond.data.datasets import Dataset, is_folder, open_dataset, require_apart
from millisecond.data.datasets.prepare import check_clouds, prepare
from millisecond.data.formats.points import KITTI_POINTS
from millisecond.data.packed import Pack
from millisecond.detector.config import load_config
from millisecond.tools.program import STOPPED, config_file, output_path, parser_of, run

EXAMPLE = """examples:
  millisecond prepare --root kitti
  millisecond prepare --config mine.yaml --root mine

The first is for KITTI's layout. Plain files need the configuration of the training: it has their
classes and the columns of their points. With it, a data set in KITTI's layout is packed as that
training wants it, too.
"""


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    return run(lambda: prepare_splits(options), stopped=STOPPED)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, EXAMPLE)
    add = parser.add_argument
    add("--root", type=Path, required=True, help="folder of the data set")
    add("--config", type=config_file, help="of the training (default: KITTI's classes and points)")
    add(
        "--splits",
        nargs="+",
        metavar="SPLIT",
        help="lists in ROOT/ImageSets, or 'all'; the ground-truth database is made of the first "
        "(default: train val, or all where there are neither ImageSets nor --config)",
    )
    add("--classes", nargs="+", default=(), metavar="NAME", help="types beside KITTI's own")
    add(
        "--no-crop",
        dest="crop",
        action="store_false",
        help="keep the points outside of the camera's picture, for a configuration that says "
        "grid.crop_to_image: false",
    )
    add("--output", type=output_path, metavar="DIR", help="where to (default: ROOT/millisecond)")
    options = parser.parse_args(argv)
    if options.config and (options.classes or not options.crop):
        parser.error("--classes and --no-crop do not go with --config, which says both")
    return options


def prepare_splits(options: argparse.Namespace) -> None:
    """Pack the splits; the ground-truth database is made of the first."""
    root, classes, crop, points = options.root, options.classes, options.crop, KITTI_POINTS
    moving = False
    splits = options.splits or ("train", "val")
    if options.config:
        config = load_config(options.config)
        classes, crop, points = config.class_names, config.grid.crop_to_image, config.points
        moving = config.model.velocity
    elif is_folder(root):
        raise ValueError(f"{root}: plain files; give --config too, the configuration of a training")
    elif not (options.splits or (root / "ImageSets").is_dir()):
        splits = ("all",)
    how = {"packed": False, "crop": crop, "points": points, "velocities": moving}
    datasets = [open_dataset(root, split, classes, options.output, **how) for split in splits]
    for dataset in datasets:
        require_apart(dataset.prepared, dataset.layout.root)
        dataset.warn_of_changes()
        check_clouds(dataset)
    for number, dataset in enumerate(datasets):
        label = f"{dataset.name}: {len(dataset)} frames"
        print(f"checking {label}", flush=True)
        made = prepare(
            dataset,
            database=number == 0,
            progress=lambda left, label=label: tqdm(left, desc=label, unit="frame", disable=None),
        )
        print(f"{label}: {'packed' if made else 'already packed'}{cropping(dataset)}")
    if datasets[0].layout.labelled:
        print_summary(GroundTruthDatabase(datasets[0].pack_path("database")))
    print(f"written to {datasets[0].prepared}")


def cropping(dataset: Dataset) -> str:
    """What the crop to the image has left of the points."""
    if not dataset.crop:
        return ""
    pack = Pack(dataset.pack_path("clouds"))
    points = pack.columns["size"].sum() / (4 * len(dataset.columns.columns))
    share = pack.offsets[-1] / max(points, 1)
    return f"; {share:.0%} of their points are in the camera's picture, the others are left out"


def print_summary(database: GroundTruthDatabase) -> None:
    """Objects and points of each class; by KITTI's difficulty where there are several."""
    graded = bool(database.difficulty.any())
    head = f"{'easy':>8}{'moderate':>10}{'hard':>8}{'none':>8}" if graded else ""
    wide = max(16, *(len(name) + 1 for name in database.names), 0)
    print(f"{'class':<{wide}}{'objects':>9}{head}  points")
    for name, number in Counter(database.names.tolist()).most_common():
        rows = database.names == name
        counts = [int((database.difficulty[rows] == level).sum()) for level in (0, 1, 2, -1)]
        middle = np.median(database.counts[rows])
        levels = "{:>8}{:>10}{:>8}{:>8}".format(*counts) if graded else ""
        print(f"{name:<{wide}}{number:>9}{levels}  {middle:.0f} (median)")
    if (database.difficulty < 0).any():
        print(
            "none: never pasted by training; largely occluded or truncated, or the box in the\n"
            "image (columns 5 to 8 of a label) is empty or lower than 25 pixels"
        )
