"""The ledger of calls in progress: numbers by stream, and what a departure ends."""

from switchagg.calls.member_calls import CallLedger


def test_calls_are_numbered_on_each_stream() -> None:
    ledger = CallLedger([0, 7])
    assert [ledger.begin(priority) for priority in (7, 0, 7, None)] == [[(1, 0)], [(0, 0)], [(1, 1)], [(1, 2)]]
    assert ledger.finished() == [0, 0]
    ledger.finish((1, 1))
    assert ledger.finished() == [0, 0]  # its first is still under way
    ledger.finish((1, 0))
    ledger.finish((0, 0))
    assert ledger.finished() == [1, 2]
    assert bool(ledger)
    ledger.finish((1, 2))
    assert not ledger


def test_w11_a_split_call_takes_no_turn_and_its_parts_count() -> None:
    ledger = CallLedger([7, 0, 7])
    assert ledger.begin() == [(0, 0)]
    parts = ledger.begin(split=(0, 2))
    assert (parts, ledger.calls_before(parts)) == ([(0, 1), (2, 0)], 1)
    after = ledger.begin()
    assert (after, ledger.calls_before(after)) == ([(2, 1)], 3)


def test_c7_a_departure_ends_the_calls_its_member_did_not_finish_in_whatever_order_they_were_made() -> None:
    ledger = CallLedger([0, 7])
    ledger.begin(7)
    ledger.begin(0)
    assert not ledger.waits_for([1, 1], late=True)
    assert ledger.waits_for([1, 0], late=True)
    assert ledger.waits_for([0, 1], late=True)
    assert not ledger.waits_for([0, 1], late=False)  # the call on stream 1 may still be on its way
    assert ledger.waits_for([0, 0], late=False)
    assert ledger.waits_for([], late=False)  # a member that says nothing has finished nothing
    ledger.finish((1, 0))
    assert ledger.waits_for([0, 1], late=False)


def test_c7_at_first_all_calls_must_wait_for_the_departed_rank_and_later_any() -> None:
    ledger = CallLedger([7])
    ledger.begin()
    ledger.begin()
    assert not ledger.waits_for([1], late=False)
    assert ledger.waits_for([1], late=True)
    assert not CallLedger([7]).waits_for([0], late=True)
