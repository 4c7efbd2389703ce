"""play.py as a user calls it, without a display."""

import numpy as np

from data.simulator import simulate
from tests.helpers.kitti_miniature import png
from tools import play


def test_a_folder_of_scans_becomes_a_film(tmp_path, plain, untrained, capsys):
    for k in range(2):
        simulate(1, 0.1 * k).points.tofile(tmp_path / f"{k}.bin")
    np.zeros((0, 4), np.float32).tofile(tmp_path / "2.bin")
    film = tmp_path / "film"
    assert play.main([str(tmp_path), "--weights", str(untrained), "--output", str(film)]) == 0
    assert sorted(path.name for path in film.iterdir()) == [f"00000{k}.png" for k in range(3)]
    assert capsys.readouterr().err.count("note:") == 1

    # A second film, shorter and with a scan that cannot be read, leaves nothing of the first.
    (tmp_path / "0.bin").write_bytes(b"cut off")
    (tmp_path / "2.bin").unlink()
    arguments = [str(tmp_path), "--weights", str(untrained), "--output", str(film)]
    assert play.main(arguments) == 2
    out, err = capsys.readouterr()
    assert "3 pictures of an earlier film removed" in out and "0.bin" in err
    assert [path.name for path in film.iterdir()] == ["000000.png"]


def test_a_film_spares_the_pictures_of_others(tmp_path, plain, untrained, capsys):
    simulate(1).points.tofile(tmp_path / "0.bin")
    film = tmp_path / "film"
    arguments = [str(tmp_path), "--weights", str(untrained), "--output", str(film)]
    assert play.main(arguments) == 0
    (film / "000007.png").write_bytes(png(4, 4))
    (film / "notes.txt").write_text("")
    before = {path.name: path.read_bytes() for path in film.iterdir()}
    capsys.readouterr()
    assert play.main(arguments) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "000007.png" in err
    assert {path.name: path.read_bytes() for path in film.iterdir()} == before


def test_playing_no_scans_says_so(tmp_path, untrained, capsys):
    assert play.main([str(tmp_path), "--weights", str(untrained)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
