"""What the ranks of the tests of collectives run: `python torch_collective_programs.py NAME`, as torch_programs.py."""

import math
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch_programs import RANK, WORLD, by_gloo, gathered, raised, start, switched


def collectives() -> None:
    start()
    assert dist.get_backend() == "switchagg"
    reductions()
    sums()
    shards()
    elsewhere()
    objects_and_messages()
    subgroups()
    meshes()
    dist.barrier()
    dist.group.WORLD.monitored_barrier(timedelta(seconds=20))
    dist.destroy_process_group()


def reductions() -> None:
    """Every operation on every type that the group combines, or gathers."""
    n = WORLD
    numbers = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.int16,
               torch.int8, torch.uint8)  # fmt: skip
    gloo = by_gloo()
    for dtype in numbers:
        tensor = torch.arange(0, 40).to(dtype)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.arange(0, 40).to(dtype) * n), dtype
        given = [torch.tensor([rank + 1, 5, n - rank, 0 if rank else 1]).to(dtype) for rank in range(n)]
        for op, expected in (
            (dist.ReduceOp.MAX, [n, 5, n, 1]),
            (dist.ReduceOp.MIN, [1, 5, 1, 0 if n > 1 else 1]),
            (dist.ReduceOp.PRODUCT, [math.factorial(n), 5**n, math.factorial(n), 0]),
        ):
            tensor = given[RANK].clone()
            dist.all_reduce(tensor, op)
            assert tensor.tolist() == expected, (dtype, op, tensor)
    for dtype in numbers[:4]:
        tensor = torch.full((3, 5), float(RANK), dtype=dtype)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        assert torch.equal(tensor, torch.full((3, 5), (n - 1) / 2, dtype=dtype)), dtype
        tensor = torch.full((3,), float(RANK), dtype=dtype)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
        assert torch.equal(tensor, torch.full((3,), n * (n - 1) / 4, dtype=dtype)), dtype
    for dtype in (torch.int64, torch.int32):  # as NCCL: the sum, divided towards zero
        tensor = torch.tensor([RANK, -RANK - 1, 2**31 - 1 if RANK == 0 else 0]).to(dtype)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        assert tensor.tolist() == [(n - 1) // 2, -((n * (n + 1) // 2) // n), (2**31 - 1) // n], tensor
    least = torch.tensor([torch.iinfo(torch.int32).min if RANK else 3, 7], dtype=torch.int32)
    dist.all_reduce(least, dist.ReduceOp.MIN)
    assert least.tolist() == [torch.iinfo(torch.int32).min, 7]
    for op, expected in ((dist.ReduceOp.BAND, 0), (dist.ReduceOp.BOR, 2**n - 1), (dist.ReduceOp.BXOR, 2**n - 1)):
        tensor = torch.tensor([1 << RANK], dtype=torch.int16)
        dist.all_reduce(tensor, op)
        assert tensor.item() == expected
    for op, expected in ((dist.ReduceOp.SUM, [True, False]), (dist.ReduceOp.MIN, [False, False])):
        flags = torch.tensor([RANK == 0, False])
        dist.all_reduce(flags, op)
        assert flags.tolist() == expected
    tensor = torch.tensor([1 + 2j, -1j]) * (RANK + 1)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [(1 + 2j) * n * (n + 1) / 2, -1j * n * (n + 1) / 2]
    tensor = torch.tensor([float("nan"), 1.0])
    dist.all_reduce(tensor)
    assert tensor[0].isnan()
    assert by_gloo() == gloo
    large = torch.ones(100_000)
    dist.all_reduce(large, dist.ReduceOp.PRODUCT)
    sparse = torch.sparse_coo_tensor([[RANK]], [1.0], (n,))
    dist.all_reduce(sparse)
    assert sparse.to_dense().tolist() == [1.0] * n
    assert by_gloo() == gloo + 2


def sums() -> None:
    """Forms of an allreduce, and how many calls of the group each is."""
    n, calls = WORLD, switched()
    tensors = [torch.ones(3), torch.ones(2, 2), torch.ones(2, dtype=torch.int64), torch.empty(0), torch.ones(40_000)]
    dist.all_reduce_coalesced(tensors[:2])
    assert all(torch.equal(tensor, torch.full_like(tensor, n)) for tensor in tensors[:2])
    assert switched() == calls + 1
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    assert [tensor.flatten()[:1].tolist() for tensor in tensors] == [[n * n], [n * n], [n], [], [n]]
    assert switched() == calls + 4  # small floats, small integers, and the large tensor
    uneven = [torch.full((300,), 1e9), torch.full((2,), 1e-9)]
    dist.all_reduce_coalesced(uneven)
    torch.testing.assert_close(uneven[1], torch.full((2,), n * 1e-9), rtol=1e-5, atol=0)  # its own exponent
    assert dist.group.WORLD.allreduce(tensors[0], dist.ReduceOp.SUM).wait()
    works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(5)]
    assert all(work.wait() and work.result()[0][0] == n for work in works)
    dist.all_reduce(torch.empty(0))
    assert switched() == calls + 12


