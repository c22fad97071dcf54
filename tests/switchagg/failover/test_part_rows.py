"""Which finished parts a rank retains: L2."""

import numpy as np

from switchagg.calls.array_calls import array_call
from switchagg.failover.part_rows import RetainedParts
from switchagg.job import JobConfig, StreamConfig

JOB = JobConfig(1, 7, 2, 1, (StreamConfig(0, 2),))


def keep(retained: RetainedParts, number: int, rows: int = 1) -> None:
    retained.keep(number, array_call(np.zeros(rows, np.int32), "sum", JOB))


def retained_numbers(retained: RetainedParts) -> list[int]:
    return [number for number in range(20) if retained.of(number) is not None]


def test_a_part_is_retained_until_a_window_of_chunks_has_followed_it() -> None:
    retained = RetainedParts(2, 0, JOB, first=3)
    for number, numbers in ((3, [3]), (4, [3, 4]), (5, [4, 5])):
        keep(retained, number)
        assert retained_numbers(retained) == numbers
    keep(retained, 6, rows=9)
    assert (retained_numbers(retained), retained.lowest) == ([6], 7)


def test_parts_that_finish_before_an_earlier_one_displace_nothing() -> None:
    retained = RetainedParts(2, 0, JOB)
    for number in (0, 2, 4, 6):
        keep(retained, number)
    assert (retained_numbers(retained), retained.lowest) == ([0, 2, 4, 6], 1)
    keep(retained, 1)
    assert (retained_numbers(retained), retained.lowest) == ([1, 2, 4, 6], 3)


def test_what_finishes_after_the_others_were_told_displaces_nothing() -> None:
    retained = RetainedParts(2, 0, JOB)
    keep(retained, 0)
    assert retained.tell_lowest() == 1
    for number in (1, 2, 3, 4):
        keep(retained, number)
    assert retained_numbers(retained) == [0, 1, 2, 3, 4]
