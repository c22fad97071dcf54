"""What connections between hosts need so that a link which is back before a peer counts as gone saves them.

TCP doubles its timeouts: after an outage it is silent for as long again. Since Linux 6.15 a socket may bound them
(TCP_RTO_MAX_MS); without, a peer counts as gone twice as late.
"""

import contextlib
import os
import socket
from functools import cache

_TCP_RTO_MAX_MS = 44
TIMEOUT_MAX_S = 1.0
"""The kernel allows no less."""

BEAT_NS = 200_000_000
"""How often a mesh without connections sends something to each peer, at least: so soon they hear of each other again."""

NEIGHBOUR_S = 1.0
"""How long Linux may take to ask for a neighbour's hardware address once the link is back."""


def bound_timeouts(descriptor: int) -> None:
    """Bound a TCP socket's timeouts, where the kernel can; nothing happens to what is none, or closed by now."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, round(TIMEOUT_MAX_S * 1e3))


def patience_s(silence_s: float) -> float:
    """How long TCP must go on trying, so that an outage of `silence_s` ends no connection."""
    return silence_s * (1 if _can_bound() else 2) + TIMEOUT_MAX_S + NEIGHBOUR_S


@cache
def _can_bound() -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, round(TIMEOUT_MAX_S * 1e3))
        return True
    return False
