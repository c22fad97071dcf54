"""Allreduce on one network: every method at every size, in turn, so that other load on the machine affects all alike.

The network with all that is measured on it is a scenario (its sizes are a sweep), and so is a cell: one method at one
size.

For each size there are some rounds; in each round every method makes a block of operations, and the order of the
methods moves on by one. A block begins with a warm-up operation, since TCP forgets its window while other methods
run.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from emulation.experiments.bench import bandwidths
from emulation.experiments.bench.allreduce.bench_methods import BEST, BenchMethod
from emulation.experiments.bench.allreduce.rank_messages import (
    CloseMethod,
    OpenMethod,
    OperationsMeasured,
    RunOperations,
)
from emulation.experiments.bench.allreduce.ranks import MethodFailed, Ranks
from emulation.experiments.progress_text import Log, Passing
from emulation.results.results import percentile
from emulation.scenario.bounds import algbw_bound, payload_limit
from emulation.scenario.scenario import Scenario, canonical
from emulation.testbed.certificate.monitor import Machine
from emulation.testbed.mininet.launch import BY_LINKS, NetworkTraffic, RunningScenario, RunningSwitch
from switchagg.join import SEGMENTS_MAX

ROUNDS = 3
PROBE_BYTES = 4 << 20
PROBE_OPERATIONS = 3
LONG = ((4.0, 1), (1.0, 2))  # (s, rounds): operations that take longer are steady, and dear: so many will do
OPERATIONS_PER_BLOCK = 60
WATCHED_NS = 20_000_000  # operations that last two of the kernel's ticks or more are worth asking for CPU times
LEAST_OPERATION_S, UNSHAPED_BYTES_PER_S = 0.001, 5e8  # first guesses where the link is no bound
SLOW_FACTOR = 20.0  # how much slower than its bound an operation may be before it is given up
PATIENCE_S = 30.0

OnRow = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class OperationPace:
    """How often operations are made: as many as fit cell_s seconds, at least one per round, where a scenario has no
    number of iterations."""

    cell_s: float = 1.0
    rounds: int = ROUNDS
    warmup_bytes: int = 4 << 20  # at most: enough to open TCP's window again


@dataclass(frozen=True)
class BenchRequest:
    """The measurements asked for on a network."""

    scenario: Scenario
    methods: tuple[BenchMethod, ...]
    rivals: frozenset[BenchMethod]  # of each kind the slower ones are left out
    dtype: str = "float32"
    pace: OperationPace = OperationPace()
    segments_max: int = SEGMENTS_MAX  # packets per send of the switch's workers: what a shaper's burst holds
    loss_by: str | None = None  # what loses [faults] loss, also if that is 0: its machinery alone

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of a rank's array."""
        (_, sizes), *_ = self.scenario.sweep.axes or (("", (self.scenario.workload.bucket_bytes,)),)
        return tuple(map(int, sizes))

    @property
    def record(self) -> dict[str, Any]:
        """As the document has it."""
        return {
            "title": self.scenario.title,
            "scenario": canonical(self.scenario),
            "segments_max": self.segments_max,
            "loss_by": self.loss_by,
        }


