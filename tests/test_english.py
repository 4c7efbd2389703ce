"""Phrases over which a reader stumbles whose second language is English get rarer, never more.

Two patterns are counted, in three kinds of text (see `texts`):

- chain: "that of", "those of", "of which" and "of what", which stand for a noun that should be
  named again;
- negation: a form of "be" before "no" ("is no file" instead of "is not a file"), but for "there
  is no ..." and "no longer".

Whoever removes some lowers the maximum in `MOST`; nobody raises it.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {"data", "detector", "docs", "examples", "millisecond", "ops", "tests", "tools"}
MOST = {"pages": 0, "comments": 0, "messages": 0}  # of both patterns together
HARD = re.compile(
    r"\b(?:(?:that|those) of|of (?:which|what))\b"  # chain
    r"|\b(?<!there )(?:is|are|was|were|be|been) no\b(?! longer)",  # negation
    re.IGNORECASE,
)
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LITERAL = r"""(?P<message>"(?:\\.|[^"\\\n])*"|(?<!\w)'(?:\\.|[^'\\\n])*')"""
# A literal comes before a comment: its # or // begins none. Lines of one comment are joined.
PYTHON = re.compile(
    r'(?P<docstring>""".*?""")|' + LITERAL + r"|(?P<comment>(?:#[^\n]*\n\s*)*#[^\n]*)", re.DOTALL
)
CPP = re.compile(LITERAL + r"|(?P<comment>(?://[^\n]*\n\s*)*//[^\n]*|/\*.*?\*/)", re.DOTALL)


def files(*endings: str) -> list[Path]:
    """Files of the project with one of the endings, but for this one."""
    folders = [path for path in ROOT.iterdir() if path.name in FOLDERS]
    paths = [*ROOT.glob("*"), *(path for folder in folders for path in folder.rglob("*"))]
    return [path for path in paths if path.suffix in endings and path != Path(__file__)]


def texts(kind: str) -> Iterator[tuple[Path, str]]:
    """Pages without their code and without the diary; comments and docstrings; literals."""
    if kind == "pages":
        for path in files(".md"):
            if "history" not in path.parts and path.name not in ("CHANGELOG.md", "api.md"):
                yield path, CODE.sub("", path.read_text(encoding="utf-8"))
        return
    for endings, pattern in (((".py",), PYTHON), ((".cu", ".cuh", ".h", ".cpp"), CPP)):
        for path in files(*endings):
            for found in pattern.finditer(path.read_text(encoding="utf-8")):
                if (found.lastgroup == "message") == (kind == "messages"):
                    yield path, re.sub(r"\n\s*(?://|#)", " ", found[0])


@pytest.mark.parametrize("kind", MOST)
def test_hard_phrases_get_rarer(kind):
    found = [
        f"{path.relative_to(ROOT)}: ...{text[max(0, match.start() - 40) : match.end() + 20]}"
        for path, raw in texts(kind)
        for text in [" ".join(raw.split())]
        for match in HARD.finditer(text)
    ]
    assert len(found) <= MOST[kind], "\n".join([f"{len(found)} in {kind}", *found])
