"""Training methods in the loops that people have: closures, accumulation, DDP, checkpoints; and what they refuse."""

import copy
import io
from collections.abc import Callable, Iterator
from itertools import permutations
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import groups_per_thread, on_ranks, results, two_bits

from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.torch import training
from transport.torch.rendezvous import SwitchOptions
from transport.torch.training import CdSgd, Easgd, LocalSgd, OdSgd, StreamingDiLoCo
from transport.torch.training.training_methods import METHODS, parse_method

ALL = [
    "local_sgd:period=3,momentum=average",
    "local_sgd:period=3,momentum=reset",
    "post_local_sgd:start=3,period=3",
    "diloco:period=4",
    "streaming_diloco:period=6,fragments=3,delay=1,mix=0.5",
    "easgd:period=5",
    "dpsgd",
    "od_sgd:warm_up=2",
    "cd_sgd:warm_up=2,period=3~lanes8:least=0",
    "diloco:period=4~topk:ratio=0.1,least=0+ef",
]
STEPS = 9


@pytest.fixture(scope="module", autouse=True)
def ranks_in_threads() -> Iterator[None]:
    with groups_per_thread():
        yield


def network() -> torch.nn.Module:
    """channels_last: parameters with strides of their own."""
    torch.manual_seed(3)
    layers = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.BatchNorm2d(5), torch.nn.Flatten())
    whole = torch.nn.Sequential(*layers, torch.nn.Linear(80, 6))
    return whole.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]  # stub


