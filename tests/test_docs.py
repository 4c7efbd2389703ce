"""Documentation names things that are there: files, sections, make targets, options of programs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
PATH = r"(?:tools|configs|tests|ops/csrc)/[\w./]*\w\.\w+"
COMMAND = r"(?<!tests/)tools/(\w+)\.py ((?:[^\n`\\]|\\\n)*)"


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


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("operators", "[[0, 0, 1], [0, 1, 1], [0, 1, 2]] torch.Size([1, 64, 3, 3])\n"),
        ("point_operators", "torch.Size([2, 1024, 19])\ntorch.Size([2048, 16])\n"),
    ],
)
def test_the_examples_of_the_operators_run(capsys, page, printed):
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(example, {})
    assert capsys.readouterr().out == printed
