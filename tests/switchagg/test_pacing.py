"""The retransmission timeout against RFC 6298, section 2, worked out by hand (W7)."""

import random

from switchagg.pacing import RetransmissionTimeout


def test_the_first_sample_counts_whole_and_later_ones_by_eighths() -> None:
    timeout = RetransmissionTimeout(200_000, 1, 1_000_000)
    assert timeout.rto_ns == 200_000
    timeout.sample(8_000)
    assert (timeout.srtt_ns, timeout.rttvar_ns, timeout.rto_ns) == (8_000, 4_000, 24_000)
    timeout.sample(16_000)  # variation 3/4 of 4000 + 1/4 of 8000; round trip 7/8 of 8000 + 1/8 of 16000
    assert (timeout.srtt_ns, timeout.rttvar_ns, timeout.rto_ns) == (9_000, 5_000, 29_000)


def test_it_stays_within_its_bounds() -> None:
    timeout = RetransmissionTimeout(200_000, 20_000, 100_000)
    timeout.sample(10)
    assert timeout.rto_ns == 20_000
    timeout.sample(10**9)
    assert timeout.rto_ns == 100_000


def test_a_back_off_doubles_until_a_sample_ends_it() -> None:
    timeout = RetransmissionTimeout(200_000, 1, 1_000_000)
    waits = []
    for _ in range(4):
        timeout.back_off()
        waits.append(timeout.rto_ns)
    assert waits == [400_000, 800_000, 1_000_000, 1_000_000]
    timeout.sample(8_000)
    assert timeout.rto_ns == 24_000


def test_it_rounds_down_as_differences_do() -> None:
    """Both users' earlier arithmetic: weighted sums in the window, differences in the ring."""
    chance = random.Random(1)
    timeout = RetransmissionTimeout(1, 1, 1 << 60)
    timeout.sample(1_000_000)
    smoothed, variation = 1_000_000, 500_000
    for _ in range(1000):
        rtt_ns = chance.randrange(1, 10**7)
        timeout.sample(rtt_ns)
        variation += (abs(smoothed - rtt_ns) - variation) // 4
        smoothed += (rtt_ns - smoothed) // 8
        assert (timeout.srtt_ns, timeout.rttvar_ns) == (smoothed, variation)
