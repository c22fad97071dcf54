"""Rates of a switch and its jobs: the differences of counters between two status answers, by the switch's own clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from emulation.cli.daemons.switch_status import protection
from switchagg.wire import HEADER_BYTES

if TYPE_CHECKING:
    from transport.control.control_messages import JobStatus, StatusAnswer

SILENT_S = 1.0
"""From so long a silence on a member is shown as silent: it has missed several heartbeats, and the lease runs."""

LEAST_S = 0.01
"""No rates are of less time: a member that was not heard in between has none."""

PACKETS_OUT = ("sent", "retransmitted")


@dataclass(frozen=True)
class MemberRates:
    """A member of a job. state: "alive", "silent", "unknown" (below another switch) or "left"; silent_s: since it was
    last heard. Rates are per second, None where there is nothing to compare with."""

    rank: int
    address: str
    state: str
    silent_s: float | None
    packets: float | None
    retransmitted: float | None
    sums: float | None
    goodput_bps: float | None
    counters: Mapping[str, int]


@dataclass(frozen=True)
class JobRates:
    """A running job. goodput_bps: of values that a member received, the mean over members; sums: of chunks per second,
    those of the member with most; packets and retransmitted: of all members. drops: by reason, of all members."""

    name: str
    job_id: int
    generation: int
    workers: int
    first_slot: int
    slots: int
    requested_slots: int
    streams: int
    codec: str
    verified: str
    packets_protection: str
    leaving: str
    goodput_bps: float | None
    packets: float | None
    retransmitted: float | None
    sums: float | None
    wrong_sums: int
    drops: Mapping[str, int]
    members: tuple[MemberRates, ...]


@dataclass(frozen=True)
class SwitchRates:
    """A switch. packets: by fate, per second; counts: the same since the start. refused: joins by reason."""

    address: str
    clock_s: float
    up_s: float
    data_plane: str
    link: str
    slots: int
    free_slots: int
    running: int
    gathering: int
    details: bool
    below: Mapping[str, str]
    packets: Mapping[str, float | None]
    counts: Mapping[str, int]
    drops: Mapping[str, int]
    refused: Mapping[str, int]
    control: Mapping[str, int]
    jobs: tuple[JobRates, ...]
    waiting: Mapping[str, Mapping[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        """As plain dicts, lists, numbers and strings."""
        return asdict(self)


def rates_of(address: str, answer: StatusAnswer, earlier: StatusAnswer | None) -> SwitchRates:
    """The rates of a switch between two answers. earlier: None, or of a switch that has restarted since, gives none."""
    if earlier is not None and not 0 < answer.clock_ns - earlier.clock_ns <= answer.up_ns:
        earlier = None
    span_s = 0.0 if earlier is None else (answer.clock_ns - earlier.clock_ns) / 1e9
    before = {} if earlier is None else {(job.job_id, job.generation): job for job in earlier.jobs}
    counts = dict(answer.data_counters)
    packets: dict[str, float | None] = {
        name: _rate(counts, None if earlier is None else earlier.data_counters, name, span_s) for name in counts
    }
    control = answer.control_counters
    return SwitchRates(
        address,
        answer.clock_ns / 1e9,
        answer.up_ns / 1e9,
        answer.data_plane,
        answer.link,
        answer.slots,
        answer.free_slots,
        answer.running,
        answer.gathering,
        answer.details,
        answer.switches,
        packets,
        counts,
        _drops(counts),
        _refusals(control),
        control,
        tuple(_job(job, before.get((job.job_id, job.generation)), span_s) for job in answer.jobs),
        {
            name: {
                "present": [member.rank for member in gathering.present],
                "missing": list(gathering.missing),
                "reason": gathering.reason,
            }
            for name, gathering in sorted(answer.waiting.items())
        },
    )


def _job(job: JobStatus, earlier: JobStatus | None, span_s: float) -> JobRates:
    members = _members(job, earlier, span_s)
    present = [member for member in members if member.state != "left"]
    drops: dict[str, int] = {}
    for member in members:
        for name, count in _drops(member.counters).items():
            drops[name] = drops.get(name, 0) + count
    goodput = [member.goodput_bps for member in present if member.goodput_bps is not None]
    return JobRates(
        job.name,
        job.job_id,
        job.generation,
        job.workers,
        job.first_slot,
        job.terms.requested_slots,
        job.requested_slots,
        job.terms.stream_count,
        job.terms.codec,
        protection(job.terms),
        job.packets,
        job.leaving,
        sum(goodput) / len(goodput) if goodput else None,
        _total([member.packets for member in present]),
        _total([member.retransmitted for member in present]),
        max((member.sums for member in present if member.sums is not None), default=None),
        sum(member.counters.get("wrong_sums", 0) for member in members),
        drops,
        members,
    )


def _members(job: JobStatus, earlier: JobStatus | None, span_s: float) -> tuple[MemberRates, ...]:
    activity = {member.rank: member for member in job.activity}
    before = {} if earlier is None else {member.rank: member for member in earlier.activity}
    departed = {departure.place.rank for departure in job.departed}
    members = []
    for place in job.members:
        report = activity.get(place.rank)
        counters = {} if report is None else report.counters
        earlier_counters, member_span_s = None, 0.0
        if report is not None and (earlier_report := before.get(place.rank)) is not None:
            # Its counters are as old as its last heartbeat, and so is the time between them.
            member_span_s = span_s - (report.silent_ns - earlier_report.silent_ns) / 1e9
            earlier_counters = earlier_report.counters
        rates = [_rate(counters, earlier_counters, name, member_span_s) for name in (*PACKETS_OUT, "results")]
        silent_s = None if report is None else report.silent_ns / 1e9
        state = "left" if place.rank in departed else "unknown" if silent_s is None else "alive"
        if state == "alive" and silent_s is not None and silent_s >= SILENT_S:
            state = "silent"
        members.append(
            MemberRates(
                place.rank,
                f"{place.host}:{place.port}",
                state,
                silent_s,
                _total(rates[:2]),
                rates[1],
                rates[2],
                _goodput_bps(counters, earlier_counters, member_span_s, job.terms.elements),
                counters,
            )
        )
    return tuple(members)


def _rate(counters: Mapping[str, int], earlier: Mapping[str, int] | None, name: str, span_s: float) -> float | None:
    """Per second; None without earlier counters. A counter that isn't there is 0."""
    if earlier is None or (not earlier and counters) or span_s < LEAST_S:
        return None
    return max(0, counters.get(name, 0) - earlier.get(name, 0)) / span_s


