"""What the ranks of the tests of host methods run: `python torch_method_programs.py NAME`, with torchrun's variables
and SWITCHAGG_METHOD set. A program's asserts are the test; it prints DONE at its end."""

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch_programs import RANK, WORLD, assert_same_everywhere, raised, small_model, start, train

from transport.group.host_group import HostGroup
from transport.torch import SwitchOptions, SwitchProcessGroup, switchagg_hook


def host_group(group: Any = None) -> HostGroup:
    """What a group's allreduces go through, the default group's unless it is given."""
    found = (group or dist.group.WORLD).reducer._lanes[0].session
    assert isinstance(found, HostGroup)
    return found


def compiled() -> None:
    """torch.compile around DDP, around a training step, and around functions that call collectives."""
    start()

    def of(collective: Callable[[torch.Tensor], torch.Tensor | None]) -> list[float]:
        @torch.compile(backend="eager")
        def function(tensor: torch.Tensor) -> torch.Tensor:
            doubled = tensor * 2
            result = collective(doubled)
            return (doubled if result is None else result) + 1

        values: list[float] = function(torch.arange(float(WORLD)) + RANK).tolist()
        return values

    def whole(collective: Callable[..., object], tensor: torch.Tensor, size: int) -> torch.Tensor:
        result = torch.empty(size)
        collective(result, tensor)
        return result

    n, ranks = WORLD, range(WORLD)
    summed = [sum(2 * (i + rank) for rank in ranks) + 1.0 for i in ranks]
    assert of(lambda tensor: dist.all_reduce(tensor)) == summed
    assert of(lambda tensor: dist.all_reduce(tensor, async_op=True).wait() and None) == summed
    assert of(lambda tensor: dist.all_reduce_coalesced([tensor]) and None) == summed
    assert of(lambda tensor: dist.broadcast(tensor, 0)) == [2.0 * i + 1 for i in ranks]
    assert of(lambda tensor: dist.reduce(tensor, 0))[0] == (summed[0] if RANK == 0 else 2.0 * RANK + 1)
    everything = [2.0 * (i + rank) + 1 for rank in ranks for i in ranks]
    assert of(lambda tensor: whole(dist.all_gather_into_tensor, tensor, n * n)) == everything
    assert of(lambda tensor: whole(dist.reduce_scatter_tensor, tensor, 1)) == [summed[RANK]]
    assert of(lambda tensor: whole(dist.all_to_all_single, tensor, n)) == [2.0 * (RANK + rank) + 1 for rank in ranks]
    assert of(lambda tensor: dist.barrier()) == [2.0 * (i + RANK) + 1 for i in ranks]

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(batch).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    trained = []
    for wrap_model, wrap_step in ((False, False), (True, False), (False, True)):
        model: torch.nn.Module = DistributedDataParallel(small_model())
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        called = torch.compile(model, backend="eager") if wrap_model else model
        train_step = torch.compile(step, backend="eager") if wrap_step else step
        for number in range(2):
            train_step(called, optimizer, torch.full((4, 20), RANK + number + 1.0))
        trained.append([parameter.detach().clone() for parameter in model.parameters()])
    for others in trained[1:]:
        for left, right in zip(trained[0], others, strict=True):
            assert torch.equal(left, right)
    dist.destroy_process_group()


def differing_codecs() -> None:
    error = raised(start)
    assert isinstance(error, dist.DistBackendError)
    assert "rank 0 uses method ring~lanes8+ef, rank 1 of 2 uses ring~lanes8: set" in str(error), error


def training() -> None:
    """DDP, DDP with the hook, FSDP: alike on all ranks, and what one process would compute."""
    start()
    trained = [train(DistributedDataParallel(small_model()), 3)]
    hooked = DistributedDataParallel(small_model())
    hooked.register_comm_hook(None, switchagg_hook)
    trained.append(train(hooked, 3))
    for parameters in trained:
        assert_same_everywhere(parameters)
    torch.testing.assert_close(trained[0], trained[1])
    sharded = small_model()
    fully_shard(sharded)
    loss = sharded(torch.ones(4, next(small_model().parameters()).shape[1])).sum()
    loss.backward()
    assert host_group().counters["tx_bytes"] > 0
    dist.destroy_process_group()


