"""Data planes and endpoints in memory: what a packet costs without any network, on one core.

Traffic is what n workers send over a window of slots: every rank's packet for every slot, in bundles of one rank as a
link hands them over, turn after turn. So of n packets one completes its slot and is answered. Building the packets and
renumbering the chunks between turns are not timed.
"""

from __future__ import annotations

import ctypes
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulation.experiments.bench import bandwidths
from emulation.experiments.progress_text import Log, Passing
from switchagg.calls.array_calls import array_call
from switchagg.dataplane.native import RUN, NativePlane
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.endpoint import CallCompleted, Endpoint
from switchagg.errors import SwitchaggError
from switchagg.job import JobConfig, StreamConfig
from switchagg.native.library import CoreMissing
from switchagg.native.native_endpoint import NativeEndpoint
from switchagg.wire import FLAG_RESULT, FLAG_VERSION, FLAGS_AT, HEADER, HEADER_BYTES, Bundle, Op, Packet, encode

ELEMENTS = (32, 64, 128, 256, 360)
WORKERS = (2, 4, 8)
WINDOW = 256
BUNDLE_ROWS = 16
ENDPOINT_BYTES = 25 * bandwidths.MEGABYTE
PYTHON_ENDPOINT_BYTES = 4 * bandwidths.MEGABYTE
SUM_TERMS: tuple[dict[str, Any], ...] = ({"verify": "off"}, {"verify": "on"}, {"verify": "on", "secret": "on"})
"""Open sums, verified ones, secret ones."""

Turn = list[tuple[Bundle, int]]


class BundleTraffic:
    """The bundles of one turn after the other. elements: E. Chunk numbers go up by the window with each turn."""

    def __init__(self, workers: int, elements: int) -> None:
        self.job = JobConfig(1, 7, workers, elements, (StreamConfig(0, WINDOW),))
        self.ports = tuple(range(1, workers + 1))
        self.packets = workers * WINDOW
        chance = np.random.default_rng(elements)
        self._rows = [
            np.frombuffer(
                bytearray(
                    b"".join(
                        encode(
                            Packet(1, 7, 0, rank, Op.SUM, slot, 0, slot, chance.integers(-99, 99, elements, np.int32))
                        )
                        for slot in range(WINDOW)
                    )
                ),
                np.uint8,
            ).reshape(WINDOW, HEADER_BYTES + 4 * elements)
            for rank in range(workers)
        ]

    def turns(self) -> Iterator[Turn]:
        """The same memory each time: use a turn up before the next."""
        for number in range(1 << 20):
            chunks = (np.arange(WINDOW) + number * WINDOW).astype(">u4")
            for rows in self._rows:
                header = rows[:, :HEADER_BYTES]
                header[:, HEADER.fields["chunk"][1] :] = chunks.view(np.uint8).reshape(WINDOW, 4)  # type: ignore[index]
                header[:, FLAGS_AT] = FLAG_VERSION if number % 2 else 0
            yield [
                (rows[first : first + BUNDLE_ROWS], port)
                for first in range(0, WINDOW, BUNDLE_ROWS)
                for rows, port in zip(self._rows, self.ports, strict=True)
            ]


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """All planes over all shapes, and the endpoints: the part `planes` of the document."""
    shapes = [(e, n) for n in WORKERS for e in ELEMENTS if not quick or (e in (32, 256, 360) and n in (2, 8))]
    rows: list[dict[str, Any]] = []
    failures: dict[str, str] = {}
    budget_s = 0.05 if quick else 0.4
    for name in reversed([name for name, kind in DATAPLANES.items() if kind.measured]):
        timer = timer_of(name)
        log(Passing(f"data plane {name}, in memory"))
        for elements, workers in shapes:
            try:
                samples = timer(BundleTraffic(workers, elements), budget_s)
            except (SwitchaggError, CoreMissing, OSError) as error:
                failures[name] = str(error)
                break
            rows.append(row("plane", name, elements, workers, samples) | {"note": DATAPLANES[name].measured})
    endpoints = []
    for name in ("python", "native"):
        log(Passing(f"endpoint {name}, in memory"))
        for elements in (256, 360):
            try:
                endpoints += endpoint_rows(name, elements, quick)
            except CoreMissing as error:
                failures[f"endpoint {name}"] = str(error)
                break
    return {"rows": rows, "endpoints": endpoints, "failures": failures}


def row(what: str, name: str, elements: int, workers: int, samples: list[float]) -> dict[str, Any]:
    """samples: ns per packet, one per turn."""
    spread = bandwidths.spread(samples)
    return {
        what: name,
        "elements": elements,
        "workers": workers,
        "ns_per_packet": dataclasses.asdict(spread),
        "packets_per_s": 1e9 / spread.median,
        "elements_per_s": elements * 1e9 / spread.median,
    }


def _turns(traffic: BundleTraffic, budget_s: float, carry_out: Callable[[Turn], None]) -> list[float]:
    """ns per packet of each turn but the first two, which fill registers and caches."""
    samples: list[float] = []
    end = time.monotonic() + budget_s
    for number, turn in enumerate(traffic.turns()):
        begun_ns = time.perf_counter_ns()
        carry_out(turn)
        spent = time.perf_counter_ns() - begun_ns
        if number >= 2:
            samples.append(spent / traffic.packets)
            if len(samples) >= 5 and time.monotonic() > end:
                break
    return samples


def timer_of(name: str) -> Callable[[BundleTraffic, float], list[float]]:
    """What times the data plane of that name for so many seconds: ns per packet of each turn."""
    return TIMERS.get(name) or _by_contract(name)


