"""Reliable messages over a frame-by-frame adversary driven by a seed."""

import heapq
import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchagg.errors import AggregationFailed
from transport.links.framing import RELIABLE_BYTES
from transport.meshes.reliable import ACK, KIND_OFFSET, Message, Receiver, ReliableConfig, Sender

MS = 1_000_000
SMALL = ReliableConfig(segment_bytes=100, window_bytes=2000)


@dataclass(frozen=True)
class Weather:
    """Probabilities per frame; delay_ns is fixed, held-back frames come up to late_ns later."""

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    delay_ns: int = 1 * MS
    late_ns: int = 5 * MS


class Pair:
    """A sender, a receiver, and one virtual time between them (quinn's Pair)."""

    def __init__(self, weather: Weather, seed: int, config: ReliableConfig = SMALL) -> None:
        self.sender = Sender(config, connection=9, job="pair", peer=1)
        self.receiver = Receiver(config, connection=9)
        self.weather = weather
        self.now_ns = 0
        self.received: list[Message] = []
        self.sent: list[bytes] = []
        self.segments_lost = 0
        self._chance = random.Random(seed).random
        self._air: list[tuple[int, int, bytes]] = []
        self._count = 0

    def carry(self, frame: bytes) -> None:
        self.sent.append(frame)
        if self._chance() < self.weather.loss:
            self.segments_lost += frame[KIND_OFFSET] != ACK and len(frame) > RELIABLE_BYTES
            return
        for _ in range(2 if self._chance() < self.weather.duplicate else 1):
            late_ns = int(self._chance() * self.weather.late_ns) if self._chance() < self.weather.reorder else 0
            self._count += 1
            heapq.heappush(self._air, (self.now_ns + self.weather.delay_ns + late_ns, self._count, frame))

    def drain(self) -> None:
        for frame in self.sender.frames_to_send(self.now_ns, 1000) + self.receiver.frames_to_send(self.now_ns):
            self.carry(frame)
        while (message := self.receiver.next_message()) is not None:
            self.received.append(message)

    def drive(self, steps_max: int = 200_000) -> None:
        """Until the sender is idle and the air is empty; bounded."""
        self.drain()
        for _ in range(steps_max):
            times = [self._air[0][0]] if self._air else []
            times += [d for d in (self.sender.next_deadline_ns(), self.receiver.next_deadline_ns()) if d is not None]
            if not times:
                assert self.sender.idle
                return
            self.now_ns = max(self.now_ns, min(times))
            while self._air and self._air[0][0] <= self.now_ns:
                frame = heapq.heappop(self._air)[2]
                (self.sender if frame[KIND_OFFSET] == ACK else self.receiver).receive(frame, self.now_ns)
                self.drain()
            self.sender.handle_timer(self.now_ns)
            self.receiver.handle_timer(self.now_ns)
            self.drain()
        pytest.fail(f"no end after {steps_max} steps")


def messages(seed: int, count: int = 40) -> list[Message]:
    chance = random.Random(seed)
    return [
        Message(chance.randrange(1 << 64), chance.randbytes(chance.choice([0, 1, 99, 100, 101, 1234])))
        for _ in range(count)
    ]


def test_messages_arrive_whole_in_order_and_once_under_any_faults(seed: int) -> None:
    chance = random.Random(f"weather {seed}")
    weather = Weather(
        loss=chance.choice([0, 0.01, 0.1, 0.3]),
        duplicate=chance.choice([0, 0.1, 0.5]),
        reorder=chance.choice([0, 0.1, 1.0]),
    )
    pair = Pair(weather, seed)
    sent = messages(seed)
    for message in sent:
        pair.sender.submit(*message)
    pair.drive()
    assert pair.received == sent


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_any_order_of_delivery_within_the_window(data: st.DataObject) -> None:
    """No time passes: all frames of a window in an order Hypothesis chooses, each one to three times."""
    config = replace(SMALL, window_bytes=20 * 100)
    sender, receiver = Sender(config, 1, "j", 0), Receiver(config, 1)
    body = random.Random(5).randbytes(2000)
    sender.submit(3, body)
    frames = sender.frames_to_send(0, 100)
    assert len(frames) == 20
    order = data.draw(st.permutations([k for k in range(20) for _ in range(data.draw(st.integers(1, 3)))]))
    for index in order:
        receiver.receive(frames[index], 0)
        for ack in receiver.frames_to_send(0):
            sender.receive(ack, 0)
    assert receiver.next_message() == Message(3, body)
    assert receiver.next_message() is None
    assert sender.idle


