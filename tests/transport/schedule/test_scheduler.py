"""The runtime scheduler and the credit queue: order, credit, cycles, and ranks that never block each other."""

import random
from collections import deque
from collections.abc import Iterator, Sequence
from fractions import Fraction

import pytest
from test_scheduler_plan import COST, WORDS, chain, random_profile

from transport.meshes.credit_queue import CreditQueue
from transport.schedule.schedule_model import launch_order
from transport.schedule.scheduler import (
    Lanes,
    LinearCost,
    Profile,
    Scheduler,
    TensorRange,
    Transfer,
    class_lanes,
    parse_policy,
    plan_transfers,
)


def transfers_of(*priorities: int, size_bytes: int = 100) -> tuple[Transfer, ...]:
    """One tensor each."""
    return tuple(
        Transfer(key, priority, (TensorRange(key, 0, size_bytes // 4),), size_bytes)
        for key, priority in enumerate(priorities)
    )


def keys(transfers: Sequence[Transfer]) -> list[int]:
    return [transfer.key for transfer in transfers]


def test_by_key_all_that_is_ready_starts_most_urgent_first() -> None:
    plan = transfers_of(5, 1, 5, 1, 3)
    scheduler = Scheduler(plan)
    assert scheduler.idle
    for tensor in (4, 2, 3, 0, 1):
        scheduler.ready(tensor, 10)
    assert not scheduler.idle
    assert keys(scheduler.launches(11)) == [1, 3, 4, 0, 2]  # equal ones by key, whichever was ready first
    assert scheduler.launches(12) == []


def test_a_transfer_of_several_tensors_waits_for_all_of_them() -> None:
    scheduler = Scheduler(plan_transfers("bsp", chain(10, 10, 10)))
    scheduler.ready(2, 1)
    scheduler.ready(0, 2)
    assert scheduler.launches(2) == []
    assert scheduler.unready == {1}
    scheduler.ready(1, 3)
    assert keys(scheduler.launches(3)) == [0]


def test_without_gradients_the_end_of_the_backward_pass_makes_them_ready() -> None:
    scheduler = Scheduler(transfers_of(0, 0, 0))
    scheduler.ready(1, 1)
    scheduler.backward_done(5)
    scheduler.backward_done(6)  # again does nothing
    assert keys(scheduler.launches(6)) == [0, 1, 2]


def test_the_next_iteration_begins_when_all_have_completed() -> None:
    plan = transfers_of(0, 1)
    scheduler = Scheduler(plan)
    for iteration in range(3):
        assert scheduler.iteration == iteration
        scheduler.ready(1, 10)
        scheduler.ready(0, 20)
        started = scheduler.launches(30)
        scheduler.completed(started[0], 40)
        assert not scheduler.idle
        scheduler.completed(started[1], 50)
        assert scheduler.idle
    timings = scheduler.take_timings()
    assert [tuple(timing) for timing in timings[2:4]] == [(1, 0, 0, 100, 20, 30, 40), (1, 1, 1, 100, 10, 30, 50)]
    assert scheduler.take_timings() == []


def test_misuse_raises_assertion_errors() -> None:
    plan = transfers_of(0, 1)
    scheduler = Scheduler(plan)
    with pytest.raises(AssertionError, match="transfer 0 is not under way"):
        scheduler.completed(plan[0], 1)
    scheduler.ready(0, 1)
    with pytest.raises(AssertionError, match="tensor 0 was ready before"):
        scheduler.ready(0, 2)


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"lanes": ((0,),)}, "every key of the plan once"),
        ({"lanes": ((0, 1), (1,))}, "every key of the plan once"),
        ({"credit_bytes": 100}, "only with lanes"),
        ({"lanes": ((0, 1),), "credit_bytes": 0}, "1 or more"),
    ],
)
def test_calls_that_could_deadlock_are_refused(how: dict[str, object], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Scheduler(transfers_of(0, 0), **how)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="numbered from 0"):
        Scheduler(transfers_of(0, 0)[1:])


def test_order_is_fixed_within_a_lane_and_free_between_lanes() -> None:
    plan = transfers_of(1, 0, 1, 0)
    scheduler = Scheduler(plan, lanes=class_lanes(plan, 2))
    scheduler.ready(2, 1)
    assert scheduler.launches(1) == []  # 0 goes before it in its lane
    scheduler.ready(1, 2)
    assert keys(scheduler.launches(2)) == [1]
    scheduler.ready(3, 3)
    scheduler.ready(0, 3)
    assert keys(scheduler.launches(3)) == [3, 0, 2]


def test_the_credit_of_a_lane_bounds_bytes_in_flight() -> None:
    plan = transfers_of(0, 0, 0, 0, 0)
    scheduler = Scheduler(plan, lanes=((3, 1, 0), (2, 4)), credit_bytes=101)
    for tensor in range(5):
        scheduler.ready(tensor, 0)
    started = scheduler.launches(0)
    assert keys(started) == [3, 1, 2, 4]  # overdrawn by one transfer in each
    scheduler.completed(plan[2], 1)
    assert scheduler.launches(1) == []
    scheduler.completed(plan[1], 2)
    assert keys(scheduler.launches(2)) == [0]


