"""Method `switch` in virtual time: switches whose data planes aggregate, and an endpoint on every host."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from numpy.typing import NDArray

from emulation.sim.network.hosts import AggregationHost, Done
from emulation.sim.network.simulation import Call, Simulation, SimulationConfig
from emulation.sim.network.switched_network import Switch, SwitchedNetwork
from switchagg.aggregator import Parent
from switchagg.dataplane.contract import DataPlane
from switchagg.dataplane.table import DATAPLANES
from switchagg.description import Shown
from switchagg.endpoint import StreamFailed
from switchagg.errors import AggregationFailed
from switchagg.job import MODULUS
from switchagg.layout import shares_of
from switchagg.partial_endpoint import endpoint_of


class SwitchSimulation(Simulation):
    """Codecs are the endpoints': they code what packets hold. switches: those that aggregate for the job, by name."""

    codes_in_rounds = False

    def __init__(self, config: SimulationConfig, shared: SwitchedNetwork | None = None) -> None:
        super().__init__(config, shared)
        self.job = config.job()
        self.backups = self.job.backups
        if self.job.partial:
            self.mean_op = "avg"
        self.switches: dict[str, Switch] = {
            name: self.shared.aggregator(name, self._dataplane) for name in self.topology.aggregators
        }
        self._admit()
        self.hosts: list[AggregationHost] = []
        routed = DATAPLANES[config.dataplane].routes and len(self.switches) == 1  # H2
        for rank, (uplink, worker) in enumerate(zip(self.uplinks, self.topology.workers, strict=True)):
            parent = self.topology.parent(worker)
            assert parent is not None
            endpoint = endpoint_of(self.job, rank, self.topology.children[parent].index(worker))
            ends = self.first + rank, self.switches[parent].address
            host = AggregationHost(endpoint, uplink, self._failed, ends, config.codec, routed)
            host.split_calls, host.codec_seed = config.split_calls, config.codec_seed
            self._attach(rank, host.receive)
            self.hosts.append(host)

    def _dataplane(self) -> DataPlane:
        return DATAPLANES[self.config.dataplane](self.config.pool_slots or self.job.slots[1], self.config.elements)

    def _admit(self) -> None:
        children = self.topology.children
        for name, switch in self.switches.items():
            above = self.topology.parent(name)
            parent = Parent(self.switches[above].address, children[above].index(name)) if above else None
            assert switch.dataplane is not None
            switch.dataplane.admit(self.job, [self._address(child) for child in children[name]], parent)

    def _address(self, child: str) -> int:
        if child in self.switches:
            return self.switches[child].address
        return self.first + self.topology.workers.index(child)

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
        dataplane = self.switches[switch].dataplane
        assert dataplane is not None
        view = dataplane.seen(event.slot, event.version)
        seen = view.ranks if view.chunk == event.chunk % MODULUS else ()
        for place, child in enumerate(self.topology.children[switch]):
            if place in seen:
                continue
            if child in self.switches:
                yield from self._missing(child, event)
            else:
                yield self.topology.workers.index(child)

    def launch(self, rank: int, array: NDArray[Any], op: str, done: Done, *args: Any, **how: Any) -> None:
        """As of `Simulation`; partial sums are coded as sums, and come back as means of the ranks that are in them."""
        super().launch(rank, array, "sum" if op == "avg" else op, done, *args, **how)

    def finished_without(self, rank: int, sizes: Sequence[int]) -> bool:
        return self.job.partial and self.hosts[rank].has_early(sizes)

    def begin(self, rank: int, call: Call) -> None:
        if self.job.partial and call.op == "sum" and call.array.dtype.kind == "f":
            call = call._replace(op="avg")
        shown = Shown(call.kind, call.op, call.array.dtype, call.array.size, call.root)
        shares = shares_of(call.kind, call.root)
        self.hosts[rank].launch(call.array, call.op, call.done, call.priority, shares, shown, call.coded)

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
