"""What the documents show is what the code does."""

import doctest
import re
from pathlib import Path

import pytest

from docs.drawings import example
from docs.drawings.__main__ import DRAWINGS, main

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
OPTIONS = doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_print_what_the_page_says(page):
    text = page.read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"^```pycon\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    test = doctest.DocTestParser().get_doctest(blocks, {}, page.name, str(page), 0)
    found = []
    result = doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=found.append)
    assert not result.failed, "".join(found)
    if page.name == "sparse_convolution.md":
        assert result.attempted > 15


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if "://" not in target and not (DOCS / target).exists()]
    assert not missing


def test_the_drawings_are_made_and_shown(tmp_path):
    main(tmp_path)
    page = (DOCS / "sparse_convolution.md").read_text(encoding="utf-8")
    shown = re.findall(r"\(drawings/(\w+\.png)\)", page)
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
