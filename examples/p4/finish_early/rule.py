"""The rule of this folder's P4 program as a reference, for `switchagg p4 generate --rule`."""

from switchagg.aggregator import Aggregator, Decision, Verdict, older
from switchagg.wire import Op, Packet


class Rule(Aggregator):
    """S4 and S5, but a sum is finished when n - 1 of the n workers are in; a MAX when all are."""

    def _aggregate(self, packet: Packet) -> Decision:
        slot, version, bit = packet.slot, packet.version, 1 << packet.rank
        held = self._held[version][slot]
        if older(packet.chunk, held):
            return Decision(Verdict.DROP, (), "drop_older")
        self._held[version][slot] = packet.chunk
        before = self._seen[version][slot] if packet.chunk == held else 0
        now = self._seen[version][slot] = before | bit
        repeated, late = bool(before & bit), self._finished(before, packet)
        values = self._combine(packet, write=before == 0, read=repeated or late)
        if not self._finished(now, packet):
            return Decision(Verdict.DROP, (), "drop_duplicate" if repeated else "absorbed")
        return self._answer(packet, values, again=repeated or late)

    def _finished(self, ranks: int, packet: Packet) -> bool:
        workers = self._jobs[packet.job][0].workers
        return ranks != 0 and workers - ranks.bit_count() <= (packet.op is Op.SUM)
