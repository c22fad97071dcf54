"""The ranks of one network, asked together: every order ends within its time limit, and a death names the rank."""

from __future__ import annotations

import contextlib
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from emulation.experiments.bench.allreduce.allreduce_rank import MeetingPoint
from emulation.experiments.bench.allreduce.bench_methods import BenchMethod
from emulation.experiments.bench.allreduce.rank_messages import (
    CloseMethod,
    MethodOpened,
    OpenMethod,
    OperationsMeasured,
    RankPlace,
    RunOperations,
)
from emulation.scenario.errors import RunFailed
from emulation.testbed import children
from emulation.testbed.children import Child, ChildFailed
from emulation.testbed.mininet.launch import RunningScenario
from emulation.testbed.resource import Resource

START_S = 60.0
GRACE_S = 10.0  # after a rank's own limit has ended


class MethodFailed(RunFailed):
    """An operation of one method failed; the ranks have ended, other methods may be tried again on new ones."""

    def __init__(self, method: BenchMethod, words: str) -> None:
        super().__init__(f"{method.name}: {words}")
        self.method = method


class Ranks(Resource):
    """Rank processes, one in each worker's namespace. A context manager that ends them.

    bytes_most: largest array. limit_s: longest operation, so that no rank waits for ever for another.
    """

    def __init__(self, network: RunningScenario, dtype: str, bytes_most: int, limit_s: float) -> None:
        self._network, self._limit_s = network, limit_s
        self._children: list[Child[Any]] = []
        workers = network.star.workers
        shared, self._shared_path = tempfile.mkstemp(dir=_shared_memory(), prefix="switchagg-bench-")
        os.write(shared, bytes(MeetingPoint.size_bytes(len(workers))))
        os.close(shared)
        addresses = tuple(worker.address for worker in workers)
        self._places = [
            RankPlace(
                worker.rank,
                addresses,
                worker.interface,
                dtype,
                bytes_most,
                self._shared_path,
                limit_s,
                network.via(worker.rank),
            )
            for worker in workers
        ]

    def _open(self) -> None:
        for place in self._places:
            child = children.start(
                partial(self._network.start_rank, place.rank),
                f"rank {place.rank}",
                "emulation.experiments.bench.allreduce.allreduce_rank",
                place,
                MethodOpened | OperationsMeasured,
            )
            self._children.append(child)
        self._gather(START_S)
        self._forget_path()  # every rank has it open: nothing is left even if we are killed

    @property
    def pids(self) -> list[int]:
        """The processes' ids, by rank."""
        return [child.process.pid for child in self._children]

    def close(self) -> None:
        """Ends all ranks at once."""
        children.close(self._children)
        self._children.clear()
        self._forget_path()

    def _forget_path(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._shared_path)

    def ask(self, order: OpenMethod | RunOperations | CloseMethod, timeout_s: float) -> list[Any]:
        """Send an order to all ranks; returns their answers by rank. Raises MethodFailed with one line."""
        for child in self._children:
            child.send(order)
        try:
            return self._gather(timeout_s + self._limit_s + GRACE_S)
        except ChildFailed as error:
            raise MethodFailed(order.method, str(error)) from error

    def _gather(self, timeout_s: float) -> list[Any]:
        network = self._network
        return children.gather(self._children, timeout_s, network.check_services, network.pids_of_services)


def _shared_memory() -> str | None:
    """Where files cost no disk; None: the usual place."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) and Path("/dev/shm").is_dir() else None