def beside_gloo() -> None:
    """The built-in communication hook, DDP.join and the profiler, which all work on Gloo."""
    start()

    def joined(group: Any) -> list[float]:
        model = DistributedDataParallel(small_model(), process_group=group)
        with model.join(divide_by_initial_world_size=False):
            for step in range(2 + 3 * RANK):
                model(torch.full((4, 20), RANK + step + 1.0)).square().sum().backward()
        return [float(p.grad.double().sum()) for p in model.parameters() if p.grad is not None]

    def compressed(group: Any) -> list[torch.Tensor]:
        model = DistributedDataParallel(small_model(), process_group=group)
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
        for step in range(3):
            model(torch.full((4, 20), RANK + step + 1.0)).sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    gloo = dist.new_group(backend="gloo")
    torch.testing.assert_close(compressed(None), compressed(gloo))
    torch.testing.assert_close(joined(None), joined(gloo))
    model = DistributedDataParallel(torch.nn.Linear(10, 10, bias=False))
    with torch.profiler.profile(record_shapes=True) as profile:
        for _ in range(6):
            model(torch.ones(3, 10)).sum().backward()
        dist.all_gather_into_tensor(torch.empty(4 * WORLD), torch.ones(4))
        dist.barrier()
    events = [event for event in profile.events() if event.name.startswith("switchagg:")]
    assert all(event.is_async and event.count == 1 for event in events)
    assert [event.input_shapes for event in events if event.name == "switchagg:all_reduce"] == [[[100]]] * 6
    assert [event.input_shapes for event in events if event.name == "switchagg:all_gather"] == [[[4]]]
    assert [event.input_shapes for event in events if event.name == "switchagg:barrier"] == [[]]
    with torch.profiler.profile() as profile:
        time.sleep(0.0 if RANK else 0.3)
        dist.all_reduce(torch.ones(3))
    (event,) = [event for event in profile.events() if event.name == "switchagg:all_reduce"]
    assert event.time_range.elapsed_us() > 150_000 or RANK == 0  # it spans the call, for which rank 0 came late
    dist.destroy_process_group()


def differing() -> None:
    """Rank 1 calls another allreduce than the others: all ranks get an error that names both, before any wrong sum."""
    start()
    cases: list[tuple[torch.Tensor, torch.Tensor, Any, Any]] = [
        (torch.ones(5), torch.ones(4), dist.ReduceOp.SUM, dist.ReduceOp.SUM),
        (torch.ones(500), torch.ones(1000), dist.ReduceOp.SUM, dist.ReduceOp.SUM),
        (torch.ones(70_000).int(), torch.ones(3).int(), dist.ReduceOp.SUM, dist.ReduceOp.SUM),
        (torch.ones(0), torch.ones(5), dist.ReduceOp.SUM, dist.ReduceOp.SUM),
        (torch.ones(6), torch.ones(6).int(), dist.ReduceOp.SUM, dist.ReduceOp.SUM),
        (torch.ones(6).half(), torch.ones(6), dist.ReduceOp.SUM, dist.ReduceOp.SUM),
        (torch.ones(6).bfloat16(), torch.ones(6).half(), dist.ReduceOp.AVG, dist.ReduceOp.AVG),
        (torch.ones(6), torch.ones(6), dist.ReduceOp.SUM, dist.ReduceOp.AVG),
        (torch.ones(6).int(), torch.ones(6).int(), dist.ReduceOp.SUM, dist.ReduceOp.MAX),
    ]
    for one, other, op, other_op in cases:
        group = dist.new_group()
        dist.all_reduce(torch.ones(3), group=group)
        mine, my_op = (other, other_op) if RANK == 1 else (one, op)
        work = dist.all_reduce(mine, my_op, group, async_op=True)
        for action in (work.wait, lambda group=group: dist.all_reduce(torch.ones(8), group=group)):
            error = str(raised(action))
            for tensor, name in ((one, str(op)), (other, str(other_op))):
                dtype = str(tensor.dtype).removeprefix("torch.")
                assert f"of {tensor.numel()} {dtype} ({name.split('.')[-1].lower()})" in error, error
            assert "rank 1 " in error, error
    differing_kinds()
    dist.destroy_process_group()


