"""The page for a browser: what it serves, and that it ends."""

import http.client
import socket
import urllib.request
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from millisecond.data.boxes import box_corners
from millisecond.data.calibration import EDGES
from millisecond.detector.draw.browser import (
    HOST,
    BrowserView,
    PageTexts,
    again,
    guarded,
    invitation,
)
from millisecond.detector.draw.scene import box_lines
from millisecond.detector.draw.style import CLASS_COLOURS, Palette, Photo, Shown

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
    photo = Photo(np.zeros((20, 60, 3), np.uint8), None)
    with BrowserView(port, 0.35) as browser:
        assert browser.choices == (0.35, False)
        for count, image in ((3, None), (5, photo), (0, photo), (1, None)):
            browser.show(Shown(points, None, found(count), "000001", {"latency": "5 ms"}, image))
        browser.show(Shown(points[:0]))
        with urllib.request.urlopen(f"http://{HOST}:{port}/{browser.token}/", timeout=60) as answer:
            assert b"<html" in answer.read()[:500].lower()
            assert answer.headers["Referrer-Policy"] == "no-referrer"
        with pytest.raises(OSError, match=f"port {port}: .*another one to --browser"):
            BrowserView(port, 0.3)
    with socket.socket() as probe:  # nobody listens any more
        assert probe.connect_ex((HOST, port)) != 0
    assert capfd.readouterr() == ("", "")


def test_only_the_page_itself_is_answered():
    """A foreign site in the user's browser, by its own name too, and other users of the machine."""
    client = pytest.importorskip("websockets.sync.client")
    refused = pytest.importorskip("websockets.exceptions").InvalidStatus
    port = free_port()
    own, site = {"Host": f"localhost:{port}"}, f"evil.example:{port}"
    protocol = f"viser-v{pytest.importorskip('viser').__version__}"
    with BrowserView(port, 0.3) as browser, BrowserView(free_port(), 0.3) as other:
        assert browser.token != other.token
        for path, headers, status in (
            (f"/{browser.token}/", own, 200),
            (f"/{browser.token}", own, 200),
            (f"/{browser.token}/?darkMode", own, 200),
            (f"/{browser.token}/", own | {"Origin": f"http://localhost:{port}"}, 200),
            (f"/{browser.token}/none.js", own, 404),
            (f"/{browser.token}/../../../etc/passwd", own, 404),
            ("/", own, 403),
            (f"/?{browser.token}", own, 403),
            (f"/{other.token}/", own, 403),
            (f"/{browser.token}x/", own, 403),
            (f"/{browser.token}/", {"Host": site}, 403),
            (f"/{browser.token}/", own | {"Origin": f"http://{site}"}, 403),
            (f"/{browser.token}/", own | {"Origin": "null"}, 403),
            (f"/{browser.token}/", {"Host": site, "Origin": f"http://{site}"}, 403),
            (f"/{browser.token}/", own | {"Origin": f"http://localhost:{other.port}"}, 403),
        ):
            connection = http.client.HTTPConnection(HOST, port, timeout=60)
            connection.request("GET", path, headers=headers)
            assert connection.getresponse().status == status, (path, headers)
            connection.close()
            origin, name = headers.get("Origin"), headers["Host"]
            if status == 404 or name != own["Host"]:
                continue  # the client sends the name that it connects to
            address = f"ws://{name}{path}"
            if status == 200:
                with client.connect(address, origin=origin, subprotocols=[protocol]) as page:
                    assert len(page.recv(60)) > 100
            else:
                with pytest.raises(refused, match="HTTP 403"):
                    client.connect(address, origin=origin, subprotocols=[protocol])


def test_a_viser_that_cannot_be_guarded_does_not_serve():
    with pytest.raises(ValueError, match="cannot be guarded"), guarded("token"):
        pass


def test_the_invitation_names_the_port_of_both_machines():
    assert "http://localhost:8091/word/" in invitation(8091, "word")
    assert f"ssh -L 8091:localhost:8091 {socket.gethostname()}" in invitation(8091, "word")


def test_lines_are_edges_and_headings():
    shown = found(2)
    segments, colours, of_box = box_lines(shown, dashed=False)
    assert of_box.tolist() == [0] * 13 + [1] * 13
    corners = box_corners(shown.boxes.astype(float))
    np.testing.assert_allclose(segments[:12], corners[0][EDGES])
    np.testing.assert_allclose(segments[13:25], corners[1][EDGES])
    heading = segments[25, 1] - segments[25, 0]
    assert np.arctan2(heading[1], heading[0]) == pytest.approx(0.3, abs=1e-6)
    np.testing.assert_allclose(colours, np.tile(np.array(CLASS_COLOURS["Car"]) / 255, (26, 1)))


def test_a_picked_box_stays_picked_as_long_as_its_track_is_there():
    one, two, three = (Shown(detections=found(count)) for count in (3, 2, 4))
    picked = ("detections", 2)
    assert again(None, one, three) is None
    assert again(picked, one, one) == again(picked, one, three) == picked
    moved = three._replace(detections=three.detections._replace(ids=np.array([5, 2, 7, 1])))
    assert again(picked, one, moved) == ("detections", 1)
    assert again(picked, one, two) is None  # it has ended
    assert again(("detections", 0), one, three) is None  # no track
    assert again(picked, one, Shown()) is None


class FakePage:
    """A page of viser whose camera stands still; it keeps the images that it is given."""

    def __init__(self, eye: np.ndarray, target: np.ndarray):
        from viser.transforms import SO3

        forward = (target - eye) / np.linalg.norm(target - eye)
        right = np.cross(forward, (0, 0, 1)) / np.linalg.norm(np.cross(forward, (0, 0, 1)))
        axes = np.stack([right, np.cross(forward, right), forward], axis=1)  # x right, y down
        turn, size = SO3.from_matrix(axes).wxyz, {"image_width": 900, "image_height": 600}
        self.camera = SimpleNamespace(position=eye, wxyz=turn, fov=0.8, **size)
        self.axes, self.images = axes, []
        self.scene = SimpleNamespace(add_image=self._add)
        self.atomic = nullcontext

    def _add(self, _, pixels, width, height, **__):
        self.images.append(SimpleNamespace(image=pixels, render_width=width, render_height=height))
        return self.images[-1]


def test_captions_of_a_page_face_its_camera_and_are_as_large_as_drawn():
    eye, target = np.array([-9.0, 2.0, 7.0]), np.array([15.0, -1.0, 0.0])
    page = FakePage(eye, target)
    texts = PageTexts(page)
    texts.show(Shown(detections=found(3)))
    seen = [image for image in page.images if image.visible]
    assert len(seen) > 3  # captions, and distances of rings
    focal = 300 / np.tan(0.4)
    places = []
    for image in seen:
        x, y, depth = (np.array(image.position) - eye) @ page.axes
        high, wide = image.image.shape[:2]
        assert image.render_width * focal / depth == pytest.approx(wide)
        assert image.render_height * focal / depth == pytest.approx(high)
        np.testing.assert_allclose(image.wxyz, page.camera.wxyz)
        places.append((450 + x * focal / depth, 300 + y * focal / depth))
    corners = box_corners(found(3).boxes.astype(float))[0]
    x, y, depth = ((corners - eye) @ page.axes).T
    above = 300 + (y / depth).min() * focal
    assert any(v < above and abs(u - 450 - (x / depth).mean() * focal) < 9 for u, v in places)
    count = len(page.images)
    texts.show(Shown())
    assert len(page.images) == count  # they are used again
    assert 0 < max(image.image.shape[1] for image in page.images if image.visible) < 50  # "70 m"
