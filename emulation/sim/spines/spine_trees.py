"""A job that sums over several trees of switches: one of the protocol's jobs for each of them, as one."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from switchagg.calls.chunked_call import ArrayCall
from switchagg.endpoint import Endpoint, Event, StreamFailed
from switchagg.job import JobConfig
from switchagg.priority import class_of
from switchagg.wire import Bundle, job_of

IDS_APART = 1 << 12
"""Between the ids of a job's trees; jobs have lower ids."""


def jobs_of(job: JobConfig, trees: int) -> tuple[JobConfig, ...]:
    """The job at each of its trees: stream s belongs to tree s mod trees, and is stream s div trees there.

    Slot ranges lie tree by tree, since a switch that is in several takes each for a job of its own.
    """
    first_slot, jobs = job.slots[0], []
    for tree in range(trees):
        streams = []
        for stream in job.streams[tree::trees]:
            streams.append(replace(stream, first_slot=first_slot))
            first_slot += stream.window_slots
        jobs.append(replace(job, job_id=job.job_id + tree * IDS_APART, streams=tuple(streams)))
    return tuple(jobs)


class TreeEndpoints:
    """A rank's endpoints, one for each tree, as if they were one `Endpoint` of the whole job: each stream's window is
    its own anyway (W1, G5)."""

    def __init__(self, job: JobConfig, endpoints: Sequence[Endpoint]) -> None:
        self.job = job
        self.rank = endpoints[0].rank
        self._endpoints = tuple(endpoints)
        self._by_job = {endpoint.job.job_id: endpoint for endpoint in endpoints}
        self.parts = endpoints  # by tree
        self._classes = sorted({class_of(stream.priority) for stream in job.streams})
        self._turns = list(endpoints)

    @property
    def counters(self) -> dict[str, int]:
        """The counters of all trees together."""
        return sum((Counter(endpoint.counters) for endpoint in self._endpoints), Counter())

    def submit(self, stream: int, call: ArrayCall) -> None:
        """See `Endpoint`."""
        number, tree = divmod(stream, len(self._endpoints))
        self._endpoints[tree].submit(number, call)

    def receive(self, bundle: Bundle, now_ns: int, congested: bool = False) -> None:
        """A bundle of one tree; any endpoint drops what is of none."""
        self._by_job.get(job_of(bundle[0]), self._endpoints[0]).receive(bundle, now_ns, congested)

    def frames_to_send(self, now_ns: int, limit: int = 64, kind: int | None = None) -> Bundle:
        """The frames of a tree: the trees with the most urgent class take turns, and the next tree that has frames
        sends."""
        for priority in self._classes if kind is None else (kind,):
            for endpoint in self._turns:
                if len(bundle := endpoint.frames_to_send(now_ns, limit, priority)):
                    self._turns.remove(endpoint)
                    self._turns.append(endpoint)
                    return bundle
        return bundle

    def next_event(self) -> Event | None:
        """See `Endpoint`; streams are the job's."""
        for tree, endpoint in enumerate(self._endpoints):
            if (event := endpoint.next_event()) is not None:
                stream = event.stream * len(self._endpoints) + tree
                return replace(event, stream=stream) if isinstance(event, StreamFailed) else event
        return None

    def next_deadline_ns(self) -> int | None:
        """The first of any."""
        deadlines = (endpoint.next_deadline_ns() for endpoint in self._endpoints)
        return min((deadline_ns for deadline_ns in deadlines if deadline_ns is not None), default=None)

    def handle_timer(self, now_ns: int) -> None:
        """See `Endpoint`."""
        for endpoint in self._endpoints:
            endpoint.handle_timer(now_ns)
