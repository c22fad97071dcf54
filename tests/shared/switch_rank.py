"""A rank of a job on a switch, in a process of its own: it makes sums one after the other, two in flight, and says what
each of them was, until its standard input says how many there shall be.

    python switch_rank.py '{"rank": 0, "addresses": [...], "pause_s": 0.01, "switch": "tcp://...", ...}'

What `RankProcesses` doesn't know of the settings are options of `open_group`.
"""

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIZES = (5_000, 300, 20_000)


def inputs(rank: int, number: int) -> NDArray[np.int32]:
    values = np.random.default_rng((rank, number)).integers(-(1 << 20), 1 << 20, SIZES[number % len(SIZES)])
    return values.astype(np.int32)


def digest_of_sum(workers: int, number: int) -> int:
    """As a rank prints that of an undisturbed sum."""
    total = sum(inputs(rank, number) for rank in range(workers))
    return zlib.crc32(total.astype(np.int32).tobytes())  # type: ignore[union-attr]


def free_places(count: int) -> list[tuple[str, int]]:
    """Addresses of as many ranks."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    places = [probe.getsockname()[:2] for probe in probes]
    for probe in probes:
        probe.close()
    return places


class RankProcesses:
    """The ranks of a job. sums: of each rank the digests, in order. said: its other lines."""

    def __init__(self, workers: int, switch: str, **settings: Any) -> None:
        self.workers = workers
        self.sums: list[list[int]] = [[] for _ in range(workers)]
        self.said: list[list[str]] = [[] for _ in range(workers)]
        common = {"addresses": free_places(workers), "switch": switch, "bind": "127.0.0.1", "job": "sleepy"}
        common |= {"window_slots": 16, "pause_s": 0.02, "timeout_s": 20.0, **settings}
        self.processes = [self._start(rank, {**common, "rank": rank}) for rank in range(workers)]

    def _start(self, rank: int, settings: dict[str, Any]) -> "subprocess.Popen[str]":
        command = [sys.executable, __file__, json.dumps(settings)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process: subprocess.Popen[str] = subprocess.Popen(command, text=True, **pipes)

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("sum "):
                    self.sums[rank].append(int(line[4:]))
                else:
                    self.said[rank].append(line.rstrip())

        threading.Thread(target=read, daemon=True).start()
        return process

    def send(self, rank: int, number: signal.Signals) -> None:
        os.kill(self.processes[rank].pid, number)

    def end(self) -> int:
        """Let all of them end after the same sum; its number."""
        steps = max(map(len, self.sums)) + 50  # more than any rank has begun
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"{steps}\n")
            process.stdin.flush()
        return steps

    def has_said(self, words: str) -> bool:
        """Whether each rank has a line with these words."""
        return all(any(words in line for line in lines) for lines in self.said)

    def wrong(self) -> list[tuple[int, int]]:
        """(rank, number) of sums that aren't those of undisturbed ranks."""
        return [
            (rank, number)
            for rank, sums in enumerate(self.sums)
            for number, digest in enumerate(sums)
            if digest != digest_of_sum(self.workers, number)
        ]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


def say(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def main() -> None:
    sys.stderr = sys.stdout  # each line is one write, so that none is within another
    settings = json.loads(sys.argv[1])
    rank, addresses, job, pause_s = (settings.pop(name) for name in ("rank", "addresses", "job", "pause_s"))
    from transport.group.group_opening import open_group

    group = open_group("switch", "udp", rank, [tuple(place) for place in addresses], job=job, options=settings)
    counted: dict[str, int] = {}
    pending: list[Any] = []
    steps: list[int] = []
    threading.Thread(target=lambda: steps.append(int(sys.stdin.readline() or 0)), daemon=True).start()

    def take() -> None:
        say(f"sum {zlib.crc32(pending.pop(0).result().tobytes())}")
        for name in ("recoveries", "moves_to_switch"):
            if (count := group.counters.get(name, 0)) != counted.get(name, 0):
                counted[name] = count
                say(f"{name} {count}")

    try:
        for number in itertools.count():
            if steps and number >= steps[0]:
                break
            pending.append(group.allreduce(inputs(rank, number)))
            if len(pending) == 2:
                take()
                time.sleep(pause_s)
        while pending:
            take()
    except Exception as error:
        say(f"failed: {error}")
        sys.exit(1)
    say("ends")
    group.close()


if __name__ == "__main__":
    main()
