"""Methods `atp` and `esa` in virtual time: our workers and packets, aggregators in switches, a server behind them.

Only what is ATP's differs from method `switch`: who has which aggregator, what repairs a loss, and where sums are: in
the switches that workers are at, and in the server's. A packet's trailer has what ATP's header has beside ours: the
ranks it holds and the aggregator, 12 bytes, so that a packet of 360 elements still fits an MTU of 1500.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np

from emulation.sim.atp.aggregators import INDEXES_MOST, Aggregators, ChunkKey, ChunkSum, Fallback, Indexes, Update
from emulation.sim.engine.links import SimulatedLink
from emulation.sim.network.endpoint_host import EndpointHost
from emulation.sim.network.simulated_link import CE, ECT, UDP_FRAMING_BYTES
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.switch_simulation import EndpointSimulation
from emulation.sim.network.switched_network import SwitchedNetwork
from switchagg.dataplane.contract import DataPlane, Output
from switchagg.endpoint import Endpoint, StreamFailed
from switchagg.wire import (
    FLAG_RESULT,
    FLAG_RETRANSMISSION,
    FLAG_VERSION,
    HEADER,
    HEADER_BYTES,
    MARKED,
    Bundle,
    headers,
    op_of,
)

TRAILER = np.dtype([("ranks", ">u8"), ("index", ">u2"), ("other", ">u2")])
"""other: of an update, 256 times its priority, plus 1 where it found its aggregator taken, or lost it; of a result, the
index of the slot's next chunk."""


def with_trailer(frame: Bundle, ranks: int, index: int, other: int) -> Bundle:
    """A packet (1, size) of ours, as ATP's."""
    trailer = np.array([(ranks, index, other)], TRAILER).view(np.uint8)
    return np.concatenate((frame, trailer[None]), axis=1)


def trailer_of(frame: Bundle) -> tuple[int, int, int]:
    """ranks, index, other of a packet (1, size)."""
    ranks, index, other = np.ascontiguousarray(frame[0, -TRAILER.itemsize :]).view(TRAILER)[0].item()
    return ranks, index, other


def _key(header: Any) -> ChunkKey:
    return ChunkKey(int(header["job"]), int(header["slot"]), bool(header["kind"] & FLAG_VERSION), int(header["chunk"]))


def _update(frame: Bundle) -> Update:
    header, (ranks, index, other) = headers(frame)[0], trailer_of(frame)
    values = frame[0, HEADER_BYTES : -TRAILER.itemsize].view(">i4").astype(np.int32)
    kind = int(header["kind"])
    resend, marked = bool(kind & FLAG_RETRANSMISSION), bool(header["rank"] & MARKED)
    return Update(
        _key(header),
        index,
        ranks,
        op_of(kind),
        values,
        resend,
        bool(other & 1),
        marked,
        other >> 8,
        frame[:, :HEADER_BYTES],
    )


def _packed(frame: Bundle, sums: Update | ChunkSum, flags: int, trailer: tuple[int, int, int]) -> Bundle:
    """A packet of the chunk of `frame` with these sums."""
    values = sums.values
    packet = np.empty((1, HEADER_BYTES + 4 * values.size), np.uint8)
    packet[0, :HEADER_BYTES] = frame[0, :HEADER_BYTES]
    header = packet[0, :HEADER_BYTES].view(HEADER)[0:1]
    header["kind"] = int(header["kind"][0]) & ~(FLAG_RESULT | FLAG_RETRANSMISSION) | flags
    header["rank"] = MARKED if sums.marked else 0
    header["elements"] = values.size
    packet[0, HEADER_BYTES:] = values.astype(">i4").view(np.uint8)
    return with_trailer(packet, *trailer)


class ChildSwitch(NamedTuple):
    """A neighbour below a switch: where it is, and the ranks of a job whose packets come from there."""

    address: int
    ranks: int


@dataclass(frozen=True)
class _Admitted:
    """A job at a switch. above: the next switch with aggregators, or the server."""

    above: int
    below: tuple[ChildSwitch, ...]

    @property
    def ranks(self) -> int:
        return sum(child.ranks for child in self.below)


class AtpPlane:
    """The data plane of a simulated switch: aggregators that all jobs share."""

    def __init__(self, aggregators: Aggregators) -> None:
        self.aggregators = aggregators
        self._jobs: dict[int, _Admitted] = {}

    @property
    def counters(self) -> dict[str, int]:
        return self.aggregators.counters

    def join(self, job: int, above: int, below: Sequence[ChildSwitch]) -> None:
        """Pass on packets of a job from now on."""
        self._jobs[job] = _Admitted(above, tuple(below))

    def process(self, bundle: Bundle, port: int) -> list[Output]:
        """The outputs that one packet (1, size) causes, with their ports."""
        header = headers(bundle)[0]
        if int(header["kind"]) & FLAG_RESULT:
            ranks, index, _ = trailer_of(bundle)
            self.aggregators.free(_key(header), index)
            below = self._jobs[int(header["job"])].below
            return [Output(bundle, tuple(child.address for child in below if child.ranks & ranks))]
        outputs = []
        for update in self.aggregators.take(_update(bundle), self._jobs[int(header["job"])].ranks):
            assert update.head is not None
            flags = FLAG_RETRANSMISSION if update.resend else 0
            trailer = (update.ranks, update.index, update.collided | update.priority << 8)
            above = self._jobs[update.key.job].above  # which need not be that of the packet, if it evicted another's
            outputs.append(Output(_packed(update.head, update, flags, trailer), (above,)))
        return outputs


