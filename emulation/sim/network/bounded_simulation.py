"""Methods with bounded loss in virtual time: sums of float32 by their parties, everything else exactly, by `direct`."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from emulation.sim.engine.links import SimulatedLink
from emulation.sim.network.aggregation_host import SimulatedCall
from emulation.sim.network.host_simulation import HostSimulation
from emulation.sim.network.host_uplink import Alarm, Done, HostUplink
from emulation.sim.network.simulated_link import (
    CE,
    DROPPABLE,
    ECT,
    UDP_FRAMING_BYTES,
    addressed,
)
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.switched_network import SwitchedNetwork
from switchagg.priority import MOST_URGENT
from transport.bounded.bounded_calls import BoundedJob, loss_of
from transport.bounded.bounded_packets import DATA, HEADER_BYTES, PathConfig
from transport.bounded.bounded_party import BoundedParty
from transport.bounded.bounded_table import BOUNDED
from transport.collectives.cost import traffic_matrix
from transport.links.ethernet import ETHERNET_BYTES
from transport.links.framing import RELIABLE_BYTES
from transport.meshes.udp_mesh import CREDIT_BYTES

KIND_AT = 2
_REST = RELIABLE_BYTES - HEADER_BYTES + ETHERNET_BYTES + 20 - UDP_FRAMING_BYTES
"""Less values than a segment of the reliable connections, so that a frame is as long as theirs."""


class BoundedHost:
    """A member on its link, beside the MeshHost of what is exact."""

    def __init__(self, party: BoundedParty, link: SimulatedLink, first: int) -> None:
        self.party = party
        self.drop_checksum = 0
        self.left, self.arrived = [0, 0], [0, 0]  # packets of values: others, droppable ones
        self._link, self._strict, self._first = link, link.strict, first
        self._network = link.network
        self._ecn = 0 if link.config.ecn_bytes is None else ECT
        self._done: dict[int, Done] = {}
        frame_bytes = party.path.block_bytes + HEADER_BYTES + UDP_FRAMING_BYTES
        # Packets that a socket has can't be taken back by who is told to stop.
        self._uplink = HostUplink(self._network, link, frame_bytes, self._give, CREDIT_BYTES)
        self._alarm = Alarm(self._network, self._ring)

    def begin(self, call: SimulatedCall) -> None:
        key, priority = call.request.key, call.request.priority
        party_call = self.party.submit(call.array, key=key, priority=priority, now_ns=self._network.now_ns)
        self._done[id(party_call)] = call.done
        self._go_on()

    def receive(self, frame: Any, sender: int, to: int) -> None:
        if frame is None:  # its checksum is wrong
            self.drop_checksum += 1
            return
        self.arrived[bool(to & DROPPABLE)] += frame[KIND_AT] == DATA
        self.party.receive(frame, sender - self._first, self._network.now_ns, bool(to & CE))
        self._go_on()

    def _go_on(self) -> None:
        if self.party.failure is not None:
            raise self.party.failure
        for call in self.party.events():
            self._done.pop(id(call))()
        self._uplink.pump()
        self._alarm.set(self.party.next_deadline_ns())

    def _give(self, limit: int) -> int:
        now_ns = self._network.now_ns
        frames = self.party.frames_to_send(limit, now_ns)
        for frame in frames:
            to = self._first + frame.to
            to = addressed(to, frame.priority) if self._strict else to
            to |= DROPPABLE * frame.droppable | self._ecn
            self.left[frame.droppable] += frame.data[KIND_AT] == DATA
            self._link.send(
                frame.data, len(frame.data) + UDP_FRAMING_BYTES, now_ns, self._first + self.party.member, to
            )
        if frames:
            self._alarm.set(self.party.next_deadline_ns())
        return len(frames)

    def _ring(self) -> None:
        self.party.handle_timer(self._network.now_ns)
        self._go_on()


class BoundedSimulation(HostSimulation):
    """method: a name in BOUNDED. Calls without a key are told apart by their number alone: contributions need keys."""

    names_calls = True
    plain_priority = MOST_URGENT
    transfers_cost = False

    def __init__(self, config: SimulationConfig, shared: SwitchedNetwork | None = None, *, method: str) -> None:
        super().__init__(replace(config, tcp=""), shared, method="direct")
        self.shared.keep_values()
        self._bounded: list[BoundedHost] = []
        kind = BOUNDED[method]
        options = kind.options(**config.bounded)
        workers = config.workers
        connections = self._connections(traffic_matrix("direct", workers))
        for member, uplink in enumerate(self.uplinks):
            flows = {to: self._path(connections(member, to).window_bytes) for to in range(workers) if to != member}
            party = BoundedParty(
                member,
                workers,
                kind.make(options, workers),
                job=BoundedJob(method),
                path=min(flows.values(), key=lambda path: path.window_bytes, default=self._path(1 << 20)),
                windows=flows,
                terms=str(options),
            )
            host = BoundedHost(party, uplink, self.first)
            self._bounded.append(host)
            self._attach(member, host.receive)  # beside the member of what is exact

    def _path(self, window_bytes: int) -> PathConfig:
        config, reliable = self.config, self.reliable
        block_bytes = (config.reliable.segment_bytes + _REST) // 4 * 4
        return PathConfig(
            block_bytes=block_bytes,
            window_bytes=max(window_bytes, 2 * block_bytes),
            ack_every=reliable.ack_every_segments,
            rto_initial_ns=config.rto_initial_ns,
            rto_min_ns=config.rto_min_ns,
            rto_max_ns=config.rto_max_ns,
            retry_limit=config.retry_limit,
        )

    def begin(self, rank: int, call: SimulatedCall) -> None:
        if (call.request.kind, call.request.op) == ("allreduce", "sum") and call.array.dtype == np.float32:
            self._bounded[rank].begin(call)
        else:
            super().begin(rank, call)

    def _counted(self) -> Counter[str]:
        """The counters of all members' parties."""
        return sum((host.party.counters for host in self._bounded), Counter())

    def gradient_loss(self) -> dict[str, float]:
        document = loss_of(self._counted())
        left, arrived = ([sum(counts) for counts in zip(*counts_of, strict=True)] for counts_of in self._packets())
        if left[True]:
            document |= {
                name: (left[kind] - arrived[kind]) / max(1, left[kind])
                for kind, name in enumerate(("kept", "droppable"))
            }
        return document

    def _packets(self) -> tuple[list[list[int]], list[list[int]]]:
        """Packets of values that left each host and that arrived: other packets, droppable packets."""
        return [host.left for host in self._bounded], [host.arrived for host in self._bounded]

    def retransmissions(self) -> int:
        return super().retransmissions() + self._counted()["repeated"]

    def drop_checksum(self) -> int:
        return super().drop_checksum() + sum(host.drop_checksum for host in self._bounded)