def test_a_cycle_holds_transfers_until_its_end() -> None:
    scheduler = Scheduler(transfers_of(0, 0, 0), cycle_ns=1000)
    assert scheduler.next_deadline_ns() is None
    scheduler.ready(0, 500)  # cycles end at 1500, 2500, …
    assert scheduler.next_deadline_ns() == 1500
    scheduler.ready(1, 1400)
    assert scheduler.launches(1499) == []
    assert keys(scheduler.launches(1500)) == [0, 1]
    assert scheduler.next_deadline_ns() is None
    scheduler.ready(2, 2500)
    assert scheduler.next_deadline_ns() == 3500
    assert keys(scheduler.launches(9999)) == [2]


# ---- ranks that never block each other


class World:
    """Ranks with one plan, whose gradients come in random orders; calls end when all ranks have started them.

    ordered: calls of a lane are matched by their order, as by a switch; else by key.
    """

    def __init__(
        self,
        plan: tuple[Transfer, ...],
        tensors: int,
        lanes: Lanes | None,
        credit_bytes: int | None,
        cycle_ns: int,
        chance: random.Random,
    ) -> None:
        self.chance, self.now_ns = chance, 0
        self.ranks = [
            Scheduler(plan, lanes=lanes, credit_bytes=credit_bytes, cycle_ns=cycle_ns)
            for _ in range(chance.randint(2, 5))
        ]
        self.lane_of = {key: number for number, lane in enumerate(lanes or ()) for key in lane}
        self.slots: list[list[list[int]]] = [[[] for _ in lanes or ((),)] for _ in self.ranks]
        self.tensors = tensors
        self.under_way: list[dict[int, Transfer]] = [{} for _ in self.ranks]
        self.most_below = 0

    def run(self, iterations: int) -> None:
        for _ in range(iterations):
            for calls in self.slots:
                for lane in calls:
                    lane.clear()
            coming = [self._arrivals() for _ in self.ranks]
            while not all(rank.idle and not left for rank, left in zip(self.ranks, coming, strict=True)):
                assert self._step(coming), "the ranks wait for each other for ever"
            assert all(calls == self.slots[0] for calls in self.slots), "the ranks disagree on slots"

    def _arrivals(self) -> list[int]:
        order = list(range(self.tensors))
        self.chance.shuffle(order)
        return order[: self.chance.randint(0, self.tensors)]  # the others have no gradient here

    def _step(self, coming: list[list[int]]) -> bool:
        """One rank takes one random step; False if no rank can."""
        choices = list(self._choices(coming))
        if not choices:
            return False
        kind, number, what = self.chance.choice(choices)
        rank = self.ranks[number]
        self.now_ns += 1
        if kind == "gradient":
            rank.ready(coming[number].pop(), self.now_ns)
        elif kind == "end":
            rank.backward_done(self.now_ns)
        elif kind == "time":
            self.now_ns = max(self.now_ns, what)
        else:
            rank.completed(self.under_way[number].pop(what), self.now_ns)
        for transfer in rank.launches(self.now_ns):
            self.under_way[number][transfer.key] = transfer
            if self.lane_of:
                self.slots[number][self.lane_of[transfer.key]].append(transfer.key)
        self.most_below = max(self.most_below, sum(call.size_bytes for call in self.under_way[number].values()))
        return True

    def _choices(self, coming: list[list[int]]) -> Iterator[tuple[str, int, int]]:
        for number, rank in enumerate(self.ranks):
            if coming[number]:
                yield "gradient", number, 0
            elif rank.unready and not (rank.idle and any(other.iteration < rank.iteration for other in self.ranks)):
                yield "end", number, 0  # a rank that is idle but ahead has completed this iteration
            if (deadline_ns := rank.next_deadline_ns()) is not None:
                yield "time", number, deadline_ns
            for key in self.under_way[number]:
                if self._started_everywhere(key, rank.iteration):
                    yield "complete", number, key

    def _started_everywhere(self, key: int, iteration: int) -> bool:
        return all(
            other.iteration > iteration or key in self.under_way[number] or self._done(number, key)
            for number, other in enumerate(self.ranks)
        )

    def _done(self, number: int, key: int) -> bool:
        rank = self.ranks[number]
        return any(timing.key == key and timing.iteration == rank.iteration for timing in rank._timings)


def ordered_lanes(kind: str, plan: tuple[Transfer, ...], profile: Profile, words: str) -> Lanes | None:
    if kind == "keyed":
        return None
    if kind == "one lane":
        return (tuple(launch_order(plan, profile, COST, parse_policy(words).credit_bytes)),)
    return class_lanes(plan, 3)


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("kind", ["keyed", "one lane", "classes"])
def test_ranks_never_wait_for_each_other_and_agree_on_slots(kind: str, words: str) -> None:
    for seed in range(10):
        chance = random.Random(seed)
        profile = random_profile(chance)
        plan = plan_transfers(words, profile, COST)
        lanes = ordered_lanes(kind, plan, profile, words)
        credit = None if lanes is None else chance.choice([None, 1, 400_000])
        cycle_ns = 5 if words.startswith("fusion") else 0
        if len(plan) > 30:
            continue  # the same in long
        World(plan, len(profile.tensors), lanes, credit, cycle_ns, chance).run(3)


