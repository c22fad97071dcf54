"""Options of impairments: their meaning, and one clear line for invalid ones."""

import pytest

from switchagg.errors import JobError
from transport.switch.impairments import Impairments, LinkImpairments, parse_impairments


def test_options_have_units() -> None:
    words = (
        "loss=0.01, duplicate=2%,reorder=0,corrupt=1,delay=1ms,jitter=100us,span=1.5ms,rate=200mbit,queue=1mb,ecn=200kb"
    )
    link = LinkImpairments(0.01, 0.02, 0.0, 1.0, 1_000_000, 100_000, 200_000_000, 1_000_000, 200_000, span_ns=1_500_000)
    assert parse_impairments(words + ",seed=7") == Impairments(link, link, 7)
    assert parse_impairments("") == Impairments()


def test_options_of_one_direction_add_to_or_override_those_of_both() -> None:
    parsed = parse_impairments("delay=1ms,seed=3", up="loss=1%", down="delay=2ms")
    assert parsed == Impairments(LinkImpairments(loss=0.01, delay_ns=10**6), LinkImpairments(delay_ns=2 * 10**6), 3)
    assert str(parsed) == "up loss=0.01 delay_ns=1000000; down delay_ns=2000000"
    assert str(Impairments()) == "none"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("los=0.1", "'los=0.1' not understood; allowed: loss=0.01 or 1%, duplicate="),
        ("delay=1", "'delay=1' not understood; allowed: delay=1ms (units: ns, us, µs, ms, s)"),
        ("delay", "'delay' not understood; allowed: delay=1ms"),
        ("loss=-1", "'loss=-1' not understood; allowed: loss=0.01 or 1%"),
        ("rate=200mb", "'rate=200mb' not understood; allowed: rate=200mbit (units: bit, kbit, mbit, gbit)"),
        ("loss=1,loss=1", "loss is given twice"),
        ("loss=1.5", "loss 1.5: a probability per packet, 0 to 1"),
        ("loss=120%", "loss 1.2: a probability per packet, 0 to 1"),
        ("delay=11s", "delay 11000000000: allowed 0 to 10000000000 ns"),
        ("rate=5bit", "rate 5: allowed 1000 to 400000000000 bit/s"),
        ("queue=1b", "queue 1: allowed 100 to 1073741824 bytes"),
        ("seed=99999999999999999999", "seed 99999999999999999999: allowed 0 to 18446744073709551615"),
    ],
)
def test_invalid_options_are_reported_in_one_line(words: str, line: str) -> None:
    with pytest.raises(JobError) as caught:
        parse_impairments(words)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_a_seed_holds_for_both_directions() -> None:
    with pytest.raises(JobError, match="both directions, not with up"):
        parse_impairments(up="seed=3")


def test_reordered_packets_are_late_by_eight_full_frames() -> None:
    assert LinkImpairments(rate_bps=100_000_000).held_back_ns == 8 * 1514 * 80
    assert LinkImpairments().held_back_ns == 8 * 1514 * 8
    assert LinkImpairments(span_ns=5, rate_bps=10**6).held_back_ns == 5
