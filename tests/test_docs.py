"""Documentation names things that are there: files, sections, make targets, options of programs."""

import importlib
import re
from pathlib import Path

import pytest

from docs import api
from millisecond.detector.draw.window import KEYS, names_of

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "detector").rglob("*.md")]
)
TODAY = [page for page in PAGES if page.parent.name != "history"]  # it names what was there once
PATH = r"(?:tools|configs|tests|ops/csrc)/[\w./]*\w\.\w+"
COMMAND = r"(?:^|`)millisecond (?!completion|COMMAND)(\w+) ((?:[^\n`\\]|\\\n)*)"


def named(pattern: str, pages=TODAY) -> list:
    """Page and match of all that the pages name by the pattern."""
    return [
        pytest.param(page, name, id=f"{page.relative_to(ROOT)}-{number}")
        for page in pages
        for number, name in enumerate(
            dict.fromkeys(re.findall(pattern, page.read_text(encoding="utf-8"), re.MULTILINE))
        )
    ]


def anchor(heading: str) -> str:
    """The name that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize(("page", "link"), named(r"\]\((?!http)([^)\s]+)[^)]*\)", PAGES))
def test_links_lead_to_files_and_sections(page, link):
    name, _, section = link.partition("#")
    target = page.parent / name if name else page
    assert target.exists(), f"{page.name} links to {link}"
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
    if "add_mounting(" in source:
        source += (ROOT / "tools" / "program.py").read_text(encoding="utf-8")
    for option in re.findall(r"(?<=\s)--[a-z-]+", f" {arguments}"):
        assert f'"{option}"' in source, f"{page.name}: {program}.py has no {option}"


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("operators", "[[0, 0, 1], [0, 1, 1], [0, 1, 2]] torch.Size([1, 64, 3, 3])\n12 10\n"),
        ("adding_an_op", "tensor([ 0,  1, -1])\n"),
        ("point_operators", "torch.Size([2, 1024, 19])\ntorch.Size([2048, 16])\n"),
    ],
)
def test_the_examples_of_the_operators_run(capsys, page, printed):
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(example, {})
    assert capsys.readouterr().out == printed


def test_every_key_of_a_window_is_listed_and_has_one_meaning():
    page = (ROOT / "docs" / "visualize.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(.+?)` \| (.+?) \| (.+?) \|$", page, re.MULTILINE)
    rows = [(key, does, at) for at, own in KEYS.items() for key, does in own.items()]
    assert listed == rows
    review = (
        (ROOT / "docs" / "autolabel.md").read_text(encoding="utf-8").partition("| key | |\n")[2]
    )
    told = [row.split(" | ")[0] for row in review.partition("\n\n")[0].splitlines()[1:]]
    assert [keys.strip("| ").replace("`", "") for keys in told] == list(KEYS["review"])
    by_key: dict[str, dict[str, str]] = {}
    for key, does, at in rows:
        for program in at.partition(", ranked")[0].partition(", judged")[0].split(", "):
            own = by_key.setdefault(program, {})
            for name in names_of(key)[: 1 if "enter" in key else None]:  # it begins a number
                assert own.setdefault(name, does) == does, name
    for program in ("visualize", "review", "demo"):
        assert not by_key["all"].keys() & by_key[program].keys()
    assert by_key["visualize"]["1"] == by_key["demo"]["1"]


def test_the_api_page_is_that_of_the_docstrings():
    assert api.PAGE.read_text(encoding="utf-8") == api.page(), "run python -m docs.api"


def test_the_api_page_has_what_packages_export_and_pages_import():
    packages = [
        path.parent.relative_to(ROOT)
        for floor in ("detector", "data", "ops")
        for path in (ROOT / floor).rglob("__init__.py")
        if "__all__ =" in path.read_text(encoding="utf-8")
    ]
    names = {str(package).replace("/", ".") for package in packages}
    assert names - {"ops.spconv"} <= set(api.MODULES)
    listed = {
        api.PACKAGE + module: api.public_names(importlib.import_module(api.PACKAGE + module))
        for module in api.MODULES
    }
    imports = rf"^(?:>>> )?from ({api.PACKAGE}(?:ops|data|detector)[\w.]*) import ([\w, ]+)"
    for page in TODAY:
        text = page.read_text(encoding="utf-8")
        for module, imported in re.findall(imports, text, re.MULTILINE):
            missing = set(imported.split(", ")) - set(listed.get(module, ()))
            assert not missing, f"{page.name}: {module} {missing}"


def test_every_page_is_in_the_overview():
    overview = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    linked = {(ROOT / "docs" / link).resolve() for link in re.findall(r"\]\(([^)#\s]+)", overview)}
    assert {page for page in PAGES if page.parent != ROOT} - linked == {ROOT / "docs" / "README.md"}