def test_unordered_starts_with_a_credit_deadlock() -> None:
    """Two ranks, a credit on starts, each rank's own order: both start what the other may not start any more."""
    starts = []
    for order in ((0, 1), (1, 0)):
        queue: CreditQueue[int] = CreditQueue(1)
        for key in order:
            queue.push(key, 100, priority=0)
        starts.append({queue.pop(), queue.pop()} - {None})
    assert starts == [{0}, {1}]  # neither call has all ranks, and neither rank has credit left


# ---- the credit


def longest_wait(credit_bytes: int, sizes: Sequence[int], urgent_at: Fraction, urgent_bytes: int) -> Fraction:
    """How long an urgent item of this size waits, at one byte per unit of time, behind others that came before it.

    In the model of `CreditQueue`: a first-in-first-out link below, the credit returned as each item leaves it.
    """
    queue: CreditQueue[int] = CreditQueue(credit_bytes)
    for number, size in enumerate(sizes):
        queue.push(number, size, priority=1)
    below: deque[tuple[int, int]] = deque()

    def fill() -> None:
        while (item := queue.pop()) is not None:
            below.append((item, urgent_bytes if item < 0 else sizes[item]))

    now, asked = Fraction(0), False
    fill()
    while True:
        end = now + below[0][1] if below else urgent_at
        if not asked and now <= urgent_at <= end:
            queue.push(-1, urgent_bytes, priority=0)
            asked = True
            fill()
            now = now if len(below) > 1 else max(now, urgent_at)
            end = now + below[0][1]
        item, size = below.popleft()
        if item < 0:
            return now - urgent_at
        now = end
        queue.returned(size)
        fill()


@pytest.mark.parametrize("seed", range(20))
def test_an_urgent_item_waits_at_most_credit_and_one_slice(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(50):
        credit = chance.randint(1, 400)
        largest = chance.randint(1, 300)
        sizes = [chance.randint(1, largest) for _ in range(40)]
        at = Fraction(chance.randint(0, max(1, sum(sizes) // 2)))
        assert longest_wait(credit, sizes, at, 10) <= credit + largest


def test_the_bound_is_reached_but_for_one_byte() -> None:
    # 99 of 100 bytes of credit are below: one more slice of 50 may go. An item that comes right then waits for both.
    assert longest_wait(100, [99, 50, 50, 50], Fraction(0), 10) == 149
    # Without a credit it waits for all.
    queue: CreditQueue[int] = CreditQueue(None)
    for number in range(4):
        queue.push(number, 50)
    assert [queue.pop() for _ in range(5)] == [0, 1, 2, 3, None]


def test_equal_items_keep_their_order() -> None:
    queue: CreditQueue[str] = CreditQueue(10)
    for number, priority in enumerate((3, 1, 3, 1, 2)):
        queue.push(f"{priority}{number}", 10, priority)
    found = []
    while len(queue):
        item = queue.pop()
        assert item is not None
        assert queue.pop() is None  # the credit is used up
        found.append(item)
        queue.returned(10)
    assert found == ["11", "13", "24", "30", "32"]


def test_bytes_in_lower_queues_never_exceed_credit_and_one_item() -> None:
    chance = random.Random(5)
    queue: CreditQueue[int] = CreditQueue(1000)
    below: list[int] = []
    for _ in range(5000):
        if chance.random() < 0.6:
            size = chance.randint(1, 500)
            queue.push(size, size, chance.randint(0, 3))
        while (item := queue.pop()) is not None:
            assert sum(below) < 1000
            below.append(item)
        assert queue.below_bytes == sum(below) < 1500
        if below and chance.random() < 0.7:
            queue.returned(below.pop(0))


def test_impossible_credits_are_refused() -> None:
    with pytest.raises(ValueError, match="credit_bytes 0: 1 or more"):
        CreditQueue(0)
    queue: CreditQueue[int] = CreditQueue(None)
    with pytest.raises(AssertionError, match="more came back"):
        queue.returned(1)


def test_a_single_lane_follows_the_priorities_of_rank_0() -> None:
    profile = chain(250, 250, 250, ready_ns=[3000, 2000, 1000])
    plan = plan_transfers("p3", profile)
    # 1000 bytes at 1 ns: free again whenever the next is ready.
    assert launch_order(plan, profile, LinearCost(0, 1), 1) == [0, 1, 2]
    # At 3 ns the first is under way until 4000; then layer 0 is more urgent than layer 1, which was ready before it.
    assert launch_order(plan, profile, LinearCost(0, 3), 1) == [0, 2, 1]
    assert launch_order(plan, profile, LinearCost(0, 0), 1) == [0, 1, 2]
