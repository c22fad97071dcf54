"""Tests of this folder's P4 program: its own rule, packet by packet, and under faults against rule.py.

pytest -p switchagg.testing examples/p4/finish_early
"""

from pathlib import Path

import pytest
from rule import Rule

from switchagg.testing import BROADCAST, DROP, REPLY, Op, Switch


@pytest.fixture
def switch():
    with Switch(program=Path(__file__).with_name("switchagg.p4"), elements=4) as made:
        yield made


def test_a_sum_does_not_wait_for_the_last(job):
    three = job(workers=3)
    three.contribute(rank=0, chunk=0, values=1)
    three.expect(DROP, counted="absorbed")
    three.contribute(rank=2, chunk=0, values=100)
    three.expect(BROADCAST, values=101)
    three.contribute(rank=1, chunk=0, values=10)
    three.expect(REPLY, values=101)


def three_ranks(job):
    """What the ranks send, in this order: two sums and a maximum."""
    for chunk, op in enumerate((Op.SUM, Op.MAX, Op.SUM)):
        for rank in range(3):
            yield rank, job.contribution(rank, chunk, values=10**rank, op=op)


def test_three_ranks_under_faults(under_faults):
    under_faults(three_ranks, rule=Rule, workers=3, elements=4, window=1)
