"""Bytes on the wire, and the least a method can do with them: for virtual time, reports and benchmarks alike. Pure.

Sizes are bytes of one rank's array, rates bits per second of Ethernet frames without FCS, preamble and gap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np

from emulation.scenario.topologies.topology import STAR, Fabric, Hop, LinkSettings, Topology
from emulation.scenario.topologies.topology_kinds import over_each_top, topology, trees
from switchagg.calls.array_calls import share_of_chunks, share_of_rounds
from switchagg.codecs import FIXED_POINT, ArrayCodec, Codec
from switchagg.description import Kind
from switchagg.join import JobTerms
from switchagg.wire import HEADER_BYTES, frame_bytes
from transport.collectives.choice import CANDIDATES
from transport.collectives.collective_table import COLLECTIVES, fitting
from transport.collectives.cost import transfers_most
from transport.group.method_name import GROUPED, METHODS, MethodName, flows
from transport.links.framing import Framing
from transport.links.link_kinds import LINKS
from transport.ps.coded import PushCodec

LONG_BYTES = 1 << 28
"""The size of a long array, where a codec's bytes aren't in proportion to its values."""
SLICE_BYTES = 65_536
"""An array of `ps` is cut into slices, for all its servers, where it is longer."""


@dataclass(frozen=True)
class NetworkParameters:
    """Links of a network. rate_bps: of a host's, each way. elements: E of the switch's packets, as asked for.

    servers: of `ps`, with links of their own; 0: one beside each worker. backups: of `ps`, workers that an answer
    doesn't wait for. keeps_weights: its servers do, so a codec is of what workers push alone. push_then_pull: they
    answer a call when all of it is there. fabric: what joins hosts. trees: that the switch sums over where the fabric
    has several spines; 0: as many as there are. verify: whether the switch's sums are verified, and host methods' rows
    are as long (`switchagg.job.PacketTerms`). transfer_ns, flow_bps, calls_at_once, call_ns: see
    `emulation.sim.host_costs`.
    """

    workers: int
    rate_bps: int
    mtu_bytes: int
    elements: int
    servers: int = 0
    backups: int = 0
    keeps_weights: bool = False
    fabric: Fabric = STAR
    trees: int = 0
    push_then_pull: bool = False
    transfer_ns: int = 0
    flow_bps: int = 0
    calls_at_once: int = 0
    call_ns: int = 0
    verify: str = "off"

    def tag_elements(self, elements: int) -> int:
        """Elements of a chunk of E by which its sum is verified."""
        return JobTerms(verify=self.verify).resolved(elements, self.workers).tag_elements

    def links(self, method: str) -> Topology:
        """The links that a method has."""
        return topology(self.fabric, self.workers, servers_of(method, self.servers), LinkSettings(self.rate_bps))

    def topologies(self, method: str) -> tuple[Topology, ...]:
        """The links, once for each top that carries an equal part of a method's bytes: for the switch its trees; for
        other methods all tops, as if flows spread perfectly, which a hash of each does not."""
        links, placement = self.links(method), self.fabric.placement
        if METHODS[method].end == "switch":
            return trees(links, placement, self.trees)
        return over_each_top(links, placement)

    @property
    def folded(self) -> NetworkParameters:
        """The same for what spreads perfectly: one spine stands for all."""
        return replace(self, fabric=replace(self.fabric, spines=1))


def servers_of(method: str, servers: int) -> int:
    """How many hosts of servers a method has; servers: of `ps`."""
    return servers if method == "ps" else METHODS[method].servers


@dataclass(frozen=True)
class Busiest:
    """The direction of a link, or the connection, that limits a method. arrays: how often it carries a long array; hop:
    its nodes."""

    hop: Hop
    arrays: Fraction
    rate_bps: int


@dataclass(frozen=True)
class Bound:
    """The least a method can do: every gradient byte sent the number of times the method must, framed, at line rate.

    Latency, acknowledgements, retransmissions and the rounding of the last packet are left out, hence a bound.
    """

    traffic_factor: float  # of the busiest link; of an allreduce in a star 1 for the switch, 2(n-1)/n for host methods
    framing_efficiency: float  # gradient bytes / bytes of Ethernet frames
    wire_bytes_per_rank: float  # sent, and as many received, per iteration
    communication_ns: float
    wire_rx_bytes_per_rank: float | None = None  # received, where that differs


def _framing(name: MethodName) -> Framing:
    return LINKS[name.link or ("udp" if name.in_packets else "tcp")].framing  # gloo brings its own TCP


def _shares(name: MethodName, elements: int, mtu_bytes: int) -> tuple[Fraction, Fraction]:
    """Values in what a link is given to carry, and that in Ethernet frames, where packets are full."""
    framing = _framing(name)
    payload_bytes = framing.payload_bytes(mtu_bytes)
    if not name.in_packets:
        return Fraction(1), Fraction(payload_bytes - framing.mesh_bytes, framing.ethernet_bytes(payload_bytes))
    size = frame_bytes(elements) + METHODS[name.method].trailer_bytes
    if not framing.stream and not framing.path_mtus:
        payload_bytes = size
    return Fraction(4 * elements, size), Fraction(payload_bytes, framing.ethernet_bytes(payload_bytes))


def payload_share(name: MethodName, elements: int, mtu_bytes: int) -> Fraction:
    """Values in a full packet, over its bytes as the interface counts them.

    elements: E of the switch's packets, which fill the path MTU over RDMA, and over ZeroMQ lie in a TCP stream. Host
    methods fill the MTU, or the path MTU of RDMA. Headers in some packets alone (RETH and immediate data of RDMA), and
    what ZeroMQ and our own messages add (some 50 B to 64 kB), are left out.
    """
    values, frames = _shares(name, elements, mtu_bytes)
    return values * frames


def coded_share(name: MethodName, dtype: str, elements: int, workers: int, tag_elements: int = 0) -> float:
    """Bytes of a long array per byte that travels for it: more than 1 if the codec packs values, less if it agrees on
    exponents, which of the switch's packets of floats one in E + 1 carries, or if sums are verified. With a codec that
    sees whole arrays: of what it leaves alone."""
    kind, codec = np.dtype(dtype), _codec(name, workers)
    rows = codec if isinstance(codec, Codec) else None
    if name.in_packets:
        return share_of_chunks(kind, elements, rows or FIXED_POINT, tag_elements, workers)
    if name.is_hook:
        return kind.itemsize / 2 if kind.kind == "f" else 1.0
    return share_of_rounds(kind, elements - tag_elements, rows) if rows and kind in rows.dtypes else 1.0


def _codec(name: MethodName, workers: int) -> Codec | ArrayCodec | None:
    return spec.for_workers(workers).codec if (spec := name.spec) else None


def framing_efficiency(name: MethodName, elements: int, mtu_bytes: int, workers: int, tag_elements: int = 0) -> float:
    """Gradient bytes (float32) per byte of Ethernet frames, as `coded_share`."""
    values, frames = _shares(name, elements, mtu_bytes)
    return float(values) * coded_share(name, "float32", elements, workers, tag_elements) * float(frames)


def elements_of(name: MethodName, elements: int, mtu_bytes: int) -> int:
    """E of the switch's method on a link for a scenario's E: over RDMA as many values as fill the path MTU."""
    return _framing(name).elements_for(mtu_bytes, elements)


def elements_most(mtu_bytes: int) -> int:
    """The largest E whose packets fit an MTU over UDP."""
    return (LINKS["udp"].framing.payload_bytes(mtu_bytes) - HEADER_BYTES) // 4


def elements_that_fit(mtu_bytes: int) -> int:
    """E that fills an MTU over UDP; the project's 360 for 1500, which is a multiple of 8."""
    most = elements_most(mtu_bytes)
    return max(1, most - most % 8 if most >= 8 else most)


