"""Windows that follow marks (G6 to G8): nothing ever waits for ever, ranks' windows are alike, slowness is no mark."""

import random

import numpy as np
import pytest

from simulation.world import MS, Faults, World
from switchagg.calls.array_calls import array_call
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.dataplane.reference import ReferencePlane
from switchagg.endpoint import CallCompleted, Endpoint
from switchagg.job import JobConfig, StreamConfig
from switchagg.window import Window
from switchagg.wire import MARKED, RANK_AT

LOSS_AND_MARKS = Faults(drop=0.1, duplicate=0.1, delay_ns=(MS, 3 * MS), mark=0.5)
"""Worlds of any mixture are in test_simulation.py."""


def run_worlds() -> None:
    for seed in range(40):
        World(seed, LOSS_AND_MARKS, DATAPLANES["reference"]).run()


def test_a_chunk_below_all_in_flight_needs_no_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    run_worlds()
    monkeypatch.setattr(Window, "_lowest_is_free", lambda _: False)
    with pytest.raises(AssertionError, match="still running"):
        run_worlds()


def allreduce(marked: float, down: float, waits: tuple[int, ...] = (), congestion: str = "friendly") -> list[list[int]]:
    """After each step, how many chunks each rank may have in flight. marked, down: part of contributions, of results,
    that meet congestion on their way. waits: of each rank, how many steps it takes for one of another."""
    rng, job = random.Random(3), JobConfig(1, 1, 3, 4, (StreamConfig(0, 32),), congestion=congestion)
    switch, endpoints = ReferencePlane(32, 4), [Endpoint(job, rank) for rank in range(3)]
    switch.admit(job, range(3))
    arrays = [np.arange(4 * 3000, dtype=np.int32) for _ in endpoints]
    for endpoint, array in zip(endpoints, arrays, strict=True):
        endpoint.submit(0, array_call(array, "sum", job))
    windows, done = [], 0
    for step in range(100_000):
        for rank, endpoint in enumerate(endpoints):
            if waits and step % waits[rank]:
                continue
            endpoint.handle_timer(step * MS)
            frames = endpoint.frames_to_send(step * MS, 8)
            for row in frames:
                row[RANK_AT] |= MARKED * (rng.random() < marked)
            for output in switch.process(frames, rank):
                for row in output.bundle:
                    congested = rng.random() < down
                    for port in output.ports:
                        endpoints[port].receive(row[np.newaxis, :], step * MS, congested and port == 1)
        done += sum(isinstance(endpoint.next_event(), CallCompleted) for endpoint in endpoints)
        followed = [endpoint._windows[0].congestion for endpoint in endpoints]
        windows.append([window.chunks if window else 32 for window in followed])
        if done == 3:
            assert all(np.array_equal(array, 3 * np.arange(4 * 3000)) for array in arrays)
            return windows
    raise AssertionError("never complete")


def test_all_ranks_windows_are_alike() -> None:
    windows = allreduce(0.05, 0)
    assert all(len(set(each)) == 1 for each in windows)
    assert min(each[0] for each in windows) < 16


def test_what_one_rank_s_link_down_marks_all_learn() -> None:
    windows = allreduce(0, 0.05)
    assert all(len(set(each)) == 1 for each in windows)
    assert min(each[0] for each in windows) < 16


def test_a_slow_rank_is_no_congestion() -> None:
    assert {chunks for each in allreduce(0, 0, (1, 3, 40)) for chunks in each} == {32}


def test_without_congestion_control_marks_change_nothing() -> None:
    assert {chunks for each in allreduce(0.5, 0.5, congestion="none") for chunks in each} == {32}