def groups_of(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Two groups of parameters, with rates of their own."""
    few, many = [], []
    for one in model.parameters():
        (few if one.dim() == 1 else many).append(one)
    return [{"params": few, "weight_decay": 0.0, "lr": 0.02}, {"params": many}]


OPTIMIZERS: dict[str, Callable[[torch.nn.Module], torch.optim.Optimizer]] = {
    "momentum": lambda model: torch.optim.SGD(groups_of(model), lr=0.05, momentum=0.9),
    "nesterov": lambda model: torch.optim.SGD(groups_of(model), lr=0.05, momentum=0.9, nesterov=True, fused=True),
    "adamw": lambda model: torch.optim.AdamW(groups_of(model), lr=0.01),
}


def batch(number: int, step: int) -> torch.Tensor:
    return torch.randn(6, 3, 6, 6, generator=torch.Generator().manual_seed(100 * step + number))


def bits(model: torch.nn.Module) -> bytes:
    return b"".join(one.numpy().tobytes() for one in model.state_dict().values())


def plain(model: Any, optimizer: Any, number: int, step: int) -> None:
    optimizer.zero_grad()
    model(batch(number, step)).square().mean().backward()
    optimizer.step()


def by_closure(model: Any, optimizer: Any, number: int, step: int) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(batch(number, step)).square().mean()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() > 0 if step % 2 else optimizer.step(closure=closure).item() > 0


def kept(model: Any, optimizer: Any, number: int, step: int) -> None:
    """Gradients that are zeroed in place, and stay what this rank's backward pass made of them."""
    optimizer.zero_grad(set_to_none=False)
    model(batch(number, step)).square().mean().backward()
    optimizer.step()


Step = Callable[[Any, Any, int, int], None]


def trained(
    initial: torch.nn.Module, method: Any, number: int, how: Step = plain, kind: str = "momentum"
) -> tuple[bytes, bytes]:
    """Bits before and after `finish`."""
    model = copy.deepcopy(initial)
    optimizer = OPTIMIZERS[kind](model)
    attached = training.attach(model, optimizer, method)
    rates = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    for step in range(STEPS):
        how(model, optimizer, number, step)
        rates.step()
    before = bits(model)
    attached.finish()
    return before, bits(model)


# ---- loops


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("method", [*ALL, CdSgd(warm_up=2, period=3, compressor=two_bits(0.01))], ids=str)
def test_it_goes_on_from_a_checkpoint_with_the_same_bits(method: Any, kind: str) -> None:
    """One of each rank, written after step 5: in the middle of a period, or with something in flight."""
    initial = network()

    def rank(number: int) -> tuple[bytes, bytes]:
        model = copy.deepcopy(initial)
        optimizer = OPTIMIZERS[kind](model)
        attached = training.attach(model, optimizer, method)
        for step in range(STEPS):
            plain(model, optimizer, number, step)
            if step == STEPS // 2:
                file = io.BytesIO()
                torch.save([one.state_dict() for one in (model, optimizer, attached)], file)
        attached.finish()
        other = network()
        resumed = OPTIMIZERS[kind](other)
        again = training.attach(other, resumed, method)
        file.seek(0)
        for one, state in zip((other, resumed, again), torch.load(file), strict=True):
            one.load_state_dict(state)
        assert again.steps == STEPS // 2 + 1
        for step in range(STEPS // 2 + 1, STEPS):
            plain(other, resumed, number, step)
        again.finish()
        return bits(model), bits(other)

    for before, after in results(2, rank):
        assert before == after


@pytest.mark.parametrize("method", ALL)
def test_closures_and_gradients_that_are_kept_make_no_difference(method: str) -> None:
    initial = network()
    expected = results(2, lambda number: trained(initial, method, number))
    for how in (by_closure, kept):
        assert results(2, lambda number, how=how: trained(initial, method, number, how)) == expected  # type: ignore[misc]


@pytest.mark.parametrize("method", ["od_sgd:warm_up=0", "post_local_sgd:start=9"])
def test_a_fused_optimiser_steps_each_value_by_its_own_gradient(method: str) -> None:
    """It goes through memory, and means are put in place of gradients: parameters aren't contiguous here."""
    initial = network()

    def rank(number: int, fused: bool) -> torch.Tensor:
        model = copy.deepcopy(initial)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, fused=fused)
        attached = training.attach(model, optimizer, method)
        for step in range(3):
            plain(model, optimizer, number, step)
        attached.finish()
        return torch.cat([one.detach().flatten() for one in model.parameters()])

    found = [results(2, lambda number, fused=fused: rank(number, fused))[0] for fused in (True, False)]  # type: ignore[misc]
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["post_local_sgd:start=4,period=3", "od_sgd:warm_up=4", "dpsgd"])
def test_ddp_sums_in_synchronous_steps_alone_with_its_no_sync_inside(method: str) -> None:
    """Two micro-batches a step; the same parameters as without DDP, and its sums in so many steps."""
    initial = network()[3:]

    def rank(number: int, wrapped: bool) -> tuple[torch.Tensor, int]:
        model, sums = copy.deepcopy(initial), []
        called = DistributedDataParallel(model) if wrapped else model

        def counted(_: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
            sums.append(step)
            return (
                dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future().then(lambda done: done.value()[0])
            )  # type: ignore[union-attr]

        if wrapped:
            called.register_comm_hook(None, counted)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        attached = training.attach(called, optimizer, method)
        for step in range(STEPS):
            optimizer.zero_grad()
            inputs = batch(number, step).reshape(-1, 27)[:8].repeat(1, 3)[:, :80]
            if wrapped:
                with called.no_sync():
                    called(inputs[:4]).square().mean().backward()
            else:
                called(inputs[:4]).square().mean().backward()
            called(inputs[4:]).square().mean().backward()
            optimizer.step()
        attached.finish()
        attached.detach()
        assert not wrapped or called.require_backward_grad_sync
        return torch.cat([one.detach().flatten() for one in model.parameters()]), len(set(sums))

    for (alone, _), (wrapped, steps) in zip(
        results(2, lambda number: rank(number, False)), results(2, lambda number: rank(number, True)), strict=True
    ):
        torch.testing.assert_close(alone, wrapped, rtol=1e-5, atol=1e-6)
        assert steps == (0 if method == "dpsgd" else 4)


def test_16_bit_parameters_are_averaged_in_32_bits_and_rounded_once() -> None:
    """256 + 1 + 1 + 2, whoever has the 256: bfloat16 has 8 bits, so sums of it would lose ones."""

    def rank(number: int) -> list[float]:
        model, inputs = torch.nn.Linear(1, 24, dtype=torch.bfloat16), torch.ones(1, 1, dtype=torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for method in ("diloco:period=1", "od_sgd:warm_up=0", "streaming_diloco:period=1,fragments=1,delay=0"):
            attached = training.attach(model, optimizer, method)
            model(inputs).sum().backward()
            optimizer.step()
            attached.detach()
        attached = training.attach(model, optimizer, "local_sgd:period=2")
        optimizer.step()
        with torch.no_grad():
            model.weight.flatten().copy_(torch.tensor([each[number] for each in permutations([256, 1, 1, 2])]))
        attached.finish()
        return model.weight.flatten().tolist()

    assert results(4, rank) == [[65.0] * 24] * 4


@pytest.mark.parametrize("method", ["od_sgd:warm_up=1", "dpsgd", "diloco:period=2,rate=1,momentum=0"])
def test_rank_0s_parameters_are_everybody_s_and_a_gradient_that_is_missing_counts_as_zeros(method: str) -> None:
    """One parameter has none on rank 1, another is frozen. Training ends with the same bits."""

    def rank(number: int) -> tuple[list[Any], list[Any]]:
        model = torch.nn.ParameterList([torch.full((2,), 1.0 + number) for _ in range(3)])
        model[2].requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        attached = training.attach(model, optimizer, method)
        first = [one.tolist() for one in model]
        for _ in range(4):
            optimizer.zero_grad()
            (model[0] if number else model[0] + model[1]).sum().backward()
            optimizer.step()
        attached.finish()
        return first, [one.tolist() for one in model]

    assert results(2, rank) == [([[1.0, 1.0]] * 3, [[-1.0] * 2, [0.0] * 2, [1.0] * 2])] * 2


# ---- backends


@pytest.mark.parametrize("way", ["ring", "ps", "switch"])
def test_our_backend_carries_all_of_them(way: str) -> None:
    """Two calls in flight, send and recv, broadcasts. Sums of two floats have the same bits as Gloo's."""
    initial = network()
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=8192)) as daemon:
        options = SwitchOptions(method=way, bind="127.0.0.1", switch=daemon.control_endpoint if way == "switch" else "")

        def rank(number: int) -> list[tuple[bytes, bytes]]:
            return [trained(initial, method, number) for method in ALL]

        found = results(2, rank, "switchagg", options)
    assert [after for _, after in found[0]] == [after for _, after in found[1]]
    if way != "switch":
        assert found == results(2, rank)


