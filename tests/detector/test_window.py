"""Windows on a virtual X server: how they open, go on and end."""

import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image, ImageGrab

from millisecond.data.simulator import simulate
from millisecond.detector.draw import open3d_process
from millisecond.detector.draw.open3d_process import Open3DProcess, processor_draws
from millisecond.detector.draw.scene import SceneRenderer, SceneUnavailable
from millisecond.detector.draw.style import VERDICT_COLOURS, Shown
from millisecond.detector.draw.view import Viewpoint
from millisecond.detector.draw.window import Window, WindowUnavailable, WindowView
from millisecond.tools import visualize
from tests.helpers.judged_results import write_judged_results
from tests.helpers.kitti_miniature import write_miniature
from tests.helpers.weights import write_weights

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="X servers and /proc")
ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 90  # seconds, on a machine that has much else to do
SERVER = ["Xvfb", "-displayfd", "1", "-screen", "0", "1300x740x24", "-nolisten", "tcp"]
SERVER += ["-noreset"]  # else it turns the program away after its look whether there is a display
SERVER += ["-r"]  # a key that a busy machine lets go late would repeat
WINDOW = "search", "--name", "millisecond"
OBJECT = {"id": 1, "class": "Car", "verdict": None, "labelled": True, "confidence": 0.5}
OBJECT |= {"doubt": 1.0, "why": "score", "standing": False, "frame": "a"}
OBJECT |= {"boxes": {"a": "9 1 -1 4 2 1.5 0.0", "c": "10 1 -1 4 2 1.5 0.1"}}
OTHER = OBJECT | {"id": 2, "frame": "c", "boxes": {"c": "20 1 -1 4 2 1.5 0.0"}}
OBJECTS = {"drive": 1, "format": "text", "objects": [OBJECT, OTHER], "written": {}}


