"""Commands to a rank of the benchmark, and its answers."""

from __future__ import annotations

from typing import Any

import msgspec

from emulation.experiments.bench.allreduce.bench_methods import BenchMethod
from emulation.scenario.scenario import Scenario
from emulation.testbed.children import ChildCommand, ChildReport


class RankPlace(msgspec.Struct, frozen=True):
    """Where a rank is. bytes_most: largest array. limit_s: longest operation. via: name of its switch; "": the root."""

    rank: int
    addresses: tuple[str, ...]  # those of all ranks
    interface: str
    dtype: str
    bytes_most: int
    meeting_point: str
    limit_s: float
    via: str = ""

    @property
    def workers(self) -> int:
        return len(self.addresses)


class OpenMethod(ChildCommand):
    """Opens a method with a scenario's options, the same on every rank. number: of methods opened before it."""

    method: BenchMethod
    scenario: Scenario
    number: int
    segments_max: int
    switch: str = ""  # the switch's control address


class RunOperations(ChildCommand):
    """Operations `first`, `first` + 1, … on arrays of size_bytes; warm-up operations before them aren't reported."""

    method: BenchMethod
    size_bytes: int
    operations: int
    warmup: int
    warmup_bytes: int
    first: int
    watch_cpu: bool


class CloseMethod(ChildCommand):
    method: BenchMethod


class MethodOpened(ChildReport):
    facts: dict[str, Any]


class Operation(msgspec.Struct, frozen=True):
    """An operation of a rank. cpu_ticks: of all CPUs, on the rank that watches them. digest: of the result's bits,
    which must be the same on all ranks; 0 where the result must be exact."""

    start_ns: int
    end_ns: int
    cpu_ns: int
    wrong: int
    cpu_ticks: list[int]
    digest: int = 0


class OperationsMeasured(ChildReport):
    operations: list[Operation]
    counters: dict[str, int]
    memory_bytes: int