@cache
def loads(method: str, network: NetworkParameters, kind: Kind = "allreduce") -> Mapping[Hop, Fraction]:
    """How often each direction of a link carries a long array in a call of this kind, exactly; of a graph, where no
    other way is as short."""
    topologies = network.topologies(method)
    shares = {hop: Fraction(0) for hop, _ in topologies[0].hops}
    for links in topologies:
        for (sender, to), arrays in _pair_arrays(method, network, links, kind):
            hops = (next(iter(layer)) for layer in links.layers(sender, to) if len(layer) == 1)
            for hop in hops if links.graph else links.path(sender, to):
                shares[hop] += arrays / len(topologies)
    return shares


def _all_links(method: str, network: NetworkParameters) -> Busiest:
    """All links between nodes of a graph as one: what crosses them, by shortest ways, over the rate of all of them."""
    links = network.links(method)
    between = [hop for hop, _ in links.hops if not {*hop} & {*links.workers}]
    crossed = Fraction(0)
    for ends, arrays in _pair_arrays(method, network, links, "allreduce"):
        crossed += arrays * sum(not {*next(iter(layer))} & {*links.workers} for layer in links.layers(*ends))
    rate_bps = sum(links.settings(hop).rate_bps for hop in between)
    busy = links.settings(between[0]).rate_bps
    return Busiest(between[0], crossed * busy / max(1, rate_bps), busy)


