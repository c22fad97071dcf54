"""The rules of the methods with bounded loss: how a transfer is sent, and when its receiver waits no more."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from switchagg.priority import BEST_EFFORT, class_of
from transport.bounded.transfers import IncomingTransfer, SendPlan, Values

Divide = Literal["arrived", "workers"]


@dataclass(frozen=True)
class BoundedOptions:
    """Options that every method has. divide: by how many a sum with gaps is scaled: "arrived", each value to n/arrived
    of what came; "workers", not at all, so what is lost counts as 0. divide=None: as the method's paper does."""

    divide: Divide | None = None

    def __post_init__(self) -> None:
        if self.divide not in (None, "arrived", "workers"):
            raise ValueError(f"divide '{self.divide}': arrived, workers")


@dataclass
class CallStage:
    """The incoming transfers of one stage of a call. number: 0, to the owner of a shard; 1, from the owners. size: of
    the call, in values; index: of the calls of that size, from 0. begun_ns: when this rank began to wait for it."""

    number: int
    size: int
    index: int
    begun_ns: int
    incoming: Sequence[IncomingTransfer]


@dataclass(frozen=True)
class Sending:
    """A transfer that is about to be sent. name: what the same values are called in each iteration, if they have one.
    stage, size, index: as of `CallStage`. priority: of its call, lower is more urgent: nearer the model's front.
    values_each: of a block."""

    name: object
    values: Values
    stage: int
    size: int
    index: int
    priority: int
    values_each: int

    @property
    def blocks(self) -> int:
        return max(1, -(-len(self.values) // self.values_each))

    def magnitudes(self) -> NDArray[np.float64]:
        """Mean |value| of each block."""
        if not len(self.values):
            return np.zeros(1)
        sums = np.add.reduceat(np.abs(self.values, dtype=np.float64), np.arange(0, len(self.values), self.values_each))
        counts = np.full(self.blocks, self.values_each)
        counts[-1] = len(self.values) - self.values_each * (self.blocks - 1)
        means: NDArray[np.float64] = np.nan_to_num(sums / counts)
        return means


class Rule(Protocol):
    """The rule of a method at one rank. It is pure; each party has its own, since it may measure."""

    divide: Divide

    def plan(self, sending: Sending) -> SendPlan:
        """How a transfer is sent."""

    def together(self, stage: int) -> int | None:
        """How many of a stage's transfers are under way at once; None: all."""

    def timeout_us(self, stage: int, size: int) -> int:
        """The time-out that packets tell the receiver, in us."""

    def close(self, stage: CallStage, rtt_ns: Sequence[int], now_ns: int) -> int | None:
        """Close what of a stage need not be waited for. When to look again, if nothing comes; None: then only.

        rtt_ns: the least measured to each sender of stage.incoming, 0 where none was. Full transfers are closed
        already.
        """

    def ended(self, stage: CallStage, now_ns: int) -> None:
        """A stage is settled: to measure."""


def all_reliable(blocks: int, classes: int = BEST_EFFORT) -> SendPlan:
    """Nothing may be lost, in order."""
    return SendPlan(np.ones(blocks, np.bool_), np.arange(blocks), classes)


class Exact:
    """Nothing is lost: what every rule does where it bounds nothing, and the one to compare them with."""

    divide: Divide = "workers"

    def __init__(self, **_: Any) -> None:
        pass

    def plan(self, sending: Sending) -> SendPlan:
        return all_reliable(sending.blocks)

    def together(self, stage: int) -> int | None:
        return None

    def timeout_us(self, stage: int, size: int) -> int:
        return 0

    def close(self, stage: CallStage, rtt_ns: Sequence[int], now_ns: int) -> int | None:
        return None

    def ended(self, stage: CallStage, now_ns: int) -> None:
        pass


@dataclass(frozen=True)
class MltOptions(BoundedOptions):
    """tolerance: share of each tensor's bytes that may be lost, the same on all ranks. The paper finds 0.7 to 3.3 %
    without a cost in rounds, and evaluates 10 %. priorities: whether packets differ (ablation)."""

    tolerance: float = 0.1
    priorities: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.tolerance < 1:
            raise ValueError(f"tolerance {self.tolerance}: 0 or more, less than 1")


class Mlt(Exact):
    """MLT (Wang et al., Towards Domain-Specific Network Transport for Distributed DNN Training, NSDI'24), §4 as far as
    its abstract, notes and the earlier DLCP (arXiv 2008.08445) have it.

    The tolerance p is agreed. Nothing is sent again by itself. Once (1 - p) of a transfer's bytes are there the
    receiver sends *stop* on the reliable channel. A sender that is done first sends a *probe*; the answer is a bitmap
    of what is missing, which it sends again, until it is stopped. Lost gradients count 0; a lost sum leaves its
    parameters as they were, here for good: replicas differ.

    Priorities: front layers are urgent (their class is the call's priority). Packets of front layers, and those with
    small gradients, are dropped first by a queue that fills (a low threshold; the paper does it with ECN-incapable
    packets under RED), others are kept, and what the receiver asks for is (ours: while others fill the queue it would
    never come). Within a transfer large gradients leave first, so that a stop cuts off the
    small ones (ours: the paper leaves the order to its load balancing; in order, a stop would always cut off the same
    parameters).
    """

    def __init__(self, options: MltOptions) -> None:
        self.options = options
        self.divide = options.divide or "workers"

    def plan(self, sending: Sending) -> SendPlan:
        """See `Rule`."""
        blocks = sending.blocks
        unreliable = np.zeros(blocks, np.bool_)
        if not self.options.priorities:
            return SendPlan(unreliable, np.arange(blocks), BEST_EFFORT, probes=True)
        magnitudes = sending.magnitudes()
        droppable = magnitudes < np.median(magnitudes) if sending.priority > 0 else np.ones(blocks, np.bool_)
        order = np.argsort(-magnitudes, kind="stable")
        return SendPlan(unreliable, order, class_of(sending.priority), droppable, probes=True)

    def close(self, stage: CallStage, rtt_ns: Sequence[int], now_ns: int) -> int | None:
        """See `Rule`."""
        for transfer in stage.incoming:
            if transfer.share >= 1 - self.options.tolerance:
                transfer.closed = True
        return None


@dataclass(frozen=True)
class DgtOptions(BoundedOptions):
    """share: of blocks by contribution, how many are reliable: 0.8 in the paper, 0.5 in GeoMX (DMLC_K). channels: of
    the others, each less urgent than the one before. memory: the weight of the old contribution. block_bytes, 4096 in
    the paper, are a packet's here: with larger ones one lost packet would lose several."""

    share: float = 0.8
    channels: int = 7
    memory: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.share <= 1 or not 1 <= self.channels <= 7 or not 0 <= self.memory < 1:
            raise ValueError("share: 0 to 1; channels: 1 to 7; memory: 0 or more, less than 1")


class Dgt(Exact):
    """DGT (Zhou et al., Differential Gradient Transmission, JPDC 2021; GeoMX kv_app.h).

    Each block's contribution is c = 0.3 c + 0.7 mean |g|, over iterations. The top share of the blocks, and the last,
    travel reliably in channel 0; the others once only, in channels 1 to C, sorted by contribution, whose type of
    service falls with the number (GeoMX: TOS (C - channel) 32). The last reliable block follows all others: when it and
    all reliable ones are there, what is missing counts 0. Gradients alone travel so: sums come back reliably. A queue
    that fills may drop packets that are sent once first (ours: the paper leaves it to the type of service).
    """

    def __init__(self, options: DgtOptions) -> None:
        self.options = options
        self.divide = options.divide or "workers"
        self._contributions: dict[object, NDArray[np.float64]] = {}

    def plan(self, sending: Sending) -> SendPlan:
        """See `Rule`."""
        if sending.stage:
            return all_reliable(sending.blocks, BEST_EFFORT - self.options.channels)
        blocks, memory = sending.blocks, self.options.memory
        now = sending.magnitudes()
        before = None if sending.name is None else self._contributions.get(sending.name)
        scores = now if before is None or len(before) != blocks else memory * before + (1 - memory) * now
        if sending.name is not None:
            self._contributions[sending.name] = scores
        ranked = np.argsort(-scores[:-1], kind="stable")  # the last block is reliable anyway, and leaves last
        reliable = np.zeros(blocks, np.bool_)
        top = round(self.options.share * len(ranked))
        reliable[ranked[:top]] = True
        reliable[-1] = True
        classes = np.full(blocks, BEST_EFFORT - self.options.channels)
        lower = ranked[top:]
        if len(lower):
            classes[lower] += 1 + np.arange(len(lower)) * self.options.channels // len(lower)
        classes[-1] = BEST_EFFORT  # nothing that it closes for is overtaken by it
        return SendPlan(reliable, np.append(ranked, blocks - 1), classes, ~reliable)

    def close(self, stage: CallStage, rtt_ns: Sequence[int], now_ns: int) -> int | None:
        """See `Rule`."""
        for transfer in stage.incoming:
            if transfer.begun_ns is not None and not transfer.reliable_left:
                transfer.closed = True
        return None


@dataclass(frozen=True)
class LtpOptions(BoundedOptions):
    """share: of a transfer's bytes that is enough once it has lasted the threshold. extra_ns: from there to the
    deadline, at which it is closed anyhow. (80 % and 30 ms: unverified.) early_close: ablation."""

    share: float = 0.8
    extra_ns: int = 30_000_000
    early_close: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.share <= 1 or self.extra_ns < 0:
            raise ValueError("share: 0 to 1; extra_ns: 0 or more")


class Ltp(Exact):
    """LTP (Chen et al., Boosting Distributed Machine Learning Training Through Loss-tolerant Transmission Protocol,
    arXiv 2305.04279).

    Gather only, from the workers to who sums. Critical packets (the first and the last of a transfer: the paper's carry
    what delimits tensors) are reliable; another that is lost is sent again after all others. Acknowledgements are out
    of order, as everything's here. A transfer is closed when it is full; when the threshold has passed since its first
    packet, 1.5 RTT + size / bandwidth, and enough of it is there; or at the deadline; never without its critical
    packets. Gaps are padded with zeros. Sums come back reliably, so replicas stay identical.

    RTT: the least that was measured; bandwidth: the most that a transfer from that sender had, of the last ten (the
    paper takes both from its BBR-like congestion control, which this lacks).
    """

    def __init__(self, options: LtpOptions) -> None:
        self.options = options
        self.divide = options.divide or "workers"
        self._rates: dict[int, list[float]] = {}  # by sender, in blocks per ns

    def plan(self, sending: Sending) -> SendPlan:
        """See `Rule`."""
        if sending.stage:
            return all_reliable(sending.blocks)
        critical = np.zeros(sending.blocks, np.bool_)
        critical[[0, -1]] = True
        return SendPlan(critical, np.arange(sending.blocks), BEST_EFFORT, repeats=True)

    def close(self, stage: CallStage, rtt_ns: Sequence[int], now_ns: int) -> int | None:
        """See `Rule`."""
        if stage.number or not self.options.early_close:
            return None
        again = []
        for transfer, rtt in zip(stage.incoming, rtt_ns, strict=True):
            rates = self._rates.get(transfer.sender)
            if transfer.closed or transfer.begun_ns is None or not rates:
                continue
            threshold_ns = transfer.begun_ns + round(1.5 * rtt + transfer.blocks / max(rates))
            deadline_ns = threshold_ns + self.options.extra_ns
            if transfer.reliable_left:
                continue
            if now_ns >= deadline_ns or (now_ns >= threshold_ns and transfer.share >= self.options.share):
                transfer.closed = True
            else:
                again.append(threshold_ns if now_ns < threshold_ns else deadline_ns)
        return min(again, default=None)

    def ended(self, stage: CallStage, now_ns: int) -> None:
        """See `Rule`."""
        if stage.number:
            return
        for transfer in stage.incoming:
            if transfer.begun_ns is not None and transfer.last_ns > transfer.begun_ns and transfer.arrived_blocks >= 8:
                rates = self._rates.setdefault(transfer.sender, [])
                rates.append((transfer.arrived_blocks - 1) / (transfer.last_ns - transfer.begun_ns))
                del rates[:-10]
