"""The measuring process of the certificate, driven over its pipes: `python -m emulation.testbed.certificate.monitor`.

Its ports are on its command line; it reports `Ready`. Then `Watch` at any time; `Pause`, after which it does nothing
and nothing counts until `Resume`, both answered by `Done`; and `Stop`, answered by `Measured`. It sleeps 5 ms at a time
(how late it wakes is the timer measure), asks the backlogs every 10 ms and empties the taps every 100 ms: a few percent
of one CPU for 8 ports.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from emulation.testbed import netns
from emulation.testbed.certificate.departures import Tap
from emulation.testbed.certificate.fidelity import LinkTrace, gap_measures
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
from emulation.testbed.certificate.processes import busiest, spent_by_others, usage
from emulation.testbed.children import Done, Ready, send_report
from emulation.testbed.qdisc import QdiscReader

SLEEP_NS = 5_000_000
POLL_NS = 10_000_000
POLL_NS_PER_PORT = 1_000_000  # each question costs some 20 µs: at most 2 % of a CPU with many ports
DRAIN_NS = 100_000_000
SECOND_NS = 1_000_000_000
DIGEST_NS = 10 * SECOND_NS


class MonitoredPort:
    """A shaped interface: its tap, its qdisc, and its departures."""

    def __init__(self, place: PortPlace, reader: QdiscReader) -> None:
        self.interface = place.interface
        self.ifindex = place.ifindex
        self.trace = LinkTrace(place.rate_bps, place.cuts_bundles)
        self.tap = Tap(place.pid, self.interface)
        self.first = self.last = reader.root(self.ifindex)
        self.polls = self.busy_polls = 0
        self.peak_bps = 0.0
        self._reader = reader
        self._mark = (time.monotonic_ns(), self.first.sent_bytes)
        self.looks: list[QueueReading] | None = [] if place.followed else None

    def poll(self) -> None:
        """Asks what is queued."""
        before = time.time_ns()
        self.last = self._reader.root(self.ifindex)
        self.trace.add_poll(before, time.time_ns(), self.last.backlog_bytes)
        self.polls += 1
        self.busy_polls += self.last.backlog_bytes > 0
        now, (then, sent_bytes) = time.monotonic_ns(), self._mark
        if self.looks is not None:
            self.looks.append(QueueReading(now, self.last.sent_bytes, self.last.backlog_bytes))
        if now - then >= DRAIN_NS:
            self.peak_bps = max(self.peak_bps, (self.last.sent_bytes - sent_bytes) * 8e9 / (now - then))
            self._mark = (now, self.last.sent_bytes)

    def drain(self) -> None:
        """Empties the tap."""
        self.trace.add_departures(self.tap.drain())


class Threads:
    """How long the threads that carry the network have waited for a CPU: run_delay of /proc/…/schedstat."""

    def __init__(self) -> None:
        self._watched: list[tuple[int, int | None]] = []
        self._last: dict[tuple[int, int], tuple[int, int, int]] = {}
        self._spent: dict[tuple[int, int], list[int]] = {}

    def watch(self, pid: int, thread: int | None) -> None:
        """From now on."""
        self._watched.append((pid, thread))
        self.sample()

    def sample(self, *, counts: bool = True) -> None:
        """Reads them all; one that has ended keeps its last values. counts: what they had since the last time does."""
        for pid, thread in self._watched:
            for number in [thread] if thread is not None else _threads_of(pid):
                try:
                    words = Path(f"/proc/{pid}/task/{number}/schedstat").read_text(encoding="ascii").split()
                except OSError:
                    continue
                ran_ns, waited_ns, turns = map(int, words)
                key, now = (pid, number), (ran_ns, waited_ns, turns)
                spent, last = self._spent.setdefault(key, [0, 0, 0]), self._last.get(key, now)
                if counts:
                    added = [after - before for after, before in zip(now, last, strict=True)]
                    self._spent[key] = [old + more for old, more in zip(spent, added, strict=True)]
                self._last[key] = now

    def measures(self, duration_ns: int) -> dict[str, Any]:
        """Waiting per turn, of the process whose threads have it worst: its busy threads dominate its idle ones.

        A process that waited for less than a hundredth of the time is left out: few measurements mean little.
        """
        spent = self._spent
        per_process = {
            pid: np.sum([entry for key, entry in spent.items() if key[0] == pid], axis=0).tolist()
            for pid in {key[0] for key in spent}
        }
        waits = [
            (waited_ns / turns, pid)
            for pid, (_, waited_ns, turns) in per_process.items()
            if turns and waited_ns >= duration_ns / 100
        ]
        worst_ns, worst = max(waits, default=(0.0, 0)) if spent else (None, 0)
        return {
            "network_threads": len(spent),
            "network_threads_unseen": not spent and bool(self._watched),
            "network_thread_wait_ns": worst_ns,
            "network_thread_waiting_most": f"process {worst}",
            "network_threads_ran_ns": sum(entry[0] for entry in per_process.values()),
            "network_threads_waited_ns": sum(entry[1] for entry in per_process.values()),
        }


class Machine:
    """Counters of the whole machine and of each namespace, over the time between each `resume` and `pause`. root_pid:
    of the process from which all of ours descend; what others compute is theirs."""

    def __init__(self, pids: list[int], root_pid: int) -> None:
        self._pids = pids
        self._root_pid = root_pid
        self._wall_ns = 0
        self._spent: Counter[str] = Counter()
        self._programs: Counter[str] = Counter()
        self._counts = False
        self.resume()

    def resume(self) -> None:
        """Departures from now on count."""
        self._counts = True
        self._start_ns, self._first, self._usage = time.monotonic_ns(), self._read(), usage(self._root_pid)

    def pause(self) -> None:
        """It doesn't any more. Idempotent."""
        if not self._counts:
            return
        self._counts = False
        last, now = self._read(), usage(self._root_pid)
        self._wall_ns += time.monotonic_ns() - self._start_ns
        self._spent.update({key: last[key] - self._first[key] for key in last})
        self._programs.update(spent_by_others(self._usage, now))
        for name in ("total", "busy", "idle", "stolen", "run_ticks"):
            self._spent[name] += getattr(now, name) - getattr(self._usage, name)

    def measures(self) -> dict[str, Any]:
        """The measures of all departures that count until now. `losses` are the machine's own, not those of the
        emulated queues."""
        self.pause()
        spent, wall_ns = self._spent, self._wall_ns
        ticks = max(1, spent["total"])
        losses = {key: spent[key] for key in ("udp_receive_buffer", "interface", "cpu_backlog")}
        return {
            "duration_ns": wall_ns,
            "cpu_pressure_share": spent["cpu_pressure_us"] * 1000 / wall_ns,
            "cpu_idle_share": spent["idle"] / ticks,
            "cpu_stolen_share": spent["stolen"] / ticks,
            "cpu_other_share": max(0, spent["busy"] - spent["run_ticks"]) / ticks,
            "cpu_other_programs": busiest(self._programs, ticks),
            "tcp_retransmitted": spent["tcp_retransmitted"],
            "losses": losses,
        }

    def _read(self) -> dict[str, int]:
        softnet = Path("/proc/net/softnet_stat").read_text(encoding="ascii").splitlines()
        counts = {
            "cpu_pressure_us": _cpu_pressure_us(),
            "cpu_backlog": sum(int(line.split()[1], 16) for line in softnet),
            "udp_receive_buffer": 0,
            "tcp_retransmitted": 0,
            "interface": 0,
        }
        for pid in self._pids:
            protocols = _snmp(pid)
            counts["udp_receive_buffer"] += protocols["Udp"]["RcvbufErrors"]
            counts["tcp_retransmitted"] += protocols["Tcp"]["RetransSegs"]
            for line in Path(f"/proc/{pid}/net/dev").read_text(encoding="ascii").splitlines()[2:]:
                words = line.partition(":")[2].split()
                counts["interface"] += int(words[3]) + int(words[2])  # received: dropped and errors
        return counts