def _pair_arrays(
    method: str, network: NetworkParameters, links: Topology, kind: Kind
) -> Iterator[tuple[tuple[str, str], Fraction]]:
    """The arrays that nodes send to each other. In a tree of switches every child sends its parent a whole array, and
    gets one, whatever the kind (H2)."""
    if METHODS[method].end == "switch" and len(links.aggregators) > 1:
        for parent, children in links.children.items():
            for child in children:
                yield (child, parent), Fraction(1)
                yield (parent, child), Fraction(1)
        return
    if METHODS[method].servers:
        yield from _atp_pair_arrays(links)
        return
    nodes = (*links.members, links.root)  # the last is SWITCH, -1
    group = network.fabric.group(network.workers) if method in GROUPED else 0
    for (sender, to), arrays in flows(method, network.workers, len(links.servers), kind, group).items():
        yield (nodes[sender], nodes[to]), arrays


def _atp_pair_arrays(links: Topology) -> Iterator[tuple[tuple[str, str], Fraction]]:
    """Where every packet finds its aggregator: a sum for each switch with workers, one of these to the server."""
    (server,) = links.servers
    at = {host: links.neighbours[host][0] for host in links.members}
    pairs = [*at.items(), *((name, at[server]) for name in {at[worker]: None for worker in links.workers})]
    for below, above in pairs:
        if below != above:
            yield (below, above), Fraction(1)
            yield (above, below), Fraction(1)


def _shares_of_servers(network: NetworkParameters) -> Iterator[tuple[Hop, list[int], list[int]]]:
    """How often a link of `ps` carries a server's share of an array, pushed to each server and as an answer to each
    worker."""
    links = network.folded.links("ps")
    servers = links.servers or links.workers
    values: Counter[tuple[Hop, str]] = Counter()
    answers: Counter[tuple[Hop, str]] = Counter()
    for server, worker in product(servers, links.workers):
        values.update((hop, server) for hop in links.path(worker, server))
        answers.update((hop, worker) for hop in links.path(server, worker))
    for hop, _ in links.hops:
        yield hop, [values[hop, server] for server in servers], [answers[hop, worker] for worker in links.workers]


def _loads_with_backups(network: NetworkParameters) -> Mapping[Hop, tuple[Fraction, Fraction]]:
    """The load of `ps` before some worker has its answers: pushes that a server waits for, and that worker's
    answers."""
    return {
        hop: (
            Fraction(sum(max(0, arrays - network.backups) for arrays in values), len(values)),
            Fraction(max(answers), len(values)),
        )
        for hop, values, answers in _shares_of_servers(network)
    }


@cache
def busiest(method: str, network: NetworkParameters) -> Busiest:
    """The bottleneck of the method's long arrays: the most bytes over the rate that transports them."""
    links = network.links(method)
    if method == "ps" and network.backups:
        links = network.folded.links(method)
        carried: Mapping[Hop, Fraction] = {
            hop: sum(both, Fraction()) for hop, both in _loads_with_backups(network).items()
        }
    else:
        carried = loads(method, network)
    every = [Busiest(hop, arrays, links.settings(hop).rate_bps) for hop, arrays in carried.items()]
    every += connections(method, network)
    if links.graph:
        every.append(_all_links(method, network))
    return max(every, key=lambda load: load.arrays / max(1, load.rate_bps))


