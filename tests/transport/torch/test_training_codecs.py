"""Training methods whose sums are coded: bit for bit what the codec alone gives."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch_ranks import groups_per_thread, on_ranks, results

from switchagg.codecs import ARRAY_CODECS
from switchagg.codecs.array_codec import ArrayCodec, ArrayShape, Memory, Reduction, Tensor
from switchagg.codecs.codec import Array
from switchagg.codecs.compression import Compression
from switchagg.codecs.spec import parse_codec
from switchagg.description import Kind
from switchagg.lockstep import sum_together
from transport.torch import training
from transport.torch.rendezvous import SwitchOptions

SIZES = (1000, 37, 363)
STEPS = 7


@dataclass(frozen=True)
class Gathered(ArrayCodec):
    """Multiples of 1/8, after a maximum that all agree on; of lengths that ranks don't divide."""

    name = "gathered"
    adds = False
    rounds = 2

    def moved(self, values: int, workers: int) -> Mapping[Kind, float]:
        return {"all_gather": 4.0 * values * workers}

    def rounds_of(
        self, values: Array, residual: Array | None, shape: ArrayShape, memory: Sequence[Memory]
    ) -> Iterator[Reduction]:
        largest = np.full(1, int(np.ceil(np.abs(values).max(initial=0))), np.int32)
        yield Reduction(largest, "max")
        coarse = np.clip(np.round(values * 8) / 8, -largest[0], largest[0]).astype(np.float32)
        if residual is not None:
            residual[:] = values - coarse
        low = [(len(values) * shape.workers + 1) * rank // shape.workers for rank in range(shape.workers + 1)]
        whole = np.zeros(len(values) * shape.workers + 1, np.float32)
        own = whole[low[shape.rank] : low[shape.rank + 1]]
        own[: len(values)] = coarse[: len(own)]
        yield Reduction(whole, kind="all_gather")
        values[:] = sum(whole[first : first + len(values)] for first in low[:-1])


@pytest.fixture(scope="module", autouse=True)
def ranks_in_threads() -> Iterator[None]:
    ARRAY_CODECS["gathered"] = Gathered
    with groups_per_thread():
        yield
    del ARRAY_CODECS["gathered"]


def gradients(rank: int, step: int) -> list[Array]:
    random = np.random.default_rng((rank, step))
    return [random.standard_normal(size).astype(np.float32) for size in SIZES]


def trained(method: str, rank: int) -> list[list[float]]:
    """Parameters in the end, by gradients that don't depend on them. The rate is halved after step 3."""
    model = torch.nn.ParameterList([torch.zeros(size) for size in SIZES])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    attached = training.attach(model, optimizer, method)
    for step in range(1, 1 + STEPS):
        optimizer.zero_grad()
        sum((torch.from_numpy(g) * one).sum() for g, one in zip(gradients(rank, step), model, strict=True)).backward()  # type: ignore[union-attr]
        optimizer.param_groups[0]["lr"] = 1.0 if step <= 3 else 0.5
        optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.5
    attached.finish()
    return [one.tolist() for one in model]


@pytest.mark.parametrize(
    "codec", ["lanes8:least=0+ef", "lanes16:least=0,warmup=2+ef", "gathered:least=0+ef", "ternary:least=0+ef"]
)
@pytest.mark.parametrize("method", ["od_sgd:warm_up=0,local_rate=0", "cd_sgd:warm_up=0,local_rate=0,period=3"])
def test_gradients_are_what_the_codec_makes_of_them(codec: str, method: str) -> None:
    """CD-SGD's third and sixth are exact, and leave alone what is left over; that follows the rate."""
    spec, workers = parse_codec(codec), 3
    ranks = [Compression(spec, rank, workers) for rank in range(workers)]
    tensors = [Tensor(str(place), (size,)) for place, size in enumerate(SIZES)]
    weights = np.zeros(sum(SIZES), np.float32)
    for step in range(1, 1 + STEPS):
        arrays = [np.concatenate(gradients(rank, step)) for rank in range(workers)]
        if step == 4:
            for one in ranks:
                one.rescale(2.0)
        if method.startswith("cd_sgd") and step % 3 == 0:
            total = arrays[0] + arrays[1] + arrays[2]
        else:
            sum_together(ranks, arrays, tensors, step)
            total = arrays[0]
        weights = weights - np.float32(1.0 if step < 3 else 0.5) * (total / np.float32(workers))
    found = results(workers, lambda rank: trained(f"{method}~{codec}", rank))
    assert found[0] == found[1] == found[2]
    exact = method.startswith("od_sgd") and "warmup" not in codec
    compare = np.testing.assert_array_equal if exact else np.testing.assert_allclose
    compare(
        np.concatenate([np.array(one, np.float32) for one in found[0]]),
        weights,
        **({} if exact else {"rtol": 1e-5, "atol": 1e-6}),
    )


CODED = SwitchOptions(method="ring~lanes8:least=0+ef", bind="127.0.0.1")


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("local_sgd", "it sums parameters, which must not be rounded; diloco:rate=1,momentum=0 does the same"),
        ("dpsgd", "it sends parameters"),
        ("cd_sgd", "it sends every k-th step's gradients in full"),
        ("od_sgd~lanes16", "its codec is another"),
    ],
)
def test_what_a_coded_process_group_must_not_sum_is_refused(method: str, words: str) -> None:
    def rank(_: int) -> None:
        model = torch.nn.Linear(3, 3)
        training.attach(model, torch.optim.SGD(model.parameters(), lr=1.0), method)

    for error in on_ranks(2, rank, "switchagg", CODED):
        assert isinstance(error, ValueError)
        assert "the process group's sums are coded (lanes8:least=0+ef), and " + words in str(error)


