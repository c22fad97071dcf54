"""The crew: one trainer process per worker, followed by its JSON lines until all have finished or one has failed."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emulation.results import RunFailed

TURN_S = 0.25  # how late a killed trainer or a dead data plane is noticed
EXIT_S = 3.0  # how long a trainer may take to end after it has finished


@dataclass(eq=False)
class Member:
    """One rank's process and what it has said. `log_path` holds its stderr."""

    rank: int
    process: subprocess.Popen[bytes]
    log_path: Path
    events: list[dict[str, Any]] = field(default_factory=list)
    iterations: int = 0
    _rest: bytes = b""

    def named(self, event: str) -> list[dict[str, Any]]:
        """Everything said under one name, in order."""
        return [entry for entry in self.events if entry.get("event") == event]

    @property
    def finished(self) -> bool:
        return bool(self.events) and self.events[-1].get("event") == "finished"

    def take(self, data: bytes) -> None:
        """Adds what was read from the process; lines that are no JSON object are ignored: libraries may print."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict) and "event" in entry:
                self.events.append(entry)
                self.iterations += entry["event"] == "iteration"


class Crew:
    """Follows the members. The processes belong to whoever started them; the crew ends none.

    method: for messages. stall_s: longest silence of all. limit_s: longest run. alive(): raises RunFailed when what the
    members depend on has ended.
    """

    def __init__(
        self,
        method: str,
        members: Sequence[Member],
        *,
        stall_s: float,
        limit_s: float,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self.members = list(members)
        self._method, self._stall_s, self._limit_s, self._alive = method, stall_s, limit_s, alive
        self._selector = selectors.DefaultSelector()

    def follow(self, on_iteration: Callable[[int], None]) -> None:
        """Returns when every member has finished; on_iteration(n): all have done n iterations.

        Raises RunFailed, in one line, as soon as a member fails, is killed or ends early, if nobody says anything for
        too long, or after the limit.
        """
        begun = heard = time.monotonic()
        done = 0
        for member in self.members:
            os.set_blocking(_stdout(member), False)
            self._selector.register(_stdout(member), selectors.EVENT_READ, member)
        with self._selector:
            while not all(member.finished for member in self.members):
                if self._read(TURN_S):
                    heard = time.monotonic()
                self._alive()
                self._check()
                slowest = min(member.iterations for member in self.members)
                if slowest > done:
                    done = slowest
                    on_iteration(done)
                now = time.monotonic()
                if now - heard > self._stall_s:
                    raise RunFailed(f"{self._method}: no rank said anything for {self._stall_s:.0f} s; {self._where()}")
                if now - begun > self._limit_s:
                    raise RunFailed(f"{self._method}: not done after {self._limit_s:.0f} s; {self._where()}")
        self._wait_for_exits()

    def _read(self, timeout_s: float) -> bool:
        """Whether anybody said anything."""
        return any([self._hear(key.data) for key, _ in self._selector.select(timeout_s)])

    def _hear(self, member: Member) -> bool:
        """Takes what lies in a member's pipe, without waiting."""
        heard = False
        try:
            while data := os.read(_stdout(member), 65_536):
                member.take(data)
                heard = True
            if _stdout(member) in self._selector.get_map():
                self._selector.unregister(_stdout(member))  # its end
        except BlockingIOError:
            pass
        return heard

    def _check(self) -> None:
        """Raises RunFailed for the first cause: a killed process before those that only noticed."""
        gone = [member for member in self.members if not member.finished and member.process.poll() is not None]
        for member in gone:
            self._hear(member)  # its last words may have come since
        gone = [member for member in gone if not member.finished]
        killed = next((member for member in gone if member.process.returncode < 0), None)
        if killed is not None:
            number = -killed.process.returncode
            name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
            raise RunFailed(f"{self._method}: rank {killed.rank} was killed by {name} at {_place(killed)}")
        failed = next((member for member in self.members if member.named("failed")), gone[0] if gone else None)
        if failed is not None:
            said = failed.named("failed")
            reason = str(said[0].get("message", "no reason given")) if said else self._last_words(failed)
            raise RunFailed(f"{self._method}: rank {failed.rank} failed at {_place(failed)}: {reason}")

    def _last_words(self, member: Member) -> str:
        lines = member.log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        words = lines[-1].strip() if lines else "it wrote nothing"
        return f"exit status {member.process.returncode}: {words} (more in {member.log_path})"

    def _where(self) -> str:
        return ", ".join(f"rank {member.rank} at {_place(member)}" for member in self.members)

    def _wait_for_exits(self) -> None:
        """A trainer that has finished also ends, with status 0; one that hangs then is ended by its owner."""
        until = time.monotonic() + EXIT_S
        for member in self.members:
            try:
                status = member.process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue
            if status != 0:
                raise RunFailed(
                    f"{self._method}: rank {member.rank} finished and then failed: {self._last_words(member)}"
                )


def _place(member: Member) -> str:
    return f"iteration {member.iterations}" if member.iterations else "its start"


def _stdout(member: Member) -> int:
    assert member.process.stdout is not None, "a member's stdout must be a pipe"
    return member.process.stdout.fileno()