def _goodput_bps(
    counters: Mapping[str, int], earlier: Mapping[str, int] | None, span_s: float, elements: int
) -> float | None:
    """Bits of values that arrived, per second: the link's bytes without headers; where a link counts no bytes, whole
    chunks."""
    if "link_received_bytes" not in counters:
        results = _rate(counters, earlier, "results", span_s)
        return None if results is None else 32.0 * elements * results
    received = _rate(counters, earlier, "link_received_bytes", span_s)
    datagrams = _rate(counters, earlier, "link_received_datagrams", span_s)
    return None if received is None or datagrams is None else max(0.0, 8 * (received - HEADER_BYTES * datagrams))


def _drops(counters: Mapping[str, int]) -> dict[str, int]:
    """Packets that were dropped, by reason."""
    return {name.removeprefix("drop_"): count for name, count in counters.items() if name.startswith("drop_") and count}


def _refusals(control: Mapping[str, int]) -> dict[str, int]:
    """Joins that were refused, by reason; `other`: by the rules C1 to C5, whose words are in the switch's log."""
    refused = {name.removeprefix("refused_"): count for name, count in control.items() if name.startswith("refused_")}
    other = control.get("refused", 0) - refused.get("no_room", 0)
    return {**{name: count for name, count in refused.items() if count}, **({"other": other} if other else {})}


def _total(values: list[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None
