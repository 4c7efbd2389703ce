"""Check a KITTI data set and pack what training reads; as prepare.py, without a configuration."""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

    from tools import program

    program.begin()

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from data.kitti.dataset import KittiDataset
from tools.prepare import STOPPED, prepare_all
from tools.program import output_path, run

EXAMPLE = "example: python tools/prepare_kitti.py --root /data/kitti"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLE)
    parser.add_argument("--root", type=Path, required=True, help="folder of the data set")
    parser.add_argument(
        "--splits",
        nargs="+",
        metavar="SPLIT",
        help="lists in ROOT/ImageSets, or 'all'; the ground-truth database is made of the first "
        "(default: train val, or all where there is no ImageSets)",
    )
    parser.add_argument(
        "--classes", nargs="+", default=(), metavar="NAME", help="types beside KITTI's own"
    )
    parser.add_argument(
        "--no-crop",
        dest="crop",
        action="store_false",
        help="keep the points outside of the camera's picture, for a configuration that says "
        "grid.crop_to_image: false",
    )
    parser.add_argument(
        "--output", type=output_path, metavar="DIR", help="where to (default: ROOT/millisecond)"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    return run(lambda: prepare_splits(options), stopped=STOPPED)


def prepare_splits(options: argparse.Namespace) -> None:
    root = options.root
    splits = options.splits or (["train", "val"] if (root / "ImageSets").is_dir() else ["all"])
    prepare_all(
        [
            KittiDataset(
                root, split, options.classes, options.output, packed=False, crop=options.crop
            )
            for split in splits
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
