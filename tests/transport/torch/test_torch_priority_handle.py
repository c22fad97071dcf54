"""The priority wrapper's handle: what overlaps, how it begins and ends, misuse, failures."""

import copy as copying
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import torch
from fake_groups import FakeNetwork, run_ranks
from test_torch_priority import STEPS, WORKERS, Make, batch, mlp, ordinary, sgd, trained
from torch import nn
from torch.nn.functional import cross_entropy

from switchagg.errors import AggregationFailed
from transport.torch.priority import handle as priority


@pytest.fixture
def network() -> Iterator[Callable[..., FakeNetwork]]:
    made: list[FakeNetwork] = []

    def make(kind: str = "keyed", workers: int = WORKERS, **how: Any) -> FakeNetwork:
        made.append(FakeNetwork(workers, kind, **how))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def test_forward_begins_when_its_first_layers_sums_are_back(network: Callable[..., FakeNetwork]) -> None:
    """The sums of the last layer are kept back: the first layer's forward must run all the same, and only that."""
    fake = network(workers=1)
    group = fake.groups()[0]
    torch.manual_seed(0)
    model = mlp()
    optimizer = sgd(model)
    kept: list[Any] = []
    allreduce = group.allreduce

    def holding(array: Any, op: str = "sum", *, key: int, priority: int = 0, tensors: Any = None) -> Any:
        future = allreduce(array, op, key=key, priority=priority)
        if priority != 2 or not holding_back:
            return future
        later: Future[Any] = Future()
        kept.append((future, later))
        return later

    holding_back = False
    group.allreduce = holding  # type: ignore[method-assign]
    handle = priority.attach(model, optimizer, group, "p3")
    ordinary(0, model, optimizer, handle)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    handle.wait()
    holding_back = True
    points, labels = batch(50, 0)
    optimizer.zero_grad()
    cross_entropy(model(points), labels).backward()
    optimizer.step()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    reached = [threading.Event() for _ in range(5)]
    for event, module in zip(reached, model, strict=True):  # type: ignore[call-overload]
        module.register_forward_hook(lambda *_, event=event: event.set())
    thread = threading.Thread(target=lambda: model(points), daemon=True)
    thread.start()
    assert reached[2].wait(30)  # layers 0 and 2 have run, though the sums of 4 are not here
    assert not reached[4].is_set()
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert {"0.weight", "2.weight"} <= changed
    assert "4.weight" not in changed
    for future, later in kept:
        later.set_result(future.result(30))
    thread.join(30)
    assert reached[4].is_set()
    assert not torch.equal(dict(model.named_parameters())["4.weight"], before["4.weight"])
    records = handle.records()
    waited = [wait.module for wait in records.waits if wait.iteration == STEPS]
    # Who waits for one layer steps others whose sums are here, so a forward may find nothing to wait for.
    assert waited == [name for name in ("0", "2", "4") if name in waited]
    assert waited[-1] == "4"
    assert all(wait.end_ns >= wait.begin_ns for wait in records.waits)
    last = [record for record in records.transfers if record.iteration == STEPS]
    assert {record.name for record in last} == {
        "0.bias[0:33]", "0.weight[0:198]", "2.bias[0:50]", "2.weight[0:1650]", "4.bias[0:4]", "4.weight[0:200]",
        "which parameters are used",
    }  # fmt: skip
    assert all(record.ready_ns <= record.launched_ns <= record.completed_ns for record in last)
    assert max(record.completed_ns for record in last if record.priority == 0) < min(
        record.completed_ns for record in last if record.priority == 2
    )
    handle.close()


def test_a_sum_that_arrives_during_a_search_is_stepped_once(network: Callable[..., FakeNetwork]) -> None:
    """`wait` reports another sum; by the time that one is looked up, the one waited for has arrived, too."""
    group = network(workers=1).groups()[0]
    model = mlp()
    optimizer = sgd(model)
    handle = priority.attach(model, optimizer, group, "p3")
    ordinary(0, model, optimizer, handle)
    exchange = handle._exchange
    wait = exchange.wait
    late: list[int] = []

    def all_here_too_late(index: int, alternatives: Any = ()) -> bool:
        for each in (index, *alternatives):
            wait(each)
        if index in late or len(alternatives) < 2:
            return True
        late.append(index)
        return False

    exchange.wait = all_here_too_late  # type: ignore[method-assign]
    before = [p.detach().clone() for p in model.parameters()]
    points, labels = batch(50, 0)
    optimizer.zero_grad()
    cross_entropy(model(points), labels).backward()
    optimizer.step()
    model(points)
    assert late
    assert not any(torch.equal(p, was) for p, was in zip(model.parameters(), before, strict=True))
    handle.close()


