"""The trainer processes, one per worker, and their reports until all have finished or one has failed."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TypeVar

from emulation.scenario.errors import RunFailed
from emulation.testbed.children import POLL_S, Child, ChildCommand, ChildListener
from emulation.testbed.patience import Patience, Pids
from emulation.testbed.trainers.trainer_messages import IterationReport, TrainerReport, TrainingFailed, TrainingFinished

EXIT_S = 3.0  # how long a trainer may take to end after it has finished

Kind = TypeVar("Kind")


class TrainerProcess:
    """A rank's process and its reports."""

    def __init__(self, rank: int, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        self.rank = rank
        self.child: Child[TrainerReport] = Child(f"rank {rank}", process, TrainerReport, log)
        self.reports: list[TrainerReport] = []
        self.iterations = 0

    def named(self, kind: type[Kind]) -> list[Kind]:
        """All reports of one kind, in order."""
        return [report for report in self.reports if isinstance(report, kind)]

    @property
    def finished(self) -> bool:
        return bool(self.reports) and isinstance(self.reports[-1], TrainingFinished)

    def add(self, report: TrainerReport) -> None:
        """Take the next report."""
        self.reports.append(report)
        self.iterations += isinstance(report, IterationReport)

    @property
    def place(self) -> str:
        return f"iteration {self.iterations}" if self.iterations else "its start"

    def last_output(self) -> str:
        return f"exit status {self.child.process.returncode}: {self.child.last_line()} (more in {self.child.log.name})"


class TrainerGroup:
    """Follows the processes by their reports. They belong to the caller that started them; none is ended here.

    method: for messages. stall_s: longest time without any report, limit_s: longest run, both as `Patience` counts.
    alive(): raises RunFailed when what the members depend on has ended. beside: the processes of that.
    """

    def __init__(
        self,
        method: str,
        members: Sequence[TrainerProcess],
        *,
        stall_s: float,
        limit_s: float,
        alive: Callable[[], None] = lambda: None,
        beside: Pids = tuple,
    ) -> None:
        self.members = list(members)
        self._method, self._alive, self._beside = method, alive, beside
        self._stall = Patience(stall_s, self._pids, f"{method}: no rank said anything")
        self._limit = Patience(limit_s, self._pids, f"{method}: not done")

    def follow(self) -> Iterator[int]:
        """How many iterations all have done, whenever that grows, until every member has finished. What the caller does
        meanwhile takes no time of theirs.

        Raises RunFailed, in one line, as soon as a member fails, is killed or ends early, if no process reports
        anything for too long, or after the limit.
        """
        stall, limit = self._stall, self._limit
        stall.again()
        limit.again()
        done = 0
        with ChildListener([member.child for member in self.members]) as listener:
            while not all(member.finished for member in self.members):
                self._hear(listener)
                slowest = min(member.iterations for member in self.members)
                if slowest > done:
                    done, since = slowest, time.monotonic()
                    yield done
                    stall.again()
                    limit.skip(time.monotonic() - since)
                if limit.over():
                    raise RunFailed(f"{self._method}: not done after {limit.words}; {self._where()}")
        self._wait_for_exits()

    def answers(self, command: ChildCommand, kind: type[Kind]) -> list[Kind]:
        """Every member's answer to a command, while `follow` stands still. Raises RunFailed as that does."""
        counts = [len(member.named(kind)) for member in self.members]
        self._stall.again()
        with ChildListener([member.child for member in self.members]) as listener:
            for member in self.members:
                member.child.send(command)
            while [len(member.named(kind)) for member in self.members] != [count + 1 for count in counts]:
                self._hear(listener)
        return [member.named(kind)[-1] for member in self.members]

    def _hear(self, listener: ChildListener[TrainerReport]) -> None:
        """Reads what the members report. Raises RunFailed, in one line, if they can't go on."""
        if self._read(listener, POLL_S):
            self._stall.again()
        self._alive()
        self._check(listener)
        if self._stall.over():
            raise RunFailed(f"{self._method}: no rank said anything for {self._stall.words}; {self._where()}")

    def _pids(self) -> list[int]:
        return [*(member.child.process.pid for member in self.members if not member.finished), *self._beside()]

    def _read(self, listener: ChildListener[TrainerReport], timeout_s: float) -> bool:
        """Whether any process reported anything."""
        reports = listener.hear(timeout_s)
        for place, report in reports:
            self.members[place].add(report)
        return bool(reports)

    def _check(self, listener: ChildListener[TrainerReport]) -> None:
        """Raises RunFailed for the first cause: a killed process before those that only noticed."""
        ended = [member for member in self.members if not member.finished and member.child.process.poll() is not None]
        while ended and self._read(listener, 0):  # their last output may have come since
            pass
        ended = [member for member in ended if not member.finished]
        killed = next((member for member in ended if member.child.killed_by), None)
        if killed is not None:
            cause = f"rank {killed.rank} was killed by {killed.child.killed_by} at {killed.place}"
            raise RunFailed(f"{self._method}: {cause}")
        failed = next((member for member in self.members if member.named(TrainingFailed)), ended[0] if ended else None)
        if failed is not None:
            failures = failed.named(TrainingFailed)
            reason = failures[0].message if failures else failed.last_output()
            raise RunFailed(f"{self._method}: rank {failed.rank} failed at {failed.place}: {reason}")

    def _where(self) -> str:
        return ", ".join(f"rank {member.rank} at {member.place}" for member in self.members)

    def _wait_for_exits(self) -> None:
        """A trainer that has finished also ends, with status 0; one that hangs then is ended by its owner."""
        until = time.monotonic() + EXIT_S
        for member in self.members:
            try:
                status = member.child.process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue
            if status != 0:
                raise RunFailed(f"{self._method}: rank {member.rank} finished and then failed: {member.last_output()}")
