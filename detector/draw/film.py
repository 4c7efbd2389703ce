"""Pictures as a film: an MP4 file, which says that it is this program's."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from millisecond.data.files import make_folder, require
from millisecond.detector.draw.png import SOFTWARE
from millisecond.detector.draw.style import BACKGROUND

KEY = "comment"  # MP4's own keyword
CODECS = ("libx264", "mpeg4")  # the first that the build has
# zerolatency: no picture waits in the encoder for later ones
QUALITY = {
    "libx264": {"crf": "23", "preset": "veryfast", "tune": "zerolatency"},
    "mpeg4": {"qscale": "4"},
}
# each picture is a fragment of its own, on the disk at once; a trailer would hide a full disk
FLAGS = "frag_every_frame+empty_moov+default_base_moof+skip_trailer"
FRAGMENTED = {"movflags": FLAGS, "flush_packets": "1"}


class Film:
    """Writes pictures one after the other.

    Use it as a context manager. The file plays at any time: after an error, an interruption or a
    kill it holds the pictures until then, except the last few. Without any picture there is no
    file, and an earlier film stays.
    """

    def __init__(self, path: Path, rate: float):
        """rate: pictures per second.

        Raises ValueError where PyAV is missing, the folder cannot be written to, or the file is
        there and is not a film of this program.
        """
        self._av = require("av", "a film")
        require_own_film(path)
        make_folder(path.parent)
        self.path, self.pictures = path, 0
        self._rate = Fraction(rate).limit_denominator(1000)
        self._container: Any = None
        self._stream: Any = None
        self._whole = 0  # bytes of the file that play

    def __enter__(self) -> Film:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, picture: np.ndarray) -> None:
        """One more picture [H, W, 3] uint8; all are shown in the size of the first.

        Raises OSError, with the path, if the picture cannot be written.
        """
        if self._stream is None:
            with self._whole_pictures():
                self._begin(picture)
        canvas = np.full((self._stream.height, self._stream.width, 3), BACKGROUND, np.uint8)
        part = picture[: canvas.shape[0], : canvas.shape[1]]
        canvas[: part.shape[0], : part.shape[1]] = part
        frame = self._av.VideoFrame.from_ndarray(canvas, format="rgb24")
        frame.pts = self.pictures
        frame.time_base = 1 / self._rate
        with self._whole_pictures():
            self._write(self._stream.encode(frame))
        self.pictures += 1

    def close(self) -> None:
        """Writes the rest; raises as `add`."""
        if self._container is None:
            return
        with self._whole_pictures():
            self._write(self._stream.encode())
            self._container.close()
        self._container = None

    def _write(self, packets: Iterable[Any]) -> None:
        for packet in packets:
            self._container.mux(packet)
            self._whole = self.path.stat().st_size

    @contextmanager
    def _whole_pictures(self) -> Iterator[None]:
        """After an error of the disk the file ends with its last whole picture."""
        try:
            yield
        except OSError as error:
            container, self._container = self._container, None
            if container is not None:
                with suppress(OSError):
                    container.close()
            with suppress(OSError):
                os.truncate(self.path, self._whole)
            self.pictures = max(0, self.pictures - 1)  # each one is written with the next
            text = f"{error.strerror}; the film plays up to there"
            raise OSError(error.errno, text, str(self.path)) from None

    def _begin(self, picture: np.ndarray) -> None:
        codec = next(name for name in CODECS if name in self._av.codecs_available)
        self._container = self._av.open(str(self.path), "w", format="mp4", options=FRAGMENTED)
        self._container.metadata[KEY] = SOFTWARE
        stream = self._container.add_stream(codec, rate=self._rate, options=QUALITY[codec])
        stream.height, stream.width = (side // 2 * 2 for side in picture.shape[:2])
        stream.pix_fmt = "yuv420p"
        self._stream = stream
        self._container.start_encoding()
        self._whole = self.path.stat().st_size


def require_own_film(path: Path) -> None:
    """Raise ValueError where a file exists that is not a film of this program."""
    av, ours = require("av", "a film"), False
    if path.is_file():  # opening a pipe would wait
        with suppress(OSError, ValueError), av.open(str(path), format="mp4") as container:
            ours = container.metadata.get(KEY) == SOFTWARE
    if path.exists() and not ours:
        raise ValueError(
            f"{path}: is there and is not a film of this program; move it away, or give another "
            "name"
        )
