"""Overlap across iterations: the bits of the unscheduled run, on groups inside one process; any loop and any model."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from fake_groups import FakeNetwork, run_ranks
from torch import nn
from torch.nn.functional import cross_entropy

from transport.torch.priority import handle as priority

WORKERS = 3  # so that dividing isn't exact
STEPS = 8  # three observed, one with the new plan alone, and some that overlap

torch.set_num_threads(1)


@pytest.fixture
def network() -> Iterator[Callable[..., FakeNetwork]]:
    made: list[FakeNetwork] = []

    def make(kind: str = "keyed", workers: int = WORKERS, **how: Any) -> FakeNetwork:
        made.append(FakeNetwork(workers, kind, **how))
        return made[-1]

    yield make
    for each in made:
        each.stop()


class Plain:
    """What a handle is compared with: at `step`, each gradient's mean over the ranks, one after the other, as it is."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, group: Any) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.group = group
        self.calls = 0
        self.averaged = False
        optimizer.register_step_pre_hook(lambda *_: self.average())
        optimizer.register_step_post_hook(lambda *_: setattr(self, "averaged", False))

    def no_sync(self) -> Any:
        return contextlib.nullcontext()

    def wait(self) -> None:
        if any(p.grad is not None for p in self.parameters):
            self.average()

    def average(self) -> None:
        if self.averaged:
            return
        self.averaged = True
        for p in self.parameters:
            used = np.array([p.grad is not None], np.int32)
            mean = torch.zeros_like(p) if p.grad is None else p.grad
            flat = mean.detach().contiguous().view(-1).clone()
            for array in (used, flat.numpy()):
                self.calls += 1
                self.group.allreduce(array, key=self.calls).result(30)
            flat /= self.group.workers
            if used[0]:
                p.grad = mean.copy_(flat.view(mean.shape))


Body = Callable[[int, nn.Module, torch.optim.Optimizer, Any], Any]
Make = Callable[[], nn.Module]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 33), nn.ReLU(), nn.Linear(33, 50), nn.ReLU(), nn.Linear(50, 4))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3, nesterov=True)


def batch(step: int, rank: int, size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step * 100 + rank)
    return torch.randn(size, 6, generator=generator), torch.randint(0, 4, (size,), generator=generator)


def ordinary(rank: int, model: nn.Module, optimizer: torch.optim.Optimizer, handle: Any) -> None:
    for step in range(STEPS):
        points, labels = batch(step, rank)
        optimizer.zero_grad()
        cross_entropy(model(points), labels).backward()
        optimizer.step()


def trained(
    network: FakeNetwork,
    body: Body,
    schedule: str | None,
    make_model: Make = mlp,
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
    **how: Any,
) -> list[dict[str, torch.Tensor]]:
    """Each rank's parameters and state of the optimizer, by name, after the body. schedule None: plain."""
    torch.manual_seed(1)
    models = [make_model() for _ in range(network.workers)]
    for model in models[1:]:
        model.load_state_dict(models[0].state_dict())
    groups = network.groups()

    def program(rank: int) -> dict[str, torch.Tensor]:
        model = models[rank]
        optimizer = make_optimizer(model)
        if schedule is None:
            body(rank, model, optimizer, Plain(model, optimizer, groups[rank]))
        else:
            options = priority.AttachOptions(**how)
            with priority.attach(model, optimizer, groups[rank], schedule, options=options) as handle:
                body(rank, model, optimizer, handle)
        found = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        for name, parameter in model.named_parameters():
            for key, value in optimizer.state.get(parameter, {}).items():
                found[f"{name}/{key}"] = torch.as_tensor(value).clone() if value is not None else torch.zeros(0)
        return found

    result: list[dict[str, torch.Tensor]] = run_ranks(program, network.workers)
    assert network.mismatches == []
    return result


def assert_same_bits(found: list[dict[str, torch.Tensor]], expected: list[dict[str, torch.Tensor]]) -> None:
    for mine, plain in zip(found, expected, strict=True):
        assert mine.keys() == plain.keys()
        wrong = [name for name in mine if not torch.equal(mine[name], plain[name])]
        assert wrong == [], {name: float((mine[name] - plain[name]).abs().max()) for name in wrong}


SCHEDULES = [
    "bsp",
    "wfbp",
    "mg_wfbp",
    "fusion:threshold=2kB,cycle=200us",
    "p3:slice=100",
    "tictac",
    "bytescheduler:partition=1kB,credit=4kB",
]


