"""Priority classes: what they look like on the wire, and which stream a call takes."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchagg.calls.member_calls import StreamTurns
from switchagg.priority import (
    BEST_EFFORT,
    CLASSES,
    class_of,
    class_of_tos,
    dscp_of,
    marks,
    socket_priority_of,
    socket_priority_of_tos,
    spread,
    tos_of,
)


def test_w10_classes_are_the_class_selectors() -> None:
    assert [dscp_of(kind) for kind in range(CLASSES)] == [56, 48, 40, 32, 24, 16, 8, 0]
    assert [socket_priority_of(kind) for kind in range(CLASSES)] == [6, 6, 5, 4, 3, 2, 1, 0]
    assert [tos_of(kind) >> 5 for kind in range(CLASSES)] == [7, 6, 5, 4, 3, 2, 1, 0]  # as sa_class of queue.h reads it


@given(st.integers(0, CLASSES - 1), st.integers(0, 255))
def test_w10_the_class_comes_back_from_the_byte_and_ecn_stays(kind: int, tos: int) -> None:
    marked = tos_of(kind, tos)
    assert marked & 3 == tos & 3
    if kind == BEST_EFFORT:
        assert marked == tos
    else:
        assert class_of_tos(marked) == kind
        assert socket_priority_of_tos(marked) == socket_priority_of(kind)


def test_priorities_beyond_the_classes_are_clamped() -> None:
    assert [class_of(priority) for priority in (-5, 0, 3, 7, 8, 1 << 30)] == [0, 0, 3, 7, 7, 7]


def test_nothing_is_marked_where_all_is_best_effort() -> None:
    assert marks([7, 7, 9]) == ()
    assert marks([0, 7, 3], tos=0x29) == (0xE1, 0x29, 0x81)


@given(st.integers(1, 200), st.lists(st.integers(0, 7), min_size=1))
def test_priorities_are_spread_over_the_available_classes(places: int, classes: list[int]) -> None:
    given_out = [spread(place, places, classes) for place in range(places)]
    assert given_out == sorted(given_out)
    assert given_out[0] == min(classes)
    if places >= len(set(classes)):
        assert set(given_out) == set(classes)
        counts = [given_out.count(kind) for kind in set(classes)]
        assert max(counts) - min(counts) <= 1


def test_w11_streams_of_a_class_are_used_round_robin() -> None:
    turns = StreamTurns([7, 0, 7, 3])
    assert turns.classes == (0, 3, 7)
    assert [turns.take() for _ in range(3)] == [0, 2, 0]
    assert [turns.take(0), turns.take(3), turns.take(0)] == [1, 3, 1]
    assert turns.take() == 2
    assert turns.take(stream=2) == 2  # a stream that is named takes its class's turn
    assert turns.take(7) == 2
    assert turns.take(priority=3, stream=3) == 3


def test_an_unknown_class_or_stream_is_refused_and_changes_nothing() -> None:
    turns = StreamTurns([0, 7])
    with pytest.raises(ValueError, match=r"priority 3: no stream has this class; the job's classes: 0, 7"):
        turns.take(3)
    with pytest.raises(ValueError, match="stream 2: the job has 2"):
        turns.take(stream=2)
    with pytest.raises(ValueError, match="priority 0: stream 1 has class 7"):
        turns.take(priority=0, stream=1)
    assert (turns.take(0), turns.take()) == (0, 1)


@given(st.lists(st.integers(0, 7), min_size=1, max_size=8), st.data())
def test_w11_ranks_agree_on_streams_whatever_order_they_mix_the_classes_in(
    priorities: list[int], data: st.DataObject
) -> None:
    classes = sorted(set(priorities))
    calls = [(kind, number) for kind in classes for number in range(data.draw(st.integers(0, 6)))]

    def streams_of(order: random.Random) -> dict[tuple[int, int], int]:
        turns = StreamTurns(priorities)
        left = {kind: [call for call in calls if call[0] == kind] for kind in classes}
        taken = {}
        while any(left.values()):
            kind = order.choice([kind for kind in classes if left[kind]])
            taken[left[kind].pop(0)] = turns.take(kind)
        return taken

    one, other = (streams_of(random.Random(data.draw(st.integers(0, 99)))) for _ in range(2))
    assert one == other
