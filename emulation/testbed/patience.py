"""Limits on waiting for processes, counted in time that the machine gave them: a starved one is waited for.

Standard library only: Mininet's own command line starts processes, too, under the system's Python.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

LOOK_S = 0.5
SAY_S = 15.0
STARVED_MOST = 20.0
"""A starved process is waited for at most so many times its limit: every wait ends."""

Pids = Callable[[], Iterable[int]]


def to_stderr(line: str) -> None:
    print(f"switchagg: {line}", file=sys.stderr, flush=True)


class Patience:
    """A limit on waiting for processes. limit_s: of time in which none of them was starved.

    Starved is a thread that waits for a processor (run_delay of /proc/PID/schedstat), or for a disk. A process that
    sleeps, or one that runs without end, is waited for limit_s; a starved one STARVED_MOST times as long at most.
    pids: the processes; their children count, too. what: for `say`, which takes a line each SAY_S from limit_s on.
    """

    def __init__(self, limit_s: float, pids: Pids, what: str, say: Callable[[str], None] = to_stderr) -> None:
        self.limit_s = limit_s
        self._pids, self._what, self._say = pids, what, say
        self._seen = dict(_threads(pids()))
        self.again()

    def again(self) -> None:
        """Waiting begins anew."""
        self._start = self._looked = time.monotonic()
        self._said_s = self.limit_s
        self.starved_s = 0.0

    def skip(self, seconds: float) -> None:
        """The last so many seconds took nothing of the limit: nobody waited."""
        self._start += seconds
        self._looked = time.monotonic()

    def over(self) -> bool:
        """Whether to give up. Call it at least once a second: it looks at the processes each LOOK_S."""
        now = time.monotonic()
        if now - self._looked >= LOOK_S:
            self.starved_s += self._starved(now - self._looked)
            self._looked = now
        waited_s = now - self._start
        if waited_s - self.starved_s > self.limit_s or waited_s > STARVED_MOST * self.limit_s:
            return True
        if waited_s > self._said_s:
            self._said_s = waited_s + SAY_S
            self._say(
                f"{self._what} after {waited_s:.0f} s, {self.starved_s:.0f} s of which processors or disks were busy; "
                f"still waiting, {STARVED_MOST * self.limit_s:.0f} s at most"
            )
        return False

    @property
    def words(self) -> str:
        """How long it was waited, for the message of who gives up."""
        starved = f" (and {self.starved_s:.0f} s in which processors or disks were busy)" if self.starved_s >= 1 else ""
        return f"{self.limit_s:{'.0f' if self.limit_s >= 1 else 'g'}} s{starved}"

    def _starved(self, elapsed_s: float) -> float:
        """For how long of the last so many seconds the most starved of all threads was so."""
        before, self._seen = self._seen, dict(_threads(self._pids()))
        most_s = 0.0
        for thread, (ran_ns, waited_ns) in self._seen.items():
            ran_before_ns, waited_before_ns = before.get(thread, (ran_ns, waited_ns))
            starved_s = (waited_ns - waited_before_ns) / 1e9
            if thread in before and not starved_s and ran_ns == ran_before_ns and _state(thread) in ("R", "D"):
                starved_s = elapsed_s  # what it waits for now is counted once it has it
            most_s = max(most_s, starved_s)
        return min(most_s, elapsed_s)


def _threads(pids: Iterable[int]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Threads of the processes and their children, as folders of /proc: how long each has run, and waited to run."""
    pending = [str(pid) for pid in pids]
    while pending:
        tasks = f"/proc/{pending.pop()}/task"
        try:
            for thread in os.listdir(tasks):
                with open(f"{tasks}/{thread}/schedstat", encoding="ascii") as file:
                    ran, waited, _ = file.read().split()
                yield f"{tasks}/{thread}", (int(ran), int(waited))
                with open(f"{tasks}/{thread}/children", encoding="ascii") as file:
                    pending += file.read().split()
        except (OSError, ValueError):  # it has ended, or this kernel doesn't say: then limits are those of a clock
            continue


def _state(thread: str) -> str:
    """R runs or could, D waits for a disk, S sleeps; "" of one that has ended."""
    try:
        with open(f"{thread}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def run(
    command: Sequence[str], limit_s: float, *, input: str | None = None, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """As subprocess.run with its output captured as text, and a limit that counts as in `Patience`.

    Raises CalledProcessError, TimeoutExpired.
    """
    pipe = subprocess.PIPE
    stdin = subprocess.DEVNULL if input is None else pipe
    with subprocess.Popen(command, stdin=stdin, stdout=pipe, stderr=pipe, text=True, **options) as process:
        patience = Patience(limit_s, lambda: [process.pid], f"no end of {command[0]}")
        try:
            while True:
                try:
                    out, errors = process.communicate(input, timeout=LOOK_S)
                    break
                except subprocess.TimeoutExpired:
                    input = None  # it has it
                    if patience.over():
                        raise subprocess.TimeoutExpired(list(command), limit_s) from None
        except BaseException:
            process.kill()
            raise
    if check and process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(command), out, errors)
    return subprocess.CompletedProcess(list(command), process.returncode, out, errors)