def differing_kinds() -> None:
    """Of every kind of collective, also where one of the two is carried out by Gloo."""
    large = torch.ones(100_000)

    def collective(kind: str, group: Any, elements: int = 6, root: int = 0) -> Any:
        mine, whole = torch.ones(elements), torch.ones(elements * WORLD)
        parts = list(whole.split(elements)) if root == RANK else None
        return {
            "allreduce": lambda: dist.all_reduce(mine, group=group, async_op=True),
            "product": lambda: dist.all_reduce(large, dist.ReduceOp.PRODUCT, group, async_op=True),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(mine, whole, group=group, async_op=True),
            "all_gather": lambda: dist.all_gather_into_tensor(whole, mine, group, async_op=True),
            "broadcast": lambda: dist.broadcast(mine, root, group, async_op=True),
            "reduce": lambda: dist.reduce(mine, root, group=group, async_op=True),
            "barrier": lambda: dist.barrier(group, async_op=True),
            "all_to_all": lambda: dist.all_to_all_single(
                torch.empty(WORLD), torch.ones(WORLD), group=group, async_op=True
            ),
            "gather": lambda: dist.gather(mine, parts, root, group, async_op=True),
            "scatter": lambda: dist.scatter(mine, parts, root, group, async_op=True),
        }[kind]()

    cases: list[tuple[tuple[Any, ...], str, tuple[Any, ...], str]] = [
        (
            ("broadcast", 6, 0),
            "broadcast 1 of 6 float32 (root 0)",
            ("broadcast", 6, 2),
            "broadcast 1 of 6 float32 (root 2)",
        ),
        (
            ("reduce", 6, 0),
            "reduce 1 of 6 float32 (sum, root 0)",
            ("reduce", 6, 1),
            "reduce 1 of 6 float32 (sum, root 1)",
        ),
        (("all_gather", 6), "all_gather 1 of 18 float32", ("all_gather", 5), "all_gather 1 of 15 float32"),
        (("reduce_scatter", 2), "reduce_scatter 1 of 6 float32 (sum)", ("all_gather", 2), "all_gather 1 of 6 float32"),
        (("barrier",), "barrier 1 of 0 uint8", ("allreduce", 0), "allreduce 1 of 0 float32 (sum)"),
        (("all_to_all",), "all_to_all 1 of 3 float32", ("allreduce", 3), "allreduce 1 of 3 float32 (sum)"),
        (("product",), "allreduce 1 of 100000 float32 (product)", ("allreduce", 6), "allreduce 1 of 6 float32 (sum)"),
        (("gather", 6, 0), "gather 1 of 6 float32 (root 0)", ("gather", 6, 1), "gather 1 of 6 float32 (root 1)"),
        (("scatter", 6, 0), "scatter 1 of 6 float32 (root 0)", ("gather", 6, 0), "gather 1 of 6 float32 (root 0)"),
    ]
    for one, words, other, other_words in cases:
        # What Gloo has begun on one rank alone ends with this, and the program no sooner.
        group = dist.new_group(timeout=timedelta(seconds=6))
        dist.barrier(group)
        kind, *how = other if RANK == 1 else one
        work = collective(kind, group, *how)
        for action in (work.wait, lambda group=group: dist.all_reduce(torch.ones(8), group=group)):
            error = str(raised(action))
            assert words in error, (words, error)
            assert other_words in error, (other_words, error)
            assert "rank 1 " in error, error


