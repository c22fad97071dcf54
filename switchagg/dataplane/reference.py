"""The reference switch behind the data-plane contract: bytes in, bytes out, one packet at a time."""

from collections.abc import Callable, Sequence

import numpy as np

from switchagg.aggregator import Aggregator, Parent, SlotView
from switchagg.dataplane.contract import Output
from switchagg.errors import DecodeError
from switchagg.job import JobConfig
from switchagg.wire import Bundle, decode, encode, job_of


class ReferencePlane:
    """`Aggregator` on bytes. slots: how many; elements: the largest E it holds. rule: another Aggregator."""

    name = "reference"

    def __init__(self, slots: int, elements: int, rule: Callable[[int, int], Aggregator] = Aggregator) -> None:
        self._aggregator = rule(slots, elements)
        self._owned: dict[int, JobConfig] = {}
        self.counters = self._aggregator.counters

    def admit(self, job: JobConfig, ports: Sequence[int], parent: Parent | None = None) -> None:
        self._aggregator.admit(job, ports, parent)
        self._owned[job.job_id] = job

    def evict(self, job_id: int) -> None:
        self._aggregator.evict(job_id)
        self._owned.pop(job_id, None)

    def seen(self, slot: int, version: int) -> SlotView:
        if not any(
            s.first_slot <= slot < s.first_slot + s.window_slots for j in self._owned.values() for s in j.streams
        ):
            raise KeyError(slot)
        return self._aggregator.seen(slot, version)

    def process(self, bundle: Bundle, port: int) -> list[Output]:
        outputs = []
        for row in bundle:
            try:
                packet = decode(row.tobytes(), self._aggregator.has_partial_sums(job_of(row)))
            except DecodeError as error:
                self.counters[f"drop_{error.reason}"] = self.counters.get(f"drop_{error.reason}", 0) + 1
                continue
            for result, ports in self._aggregator.accept(packet, port).sends:
                outputs.append(Output(np.frombuffer(encode(result), np.uint8)[np.newaxis, :], ports))
        return outputs
