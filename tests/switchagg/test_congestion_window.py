"""How much of a window may be in flight: G6, against exact fractions, and what it must never do."""

import random
from fractions import Fraction

import pytest

from switchagg.job import DCTCP, FRIENDLY, RENO
from switchagg.pacing import LEAST_ALPHA, UNITY, CongestionWindow


def drawn_marks(seed: int, results: int = 3000) -> list[bool]:
    rng = random.Random(seed)
    share, marks = 0.0, []
    for _ in range(results):
        if rng.random() < 0.01:
            share = rng.choice([0, 0, 0.01, 0.1, 0.5, 1])
        marks.append(rng.random() < share)
    return marks


@pytest.mark.parametrize("slots", [1, 2, 7, 256, 65_536])
def test_without_marks_all_slots_are_in_use(slots: int) -> None:
    window = CongestionWindow(slots)
    for results in (1, slots, 3 * slots + 1):
        window.unmarked(results)
        assert window.chunks == slots


@pytest.mark.parametrize("least", [LEAST_ALPHA[DCTCP], LEAST_ALPHA[FRIENDLY]])
@pytest.mark.parametrize("number", range(6))
def test_it_is_the_documented_rule_rounded_down(number: int, least: int) -> None:
    slots = random.Random(number).choice([1, 3, 16, 256])
    made, w, a = CongestionWindow(slots, least), Fraction(slots), Fraction(1)
    length, results, marks, hold = 0, 0, 0, 0
    for marked in drawn_marks(number):
        made.marked() if marked else made.unmarked(1)
        hold = max(0, hold - 1)
        if marked and not hold:
            hold = int(w)
            w = max(Fraction(1), w - Fraction(int(w * a / 2 * UNITY), UNITY))
            length = length or int(w)
        if length:
            results, marks = results + 1, marks + marked
        if length and results == length:
            a = a - Fraction(int(a * UNITY) // 16, UNITY) + Fraction((marks << 16) // results // 16, UNITY)
            a = max(a, Fraction(least, UNITY))
            growth = Fraction(int(3 * a / (4 - a) * UNITY), UNITY) if least else 1
            w = min(w + growth, Fraction(slots)) if not marks else w
            length, results, marks = int(w), 0, 0
        assert made.chunks == int(w)
        assert 1 <= made.chunks <= slots
        assert made.alpha == a * UNITY


def test_results_without_marks_may_be_counted_together() -> None:
    marks = drawn_marks(5)
    one, many, waiting = CongestionWindow(100), CongestionWindow(100), 0
    for marked in marks:
        one.marked() if marked else one.unmarked(1)
        if not marked:
            waiting += 1
            continue
        many.unmarked(waiting)
        many.marked()
        waiting = 0
        assert (many.chunks, many.alpha) == (one.chunks, one.alpha)


def test_a_window_is_cut_once_for_what_was_in_flight() -> None:
    window = CongestionWindow(64)
    window.marked()
    assert window.chunks == 32  # alpha is 1 at first
    for _ in range(63):
        window.marked()
        assert window.chunks == 32
    window.marked()
    assert window.chunks < 32


def test_the_estimate_converges_to_the_marked_part_and_the_window_comes_back() -> None:
    window = CongestionWindow(16)
    for result in range(16_000):
        window.marked() if result % 4 == 0 else window.unmarked(1)
    assert window.chunks < 16
    assert abs(window.alpha / UNITY - 0.25) < 0.1
    window.unmarked(16 * 16)
    assert window.chunks == 16


def test_reno_halves_once_a_window_however_many_are_marked() -> None:
    window = CongestionWindow(64, LEAST_ALPHA[RENO])
    for _ in range(640):  # until DCTCP's estimate would be next to nothing
        window.unmarked(1)
    window.marked()
    assert (window.chunks, window.alpha) == (32, UNITY)
    for _ in range(63):
        window.marked()
    assert window.chunks == 32
    window.marked()
    assert window.chunks == 16


def test_a_friendly_window_is_cut_to_0_8_and_grows_by_a_third() -> None:
    """AIMD that is fair to Reno's (Floyd, Handley and Padhye, 2000): a cut of b, and 3b/(2 - b) for each round."""
    window = CongestionWindow(64, LEAST_ALPHA[FRIENDLY])
    window.marked()
    assert window.chunks == 32  # what the first mark says is strong is unknown yet
    for _ in range(128):
        window.unmarked(64)
    assert window.chunks == 64
    window.marked()
    assert window.chunks == 51
    rounds = 0
    while window.chunks < 64:
        window.unmarked(window.chunks)
        rounds += 1
    assert rounds == 40  # 64 / 5 chunks, a third of one in each but the first, which has the mark
