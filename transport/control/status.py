"""Status answers of a switch, and who may see which details (C14)."""

from dataclasses import dataclass

from switchagg.controller.admission import Controller
from switchagg.membership import Running, Waiting
from transport.control import control_messages
from transport.control.hop_secrets import HopSecrets
from transport.control.snapshots import HostSnapshot


@dataclass(frozen=True)
class VisibleJobs:
    """The jobs and gatherings whose details an asker may know; both empty: it is an unknown sender."""

    running: tuple[Running, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    everything: bool = False

    @classmethod
    def of_query(
        cls,
        controller: Controller,
        query: control_messages.StatusQuery,
        trusted: bool,
        held: tuple[Running, ...] | None = None,
    ) -> "VisibleJobs":
        """trusted: holds a key, is the switch's own user on its host, or the switch above. A member knows its own job
        alone. held: the jobs of a switch below another."""
        if trusted:
            jobs = tuple(controller.jobs()) if held is None else held
            return cls(jobs, tuple(controller.waiting()), everything=True)
        match None if query.incarnation is None else controller.membership_state(query.incarnation):
            case Running() as running:
                return cls(running=(running,))
            case Waiting() as waiting:
                return cls(waiting=(waiting,))
        return cls()

    @property
    def details(self) -> bool:
        """Whether the asker is no unknown sender."""
        return self.everything or bool(self.running or self.waiting)


def status_answer(
    controller: Controller,
    query: control_messages.StatusQuery,
    visible: VisibleJobs,
    snapshot: HostSnapshot,
    counters: dict[str, int],
    hops: HopSecrets,
    held: tuple[Running, ...] = (),
) -> control_messages.StatusAnswer:
    """The answer to a query. counters: of the control plane. hops: of the switch. held: the jobs of a switch below
    another."""
    below = sum(stream.window_slots for running in held for stream in running.admitted.job.streams)
    return control_messages.StatusAnswer(
        token=query.token,
        slots=controller.slots,
        free_slots=controller.free_slots() - below,
        running=sum(1 for _ in controller.jobs()) + len(held),
        gathering=sum(1 for _ in controller.waiting()),
        details=visible.details,
        jobs=[
            _job_status(
                running,
                snapshot if running.admitted.name == query.job else HostSnapshot(),
                "" if running in held else hops.protection(running.admitted),
            )
            for running in visible.running
        ],
        waiting={
            gathering.name: control_messages.JobGathering(
                control_messages.rank_addresses(gathering.present), list(gathering.missing), gathering.reason
            )
            for gathering in visible.waiting
        },
        control_counters=counters if visible.details else {},
        data_counters=snapshot.counters,
        switches={
            offer.name: f"{offer.address[0]}:{offer.address[1]}"
            for offer in controller.switches.offers
            if visible.details
        },
    )


def _job_status(running: Running, snapshot: HostSnapshot, packets: str) -> control_messages.JobStatus:
    """Slot versions: unfinished ones first. packets: as of a JobStatus."""
    workers = running.admitted.job.workers
    views = sorted(snapshot.slots.items(), key=lambda item: len(item[1].ranks) == workers)
    return control_messages.JobStatus(
        *control_messages.facts_of(running.admitted),
        members=control_messages.rank_addresses(running.admitted.members),
        departed=control_messages.departed_members(running.departed),
        slots=[
            control_messages.SlotStatus(slot, version, view.chunk, list(view.ranks))
            for (slot, version), view in views[: control_messages.SLOTS_REPORTED_MAX]
        ],
        requested_slots=running.requested_slots,
        leaving=running.asked_to_leave,
        packets=packets,
    )
