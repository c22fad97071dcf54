"""Sums that may lack what was lost: exact where nothing may be, accounted for value by value where it may."""

import random

import numpy as np
import pytest
from world import PATH, World

from transport.bounded.bounded_calls import BoundedJob
from transport.bounded.bounded_packets import DATA, MISSING, PROBE, STOP, unpacked
from transport.bounded.bounded_party import BoundedParty
from transport.bounded.bounded_table import BOUNDED
from transport.bounded.optireduce import OptiReduce, OptiReduceOptions
from transport.bounded.rules import Dgt, DgtOptions, Exact, Ltp, LtpOptions, Mlt, MltOptions, Rule
from transport.meshes.mesh import Frame

WORKERS, VALUES = 4, 1000


def arrays(seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.integers(-99, 99, VALUES).astype(np.float32) for _ in range(WORKERS)]


def kind_of(frame: Frame) -> int:
    return frame.data[2]


NOTHING_LOST: dict[str, list[Rule]] = {
    "exact": [Exact() for _ in range(WORKERS)],
    "mlt": [Mlt(MltOptions(tolerance=0)) for _ in range(WORKERS)],
    "dgt": [Dgt(DgtOptions(share=1.0)) for _ in range(WORKERS)],
    "ltp": [Ltp(LtpOptions(early_close=False)) for _ in range(WORKERS)],
    "optireduce": [OptiReduce(OptiReduceOptions(runs=100), WORKERS) for _ in range(WORKERS)],
}


@pytest.mark.parametrize("method", NOTHING_LOST)
@pytest.mark.parametrize("owners", [0, 1])
def test_every_method_is_exact_where_it_is_told_to_lose_nothing(method: str, owners: int) -> None:
    for seed in range(3):
        chance = random.Random(seed)
        world = World(
            NOTHING_LOST[method],
            lambda sender, frame, chance=chance: chance.random() < 0.15,  # type: ignore[misc]
            seed=seed,
            duplicate=0.05,
            reorder=0.1,
            owners=owners,
        )
        given = arrays(seed)
        expected = sum(given[1:], given[0])
        for number in (1, 2):  # overlapping calls
            world.submit([array.copy() for array in given], key=number)
        world.run(2)
        for finished in world.finished.values():
            assert all(np.array_equal(call.array, expected) for call in finished)
        assert all(party.counters["lost_up"] == party.counters["lost_down"] == 0 for party in world.parties)


@pytest.mark.parametrize("method", BOUNDED)
def test_what_is_missing_is_counted_value_by_value(method: str) -> None:
    """Ones: without scaling, what a sum lacks is what was lost on the way up; 0 is what was lost on the way down."""
    lossy = {
        "mlt": {"tolerance": 0.3},
        "dgt": {"share": 0.5},
        "ltp": {"share": 0.5, "extra_ns": 0},
        "optireduce": {"runs": 1, "hadamard": "never"},
    }
    chance = random.Random(7)
    kind = BOUNDED[method]
    options = kind.options(divide="workers", **lossy[method])
    rules = [kind.make(options, WORKERS) for _ in range(WORKERS)]
    world = World(rules, lambda sender, frame: kind_of(frame) == DATA and chance.random() < 0.2)
    lost_up = lost_down = 0
    for number in range(6):
        given = [np.ones(VALUES, np.float32) for _ in range(WORKERS)]
        world.submit(given, key=5, priority=number % 2)
        world.run(number + 1)
        lost_down += sum(int((array == 0).sum()) for array in given)
        whole = np.max(given, axis=0)  # its owner has each sum
        lost_up += int((WORKERS - whole).sum())
        if method in ("dgt", "ltp"):
            assert all(np.array_equal(array, given[0]) for array in given), "sums come back reliably"
    assert sum(party.counters["lost_up"] for party in world.parties) == lost_up > 0
    assert sum(party.counters["lost_down"] for party in world.parties) == lost_down
    assert (lost_down > 0) == (method in ("mlt", "optireduce"))


def test_a_sum_with_gaps_is_scaled_by_what_arrived() -> None:
    rules: list[Rule] = [Mlt(MltOptions(tolerance=0.9, divide="arrived")) for _ in range(3)]
    world = World(rules, lambda sender, frame: kind_of(frame) == DATA and sender == 2 and frame.data[28] == 0)
    given = [np.full(99, value, np.float32) for value in (1, 3, 100)]
    world.parties[0].rule.close = world.parties[1].rule.close = lambda stage, rtt_ns, now_ns: (
        [  # type: ignore[method-assign]
            setattr(one, "closed", True) for one in stage.incoming if one.full or one.sender == 2
        ]
        and None
    )
    world.submit(given)
    world.run(1)
    assert world.parties[0].counters["lost_up"] == 33
    assert np.array_equal(given[0][:33], np.full(33, (1 + 3) * 3 / 2, np.float32))
    assert np.array_equal(given[1][33:66], np.full(33, (1 + 3) * 3 / 2, np.float32))


def test_mlt_stops_its_sender_at_the_tolerance_and_a_probe_brings_a_bitmap() -> None:
    dropped = {(0, 1): 0}

    def lose(sender: int, frame: Frame) -> bool:
        packet = unpacked(frame.data)
        assert packet is not None
        first = (sender, frame.to) == (0, 1) and packet.kind == DATA and packet.place.stage == 0  # type: ignore[union-attr]
        if first and dropped[0, 1] < 30:
            dropped[0, 1] += 1
            return True
        return False

    world = World([Mlt(MltOptions(tolerance=0.1)) for _ in range(WORKERS)], lose)
    world.submit(arrays())
    world.run(1)
    kinds = [(sender, frame.to, kind_of(frame)) for sender, frame in world.sent]
    assert (0, 1, PROBE) in kinds
    assert (1, 0, MISSING) in kinds
    assert (1, 0, STOP) in kinds
    shard = VALUES // WORKERS
    assert 0 < world.parties[1].counters["lost_up"] <= 3 * (0.1 * shard + 16), "the tolerance, and a block for rounding"


def test_other_options_or_sizes_are_refused_by_name() -> None:
    one, other = (
        BoundedParty(rank, 2, Mlt(MltOptions()), job=BoundedJob("world"), path=PATH, terms=terms)
        for rank, terms in enumerate(("tolerance 0.1", "tolerance 0.2"))
    )
    for party in (one, other):
        party.submit(np.ones(10, np.float32), key=None, priority=0, now_ns=0)
    other.receive(one.frames_to_send(1, 0)[0].data, 0, 0)
    assert "rank 0 has other options" in str(other.failure)
    one, other = (BoundedParty(rank, 2, Exact(), job=BoundedJob("world"), path=PATH) for rank in range(2))
    one.submit(np.ones(100, np.float32), key=None, priority=0, now_ns=0)
    other.submit(np.ones(10, np.float32), key=None, priority=0, now_ns=0)
    other.receive(one.frames_to_send(1, 0)[0].data, 0, 0)
    assert "rank 0 sums an array of another size than rank 1" in str(other.failure)


def test_a_member_that_stays_silent_fails_the_calls() -> None:
    party = BoundedParty(0, 2, Exact(), job=BoundedJob("world"), path=PATH)
    party.submit(np.ones(10, np.float32), key=None, priority=0, now_ns=0)
    for _ in range(PATH.retry_limit + 2):
        party.frames_to_send(99, party.next_deadline_ns() or 0)
        party.handle_timer(party.next_deadline_ns() or 0)
    assert "rank 1 has acknowledged nothing" in str(party.failure)
