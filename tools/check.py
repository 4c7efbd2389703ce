"""Check a data set against a configuration and say what to change, or write one that fits it."""

if __name__ == "__main__":
    from millisecond.tools import program

    program.start(__file__)

import argparse
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from millisecond.data.checks.sensor import guess_points
from millisecond.data.checks.survey import Survey, survey, voxels_of
from millisecond.data.datasets import Dataset, is_folder, open_dataset
from millisecond.data.files import make_folder, write_text
from millisecond.data.kitti.layout import read_split
from millisecond.data.metric.kitti import WIDTH
from millisecond.detector.config import Config, load_config, parse_config
from millisecond.detector.config_check import advice, check_class
from millisecond.detector.config_choice import choose_config, config_text, with_voxels
from millisecond.detector.draw.objects import Portrait, draw_object_sheet
from millisecond.detector.draw.png import require_own, save_png
from millisecond.detector.draw.style import Palette
from millisecond.tools.program import (
    CONFIG,
    config_file,
    dataset_for,
    output_path,
    parser_of,
    run,
    shown,
)

EXAMPLE = """examples:
  millisecond check --root /data/kitti --split train --output output/check
  millisecond check --root mine --write-config mine.yaml

Prints what the data holds beside what the configuration expects, then what to change, and draws
objects of every class from the fewest points to the most.
"""
COLUMNS = 7  # pictures per class
COUNTED = 60  # frames whose voxels are counted for a written configuration


def main(argv: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__, EXAMPLE)
    add = parser.add_argument
    add("--root", type=Path, required=True, help="folder of the data set")
    add("--split", default="all", help="list in ROOT/ImageSets, a file, or all (the default)")
    add(
        "--config",
        type=config_file,
        default=CONFIG,
        help="to check against; with --write-config the template of network and recipe (default: "
        f"{shown(CONFIG)})",
    )
    add(
        "--write-config",
        type=output_path,
        metavar="FILE",
        help="write a configuration that fits the data, and check against that",
    )
    add(
        "--columns",
        nargs="+",
        metavar="NAME",
        help="with --write-config: what the columns of .bin and .npy files are, e.g. x y z "
        "intensity ring (default: told from their numbers)",
    )
    add(
        "--output",
        type=output_path,
        default=Path("output/check_data"),
        metavar="DIR",
        help="for the picture objects.png (default: %(default)s)",
    )
    options = parser.parse_args(argv)
    if options.columns and options.write_config is None:
        parser.error("--columns goes with --write-config; a configuration names them itself")
    return run(lambda: check(options))


def check(options: argparse.Namespace) -> None:
    config = load_config(options.config)
    if options.write_config is not None:
        config = write_config(config, options)
    dataset = dataset_for(config, options.root, options.split)
    if not dataset.layout.labelled:
        raise ValueError(f"split '{options.split}' has no labels to check; take train or val")
    picture = options.output / "objects.png"
    make_folder(options.output)
    require_own(picture)
    found = survey(
        dataset,
        lambda frames: tqdm(frames, desc=f"reading {options.split}", unit="frame", disable=None),
        config.grid.voxel_grid,
        config.ground_z,
    )
    require_readable(found)
    names = [config.taught.get(name, name) for name in found.names.tolist()]
    found = replace(found, names=np.array(names, dtype=str))
    lines = advice(config, found)
    things = f"{len(lines)} things" if len(lines) > 1 else "1 thing" if lines else "nothing"
    file = options.write_config or options.config
    print(f"{things} to change in {file.name}, or in the data\n")
    print_frames(found, config)
    print_classes(found, config)
    save_png(picture, draw_object_sheet(portraits(dataset, found, config)))
    if lines:
        print("\nwhat to change:")
    for line in lines:
        print(textwrap.fill(f"- {line}", WIDTH, subsequent_indent="  ", break_long_words=False))
    print(f"\nobjects from above and from the side: {picture}")
    if options.write_config is not None:
        print(f"configuration: {options.write_config}")
    if found.unreadable:
        raise ValueError(
            f"{len(found.unreadable)} of {found.frames} frames cannot be read, the first: "
            f"{found.unreadable[0]}"
        )


def require_readable(found: Survey, share: float = 0.0) -> None:
    """Raises ValueError unless more than this share of the frames can be read."""
    if len(found.unreadable) >= (1 - share) * found.frames:
        lost = f"{len(found.unreadable)} of {found.frames} frames cannot be read, the first"
        raise ValueError(f"{lost}: {found.unreadable[0]}")