@pytest.mark.parametrize(
    ("method", "arrays"),
    [
        ("local_sgd:period=4", 3),
        ("local_sgd:period=4,momentum=average", 6),
        ("post_local_sgd:start=4,period=4", 4 + 2),
        ("diloco:period=4", 3),
        ("streaming_diloco:period=4,fragments=2", 3),
        ("easgd:period=4", 3),
        ("dpsgd", 0),
        ("od_sgd:warm_up=2", 12),
        ("cd_sgd:warm_up=2", 12),
    ],
)
def test_bytes_are_those_of_the_page(method: str, arrays: int) -> None:
    """Allreduced in 12 steps by each rank, in arrays of all parameters."""

    def rank(_: int) -> int:
        model = torch.nn.ParameterList([torch.zeros(300), torch.zeros(300)])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        training.attach(model, optimizer, method)
        for _ in range(12):
            optimizer.zero_grad()
            sum(one.sum() for one in model).backward()  # type: ignore[union-attr]
            optimizer.step()
        ways = dist.group.WORLD.traffic.counts().get("allreduce", {})  # type: ignore[attr-defined]
        return int(ways["ring"]["bytes"]) if ways else 0

    assert results(2, rank, "switchagg", SwitchOptions(method="ring", bind="127.0.0.1")) == [arrays * 2400] * 2


