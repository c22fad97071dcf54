"""Plans: what each policy makes of a profile, to the element."""

import random
import re

import pytest

from transport.schedule.by_arrival import Fusion, MgWfbp
from transport.schedule.by_urgency import P3, ByteScheduler, TicTac
from transport.schedule.scheduler import (
    LayerProfile,
    LinearCost,
    Profile,
    TensorProfile,
    TensorRange,
    Transfer,
    class_lanes,
    classes_of,
    describe,
    fit_cost,
    parse_policy,
    plan_transfers,
)

COST = LinearCost(alpha_ns=100_000, beta_ns_per_byte=8)
US, MS = 1_000, 1_000_000


def chain(*elements: int, ready_ns: list[int] | None = None, forward_ns: int = MS) -> Profile:
    """One tensor a layer; gradients exist a millisecond apart, the last layer's first."""
    count = len(elements)
    ready = ready_ns or [(count - layer) * MS for layer in range(count)]
    return Profile(
        tuple(TensorProfile(f"w{layer}", size, layer, ready[layer]) for layer, size in enumerate(elements)),
        tuple(LayerProfile(f"l{layer}", forward_ns) for layer in range(count)),
        max(ready),
    )


def random_profile(chance: random.Random) -> Profile:
    layers = chance.randint(1, 12)
    tensors = [
        TensorProfile(
            f"w{layer}.{number}",
            chance.choice([1, 7, 1000, 50_000, 130_001]),
            layer,
            (layers - layer) * MS + chance.randint(-MS, MS),
            chance.choice(["float32"] * 4 + ["float64"]),
        )
        for layer in range(layers)
        for number in range(chance.randint(1, 3))
    ]
    inputs = [
        None if chance.random() < 0.7 else tuple(sorted(chance.sample(range(layer), min(layer, 2))))
        for layer in range(layers)
    ]
    return Profile(
        tuple(tensors),
        tuple(LayerProfile(f"l{layer}", chance.randint(0, MS), inputs[layer]) for layer in range(layers)),
        20 * MS,
    )


WORDS = [
    "bsp",
    "wfbp",
    "mg_wfbp:alpha=200us,beta=8",
    "fusion:threshold=300kB,cycle=3ms",
    "p3",
    "p3:slice=777",
    "tictac",
    "tictac:order=tic",
    "bytescheduler:partition=100kB,credit=400kB",
]


@pytest.mark.parametrize("words", WORDS)
def test_every_element_is_in_one_transfer_of_one_type(words: str) -> None:
    for seed in range(20):
        profile = random_profile(random.Random(seed))
        transfers = plan_transfers(words, profile, COST)
        assert [transfer.key for transfer in transfers] == list(range(len(transfers)))
        ranges: dict[int, list[tuple[int, int]]] = {}
        for transfer in transfers:
            kinds = {profile.tensors[part.tensor].dtype for part in transfer.parts}
            assert len(kinds) == 1
            item = 8 if kinds == {"float64"} else 4
            assert transfer.size_bytes == sum(part.high - part.low for part in transfer.parts) * item
            for part in transfer.parts:
                ranges.setdefault(part.tensor, []).append((part.low, part.high))
        for index, tensor in enumerate(profile.tensors):
            found = sorted(ranges[index])
            assert [low for low, _ in found] == [0, *(high for _, high in found[:-1])]
            assert found[-1][1] == tensor.elements


@pytest.mark.parametrize("words", WORDS)
def test_the_plan_follows_from_profile_and_policy_alone(words: str) -> None:
    for seed in range(10):
        profile = random_profile(random.Random(seed))
        told = Profile.decode(profile.encode())
        assert told == profile
        assert plan_transfers(words, told, COST) == plan_transfers(parse_policy(words), profile, COST)


def whole(*members: int, sizes: tuple[int, ...]) -> tuple[TensorRange, ...]:
    return tuple(TensorRange(member, 0, sizes[member]) for member in members)


SIZES = (1000, 50_000, 90_000)


def test_bsp_is_one_transfer() -> None:
    assert plan_transfers("bsp", chain(*SIZES)) == (Transfer(0, 0, whole(2, 1, 0, sizes=SIZES), 564_000),)


def test_wfbp_is_a_transfer_per_tensor_in_order_of_arrival() -> None:
    assert plan_transfers("wfbp", chain(*SIZES)) == (
        Transfer(0, 0, whole(2, sizes=SIZES), 360_000),
        Transfer(1, 0, whole(1, sizes=SIZES), 200_000),
        Transfer(2, 0, whole(0, sizes=SIZES), 4_000),
    )


