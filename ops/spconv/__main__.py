"""`python -m millisecond.ops.spconv SCRIPT ...`: runs a script whose spconv is this package.

`python -m millisecond.ops.spconv -m MODULE ...` runs a module.
"""

import os
import runpy
import sys
from importlib.util import find_spec

from millisecond.ops.spconv import install

USAGE = "usage: python -m millisecond.ops.spconv SCRIPT ARGUMENTS...  or  -m MODULE ARGUMENTS..."


def main() -> int:
    arguments = sys.argv[1:]
    as_module = arguments[:1] == ["-m"]
    arguments = arguments[1:] if as_module else arguments
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    script = arguments[0]
    if not as_module and not os.path.exists(script):
        print(f"error: {script}: no such script", file=sys.stderr)
        return 2
    if as_module and find_spec(script.partition(".")[0]) is None:
        print(f"error: {script}: no such module", file=sys.stderr)
        return 2
    install()
    sys.argv = arguments
    if as_module:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
        runpy.run_path(script, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