def connections(method: str, network: NetworkParameters, kind: Kind = "allreduce") -> Iterator[Busiest]:
    """The connections of hosts, where a connection has its own rate: no other path compensates for it."""
    if not network.flow_bps:
        return
    if method == "auto":  # the one whose connections have least to carry
        every = [[*connections(name, network, kind)] for name in CANDIDATES if kind in COLLECTIVES[name].kinds]
        yield from min(every, key=lambda route: max((load.arrays for load in route), default=0))
        return
    links = network.folded.links(method)
    for pair, arrays in _pair_arrays(method, network.folded, links, kind):
        if pair[0] in links.members:
            yield Busiest(pair, arrays, network.flow_bps)


@cache
def transfers(method: str, network: NetworkParameters, kind: Kind = "allreduce", *, short: bool = False) -> int:
    """How many a host has to do with in a call, sent and received: the most of any host. short: of an array that one
    server of `ps` has all of."""
    if METHODS[method].packets or network.workers < 2:
        return 2 * (network.workers > 1)
    if method == "ps" and network.servers:
        return 2 * max(network.workers, 1 if short else network.servers)
    if method == "auto":
        return min(transfers(name, network, kind) for name in CANDIDATES)
    collective = METHODS[method].bounded_by
    kind = METHODS[method].does.get(kind, kind)
    name = fitting(kind, collective, network.workers)
    group = network.fabric.group(network.workers) if method in GROUPED and name == collective else 0
    return transfers_most(name, network.workers, group, kind) // (2 if method == "ps" and short else 1)


@dataclass(frozen=True)
class Needs:
    """The least times of a call, in ns. link: on the busiest link or connection; host: of a host, for its transfers;
    push, answer: of links, one after the other, where servers answer a call when all of it is there."""

    link_ns: float
    host_ns: float
    push_ns: float = 0.0
    answer_ns: float = 0.0

    @property
    def alone_ns(self) -> float:
        """The time of a call alone on the network."""
        return max(self.link_ns, self.host_ns, self.push_ns + self.answer_ns)

    @property
    def late_share(self) -> float:
        """The part of link_ns by which links take longer for a call alone since answers come late."""
        return max(0.0, (self.push_ns + self.answer_ns) / self.link_ns - 1)


def needs(
    name: MethodName, size_bytes: float, link_ns: float, network: NetworkParameters, kind: Kind = "allreduce"
) -> Needs:
    """The needs of a call that the busiest link carries in link_ns: the bound, fidelity level `formula` and the model
    of schedules share them."""
    host_ns = 0
    if network.transfer_ns:
        host_ns = network.transfer_ns * transfers(name.method, network, kind, short=size_bytes <= SLICE_BYTES)
    if name.method != "ps" or not network.push_then_pull or kind != "allreduce":
        return Needs(link_ns, host_ns)
    pushed, answered, both = _one_after_the_other(network)
    return Needs(link_ns, host_ns, link_ns * pushed / both, link_ns * answered / both)


@cache
def _one_after_the_other(network: NetworkParameters) -> tuple[float, float, float]:
    """Arrays of `ps` over the rate of the busiest link: pushed arrays, answers, and all arrays."""
    links, busy = network.folded.links("ps"), (0.0, 0.0, 0.0)
    for hop, values, answers in _shares_of_servers(network):
        share = len(values) * max(1, links.settings(hop).rate_bps)
        pushed, answered = sum(values) / share, sum(answers) / share
        busy = max(busy[0], pushed), max(busy[1], answered), max(busy[2], pushed + answered)
    return busy


