"""Write the folder that a robot needs: the detector in C++ with its network, without Python."""

if __name__ == "__main__":
    from millisecond.tools import program

    program.begin()

import sys
from collections.abc import Sequence
from pathlib import Path

from millisecond.tools.exporting import export
from millisecond.tools.program import WEIGHTS, output_path, parser_of, run

EXAMPLE = """example:
  millisecond export second robot --frames scans/

The folder holds header, sources, CMakeLists.txt, an example program and detector.network, which the
library reads: the network with all that it needs of the weights. Where there are cmake, nvcc and a
GPU, the library is built for this GPU, its boxes are compared with Python's boxes on ten scans,
and parity.md says how they agree.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__, EXAMPLE)
    parser.add_argument("weights", metavar="WEIGHTS", help=WEIGHTS.partition(" (")[0])
    parser.add_argument("folder", type=output_path, metavar="FOLDER", help="a new folder")
    parser.add_argument(
        "--frames", type=Path, metavar="DIR", help="scans to compare on (default: simulated)"
    )
    options = parser.parse_args(arguments)
    return run(lambda: export(options.weights, options.folder, options.frames))


if __name__ == "__main__":
    sys.exit(main())
