"""The page for a browser: what it serves, and that it ends."""

import socket
import urllib.request

import numpy as np
import pytest

from data.boxes import box_corners
from data.kitti.calibration import EDGES
from detector.draw.browser import HOST, BrowserView, box_lines, invitation, legend
from detector.draw.style import CLASS_COLOURS, Palette

pytest.importorskip("viser")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def found(count: int):
    boxes = np.array([(10 + 5 * i, 2, -1, 4, 1.8, 1.5, 0.3 * i) for i in range(count)], np.float32)
    shown = Palette(("Car",)).paint(boxes.reshape(-1, 7), ("Car",) * count, np.full(count, 0.5))
    trails = tuple(np.zeros((i, 3)) for i in range(count))
    return shown._replace(ids=np.arange(count), trails=trails)


def test_a_page_is_served_while_frames_come(capfd):
    port = free_port()
    points = np.random.default_rng(0).uniform(-30, 30, (500, 4)).astype(np.float32)
    points[0] = np.nan
    image = np.zeros((20, 60, 3), np.uint8)
    with BrowserView(port, 0.35) as browser:
        assert browser.choices == (0.35, False)
        for count, inset in ((3, None), (5, image), (0, image), (1, None)):
            browser.show(points, None, found(count), "000001", {"latency": "5 ms"}, inset)
        browser.show(points[:0])
        with urllib.request.urlopen(f"http://{HOST}:{port}/", timeout=60) as answer:
            assert b"<html" in answer.read()[:500].lower()
        with pytest.raises(OSError, match=f"port {port}: .*another one to --browser"):
            BrowserView(port, 0.3)
    with socket.socket() as probe:  # nobody listens any more
        assert probe.connect_ex((HOST, port)) != 0
    assert capfd.readouterr() == ("", "")


def test_the_invitation_names_the_port_of_both_machines():
    assert "http://localhost:8091" in invitation(8091)
    assert f"ssh -L 8091:localhost:8091 {socket.gethostname()}" in invitation(8091)


def test_lines_are_edges_and_headings():
    shown = found(2)
    segments, colours = box_lines(shown)
    corners = box_corners(shown.boxes.astype(float))
    np.testing.assert_allclose(segments[:12], corners[0][EDGES])
    np.testing.assert_allclose(segments[13:25], corners[1][EDGES])
    heading = segments[25, 1] - segments[25, 0]
    assert np.arctan2(heading[1], heading[0]) == pytest.approx(0.3, abs=1e-6)
    np.testing.assert_allclose(colours, np.tile(np.array(CLASS_COLOURS["Car"]) / 255, (26, 1)))


def test_names_of_classes_are_text_on_the_page():
    shown = Palette().paint(np.zeros((1, 7)), ("<b>Car",))
    assert "<b>" not in legend(shown) and "&lt;b&gt;Car" in legend(shown)
