"""α–β–γ costs of a call: the bytes of the busiest link at its rate, and latency for each message of a plan.

The bytes, what hosts have to do and what servers answer late are those of `scenario/bounds.py`, the messages those of
`transport.collectives.cost`. Calls share the busiest link. γ is 0: in virtual time adding takes none.
"""

from dataclasses import dataclass, replace

import numpy as np

from emulation.scenario.bounds import (
    Needs,
    NetworkParameters,
    coded_share,
    connections,
    elements_of,
    loads,
    needs,
    payload_share,
)
from emulation.sim.flow.call_load import CallLoad
from emulation.sim.network.simulation import SimulationConfig
from switchagg.description import Kind
from transport.collectives.choice import CANDIDATES
from transport.collectives.collective import LinkCost
from transport.collectives.collective_table import COLLECTIVES
from transport.collectives.cost import predict
from transport.group.method_name import GROUPED, MethodName, parse
from transport.links.framing import IP_TCP_BYTES


@dataclass(frozen=True)
class MessageCost:
    """How messages travel. alpha_ns: of each, from its host to another. share: values in what links carry.
    message_bytes: of a segment, which goes on before the next one is there."""

    alpha_ns: float
    share: float
    message_bytes: int


def call_ns(
    name: MethodName, network: NetworkParameters, kind: Kind, size_bytes: float, message: MessageCost
) -> tuple[Needs, float]:
    """The needs of a call of size_bytes per rank, and its time alone. `auto` needs what the collective with the least
    bytes on a link needs, and takes as long as the fastest."""
    if name.method == "auto":
        weighed = [
            call_ns(replace(name, method=candidate), network, kind, size_bytes, message)
            for candidate in _candidates(kind)
        ]
        return min(weighed, key=lambda pair: pair[0].link_ns)[0], min(alone_ns for _, alone_ns in weighed)
    built = network.links(name.method)
    routed = name.is_switch and len(built.aggregators) > 1
    carried_kind: Kind = "allreduce" if routed or kind == "barrier" else kind
    wire_bytes, o_ns = size_bytes / message.share, network.transfer_ns
    hops = loads(name.method, network, carried_kind).items()
    links_ns = max(wire_bytes * float(arrays) * 8e9 / built.settings(hop).rate_bps for hop, arrays in hops)
    of_flows = (wire_bytes * float(load.arrays) * 8e9 / load.rate_bps for load in connections(name.method, network))
    busy_ns = max(links_ns, *of_flows, 0.0)
    needed = needs(name, size_bytes, busy_ns, network, carried_kind)
    collective = COLLECTIVES.get(name.method)
    if kind == "allreduce" and collective is not None and collective.costs is not None:
        slower = busy_ns / links_ns if links_ns else 1.0
        link = LinkCost((message.alpha_ns + 2 * o_ns) / 1e9, 8 / network.rate_bps / message.share * slower)
        group = network.fabric.group(network.workers) if name.method in GROUPED else 0
        alone_ns = predict(name.method, network.workers, size_bytes, link, group, message.message_bytes) * 1e9
    else:
        messages = 1 if name.is_switch else 2 if name.method == "ps" else network.workers - 1
        alone_ns = busy_ns + messages * (message.alpha_ns + 2 * o_ns)
    alone_ns = max(alone_ns, busy_ns, needed.host_ns + message.alpha_ns if needed.host_ns else 0.0)
    return needed, network.call_ns + alone_ns + max(0.0, needed.push_ns + needed.answer_ns - needed.link_ns)


def _candidates(kind: Kind) -> tuple[str, ...]:
    """What `auto` chooses from: it weighs allreduces alone."""
    return CANDIDATES if kind == "allreduce" else ("ring",)


def formula_shape(
    method: str, config: SimulationConfig, kind: Kind, size_bytes: int, dtype: "np.dtype[np.generic]", links: int
) -> CallLoad:
    """The load of a call of size_bytes per rank. links: the number of the network's links."""
    if method == "auto":
        shapes = [formula_shape(name, config, kind, size_bytes, dtype, links) for name in _candidates(kind)]
        return min(shapes, key=lambda load: float(np.max(load.done_ns)))
    name = parse(method)
    if name.is_switch:
        name = replace(name, codec=config.codec)
    network = NetworkParameters(
        config.workers,
        config.link.rate_bps,
        config.reliable.segment_bytes + IP_TCP_BYTES,
        config.elements,
        servers=config.servers,
        push_then_pull=bool(config.ps.get("push_then_pull")),
        fabric=config.fabric,
        verify=config.verify,
        **vars(replace(config.costs, call_ns=0)),  # which passes before the call begins
    )
    built = network.links(name.method)
    paths = [built.path(member, built.root) for member in built.members]
    alpha_ns = 2 * max(sum(config.link.delay_ns + config.switch_latency_ns for _ in path) for path in paths)
    elements = elements_of(name, config.elements, network.mtu_bytes)
    share = float(payload_share(name, elements, network.mtu_bytes))
    if name.is_switch:
        share *= coded_share(name, str(dtype), elements, config.workers, network.tag_elements(elements))
    needed, alone_ns = call_ns(name, network, kind, size_bytes, MessageCost(alpha_ns, share, config.message_bytes))
    busy_ns = max(needed.link_ns, needed.host_ns)
    routed = name.is_switch and len(built.aggregators) > 1
    carried = loads(name.method, network, "allreduce" if routed or kind == "barrier" else kind)
    sent_bytes = round(size_bytes / share * max(float(carried[hop]) for hop in carried if hop[0] in built.workers))
    received_bytes = round(size_bytes / share * max(float(carried[hop]) for hop in carried if hop[1] in built.workers))
    return CallLoad(
        busy_ns, max(busy_ns, alone_ns), np.full(links, needed.link_ns), sent_bytes, received_bytes, needed.host_ns
    )