@pytest.mark.parametrize("kind", ["keyed", "classes"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_parameters_have_the_bits_of_the_unscheduled_run(
    network: Callable[..., FakeNetwork], schedule: str, kind: str
) -> None:
    expected = trained(network(), ordinary, None)
    assert not torch.equal(expected[0]["0.weight"], torch.zeros(33, 6))
    for seed in range(2):
        assert_same_bits(trained(network(kind, seed=seed), ordinary, schedule), expected)


def scheduled_rates(before: bool) -> Callable[[nn.Module], torch.optim.Optimizer]:
    """Two groups of options, and a scheduler made before or after the handle is attached."""

    def make(model: nn.Module) -> torch.optim.Optimizer:
        parameters = list(model.parameters())
        optimizer = torch.optim.SGD(
            [{"params": parameters[:2], "lr": 0.05}, {"params": parameters[2:], "weight_decay": 0.01}], lr=0.1
        )
        if before:
            optimizer.rates = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)  # type: ignore[attr-defined]
        return optimizer

    return make


def with_rates(rank: int, model: nn.Module, optimizer: Any, handle: Any) -> None:
    rates = getattr(optimizer, "rates", None) or torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    for step in range(STEPS):
        points, labels = batch(step, rank)
        optimizer.zero_grad()
        cross_entropy(model(points), labels).backward()
        optimizer.step()
        rates.step()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("before", [True, False])
def test_each_step_uses_the_rates_of_its_own_call(network: Callable[..., FakeNetwork], before: bool) -> None:
    make = scheduled_rates(before)
    expected = trained(network(), with_rates, None, make_optimizer=make)
    assert_same_bits(trained(network(), with_rates, "p3:slice=100", make_optimizer=make), expected)


def test_a_rate_that_is_a_tensor_is_taken_when_step_is_called(network: Callable[..., FakeNetwork]) -> None:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01))

    def body(rank: int, model: nn.Module, optimizer: torch.optim.Optimizer, handle: Any) -> None:
        for step in range(STEPS):
            points, labels = batch(step, rank)
            optimizer.zero_grad()
            cross_entropy(model(points), labels).backward()
            optimizer.step()
            optimizer.param_groups[0]["lr"].mul_(0.5)

    expected = trained(network(), body, None, make_optimizer=make)
    assert_same_bits(trained(network(), body, "wfbp", make_optimizer=make), expected)


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    "dampening": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.3),
    "foreach": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True),
    "maximize": lambda model: torch.optim.SGD(model.parameters(), lr=0.01, maximize=True, weight_decay=0.1),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.1),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1, amsgrad=True),
    "rmsprop": lambda model: torch.optim.RMSprop(model.parameters(), lr=0.01, momentum=0.9),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(network: Callable[..., FakeNetwork], name: str) -> None:
    expected = trained(network(), ordinary, None, make_optimizer=OPTIMIZERS[name])
    found = trained(network(), ordinary, "bytescheduler:partition=1kB,credit=4kB", make_optimizer=OPTIMIZERS[name])
    assert_same_bits(found, expected)


# ---- loops that aren't ordinary


def accumulating(rank: int, model: nn.Module, optimizer: torch.optim.Optimizer, handle: Any) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        for micro in range(3):
            points, labels = batch(step * 3 + micro, rank)
            with handle.no_sync() if micro < 2 else contextlib.nullcontext():
                cross_entropy(model(points), labels).backward()
        optimizer.step()


def all_without_sync(rank: int, model: nn.Module, optimizer: torch.optim.Optimizer, handle: Any) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        with handle.no_sync():
            points, labels = batch(step, rank)
            cross_entropy(model(points), labels).backward()
        optimizer.step()


def never_zeroed(rank: int, model: nn.Module, optimizer: torch.optim.Optimizer, handle: Any) -> None:
    for step in range(STEPS):
        points, labels = batch(step, rank)
        cross_entropy(model(points), labels).backward()
        optimizer.step()


