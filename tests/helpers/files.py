"""Folders as tests compare them."""

from pathlib import Path


def contents(folder: Path) -> dict[str, bytes]:
    """Of each file of the folder, by its name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}
