"""Liveness: when to send a heartbeat, and which peers have sent nothing for too long."""

from collections.abc import Iterable

START_NS = 300_000_000_000
"""How long a peer may send nothing before its first message: it may still be waiting for others to connect."""


LATE_NS = 2_000_000_000
"""How long after a link is back the mesh may take to bring a message (`transport.links.outages`)."""


class Liveness:
    """A peer is dead that sends nothing for longer than an outage of dead_after_s explains, after a heartbeat. Any
    message of a peer resets its time. Silence counts from the first `turn`; time in which we ourselves were held up
    doesn't count: on one machine all are held up together."""

    def __init__(self, peers: Iterable[int], heartbeat_s: float, dead_after_s: float) -> None:
        self._silent_since_ns: dict[int, int] = dict.fromkeys(peers, 0)
        self._never_heard = set(self._silent_since_ns)
        self._due_ns: int | None = None
        self.set_times(heartbeat_s, dead_after_s)

    def set_times(self, heartbeat_s: float, dead_after_s: float) -> None:
        self._heartbeat_ns = max(1, round(heartbeat_s * 1e9))
        self._dead_after_ns = round(dead_after_s * 1e9) + self._heartbeat_ns + LATE_NS

    @property
    def peers(self) -> list[int]:
        """Peers that are watched."""
        return list(self._silent_since_ns)

    @property
    def deadline_ns(self) -> int:
        """When `turn` must be called; 0, which is always due, before the first time."""
        return 0 if self._due_ns is None else self._due_ns

    def on_message(self, peer: int, now_ns: int) -> None:
        if peer in self._silent_since_ns:
            self._silent_since_ns[peer] = now_ns
            self._never_heard.discard(peer)

    def drop(self, peer: int) -> None:
        """It counts no longer."""
        self._silent_since_ns.pop(peer, None)

    def turn(self, now_ns: int) -> list[int] | None:
        """Dead peers, which are dropped here; None before the deadline, at which a heartbeat is due."""
        if self._due_ns is None:
            self._silent_since_ns = dict.fromkeys(self._silent_since_ns, now_ns)
        elif now_ns < self._due_ns:
            return None
        elif (late_ns := now_ns - self._due_ns) > self._heartbeat_ns:
            for peer, since_ns in self._silent_since_ns.items():
                self._silent_since_ns[peer] = min(since_ns + late_ns, now_ns)
        self._due_ns = now_ns + self._heartbeat_ns
        limits_ns = (self._dead_after_ns, max(self._dead_after_ns, START_NS))
        dead = [
            peer
            for peer, since_ns in self._silent_since_ns.items()
            if now_ns - since_ns > limits_ns[peer in self._never_heard]
        ]
        for peer in dead:
            self.drop(peer)
        return dead
