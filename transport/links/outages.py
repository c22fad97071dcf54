"""Bounds on TCP timeouts, so that connections survive an outage that ends before a peer counts as gone.

TCP doubles its timeouts: after an outage it is silent for as long again. Since Linux 6.15 a socket may bound them
(TCP_RTO_MAX_MS); without that, a peer counts as gone twice as late.
"""

import ctypes
import socket
from functools import cache

_libc = ctypes.CDLL(None)
_TCP_RTO_MAX_MS = 44
TIMEOUT_MAX_S = 1.0
"""The kernel allows no less."""

BEAT_NS = 200_000_000
"""How often a mesh over datagrams sends something to each peer, at least: so soon they hear of each other again."""

NEIGHBOUR_S = 1.0
"""How long Linux may take to ask for a neighbour's hardware address once the link is back."""


def bound_timeouts(descriptor: int) -> bool:
    """Bound a TCP socket's timeouts; False if the kernel can't. A descriptor that is no TCP socket, or closed by now,
    stays as it is. A `socket` can't be used: libzmq owns its descriptors, and may close one at any time."""
    limit_ms = ctypes.c_int(round(TIMEOUT_MAX_S * 1e3))
    size = ctypes.sizeof(limit_ms)
    return not _libc.setsockopt(descriptor, socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, ctypes.byref(limit_ms), size)


def patience_s(silence_s: float) -> float:
    """How long TCP must go on trying, so that an outage of `silence_s` ends no connection."""
    return silence_s * (1 if _can_bound() else 2) + TIMEOUT_MAX_S + NEIGHBOUR_S


@cache
def _can_bound() -> bool:
    with socket.socket() as probe:
        return bound_timeouts(probe.fileno())
