"""Measured figures of the pages: a file per run in docs/results, and what keeps pages in step.

python -m docs.figures                 writes figures and marks of all runs into the pages
python -m docs.figures RUN             after a new run whose figures were written into its file:
                                       notes today's commit, date, kernels and weights there first
python -m docs.figures RUN=FILE.json   the same; figures from a JSON file of millisecond bench, for
                                       the runs in docs/benchmarks.py

A page cites a file by a link, in one of three ways:

- `[source](results/run.yaml "table")`, a paragraph right above a table: each cell of the table is
  the figure of its row and column. A row is named by its first cell, or by the first ones that the
  header leaves without a figure.
- `[0.46 ms](results/run.yaml "table / row / column")`: the figure, rounded as the page has it.
  The numbers of several figures, separated by "; ", follow one another.
- `[source](results/run.yaml)`: what the paragraph measures is of this run. Each time in ms or us
  and each rate in it is a figure of the file.

The text after a link is a mark where the run had other kernels or weights than there are now.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from docs.benchmarks import FIGURES

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "results"
WEIGHTS = ROOT / "detector" / "weights"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(WEIGHTS.glob("*.md"))]
KEYS = {"commit", "date", "hardware", "command", "figures"}
MAY = {"note", "sources", "weights"}  # files and folders of kernels, shipped weights
KERNELS = (".cu", ".cuh", ".h", ".cpp")
BINDINGS = re.compile(r"/bindings/|_torch\.cpp$")  # the layer between torch and the kernels
GONE = "gone"  # digest of a source that is not there
NOT_CODE = re.compile(r"//[^\n]*|/\*.*?\*/|#include[^\n]*", re.DOTALL)
MARK = r"(?: \(earlier [\w ]+\))?"
LINK = re.compile(rf'\[([^\]\[]*)\]\(([\w./]*results/(\w+)\.yaml)(?: "([^"]*)")?\){MARK}')
NUMBER = re.compile(r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")
MEASURED = re.compile(
    r"(\d[\d,]*(?:\.\d+)?)(?=(?:(?:,| and| to| or|;) [\d,.]+)* ?"
    r"(?:ms|us|(?:frames|streets) per second)\b)"
)


def read(name: str) -> dict[str, Any]:
    """A run by its name; all numbers are texts, as the pages write them."""
    return _parsed((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))


@functools.cache
def _parsed(text: str) -> dict[str, Any]:
    return yaml.load(text, yaml.BaseLoader)


def digest(source: str) -> str:
    """Of a file, or the files in a folder: their code without comments, includes, white space."""
    place, codes = ROOT / source, []
    for path in [place] if place.is_file() else sorted(place.rglob("*")):
        if path.suffix in KERNELS and not BINDINGS.search(path.as_posix()):
            code = NOT_CODE.sub("", path.read_text(encoding="utf-8"))
            codes.append("".join(code.split()))
    return hashlib.sha256("\0".join(sorted(codes)).encode()).hexdigest()[:12] if codes else GONE


def checksum(weights: str) -> str:
    return hashlib.sha256((WEIGHTS / f"{weights}.safetensors").read_bytes()).hexdigest()[:12]


def mark(name: str) -> str:
    """What is not as it was in the run; empty where all is."""
    run, older = read(name), []
    if any(digest(source) != then for source, then in run.get("sources", {}).items()):
        older.append("kernels")
    if any(checksum(weights) != then for weights, then in run.get("weights", {}).items()):
        older.append("weights")
    return f" (earlier {' and '.join(older)})" if older else ""


def numbers_at(name: str, place: str) -> list[str]:
    """The numbers of a figure by its place: "table / row / column"."""
    found = read(name)["figures"]
    for key in place.split(" / "):
        if not isinstance(found, dict) or key not in found:
            raise ValueError(f"{name}.yaml has no figure {place!r}: no {key!r}")
        found = found[key]
    return NUMBER.findall(found)


def stamp(name: str) -> None:
    """Notes in a run's file that it was measured now, here."""
    path = FOLDER / f"{name}.yaml"
    text, run = path.read_text(encoding="utf-8"), read(name)
    command = ["git", "rev-parse", "--short=7", "HEAD"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    facts = {"commit": commit.strip(), "date": str(datetime.date.today())}
    facts |= {source: digest(source) for source in run.get("sources", {})}
    if GONE in facts.values():
        raise ValueError(f"{path}: not all of its sources are there; name the present ones")
    facts |= {weights: checksum(weights) for weights in run.get("weights", {})}
    for key, value in facts.items():
        line = re.compile(rf"^( *{re.escape(key)}): .*", re.MULTILINE)
        text = line.sub(rf"\1: {value}", text, count=1)
    path.write_text(text, encoding="utf-8")


def fill(name: str, measured: Path) -> None:
    """Writes the figures of a benchmark into a run's file, which says which figures it has."""
    path = FOLDER / f"{name}.yaml"
    if name not in FIGURES:
        raise ValueError(f"{name}: copy its figures by hand; files fill {', '.join(FIGURES)}")
    measured_now = FIGURES[name](json.loads(measured.read_text(encoding="utf-8")))
    text = path.read_text(encoding="utf-8").partition("figures:\n")[0] + "figures:\n"
    for table, rows in read(name)["figures"].items():
        text += f"  {_in_line(table)}:\n"
        for row, cells in rows.items():
            found = measured_now.get(table, {}).get(row, {})
            if missing := cells.keys() - found:
                raise ValueError(f"{measured}: no figure {table} / {row} / {', '.join(missing)}")
            new = {column: found[column] for column in cells}
            text += f"    {_in_line(row)}: {_in_line(new)}\n"
    path.write_text(text, encoding="utf-8")


def _in_line(value: Any) -> str:
    style = {"default_flow_style": True, "width": 10**6, "sort_keys": False, "allow_unicode": True}
    return yaml.safe_dump(value, **style).removesuffix("\n").removesuffix("\n...")


def rewritten(page: Path) -> str:
    """The page with the figures and marks of the files that it cites."""
    blocks = page.read_text(encoding="utf-8").split("\n\n")
    marked = functools.cache(mark)
    for number, block in enumerate(blocks):
        caption = LINK.fullmatch(blocks[number - 1].split("\n")[-1]) if number else None
        if caption and caption[1] == "source" and caption[4]:
            block = _table(block, caption[3], caption[4])
        blocks[number] = LINK.sub(lambda link: _link(link, marked(link[3])), block)
    return "\n\n".join(blocks)


def _link(link: re.Match[str], mark: str) -> str:
    text, target, name, place = link.groups()
    if text != "source":
        numbers = [number for one in place.split("; ") for number in numbers_at(name, one)]
        if len(NUMBER.findall(text)) != len(numbers):
            raise ValueError(f"{link[0]}: the run has {len(numbers)} numbers for it")
        rest = iter(numbers)
        text = NUMBER.sub(lambda old: _rounded(next(rest), old[0]), text)
    title = f' "{place}"' if place else ""
    return f"[{text}]({target}{title}){mark}"


def _rounded(value: str, as_in: str) -> str:
    """The value with as many decimals as the page has it."""
    decimals = len(as_in.partition(".")[2])
    number = float(value.replace(",", ""))
    if abs(number - float(as_in.replace(",", ""))) <= 0.5001 * 10**-decimals:
        return as_in
    return f"{number:,.{decimals}f}"


def _table(block: str, name: str, table: str) -> str:
    header, rule, *lines = block.split("\n")
    columns = _cells(header)
    rows = read(name)["figures"][table]
    for number, line in enumerate(lines):
        if line.startswith("|"):
            cells = _cells(line)
            labels = [", ".join(cells[:count]) for count in range(1, len(cells))]
            if not (known := [label for label in labels if label in rows]):
                raise ValueError(f"{name}.yaml has no row {labels[0]!r} in {table!r}")
            first = labels.index(known[0]) + 1
            for place in range(first, len(cells)):
                bold = "**" if cells[place].startswith("**") else ""
                cells[place] = bold + rows[known[0]].get(columns[place], "") + bold
            lines[number] = f"| {' | '.join(cells)} |"
    return "\n".join([header, rule, *lines])


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def unsourced(page: Path) -> Iterator[str]:
    """Measured numbers in paragraphs that cite no run, or that the run does not have."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    blocks = text.split("\n\n")
    for before, block in zip(["", *blocks], blocks, strict=False):
        cited = [link[3] for link in LINK.finditer(before * block.startswith("|") + block)]
        plain = LINK.sub("", re.sub(r"`[^`]*`", "", block))
        known = {number for name in cited for number in _numbers(read(name)["figures"])}
        for number in MEASURED.findall(plain):
            if number.replace(",", "") not in known:
                yield f"{page.name}: {number} in: {' '.join(block.split())[:100]}"


def _numbers(figures: Any) -> Iterator[str]:
    if isinstance(figures, dict):
        for value in figures.values():
            yield from _numbers(value)
    else:
        yield from re.findall(r"\d+(?:\.\d+)?", str(figures).replace(",", ""))


def main(runs: list[str]) -> None:
    for run in runs:
        name, _, measured = run.partition("=")
        if measured:
            fill(name, Path(measured))
        stamp(name)
    for page in PAGES:
        page.write_text(rewritten(page), encoding="utf-8")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
