"""UDP sockets as RoCEv2 requires them."""

import os
import socket

from switchagg.errors import JobError
from transport.links.udp_link import IP_MTU_DISCOVER, IP_PMTUDISC_PROBE, UdpLink

_IPV6_MTU_DISCOVER = 23
_SOL_UDP = 17
_UDP_NO_CHECK6_RX = 102
SEGMENTS_VARIABLE, SEGMENTS_MOST = "SWITCHAGG_RDMA_SEGMENTS", 64


def prepare(link: UdpLink) -> None:
    """Have a link's socket send and take RoCEv2 as NICs do.

    Nothing is fragmented: so all IPv4 headers have identification 0 (in a GSO send: 0, 1, 2 …), which the ICRC covers.
    Messages that a path is narrower, which anyone can forge, are ignored. Over IPv6 packets without a UDP checksum are
    taken, too: NICs and rxe make none, as the ICRC protects more (RFC 6935). Ours have one: GSO needs it.
    """
    with socket.socket(fileno=os.dup(link.fileno())) as same:
        if same.family == socket.AF_INET6:
            same.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, IP_PMTUDISC_PROBE)
            same.setsockopt(_SOL_UDP, _UDP_NO_CHECK6_RX, 1)
        else:
            same.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)


def default_segments() -> int:
    """Packets that the soft provider hands to the kernel at once, at most: the environment's choice, 1 … 64, else 64.

    Raises JobError.
    """
    text = os.environ.get(SEGMENTS_VARIABLE) or str(SEGMENTS_MOST)
    if not text.isdecimal() or not 1 <= int(text) <= SEGMENTS_MOST:
        raise JobError(f"{SEGMENTS_VARIABLE}={text!r} is not allowed; allowed: 1 … {SEGMENTS_MOST} packets")
    return int(text)
