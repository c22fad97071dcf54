"""The cost of one collective call alone on idle links: how long it takes, and how much of each link."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CallLoad:
    """Begun by all ranks at once, on links that carry nothing else.

    body_ns: until the last byte has left the links that are busiest; then only latency is left. done_ns: when each rank
    has its result; one number: all at that time. busy_ns: by link, how long it sends for the call. sent, received:
    bytes on the wire of each member, framing included; one number: of each. worked_ns: how long each member's host has
    to do with it, where transfers cost that.
    """

    body_ns: float
    done_ns: Floats | float
    busy_ns: Floats
    sent_bytes: NDArray[np.int64] | int
    received_bytes: NDArray[np.int64] | int
    worked_ns: Floats | float = 0.0

    @property
    def duration_ns(self) -> float:
        """Until the last rank has its result."""
        return float(np.max(self.done_ns))
