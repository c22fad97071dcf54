"""Numbered packets: acknowledged in any order, lost by being overtaken, never by a timeout alone."""

from dataclasses import replace

from transport.bounded.bounded_packets import (
    AHEAD,
    DATA,
    HEADER_BYTES,
    SEEN_BITS,
    BoundedHeader,
    PathConfig,
    PathReceiver,
    PathSender,
    packed,
    unpacked,
)

CONFIG = PathConfig(block_bytes=8, window_bytes=80, ack_every=4, rto_initial_ns=1000, rto_min_ns=100)


def test_a_packet_comes_back_as_it_was_and_rubbish_is_none() -> None:
    place = BoundedHeader(1 << 63, 7, 1, 3, 9, 100, 2, 42, 5000)
    found = unpacked(packed(DATA, 5, 77, 1 << 40, place, b"abcd"))
    assert found is not None
    assert (found.place, found.payload, found.number, found.job, found.flags) == (place, b"abcd", 1 << 40, 77, 5)
    assert unpacked(b"") is unpacked(b"RT" + bytes(60)) is unpacked(packed(DATA, 0, 1, 2, place)[:40]) is None


def test_what_was_overtaken_by_three_is_lost_and_what_came_later_is_not() -> None:
    sender, receiver = PathSender(CONFIG), PathReceiver()
    for thing in "abcdef":
        sender.track(thing, 8, True, 0, 7)
    for number in (0, 2, 3, 5):
        receiver.take(number)
    ack = unpacked(receiver.ack(1))
    assert ack is not None
    assert sender.acknowledged(ack.number, ack.payload, 50) == (["a", "c", "d", "f"], ["b"])
    receiver.take(4)  # held back
    ack = unpacked(receiver.ack(1))
    assert ack is not None
    assert sender.acknowledged(ack.number, ack.payload, 60) == (["e"], [])
    assert not sender.in_flight
    assert sender.rtt_min_ns == 50


def test_more_urgent_packets_overtake_and_pings_do_not() -> None:
    sender, receiver = PathSender(CONFIG), PathReceiver()
    for thing, priority in zip("abcdef", (5, 5, AHEAD, 3, 3, 3), strict=True):
        sender.track(thing, 8, True, 0, priority)
    for number in (3, 4, 5):
        receiver.take(number)
    ack = unpacked(receiver.ack(1))
    assert ack is not None
    assert sender.acknowledged(ack.number, ack.payload, 50) == (["d", "e", "f"], ["c"]), "a and b may be queued"
    number, priority = sender.ping(1000)
    assert priority == 5
    receiver.take(0)
    receiver.take(number)
    ack = unpacked(receiver.ack(1))
    assert ack is not None
    assert sender.acknowledged(ack.number, ack.payload, 1100) == (["a"], ["b"])


def test_a_timeout_repeats_nothing_and_the_acknowledged_ping_shows_what_is_lost() -> None:
    sender, receiver = PathSender(CONFIG), PathReceiver()
    for thing in "ab":
        sender.track(thing, 8, True, 0, 7)
    assert not sender.handle_timer(999)
    assert sender.handle_timer(1000)
    number, _ = sender.ping(1000)
    receiver.take(0)  # it was late, not lost
    assert receiver.take(number), "a gap is acknowledged at once"
    ack = unpacked(receiver.ack(1))
    assert ack is not None
    assert sender.acknowledged(ack.number, ack.payload, 1100) == (["a"], ["b"])
    assert sender.next_deadline_ns() is None


def test_the_window_follows_marks_once_in_a_window_and_comes_back() -> None:
    """Of 20 packets the first mark takes half (G6: a is 1 at first); what was in flight then says nothing new."""
    sender, receiver = PathSender(replace(CONFIG, window_bytes=20 * (8 + HEADER_BYTES))), PathReceiver()

    def flight(marked: bool, now_ns: int) -> int:
        packets = 0
        while sender.has_room:
            number, _ = sender.track(None, 8 + HEADER_BYTES, True, now_ns, 7)
            receiver.take(number, marked)
            packets += 1
        ack = unpacked(receiver.ack(1))
        assert ack is not None
        sender.acknowledged(ack.number, ack.payload, now_ns)
        sender.acknowledged(ack.number, ack.payload, now_ns)  # it came twice
        return packets

    assert [flight(False, 1), flight(True, 2), flight(False, 3)] == [20, 20, 10]
    grown = [flight(False, 4) for _ in range(40)]
    assert grown == sorted(grown)
    assert (grown[0], grown[-1]) == (10, 20)
    for _ in range(60):
        last = flight(True, 1000)
    assert last == 1, "one packet may always leave"


def test_the_window_bounds_what_is_in_flight_and_the_last_packet_asks() -> None:
    sender = PathSender(CONFIG)
    asks = [sender.track(number, 8, number < 9, 0, 7)[1] for number in range(10)]
    assert asks == [False, False, False, True, False, False, False, True, False, True]
    assert not sender.has_room


def test_one_packet_with_a_forged_number_makes_none_look_old() -> None:
    sender, receiver = PathSender(CONFIG), PathReceiver()
    for forged in (1 << 20, 1 << 63, SEEN_BITS):
        receiver.take(forged)
        ack = unpacked(receiver.ack(1))
        assert ack is not None
        assert sender.acknowledged(ack.number, ack.payload, 1) == ([], [])
    for thing in "abc":
        receiver.take(sender.track(thing, 8, True, 0, 7)[0])
        receiver.take(1 << 40)
    ack = unpacked(receiver.ack(1))
    assert ack is not None
    assert sender.acknowledged((1 << 64) - 1, ack.payload, 9) == ([], []), "no such packet has left"
    assert sender.acknowledged(ack.number, ack.payload, 10) == (["a", "b", "c"], [])
    for _ in range(2 * SEEN_BITS):  # lost, all of them
        lost, _ = sender.track("lost", 8, True, 20, 7)
    for number in (lost + 1, lost + 2):
        assert sender.track(number, 8, True, 30, 7)[0] == number
        receiver.take(number)
    ack = unpacked(receiver.ack(1))
    assert ack is not None
    assert sender.acknowledged(ack.number, ack.payload, 40)[0] == [lost + 2]