def groups(words: str, profile: Profile, cost: LinearCost | None = COST) -> list[list[int]]:
    return [[part.tensor for part in transfer.parts] for transfer in plan_transfers(words, profile, cost)]


@pytest.mark.parametrize(
    ("ready_us", "expected"),
    [
        # 1000 float32 at 25 ns/byte and a start-up of 100 µs: 200 µs each, 300 µs two of them, 400 µs three.
        ([1000, 500, 0], [[2], [1], [0]]),  # each is finished before the next arrives
        ([500, 200, 0], [[2], [1], [0]]),  # finished at the very moment
        ([500, 199, 0], [[2], [1], [0]]),  # under way for longer than a start-up: goes alone; so does the next
        ([500, 99, 0], [[2, 1], [0]]),  # begun less than a start-up ago
        ([500, 100, 0], [[2], [1], [0]]),  # exactly a start-up ago
        ([190, 150, 0], [[2], [1, 0]]),  # the second begins at 200, so it isn't under way when the third arrives
        ([150, 60, 0], [[2, 1, 0]]),  # merged, it begins with its last tensor: at 60, less than 100 ago
    ],
)
def test_mg_wfbp_merges_where_waiting_costs_less_than_a_start_up(
    ready_us: list[int], expected: list[list[int]]
) -> None:
    profile = chain(1000, 1000, 1000, ready_ns=[ready * US for ready in ready_us])
    assert groups("mg_wfbp:alpha=100us,beta=25", profile, None) == expected
    assert groups("mg_wfbp", profile, LinearCost(100 * US, 25)) == expected


def test_mg_wfbp_follows_the_published_recursion() -> None:
    """The rule as it is published, on arrays of layers, each merge followed by all starts anew."""
    for seed in range(300):
        chance = random.Random(seed)
        count = chance.randint(1, 15)
        ready = sorted((chance.randint(0, 3000) * US for _ in range(count)), reverse=True)
        sizes = [chance.choice([100, 1000, 20_000]) for _ in range(count)]
        profile = chain(*sizes, ready_ns=ready)
        cost = LinearCost(chance.choice([0, 50, 300]) * US, 10)
        order = list(profile.arrivals)[::-1]  # order[-1] arrives first
        ready_of = [profile.tensors[index].ready_ns for index in order]
        size_of = [profile.tensors[index].size_bytes for index in order]
        times = [cost.time_ns(size) for size in size_of]
        merged: list[list[int]] = [[index] for index in order]

        def starts(times: list[float], ready_of: list[int]) -> list[float]:
            found = [0.0] * len(times)
            found[-1] = ready_of[-1]
            for layer in range(len(times) - 2, -1, -1):
                found[layer] = max(found[layer + 1] + times[layer + 1], ready_of[layer])
            return found

        start = starts(times, ready_of)
        for layer in range(count - 1, 0, -1):
            next_ns = ready_of[layer - 1]
            if next_ns < start[layer] + times[layer] and (
                start[layer] > next_ns or next_ns - start[layer] < cost.alpha_ns
            ):
                size_of[layer - 1] += size_of[layer]
                times[layer], times[layer - 1] = 0.0, cost.time_ns(size_of[layer - 1])
                merged[layer - 1] = merged[layer] + merged[layer - 1]
                merged[layer] = []
                start = starts(times, ready_of)
        assert groups("mg_wfbp", profile, cost) == [group for group in merged[::-1] if group], seed


def test_mg_wfbp_needs_a_cost() -> None:
    with pytest.raises(ValueError, match="mg_wfbp: needs alpha and beta, given or fitted"):
        plan_transfers("mg_wfbp:alpha=1ms", chain(1))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("fusion", [[3], [2], [1], [0]]),  # a millisecond apart: a cycle each
        ("fusion:cycle=2ms", [[3, 2], [1, 0]]),
        ("fusion:cycle=10ms", [[3, 2, 1, 0]]),
        ("fusion:cycle=10ms,threshold=8kB", [[3, 2], [1, 0]]),
        ("fusion:cycle=10ms,threshold=7999", [[3], [2], [1], [0]]),
        ("fusion:cycle=10ms,threshold=1", [[3], [2], [1], [0]]),  # larger than the threshold: alone
    ],
)
def test_fusion_merges_the_gradients_of_one_cycle(words: str, expected: list[list[int]]) -> None:
    assert groups(words, chain(1000, 1000, 1000, 1000)) == expected


