"""Method `switch` in virtual time: a switch whose data plane aggregates, and an endpoint on every host."""

from emulation.sim.network.hosts import AggregationHost
from emulation.sim.network.simulation import Call, Simulation, SimulationConfig
from emulation.sim.network.switches import AggregationSwitch, PacketBridge
from switchagg.dataplane.table import DATAPLANES
from switchagg.description import Shown
from switchagg.endpoint import StreamFailed
from switchagg.errors import AggregationFailed
from switchagg.layout import shares_of


class SwitchSimulation(Simulation):
    """Codecs are the endpoints': they code what packets hold."""

    codes_in_rounds = False

    def __init__(self, config: SimulationConfig) -> None:
        super().__init__(config)
        self.job = config.job()
        dataplane = DATAPLANES[config.dataplane](self.job.slots[1], config.elements)
        dataplane.admit(self.job, range(config.workers))
        latency_ns = config.switch_latency_ns
        self.switch = AggregationSwitch(self.network, self._ports[self.topology.aggregator], latency_ns, dataplane)
        self._add_switches(
            lambda name, ports: (
                self.switch if name == self.topology.aggregator else PacketBridge(self.network, ports, latency_ns)
            )
        )
        self.hosts: list[AggregationHost] = []
        routed = DATAPLANES[config.dataplane].routes
        for rank, uplink in enumerate(self.uplinks):
            host = AggregationHost(
                self.network, rank, self.job, uplink, self._failed, self.aggregator, config.codec, routed
            )
            host.split_calls, host.codec_seed = config.split_calls, config.codec_seed
            self._add_host(host.receive)
            self.hosts.append(host)

    def _failed(self, rank: int, event: StreamFailed) -> None:
        seen = self.switch.dataplane.seen(event.slot, event.version).ranks
        raise AggregationFailed(
            f"rank {rank} had no result after {event.timeouts} timeouts in a row",
            job=self.job.job_id,
            generation=self.job.generation,
            stream=event.stream,
            slot=event.slot,
            chunk=event.chunk,
            missing=tuple(r for r in range(self.config.workers) if r not in seen),
        )

    def begin(self, rank: int, call: Call) -> None:
        shown = Shown(call.kind, call.op, call.array.dtype, call.array.size, call.root)
        shares = shares_of(call.kind, call.root)
        self.hosts[rank].launch(call.array, call.op, call.done, call.priority, shares, shown, call.coded)

    def retransmissions(self) -> int:
        return sum(host.endpoint.counters["retransmitted"] for host in self.hosts)

    def switch_counters(self) -> dict[str, int]:
        return {**self.switch.dataplane.counters, "drop_checksum": self.switch.drop_checksum}

    def drop_checksum(self) -> int:
        return self.switch.drop_checksum + sum(host.drop_checksum for host in self.hosts)
