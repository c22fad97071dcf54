"""The published SwitchML rules as data planes, kept as those that must fail: of a slot, and of a switch below another.

Per slot and version a bitmap and a counter, no chunk number: a packet sets its bit here and clears it in the other
version; the first of a turn (empty bitmap) overwrites the values; the counter runs down from the number of workers.
Sapio et al., "Scaling Distributed Machine Learning with In-Network Aggregation", NSDI 2021. It relies on packets that
stay in order; everything else here (packets, ports, jobs) is ours, so that only the rule differs.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from switchagg.aggregator import Aggregator, Decision, Parent, SlotView
from switchagg.dataplane.contract import Output
from switchagg.dataplane.reference import ReferencePlane
from switchagg.job import JobConfig
from switchagg.wire import Bundle, Op, Packet, Values, decode, encode


class PublishedRule:
    """One or more jobs; packets of unknown jobs or generations are dropped, as a match table would."""

    name = "published"

    def __init__(self, slots: int, elements: int) -> None:
        self.counters: dict[str, int] = {}
        self._jobs: dict[int, tuple[JobConfig, tuple[int, ...]]] = {}
        self._seen = [[0] * slots, [0] * slots]
        self._count = [[0] * slots, [0] * slots]
        self._values = np.zeros((2, slots, elements), np.int32)

    def admit(self, job: JobConfig, ports: Sequence[int]) -> None:
        self._jobs[job.job_id] = (job, tuple(ports))
        for slot in range(*job.slots):
            for version in (0, 1):
                self._seen[version][slot] = self._count[version][slot] = 0

    def evict(self, job_id: int) -> None:
        self._jobs.pop(job_id, None)

    def seen(self, slot: int, version: int) -> SlotView:
        bitmap = self._seen[version][slot]
        return SlotView(0, tuple(rank for rank in range(64) if bitmap >> rank & 1))

    def process(self, bundle: Bundle, port: int) -> list[Output]:
        outputs = []
        for row in bundle:
            packet = decode(row.tobytes())
            job, ports = self._jobs.get(packet.job, (None, ()))
            if job is None or packet.generation != job.generation:
                continue
            slot, version, bit = packet.slot, packet.version, 1 << packet.rank
            before = self._seen[version][slot]
            self._seen[version][slot] |= bit
            self._seen[1 - version][slot] &= ~bit
            duplicate = bool(before & bit)
            count = self._count[version][slot]
            if not duplicate:
                remaining = job.workers - 1 if count == 0 else count - 1
                self._count[version][slot] = remaining
                stored = self._values[version, slot, : job.elements]
                if before == 0:
                    stored[:] = packet.values
                elif packet.op is Op.SUM:
                    stored += packet.values
                else:
                    np.maximum(stored, packet.values, out=stored)
                completes = remaining == 0
            else:
                completes = count == 0
            if completes:
                values = self._values[version, slot, : job.elements].copy()
                result = encode(replace(packet, values=values, result=True, retransmission=False))
                outputs.append(
                    Output(np.frombuffer(result, np.uint8)[np.newaxis, :], (port,) if duplicate else tuple(ports))
                )
        return outputs


class _PublishedLeaf(Aggregator):
    def _send_up(self, packet: Packet, parent: Parent, values: Values, *, again: bool) -> Decision:
        return super()._send_up(packet, parent, packet.values if again else values, again=again)


class PublishedLeaf(ReferencePlane):
    """A leaf as SwitchML's OMNeT++ model has it (Switch.cc), on our held and seen, so that only its rule differs.

    Once it has sent its rack's sum up its count is 0, and a worker that repeats its packet has this very packet sent up
    as the leaf's: if the sum was lost, one worker's values count as the rack's. That model has no values to notice it.
    """

    name = "published leaf"

    def __init__(self, slots: int, elements: int) -> None:
        super().__init__(slots, elements)
        self._aggregator = _PublishedLeaf(slots, elements)
        self.counters = self._aggregator.counters
