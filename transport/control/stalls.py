"""Stall detection: distinguishes long pauses of our own thread from peers that send nothing."""

import time

HELD_UP_NS = 1_000_000_000
"""An iteration of an event loop that takes longer was stalled: it waits for half a second at most."""

FORGIVEN_AGAIN_NS = 30_000_000_000


class HoldUps:
    """Notices that its own thread was stalled, by a busy machine or a long call under the GIL.

    A peer that sent nothing meanwhile may have been stalled too: on one machine, all are. So timeouts count from the
    end of the stall, but only once in a while: on a machine that stalls all the time leases still end.
    """

    def __init__(self) -> None:
        self._turned_ns = time.monotonic_ns()
        self._forgiven_ns = -FORGIVEN_AGAIN_NS

    def ended(self, now_ns: int) -> bool:
        """True once after a stall; call it in every iteration of a loop that never waits as long."""
        held_up = now_ns - self._turned_ns > HELD_UP_NS and now_ns - self._forgiven_ns > FORGIVEN_AGAIN_NS
        self._turned_ns = now_ns
        if held_up:
            self._forgiven_ns = now_ns
        return held_up
