"""What each collective of torch.distributed is carried out by, found by calling it: docs/reference/backend.md.

`python -m tools.documents.reference backend` writes the page again.
"""

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import groups_per_thread, results

from emulation.report.table_kit import markdown
from tools.documents.reference import table
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions

N = 2
PAGE = Path(__file__).parents[3] / "docs/reference/backend.md"
HEAD = """# Calls of the PyTorch backend

Here you can look up who carries each call of PyTorch: *ours* is the switch or the host method, and a *refused* call is
an error. A size is that of the tensor. Parameter servers carry only allreduce. With `SWITCHAGG_METHOD=gloo`, Gloo
carries all but the refused calls. `python -m tools.documents.reference backend` makes each call on two ranks and writes
this page. [Training](../training.md#what-works-with-pytorch) has examples of libraries that use these calls.

`all_reduce`, `reduce` and `reduce_scatter_tensor` go the same way:

"""
WAYS = ("switch", "host methods")
REFUSED = """
A refused call raises an error on every rank that makes it:

"""
REDUCING = ("all_reduce", "reduce", "reduce_scatter_tensor")

Row = tuple[str, Callable[[int], Any]]
LARGE = 1 << 17
"""Bytes of "large": more than what is gathered."""


def reduced(call: str, dtype: torch.dtype, op: Any, large: bool = False) -> Callable[[int], Any]:
    def act(rank: int) -> None:
        elements = LARGE // dtype.itemsize if large else 4
        given = torch.ones(N * elements).to(dtype)
        if call == "all_reduce":
            dist.all_reduce(given[:elements], op)
        elif call == "reduce":
            dist.reduce(given[:elements], 0, op)
        else:
            dist.reduce_scatter_tensor(given[:elements].clone(), given, op)

    return act


def reductions(call: str) -> Iterator[Row]:
    ops, do = dist.ReduceOp, partial(reduced, call)
    yield "SUM of float32, float64", do(torch.float32, ops.SUM)
    yield "SUM of float16, bfloat16", do(torch.bfloat16, ops.SUM)
    yield "SUM of int16, int32, int64", do(torch.int64, ops.SUM)
    yield "SUM of int8, uint8, bool", do(torch.uint8, ops.SUM)
    yield "SUM of int8, uint8, bool, 128 kB", do(torch.uint8, ops.SUM, True)
    yield "SUM of complex numbers", do(torch.complex64, ops.SUM)
    yield "SUM of uint16, uint32, uint64", do(torch.uint16, ops.SUM)
    yield "SUM of floats of 8 bits", do(torch.float8_e5m2, ops.SUM)
    yield "AVG of floats", do(torch.float32, ops.AVG)
    yield "AVG of integers", do(torch.int32, ops.AVG)
    yield "PREMUL_SUM of floats", do(torch.float32, dist._make_nccl_premul_sum(0.5))
    yield "MAX, MIN of floats, integers of up to 32 bits", do(torch.int32, ops.MAX)
    yield "MAX, MIN of 64 bits", do(torch.int64, ops.MAX)
    yield "MAX, MIN of 64 bits, 128 kB", do(torch.int64, ops.MAX, True)
    yield "PRODUCT", do(torch.float32, ops.PRODUCT)
    yield "PRODUCT, 128 kB", do(torch.float32, ops.PRODUCT, True)
    yield "PRODUCT of int16, 128 kB", do(torch.int16, ops.PRODUCT, True)
    yield "BAND, BOR, BXOR of integers", do(torch.int32, ops.BOR)
    yield "BAND, BOR, BXOR of integers, 128 kB", do(torch.int32, ops.BXOR, True)


def coalesced(rank: int) -> None:
    with dist._coalescing_manager():
        for size in (3, 50_000):
            dist.all_reduce(torch.ones(size))


def parts() -> list[torch.Tensor]:
    return [torch.ones(3) for _ in range(N)]


def ones(rank: int, elements: int = 3) -> torch.Tensor:
    return torch.ones(elements)


def sent(rank: int) -> None:
    dist.send(torch.ones(3), 1) if rank == 0 else dist.recv(torch.ones(3), 0)


def sent_to_any(rank: int) -> None:
    dist.send(torch.ones(3), 1) if rank == 0 else dist.recv(torch.ones(3))


def sent_at_once(rank: int) -> None:
    calls = [dist.P2POp(dist.isend, torch.ones(3), 1 - rank), dist.P2POp(dist.irecv, torch.ones(3), 1 - rank)]
    for work in dist.batch_isend_irecv(calls):
        work.wait()


def joined(rank: int) -> None:
    model = DistributedDataParallel(torch.nn.Linear(4, 2), find_unused_parameters=True)
    with model.join():
        for _ in range(1 + rank):
            model(torch.ones(2, 4)).sum().backward()


def meshes(rank: int) -> None:
    mesh = init_device_mesh("cpu", (N,), mesh_dim_names=("ranks",))
    dist.all_reduce(torch.ones(3), group=mesh._unflatten(0, (N, 1), ("outer", "inner")).get_group("outer"))


