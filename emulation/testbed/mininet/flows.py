"""The flows of a scenario in Mininet: real TCP sockets in processes of their hosts, and what they got of the links.

Their times are from when the counting of the job's bytes begins, and they are counted until that ends. Shared links are
described as virtual time does: bytes on the wire of the job, taken together, and of flows, and Jain's index.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from emulation.results.shares import JOB, LOOK_NS, percentile, shared_link, times
from emulation.scenario.scenario import Scenario
from emulation.scenario.scenario_flows import Arrivals, FlowPlace, SharedHop, flow_paths, job_hops, places, shared_hops
from emulation.scenario.scenario_tables import FlowOptions
from emulation.sim.traffic.segments import HEADERS_BYTES
from emulation.testbed import children
from emulation.testbed.certificate.monitor_messages import QueueReading
from emulation.testbed.children import Child, ChildCommand
from emulation.testbed.mininet.flow_end import RECEIVER, BeginFlows, CountFlows, FlowEnd, ReceivedFlows, SentFlows
from emulation.testbed.resource import Resource
from transport.links.ethernet import ETHERNET_BYTES

if TYPE_CHECKING:
    from emulation.testbed.mininet.emulated_network import EmulatedNetwork

PORT = 7_000  # of the first entry's flows; each entry has one
ANSWER_S = 30.0
BEGIN_NS = 20_000_000  # from when the run is said to begin until it does: by then all have heard it
MODULE = "emulation.testbed.mininet.flow_end"


@dataclass
class _Flows:
    options: FlowOptions
    place: FlowPlace
    senders: list[Child[Any]]
    receiver: Child[Any]
    looks: npt.NDArray[np.int64] | None = None  # rows as `Received` has them
    totals: Sequence[SentFlows] = ()


class RunningFlows(Resource):
    """All flows of a run. A context manager; leaving it ends their processes. `begin`, then `end`, and `document` for
    what they got."""

    def __init__(self, network: EmulatedNetwork, scenario: Scenario) -> None:
        self._network = network
        self._flows: list[_Flows] = []
        self._start_ns = self._end_ns = 0
        members = network.spec.workers + network.spec.servers
        for number, (options, place) in enumerate(zip(scenario.flows, places(scenario.flows, members), strict=True)):
            to, sources = network.hosts[place.to], [network.hosts[source] for source in place.sources]
            arrivals = Arrivals.of(options, len(sources), network.spec.rate_bps, scenario.seed, number)
            addresses = tuple(source.address for source in sources)
            end = FlowEnd(to.address, PORT + number, arrivals, addresses, RECEIVER)
            flows = _Flows(options, place, [], self._spawn(place.to, f"flows to {to.name}", end))
            self._flows.append(flows)
            control = options.kind if options.endless else options.congestion
            for index, source in enumerate(sources):
                end = msgspec.structs.replace(end, source=index, congestion=control, ecn=bool(options.ecn))
                flows.senders.append(self._spawn(place.sources[index], f"flows from {source.name}", end))
        links, hosts = network.spec.links, [host.name for host in network.hosts]
        paths = flow_paths(scenario.flows, links, hosts, members)
        shared = shared_hops(scenario.flows, paths, job_hops(links, hosts[:members]), JOB)
        self._shared = {network.interface(link.hop): link for link in shared}

    def _open(self) -> None:
        self._ask(self._children)

    def close(self) -> None:
        """Ends all of them, by their ids. Idempotent."""
        children.close(self._children)

    @property
    def _children(self) -> list[Child[Any]]:
        return [child for flows in self._flows for child in (flows.receiver, *flows.senders)]

    @property
    def interfaces(self) -> frozenset[str]:
        """The interfaces that send over shared links, whose queue readings `document` needs."""
        return frozenset(self._shared)

    def check(self) -> None:
        """Raises ChildFailed, in one line, if one has ended."""
        if not self._end_ns and any(child.process.poll() is not None for child in self._children):
            self._ask(self._children)

    def begin(self) -> None:
        """The run begins: what is due is sent. Raises ChildFailed."""
        self._start_ns = time.monotonic_ns() + BEGIN_NS
        for group in (
            [flows.receiver for flows in self._flows],
            [sender for flows in self._flows for sender in flows.senders],
        ):
            self._order(group, BeginFlows(self._start_ns))

    def end(self) -> None:
        """The run ends, and with it the flows. Raises ChildFailed."""
        for flows in self._flows:
            (received,) = self._order([flows.receiver], CountFlows())
            assert isinstance(received, ReceivedFlows)
            flows.looks = np.array(received.looks, np.int64)
            flows.totals = self._order(flows.senders, CountFlows())
        self._end_ns = time.monotonic_ns()
        self.close()

    def document(self, looks: Mapping[str, Sequence[QueueReading]]) -> dict[str, Any]:
        """What became of them, as `results_schema.md` has it. looks: at each of `interfaces`, meanwhile."""
        return {
            "flows": [self._document(flows) for flows in self._flows],
            "shared_links": [
                self._share(shared, looks[name]) for name, shared in self._shared.items() if looks.get(name)
            ],
        }

    def _document(self, flows: _Flows) -> dict[str, Any]:
        assert flows.looks is not None, "they end before that"
        options, names = flows.options, [host.name for host in self._network.hosts]
        last_ns = int(flows.looks[-1, 0]) - self._start_ns
        seconds = max(min(last_ns, options.stop_ns or last_ns) - options.start_ns, 1) / 1e9
        sources = [names[source] for source in flows.place.sources]
        entry = {"kind": options.kind, "from": sources, "to": names[flows.place.to]}
        if options.endless:
            return {**entry, "goodput_bps": [size * 8 / seconds for size in flows.looks[-1, 1:].tolist()]}
        done = list(chain.from_iterable(total.finished for total in flows.totals))
        late_ns = list(chain.from_iterable(total.late_ns for total in flows.totals))
        entry |= times(done, sum(total.unfinished for total in flows.totals), seconds)
        return {**entry, "late_p99_ns": percentile(late_ns, 0.99)}

    def _share(self, shared: SharedHop, looks: Sequence[QueueReading]) -> dict[str, Any]:
        """All other bytes that the link carried are the job's."""
        at_ns, sent_bytes, backlog_bytes = np.array(looks).T
        grid_ns = np.append(np.arange(self._start_ns, self._end_ns, LOOK_NS), self._end_ns)
        headers = HEADERS_BYTES - ETHERNET_BYTES
        payload = self._network.spec.mtu_bytes - headers
        users: dict[str, npt.NDArray[np.float64]] = {}
        for path in shared.paths:
            counted = self._flows[path.place].looks
            assert counted is not None, "they end before that"
            had = np.interp(grid_ns, counted[:, 0], counted[:, 1 + path.number])
            users[path.user] = users.get(path.user, 0.0) + had * (payload + HEADERS_BYTES) / payload
        link = np.interp(grid_ns, at_ns, sent_bytes)
        job = link - link[0] - sum(users.values())
        users = {JOB: np.maximum.accumulate(np.maximum(job, 0.0)), **users}
        columns = [np.rint(had).astype(np.int64).tolist() for had in users.values()]
        by_look = [dict(zip(users, had, strict=True)) for had in zip(*columns, strict=True)]
        inside = (at_ns >= self._start_ns + shared.from_ns) & (at_ns <= self._end_ns)
        name = "-".join(shared.hop)
        return shared_link(name, by_look, shared.equals, shared.from_ns, backlog_bytes[inside].tolist())

    def _spawn(self, host: int, name: str, end: FlowEnd) -> Child[Any]:
        spawn: Callable[..., subprocess.Popen[Any]] = partial(self._network.spawn, host)
        return children.start(spawn, name, MODULE, end, ReceivedFlows | SentFlows)

    def _order(self, group: Sequence[Child[Any]], order: ChildCommand) -> list[Any]:
        for child in group:
            child.send(order)
        return self._ask(group)

    def _ask(self, group: Sequence[Child[Any]]) -> list[Any]:
        return children.gather(group, ANSWER_S)