AnyOrder = Watch | PauseMonitor | ResumeMonitor | StopMonitor


class Orders:
    """Commands from the parent, read without a buffer that `poll` can't see into. We end when it does."""

    def __init__(self) -> None:
        self._data = b""
        self._decoder: msgspec.json.Decoder[AnyOrder] = msgspec.json.Decoder(AnyOrder)

    def next(self, *, waits: bool = False) -> AnyOrder | None:
        """The next order, or None if none is there yet. waits: for it to come."""
        while b"\n" not in self._data:
            if not waits and not netns.wait_readable(0, 0.0):
                return None
            piece = os.read(0, 65_536)
            if not piece:
                return StopMonitor()
            self._data += piece
        line, _, self._data = self._data.partition(b"\n")
        return self._decoder.decode(line)


def measure(place: MonitorPlace) -> None:
    """Until the command to stop."""
    netns.die_with_parent(place.parent_pid)
    orders = Orders()
    pids = list(dict.fromkeys(port.pid for port in place.ports))
    readers = {pid: QdiscReader(pid) for pid in pids}
    ports = [MonitoredPort(port, readers[port.pid]) for port in place.ports]
    threads, machine = Threads(), Machine(pids, place.parent_pid)
    send_report(Ready())
    gc.freeze()  # a collection of what lives as long as we do would make us late
    lateness, cpu_start_ns, start_ns = [], time.process_time_ns(), time.monotonic_ns()
    poll_every_ns = max(POLL_NS, len(ports) * POLL_NS_PER_PORT)
    next_poll = next_drain = start_ns
    next_sample, next_digest = start_ns + SECOND_NS, start_ns + DIGEST_NS
    while True:
        due_ns = time.monotonic_ns() + SLEEP_NS
        time.sleep(SLEEP_NS / 1e9)
        now = time.monotonic_ns()
        lateness.append(now - due_ns)
        if now >= next_poll:
            next_poll = now + poll_every_ns
            for port in ports:
                port.poll()
        if now >= next_drain:
            next_drain = now + DRAIN_NS
            for port in ports:
                port.drain()
            order = _next_order(orders, threads)
            if isinstance(order, PauseMonitor):
                order = _pause(orders, ports, threads, machine)
            if isinstance(order, StopMonitor):
                break
        if now >= next_sample:
            next_sample = now + SECOND_NS
            threads.sample()
        if now >= next_digest:
            next_digest = now + DIGEST_NS
            for port in ports:
                port.trace.digest()
    threads.sample()
    cpu_share = (time.process_time_ns() - cpu_start_ns) / (time.monotonic_ns() - start_ns)
    measures = _measures(ports, threads, machine, lateness) | {"monitor_cpu_share": cpu_share}
    send_report(MonitorMeasured(measures, {port.interface: port.looks for port in ports if port.looks is not None}))


