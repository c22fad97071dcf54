"""A switch's status as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from switchagg.join import JobTerms
from switchagg.option_syntax.option_fields import changed_fields

if TYPE_CHECKING:
    from transport.control.control_messages import JobStatus, StatusAnswer

UNFINISHED_SHOWN_MAX = 20

LINE_TERMS = ("elements", "streams", "window_slots", "priorities", "verify", "key_check")
"""Terms of a job that lines of their own say."""

DETAILS_ARE_FOR = "more only for holders of its keys, and for its own user on its own host"


def status_lines(answer: StatusAnswer) -> list[str]:
    """The switch's state in lines of text: jobs, which ranks are missing or waited for, counters above zero."""
    lines = [f"{answer.slots - answer.free_slots} of {answer.slots} slots in use"]
    lines += [f"below: switch {name!r} at {address}" for name, address in sorted(answer.switches.items())]
    for job in answer.jobs:
        lines += _job_lines(job)
    for name, gathering in sorted(answer.waiting.items()):
        missing = ", ".join(map(str, gathering.missing)) or "none"
        lines.append(f"job {name!r} waits; ranks missing: {missing}{_reason(gathering.reason)}")
    if not answer.running and not answer.gathering:
        lines.append("no jobs")
    if not answer.details:
        lines.append(f"jobs: {answer.running} running, {answer.gathering} waiting; {DETAILS_ARE_FOR}")
        return lines
    for what, counters in (("control plane", answer.control_counters), ("data plane", answer.data_counters)):
        counted = ", ".join(f"{name} {value}" for name, value in sorted(counters.items()) if value)
        lines.append(f"{what}: {counted or 'nothing yet'}")
    return lines


def _job_lines(job: JobStatus) -> Iterator[str]:
    terms, first = job.terms, job.first_slot
    yield (
        f"job {job.name!r} (id {job.job_id}, generation {job.generation}): {job.workers} workers, "
        f"{terms.elements} elements, {terms.stream_count} streams"
    )
    slots = terms.requested_slots
    requested = f" of {job.requested_slots} that it asks for" if job.requested_slots else ""
    yield f"  slots {first} to {first + slots - 1}: {slots}{requested}"
    yield f"  sums: {protection(terms)}"
    if job.packets:
        yield f"  packets: {job.packets}"
    named = {name: value for name, value in changed_fields(terms, JobTerms).items() if name not in LINE_TERMS}
    yield f"  terms: {', '.join(f'{name} {value}' for name, value in named.items()) or 'all as by default'}"
    if job.leaving:
        yield f"  is asked to leave: {job.leaving}"
    for member in job.members:
        yield f"  {member}"
    for departure in job.departed:
        yield f"  {departure.place} has left{_reason(departure.reason)}"
    unfinished = [slot for slot in job.slots if len(slot.ranks) < job.workers]
    for slot in unfinished[:UNFINISHED_SHOWN_MAX]:
        missing = sorted(set(range(job.workers)) - set(slot.ranks))
        yield (
            f"  slot {slot.slot} version {slot.version} chunk {slot.chunk}: seen from {slot.ranks}, waits for ranks "
            f"{', '.join(map(str, missing))}"
        )
    if len(unfinished) > UNFINISHED_SHOWN_MAX:
        yield f"  … and {len(unfinished) - UNFINISHED_SHOWN_MAX} more slot versions that wait"


def protection(terms: JobTerms) -> str:
    """What a job's ranks notice of sums that somebody changes."""
    if not terms.tag_elements:
        return "not verified"
    if terms.key_check:
        return "verified, key: token"
    return "verified, key: job name; damage and faulty switches are noticed, forgers are not: SWITCHAGG_TOKEN"


def _reason(text: str) -> str:
    return f": {text}" if text else ""
