"""Stall detection: distinguishes long pauses of our own thread from peers that send nothing."""

import time

STALL_NS = 1_000_000_000
"""An iteration of an event loop that takes longer was stalled: it waits for half a second at most."""

BETWEEN_STALLS_NS = 30_000_000_000
"""Stalls that follow sooner are not reported."""


class StallDetector:
    """Notices that its own thread was stalled, by a busy machine or a long call under the GIL.

    A peer that sent nothing meanwhile may have been stalled too: on one machine, all are. So timeouts count from the
    end of the stall, but only once in a while: on a machine that stalls all the time leases still end.
    """

    def __init__(self, now_ns: int | None = None) -> None:
        """now_ns: of the clock that `ended` gets; by default the monotonic one's."""
        self._last_iteration_ns = time.monotonic_ns() if now_ns is None else now_ns
        self._last_stall_ns = -BETWEEN_STALLS_NS

    def ended(self, now_ns: int) -> bool:
        """True once after a stall; call it in every iteration of a loop that never waits as long."""
        stalled = now_ns - self._last_iteration_ns > STALL_NS and now_ns - self._last_stall_ns > BETWEEN_STALLS_NS
        self._last_iteration_ns = now_ns
        if stalled:
            self._last_stall_ns = now_ns
        return stalled
