"""Programs that take turns on CPUs, in Python: the oracle of emulation/sim/native/cpus.c."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from emulation.sim.network.simulated_link import NODE_MASK
from emulation.sim.network.virtual_clock import Action, VirtualClock


@dataclass(eq=False)
class OracleProgram:
    """The program of a host, or of a switch (address: its own). frames: what came, and where its link leads."""

    cpus: "OracleCpus"
    packet_ns: int
    sends_on: tuple[Any, ...]
    address: Callable[[], int] | None = None
    frames: deque[tuple[Action, Any, int, int]] = field(default_factory=deque)
    counted: int = 0
    owed_ns: int = 0
    is_busy: bool = False

    def entrance(self, lead: Action) -> Action:
        """What a link has in place of where it leads."""

        def enter(frame: Any, sender: int, to: int) -> None:
            if self.address is not None and to & NODE_MASK != self.address():
                lead(frame, sender, to)
                return
            self.frames.append((lead, frame, sender, to))
            if not self.is_busy:
                self.is_busy = True
                self.owed_ns += self.cpus.wake_ns
                self.cpus.take_turn(self)

        return enter

    def sent(self) -> int:
        """Frames on its links."""
        return sum(link.sent_frames for link in self.sends_on)

    def count(self) -> None:
        """What it has sent since is to be paid for."""
        frames = self.sent()
        self.owed_ns += (frames - self.counted) * self.packet_ns
        self.counted = frames


class OracleCpus:
    """count: 0: one for each program."""

    def __init__(self, clock: VirtualClock, count: int, wake_ns: int) -> None:
        self.wake_ns = wake_ns
        self._clock, self._idle = clock, float(count or "inf")
        self._waiting: deque[OracleProgram] = deque()

    def take_turn(self, program: OracleProgram) -> None:
        """Once a CPU is idle."""
        self._waiting.append(program)
        self._go_on()

    def _go_on(self) -> None:
        while self._idle and self._waiting:
            program = self._waiting.popleft()
            self._idle -= 1
            if program.address is None:
                program.count()
            takes_ns, program.owed_ns = program.owed_ns + (program.packet_ns if program.frames else 0), 0
            _, *frame = program.frames[0] if program.frames else (None, None, 0, 0)
            has_frame = bool(program.frames)

            def handle(
                what: Any, sender: int, to: int, program: OracleProgram = program, has: bool = has_frame
            ) -> None:
                self._handle(program, has, what, sender, to)

            self._clock.schedule(self._clock.now_ns + takes_ns, handle, *frame)

    def _handle(self, program: OracleProgram, has_frame: bool, frame: Any, sender: int, to: int) -> None:
        if has_frame:
            lead, *_ = program.frames.popleft()
            if program.address is not None:
                program.counted = program.sent()
            lead(frame, sender, to)
            program.count()
        self._idle += 1
        program.is_busy = bool(program.frames or program.owed_ns)
        if program.is_busy:
            self.take_turn(program)
        else:
            self._go_on()
