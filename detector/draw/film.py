"""Pictures as a film: an MP4 file, which says that it is this program's."""

from __future__ import annotations

import os
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from data.files import make_folder
from detector.draw.png import SOFTWARE
from detector.draw.style import BACKGROUND

KEY = "comment"  # MP4's own keyword
CODECS = ("libx264", "mpeg4")  # the first that the build has
QUALITY = {"libx264": {"crf": "23", "preset": "veryfast"}, "mpeg4": {"qscale": "4"}}
MISSING = "films need PyAV: pip install -e '.[live]'"


class Film:
    """Writes pictures one after the other.

    Use it as a context manager. The file is whole or not there: it takes its name at the end of
    the block, after an interruption too, with the pictures so far. Without any picture there is no
    file.
    """

    def __init__(self, path: Path, rate: float):
        """rate: pictures per second.

        Raises ValueError where PyAV is missing, the folder cannot be written to, or the file is
        there and is no film of this program.
        """
        self._av = _import_av()
        require_own_film(path)
        make_folder(path.parent)
        self.path, self.pictures = path, 0
        self._rate = Fraction(rate).limit_denominator(1000)
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        self._container: Any = None
        self._stream: Any = None

    def __enter__(self) -> Film:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._stream is not None:
                for packet in self._stream.encode():
                    self._container.mux(packet)
                self._container.close()
                self._temporary.replace(self.path)
        finally:
            with suppress(FileNotFoundError):
                self._temporary.unlink()

    def add(self, picture: np.ndarray) -> None:
        """One more picture [H, W, 3] uint8; all are shown in the size of the first."""
        if self._stream is None:
            self._begin(picture)
        canvas = np.full((self._stream.height, self._stream.width, 3), BACKGROUND, np.uint8)
        part = picture[: canvas.shape[0], : canvas.shape[1]]
        canvas[: part.shape[0], : part.shape[1]] = part
        frame = self._av.VideoFrame.from_ndarray(canvas, format="rgb24")
        frame.pts = self.pictures
        frame.time_base = 1 / self._rate
        for packet in self._stream.encode(frame):
            self._container.mux(packet)
        self.pictures += 1

    def _begin(self, picture: np.ndarray) -> None:
        codec = next(name for name in CODECS if name in self._av.codecs_available)
        self._container = self._av.open(str(self._temporary), "w", format="mp4")
        self._container.metadata[KEY] = SOFTWARE
        stream = self._container.add_stream(codec, rate=self._rate, options=QUALITY[codec])
        stream.height, stream.width = (side // 2 * 2 for side in picture.shape[:2])
        stream.pix_fmt = "yuv420p"
        self._stream = stream


def require_own_film(path: Path) -> None:
    """Raise ValueError where a file exists that is no film of this program."""
    if path.exists() and not is_own_film(path):
        raise ValueError(
            f"{path}: is there and is not a film of this program; move it away, or give another "
            "name"
        )


def is_own_film(path: Path) -> bool:
    """Whether a file is a film that `Film` wrote."""
    av = _import_av()
    if not path.is_file():  # a pipe would be waited for
        return False
    try:
        with av.open(str(path), format="mp4") as container:
            return container.metadata.get(KEY) == SOFTWARE
    except (OSError, ValueError):
        return False  # no film at all


def _import_av():
    try:
        import av
    except ModuleNotFoundError:
        raise ValueError(MISSING) from None
    return av
