"""BoundedGroupParty, a pure party: a member's float32 sums by a `BoundedParty`, other calls exactly, by `direct`."""

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from switchagg.calls.call_request import CallRequest
from switchagg.description import Kind
from switchagg.errors import AggregationFailed
from transport.bounded.bounded_calls import NUMBERED, BoundedCall
from transport.bounded.bounded_party import BoundedParty
from transport.collectives.collective_party import CollectiveParty
from transport.collectives.collective_table import fitting
from transport.meshes.mesh import OutgoingMessage

EXACT = "direct"


class BoundedGroupParty:
    """A `transport.group.host_group.GroupParty`. lossy: the mesh that carries the messages of `exact` gives it its
    packets and its time (`UdpMesh.carry_packets`). A failure of one ends the other, on all ranks."""

    def __init__(self, exact: CollectiveParty, lossy: BoundedParty) -> None:
        self.exact, self.lossy = exact, lossy
        self._pending: dict[int, BoundedCall] = {}  # sums of float32 that haven't ended
        self.place, self.receive, self.on_sent, self.fail = exact.place, exact.receive, exact.on_sent, exact.fail

    @property
    def failure(self) -> AggregationFailed | None:
        return self.exact.failure or self.lossy.failure

    def submit(self, request: CallRequest, array: NDArray[Any], *, now_ns: int) -> Any:
        """As of `CollectiveParty`. The values are known by their tensors' names, or the key, in each iteration."""
        kind, key = cast(Kind, request.kind), request.key
        if kind != "allreduce" or request.op != "sum" or array.dtype != np.float32:
            self.lossy.pass_over(key, f"{kind} of {len(array)} {array.dtype}")
            algorithm = fitting(kind, EXACT, self.exact.workers)
            return self.exact.submit(request, algorithm, array, now_ns=now_ns)
        try:
            call = self.lossy.submit(
                array,
                key=key,
                priority=request.priority,
                now_ns=now_ns,
                name=tuple(tensor.name for tensor in request.tensors) if request.tensors else None,
                signature=str(request.signature or request.requested_op),
            )
        except AggregationFailed:  # a member has left: the call ends with that, as `events` tells
            call = BoundedCall(NUMBERED, 0)
        self._pending[id(call)] = call
        return call

    def events(self) -> list[tuple[Any, AggregationFailed | None]]:
        """Calls that have ended since the last time."""
        if (failure := self.lossy.failure) is not None:
            self.exact.fail(failure.detail, failure.missing)
        events: list[tuple[Any, AggregationFailed | None]] = [*self.exact.events()]
        for call in self.lossy.events():
            del self._pending[id(call)]
            events.append((call, None))
        if (failure := self.exact.failure) is not None:
            self.lossy.end(failure)
            events += [(call, failure) for call in self._pending.values()]
            self._pending = {}
        return events

    def give_up(self, reason: str) -> None:
        """As of `GroupParty`."""
        if call := next((call for call in self._pending.values() if call.array is not None), None):
            whom = ", ".join(f"rank {rank}" for rank in call.missing)
            self.exact.fail(
                f"{call.words} {reason} on rank {self.exact.member}, waiting for {whom}", tuple(call.missing)
            )
        self.exact.give_up(reason)

    def lost(self, member: int, reason: str, now_ns: int) -> None:
        """As of `Party`. A method whose rule waits a limited time goes on with the calls that it has begun."""
        self.lossy.lost(member, reason, now_ns)
        self.exact.lost(member, reason, now_ns)

    def messages_to_send(self) -> list[OutgoingMessage]:
        """As of `Party`."""
        return self.exact.messages_to_send()

    def next_deadline_ns(self) -> int | None:
        """As of `Party`."""
        return self.exact.next_deadline_ns()

    def handle_timer(self, now_ns: int) -> None:
        """As of `Party`."""
        self.exact.handle_timer(now_ns)
