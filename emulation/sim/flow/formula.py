"""α–β–γ costs of a call: the bytes of the busiest link at its rate, and latency for each message of a plan.

The bytes are those of `emulation.bounds`, the messages those of `transport.collectives.cost`. Calls share the busiest
link. γ is 0: in virtual time adding takes none.
"""

from dataclasses import replace

import numpy as np

from emulation.bounds import Network, coded_share, elements_of, loads, payload_share
from emulation.sim.flow.shape import Shape
from emulation.sim.network.simulation import SimulationConfig
from switchagg.description import Kind
from transport.collectives.collective import LinkCost
from transport.collectives.cost import predict
from transport.collectives.table import COLLECTIVES
from transport.group.method_name import GROUPED, parse
from transport.links.framing import IP_TCP_BYTES


def formula_shape(
    method: str, config: SimulationConfig, kind: Kind, size_bytes: int, dtype: "np.dtype[np.generic]", links: int
) -> Shape:
    """Of a call of size_bytes per rank. links: of the network. `auto` has the ring's formula."""
    name = parse("ring" if method == "auto" else method)
    if name.is_switch:
        name = replace(name, codec=config.codec)
    network = Network(
        config.workers,
        config.link.rate_bps,
        config.reliable.segment_bytes + IP_TCP_BYTES,
        config.elements,
        servers=config.servers,
        fabric=config.fabric,
    )
    built = network.links(name.method)
    ways = [built.path(member, built.root) for member in built.members]
    alpha_ns = 2 * max(sum(config.link.delay_ns + config.switch_latency_ns for _ in way) for way in ways)
    elements = elements_of(name, config.elements, network.mtu_bytes)
    share = float(payload_share(name, elements, network.mtu_bytes))
    if name.is_switch:
        share *= coded_share(name, str(dtype), elements, config.workers)
    wire_bytes = size_bytes / share
    routed = name.is_switch and len(built.aggregators) > 1
    carried = loads(name.method, network, "allreduce" if routed or kind == "barrier" else kind)
    busy_ns = max(wire_bytes * float(arrays) * 8e9 / built.settings(hop).rate_bps for hop, arrays in carried.items())
    beta_s = 8 / config.link.rate_bps / share
    link = LinkCost(alpha_ns / 1e9, beta_s)
    collective = COLLECTIVES.get(name.method)
    if kind == "allreduce" and collective is not None and collective.costs is not None:
        group = config.group if name.method in GROUPED else 0
        alone_ns = predict(name.method, config.workers, size_bytes, link, group, config.message_bytes) * 1e9
    else:
        messages = 1 if name.is_switch else 2 if name.method == "ps" else config.workers - 1
        alone_ns = busy_ns + messages * alpha_ns
    sent = round(wire_bytes * max(float(carried[hop]) for hop in carried if hop[0] in built.workers))
    got = round(wire_bytes * max(float(carried[hop]) for hop in carried if hop[1] in built.workers))
    return Shape(busy_ns, max(busy_ns, alone_ns), np.full(links, busy_ns), sent, got)