def others() -> Iterator[Row]:
    world: Any = lambda: dist.group.WORLD  # noqa: E731  # each rank's
    empty = [torch.empty(3 * (each + 1)) for each in range(N)]
    yield "`all_reduce` of a sparse tensor", lambda r: dist.all_reduce(torch.sparse_coo_tensor([[r]], [1.0], (N,)))
    yield "`all_reduce` of a coalescing manager, `all_reduce_coalesced`", coalesced
    yield "`all_reduce` into a tensor that `expand` made", lambda r: dist.all_reduce(ones(r, 1).expand(3))
    yield "`broadcast`", lambda r: dist.broadcast(ones(r), 0)
    yield "`all_gather`, of equal or of different sizes", lambda r: dist.all_gather(empty, empty[r].clone())
    yield "`all_gather_into_tensor`, `all_gather_single`", lambda r: dist.all_gather_into_tensor(ones(r, 6), ones(r))
    yield (
        "`all_gather` of floats of 8 bits, any type",
        lambda r: dist.all_gather_into_tensor(ones(r, 6).to(torch.float8_e5m2), ones(r).to(torch.float8_e5m2)),
    )
    yield "`reduce_scatter` of a list", lambda r: dist.reduce_scatter(empty[r].clone(), empty)
    yield "`barrier`", lambda r: dist.barrier()
    yield "`monitored_barrier` of the group", lambda r: world().monitored_barrier(timedelta(seconds=20))
    yield "`dist.monitored_barrier`", lambda r: dist.monitored_barrier()
    yield "`gather`", lambda r: dist.gather(ones(r), None if r else parts(), 0)
    yield "`scatter`", lambda r: dist.scatter(ones(r), None if r else parts(), 0)
    yield "`all_to_all`", lambda r: dist.all_to_all(parts(), parts())
    yield "`all_to_all_single`", lambda r: dist.all_to_all_single(ones(r, 6), ones(r, 6))
    yield "`send`, `recv`", sent
    yield "`recv` from any rank", sent_to_any
    yield "`batch_isend_irecv`", sent_at_once
    yield "`all_gather_object`", lambda r: dist.all_gather_object([None] * N, r)
    yield "`broadcast_object_list`", lambda r: dist.broadcast_object_list([r], 0)
    yield "`gather_object`", lambda r: dist.gather_object(r, None if r else [None] * N)
    yield "`scatter_object_list`", lambda r: dist.scatter_object_list([None], list(range(N)), 0)
    yield "`new_group`", lambda r: dist.all_reduce(ones(r), group=dist.new_group(list(range(N))))
    yield "`DeviceMesh`, `_unflatten`", meshes
    yield "`split_group` of the group", lambda r: world().split_group([0, 1])
    yield "`DistributedDataParallel.join` with `find_unused_parameters`", joined


def ways() -> set[str]:
    """Who has carried out calls since the last time, of all groups that there are."""
    found = set()
    for group in list(dist.distributed_c10d._world.pg_map):
        counts = getattr(group, "traffic", None)
        if counts is not None:
            found |= {
                (id(group), kind, way, told["calls"])
                for kind, of in counts.counts().items()
                for way, told in of.items()
            }
    return found


def called(act: Callable[[int], Any], rank: int) -> tuple[str, str]:
    """Who carried a call out; and the error, if it is refused."""
    before = ways()
    try:
        act(rank)
    except Exception as error:
        return "refused", str(error).splitlines()[0]
    by = {way for _, _, way, _ in ways() - before}
    return " and ".join(sorted({"Gloo's" if way == "gloo" else "ours" for way in by})), ""


def cells(rank: int) -> dict[str, tuple[str, str]]:
    """Of each call."""
    found = {}
    for rows in zip(*map(reductions, REDUCING), strict=True):
        each = [called(act, rank) for _, act in rows]
        assert len({who for who, _ in each}) == 1, (rows[0][0], each)
        found[rows[0][0]] = each[0]
    return found | {name: called(act, rank) for name, act in others()}


def page() -> str:
    daemon = SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=65536))
    daemon.start()
    columns: list[list[dict[str, tuple[str, str]]]] = []
    try:
        for method in ("switch", "ring"):
            told = {
                "SWITCHAGG_SWITCH": daemon.control_endpoint,
                "SWITCHAGG_METHOD": method,
                "SWITCHAGG_BIND": "127.0.0.1",
            }
            with groups_per_thread(), patch.dict(os.environ, told):
                columns.append(results(N, cells, "switchagg"))
    finally:
        daemon.stop()
    for column in columns:
        assert column[0] == column[1], "ranks differ"
    names = list(columns[0][0])
    rows = [(name, *(column[0][name][0] for column in columns)) for name in names]
    said = dict.fromkeys(f"- `{columns[0][0][name][1]}`\n" for name in names if columns[0][0][name][1])
    reducing = len(list(reductions(REDUCING[0])))
    first = "\n".join(markdown(("reduction", *WAYS), rows[:reducing]))
    others = table(("other calls", *WAYS), rows[reducing:], "; ")
    return "".join([HEAD, first, "\n\n", others, REFUSED, *said])


@pytest.mark.filterwarnings("ignore")
def test_the_page_is_what_happens() -> None:
    assert PAGE.read_text() == page(), "run: python -m tools.documents.reference backend"


if __name__ == "__main__":
    print(page(), end="")
