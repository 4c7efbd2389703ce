"""Measures this system, and its peers in the same run where they are installed."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

EXAMPLE = "example: python tools/benchmark.py ops --frames scans/ --json ops.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLE)
    commands = parser.add_subparsers(dest="command", required=True)
    ops = commands.add_parser("ops", help="the sparse encoder on a GPU", epilog=EXAMPLE)
    ops.add_argument("--batch", type=int, nargs="+", default=[1, 4])
    ops.add_argument("--precision", nargs="+", default=["fp16", "bf16", "tf32", "fp32"])
    for command in (ops,):
        command.add_argument(
            "--frames", type=Path, help="folder of .bin scans (default: simulated)"
        )
        command.add_argument("--count", type=int, default=10, help="scans to use (default: 10)")
        command.add_argument("--repeats", type=int, default=20, help="calls a scan (default: 20)")
        command.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args()
    try:
        result = _measure(options)
        if options.json:
            from data.files import replacing

            with replacing(options.json) as temporary:
                temporary.write_text(json.dumps(result, indent=1))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _measure(options: argparse.Namespace) -> dict:
    import torch

    from tools.benchmarks.scans import load_scans

    scans = load_scans(options.frames, options.count)
    if not torch.cuda.is_available():
        raise ValueError(f"benchmark {options.command}: needs a CUDA device, torch sees none")
    from tools.benchmarks.ops import measure

    return measure(scans, options.batch, options.precision, options.repeats)


if __name__ == "__main__":
    sys.exit(main())