def test_keys_and_priorities_reach_the_group(network: Callable[..., FakeNetwork]) -> None:
    fake = network("classes", classes=(0, 3, 5, 7))
    trained(fake, ordinary, "p3:slice=100")
    assert len({tuple(sorted(made)) for made in fake.made}) == 1
    for rank in range(WORKERS):  # of each class in the same order
        for number in fake.classes:
            assert [m for m in fake.made[rank] if m[0] == number] == [m for m in fake.made[0] if m[0] == number]
    assert {match[0] for match in fake.made[0][-10:]} >= {0, 3}


def test_the_credit_is_passed_to_groups_that_take_one(network: Callable[..., FakeNetwork]) -> None:
    fake = network(workers=1)
    group = fake.groups()[0]
    model = mlp()
    with priority.attach(model, sgd(model), group, "bytescheduler:credit=12345") as handle:
        assert group.credit_bytes is None  # type: ignore[attr-defined]
        ordinary(0, model, handle._optimizer, handle)
    assert group.credit_bytes == 12345  # type: ignore[attr-defined]


# ---- the beginning and the end


def test_all_ranks_begin_with_the_parameters_of_rank_0(network: Callable[..., FakeNetwork]) -> None:
    fake = network()
    groups = fake.groups()
    models = []
    for seed in range(WORKERS):
        torch.manual_seed(seed)
        models.append(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    models[0][1].num_batches_tracked.fill_(7)
    expected = {name: value.clone() for name, value in models[0].state_dict().items()}

    def program(rank: int) -> dict[str, torch.Tensor]:
        priority.attach(models[rank], sgd(models[rank]), groups[rank], "bsp").close()
        return models[rank].state_dict()

    for found in run_ranks(program, WORKERS):
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_close_restores_the_optimizer_and_removes_all_hooks(network: Callable[..., FakeNetwork]) -> None:
    fake = network(workers=1)
    model = mlp()
    optimizer = sgd(model)
    rates = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    step, zero_grad = optimizer.step, optimizer.zero_grad
    handle = priority.attach(model, optimizer, fake.groups()[0], "p3")
    assert optimizer.step != step
    later = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    ordinary(0, model, optimizer, handle)
    handle.close()
    handle.close()
    calls = len(fake.made[0])
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    ordinary(0, model, optimizer, handle)
    rates.step()
    later.step()
    assert len(fake.made[0]) == calls
    assert all(not torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert optimizer.zero_grad == zero_grad
    assert "zero_grad" not in model.__dict__
    with pytest.raises(RuntimeError, match="the priority handle is closed"):
        handle.wait()
    assert [thread for thread in threading.enumerate() if thread.name.startswith("priority-")] == []


class Strange(torch.optim.SGD):
    """Not PyTorch's."""


def unwrapped_error(make_model: Make, make_optimizer: Callable[[nn.Module], Any], how: dict[str, Any]) -> Exception:
    fake = FakeNetwork(1)
    try:
        model = make_model()
        schedule = how.pop("schedule", "bytescheduler")
        options = priority.AttachOptions(**how)
        priority.attach(model, make_optimizer(model), fake.groups()[0], schedule, options=options)
    except Exception as error:
        return error
    finally:
        fake.stop()
    raise AssertionError("no exception")


@pytest.mark.parametrize(
    ("make_model", "make_optimizer", "how", "words"),
    [
        (lambda: mlp().half(), sgd, {}, "parameter 0.weight is torch.float16; float32 and float64 can be scheduled"),
        (lambda: mlp().to("meta"), sgd, {}, "parameter 0.weight is on meta; only CPU tensors"),
        (mlp, lambda model: torch.optim.SGD(model[0].parameters()), {}, "parameter 2.weight is not in the optimizer"),
        (mlp, lambda model: torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(1))]), {}, "not the model's"),
        (mlp, lambda model: torch.optim.LBFGS(model.parameters()), {}, "LBFGS doesn't treat each parameter by itself"),
        (mlp, lambda model: Strange(model.parameters()), {}, "isn't PyTorch's own; .*elementwise_optimizer=True"),
        (mlp, sgd, {"schedule": "p4"}, "schedule 'p4' is unknown"),
        (mlp, sgd, {"observed_iterations": 0}, "observed_iterations 0: 1 or more"),
        (lambda: mlp().requires_grad_(False), sgd, {}, "no trainable parameter"),
    ],
)
def test_unsupported_models_and_optimizers_are_refused(
    make_model: Make, make_optimizer: Any, how: Any, words: str
) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        raise unwrapped_error(make_model, make_optimizer, how)
    assert "\n" not in str(caught.value)


