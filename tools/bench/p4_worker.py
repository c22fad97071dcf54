"""A worker for the benchmark of P4 switches on interfaces: frames straight to an interface, every result checked.

It keeps a window of chunks in flight, one to a slot, and sends a slot's next when its result is back; so sends are
paced by results, as those of real workers. A child process: it begins on command, and reports its counts.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import msgspec
import numpy as np

from emulation.testbed.children import ChildCommand, ChildReport, serve
from switchagg.dataplane.p4.plane_program import HEADERS_BYTES, headers_of
from switchagg.job import JobConfig, StreamConfig
from switchagg.wire import FLAG_VERSION, FLAGS_AT, HEADER, HEADER_BYTES, Op, Packet, encode

PACKET_IGNORE_OUTGOING = 23
PACKET_QDISC_BYPASS = 20
BUFFER_BYTES = 1 << 24
SILENCE_S = 0.1
CHUNK_AT = HEADERS_BYTES + HEADER.fields["chunk"][1]  # type: ignore[index]
SLOT_AT = HEADERS_BYTES + HEADER.fields["slot"][1]  # type: ignore[index]


class WorkerPlace(msgspec.Struct, frozen=True):
    """Where a worker is: rank of `workers`, behind `interface`; E and how many chunks in flight; for how long."""

    rank: int
    workers: int
    interface: str
    elements: int
    window: int
    seconds: float


class BeginSending(ChildCommand):
    """Send from now on."""


class Counts(ChildReport):
    """seconds: how long they took."""

    sent_packets: int
    results: int
    wrong: int
    resent: int
    seconds: float


def job_of(workers: int, elements: int, window: int) -> JobConfig:
    return JobConfig(1, 7, workers, elements, (StreamConfig(0, window),))


def values_of(rank: int, slot: int, elements: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Other values for each rank and slot, so that a result in the wrong place is no right one."""
    return (np.arange(elements, dtype=np.int64) * 65_537 + 1_000_003 * slot + 77 * rank).astype(np.int32)


class Worker:
    """frames: per slot, what is sent next; turns: how many results the slot has had."""

    def __init__(self, place: WorkerPlace, link: socket.socket) -> None:
        self.place, self.link = place, link
        self.frames = [self._frame(slot) for slot in range(place.window)]
        sums = [sum(values_of(rank, slot, place.elements).astype(np.int64) for rank in range(place.workers))
                for slot in range(place.window)]  # fmt: skip
        self.sums = [np.asarray(slot_sum).astype(np.int32).astype(">i4").tobytes() for slot_sum in sums]
        self.turns = [0] * place.window
        self.counts = {"sent_packets": 0, "results": 0, "wrong": 0, "resent": 0}

    def _frame(self, slot: int) -> bytearray:
        place = self.place
        values = values_of(place.rank, slot, place.elements)
        datagram = encode(Packet(1, 7, 0, place.rank, Op.SUM, slot, 0, slot, values))
        return bytearray(headers_of(place.rank, len(datagram)) + datagram)

    def run(self) -> Counts:
        """For as long as its configuration says."""
        counts, link, frames = self.counts, self.link, self.frames
        began = time.perf_counter()
        ends = began + self.place.seconds
        for frame in frames:
            link.send(frame)
        counts["sent_packets"] += len(frames)
        while (now := time.perf_counter()) < ends:
            try:
                for _ in range(64):
                    self._take(link.recv(65536))
            except TimeoutError:
                for frame in frames:  # what is lost comes again; what isn't, is answered again
                    link.send(frame)
                counts["resent"] += len(frames)
        return Counts(**counts, seconds=now - began)

    def _take(self, frame: bytes) -> None:
        slot = int.from_bytes(frame[SLOT_AT : SLOT_AT + 2], "big")
        if slot >= len(self.frames):
            return
        frame_of_slot = self.frames[slot]
        if frame[CHUNK_AT : CHUNK_AT + 4] != frame_of_slot[CHUNK_AT : CHUNK_AT + 4]:
            return  # answered before
        start = HEADERS_BYTES + HEADER_BYTES
        self.counts["wrong"] += frame[start : start + 4 * self.place.elements] != self.sums[slot]
        self.counts["results"] += 1
        self.turns[slot] += 1
        turn = self.turns[slot]
        frame_of_slot[CHUNK_AT : CHUNK_AT + 4] = (slot + turn * self.place.window).to_bytes(4, "big")
        frame_of_slot[HEADERS_BYTES + FLAGS_AT] = FLAG_VERSION if turn & 1 else 0
        self.link.send(frame_of_slot)
        self.counts["sent_packets"] += 1


def begin(place: WorkerPlace) -> Callable[[BeginSending], Counts]:
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
    link.setsockopt(socket.SOL_SOCKET, 33, BUFFER_BYTES)  # SO_RCVBUFFORCE
    link.setsockopt(263, PACKET_IGNORE_OUTGOING, 1)  # SOL_PACKET
    link.setsockopt(263, PACKET_QDISC_BYPASS, 1)
    link.bind((place.interface, 0x0800))
    link.settimeout(SILENCE_S)
    worker = Worker(place, link)
    return lambda _: worker.run()


if __name__ == "__main__":
    serve(WorkerPlace, BeginSending, begin)
