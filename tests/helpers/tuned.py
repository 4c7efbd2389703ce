"""What tools/tune.py might have measured, for tests."""

import json
from itertools import product

from ops import Dataflow, Tuned
from ops.tuned import KINDS, Choice, Work
from ops.tuned_file import Origin, as_json

FETCH = Dataflow("fetch_on_demand")


def every_size(training, precision, shapes, dataflow=FETCH) -> Tuned:
    """One dataflow for weights [V, C_in, C_out] of these shapes, whatever the kind and the rows."""
    works = [
        Work(kind, *shape, precision, training, size)
        for kind, shape, size in product(KINDS, shapes, range(24))
    ]
    return Tuned(dict.fromkeys(works, Choice(dataflow, dataflow)))


def write_tuned(path, tuned) -> None:
    """As tools/tune.py writes what it measured here."""
    content = as_json(Origin.here(), tuned.fastest, {work: {} for work in tuned.fastest})
    path.write_text(json.dumps(content))
