"""The virtual ranks, switches and links of a chaos run: what faults act on. Each start of the job has a network of its
own; time goes on."""

from __future__ import annotations

import random
import signal
import traceback
from collections.abc import Sequence
from typing import Any

from emulation.experiments.chaos.chaos_options import ChaosOptions
from emulation.experiments.chaos.chaos_site import DRAIN_LEASES
from emulation.experiments.chaos.fault_kinds.fault_kind import SWITCH, ChaosEvent, pick
from emulation.experiments.chaos.rank_reports import RankFailed
from emulation.experiments.virtual_chaos.virtual_packets import VirtualPackets
from emulation.experiments.virtual_chaos.virtual_rank import VirtualRank, initial_parameters
from emulation.sim.failover.failover_simulation import FailoverSimulation
from emulation.sim.failover_terms import FailoverTerms
from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.testbed.resource import Resource
from switchagg.errors import AggregationFailed
from switchagg.native.library import missing

RATE_BPS, DELAY_NS, QUEUE_BYTES = 20_000_000, 50_000, 1_000_000
"""So slow that calls are under way most of the time."""

WINDOW_SLOTS = 32
CHANCES = (0.0, 0.0, 0.001, 0.01)
"""Of each of loss, repetition, overtaking and damage: which a start of the job has, by the seed."""


