"""Write a data set of simulated streets, scanned by a simulated LiDAR, in KITTI's layout."""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

    from tools import program

    program.begin()

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from data.simulator import write_kitti_tree
from tools.program import output_path, run

EXAMPLE = """example:
  python tools/simulate.py --root streets --split train --streets 300
  python tools/simulate.py --root streets --split val --streets 40 --first 100000

Street number 7 is always the same street, and frame 000007 of the data set.
"""
STOPPED = "stopped; the same command goes on from here"
LARGEST = 999_999  # frames have six digits


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    return run(lambda: simulate(options), stopped=STOPPED)


def simulate(options: argparse.Namespace) -> None:
    last = options.first + options.streets - 1
    if options.streets < 1 or options.first < 0 or last > LARGEST:
        raise ValueError(
            f"streets {options.first} to {last}: give at least one, with numbers from 0 to "
            f"{LARGEST}"
        )
    seeds = range(options.first, last + 1)
    write_kitti_tree(options.root, seeds, options.split, options.processes)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=output_path, required=True, help="folder of the data set")
    parser.add_argument("--split", required=True, help="name of their list in ROOT/ImageSets")
    parser.add_argument("--streets", type=int, required=True, metavar="N", help="how many")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), metavar="N")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
