"""The flows of a scenario on the network of a job, and what became of them beside it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from emulation.scenario_flows import places
from emulation.scenario_tables import FlowOptions
from emulation.sim.network.link import UDP_FRAMING_BYTES, CorruptedFrame
from emulation.sim.network.simulation import Simulation
from emulation.sim.network.switched_network import MESSAGE_FRAMING_BYTES
from emulation.sim.traffic.flows import Flows, Traffic
from emulation.sim.traffic.sender import PAYLOAD_BYTES
from emulation.sim.traffic.shares import SharedLink, percentile
from emulation.topologies.topology import Hop
from switchagg.wire import job_of

SMALL_BYTES = 100_000  # of short flows, those whose times are reported apart, as papers do


class FlowsBeside:
    """job: the measured one, whose network has hosts for these flows, the first after its own. `document` after the
    run."""

    def __init__(self, job: Simulation, flows: Sequence[FlowOptions]) -> None:
        self.network, self._job = job.shared, job
        names, first = job.topology.hosts, len(job.topology.members)
        entries = [
            Flows(options, tuple(names[source] for source in sources), names[to])
            for options, (sources, to) in zip(flows, places(flows, first), strict=True)
        ]
        self.traffic = Traffic(self.network, entries, job.config.seed)
        self.shared_links = self._shared_links()
        self.network.documents.append(self.document)
        self.network.time.schedule(0, self._watch)

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
        topology, crossing = self.network.topology, dict[Hop, set[str]]()
        begun: dict[Hop, int] = {}
        for place, (options, sources, to) in enumerate(self.traffic.entries):
            for number in range(options.count if options.endless else 1):
                for source in sources if not options.endless else [sources[number % len(sources)]]:
                    for hop in topology.path(source, to):
                        users = crossing.setdefault(hop, set())
                        if options.endless:
                            users.add(self.traffic.name(place, number))
                            begun[hop] = max(begun.get(hop, 0), options.start_ns)
        job = self._job
        hops = [hop for host in job.topology.members for hop in topology.path(host, topology.root)]
        jobs = {*hops, *(hop[::-1] for hop in hops)}
        links, user, name_of = self.network.links, job.config.user, self._user_of
        return [
            SharedLink("-".join(hop), links[hop], (user, *sorted(users)), name_of, begun.get(hop, 0))
            for hop, users in sorted(crossing.items())
            if hop in jobs
        ]

    def _user_of(self, frame: Any, sender: int, to: int) -> tuple[str, int]:
        damaged = frame.__class__ is CorruptedFrame
        if frame.shape is not None if damaged else frame.__class__ is np.ndarray:  # a packet of method `switch`
            size_bytes = len(frame.data) if damaged else frame.size
            job = job_of(frame.data if damaged else frame[0])  # of a damaged one maybe another
            return self.network.users.get(job, self._job.config.user), size_bytes + UDP_FRAMING_BYTES
        user = self.network.users_at.get(sender) or self.traffic.names[frame.flow]
        return user, len(frame) + MESSAGE_FRAMING_BYTES

    def _told(self, place: int) -> dict[str, Any]:
        traffic, (options, sources, to) = self.traffic, self.traffic.entries[place]
        now_ns = self.network.time.now_ns
        end_ns = min(now_ns, options.stop_ns or now_ns)
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
