"""Method `switch` in virtual time: switches whose data planes aggregate, and an endpoint on every host."""

from collections import Counter
from collections.abc import Iterator

from emulation.sim.network.hosts import AggregationHost
from emulation.sim.network.link import Link
from emulation.sim.network.simulation import Call, Simulation, SimulationConfig
from emulation.sim.network.switches import AggregationSwitch, PacketBridge, Switch
from switchagg.aggregator import Parent
from switchagg.dataplane.table import DATAPLANES
from switchagg.description import Shown
from switchagg.endpoint import Endpoint, StreamFailed
from switchagg.errors import AggregationFailed
from switchagg.job import MODULUS
from switchagg.layout import shares_of


class SwitchSimulation(Simulation):
    """Codecs are the endpoints': they code what packets hold. switches: those that aggregate, by name."""

    codes_in_rounds = False

    def __init__(self, config: SimulationConfig) -> None:
        super().__init__(config)
        self.job = config.job()
        self.switches: dict[str, AggregationSwitch] = {}
        self._add_switches(self._switch)
        self.hosts: list[AggregationHost] = []
        routed = DATAPLANES[config.dataplane].routes and len(self.switches) == 1  # H2
        for rank, (uplink, worker) in enumerate(zip(self.uplinks, self.topology.workers, strict=True)):
            parent = self.topology.parent(worker)
            assert parent is not None
            endpoint = Endpoint(self.job, rank, self.topology.children[parent].index(worker))
            host = AggregationHost(
                self.network, endpoint, uplink, self._failed, self._numbers[parent], config.codec, routed
            )
            host.split_calls, host.codec_seed = config.split_calls, config.codec_seed
            self._add_host(host.receive)
            self.hosts.append(host)

    def _switch(self, name: str, ports: list[Link]) -> Switch:
        latency_ns, children = self.config.switch_latency_ns, self.topology.children
        if name not in children:
            return PacketBridge(self.network, ports, latency_ns)
        dataplane = DATAPLANES[self.config.dataplane](self.job.slots[1], self.config.elements)
        above = self.topology.parent(name)
        parent = Parent(self._numbers[above], children[above].index(name)) if above else None
        dataplane.admit(self.job, [self._numbers[child] for child in children[name]], parent)
        made = AggregationSwitch(self.network, ports, latency_ns, dataplane, self._numbers[name])
        self.switches[name] = made
        return made

    def _failed(self, rank: int, event: StreamFailed) -> None:
        raise AggregationFailed(
            f"rank {rank} had no result after {event.timeouts} timeouts in a row",
            job=self.job.job_id,
            generation=self.job.generation,
            stream=event.stream,
            slot=event.slot,
            chunk=event.chunk,
            missing=tuple(sorted(self._missing(self.topology.root, event))),
        )

    def _missing(self, switch: str, event: StreamFailed) -> Iterator[int]:
        """Ranks below a switch from which neither it nor a switch between them has the chunk."""
        view = self.switches[switch].dataplane.seen(event.slot, event.version)
        seen = view.ranks if view.chunk == event.chunk % MODULUS else ()
        for place, child in enumerate(self.topology.children[switch]):
            if place not in seen:
                yield from self._missing(child, event) if child in self.switches else (self._numbers[child],)

    def begin(self, rank: int, call: Call) -> None:
        shown = Shown(call.kind, call.op, call.array.dtype, call.array.size, call.root)
        shares = shares_of(call.kind, call.root)
        self.hosts[rank].launch(call.array, call.op, call.done, call.priority, shares, shown, call.coded)

    def retransmissions(self) -> int:
        return sum(host.endpoint.counters["retransmitted"] for host in self.hosts)

    def switch_counters(self) -> dict[str, int]:
        counted: Counter[str] = Counter()
        for switch in self.switches.values():
            counted.update(switch.dataplane.counters)
        return {**counted, "drop_checksum": self._drop_checksum()}

    def _drop_checksum(self) -> int:
        return sum(switch.drop_checksum for switch in self.switches.values())

    def drop_checksum(self) -> int:
        return self._drop_checksum() + sum(host.drop_checksum for host in self.hosts)
