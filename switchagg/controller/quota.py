"""Quotas, so that no peer takes all that others need (C16)."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from ipaddress import IPv4Address

from switchagg.option_syntax import close_match


@dataclass(frozen=True, slots=True)
class Holding:
    """A job's slots, and the address of each of its members."""

    slots: int
    hosts: tuple[str, ...]

    def of(self, slots: int) -> "Holding":
        """The same members with so many slots."""
        return Holding(slots, self.hosts)

    def slots_of(self, host: str) -> int:
        """The host's part: the slots are shared evenly among the members."""
        return self.slots * self.hosts.count(host) // len(self.hosts)


@dataclass(frozen=True, slots=True)
class PeerQuota:
    """The most that one address may have at a time.

    A job's members prove their addresses (C15). On loopback all have the same few, so only joins are counted there.
    """

    joins: int = 256
    """Members that wait for others."""
    jobs: int = 64
    """Running jobs that have a member at the address."""
    slots: int | None = None
    """Slots of these jobs, by the part of their members that is at the address; None: half of the switch's."""
    job_slots: int | None = None
    """Slots of any job, wherever its members are; None: no limit."""

    def joins_fault(self, host: str, waiting: int, streams: int = 1) -> str:
        """Why no further member of this host, of a job of so many streams, may wait, or ""."""
        if self.job_slots is not None and streams > self.job_slots:
            return f"{streams} streams need a slot each and a job may have {self.job_slots}, the switch's --peer-quota"
        return f"{waiting} members from {host} are waiting already, its quota" if waiting >= self.joins else ""

    def fault(self, switch_slots: int, wanted: Holding, running: Sequence[Holding]) -> str:
        """Why a job would give one of its hosts more than its quota next to the running jobs, or ""."""
        most = self._most(switch_slots)
        for host in sorted(set(wanted.hosts)):
            if IPv4Address(host).is_loopback:
                continue
            host_jobs = [job for job in running if host in job.hosts]
            slots = sum(job.slots_of(host) for job in (*host_jobs, wanted))
            if len(host_jobs) >= self.jobs:
                return (
                    f"{host} has {len(host_jobs)} jobs already, its quota; end one, or raise the switch's --peer-quota"
                )
            if slots > most:
                return (
                    f"{host} would have {slots} of {switch_slots} slots and its quota is {most}; end a job of it, ask "
                    f"for a smaller window, or raise the switch's --peer-quota"
                )
        return ""

    def room(self, switch_slots: int, hosts: Sequence[str], running: Sequence[Holding]) -> int:
        """The most slots that a job with a member at each of these may have beside those that run."""
        room = [switch_slots]
        for host in set(hosts):
            if not IPv4Address(host).is_loopback:
                free = self._most(switch_slots) - sum(job.slots_of(host) for job in running)
                room.append(((free + 1) * len(hosts) - 1) // hosts.count(host))
        return max(0, min(room))

    def _most(self, switch_slots: int) -> int:
        return switch_slots // 2 if self.slots is None else self.slots


def parse_peer_quota(text: str) -> PeerQuota:
    """From "joins=256,jobs=64,slots=2048,job_slots=512", each of which may be left out. Raises ValueError."""
    quotas: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        name, _, number = part.strip().partition("=")
        names = [entry.name for entry in fields(PeerQuota)]
        if name not in names or not number.isdecimal() or not int(number):
            near = "" if name in names else close_match(name, names)
            allowed = "joins=256, jobs=64, slots=2048, job_slots=512"
            raise ValueError(f"{part.strip()!r} not understood; allowed: {allowed}{near}")
        quotas[name] = int(number)
    return PeerQuota(**quotas)
