"""Makes the package `millisecond` known to the programs of a checkout that is not installed.

Python looks for a program's imports in the program's own folder first, so it finds this file there
and gets the package from the top level instead.
"""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_folder = Path(__file__).resolve().parents[1] / "millisecond"
_spec = spec_from_file_location(
    "millisecond", _folder / "__init__.py", submodule_search_locations=[str(_folder)]
)
assert _spec is not None and _spec.loader is not None
sys.modules["millisecond"] = _package = module_from_spec(_spec)
_spec.loader.exec_module(_package)
