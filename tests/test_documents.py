"""What the documents show is what the code does, and what they name is there."""

import doctest
import re
from pathlib import Path

import pytest

from docs.drawings import example
from docs.drawings.__main__ import DRAWINGS, main

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md")])
OPTIONS = doctest.NORMALIZE_WHITESPACE
PATH = r"(?:tools|configs|tests|ops/csrc)/[\w./]*\w\.\w+"
COMMAND = r"(?<!tests/)tools/(\w+)\.py ((?:[^\n`\\]|\\\n)*)"


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


def named(pattern: str) -> list:
    """Page and match of all that the pages name by the pattern."""
    return [
        pytest.param(page, name, id=f"{page.name}-{number}")
        for page in PAGES
        for number, name in enumerate(
            dict.fromkeys(re.findall(pattern, page.read_text(encoding="utf-8"), re.MULTILINE))
        )
    ]


def anchor(heading: str) -> str:
    """The name that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize(("page", "link"), named(r"\]\((?!http)([^)\s]+)\)"))
def test_links_lead_to_files_and_sections(page, link):
    name, _, section = link.partition("#")
    target = page.parent / name if name else page
    assert target.is_file(), f"{page.name} links to {link}"
    if section:
        headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
        assert section in map(anchor, headings), f"{page.name} links to {link}"


@pytest.mark.parametrize(("page", "path"), named(PATH))
def test_files_are_there(page, path):
    assert (ROOT / path).exists(), f"{page.name} names {path}"


@pytest.mark.parametrize(("page", "target"), named(r"(?:^|`)make ([\w-]+)"))
def test_make_targets_are_there(page, target):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name} names make {target}"


@pytest.mark.parametrize(("page", "command"), named(COMMAND))
def test_programs_have_the_options(page, command):
    program, arguments = command
    source = (ROOT / "tools" / f"{program}.py").read_text(encoding="utf-8")
    for option in re.findall(r"(?<=\s)--[a-z-]+", f" {arguments}"):
        assert f'"{option}"' in source, f"{page.name}: {program}.py has no {option}"


def test_the_example_of_the_operators_runs(capsys):
    page = (DOCS / "operators.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(example, {})
    assert capsys.readouterr().out.startswith("[[0, 0, 1], [0, 1, 1], [0, 1, 2]] torch.Size([1, 64")
