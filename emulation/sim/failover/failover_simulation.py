"""Method `switch` in virtual time, where switches die, stand still or are out of reach, and a job may have a fallback.

Forwarding goes on whatever happens to a switch's process. The ranks' way over hosts is a `HostSimulation` on the same
links, from the moment in which they meet.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, NoReturn

from emulation.scenario.scenario_tables import LostSwitch
from emulation.sim.failover.control_member import ControlMember, MemberPhase
from emulation.sim.failover.moving_rank import MovingRank, VirtualWayBack
from emulation.sim.failover.switch_process import SwitchProcess
from emulation.sim.network.aggregation_host import SimulatedCall
from emulation.sim.network.host_simulation import HostSimulation
from emulation.sim.network.host_uplink import Done
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.switch_simulation import SwitchSimulation
from emulation.sim.network.switched_network import SwitchedNetwork
from switchagg.aggregator import Parent
from switchagg.dataplane.contract import DataPlane
from switchagg.errors import AggregationFailed
from switchagg.job import JobConfig
from switchagg.join import TIMEOUT_NS_MAX, JobTerms, Join
from switchagg.membership import JobAdmitted
from switchagg.option_syntax.option_fields import shared_fields
from transport.control.heartbeats import BEAT_NS

PORT = 5
RETRIES_MOST = 1 << 30
"""The control plane says who is gone: no stream gives up."""

MEET_AGAIN_NS = 100_000_000
"""From one attempt to connect to the next."""

HANDSHAKE_TRIPS = 3
"""Round trips in which two hosts meet: TCP's, and two of the handshake (M4)."""


