"""Parts that hosts end, or carry out, have the bits of a switch: L1 to L3 and L9."""

import random

import numpy as np
from switch_parts import Part, draw_part, gets, kept, together, undisturbed

from switchagg.calls.chunked_call import ArrayCall
from switchagg.failover.part_rows import PartRows, RetainedParts
from switchagg.failover.recovery_rounds import host_rounds, recovery_rounds
from switchagg.job import JobConfig, StreamConfig
from switchagg.layout import Rows
from switchagg.native.native_codec import begin_in_c


def draw_job(rng: random.Random) -> JobConfig:
    workers, window = rng.choice([1, 2, 2, 3, 3, 4, 5, 8]), rng.choice([1, 2, 3, 8, 40])
    verify = rng.choice(["off", "off", "on"])
    return JobConfig(1, 7, workers, rng.choice([12, 24, 64]), (StreamConfig(0, window),), verify=verify)


def window(job: JobConfig) -> int:
    return job.streams[0].window_slots


def test_a_part_on_hosts_has_the_bits_of_a_switch(seed: int) -> None:
    rng = random.Random(seed)
    job = draw_job(rng)
    part = draw_part(rng, job, 60)
    want = [kept(call) for call in undisturbed([part], job)[0]]
    calls = [part.call(rank, 0, job) for rank in range(job.workers)]
    how = (begin_in_c,) if rng.random() < 0.3 else ()
    together([host_rounds(call, rank, job, *how) for rank, call in enumerate(calls)])
    assert [kept(call) for call in calls] == want, (job, part)


def disturbed(
    part: Part, job: JobConfig, numbers: np.random.Generator, results: list[ArrayCall]
) -> tuple[list[ArrayCall], list[PartRows]]:
    """The calls of all ranks as a switch may leave them, and what each rank has; users have overwritten the arrays of
    ranks that are finished.

    Rows before the last window of a finished rank's are everywhere; any others are held by any ranks that get them.
    """
    calls = [part.call(rank, 0, job) for rank in range(job.workers)]
    form, owners = PartRows(calls[0], 0, job).form, PartRows(calls[0], 0, job).owners()
    finished = numbers.random(job.workers) < 0.3
    held = numbers.random((job.workers, form.layout.chunks)) < numbers.choice([0, 0.3, 0.9])
    if finished.any():
        held[:, : max(0, form.layout.chunks - window(job))] = True
    parts = []
    for rank, call in enumerate(calls):
        receives = gets(calls[0].shares.route, owners, rank)
        mask = (held[rank] | finished[rank]) & receives
        if rows := np.flatnonzero(mask).tolist():
            from_result = Rows(results[rank].array, form.width, form.layout)
            for row in rows:
                Rows(call.array, form.width, form.layout).write([row], from_result.read([row]))
        if call.residual is not None:  # written as rows are sent
            assert results[rank].residual is not None
            sent = Rows(results[rank].residual, form.width, form.layout)  # type: ignore[arg-type]
            for row in np.flatnonzero(held.any(axis=0) | finished.any()).tolist():
                Rows(call.residual, form.width, form.layout).write([row], sent.read([row]))
        if finished[rank]:
            retained = RetainedParts(window(job), rank, job)
            retained.keep(0, call)
            retained_part = retained.of(0)
            parts.append(retained_part or PartRows(call, rank, job, mask))
            assert retained_part is not None or job.workers == 1
            calls[rank] = results[rank]
            call.array.view(np.uint8)[:] = 0xA5
        else:
            parts.append(PartRows(call, rank, job, mask))
    return calls, parts


def test_whatever_ranks_hold_a_disputed_part_ends_with_the_bits_of_a_switch(seed: int) -> None:
    rng = random.Random(seed)
    job = draw_job(rng)
    part = draw_part(rng, job, 60)
    results = undisturbed([part], job)[0]
    calls, states = disturbed(part, job, np.random.default_rng(rng.getrandbits(30)), results)
    together([recovery_rounds(state) for state in states])
    assert [kept(call) for call in calls] == [kept(call) for call in results], (job, part)
