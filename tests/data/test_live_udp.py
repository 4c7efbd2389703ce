"""A sensor in the network, played by the packets of recordings over the loopback."""

import socket
import threading
import time

import numpy as np
import pytest

from millisecond.data.live.queue import ScanQueue
from millisecond.data.live.scan import LiveScan
from millisecond.data.live.source import open_source
from millisecond.data.live.velodyne import Turns
from tests.helpers.velodyne_packets import HEADER, read_pcap, turning

pytest.importorskip("velodyne_decoder")

HANG = 60  # seconds after which something has gone wrong


class Sender:
    """Sends packets to a port of this computer, no faster than they are taken."""

    def __init__(self, monkeypatch, packets: list[bytes]):
        self.packets, self._taken = packets, 0
        add = Turns.add

        def counted(turns, packet):
            self._taken += 1
            return add(turns, packet)

        monkeypatch.setattr(Turns, "add", counted)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._thread = threading.Thread(target=self._send, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _send(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for number, data in enumerate(self.packets):
                end = time.monotonic() + HANG
                while number - self._taken > 40 and time.monotonic() < end:
                    time.sleep(0.0005)  # a busy machine loses packets otherwise
                sender.sendto(data, ("127.0.0.1", self.port))


@pytest.mark.parametrize("sensor", ["vlp16", "vlp32"])
def test_packets_of_the_network_give_the_turns_of_the_file(sensors, monkeypatch, sensor):
    path = sensors / sensor / f"{sensor}.pcap"
    wanted = list(open_source(str(path)))
    packets = [content[HEADER:] for _, content in read_pcap(path)]
    packets[100:100] = [b"not a packet"] * 3
    sender = Sender(monkeypatch, packets)
    # however late this thread takes
    monkeypatch.setattr("millisecond.data.live.queue.CAPACITY", len(wanted))
    scans, troubles = [], []
    source = open_source(f"udp://127.0.0.1:{sender.port}")
    assert source.live
    with ScanQueue(source) as queue:
        sender.start()
        while len(scans) < len(wanted) - 1:  # the last turn is open: packets might follow
            item = queue.get(HANG)
            (scans if isinstance(item, LiveScan) else troubles).append(item)
        assert queue.dropped == 0
    for scan, other in zip(scans, wanted[:-1], strict=True):
        np.testing.assert_array_equal(scan.points, other.points)
    steps = np.diff([scan.time for scan in scans])
    np.testing.assert_allclose(steps, np.diff([scan.time for scan in wanted[:-1]]), atol=1e-5)
    assert [trouble.text for trouble in troubles] == [
        f"udp://127.0.0.1:{sender.port}: a packet of 12 bytes, a Velodyne's has 1206; left out"
    ]
    assert source.rate == pytest.approx(10, abs=0.05)


def test_a_stray_packet_of_another_computer_does_not_keep_the_sensor_out(monkeypatch):
    sender = Sender(monkeypatch, [data for _, data in turning("VLP-16", 4)])
    with ScanQueue(open_source(f"udp:{sender.port}")) as queue:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.bind(("127.0.0.2", 0))
            stranger.sendto(sender.packets[0], ("127.0.0.1", sender.port))
        sender.start()
        trouble, scan = queue.get(HANG), queue.get(HANG)
    assert "packets of 127.0.0.2 beside packets of 127.0.0.1; left out" in trouble.text
    assert len(scan.points) > 20_000


def test_a_silent_sensor_is_reported(monkeypatch):
    monkeypatch.setattr("millisecond.data.live.network.SILENCE", 0.1)
    sender = Sender(monkeypatch, [])
    with ScanQueue(open_source(f"udp:{sender.port}")) as queue:
        assert "no packets for 0.1 s" in queue.get(HANG).text


def test_a_port_that_is_taken():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("", 0))
        name = f"udp:{other.getsockname()[1]}"
        with pytest.raises(OSError, match=f"{name}: cannot listen there \\(Address already in use"):
            open_source(name)
    with pytest.raises(ValueError, match="cannot be played again; leave out --loop"):
        open_source(name, loop=True)
    open_source(name).close()
