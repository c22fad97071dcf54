"""Groups inside one process, for tests of the layers above: exact sums in rank order, completed or failed when a test
says so.

Ranks are threads. A network's own thread ends calls once all ranks have made them, at random among those that may.
"""

import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
import torch

from switchagg.errors import AggregationFailed


class FakeNetwork:
    """kind: "keyed", or "classes" for calls matched by order within a class, as by a switch with these classes."""

    def __init__(self, workers: int, kind: str = "keyed", classes: tuple[int, ...] = (0, 1, 7), seed: int = 0) -> None:
        self.workers, self.kind, self.classes = workers, kind, classes
        self.hold = threading.Event()  # clear: nothing ends
        self.hold.set()
        self.fail_after: int | None = None  # calls
        self.ended: list[tuple[Any, int]] = []  # (what calls are matched by, bytes)
        self.made: list[list[Any]] = [[] for _ in range(workers)]
        self.mismatches: list[str] = []
        self._chance = random.Random(seed)
        self._changed = threading.Condition()
        self._calls: dict[Any, dict[int, tuple[np.ndarray, Future[Any]]]] = {}
        self._whole: list[Any] = []
        self._failure: BaseException | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="fake network", daemon=True)
        self._thread.start()

    def groups(self) -> list["FakeGroup"]:
        made = KeyedGroup if self.kind == "keyed" else ClassGroup
        return [made(self, rank) for rank in range(self.workers)]

    def take(self, rank: int, match: Any, array: np.ndarray) -> "Future[Any]":
        assert array.ndim == 1
        assert array.flags.c_contiguous
        future: Future[Any] = Future()
        with self._changed:
            self.made[rank].append(match)
            if self._failure is not None:
                future.set_exception(self._failure)
                return future
            call = self._calls.setdefault(match, {})
            assert rank not in call, f"rank {rank} made call {match} twice"
            call[rank] = (array, future)
            if len(call) == self.workers:
                self._whole.append(match)
                self._changed.notify_all()
        return future

    def fail(self, error: BaseException) -> None:
        """Every pending and later call fails."""
        with self._changed:
            self._failure = error
            futures = [future for call in self._calls.values() for _, future in call.values()]
            self._calls.clear()
            self._whole.clear()
        for future in futures:
            future.set_exception(error)

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self.hold.set()
        self._thread.join(10)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._whole and not self._stopped:
                    self._changed.wait()
                if self._stopped:
                    return
            self.hold.wait(60)
            with self._changed:
                if not self._whole:
                    continue
                match = self._whole.pop(self._next())
                call = self._calls.pop(match)
            if self.fail_after is not None and len(self.ended) >= self.fail_after:
                self.fail(AggregationFailed("a rank died", job="fake", missing=(1,)))
                for _, future in call.values():
                    future.set_exception(AggregationFailed("a rank died", job="fake", missing=(1,)))
                continue
            self._sum(match, call)

    def _next(self) -> int:
        """Any call may end next; of one class, the first."""
        if self.kind == "keyed":
            return self._chance.randrange(len(self._whole))
        first = {match[0]: place for place, match in reversed(list(enumerate(self._whole)))}
        return self._chance.choice(sorted(first.values()))

    def _sum(self, match: Any, call: dict[int, tuple[np.ndarray, "Future[Any]"]]) -> None:
        arrays = [call[rank][0] for rank in range(self.workers)]
        if len({(array.size, array.dtype.str) for array in arrays}) > 1:
            self.mismatches.append(f"{match}: {[array.size for array in arrays]}")
            self.fail(AggregationFailed("the ranks made different calls", job="fake"))
            for _, future in call.values():
                future.set_exception(AggregationFailed("the ranks made different calls", job="fake"))
            return
        total = arrays[0].copy()
        for array in arrays[1:]:
            total += array
        self.ended.append((match, total.nbytes))
        for rank in self._chance.sample(range(self.workers), self.workers):
            arrays[rank][:] = total
            call[rank][1].set_result(arrays[rank])


class FakeGroup:
    """An `AllreduceGroup`."""

    method, link, core = "fake", "memory", "fake"
    classes: tuple[int, ...] = ()
    failure = compression = None

    def __init__(self, network: FakeNetwork, rank: int) -> None:
        self.network, self.rank, self.workers = network, rank, network.workers
        self.numbers: dict[int, int] = {}
        self.counters: dict[str, int] = {}

    def set_credit(self, credit_bytes: int | None) -> None: ...

    def status(self) -> dict[str, Any]:
        return {}

    def close(self) -> None: ...


class KeyedGroup(FakeGroup):
    """As a host collective's."""

    matching = "key"
    credit_bytes: int | None = None

    def allreduce(
        self, array: np.ndarray, op: str = "sum", *, key: int, priority: int = 0, tensors: Any = None
    ) -> "Future[Any]":
        return self.network.take(self.rank, key, array)

    def set_credit(self, credit_bytes: int | None) -> None:
        self.credit_bytes = credit_bytes


class ClassGroup(FakeGroup):
    """As a switch's."""

    matching = "class"

    def __init__(self, network: FakeNetwork, rank: int) -> None:
        super().__init__(network, rank)
        self.classes = network.classes

    def allreduce(self, array: np.ndarray, op: str = "sum", *, priority: int, tensors: Any = None) -> "Future[Any]":
        assert priority in self.network.classes
        number = self.numbers[priority] = self.numbers.get(priority, -1) + 1
        return self.network.take(self.rank, (priority, number), array)


def run_ranks(program: Callable[[int], Any], workers: int, timeout_s: float = 60) -> list[Any]:
    """What each rank's program returns, or the first exception. Daemon threads: one that hangs fails the test alone."""
    futures: list[Future[Any]] = [Future() for _ in range(workers)]

    def run(rank: int) -> None:
        torch.set_num_threads(
            1
        )  # holds for this thread alone; with more, sums may be shared out in other ways under load
        try:
            futures[rank].set_result(program(rank))
        except BaseException as error:
            futures[rank].set_exception(error)

    for rank in range(workers):
        threading.Thread(target=partial(run, rank), name=f"rank {rank}", daemon=True).start()
    return [future.result(timeout_s) for future in futures]