@dataclass
class AllreduceCell:
    """Measurements of a method at a size: lists have an entry per operation, sums are over its blocks."""

    durations_ns: list[int] = field(default_factory=list)  # of the slowest rank
    skews_ns: list[int] = field(default_factory=list)  # last start - first start
    worker_cpu_ns: list[int] = field(default_factory=list)  # mean over the ranks
    wrong: int = 0
    blocks: list[dict[str, Any]] = field(default_factory=list)
    cpu_ticks: list[int] = field(default_factory=lambda: [0] * 8)

    def add(self, answers: Sequence[OperationsMeasured], block: dict[str, Any]) -> None:
        """Add a block: every rank's answer, and the counts of switches and links."""
        for ranks in zip(*(answer.operations for answer in answers), strict=True):
            self.durations_ns.append(max(rank.end_ns - rank.start_ns for rank in ranks))
            starts = [rank.start_ns for rank in ranks]
            self.skews_ns.append(max(starts) - min(starts))
            self.worker_cpu_ns.append(sum(rank.cpu_ns for rank in ranks) // len(ranks))
            self.wrong += sum(rank.wrong for rank in ranks) + len({rank.digest for rank in ranks}) - 1
            if ranks[0].cpu_ticks:
                self.cpu_ticks = [a + b for a, b in zip(self.cpu_ticks, ranks[0].cpu_ticks, strict=True)]
        block["packets_resent"] = sum(answer.counters.get("retransmitted", 0) for answer in answers)
        self.blocks.append(block)


def measure(request: BenchRequest, log: Log, on_row: OnRow) -> dict[str, Any]:
    """Runs one network; returns its entry of the document. on_row gets each row as soon as its size is done.

    A method that fails is given up with its reason, and the others go on, on new ranks. Raises UnfitError, RunFailed if
    the network itself can't be had.
    """
    for method in request.methods:
        if request.dtype != "float32" and method.method.codec:
            log(f"{method.name}: {request.dtype} travels as without a codec")
        elif (spec := method.method.spec) is not None and spec.warning:
            log(f"{method.name}: {spec.warning}")
    failures: dict[str, str] = {}
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    entry: dict[str, Any] = {}
    while methods := [m for m in request.methods if m.name not in failures and not _beaten(m, request, entry)]:
        try:
            # XDP on a port changes what other methods may send there, so it has the network to itself
            for apart in (False, True):
                chosen = [method for method in methods if (method.variant == "xdp") == apart]
                if chosen and any((method.name, size) not in rows for method in chosen for size in request.sizes):
                    _run(request, chosen, log, rows, on_row, entry)
            break
        except MethodFailed as error:
            failures[error.method.name] = str(error)
            log(f"{request.scenario.title}: {error}; going on without it")
    ordered = [rows[key] for key in sorted(rows, key=lambda key: (key[1], key[0]))]
    return {**request.record, "failures": failures, "rows": ordered, **entry}


def _beaten(method: BenchMethod, request: BenchRequest, entry: dict[str, Any]) -> bool:
    """Whether another congestion control was chosen for its kind, before a method failed."""
    tried = entry.get("tried", {}).get(method.kind)
    return tried is not None and method in request.rivals and tried["chosen"] != method.name


def _run(
    request: BenchRequest,
    methods: list[BenchMethod],
    log: Log,
    rows: dict[tuple[str, int], dict[str, Any]],
    on_row: OnRow,
    entry: dict[str, Any],
) -> None:
    scenario = request.scenario
    log(Passing(f"{scenario.title}: building the network, starting {scenario.topology.workers} ranks"))
    with RunningScenario(scenario, request.loss_by) as network:
        switches = {method: _start_switch(network, method, request) for method in methods if method.method.is_switch}
        entry.setdefault("network", network.facts)
        with Ranks(network, request.dtype, max(*request.sizes, PROBE_BYTES), _patience_s(request)) as ranks:
            bench = Bench(request, network, switches, ranks)
            facts = entry.setdefault("methods", {})
            for method in sorted(methods, key=lambda x: x.method.is_switch):  # importing torch delays heartbeats
                facts[method.name] = bench.open(method)
            if request.rivals and "tried" not in entry:
                methods, tried = bench.keep_better(methods, log)
                entry.setdefault("tried", {}).update(tried)
            for size in request.sizes:
                missing = [method for method in methods if (method.name, size) not in rows]
                for method, cell in bench.size(missing, size, log).items():
                    rows[method.name, size] = row(method.cell(scenario, size), method, request.dtype, cell)
                    on_row(rows[method.name, size])
        if request.loss_by == BY_LINKS:
            entry["link_packets"] = network.lost


def _start_switch(network: RunningScenario, method: BenchMethod, request: BenchRequest) -> RunningSwitch:
    """Raises MethodFailed."""
    try:
        return network.start_switch(method.cell(request.scenario, max(request.sizes)), method.method, method.name)
    except Exception as error:
        raise MethodFailed(method, str(error)) from error


def _patience_s(request: BenchRequest) -> float:
    """Longest time an operation may take."""
    slowest = max(_expected_s(request, method, max(request.sizes)) for method in request.methods)
    return PATIENCE_S + SLOW_FACTOR * slowest


def _expected_s(request: BenchRequest, method: BenchMethod, size_bytes: int) -> float:
    """How long an operation takes at its bound, or at least."""
    network = request.scenario.network
    most = algbw_bound(method.method, request.dtype, network) if network.rate_bps else UNSHAPED_BYTES_PER_S
    return LEAST_OPERATION_S + size_bytes / most


class Bench:
    """The blocks of operations on one network's ranks."""

    def __init__(
        self, request: BenchRequest, network: RunningScenario, switches: dict[BenchMethod, RunningSwitch], ranks: Ranks
    ) -> None:
        self._request, self._network, self._switches, self._ranks = request, network, switches, ranks
        self._opened = 0
        self._number = 0  # of the next operation: every one has numbers of its own

    def open(self, method: BenchMethod) -> dict[str, Any]:
        """Opens a method on all ranks; returns what rank 0 reports to use."""
        request, switch = self._request, self._switches.get(method)
        cell = method.cell(request.scenario, max(request.sizes))
        order = OpenMethod(method, cell, self._opened, request.segments_max, switch.control if switch else "")
        self._opened += 1
        return dict(self._ranks.ask(order, 90.0)[0].facts)

    def keep_better(self, methods: Sequence[BenchMethod], log: Log) -> tuple[list[BenchMethod], dict[str, Any]]:
        """Without the rivals that another of BEST beats; and what all of them took."""
        tried: dict[str, Any] = {}
        remaining = list(methods)
        for kind in sorted({rival.kind for rival in self._request.rivals} & {method.kind for method in methods}):
            rivals = [method for method in methods if method.kind == kind and method.variant in BEST]
            cells = {method: AllreduceCell() for method in rivals}
            for _ in range(PROBE_OPERATIONS):
                for method in rivals:
                    self._block(method, cells[method], PROBE_BYTES, 1)
            medians = {method: percentile(cells[method].durations_ns, 0.5) for method in rivals}
            best = min(rivals, key=lambda method: medians[method])
            tried[kind] = {
                "size_bytes": PROBE_BYTES,
                "operations": PROBE_OPERATIONS,
                "median_ns": {method.name: medians[method] for method in rivals},
                "chosen": best.name,
            }
            log(f"{self._request.scenario.title}: {best.name} is the better {kind}")
            for method in rivals:
                if method is not best and method in self._request.rivals:
                    remaining.remove(method)
                    self._ranks.ask(CloseMethod(method), 30.0)
        return remaining, tried

    def size(self, methods: Sequence[BenchMethod], size_bytes: int, log: Log) -> dict[BenchMethod, AllreduceCell]:
        """All methods at one size, in rounds."""
        request, iterations = self._request, self._request.scenario.workload.iterations
        cells = {method: AllreduceCell() for method in methods}
        expected_s = {method: _expected_s(request, method, size_bytes) for method in methods}
        rounds = min(request.pace.rounds, iterations or request.pace.rounds)
        longest_s = rounds * sum(max(request.pace.cell_s / rounds, time_s) for time_s in expected_s.values())
        title = self._request.scenario.title
        log(Passing(f"{title}: {size_bytes} bytes, {len(methods)} methods, about {longest_s:.0f} s"))
        for turn in range(rounds):
            shift = turn % max(1, len(methods))
            for method in (*methods[shift:], *methods[:shift]):
                if not iterations:
                    if any(turn >= enough and expected_s[method] > time_s for time_s, enough in LONG):
                        continue
                    share_s = request.pace.cell_s / rounds
                    count = bandwidths.operations_for(share_s, expected_s[method], 1, OPERATIONS_PER_BLOCK)
                else:
                    count = iterations * (turn + 1) // rounds - iterations * turn // rounds
                self._block(method, cells[method], size_bytes, count, expected_s[method])
                expected_s[method] = percentile(cells[method].durations_ns, 0.5) / 1e9
        return cells

    def _block(
        self, method: BenchMethod, cell: AllreduceCell, size_bytes: int, count: int, expected_s: float = 1.0
    ) -> None:
        star, switch, warmup = (
            self._network.star,
            self._switches.get(method),
            self._request.scenario.workload.warmup_iterations,
        )
        machine, before = Machine(list(star.pids.values()), os.getpid()), NetworkTraffic.of(star)
        switch_cpu_ns = switch.cpu_ns() if switch else 0
        warmup_bytes = min(size_bytes, self._request.pace.warmup_bytes)
        watch_cpu = expected_s * 1e9 >= WATCHED_NS
        answers = self._ranks.ask(
            RunOperations(method, size_bytes, count, warmup, warmup_bytes, self._number, watch_cpu),
            (count + warmup) * SLOW_FACTOR * max(expected_s, 0.01),
        )
        self._number += count
        cell.add(
            answers,
            {
                "operations": count,
                # what crossed the wire counts in proportion: a warm-up operation may be smaller than a measured one
                "worth": count + warmup * warmup_bytes / size_bytes,
                **vars(NetworkTraffic.of(star) - before),
                "switch_cpu_ns": switch.cpu_ns() - switch_cpu_ns if switch else None,
                "losses": machine.measures()["losses"],
                "resident_bytes": [answer.memory_bytes for answer in answers],
            },
        )


def row(scenario: Scenario, method: BenchMethod, dtype: str, cell: AllreduceCell) -> dict[str, Any]:
    """A line of the table, as in the document (README.md here). scenario: that of the cell."""
    network, size_bytes = scenario.network, scenario.workload.bucket_bytes
    times = bandwidths.spread(cell.durations_ns)
    worth = sum(block["worth"] for block in cell.blocks)
    up = max(sum(values) for values in zip(*(block["up_bytes"] for block in cell.blocks), strict=True)) / worth
    down = max(sum(values) for values in zip(*(block["down_bytes"] for block in cell.blocks), strict=True)) / worth
    speed = bandwidths.algbw(size_bytes, times.median)
    limit = most = wire_share = None
    if network.rate_bps:
        limit = payload_limit(method.method, network)
        most = algbw_bound(method.method, dtype, network)
        wire_share = max(up, down) * 8e9 / network.rate_bps / times.median
    ticks = sum(cell.cpu_ticks)
    idle = (cell.cpu_ticks[3] + cell.cpu_ticks[4]) / ticks if ticks >= 10 else None
    packets = sum(block["up_packets"] for block in cell.blocks) / worth
    worker_cpu = percentile(cell.worker_cpu_ns, 0.5)
    switch_cpu = [block["switch_cpu_ns"] for block in cell.blocks if block["switch_cpu_ns"] is not None]
    losses = {name: sum(block["losses"][name] for block in cell.blocks) for name in cell.blocks[0]["losses"]}
    return {
        "workers": network.workers,
        "rate_bps": network.rate_bps,
        "method": method.kind,
        "variant": method.variant,
        "link": method.carrier,
        "name": method.name,
        "size_bytes": size_bytes,
        "count": size_bytes // bandwidths.ITEM_BYTES,
        "type": dtype,
        "redop": "sum",
        "root": -1,
        "time_ns": dataclasses.asdict(times),
        "algbw_bytes_per_s": speed,
        "busbw_bytes_per_s": bandwidths.busbw(method.method, size_bytes, times.median, network.workers),
        "wire_tx_bytes_per_rank": up,
        "wire_rx_bytes_per_rank": down,
        "wrong_elements": cell.wrong,
        "payload_limit_bytes_per_s": limit,
        "share_of_payload_limit": speed / limit if limit else None,
        "bound_bytes_per_s": most,
        "share_of_bound": speed / most if most else None,
        "worker_cpu_ns": worker_cpu,
        "worker_cpu_p10_ns": percentile(cell.worker_cpu_ns, 0.1),
        "worker_cpu_p90_ns": percentile(cell.worker_cpu_ns, 0.9),
        "worker_cpu_ns_per_packet": worker_cpu * network.workers / packets if packets else None,
        "switch_cpu_ns": sum(switch_cpu) / worth if switch_cpu else None,
        "switch_cpu_ns_per_packet": sum(switch_cpu) / worth / packets if switch_cpu and packets else None,
        "packets_per_s": packets * 1e9 / times.median,
        "start_skew_ns": percentile(cell.skews_ns, 0.5),
        "packets_resent": sum(block["packets_resent"] for block in cell.blocks),
        "segments_resent": sum(block["segments_resent"] for block in cell.blocks),
        "queue_drops": sum(block["drops"] for block in cell.blocks),
        "losses": losses,
        "cpu_idle_share": idle,
        "cpu_stolen_share": cell.cpu_ticks[7] / ticks if ticks >= 10 else None,
        "softirq_share": cell.cpu_ticks[6] / ticks if ticks >= 10 else None,
        "resident_bytes": max(max(block["resident_bytes"]) for block in cell.blocks),
        "limited_by": bandwidths.limited_by(wire_share, idle),
    }
