"""The ranks of one network, asked together: every order ends within its time limit, and a death names the rank."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from emulation.bench.allreduce.methods import Method
from emulation.bench.allreduce.network import RunningNetwork
from emulation.bench.allreduce.rank import MeetingPoint
from emulation.results import RunFailed

START_S = 60.0
GRACE_S = 10.0  # after a rank's own limit has ended
TURN_S = 0.25


class MethodFailed(RunFailed):
    """An operation of one method failed; the ranks are gone, other methods may be tried again on new ones."""

    def __init__(self, method: Method, words: str) -> None:
        super().__init__(f"{method.name}: {words}")
        self.method = method


class Ranks:
    """Rank processes, one in each worker's namespace. A context manager that ends them.

    bytes_most: largest array. limit_s: longest operation, so that no rank waits for ever for another.
    """

    def __init__(self, network: RunningNetwork, dtype: str, bytes_most: int, limit_s: float) -> None:
        self._network, self._limit_s = network, limit_s
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs: list[IO[bytes]] = []
        self._rest: dict[int, bytes] = {}
        workers = network.star.workers
        shared, self._shared_path = tempfile.mkstemp(dir=_shared_memory(), prefix="switchagg-bench-")
        os.write(shared, bytes(MeetingPoint.size_bytes(len(workers))))
        os.close(shared)
        self._place = {
            "workers": len(workers),
            "addresses": [worker.address for worker in workers],
            "dtype": dtype,
            "bytes_most": bytes_most,
            "meeting_point": self._shared_path,
            "limit_s": limit_s,
        }

    def __enter__(self) -> Ranks:
        try:
            for worker in self._network.star.workers:
                place = {**self._place, "rank": worker.rank, "interface": worker.interface}
                log = tempfile.TemporaryFile()
                self._logs.append(log)
                process = self._network.star.spawn(
                    worker.rank,
                    [sys.executable, "-P", "-m", "emulation.bench.allreduce.rank", json.dumps(place)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": worker.interface},
                )
                self._processes.append(process)
            self._answers(START_S, lambda words: RunFailed(words))
        except BaseException:
            self.close()
            raise
        self._forget_path()  # every rank has it open: nothing is left even if we are killed
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all ranks at once: nothing of theirs is worth waiting for."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        self._processes.clear()
        for log in self._logs:
            log.close()
        self._logs.clear()
        self._forget_path()

    def _forget_path(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._shared_path)

    def ask(self, method: Method, do: str, timeout_s: float, **more: Any) -> list[dict[str, Any]]:
        """One order to all ranks; their answers by rank. Raises MethodFailed in one line."""
        line = json.dumps({"do": do, "method": [method.kind, method.variant, method.link], **more}).encode() + b"\n"
        for process in self._processes:
            assert process.stdin is not None
            try:
                process.stdin.write(line)
                process.stdin.flush()
            except BrokenPipeError:
                pass  # its end, and its last words, are found below
        return self._answers(timeout_s + self._limit_s + GRACE_S, lambda words: MethodFailed(method, words))

    def _answers(self, timeout_s: float, failed: Callable[[str], RunFailed]) -> list[dict[str, Any]]:
        answers: dict[int, dict[str, Any]] = {}
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            for rank, process in enumerate(self._processes):
                assert process.stdout is not None
                selector.register(process.stdout, selectors.EVENT_READ, rank)
            while len(answers) < len(self._processes):
                for key, _ in selector.select(TURN_S):
                    answer = self._hear(key.data, failed)
                    if answer is not None:
                        answers[key.data] = answer
                for running in self._network.switches.values():
                    running.check()
                if time.monotonic() > deadline:
                    missing = sorted(set(range(len(self._processes))) - set(answers))
                    raise failed(f"no answer from rank {', '.join(map(str, missing))} within {timeout_s:.0f} s")
        return [answers[rank] for rank in range(len(self._processes))]

    def _hear(self, rank: int, failed: Callable[[str], RunFailed]) -> dict[str, Any] | None:
        """A rank's answer, if its line is complete."""
        process = self._processes[rank]
        assert process.stdout is not None
        data = os.read(process.stdout.fileno(), 1 << 20)
        if not data:
            raise failed(self._last_words(rank))
        *lines, self._rest[rank] = (self._rest.get(rank, b"") + data).split(b"\n")
        for line in lines:
            try:
                answer = json.loads(line)
            except ValueError:  # a library printed
                continue
            if "failed" in answer:
                killed = [number for number, one in enumerate(self._processes) if (one.poll() or 0) < 0]
                raise failed(self._last_words(killed[0]) if killed else f"rank {rank}: {answer['failed']}")
            return dict(answer)
        return None

    def _last_words(self, rank: int) -> str:
        """Why a rank's pipe ended."""
        try:
            status = self._processes[rank].wait(5)
        except subprocess.TimeoutExpired:
            return f"rank {rank} closed its pipe"
        if status < 0:
            known = set(signal.Signals)
            return f"rank {rank} was killed by {signal.Signals(-status).name if -status in known else -status}"
        log = self._logs[rank]
        text = os.pread(log.fileno(), os.fstat(log.fileno()).st_size, 0).decode(errors="replace")
        lines = text.strip().splitlines()
        return f"rank {rank} ended with status {status}: {lines[-1] if lines else 'it wrote nothing'}"


def _shared_memory() -> str | None:
    """Where files cost no disk; None: the usual place."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) and Path("/dev/shm").is_dir() else None
