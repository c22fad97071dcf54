"""The fidelity certificate: did this machine, during this run, behave like the links it was asked to be?

The invariant is Mininet-HiFi's: while a link is backlogged, the gap between two departures is the time the first one
takes on the wire, size × 8 / rate. HTB keeps it so: a departure's bytes are taken from the tokens, below zero, and the
next waits until they are back. A poll that finds b bytes queued proves the link backlogged for the next b bytes that
depart; only gaps between those are judged (`LinkTrace`), each by the bytes that it carries: a timer errs by as much
between short sends as between bundles, but in few of the link's bytes. Beside the gaps: CPU starvation of the threads
that carry the network, timers, and losses that no emulated queue accounts for. Compute is not judged: it may starve.

A run whose links were never backlogged is not VALID: the rate was never what limited it, the machine was, or nothing
was sent. `monitor.py` measures, in a process of its own; `judge` decides.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from emulation.results.results import Certificate
from emulation.testbed import children
from emulation.testbed.certificate.departures import Departures, Int64Array
from emulation.testbed.certificate.monitor_messages import (
    MonitorMeasured,
    MonitorPlace,
    PauseMonitor,
    PortPlace,
    QueueReading,
    ResumeMonitor,
    StopMonitor,
    Watch,
)
from emulation.testbed.certificate.processes import OTHERS_SHARE
from emulation.testbed.children import Child, ChildCommand, ChildFailed

if TYPE_CHECKING:
    from emulation.testbed.mininet.emulated_network import EmulatedNetwork

FloatArray = npt.NDArray[np.float64]

DEVIATION_EDGES: FloatArray = np.geomspace(1e-4, 1e2, 48 * 6 + 1)  # 48 bins a decade: quantiles within 5 %
JUDGED_BYTES_LEAST = 1_400  # a full frame, nearly: the timers that space shorter ones (acknowledgements) are too coarse
CURVE_DEVIATIONS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # where the report's curve is given
CUT_SHARE = 0.1  # of a frame's time on the line: segments of one bundle follow each other faster
BUNDLE_WIRE_BYTES = 70_000  # 64 kB in segments, each with its headers
RATE_STEPS = (1, 2, 5)
RATE_LEAST_BPS = 1_000_000
ANSWER_S = 30.0  # a busy machine's monitor may take seconds
FILLED_SHARE = 0.8  # of the most a link was seen to carry: what it can surely carry again


@dataclass(frozen=True)
class Bounds:
    """The bounds of a VALID run."""

    backlogged_gaps_least: int = 100  # fewer don't determine a 90th percentile
    # Mininet-HiFi's authors' sound samples, 100 Mb/s: median 0.8 %, p90 3.3 %, p99 5.8 %; their unsound ones, 1 Gb/s:
    # median 8.3 %, p90 117 %. The bounds stand between.
    gap_deviation_median: float = 0.05
    gap_deviation_p90: float = 0.25
    backlogged_rate_share_least: float = (
        0.97  # bytes sent while backlogged / what the rate allows: lost tokens show here
    )
    backlogged_rate_share_most: float = 1.05  # above: a port isn't shaped
    network_thread_wait_bytes: float = 65_536.0  # a process's mean wait per turn × rate: one queued bundle hides it
    timer_lateness_p99_ns: float = 20_000_000.0  # five ticks of a 250 Hz kernel: what a late repair may add to a loss
    lost_share: float = 1e-4  # losses by the machine (socket buffers, backlogs), not by the emulated queues, per frame


class LinkTrace:
    """The trace of a shaped port: departures and polls go in, the deviations of backlogged gaps come out.

    Bounded memory: `digest` turns what was collected into a histogram, once in a while; a gap across it is dropped.
    cuts_bundles: the kernel takes bundles apart itself as they leave, after the queue: see `rejoined`.
    """

    def __init__(self, rate_bps: int, cuts_bundles: bool = False) -> None:
        self.rate_bps = rate_bps
        self._cuts_bundles = cuts_bundles
        self.ideal_ns: FloatArray = np.zeros(len(DEVIATION_EDGES) + 1)  # what gaps should have taken, by deviation
        self.actual_ns = 0.0  # what they took
        self.gaps = 0
        self.departures = 0
        self._pieces: list[Departures] = []
        self._polls: list[tuple[int, int, int]] = []

    def add_departures(self, departures: Departures) -> None:
        """Frames that have left, later than all before."""
        if len(departures.time_ns):
            self._pieces.append(departures)
            self.departures += len(departures.time_ns)
        if not departures.complete:
            self.digest()

    def add_poll(self, before_ns: int, after_ns: int, backlog_bytes: int) -> None:
        """Some time between `before_ns` and `after_ns` (CLOCK_REALTIME) `backlog_bytes` were queued."""
        if backlog_bytes:
            self._polls.append((before_ns, after_ns, backlog_bytes))

    def digest(self) -> None:
        """Judges what was collected and forgets it."""
        if self._pieces and self._polls:
            time_ns = np.concatenate([piece.time_ns for piece in self._pieces])
            size = np.concatenate([piece.wire_bytes for piece in self._pieces])
            if self._cuts_bundles:
                time_ns, size = rejoined(time_ns, size, self.rate_bps)
            gaps_ns, ideal_ns = backlogged_gaps(time_ns, size, self._polls, self.rate_bps)
            if len(gaps_ns):
                deviation = np.abs(gaps_ns / ideal_ns - 1.0)
                place = np.searchsorted(DEVIATION_EDGES, deviation)
                self.ideal_ns += np.bincount(place, weights=ideal_ns, minlength=len(self.ideal_ns))
                self.actual_ns += float(gaps_ns.sum())
                self.gaps += len(gaps_ns)
        self._pieces.clear()
        self._polls.clear()


def rejoined(time_ns: Int64Array, wire_bytes: Int64Array, rate_bps: int) -> tuple[Int64Array, Int64Array]:
    """Frames that were cut from one bundle after the queue, as that bundle: one departure at the first one's time.

    The queue gives bundles out whole, at the link's rate. Where the interface can't cut them (native XDP on the other
    end of a veth takes that from it), the kernel does so on the way out, and the tap sees the segments one by one,
    microseconds apart. Taken together are frames closer than a tenth of their time on the line, of one size but the
    last, up to a bundle's most bytes.
    """
    starts, begun_bytes = [0], 0
    sizes, times = wire_bytes.tolist(), time_ns.tolist()
    for index in range(1, len(times)):
        near = times[index] - times[index - 1] < CUT_SHARE * sizes[index - 1] * 8e9 / rate_bps
        begun_bytes += sizes[index - 1]
        alike = sizes[index] <= sizes[index - 1] == sizes[starts[-1]]
        if not (near and alike and begun_bytes + sizes[index] <= BUNDLE_WIRE_BYTES):
            starts.append(index)
            begun_bytes = 0
    return time_ns[starts], np.add.reduceat(wire_bytes, starts)


def backlogged_gaps(
    time_ns: Int64Array, wire_bytes: Int64Array, polls: Sequence[tuple[int, int, int]], rate_bps: int
) -> tuple[FloatArray, FloatArray]:
    """Gaps between departures that surely followed each other out of a queue, and what they should be (ns).

    Each gap carries about a full frame or more: short frames are taken together with what follows.

    A poll (before, after, backlog): what left between `before` and `after` may or may not be part of the backlog, so
    it is taken off it, and only what left after `after` counts, up to that many bytes.
    """
    ends = np.concatenate([[0], np.cumsum(wire_bytes)])  # bytes departed before frame i
    covered = np.zeros(len(time_ns) + 1, dtype=np.int64)  # +1 where a run of covered gaps begins, -1 where it ends
    for before_ns, after_ns, backlog_bytes in polls:
        first, start = np.searchsorted(time_ns, [before_ns, after_ns], side="right")
        budget = backlog_bytes - (ends[start] - ends[first])
        stop = int(np.searchsorted(ends, ends[start] + budget, side="right")) - 1  # frames start … stop - 1
        if stop - 1 > start:
            covered[start] += 1
            covered[stop - 1] -= 1
    inside = np.cumsum(covered)[: max(len(time_ns) - 1, 0)] > 0
    where = np.flatnonzero(inside)
    if not len(where):
        return np.zeros(0), np.zeros(0)
    size = wire_bytes[where]
    begins = _group_starts(where, size)
    gaps_ns = np.add.reduceat(np.diff(time_ns)[where], begins).astype(np.float64)
    bytes_ = np.add.reduceat(size, begins)
    judged = 2 * bytes_ >= JUDGED_BYTES_LEAST  # what a break cut short is not
    return gaps_ns[judged], bytes_[judged] * (8e9 / rate_bps)


def _group_starts(where: npt.NDArray[np.intp], size: Int64Array) -> npt.NDArray[np.intp]:
    """Where groups of gaps begin: at every break in `where`, after every full frame, and in a row of short frames
    whenever they add up to one."""
    full = size >= JUDGED_BYTES_LEAST
    short_rows = np.cumsum(np.where(full, 0, size)) // JUDGED_BYTES_LEAST
    closes = full[:-1] | (np.diff(short_rows) > 0)
    return np.flatnonzero(np.concatenate([[True], closes | (np.diff(where) > 1)]))


def quantile(ideal_ns: FloatArray, share: float) -> float | None:
    """Upper edge of the deviation bin in which `share` of the bytes in gaps are reached; None without gaps."""
    total = ideal_ns.sum()
    if not total:
        return None
    place = int(np.searchsorted(np.cumsum(ideal_ns), share * total))
    return float(DEVIATION_EDGES[min(place, len(DEVIATION_EDGES) - 1)])


def share_beyond(ideal_ns: FloatArray, deviation: float) -> float:
    """Share of the bytes whose gaps deviate by more: a point of the complementary distribution."""
    place = int(np.searchsorted(DEVIATION_EDGES, deviation))
    return float(ideal_ns[place + 1 :].sum() / ideal_ns.sum())


def gap_measures(traces: Iterable[LinkTrace]) -> dict[str, Any]:
    """Numbers of all links together. Keys without a value are None: nothing was measured."""
    traces = list(traces)
    ideal_ns: FloatArray = np.sum([trace.ideal_ns for trace in traces], axis=0)
    gaps = sum(trace.gaps for trace in traces)
    actual_ns = sum(trace.actual_ns for trace in traces)
    return {
        "departures": sum(trace.departures for trace in traces),
        "backlogged_gaps": gaps,
        "gap_deviation_median": quantile(ideal_ns, 0.5),
        "gap_deviation_p90": quantile(ideal_ns, 0.9),
        "gap_deviation_p99": quantile(ideal_ns, 0.99),
        "gap_deviation_curve": [[d, share_beyond(ideal_ns, d)] for d in CURVE_DEVIATIONS] if gaps else [],
        "backlogged_ns": actual_ns,
        "backlogged_rate_share": float(ideal_ns.sum()) / actual_ns if actual_ns else None,
    }


def judge(measures: dict[str, Any], rate_bps: int, bounds: Bounds = Bounds()) -> Certificate:
    """The verdict on what was measured; see `monitor.py` for the keys."""
    measures = dict(measures)
    waiting, wait_ns = measures.pop("network_thread_waiting_most", None), measures.get("network_thread_wait_ns")
    unseen = measures.pop("network_threads_unseen", False)
    measures["network_thread_wait_bytes"] = None if wait_ns is None else wait_ns * rate_bps / 8e9
    reasons: list[str] = []  # sentences: what happened, what it means for the times, what to do
    shrink: list[float] = []  # by how much the rate would have to shrink for each bound to hold
    load = measures.get("cpu_other_share", 0.0) + measures.get("cpu_stolen_share", 0.0)
    remedy = "end other programs" if load > OTHERS_SHARE else "choose a lower rate or fewer workers"

    def at_most(name: str, unit: str, scale: float, happened: str, means: str) -> None:
        value, bound = measures.get(name), getattr(bounds, name)
        if value is not None and value > bound:
            limit = f"at most {bound * scale:.3g} {unit} allowed"
            reasons.append(f"{happened.format(f'{value * scale:.3g} {unit}')} ({limit}), so {means}: {remedy}.")
            shrink.append(bound / value)

    if measures["backlogged_gaps"] < bounds.backlogged_gaps_least:
        peak_bps = measures.get("peak_bps") or 0
        reasons.append(
            f"No link was full for long enough to be judged ({measures['backlogged_gaps']} gaps between queued frames, "
            f"at least {bounds.backlogged_gaps_least} needed), so these times show what limits this machine, not what "
            f"links of {rate_text(rate_bps)} do: choose a rate below the {rate_text(peak_bps)} of the busiest link."
        )
        shrink.append(min(1.0, FILLED_SHARE * peak_bps / rate_bps))
    else:
        late = "communication times hold delays of this machine"
        at_most("gap_deviation_median", "%", 100, "Half of the bytes left {} or more off their time", late)
        at_most("gap_deviation_p90", "%", 100, "A tenth of the bytes left {} or more off their time", late)
        share = measures["backlogged_rate_share"]
        if share < bounds.backlogged_rate_share_least:
            reasons.append(
                f"Full links carried {share:.1%} of their rate (at least {bounds.backlogged_rate_share_least:.0%} "
                f"needed), so communication took longer than such links let it: {remedy}."
            )
            shrink.append(FILLED_SHARE * share)
        if share > bounds.backlogged_rate_share_most:
            reasons.append(
                f"Full links carried {share:.1%} of their rate, so communication was faster than on such links: this "
                "machine does not hold rates; see `switchagg doctor`."
            )
    waited = f"Threads that carry packets, above all {waiting}, waited for a CPU for as long as {{}} take on the link"
    at_most("network_thread_wait_bytes", "kB", 1e-3, waited, "times hold their waiting")
    if unseen:
        reasons.append(
            "This kernel has no /proc/PID/schedstat, so nobody knows whether threads that carry packets waited for a "
            "CPU, and times may hold that: use a kernel that has it."
        )
    at_most("timer_lateness_p99_ns", "ms", 1e-6, "One timer in a hundred was {} or more late", "packets left late")
    lost = f"This machine itself lost {{}} of the frames ({_losses(measures)})"
    at_most("lost_share", "%", 100, lost, "times hold repairs that such links don't need")
    if reasons and load > OTHERS_SHARE:
        shrink.clear()  # not this run's rate, but the others' load
        named = ", ".join(f"{name} {share:.0%}" for name, share in measures.get("cpu_other_programs", []))
        which = f" ({named})" if named else ""
        reasons.append(
            f"Other programs had {load:.0%} of the CPUs' time{which}, so these times are not the methods' alone: end "
            "those programs, and run again."
        )
    return Certificate(
        valid=not reasons,
        reasons=reasons,
        valid_rate_bps=rate_step(rate_bps * min(shrink)) if shrink else None,
        measures=measures,
        bounds=dataclasses.asdict(bounds),
    )


def rate_step(rate_bps: float) -> int | None:
    """Largest of 1, 2, 5 × 10^k Mb/s that is not above; None below 1 Mb/s."""
    if rate_bps < RATE_LEAST_BPS:
        return None
    decade = 10 ** int(np.floor(np.log10(rate_bps) + 1e-9))
    return int(max(step * decade for step in RATE_STEPS if step * decade <= rate_bps * (1 + 1e-9)))


def rate_text(rate_bps: float) -> str:
    """A rate for people: 200 Mb/s, 1.5 Gb/s."""
    return f"{rate_bps / 1e9:.3g} Gb/s" if rate_bps >= 1e9 else f"{rate_bps / 1e6:.3g} Mb/s"


def _losses(measures: dict[str, Any]) -> str:
    named = {key: value for key, value in measures.get("losses", {}).items() if value}
    return ", ".join(f"{key} {value}" for key, value in named.items()) or "none"


class FidelityMonitor:
    """Measures while a network runs, in a process of its own (some percent of one CPU).

    `start` before the traffic, `watch` for each thread that carries the network, `stop` for the certificate. follow:
    interfaces of which `looks` has each look afterwards.
    """

    def __init__(self, net: EmulatedNetwork, bounds: Bounds = Bounds(), follow: Collection[str] = ()) -> None:
        self.looks: dict[str, list[QueueReading]] = {}
        self._net, self._follow = net, follow
        self._bounds = bounds
        self._child: Child[MonitorMeasured] | None = None

    def start(self, timeout_s: float = 120.0) -> None:
        """Opens the taps. Raises RuntimeError if the process doesn't come up."""
        report = self._net.verification
        pids = self._net.pids
        ports = tuple(
            PortPlace(
                pids[port.node],
                port.interface,
                port.ifindex,
                port.rate_bps,
                not port.offloads.get("tx-udp-segmentation", True),
                port.interface in self._follow,
            )
            for port in report.ports
        )
        spawn = partial(subprocess.Popen, process_group=0)  # as in netns.spawn
        place = MonitorPlace(os.getpid(), ports)
        self._child = children.start(
            spawn, "the fidelity monitor", "emulation.testbed.certificate.monitor", place, MonitorMeasured
        )
        try:
            children.gather([self._child], timeout_s)
        except ChildFailed as error:
            raise RuntimeError(f"the fidelity monitor did not start: {error}") from error
        for running in self._net.services:
            self.watch(running.process.pid)

    def watch(self, pid: int, thread: int | None = None) -> None:
        """Judges the waiting of one thread (a kernel thread id), or of all threads a process has."""
        assert self._child is not None, "start the monitor first"
        self._child.send(Watch(pid, thread))

    def pause(self) -> None:
        """Departures from now on don't count. Raises ChildFailed."""
        self._tell(PauseMonitor())

    def resume(self) -> None:
        """It does again. Raises ChildFailed."""
        self._tell(ResumeMonitor())

    def _tell(self, order: ChildCommand) -> None:
        assert self._child is not None, "start the monitor first"
        self._child.send(order)
        children.gather([self._child], ANSWER_S)

    def stop(self, timeout_s: float = ANSWER_S) -> Certificate:
        """Ends the measurement and judges it."""
        assert self._child is not None, "start the monitor first"
        self._child.send(StopMonitor())
        try:
            (answer,) = children.gather([self._child], timeout_s)
        except ChildFailed as error:
            return Certificate(False, [f"the fidelity monitor failed, nothing was measured: {error}"], None)
        finally:
            self.close()
        self.looks = answer.looks
        fastest_bps = max(settings.rate_bps for _, settings in self._net.spec.links.hops)
        return judge(answer.measures, fastest_bps, self._bounds)

    def close(self) -> None:
        """Ends the process without a certificate. Idempotent."""
        if self._child is not None:
            children.close([self._child])
            self._child = None
