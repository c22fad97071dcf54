"""The rules of the papers, on numbers worked out by hand."""

import numpy as np
import pytest

from switchagg.priority import BEST_EFFORT
from transport.bounded.optireduce import OptiReduce, OptiReduceOptions
from transport.bounded.rules import CallStage, Dgt, DgtOptions, Ltp, LtpOptions, Mlt, MltOptions, Sending
from transport.bounded.transfers import IncomingTransfer, turned

EACH = 4  # values of a block


def sending(values: list[float], *, stage: int = 0, index: int = 0, priority: int = 1) -> Sending:
    return Sending("layer", np.array(values, np.float32), stage, len(values), index, priority, EACH)


def blocks(*means: float) -> list[float]:
    return [mean for mean in means for _ in range(EACH)]


def incoming(sender: int, arrived: int, of: int = 10, *, begun_ns: int = 0, last_ns: int = 0) -> IncomingTransfer:
    one = IncomingTransfer(sender, of * EACH, EACH * 4)
    one.begun_ns, one.last_ns, one.arrived_blocks, one.reliable_left = begun_ns, last_ns, arrived, 0
    return one


def test_mlt_orders_by_magnitude_drops_front_and_small_first_and_closes_at_the_tolerance() -> None:
    rule = Mlt(MltOptions(tolerance=0.1))
    plan = rule.plan(sending(blocks(1, -4, 3, 2), priority=3))
    assert plan.order.tolist() == [1, 2, 3, 0]
    assert plan.droppable is not None
    assert plan.droppable.tolist() == [True, False, False, True]
    assert plan.classes == 3
    front = rule.plan(sending(blocks(1, 4), priority=0))
    assert front.droppable is not None
    assert front.droppable.all()
    plain = Mlt(MltOptions(priorities=False)).plan(sending(blocks(1, 4), priority=0))
    assert (plain.order.tolist(), plain.droppable, plain.classes) == ([0, 1], None, BEST_EFFORT)
    below, enough = incoming(1, 8), incoming(2, 9)
    rule.close(CallStage(0, 40, 0, 0, [below, enough]), [0, 0], 5)
    assert (below.closed, enough.closed) == (False, True)


def test_dgt_ranks_by_contributions_that_remember_and_its_last_block_closes() -> None:
    rule = Dgt(DgtOptions(share=0.5, channels=2))
    first = rule.plan(sending(blocks(1, 5, 3, 4, 9)))
    assert first.order.tolist() == [1, 3, 2, 0, 4]
    assert first.reliable.tolist() == [False, True, False, True, True]
    assert first.classes.tolist() == [7, 5, 6, 5, 7]  # type: ignore[union-attr]
    assert first.droppable is not None
    assert first.droppable.tolist() == [True, False, True, False, False]
    second = rule.plan(sending(blocks(4, 0, 3, 4, 0)))  # 0.3 c + 0.7 mean: 3.1, 1.5, 3, 4
    assert second.order.tolist() == [3, 0, 2, 1, 4]
    assert rule.plan(sending(blocks(1, 2), stage=1)).reliable.all()
    for share, reliable in ((1.0, 5), (0.0, 1)):
        plan = Dgt(DgtOptions(share=share)).plan(sending(blocks(1, 5, 3, 4, 9)))
        assert plan.reliable.sum() == reliable
    waits, ends = incoming(1, 9), incoming(2, 5)
    waits.reliable_left = 1
    rule.close(CallStage(0, 40, 0, 0, [waits, ends]), [0, 0], 5)
    assert (waits.closed, ends.closed) == (False, True)


