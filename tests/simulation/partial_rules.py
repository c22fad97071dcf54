"""Rules for partial sums that look right, kept as those that must fail."""

from switchagg.aggregator import Aggregator, Decision
from switchagg.dataplane.reference import ReferencePlane
from switchagg.wire import Packet


class _Late(Aggregator):
    def _aggregate_partly(self, packet: Packet) -> Decision:
        slot, version = packet.slot, packet.version
        late = packet.chunk == self._held[version][slot] and len(packet.values) > 0
        late = late and not self._seen[version][slot] >> packet.rank & 1
        decision = super()._aggregate_partly(packet)
        if late and decision.reason == "drop_late":
            self._combine(packet, read=False)
        return decision


class AddsLate(ReferencePlane):
    """What comes when a chunk is finalised is added all the same: who asks again gets another sum than the others."""

    name = "adds late"
    rule: type[Aggregator] = _Late

    def __init__(self, slots: int, elements: int) -> None:
        super().__init__(slots, elements)
        self._aggregator = self.rule(slots, elements)
        self.counters = self._aggregator.counters


class _Sent(Aggregator):
    def _having(self, packet: Packet) -> int:
        return self._seen[packet.version][packet.slot]


class TakesOverWhatAllHaveSent(AddsLate):
    """A finalised chunk is taken over when all ranks have been seen: who lost the result asks in vain for ever."""

    name = "takes over what all have sent"
    rule = _Sent


class _Eager(Aggregator):
    def _having(self, packet: Packet) -> int:
        return -1


class TakesOverAtOnce(AddsLate):
    """As without partial sums: a newer chunk takes the slot version over, whoever lacks the result."""

    name = "takes over at once"
    rule = _Eager
