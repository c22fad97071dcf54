"""A rank of the benchmark: a process in its worker's namespace that lives through all methods and sizes.

    python -m emulation.experiments.bench.allreduce.allreduce_rank '{"rank": 0, …}'

Orders (rank_messages.py) open a method, run operations, close it. All ranks start each operation at the same moment:
they meet in shared memory, rank 0 names a time a little ahead, and the ranks sleep until then. A rank times the call
alone; filling the array, synchronising and checking the result are not timed, and no rank checks while another rank is
still in the call.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import msgspec
import numpy as np

from emulation.experiments.bench.allreduce.contestants import Contestant, open_contestant
from emulation.experiments.bench.allreduce.exact_inputs import ExactInputs, SumCheck
from emulation.experiments.bench.allreduce.rank_messages import (
    CloseMethod,
    MethodOpened,
    OpenMethod,
    Operation,
    OperationsMeasured,
    RankPlace,
    RunOperations,
)
from emulation.scenario.bounds import elements_of
from emulation.testbed.children import ChildReport, Done, serve
from emulation.testbed.host import cpu_ticks

LEAD_NS, LEAD_NS_PER_RANK = 100_000, 30_000  # from rank 0's announcement to the start: all must be asleep again by then
PAUSE_S = 20e-6
PAUSE_AFTER_S = 1e-3  # of ranks that have ended: shorter ones would take the CPUs from those that have not
CELL = 8  # int64s; a rank has a cache line alone
_PR_SET_TIMERSLACK = 29


class MeetingPoint:
    """A file in shared memory: how often each rank has arrived, and when the next operation starts."""

    def __init__(self, path: str, rank: int, workers: int, limit_s: float) -> None:
        self._rank, self._workers, self._limit_s = rank, workers, limit_s
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), self.size_bytes(workers))
        cells = np.frombuffer(self._memory, np.int64)
        self._arrived = cells[: workers * CELL : CELL]
        self._start = cells[workers * CELL : workers * CELL + 1]
        self._turn = 0

    @staticmethod
    def size_bytes(workers: int) -> int:
        """Size of the file, which is filled with zeros."""
        return 8 * CELL * (workers + 1)

    def meet(self, pause_s: float = PAUSE_S) -> None:
        """Returns when all ranks have come as often. TimeoutError names who is missing. pause_s: between looks."""
        self._turn += 1
        self._arrived[self._rank] = self._turn
        deadline = time.monotonic() + self._limit_s
        while int(self._arrived.min()) < self._turn:
            if time.monotonic() > deadline:
                missing = np.flatnonzero(self._arrived < self._turn).tolist()
                raise TimeoutError(f"waited {self._limit_s:g} s for rank {', '.join(map(str, missing))}")
            time.sleep(pause_s)

    def start_together(self) -> None:
        """Meets, then returns on every rank at the same moment, as far as there are CPUs for that."""
        before = int(self._start[0])
        self.meet()
        if self._rank == 0:
            self._start[0] = time.monotonic_ns() + LEAD_NS + self._workers * LEAD_NS_PER_RANK
        while (start := int(self._start[0])) == before:
            time.sleep(PAUSE_S)
        time.sleep(max(0, start - time.monotonic_ns()) / 1e9)


class AllreduceRank:
    """Executes commands."""

    def __init__(self, place: RankPlace) -> None:
        self._place = place
        self._contestants: dict[str, Contestant] = {}
        self._checks: dict[str, SumCheck] = {}
        elements = place.bytes_most // 4
        self._numbers = cache(partial(ExactInputs, place.rank, place.workers, place.dtype, elements))
        self._array = np.zeros(elements, place.dtype)
        self._point = MeetingPoint(place.meeting_point, place.rank, place.workers, place.limit_s)

    def carry_out(self, order: OpenMethod | RunOperations | CloseMethod) -> ChildReport:
        """The answer to one order."""
        name = order.method.name
        match order:
            case OpenMethod():
                contestant = self._contestants[name] = open_contestant(order, self._place)
                method, options = order.method.method, order.scenario
                elements = elements_of(method, options.switch.elements, options.topology.mtu_bytes)
                place, room = self._place, elements - options.network.tag_elements(elements)
                exact = place.dtype == "float32" and method.spec is not None and method.spec.exact
                self._checks[name] = SumCheck(method, self._numbers(gradients=exact), place.workers, place.dtype, room)
                return MethodOpened(contestant.facts())
            case RunOperations():
                return self._run(name, order)
            case CloseMethod():
                self._contestants.pop(name).close()
                return Done()

    def _run(self, name: str, order: RunOperations) -> OperationsMeasured:
        contestant = self._contestants[name]
        before = [
            self._operation(name, order.warmup_bytes // 4, order.first - 1 - number, False)
            for number in range(order.warmup)
        ]
        first = contestant.counters()
        counts = [
            self._operation(name, order.size_bytes // 4, order.first + number, order.watch_cpu)
            for number in range(order.operations)
        ]
        last = contestant.counters()
        wrong = sum(operation.wrong for operation in before)
        counts[0] = msgspec.structs.replace(counts[0], wrong=counts[0].wrong + wrong)
        return OperationsMeasured(counts, {name: last[name] - first.get(name, 0) for name in last}, _resident_bytes())

    def _operation(self, name: str, elements: int, number: int, watch_cpu: bool) -> Operation:
        contestant, array, check = self._contestants[name], self._array[:elements], self._checks[name]
        check.numbers.fill(array, number)
        watch_cpu = watch_cpu and self._place.rank == 0
        self._point.start_together()
        cpus = cpu_ticks() if watch_cpu else []
        cpu_ns = time.process_time_ns()
        start_ns = time.monotonic_ns()
        contestant.allreduce(array)
        end_ns = time.monotonic_ns()
        cpu_ns = time.process_time_ns() - cpu_ns
        spent = np.subtract(cpu_ticks(), cpus).tolist() if watch_cpu else []
        self._point.meet(PAUSE_AFTER_S)
        return Operation(start_ns, end_ns, cpu_ns, check.wrong(array, number), spent, check.digest(array))


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def begin(place: RankPlace) -> Callable[[OpenMethod | RunOperations | CloseMethod], ChildReport]:
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)  # 1 µs: the default of 50 µs would blur the start
    return AllreduceRank(place).carry_out


if __name__ == "__main__":
    serve(RankPlace, OpenMethod | RunOperations | CloseMethod, begin)
