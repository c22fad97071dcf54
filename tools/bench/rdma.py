"""RDMA in user space against plain UDP: 1 MB writes one way over a veth, unshaped, between two processes.

The two sides of a comparison use the same link, the same packets per system call and the same bytes in flight, in
turns. Plain UDP is what the socket can do: the same datagrams sent from as much memory and received into as much, with
no header, no checksum by this project, no acknowledgement and no copy to a place. The receivers answer each message
that has arrived with a credit, so that the receiver's buffer is never overrun; a link has no pause frames here.
"""

from __future__ import annotations

import os
import socket
import statistics
import struct
import time
from functools import partial
from typing import Any

import msgspec
import numpy as np

from emulation.scenario.errors import RunFailed
from emulation.testbed import children, netns
from emulation.testbed.children import Child, ChildCommand, ChildReport, Done, serve
from emulation.testbed.resource import Resource
from tools.bench.veth_pair import HOSTS, VethPair
from transport.rdma import soft
from transport.rdma.verbs import (
    AccessFlags,
    Opcode,
    QPAttributes,
    QPEnd,
    QPType,
    ReceiveRequest,
    SendRequest,
    WCOpcode,
    WCStatus,
)

MODULE = "tools.bench.rdma"
MESSAGE_BYTES = 1_000_000
LINK_MTU = {4096: 9000, 1024: 1500}
"""Path MTU -> the link's."""

MESSAGES_UNDER_WAY = 2
WINDOW_BYTES = 1 << 20
"""RC may have so many bytes unacknowledged."""

UDP_PORT, CREDIT_PORT = 4800, 4801
SILENCE_S = 0.2
"""So long without a credit means that a message was lost."""

START_S = 20.0
SOL_UDP, UDP_SEGMENT, UDP_GRO, SO_RCVBUFFORCE = 17, 103, 104, 33
BUFFER_BYTES = 16 << 20


# ---- what the two processes do


class EndSettings(msgspec.Struct, frozen=True):
    """kind: of queue pair, RC or UC. mtu: the path's."""

    address: str
    kind: str
    mtu: int
    message_bytes: int


class OpenEndpoint(ChildCommand):
    """The link is up: make a queue pair and a socket."""


class EndpointOpened(ChildReport):
    """Facts that the peer must know of the queue pair, and of the memory it will write to."""

    end: QPEnd
    address: int
    rkey: int


class Connect(ChildCommand):
    """Connect to the peer that has reported these facts."""

    end: QPEnd
    address: int
    rkey: int


class MoveMessages(ChildCommand):
    """Send or receive for so long. transport: rdma or udp."""

    transport: str
    seconds: float
    sends: bool


class EndpointTraffic(msgspec.Struct):
    """Traffic of an end; size_bytes and seconds: at the receiver, from the first message to the last."""

    messages: int
    size_bytes: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0


class MessagesMoved(ChildReport):
    traffic: EndpointTraffic


class StopEndpoint(ChildCommand):
    """The last order."""


class EndpointStopped(ChildReport):
    counters: dict[str, int]


