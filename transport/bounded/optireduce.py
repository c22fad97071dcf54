"""OptiReduce's rule: time-outs that are measured, marks, incast that follows loss, a rotation where loss is high."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from switchagg.priority import BEST_EFFORT
from transport.bounded.rules import BoundedOptions, CallStage, Exact, Sending, all_reliable
from transport.bounded.transfers import SendPlan

UNKNOWN_NS = 500_000_000
"""Half of t_B while nothing was measured."""
FEW_LOST, MANY_LOST = 0.0001, 0.001
"""Shares below and above which a rank waits less or more after the marks (unverified)."""


@dataclass(frozen=True)
class OptiReduceOptions(BoundedOptions):
    """hadamard: "auto", when more than hadamard_loss was lost lately (2 %: unverified), "always", "never". adaptive:
    whether marks and t_C end a stage before t_B (ablation). runs: reliable calls of a size, which measure t_B. wait,
    wait_most: how long a rank waits after the marks, in percent of t_C (10 and 50: unverified). average: weight of the
    newest in t_C (unverified). incast: most transfers at once; None: as loss allows."""

    hadamard: Literal["auto", "always", "never"] = "auto"
    hadamard_loss: float = 0.02
    adaptive: bool = True
    runs: int = 20
    wait: int = 10
    wait_most: int = 50
    average: float = 0.95
    incast: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hadamard not in ("auto", "always", "never"):
            raise ValueError(f"hadamard '{self.hadamard}': auto, always, never")
        if self.runs < 1 or not 1 <= self.wait <= self.wait_most or not 0 < self.average <= 1:
            raise ValueError("runs: 1 or more; wait: 1 to wait_most; average: more than 0, at most 1")


class OptiReduce(Exact):
    """OptiReduce (Warraich et al., Resilient and Tail-Optimal AllReduce for Distributed Deep Learning in the Cloud,
    NSDI'25, arXiv 2310.06993).

    TAR: a rank sends each other its shard of the array, sums its own, and sends the sum to each: a reduce-scatter and
    an all-gather by direct exchange, so that a lost packet costs one rank's part of one shard, and no sum is passed on.
    UBT: nothing is sent again. A stage ends when all is there; or, once the last percentile of all senders has been
    seen and nothing has come for x % of t_C; or at t_B after this rank began to wait. t_B is the 95th percentile of 20
    reliable runs (the paper: over TCP, of the largest bucket; here of each size). t_C is a moving average of the median
    over the ranks of what a stage took: t_B where it ended so, what it took scaled up to all of its bytes where it
    ended after the marks. x is 10, doubled while more than 0.1 % is lost, to 50 at most, one less below 0.01 %. A rank
    sends to so many at once (incast) as the last stage's loss allows: one more without, half as many with loss.
    Loss above 2 %: transfers are rotated (Hadamard transform with random signs), so that what is lost costs all values
    a little. The paper rotates buckets; here a shard is, and says so, so ranks need not agree.

    Values that a stage lacks at t_B are lost on this rank alone: replicas differ. Results are scaled by the arrived
    count (the paper doesn't say). After a time-out the receiver tells the sender, which drops what it hasn't sent: the
    paper's sender has a time-out of its own.
    """

    def __init__(self, options: OptiReduceOptions, workers: int) -> None:
        self.options = options
        self.divide = options.divide or "arrived"
        self.lost_lately = 0.0
        self._most = max(1, workers - 1)
        self._incast = min(options.incast or 1, self._most)
        self._wait = options.wait
        self._runs: dict[tuple[int, int], list[int]] = {}  # by size and stage: what the first took
        self._bound_ns: dict[tuple[int, int], int] = {}  # t_B
        self._usual_ns: dict[tuple[int, int], float] = {}  # t_C
        self._newest_us: dict[tuple[int, int], int] = {}

    @property
    def rotates(self) -> bool:
        """Whether transfers are rotated now."""
        if self.options.hadamard != "auto":
            return self.options.hadamard == "always"
        return self.lost_lately > self.options.hadamard_loss

    def plan(self, sending: Sending) -> SendPlan:
        """See `Rule`."""
        blocks = sending.blocks
        if sending.index < self.options.runs:
            return all_reliable(blocks)
        unreliable = np.zeros(blocks, np.bool_)
        return SendPlan(unreliable, np.arange(blocks), BEST_EFFORT, marked=max(1, blocks // 100), rotated=self.rotates)

    def together(self, stage: int) -> int | None:
        """See `Rule`."""
        return self._incast

    def timeout_us(self, stage: int, size: int) -> int:
        """See `Rule`."""
        return self._newest_us.get((size, stage), 0)

    def close(self, stage: CallStage, rtt_ns: Sequence[int], now_ns: int) -> int | None:
        """See `Rule`."""
        key = stage.size, stage.number
        if stage.index < self.options.runs and not any(transfer.bounded for transfer in stage.incoming):
            return None
        if (bound_ns := self._bound_ns.get(key)) is None:  # calls overlap, or a rank is ahead of this one
            bound_ns = 2 * max(self._runs.get(key, [UNKNOWN_NS]))
        ends_ns = stage.begun_ns + bound_ns
        known = self.options.adaptive and key in self._usual_ns
        if known and all(transfer.marked or transfer.full for transfer in stage.incoming):
            last_ns = max((transfer.last_ns for transfer in stage.incoming), default=now_ns)
            quiet_ns = round(self._usual_ns[key] * self._wait / 100)
            ends_ns = min(ends_ns, max(last_ns, stage.begun_ns) + quiet_ns)
        if now_ns < ends_ns:
            return ends_ns
        for transfer in stage.incoming:
            transfer.closed = True
        return None

    def ended(self, stage: CallStage, now_ns: int) -> None:
        """See `Rule`."""
        key, took_ns = (stage.size, stage.number), now_ns - stage.begun_ns
        share = statistics.fmean(transfer.share for transfer in stage.incoming) if stage.incoming else 1.0
        if key not in self._bound_ns:
            if stage.index >= self.options.runs:
                return
            runs = self._runs.setdefault(key, [])
            runs.append(took_ns)
            if len(runs) >= self.options.runs:
                self._bound_ns[key] = max(1, round(float(np.percentile(runs, 95))))
                self._usual_ns[key] = float(np.median(runs))
                del self._runs[key]
            return
        bound_ns = self._bound_ns[key]
        mine_ns = bound_ns if took_ns >= bound_ns else min(bound_ns, round(took_ns / max(share, 0.01)))
        self._newest_us[key] = min(mine_ns // 1000, 0xFFFFFFFF)
        timeouts_ns = [transfer.timeout_us * 1000 for transfer in stage.incoming if transfer.timeout_us]
        weight = self.options.average
        self._usual_ns[key] = weight * statistics.median([mine_ns, *timeouts_ns]) + (1 - weight) * self._usual_ns[key]
        lost = 1 - share
        self.lost_lately += 0.1 * (lost - self.lost_lately)
        if lost > MANY_LOST:
            self._wait = min(2 * self._wait, self.options.wait_most)
        elif lost < FEW_LOST:
            self._wait = max(1, self._wait - 1)
        if self.options.incast is None:
            self._incast = max(1, self._incast // 2) if lost else min(self._incast + 1, self._most)
