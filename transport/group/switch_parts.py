"""SwitchParts: what a rank has of the parts that the present switch carries, or the last one has left undone."""

from collections.abc import Sequence

from switchagg.calls.chunked_call import ArrayCall
from switchagg.calls.member_calls import CallLedger, CallPlace
from switchagg.calls.round_calls import Ended
from switchagg.failover.agreement import Agreement, CallPath, Mover
from switchagg.failover.part_rows import PartRows, RetainedParts
from switchagg.job import JobConfig
from transport.worker.worker_loop import UnfinishedCall


class SwitchParts:
    """One rank's, under the lock of its calls. first: of each stream, the number of the first part of that switch."""

    def __init__(self, rank: int, streams: int) -> None:
        self._rank, self.first = rank, [0] * streams
        self._retained: list[RetainedParts] = []  # empty before the first switch

    def begin(self, job: JobConfig, first: Sequence[int]) -> None:
        """From now on these are the parts of a switch that has the job as `job`."""
        self.first = list(first)
        self._retained = [
            RetainedParts(stream.window_slots, self._rank, job, number)
            for stream, number in zip(job.streams, first, strict=True)
        ]

    def keep(self, place: CallPlace, call: ArrayCall) -> None:
        """The switch has finished a part: what others may still lack is kept (L2)."""
        self._retained[place[0]].keep(place[1], call)

    def lowest(self, is_lost: bool) -> list[int]:
        """As of `MemberRow`. is_lost: the others will rely on it."""
        return [parts.tell_lowest() if is_lost else parts.lowest for parts in self._retained] or self.first

    def disputed(
        self, agreement: Agreement, ledger: CallLedger, mover: Mover, left: Sequence[UnfinishedCall], job: JobConfig
    ) -> list[tuple[CallPlace, PartRows, Ended]]:
        """What this rank has of each disputed part that it has made, and who waits for it. left: by the switch. job:
        by which calls are laid out."""
        parts: list[tuple[CallPlace, PartRows, Ended]] = []
        for stream, numbers in enumerate(ledger.pending()):
            of_switch = [n for n in numbers if mover.path_of(stream, n) is CallPath.RECOVERY]
            calls = [call for call in left if call.stream == stream]
            unfinished = dict(zip(of_switch, calls, strict=True))
            end = min(ledger.call_counts()[stream], agreement.first[stream])  # later ones are recovered when made
            for number in range(agreement.lowest[stream], end):
                call = unfinished.get(number)
                if call is not None:
                    parts.append(((stream, number), PartRows(call.call, self._rank, job, call.held), call.ended))
                    continue
                retained = self._retained[stream].of(number)
                assert retained is not None, f"call {number} of stream {stream} isn't retained"  # L2 says why it is
                parts.append(((stream, number), retained, _nothing))
        return parts


def _nothing(failure: BaseException | None) -> None:
    """Nobody waits for a call that is finished here."""