def zeroed_in_place(rank: int, model: nn.Module, optimizer: torch.optim.Optimizer, handle: Any) -> None:
    for step in range(STEPS):
        points, labels = batch(step, rank)
        cross_entropy(model(points), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def zeroed_by_the_model(rank: int, model: nn.Module, optimizer: torch.optim.Optimizer, handle: Any) -> None:
    for step in range(STEPS):
        model.zero_grad()
        points, labels = batch(step, rank)
        cross_entropy(model(points), labels).backward()
        optimizer.step()


def clipped(rank: int, model: nn.Module, optimizer: torch.optim.Optimizer, handle: Any) -> None:
    for step in range(STEPS):
        points, labels = batch(step, rank)
        optimizer.zero_grad()
        cross_entropy(model(points), labels).backward()
        if step != 5:
            handle.wait()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if step == 6:
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad = parameter.grad * 0.5  # another tensor
        optimizer.step()


def dropped(rank: int, model: nn.Module, optimizer: torch.optim.Optimizer, handle: Any) -> None:
    for step in range(STEPS):
        points, labels = batch(step, rank)
        cross_entropy(model(points), labels).backward()
        if step in (1, 5):
            optimizer.zero_grad()  # before the step: that one has nothing to do
        optimizer.step()
        optimizer.zero_grad()


def evaluating(rank: int, model: nn.Module, optimizer: torch.optim.Optimizer, handle: Any) -> None:
    """Rank 0 alone looks at its model between the steps, in several ways."""
    for step in range(STEPS):
        points, labels = batch(step, rank)
        optimizer.zero_grad()
        cross_entropy(model(points), labels).backward()
        optimizer.step()
        if rank == 0 and step % 2:
            model.eval()
            with torch.inference_mode() if step == 5 else torch.no_grad():
                model(points)
            model.train()
        elif rank == 0:
            optimizer.load_state_dict(optimizer.state_dict())
            model.load_state_dict(model.state_dict())


def failing_now_and_then(rank: int, model: nn.Module, optimizer: torch.optim.Optimizer, handle: Any) -> None:
    """A forward pass that ends in the middle, and is done again."""
    for step in range(STEPS):
        points, labels = batch(step, rank)
        optimizer.zero_grad()
        if step in (2, 5, 6):
            hook = model[2].register_forward_pre_hook(lambda *_: 1 // 0)  # type: ignore[index]
            with pytest.raises(ZeroDivisionError):
                model(points)
            hook.remove()
        cross_entropy(model(points), labels).backward()
        optimizer.step()


BODIES = [
    accumulating,
    all_without_sync,
    never_zeroed,
    zeroed_in_place,
    zeroed_by_the_model,
    clipped,
    dropped,
    evaluating,
    failing_now_and_then,
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_loops(network: Callable[..., FakeNetwork], body: Body) -> None:
    expected = trained(network(), body, None)
    for schedule in ("p3:slice=100", "bsp"):
        assert_same_bits(trained(network(), body, schedule), expected)


# ---- models that aren't ordinary


class Sometimes(nn.Module):
    """A layer that rank and step decide on, one that no rank uses, and one whose parameters are frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.maybe, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.never = nn.Linear(8, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.empty = nn.Parameter(torch.zeros(0))
        self.take = True

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        hidden = self.frozen(self.first(points))
        out: torch.Tensor = self.last(self.maybe(hidden) if self.take else hidden)
        return out


def sometimes(rank: int, model: Any, optimizer: torch.optim.Optimizer, handle: Any) -> None:
    for step in range(STEPS + 4):
        model.take = (rank + step) % 3 == 0 if step < 8 else step == 10  # on one rank, on none, on all
        points, labels = batch(step, rank)
        optimizer.zero_grad()
        cross_entropy(model(points), labels).backward()
        optimizer.step()


def sometimes_zeroed_in_place(rank: int, model: Any, optimizer: torch.optim.Optimizer, handle: Any) -> None:
    """A gradient of zeros is one: the parameter decays, and its momentum goes on."""
    for step in range(STEPS + 4):
        model.take = step in (2, 6)
        points, labels = batch(step, rank)
        cross_entropy(model(points), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def late_in_an_evaluation(rank: int, model: Any, optimizer: torch.optim.Optimizer, handle: Any) -> None:
    """The first step of a layer, which makes the optimizer's state, happens within an evaluation."""
    for step in range(STEPS + 4):
        model.take = step >= 5
        points, labels = batch(step, rank)
        optimizer.zero_grad()
        cross_entropy(model(points), labels).backward()
        optimizer.step()
        if step == 5:
            with torch.inference_mode():
                model(points)


@pytest.mark.parametrize("body", [sometimes_zeroed_in_place, late_in_an_evaluation], ids=lambda body: body.__name__)
def test_gradients_that_come_late(network: Callable[..., FakeNetwork], body: Body) -> None:
    expected = trained(network(), body, None, Sometimes)
    assert_same_bits(trained(network(), body, "wfbp", Sometimes), expected)


def test_parameters_without_gradients(network: Callable[..., FakeNetwork]) -> None:
    expected = trained(network(), sometimes, None, Sometimes)
    assert "never.weight/momentum_buffer" not in expected[0]
    assert "maybe.weight/momentum_buffer" in expected[0]
    for schedule in ("wfbp", "bsp", "p3:slice=10"):
        assert_same_bits(trained(network(), sometimes, schedule, Sometimes), expected)
        assert_same_bits(trained(network("classes"), sometimes, schedule, Sometimes), expected)


def test_parameters_without_gradients_may_take_part_with_zeros(network: Callable[..., FakeNetwork]) -> None:
    found = trained(network(), sometimes, "wfbp", Sometimes, find_unused_parameters=False)
    assert torch.equal(found[0]["never.weight/momentum_buffer"], found[2]["never.weight/momentum_buffer"])
    assert_same_bits(found[1:], found[:1] * 2)


class Tied(nn.Module):
    """One weight in two modules, used early and late; a projection that is used without a call of its module."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(6, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.late, self.early = nn.Linear(8, 8), nn.Linear(8, 8)  # not in the order of their calls
        self.late.weight = self.early.weight
        self.scale = nn.Parameter(torch.ones(8))
        self.out = nn.Linear(8, 4)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        hidden = self.early(self.into(points)).unsqueeze(0)
        hidden = self.attention(hidden, hidden, hidden, need_weights=False)[0].squeeze(0) * self.scale
        out: torch.Tensor = self.out(self.late(hidden).relu())
        return out


class Mixed(nn.Module):
    """Both types, gradients that aren't contiguous, and two branches."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, (1, 2)).to(memory_format=torch.channels_last)
        self.second = nn.Conv2d(4, 3, (1, 2)).to(memory_format=torch.channels_last)
        self.wide = nn.Linear(12, 8, dtype=torch.float64)
        self.branch = nn.Linear(6, 8)
        self.out = nn.Linear(8, 4)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        image = points[:, None, None, :].to(memory_format=torch.channels_last)
        fine = self.wide(self.second(self.convolution(image)).flatten(1).double())
        out: torch.Tensor = self.out(self.branch(points) + fine.float())
        return out


@pytest.mark.parametrize("make", [Tied, Mixed])
@pytest.mark.parametrize("schedule", ["bsp", "p3:slice=10", "tictac", "fusion"])
def test_models(network: Callable[..., FakeNetwork], make: Make, schedule: str) -> None:
    expected = trained(network(), ordinary, None, make)
    assert_same_bits(trained(network(), ordinary, schedule, make), expected)


def test_the_profile_knows_layers_their_order_and_their_inputs(network: Callable[..., FakeNetwork]) -> None:
    profiles: list[Any] = []

    def body(rank: int, model: nn.Module, optimizer: torch.optim.Optimizer, handle: Any) -> None:
        ordinary(rank, model, optimizer, handle)
        profiles.append(handle.profile)

    trained(network(), body, "tictac", Mixed)
    assert profiles[0] == profiles[1] == profiles[2]
    layers = profiles[0].layers
    assert [layer.name for layer in layers] == ["convolution", "second", "wide", "branch", "out"]
    assert [layer.inputs for layer in layers] == [(), (0,), (1,), (), (2, 3)]
    assert all(layer.forward_ns > 0 for layer in layers)
    places = {tensor.name: tensor.layer for tensor in profiles[0].tensors}
    assert places["wide.weight"] == 2
    assert places["out.bias"] == 4
    ready = {tensor.name: tensor.ready_ns for tensor in profiles[0].tensors}
    assert 0 < ready["out.weight"] < ready["second.weight"] < ready["convolution.weight"] <= profiles[0].backward_ns

    profiles.clear()
    trained(network(), body, "wfbp", Tied)
    names = [layer.name for layer in profiles[0].layers]
    assert names == ["model", "into", "early", "attention", "late", "out"]
    places = {tensor.name: names[tensor.layer] for tensor in profiles[0].tensors}
    assert places["scale"] == "model"
    assert places["late.weight"] == "early"
    assert places["attention.out_proj.weight"] == "attention"
