"""Backup workers under DDP: a straggler computes few gradients, holds nobody up, and has the same bits as all."""

import copy
import hashlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.contract.meshes import free_addresses
from tests.groups.test_ps_group import JOIN_S, all_at_once
from transport.ps.config import BACKUP, PsConfig
from transport.ps.group import PsGroup, PsOptions, open_ps_group
from transport.torch.backup import BackupRounds

ROUNDS, SLOWER = 20, 3
STRAGGLER = 2


@pytest.fixture(scope="module")
def ranks_alone() -> Iterator[None]:
    """Ranks are threads: for each of them DDP has a process group of one, and all that they exchange is the hook's."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model() -> torch.nn.Module:
    """Several buckets, which DDP lays out anew after the first round; weights with strides of their own."""
    torch.manual_seed(1)
    convolved = torch.nn.Sequential(torch.nn.Conv2d(3, 40, 3), torch.nn.Tanh(), torch.nn.Flatten())
    layers = torch.nn.Sequential(*convolved, torch.nn.Linear(640, 700), torch.nn.Tanh(), torch.nn.Linear(700, 2))
    return layers.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]  # stub


def wait_for_results(group: PsGroup, calls: int) -> None:
    until = time.monotonic() + JOIN_S
    while group.behind < calls:
        assert time.monotonic() < until, "the others wait for the straggler"
        time.sleep(0.001)


@pytest.mark.usefixtures("ranks_alone")
@pytest.mark.parametrize("keep", [False, True])
def test_a_straggler_takes_the_rounds_that_it_missed_without_computing(keep: bool) -> None:
    """keep: DDP's buckets as gradients, which are kept between rounds."""
    places, initial = free_addresses(3), model()
    everybody = threading.Barrier(3)

    def train(rank: int) -> tuple[int, int, str]:
        network, computed, calls = copy.deepcopy(initial), 0, 0
        ddp = DistributedDataParallel(network, bucket_cap_mb=0.5, gradient_as_bucket_view=keep)
        optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
        random = torch.Generator().manual_seed(rank)
        config = PsConfig(3, mode=BACKUP, backups=1)
        with open_ps_group("tcp", rank, places, config=config, options=PsOptions(JOIN_S)) as group:
            rounds = BackupRounds(ddp, group)
            for number in range(ROUNDS):
                inputs = torch.randn(4, 3, 6, 6, generator=random)
                if not rounds.take():
                    computed += 1
                    loss = ddp(inputs).square().mean()
                    if rank == STRAGGLER:  # it takes as long as so many rounds of the others
                        wait_for_results(group, max(1, len(rounds._buckets)) * min(SLOWER, ROUNDS - number))
                    loss.backward()
                calls = max(calls, len(rounds._buckets))
                optimizer.step()
                optimizer.zero_grad(set_to_none=not keep)
            everybody.wait(JOIN_S)
        assert calls > 1
        assert computed + rounds.taken == ROUNDS
        bits = b"".join(parameter.detach().numpy().tobytes() for parameter in network.parameters())
        return computed, group.counters.get("pushes_saved", 0), hashlib.sha256(bits).hexdigest()

    found: list[Any] = all_at_once([lambda rank=rank: train(rank) for rank in range(3)])  # type: ignore[misc]
    assert len({bits for _, _, bits in found}) == 1, found
    assert [computed for computed, _, _ in found[:STRAGGLER]] == [ROUNDS] * 2
    computed, saved, _ = found[STRAGGLER]
    assert 2 < computed <= 2 + (ROUNDS - 2 + SLOWER - 1) // SLOWER
    assert saved >= 2 * (ROUNDS - 2)


@pytest.mark.usefixtures("ranks_alone")
@pytest.mark.parametrize(
    ("network", "how"),
    [
        (torch.nn.Linear(2, 2), {"find_unused_parameters": True}),
        (torch.nn.Linear(2, 2), {"static_graph": True}),
        (torch.nn.BatchNorm1d(2), {}),
    ],
)
def test_models_whose_passes_wait_for_all_ranks_are_refused(network: torch.nn.Module, how: dict[str, Any]) -> None:
    (place,) = free_addresses(1)
    with (
        open_ps_group("tcp", 0, [place], options=PsOptions(JOIN_S)) as group,
        pytest.raises(ValueError, match="backup workers: with find_unused_parameters, static_graph or broadcast_buff"),
    ):
        BackupRounds(DistributedDataParallel(network, **how), group)