class Rdma:
    """An end's queue pair and memory. The receiver counts messages and, over UC, answers each with a credit."""

    def __init__(self, address: str, kind: str, mtu: int, message_bytes: int) -> None:
        self._context = soft.open(address, thread=False, buffer_bytes=BUFFER_BYTES)
        domain, self._cq = self._context.alloc_pd(), self._context.create_cq(1024)
        self._memory = np.ones(message_bytes * MESSAGES_UNDER_WAY, np.uint8)
        access = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE
        self._region = self._context.reg_mr(domain, self._memory, access)
        self._pair = self._context.create_qp(domain, QPType[kind], self._cq, self._cq)
        self._attributes = QPAttributes(path_mtu=mtu, window_packets=WINDOW_BYTES // mtu)
        self._size, self._reliable = message_bytes, kind == "RC"
        self.place = EndpointOpened(self._pair.end, self._region.address, self._region.rkey)

    def connect(self, peer: Connect) -> None:
        self._remote = (peer.address, peer.rkey)
        self._pair.connect(peer.end, self._attributes)
        self._pair.post_recv([ReceiveRequest(0)] * 64)

    def _completions(self, timeout_s: float) -> list[Any]:
        completions = self._cq.poll(64)
        if not completions and timeout_s > 0:
            self._context.progress(timeout_s)
            completions = self._cq.poll(64)
        if bad := [wc.status.name for wc in completions if wc.status != WCStatus.SUCCESS]:
            raise RunFailed(f"the benchmark's queue pair ended with {bad[0]}")
        return completions

    def send(self, seconds: float) -> EndpointTraffic:
        """Write for so long. RC: a message is over when it is acknowledged; UC: when it is given back."""
        end = time.monotonic() + seconds
        under_way = lost = sent_messages = 0
        heard_s = time.monotonic()
        while under_way or time.monotonic() < end:
            while under_way < MESSAGES_UNDER_WAY and time.monotonic() < end:
                at = sent_messages % MESSAGES_UNDER_WAY * self._size
                self._pair.post_send(
                    [
                        SendRequest(
                            1,
                            Opcode.WRITE_WITH_IMM,
                            self._region.address + at,
                            self._size,
                            self._region.lkey,
                            self._remote[0] + at,
                            self._remote[1],
                        )
                    ]
                )
                under_way, sent_messages = under_way + 1, sent_messages + 1
            opcodes = (WCOpcode.RDMA_WRITE,) if self._reliable else (WCOpcode.RECV,)
            completions = self._completions(SILENCE_S)
            back = sum(wc.opcode in opcodes for wc in completions)
            self._pair.post_recv([ReceiveRequest(0)] * sum(wc.opcode == WCOpcode.RECV for wc in completions))
            under_way -= min(back, under_way)
            if back:
                heard_s = time.monotonic()
            elif under_way and time.monotonic() - heard_s > SILENCE_S:
                if self._reliable:
                    continue
                lost, under_way, heard_s = lost + under_way, 0, time.monotonic()
        return EndpointTraffic(sent_messages)

    def receive(self, seconds: float) -> EndpointTraffic:
        """Until nothing has come for a while after so long: bytes, and the time from the first to the last message."""
        first = last = 0.0
        messages = 0
        end = time.monotonic() + seconds
        while True:
            completions = [wc for wc in self._completions(SILENCE_S) if wc.opcode == WCOpcode.RECV_RDMA_WITH_IMM]
            now = time.monotonic()
            if completions:
                first, last = first or now, now
                messages += len(completions)
                self._pair.post_recv([ReceiveRequest(0)] * len(completions))
                if not self._reliable:
                    self._pair.post_send([SendRequest(2, Opcode.SEND, 0, 0, 0)] * len(completions))
            elif now > end + SILENCE_S:
                break
        return EndpointTraffic(messages, (messages - 1) * self._size, last - first)

    def close(self) -> dict[str, int]:
        counters = {**self._context.counters, **{f"pair_{name}": n for name, n in self._pair.counters.items()}}
        self._context.close()
        return counters


class Udp:
    """An end of plain UDP in bundles."""

    def __init__(self, address: str, datagram_bytes: int, message_bytes: int) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        self._socket.setsockopt(SOL_UDP, UDP_GRO, 1)
        self._socket.bind((address, UDP_PORT))
        self._credits = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._credits.bind((address, CREDIT_PORT))
        self._credits.settimeout(SILENCE_S)
        self._socket.settimeout(SILENCE_S)
        self._size = message_bytes
        self._bundle_bytes = min(64, 65_000 // datagram_bytes) * datagram_bytes
        self._memory = memoryview(bytearray(MESSAGES_UNDER_WAY * message_bytes))
        self._ancillary = [(SOL_UDP, UDP_SEGMENT, struct.pack("H", datagram_bytes))]
        self._peer = HOSTS[address == HOSTS[0]]

    def send(self, seconds: float) -> EndpointTraffic:
        end = time.monotonic() + seconds
        under_way = lost = sent_messages = 0
        while time.monotonic() < end or under_way:
            while under_way < MESSAGES_UNDER_WAY and time.monotonic() < end:
                message = self._memory[sent_messages % MESSAGES_UNDER_WAY * self._size :][: self._size]
                for at in range(0, self._size, self._bundle_bytes):
                    piece = message[at : at + self._bundle_bytes]
                    self._socket.sendmsg([piece], self._ancillary, 0, (self._peer, UDP_PORT))
                under_way, sent_messages = under_way + 1, sent_messages + 1
            try:
                self._credits.recv(16)
                under_way -= 1
            except TimeoutError:
                lost, under_way = lost + under_way, 0
        return EndpointTraffic(sent_messages)

    def receive(self, seconds: float) -> EndpointTraffic:
        first = last = 0.0
        total = 0
        end = time.monotonic() + seconds
        while True:
            try:
                size = self._socket.recv_into(self._memory[total % (len(self._memory) - (1 << 16)) :])
            except TimeoutError:
                if time.monotonic() > end + SILENCE_S:
                    break
                continue
            last = time.monotonic()
            first = first or last
            if (total + size) // self._size > total // self._size:
                self._credits.sendto(b"credit", (self._peer, CREDIT_PORT))
            total += size
        return EndpointTraffic(total // self._size, total, last - first)

    def close(self) -> None:
        self._socket.close()
        self._credits.close()


class RdmaExecutor:
    """Executes commands at one end. It opens nothing before the link is up."""

    def __init__(self, settings: EndSettings) -> None:
        self._settings = settings
        self._rdma: Rdma
        self._udp: Udp

    def carry_out(self, order: OpenEndpoint | Connect | MoveMessages | StopEndpoint) -> ChildReport:
        settings = self._settings
        match order:
            case OpenEndpoint():
                self._rdma = Rdma(settings.address, settings.kind, settings.mtu, settings.message_bytes)
                self._udp = Udp(settings.address, settings.mtu + 16, settings.message_bytes)
                return self._rdma.place
            case Connect():
                self._rdma.connect(order)
                return Done()
            case StopEndpoint():
                self._udp.close()
                return EndpointStopped(self._rdma.close())
        end = self._rdma if order.transport == "rdma" else self._udp
        before = time.process_time()
        traffic = end.send(order.seconds) if order.sends else end.receive(order.seconds)
        traffic.cpu_s = time.process_time() - before
        return MessagesMoved(traffic)


# ---- the process that commands them


class RdmaEnds(Resource):
    """The two processes, each in a network namespace of its own. pair: which has a link of the MTU."""

    def __init__(self, pair: VethPair, kind: str, mtu: int, message_bytes: int) -> None:
        self._pair = pair
        self._settings = [EndSettings(address, kind, mtu, message_bytes) for address in HOSTS]
        self._children: list[Child[Any]] = []

    def _open(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        reports = EndpointOpened | MessagesMoved | EndpointStopped
        for pid, settings in zip(self._pair.pids, self._settings, strict=True):
            name, spawn = f"the benchmark's process at {settings.address}", partial(netns.spawn, pid)
            self._children.append(children.start(spawn, name, MODULE, settings, reports, environment))
        children.gather(self._children, START_S)
        places = self._all([OpenEndpoint(), OpenEndpoint()])
        self._all([Connect(place.end, place.address, place.rkey) for place in reversed(places)])

    def _all(
        self, orders: list[OpenEndpoint | Connect | MoveMessages | StopEndpoint], timeout_s: float = START_S
    ) -> list[Any]:
        for child, order in reversed(list(zip(self._children, orders, strict=True))):
            child.send(order)
        return children.gather(self._children, timeout_s)

    def measure(self, transport: str, seconds: float) -> dict[str, Any]:
        """A run one way: Gbit/s of message bytes by the clock and by the processor time of the busier end; losses."""
        answers = self._all(
            [MoveMessages(transport, seconds, True), MoveMessages(transport, seconds, False)], seconds + START_S
        )
        sender, receiver = (answer.traffic for answer in answers)
        if receiver.seconds <= 0:
            raise RunFailed(f"{transport}: nothing arrived")
        return {
            "gbps": receiver.size_bytes * 8e-9 / receiver.seconds,
            "core_gbps": receiver.size_bytes * 8e-9 / max(sender.cpu_s, receiver.cpu_s, 1e-9),
            "lost": sender.messages - receiver.messages,
        }

    def counters(self) -> list[dict[str, int]]:
        """Counters of both ends, which stop."""
        return [answer.counters for answer in self._all([StopEndpoint(), StopEndpoint()])]

    def close(self) -> None:
        children.close(self._children)


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def rdma_write_throughput(
    kind: str = "RC",
    mtu: int = 4096,
    *,
    message_bytes: int = MESSAGE_BYTES,
    cell_s: float = 1.0,
    rounds: int = 5,
) -> dict[str, Any]:
    """Messages of `message_bytes` written one way, Gbit/s, in turns with plain UDP.

    kind: RC or UC. mtu: 4096 (on a link of 9000) or 1024 (on one of 1500), bytes of payload per packet. Answers kind,
    mtu, message_bytes, rdma_gbps and udp_gbps (median, low and high of the rounds), share (of the medians),
    rdma_core_gbps and udp_core_gbps (by processor time: what a core for each end allows, however busy the machine is
    with others), lost (messages: rdma, udp) and resent_packets. Takes about rounds x 2 x (cell_s + 0.4) seconds.
    Raises RunFailed.
    """
    if missing := _missing():
        raise RunFailed(missing)
    runs: dict[str, list[dict[str, Any]]] = {"rdma": [], "udp": []}
    with VethPair(mtu=LINK_MTU[mtu]) as link, RdmaEnds(link, kind, mtu, message_bytes) as pair:
        for transport in runs:
            pair.measure(transport, min(cell_s, 0.2))  # memory is touched, caches and buffers are warm
        for _ in range(rounds):
            for transport, measurements in runs.items():
                measurements.append(pair.measure(transport, cell_s))
        sender, _ = pair.counters()
    rates = {transport: _spread([run["gbps"] for run in measurements]) for transport, measurements in runs.items()}
    cores = {transport: _spread([run["core_gbps"] for run in measurements]) for transport, measurements in runs.items()}
    return {
        "kind": kind,
        "mtu": mtu,
        "message_bytes": message_bytes,
        "rounds": rounds,
        "rdma_gbps": rates["rdma"],
        "udp_gbps": rates["udp"],
        "rdma_core_gbps": cores["rdma"],
        "udp_core_gbps": cores["udp"],
        "share": rates["rdma"]["median"] / rates["udp"]["median"],
        "lost": {transport: sum(run["lost"] for run in measurements) for transport, measurements in runs.items()},
        "resent_packets": sender["pair_resent_packets"],
    }


def _missing() -> str:
    """Why this can't be measured here; "" if it can."""
    from switchagg.native import library

    if reason := library.missing():
        return reason
    return "" if netns.is_privileged() else "needs root, for two network namespaces"


if __name__ == "__main__":
    serve(
        EndSettings,
        OpenEndpoint | Connect | MoveMessages | StopEndpoint,
        lambda settings: RdmaExecutor(settings).carry_out,
    )