def test_p3_slices_by_forward_order() -> None:
    profile = chain(1000, 40_000, 90_000)
    assert [(transfer.priority, *transfer.parts) for transfer in plan_transfers("p3", profile)] == [
        (2, TensorRange(2, 0, 40_000)),
        (2, TensorRange(2, 40_000, 80_000)),
        (2, TensorRange(2, 80_000, 90_000)),
        (1, TensorRange(1, 0, 40_000)),  # at the bound: whole
        (0, TensorRange(0, 0, 1000)),
    ]


def test_bytescheduler_partitions_by_bytes() -> None:
    profile = Profile((TensorProfile("a", 10, 0, 1), TensorProfile("b", 5, 0, 1, "float64")), (LayerProfile("l"),), 1)
    assert [
        (transfer.size_bytes, *transfer.parts) for transfer in plan_transfers("bytescheduler:partition=17", profile)
    ] == [
        (16, TensorRange(1, 0, 2)),
        (16, TensorRange(1, 2, 4)),
        (8, TensorRange(1, 4, 5)),
        (16, TensorRange(0, 0, 4)),
        (16, TensorRange(0, 4, 8)),
        (8, TensorRange(0, 8, 10)),
    ]
    assert len(plan_transfers("bytescheduler:partition=1", profile)) == 15  # never less than an element


def priorities(words: str, profile: Profile, cost: LinearCost) -> list[int]:
    """By layer."""
    found = {transfer.parts[0].tensor: transfer.priority for transfer in plan_transfers(words, profile, cost)}
    return [found[index] for index in range(len(profile.tensors))]


@pytest.mark.parametrize("words", ["tictac:order=tic", "tictac"])
def test_tictac_keeps_a_chain_in_forward_order(words: str) -> None:
    assert priorities(words, chain(1000, 5, 100_000, 7), COST) == [0, 1, 2, 3]


def test_without_times_tac_counts_transfers_that_unlock_layers_together() -> None:
    assert priorities("tictac", chain(1000, 5, 100_000, 7, forward_ns=0), COST) == [0, 1, 2, 3]
    # The last layer needs 2 and 3 only, which together take less than 0 and 1.
    profile = Profile(
        tuple(TensorProfile(f"w{layer}", size, layer, 0) for layer, size in enumerate((500, 500, 10, 10))),
        (LayerProfile("0", 0, ()), LayerProfile("1", 0, (0,)), LayerProfile("2", 0, ()), LayerProfile("3", 0, (2,))),
        0,
    )
    assert priorities("tictac", profile, COST).index(0) == 2


def branches(first_ns: int, second_ns: int, sizes: tuple[int, int]) -> Profile:
    """Two branches of one layer each, joined by a third."""
    return Profile(
        tuple(TensorProfile(f"w{layer}", size, layer, 0) for layer, size in enumerate((*sizes, 10))),
        (LayerProfile("a", first_ns, ()), LayerProfile("b", second_ns, ()), LayerProfile("join", 1, (0, 1))),
        0,
    )


def test_tac_first_sends_the_transfer_whose_layers_hide_the_other() -> None:
    beta = LinearCost(0, 1)
    assert priorities("tictac", branches(1000, 9000, (5000, 5000)), beta) == [1, 0, 2]
    assert priorities("tictac", branches(9000, 1000, (5000, 5000)), beta) == [0, 1, 2]
    # b unlocks as much as a, but takes a tenth of the time: a's transfer hides behind b's computation.
    assert priorities("tictac", branches(9000, 9000, (5000, 500)), beta) == [1, 0, 2]


def test_tic_counts_the_transfers_that_unlock_a_layer() -> None:
    # Layer 3 needs 0 and 3; layer 2 needs 0, 1 and 2: so 3 comes before 1 and 2.
    profile = Profile(
        tuple(TensorProfile(f"w{layer}", 10, layer, 0) for layer in range(4)),
        (LayerProfile("0", 1, ()), LayerProfile("1", 1, ()), LayerProfile("2", 1, (0, 1)), LayerProfile("3", 1, (0,))),
        0,
    )
    assert priorities("tictac:order=tic", profile, COST) == [0, 2, 3, 1]


