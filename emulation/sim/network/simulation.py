"""A job in virtual time: an allreduce method's hosts on a switched network; a subclass for each kind of method.

A simulation knows `launch(rank, array, op, done)` and `run()`; what the switch and the hosts do is the method's.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from math import ceil
from typing import Any, ClassVar, NoReturn

from numpy.typing import NDArray

from emulation.scenario.topologies.topology import SPRAY, STAR, Fabric, Hop, LinkSettings, Topology
from emulation.scenario.topologies.topology_kinds import topology
from emulation.sim.engine.member_group import Connections
from emulation.sim.failover_terms import FailoverTerms
from emulation.sim.host_costs import FREE, NO_PACKET_COSTS, CallTurns, HostCosts, PacketCosts
from emulation.sim.lossless.lossless_network import LosslessNetwork
from emulation.sim.lossless.pausing import PfcConfig
from emulation.sim.network.aggregation_host import SimulatedCall
from emulation.sim.network.host_uplink import Done
from emulation.sim.network.mesh_host import Begins, MemberHost
from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.switched_network import Forwarding, SwitchedNetwork
from emulation.sim.network.virtual_clock import Action, VirtualClock
from emulation.sim.size_only import SizeOnlyArray
from emulation.sim.traffic.tcp_mesh import SimulatedTcpMesh, TcpMeshHost
from switchagg.calls.call_request import CallRequest
from switchagg.calls.round_calls import Ended, RoundCalls, RoundCoding, RoundKeys
from switchagg.codecs.array_codec import Reduction, Tensors
from switchagg.codecs.compression import Compression
from switchagg.codecs.spec import parse_sums
from switchagg.description import Kind
from switchagg.job import ELEMENTS_MTU_1500, JobConfig
from switchagg.join import STREAMS, WINDOW_SLOTS, JobTerms
from switchagg.native.native_exact import in_c
from switchagg.priority import BEST_EFFORT
from transport.meshes.mesh import Party
from transport.meshes.reliable import ReliableConfig

MESSAGE_BYTES = 45 * 1448  # 65,160: whole frames of MTU 1500


@dataclass(frozen=True)
class SimulationConfig(JobTerms):
    """A job's simulation: its size, the links and topology, and the options of its method."""

    workers: int
    """1 … 4,096; a switch has at most 64 children."""
    link: LinkConfig
    """The settings of both directions of a host's link; each direction draws its faults from `seed`."""
    fabric: Fabric = STAR
    """The topology; the rates of its other links are derived from the hosts'."""
    place: Topology | None = None
    """The job's workers, servers and aggregating switches in a shared network; None: the job has its own network."""
    other_hosts: int = 0
    """Hosts of other jobs and flows in the job's own network."""
    tail_rank: int = -1
    """The rank whose host's link alone has the delay tail; -1: every link has it."""
    switch_latency_ns: int = 0
    """A switch's delay from a frame's last bit in to the frame's place in the output queue."""
    seed: int = 1
    elements: int = field(default=ELEMENTS_MTU_1500, kw_only=True)
    window_slots: int | tuple[int, ...] = field(default=WINDOW_SLOTS, kw_only=True)
    streams: int = field(default=STREAMS, kw_only=True)
    dataplane: str = "reference"
    """A name of `DATAPLANES`; all of them give the same results."""
    rto_min_ns: int = 1_000_000
    """Switch and host methods share the value, so that neither waits longer for the same loss. The floor is below that
    of real hosts (5 ms here, 200 ms in Linux's TCP), which must stay above a scheduler's tick; virtual time has no
    tick."""
    retry_limit: int = 30
    """Timeouts in a row after which a call fails, of switch and host methods alike."""
    reliable: ReliableConfig = field(default_factory=ReliableConfig)
    """Connections of host methods."""
    message_bytes: int = MESSAGE_BYTES
    """The largest message of host methods, with its head."""
    credit_bytes: int | None = 1 << 20
    """Bytes of host methods that have left a host's queue and are not yet on its link."""
    servers: int = 0
    """The servers of `ps`; 0: a server on every worker's host."""
    ps: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of PsConfig."""
    bounded: Mapping[str, Any] = field(default_factory=dict)
    """Options of a method with bounded loss."""
    tcp: str = ""
    """Congestion control of host methods' connections, TCP's or RoCE's (`SimulatedTcpMesh`); "": a window each."""
    group: int = 0
    """Ranks per group of `hierarchical`; 0: the method chooses."""
    trace: bool = False
    """All events are hashed."""
    strict_priority: bool = False
    """Links serve priority classes strictly (`StrictLink`), else all frames in order."""
    trees: int = 0
    """Tops of the network over which a sum is spread, stream by stream; 0: as many as there are and streams allow."""
    user: str = "job"
    """The job's name where links are shared."""
    job_id: int = 1
    first_slot: int | None = 0
    """The job's first slot where jobs share data planes; None: the job waits until it is given slots."""
    pool_slots: int = 0
    """Slots of each of its data planes; 0: as many as the job needs."""
    aggregators: int = 0
    """The aggregators of a switch, for `atp` and `esa`; 0: as many as slot versions."""
    priority: int = 0
    """The job's priority, for `esa`."""
    costs: HostCosts = FREE
    """The time that transfers cost hosts."""
    packet_costs: PacketCosts = NO_PACKET_COSTS
    """The CPU time that packets cost hosts and switches."""
    failover: FailoverTerms | None = None
    """What happens to switches, and what the job has against that; None: nothing ever happens."""
    pfc: PfcConfig | None = None
    """Links that can be paused; None: links drop."""
    network_kinds: ClassVar[tuple[type[SwitchedNetwork], type[LosslessNetwork]]] = SwitchedNetwork, LosslessNetwork

    def job(self) -> JobConfig:
        """Streams side by side."""
        return self.job_config(
            self.job_id,
            1,
            self.workers,
            self.first_slot or 0,
            rto_initial_ns=self.rto_initial_ns,
            rto_min_ns=self.rto_min_ns,
            rto_max_ns=self.rto_max_ns,
            retry_limit=self.retry_limit,
        )

    def built(self, servers: int = 0) -> Topology:
        """The topology's nodes and links."""
        if self.place is not None:
            return self.place
        link = self.link
        settings = LinkSettings(link.rate_bps, link.delay_ns, link.queue_bytes)
        return topology(self.fabric, self.workers, servers, settings, self.other_hosts)

    def network(self, topology: Topology) -> SwitchedNetwork:
        """All of a topology, with these links and switches, of the kind that has pauses or that has none; idle.
        JobError without the compiled core."""
        kind, lossless = self.network_kinds
        latency_ns, seed, trace = self.switch_latency_ns, self.seed, self.trace
        if self.pfc is not None:
            assert not self.packet_costs, "links that pause lead to hosts at once"
            return lossless(topology, self.link, self.pfc, latency_ns=latency_ns, seed=seed, trace=trace)
        return kind(
            topology,
            self.link,
            tail_at=topology.nic(topology.members[self.tail_rank]) if self.tail_rank >= 0 else None,
            latency_ns=latency_ns,
            seed=seed,
            forwarding=Forwarding(self.strict_priority, self.fabric.paths),
            packet_costs=self.packet_costs,
            trace=trace,
        )

    def connection(self, window_bytes: int) -> ReliableConfig:
        """The configuration of a host method's connection, with a window of at most so many bytes and the job's
        timeouts."""
        segment_bytes, most = self.reliable.segment_bytes, self.reliable.window_bytes
        window_bytes = max(min(window_bytes, most), min(2 * segment_bytes, most))
        return replace(
            self.reliable,
            window_bytes=window_bytes,
            ack_every_segments=min(self.reliable.ack_every_segments, max(1, window_bytes // segment_bytes // 4)),
            rto_initial_ns=self.rto_initial_ns,
            rto_min_ns=self.rto_min_ns,
            rto_max_ns=self.rto_max_ns,
            retry_limit=self.retry_limit,
        )

    def share_bytes(self, port: LinkSettings, together: int, host_bps: int) -> int:
        """The window of each of so many connections that cross a switch's port; all it has, where none meets another.
        host_bps: of the fastest host's link.

        Only the window limits a connection, so this is what congestion control would settle on at best: together they
        fill the queue, less a tenth for acknowledgements, and the way; those that begin at once fill the queue no more
        than that, while as much as one window leaves; and the port never idles.
        """
        if together == 1 and port.rate_bps >= host_bps:
            return self.reliable.window_bytes
        way_bytes = port.rate_bps * self.round_trip_ns // 8_000_000_000
        queue_bytes = port.queue_bytes * 9 // 10
        burst_bytes = port.queue_bytes * 19 // 20 // max(1, together - 1)
        return max(min((queue_bytes + way_bytes) // together, burst_bytes), way_bytes // together)

    @property
    def rto_initial_ns(self) -> int:
        """200 ms, or more on links so long or slow that a first round trip takes as much."""
        return max(200_000_000, 3 * self.round_trip_ns, self.rto_min_ns)

    @property
    def rto_max_ns(self) -> int:
        return max(1_000_000_000, 10 * self.round_trip_ns, self.rto_min_ns)

    @cached_property
    def round_trip_ns(self) -> int:
        """Without queues, of frames of MTU 1500: there and back between hosts as far from the root as any."""
        built = self.built()
        to, times = (built.members[0], 2) if built.graph else (built.root, 4)
        paths = [list(map(built.settings, built.path(host, to))) for host in built.members]
        one_way_ns = max(sum(link.delay_ns + 1514 * 8_000_000_000 // link.rate_bps for link in path) for path in paths)
        switches = times // 2 * max(map(len, paths)) - 1
        return times * one_way_ns + 2 * switches * self.switch_latency_ns


def _raise(_reason: str) -> NoReturn:
    """A codec's error ends the simulation; called while it is handled."""
    raise


class Simulation(ABC):
    """A job on a network that is shared, or its own: members' hosts, each attached by the method's subclass.

    `uplinks` and `downlinks`, those of a member's host, go by member; a member's address is `first` and its number.
    reliable: of a host method's connections, the one with the smallest window.

    mean_op: how training launches gradients: "sum", and divides by the workers, or, where a sum may hold fewer than all
    of them, "avg", which divides by those that are in it. Where a codec makes means (`divides`), they are its own.
    """

    mean_op = "sum"
    plain_priority = BEST_EFFORT  # of calls that are launched without one
    backups = 0  # members that a sum doesn't wait for
    names_calls = False  # training tells it which parameters a call's are, and how near the model's front
    codes_in_rounds = True  # the codec's plain reductions are the method's, one after the other
    transfers_cost = True  # its hosts are as `config.costs` says

    def __init__(self, config: SimulationConfig, shared: SwitchedNetwork | None, servers: int = 0) -> None:
        assert self.transfers_cost or not config.costs, f"{type(self).__name__} has no {config.costs}"
        self.config = config
        self.topology = config.built(servers)
        self.reliable = config.connection(config.reliable.window_bytes)
        self.shared = shared if shared is not None else config.network(self.topology)
        self.network: VirtualClock = self.shared.time
        members = self.topology.members
        self.uplinks = list(map(self.shared.uplink, members))
        self.downlinks = list(map(self.shared.downlink, members))
        self.first = self.shared.addresses(members)
        self.shared.users[config.job_id] = config.user
        self.shared.users_at.update(dict.fromkeys(range(self.first, self.first + len(members)), config.user))
        self._prepare_calls()
        segment_bytes, every = config.reliable.segment_bytes, config.reliable.ack_every_segments
        self._tcp = SimulatedTcpMesh(config.tcp, self.uplinks, self.first, segment_bytes, every, config.seed)

    def _prepare_calls(self) -> None:
        """The order of calls, and each rank's codec state, if sums are coded."""
        self._call_turns = CallTurns(self.config.costs, self.network)
        codec, workers, seed = self.config.codec, self.config.workers, self.config.codec_seed
        self._compressions: list[Compression] | None = None
        self._codings: list[RoundCoding] = []
        if codec:
            self._compressions = [Compression(in_c(parse_sums(codec)), rank, workers, seed) for rank in range(workers)]
            self._codings = [
                RoundCoding(
                    compression,
                    RoundKeys(rank, seed),
                    self.config.room,
                    in_plain_rounds=self.codes_in_rounds,
                )
                for rank, compression in enumerate(self._compressions)
            ]
            if self.divides:
                self.mean_op = "avg"
        self._rounds: list[RoundCalls[SimulatedCall]] = [
            RoundCalls(partial(self._begin_round, rank), _raise) for rank in range(workers)
        ]

    @property
    def divides(self) -> bool:
        """Whether the codec makes means, of any kind of sum."""
        return self._compressions is not None and self._compressions[0].spec.divides

    def _mesh_host(
        self,
        member: int,
        party: Party,
        connections: Connections,
        notice: Callable[[int], None],
        job: str,
        begins: Begins,
    ) -> MemberHost:
        """A member of a host method, at its place in the network. begins: as of `Begins`."""
        assert not (self.config.tcp and self.config.costs.flow_bps), "TCP's connections have a congestion control"
        uplink, at = self.uplinks[member], (self.first, self.config.credit_bytes)
        host: MemberHost
        if self.config.tcp:
            host = TcpMeshHost(self._tcp, member, party, uplink, notice, *at)
        else:
            host = self.shared.mesh_host(member, party, connections, uplink, notice, *at, job=job)
        host.has_costs(self.config.costs, begins)
        self._attach(member, host.receive)
        return host

    def _connections(self, flows: Iterable[tuple[int, int]]) -> Connections:
        """Connections for flows, which may all send at once: pairs of members. Any other pair's are as the smallest."""
        topology = self.topology
        paths = {
            (sender, to): {hop: part for hop, part in self._crossed(sender, to).items() if hop[0] in topology.switches}
            for sender, to in flows
        }
        crossing: dict[Hop, int | Fraction] = {}
        for parts in paths.values():
            for hop, part in parts.items():
                crossing[hop] = crossing.get(hop, 0) + part
        uplinks = ((host, topology.neighbours[host][0]) for host in topology.members)
        fastest_bps = max(topology.settings(uplink).rate_bps for uplink in uplinks)
        share = {
            hop: self.config.share_bytes(topology.settings(hop), ceil(count), fastest_bps)
            for hop, count in crossing.items()
        }
        if self.config.fabric.paths == SPRAY:  # queues beside each other are as one
            share = {
                hop: load * (len(topology.tops) if {*hop} & {*topology.tops} else 1) for hop, load in share.items()
            }
        budgets = {
            pair: self.config.connection(min(int(share[hop] / part) for hop, part in parts.items()))
            for pair, parts in paths.items()
        }
        if budgets:
            self.reliable = min(budgets.values(), key=lambda connection: connection.window_bytes)
        return lambda sender, to: budgets.get((sender, to), self.reliable)

    def _crossed(self, sender: int, to: int) -> Mapping[Hop, int | Fraction]:
        """The directions of links that a connection crosses, each with its part of what that sends."""
        ends = self.topology.members[sender], self.topology.members[to]
        if self.topology.graph and self.config.fabric.paths == SPRAY:
            return {hop: part for layer in self.topology.layers(*ends) for hop, part in layer.items()}
        path = self.shared.path(*ends, (self.first + sender, self.first + to))
        return dict.fromkeys(path, 1)

    def _attach(self, member: int, receive: Action) -> None:
        """receive(frame, sender, to): what a member's host does with frames for it."""
        self.shared.attach(self.topology.members[member], self.first + member, receive)

    def launch(
        self,
        rank: int,
        array: NDArray[Any] | SizeOnlyArray,
        op: str,
        done: Done,
        priority: int | None = None,
        key: int | None = None,
        kind: Kind = "allreduce",
        tensors: Tensors | None = None,
    ) -> None:
        """A rank begins a collective now, in place: see `CallRequest`. Sums of floats go through the configured
        codec, if there is one.

        All ranks launch the same ones: in the same order, or, by host methods, with the same keys. tensors: as of a
        group's allreduce. A SizeOnlyArray is summed as zeros, or as what is typical for the codec.
        """
        priority = self.plain_priority if priority is None else priority
        request = CallRequest(kind, op, key, priority, tensors=tensors)

        def begin(ended: Done) -> None:
            self._launch(rank, array, request, ended)

        self._call_turns.enter(rank, key, priority, begin, done)

    def _launch(self, rank: int, array: NDArray[Any] | SizeOnlyArray, request: CallRequest, done: Done) -> None:
        """It is the call's turn."""
        call = SimulatedCall(self._array(array), request, done)
        coding = self._codings[rank] if self._codings else None
        rounds: Iterator[Reduction] | None = None
        if coding is not None and coding.codes(request, call.array):
            if isinstance(array, SizeOnlyArray):
                coding.compression.make_typical(call.array)
            key, rounds = coding.rounds(request, call.array)
            call = call.with_request(key=key)
        if coding is not None and coding.compression.stepwise and not self.codes_in_rounds:
            self._rounds[rank].take_turn(request.priority, call, rounds, lambda failure: done())
        elif rounds is None:
            self.begin(rank, call)
        else:
            self._rounds[rank].step(call, 0, rounds, lambda failure: done())

    def _array(self, array: NDArray[Any] | SizeOnlyArray) -> NDArray[Any]:
        """The array that a call sums."""
        return array.zeros() if isinstance(array, SizeOnlyArray) else array

    def _begin_round(
        self, rank: int, call: SimulatedCall, number: int, reduction: Reduction | None, ended: Ended
    ) -> None:
        """Begin a round of a call, whose key follows that of the round before; None: the call as it is."""
        if reduction is not None:
            key = None if call.request.key is None else call.request.key + number
            call = call.with_request(op=reduction.op, kind=reduction.kind, key=key)
            call = call._replace(array=reduction.array, coding=reduction)
        self.begin(rank, call._replace(done=partial(ended, None)))

    @abstractmethod
    def begin(self, rank: int, call: SimulatedCall) -> None:
        """Rank begins a call now, as it is."""

    @abstractmethod
    def retransmissions(self) -> int:
        """Frames sent again by all hosts."""

    @abstractmethod
    def switch_counters(self) -> dict[str, int]:
        """Counters of the data plane, and frames that failed their checksum; empty if no switch aggregates."""

    @abstractmethod
    def drop_checksum(self) -> int:
        """Damaged frames that a receiver found and dropped."""

    def run(self, waiting_for: str) -> None:
        """Let virtual time pass until `network.stop()`. AggregationFailed if a call is given up."""
        self.network.run(waiting_for)

    def wire_bytes(self, member: int) -> tuple[int, int]:
        """Bytes that a member's host has put on its link so far, framing included, and that reached it or are on their
        way."""
        return self.uplinks[member].sent_bytes, self.downlinks[member].delivered_bytes

    def finished_without(self, rank: int, sizes: Sequence[int]) -> bool:
        """Whether the others have finished a rank's next calls without it, arrays of so many float32, and it knows."""
        return False

    def notes(self) -> list[str]:
        """The method's choices with their reasons, one sentence each."""
        return []

    def gradient_loss(self) -> dict[str, float]:
        """The lost parts of gradients and sums, for a method with bounded loss; {} for other methods."""
        return {}

    def partial_sums(self) -> dict[str, float]:
        """How many ranks a job's partial sums hold (`switchagg.partial_endpoint.ranks_in`); {} where they hold all."""
        return {}

    def faults(self) -> dict[str, int]:
        """Fault counters, summed over all of the network's links."""
        return self.shared.faults()
