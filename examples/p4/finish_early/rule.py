"""The rule of this folder's P4 program as a reference, for `switchagg p4 generate --rule`."""

from dataclasses import replace

from switchagg.aggregator import Aggregator, Decision, Verdict
from switchagg.wire import Op, Packet


class Rule(Aggregator):
    """S4 and S5, but a sum of all workers is finished when n - 1 of them are in; a MAX, or a route, when all are."""

    def _aggregate(self, packet: Packet) -> Decision:
        slot, version, bit = packet.slot, packet.version, 1 << packet.rank
        if reason := self._out_of_turn(packet):
            return Decision(Verdict.DROP, (), f"drop_{reason}")
        before = self._seen[version][slot] if packet.chunk == self._held[version][slot] else 0
        self._held[version][slot] = packet.chunk
        self._marked[version][slot] = packet.marked or (before != 0 and self._marked[version][slot])
        packet = replace(packet, marked=self._marked[version][slot])
        now = self._seen[version][slot] = before | bit
        repeated, late = bool(before & bit), self._finished(before, packet)
        givers = self._givers(packet)
        if givers & bit:
            values = self._combine(packet, write=not before & givers, read=repeated or late)
        else:
            values = self._combine(packet, clear=not before, read=True)
        if not self._finished(now, packet):
            return Decision(Verdict.DROP, (), "drop_duplicate" if repeated else "absorbed")
        return self._answer(packet, values, again=repeated or late)

    def _finished(self, ranks: int, packet: Packet) -> bool:
        workers = len(self._jobs[packet.job].ports)
        return ranks != 0 and workers - ranks.bit_count() <= (packet.op is Op.SUM and not packet.route)
