"""Starts a switch and three of the folder's workers, kills one of them in mid-work, and reads what the others print."""

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions

WORKERS, STEPS, DIES, AT_STEP = 3, 12, 1, 3
LEASE_S = 1.0
LIMIT_S = 40.0
"""For the whole check; a right worker takes about 4 s, most of it the switch's wait for a sign of the dead one."""

Steps = dict[int, int]
"""The sum of each step, the last that was printed."""


class Worker:
    """A process whose lines are read as they come."""

    def __init__(self, program: Path, rank: int, control: str) -> None:
        environment = os.environ | {
            "RANK": str(rank), "WORLD_SIZE": str(WORKERS), "STEPS": str(STEPS), "SWITCHAGG_SWITCH": control
        }  # fmt: skip
        self.rank, self.steps = rank, Steps()
        self.lines: Queue[str] = Queue()
        self.errors: deque[str] = deque(maxlen=30)
        self.process = subprocess.Popen(
            [sys.executable, str(program)], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.readers = [Thread(target=self._read_lines), Thread(target=self._read_errors)]
        for reader in self.readers:
            reader.start()

    def _read_lines(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors.extend(line.strip() for line in self.process.stderr)

    def follow(self, until: int, end_s: float) -> bool:
        """Read its lines until a step is there; False if it ended before, or time is up."""
        while until not in self.steps:
            try:
                words = self.lines.get(timeout=0.05).split()
            except Empty:
                if time.monotonic() > end_s or (self.process.poll() is not None and self.lines.empty()):
                    return False
                continue
            if words[:1] == ["step"] and words[2:3] == ["sum"]:
                self.steps[int(words[1])] = int(words[3])
        return True

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for reader in self.readers:
            reader.join()


@contextmanager
def running(program: Path) -> Iterator[list[Worker]]:
    """A switch and its workers."""
    switch = SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), lease_s=LEASE_S))
    switch.start()
    workers: list[Worker] = []
    try:
        for rank in range(WORKERS):
            workers.append(Worker(program, rank, switch.control_endpoint))
        yield workers
    finally:
        for worker in workers:
            worker.close()
        switch.stop()


def stopped(worker: Worker) -> list[str]:
    """Why a worker didn't come to the last step."""
    done = f"rank {worker.rank} ended after step {max(worker.steps, default='none')}"
    if worker.process.poll() is None:
        return [f"rank {worker.rank} did not come to step {STEPS - 1} within {LIMIT_S:.0f} s; its last step is {done}"]
    worker.close()
    last = next((line for line in reversed(worker.errors) if "Error" in line or "Failed" in line), "")
    words = [f"{done}{': ' + last.rpartition('errors.')[2] if last else ' without an error'}"]
    if "AggregationFailed" in last:
        words.append(
            "that is one exception, and error.missing has the ranks that died: catch it and go on without them"
        )
    elif "did not join" in last:
        words.append(
            "a new job begins when all its ranks have joined: as many as are alive, numbered from 0 without gaps"
        )
    return words


def wrong_sums(steps: Steps, rank: int) -> list[str]:
    """The faults of the sums that a survivor printed."""
    if gaps := [step for step in range(STEPS) if step not in steps]:
        return [
            f"rank {rank} has no sum of step {gaps[0]}",
            "the call that failed was not made again: its gradient is in no sum of the survivors",
        ]
    alone = False
    for step in range(STEPS):
        every = sum(10**worker + step for worker in range(WORKERS))
        left = every - (10**DIES + step)
        if steps[step] not in (every, left):
            return [
                f"rank {rank}'s sum of step {step} is {steps[step]}, and of all three {every}, of the survivors {left}",
                "an array that a failed call had holds anything; and all must be at the same step when they go on",
            ]
        if alone and steps[step] == every:
            return [f"rank {rank}'s sum of step {step} has the values of rank {DIES}, who was dead by then"]
        alone = alone or steps[step] == left
    return [] if alone else [f"rank {rank} never summed without rank {DIES}"]


def faults(folder: Path) -> list[str]:
    """The faults of the folder's train.py."""
    end_s = time.monotonic() + LIMIT_S
    with running(folder / "train.py") as workers:
        if not workers[DIES].follow(AT_STEP, end_s):
            return [f"before any worker died: {(words := stopped(workers[DIES]))[0]}", *words[1:]]
        workers[DIES].process.send_signal(signal.SIGKILL)
        survivors = [worker for worker in workers if worker.rank != DIES]
        for worker in survivors:
            if not worker.follow(STEPS - 1, end_s):
                return [f"rank {DIES} was killed after step {AT_STEP}; {(words := stopped(worker))[0]}", *words[1:]]
        for worker in survivors:
            if wrong := wrong_sums(worker.steps, worker.rank):
                return wrong
        if (first := survivors[0].steps) != (second := survivors[1].steps):
            step = next(step for step in first if first[step] != second[step])
            return [f"ranks {survivors[0].rank} and {survivors[1].rank} have different sums of step {step}"]
    return []