def test_classes_are_finer_where_it_is_more_urgent() -> None:
    transfers = [Transfer(key, key, (TensorRange(key, 0, 1),), 4) for key in range(16)]
    assert classes_of(transfers, 4) == (0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3)
    assert classes_of(transfers, 1) == (0,) * 16
    assert classes_of(transfers, 16) == tuple(range(16))
    assert classes_of([Transfer(0, 7, (), 4), Transfer(1, 7, (), 4), Transfer(2, -3, (), 4)], 8) == (1, 1, 0)
    # Most bytes in the last layer: the early ones keep classes of their own.
    skewed = [Transfer(key, key, (TensorRange(key, 0, 1),), size) for key, size in enumerate((1, 1, 2, 4, 8, 84))]
    assert classes_of(skewed, 5) == (0, 0, 0, 0, 1, 2)
    assert classes_of(skewed, 6) == (0, 1, 2, 3, 4, 5)
    assert class_lanes(transfers, 2) == (tuple(range(8)), tuple(range(8, 16)))


def test_the_cost_of_a_transfer_is_fitted() -> None:
    assert fit_cost([0, 1000], [50.0, 3050.0]) == LinearCost(50.0, 3.0)
    assert fit_cost([1000, 2000], [500.0, 400.0]).beta_ns_per_byte == 0
    with pytest.raises(ValueError, match="two different sizes"):
        fit_cost([5, 5], [1.0, 2.0])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("bytescheduler:partition=1MB,credit=4MB", ByteScheduler(10**6, 4 * 10**6)),
        ("bytescheduler:tune=15", ByteScheduler(tune_steps=15)),
        ("bytescheduler", ByteScheduler(4_000_000, 16_000_000, 0)),
        ("fusion:threshold=64MiB,cycle=5ms", Fusion(64 << 20, 5_000_000)),
        ("fusion", Fusion(134_217_728, 1_000_000)),
        ("p3:slice=50000", P3(50_000)),
        ("p3", P3(40_000, 640_000)),
        ("mg_wfbp:alpha=0.5ms,beta=0.8", MgWfbp(500_000, 0.8)),
        ("mg_wfbp", MgWfbp(None, None)),
        ("tictac:order=tic,credit=1kB", TicTac("tic", 1000)),
    ],
)
def test_a_schedule_with_options_is_parsed_and_written(words: str, expected: object) -> None:
    assert parse_policy(words) == expected
    assert parse_policy(describe(parse_policy(words))) == expected


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("", "schedule '' is unknown; allowed: bsp, wfbp"),
        ("p4", "schedule 'p4' is unknown"),
        ("bsp:", "schedule bsp: option '' is unknown; it has none"),
        ("p3:size=3", "schedule p3: option 'size=3' is unknown; allowed: slice=…, credit=…"),
        ("p3:slice", "schedule p3: option 'slice' is unknown"),
        ("p3:slice=0", "schedule p3: slice=0: must be a whole number from 1"),
        ("p3:slice=1,slice=2", "schedule p3: slice is given twice"),
        ("bytescheduler:credit=4mb", "schedule bytescheduler: credit=4mb: must be a size of 1 byte or more"),
        ("bytescheduler:credit=0.1", "schedule bytescheduler: credit=0.1: must be a size"),
        ("bytescheduler:partition=-1", "schedule bytescheduler: partition=-1: must be a size"),
        ("fusion:cycle=1", "schedule fusion: cycle=1: must be a time of 1 ns or more such as 1ms"),
        ("mg_wfbp:beta=inf", "schedule mg_wfbp: beta=inf: must be a time per byte"),
        ("mg_wfbp:beta=x", "schedule mg_wfbp: beta=x: must be a time per byte"),
        ("tictac:order=tact", "schedule tictac: order=tact: must be tic or tac"),
        ("y" * 999, "schedule '" + "y" * 60 + "…' is unknown"),
    ],
)
def test_bad_options_are_named_in_one_line(words: str, error: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(error)) as caught:
        parse_policy(words)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("tensor", "layers", "error"),
    [
        (TensorProfile("w", 0, 0, 0), 1, "tensor w: 0 elements"),
        (TensorProfile("w", 1, 1, 0), 1, "tensor w: layer 1 of 1"),
        (TensorProfile("w", 1, 0, 0, "float16"), 1, "tensor w: float16; allowed: float32, float64"),
        (TensorProfile("w", 1, 0, -1), 1, "ready at -1 ns"),
    ],
)
def test_impossible_profiles_are_refused(tensor: TensorProfile, layers: int, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Profile((tensor,), tuple(LayerProfile(f"l{layer}") for layer in range(layers)), 0)


def test_layers_depend_on_earlier_layers() -> None:
    with pytest.raises(ValueError, match="layer a: inputs must be earlier"):
        Profile((), (LayerProfile("a", 0, (0,)),), 0)