def shards() -> None:
    """Reduce-scatters, all-gathers, broadcasts and reduces: types, shapes, strides, uneven and empty shards."""
    n, gloo = WORLD, by_gloo()
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.complex64):
        mine = torch.full((2,), RANK + 1).to(dtype)
        whole = torch.empty(2 * n, dtype=dtype)
        for gather in (dist.all_gather_into_tensor, getattr(dist, "all_gather_single", dist.all_gather_into_tensor)):
            gather(whole.zero_(), mine)
            assert torch.equal(whole.view(n, 2)[:, 1], torch.arange(1, n + 1).to(dtype)), dtype
        out = torch.empty(2, dtype=dtype)
        given = torch.arange(2 * n).to(dtype)
        for scatter in (dist.reduce_scatter_tensor, getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)):
            scatter(out.zero_(), given)
            assert torch.equal(out, n * torch.arange(2 * RANK, 2 * RANK + 2).to(dtype)), dtype
            assert torch.equal(given, torch.arange(2 * n).to(dtype))
        told = torch.full((3,), RANK).to(dtype)
        dist.broadcast(told, 1)
        assert torch.equal(told, torch.ones(3).to(dtype)), dtype
        dist.reduce(told, n - 1)
        assert torch.equal(told, torch.full((3,), n if n - 1 == RANK else 1).to(dtype)), dtype
    for op, expected in (
        (dist.ReduceOp.AVG, (n - 1) / 2),
        (dist._make_nccl_premul_sum(2.0), n * (n - 1)),
        (dist.ReduceOp.MIN, 0),
        (dist.ReduceOp.PRODUCT, 0),
    ):
        scattered = torch.empty(3)
        dist.reduce_scatter_tensor(scattered, torch.full((3 * n,), float(RANK)), op)
        assert scattered.tolist() == [expected] * 3, op
        dist.reduce(summed := torch.full((3,), float(RANK)), 0, op)
        assert summed.tolist() == [expected if RANK == 0 else RANK] * 3, op
    bits = torch.tensor([0x7FA0_0001 + RANK], dtype=torch.int32)  # signalling NaNs, which arithmetic would change
    found = torch.empty(n)
    dist.all_gather_into_tensor(found, bits.view(torch.float32))
    assert found.view(torch.int32).tolist() == [0x7FA0_0001 + rank for rank in range(n)]
    square = torch.zeros(4, 2 * n)
    dist.all_gather_into_tensor(square[:, ::2], torch.full((4, 2), float(RANK))[:, :1].contiguous())
    assert square[:, ::2].flatten().tolist() == [rank for rank in range(n) for _ in range(4)]
    assert not square[:, 1::2].any()
    sizes = [3 * rank for rank in range(n)]
    parts = [torch.empty(size) for size in sizes]
    dist.all_gather(parts, torch.full((sizes[RANK],), float(RANK)))
    assert [part.tolist() for part in parts] == [[float(rank)] * size for rank, size in enumerate(sizes)]
    out = torch.empty(sizes[RANK])
    dist.reduce_scatter(out, [torch.full((size,), float(size)) for size in sizes])
    assert out.tolist() == [n * sizes[RANK]] * sizes[RANK]
    even = [torch.empty(2) for _ in range(n)]
    dist.all_gather(even, torch.full((2,), float(RANK)))
    assert [part[0].item() for part in even] == list(range(n))
    dist.reduce_scatter(out := torch.empty(2), [torch.full((2,), float(rank)) for rank in range(n)])
    assert out.tolist() == [n * RANK] * 2
    dist.all_gather_into_tensor(torch.empty(0), torch.empty(0))
    with dist._coalescing_manager():
        for tensor in (whole_a := torch.empty(n), whole_b := torch.empty(2 * n)):
            dist.all_gather_into_tensor(tensor, torch.full((len(tensor) // n,), float(RANK)))
    with dist._coalescing_manager():
        dist.reduce_scatter_tensor(out := torch.empty(1), whole_a)
        dist.reduce_scatter_tensor(both := torch.empty(2), whole_b)
    assert (out.item(), both.tolist()) == (n * RANK, [n * RANK] * 2)
    lists = [[torch.empty(2), torch.empty(1)] for _ in range(n)]
    dist.group.WORLD.allgather_coalesced(lists, [torch.full((2,), float(RANK)), torch.full((1,), 9.0)]).wait()
    assert [[part.tolist() for part in each] for each in lists] == [[[rank] * 2, [9]] for rank in range(n)]
    works = [dist.all_gather_into_tensor(torch.empty(n), torch.ones(1), async_op=True) for _ in range(3)]
    assert all(work.get_future().wait()[0].tolist() == [1] * n for work in works)
    error = raised(lambda: dist.all_gather_into_tensor(torch.empty(n + 1), torch.ones(1)))
    assert isinstance(error, ValueError)
    assert by_gloo() == gloo
    counts = dist.group.WORLD.traffic.counts()
    assert counts["all_gather"][os.environ.get("SWITCHAGG_METHOD", "switch").partition("@")[0]]["bytes"] > 0


def elsewhere() -> None:
    """What is Gloo's."""
    n, gloo = WORLD, by_gloo()
    mine, out = torch.full((2,), float(RANK)), torch.empty(2)
    parts, whole = [torch.empty(2) for _ in range(n)], torch.empty(2 * n)
    dist.gather(mine, parts if RANK == 0 else None, dst=0)
    assert RANK or [part[0].item() for part in parts] == list(range(n))
    dist.scatter(out, [torch.full((2,), 7.0 * r) for r in range(n)] if RANK == 0 else None, src=0)
    assert out.tolist() == [7.0 * RANK] * 2
    dist.all_to_all_single(whole.view(-1), torch.full((2 * n,), float(RANK)))
    assert whole.view(n, 2)[:, 0].tolist() == list(range(n))
    splits = [RANK + 1] * n
    dist.all_to_all_single(torch.empty(n * (n + 1) // 2), torch.ones(n * (RANK + 1)), [r + 1 for r in range(n)], splits)
    lists = torch.__version__ >= "2.13"  # Gloo of 2.11 has no all-to-all of lists
    if lists:
        dist.all_to_all(parts, [torch.full((2,), 10.0 * RANK + r) for r in range(n)])
        assert [part[0].item() for part in parts] == [10.0 * r + RANK for r in range(n)]
    assert by_gloo() == gloo + 4 + lists


def objects_and_messages() -> None:
    n = WORLD
    assert gathered({"rank": RANK}) == [{"rank": r} for r in range(n)]
    told = ["from 1" if RANK == 1 else None]
    dist.broadcast_object_list(told, src=1)
    assert told == ["from 1"]
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [f"for {r}" for r in range(n)] if RANK == 0 else None, src=0)
    assert mine == [f"for {RANK}"]
    right, left = (RANK + 1) % n, (RANK - 1) % n
    tensor = torch.empty(3)
    received = dist.irecv(tensor, left)
    dist.send(torch.full((3,), float(RANK)), right)
    received.wait()
    assert tensor.tolist() == [left] * 3
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, torch.full((3,), float(RANK)), right), dist.P2POp(dist.irecv, tensor.zero_(), left)]
    )
    for work in works:
        work.wait()
    assert tensor.tolist() == [left] * 3
    if RANK == 0:
        assert dist.recv(tensor) == 1  # from any rank
    elif RANK == 1:
        dist.send(tensor, 0)


def subgroups() -> None:
    """Overlapping groups, each a job of its own, joined at its first allreduce; one that never has any."""
    pair, other, unused = dist.new_group([0, 1]), dist.new_group([1, 2]), dist.new_group([0, 2])
    for group, ranks in ((pair, [0, 1]), (other, [1, 2])):
        if RANK in ranks:
            tensor = torch.tensor([float(RANK)])
            dist.all_reduce(tensor, group=group)
            assert tensor.item() == sum(ranks)
            assert switched(group) == 1
    if RANK in (0, 2):
        assert unused.reducer._lanes[0].session is None
    jobs = {group.rendezvous.job for group in (pair, other, dist.group.WORLD) if hasattr(group, "rendezvous")}
    assert len(jobs) == (3 if RANK == 1 else 2)
    if RANK in (0, 1):
        dist.destroy_process_group(pair)


def meshes() -> None:
    import torch.distributed._functional_collectives as functional
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("data",))
    calls = switched(mesh.get_group())
    total = functional.all_reduce(torch.ones(5), "sum", mesh.get_group("data"))
    assert torch.equal(total + 0, torch.full((5,), float(WORLD)))
    assert switched(mesh.get_group()) == calls + 1
    wide = functional.all_gather_tensor(torch.full((2,), float(RANK)), 0, mesh.get_group("data"))
    assert (wide + 0).tolist() == [r for r in range(WORLD) for _ in range(2)]
    sharded = distribute_tensor(torch.arange(6.0), mesh, [Shard(0)])
    assert sharded.sum().redistribute(mesh, [Replicate()]).to_local().item() == 15.0


PROGRAMS: dict[str, Callable[[], None]] = {program.__name__: program for program in (collectives,)}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
    print("DONE", flush=True)
