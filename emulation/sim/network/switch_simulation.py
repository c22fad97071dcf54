"""Methods with an endpoint on every host in virtual time; and method `switch`, whose switches have data planes."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from numpy.typing import NDArray

from emulation.scenario.topologies.topology import Topology
from emulation.scenario.topologies.topology_kinds import trees
from emulation.sim.network.aggregation_host import AggregationHost, SimulatedCall
from emulation.sim.network.host_uplink import Done
from emulation.sim.network.simulation import Simulation, SimulationConfig
from emulation.sim.network.switched_network import SimulatedSwitch, SwitchedNetwork
from emulation.sim.size_only import SizeOnlyArray
from emulation.sim.spines.spine_trees import TreeEndpoints, jobs_of
from switchagg.aggregator import Parent
from switchagg.calls.member_calls import MemberCalls
from switchagg.codecs import FIXED_POINT
from switchagg.codecs.spec import parse_sums
from switchagg.dataplane.contract import DataPlane
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.endpoint import Endpoint, StreamFailed, WrongSum
from switchagg.errors import AggregationFailed
from switchagg.job import MODULUS, JobConfig
from switchagg.native import native_codec
from switchagg.partial_endpoint import ranks_in


class EndpointSimulation(Simulation):
    """Codecs are the endpoints': they code what packets hold. switches: those that aggregate for the job, by name;
    hosts: of workers, by rank."""

    codes_in_rounds = False

    def __init__(self, config: SimulationConfig, shared: SwitchedNetwork | None, servers: int = 0) -> None:
        super().__init__(config, shared, servers)
        self.job = config.job()
        self.plain_priority = max(config.classes)
        self.switches: dict[str, SimulatedSwitch] = {}
        self.hosts: list[AggregationHost] = []

    def _add(self, host: AggregationHost) -> None:
        """The next rank's."""
        host.has_costs(self.config.costs)
        self._attach(len(self.hosts), host.receive)
        self.hosts.append(host)

    def _calls(self, rank: int, routed: bool) -> MemberCalls:
        """A rank's. routed: whether it knows routes (W15)."""
        config = self.config
        return MemberCalls(
            self.job,
            rank,
            parse_sums(config.codec or FIXED_POINT.name),
            codec_seed=config.codec_seed,
            split_calls=bool(config.split_calls),
            routed=routed,
        )

    def _given_up(self, event: StreamFailed, what: str, missing: Iterable[int]) -> NoReturn:
        """The call fails, as of a stream that gave up."""
        raise AggregationFailed(
            event.reason if isinstance(event, WrongSum) else f"{what} after {event.timeouts} timeouts in a row",
            job=self.job.job_id,
            generation=self.job.generation,
            stream=event.stream,
            slot=event.slot,
            chunk=event.chunk,
            missing=tuple(missing),
        )

    def begin(self, rank: int, call: SimulatedCall) -> None:
        self.hosts[rank].launch(call.with_request(signature=call.request.signature_of(call.array)))

    def retransmissions(self) -> int:
        return sum(host.endpoint.counters["retransmitted"] for host in self.hosts)

    def switch_counters(self) -> dict[str, int]:
        counted: Counter[str] = Counter()
        for switch in self.switches.values():
            assert switch.dataplane is not None
            counted.update(switch.dataplane.counters)
        return {**counted, "drop_checksum": self._drop_checksum()}

    def _drop_checksum(self) -> int:
        return sum(switch.drop_checksum for switch in self.switches.values())

    def drop_checksum(self) -> int:
        return self._drop_checksum() + sum(host.drop_checksum for host in self.hosts)


