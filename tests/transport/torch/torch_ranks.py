"""Ranks of torch.distributed as threads of one process, each with a default group of its own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from rank_threads import outcomes
from torch.testing._internal.distributed import multi_threaded_pg

TIMEOUT_S = 30


@contextmanager
def groups_per_thread() -> Iterator[None]:
    """Inside, torch.distributed's default group and tables are each thread's own."""
    isolate: Any = torch._C._distributed_c10d._set_thread_isolation_mode  # type: ignore[attr-defined]
    multi_threaded_pg._install_threaded_pg()
    isolate(True)
    try:
        yield
    finally:
        isolate(False)
        multi_threaded_pg._uninstall_threaded_pg()


def on_ranks(workers: int, act: Callable[[int], Any], backend: str = "gloo", options: Any = None) -> list[Any]:
    """What `act(rank)` returned or raised on each rank."""
    store = dist.HashStore()

    def one(rank: int) -> Any:
        dist.init_process_group(
            backend,
            store=store,
            rank=rank,
            world_size=workers,
            timeout=timedelta(seconds=TIMEOUT_S),
            pg_options=options,
        )
        try:
            return act(rank)
        finally:
            dist.destroy_process_group()

    return outcomes(workers, one)


def two_bits(threshold: float) -> Any:
    """A compressor whose codes stand for the threshold, 0 or its opposite."""

    def compressed(values: torch.Tensor, group: Any) -> tuple[torch.Tensor, Any]:
        values.copy_(threshold * (values >= threshold) - threshold * (values <= -threshold))
        return values.clone(), dist.all_reduce(values, group=group, async_op=True)

    return compressed


def results(workers: int, act: Callable[[int], Any], backend: str = "gloo", options: Any = None) -> list[Any]:
    """What it returned; raises what it raised, a rank's own error before one that only says that another is gone."""
    found = on_ranks(workers, act, backend, options)
    errors = [one for one in found if isinstance(one, Exception)]
    for error in sorted(errors, key=lambda one: isinstance(one, dist.DistError)):
        raise error
    return found