class FailoverSimulation(SwitchSimulation):
    """A job of one tree. `ended(rank, failure)` is called when the job has ended for a rank; by default it raises."""

    name = "job"

    def __init__(self, config: SimulationConfig, shared: SwitchedNetwork | None = None) -> None:
        terms = config.failover
        assert terms is not None
        super().__init__(replace(config, retry_limit=RETRIES_MOST, trees=1, first_slot=0), shared)
        self.shared.keep_values()
        self.fallback, self.lease_ns = terms.fallback, terms.lease_ns
        self.ended: Callable[[int, AggregationFailed], None] = _raise
        self.way_ns = self.config.round_trip_ns // 2
        """How long a request, or an answer, is on its way."""
        self.hosts_failure = ""
        """Why the ranks can't reach each other any more."""
        self._standing: dict[int, deque[Done]] = {}  # ranks that stand still, and what waits for them
        self._went_on_ns = -self.lease_ns
        self._dead_ranks: set[int] = set()
        self._cuts: Counter[int] = Counter()  # of ranks' links
        self._fallback_hosts: FallbackHosts | None = None
        self._meeting: dict[int, Done] = {}
        self._meets = False
        self._incarnation = 0
        self._tree = tree = self.trees[0]
        self._terms = terms
        self._leaves = {name: self._process(0, name, f" {name}") for name in tree.aggregators if name != tree.root}
        self.processes = [self._process(number, tree.root, "") for number in range(1 + terms.standby)]
        for process in self.processes:
            process.below = list(self._leaves.values())
        for process in (self.processes[0], *self._leaves.values()):
            process.use_node()
        self.paths = [RankPath(self, rank) for rank in range(config.workers)]
        self.ways_back = [VirtualWayBack(self, rank) for rank in range(config.workers)]
        self.ranks: list[MovingRank] = []
        self._enter_job()
        for loss in terms.losses:
            self._plan(loss)

    def _process(self, number: int, name: str, seed: str) -> SwitchProcess:
        return SwitchProcess(
            number,
            self.switches[name],
            self.network,
            self._dataplane,
            self,
            lease_ns=self._terms.lease_ns,
            job=self.job,
            seed=f"{self.config.seed}{seed}",
        )

    def _enter_job(self) -> None:
        """All ranks have joined before the run; heartbeats of each begin within the first beat."""
        first, chance = self.processes[0], Random(f"{self.config.seed} beats")
        members = [ControlMember(path, first, self._join(rank), self.lease_ns) for rank, path in enumerate(self.paths)]
        for member in members:
            first.controller.join(member.join, 0)
        while (event := first.controller.next_event()) is not None:
            assert isinstance(event, JobAdmitted), event
            self.job = replace(self.job, generation=event.job.generation)
            self.admit(first, event.job)
        for rank, (host, member) in enumerate(zip(self.hosts, members, strict=True)):
            member.phase, member.generation = MemberPhase.RUNNING, self.job.generation
            host.readmit(self.endpoint_of(rank, self.job))
            self.ranks.append(MovingRank(self, rank, host, member))
            member.events = self.ranks[rank]
            self.after(rank, chance.randrange(BEAT_NS), member.start)

    @property
    def has_fallback(self) -> bool:
        """Whether the job outlives its switch."""
        return bool(self.fallback)

    def _join(self, rank: int) -> Join:
        config = self.config
        self._incarnation += 1
        terms = shared_fields(config, JobTerms) | {
            "streams": config.stream_count,
            "window_slots": config.windows,
            "can_fall_back": self.has_fallback,
        }
        return Join(
            job=self.name,
            workers=config.workers,
            rank=rank,
            address=(_host(rank), PORT),
            incarnation=self._incarnation,
            timeout_ns=TIMEOUT_NS_MAX,
            wait_for_slots=self.has_fallback,
            **terms,
        )

    def member(self, rank: int, process: SwitchProcess) -> ControlMember:
        """A rank's membership that is about to begin."""
        member = ControlMember(self.paths[rank], process, self._join(rank), self.lease_ns)
        member.events = self.ranks[rank]
        return member

    # Data planes and endpoints

    def admit(self, process: SwitchProcess, admitted: JobConfig) -> None:
        """A controller has admitted the job: to all switches of its tree."""
        job = self.job_of(admitted.generation)
        self.forget(process)
        process.use_node()
        for name, children in self._tree.children.items():
            if name not in self._tree.aggregators:
                continue
            above = self._tree.parent(name)
            parent = Parent(self.switches[above].address, self._tree.children[above].index(name)) if above else None
            self._plane_of(process, name).admit(job, [self._address(child) for child in children], parent)

    def forget(self, process: SwitchProcess) -> None:
        """The job leaves all switches of its tree."""
        for name in self._tree.aggregators:
            self._plane_of(process, name).evict(self.job.job_id)

    def _plane_of(self, process: SwitchProcess, name: str) -> DataPlane:
        return process.plane if name == self._tree.root else self._leaves[name].plane

    def job_of(self, generation: int) -> JobConfig:
        """The job in a generation."""
        return replace(self.job, generation=generation)

    def endpoint_of(self, rank: int, job: JobConfig) -> Any:
        """A rank's endpoint for a generation."""
        worker = self.topology.workers[rank]
        parent = self._tree.parent(worker)
        assert parent is not None
        return self.shared.endpoint(job, rank, self._tree.children[parent].index(worker), self._in_c)

    def idle_endpoint(self, rank: int) -> Any:
        """One that has no calls, and knows no results."""
        return self.endpoint_of(rank, self.job_of((self.hosts[rank].endpoint.job.generation + 1) % (1 << 32)))

    def retransmitted(self, rank: int) -> None:
        """A rank's endpoint is about to be replaced: its counts are kept."""
        self._retransmitted += self.hosts[rank].endpoint.counters["retransmitted"]

    # Who reaches whom, and when

    @property
    def now_ns(self) -> int:
        """Virtual time."""
        return self.network.now_ns

    def reaches(self, rank: int, process: SwitchProcess) -> bool:
        """Whether the network between them is whole."""
        return not self._cuts[rank] and rank not in self._dead_ranks and not process.is_cut

    def is_awake(self, rank: int) -> bool:
        """Whether a rank's process runs."""
        return rank not in self._standing and rank not in self._dead_ranks

    def when_awake(self, rank: int, act: Done) -> None:
        """Now, or once the rank's process goes on; never, if it is gone."""
        if rank in self._standing:
            self._standing[rank].append(act)
        elif rank not in self._dead_ranks:
            act()

    def after(self, rank: int, delay_ns: int, act: Done) -> None:
        """A rank's timer."""
        self._at(self.now_ns + delay_ns, partial(self.when_awake, rank, act))

    def _at(self, time_ns: int, act: Done) -> None:
        self.network.schedule(time_ns, lambda _frame, _sender, _to: act())

    # Meeting, and calls over hosts

    @property
    def has_met(self) -> bool:
        """Whether the ranks have connections to each other."""
        return self._fallback_hosts is not None

    def meet(self, rank: int, limit_ns: int, met: Done, failed: Callable[[str], None]) -> None:
        """A rank waits for the others at the hosts; for those that only stand still, without a limit (L16)."""
        self._meeting[rank] = met

        def give_up() -> None:
            if rank not in self._meeting:
                return
            missing = [other for other in range(self.config.workers) if other not in self._meeting]
            if self.is_worth_waiting(missing):
                self.after(rank, limit_ns, give_up)
                return
            del self._meeting[rank]
            names = ", ".join(map(str, missing)) or rank
            failed(f"missing ranks: {names}: they did not meet within {limit_ns / 1e9:g} s")

        self.after(rank, limit_ns, give_up)
        if not self._meets:
            self._meets = True
            self._at(self.now_ns + self.way_ns, self._try_to_meet)

    def out_of_reach(self) -> list[int]:
        """The ranks from which nothing comes now."""
        return [rank for rank in range(self.config.workers) if not self.is_awake(rank) or self._cuts[rank]]

    def is_worth_waiting(self, ranks: Sequence[int]) -> bool:
        """Whether the processes of all these ranks are stopped, and nothing else is the matter; where there are none,
        whether one went on less than a lease ago."""
        if not ranks:
            return self.now_ns - self._went_on_ns < self.lease_ns
        return all(rank in self._standing and self._cuts[rank] == 1 for rank in ranks)

    def _try_to_meet(self) -> None:
        """Once all are there, they connect."""
        if not self._meeting:
            self._meets = False
        elif len(self._meeting) < self.config.workers or any(+self._cuts) or self._standing:
            self._at(self.now_ns + MEET_AGAIN_NS, self._try_to_meet)
        else:
            self._at(self.now_ns + 2 * HANDSHAKE_TRIPS * self.way_ns, self._connect)

    def _connect(self) -> None:
        if len(self._meeting) < self.config.workers:
            self._try_to_meet()
            return
        config = replace(self.config, place=self.topology, codec="", failover=None, servers=0, trace=False)
        self._fallback_hosts = FallbackHosts(config, self.shared, self.fallback, self._hosts_failed)
        waiting, self._meeting = self._meeting, {}
        for rank, met in sorted(waiting.items()):
            self.when_awake(rank, met)

    def on_hosts(self, rank: int, call: SimulatedCall) -> None:
        """A rank begins a collective of the hosts."""
        assert self._fallback_hosts is not None
        self._fallback_hosts.begin(rank, call)

    def _hosts_failed(self, reason: str) -> None:
        """The ranks can't reach each other: the job ends on those that need it."""
        self.hosts_failure = self.hosts_failure or reason
        for moving in self.ranks:
            self.when_awake(moving.rank, moving.hosts_failed)

    # What happens to switches and ranks

    def kill_switch(self, name: str) -> None:
        """By its name; "": the root's."""
        process = self._leaves.get(name, self.processes[0])
        process.kill()
        if name in self._leaves:
            self._at(self.now_ns + self.lease_ns, partial(self._miss, process, name, self.job.generation))

    def start_switch(self, name: str) -> None:
        """A new one at its place."""
        process = self._leaves.get(name, self.processes[0])
        process.start()
        if name in self._leaves:
            self.processes[0].fail_jobs(f"switch {name!r} was restarted")

    def _miss(self, process: SwitchProcess, name: str, generation: int) -> None:
        """A switch has sent nothing for a lease to the root of its tree (C18)."""
        if not process.runs and self.job.generation == generation:
            self.processes[0].fail_jobs(f"switch {name!r}: no heartbeat for {self.lease_ns / 1e9:g} s")

    def _plan(self, loss: LostSwitch) -> None:
        self._at(loss.at_ns, partial(self.kill_switch, loss.switch))
        if loss.back_ns:
            self._at(loss.back_ns, partial(self.start_switch, loss.switch))

    def cut(self, rank: int, change: int) -> None:
        """One more, or one less, reason why a rank's link carries nothing."""
        self._cuts[rank] += change
        for link in (self.uplinks[rank], self.downlinks[rank]):
            link.cut(self._cuts[rank] > 0)

    def stand_still(self, rank: int) -> None:
        """SIGSTOP of a rank; its packets are lost."""
        if self.is_awake(rank):
            self._standing[rank] = deque()
            self.cut(rank, 1)

    def go_on(self, rank: int) -> None:
        """SIGCONT: what it has missed happens now, in order."""
        if rank in self._standing:
            self.cut(rank, -1)
            self._went_on_ns = self.now_ns
            waiting = self._standing.pop(rank)
            while waiting:
                self.when_awake(rank, waiting.popleft())

    def kill_rank(self, rank: int) -> None:
        """SIGKILL of a rank: its connections to the others are closed."""
        if rank not in self._dead_ranks:
            self._standing.pop(rank, None)
            self._dead_ranks.add(rank)
            self.cut(rank, 1)
            self._leave_hosts(rank, "its connection was closed")

    def leave(self, rank: int) -> None:
        """A rank has made its last call, as all do, and its process ends."""
        self.ranks[rank].close()

    def rank_ended(self, rank: int, failure: AggregationFailed) -> None:
        """The job has ended for a rank, whose process ends."""
        self._leave_hosts(rank, f"it left: {failure}")
        self.ended(rank, failure)

    def _leave_hosts(self, rank: int, why: str) -> None:
        if self.has_met:
            reason = f"rank {rank} at {_host(rank)}:{PORT} is gone: {why}"
            self._at(self.now_ns + self.way_ns, partial(self._hosts_failed, reason))

    def retransmissions(self) -> int:
        hosts = self._fallback_hosts
        return super().retransmissions() + (hosts.retransmissions() if hosts is not None else 0)

    def drop_checksum(self) -> int:
        hosts = self._fallback_hosts
        return super().drop_checksum() + (hosts.drop_checksum() if hosts is not None else 0)

    def notes(self) -> list[str]:
        counts = self.ranks[0].counts
        return [
            f"The job lost its switch {counts['recoveries']} times, in which hosts ended {counts['recovered_calls']} "
            f"calls, and went through a switch again {counts['moves_to_switch']} times."
        ]


