"""TCP in virtual time: windows by the RFCs' formulas, losses found and mended, links filled and shared as published."""

from itertools import pairwise

import pytest

from emulation.sim.traffic.congestion_control import Acked, Reno
from emulation.sim.traffic.cubic import BETA, C, Cubic
from emulation.sim.traffic.receiver import DELAYED_NS, QUICK_SEGMENTS, TcpReceiver
from emulation.sim.traffic.segments import Ranges, TransportSegment
from tests.emulation.sim.dumbbell import Dumbbell

GOODPUT_MOST = 20_000_000 * 1448 / 1514
MS = 1_000_000


def acked(now_ns: int, count: int, window: float) -> Acked:
    return Acked(now_ns, count, 0, 0, int(window), int(window) - count, rtt_ns=100 * MS)


def grown(control, seconds: float) -> list[tuple[float, float]]:
    """(time, window) once a round trip of 100 ms, every second segment acknowledged."""
    curve = []
    for step in range(int(seconds * 10)):
        start_ns, window = step * 100 * MS, control.window
        curve.append((step / 10, window))
        acks = int(window) // 2
        for each in range(acks):
            control.on_ack(acked(start_ns + (each + 1) * 100 * MS // acks, 2, control.window))
    return curve


def test_cubic_follows_the_curve_of_rfc_9438_where_it_is_above_reno():
    cubic = Cubic(hystart=False)
    cubic.window = 1000.0
    cubic.on_congestion(0, 1000)
    cubic.window = cubic.threshold
    assert cubic.window == 1000 * BETA
    k = (1000 * (1 - BETA) / C) ** (1 / 3)
    curve = grown(cubic, 14)
    for seconds, window in curve[2:]:
        assert window == pytest.approx(C * (seconds - k) ** 3 + 1000, rel=0.02), f"at {seconds} s, K = {k:.2f} s"
    assert curve[-1][1] > 1000 > curve[int(k * 10) - 1][1]  # concave up to K, then convex


def test_cubic_of_a_small_window_grows_as_reno_would_with_its_factor():
    cubic = Cubic(hystart=False)
    cubic.window = 20.0
    cubic.on_congestion(0, 20)
    cubic.window = cubic.threshold
    curve = grown(cubic, 2)
    alpha = 3 * (1 - BETA) / (1 + BETA)
    assert curve[10][1] == pytest.approx(14 + 10 * alpha, rel=0.06)


def test_fast_convergence_remembers_less_than_it_had():
    cubic = Cubic()
    for window, most in ((100.0, 100.0), (80.0, 80 * (1 + BETA) / 2)):
        cubic.window = window
        cubic.on_congestion(0, int(window))
        assert cubic._most == most


def test_reno_adds_a_segment_a_round_trip_and_halves():
    reno = Reno()
    reno.window, reno.threshold = 50.0, 50.0
    assert grown(reno, 2)[10][1] == pytest.approx(60, abs=0.5)
    reno.on_congestion(0, 0)
    assert reno.threshold == reno.window / 2


@pytest.mark.parametrize("kind", ["cubic", "reno", "bbr"])
def test_alone_it_fills_the_link(kind):
    link = Dumbbell([kind], queue_bytes=60_000)
    (goodput,) = link.goodputs(4, skipped=1)
    assert goodput >= 0.95 * GOODPUT_MOST


@pytest.mark.parametrize("kinds", [["cubic", "cubic"], ["bbr", "bbr"], ["cubic", "reno"]])
def test_two_share_evenly(kinds):
    shares = Dumbbell(kinds).goodputs(8, skipped=4)
    assert sum(shares) ** 2 / (2 * sum(share**2 for share in shares)) >= 0.95
    assert sum(shares) >= 0.95 * GOODPUT_MOST


def test_bbr_takes_more_than_cubic_from_a_short_queue_and_less_from_a_long_one():
    """As published (Hock 2017; Ware 2019): cubic fills a queue of many bandwidth-delay products, bbr keeps to two."""
    cubic, bbr = Dumbbell(["cubic", "bbr"], rate_bps=10_000_000, queue_bytes=8_000).goodputs(6, skipped=2)
    assert bbr > 3 * cubic
    cubic, bbr = Dumbbell(["cubic", "bbr"], rate_bps=10_000_000, queue_bytes=200_000).goodputs(6, skipped=2)
    assert cubic > 3 * bbr


def test_marks_reduce_windows_and_nothing_is_lost():
    link = Dumbbell(["cubic", "cubic"], queue_bytes=200_000, mark_bytes=30_000)
    shares = link.goodputs(4, skipped=2)
    for one in link.connections:
        assert one.sender.counters["marks"]
        assert one.sender.counters["reductions"]
        assert not one.sender.counters["retransmitted"]
    assert link.slow.faults["drop_queue"] == 0
    assert min(shares) >= 0.3 * sum(shares) >= 0.3 * 0.9 * GOODPUT_MOST


@pytest.mark.parametrize(
    ("lost", "timeouts"),
    [({20}, 0), ({20, 21, 25, 40}, 0), (set(range(18, 30)), 0), ({99}, 0), ({98, 99}, 0), (set(range(60, 100)), 1)],
    ids=["one", "several", "many in a row", "the last", "the last two", "all of a tail"],
)
def test_what_is_lost_is_sent_again_and_nothing_else(lost, timeouts):
    link = Dumbbell(["reno"], queue_bytes=1_000_000)
    (one,) = link.connections
    link.slow.lose = set(lost)
    one.write(100)
    link.run(3)
    assert one.sender.done
    assert one.receiver.received == 100
    assert one.sender.counters["timeouts"] <= timeouts
    assert one.sender.counters["retransmitted"] - len(lost) in (0, 1)  # a probe may repeat what had arrived


def test_a_timeout_takes_its_floor_and_doubles():
    link = Dumbbell(["reno"])
    (one,) = link.connections
    link.run(0.1)
    link.slow.send = lambda *_: False
    times = []
    one._forward.send = lambda *_: times.append(link.network.now_ns) or True
    one.write(1)
    link.run(4)
    gaps = [(later - earlier) / 1e6 for earlier, later in pairwise(times)]
    assert 200 <= gaps[0] < 260  # the tail's probe, which waits for a delayed acknowledgement
    assert 200 <= gaps[1] < 260
    for shorter, longer in pairwise(gaps[1:]):
        assert longer == pytest.approx(2 * shorter, rel=0.01)


def test_acknowledgements_are_delayed_in_order_and_at_once_beyond_a_gap():
    receiver, answers = TcpReceiver(0), []
    for number in [*range(QUICK_SEGMENTS + 4), 25, 26, 22]:
        answers.append(receiver.receive(TransportSegment(0, number, 1448), False, number))
    assert all(answers[:QUICK_SEGMENTS])
    late = [bool(each) for each in answers[QUICK_SEGMENTS:]]
    assert late == [False, True, False, True, True, True, True]
    assert (answers[-1].upto, answers[-1].blocks) == (20, ((22, 23), (25, 27)))
    whole = TcpReceiver(0)
    for number in range(QUICK_SEGMENTS + 1):
        whole.receive(TransportSegment(0, number, 1448), False, 0)
    assert whole.handle_timer(DELAYED_NS - 1) is None
    assert whole.handle_timer(DELAYED_NS).upto == QUICK_SEGMENTS + 1


def test_a_mark_is_echoed_until_the_sender_says_that_it_reduced():
    receiver = TcpReceiver(0)
    echoed = []
    for number, marked, cwr in (
        (0, False, False),
        (1, True, False),
        (2, False, False),
        (3, False, True),
        (4, True, True),
    ):
        segment = TransportSegment(0, number, 1448)
        segment.cwr = cwr
        echoed.append(receiver.receive(segment, marked, 0).ece)
    assert echoed == [False, True, True, False, True]


def test_ranges_tell_what_is_new():
    ranges = Ranges()
    assert [ranges.add(10, 12), ranges.add(14, 16)] == [[(10, 12)], [(14, 16)]]
    assert ranges.add(9, 17) == [(9, 10), (12, 14), (16, 17)]
    assert ranges.add(17, 18) == [(17, 18)]
    assert ranges.ranges == [(9, 18)]
    assert ranges.cut(9) == 18
    assert not ranges
