"""Turn a SECOND checkpoint of OpenPCDet (spconv 1 or 2) into a weights file."""

if __name__ == "__main__":
    from millisecond.tools import program

    program.start(__file__)

from collections.abc import Sequence
from pathlib import Path

from millisecond.detector.config import load_config
from millisecond.detector.import_openpcdet import import_openpcdet
from millisecond.detector.weights import save_weights
from millisecond.tools.program import CONFIG, config_file, output_path, parser_of, run

EXAMPLE = """example:
  millisecond import_openpcdet second_7862.pth second.safetensors
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__, EXAMPLE)
    parser.add_argument("source", type=Path, metavar="IN.pth", help="checkpoint of OpenPCDet")
    parser.add_argument("target", type=output_path, metavar="OUT.safetensors", help="file to write")
    parser.add_argument(
        "--config",
        type=config_file,
        default=CONFIG,
        help="configuration of the network in the checkpoint (default: configs/second_kitti.yaml)",
    )
    options = parser.parse_args(arguments)
    return run(lambda: convert(options.source, options.target, options.config))


def convert(source: Path, target: Path, config_file: Path) -> None:
    if target.exists():
        raise ValueError(f"{target}: already exists; delete it or give another name")
    config = load_config(config_file)
    save_weights(target, import_openpcdet(source, config), config)
    print(f"wrote {target}: {', '.join(config.class_names)}")
