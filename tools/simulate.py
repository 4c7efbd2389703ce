"""Write a data set of simulated streets, scanned by a simulated LiDAR, in KITTI's layout."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from data.simulator import write_kitti_tree

EXAMPLE = """example:
  python tools/simulate.py --root streets --split train --streets 300
  python tools/simulate.py --root streets --split val --streets 40 --first 100000

Street number 7 is always the same street, and frame 000007 of the data set.
"""
LARGEST = 999_999  # frames have six digits


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    try:
        last = options.first + options.streets - 1
        if options.streets < 1 or options.first < 0 or last > LARGEST:
            raise ValueError(
                f"streets {options.first} to {last}: give at least one, with numbers from 0 to "
                f"{LARGEST}"
            )
        seeds = range(options.first, last + 1)
        write_kitti_tree(options.root, seeds, options.split, options.processes)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, required=True, help="folder of the data set")
    parser.add_argument("--split", required=True, help="name of their list in ROOT/ImageSets")
    parser.add_argument("--streets", type=int, required=True, metavar="N", help="how many")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), metavar="N")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
