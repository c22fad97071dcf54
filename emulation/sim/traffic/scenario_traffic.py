"""The flows of a scenario on the network of a job, and what became of them beside it."""

from collections.abc import Sequence
from typing import Any

from emulation.results.shares import times
from emulation.scenario.scenario_flows import flow_paths, job_hops, places, shared_hops
from emulation.scenario.scenario_tables import FlowOptions
from emulation.sim.lossless.simulated_queue_pair import rdma_bytes_of
from emulation.sim.network.simulated_link import Origin
from emulation.sim.network.simulation import Simulation
from emulation.sim.traffic.background_traffic import BackgroundTraffic, FlowGroup
from emulation.sim.traffic.shared_link import SharedLink


class ScenarioTraffic:
    """job: the measured one, whose network has hosts for these flows, the first after its own. `document` after the
    run."""

    def __init__(self, job: Simulation, flows: Sequence[FlowOptions]) -> None:
        self.network, self._job = job.shared, job
        names, first = job.topology.hosts, len(job.topology.members)
        entries = [
            FlowGroup(options, tuple(names[source] for source in sources), names[to])
            for options, (sources, to) in zip(flows, places(flows, first), strict=True)
        ]
        self.traffic = BackgroundTraffic(
            self.network, entries, job.config.seed, rdma_bytes_of(job.config.reliable.segment_bytes)
        )
        self.shared_links = self._shared_links()
        self.network.documents.append(self.document)
        self.network.time.schedule(0, self._watch)

    def document(self) -> dict[str, Any]:
        """`flows` and `shared_links` of a result, as `results_schema.md` has them."""
        return {
            "flows": [self._flow_document(place) for place in range(len(self.traffic.entries))],
            "shared_links": [link.document() for link in self.shared_links if link.shared],
        }

    def _watch(self, _frame: None, _sender: int, _to: int) -> None:
        for link in self.shared_links:
            link.watch()

    def _shared_links(self) -> list[SharedLink]:
        """The link directions that both the flows' data and the job cross."""
        job, links, topology = self._job, self.network.links, self.network.topology
        flows, members = [entry.options for entry in self.traffic.entries], job.topology.members
        paths = flow_paths(flows, topology, job.topology.hosts, len(members))
        return [
            SharedLink("-".join(hop), links[hop], equals, self._user_of, from_ns, len(topology.tops) > 1)
            for hop, _, equals, from_ns in shared_hops(flows, paths, job_hops(topology, members), job.config.user)
        ]

    def _user_of(self, origin: Origin) -> str:
        if origin.job is not None:  # of a damaged packet maybe another
            return self.network.users.get(origin.job, self._job.config.user)
        return self.network.users_at.get(origin.sender) or self.traffic.names[origin.flow]

    def _flow_document(self, place: int) -> dict[str, Any]:
        traffic, (options, sources, to) = self.traffic, self.traffic.entries[place]
        now_ns = self.network.time.now_ns
        end_ns = min(now_ns, options.stop_ns or now_ns)
        seconds = max(end_ns - options.start_ns, 1) / 1e9
        document: dict[str, Any] = {
            "kind": options.kind,
            "from": list(sources),
            "to": to,
            "counters": traffic.counters(place),
        }
        if options.endless:
            received = [connection.received_bytes for connection in traffic.connections[place]]
            return {**document, "goodput_bps": [size * 8 / seconds for size in received]}
        return {**document, **times(traffic.finished[place], len(traffic.running[place]), seconds)}
