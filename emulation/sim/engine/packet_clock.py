"""The clock and the order of events in C, with the verbs of `VirtualClock`."""

import ctypes
import os
import weakref
import zlib
from collections.abc import Callable
from functools import cached_property
from typing import Any

from emulation.sim.engine import engine_library
from emulation.sim.engine.python_hosts import PythonHosts
from emulation.sim.network.virtual_clock import Action, SimulationError, VirtualClock
from switchagg.errors import JobError
from switchagg.native import headers, library

EVENTS_AT_ONCE = 1 << 18
"""Between two looks at signals: some milliseconds."""

THREADED_EVENTS_LEAST = 256
"""Fewer events of a window cost less than it costs threads to meet."""

THREADS_VARIABLE = "SWITCHAGG_SIM_THREADS"
THREADS_MOST = 256

ALL_BYTES = (1 << 32) - 1
"""The trace hashes all bytes of frames."""


class PacketClock(VirtualClock):
    """The clock and the order of events, kept in C. `now_ns` is right whenever Python is asked for something.

    notices: what to do when a host in C has something for Python, by its number. traced_bytes: of each frame, from its
    beginning on, that a trace knows. SWITCHAGG_SIM_THREADS threads simulate its partitions, any number with the same
    bytes. Raises JobError.
    """

    def __init__(self, *, events_max: int = 2_000_000_000, trace: bool = False, traced_bytes: int = ALL_BYTES) -> None:
        super().__init__(events_max=events_max, trace=trace)
        self.notices: list[Callable[[], None]] = []
        self._library = library.load_holding_gil()  # what it calls is mostly asked by C in turn
        self._planned: dict[int, tuple[Action, Any, int, int]] = {}
        self._number = 0
        self._failed: BaseException | None = None
        clock = weakref.ref(self)  # C's hold on these functions is no cycle
        self._callbacks = (
            headers.callback("sim_notify")(lambda host: _of(clock)._notice(host)),
            headers.callback("sim_due")(lambda number: _of(clock)._due(number)),
        )
        self.handle = engine_library.there(self._library.sa_sim_new(traced_bytes if trace else 0, *self._callbacks))
        self.state = headers.struct("sa_sim").from_address(self.handle)
        weakref.finalize(self, self._library.sa_sim_free, self.handle)
        threads = _threads()
        if self._library.sa_sim_threads(self.handle, threads, THREADED_EVENTS_LEAST):
            raise JobError(f"{threads} threads: the system refuses so many; set fewer by {THREADS_VARIABLE}")

    @cached_property
    def hosts(self) -> PythonHosts:
        """The events that aren't in C."""
        return PythonHosts(self, self._trace is not None)

    def partition(self) -> "PartitionClock":
        """The clock of another partition's nodes and links, before any of them is there."""
        return PartitionClock(self, engine_library.there(self._library.sa_sim_partition(self.handle)))

    def schedule(self, time_ns: int, action: Action, frame: Any = None, sender: int = 0, to: int = 0) -> None:
        self.schedule_in(self.handle, time_ns, action, frame, sender, to)

    def schedule_in(self, partition: int, time_ns: int, action: Action, frame: Any, sender: int, to: int) -> None:
        """As `schedule`, as if the partition had scheduled it."""
        assert time_ns >= self.now_ns, f"event at {time_ns} ns, but it is {self.now_ns} ns already"
        self._number += 1
        self._planned[self._number] = action, frame, sender, to
        content = 0
        if self._trace is not None and frame is not None:
            content = zlib.crc32(getattr(frame, "data", frame))
        if self._library.sa_sim_schedule(partition, time_ns, self._number, sender, to, content):
            raise MemoryError("no memory for an event")

    @property
    def pending(self) -> bool:
        return bool(self._library.sa_sim_pending(self.handle))

    def stop(self) -> None:
        self.state.stopped = 1

    def run(self, waiting_for: str = "the end of the run") -> None:
        end = headers.SIM_UNFINISHED
        while end == headers.SIM_UNFINISHED and self.events < self._events_max:
            end = self._library.sa_sim_run(self.handle, min(EVENTS_AT_ONCE, self._events_max - self.events))
            self.now_ns, self.events = self.state.now_ns, self.state.events
            if self._trace is not None:
                self._trace.update(self._traced())
            if self._failed is not None:
                failed, self._failed = self._failed, None
                raise failed
            assert not self.state.stray, f"a frame for address {self.state.stray - 1}, whose host is not attached"
        if end == headers.SIM_STOPPED:
            return
        if end == headers.SIM_NO_MEMORY:
            raise MemoryError("no memory for the simulation")
        why = "nothing is left to happen" if end == headers.SIM_NOTHING_LEFT else f"{self._events_max} events happened"
        raise SimulationError(f"waiting for {waiting_for} at {self.now_ns} ns of virtual time, but {why}")

    def _traced(self) -> bytes:
        records = ctypes.POINTER(headers.struct("sim_record"))()
        count = self._library.sa_sim_records(self.handle, ctypes.byref(records))
        lines = (f"{record.time_ns} {record.sender} {record.to} {record.content}\n" for record in records[:count])
        return "".join(lines).encode()

    def _notice(self, host: int) -> None:
        self.guarded(self.notices[host])

    def _due(self, number: int) -> None:
        self.guarded(*self._planned.pop(number))

    @property
    def traces(self) -> bool:
        """Whether C must know all bytes of frames."""
        return self._trace is not None

    def guarded(self, happen: Callable[..., None], *arguments: Any) -> bool:
        """Let something happen that C asks for. An exception ends the run, which raises it: False."""
        if self._failed is not None:
            return False
        self.now_ns = self.state.now_ns
        try:
            happen(*arguments)
        except BaseException as error:
            self._failed = error
            self.state.failed = 1
            self.stop()
        return self._failed is None

    def go_on(self) -> None:
        """After a call of C from within something that C asked for: what that raised goes on its way up."""
        if self._failed is not None:
            raise self._failed


class PartitionClock:
    """A clock as the nodes of one partition see it: what they schedule is numbered there (`native/partitions.h`)."""

    def __init__(self, clock: PacketClock, handle: int) -> None:
        self._clock, self.handle = clock, handle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    def schedule(self, time_ns: int, action: Action, frame: Any = None, sender: int = 0, to: int = 0) -> None:
        """As of the clock."""
        self._clock.schedule_in(self.handle, time_ns, action, frame, sender, to)


def _threads() -> int:
    text = os.environ.get(THREADS_VARIABLE) or "1"
    if not text.isdecimal() or not 1 <= int(text) <= THREADS_MOST:
        raise JobError(f"{THREADS_VARIABLE} must be a number from 1 to {THREADS_MOST}, not {text!r}")
    return int(text)


def _of(clock: "weakref.ref[PacketClock]") -> PacketClock:
    running = clock()
    assert running is not None, "the run of a simulation that is gone"
    return running
