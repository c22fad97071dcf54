"""Colocated: a worker and a server as one member, for jobs without servers of their own: each rank sums its share.

Member r is worker r and server n + r. A message's first byte says for which of the two it is; what they say to each
other stays here and is copied once. The class is a pure `transport.meshes.mesh.Party`.
"""

from collections import Counter
from collections.abc import Sequence

from switchagg.calls.call_request import CallRequest
from switchagg.errors import AggregationFailed
from transport.contracts.group_contract import Array
from transport.meshes.mesh import Buffer, OutgoingMessage
from transport.ps.coded import CodedPushes
from transport.ps.config import PsConfig
from transport.ps.ps_calls import PsCall, PsCallFinished
from transport.ps.ps_server import PsServer
from transport.ps.ps_worker import PsWorker

FOR_SERVER, FOR_WORKER = b"S", b"W"


class Colocated:
    """rank: the member. config: with as many servers as workers. job, names (one for each member): for errors."""

    def __init__(self, rank: int, config: PsConfig, *, job: str = "", names: Sequence[str] = ()) -> None:
        assert config.servers == config.workers
        self._rank, self._workers = rank, config.workers
        self._config = config
        both = [*names, *names]
        self._worker = PsWorker(rank, config, job=job, names=both)
        self._server = PsServer(self._workers + rank, config, names=both)
        self._now_ns = 0
        self._outgoing: list[OutgoingMessage] = []
        self._exit_reasons: dict[int, str] = {}  # members that had left before they were lost: later calls fail

    def submit(self, request: CallRequest, array: Array, *, now_ns: int) -> PsCall:
        """As PsWorker's."""
        for member, reason in self._exit_reasons.items():
            self._worker.lost(self._workers + member, reason, now_ns)
        call = self._worker.submit(request, array, now_ns=now_ns)
        self._exchange(now_ns)
        return call

    def events(self) -> list[PsCallFinished]:
        """As PsWorker's."""
        return self._worker.events()

    @property
    def failure(self) -> AggregationFailed | None:
        return self._worker.failure

    @property
    def counters(self) -> Counter[str]:
        """Counters of the worker and the server, added up."""
        return self._worker.counters + self._server.counters

    @property
    def count(self) -> int:
        """Workers that are left, as far as known."""
        return self._worker.count

    @property
    def pushes(self) -> CodedPushes | None:
        """As PsWorker's."""
        return self._worker.pushes

    @property
    def behind(self) -> int:
        """As PsWorker's."""
        return self._worker.behind

    @property
    def notices(self) -> list[str]:
        """The server's lines for a log; the worker hears the same from every server."""
        return self._server.notices

    def lost_servers(self) -> list[int]:
        """As PsWorker's: none, as no server is alone."""
        return []

    def leave(self) -> None:
        """As PsWorker's. The server serves on until `has_left`."""
        self._worker.leave()
        self._exchange(self._now_ns)

    @property
    def has_left(self) -> bool:
        """After `leave`: nobody needs this member any more. With weights here: once all others have left too."""
        serves = not self._server.idle or self._config.keeps_weights
        return self._worker.has_left and (self._server.may_end or not serves)

    def give_up(self, reason: str) -> None:
        """As PsWorker's."""
        self._worker.give_up(reason)
        self._exchange(self._now_ns)

    # Party

    def place(self, sender: int, head: bytes, size_bytes: int) -> memoryview | None:
        if head[:1] == FOR_SERVER:
            return self._server.place(sender, head[1:], size_bytes)
        return self._worker.place(self._workers + sender, head[1:], size_bytes)

    def receive(self, sender: int, head: bytes, data: Buffer, now_ns: int) -> None:
        if head[:1] == FOR_SERVER:
            self._server.receive(sender, head[1:], data, now_ns)
        else:
            self._worker.receive(self._workers + sender, head[1:], data, now_ns)
        self._exchange(now_ns)

    def on_sent(self, ticket: int) -> None:
        (self._server if ticket & 1 else self._worker).on_sent(ticket >> 1)

    def lost(self, member: int, reason: str, now_ns: int) -> None:
        has_left = self._server.has_left(member)
        self._server.lost(member, reason, now_ns)
        self._exchange(now_ns)  # first: it says for which call it matters
        if has_left and not self._worker.waits_for(self._workers + member):
            self._exit_reasons[member] = reason
        else:
            self._worker.lost(self._workers + member, reason, now_ns)
        self._exchange(now_ns)

    def messages_to_send(self) -> list[OutgoingMessage]:
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def next_deadline_ns(self) -> int | None:
        deadlines = (self._worker.next_deadline_ns(), self._server.next_deadline_ns())
        return min((deadline_ns for deadline_ns in deadlines if deadline_ns is not None), default=None)

    def handle_timer(self, now_ns: int) -> None:
        self._worker.handle_timer(now_ns)
        self._server.handle_timer(now_ns)
        self._exchange(now_ns)

    # Private

    def _exchange(self, now_ns: int) -> None:
        """Carry what the two say to each other, until they are silent; put the rest out."""
        self._now_ns = now_ns
        while messages := [(False, message) for message in self._worker.messages_to_send()] + [
            (True, message) for message in self._server.messages_to_send()
        ]:
            for by_server, (to, head, data, ticket, priority) in messages:
                member = to if by_server else to - self._workers
                if member != self._rank:
                    prefix = FOR_WORKER if by_server else FOR_SERVER
                    self._outgoing.append(
                        OutgoingMessage(member, prefix + head, data, ticket << 1 | by_server, priority)
                    )
                    continue
                sender = self._workers + self._rank if by_server else self._rank
                receiver: PsWorker | PsServer = self._worker if by_server else self._server
                place = receiver.place(sender, head, len(data))
                if place is not None:
                    place[:] = data
                receiver.receive(sender, head, bytes(data) if place is None else place, now_ns)
                (self._server if by_server else self._worker).on_sent(ticket)