def test_ltp_waits_for_the_threshold_and_enough_or_for_the_deadline_and_critical_packets() -> None:
    rule = Ltp(LtpOptions(share=0.8, extra_ns=500))
    plan = rule.plan(sending(blocks(1, 2, 3, 4)))
    assert plan.reliable.tolist() == [True, False, False, True]
    assert plan.repeats
    rule.ended(CallStage(0, 44, 0, 0, [incoming(1, 11, 11, begun_ns=0, last_ns=1000)]), 1000)  # 1 block in 100 ns

    def at(now_ns: int, arrived: int, critical_left: int = 0) -> tuple[bool, int | None]:
        one = incoming(1, arrived, begun_ns=2000)
        one.reliable_left = critical_left
        again = rule.close(CallStage(0, 40, 0, 0, [one]), [200], now_ns)
        return one.closed, again

    threshold_ns = 2000 + 300 + 1000  # 1.5 RTT + size / bandwidth
    assert at(threshold_ns - 1, 9) == (False, threshold_ns)
    assert at(threshold_ns, 8) == (True, None)
    assert at(threshold_ns, 7) == (False, threshold_ns + 500)
    assert at(threshold_ns + 500, 7) == (True, None)
    assert at(threshold_ns + 500, 7, critical_left=1) == (False, None)
    unknown_sender = incoming(2, 9, begun_ns=0)
    assert rule.close(CallStage(0, 40, 0, 0, [unknown_sender]), [200], 10**12) is None
    assert not unknown_sender.closed, "nothing was measured of it"
    assert rule.plan(sending(blocks(1, 2, 3), stage=1)).reliable.all()


def measured(**options: object) -> OptiReduce:
    """After 20 reliable runs of 1,000 to 20,000 ns."""
    rule = OptiReduce(OptiReduceOptions(**options), 8)  # type: ignore[arg-type]
    for run in range(20):
        rule.ended(CallStage(0, 40, run, 0, [incoming(1, 10)]), 1000 * (run + 1))
    return rule


def test_optireduce_is_reliable_for_twenty_runs_and_then_bounded_by_their_p95() -> None:
    rule = measured()
    assert rule.plan(sending(blocks(*range(10)), index=19)).reliable.all()
    plan = rule.plan(sending(blocks(*range(10)), index=20))
    assert not plan.reliable.any()
    assert plan.marked == 1
    late = incoming(1, 9, last_ns=500)
    stage = CallStage(0, 40, 20, 0, [late])
    assert rule.close(stage, [0], 600) == 19_050  # np.percentile of 1 … 20 thousand
    assert rule.close(stage, [0], 19_050) is None
    assert late.closed


def test_optireduce_ends_early_after_all_marks_and_waits_longer_while_much_is_lost() -> None:
    rule = measured()
    late = incoming(1, 9, last_ns=5000)
    late.marked = True
    stage = CallStage(0, 40, 20, 0, [late])
    assert rule.close(stage, [0], 5001) == 5000 + 1050  # 10 % of t_C, the median
    assert measured(adaptive=False).close(stage, [0], 5001) == 19_050
    rule.ended(stage, 6050)  # 10 % lost: t_C = 0.95 * 6050 / 0.9 + 0.05 * 10500, and 20 % of it
    usual_ns = 0.95 * round(6050 / 0.9) + 0.05 * 10_500
    assert rule.close(CallStage(0, 40, 21, 0, [late]), [0], 5001) == 5000 + round(usual_ns * 0.2)


def test_optireduce_sends_to_more_at_once_until_something_is_lost_and_rotates_above_two_percent() -> None:
    rule = measured()
    incasts = []
    for number, arrived in enumerate((10, 10, 10, 5, 10)):
        rule.ended(CallStage(0, 40, 20 + number, 0, [incoming(1, arrived)]), 5000)
        incasts.append(rule.together(0))
    assert incasts == [2, 3, 4, 2, 3]
    assert rule.lost_lately == pytest.approx(0.1 * 0.5 * 0.9)
    assert rule.rotates
    assert rule.plan(sending(blocks(1, 2), index=30)).rotated
    assert not measured(hadamard="never").rotates
    assert measured(hadamard="always").rotates


def test_a_rotation_spreads_what_is_lost_and_gives_the_values_back() -> None:
    generator = np.random.default_rng(3)
    values = generator.standard_normal(1000).astype(np.float32)
    values[100] = 100.0
    there = turned(values, back=False)
    assert np.allclose(turned(there, back=True), values, atol=1e-4)
    there[:64] = 0  # a packet
    assert np.abs(turned(there, back=True) - values)[100:101] < 30, "without a rotation the value would be gone"