def _by_contract(name: str) -> Callable[[BundleTraffic, float], list[float]]:
    def timed(traffic: BundleTraffic, budget_s: float) -> list[float]:
        plane = DATAPLANES[name](WINDOW, traffic.job.elements)
        plane.admit(traffic.job, traffic.ports)

        def carry_out(turn: Turn) -> None:
            for bundle, port in turn:
                plane.process(bundle, port)

        samples = _turns(traffic, budget_s, carry_out)
        _check(plane.counters, traffic)
        return samples

    return timed


def _native(traffic: BundleTraffic, budget_s: float) -> list[float]:
    """The C function on memory that is there already, as the C switch has it."""
    plane = NativePlane(WINDOW, traffic.job.elements)
    plane.admit(traffic.job, traffic.ports)
    process, handle = plane._library.sa_plane_process, plane._plane
    size = HEADER_BYTES + 4 * traffic.job.elements
    results, runs = np.empty((WINDOW, size), np.uint8), np.empty(WINDOW, RUN)
    header_only = np.empty((WINDOW, HEADER_BYTES), np.uint8)
    out = [ctypes.c_void_p(memory.ctypes.data) for memory in (results, header_only, runs)]
    # A rank's bundles lie one behind the other, at the same places in every turn: the first ones' beginnings will do.
    ranks = [(ctypes.c_void_p(rows.ctypes.data), port) for rows, port in next(traffic.turns())[: traffic.job.workers]]

    def carry_out(turn: Turn) -> None:
        for address, port in ranks:
            process(handle, address, WINDOW, size, port, *out)

    samples = _turns(traffic, budget_s, carry_out)
    _check(plane.counters, traffic)
    return samples


def _xdp(traffic: BundleTraffic, budget_s: float) -> list[float]:
    """A sample per packet: the kernel's own time around one run of the program."""
    from switchagg.dataplane.xdp import KernelSwitch, address_of, frame_of
    from switchagg.native import bpf

    switch = ("10.255.255.254", 5556)
    plane = KernelSwitch(WINDOW, traffic.job.elements, [switch[0]], switch[1])
    try:
        plane.admit(traffic.job, [address_of(port) for port in traffic.ports])
        program = plane.object.program("sa_switch")
        samples: list[float] = []

        def carry_out(turn: Turn) -> None:
            for bundle, port in turn:
                for datagram in bundle:
                    frame = frame_of(datagram.tobytes(), address_of(port), switch, partial=True)
                    samples.append(float(bpf.run(program, frame)[2]))

        _turns(traffic, budget_s, carry_out)
        _check(plane.counters(), traffic)
        return samples[2 * traffic.packets :]
    finally:
        plane.close()


TIMERS = {"native": _native, "xdp": _xdp}
"""Timers of the planes that are not timed as the others are."""


def _check(counters: dict[str, int], traffic: BundleTraffic) -> None:
    """A plane that dropped packets was timed at something else."""
    answered = counters.get("broadcast", 0)
    absorbed = counters.get("absorbed", 0)
    assert answered, counters
    assert absorbed == answered * (traffic.job.workers - 1), counters


# ---- endpoints


def endpoint_rows(
    name: str, elements: int, quick: bool, choices: Sequence[Mapping[str, Any]] = SUM_TERMS
) -> list[dict[str, Any]]:
    """A worker's end: frames written from a float32 array, and results read back into it.

    Frames that the worker writes come back as results, as for a job of one worker; that is done outside what is timed.
    Quantising and dequantising are part of it. choices: terms of jobs, a row for each; they take turns.
    """
    size = (PYTHON_ENDPOINT_BYTES if name == "python" or quick else ENDPOINT_BYTES) // 4
    array = np.random.default_rng(1).standard_normal(size).astype(np.float32)
    jobs = [JobConfig(1, 7, 1, elements, (StreamConfig(0, WINDOW),), **choice) for choice in choices]
    workers: list[Any] = [(NativeEndpoint if name == "native" else Endpoint)(job, 0) for job in jobs]
    samples: list[list[float]] = [[] for _ in jobs]
    for _ in range(2 if quick else 5):
        for job, worker, times in zip(jobs, workers, samples, strict=True):
            worker.submit(0, array_call(array, "sum", job))
            spent, packets = _one_call(worker)
            times.append(spent / packets)
    rows = []
    for job, times in zip(jobs, samples, strict=True):
        rows.append(row("endpoint", name, elements, 1, times) | {"verify": job.verify, "secret": job.secret})
        rows[-1]["bytes_per_s"] = rows[-1]["packets_per_s"] * job.room * bandwidths.ITEM_BYTES
        rows[-1]["note"] = "a packet sent and its result taken, float32, bundles of 64 packets"
        rows[-1]["added_ns_per_packet"] = rows[-1]["ns_per_packet"]["median"] - rows[0]["ns_per_packet"]["median"]
        rows[-1]["goodput_lost"] = job.tag_elements / elements
    return rows


def _one_call(worker_endpoint: Any) -> tuple[int, int]:
    """(ns, packets) of one call."""
    spent = packets = 0
    now = 0
    while True:
        now += 1000
        begun_ns = time.perf_counter_ns()
        frames: NDArray[np.uint8] = worker_endpoint.frames_to_send(now, 64)
        spent += time.perf_counter_ns() - begun_ns
        results = frames.copy()
        results[:, FLAGS_AT] |= FLAG_RESULT
        begun_ns = time.perf_counter_ns()
        worker_endpoint.receive(results, now)
        event = worker_endpoint.next_event()
        spent += time.perf_counter_ns() - begun_ns
        packets += len(frames)
        if isinstance(event, CallCompleted):
            return spent, packets
        assert len(frames), "the endpoint stands still"
