"""Mutations: what users hand in, spoiled at random but seeded."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from pathlib import Path

import numpy as np

from tests.helpers.plain_files import spoil_boxes, spoil_clouds

EVIL = (
    *("nan", "inf", "-inf", "1e400", "1e30", "-1", "0", "-0.0", "", " ", "9" * 400, "1e-300", "٣"),
    *("../../x", "/etc/passwd", "..", "a b", "\x00", "é", "NULL", "true", "[]", "{}", "*a", "&a b"),
    *("Car", "DontCare", "Forklift", "2147483648", "99999999999999999999", "0x10", "1_000", "%s"),
    *("!!python/object:os.system", "2026-99-99", "x" * 5000, "-", "--help", "train", "all", "test"),
)
NUMBERS = (np.nan, np.inf, -np.inf, 1e30, -1e30, 1e-40, 0.0, -1.0, 255.0, 65535.0, 1e9)


def spoil(world: Path, rng: np.random.Generator) -> str:
    """Spoils one file or folder of a world; returns what was done."""
    paths = sorted(world.rglob("*"))
    path = paths[rng.integers(len(paths))]
    kinds = [_remove, _replace_by_file, _replace_by_folder, _replace_by_link, _replace_by_pipe]
    if path.is_file():
        kinds += [_spoil_bytes] * 6
        if path.suffix in (".txt", ".yaml", ".json", ".jsonl"):
            kinds += [_spoil_words] * 30
        if path.suffix == ".ply":
            kinds += [_spoil_header] * 20
        if path.suffix == ".bin":
            kinds += [_spoil_numbers] * 15
        if path.suffix in (".safetensors", ".bag", ".mcap", ".pcap"):
            kinds += [_spoil_bytes] * 10
        if path.suffix == ".db3":
            kinds += [_spoil_bytes] * 10 + [_spoil_database] * 20
    kind = kinds[rng.integers(len(kinds))]
    kind(path, rng)
    return f"{kind.__name__} {path.relative_to(world)}"


def _remove(path: Path, rng: np.random.Generator) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _replace_by_file(path: Path, rng: np.random.Generator) -> None:
    _remove(path, rng)
    path.write_bytes(rng.bytes(int(rng.choice([0, 1, 16, 1000]))))


def _replace_by_folder(path: Path, rng: np.random.Generator) -> None:
    _remove(path, rng)
    path.mkdir()


def _replace_by_link(path: Path, rng: np.random.Generator) -> None:
    _remove(path, rng)
    path.symlink_to(path if rng.random() < 0.5 else path.with_name("nowhere"))


def _replace_by_pipe(path: Path, rng: np.random.Generator) -> None:
    _remove(path, rng)
    os.mkfifo(path)


def _write(path: Path, content: bytes) -> None:
    path.unlink()  # it may be a link to the file of the whole world
    path.write_bytes(content)


def _spoil_bytes(path: Path, rng: np.random.Generator) -> None:
    content = bytearray(path.read_bytes())
    size = len(content)
    where = int(rng.integers(size + 1))
    length = int(min(rng.choice([1, 4, 16, 300]), size - where))
    match rng.integers(6):
        case 0 if size:
            content[min(where, size - 1)] ^= 1 << int(rng.integers(8))
        case 1:
            del content[where:]
        case 2:
            del content[where : where + length]
        case 3:
            content[where : where + length] = rng.bytes(length)
        case 4:
            content[where:where] = rng.bytes(int(rng.choice([1, 4, 16, 1000])))
        case _:
            content[where:where] = content[where : where + length] * int(rng.choice([2, 50]))
    _write(path, bytes(content))


def _spoil_words(path: Path, rng: np.random.Generator) -> None:
    lines = path.read_text(errors="replace").split("\n")
    row = int(rng.integers(len(lines)))
    words = lines[row].split(" ")
    column = int(rng.integers(len(words)))
    evil = str(rng.choice(EVIL))
    match rng.integers(8):
        case 0:
            del lines[row]
        case 1:
            lines.insert(row, lines[int(rng.integers(len(lines)))])
        case 2:
            lines.insert(row, evil)
        case 3:
            del words[column]
            lines[row] = " ".join(words)
        case 4:
            words.insert(column, evil)
            lines[row] = " ".join(words)
        case _:
            words[column] = evil if rng.random() < 0.8 else words[column] + evil
            lines[row] = " ".join(words)
    text = str(rng.choice(["\n", "\n", "\n", "\r\n", "\r"])).join(lines)
    _write(path, text.encode(str(rng.choice(["utf-8", "utf-8", "utf-8-sig", "utf-16"]))))


def _spoil_header(path: Path, rng: np.random.Generator) -> None:
    """One word of the header of a PLY file."""
    header, end, body = path.read_bytes().partition(b"end_header\n")
    words = header.split(b" ")
    place = int(rng.integers(len(words)))
    known = (b"vertex", b"face", b"list", b"float", b"uchar", b"char", b"int", b"double", b"ascii")
    evil = (*known, *(word.encode() for word in EVIL), b"0", b"1", b"17", b"100000", b"999999999")
    words[place] = evil[int(rng.integers(len(evil)))] + b"\n" * words[place].count(b"\n")
    _write(path, b" ".join(words) + end + body)


def _spoil_numbers(path: Path, rng: np.random.Generator) -> None:
    numbers = np.frombuffer(path.read_bytes()[: path.stat().st_size // 16 * 16], "<f4").copy()
    points = numbers.reshape(-1, 4)
    some = rng.random(points.shape) < float(rng.choice([0.001, 0.1, 1]))
    column = int(rng.integers(4))
    with np.errstate(over="ignore", invalid="ignore"):
        match rng.integers(6):
            case 0:
                points[some] = float(rng.choice(NUMBERS))
            case 1:
                points[:, column] *= np.float32(rng.choice(NUMBERS))
            case 2:
                points[:, column] += np.float32(rng.choice(NUMBERS))
            case 3:
                points[:, :3] = points[:, rng.permutation(3)]
            case 4:
                points = points[:, : int(rng.integers(1, 4))]
            case _:
                kind = str(rng.choice([">f4", "<f8", "<f2", "<i4"]))
                points = points.astype(kind).view(np.uint8)
    _write(path, points.tobytes())


def _forget(boxes: np.ndarray) -> None:
    boxes[:] = boxes[:1]


def spoil_data_set(root: Path, rng: np.random.Generator) -> str:
    """A whole data set of plain files as clumsy users hand it in: another unit, other axes or
    columns, hardly any points. root: as `write_plain_files` makes it. Returns what was done."""
    factor = float(rng.choice([0.001, 0.3048, 3.28084, 57.29578, 255, 1000, -1, 0, np.nan, 1e30]))
    column, count = int(rng.integers(7)), int(rng.choice([0, 1, 2, 10, 150]))
    order, width = rng.permutation(4), int(rng.integers(1, 4))

    def scaled(boxes: np.ndarray) -> None:
        boxes[:, column] *= factor

    def shifted(boxes: np.ndarray) -> None:
        boxes[:, column] += factor * boxes[:, 5]

    clouds = {
        "points times": lambda points: points * np.where(np.arange(4) == column % 4, factor, 1),
        "unit times": lambda points: points * (factor, factor, factor, 1),
        "few points": lambda points: points[:count],
        "order of columns": lambda points: points[:, order],
        "fewer columns": lambda points: points[:, :width],
        "more columns": lambda points: np.column_stack([points, np.arange(len(points)) % 32]),
    }
    boxes = {"boxes times": scaled, "boxes shifted": shifted, "all boxes alike": _forget}
    kind = str(rng.choice([*clouds, *boxes]))
    with np.errstate(over="ignore", invalid="ignore"):
        if kind in clouds:
            spoil_clouds(root, clouds[kind])
        else:
            spoil_boxes(root, boxes[kind])
    return f"{kind} {factor:g} {column} {count}"


ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x AS id, "
STATEMENTS = (
    *("UPDATE messages SET data = 'text'", "UPDATE messages SET timestamp = 'noon'"),
    *("UPDATE messages SET topic_id = 9", "UPDATE messages SET data = zeroblob(3000000)"),
    *("UPDATE messages SET data = substr(data, 40)", "UPDATE topics SET name = x'ff00', type = 1"),
    *("UPDATE messages SET timestamp = timestamp << 40", "DELETE FROM topics"),
    *("INSERT INTO topics SELECT 7, name, type, 1, 2, 3 FROM topics", "DROP TABLE topics"),
    "ALTER TABLE messages RENAME TO m; CREATE VIEW messages AS " + ENDLESS + "1 AS topic_id, x AS "
    "timestamp, zeroblob(100000) AS data FROM c",
    "ALTER TABLE topics RENAME TO t; CREATE VIEW topics AS " + ENDLESS + "x AS name, x AS type "
    "FROM c",
    "ALTER TABLE messages RENAME TO m; CREATE TABLE messages (id INTEGER, topic_id INTEGER, "
    "timestamp INTEGER, data AS (zeroblob(900000000))); INSERT INTO messages SELECT 1, 1, 1",
)


def _spoil_database(path: Path, rng: np.random.Generator) -> None:
    content = path.read_bytes()
    _write(path, content)
    with contextlib.closing(sqlite3.connect(path)) as database, contextlib.suppress(sqlite3.Error):
        database.executescript(str(rng.choice(STATEMENTS)))
        database.commit()


def spoil_argument(arguments: list[str], rng: np.random.Generator) -> str:
    """Changes one argument, in place; returns the new one."""
    at = int(rng.integers(len(arguments)))
    arguments[at] = str(rng.choice(EVIL)).replace("\x00", "?")
    return arguments[at]
