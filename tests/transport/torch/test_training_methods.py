"""Training methods, exactly: on values whose arithmetic is exact, or that were computed by hand."""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch_ranks import groups_per_thread, results, two_bits

from transport.torch import training
from transport.torch.training import CdSgd, DiLoCo, LocalSgd, OdSgd, StreamingDiLoCo, flat_tensors
from transport.torch.training.streaming_diloco import fragments_of


@pytest.fixture(scope="module", autouse=True)
def ranks_in_threads() -> Iterator[None]:
    with groups_per_thread():
        yield


class Weights(torch.nn.Module):
    """Parameters of these values; their gradients are whatever the loss says."""

    def __init__(self, *values: Any, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.all = torch.nn.ParameterList([torch.tensor(value, dtype=dtype) for value in values])

    def values(self) -> Any:
        found = [one.tolist() for one in self.all]
        return found[0] if len(found) == 1 else found


def trajectory(
    method: Any, model: torch.nn.Module, losses: Sequence[Callable[[], torch.Tensor]], *, rate: float = 0.5
) -> list[Any]:
    """Parameters after each step of SGD, and after `finish`."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    attached = training.attach(model, optimizer, method)
    return [*walk(model, optimizer, losses), finished(attached, model)]


def walk(model: Any, optimizer: torch.optim.Optimizer, losses: Sequence[Callable[[], torch.Tensor]]) -> Any:
    for loss in losses:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        yield model.values()


def finished(attached: Any, model: Any) -> Any:
    attached.finish()
    return model.values()


def towards(model: Weights, goal: Any) -> Callable[[], torch.Tensor]:
    """A quadratic whose gradient is w - goal."""
    return lambda: sum(((one - goal) ** 2).sum() for one in model.all) / 2  # type: ignore[return-value]


def constant(model: Weights, gradient: float) -> Callable[[], torch.Tensor]:
    return lambda: sum((gradient * one).sum() for one in model.all)  # type: ignore[return-value]


# ---- local SGD and DiLoCo


@pytest.mark.parametrize(
    "method", ["local_sgd:period=1", "diloco:period=1,rate=1,momentum=0", "post_local_sgd:start=5"]
)
def test_averaging_every_step_is_synchronous_sgd_bit_for_bit_where_nothing_is_rounded(method: str) -> None:
    """Without momentum. Values are multiples of 2^-10 below 2^6, so float32 holds every sum and product exactly."""
    goals = [torch.tensor([1.0, -3.0, 0.5]), torch.tensor([2.0, 8.0, 0.25]), torch.zeros(3), torch.ones(3)]

    def rank(number: int) -> Any:
        model = Weights([4.0, -8.0, 16.0])
        return trajectory(method, model, [towards(model, goals[number])] * 5)

    expected, weights = [], torch.tensor([4.0, -8.0, 16.0])
    for _ in range(5):
        weights = weights - 0.5 * sum(weights - goal for goal in goals) / 4
        expected.append(weights.tolist())
    assert results(4, rank) == [[*expected, expected[-1]]] * 4


def test_averaging_every_step_is_synchronous_sgd_but_for_rounding() -> None:
    torch.manual_seed(5)
    start, goals = torch.randn(1000), torch.randn(3, 1000)

    def rank(number: int) -> Any:
        model = Weights(start.tolist())
        return trajectory("local_sgd:period=1", model, [towards(model, goals[number])] * 5, rate=0.1)[-1]

    weights = start
    for _ in range(5):
        weights = weights - 0.1 * (weights - goals).mean(0)
    found = results(3, rank)
    assert found[0] == found[1] == found[2]
    torch.testing.assert_close(torch.tensor(found[0]), weights, rtol=1e-5, atol=1e-6)


def test_parameters_are_averaged_after_each_period_alone() -> None:
    def rank(number: int) -> Any:
        model = Weights(0.0)
        return trajectory("local_sgd:period=3", model, [constant(model, 2.0 * number)] * 7, rate=1)

    assert results(2, rank) == [[0, 0, -3, -3, -3, -6, -6, -7], [-2, -4, -3, -5, -7, -6, -8, -7]]


def test_post_local_sgd_turns_local_after_the_step_it_says() -> None:
    def rank(number: int) -> Any:
        model = Weights(0.0)
        return trajectory("post_local_sgd:start=3,period=2", model, [constant(model, 2.0 * number)] * 7, rate=1)

    assert results(2, rank) == [[-1, -2, -3, -3, -5, -5, -7, -7], [-1, -2, -3, -5, -5, -7, -7, -7]]


@pytest.mark.parametrize(("momentum", "expected"), [("keep", [0, 2]), ("average", [1, 1]), ("reset", [0, 0])])
def test_momentum_is_kept_averaged_or_reset(momentum: str, expected: list[float]) -> None:
    def rank(number: int) -> Any:
        model = Weights(0.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=1, momentum=0.5)
        training.attach(model, optimizer, LocalSgd(period=1, momentum=momentum))
        list(walk(model, optimizer, [constant(model, 2.0 * number)]))
        return optimizer.state[model.all[0]]["momentum_buffer"].item()

    assert results(2, rank) == expected


def test_diloco_steps_by_its_outer_optimiser() -> None:
    """Two rounds of two steps: delta = 2 and again 2 (mean of 0 and 4). Nesterov: v = 2, w = -(2 + 2/2)/2 = -1.5;
    v = 2/2 + 2 = 3, w = -1.5 - (2 + 3/2)/2 = -3.25."""

    def rank(number: int) -> Any:
        model = Weights(0.0)
        method = DiLoCo(period=2, rate=0.5, momentum=0.5)
        return trajectory(method, model, [constant(model, 2.0 * number)] * 4, rate=1)

    assert results(2, rank) == [[0, -1.5, -1.5, -3.25, -3.25], [-2, -1.5, -3.5, -3.25, -3.25]]


def test_fragments_are_sent_before_their_turn_and_mixed_with_what_ranks_did_since() -> None:
    """Two parameters, two fragments, period 4, delay 1: sent after steps 1, 3 and 5, applied after 2, 4 and 6.

    Gradients 1 and 3. First: moved (1, 3), then w = (-2, -6) and shared -2, mixed by a quarter (-2, -3); moved (3, 10),
    w = (-6, -15), shared -2 - 6.5, mixed (-7.875, -10.125). Second: moved (3, 9), w = (-4, -12), shared -6, mixed
    (-5.5, -7.5). The end has the rest of the second's: it moved to (-7.5, -13.5), so by (1.5, 7.5); shared is -6 - 4.5.
    """

    def rank(number: int) -> Any:
        model = Weights(0.0, 0.0)
        method = StreamingDiLoCo(period=4, rate=1, momentum=0, fragments=2, delay=1, mix=0.25)
        return trajectory(method, model, [constant(model, 1.0 + 2 * number)] * 6, rate=1)

    low, high = results(2, rank)
    assert low == [[-1, -1], [-2, -2], [-3, -3], [-4, -5.5], [-5, -6.5], [-7.875, -7.5], [-8.5, -10.5]]
    assert high == [[-3, -3], [-3, -6], [-6, -9], [-9, -7.5], [-12, -10.5], [-10.125, -13.5], [-8.5, -10.5]]


@pytest.mark.parametrize(
    ("sizes", "fragments", "expected"),
    [([4, 4, 4, 4], 2, [2, 2]), ([100, 1, 1], 3, [1, 1, 1]), ([1, 1, 100], 2, [2, 1]), ([7, 1, 1, 7], 2, [2, 2])],
)
def test_fragments_are_runs_of_about_equal_size(sizes: list[int], fragments: int, expected: list[int]) -> None:
    parameters = [torch.zeros(size) for size in sizes]
    found = fragments_of(parameters, fragments)
    assert [len(run) for run in found] == expected
    assert [id(one) for run in found for one in run] == [id(one) for one in parameters]


# ---- elastic averaging and gossip


def test_a_pull_moves_ranks_and_centre_and_keeps_their_sum() -> None:
    """Gradients 0, alpha 1/4; the ranks at 0 and 8, the centre at 0. Apart (0, 8), (-2, 4), (-2, 2.5)."""

    def rank(number: int) -> Any:
        model = Weights(0.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        attached: Any = training.attach(model, optimizer, "easgd:period=1,alpha=0.25")
        model.all[0].data.fill_(8.0 * number)
        found = []
        for weights in walk(model, optimizer, [constant(model, 0.0)] * 3):
            found.append((weights, attached._centre.arrays[0].item()))
        return [*found, finished(attached, model)]

    low, high = results(2, rank)
    assert low == [(0, 0), (0, 2), (0.5, 2.5), 2.625]
    assert high == [(8, 0), (6, 2), (5, 2.5), 2.625]
    assert all(one + other + centre == 8 for (one, centre), (other, _) in zip(low[:3], high[:3], strict=True))


def test_gradients_are_those_of_the_parameters_before_the_pull() -> None:
    """EASGD, gradient w: after one step 2 and 4, centre 4: 2 + 2/4 - 2/2 and 4 - 4/2."""

    def rank(number: int) -> Any:
        model = Weights(4.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        training.attach(model, optimizer, "easgd:period=1,alpha=0.25")
        model.all[0].data.fill_(4.0 + 4 * number)
        return list(walk(model, optimizer, [towards(model, 0.0)] * 2))

    assert results(2, rank) == [[2, 1.5], [4, 2]]


@pytest.mark.parametrize(
    ("start", "after"),
    [
        ([81.0, 0.0, -81.0, 0.0], [[27.0, 0.0, -27.0, 0.0], [9.0, 0.0, -9.0, 0.0]]),  # eigenvalue 1/3 of the ring of 4
        ([9.0, -9.0, 9.0, -9.0], [[-3.0, 3.0, -3.0, 3.0], [1.0, -1.0, 1.0, -1.0]]),  # -1/3
        ([9.0, 0.0, 0.0, 0.0], [[3.0, 3.0, 0.0, 3.0], [3.0, 2.0, 2.0, 2.0]]),
        ([9.0, 0.0, -3.0], [[2.0] * 3] * 2),
        ([4.0, 0.0], [[2.0] * 2] * 2),
    ],
)
def test_gossip_keeps_the_mean_and_contracts_as_the_ring_does(start: list[float], after: list[list[float]]) -> None:
    def rank(number: int) -> Any:
        model = Weights(0.0, dtype=torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        attached = training.attach(model, optimizer, "dpsgd")
        model.all[0].data.fill_(start[number])
        return [*walk(model, optimizer, [constant(model, 0.0)] * 2), finished(attached, model)]

    found = [list(step) for step in zip(*results(len(start), rank), strict=True)]
    mean = sum(start) / len(start)
    assert found == [*after, [mean] * len(start)]
    assert all(sum(step) == sum(start) for step in found)


def test_gossip_steps_by_gradients_of_the_parameters_before_it() -> None:
    def rank(number: int) -> Any:
        model = Weights(0.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        training.attach(model, optimizer, "dpsgd")
        model.all[0].data.fill_(8.0 * number)
        return list(walk(model, optimizer, [towards(model, 0.0)] * 2))

    assert results(2, rank) == [[4, 0], [0, 2]]


# ---- one step of delay


@pytest.mark.parametrize(
    ("warm_up", "expected"),
    [
        # W = 8, 5, 2.75, 1.8125 by gradients (8, 4), (6, 3), (3.5, 0.25) of w = 8, (6, 7), (3.5, 4.25)
        (0, [[6, 3.5, 1.875, 1.8125], [7, 4.25, 2.6875, 1.8125]]),
        # W = 8, 5 by (8, 4) at once; then gradients (5, 1), (3.75, 0.75): W = 3.5, 2.375
        (1, [[5, 3.75, 2.5625, 2.375], [5, 4.75, 3.3125, 2.375]]),
    ],
)
def test_the_optimiser_steps_one_step_late_and_ranks_go_on_from_a_local_update(warm_up: int, expected: Any) -> None:
    def rank(number: int) -> Any:
        model = Weights(8.0)
        return trajectory(OdSgd(local_rate=0.25, warm_up=warm_up), model, [towards(model, 4.0 * number)] * 3)

    assert results(2, rank) == expected


def test_what_codes_leave_out_is_sent_later_and_not_by_corrections() -> None:
    """One rank's gradients are 3, the other's 1, of which codes stand for 4 or 0. Residuals: step 1 (3, 1); 2, codes
    (4, 0), (2, 2); 3 is a correction, (2, 2); 4, codes (4, 0), (1, 3); 5, codes (4, 4). Means: 0, 2, 2, 2, 4."""

    def rank(number: int) -> Any:
        model = Weights(0.0)
        method = CdSgd(local_rate=0, warm_up=0, period=3, compressor=two_bits(4))
        return trajectory(method, model, [constant(model, 3.0 - 2 * number)] * 5, rate=1)

    assert results(2, rank) == [[0, 0, -2, -4, -6, -10]] * 2


# ---- methods that are others


def network() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Conv2d(2, 5, 3), torch.nn.BatchNorm2d(5), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(80, 7)
    )


def trained(initial: torch.nn.Module, method: Any, number: int, steps: int = 11, kind: str = "adamw") -> list[Any]:
    """Bits of parameters and buffers after each step, and after `finish`."""
    model = copy.deepcopy(initial)
    optimizer = {
        "adamw": lambda: torch.optim.AdamW(model.parameters(), lr=0.01),
        "nesterov": lambda: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True),
    }[kind]()
    attached = training.attach(model, optimizer, method)
    random, found = torch.Generator().manual_seed(number), []
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 2, 6, 6, generator=random)).square().mean().backward()
        optimizer.step()
        found.append(bits(model))
    attached.finish()
    return [*found, bits(model)]


def bits(model: torch.nn.Module) -> bytes:
    return b"".join(one.numpy().tobytes() for one in model.state_dict().values())


@pytest.mark.parametrize("kind", ["adamw", "nesterov"])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (CdSgd(period=1, warm_up=3, compressor=two_bits(4)), OdSgd(warm_up=3)),
        ("cd_sgd:period=1,warm_up=3~ternary:least=0", OdSgd(warm_up=3)),
        ("cd_sgd:period=1,warm_up=3~topk:ratio=0.01,least=0+ef", OdSgd(warm_up=3)),
        (CdSgd(period=4, warm_up=3), OdSgd(warm_up=3)),
        (StreamingDiLoCo(period=4, fragments=1, delay=0, mix=0), DiLoCo(period=4)),
        ("post_local_sgd:start=0,period=4", "local_sgd:period=4"),
    ],
    ids=[
        "cd_sgd-in-full",
        "cd_sgd-ternary",
        "cd_sgd-topk",
        "cd_sgd-exact",
        "streaming-undivided",
        "post_local-from-the-start",
    ],
)
def test_methods_are_others_at_the_ends_of_their_options(one: Any, other: Any, kind: str) -> None:
    initial = network()
    assert results(2, lambda number: trained(initial, one, number, kind=kind)) == results(
        2, lambda number: trained(initial, other, number, kind=kind)
    )


# ---- what every method promises

ALL = [
    "local_sgd:period=4",
    "local_sgd:period=4,momentum=average",
    "post_local_sgd:start=3,period=4",
    "diloco:period=4",
    "streaming_diloco:period=6,fragments=3,delay=1",
    "streaming_diloco:period=6,fragments=2,delay=2,mix=0.5",
    "easgd:period=2",
    "dpsgd",
    "od_sgd:warm_up=2",
    "cd_sgd:warm_up=2,period=3",
]
EQUAL_AFTER = {0: [4, 8], 1: [4, 8], 2: [7, 11], 3: [4, 8]}


@pytest.mark.parametrize("case", range(len(ALL)), ids=ALL)
def test_ranks_have_the_same_bits_after_a_synchronisation_and_in_the_end(case: int) -> None:
    """Buffers with floats, too, when parameters are averaged: not in post-local SGD's synchronous steps."""
    initial = network()
    found = results(3, lambda number: trained(initial, ALL[case], number))
    assert found[0][-1] == found[1][-1] == found[2][-1]
    equal = [step + 1 for step in range(11) if len({one[step] for one in found}) == 1]
    assert equal == EQUAL_AFTER.get(case, [])


@pytest.mark.parametrize("method", ["local_sgd:period=1", "diloco:period=1,rate=1,momentum=0", "od_sgd:warm_up=0"])
def test_every_value_is_summed_whatever_the_sizes_of_tensors_and_calls(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls of 10 float32 or 5 float64: tensors that fit, that don't, that end where a call does; empty ones."""
    monkeypatch.setattr(flat_tensors, "PIECE_BYTES", 40)
    sizes = [3, 25, 8, 1, 0, 12, 10, 1]

    def rank(number: int) -> Any:
        model = torch.nn.ParameterList(
            [torch.zeros(size, dtype=torch.float64 if i % 3 == 1 else torch.float32) for i, size in enumerate(sizes)]
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=1)
        attached = training.attach(model, optimizer, method)
        for _ in range(2):
            optimizer.zero_grad()
            sum((number * torch.arange(1.0, 1 + len(one)) * one).sum() for one in model).backward()  # type: ignore[union-attr]
            optimizer.step()
        attached.finish()
        return [one.tolist() for one in model]

    expected = [[-float(value) for value in range(1, 1 + size)] for size in sizes]
    assert results(2, rank) == [expected] * 2
