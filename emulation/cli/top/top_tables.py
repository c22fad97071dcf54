"""What `switchagg top` shows, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from emulation.cli.daemons.switch_status import DETAILS_ARE_FOR
from emulation.cli.top.switch_rates import JobRates, SwitchRates
from emulation.report.table_kit import columns

DATA_FATES = ("absorbed", "broadcast", "reply", "up", "up_again", "resend", "abstained")
"""Fates of packets that reach the data plane and aren't dropped."""

COLUMNS = ("rank", "address", "state", "heard", "goodput", "packets/s", "retrans/s", "sums/s", "wrong sums")
TEXT_COLUMNS = (0, 1, 2)
"""Those aligned to the left."""


def table_lines(rates: SwitchRates, at: datetime | None = None) -> list[str]:
    """A switch and its jobs. at: the time of day to show; default: now."""
    when = (at or datetime.now(UTC)).astimezone().strftime("%H:%M:%S")
    if not rates.details:
        return [
            f"switch {rates.address}  {when}",
            f"slots {rates.slots - rates.free_slots} of {rates.slots} in use; jobs: {rates.running} running, "
            f"{rates.gathering} waiting; {DETAILS_ARE_FOR}",
        ]
    lines = [
        f"switch {rates.address}  up {_duration(rates.up_s)}  data plane {rates.data_plane} over {rates.link}  {when}",
        f"slots: {rates.free_slots} of {rates.slots} free   jobs: {rates.running} running, {rates.gathering} waiting   "
        f"{_below(rates.below)}",
        f"packets/s: {_number(_in_all(rates))} of workers, {_fates(rates)}",
        f"dropped since the start: {_counted(rates.drops)}",
        f"joins: {rates.control.get('joins', 0)}, refused: {_counted(rates.refused)}   jobs: "
        f"{rates.control.get('admitted', 0)} admitted, {rates.control.get('failed', 0)} failed, "
        f"{rates.control.get('ended', 0)} ended",
    ]
    for job in rates.jobs:
        lines += ["", *_job_lines(job)]
    for name, gathering in rates.waiting.items():
        missing = ", ".join(map(str, gathering["missing"])) or "none"
        reason = f": {gathering['reason']}" if gathering["reason"] else ""
        lines += ["", f"job {_printable(name)!r} waits; ranks missing: {missing}{_printable(reason)}"]
    if not rates.running and not rates.gathering:
        lines += ["", "no jobs"]
    return lines


def _job_lines(job: JobRates) -> Iterator[str]:
    last = job.first_slot + job.slots - 1
    shortfall = f" of {job.requested_slots} that it asks for" if job.requested_slots > job.slots else ""
    yield (
        f"job {_printable(job.name)!r}   id {job.job_id}   generation {job.generation}   {job.workers} workers   "
        f"codec {job.codec}"
    )
    yield f"  {job.streams} streams in slots {job.first_slot} to {last}: {job.slots}{shortfall}"
    yield f"  sums: {job.verified}   packets: {job.packets_protection or 'its root knows'}"
    part = ""
    if job.packets:
        part = f" ({100 * (job.retransmitted or 0) / job.packets:.2f} %)"
    yield (
        f"  goodput {_bits(job.goodput_bps)}   packets/s {_number(job.packets)}   retransmissions/s "
        f"{_number(job.retransmitted)}{part}   sums/s {_number(job.sums)}   wrong sums {job.wrong_sums}"
    )
    yield f"  packets dropped by members: {_counted(job.drops)}"
    if job.leaving:
        yield f"  is asked to leave: {_printable(job.leaving)}"
    if job.members:
        rows = [
            (
                str(member.rank),
                member.address,
                member.state,
                "-" if member.silent_s is None else f"{member.silent_s:.1f} s ago",
                _bits(member.goodput_bps),
                _number(member.packets),
                _number(member.retransmitted),
                _number(member.sums),
                str(member.counters.get("wrong_sums", 0)),
            )
            for member in job.members
        ]
        yield from (f"  {line}" for line in columns(COLUMNS, rows, TEXT_COLUMNS))


def _in_all(rates: SwitchRates) -> float | None:
    numbers = [
        rate
        for name, rate in rates.packets.items()
        if rate is not None and (name in DATA_FATES or name.startswith("drop_"))
    ]
    return sum(numbers) if numbers else None


def _fates(rates: SwitchRates) -> str:
    fates = [f"{name} {_number(rates.packets[name])}" for name in DATA_FATES if rates.counts.get(name)]
    dropped = [rate for name, rate in rates.packets.items() if rate is not None and name.startswith("drop_")]
    return ", ".join([*fates, f"dropped {_number(sum(dropped) if dropped else None)}"])


def _below(below: Mapping[str, str]) -> str:
    if not below:
        return "switches below: none"
    return "switches below: " + ", ".join(
        f"{_printable(name)!r} at {address}" for name, address in sorted(below.items())
    )


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) or "none"


def _number(value: float | None) -> str:
    """Whole; below 10 with a decimal place, unless it is 0."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def _bits(bps: float | None) -> str:
    if bps is None:
        return "-"
    for size, unit in ((1e9, "Gb/s"), (1e6, "Mb/s"), (1e3, "kb/s")):
        if bps >= size:
            return f"{bps / size:.1f} {unit}"
    return f"{bps:.0f} b/s"


def _duration(seconds: float) -> str:
    days, rest = divmod(int(seconds), 86_400)
    hours, rest = divmod(rest, 3600)
    clock = f"{hours}:{rest // 60:02}:{rest % 60:02}"
    return f"{days} d {clock}" if days else clock


def _printable(text: str) -> str:
    """Names and reasons come from other processes: escape sequences are removed."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
