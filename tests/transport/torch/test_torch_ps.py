"""PsOptimizer: training against servers that keep the weights is SGD, synchronous or not, over public hooks only."""

import io
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from switchagg.errors import AggregationFailed, SwitchaggError
from tests.transport.contracts.meshes import free_addresses
from tests.transport.ps.test_ps_group import JOIN_S, all_at_once
from transport.group.ps_group import PsOptions, open_ps_client, open_ps_server
from transport.ps.config import ASP, BSP, DC_ASGD, SSP, PsConfig
from transport.torch.ps import PsOptimizer, tensor_bytes

WORKERS, SERVERS = 3, 2


_seeded = threading.Lock()  # workers are threads, and have one generator


def model(seed: int) -> torch.nn.Sequential:
    with _seeded:
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def data(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(100 + rank)
    inputs = torch.randn(40, 6, generator=random)
    return inputs, inputs[:, :1] * inputs[:, 1:2]


def loss_of(network: torch.nn.Module, rank: int) -> torch.Tensor:
    inputs, targets = data(rank)
    return torch.nn.functional.mse_loss(network(inputs), targets)


def trained(config: PsConfig, act: Callable[[int, PsOptimizer, torch.nn.Module], Any]) -> list[Any]:
    """What act returned or raised for each worker; all in threads of this process."""
    places = free_addresses(WORKERS + SERVERS)
    workers, servers = places[:WORKERS], places[WORKERS:]

    def work(rank: int) -> Any:
        network = model(rank)
        with PsOptimizer.join(
            network.parameters(), "tcp", rank, workers, servers, config=config, options=PsOptions(JOIN_S)
        ) as optimizer:
            return act(rank, optimizer, network)

    def serve(number: int) -> None:
        host = open_ps_server("tcp", number, workers, servers, options=PsOptions(JOIN_S))
        host.wait(JOIN_S)
        host.close()

    return all_at_once(
        [lambda rank=rank: work(rank) for rank in range(WORKERS)]  # type: ignore[misc]
        + [lambda number=number: serve(number) for number in range(SERVERS)]  # type: ignore[misc]
    )[:WORKERS]


def test_synchronous_training_is_sgd_on_the_mean() -> None:
    config = PsConfig(WORKERS, learning_rate=0.1, momentum=0.9, weight_decay=0.01, slice_elements=30)

    def act(rank: int, optimizer: PsOptimizer, network: torch.nn.Module) -> list[np.ndarray[Any, Any]]:
        for _ in range(10):
            optimizer.zero_grad()
            loss_of(network, rank).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return [parameter.detach().numpy().copy() for parameter in network.parameters()]

    found = trained(config, act)
    alone = model(0)  # rank 0's weights are everybody's
    sgd = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for _ in range(10):
        sgd.zero_grad()
        torch.stack([loss_of(alone, rank) for rank in range(WORKERS)]).mean().backward()
        sgd.step()
    for rank in range(WORKERS):
        for mine, expected, first in zip(found[rank], alone.parameters(), found[0], strict=True):
            np.testing.assert_allclose(mine, expected.detach().numpy(), rtol=2e-4, atol=2e-6)
            assert mine.tobytes() == first.tobytes()


@pytest.mark.parametrize(("mode", "codec"), [(SSP, "lanes8:least=0+ef"), (ASP, ""), (DC_ASGD, "")])
def test_asynchronous_training_learns(mode: str, codec: str) -> None:
    """With gradients at most four pushes late. How late they get is up to the machine, and from eight on these steps
    diverge: that is the method."""
    together = threading.Barrier(WORKERS)
    staleness = 2 if mode == SSP else 0
    config = PsConfig(WORKERS, mode=mode, staleness=staleness, learning_rate=0.02, momentum=0.5, codec=codec)

    def act(rank: int, optimizer: PsOptimizer, network: torch.nn.Module) -> tuple[float, float]:
        before = loss_of(network, rank).item()
        for _ in range(120):
            optimizer.zero_grad()
            loss_of(network, rank).backward()  # type: ignore[no-untyped-call]
            together.wait(JOIN_S)
            optimizer.step()
        return before, loss_of(network, rank).item()

    for before, after in trained(config, act):
        assert after < 0.7 * before


def test_gradients_are_accumulated_only_when_asked() -> None:
    config = PsConfig(WORKERS, learning_rate=1.0)

    def act(rank: int, optimizer: PsOptimizer, network: torch.nn.Module) -> float:
        bias = list(network.parameters())[-1]
        before = bias.item()
        with optimizer.no_sync():
            bias.sum().backward()
        bias.sum().backward()  # the others have no gradient: they push zeros
        optimizer.step()
        moved = before - bias.item()
        optimizer.zero_grad()
        bias.sum().backward()
        with pytest.raises(SwitchaggError, match="a second backward pass before step"):
            bias.sum().backward()
        optimizer.step()
        return moved

    assert trained(config, act) == [pytest.approx(2.0)] * WORKERS


def test_a_failure_comes_out_of_step_on_every_worker() -> None:
    together = threading.Barrier(WORKERS)

    def act(rank: int, optimizer: PsOptimizer, network: torch.nn.Module) -> str:
        together.wait(JOIN_S)
        if rank == 2:
            optimizer.client._loop.close(0.0)
            return ""
        loss_of(network, rank).backward()  # type: ignore[no-untyped-call]
        with pytest.raises(AggregationFailed) as caught:
            optimizer.step()
        return str(caught.value)

    words = trained(PsConfig(WORKERS, mode=BSP), act)
    assert "rank 2" in words[0]
    assert "rank 2" in words[1]


def test_a_job_that_fails_at_the_start_leaves_nothing_on_the_model() -> None:
    class Refusing:
        def init(self, key: int, array: Any) -> None:
            raise AggregationFailed("no", job="x")

    network = model(0)
    with pytest.raises(AggregationFailed):
        PsOptimizer(network.parameters(), Refusing())  # type: ignore[arg-type]
    loss_of(network, 0).backward()  # type: ignore[no-untyped-call]
    assert all(parameter._post_accumulate_grad_hooks is None for parameter in network.parameters())


def test_different_models_are_named() -> None:
    assert tensor_bytes(model(0).parameters()) == (384, 64, 64, 4)
    other = torch.nn.Linear(3, 1).double()
    other.bias.requires_grad_(False)
    assert tensor_bytes(other.parameters()) == (24,)


@pytest.mark.parametrize("codec", ["lanes8:least=0+ef", "lanes4:least=0"])
def test_a_restarted_run_goes_on_with_the_same_bits(codec: str) -> None:
    """With what pushes left over; without feedback with the random numbers that are next."""

    def begun(network: torch.nn.Module, codec: str = codec) -> PsOptimizer:
        config = PsConfig(1, mode=ASP, learning_rate=0.1, codec=codec)
        return PsOptimizer(network.parameters(), open_ps_client("tcp", 0, free_addresses(1), config=config))

    def train(network: torch.nn.Module, optimizer: PsOptimizer, steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            loss_of(network, 0).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    whole, first, second, forgetful = (model(seed) for seed in (0, 0, 1, 2))
    with begun(whole) as optimizer:
        train(whole, optimizer, 6)
    saved = io.BytesIO()
    with begun(first) as optimizer:
        train(first, optimizer, 3)
        torch.save((first.state_dict(), optimizer.state_dict()), saved)
    saved.seek(0)
    weights, state = torch.load(saved, weights_only=True)
    for network in (second, forgetful):
        network.load_state_dict(weights)
        with begun(network) as optimizer:
            if network is second:
                optimizer.load_state_dict(state)
            train(network, optimizer, 3)
    ends = [
        torch.cat([one.detach().reshape(-1) for one in network.parameters()]) for network in (whole, second, forgetful)
    ]
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])
    assert torch.load(io.BytesIO(saved.getvalue()), weights_only=True)[1]["sums"] == {str(key): 3 for key in range(4)}
    for other, words in (
        ("lanes8", f"a state of codec {codec}; this is lanes8"),
        ("", f"a state of codec {codec}; this is none"),
    ):
        with begun(second, codec=other) as optimizer, pytest.raises(ValueError, match=re.escape(words)):
            optimizer.load_state_dict(state)
    with begun(second) as optimizer, pytest.raises(ValueError, match="a state of rank 1 of 2; this is rank 0 of 1"):
        optimizer.load_state_dict({**state, "rank": 1, "workers": 2})