def write_config(template: Config, options: argparse.Namespace) -> Config:
    """Choose a configuration for the data, write it, and return it as it reads back."""
    path = options.write_config
    if path.exists():
        raise ValueError(f"{path}: already exists; give another name")
    plain = is_folder(options.root)
    crop = template.grid.crop_to_image and not plain
    template = replace(template, grid=replace(template.grid, crop_to_image=crop))
    dataset = open_dataset(options.root, options.split, packed=False, crop=crop)
    files = [dataset.layout.cloud(name) for name in dataset.frame_ids]
    guess = guess_points(files, options.columns or ())
    dataset = open_dataset(
        options.root, options.split, packed=False, crop=crop, points=guess.points
    )
    found = survey(
        dataset, lambda frames: tqdm(frames, desc="measuring", unit="frame", disable=None)
    )
    require_readable(found, 0.5)
    choice = choose_config(template, found, guess, training_frames(options.root, found))
    places = np.linspace(0, len(dataset) - 1, min(COUNTED, len(dataset))).round().astype(int)
    choice = with_voxels(choice, voxels_of(dataset, places, choice.config.grid.voxel_grid))
    title = [
        f"For {options.root}: {len(found.boxes)} boxes in {found.frames} frames. Written by "
        "millisecond check;",
        f"network, losses and recipe come from {options.config.name}.",
    ]
    if found.doubts:
        remedies = ", then ".join(doubt.reading.remedy for doubt in found.doubts)
        title.append(f"It fits the labels only after this correction: {remedies}.")
    text = config_text(choice, title)
    config = parse_config(text, source=str(path))
    write_text(path, text)
    return config


def training_frames(root: Path, found: Survey) -> int:
    """Frames of the split train, all where there is no such list."""
    path = root / "ImageSets" / "train.txt"
    return len(read_split(path)) if path.is_file() else found.frames


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
    wide = max(16, *(len(kind.name) + 1 for kind in config.classes))
    print(
        f"\n{'class':<{wide}}{'boxes':>7}{'outside':>9}{'empty':>7}{few:>12}"
        f"{'best IoU':>10}{'recall':>8}"
    )
    for number, kind in enumerate(config.classes):
        check = check_class(found, config, number)
        row = f"{kind.name:<{wide}}{check.boxes:>7}{check.outside:>9}{check.empty:>7}"
        row += f"{check.sparse:>12}"
        anchor = ", ".join(f"{side:g}" for side in kind.size)
        if not len(check.overlap):
            print(f"{row}{'none in range':>18}\n  anchor {anchor}")
            continue
        print(f"{row}{np.median(check.overlap):>10.2f}{check.recall:>8.0%}")
        sides = zip(check.size, check.spread, strict=True)
        size = ", ".join(f"{mean:.2f}±{spread:.2f}" for mean, spread in sides)
        print(
            f"  mean l, w, h {size}; bottom {check.bottom:.2f}\n"
            f"  anchor       {anchor}; bottom {kind.bottom:.2f}"
        )
    print(
        "outside: centre out of grid.range. empty: no point inside. best IoU: median overlap with\n"
        "the best anchor. recall: share that reaches the threshold matched"
    )


def portraits(dataset: Dataset, found: Survey, config: Config) -> list[list[Portrait]]:
    """A row a class: objects from the fewest points to the most, evenly spread."""
    place = {frame_id: index for index, frame_id in enumerate(dataset.frame_ids)}
    palette, rows = Palette(config.class_names), []
    for name in config.class_names:
        objects = np.flatnonzero(found.names == name)
        if not len(objects):
            continue
        objects = objects[np.argsort(found.counts[objects], kind="stable")]
        chosen = objects[np.unique(np.linspace(0, len(objects) - 1, COLUMNS).round().astype(int))]
        rows.append([])
        for row in chosen:
            frame_id, box = str(found.frame_ids[row]), found.boxes[row]
            away = f"{found.counts[row]} points, {np.hypot(*box[:2]):.0f} m away"
            points = dataset[place[frame_id]].points
            caption = (f"{name} {frame_id}", away)
            rows[-1].append(Portrait(points, box, palette.colour(name), caption))
    return rows