def test_a_missing_group_is_reported() -> None:
    model = mlp()
    with pytest.raises(TypeError, match="attach: int is no group"):
        priority.attach(model, sgd(model), 3)
    with pytest.raises(ValueError, match=r"no group was given and torch.distributed has none"):
        priority.attach(model, sgd(model))


def test_ranks_that_differ_raise(network: Callable[..., FakeNetwork]) -> None:
    groups = network().groups()

    def program(rank: int) -> str:
        model = mlp() if rank != 1 else nn.Sequential(nn.Linear(6, 34), nn.Linear(34, 4))
        schedule = "p3" if rank != 2 else "p3:slice=7"
        try:
            priority.attach(model, sgd(model), groups[rank], schedule)
        except ValueError as error:
            return str(error)
        return ""

    told = run_ranks(program, WORKERS)
    assert told[0] == "attach: rank 1, 2 has another schedule, or other parameters, than rank 0"
    assert "rank 1 and rank 0 differ: …" in told[1]
    assert "(34, 6)" in told[1]
    assert "(33, 6)" in told[1]
    assert "slice_elements=7" in told[2]


# ---- misuse and failure


@pytest.fixture
def alone(network: Callable[..., FakeNetwork]) -> Iterator[tuple[Any, Any, Any, FakeNetwork]]:
    """One rank, with a plan."""
    fake = network(workers=1)
    torch.manual_seed(0)
    model = mlp()
    optimizer = sgd(model)
    with priority.attach(model, optimizer, fake.groups()[0], "p3") as handle:
        ordinary(0, model, optimizer, handle)
        yield model, optimizer, handle, fake


def loss_of(model: nn.Module, step: int = 0) -> torch.Tensor:
    points, labels = batch(step, 0)
    return cross_entropy(model(points), labels)


def test_a_second_backward_pass_is_refused(alone: Any) -> None:
    model, optimizer, _, _ = alone
    loss_of(model).backward()
    with pytest.raises(RuntimeError, match=r"4\.\w+: a second backward pass before optimizer.step\(\); .*no_sync"):
        loss_of(model).backward()
    optimizer.step()


def test_a_stale_parameter_is_noticed(alone: Any) -> None:
    model, optimizer, handle, _ = alone
    loss_of(model).backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"2\.weight was used outside of a call of its module"):
        model[2].weight.sum().backward()
    handle.wait()
    model.zero_grad()


def test_a_closure_is_refused(alone: Any) -> None:
    model, optimizer, _, _ = alone
    with pytest.raises(ValueError, match=r"step\(closure\) can't be scheduled"):
        optimizer.step(lambda: loss_of(model))


def test_new_parameters_are_noticed(alone: Any) -> None:
    model, optimizer, _, _ = alone
    extra = nn.Parameter(torch.ones(1))
    optimizer.add_param_group({"params": [extra]})
    (loss_of(model) * extra.sum()).backward()
    with pytest.raises(RuntimeError, match="got parameters since attach"):
        optimizer.step()
    extra.grad = None
    optimizer.step()


def test_sparse_gradients_are_refused(network: Callable[..., FakeNetwork]) -> None:
    model = nn.Embedding(5, 3, sparse=True)
    with priority.attach(model, torch.optim.SGD(model.parameters()), network(workers=1).groups()[0], "bsp"):
        with pytest.raises(TypeError, match=r"the gradient of weight is torch.sparse_coo"):
            model(torch.tensor([1])).sum().backward()
        model.zero_grad()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