@pytest.mark.parametrize("method", ["diloco:period=2", "easgd:period=2", "streaming_diloco:period=4,fragments=2"])
def test_differences_go_through_a_coded_process_group_and_buffers_do_not(method: str) -> None:
    """What was lost is in the method's state; the mean of buffers is exact."""

    def rank(number: int) -> tuple[list[float], list[float], list[str]]:
        model = torch.nn.Sequential(torch.nn.Linear(30, 30), torch.nn.BatchNorm1d(30))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        attached = training.attach(model, optimizer, method)
        for step in range(4):
            optimizer.zero_grad()
            model(torch.randn(6, 30, generator=torch.Generator().manual_seed(10 * step + number))).sum().backward()
            optimizer.step()
        model[1].running_mean.copy_(torch.arange(30.0) + number / 1024)  # type: ignore[operator]
        attached.finish()
        lost = attached.state_dict()["codec"]["kept"]["residual"]
        assert any(one.abs().max() > 0 for one in lost.values())
        weights = torch.cat([one.detach().flatten() for one in model.parameters()])
        return weights.tolist(), model[1].running_mean.tolist(), sorted(lost)  # type: ignore[operator, union-attr]

    first, second = results(2, rank, "switchagg", CODED)
    assert first == second
    assert first[1] == (torch.arange(30.0) + 1 / 2048).tolist()
    assert first[2] == ["0.bias", "0.weight", "1.bias", "1.weight"]


def test_what_is_told_of_a_coded_sum_are_the_bytes_of_its_words() -> None:
    def told(rank: int) -> list[int]:
        model = torch.nn.ParameterList([torch.zeros(size) for size in SIZES])
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        attached = training.attach(model, optimizer, "cd_sgd:period=3,warm_up=1~ternary:least=0")
        sizes: list[int] = []
        attached.observe(lambda size_bytes, work: sizes.append(size_bytes))
        for _ in range(3):
            optimizer.zero_grad()
            sum((torch.ones(size) * one).sum() for size, one in zip(SIZES, model, strict=True)).backward()  # type: ignore[union-attr]
            optimizer.step()
        attached.finish()
        return sizes

    words = 4 * (360 + 1)  # of a row of 8 lanes in each word, and of its scale
    assert results(2, told)[0] == [4 * sum(SIZES), words, 4 * sum(SIZES)]
