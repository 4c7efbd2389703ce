"""Whatever is handed to a program, it ends with 0 or 2 and says one line; nothing else changes."""

import re
import socket
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest

from millisecond.data.live.scan import LiveScan
from millisecond.data.live.velodyne import Packet, Turns
from millisecond.detector.draw.browser import HOST, BrowserView
from tests.helpers.fuzz.cases import fuzz
from tests.helpers.fuzz.judge import PATIENCE, call, snapshot
from tests.helpers.velodyne_packets import turning


def test_fuzz(request):
    options = request.config.option
    assert not fuzz(options.seconds, options.seed, options.case)


def said(code, line=""):
    return lambda _: print(line, file=sys.stderr) or code


def failing(error):
    def main(_):
        raise error

    return main


@pytest.mark.parametrize(
    ("main", "wrong"),
    [
        (said(0), ""),
        (said(2, "error: x"), ""),
        (said(2), "0 lines"),
        (said(2, "error: x\nerror: y"), "2 lines"),
        (said(0, "error: x"), "exit code 0"),
        (said(1), "exit code 1"),
        (said(2, "error: " + "x" * 2000), "a line of 2007 characters"),
        (failing(KeyError("x")), "Traceback"),
        (failing(SystemExit(3)), "exit code 3"),
        (lambda _: bytearray(1 << 40), "MemoryError"),
    ],
)
def test_the_judge(tmp_path, main, wrong):
    found = call(SimpleNamespace(main=main), [], tmp_path)
    assert wrong in found and bool(wrong) == bool(found)


def test_a_change_is_seen(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("x")
    before = snapshot(tmp_path, ["out"])
    (tmp_path / "out").write_text("y")
    assert snapshot(tmp_path, ["out"]) == before
    (tmp_path / "in" / "a").write_text("z")
    assert snapshot(tmp_path, ["out"]) != before


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def cases(options) -> Iterator[tuple[int, np.random.Generator]]:
    """Numbers and generators until a third of the time is over, or the only one."""
    end, number = time.monotonic() + options.seconds / 3, options.case or 0
    while options.case in (None, number) and (time.monotonic() < end or options.case == number):
        yield number, np.random.default_rng((options.seed, number))
        number += 1


def test_packets_of_anybody_never_end_a_live_sensor(request):
    """Packets of several sensors, spoiled, repeated, and at any time by the clock."""
    pytest.importorskip("velodyne_decoder")
    models = ("VLP-16", "HDL-32E", "VLP-32C", "VLS-128")
    good = [data for model in models for _, data in turning(model, 0.3)]
    for number, rng in cases(request.config.option):
        turns, time_now = Turns("udp:2368", live=True), 0.0
        for _ in range(300):
            data = bytearray(good[rng.integers(len(good))])
            for _ in range(rng.choice([0, 0, 0, 1, 5])):
                at = int(rng.choice([rng.integers(1206), rng.integers(1200, 1206)]))
                data[at] = int(rng.choice([rng.integers(256), 0xA1, 0x22, 0x39, 0xDD]))
            size = int(rng.choice([1206, 1206, 1206, 1206, 0, 100, 512, 1207]))
            time_now += float(rng.choice([0.001, 0.001, 0.3, 5, -3]))
            sender = f"10.0.0.{rng.choice([1, 1, 1, 2, 3])}"
            packet = Packet(bytes(data[:size].ljust(size, b"\0")), time_now, sender)
            for item in turns.add(packet):
                assert isinstance(item, LiveScan) or "\n" not in item.text, number
        with suppress(ValueError):  # all of sensors that cannot be read
            list(turns.finish())


def test_bytes_of_anybody_never_end_the_page(request, capfd):
    pytest.importorskip("viser")
    with BrowserView(free_port(), 0.3) as browser:
        port, token = browser.port, browser.token.encode()
        host = b"\r\nHost: localhost:%d\r\n" % port
        upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        upgrade += b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        upgrade += b"Sec-WebSocket-Protocol: viser-v1.1.1\r\n\r\n"
        for _, rng in cases(request.config.option):
            path = bytes(rng.choice([b"/", b"/" + token + b"/", b"/" + token, b"//", b"/%00"]))
            said = b"GET " + path + b" HTTP/1.1" + host + bytes(rng.choice([upgrade, b"\r\n"]))
            sent = bytearray(said + rng.bytes(int(rng.choice([0, 20, 3000]))))
            for at in rng.integers(len(sent), size=int(rng.choice([0, 1, 3]))):
                sent[at] = rng.integers(256)
            with socket.create_connection((HOST, port), timeout=PATIENCE) as stranger:
                stranger.sendall(sent[: int(rng.choice([len(sent), rng.integers(len(sent))]))])
                stranger.shutdown(socket.SHUT_WR)
                answer = b""
                with suppress(ConnectionError):
                    while part := stranger.recv(1 << 16):
                        answer += part
            if token not in sent:
                assert not answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 101")), sent
        url = f"http://{HOST}:{port}/{browser.token}/"
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            assert b"<html" in answer.read()[:500].lower()
    said, error = capfd.readouterr()
    # a handshake that only lacks viser's own version is refused by viser, in its words
    refused = re.compile(r"\(viser\) Version mismatch - connection rejected\.[^(]*")
    assert (refused.sub("", said), error) == ("", "")
