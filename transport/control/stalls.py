"""Hold-ups: telling our own long pauses from the others' silence."""

import time

HELD_UP_NS = 1_000_000_000
"""A turn that takes longer was held up: turns wait for half a second at most."""

FORGIVEN_AGAIN_NS = 30_000_000_000


class HoldUps:
    """Notices that its own thread was held up, by a busy machine or a long call under the GIL.

    Whoever seemed silent meanwhile may only have been held up with it: on one machine, all are. So silence counts from
    the end of the hold-up, once in a while: a machine that is always held up still sees its leases end.
    """

    def __init__(self) -> None:
        self._turned_ns = time.monotonic_ns()
        self._forgiven_ns = -FORGIVEN_AGAIN_NS

    def ended(self, now_ns: int) -> bool:
        """True once after a hold-up; call it at every turn of a loop that never waits as long."""
        held_up = now_ns - self._turned_ns > HELD_UP_NS and now_ns - self._forgiven_ns > FORGIVEN_AGAIN_NS
        self._turned_ns = now_ns
        if held_up:
            self._forgiven_ns = now_ns
        return held_up