def test_a_perfect_link_causes_no_retransmission() -> None:
    pair = Pair(Weather(), seed=1)
    for message in messages(1):
        pair.sender.submit(*message)
    pair.drive()
    assert pair.sender.counters["retransmitted"] == 0
    assert pair.sender.counters["timeouts"] == 0
    assert pair.receiver.counters["duplicates"] == 0


def test_sack_repairs_a_loss_within_two_round_trips_and_resends_nothing_else() -> None:
    pair = Pair(Weather(), seed=1, config=replace(SMALL, window_bytes=10_000))
    pair.sender.submit(0, bytes(3000))
    frames = pair.sender.frames_to_send(0, 100)
    for index, frame in enumerate(frames):
        if index != 7:
            pair.carry(frame)
    pair.drive()
    assert pair.received == [Message(0, bytes(3000))]
    assert pair.sender.counters["retransmitted"] == 1
    assert pair.sender.counters["timeouts"] == 0
    assert pair.now_ns < 6 * MS  # a round trip takes 2 ms, the timeout at least 20


def test_a_lost_tail_is_repaired_by_a_probe() -> None:
    pair = Pair(Weather(), seed=1)
    pair.sender.submit(0, bytes(300))
    for frame in pair.sender.frames_to_send(0, 100)[:-1]:
        pair.carry(frame)
    pair.drive()
    assert pair.received == [Message(0, bytes(300))]
    assert pair.sender.counters["timeouts"] == 1
    assert pair.sender.counters["retransmitted"] == 1


def test_the_window_bounds_what_is_in_flight() -> None:
    sender = Sender(SMALL, 1, "j", 0)
    sender.submit(0, bytes(100_000))
    assert len(sender.frames_to_send(0, 1000)) == 20
    assert sender.frames_to_send(0, 1000) == []


def test_the_receiver_refuses_what_is_beyond_the_window() -> None:
    sender = Sender(replace(SMALL, window_bytes=1 << 20), 1, "j", 0)
    sender.submit(0, bytes(100_000))
    receiver = Receiver(SMALL, 1)
    for frame in reversed(sender.frames_to_send(0, 1000)):
        receiver.receive(frame, 0)
    assert receiver.counters["drop_window"] == 1000 - 20


def test_acknowledgements_come_for_every_second_segment_at_a_messages_end_and_after_the_delay() -> None:
    sender, receiver = Sender(SMALL, 1, "j", 0), Receiver(SMALL, 1)
    sender.submit(0, bytes(500))
    acks = []
    for frame in sender.frames_to_send(0, 100):
        receiver.receive(frame, 0)
        acks.append(len(receiver.frames_to_send(0)))
    assert acks == [0, 1, 0, 1, 1]
    sender.submit(0, bytes(200))
    receiver.receive(sender.frames_to_send(0, 1)[0], 5)
    assert receiver.frames_to_send(5) == []
    assert receiver.next_deadline_ns() == 5 + SMALL.delayed_ack_ns
    assert len(receiver.frames_to_send(5 + SMALL.delayed_ack_ns)) == 1
    assert receiver.next_deadline_ns() is None


def test_giving_up_takes_the_configured_timeouts_and_names_the_peer() -> None:
    pair = Pair(Weather(loss=1.0), seed=1, config=replace(SMALL, retry_limit=5))
    pair.sender.submit(0, b"hello")
    with pytest.raises(
        AggregationFailed, match=r"job pair: no acknowledgement from rank 1 after 5 timeouts"
    ) as failure:
        pair.drive()
    assert failure.value.missing == (1,)
    assert len(pair.sent) == 6
    assert pair.now_ns == (200 + 400 + 800 + 1000 * 3) * MS  # doubled each time up to rto_max_ns


