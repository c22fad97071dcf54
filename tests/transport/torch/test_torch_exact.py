"""Exact sums in PyTorch: one rounding to the type of the tensors, the same bits by every method and in every cut."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import groups_per_thread, results

from tests.oracles.correct_rounding import combined
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.torch.calls.tensor_layout import array_of
from transport.torch.hook import switchagg_hook
from transport.torch.rendezvous import SwitchOptions

METHODS = ["switch~exact", "ring~exact", "ps~exact", "gloo~exact"]
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
OPS = [(dist.ReduceOp.SUM, False), (dist.ReduceOp.AVG, True)]


@pytest.fixture(scope="module")
def switch() -> Iterator[str]:
    with groups_per_thread(), SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=4096)) as daemon:
        yield daemon.control_endpoint


def options(switch: str, method: str, **more: Any) -> SwitchOptions:
    return SwitchOptions(switch, method=method, bind="127.0.0.1", window_slots=64, **more)


def values(rank: int, size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    random = torch.Generator().manual_seed(100 * rank + size)
    scales = torch.pow(2.0, torch.randint(-12, 4, (size,), generator=random).double())
    return (torch.randn(size, generator=random, dtype=torch.float64) * scales).to(dtype)


def expected(every: list[torch.Tensor], is_mean: bool) -> torch.Tensor:
    dtype = every[0].dtype
    wide = dtype if dtype.itemsize > 2 else torch.float32
    arrays = [array_of(tensor.to(wide).contiguous()) for tensor in every]
    found = combined(arrays, str(dtype).removeprefix("torch."), len(every) if is_mean else 1)
    return torch.from_numpy(found).to(dtype)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype and bytes(array_of(left.contiguous())) == bytes(array_of(right.contiguous()))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("workers", [1, 3])
def test_sums_are_rounded_once_to_the_tensors_type(switch: str, method: str, workers: int) -> None:
    """Of allreduce, reduce-scatter and reduce, also with one rank, and of one value; packed, strided, complex ones."""

    def act(rank: int) -> None:
        for dtype in TYPES:
            for size in (1, 300):
                every = [values(other, size * workers, dtype) for other in range(workers)]
                for op, is_mean in OPS:
                    total = expected(every, is_mean)
                    tensor, shard, rooted = every[rank].clone(), torch.empty(size, dtype=dtype), every[rank].clone()
                    dist.all_reduce(tensor, op)
                    assert same_bits(tensor, total), (dtype, size, op)
                    dist.distributed_c10d._get_default_group()._reduce_scatter_base(
                        shard, every[rank], _scatter(op)
                    ).wait()
                    assert same_bits(shard, total[rank * size : (rank + 1) * size]), (dtype, size, op)
                    dist.reduce(rooted, workers - 1, op)
                    assert same_bits(rooted, total if rank == workers - 1 else every[rank])
                    strided = torch.zeros(2 * len(total), dtype=dtype)[::2].copy_(every[rank])
                    dist.all_reduce(strided, op)
                    assert same_bits(strided, total)
        pair = [values(other, 64) for other in range(workers)]
        packed, other_packed = pair[rank].clone(), 2 * pair[rank]
        dist.all_reduce_coalesced([packed, other_packed])
        assert same_bits(packed, expected(pair, False))
        assert same_bits(other_packed, 2 * packed)
        number = torch.complex(pair[rank], -pair[rank])
        dist.all_reduce(number)
        assert same_bits(torch.view_as_real(number)[:, 0], packed)

    results(workers, act, "switchagg", options(switch, method))


def _scatter(op: Any) -> Any:
    scatter = dist.ReduceScatterOptions()
    scatter.reduceOp = op
    return scatter


@pytest.mark.parametrize("method", METHODS)
def test_other_calls_are_as_ever(switch: str, method: str) -> None:
    def act(rank: int) -> None:
        whole = torch.arange(5) * (rank + 1)
        dist.all_reduce(whole)
        assert whole.tolist() == [0, 3, 6, 9, 12]
        for op, both in ((dist.ReduceOp.MAX, [1.0, 0.0]), (dist.ReduceOp.MIN, [0.0, -1.0])):
            least = torch.tensor([float(rank), -float(rank)])
            dist.all_reduce(least, op)
            assert least.tolist() == both
        dist.broadcast(whole, 1)
        dist.barrier()
        with pytest.raises(Exception, match="codec exact sums dense tensors"):
            dist.all_reduce(torch.ones(3).to_sparse())

    results(2, act, "switchagg", options(switch, method))


@pytest.mark.parametrize("method", METHODS)
def test_gradients_depend_on_neither_buckets_nor_the_order_of_ranks(switch: str, method: str) -> None:
    """DDP with the hook divides once; the cut into buckets and the order of ranks change no bit."""

    def gradients(rank: int, workers: int, bucket_mb: float) -> list[torch.Tensor]:
        model = torch.nn.Sequential(torch.nn.Linear(40, 60), torch.nn.Tanh(), torch.nn.Linear(60, 3))
        with torch.no_grad():  # threads share PyTorch's own random numbers
            for number, parameter in enumerate(model.parameters()):
                parameter.copy_(values(number, parameter.numel()).view_as(parameter))
        ddp = DistributedDataParallel(model, bucket_cap_mb=bucket_mb)
        ddp.register_comm_hook(None, switchagg_hook)
        batch = values(workers - 1 - rank if bucket_mb < 1 else rank, 160).view(4, 40)
        ddp(batch).square().sum().backward()
        found = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        del ddp
        return found

    def act(rank: int) -> None:
        one, other = gradients(rank, 3, 25.0), gradients(rank, 3, 0.002)
        assert all(same_bits(left, right) for left, right in zip(one, other, strict=True))

    results(3, act, "switchagg", options(switch, method))


def test_a_sum_that_could_not_be_exact_is_refused(switch: str) -> None:
    """Gloo never takes the place of a switch that has no slots."""

    def act(rank: int) -> None:
        with pytest.raises(dist.DistBackendError, match="could not join switch"):
            dist.new_group(
                backend="switchagg", pg_options=options(switch, "switch~exact", slots_least=1 << 16)
            ).connect()

    assert "SWITCHAGG_CODEC" not in os.environ
    results(2, act)
