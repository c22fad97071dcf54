"""What the ranks of the tests of time-outs, room and memory run: `python torch_limit_programs.py NAME`, as those of
torch_programs.py."""

import itertools
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch_programs import RANK, WORLD, assert_same_everywhere, gathered, raised, small_model, start, switched

import transport.torch


def time_limits() -> None:
    """Whoever set the limit, a call that rank 1 doesn't make ends then on rank 0, and says so."""
    start()
    store, rounds = dist.distributed_c10d._get_default_store(), itertools.count()
    minute, second = timedelta(seconds=60), timedelta(seconds=1)

    def together() -> None:
        now = next(rounds)
        store.set(f"limits/{now}/{RANK}", "")
        store.wait([f"limits/{now}/{rank}" for rank in range(WORLD)], minute)

    def group_of(limit: timedelta, joined: bool = True) -> Any:
        group = dist.new_group(timeout=limit)
        if joined:
            dist.all_reduce(torch.ones(1), group=group)
        together()
        return group

    def ends(limit_s: float, words: str, action: Callable[[], Any]) -> None:
        began_s = time.monotonic()
        if RANK == 0:
            error = str(raised(action))
            took_s = time.monotonic() - began_s
            assert re.search(words, error), error
            assert limit_s - 0.05 <= took_s < limit_s + 6, (took_s, error)
        together()

    missing = {
        "switch": "missing at the switch: rank 1 at .*missing ranks: 1",
        "ring": "on rank 0, waiting for rank 1",
        "ps": "waiting for server 1",
    }[dist.group.WORLD.method.method]
    tensor, late = torch.ones(4), rf"job torch-.*, rank 0 of 2\): allreduce \d.*timed out after 1 s.*{missing}"
    group = group_of(minute)
    dist.distributed_c10d._set_pg_timeout(second, group)
    ends(1, late, lambda: dist.all_reduce(tensor, group=group))
    group = group_of(minute, joined=False)
    dist.distributed_c10d._set_pg_timeout(second, group)
    ends(1, "timed out: rank 1 of 2 did not come", lambda: dist.all_reduce(tensor, group=group))
    group = group_of(timedelta(seconds=3))
    dist.distributed_c10d._set_pg_timeout(second, group)
    ends(1, late, lambda: dist.all_reduce(tensor, group=group, async_op=True).get_future().wait())
    group = group_of(timedelta(seconds=3))
    ends(3, late.replace("1 s", "3 s"), lambda: dist.all_reduce(tensor, group=group))
    group = group_of(minute)
    ends(1, "barrier .*timed out after 1 s|Timed out waiting 1000ms", lambda: group.barrier(timeout=second).wait())
    group = group_of(minute)
    if RANK == 0:
        work = dist.all_reduce(tensor, group=group, async_op=True)
        ends(1, "timed out; no result after 1 s", lambda: work.wait(second))
    else:
        together()
        work = dist.all_reduce(tensor, group=group, async_op=True)
    assert work.wait(), "the call itself went on"
    assert tensor.tolist() == [WORLD] * 4
    group = group_of(minute)
    dist.distributed_c10d._set_pg_timeout(second, group)
    ends(1, "(?i)timed out", lambda: dist.recv(torch.ones(4), src=1, group=group))
    group = group_of(minute)
    dist.distributed_c10d._set_pg_timeout(second, group)
    ends(1, "(?i)timed out", lambda: dist.all_to_all([torch.ones(1)] * 2, [torch.ones(1)] * 2, group=group))
    group = group_of(minute)
    ends(1, "Rank 1 failed to pass monitoredBarrier in 1000 ms", lambda: group.monitored_barrier(second))
    together()
    dist.destroy_process_group()


def many_groups() -> None:
    """A switch has room for 64 groups of a program; one that takes no less than all its windows finds none, at once."""
    start()
    groups = [dist.group.WORLD, *(dist.new_group() for _ in range(63))]
    for number, group in enumerate(groups):
        tensor = torch.full((5000,), number, dtype=torch.int32)
        dist.all_reduce(tensor, group=group)
        assert tensor.eq(number * WORLD).all()
        assert switched(group)
    group = dist.new_group(pg_options=transport.torch.SwitchOptions(os.environ["SWITCHAGG_SWITCH"], slots_least=0))
    began_s = time.monotonic()
    dist.all_reduce(torch.ones(1), group=group)
    took_s = time.monotonic() - began_s
    assert group.reducer._lanes[0].session is None
    assert took_s < 6, took_s
    print("LOADED", flush=True)
    dist.barrier()
    time.sleep(float(os.environ["STAY_S"]))
    dist.destroy_process_group()


def growth() -> None:
    """400 more calls of a kind leave no more memory in use."""
    start()

    def resident_mb() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    shards, kinds = torch.ones(WORLD * 900), {
        "objects": lambda: gathered({"rank": RANK, "values": list(range(50))}),
        "allreduce": lambda: dist.all_reduce(torch.ones(900)),
        "broadcast": lambda: dist.broadcast(torch.ones(900), 0),
        "reduce_scatter": lambda: dist.reduce_scatter(torch.ones(900), list(shards.split(900))),
        "all_to_all": lambda: dist.all_to_all_single(torch.ones(WORLD * 900), shards),
    }  # fmt: skip
    for kind, call in kinds.items():
        for _ in range(50):
            call()
        before_mb = resident_mb()
        for _ in range(400):
            call()
        grown_mb = resident_mb() - before_mb
        assert grown_mb < 1, f"{kind}: {grown_mb:.1f} MB"
    dist.destroy_process_group()


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 32

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return torch.full((20,), row / 32), row % 5


def loaders_and_an_early_end() -> None:
    """Processes that load data are forked while the group is in use; then rank 0 destroys it in mid-call: its calls
    fail at once, those of rank 1 when it makes them, and both end as programs do."""
    start()
    store = dist.distributed_c10d._get_default_store()
    groups = [dist.group.WORLD, dist.new_group(pg_options=transport.torch.SwitchOptions(method="ring"))]
    models = [DistributedDataParallel(small_model(), process_group=group) for group in groups]
    for rows, labels in torch.utils.data.DataLoader(Rows(), batch_size=8, num_workers=2):
        for model in models:
            torch.nn.functional.cross_entropy(model(rows), labels).backward()
    for model in models:
        assert_same_everywhere(torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()]))
    if RANK == 0:
        works = [dist.all_reduce(torch.ones(100_000), group=group, async_op=True) for group in 2 * groups]
        ends: list[Exception] = []
        waiting = threading.Thread(target=lambda: ends.append(raised(works[0].wait)))
        waiting.start()
        time.sleep(0.1)
        began_s = time.monotonic()
        dist.destroy_process_group()
        store.set("destroyed", "")
        waiting.join(20)
        ends += [raised(work.wait) for work in works[1:]]
        assert time.monotonic() - began_s < 20
        assert len(ends) == 4
        assert all("failed: it was shut down" in str(end) for end in ends), ends
        return
    store.wait(["destroyed"], timedelta(seconds=60))
    for group in groups:
        error = str(raised(lambda group=group: dist.all_reduce(torch.ones(100_000), group=group)))
        assert re.search("rank 0.* left", error), error
    dist.destroy_process_group()


if __name__ == "__main__":
    {program.__name__: program for program in (time_limits, many_groups, growth, loaders_and_an_early_end)}[
        sys.argv[1]
    ]()
    print("DONE", flush=True)
