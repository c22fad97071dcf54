"""DDP whose gradients are coded: names of parameters, buckets that are rebuilt, rates, checkpoints, what is refused."""

import copy
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import groups_per_thread, on_ranks, results

from switchagg.codecs import ARRAY_CODECS
from switchagg.codecs.array_codec import ArrayCodec, ArrayShape, Memory, Reduction, Tensor
from switchagg.codecs.codec import Array
from switchagg.description import Kind
from transport.torch import compress
from transport.torch.feedback import RateFollower, recut
from transport.torch.rendezvous import SwitchOptions


@dataclass(frozen=True)
class Sixteenths(ArrayCodec):
    """Each value by itself, so that bits don't depend on what lies beside it; sums of multiples are exact."""

    name = "sixteenths"
    rounds = 1

    def moved(self, values: int, workers: int) -> Mapping[Kind, float]:
        return {"allreduce": 4.0 * values}

    def rounds_of(
        self, values: Array, residual: Array | None, shape: ArrayShape, memory: Sequence[Memory]
    ) -> Iterator[Reduction]:
        coarse = (np.round(values * 16) / 16).astype(np.float32)
        if residual is not None:
            residual[:] = values - coarse
        values[:] = coarse
        yield Reduction(values)


@pytest.fixture(scope="module", autouse=True)
def ranks_in_threads() -> Iterator[None]:
    ARRAY_CODECS["sixteenths"] = Sixteenths
    with groups_per_thread():
        yield
    del ARRAY_CODECS["sixteenths"]


def ring(codec: str) -> SwitchOptions:
    return SwitchOptions(method=f"ring~{codec}" if codec else "ring", bind="127.0.0.1")


def network() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(*[torch.nn.Linear(30, 30) for _ in range(4)])


def steps(ddp: Any, optimizer: torch.optim.Optimizer, rank: int, numbers: range) -> None:
    for step in numbers:
        optimizer.zero_grad()
        inputs = torch.randn(5, 30, generator=torch.Generator().manual_seed(10 * step + rank))
        ddp(inputs).square().mean().backward()
        optimizer.step()


def bits(model: torch.nn.Module) -> bytes:
    return b"".join(one.detach().numpy().tobytes() for one in model.parameters())


def test_what_parameters_lost_survives_rebuilt_buckets() -> None:
    """DDP lays its buckets out anew after the first step, but not where it looks for unused parameters."""
    initial, layouts = network(), {}

    def rank(number: int, find_unused: bool) -> tuple[bytes, float]:
        model = copy.deepcopy(initial)
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.005, find_unused_parameters=find_unused)
        handle = compress(ddp)
        seen, tensors_of = [], handle.tensors_of

        def recorded(bucket: Any) -> Any:
            seen.append([tensor.name for tensor in tensors_of(bucket)])
            return tensors_of(bucket)

        handle.tensors_of = recorded  # type: ignore[method-assign]
        steps(ddp, torch.optim.SGD(model.parameters(), lr=0.5), number, range(6))
        layouts[find_unused] = seen
        residual = handle.state_dict()["kept"]["residual"]
        assert set(residual) == {name for name, _ in model.named_parameters()}
        return bits(model), sum(one.abs().sum().item() for one in residual.values())

    rebuilt = results(2, lambda number: rank(number, False), "switchagg", ring("sixteenths:least=0+ef"))
    stable = results(2, lambda number: rank(number, True), "switchagg", ring("sixteenths:least=0+ef"))
    assert rebuilt == stable
    assert rebuilt[0][0] == rebuilt[1][0]
    assert rebuilt[0][1] > 0
    assert layouts[True] != layouts[False]
    lossy = results(2, lambda number: rank_without_feedback(initial, number), "switchagg", ring("sixteenths:least=0"))
    assert lossy[0] != rebuilt[0][0]


def rank_without_feedback(initial: torch.nn.Module, number: int) -> bytes:
    model = copy.deepcopy(initial)
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.005)
    steps(ddp, torch.optim.SGD(model.parameters(), lr=0.5), number, range(6))
    return bits(model)


