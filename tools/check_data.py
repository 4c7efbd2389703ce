"""Check a data set in KITTI's layout against a configuration, and say what to change."""

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

import numpy as np
from tqdm import tqdm

from data.files import make_folder
from data.kitti.dataset import KittiDataset
from data.survey import Survey, survey
from detector.config import Config, load_config
from detector.draw.object_sheet import Portrait, draw_object_sheet
from detector.draw.png import require_own, save_png
from detector.draw.style import Colour, Palette
from detector.training.data_check import advice, check_class
from tools.program import output_path, run

EXAMPLE = """example:
  python tools/check_data.py --root /data/kitti --split train --output output/check

Prints what the data holds beside what the configuration expects, then what to change, and draws
objects of every class from the fewest points to the most.
"""
CONFIG = Path(__file__).resolve().parents[1] / "configs" / "second_kitti.yaml"
COLUMNS = 7  # pictures per class


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    return run(lambda: check(options))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, required=True, help="folder of the data set")
    parser.add_argument(
        "--split", default="all", help="list in ROOT/ImageSets, a file, or all (the default)"
    )
    parser.add_argument("--config", type=Path, default=CONFIG, help="default: %(default)s")
    parser.add_argument(
        "--output",
        type=output_path,
        default=Path("output/check_data"),
        metavar="DIR",
        help="for the picture objects.png (default: %(default)s)",
    )
    return parser.parse_args(argv)


def check(options: argparse.Namespace) -> None:
    config = load_config(options.config)
    crop = config.grid.crop_to_image
    dataset = KittiDataset(options.root, options.split, config.class_names, crop=crop)
    if not dataset.layout.labelled:
        raise ValueError(f"split '{options.split}' has no labels to check; take train or val")
    picture = options.output / "objects.png"
    make_folder(options.output)
    require_own(picture)
    label = f"reading {options.split}"
    found = survey(
        dataset,
        lambda frames: tqdm(frames, desc=label, unit="frame"),
        config.grid.voxel_grid,
        config.ground_z,
    )
    if len(found.unreadable) == found.frames:
        raise ValueError(f"no frame can be read, the first: {found.unreadable[0]}")
    print_frames(found, config)
    print_classes(found, config)
    save_png(picture, draw_object_sheet(portraits(dataset, found, config)))
    lines = advice(config, found)
    print("\nwhat to change:" if lines else "\nnothing to change")
    for line in lines:
        print(f"- {line}")
    print(f"\nobjects from above: {picture}")
    if found.unreadable:
        raise ValueError(
            f"{len(found.unreadable)} of {found.frames} frames cannot be read, the first: "
            f"{found.unreadable[0]}"
        )


def print_frames(found: Survey, config: Config) -> None:
    low, middle, high = np.percentile(found.points, (0, 50, 100)).astype(int)
    print(
        f"{found.frames} frames: {low} to {high} points (median {middle}), {len(found.boxes)} "
        f"boxes; {len(found.without_points)} frames without points, {found.without_boxes} without "
        "boxes"
    )
    if found.points.sum() < found.whole.sum():
        share = found.points.sum() / found.whole.sum()
        print(
            f"{share:.0%} of the points are in the camera's picture, the others are left out "
            "(grid.crop_to_image)"
        )
    cap = config.grid.max_voxels_train
    low, middle, high = np.percentile(found.voxels, (0, 50, 100)).astype(int)
    over = (np.maximum(found.voxels - cap, 0) / np.maximum(found.voxels, 1)).max()
    left_out = f"; training leaves out up to {over:.0%} of them, at random" if over > 0 else ""
    print(f"{low} to {high} voxels per frame (median {middle}){left_out}")


def print_classes(found: Survey, config: Config) -> None:
    """The boxes of each class of the configuration, beside its anchor."""
    few = f"<{config.augment.min_points} points"
    print(
        f"\n{'class':<12}{'boxes':>7}{'outside':>9}{'empty':>7}{few:>10}  {'mean l, w, h':<29}  "
        f"{'anchor':<17}{'bottom':>7}{'anchor':>8}{'best IoU':>10}{'recall':>8}"
    )
    for number, kind in enumerate(config.classes):
        check = check_class(found, config, number)
        print(f"{kind.name:<12}{check.boxes:>7}{check.outside:>9}{check.empty:>7}", end="")
        anchor = ", ".join(f"{side:g}" for side in kind.size)
        if not len(check.overlap):
            print(f"{check.sparse:>10}  {'none in range':<29}  {anchor}")
            continue
        size = " ".join(
            f"{mean:.2f}±{spread:.2f}"
            for mean, spread in zip(check.size, check.spread, strict=True)
        )
        print(
            f"{check.sparse:>10}  {size:<29}  {anchor:<17}{check.bottom:>7.2f}{kind.bottom:>8.2f}"
            f"{np.median(check.overlap):>10.2f}{check.recall:>8.0%}"
        )
    print(
        "outside: centre out of grid.range. empty: no point inside. best IoU: median overlap with "
        "the best anchor. recall: share that reaches the threshold matched"
    )


def portraits(dataset: KittiDataset, found: Survey, config: Config) -> list[list[Portrait]]:
    """A row a class: objects from the fewest points to the most, evenly spread."""
    place = {frame_id: index for index, frame_id in enumerate(dataset.frame_ids)}
    palette, rows = Palette(config.class_names), []
    for name in config.class_names:
        objects = np.flatnonzero(found.names == name)
        if not len(objects):
            continue
        objects = objects[np.argsort(found.counts[objects], kind="stable")]
        chosen = objects[np.unique(np.linspace(0, len(objects) - 1, COLUMNS).round().astype(int))]
        colour = palette.colour(name)
        rows.append([_portrait(dataset, found, place, row, colour) for row in chosen])
    return rows


def _portrait(
    dataset: KittiDataset, found: Survey, place: dict[str, int], row: int, colour: Colour
) -> Portrait:
    frame_id, box = str(found.frame_ids[row]), found.boxes[row]
    frame = dataset[place[frame_id]]
    name = str(found.names[row])
    away = float(np.hypot(*box[:2]))
    caption = (f"{name} {frame_id}", f"{found.counts[row]} points, {away:.0f} m away")
    return Portrait(frame.points, box, colour, caption)


if __name__ == "__main__":
    sys.exit(main())
