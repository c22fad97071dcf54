"""QueuePairEnds: a control plane's half of what a switch's host must know of jobs that reach it by queue pairs."""

from collections.abc import Container

from switchagg.job import JobConfig
from switchagg.join import ROOT, Join, QueuePairEnd
from switchagg.membership import JobAdmitted
from transport.contracts.switch_host import QueuePairHost, SwitchHost
from transport.links.addresses import with_secret
from transport.rdma.places import switch_ends


class QueuePairEnds:
    """The ends of the members' queue pairs, as their joins gave them; none where jobs come by addresses alone.

    queue_pairs: `host` again, if its jobs come over RDMA. secrets: whether members prove themselves on the link (C15).
    """

    def __init__(self, host: SwitchHost, queue_pairs: QueuePairHost | None, *, secrets: bool = False) -> None:
        self._host = host
        self._secrets = secrets
        self._queue_pairs = queue_pairs
        self._ends: dict[int, QueuePairEnd] = {}  # by the incarnation of the worker

    def fault(self, request: Join) -> str:
        """Why this switch's link isn't the request's, or "": then its end is remembered."""
        if request.queue_pair is None:
            return "this switch serves RDMA only: join it over the link rdma" if self._queue_pairs else ""
        if self._queue_pairs is None:
            return (
                "this switch serves no RDMA: start one with `switchagg switch --link rdma`, or join over the link udp"
            )
        if fault := request.queue_pair.fault():
            return fault
        self._ends.setdefault(request.incarnation, request.queue_pair)  # C2: a repeated join keeps the end
        return ""

    def of_switch(self, job: JobConfig) -> list[QueuePairEnd]:
        """The switch's ends, by rank; none without RDMA."""
        return switch_ends(job) if self._queue_pairs else []

    def admit(self, event: JobAdmitted, secret: bytes) -> None:
        """Have the host take the job; secret: as of `SwitchHost.admit`. Raises JobError."""
        if event.shares:
            share = next(share for share in event.shares if share.switch == ROOT)
            self._host.admit(event.job, share.children, secret=secret)
            return
        secrets = [member.incarnation if self._secrets else 0 for member in event.members]
        addresses = [with_secret(member.address, secret) for member, secret in zip(event.members, secrets, strict=True)]
        if self._queue_pairs is None:
            self._host.admit(event.job, addresses, secret=secret)
        else:
            self._queue_pairs.admit_ends(
                event.job, addresses, [self._ends[member.incarnation] for member in event.members]
            )

    def keep(self, incarnations: Container[int]) -> None:
        """Forget all others."""
        self._ends = {key: end for key, end in self._ends.items() if key in incarnations}
