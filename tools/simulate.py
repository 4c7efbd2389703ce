"""Write a data set of simulated streets or halls, scanned by a simulated LiDAR."""

if __name__ == "__main__":
    from millisecond.tools import program

    program.start(__file__)

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from millisecond.data.files import usable_cores
from millisecond.data.schema import read_file
from millisecond.data.simulator import write_drive, write_kitti_tree
from millisecond.data.simulator.hall import Site
from millisecond.data.simulator.sensors import sensor_names, street_sensor
from millisecond.data.simulator.trees import SUFFIXES, write_folder_tree
from millisecond.tools.program import STOPPED, number, output_path, parser_of, run

EXAMPLE = """example:
  millisecond simulate --root streets --split train --streets 300
  millisecond simulate --root streets --split val --streets 40 --first 100000

  millisecond simulate --root vlp --split train --streets 300 --sensor vlp-16 --no-crop
  millisecond simulate --root mine --split train --streets 300 --sensor mine.yaml --no-crop
  millisecond simulate --root robot --split train --streets 100 --layout folder \\
      --sensor robot.yaml --site hall.yaml --clouds .pcd

  millisecond simulate --root drive --drive 7

Street number 7 is always the same street, and frame 000007 of the data set. A drive is that street
for 5 s: 50 successive scans from the car that moves in it.
"""
USUAL = "--split --streets --first --sensor --layout --drive"
LARGEST = 999_999  # frames have six digits


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    return run(lambda: simulate(options), stopped=STOPPED)


def simulate(options: argparse.Namespace) -> None:
    sensor = street_sensor(options.sensor)
    if options.no_intensity:
        sensor = replace(sensor, intensity=False)
    if options.drive is not None:
        write_drive(options.root, options.drive, processes=options.processes, sensor=sensor)
        return
    last = options.first + options.streets - 1
    if options.streets < 1 or options.first < 0 or last > LARGEST:
        raise ValueError(
            f"--streets {options.streets} --first {options.first}: give at least one, with numbers "
            f"from 0 to {LARGEST}"
        )
    seeds = range(options.first, last + 1)
    if options.layout == "folder":
        site = None if options.site is None else read_file(Site, options.site)
        write_folder_tree(
            options.root, seeds, options.split, options.processes, sensor, site, options.clouds
        )
        return
    crop = not options.no_crop
    write_kitti_tree(options.root, seeds, options.split, options.processes, sensor, crop)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, EXAMPLE, USUAL)
    add = parser.add_argument
    add("--root", type=output_path, required=True, help="folder of the data set")
    add("--split", help="name of their list in ROOT/ImageSets")
    add("--streets", type=int, metavar="N", help="how many")
    add("--first", type=int, default=0, metavar="N", help="number of the first")
    add(
        "--sensor",
        default="hdl-64e",
        help=f"{', '.join(sensor_names())}, any for another one in each street, varied for KITTI's "
        "mounted otherwise in each, or a .yaml file (default: hdl-64e)",
    )
    add(
        "--no-crop",
        action="store_true",
        help="all that the sensor sees, not only what is in the image of KITTI's camera",
    )
    add("--no-intensity", action="store_true", help="write 0 for the intensity of every point")
    add(
        "--layout",
        choices=("kitti", "folder"),
        default="kitti",
        help="folder: plain files points/, labels/, ImageSets/, of all directions and without a "
        "camera (default: kitti)",
    )
    add(
        "--site",
        type=Path,
        metavar="FILE.yaml",
        help="with --layout folder: halls with classes of your own instead of streets, see "
        "docs/simulator.md",
    )
    add("--clouds", choices=SUFFIXES, help="with --layout folder: form of the clouds (.bin)")
    add("--processes", type=number, default=usable_cores(), metavar="N")
    add("--drive", type=int, metavar="SEED", help="50 successive scans of one street instead")
    options = parser.parse_args(arguments)
    if options.layout == "kitti" and (options.site or options.clouds):
        parser.error("--site and --clouds go with --layout folder")
    options.clouds = options.clouds or SUFFIXES[0]
    if options.drive is None and (options.split is None or options.streets is None):
        parser.error("give --split and --streets, or --drive")
    of_streets = options.split, options.streets, options.first, options.no_crop
    if options.drive is not None and (any(of_streets) or options.layout == "folder"):
        parser.error("--drive goes without --split, --streets, --first, --no-crop, --layout folder")
    return options