class FallbackHosts(HostSimulation):
    """The ranks' way over hosts. failed: is told why it works no more."""

    def __init__(
        self, config: SimulationConfig, shared: SwitchedNetwork, method: str, failed: Callable[[str], None]
    ) -> None:
        super().__init__(config, shared, method=method)
        self._failed, self._is_over = failed, False

    def _give_up(self, failure: AggregationFailed) -> None:
        if not self._is_over:
            self._is_over = True
            self._failed(str(failure))


class RankPath:
    """A rank's way to switches, for requests and their answers."""

    def __init__(self, world: FailoverSimulation, rank: int) -> None:
        self._world, self._rank = world, rank

    @property
    def now_ns(self) -> int:
        """Virtual time."""
        return self._world.now_ns

    def after(self, delay_ns: int, act: Done) -> None:
        """A timer of the rank's."""
        self._world.after(self._rank, delay_ns, act)

    def send(self, process: SwitchProcess, serve: Done) -> None:
        """A request."""
        life = process.lives
        self._carry(process, partial(process.take_request, life, serve))

    def give(self, process: SwitchProcess, take: Done) -> None:
        """An answer."""
        self._carry(process, partial(self._world.when_awake, self._rank, take))

    def _carry(self, process: SwitchProcess, arrive: Done) -> None:
        world, rank = self._world, self._rank
        if world.reaches(rank, process):
            world.network.schedule(
                world.now_ns + world.way_ns,
                lambda _frame, _sender, _to: arrive() if world.reaches(rank, process) else None,
            )


def _host(rank: int) -> str:
    return f"10.0.{rank >> 6}.{(rank & 63) + 1}"


def _raise(_rank: int, failure: AggregationFailed) -> NoReturn:
    raise failure
