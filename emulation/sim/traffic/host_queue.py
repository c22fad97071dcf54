"""A connection's part of its host's queue: about a millisecond of it, as TCP small queues and NICs have it."""

from collections import deque
from typing import Any, cast

from emulation.sim.engine.links import SimulatedLink
from emulation.sim.lossless.pausing import PausableLink
from emulation.sim.network.host_uplink import CREDIT_BYTES_MAX, CREDIT_NS, Alarm


class HostQueue:
    """Frames of at most frame_bytes that leave by a link. alarm: rings when half of them have left, if it may pause;
    else set it to `room_ns`."""

    def __init__(self, link: SimulatedLink, frame_bytes: int, alarm: Alarm) -> None:
        credit_bytes = min(CREDIT_BYTES_MAX, link.config.rate_bps * CREDIT_NS // 8_000_000_000)
        self._most = max(2, credit_bytes // frame_bytes)
        self._link, self._network, self._alarm = link, link.network, alarm
        self._leaving: deque[int] = deque()  # when each will have left it
        self._backlog = link.backlog(self._left)  # None: the link is never paused, so that it is known when they leave
        self._held = 0  # frames that leave when they may

    @property
    def has_room(self) -> bool:
        leaving, now_ns = self._leaving, self._network.now_ns
        while leaving and leaving[0] <= now_ns:
            leaving.popleft()
        return len(leaving) + self._held < self._most

    @property
    def room_ns(self) -> int | None:
        """When half of what is there will have left; None: the alarm will ring."""
        return self._leaving[len(self._leaving) // 2] if self._leaving else None

    def send(self, frame: Any, size_bytes: int, sender: int, to: int) -> None:
        """Put a frame there, room or not."""
        link, now_ns = self._link, self._network.now_ns
        if self._backlog is None:
            link.send(frame, size_bytes, now_ns, sender, to)
            self._leaving.append(max(now_ns + 1, link.time_at_backlog_ns(0)))
            return
        self._held += 1
        cast(PausableLink, link).send_held(self._backlog, frame, size_bytes, sender, to)

    def _left(self) -> None:
        self._held -= 1
        if self._held <= self._most // 2:
            self._alarm.set(self._network.now_ns)
