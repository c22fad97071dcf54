"""MemberReports: what members tell the switch with their heartbeats, for those who watch it (C14)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from switchagg.membership import Member
from transport.control import control_messages

REPORTED_COUNTERS = frozenset(
    (
        *("sent", "retransmitted", "timeouts", "results", "duplicates", "wrong_sums", "ecn_marked", "predicted"),
        *("repeated", "marked", "abstained", "finalise_requests", "drop_short", "drop_magic", "drop_wire_version"),
        *("drop_op", "drop_flags", "drop_length", "drop_job", "drop_generation", "drop_foreign"),
        *("drop_unknown_sender", "drop_unauthenticated", "link_sent_bytes", "link_received_bytes"),
        *("link_received_datagrams", "link_receive_overflow"),
    )
)
"""Names of a session's counters that heartbeats carry; others are dropped, so that no member can fill the switch."""


def reported(counters: Mapping[str, int]) -> dict[str, int]:
    """The counters that a heartbeat carries: the known ones above zero."""
    return {name: value for name, value in counters.items() if value and name in REPORTED_COUNTERS}


@dataclass(slots=True)
class _Report:
    heard_ns: int
    counters: dict[str, int] = field(default_factory=dict)


class MemberReports:
    """By incarnation: when a member was last heard, and its counters. All methods belong to one thread.

    Times are monotonic. A heartbeat without counters keeps those of the one before: its session has none yet.
    """

    def __init__(self) -> None:
        self._reports: dict[int, _Report] = {}

    def note(self, incarnation: int, now_ns: int, counters: Mapping[str, int] | None = None) -> None:
        """A member was heard."""
        report = self._reports.setdefault(incarnation, _Report(now_ns))
        report.heard_ns = now_ns
        if counters:
            report.counters = reported(counters)

    def keep(self, incarnations: Iterable[int]) -> None:
        """Forget all others."""
        alive = set(incarnations)
        self._reports = {key: report for key, report in self._reports.items() if key in alive}

    def activity(self, members: Iterable[Member], now_ns: int) -> list[control_messages.MemberActivity]:
        """Of these members, those that were heard."""
        return [
            control_messages.MemberActivity(member.rank, max(0, now_ns - report.heard_ns), report.counters)
            for member in members
            if (report := self._reports.get(member.incarnation)) is not None
        ]
