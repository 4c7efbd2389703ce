"""What docs/sparse_convolution.md says and shows is what the operators compute."""

import doctest
import re
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image

from docs.drawings import example, few_labels
from docs.drawings.__main__ import DRAWINGS, main

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = (DOCS / "sparse_convolution.md").read_text(encoding="utf-8")
CONSTRAINTS = (DOCS.parent / "constraints.txt").read_text(encoding="utf-8")


def test_the_examples_print_what_the_page_says():
    blocks = re.findall(r"^```pycon\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "page", None, 0)
    found = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    result = runner.run(test, out=found.append)
    assert not result.failed, "".join(found)
    assert result.attempted > 15


def pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path).convert("RGB"), dtype=np.int16)  # [H, W, 3]


@pytest.mark.skipif(
    f"matplotlib=={matplotlib.__version__} " not in CONSTRAINTS,
    reason="another matplotlib sets letters elsewhere",
)
def test_the_drawings_are_those_of_the_page(tmp_path):
    """One pixel in a thousand may differ, and all by a little: on another kind of processor the
    noise of a simulated scan has other last bits. A drawing of an earlier street differs in every
    twelfth pixel."""
    main(tmp_path)
    assert re.findall(r"\(drawings/(\w+\.png)\)", PAGE) == list(DRAWINGS)
    for name in DRAWINGS:
        drawn, shown = pixels(tmp_path / name), pixels(DOCS / "drawings" / name)
        assert drawn.shape == shown.shape, name
        differ = (np.abs(drawn - shown).max(-1) > 16).mean()
        assert differ < 1e-3, f"{name}: {differ:.1%} of its pixels; run python -m docs.drawings"


def test_the_drawing_of_few_labels_is_that_of_its_page(tmp_path):
    few_labels.main(tmp_path)
    assert np.array_equal(pixels(tmp_path / "few_labels.png"), pixels(DOCS / "few_labels.png"))


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