class SwitchSimulation(EndpointSimulation):
    """Without a first slot the job is suspended from the start, until it is given some. trees: those that it sums over,
    its streams in turn; jobs beside each other begin with different ones."""

    def __init__(self, config: SimulationConfig, shared: SwitchedNetwork | None = None) -> None:
        super().__init__(config, shared)
        self.backups = self.job.backups
        if self.job.partial:
            self.mean_op = "avg"
        first, most = config.job_id - 1, min(config.trees or config.stream_count, config.stream_count)
        self.trees = trees(self.topology, config.fabric.placement, most, first)
        names = dict.fromkeys(name for tree in self.trees for name in tree.aggregators)
        self.switches = {name: self.shared.aggregator(name, self._dataplane) for name in names}
        self.shared.users.update((job.job_id, config.user) for job in jobs_of(self.job, len(self.trees)))
        self._shares_slots = config.first_slot is None
        self._suspended = self._shares_slots
        self._until: Counter[int] = Counter()  # by priority: calls to finish before the job is quiet
        self._call_counts: list[Counter[int]] = [Counter() for _ in range(config.workers)]
        self._under_way = 0
        self._held: list[tuple[int, SimulatedCall]] = []
        self._when_quiet: Done | None = None
        self._retransmitted = 0  # in earlier generations
        if not self._shares_slots:
            self._admit()
        routed = DATAPLANES[config.dataplane].routes and all(len(tree.aggregators) == 1 for tree in self.trees)  # H2
        for rank, (uplink, worker) in enumerate(zip(self.uplinks, self.topology.workers, strict=True)):
            ends = self.first + rank, {job: self.switches[_parent(tree, worker)].address for job, tree in self._parts()}
            self._add(self.shared.host(self._endpoint(rank), uplink, self._failed, ends, self._calls(rank, routed)))

    def _array(self, array: NDArray[Any] | SizeOnlyArray) -> NDArray[Any]:
        coding = self._compressions is not None and (self._compressions[0].remembers or self._compressions[0].stepwise)
        return self.shared.array(array, coding)

    def _dataplane(self) -> DataPlane:
        config = self.config
        return self.shared.plane(config.pool_slots or self.job.slots[1], config.elements, config.dataplane)

    def _parts(self) -> Iterator[tuple[JobConfig, Topology]]:
        """The job as the switches of each tree know it."""
        return zip(jobs_of(self.job, len(self.trees)), self.trees, strict=True)

    @property
    def _in_c(self) -> bool:
        """Whether endpoints in C have the codec of packets' values: they lack one that is added in Python."""
        codec = self.config.codec
        row_codec = parse_sums(codec).for_workers(self.config.workers).row_codec if codec else None
        return row_codec is None or not native_codec.missing(row_codec)

    def _endpoint(self, rank: int) -> Endpoint | TreeEndpoints:
        worker = self.topology.workers[rank]
        every = [
            self.shared.endpoint(job, rank, tree.children[_parent(tree, worker)].index(worker), self._in_c)
            for job, tree in self._parts()
        ]
        return TreeEndpoints(self.job, every) if every[1:] else every[0]

    def suspend(self, then: Done) -> None:
        """Begin no calls but those that another rank has begun; `then` is called once those are complete."""
        self._suspended = True
        self._when_quiet = then
        self._until = Counter()
        for counts in self._call_counts:
            self._until |= counts
        held, self._held = self._held, []
        for rank, call in held:  # some of them may be needed now
            self.begin(rank, call)
        self._note_quiet()

    def _note_quiet(self) -> None:
        if (
            self._when_quiet is not None
            and not self._under_way
            and all(counts == self._until for counts in self._call_counts)
        ):
            then, self._when_quiet = self._when_quiet, None
            then()

    def evict(self) -> None:
        """Leave all slots; the job is quiet."""
        for job, tree in self._parts():
            for name in tree.aggregators:
                self._plane(name).evict(job.job_id)

    def resume(self, first_slot: int, slots: int) -> None:
        """Go on as a new generation, which has these slots, at least one for each stream."""
        streams = self.config.stream_count
        windows = tuple(slots // streams + (stream < slots % streams) for stream in range(streams))
        self.config = replace(self.config, first_slot=first_slot, window_slots=windows)
        self.job = replace(self.config.job(), generation=self.job.generation + 1)
        self._admit()
        for rank, host in enumerate(self.hosts):
            self._retransmitted += host.endpoint.counters["retransmitted"]
            host.readmit(self._endpoint(rank))
        self._suspended = False
        held, self._held = self._held, []
        for rank, call in held:
            self.begin(rank, call)

    def _ended(self, done: Done) -> None:
        self._under_way -= 1
        done()
        self._note_quiet()

    def _admit(self) -> None:
        for job, tree in self._parts():
            for name, children in tree.children.items():
                above = tree.parent(name)
                parent = Parent(self.switches[above].address, tree.children[above].index(name)) if above else None
                self._plane(name).admit(job, [self._address(child) for child in children], parent)

    def _plane(self, switch: str) -> DataPlane:
        dataplane = self.switches[switch].dataplane
        assert dataplane is not None
        return dataplane

    def _address(self, child: str) -> int:
        if child in self.switches:
            return self.switches[child].address
        return self.first + self.topology.workers.index(child)

    def _failed(self, rank: int, event: StreamFailed) -> None:
        tree = self.trees[event.stream % len(self.trees)]
        self._given_up(event, f"rank {rank} had no result", sorted(self._missing(tree, tree.root, event)))

    def _missing(self, tree: Topology, switch: str, event: StreamFailed) -> Iterator[int]:
        """Ranks below a switch from which neither it nor a switch between them has the chunk."""
        view = self._plane(switch).seen(event.slot, event.version)
        seen = view.ranks if view.chunk == event.chunk % MODULUS else ()
        for place, child in enumerate(tree.children[switch]):
            if place in seen:
                continue
            if child in self.switches:
                yield from self._missing(tree, child, event)
            else:
                yield self.topology.workers.index(child)

    def launch(
        self, rank: int, array: NDArray[Any] | SizeOnlyArray, op: str, done: Done, *args: Any, **how: Any
    ) -> None:
        """As of `Simulation`; partial sums are coded as sums, and come back as means of the ranks that are in them."""
        super().launch(rank, array, "sum" if op == "avg" and self.job.partial else op, done, *args, **how)

    def finished_without(self, rank: int, sizes: Sequence[int]) -> bool:
        return self.job.partial and self.hosts[rank].has_early(sizes)

    def partial_sums(self) -> dict[str, float]:
        return ranks_in(self.hosts[0].endpoint.counters)

    def begin(self, rank: int, call: SimulatedCall) -> None:
        priority = call.request.priority
        if self.job.partial and call.request.op == "sum" and call.array.dtype.kind == "f":
            call = call.with_request(op="avg")
        if self._shares_slots:
            counts = self._call_counts[rank]
            if self._suspended and counts[priority] >= self._until[priority]:
                self._held.append((rank, call))
                return
            counts[priority] += 1
            self._under_way += 1
            call = call._replace(done=partial(self._ended, call.done))
        super().begin(rank, call)

    def retransmissions(self) -> int:
        return self._retransmitted + super().retransmissions()


def _parent(tree: Topology, worker: str) -> str:
    """The switch that a worker sends to."""
    parent = tree.parent(worker)
    assert parent is not None
    return parent
