"""Every collective on tensors of any strides, held to what a rank computes alone: by Gloo, a ring and a switch.

Ranks give tensors that lie in memory differently at once; what lies between the elements of a view has to stay.
"""

import math
import time
from collections.abc import Callable, Iterator
from functools import reduce
from itertools import count
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch_ranks import groups_per_thread, results

from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.torch.calls import tensor_layout
from transport.torch.rendezvous import SwitchOptions

N = 3
SHAPE = (2, 3, 2, 2)
BESIDE = 1
"""What lies beside the elements of a view."""
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.int8,
          torch.uint8, torch.bool)  # fmt: skip
BITWISE: dict[str, Callable[..., torch.Tensor]] = {
    "BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor
}  # fmt: skip
LOCAL = {
    "SUM": torch.add,
    "MAX": torch.maximum,
    "MIN": torch.minimum,
    "PRODUCT": torch.mul,
    "AVG": torch.add,
    **BITWISE,
}


def transposed(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape[::-1], dtype=dtype).permute(*reversed(range(len(shape))))


def channels_last(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, memory_format=torch.channels_last)


def stepped(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty((*shape[:-1], 2 * shape[-1]), dtype=dtype)[..., ::2]


def narrowed(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty((shape[0], shape[1] + 2, *shape[2:]), dtype=dtype)[:, 1:-1]


def with_an_offset(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty((shape[0] + 2, *shape[1:]), dtype=dtype)[1:-1]


def negated(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch._neg_view(torch.empty(shape, dtype=dtype)) if dtype != torch.bool else stepped(shape, dtype)


def plain(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


PATTERNS = (plain, transposed, channels_last, stepped, narrowed, with_an_offset, negated)


class Case:
    """A call of one type and operation: its tensors, of which no two lie in memory alike."""

    def __init__(self, rank: int, dtype: torch.dtype, op: str, shift: int, shape: tuple[int, ...] = SHAPE) -> None:
        self.rank, self.dtype, self.op, self.shape = rank, dtype, op, shape
        self.turn = count(shift + rank)
        self.views: list[torch.Tensor] = []
        self.works: list[Any] = []
        self.outputs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def values(self, rank: int, number: int = 0, rows: int = 1) -> torch.Tensor:
        """What a rank gives."""
        shape = (rows * self.shape[0], *self.shape[1:]) if self.shape else ()
        given = (torch.arange(math.prod(shape)) * (3 + rank) + 5 * rank + 7 * number) % 11 // 4
        return given.reshape(shape).to(self.dtype)

    def lies(self, values: torch.Tensor) -> torch.Tensor:
        """A tensor of these values, with strides of its own."""
        pattern = PATTERNS[next(self.turn) % len(PATTERNS)]
        tensor = pattern(tuple(values.shape), self.dtype) if values.dim() == 4 else torch.empty_like(values)
        storage(tensor).fill_(BESIDE)
        self.views.append(tensor)
        return tensor.copy_(values)

    def gives(self, number: int = 0, rows: int = 1) -> torch.Tensor:
        return self.lies(self.values(self.rank, number, rows))

    def takes(self, expected: torch.Tensor) -> torch.Tensor:
        self.outputs.append((tensor := self.lies(torch.zeros_like(expected)), expected))
        return tensor

    def becomes(self, expected: torch.Tensor, number: int = 0) -> torch.Tensor:
        self.outputs.append((tensor := self.gives(number), expected))
        return tensor

    def combined(self, number: int = 0, rows: int = 1) -> torch.Tensor:
        """Of all ranks' values."""
        total = reduce(LOCAL[self.op], [self.values(rank, number, rows) for rank in range(N)])
        return total / N if self.op == "AVG" else total

    def shard(self, whole: torch.Tensor, rank: int = -1) -> torch.Tensor:
        return whole.chunk(N)[self.rank if rank < 0 else rank] if self.shape else whole

    def check(self, how: int) -> str:
        """What differs, once the calls are done, as one of the three ways to know it says."""
        for work in self.works:
            if how % 3 == 1:
                work.get_future().wait()
            while how % 3 == 2 and not work.is_completed():
                time.sleep(0)
            if how % 3 == 0:
                work.wait()
        wrong = ""
        for tensor, expected in self.outputs:
            found = tensor.clone()
            if not torch.allclose(found.double(), expected.double(), rtol=1e-2, atol=0):
                wrong = f"{tensor.stride()}: {found.flatten().tolist()} not {expected.flatten().tolist()}"
        for tensor in self.views:
            tensor.fill_(BESIDE if not tensor.is_neg() else -BESIDE)
            if not (storage(tensor) == BESIDE).all():
                wrong = wrong or f"{tensor.stride()}: written beside it"
        return wrong


def storage(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())


def all_reduce(case: Case, op: Any) -> Any:
    return dist.all_reduce(case.becomes(case.combined()), op, async_op=True)


def all_reduce_coalesced(case: Case, op: Any) -> Any:
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = op
    return dist.group.WORLD.allreduce_coalesced([case.becomes(case.combined(k), k) for k in range(3)], options)


def reduce_(case: Case, op: Any) -> Any:
    tensor = case.becomes(case.combined()) if case.rank == 1 else case.gives()
    return dist.reduce(tensor, 1, op, async_op=True)


def reduce_scatter(case: Case, op: Any) -> Any:
    return dist.reduce_scatter(
        case.takes(case.combined(case.rank)), [case.gives(k) for k in range(N)], op, async_op=True
    )


def reduce_scatter_tensor(case: Case, op: Any) -> Any:
    return dist.reduce_scatter_tensor(
        case.takes(case.shard(case.combined(rows=N))), case.gives(rows=N), op, async_op=True
    )


def reduce_scatters(case: Case, op: Any) -> Any:
    outputs = [case.takes(case.shard(case.combined(k, N))) for k in range(2)]
    options = dist.ReduceScatterOptions()
    options.reduceOp = op
    return dist.group.WORLD.reduce_scatter_tensor_coalesced(outputs, [case.gives(k, N) for k in range(2)], options)


def broadcast(case: Case, op: Any) -> Any:
    return dist.broadcast(case.becomes(case.values(1)), 1, async_op=True)


def all_gather(case: Case, op: Any) -> Any:
    return dist.all_gather([case.takes(case.values(rank)) for rank in range(N)], case.gives(), async_op=True)


def all_gather_tensor(case: Case, op: Any) -> Any:
    whole = torch.cat([case.values(rank) for rank in range(N)])
    return dist.all_gather_into_tensor(case.takes(whole), case.gives(), async_op=True)


def all_gathers(case: Case, op: Any) -> Any:
    wholes = [torch.cat([case.values(rank, k) for rank in range(N)]) for k in range(2)]
    return dist.group.WORLD.allgather_into_tensor_coalesced(
        [case.takes(whole) for whole in wholes], [case.gives(k) for k in range(2)]
    )


def all_gather_lists(case: Case, op: Any) -> Any:
    lists = [[case.takes(case.values(rank, k)) for k in range(2)] for rank in range(N)]
    return dist.group.WORLD.allgather_coalesced(lists, [case.gives(k) for k in range(2)])


def gather(case: Case, op: Any) -> Any:
    outputs = [case.takes(case.values(rank)) for rank in range(N)] if case.rank == 1 else None
    return dist.gather(case.gives(), outputs, 1, async_op=True)


def scatter(case: Case, op: Any) -> Any:
    output = case.takes(case.values(1, case.rank))
    return dist.scatter(output, [case.gives(k) for k in range(N)] if case.rank == 1 else None, 1, async_op=True)


def all_to_all(case: Case, op: Any) -> Any:
    outputs = [case.takes(case.values(rank, case.rank)) for rank in range(N)]
    return dist.all_to_all(outputs, [case.gives(k) for k in range(N)], async_op=True)


def all_to_all_tensor(case: Case, op: Any) -> Any:
    whole = torch.cat([case.shard(case.values(rank, rows=N)) for rank in range(N)])
    return dist.all_to_all_single(case.takes(whole), case.gives(rows=N), async_op=True)


def all_to_all_uneven(case: Case, op: Any) -> Any:
    sizes = [case.shape[0] * (rank + 1) for rank in range(N)]
    pieces = [case.values(rank, rows=N * (N + 1) // 2).split(sizes)[case.rank] for rank in range(N)]
    taken, given = case.takes(torch.cat(pieces)), case.gives(rows=N * (N + 1) // 2)
    return dist.all_to_all_single(taken, given, [sizes[case.rank]] * N, sizes, async_op=True)


def send_and_receive(case: Case, op: Any) -> Any:
    right, left = (case.rank + 1) % N, (case.rank - 1) % N
    sent = dist.isend(case.gives(), right)
    dist.irecv(case.takes(case.values(left)), left).wait()
    sent.wait()


def receive_from_any(case: Case, op: Any) -> Any:
    if case.rank == 0:
        assert dist.recv(case.takes(case.values(2))) == 2
    elif case.rank == 2:
        dist.send(case.gives(), 0)


REDUCING = (all_reduce, all_reduce_coalesced, reduce_, reduce_scatter, reduce_scatter_tensor, reduce_scatters)
MOVING = (broadcast, all_gather, all_gather_tensor, all_gathers, all_gather_lists, gather, scatter, all_to_all,
          all_to_all_tensor, all_to_all_uneven, send_and_receive, receive_from_any)  # fmt: skip


def able(call: Any, dtype: torch.dtype, op: str, by_gloo: bool) -> bool:
    """Whether Gloo can, where it is asked; and what nothing can is left out."""
    floats = dtype.is_floating_point
    if (op in BITWISE and floats) or (op == "AVG" and (by_gloo or not floats)):
        return False
    return not (op == "PRODUCT" and dtype == torch.bool)


def cases(by_gloo: bool) -> Iterator[tuple[Any, torch.dtype, str]]:
    for call in REDUCING:
        yield from ((call, dtype, op) for dtype in DTYPES for op in LOCAL if able(call, dtype, op, by_gloo))
    yield from ((call, dtype, "SUM") for call in MOVING for dtype in DTYPES)


def shapes(call: Any) -> Iterator[tuple[int, ...]]:
    yield SHAPE
    if call is not receive_from_any:  # Gloo leaves empty messages where they are
        yield (0, *SHAPE[1:])
    if call in (*REDUCING[:4], *MOVING[:2], *MOVING[4:8], *MOVING[10:]):
        yield ()


def sweep(rank: int, by_gloo: bool) -> list[str]:
    """What was wrong."""
    wrong = []
    for number, (call, dtype, op) in enumerate(cases(by_gloo)):
        for shape in shapes(call):
            case = Case(rank, dtype, op, number, shape)
            work = call(case, getattr(dist.ReduceOp, op))
            case.works += [work] if work is not None else []
            waited = by_gloo and call in REDUCING[3:]  # Gloo's own reduce-scatter isn't done before one waits for it
            if fault := case.check(0 if waited else number):
                wrong.append(f"{call.__name__} {dtype} {op} {shape}: {fault}")
    return wrong


@pytest.fixture(autouse=True)
def ranks_in_threads() -> Iterator[None]:
    with groups_per_thread():
        yield


def ring(method: str = "ring") -> SwitchOptions:
    return SwitchOptions(method=method, bind="127.0.0.1")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", ["gloo", "gloo, compared", "ring", "switch"])
def test_strides_change_no_result(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ring("ring" if way == "gloo, compared" else way)
    daemon = SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0)))
    if way == "gloo, compared":
        for bound in ("GATHERED_BYTES_MAX", "NARROW_BYTES_MAX"):
            monkeypatch.setattr(tensor_layout, bound, -1)
        monkeypatch.setattr(tensor_layout, "_wire", lambda *_: None)
    if way == "switch":
        daemon.start()
        options = SwitchOptions(switch=daemon.control_endpoint)
    try:
        assert results(N, lambda rank: sweep(rank, "gloo" in way), "switchagg", options) == [[]] * N
    finally:
        daemon.stop()


@pytest.mark.parametrize("method", ["gloo", "ring"])
def test_a_result_has_a_place_for_each_element(method: str) -> None:
    """A tensor whose elements share memory may be given, and may not be written."""

    def act(rank: int) -> list[str]:
        shared = torch.full((1,), float(rank)).expand(4)
        dist.all_gather(parts := [torch.empty(4) for _ in range(N)], shared)
        assert [part.tolist() for part in parts] == [[float(each)] * 4 for each in range(N)]
        windows = torch.arange(5.0).as_strided((2, 4), (1, 1))
        said = []
        for tensor in (shared, windows):
            with pytest.raises(ValueError, match=r"share memory.* give its clone") as refused:
                dist.all_reduce(tensor)
            said.append(str(refused.value))
        dist.all_reduce(torch.ones(1).expand(0, 4))  # of no element
        dist.barrier()
        return said

    assert all("(4,)" in said[0] and "(1, 1)" in said[1] for said in results(N, act, "switchagg", ring(method)))


def test_a_conjugate_is_resolved_or_refused() -> None:
    def act(rank: int) -> None:
        given = torch.tensor([1 + 2j, rank - 1j]).conj()
        with pytest.raises(RuntimeError, match=r"use self.resolve_conj"):
            dist.group.WORLD.allreduce([given])  # type: ignore[union-attr]
        whole = torch.empty(2 * N, dtype=given.dtype)
        dist.group.WORLD._allgather_base(whole, given).wait()  # type: ignore[union-attr]
        assert whole.tolist() == [value for each in range(N) for value in (1 - 2j, each + 1j)]

    results(N, act, "switchagg", ring())
