"""Films are what was put into them, whole, and nobody else's."""

import errno
import itertools
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from millisecond.detector.draw.film import Film

av = pytest.importorskip("av")


def shade(level: int, size: tuple[int, int] = (90, 161)) -> np.ndarray:
    return np.full((*size, 3), level, np.uint8)


def test_a_film_holds_every_picture_at_its_time(tmp_path):
    levels = [0, 60, 120, 180, 240]
    path = tmp_path / "new" / "film.mp4"
    with Film(path, rate=12.5) as film:
        for level in levels:
            film.add(shade(level))
        film.add(shade(30, (70, 200)))  # of another size: cut, and filled up
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frames = list(container.decode(stream))
        assert float(stream.average_rate) == 12.5
        assert (stream.width, stream.height) == (160, 90)  # H.264 wants even sides
    assert [frame.time for frame in frames] == pytest.approx([k / 12.5 for k in range(6)])
    shown = [frame.to_ndarray(format="rgb24") for frame in frames]
    for picture, level in zip(shown, levels, strict=False):
        assert abs(picture.mean() - level) < 3
    assert abs(shown[5][:64].mean() - 30) < 3 and shown[5][76:].mean() < 25
    assert [file.name for file in path.parent.iterdir()] == ["film.mp4"]


def test_an_interrupted_film_is_playable(tmp_path):
    path = tmp_path / "film.mp4"
    with pytest.raises(KeyboardInterrupt), Film(path, 10) as film:
        film.add(shade(10))
        film.add(shade(20))
        raise KeyboardInterrupt
    with av.open(str(path)) as container:
        assert len(list(container.decode(video=0))) == 2
    assert [file.name for file in tmp_path.iterdir()] == ["film.mp4"]


def test_a_film_replaces_films_of_this_program_only(tmp_path):
    path = tmp_path / "film.mp4"
    for count in (3, 1):
        with Film(path, 10) as film:
            for _ in range(count):
                film.add(shade(0))
    with av.open(str(path)) as container:
        assert len(list(container.decode(video=0))) == 1
    before = path.read_bytes()
    with Film(path, 10):
        pass  # nothing was drawn: the earlier film stays
    assert path.read_bytes() == before
    for other in (b"holiday", b""):
        path.write_bytes(other)
        with pytest.raises(ValueError, match=r"film\.mp4: is there and is not a film"):
            Film(path, 10)
        assert path.read_bytes() == other
    with av.open(str(tmp_path / "camera.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 160, 90, "yuv420p"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(shade(0, (90, 160)))))
        container.mux(stream.encode())
    with pytest.raises(ValueError, match="not a film of this program"):
        Film(tmp_path / "camera.mp4", 10)


NOISE = """
import itertools, sys
from pathlib import Path
import errno
import itertools
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
from millisecond.detector.draw.film import Film
rng = np.random.default_rng(0)
with Film(Path(sys.argv[1]), 10) as film:
    for number in itertools.count(1):
        film.add(rng.integers(0, 256, (120, 160, 3), dtype=np.uint8))
        print(number, flush=True)
"""


def recording(path: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", NOISE, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_killed_recording_plays(tmp_path):
    path = tmp_path / "film.mp4"
    with recording(path) as process:
        for _ in range(30):
            assert process.stdout.readline()
        process.kill()
    with av.open(str(path)) as container:
        shown = list(itertools.islice(container.decode(video=0), 28))
    assert len(shown) == 28  # of the last two the program may not have heard yet
    with Film(path, 10) as film:  # it is known as this program's
        film.add(shade(0))


@pytest.mark.parametrize("last", [False, True])
def test_a_film_on_a_full_disk_plays_up_to_there(tmp_path, last):
    """last: the disk has room for all but the end of the last picture."""
    path, rng = tmp_path / "film.mp4", np.random.default_rng(0)
    pictures = rng.integers(0, 256, (6 if last else 1000, 120, 160, 3), dtype=np.uint8)
    room = 200_000
    if last:
        with Film(path, 10) as film:
            for picture in pictures:
                film.add(picture)
        room = path.stat().st_size - 1000
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        with pytest.raises(OSError, match="plays up to there") as error, Film(path, 10) as film:
            for picture in pictures:
                film.add(picture)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert error.value.filename == str(path) and error.value.errno == errno.EFBIG
    with av.open(str(path)) as container:
        count = len(list(container.decode(video=0)))
    assert count == film.pictures > 3
    assert [file.name for file in tmp_path.iterdir()] == ["film.mp4"]
