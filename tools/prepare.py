"""Check a data set and pack what training reads: its clouds, and a ground-truth database."""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

    from tools import program

    program.begin()

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data.datasets import Dataset, open_dataset
from data.gt_database import GroundTruthDatabase
from data.packed import Pack
from data.prepare import check_clouds, prepare
from detector.config import load_config
from tools.program import output_path, run

EXAMPLE = "example: python tools/prepare.py --config mine.yaml --root mine"
STOPPED = "stopped; the same command goes on from here"


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    return run(lambda: prepare_splits(options), stopped=STOPPED)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLE)
    parser.add_argument("--config", type=Path, required=True, help="of the training")
    parser.add_argument("--root", type=Path, required=True, help="folder of the data set")
    parser.add_argument(
        "--splits",
        nargs="+",
        metavar="SPLIT",
        help="lists in ROOT/ImageSets, or 'all'; the ground-truth database is made of the first "
        "(default: train val)",
    )
    parser.add_argument(
        "--output", type=output_path, metavar="DIR", help="where to (default: ROOT/millisecond)"
    )
    return parser.parse_args(argv)


def prepare_splits(options: argparse.Namespace) -> None:
    config = load_config(options.config)
    prepare_all(
        [
            open_dataset(
                options.root,
                split,
                config.class_names,
                options.output,
                packed=False,
                crop=config.grid.crop_to_image,
                points=config.points,
            )
            for split in options.splits or ("train", "val")
        ]
    )


def prepare_all(datasets: Sequence[Dataset]) -> None:
    """Pack data sets that were opened with packed=False; the database is made of the first."""
    for dataset in datasets:
        dataset.warn_of_changes()
        check_clouds(dataset)
    for number, dataset in enumerate(datasets):
        label = f"{dataset.layout.name}: {len(dataset)} frames"
        print(f"checking {label}", flush=True)
        made = prepare(
            dataset,
            database=number == 0,
            progress=lambda left, label=label: tqdm(left, desc=label, unit="frame"),
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
    print(f"{'class':<16}{'objects':>9}{head}  points")
    for name, number in Counter(database.names.tolist()).most_common():
        rows = database.names == name
        counts = [int((database.difficulty[rows] == level).sum()) for level in (0, 1, 2, -1)]
        easy, moderate, hard, none = counts
        middle = np.median(database.counts[rows])
        levels = f"{easy:>8}{moderate:>10}{hard:>8}{none:>8}" if graded else ""
        print(f"{name:<16}{number:>9}{levels}  {middle:.0f} (median)")
    if (database.difficulty < 0).any():
        print(
            "none: never pasted by training; largely occluded or truncated, or the box in the "
            "image (columns 5 to 8 of a label) is empty or lower than 25 pixels"
        )


if __name__ == "__main__":
    sys.exit(main())
