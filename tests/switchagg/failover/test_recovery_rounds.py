"""Parts that hosts end, or carry out, have the bits of a switch: L1 to L3 and L9 of PROTOCOL.md."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from switch_parts import Part, gets, kept, together, undisturbed

from switchagg.calls.chunked_call import ArrayCall
from switchagg.codecs import CODECS, names
from switchagg.failover.part_rows import PartForm, PartRows, RetainedParts
from switchagg.failover.recovery_rounds import host_rounds, recovery_rounds
from switchagg.job import JobConfig, StreamConfig
from switchagg.layout import Rows
from switchagg.native.native_codec import begin_in_c

ROW_CODECS = [name for name in names() if name != "plain"]


def job_of(workers: int, elements: int = 24, window: int = 4, verify: str = "off") -> JobConfig:
    return JobConfig(1, 7, workers, elements, (StreamConfig(0, window),), verify=verify)


@st.composite
def jobs(draw: Any) -> JobConfig:
    workers, window = draw(st.integers(1, 8)), draw(st.sampled_from([1, 2, 3, 8, 40]))
    return job_of(workers, draw(st.sampled_from([6, 24, 64])), window, draw(st.sampled_from(["off", "on"])))


@st.composite
def parts(draw: Any, job: JobConfig) -> Part:
    kind = draw(st.sampled_from(["allreduce"] * 4 + ["reduce_scatter", "all_gather", "broadcast", "reduce"]))
    dtype = draw(st.sampled_from(["float32"] * 4 + ["int32", "int64", "float64"]))
    if job.elements < 9:  # room for three limbs beside a tag
        dtype = "float32" if dtype != "int32" else dtype
    op = (
        draw(st.sampled_from(["sum", "max"])) if dtype == "int32" and kind not in ("all_gather", "broadcast") else "sum"
    )
    fitting = [n for n in ROW_CODECS if not CODECS[n].fault(job.workers)] if job.elements > 9 else ["fixed_point"]
    unit = draw(st.sampled_from([1, 2]))
    size = draw(st.one_of(st.just(0), st.integers(1, 40), st.integers(1, 1500))) // unit * unit
    part = Part(
        kind,
        dtype,
        size,
        op,
        draw(st.sampled_from(fitting)),
        draw(st.integers(0, job.workers - 1)),
        unit if kind in ("reduce_scatter", "all_gather") else 1,
        draw(st.booleans()),
        None,
        draw(st.booleans()),
        kind == "allreduce" and dtype == "float32" and draw(st.booleans()),
        draw(st.integers(0, 1 << 16)),
    )
    form = PartForm.of(part.call(0, 0, job), job, job.streams[0].window_slots)
    if form.layout.rows > 8 and draw(st.booleans()):  # a small call isn't split
        low = draw(st.integers(0, form.layout.rows - 1))
        part = Part(**{**vars(part), "rows": (low, draw(st.integers(low + 1, form.layout.rows)))})
    return part


@st.composite
def cases(draw: Any) -> tuple[JobConfig, Part]:
    job = draw(jobs())
    return job, draw(parts(job))


def window(job: JobConfig) -> int:
    return job.streams[0].window_slots


@settings(max_examples=60, deadline=None)
@given(cases(), st.booleans())
def test_a_part_on_hosts_has_the_bits_of_a_switch(case: tuple[JobConfig, Part], in_c: bool) -> None:
    job, part = case
    want = [kept(call) for call in undisturbed([part], job)[0]]
    calls = [part.call(rank, 0, job) for rank in range(job.workers)]
    how = (begin_in_c,) if in_c else ()
    together([host_rounds(call, rank, job, window(job), *how) for rank, call in enumerate(calls)])
    assert [kept(call) for call in calls] == want


def disturbed(
    part: Part, job: JobConfig, numbers: np.random.Generator, results: list[ArrayCall]
) -> tuple[list[ArrayCall], list[PartRows]]:
    """The calls of all ranks as a switch may leave them, and what each rank has; users have overwritten the arrays of
    ranks that are finished.

    Rows before the last window of a finished rank's are everywhere; any others are held by any ranks that get them.
    """
    calls = [part.call(rank, 0, job) for rank in range(job.workers)]
    form = PartForm.of(calls[0], job, window(job))
    owners = form.owners()
    finished = numbers.random(job.workers) < 0.3
    held = numbers.random((job.workers, form.rows)) < numbers.choice([0, 0.3, 0.9])
    if finished.any():
        held[:, : max(0, form.rows - window(job))] = True
    parts = []
    for rank, call in enumerate(calls):
        receives = gets(form.shares.route, owners, rank)
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
            parts.append(retained_part or PartRows.unfinished(call, mask, rank, job, window(job)))
            assert retained_part is not None or job.workers == 1
            calls[rank] = results[rank]
            call.array.view(np.uint8)[:] = 0xA5
        else:
            parts.append(PartRows.unfinished(call, mask, rank, job, window(job)))
    return calls, parts


@settings(max_examples=120, deadline=None)
@given(cases(), st.integers(0, 1 << 30))
def test_whatever_ranks_hold_a_disputed_part_ends_with_the_bits_of_a_switch(
    case: tuple[JobConfig, Part], seed: int
) -> None:
    job, part = case
    results = undisturbed([part], job)[0]
    calls, states = disturbed(part, job, np.random.default_rng(seed), results)
    together([recovery_rounds(state) for state in states])
    assert [kept(call) for call in calls] == [kept(call) for call in results]
