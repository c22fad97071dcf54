"""The flows of a scenario in Mininet: real TCP sockets in processes of their hosts, and what they got of the links.

They begin when the counting of the job's bytes begins, and are counted until that ends. A link that several cross is
described as virtual time does: bytes on the wire of the job, taken together, and of each flow, and Jain's index.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from emulation import children
from emulation.children import Child
from emulation.mininet.flow_end import Begin, Count, FlowEnd, Received
from emulation.scenario_flows import FlowPlace, places
from emulation.scenario_tables import FlowOptions
from emulation.sim.traffic.segments import HEADERS_BYTES
from emulation.sim.traffic.shares import jain
from transport.links.ethernet import ETHERNET_BYTES

if TYPE_CHECKING:
    from emulation.mininet.topology import EmulatedNetwork

PORT = 7_000  # of the first entry's flows; each entry has one
ANSWER_S = 30.0
MODULE = "emulation.mininet.flow_end"


@dataclass
class _Flows:
    options: FlowOptions
    place: FlowPlace
    senders: list[Child[Any]]
    receiver: Child[Any]
    before: Received | None = None


class RunningFlows:
    """All flows of a run. A context manager; leaving it ends their processes. `begin`, then `end` for what they got."""

    def __init__(self, network: EmulatedNetwork, flows: Sequence[FlowOptions]) -> None:
        self._network = network
        self._flows: list[_Flows] = []
        first = network.spec.workers + network.spec.servers
        for number, (options, place) in enumerate(zip(flows, places(flows, first), strict=True)):
            to, port = network.hosts[place.to], PORT + number
            each = options.count // len(place.sources)
            receiver = self._start(place.to, f"flows to {to.name}", FlowEnd(to.address, port, options.count))
            self._flows.append(_Flows(options, place, [], receiver))
            for source in place.sources:
                end = FlowEnd(to.address, port, each, options.kind, bool(options.ecn))
                name = f"flows from {network.hosts[source].name}"
                self._flows[-1].senders.append(self._start(source, name, end))

    def __enter__(self) -> RunningFlows:
        try:
            self._ask(self._children)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all of them, by their ids. Idempotent."""
        children.close(self._children)

    @property
    def _children(self) -> list[Child[Any]]:
        return [child for flows in self._flows for child in (flows.receiver, *flows.senders)]

    def begin(self) -> None:
        """All flows send from now on. Raises ChildFailed, in one line, if one can't: no such congestion control."""
        for flows in self._flows:
            for sender in flows.senders:
                sender.send(Begin())
            self._ask(flows.senders)
            flows.before = self._count(flows)

    def end(self, down_bytes: Sequence[int]) -> dict[str, Any]:
        """What became of them, as `results_schema.md` has it. down_bytes: of each host's link meanwhile."""
        told: list[dict[str, Any]] = []
        crossing: dict[int, dict[str, int]] = {}
        header = HEADERS_BYTES - ETHERNET_BYTES
        payload = self._network.spec.mtu_bytes - header
        for flows in self._flows:
            before, after = flows.before, self._count(flows)
            assert before is not None, "flows begin before they end"
            counts = [*before.bytes, *[0] * (len(after.bytes) - len(before.bytes))]
            got = [now - then for now, then in zip(after.bytes, counts, strict=True)]
            seconds = (after.at_ns - before.at_ns) / 1e9
            names, options = self._network.hosts, flows.options
            told.append(
                {
                    "kind": options.kind,
                    "from": [names[source].name for source in flows.place.sources],
                    "to": names[flows.place.to].name,
                    "goodput_bps": [size * 8 / seconds for size in got],
                }
            )
            users = crossing.setdefault(flows.place.to, {})
            for size in got:  # without what was sent again
                users[f"{options.kind} {len(users) + 1}"] = size * (payload + header + ETHERNET_BYTES) // payload
        links = []
        for host, users in sorted(crossing.items()):
            if host < self._network.spec.workers:
                users = {"job": max(0, down_bytes[host] - sum(users.values())), **users}
            name = self._network.hosts[host]
            links.append({"link": f"{name.port[0]}-{name.name}", "bytes": users, "jain": jain(list(users.values()))})
        return {"flows": told, "shared_links": links}

    def _start(self, host: int, name: str, end: FlowEnd) -> Child[Any]:
        spawn: Callable[..., subprocess.Popen[Any]] = partial(self._network.spawn, host)
        return children.start(spawn, name, MODULE, end, Received)

    def _count(self, flows: _Flows) -> Received:
        flows.receiver.send(Count())
        (counted,) = self._ask([flows.receiver])
        assert isinstance(counted, Received)
        return counted

    def _ask(self, asked: Sequence[Child[Any]]) -> list[Any]:
        return children.gather(asked, ANSWER_S)
