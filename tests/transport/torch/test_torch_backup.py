"""Backup workers under DDP: a straggler computes few gradients, holds nobody up, and has the same bits as all."""

import contextlib
import copy
import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.transport.contracts.meshes import free_addresses
from tests.transport.ps.test_ps_group import JOIN_S, all_at_once
from transport.group.ps_group import PsOptions, open_ps_group
from transport.group.switch_group import SwitchGroup
from transport.ps.config import BACKUP, PsConfig
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.torch.backup import ROUNDS_TO_SETTLE, BackupGroup, BackupRounds
from transport.torch.hook import switchagg_hook
from transport.torch.rendezvous import SwitchOptions
from transport.worker.join_options import JoinOptions

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


def wait_for_results(group: BackupGroup, sizes: Sequence[int], have_ended: Callable[[], bool]) -> bool:
    """False: one was lost when the others had ended, who would have asked for it again."""
    until = time.monotonic() + JOIN_S
    while not group.finished_without(sizes):
        assert time.monotonic() < until, "the others wait for the straggler"
        time.sleep(0.001)
        if have_ended():
            time.sleep(0.2)  # what is under way comes
            return group.finished_without(sizes)
    return True


@pytest.mark.usefixtures("ranks_alone")
@pytest.mark.parametrize(("method", "keep"), [("ps", False), ("ps", True), ("switch", False)])
def test_a_straggler_takes_the_rounds_that_it_missed_without_computing(method: str, keep: bool) -> None:
    """keep: DDP's buckets as gradients, which are kept between rounds."""
    places, initial = free_addresses(3), model()
    everybody = threading.Barrier(3)
    alone: list[int] = []
    hub: Any = contextlib.nullcontext()
    if method == "switch":
        hub = SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), dataplane="reference"))

    def open_group(rank: int) -> Any:
        if method == "ps":
            config = PsConfig(3, mode=BACKUP, backups=1)
            return open_ps_group("tcp", rank, places, config=config, options=PsOptions(JOIN_S))
        wish = JoinOptions(backups=1, codec="lanes8+ef", window_slots=32, timeout_s=JOIN_S)
        return contextlib.closing(SwitchGroup.join(hub.control_endpoint, "job", rank, 3, wish))

    def train(rank: int) -> tuple[int, int, str]:
        network, computed, calls = copy.deepcopy(initial), 0, 0
        ddp = DistributedDataParallel(network, bucket_cap_mb=0.5, gradient_as_bucket_view=keep)
        optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
        random = torch.Generator().manual_seed(rank)
        with open_group(rank) as group:
            rounds = BackupRounds(ddp, group)
            for number in range(ROUNDS):
                inputs = torch.randn(4, 3, 6, 6, generator=random)
                if not rounds.take():
                    computed += 1
                    loss = ddp(inputs).square().mean()
                    if rank == STRAGGLER and number >= ROUNDS_TO_SETTLE:  # it takes as long as so many of the others'
                        sizes = [one.elements for one in rounds._buckets] * min(SLOWER, ROUNDS - number)
                        if not wait_for_results(group, sizes, lambda: everybody.n_waiting == 2):
                            alone.append(number)
                    loss.backward()
                calls = max(calls, len(rounds._buckets))
                optimizer.step()
                optimizer.zero_grad(set_to_none=not keep)
            everybody.wait(JOIN_S)
        assert calls > 1
        assert computed + rounds.rounds_taken == ROUNDS
        bits = b"".join(parameter.detach().numpy().tobytes() for parameter in network.parameters())
        saved = group.counters.get("pushes_saved" if method == "ps" else "early", 0)
        return computed, saved, hashlib.sha256(bits).hexdigest()

    with hub:
        found: list[Any] = all_at_once([lambda rank=rank: train(rank) for rank in range(3)])  # type: ignore[misc]
    assert len({bits for _, _, bits in found}) == 1, found
    assert [computed for computed, _, _ in found[:STRAGGLER]] == [ROUNDS] * 2
    computed, saved, _ = found[STRAGGLER]
    assert 2 < computed <= 2 + (ROUNDS - 2 + SLOWER - 1) // SLOWER + len(alone)
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


@pytest.mark.usefixtures("ranks_alone")
def test_sums_of_ddp_without_a_hook_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """They may lack ranks, and DDP divides by all; hooks and sums outside of a backward pass don't do that."""
    options = SwitchOptions(switch="tcp://127.0.0.1:9", backups=1)
    group = dist.new_group(backend="switchagg", pg_options=options)
    group._switchable, group.reducer.open = True, lambda: False  # as of more ranks than one, on a full switch
    hooked = DistributedDataParallel(torch.nn.Linear(2, 2), process_group=group)
    hooked.register_comm_hook(group, switchagg_hook)
    plain = DistributedDataParallel(torch.nn.Linear(2, 2), process_group=group)
    dist.all_reduce(torch.ones(2), group=group)
    hooked(torch.ones(1, 2)).sum().backward()
    assert not caplog.records
    for _ in range(2):
        plain(torch.ones(1, 2)).sum().backward()
    (record,) = caplog.records
    assert "plain sums, which may lack some ranks (backups 1, close_after_ns 0)" in record.getMessage()
