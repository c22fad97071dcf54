"""aggregator: what the golden packets don't cover (S7, S8, and that the reference's results are copies)."""

import numpy as np
import pytest

from switchagg.aggregator import Aggregator, Verdict, first_held, older
from switchagg.errors import JobError
from switchagg.job import JobConfig, StreamConfig
from switchagg.wire import Op, Packet

JOB = JobConfig(1, 7, 2, 2, (StreamConfig(0, 2),))


def packet(rank: int, chunk: int, values: list[int]) -> Packet:
    slot, version = JOB.place(0, chunk)
    return Packet(1, 7, 0, rank, Op.SUM, slot, version, chunk, np.array(values, np.int32))


def test_older_is_modulo() -> None:
    """S2: half the numbers are older than any held one, half are newer."""
    for held in (0, 1, 2**31, 2**32 - 1):
        assert not older(held, held)
        assert older((held - 1) % 2**32, held)
        assert not older((held + 1) % 2**32, held)
        assert older((held + 2**31) % 2**32, held)
        assert not older((held + 2**31 - 1) % 2**32, held)


@pytest.mark.parametrize("window", [1, 2, 3, 256])
def test_an_unused_slot_takes_its_first_chunk(window: int) -> None:
    """S7: the first chunk of each slot version is newer than what it holds, and two turns away from it."""
    for offset in {0, window - 1}:
        for version in (0, 1):
            first = offset + version * window
            held = first_held(offset, version, window)
            assert (first - held) % 2**32 == 2 * window
            assert not older(first, held)


def test_results_are_copies() -> None:
    """A result must not change when its slot is used again: it may still be waiting to be sent."""
    switch = Aggregator(2, 2)
    switch.admit(JOB, [0, 1])
    switch.accept(packet(0, 0, [1, 2]), 0)
    decision = switch.accept(packet(1, 0, [10, 20]), 1)
    assert decision.verdict is Verdict.BROADCAST
    ((result, ports),) = decision.sends
    switch.accept(packet(0, 4, [7, 7]), 0)
    assert result.values.tolist() == [11, 22]
    assert ports == (0, 1)


def test_received_packets_are_not_modified() -> None:
    switch = Aggregator(2, 2)
    switch.admit(JOB, [0, 1])
    first = packet(0, 0, [1, 2])
    switch.accept(first, 0)
    switch.accept(packet(1, 0, [10, 20]), 1)
    assert first.values.tolist() == [1, 2]


def test_evicting_twice_and_refusing() -> None:
    switch = Aggregator(2, 2)
    switch.evict(1)
    switch.admit(JOB, [0, 1])
    with pytest.raises(JobError, match="overlap those of job 1"):
        switch.admit(JobConfig(2, 1, 1, 2, (StreamConfig(1, 1),)), [0])
    switch.evict(1)
    switch.evict(1)
    switch.admit(JobConfig(2, 1, 1, 2, (StreamConfig(1, 1),)), [0])
    assert switch.accept(packet(0, 0, [1, 1]), 0).reason == "drop_job"