class VirtualSite(Resource):
    """A context manager, as `ChaosSite` is one. folder: there is none."""

    def __init__(self, options: ChaosOptions) -> None:
        self.options = options
        self.now_ns = 0
        self.asked_to_stop = False
        self.checkpoints: dict[int, Any] = {0: initial_parameters()}
        self.simulation: FailoverSimulation
        self.ranks: list[VirtualRank] = []
        self._reports: list[tuple[int, Any]] = []
        self._zero_ns = 0  # of the present network
        self._restarting: set[int] = set()
        self._packets_before = 0
        self.leftovers = self

    def close(self) -> None:
        """Nothing is left."""

    def found_after(self) -> list[str]:
        """What is left: nothing, of what was never there."""
        return []

    # ---- the job

    def start_ranks(self, start: int, first: int, last: int, _lap_plans: Sequence[object] = ()) -> None:
        """A network, with all that is in it."""
        options, chance = self.options, random.Random(f"{self.options.seed}/start/{start}")
        loss, duplicate, reorder, corrupt = (CHANCES[pick(chance, len(CHANCES))] if start else 0.0 for _ in range(4))
        link = LinkConfig(RATE_BPS, DELAY_NS, QUEUE_BYTES, loss, duplicate, reorder, corrupt)
        terms = FailoverTerms(options.fallback, options.standby, round(options.lease_s * 1e9))
        config = SimulationConfig(
            options.workers,
            link,
            window_slots=WINDOW_SLOTS,
            dataplane="reference" if missing() else "native",
            seed=pick(chance, 1 << 31),
            codec=options.name.codec,
            failover=terms,
        )
        self._zero_ns, self.asked_to_stop = self.now_ns, False
        simulation = self.simulation = FailoverSimulation(config)
        simulation.ended = self._rank_ended
        self._restarting.clear()
        self._packets = VirtualPackets(
            simulation.network,
            simulation.processes,
            range(simulation.first, simulation.first + options.workers),
        )
        self.ranks = [VirtualRank(self, rank, first, last, options.lap_steps) for rank in range(options.workers)]
        for number, rank in enumerate(self.ranks):
            simulation.after(number, 0, rank.begin)

    def _rank_ended(self, rank: int, failure: AggregationFailed) -> None:
        if self.ranks[rank].status is None:
            self.ranks[rank].status = 1
            self.report(rank, RankFailed(" ".join(f"{type(failure).__name__}: {failure}".split())))

    def report(self, rank: int, report: Any) -> None:
        """A rank reports."""
        self._reports.append((rank, report))

    @property
    def all_heard(self) -> bool:
        """Whether `advance` has given every report."""
        return not self._reports

    def advance(self, until_ns: int) -> list[tuple[int, Any]]:
        """Let time pass; what ranks have reported since the last time."""
        network = self.simulation.network
        network.schedule(max(until_ns - self._zero_ns, network.now_ns), lambda *_: network.stop())
        try:
            self.simulation.run("the next look")
        except (AssertionError, ValueError, KeyError, IndexError, TypeError, AggregationFailed) as error:
            self._break(error)
        self.now_ns = self._zero_ns + network.now_ns
        reports, self._reports = self._reports, []
        return reports

    def _break(self, error: Exception) -> None:
        """A rule is broken in the middle of an event: the job ends there."""
        place = traceback.extract_tb(error.__traceback__)[-1]
        words = f"{type(error).__name__}: {error} ({place.filename.rpartition('/')[2]}, line {place.lineno})"
        for number, rank in enumerate(self.ranks):
            if rank.status is None:
                rank.status = 1
                self.report(number, RankFailed(words))

    def ask_to_stop(self) -> None:
        """All ranks end after a step that rank 0 begins later."""
        self.asked_to_stop = True

    def end_ranks(self) -> None:
        """The network is given up, and what its ranks have reported since the last look."""
        self._reports.clear()
        self._packets_before += self._packets.packets_sent
        self._packets.packets_sent = 0

    def keep_logs(self, _start: int, _folder: Any) -> None:
        """There are none."""

    def drop_logs(self, _start: int) -> None:
        """There are none."""

    def end_switches(self) -> list[str]:
        """They end with the network."""
        return []

    @property
    def bad_packets(self) -> int:
        """How many were sent."""
        return self._packets_before + self._packets.packets_sent

    # ---- what faults do

    def signal(self, target: str, number: int) -> None:
        """See `Casualties`."""
        kind, place = target.split()
        if kind == SWITCH:
            process = self.simulation.processes[int(place)]
            act = {signal.SIGKILL: process.kill, signal.SIGSTOP: process.stand_still, signal.SIGCONT: process.go_on}
            act[signal.Signals(number)]()
        elif self.ranks[int(place)].status is None:
            self._signal_rank(int(place), number)

    def _signal_rank(self, rank: int, number: int) -> None:
        if number == signal.SIGKILL:
            self.ranks[rank].status = -number
            self.simulation.kill_rank(rank)
        elif number == signal.SIGSTOP:
            self.simulation.stand_still(rank)
        else:
            self.simulation.go_on(rank)

    def start(self, target: str) -> None:
        """See `Casualties`."""
        kind, place = target.split()
        if kind == SWITCH:
            self.start_switch(int(place))

    def start_switch(self, switch: int) -> None:
        """See `Casualties`."""
        self.simulation.processes[switch].start()

    def restart_switch(self, switch: int) -> None:
        """See `Casualties`."""
        process = self.simulation.processes[switch]

        def start() -> None:
            self._restarting.discard(switch)
            process.start()

        self._restarting.add(switch)
        bound_ns = round(DRAIN_LEASES * self.options.lease_s * 1e9)
        process.drain(bound_ns, f"the switch was stopped by {signal.Signals.SIGTERM.name}", start)

    def start_ended_switches(self) -> bool:
        """Whether some that shall be restarted have not ended."""
        return bool(self._restarting)

    def cut(self, target: str, _end: str) -> None:
        """See `Casualties`."""
        self._set_link(target, 1)

    def restore(self, target: str) -> None:
        """See `Casualties`."""
        self._set_link(target, -1)

    def _set_link(self, target: str, change: int) -> None:
        kind, number = target.split()
        if kind == SWITCH:
            process = self.simulation.processes[int(number)]
            process.is_cut = change > 0
            process.follow()
        else:
            self.simulation.cut(int(number), change)

    def send_packets(self, event: ChaosEvent) -> None:
        """See `Casualties`."""
        self._packets.begin(event)

    def stop_packets(self) -> None:
        """See `Casualties`."""
        self._packets.end()
