"""Turn the weights of a training into a file of half the size, to be given to others."""

if __name__ == "__main__":
    from millisecond.tools import program

    program.start(__file__)

from collections.abc import Mapping, Sequence
from pathlib import Path

from tqdm import tqdm

from millisecond.data.checks.leveling import leveled
from millisecond.data.metric.evaluation import default_overlaps, matches_of
from millisecond.data.metric.overlap import detections_in, objects_of
from millisecond.data.metric.reliability import (
    Judged,
    fit_scale_and_shift,
    format_reliability,
    reliability,
)
from millisecond.data.simulator import simulate_varied
from millisecond.detector.config import Config, parse_config
from millisecond.detector.detector import Detector
from millisecond.detector.models.second import Second, build_second
from millisecond.detector.weights import (
    calibrate_head,
    calibration_of,
    load_weights,
    restore,
    save_halved,
)
from millisecond.tools.program import number, output_path, parser_of, run

EXAMPLE = """example:
  millisecond ship_weights output/second/weights.safetensors second.safetensors --calibrate 300
  millisecond ship_weights weights.safetensors loose.safetensors --set postprocess.iou=0.3

The weights of the convolutions are rounded to 16 bits (fp16); all others, and the configuration,
stay as they are. Every program takes both files.

--calibrate makes a score the share of right boxes, class by class: half of those that score 0.5 are
right on simulated streets that vary more than streets of trainings. A box is right if it is matched
in 3-D with an overlap of more than KITTI's, 0.7 for cars and else 0.5. The order of the class's
boxes stays. The table that it prints is of the scores before: with calibrated weights and --first
600000, on streets that were not fitted.
"""
FIRST = 300_000  # seed of the first street; no training has seeds below ten million


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__, EXAMPLE)
    add = parser.add_argument
    add("source", type=Path, metavar="IN", help="weights file of a training")
    add("target", type=output_path, metavar="OUT", help="file to write")
    add("--calibrate", type=number, default=0, metavar="STREETS", help="on so many streets")
    add("--first", type=number, default=FIRST, metavar="SEED", help="of these streets")
    add("--set", nargs="+", default=[], metavar="KEY=VALUE", help="values of its configuration")
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.calibrate)
    return run(lambda: ship(options.source, options.target, seeds, options.set))


def ship(
    source: Path, target: Path, streets: range = range(0), changes: Sequence[str] = ()
) -> None:
    if target.exists():
        raise ValueError(f"{target}: already exists; delete it or give another name")
    config, state = load_weights(source)
    config = parse_config(config.to_yaml(), changes, str(source))
    model = build_second(config)
    restore(model, state, source)  # else a wrong file would be seen only by others
    calibration = calibration_of(source)
    if streets:
        config.points.require_plain(f"--calibrate {len(streets)}", "leave it out")
        found = judged_on_streets(model, config, streets)
        fits = {name: fit_scale_and_shift(name, of) for name, of in found.items()}
        print(format_reliability({name: reliability(of) for name, of in found.items()}))
        calibrate_head(state, config.class_names, fits)
        for name, (scale, shift) in fits.items():
            old = calibration.get(name, (1.0, 0.0))
            scale, shift = calibration[name] = scale * old[0], scale * old[1] + shift
            print(f"{name}: logit of the score = {scale:.3f} * logit of the training {shift:+.3f}")
    save_halved(target, state, config, calibration)
    print(f"wrote {target}: {', '.join(config.class_names)}, {target.stat().st_size / 1e6:.1f} MB")


def judged_on_streets(model: Second, config: Config, streets: range) -> Mapping[str, Judged]:
    """What the network finds on varied streets, by class; `also` of a class counts as the class."""
    taught = config.taught
    detector, objects, detections = Detector(model, config), [], []
    crop, level = config.grid.crop_to_image, config.grid.level
    for seed in tqdm(streets, desc="streets", disable=None):
        frame = leveled(simulate_varied(seed, crop), level)[0]  # each by itself
        found = detector.detect(frame.points)[0].named(config.class_names)
        known = objects_of(frame)
        objects.append(known._replace(names=[taught.get(name, name) for name in known.names]))
        detections.append(detections_in(frame, found))
    matches = matches_of(detections, objects, default_overlaps(config.class_names))[3]
    return {name: of.judged() for name, of in matches.items()}
