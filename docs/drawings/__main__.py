"""Draws the pictures of sparse_convolution.md: python -m docs.drawings"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from docs.drawings import example, street

DRAWINGS: dict[str, Callable[[], Figure]] = {
    "cloud.png": street.draw_cloud,
    "sites.png": example.draw_sites,
    "rulebook.png": example.draw_rulebook,
    "gather.png": example.draw_gather,
    "bitmap.png": example.draw_bitmap,
    "tiles.png": street.draw_tiles,
}


def main(folder: Path = Path(__file__).parent) -> None:
    for name, draw in DRAWINGS.items():
        figure = draw()
        figure.savefig(folder / name, dpi=110, facecolor="white", metadata={"Software": None})
        plt.close(figure)


if __name__ == "__main__":
    main()
