"""A page in headless Chromium, with a mouse and keys."""

import json
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest

SIZE, PATIENCE = (900, 600), 60.0  # pixels; seconds
OPTIONS = ("--headless=new", "--no-sandbox", "--use-angle=swiftshader", "--hide-scrollbars")
PROGRAM = shutil.which("chromium") or shutil.which("google-chrome")


class Page:
    """A page that is open; it is told what to do by Chrome's DevTools protocol."""

    def __init__(self, socket):
        self._socket, self._number = socket, 0

    def tell(self, method: str, **parameters):
        """Returns the result of a method of the protocol."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while (answer := json.loads(self._socket.recv(60))).get("id") != self._number:
            pass
        return answer["result"]

    def evaluate(self, script: str):
        """The value of a script."""
        return self.tell("Runtime.evaluate", expression=script)["result"].get("value")

    def wait_for(self, text: str, do: Callable[[], None] = lambda: None) -> str:
        """All text of the page, once it holds this one. do: every two seconds until then, for a
        page that is still being built takes neither mouse nor keys."""
        start = again = time.monotonic()
        while text not in (shown := self.evaluate("document.body?.innerText ?? ''")):
            now = time.monotonic()
            assert now < start + PATIENCE, f"{text} is not in: {shown}"
            if now >= again:
                do()
                again = now + 2
            time.sleep(0.1)
        return shown

    def click(self, x: float, y: float) -> None:
        """On a pixel of the page."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            button = {"button": "left", "clickCount": 1}
            self.tell("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def press(self, key: str, of: str) -> None:
        """A key, with the focus on the first element of a CSS selector."""
        self.evaluate(f"document.querySelector('{of}').focus()")
        for kind in ("keyDown", "keyUp"):
            self.tell("Input.dispatchKeyEvent", type=kind, key=key, code=key)


@contextmanager
def opened(address: str, folder: Path):
    """The page of an address. folder: for the browser's own files."""
    connect = pytest.importorskip("websockets.sync.client").connect
    window = f"--window-size={SIZE[0]},{SIZE[1]}"
    own = ["--remote-debugging-port=0", f"--user-data-dir={folder}", window]
    command = [PROGRAM, *OPTIONS, *own, "about:blank"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as browser:
        try:
            ports = (re.search(r"ws://127\.0\.0\.1:(\d+)/", line) for line in browser.stderr)
            place = f"http://127.0.0.1:{next(filter(None, ports))[1]}/json"
            with urllib.request.urlopen(place, timeout=60) as answer:
                pages = [one for one in json.load(answer) if one["type"] == "page"]
            with connect(pages[0]["webSocketDebuggerUrl"], max_size=None) as socket:
                page = Page(socket)
                page.tell("Page.navigate", url=address)
                yield page
        finally:
            browser.terminate()