@pytest.mark.parametrize("after", [0, 7, 40, 41, 47, 55, 63, 70, 99])
@pytest.mark.parametrize("schedule", ["bsp", "p3:slice=500", "fusion:cycle=1ms"])
def test_a_failure_ends_every_rank_with_its_reason(
    network: Callable[..., FakeNetwork], schedule: str, after: int
) -> None:
    fake = network()
    fake.fail_after = after
    groups = fake.groups()
    torch.manual_seed(0)
    models = [mlp() for _ in range(WORKERS)]

    def program(rank: int) -> BaseException:
        model = models[rank]
        optimizer = sgd(model)
        try:
            handle = priority.attach(model, optimizer, groups[rank], schedule)
        except AggregationFailed as error:
            return error
        with pytest.raises(AggregationFailed) as caught:
            train(model, optimizer, 1000)
        with pytest.raises(AggregationFailed):
            handle.wait()
        handle.close()
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()  # the loop's own again
        return caught.value

    for error in run_ranks(program, WORKERS):
        assert "a rank died" in str(error)
        assert error.missing == (1,)


def test_a_group_that_refuses_a_call_fails_the_run(alone: Any) -> None:
    model, _, handle, _ = alone

    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError("no such call")

    handle._channel._group.allreduce = refuse
    with pytest.raises(AggregationFailed, match="no such call"):
        loss_of(model).backward()
    with pytest.raises(AggregationFailed, match="no such call"):
        handle.wait()


def test_after_an_exception_the_context_does_not_wait(network: Callable[..., FakeNetwork]) -> None:
    fake = network(workers=1)
    model = mlp()
    optimizer = sgd(model)

    def interrupted() -> None:
        with priority.attach(model, optimizer, fake.groups()[0], "p3") as handle:
            ordinary(0, model, optimizer, handle)
            loss_of(model).backward()
            fake.hold.clear()
            optimizer.step()
            raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - began < 60
    assert model.zero_grad.__func__ is nn.Module.zero_grad  # type: ignore[attr-defined]


def test_sums_that_are_back_before_the_step_is_asked_for_are_not_summed_again(
    network: Callable[..., FakeNetwork],
) -> None:
    """Without the small call for unused parameters, an iteration's transfers may be over before `step` is called."""
    fake = network(workers=1)
    group = fake.groups()[0]
    model = mlp()
    optimizer = sgd(model)
    handle = priority.attach(
        model,
        optimizer,
        group,
        "wfbp",
        options=priority.AttachOptions(find_unused_parameters=False, share_parameters=False),
    )
    for step in range(6):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        while handle._exchange._scheduler.iteration == handle._exchange._iterations - handle._exchange._earlier:
            time.sleep(0.001)  # until all is back
        optimizer.step()
    handle.close()
    plan_calls = [match for match in fake.made[0] if match >= 1 << 40]
    assert len(plan_calls) == 3 + 3 * len(list(model.parameters()))


def test_ctrl_c_ends_a_wait(alone: Any) -> None:
    """A forward pass that waits for sums which don't come ends at once, and goes on when they do."""
    model, optimizer, handle, fake = alone
    handle.wait()  # for the sums of the steps before, which would be kept back too
    fake.hold.clear()
    loss_of(model).backward()
    optimizer.step()
    before = model[0].weight.detach().clone()
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        loss_of(model)
    timer.join()
    assert torch.equal(model[0].weight, before)
    fake.hold.set()
    handle.wait()
    assert not torch.equal(model[0].weight, before)


def test_copies_of_a_model_are_not_scheduled(alone: Any) -> None:
    model, optimizer, handle, fake = alone
    handle.wait()
    copy = copying.deepcopy(model)
    other = copying.deepcopy(optimizer)
    calls = len(fake.made[0])
    fake.hold.clear()
    loss_of(model).backward()
    optimizer.step()
    with torch.no_grad():
        copy(batch(0, 0)[0])  # doesn't wait
    loss_of(copy).backward()
    copy.zero_grad()
    assert copy[0].weight.grad is None
    other.zero_grad()
    other.step()
    assert len(fake.made[0]) == calls + 7
    fake.hold.set()


def test_wait_leaves_nothing_in_flight(network: Callable[..., FakeNetwork]) -> None:
    """Not even the call that only notifies: the caller may leave the group next."""
    waited: list[bool] = []

    def body(rank: int, model: nn.Module, optimizer: torch.optim.Optimizer, handle: Any) -> None:
        for step in range(40):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
            handle.wait()
            waited.append(handle._exchange._scheduler.idle)

    trained(network(), body, "p3")
    assert waited == [True] * 40 * WORKERS
