"""Heartbeats: when a member asks the switch that granted its lease, and by which connection (C9, C12).

Pure: the time is an argument (`now_ns`, any monotonic clock). A connection that lost a message may be silent for as
long again as it has been already, since TCP doubles its timeouts; so a request without an answer is repeated by fresh
connections, whose first packet leaves at once. From the switch's last sight of a member to a request that gets through
once the network does, BEAT_NS + AGAIN_NS pass at most, beside the outage itself.
"""

BEAT_NS = 200_000_000
"""From one request to the next, while each is answered."""

AGAIN_NS = 100_000_000
"""From a request without an answer to its repetition."""


class Heartbeats:
    """Times of a member's requests to one switch. beat_ns: from a request to the next, while they are answered."""

    def __init__(self, beat_ns: int = BEAT_NS) -> None:
        self._beat_ns, self._again_ns = beat_ns, min(AGAIN_NS, beat_ns)
        self._unanswered_ns: int | None = None
        self.due_ns = 0
        """When the next request must leave."""

    @property
    def fresh(self) -> bool:
        """Whether the next request needs a fresh connection: the present one may have stalled."""
        return self._unanswered_ns is not None

    def note_sent(self, now_ns: int) -> None:
        """A request left, or found no connection."""
        if self._unanswered_ns is None:
            self._unanswered_ns = now_ns
        self.due_ns = now_ns + self._again_ns

    def note_answer(self) -> None:
        """The switch answered a request; the next leaves a beat after the first that this answer may be for."""
        if self._unanswered_ns is not None:
            self.due_ns = self._unanswered_ns + self._beat_ns
            self._unanswered_ns = None

    def hurry(self) -> None:
        """The next request must leave at once."""
        self.due_ns = 0

    def silent_ns(self, now_ns: int) -> int:
        """How long the switch has left a request unanswered."""
        return 0 if self._unanswered_ns is None else now_ns - self._unanswered_ns

    def forgive(self, now_ns: int) -> None:
        """Count silence from now on: our own thread was stalled until now."""
        if self._unanswered_ns is not None:
            self._unanswered_ns = now_ns