class Tool:
    """A running command of millisecond, in a process group as a terminal makes it.

    Its display is its own: a window that opens, or closes, takes no keys meant for another.
    """

    def __init__(self, name: str, *arguments: object, folder: Path):
        self.folder = folder
        self.server = subprocess.Popen(SERVER, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        display = f":{int(self.server.stdout.readline())}"
        known = {k: v for k, v in os.environ.items() if k != "WAYLAND_DISPLAY"}
        own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "DISPLAY": display}
        self.environment = known | own
        self.process = subprocess.Popen(
            [sys.executable, "-m", "millisecond", name, *map(str, arguments)],
            env=self.environment,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_for(self, title: str) -> None:
        """Wait for a window whose title matches."""
        self.wait_until(
            lambda: bool(self._xdotool("search", "--name", title)), f"no window is called {title}"
        )

    def wait_until(self, happened: Callable[[], bool], problem: str) -> None:
        end = time.monotonic() + PATIENCE
        while not happened():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end, problem
            time.sleep(0.05)

    def title(self) -> str:
        """The title of the program's window."""
        return self._xdotool(*WINDOW, "getwindowname").strip()

    def press(self, key: str, title: str = "") -> None:
        """Press a key once, and wait for the title that follows."""
        self._xdotool(*WINDOW, "windowfocus", "--sync", "key", key)
        if title:
            self.wait_for(title)

    def picture(self) -> np.ndarray:
        """What the screen shows of the window, [H, W, 3]."""
        rows = self._xdotool(*WINDOW, "getwindowgeometry", "--shell").split()
        x, y, wide, high = (int(row.partition("=")[2]) for row in rows[1:5])
        screen = ImageGrab.grab(xdisplay=self.environment["DISPLAY"])
        return np.asarray(screen.crop((x, y, x + wide, y + high)), np.int64)

    def end(self) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        try:
            out, err = self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        return self.process.returncode, out, err

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()
        self.server.kill()
        self.server.communicate()

    def _xdotool(self, *arguments: str) -> str:
        return subprocess.run(
            ["xdotool", *arguments], env=self.environment, capture_output=True, text=True
        ).stdout


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    """Programs that start together, for that takes long."""
    for program in ("Xvfb", "xdotool"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    folder = tmp_path_factory.mktemp("windows")
    for name in ("a", "b", "c"):
        simulate(1).points.tofile(folder / f"{name}.bin")
    (folder / "drive").mkdir()
    # more than are dropped between two that are shown: the next one has another name
    for number in range(3000):
        (folder / "drive" / f"{number}.bin").symlink_to(folder / "a.bin")
    write_weights(folder / "weights")
    (folder / "labelled").mkdir()
    (folder / "labelled" / "objects.json").write_text(json.dumps(OBJECTS))
    root, found = write_miniature(folder / "kitti"), write_judged_results(folder / "found")
    judged = ("--root", root, "--detections", found)
    running = {}
    try:
        for name, program, *arguments in (
            ("browsing", "visualize", "a.bin", "b.bin", "c.bin", "--no-detections"),
            ("judging", "visualize", *judged, "--start", "000005"),
            ("reviewing", "visualize", "a.bin", "b.bin", "c.bin", "--review", "labelled"),
            ("playing", "demo", "drive", "--weights", "weights", "--loop"),
        ):
            running[name] = Tool(program, *arguments, folder=folder)
        yield running
    finally:
        for tool in running.values():
            tool.kill()


def test_keys_of_the_live_window_and_ctrl_c(tools):
    """Each key does something, and none ends the program; Ctrl-C does, with a summary."""
    tool = tools["playing"]
    tool.wait_for("^[0-9]+ - millisecond")
    tool.press("space", "paused - millisecond")
    paused = tool.title()
    for key in ("f", "t", "c", "l", "p", "r", "1", "1", "bracketleft", "Up", "s"):
        tool.press(key)
    name = paused.split()[0]
    screenshot = tool.folder / "output" / "screenshots" / f"{name}.png"
    tool.wait_until(screenshot.is_file, f"no {screenshot}")
    with Image.open(screenshot) as picture:
        pixels = np.asarray(picture.resize((64, 36))).reshape(-1, 3)
    assert picture.width > 600 and len(np.unique(pixels, axis=0)) > 20
    assert tool.title() == paused
    middle = slice(80, -80), slice(240, None)  # without title, figures, legend and help
    with Image.open(screenshot) as picture:
        kept = np.asarray(picture.convert("RGB"), np.int64)[middle]
    tool.wait_until(
        lambda: (np.abs(tool.picture()[middle] - kept).max(axis=2) > 60).mean() < 1e-3,
        "captions of the window are not the picture's",
    )
    tool.press("Right")
    tool.wait_until(lambda: tool.title().split()[:1] not in ([], [name]), "no step")
    os.killpg(tool.process.pid, signal.SIGINT)
    code, out, err = tool.end()
    assert code == 130 and err == ""
    for word in ("frames ", "dropped ", "troubles   0", "latency    p50 ", "p90 ", "p99 "):
        assert word in out


def test_a_vanished_scan_is_told_and_the_rest_is_shown(tools):
    tool = tools["browsing"]
    tool.wait_for("^a .*1 of 3.*millisecond")
    (tool.folder / "b.bin").unlink()
    tool.press("Right", "^frame b: .*b.bin.*millisecond")
    tool.press("Right", "^c .*3 of 3.*millisecond")
    tool.press("q")
    code, _, err = tool.end()
    assert code == 2 and err.count("\n") == 1 and "b.bin" in err


def test_keys_lead_to_numbers_to_the_worst_frames_and_save_sheets(tools):
    tool = tools["judging"]
    tool.wait_for("^000005 .*2 matched, 0 missed, 1 false.*2 of 4")
    for key, title in (
        ("Return", "^000005 .*2 of 4 +go to ... - millisecond"),
        ("3", "^000005 .*2 of 4 +go to 3 - millisecond"),
        ("9", "go to 39 - millisecond"),
        ("BackSpace", "go to 3 - millisecond"),
        ("Return", "^000007 .*3 of 4 - millisecond"),
    ):
        tool.press(key, title)
    for key, title in (
        ("End", "^000011 .*1 matched, 1 missed, 1 false"),
        ("Prior", "^000002 "),
        ("n", "^000007 .*0 matched, 2 missed, 0 false"),
        ("n", "^000011 "),
        ("e", "^000011 "),
        ("b", "^000007 "),
    ):
        tool.press(key, f"{title}.*of 4 - millisecond")
    pictures = tool.folder / "output" / "pictures"
    tool.press("s")
    tool.wait_until((pictures / "000007_sheet.png").is_file, "no sheet")
    with Image.open(pictures / "000007_sheet.png") as sheet:
        colours = {colour for _, colour in sheet.getcolors(1 << 24)}
    assert VERDICT_COLOURS["missed"] in colours  # the boxes have been by error since `e`
    tool.press("q")
    code, out, err = tool.end()
    assert (code, err) == (0, "")
    assert (pictures / "ranking.json").is_file() and out.count("000007_sheet.png written") == 1


def test_keys_decide_on_objects(tools):
    tool = tools["reviewing"]
    tool.wait_for("^a .*object 1 of 2")
    tool.press("Right", "^c .*object 1 of 2")
    tool.press("v")
    tool.press("a", "^c .*object 2 of 2")
    tool.press("x")
    path = tool.folder / "labelled" / "objects.json"

    def verdicts():
        return [one["verdict"] for one in json.loads(path.read_text())["objects"]]

    tool.wait_until(lambda: verdicts() == ["accept", "reject"], "no verdicts")
    tool.press("q")
    assert tool.end() == (0, "", "")
    assert json.loads(path.read_text())["objects"][0]["boxes"]["a"].endswith("3.1416")


def test_a_window_that_goes_on_keeps_its_memory(tools, monkeypatch):
    """Mesa's Vulkan for the processor kept 5 MB of each drawing."""
    if not processor_draws():
        pytest.skip("the memory is its graphics card's driver's")
    monkeypatch.setenv("DISPLAY", tools["reviewing"].environment["DISPLAY"])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    clouds, resident = [simulate(number).points for number in range(3)], []
    with Window({}) as window:
        status = Path(f"/proc/{window._process._process.pid}/statm")
        for number in range(30):
            window.show(Shown(clouds[number % 3], title=str(number)))
            window.wait(0.1)
            resident.append(int(status.read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6)
    assert resident[-1] - resident[9] < 40  # MB


def test_a_screenshot_is_asked_for_until_it_comes():
    """A renderer that is behind drops a frame, and the requests with it."""
    sent, asked = [], []
    view = object.__new__(WindowView)
    view._gui = SimpleNamespace(KeyEvent=SimpleNamespace(Type=SimpleNamespace(DOWN=1)))
    view._key_names, view._send, view._open = {7: "s"}, sent.append, True
    view._screenshot, view._hidden, view._redraws = False, set(), []
    view._app = SimpleNamespace(run_one_tick=lambda: True)
    view._window = SimpleNamespace(post_redraw=lambda: None, scaling=1.0)
    scene = SimpleNamespace(render_to_image=asked.append)
    view._scene, view._shown = SimpleNamespace(scene=scene), Shown()
    seen = Viewpoint(np.eye(4), 500.0, (64, 36))
    view._camera = SimpleNamespace(viewpoint=lambda scale: seen)
    view._key(SimpleNamespace(key=7, type=1))
    view._placed = seen
    for _ in range(3):
        view.tick()
    assert len(asked) == 3 and not sent
    for answer in asked[1:]:
        answer(np.zeros((36, 64, 3), np.uint8))
    [path] = sent
    path.unlink()
    view.tick()
    assert len(asked) == 3 and len(sent) == 1


def test_wayland_without_an_x_server_gives_pictures(tmp_path, monkeypatch, capsys):
    def late(*_):
        raise TimeoutError("no end in sight")

    def draw(*_, **__):
        raise SceneUnavailable("not in this test")

    simulate(1).points.tofile(tmp_path / "a.bin")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WAYLAND_DISPLAY", "nowhere")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setattr(SceneRenderer, "draw", draw)
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    try:
        assert visualize.main(["a.bin", "--no-detections"]) == 0
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert Path("output/pictures/a_birds_eye.png").is_file()
    assert capsys.readouterr().err.count("XWayland") == 1


def test_a_display_that_says_nothing_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(open3d_process, "PATIENCE", 0.5)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    folder, number = Path("/tmp/.X11-unix"), os.getpid()
    folder.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX) as file, socket.socket(socket.AF_UNIX) as abstract:
        file.bind(f"{folder}/X{number}")
        abstract.bind(f"\0{folder}/X{number}")
        file.listen()
        abstract.listen()
        monkeypatch.setenv("DISPLAY", f":{number}")
        start = time.monotonic()
        with pytest.raises(WindowUnavailable, match=f"no X server answers at DISPLAY=:{number}"):
            Window({})
        assert time.monotonic() - start < 60
    Path(f"{folder}/X{number}").unlink()
    for name, said in ((":99999", "no X server answers"), ("", "DISPLAY is empty")):
        monkeypatch.setenv("DISPLAY", name)
        assert said in open3d_process.display_problem()


def test_open3d_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "open3d", None)
    assert runpy.run_path(open3d_process.__file__)["REMEDY"] == "try: pip install open3d"


def idle(pipe: Connection) -> None:
    pipe.recv()


def test_ctrl_c_is_the_programs_alone():
    process = Open3DProcess(idle)
    status = Path(f"/proc/{process._process.pid}/status").read_text()
    ignored = next(int(row.split()[1], 16) for row in status.splitlines() if "SigIgn" in row)
    process.close()
    assert ignored >> (signal.SIGINT - 1) & 1  # from its very first instruction
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
