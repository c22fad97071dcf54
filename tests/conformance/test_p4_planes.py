"""The planes that run the P4 program, against the reference: on both back ends of our engine, and on bmv2.

Vectors run on them with those of the other planes; here is what is theirs alone.
"""

import numpy as np
import pytest

from switchagg.aggregator import Parent
from switchagg.dataplane.contract import DataPlane
from switchagg.dataplane.p4.bmv2_plane import Bmv2Plane
from switchagg.dataplane.p4.p4_plane import P4Plane
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.errors import JobError
from switchagg.job import JobConfig, StreamConfig
from switchagg.wire import Op, Packet, encode
from tests.conformance.test_random_traffic import PARENT, check_agreement

ELEMENTS = {"native": (1, 33), "python": (1, 8, 33)}
"""A program is compiled for each; 33 take two passes, the second of one lane."""

SEEDS = {"native": 16, "python": 4}
PACKETS_BMV2 = 150


def maker(backend: str) -> type[P4Plane]:
    class Plane(P4Plane):
        def __init__(self, slots: int, elements: int) -> None:
            super().__init__(slots, elements, backend=backend)

    return Plane


@pytest.mark.parametrize("plane", ["p4"])
@pytest.mark.parametrize("backend", SEEDS)
def test_agrees_with_the_reference(plane: str, backend: str) -> None:
    packets = sum(check_agreement(maker(backend), seed, elements=ELEMENTS[backend]) for seed in range(SEEDS[backend]))
    assert packets > 500 * SEEDS[backend]


@pytest.mark.parametrize("plane", ["p4"])
@pytest.mark.parametrize(("backend", "elements"), [("native", (1, 33)), ("python", (33,))])
def test_agrees_with_the_reference_below_another_switch(plane: str, backend: str, elements: tuple[int, ...]) -> None:
    for seed in range(SEEDS[backend] // 2):
        check_agreement(maker(backend), seed, 300, elements, parent=PARENT)


@pytest.mark.parametrize("plane", ["p4"])
def test_jobs_with_and_without_a_parent_share_a_switch(plane: str) -> None:
    """A program for each; the same job may change from one to the other."""
    switch = P4Plane(2, 1, backend="python")
    below, root = (JobConfig(number, 7, 1, 1, (StreamConfig(number, 1),)) for number in (0, 1))

    def ports_of_results(job: JobConfig, port: int) -> list[tuple[int, ...]]:
        data = encode(Packet(job.job_id, 7, 0, 0, Op.SUM, job.job_id, 0, 0, np.array([5], np.int32)))
        return [out.ports for out in switch.process(np.frombuffer(data, np.uint8)[np.newaxis, :], port)]

    switch.admit(below, [3], PARENT)
    switch.admit(root, [4])
    assert ports_of_results(below, 3) == [(PARENT.port,)]
    assert ports_of_results(root, 4) == [(4,)]
    switch.admit(below, [3])
    assert ports_of_results(below, 3) == [(3,)]
    assert switch.counters == {"up": 1, "broadcast": 2}


@pytest.mark.parametrize("plane", ["bmv2"])
@pytest.mark.parametrize("seed", [1, 4])
@pytest.mark.parametrize("parent", [None, PARENT])
def test_bmv2_agrees_with_the_reference(plane: str, seed: int, parent: Parent | None) -> None:
    made: list[Bmv2Plane] = []

    def make(slots: int, elements: int) -> DataPlane:
        made.append(Bmv2Plane(slots, elements))
        return made[0]

    try:
        check_agreement(make, seed, PACKETS_BMV2, elements=(1, 33), parent=parent)
    finally:
        made[0].close()


@pytest.mark.parametrize(("plane", "most"), [("p4", r"256 \(8 passes of 32\)"), ("bmv2", r"128 \(4 passes of 32\)")])
def test_says_why_it_refuses_a_job(plane: str, most: str) -> None:
    switch = DATAPLANES[plane](4, 360)
    with pytest.raises(JobError, match=f"job 1: 360 elements per packet; .* holds {most}"):
        switch.admit(JobConfig(1, 1, 1, 360, (StreamConfig(0, 1),)), [0])
    with pytest.raises(JobError, match="this switch has 4"):
        switch.admit(JobConfig(1, 1, 1, 1, (StreamConfig(0, 5),)), [0])
    assert switch.counters == {}
    with pytest.raises(KeyError):
        switch.seen(0, 0)


@pytest.mark.parametrize("plane", ["p4"])
def test_eight_passes(plane: str) -> None:
    """E = 256, the most: every lane of every pass, sums and maxima, for ports of any number."""
    ports = [0, 70_000, 2**32 - 1]
    switch = P4Plane(2, 256, backend="python")
    switch.admit(JobConfig(1, 2, 3, 256, (StreamConfig(0, 1),)), ports)
    rows = np.random.default_rng(1).integers(-(2**31), 2**31, (3, 256)).astype(np.int32)
    for chunk, op in enumerate((Op.SUM, Op.MAX)):
        for rank, row in enumerate(rows):
            data = encode(Packet(1, 2, 0, rank, op, 0, chunk, chunk, row))
            outputs = switch.process(np.frombuffer(data, np.uint8)[np.newaxis, :], ports[rank])
        (output,) = outputs
        assert output.ports == tuple(ports)
        expected = rows.max(axis=0) if op is Op.MAX else rows.sum(axis=0, dtype=np.int64).astype(np.int32)
        assert np.array_equal(output.bundle[0, 20:].view(">i4"), expected)
    assert switch.counters == {"absorbed": 4, "broadcast": 2}


@pytest.mark.parametrize("plane", ["p4"])
def test_results_stay_valid_after_later_packets(plane: str) -> None:
    switch = P4Plane(1, 1)
    switch.admit(JobConfig(1, 2, 1, 1, (StreamConfig(0, 1),)), [0])
    kept = []
    for chunk in range(3):
        data = encode(Packet(1, 2, 0, 0, Op.SUM, 0, chunk % 2, chunk, np.array([chunk], np.int32)))
        kept += switch.process(np.frombuffer(data, np.uint8)[np.newaxis, :], 0)
    assert [output.bundle[0, -1] for output in kept] == [0, 1, 2]


@pytest.mark.parametrize("plane", ["p4"])
def test_no_datagram_is_too_short(plane: str) -> None:
    switch = P4Plane(1, 1, backend="python")
    assert switch.process(np.zeros((2, 0), np.uint8), 3) == []
    assert switch.process(np.zeros((1, 19), np.uint8), 3) == []
    assert switch.counters == {"drop_short": 3}