def test_a_round_trip_that_grows_suddenly_repeats_nothing() -> None:
    """As when queues fill: everything in flight waits much longer than the timeout."""
    pair = Pair(Weather(), seed=1, config=replace(SMALL, window_bytes=100_000))
    for delay_ms in (1, 300, 1, 900):
        pair.weather = Weather(delay_ns=delay_ms * MS)
        pair.sender.submit(0, bytes(50_000))
        pair.drive()
    assert pair.sender.counters["retransmitted"] == 0
    assert pair.sender.counters["timeouts"] > 4
    assert pair.receiver.counters["duplicates"] == 0


@pytest.mark.parametrize("seed", range(5))
def test_what_is_sent_again_is_little_more_than_what_was_lost(seed: int) -> None:
    pair = Pair(
        Weather(loss=0.02, duplicate=0.01, reorder=0.05, late_ns=2 * MS), seed, replace(SMALL, window_bytes=100_000)
    )
    for number in range(200):
        pair.sender.submit(number, bytes(10_000))
    pair.drive()
    assert len(pair.received) == 200
    assert pair.segments_lost > 300
    assert pair.sender.counters["retransmitted"] <= 1.1 * pair.segments_lost + 10


def test_the_timeout_follows_the_round_trip_time_and_keeps_its_floor() -> None:
    slow = Pair(Weather(delay_ns=50 * MS), seed=1)
    fast = Pair(Weather(delay_ns=MS), seed=1)
    for pair, low, high in ((slow, 100, 160), (fast, 5, 6)):
        for number in range(50):
            pair.sender.submit(number, bytes(1000))
        pair.drive()
        pair.sender.submit(99, b"x")
        pair.sender.frames_to_send(pair.now_ns, 10)
        deadline_ns = pair.sender.next_deadline_ns()
        assert deadline_ns is not None
        assert low * MS <= deadline_ns - pair.now_ns <= high * MS


@given(
    st.binary(max_size=200)
    | st.binary(max_size=60).map(lambda tail: b"RT\x01\x00\0\0\0\x09" + tail)
    | st.binary(max_size=60).map(lambda tail: b"RT\x02\x03\0\0\0\x09" + tail)
)
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_accepted_or_counted(frame: bytes) -> None:
    pair = Pair(Weather(), seed=1)
    pair.sender.submit(0, bytes(1000))
    pair.sender.frames_to_send(0, 5)
    pair.sender.receive(frame, 10)
    pair.receiver.receive(frame, 10)
    pair.receiver.frames_to_send(10)
    pair.sender.frames_to_send(10, 1000)
    assert pair.sender.counters["acks"] + pair.sender.counters["drop_unknown_sender"] == 1
    counted = ("segments", "drop_unknown_sender", "drop_window")
    assert sum(pair.receiver.counters[name] for name in counted) == 1


@pytest.mark.parametrize("change", [(0, 0), (2, 3), (7, 8)])
def test_frames_of_another_connection_or_kind_change_nothing(change: tuple[int, int]) -> None:
    pair = Pair(Weather(), seed=1)
    pair.sender.submit(0, b"hello")
    frame = bytearray(pair.sender.frames_to_send(0, 1)[0])
    assert len(frame) == RELIABLE_BYTES + 5
    frame[change[0]] = change[1]
    pair.receiver.receive(bytes(frame), 0)
    assert pair.receiver.counters["drop_unknown_sender"] == 1
    assert pair.receiver.next_message() is None


@pytest.mark.parametrize(
    "values",
    [
        {"segment_bytes": 0},
        {"window_bytes": 1},
        {"rto_min_ns": 0},
        {"rto_initial_ns": 1},
        {"retry_limit": 0},
        {"ack_every_segments": 0},
    ],
)
def test_impossible_settings_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        ReliableConfig(**values)