def _pause(
    orders: Orders, ports: list[MonitoredPort], threads: Threads, machine: Machine
) -> ResumeMonitor | StopMonitor | PauseMonitor | None:
    """Until the next order, which is returned."""
    threads.sample()
    machine.pause()
    send_report(Done())
    order = _next_order(orders, threads, waits=True)
    threads.sample(counts=False)
    for port in ports:
        port.drain()  # what was sent meanwhile
    if isinstance(order, ResumeMonitor):
        machine.resume()
        send_report(Done())
    return order


def _measures(ports: list[MonitoredPort], threads: Threads, machine: Machine, lateness: list[int]) -> dict[str, Any]:
    for port in ports:
        port.poll()
        port.drain()
        port.trace.digest()
    packets = sum(port.last.sent_packets - port.first.sent_packets for port in ports)
    of_machine = machine.measures()
    return {
        **gap_measures(port.trace for port in ports),
        **threads.measures(of_machine["duration_ns"]),
        **of_machine,
        "timer_lateness_p50_ns": float(np.percentile(lateness, 50)),
        "timer_lateness_p99_ns": float(np.percentile(lateness, 99)),
        "sent_packets": packets,
        "lost_share": sum(of_machine["losses"].values()) / max(1, packets),
        "queue_drops": sum(port.last.drops - port.first.drops for port in ports),
        "peak_bps": max(port.peak_bps for port in ports),
        "backlogged_polls_share": {port.interface: port.busy_polls / max(1, port.polls) for port in ports},
    }


def _next_order(
    orders: Orders, threads: Threads, *, waits: bool = False
) -> PauseMonitor | ResumeMonitor | StopMonitor | None:
    while (order := orders.next(waits=waits)) is not None:
        if not isinstance(order, Watch):
            return order
        threads.watch(order.pid, order.thread)
    return None


def _threads_of(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _cpu_pressure_us() -> int:
    """Time in which some thread waited for a CPU; 0 where the kernel doesn't count it."""
    try:
        return int(Path("/proc/pressure/cpu").read_text(encoding="ascii").splitlines()[0].rpartition("=")[2])
    except OSError:
        return 0


def _snmp(pid: int) -> dict[str, dict[str, int]]:
    """Protocol counters of a process's network namespace."""
    table: dict[str, dict[str, int]] = {}
    lines = Path(f"/proc/{pid}/net/snmp").read_text(encoding="ascii").splitlines()
    for names, values in zip(lines[::2], lines[1::2], strict=True):
        protocol, _, keys = names.partition(":")
        table[protocol] = dict(zip(keys.split(), [int(word) for word in values.partition(":")[2].split()], strict=True))
    return table


if __name__ == "__main__":
    measure(msgspec.json.decode(sys.argv[1], type=MonitorPlace))
