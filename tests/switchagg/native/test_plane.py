"""NativePlane beyond the rules: memory is freed, a failed admission changes nothing, a missing library is reported."""

import gc
import os
import pickle
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from switchagg.dataplane.native import NativePlane
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.errors import JobError
from switchagg.job import JobConfig, StreamConfig
from switchagg.native.library import load, missing
from switchagg.wire import Bundle, Op, Packet, encode
from transport.links.udp_link import UdpLink
from transport.switch.switch_loop import SwitchLoop

requires_core = pytest.mark.skipif(bool(missing()), reason=f"needs the compiled core: {missing()}")
JOB = JobConfig(1, 7, 2, 3, (StreamConfig(0, 4),))
MEGABYTE = 1 << 20


def packets(rank: int, chunks: range, job: JobConfig = JOB) -> Bundle:
    frames = []
    for chunk in chunks:
        slot, version = job.place(0, chunk)
        values = np.full(job.elements, 10 * chunk + rank, np.int32)
        frames.append(
            np.frombuffer(
                encode(Packet(job.job_id, job.generation, 0, rank, Op.SUM, slot, version, chunk, values)), "u1"
            )
        )
    return np.stack(frames)


def address_space_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


@pytest.fixture
def plane() -> NativePlane:
    plane = NativePlane(8, 16)
    plane.admit(JOB, [0, 1])
    return plane


@requires_core
def test_all_slots_of_a_job_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk that asks for each slot held the loop's thread for 0.3 s at 16,384 slots."""
    plane = NativePlane(16, 3)
    job = JobConfig(1, 7, 2, 3, (StreamConfig(4, 2), StreamConfig(6, 4)))
    plane.admit(job, [0, 1])
    plane.process(packets(0, range(3), job), 0)
    plane.process(packets(1, range(1, 2), job), 1)
    loop = SwitchLoop(UdpLink(("127.0.0.1", 0)), plane)
    loop.start()
    try:
        each = {(slot, version): plane.seen(slot, version) for slot in range(4, 10) for version in (0, 1)}
        monkeypatch.delattr(NativePlane, "seen")
        assert loop.slots_of(job) == {place: view for place, view in each.items() if view.ranks}
        assert len(loop.slots_of(job)) == 3
        assert loop.slots_of(replace(job, generation=8)) == {}
        assert loop.slots_of(replace(job, job_id=2)) == {}
    finally:
        loop.stop()


@requires_core
@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="a sanitizer keeps freed memory for a while")
@pytest.mark.parametrize("how", ["forgotten", "evicted", "replaced"])
def test_memory_is_freed(how: str) -> None:
    job = JobConfig(1, 7, 2, 1000, (StreamConfig(0, 2048),))  # 16 MB of sums
    kept = NativePlane(2048, 1000)
    before = address_space_bytes()
    for generation in range(200):
        plane = NativePlane(2048, 1000) if how == "forgotten" else kept
        plane.admit(JobConfig(1, generation, 2, 1000, job.streams), [0, 1])
        if how == "evicted":
            plane.evict(1)
        del plane
    gc.collect()
    assert address_space_bytes() - before < 200 * MEGABYTE  # of 3200 that were asked for


@requires_core
def test_an_admission_without_memory_changes_nothing(plane: NativePlane) -> None:
    plane.process(packets(0, range(4)), 0)
    huge = NativePlane(1 << 16, 16_000)
    huge.admit(JOB, [0, 1])
    huge.process(packets(0, range(4)), 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (address_space_bytes() + 512 * MEGABYTE, hard))
    try:
        with pytest.raises(JobError, match="job 1: no memory for 65536 slots of 16000 elements"):
            huge.admit(JobConfig(1, 8, 2, 16_000, (StreamConfig(0, 1 << 16),)), [0, 1])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    bundle = packets(1, range(4))
    for expected, actual in zip(plane.process(bundle, 1), huge.process(bundle, 1), strict=True):
        assert actual.ports == expected.ports == (0, 1)
        assert np.array_equal(actual.bundle, expected.bundle)
    assert huge.counters == {"absorbed": 4, "broadcast": 4}


@requires_core
def test_results_stay_valid_after_later_packets(plane: NativePlane) -> None:
    plane.process(packets(0, range(4)), 0)
    (first,) = plane.process(packets(1, range(4)), 1)
    assert first.bundle.shape == (4, 32)
    copy = first.bundle.copy()
    plane.process(packets(0, range(4, 8)), 0)
    (second,) = plane.process(packets(1, range(4, 8)), 1)
    assert np.array_equal(first.bundle, copy)
    second.bundle[:] = 0
    (reply,) = plane.process(packets(1, range(4)), 1)
    assert reply.ports == (1,)
    assert np.array_equal(reply.bundle[:, 20:], copy[:, 20:])


@requires_core
def test_bundles_that_are_empty_or_of_odd_sizes(plane: NativePlane) -> None:
    every_other = np.zeros((8, 32), np.uint8)
    every_other[::2] = packets(0, range(4))
    assert plane.process(every_other[::2], 0) == []
    assert plane.process(np.zeros((0, 32), np.uint8), 0) == []
    assert plane.process(np.zeros((3, 0), np.uint8), 0) == []
    assert plane.counters == {"absorbed": 4, "drop_short": 3}


@requires_core
def test_a_copy_is_independent_of_the_original(plane: NativePlane) -> None:
    plane.process(packets(0, range(4)), 0)
    copy = pickle.loads(pickle.dumps(plane))
    plane.evict(1)
    (output,) = copy.process(packets(1, range(4)), 1)
    assert [row[20:24].tobytes()[-1] for row in output.bundle] == [1, 21, 41, 61]
    assert copy.counters == {"broadcast": 4}  # its own, from the copying on


@pytest.fixture
def fresh_choice() -> Iterator[None]:
    """The library is looked for again, before and after."""
    load.cache_clear()
    yield
    load.cache_clear()


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ("0", "^data plane native: SWITCHAGG_NATIVE=0 asks to go without it; unset it$"),
        (
            "/nowhere/lib.so",
            "^data plane native: SWITCHAGG_NATIVE names /nowhere/lib.so, which is not there; unset SWITCHAGG_NATIVE",
        ),
        (__file__, "can't be loaded.*; unset SWITCHAGG_NATIVE, or let it name a build of these sources$"),
    ],
)
def test_a_missing_library_is_reported(
    choice: str, words: str, fresh_choice: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("SWITCHAGG_NATIVE", choice)
        with pytest.raises(JobError, match=words):
            DATAPLANES["native"](8, 4)