class AtpHost(EndpointHost):
    """A worker: packets say where they shall be summed; results say where the slot's next chunk shall be."""

    def __init__(self, *args: Any, indexes: Mapping[int, int], priority: int, **more: Any) -> None:
        super().__init__(*args, **more)
        self._priority = priority
        self._indexes = dict(indexes)
        self._latest: dict[int, int] = {}  # by slot: the chunk whose result named the index
        self._send = self._send_update

    def _send_update(self, frame: Bundle, size_bytes: int, ready_ns: int, sender: int, to: int) -> bool:
        index = self._indexes[int(headers(frame)["slot"][0])]
        update = with_trailer(frame, 1 << self._rank, index, self._priority << 8)
        return self._link.send(update, size_bytes + TRAILER.itemsize, ready_ns, sender, to)

    def _take(self, frame: Bundle, marked: bool) -> None:
        header = headers(frame)[0]
        slot, chunk = int(header["slot"]), int(header["chunk"])
        if chunk >= self._latest.get(slot, 0):
            self._latest[slot] = chunk
            self._indexes[slot] = trailer_of(frame)[2]
        super()._take(np.ascontiguousarray(frame[:, : -TRAILER.itemsize]), marked)


class AtpServer:
    """The parameter server's host. The server computes in no time; switches multicast the results."""

    def __init__(self, link: SimulatedLink, fallback: Fallback, ends: tuple[int, int]) -> None:
        self.fallback = fallback
        self.drop_checksum = 0
        self._link = link
        self._ends = ends

    def receive(self, frame: Any, _sender: int, to: int) -> None:
        """An update, whole or in part; None: its checksum is wrong."""
        if frame is None:
            self.drop_checksum += 1
            return
        update = _update(frame)
        result = self.fallback.take(replace(update, marked=True) if to & CE else update)
        if result is not None:
            answer = _packed(frame, result, FLAG_RESULT, (result.ranks, result.index, result.next_index))
            address, switch = self._ends
            self._link.send(
                answer, answer.size + UDP_FRAMING_BYTES, self._link.network.now_ns, address, switch | to & ECT
            )


class AtpSimulation(EndpointSimulation):
    """A job of workers and a server on a host of its own. kind, and config.aggregators: of each switch, for all jobs;
    the job whose simulation is made first decides."""

    transfers_cost = False

    def __init__(
        self,
        config: SimulationConfig,
        shared: SwitchedNetwork | None = None,
        *,
        kind: type[Aggregators] = Aggregators,
    ) -> None:
        config = replace(config, first_slot=config.first_slot or 0)  # slots only number chunks here
        super().__init__(config, shared, 1)
        job = self.job
        first, end = job.slots
        count = min(INDEXES_MOST, config.aggregators or 2 * max(config.pool_slots, end - first))
        server, (home,) = self.first + config.workers, self.topology.servers
        below: dict[str, list[ChildSwitch]] = {self._switch_of(home): []}
        for rank, worker in enumerate(self.topology.workers):
            below.setdefault(self._switch_of(worker), []).append(ChildSwitch(self.first + rank, 1 << rank))

        def plane() -> DataPlane:
            """A switch of a simulation asks it for `process` and `counters` alone."""
            return cast(DataPlane, AtpPlane(kind(count)))

        root, *leaves = self.switches = {name: self.shared.aggregator(name, plane) for name in below}
        for name in leaves:
            below[root].append(ChildSwitch(self.switches[name].address, sum(child.ranks for child in below[name])))
            self._planes[name].join(job.job_id, self.switches[root].address, below[name])
        self._planes[root].join(job.job_id, server, below[root])
        fallback = Fallback(config.workers, Indexes(job.job_id, range(first, end), count))
        self.server = AtpServer(self.uplinks[-1], fallback, (server, self.switches[root].address))
        self._attach(config.workers, self.server.receive)
        indexes = Indexes(job.job_id, range(first, end), count).of
        for rank, worker in enumerate(self.topology.workers):
            ends = self.first + rank, {job: self.switches[self._switch_of(worker)].address}
            endpoint, uplink = Endpoint(job, rank), self.uplinks[rank]
            options: dict[str, Any] = {"indexes": indexes, "priority": config.priority}
            self._add(AtpHost(endpoint, uplink, self._failed, ends, self._calls(rank, False), **options))

    def _switch_of(self, host: str) -> str:
        return self.topology.neighbours[host][0]

    @property
    def _planes(self) -> dict[str, AtpPlane]:
        return {name: cast(AtpPlane, switch.dataplane) for name, switch in self.switches.items()}

    def _failed(self, rank: int, event: StreamFailed) -> None:
        server = self.topology.servers[0]
        self._given_up(event, f"rank {rank} had no result from parameter server {server}", ())

    def switch_counters(self) -> dict[str, int]:
        server = {f"server_{name}": count for name, count in self.server.fallback.counters.items()}
        return {**super().switch_counters(), **server}

    def drop_checksum(self) -> int:
        return super().drop_checksum() + self.server.drop_checksum