@pytest.mark.parametrize("codec", ["lanes8:least=0+ef", "lanes8:least=0+ef21", "sixteenths:least=0,warmup=3+ef", ""])
def test_it_goes_on_from_a_checkpoint_with_the_same_bits(codec: str) -> None:
    """With the buckets that DDP never rebuilds: lanes share a scale with what lies beside them."""
    initial = network()

    def wrapped(model: torch.nn.Module) -> DistributedDataParallel:
        return DistributedDataParallel(model, find_unused_parameters=True)

    def rank(number: int) -> tuple[bytes, bytes]:
        model = copy.deepcopy(initial)
        ddp, optimizer = wrapped(model), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        handle = compress(ddp, optimizer)
        steps(ddp, optimizer, number, range(3))
        file = io.BytesIO()
        torch.save([model.state_dict(), optimizer.state_dict(), handle.state_dict()], file)
        steps(ddp, optimizer, number, range(3, 6))
        other = copy.deepcopy(initial)
        group = dist.new_group(backend="switchagg", pg_options=ring(codec))
        again, resumed = wrapped(other), torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
        handle = compress(again, resumed, group)
        file.seek(0)
        for one, state in zip((other, resumed, handle), torch.load(file), strict=True):
            one.load_state_dict(state)
        steps(again, resumed, number, range(3, 6))
        return bits(model), bits(other)

    for before, after in results(2, rank, "switchagg", ring(codec)):
        assert before == after


def test_a_state_of_another_codec_is_refused() -> None:
    def rank(_: int) -> list[str]:
        words = []
        kept = compress(DistributedDataParallel(network())).state_dict()
        plain = dist.new_group(backend="switchagg", pg_options=ring(""))
        for group, state in ((None, {}), (None, {**kept, "codec": "lanes16+ef"}), (plain, kept)):
            handle = compress(DistributedDataParallel(network()), None, group)
            with pytest.raises(ValueError, match="codec") as error:
                handle.load_state_dict(state)
            words.append(str(error.value))
        return words

    first = results(2, rank, "switchagg", ring("lanes8+ef"))[0]
    assert "none" in first[0]
    assert "lanes16+ef" in first[1]
    assert "this is none" in first[2]


def test_what_was_lost_follows_the_rate_of_its_own_parameters() -> None:
    parameters = {torch.zeros(1): name for name in "ab"}
    rates = [{"params": [one], "lr": 1.0} for one in parameters]
    optimizer = torch.optim.SGD(rates)
    follower, told = RateFollower(optimizer, parameters), []

    class Recording:
        def rescale(self, factor: float, names: list[str]) -> None:
            told.append((factor, names))

    for first, second in ((1.0, 1.0), (0.5, 1.0), (0.0, 2.0), (0.25, 2.0)):
        optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = first, torch.tensor(second)
        follower.follow(Recording())  # type: ignore[arg-type]
    assert told == [(2.0, ["a"]), (0.5, ["b"]), (2.0, ["a"])]


def test_slices_that_are_cut_anew_keep_what_was_lost_of_each_value() -> None:
    whole = Tensor("a", (4, 5))
    values = np.arange(20, dtype=np.float32)
    state = {"codec": "x", "sums": {"a": 7, "b": 3}, "kept": {"residual": {"b": values[:3], "a": values}}, "memory": {}}
    cut = recut(state, [whole.part(8, 20), whole.part(0, 8), Tensor("b", (3,)), Tensor("c", (1,))])
    assert cut["sums"] == {"a[8:20]": 7, "a[0:8]": 7, "b": 3}
    assert {name: list(one) for name, one in cut["kept"]["residual"].items()} == {
        "a[8:20]": list(values[8:]),
        "a[0:8]": list(values[:8]),
        "b": [0, 1, 2],
    }
    again = recut(cut, [whole, Tensor("b", (3,))])
    assert list(again["kept"]["residual"]["a"]) == list(values)
    assert again["sums"] == state["sums"]


def test_sums_that_do_not_say_of_what_they_are_get_one_error_and_others_go_on() -> None:
    def rank(number: int) -> tuple[str, str]:
        with pytest.raises(dist.DistBackendError) as error:
            dist.all_reduce(torch.ones(1024))
        ddp = DistributedDataParallel(torch.nn.Linear(40, 40))
        with pytest.raises(RuntimeError) as inside:
            ddp(torch.ones(1, 40)).sum().backward()
        for tensor in (torch.full((1023,), 0.1), torch.full((5000,), 0.1, dtype=torch.float64), torch.ones(5000).int()):
            expected = tensor + tensor
            dist.all_reduce(tensor)
            assert torch.equal(tensor, expected)
        return str(error.value), str(inside.value)

    for found in results(2, rank, "switchagg", ring("lanes8+ef")):
        for words in found:
            assert "codec lanes8+ef remembers what each parameter lost, and this sum of " in words
            assert "transport.torch.compress(ddp)" in words


def test_another_group_is_refused() -> None:
    def rank(_: int) -> None:
        compress(DistributedDataParallel(network()))

    assert all("needs a process group of backend" in str(error) for error in on_ranks(2, rank))
