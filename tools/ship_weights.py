"""Turn the weights of a training into a file of half the size, to be given to others."""

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

from detector.models.second import build_second
from detector.weights import load_weights, restore, save_halved
from tools.program import output_path, run

EXAMPLE = """example:
  python tools/ship_weights.py output/second/weights.safetensors detector/weights/second.safetensors

The weights of the convolutions are rounded to 16 bits (fp16); all others, and the configuration,
stay as they are. Every program takes both files.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, metavar="IN", help="weights file of a training")
    parser.add_argument("target", type=output_path, metavar="OUT", help="file to write")
    options = parser.parse_args(arguments)
    return run(lambda: ship(options.source, options.target))


def ship(source: Path, target: Path) -> None:
    if target.exists():
        raise ValueError(f"{target}: already exists; delete it or give another name")
    config, state = load_weights(source)
    restore(build_second(config), state, source)  # else a wrong file would be seen only by others
    save_halved(target, state, config)
    print(f"wrote {target}: {', '.join(config.class_names)}, {target.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    sys.exit(main())
