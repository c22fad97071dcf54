"""The division of a switch's slots among jobs: weighted max-min, checked against its definition."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchagg.controller.slot_shares import SlotDemand, first_come, max_min

demands = st.lists(
    st.builds(
        SlotDemand,
        slots=st.integers(0, 60),
        weight=st.integers(1, 9),
        priority=st.integers(0, 2),
        least=st.integers(1, 5),
        quota=st.none() | st.integers(0, 40),
    ),
    max_size=8,
)


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 200), demands)
def test_no_slot_is_idle_or_unwanted_and_none_can_gain_but_from_one_with_less(
    slots: int, demands: list[SlotDemand]
) -> None:
    shares = max_min(slots, demands)
    assert sum(shares) <= slots
    assert all(
        share == 0 or demand.least <= share <= demand.most for share, demand in zip(shares, demands, strict=True)
    )
    left = slots - sum(shares)
    for gains, demand in zip(shares, demands, strict=True):
        if gains == demand.most:
            continue
        # who wants more finds no slot idle, unless they are too few to begin with
        assert left == 0 if gains else left < demand.least
        for loses, other in zip(shares, demands, strict=True):
            if loses <= other.least or not gains or demand is other:
                continue
            if other.priority == demand.priority:  # a slot of one with more for its weight would have been its
                assert (gains + 1) * other.weight >= loses * demand.weight
            assert other.priority <= demand.priority, "a later class is served only by what is left over"


@pytest.mark.parametrize(
    ("slots", "given_demands", "found"),
    [
        (60, [(99, 1), (99, 2), (99, 4), (99, 8)], [4, 8, 16, 32]),
        (60, [(99, 1)] * 4, [15] * 4),
        (60, [(5, 1), (99, 1), (99, 1)], [5, 28, 27]),
        (10, [(4, 1), (4, 1)], [4, 4]),
    ],
)
def test_shares_are_in_proportion_to_weights(
    slots: int, given_demands: list[tuple[int, int]], found: list[int]
) -> None:
    assert max_min(slots, [SlotDemand(most, weight) for most, weight in given_demands]) == found


def test_an_earlier_class_is_served_first_within_its_quota() -> None:
    urgent, other = SlotDemand(99, quota=30), SlotDemand(99, priority=1, least=8)
    assert max_min(40, [other, urgent]) == [10, 30]
    assert max_min(36, [other, urgent]) == [0, 30], "less than its least would be of no use"


def test_first_come_first_served_leaves_the_last_without_any() -> None:
    assert first_come(60, [SlotDemand(25)] * 4) == [25, 25, 10, 0]


def test_a_weight_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="weight must be at least 1, not 0"):
        SlotDemand(10, weight=0)
