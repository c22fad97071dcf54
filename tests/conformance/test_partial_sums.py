"""Partial sums (Q1 to Q5) of every data plane that has them against the reference, on seeded random traffic."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from conformance.test_random_traffic import OTHERS, Traffic, check_agreement
from switchagg.aggregator import Parent
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.errors import JobError
from switchagg.job import MAX_PARTIAL, JobConfig, StreamConfig
from switchagg.native.library import PARTIAL_OUTCOMES
from switchagg.wire import Packet, Route

PLANES = [name for name in OTHERS if DATAPLANES[name].partial]
SIZES = (2, 8, 17)


class PartialTraffic(Traffic):
    """Most jobs have partial sums; their workers abstain, and ask for chunks to be finalised."""

    def __init__(self, seed: int, elements: Sequence[int], routes: bool, parent: Parent | None = None) -> None:
        super().__init__(seed, elements, routes, parent)
        for job_id, (job, ports) in self.jobs.items():
            workers = min(max(2, job.workers), MAX_PARTIAL)
            enough = self.rng.random() < 0.8 and job.elements > 1 + (workers > 32)
            how = {"backups": self.rng.randrange(min(workers, 4)), "close_after_ns": 1} if enough else {}
            ports = [ports[0] + rank for rank in range(workers)]
            self.jobs[job_id] = replace(job, workers=workers, **how), ports

    def strange(self, packet: Packet, port: int) -> tuple[Packet, int]:
        header_only = {"values": packet.values[:0], "route": Route.ALL, "owner": 0}
        if (choice := self.rng.random()) < 0.7:
            return replace(packet, **header_only, close=choice < 0.3), port
        return super().strange(packet, port)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("dataplane", PLANES)
def test_agrees_with_the_reference(dataplane: str, seed: int) -> None:
    check_agreement(DATAPLANES[dataplane], seed, 400, SIZES, kind=PartialTraffic)


def test_traffic_reaches_every_outcome() -> None:
    reached: Counter[str] = Counter()
    for seed in range(15):
        traffic = PartialTraffic(seed, SIZES, True)
        plane = DATAPLANES["reference"](traffic.slots, 17)
        traffic.start(plane)
        for bundle, port in traffic.bundles(400):
            plane.process(bundle, port)
        reached += Counter(plane.counters)
    wanted = (
        *PARTIAL_OUTCOMES,
        "broadcast",
        "reply",
        "absorbed",
        "drop_older",
        "drop_early",
        "drop_duplicate",
        "drop_length",
    )
    assert [f"{name}: {reached[name]}" for name in wanted if reached[name] < 10] == []


def test_a_tree_has_no_partial_sums() -> None:
    job = JobConfig(1, 1, 3, 4, (StreamConfig(0, 1),), backups=1)
    for ports, parent in ((range(2), None), (range(3), Parent(9, 0))):
        with pytest.raises(JobError, match="not a tree"):
            DATAPLANES["reference"](1, 4).admit(job, ports, parent)
