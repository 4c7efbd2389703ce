"""Pictures as PNG files, which say that they are this program's."""

from pathlib import Path

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from millisecond.data.files import replacing

KEY, SOFTWARE = "Software", "millisecond"  # PNG's own keyword for the program that made a file


def is_own(path: Path | str) -> bool:
    """Whether a file is a picture that `save_png` wrote."""
    if not Path(path).is_file():  # opening a pipe would wait
        return False
    try:
        with Image.open(path, formats=["PNG"]) as image:
            return image.info.get(KEY) == SOFTWARE
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return False  # no readable PNG at all


def require_own(path: Path | str) -> None:
    """Raise ValueError where a file exists that `save_png` did not write."""
    if Path(path).exists() and not is_own(path):
        raise ValueError(
            f"{path}: is there and is not a picture of this program; move it away, or write "
            "elsewhere with --output"
        )


def save_png(path: Path | str, picture: np.ndarray) -> None:
    """Write a picture [H, W, 3] uint8; the file is complete or does not exist.

    Raises ValueError where that would replace a file that is not a picture of this program.
    """
    require_own(path)
    note = PngInfo()
    note.add_text(KEY, SOFTWARE)
    with replacing(path) as temporary:
        Image.fromarray(picture).save(temporary, format="PNG", pnginfo=note)