def _of_calls(calls: Sequence[Needs], network: NetworkParameters) -> float:
    """The time of concurrent calls, so many at once: the busiest resource is never idle, but while a rank launches the
    first one. Pushes before the longest
    call's push precede its answer, and pushes behind it are answered after that."""
    both_ns = sum(min(needs.push_ns, needs.answer_ns) for needs in calls)
    longest_ns = max(needs.push_ns + needs.answer_ns - min(needs.push_ns, needs.answer_ns) for needs in calls)
    launched_ns = (len(calls) - 1) * network.call_ns
    together_ns = network.call_ns + max(
        sum(needs.link_ns for needs in calls), sum(needs.host_ns for needs in calls), both_ns + longest_ns, launched_ns
    )
    alone_ns = sum(network.call_ns + needs.alone_ns for needs in calls)
    return max(together_ns, alone_ns / network.calls_at_once if network.calls_at_once else 0.0)


def bound(name: MethodName, size_bytes: int, network: NetworkParameters, calls: Sequence[int] = ()) -> Bound:
    """The bound of allreduces of so many bytes of floats in all. calls: bytes of each call; (): there is one call."""
    least = bound_of_links(name, size_bytes, network)
    moved: list[tuple[int, Kind]] = [(size, "allreduce") for size in calls or (size_bytes,)]
    return _with_hosts(least, name, moved, network)


def _with_hosts(least: Bound, name: MethodName, calls: Sequence[tuple[int, Kind]], network: NetworkParameters) -> Bound:
    total = sum(size for size, _ in calls)
    if not total or not (network.transfer_ns or network.call_ns or network.push_then_pull):
        return least
    byte_ns = least.communication_ns / total
    every = [needs(name, size, byte_ns * size, network, kind) for size, kind in calls]
    return replace(least, communication_ns=_of_calls(every, network))


