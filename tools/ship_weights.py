"""Turn the weights of a training into a file of half the size, to be given to others."""

if __name__ == "__main__":
    from millisecond.tools import program

    program.begin()

import sys
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from millisecond.detector.models.second import build_second
from millisecond.detector.weights import load_weights, restore, save_halved
from millisecond.tools.program import output_path, parser_of, run

EXAMPLE = """example:
  millisecond ship_weights output/second/weights.safetensors detector/weights/second.safetensors
  millisecond ship_weights weights.safetensors careful.safetensors --shift Car=-0.5

The weights of the convolutions are rounded to 16 bits (fp16); all others, and the configuration,
stay as they are. Every program takes both files.

--shift moves the scores of a class: a score of 0.5 stands for another recall and precision then.
The order of the class's boxes, and with it AP, stays.
"""
LARGEST = 5.0  # shift of a logit: it makes 0.007 of a score of 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__, EXAMPLE)
    parser.add_argument("source", type=Path, metavar="IN", help="weights file of a training")
    parser.add_argument("target", type=output_path, metavar="OUT", help="file to write")
    parser.add_argument(
        "--shift",
        nargs="+",
        action="extend",
        default=[],
        metavar="CLASS=NUMBER",
        help="added to the logit of the class's scores",
    )
    options = parser.parse_args(arguments)
    return run(lambda: ship(options.source, options.target, options.shift))


def ship(source: Path, target: Path, shifts: Sequence[str] = ()) -> None:
    if target.exists():
        raise ValueError(f"{target}: already exists; delete it or give another name")
    config, state = load_weights(source)
    restore(build_second(config), state, source)  # else a wrong file would be seen only by others
    names = [text.partition("=")[0] for text in shifts]
    for name in sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"--shift: {name!r} is there {names.count(name)} times")
    for text in shifts:
        _shift(state["head.classes.bias"], config.class_names, text)
    save_halved(target, state, config)
    print(f"wrote {target}: {', '.join(config.class_names)}, {target.stat().st_size / 1e6:.1f} MB")


def _shift(bias: Tensor, names: Sequence[str], text: str) -> None:
    """Adds to the bias [anchors * K] of one class; `text` is CLASS=NUMBER."""
    name, _, number = text.partition("=")
    if name not in names:
        raise ValueError(f"--shift {text}: {name!r} is none of {', '.join(names)}")
    try:
        by = float(number)
    except ValueError:
        by = float("nan")
    if not abs(by) <= LARGEST:
        raise ValueError(
            f"--shift {text}: {number!r} is not a number from -{LARGEST:g} to {LARGEST:g}"
        )
    bias.view(-1, len(names))[:, names.index(name)] += by


if __name__ == "__main__":
    sys.exit(main())
