"""An attacker on real links, in namespaces, who sees all frames of a job and sends changed ones: A1, A5."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import zmq

from emulation.testbed import netns
from switchagg.wire import HEADER_BYTES
from tests.system.xdp_net import CONTROL, SWITCH, Star
from transport.links.hop_tags import TAG_BYTES
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession
from transport.zeromq.keys import load_keys, make_keys

pytestmark = pytest.mark.system

IP_AT, UDP_AT, DATA_AT = 14, 34, 42
MTU_FRAME = 1514
PORT = 5556
EVERY_PROTOCOL = 3


class Forger:
    """Repeats frames of the job that come by one link, changed, in the direction in which they go, until `close`.

    wire: the link's end in the switch's namespace; node: in the worker's.
    """

    def __init__(self, net: Star, node: int) -> None:
        self.sent = 0
        self._random = np.random.default_rng(node)
        self._ends = []
        for pid, name in ((net.nodes[node].holder.pid, "eth0"), (net.switch.holder.pid, f"p{node}")):
            end = netns.open_socket(pid, socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERY_PROTOCOL))
            end.bind((name, EVERY_PROTOCOL))
            end.settimeout(0.1)
            self._ends.append(end)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._end.set()
        self._thread.join()
        for end in self._ends:
            end.close()

    def _run(self) -> None:
        worker, switch = self._ends
        while not self._end.is_set():
            try:
                frame, where = worker.recvfrom(65_536)
            except TimeoutError:
                continue
            if not self._is_of_the_job(frame):
                continue
            forged = self._changed(frame)
            up = where[2] == socket.PACKET_OUTGOING
            for _ in range(2):
                (worker if up else switch).send(forged)
                self.sent += 1

    @staticmethod
    def _is_of_the_job(frame: bytes) -> bool:
        ports = (int.from_bytes(frame[at : at + 2], "big") for at in (UDP_AT, UDP_AT + 2))
        whole = DATA_AT + HEADER_BYTES + TAG_BYTES <= len(frame) <= MTU_FRAME
        return whole and frame[IP_AT + 9] == socket.IPPROTO_UDP and PORT in ports

    def _changed(self, frame: bytes) -> bytes:
        """A bit of its header, values or tag is another; it has no UDP checksum, as IPv4 allows."""
        changed = bytearray(frame)
        bit = int(self._random.integers(8 * DATA_AT, 8 * len(frame)))
        changed[bit // 8] ^= 1 << bit % 8
        changed[UDP_AT + 6 : UDP_AT + 8] = bytes(2)
        return bytes(changed)


def test_frames_that_an_attacker_on_the_wire_sends_change_no_sum_and_end_no_call(
    requires_root_namespaces: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zmq.Context, "instance", zmq.Context)  # the process's makes all sockets in one namespace
    make_keys(tmp_path)
    keys = load_keys(tmp_path)
    plain = "ethtool -K {} gso off tx-udp-segmentation off"  # frames as a wire has them
    with ExitStack() as ending:
        net = ending.enter_context(Star(2))
        net.switch.sh("\n".join(plain.format(name) for name in ("br0", "p0", "p1")))
        for node in net.nodes:
            node.sh(plain.format("eth0"))
        options = DaemonOptions(CONTROL, (SWITCH, PORT), keys=keys)
        assert options.exposure == ""
        daemon = netns.within(net.switch.holder.pid, lambda: SwitchDaemon(options))
        ending.callback(daemon.stop)
        netns.within(net.switch.holder.pid, daemon.start)
        join = JoinOptions(keys=keys, authenticate="on")
        with ThreadPoolExecutor(2) as threads:
            joins = [
                threads.submit(
                    netns.within,
                    net.nodes[rank].holder.pid,
                    lambda rank=rank: SwitchSession.join(CONTROL, "job", rank, 2, join),
                )
                for rank in range(2)
            ]
            ranks = [joined.result() for joined in joins]
        for rank in ranks:
            ending.callback(rank.close)
        forgers = [Forger(net, node) for node in range(2)]
        for forger in forgers:
            ending.callback(forger.close)
        end_s = time.monotonic() + 30.0
        while min(forger.sent for forger in forgers) < 1_000:
            assert time.monotonic() < end_s
            arrays = [np.arange(20_000, dtype=np.int32) * (rank + 1) for rank in range(2)]
            for future in [rank.allreduce(array) for rank, array in zip(ranks, arrays, strict=True)]:
                assert np.array_equal(future.result(30.0), 3 * np.arange(20_000))
        time.sleep(0.2)
        refused = [
            daemon._loop.counters()["drop_unauthenticated"],
            *(one.counters["drop_unauthenticated"] for one in ranks),
        ]
    assert min(refused) > 50
    assert sum(refused) > 1_000