def bound_of_links(name: MethodName, size_bytes: int, network: NetworkParameters) -> Bound:
    """The bound by links and connections alone."""
    if _codes_pushes(name, network):
        return _bound_of_pushes(name, size_bytes, network)
    codec = _codec(name, network.workers)
    if isinstance(codec, ArrayCodec):
        return _together(name, codec.moved(size_bytes // 4, network.workers), size_bytes, network, 1.0)
    most, links, of_links = busiest(name.method, network), network.links(name.method), loads(name.method, network)
    of_rank = max(arrays for hop, arrays in of_links.items() if set(hop) & set(links.workers))
    elements = elements_of(name, network.elements, network.mtu_bytes)
    tag_elements = network.tag_elements(elements)
    efficiency = framing_efficiency(name, elements, network.mtu_bytes, network.workers, tag_elements)
    wire_bytes = size_bytes * float(most.arrays) / efficiency
    return Bound(
        float(most.arrays),
        efficiency,
        size_bytes * float(of_rank) / efficiency,
        wire_bytes * 8e9 / most.rate_bps,
    )


def bound_together(name: MethodName, moved: Mapping[Kind, int], size_bytes: int, network: NetworkParameters) -> Bound:
    """The bound of calls of several kinds, in any order and at the same time: a link carries the bytes of all of them.

    moved: bytes of the arrays of each kind, float32. size_bytes: what the factor refers to. All-gathers carry values as
    they are, without exponents.
    """
    elements = elements_of(name, network.elements, network.mtu_bytes)
    share = coded_share(name, "float32", elements, network.workers, network.tag_elements(elements))
    least = _together(name, moved, size_bytes, network, share)
    return _with_hosts(least, name, [(size, kind) for kind, size in moved.items()], network)


def _together(
    name: MethodName, moved: Mapping[Kind, float], size_bytes: int, network: NetworkParameters, share: float
) -> Bound:
    """share: `coded_share` of those that combine."""
    links = network.links(name.method)
    elements = elements_of(name, network.elements, network.mtu_bytes)
    plain = float(payload_share(name, elements, network.mtu_bytes))
    bare = 1 - network.tag_elements(elements) / elements if name.in_packets else 1.0
    efficiency = {kind: plain * (bare if kind == "all_gather" else share) for kind in moved}
    routed = not name.in_packets or (
        name.is_switch and LINKS[name.link].header_only
    )  # else all send all values to all (W15)
    of_kind = {kind: loads(name.method, network, kind if routed else "allreduce") for kind in moved}
    exactly = {kind: Fraction(size) for kind, size in moved.items()}
    arrays = {hop: sum(of_kind[kind][hop] * exactly[kind] for kind in moved) for hop, _ in links.hops}
    wire = {hop: sum(float(of_kind[kind][hop] * exactly[kind]) / efficiency[kind] for kind in moved) for hop in arrays}
    most = max(wire, key=lambda hop: wire[hop] / max(1, links.settings(hop).rate_bps))
    of_pairs: Counter[Hop] = Counter()
    for kind in moved:
        for load in connections(name.method, network, kind if routed else "allreduce"):
            of_pairs[load.hop] += float(load.arrays * exactly[kind]) / efficiency[kind] * 8e9 / load.rate_bps  # type: ignore[assignment]
    return Bound(
        float(arrays[most] / max(1, size_bytes)),
        float(arrays[most]) / wire[most] if wire[most] else plain * share,
        max(size for hop, size in wire.items() if set(hop) & set(links.workers)),
        max(wire[most] * 8e9 / links.settings(most).rate_bps, *of_pairs.values(), 0.0),
    )


def _codes_pushes(name: MethodName, network: NetworkParameters) -> bool:
    return name.method == "ps" and network.keeps_weights and bool(name.codec)


def _bound_of_pushes(name: MethodName, size_bytes: int, network: NetworkParameters) -> Bound:
    """Where servers keep weights: each gradient is coded on its way there, and weights come back as they are."""
    plain = float(payload_share(name, network.elements, network.mtu_bytes))
    pushed_bytes, links = PushCodec(name.codec).size_bytes(size_bytes // 4), network.folded.links("ps")
    first = _loads_with_backups(network)
    wire = {
        hop: float(values * pushed_bytes + answers * size_bytes) / plain for hop, (values, answers) in first.items()
    }
    most = max(wire, key=lambda hop: wire[hop] / max(1, links.settings(hop).rate_bps))
    of_rank = [0.0, 0.0]  # sent, received
    for hop, values, answers in _shares_of_servers(network):
        for way in (0, 1):
            if hop[way] in links.workers:
                carried = (sum(values) * pushed_bytes + sum(answers) * size_bytes) / len(values) / plain
                of_rank[way] = max(of_rank[way], carried)
    arrays = float(sum(first[most]))
    return Bound(
        arrays,
        arrays * size_bytes / wire[most] if wire[most] else plain,
        of_rank[0],
        wire[most] * 8e9 / links.settings(most).rate_bps,
        of_rank[1],
    )


def wire_bytes_per_server(name: MethodName, size_bytes: int, network: NetworkParameters) -> tuple[float, float]:
    """Sent and received by each server of `ps` that has a link of its own, if each has the same share."""
    least = bound(name, size_bytes, network)
    copies = 1.0 if METHODS[name.method].servers else network.workers / network.servers  # `atp`: sums of all workers
    answer_bytes = least.wire_bytes_per_rank if least.wire_rx_bytes_per_rank is None else least.wire_rx_bytes_per_rank
    return answer_bytes * copies, least.wire_bytes_per_rank * copies


def payload_limit(name: MethodName, network: NetworkParameters) -> float:
    """rate × payload / (payload + headers), in bytes per second: what a host's link carries of the method's payload."""
    return _payload_of(name, network, network.rate_bps)


def _payload_of(name: MethodName, network: NetworkParameters, rate_bps: int) -> float:
    elements = elements_of(name, network.elements, network.mtu_bytes)
    return rate_bps / 8 * float(payload_share(name, elements, network.mtu_bytes))


def algbw_bound(name: MethodName, dtype: str, network: NetworkParameters) -> float:
    """Most bytes per second of a long array that the method can sum. Integers need no exponents, and no codec."""
    of_arrays = isinstance(_codec(name, network.workers), ArrayCodec) or _codes_pushes(name, network)
    if of_arrays and dtype == "float32":
        return LONG_BYTES * 1e9 / bound_of_links(name, LONG_BYTES, network).communication_ns
    most = busiest(name.method, network)
    limit = _payload_of(name, network, most.rate_bps) / float(most.arrays)
    elements = elements_of(name, network.elements, network.mtu_bytes)
    return limit * coded_share(name, dtype, elements, network.workers, network.tag_elements(elements))
