"""What docs/sparse_convolution.md says and shows is what the operators compute."""

import doctest
import re
from pathlib import Path

import pytest

from docs.drawings import example
from docs.drawings.__main__ import DRAWINGS, main

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = (DOCS / "sparse_convolution.md").read_text(encoding="utf-8")


def test_the_examples_print_what_the_page_says():
    blocks = re.findall(r"^```pycon\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "page", None, 0)
    found = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    result = runner.run(test, out=found.append)
    assert not result.failed, "".join(found)
    assert result.attempted > 15


def test_the_drawings_are_made_and_shown(tmp_path):
    main(tmp_path)
    shown = re.findall(r"\(drawings/(\w+\.png)\)", PAGE)
    assert shown == list(DRAWINGS) and len(shown) >= 4
    for name in shown:
        assert (tmp_path / name).stat().st_size > 10_000 and (DOCS / "drawings" / name).exists()


def test_the_worked_example_by_hand():
    """Sums by the definition of a convolution, without any operator."""
    it = example.example()
    sites = {(1, 2): 0.3, (2, 3): 0.6}  # sum of the channels
    for coords, out, centre in (
        (it.regular_coords, it.regular_out, 0),
        (it.coords, it.submanifold_out, 1),
    ):
        for (_, y, x), (plain, numbered) in zip(coords.tolist(), out.tolist(), strict=True):
            seen = {v: sites.get((y + v // 3 - centre, x + v % 3 - centre), 0) for v in range(9)}
            assert plain == pytest.approx(sum(seen.values()))
            assert numbered == pytest.approx(sum(v * value for v, value in seen.items()))
