"""The clock and the queue of events: one heap ordered by (time, sequence number).

Time is an integer of nanoseconds and only moves here. Two events of one instant happen in the order they were
scheduled, so a run is a function of its inputs: no wall clock, no hash order, no threads.
"""

import hashlib
import zlib
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

# The action of an event: action(frame, sender, to). Timers get (None, 0, 0): one shape keeps the loop short.
Action = Callable[[Any, int, int], None]


class SimulationError(Exception):
    """The run can't go on: nothing is left to happen, or the limit of events is reached."""


class VirtualClock:
    """Virtual time: `schedule` what shall happen, `run` until `stop` is called.

    events_max bounds a run, so that a protocol that never ends is an error and not a hang. With trace=True every
    event (time, sender, receiver, bytes of its frame) goes into a SHA-256, read with `trace_hash`.
    """

    def __init__(self, *, events_max: int = 2_000_000_000, trace: bool = False) -> None:
        self.now_ns = 0
        self.events = 0
        self._events_max = events_max
        self._heap: list[tuple[int, int, Action, Any, int, int]] = []
        self._sequence = 0
        self._stopped = False
        self._trace = hashlib.sha256() if trace else None

    def schedule(self, time_ns: int, action: Action, frame: Any = None, sender: int = 0, to: int = 0) -> None:
        """Let action(frame, sender, to) happen at time_ns, which isn't in the past."""
        assert time_ns >= self.now_ns, f"event at {time_ns} ns, but it is {self.now_ns} ns already"
        self._sequence += 1
        heappush(self._heap, (time_ns, self._sequence, action, frame, sender, to))

    @property
    def pending(self) -> bool:
        """Whether anything is left to happen."""
        return bool(self._heap)

    def stop(self) -> None:
        """End `run` after the event that is happening now; later events stay scheduled."""
        self._stopped = True

    def run(self, waiting_for: str = "the end of the run") -> None:
        """Let events happen in order until `stop`; SimulationError if they run out before, or never end."""
        self._stopped = False
        heap = self._heap
        events_left = self._events_max - self.events
        done = 0
        try:
            while heap and done < events_left:
                time_ns, _, action, frame, sender, to = heappop(heap)
                self.now_ns = time_ns
                done += 1
                if self._trace is not None:
                    self._record(time_ns, frame, sender, to)
                action(frame, sender, to)
                if self._stopped:
                    return
        finally:
            self.events += done
        why = f"{self._events_max} events happened" if heap else "nothing is left to happen"
        raise SimulationError(f"waiting for {waiting_for} at {self.now_ns} ns of virtual time, but {why}")

    def _record(self, time_ns: int, frame: Any, sender: int, to: int) -> None:
        assert self._trace is not None
        content = 0 if frame is None else zlib.crc32(getattr(frame, "data", frame))
        self._trace.update(f"{time_ns} {sender} {to} {content}\n".encode())

    def trace_hash(self) -> str:
        """SHA-256 (hex) of all events so far; the network must have been made with trace=True."""
        assert self._trace is not None, "made without trace=True"
        return self._trace.hexdigest()
