"""What sparse_convolution.md and points_to_boxes.md say is what is computed, and every picture of
README and docs shows what there is now."""

import doctest
import re
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch

from docs import figures, pictures
from docs.drawings import example
from millisecond.detector import Detector

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


@pytest.mark.skipif(
    f"matplotlib=={matplotlib.__version__} " not in CONSTRAINTS,
    reason="another matplotlib sets letters elsewhere",
)
@pytest.mark.parametrize("name", pictures.DRAWINGS)
def test_the_drawings_are_those_of_the_pages(name):
    """One pixel in a thousand may differ. A drawing of an earlier street differs in every
    twelfth."""
    differ = pictures.differs(pictures.DRAWINGS[name](), pictures.read(DOCS / name))
    assert differ < 1e-3, f"{name}: {differ:.1%} of its pixels; run make pictures"


@pytest.mark.parametrize("name", pictures.SHOTS)
def test_no_picture_is_older_than_what_it_shows(name):
    assert pictures.noted().get(name) == pictures.shows(name), f"{name}: run make pictures"


def test_all_pictures_of_the_pages_are_drawn_by_one_list():
    shown = {
        (page.parent / link).resolve().relative_to(DOCS).as_posix()
        for page in figures.PAGES
        for link in re.findall(r"^!\[[^\]]*\]\(([^)]*)\)", page.read_text("utf-8"), re.MULTILINE)
    }
    there = {path for kind in ("png", "jpg") for path in DOCS.rglob(f"*.{kind}")}
    assert shown == pictures.DRAWINGS.keys() | pictures.SHOTS.keys()
    assert shown == {path.relative_to(DOCS).as_posix() for path in there}


def test_a_picture_is_older_once_weights_streets_or_drawing_code_change(tmp_path, monkeypatch):
    """Not by comments. A street without detections does not show the weights."""
    drawing = tmp_path / "detector" / "draw"
    drawing.mkdir(parents=True)
    code = drawing / "style.py"
    code.write_text('"""Colours."""\nGREEN = 1\n')
    monkeypatch.setattr(pictures, "DOCS", tmp_path / "docs")
    street, hall = (pictures.shows(name) for name in ("street.png", "own_data.png"))
    code.write_text('"""All colours."""\nGREEN = 1  # as grass\n')
    assert pictures.shows("street.png") == street
    with monkeypatch.context() as other:
        other.setattr(figures, "checksum", lambda weights: "others")
        assert pictures.shows("street.png") != street and pictures.shows("own_data.png") == hall
    with monkeypatch.context() as other:
        other.setattr(pictures, "WORLD", 0)
        assert pictures.shows("street.png") != street and pictures.shows("own_data.png") != hall
    code.write_text("GREEN = 2\n")
    assert pictures.shows("street.png") != street


def test_drawing_again_notes_what_is_shown_and_changes_no_file_without_need(tmp_path, monkeypatch):
    picture = np.zeros((20, 20, 3), np.uint8)

    def shot(shop):
        return picture

    monkeypatch.setattr(pictures, "SHOTS", {"street.png": shot})
    monkeypatch.setattr(pictures, "SHOWN", tmp_path / "shown.yaml")
    monkeypatch.setattr(pictures, "NOTEBOOK", tmp_path / "notebook.ipynb")
    file = tmp_path / "street.png"
    pictures.draw(["street.png"], tmp_path)
    assert pictures.noted() == {"street.png": pictures.shows("street.png")}
    file.touch()
    written = file.stat().st_mtime_ns
    pictures.draw(["street.png"], tmp_path)
    assert file.stat().st_mtime_ns == written
    picture[:5, :5] = 255
    pictures.draw(["street.png"], tmp_path)
    assert np.array_equal(pictures.read(file), picture)
    with pytest.raises(ValueError, match=r"strete\.png: no such picture"):
        pictures.draw(["strete.png"], tmp_path)


def test_the_notebook_is_the_page_and_finds_what_the_detector_finds():
    assert pictures.NOTEBOOK.read_text(encoding="utf-8") == pictures.notebook(), "make pictures"
    _, known = pictures.walk()
    found = Detector.from_weights("second_small", "cpu")(known["frame"].points)
    sure = found.scores >= 0.3
    kept = known["kept"]
    assert known["predictions"].class_logits.shape == (1, 211_200, 3)
    assert len(kept) == sure.sum() > 5
    torch.testing.assert_close(known["boxes"][kept], found.boxes[sure], rtol=1e-3, atol=1e-3)
    assert known["labels"][kept].tolist() == found.labels[sure].tolist()


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