def a_rank_raises() -> None:
    """The exception that ends rank 1 is what the others are told."""
    start()
    model = DistributedDataParallel(small_model())
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    model(torch.ones(4, 20)).sum().backward()
    if RANK == 1:
        raise RuntimeError("the learning rate is negative\nand more")
    error = str(raised(lambda: dist.all_reduce(torch.ones(1_000))))
    assert "RuntimeError: the learning rate is negative" in error, error
    assert "more" not in error, error
    in_cpp = str(raised(lambda: model(torch.ones(4, 20)).sum().backward()))
    assert "the learning rate is negative" in in_cpp, in_cpp
    assert "rank 1" in error, error


def a_rank_dies() -> None:
    start()
    method, _, link = os.environ["SWITCHAGG_METHOD"].partition("@")
    assert (host_group().method, host_group().link) == (method, link)
    if RANK == 1:
        os._exit(17)
    began = time.monotonic()
    for _ in range(2):
        error = raised(lambda: dist.all_reduce(torch.ones(1_000_000)))
        assert isinstance(error, dist.DistBackendError)
        assert "rank 1" in str(error), error
    assert time.monotonic() - began < 20


def restarted() -> None:
    """Under torchrun --max-restarts 1: rank 1 dies in training; the second attempt, on the same store, finishes.
    One group through the switch, one that is a ring."""
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if RANK == 1 and not first:
        time.sleep(1.0)  # so that the first attempt's keys are all that rank 0 finds of it
    start()
    ring = dist.new_group(backend="switchagg", pg_options=SwitchOptions(method="ring"))
    model = DistributedDataParallel(small_model())
    train(model, 2)
    total = torch.full((1000,), RANK + 1.0)
    dist.all_reduce(total, group=ring)
    assert total.eq(3).all()
    assert host_group(ring).method == "ring"
    if first and RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    values = train(model, 2)
    assert_same_everywhere(values)
    print(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}: {values.sum().item()}", flush=True)
    dist.destroy_process_group()


def held() -> Counter[str]:
    """Threads and open files of this process."""
    return Counter(threads=len(os.listdir("/proc/self/task")), files=len(os.listdir("/proc/self/fd")))


def dropped_groups() -> None:
    """40 groups that nobody destroys hold as much as 40 of Gloo; one that nobody refers to any more holds nothing."""
    start()
    grown: list[Counter[str]] = [Counter()]  # Counter's - and <= leave out what is negative
    for backend in ("gloo", "switchagg"):
        before, groups = held(), [dist.new_group(backend=backend) for _ in range(40)]
        for group in groups:
            dist.all_reduce(torch.ones(3), group=group)
        end = time.monotonic() + 60
        most = grown[-1] + Counter(threads=4, files=4)  # a tenth of a group
        while backend == "switchagg" and not held() - before <= most:  # until idle threads have ended
            assert time.monotonic() < end, (held() - before, most)
            time.sleep(0.1)
        grown.append(held() - before)
        for group in groups:
            dist.destroy_process_group(group)
        del groups, group
    before = held() + Counter(threads=10, files=10)
    for turn in range(20):
        store = PrefixStore(f"dropped/{turn}", _get_default_store())
        dropped = SwitchProcessGroup(store, RANK, WORLD, timedelta(seconds=60), SwitchOptions.from_environment())
        dropped.allreduce([torch.ones(3)]).wait()
        del dropped
        assert held() <= before, (held(), before)
    dist.destroy_process_group()


PROGRAMS: dict[str, Callable[[], None]] = {
    program.__name__: program
    for program in (
        a_rank_dies,
        a_rank_raises,
        beside_gloo,
        dropped_groups,
        compiled,
        differing,
        differing_codecs,
        training,
        restarted,
    )
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
    print("DONE", flush=True)
