"""Bytes on the wire, and the least a method can do with them: for virtual time, reports and benchmarks alike. Pure.

Sizes are bytes of one rank's array, rates bits per second of Ethernet frames without FCS, preamble and gap.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from switchagg.call import share_of_chunks, share_of_rounds
from switchagg.codecs import FIXED_POINT, codec_named
from switchagg.wire import HEADER_BYTES, frame_bytes
from transport.group.method_name import MethodName, traffic
from transport.links.framing import Framing
from transport.links.table import LINKS


@dataclass(frozen=True)
class Network:
    """Equal links in a network. rate_bps: of a port, each way. elements: E of the switch's packets, as asked for.

    codec: of sums of floats, a name of switchagg.codecs; "": as they are, through a switch in fixed point. servers: of
    `ps`, with links of their own; 0: one beside each worker. backups: of `ps`, workers that a sum doesn't wait for.
    """

    workers: int
    rate_bps: int
    mtu_bytes: int
    elements: int
    codec: str = ""
    servers: int = 0
    backups: int = 0


@dataclass(frozen=True)
class Bound:
    """The least a method can do: every gradient byte sent the number of times the method must, framed, at line rate.

    Latency, acknowledgements, retransmissions and the rounding of the last packet are left out, hence a bound.
    """

    traffic_factor: float  # of the busiest link: 1 for the switch, 2(n-1)/n for the best host methods, more for others
    framing_efficiency: float  # gradient bytes / bytes of Ethernet frames
    wire_bytes_per_rank: float  # sent, and as many received, per iteration
    communication_ns: float


def _framing(name: MethodName) -> Framing:
    return LINKS[name.link or "tcp"].framing  # gloo brings its own TCP


def _shares(name: MethodName, elements: int, mtu_bytes: int) -> tuple[Fraction, Fraction]:
    """Values in what a link is given to carry, and that in Ethernet frames, where packets are full."""
    framing = _framing(name)
    payload_bytes = framing.payload_bytes(mtu_bytes)
    if not name.is_switch:
        return Fraction(1), Fraction(payload_bytes - framing.mesh_bytes, framing.ethernet_bytes(payload_bytes))
    size = frame_bytes(elements)
    if not framing.stream and not framing.path_mtus:
        payload_bytes = size
    return Fraction(size - HEADER_BYTES, size), Fraction(payload_bytes, framing.ethernet_bytes(payload_bytes))


def payload_share(name: MethodName, elements: int, mtu_bytes: int) -> Fraction:
    """Values in a full packet, over its bytes as the interface counts them.

    elements: E of the switch's packets, which fill the path MTU over RDMA, and over ZeroMQ lie in a TCP stream. Host
    methods fill the MTU, or the path MTU of RDMA. Headers in some packets alone (RETH and immediate data of RDMA), and
    what ZeroMQ and our own messages add (some 50 B to 64 kB), are left out.
    """
    values, frames = _shares(name, elements, mtu_bytes)
    return values * frames


def coded_share(name: MethodName, dtype: str, elements: int, codec: str = "") -> float:
    """Bytes of a long array per byte that travels for it: more than 1 if the codec packs values, less if it agrees on
    exponents, which of the switch's packets of floats one in E + 1 carries."""
    kind = np.dtype(dtype)
    if name.is_switch:
        return share_of_chunks(kind, elements, codec_named(codec) if codec else FIXED_POINT)
    if codec and kind in codec_named(codec).dtypes:
        return share_of_rounds(kind, elements, codec_named(codec))
    return 1.0


def framing_efficiency(name: MethodName, elements: int, mtu_bytes: int, codec: str = "") -> float:
    """Gradient bytes (float32) per byte of Ethernet frames."""
    values, frames = _shares(name, elements, mtu_bytes)
    return float(values) * coded_share(name, "float32", elements, codec) * float(frames)


def elements_of(name: MethodName, elements: int, mtu_bytes: int) -> int:
    """E of the switch's method on a link for a scenario's E: over RDMA as many values as fill the path MTU."""
    return _framing(name).elements_for(mtu_bytes, elements)


def elements_most(mtu_bytes: int) -> int:
    """The largest E whose packets fit an MTU over UDP."""
    return (LINKS["udp"].framing.payload_bytes(mtu_bytes) - HEADER_BYTES) // 4


def elements_that_fit(mtu_bytes: int) -> int:
    """E that fills an MTU over UDP; the project's 360 for 1500, which is a multiple of 8."""
    most = elements_most(mtu_bytes)
    return max(1, most - most % 8 if most >= 8 else most)


def bound(name: MethodName, size_bytes: int, network: Network) -> Bound:
    """Of one allreduce of so many bytes of floats."""
    servers = network.servers if name.method == "ps" else 0
    factor = traffic(name.method, network.workers, servers, network.backups)
    elements = elements_of(name, network.elements, network.mtu_bytes)
    efficiency = framing_efficiency(name, elements, network.mtu_bytes, network.codec)
    wire_bytes = size_bytes * (1.0 if servers else traffic(name.method, network.workers)) / efficiency
    return Bound(factor, efficiency, wire_bytes, size_bytes * factor / efficiency * 8e9 / network.rate_bps)


def wire_bytes_per_server(name: MethodName, size_bytes: int, network: Network) -> float:
    """Sent, and as many received, by each server of `ps` that has a link of its own, if each has the same share."""
    return bound(name, size_bytes, network).wire_bytes_per_rank * network.workers / network.servers


def payload_limit(name: MethodName, network: Network) -> float:
    """rate × payload / (payload + headers), in bytes per second: what a link carries of the method's payload."""
    elements = elements_of(name, network.elements, network.mtu_bytes)
    return network.rate_bps / 8 * float(payload_share(name, elements, network.mtu_bytes))


def algbw_bound(name: MethodName, dtype: str, network: Network) -> float:
    """Most bytes per second of an array that the method can sum. Integers need no exponents."""
    most = payload_limit(name, network) / traffic(name.method, network.workers, network.servers, network.backups)
    elements = elements_of(name, network.elements, network.mtu_bytes)
    return most * coded_share(name, dtype, elements, network.codec)
