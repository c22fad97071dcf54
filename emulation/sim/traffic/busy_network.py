"""A switched network with the flows of a scenario on it, and what became of them beside the job."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from emulation.scenario_flows import places
from emulation.scenario_tables import FlowOptions
from emulation.sim.network.link import UDP_FRAMING_BYTES
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.switched_network import MESSAGE_FRAMING_BYTES, SwitchedNetwork
from emulation.sim.traffic.flows import Flows, Traffic
from emulation.sim.traffic.segments import Segment
from emulation.sim.traffic.sender import PAYLOAD_BYTES
from emulation.sim.traffic.shares import SharedLink, percentile
from emulation.topologies.table import topology
from emulation.topologies.topology import Hop, LinkSettings

JOB = "job"
SMALL_BYTES = 100_000  # of short flows, those whose times are reported apart, as papers do


class BusyNetwork(SwitchedNetwork):
    """config, servers: of the job, whose hosts are the first ones; those of flows follow. `document` after the run."""

    def __init__(self, config: SimulationConfig, servers: int, flows: Sequence[FlowOptions]) -> None:
        first = config.workers + servers
        found = places(flows, first)
        hosts = max(first, *(max(*place.sources, place.to) + 1 for place in found))
        link = config.link
        settings = LinkSettings(link.rate_bps, link.delay_ns, link.queue_bytes)
        built = topology(config.fabric, config.workers, hosts - config.workers + config.others, settings)
        super().__init__(
            built,
            link,
            latency_ns=config.switch_latency_ns,
            seed=config.seed,
            strict=config.strict_priority,
            trace=config.trace,
        )
        self._job = built.members[:first]
        names = built.members
        entries = [
            Flows(options, tuple(names[source] for source in sources), names[to])
            for options, (sources, to) in zip(flows, found, strict=True)
        ]
        self.traffic = Traffic(self, entries, config.seed)
        self.shared_links = self._shared_links()
        self.documents.append(self.document)
        self.time.schedule(0, self._watch)

    def document(self) -> dict[str, Any]:
        """`flows` and `shared_links` of a result, as `results_schema.md` has them."""
        return {
            "flows": [self._told(place) for place in range(len(self.traffic.entries))],
            "shared_links": [link.document() for link in self.shared_links],
        }

    def _watch(self, _frame: None, _sender: int, _to: int) -> None:
        for link in self.shared_links:
            link.watch()

    def _shared_links(self) -> list[SharedLink]:
        """Those that data of flows cross and the job does, too."""
        topology, crossing = self.topology, dict[Hop, set[str]]()
        begun: dict[Hop, int] = {}
        for place, (options, sources, to) in enumerate(self.traffic.entries):
            for number in range(options.count if options.endless else 1):
                for source in sources if not options.endless else [sources[number % len(sources)]]:
                    for hop in topology.path(source, to):
                        users = crossing.setdefault(hop, set())
                        if options.endless:
                            users.add(self.traffic.name(place, number))
                            begun[hop] = max(begun.get(hop, 0), options.start_ns)
        hops = [hop for host in self._job for hop in topology.path(host, topology.root)]
        jobs = {*hops, *(hop[::-1] for hop in hops)}
        return [
            SharedLink("-".join(hop), self.links[hop], (JOB, *sorted(users)), self._user_of, begun.get(hop, 0))
            for hop, users in sorted(crossing.items())
            if hop in jobs
        ]

    def _user_of(self, frame: Any) -> tuple[str, int]:
        if frame.__class__ is Segment:
            return self.traffic.names.get(frame.flow, ""), frame.wire_bytes
        size = frame.size + UDP_FRAMING_BYTES if frame.__class__ is np.ndarray else len(frame) + MESSAGE_FRAMING_BYTES
        return JOB, size

    def _told(self, place: int) -> dict[str, Any]:
        traffic, (options, sources, to) = self.traffic, self.traffic.entries[place]
        end_ns = min(self.time.now_ns, options.stop_ns or self.time.now_ns)
        seconds = max(end_ns - options.start_ns, 1) / 1e9
        told: dict[str, Any] = {
            "kind": options.kind,
            "from": list(sources),
            "to": to,
            "counters": traffic.counters(place),
        }
        if options.endless:
            received = [one.receiver.received * PAYLOAD_BYTES for one in traffic.connections[place]]
            return {**told, "goodput_bps": [size * 8 / seconds for size in received]}
        done = traffic.finished[place]
        times = [flow.time_ns for flow in done]
        told |= {
            "goodput_bps": [sum(flow.size_bytes for flow in done) * 8 / seconds],
            "finished": len(done),
            "time_p50_ns": percentile(times, 0.5),
            "time_p99_ns": percentile(times, 0.99),
        }
        small = [flow.time_ns for flow in done if flow.size_bytes <= SMALL_BYTES]
        return {**told, **({"small_time_p99_ns": percentile(small, 0.99)} if small else {})}