# ---- what is refused


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("local", f"training method 'local' is unknown; allowed: {', '.join(METHODS)}"),
        ("local_sgd:8", "training method local_sgd: option '8' is unknown; allowed: period=…, momentum=…"),
        ("local_sgd:period=0", "training method local_sgd: period=0: must be a whole number from 1"),
        ("local_sgd:momentum=mean", "local_sgd: momentum=mean: must be keep or average or reset"),
        ("diloco:momentum=1", "diloco: momentum=1: must be a number from 0 to below 1"),
        ("diloco:rate=nan", "diloco: rate=nan: must be a number from 0"),
        ("streaming_diloco:period=10", "streaming_diloco: period=10 is no multiple of fragments=4"),
        ("streaming_diloco:delay=25", r"delay=25: must be below period / fragments = 25"),
        ("local_sgd~lanes8", "local_sgd: codec lanes8 is none of its: it sums parameters, .* diloco:rate=1,momentum=0"),
        ("dpsgd~lanes8+ef", "dpsgd: codec lanes8.ef is none of its: it sends parameters"),
        ("cd_sgd~lanes9", "cd_sgd: codec 'lanes9' is unknown; allowed: "),
        ("cd_sgd~", "training method cd_sgd: a codec follows '~'"),
        ("cd_sgd:compressor=exact", "option 'compressor=exact' is unknown; allowed: local_rate=…, warm_up=…, period=…"),
    ],
)
def test_bad_options_are_one_line(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        parse_method(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("make", [lambda: LocalSgd(period=0), lambda: OdSgd(local_rate=-1), lambda: Easgd(alpha=1.5)])
def test_options_are_checked_however_they_are_given(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="must be a"):
        make()


def test_options_are_written_as_they_are_read() -> None:
    for method in (Easgd(), Easgd(alpha=0.25), StreamingDiLoCo(mix=0.5), CdSgd(period=2), *map(parse_method, METHODS)):
        assert parse_method(str(method)) == method


def model_of(*values: float) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.ParameterList([torch.tensor(value) for value in values])
    return model, torch.optim.SGD(model.parameters(), lr=0.5)


def test_what_cannot_be_trained_so_is_refused_at_once() -> None:
    def rank(_: int) -> list[str]:
        model, optimizer = model_of(1.0, 2.0)
        frozen = torch.nn.ParameterList([torch.tensor(1.0)]).requires_grad_(False)
        cases: list[Callable[[], Any]] = [
            lambda: training.attach(model, torch.optim.LBFGS(model.parameters()), "dpsgd"),
            lambda: training.attach(frozen, torch.optim.SGD(frozen.parameters()), "dpsgd"),
            lambda: training.attach(model, optimizer, "streaming_diloco"),
            lambda: training.attach(model, optimizer, "easgd:alpha=0.75"),
        ]
        found = []
        for case in cases:
            with pytest.raises(ValueError, match=r"^[a-z_]+: ") as error:
                case()
            found.append(str(error.value))
        added = training.attach(model, optimizer, "local_sgd")
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})
        with pytest.raises(ValueError, match=r"local_sgd, rank . of 2, step 1: parameters were added to the optimizer"):
            optimizer.step()
        added.detach()
        optimizer.step()
        embedding = torch.nn.Embedding(3, 2, sparse=True)
        sparse = torch.optim.SGD(embedding.parameters(), lr=1)
        training.attach(embedding, sparse, "od_sgd")
        embedding(torch.tensor([1])).sum().backward()
        with pytest.raises(ValueError, match=r"od_sgd, rank . of 2, step 1: sparse gradients can't be exchanged"):
            sparse.step()
        with pytest.raises(ValueError, match="the state is of easgd:period=10, this is dpsgd"):
            training.attach(*model_of(1.0), "dpsgd").load_state_dict({"method": "easgd:period=10"})
        state = training.attach(*model_of(1.0), "diloco").state_dict()
        with pytest.raises(ValueError, match=r"diloco, .*: the state is that of a model with other parameters"):
            training.attach(*model_of(1.0, 2.0), "diloco").load_state_dict(state)
        return found

    found = results(2, rank)[0]
    for message, words in zip(
        found, ["LBFGS", "no parameter", "fragments=4: the model has 2", "at most 1/2"], strict=True
    ):
        assert words in message


@pytest.mark.parametrize(
    ("given", "values", "words"),
    [
        (
            ["local_sgd", "diloco"],
            [[1.0]] * 2,
            "rank 0 attaches local_sgd:period=8.* 1 parameters, rank 1 attaches dilo",
        ),
        (["dpsgd", "dpsgd"], [[1.0], [1.0, 2.0]], "rank 0 attaches dpsgd for 1 parameters, rank 1 .* for 2 parameters"),
    ],
)
def test_ranks_that_differ_are_told_so_at_once(given: list[str], values: list[list[float]], words: str) -> None:
    def rank(number: int) -> None:
        with pytest.raises(ValueError, match=words):
            training.attach(*model_of(*values[number]), given[number])

    results(2, rank)


def test_after_a_delayed_step_gradients_are_this_rank_s_again() -> None:
    def rank(number: int) -> list[bool]:
        model, optimizer = model_of(1.0)
        training.attach(model, optimizer, OdSgd(warm_up=0))
        own = []
        for step in range(2):
            optimizer.zero_grad()
            (model[0] * (number + step)).backward()  # type: ignore[index]
            optimizer.step()
            own.append(model[0].grad.item() == number + step)  # type: ignore[index]
        return own

    assert results(2, rank) == [[True, True]] * 2


def test_an_error_names_method_rank_and_step() -> None:
    def rank(number: int) -> None:
        model, optimizer = model_of(1.0)
        training.attach(model, optimizer, "local_sgd:period=2")
        for _ in range(1 if number else 2):
            optimizer.zero_grad()
            model[0].square().backward()  # type: ignore[index]
            optimizer.step()

    error, none = on_ranks(2, rank, "switchagg", SwitchOptions(method="ring", bind="127.0.0.1"))
    assert none is None
    assert isinstance(error, dist.DistBackendError)
    assert str(error).startswith("local_sgd, rank 0 of 2, step 2: ")
