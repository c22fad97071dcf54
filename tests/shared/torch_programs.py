"""What the ranks of the backend's tests run: `python torch_programs.py NAME`, with torchrun's variables set.
A program's asserts are the test; it prints DONE at its end."""

import faulthandler
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

faulthandler.enable()

import torch  # noqa: E402  # a crash while importing shall be seen too
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import transport.torch  # noqa: E402
from transport.torch import switchagg_hook  # noqa: E402

RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))

torch.set_num_threads(1)
warnings.simplefilter("ignore", FutureWarning)  # both the old and the new names are meant to be used here


def start(backend: str = "switchagg", **how: Any) -> None:
    dist.init_process_group(backend, timeout=timedelta(seconds=60), **how)


def gathered(value: Any, group: Any = None) -> list[Any]:
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, value, group=group)
    return everyone


def switched(group: Any = None, lane: int = 0) -> int:
    """How many calls this rank has made of the group below: the switch's, or a host method's."""
    below = (group or dist.group.WORLD).reducer._lanes[lane].session
    return sum(below._session._calls.of_job.ledger._calls) if below.method == "switch" else below._party._unkeyed_calls


def by_gloo() -> int:
    """How many calls of the default group Gloo has carried out."""
    return sum(ways["gloo"]["calls"] for ways in dist.group.WORLD.traffic.counts().values() if "gloo" in ways)


def raised(action: Callable[[], Any]) -> Exception:
    """The exception that the action ends in. The ranks have no pytest."""
    try:
        action()
    except Exception as error:
        return error
    raise AssertionError("no exception")


# ---- training


def small_model(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(20, 64),
        torch.nn.BatchNorm1d(64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 64),
        torch.nn.Linear(64, 5),
    )


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + RANK)
    return torch.randn(16, 20, generator=generator), torch.randint(0, 5, (16,), generator=generator)


def train(model: torch.nn.Module, steps: int) -> torch.Tensor:
    """Final parameters, flat, after the same data on every call."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        inputs, labels = batch(step)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def assert_same_everywhere(values: torch.Tensor) -> None:
    assert all(torch.equal(values, other) for other in gathered(values))


def ddp() -> None:
    start()
    gloo = dist.new_group(backend="gloo")
    small_buckets = {"bucket_cap_mb": 0.001}
    one_step()
    buckets_overlap()
    expected = train(DistributedDataParallel(small_model(), process_group=gloo, **small_buckets), 4)
    for how in ({}, {"find_unused_parameters": True}, {"static_graph": True}, {"gradient_as_bucket_view": True}):
        calls = switched()
        trained = train(DistributedDataParallel(small_model(), **small_buckets, **how), 4)
        assert switched() > calls + 8, how
        assert_same_everywhere(trained)
        torch.testing.assert_close(trained, expected, rtol=1e-4, atol=1e-5)
    uneven_inputs()
    hooks(expected, gloo)
    power_sgd(gloo)
    dist.destroy_process_group()


def one_step() -> None:
    """The mean gradient of one step is within the fixed-point bound of the exact mean, and the same on all ranks."""
    model = small_model()
    inputs, labels = batch(0)
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()
    mine = [parameter.grad.clone() for parameter in model.parameters()]
    wrapped = DistributedDataParallel(small_model())
    torch.nn.functional.cross_entropy(wrapped(inputs), labels).backward()
    largest = max(gradient.abs().max().item() for grads in gathered(mine) for gradient in grads)
    # n 2**(e + L - 32) with 2**(e - 1) <= largest / n (DDP divides first), and one rounding of the sum to float32
    headroom = (WORLD - 1).bit_length()
    bound = WORLD * 2 * (largest / WORLD) * 2.0 ** (headroom - 32) + largest * 2.0**-23
    for parameter, gradients in zip(wrapped.parameters(), zip(*gathered(mine), strict=True), strict=True):
        exact = sum(gradient.double() for gradient in gradients) / WORLD
        assert (parameter.grad.double() - exact).abs().max().item() <= bound
        assert_same_everywhere(parameter.grad)


class WaitInBackward(torch.autograd.Function):
    """Identity whose backward goes on only when the buckets that came before it have been summed."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        session = dist.group.WORLD.reducer._lanes[0].session._session
        calls, deadline = switched(), time.monotonic() + 30
        assert calls > WaitInBackward.calls_before, "no bucket was sent before the end of backward"
        while session._calls.of_job.ledger:  # of which any is under way
            assert time.monotonic() < deadline, "the bucket's sum came only after backward"
            time.sleep(0.001)
        WaitInBackward.summed += 1
        return gradient

    calls_before = 0
    summed = 0


def buckets_overlap() -> None:
    """A bucket is summed while backward still works on the layers below."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = torch.nn.Linear(20, 300), torch.nn.Linear(300, 5)

        def forward(self, inputs: torch.Tensor, wait: bool) -> torch.Tensor:
            middle = self.first(inputs)
            return self.last(WaitInBackward.apply(middle) if wait else middle)

    model = DistributedDataParallel(Model(), bucket_cap_mb=0.001)
    for step in range(4):  # the first step has one bucket with everything
        WaitInBackward.calls_before = switched()
        model(batch(step)[0], step > 1).sum().backward()
    assert WaitInBackward.summed == 2


def uneven_inputs() -> None:
    model = DistributedDataParallel(torch.nn.Linear(20, 5))
    with model.join():
        for step in range(2 + RANK):
            model(batch(step)[0]).sum().backward()
    assert_same_everywhere(model.module.weight.detach())


def hooks(expected: torch.Tensor, gloo: Any) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    for state, hook, tolerance in (
        (None, switchagg_hook, 1e-4),
        (dist.group.WORLD, switchagg_hook, 1e-4),
        (None, default_hooks.allreduce_hook, 1e-4),
        (None, default_hooks.fp16_compress_hook, 2e-2),
    ):
        model = DistributedDataParallel(small_model(), bucket_cap_mb=0.001)
        model.register_comm_hook(state, hook)
        trained = train(model, 4)
        assert_same_everywhere(trained)
        torch.testing.assert_close(trained, expected, rtol=tolerance, atol=tolerance)
    model = DistributedDataParallel(small_model(), process_group=gloo)
    model.register_comm_hook(gloo, switchagg_hook)
    assert "new_group(backend=" in str(raised(lambda: train(model, 1)))


def power_sgd(gloo: Any) -> None:
    """Three allreduces per bucket, two of them inside callbacks that wait; many buckets in flight."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd

    def run(group: Any, bucket_cap_mb: float) -> torch.Tensor:
        torch.manual_seed(3)
        layers = [torch.nn.Linear(20 if i == 0 else 48, 48) for i in range(6)] + [torch.nn.Linear(48, 5)]
        model = DistributedDataParallel(torch.nn.Sequential(*layers), process_group=group, bucket_cap_mb=bucket_cap_mb)
        state = powersgd.PowerSGDState(
            group, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1
        )
        model.register_comm_hook(state, powersgd.powerSGD_hook)
        return train(model, 12)

    trained = run(dist.group.WORLD, 0.005)
    assert_same_everywhere(trained)
    assert switched(lane=1) > 20
    assert trained.isfinite().all()
    # With one bucket Gloo's order is safe as well, so the two can be compared.
    torch.testing.assert_close(run(dist.group.WORLD, 25), run(gloo, 25), rtol=1e-2, atol=1e-3)


def hook_on_gloo() -> None:
    """The one-line use: another default group, our group for the gradients."""
    start("gloo")
    model = DistributedDataParallel(small_model(), bucket_cap_mb=0.001)
    model.register_comm_hook(dist.new_group(backend="switchagg"), switchagg_hook)
    trained = train(model, 4)
    assert_same_everywhere(trained)
    torch.testing.assert_close(trained, train(DistributedDataParallel(small_model()), 4), rtol=1e-4, atol=1e-5)
    dist.destroy_process_group()


def fsdp(mesh: Any, policy: Any = None, factor: float = 0.0) -> list[torch.Tensor]:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 31), torch.nn.ReLU(), torch.nn.Linear(31, 5))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh, mp_policy=policy or MixedPrecisionPolicy())
        if factor:
            layer.set_gradient_divide_factor(factor)
            layer.set_force_sum_reduction_for_comms(dist.get_backend(mesh.get_group()) == "gloo")  # has no PREMUL_SUM
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(4):
        inputs, labels = batch(step)
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.full_tensor().detach() for parameter in model.parameters()]


def zero(group: Any) -> list[torch.Tensor]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(small_model(), process_group=group)
    how = {
        "process_group": group,
        "lr": 0.05,
        "momentum": 0.9,
    }  # Adam would enlarge the noise in front of BatchNorm
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, **how)
    for step in range(3):
        inputs, labels = batch(step)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def tensor_parallel(mesh: Any) -> list[torch.Tensor]:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 5))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        inputs = torch.randn(16, 20)  # the same on all ranks
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    return [parameter.full_tensor().detach() for parameter in model.parameters()]


def sharded() -> None:
    """FSDP2, HSDP, ZeRO and tensor parallel: alike on all ranks, what Gloo gives, and nothing of it by Gloo."""
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy

    start()
    gloo = dist.new_group(backend="gloo")

    over_gloo = DeviceMesh.from_group(gloo, "cpu")
    mesh = init_device_mesh("cpu", (WORLD,))
    hsdp = init_device_mesh("cpu", (WORLD, 1), mesh_dim_names=("replicate", "shard"))
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for mine, theirs, tolerance in (
        (fsdp(mesh), fsdp(over_gloo), 1e-4),
        (fsdp(hsdp), fsdp(over_gloo), 1e-4),
        (fsdp(mesh, half), fsdp(over_gloo, half), 4e-2),
        (fsdp(mesh, factor=3.0), fsdp(over_gloo, factor=3.0), 1e-4),
        (zero(None), zero(gloo), 1e-4),
        (tensor_parallel(mesh), tensor_parallel(over_gloo), 1e-4),
    ):
        for one, other in zip(mine, theirs, strict=True):
            assert_same_everywhere(one)
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance / 10)
    counts = dist.group.WORLD.traffic.counts()
    assert {kind for kind, ways in counts.items() if "gloo" in ways} <= {"scatter"}, counts  # what a mesh distributes
    assert {kind for kind, ways in counts.items() if "switch" in ways} >= {"all_gather", "reduce_scatter", "broadcast"}
    dist.destroy_process_group()


# ---- trouble


def train_until_it_fails() -> BaseException:
    model = DistributedDataParallel(small_model())
    step = 0
    try:
        while True:
            inputs, labels = batch(step)
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            step += 1
            if RANK == 0 and step == 3:
                print("TRAINING", flush=True)
            time.sleep(0.01)
    except RuntimeError as error:
        print("FAILED", str(error).replace("\n", " "), flush=True)
        return error


def worker_dies() -> None:
    """Rank 1 vanishes in mid-call; the others get an exception out of backward, again at the next collective."""
    start()
    model = DistributedDataParallel(torch.nn.Linear(100, 100))
    for _ in range(3):
        model(torch.ones(2, 100)).sum().backward()
    if RANK == 1:
        time.sleep(0.5)
        os._exit(17)
    for attempt in range(3):
        began = time.monotonic()
        error = raised(lambda: model(torch.ones(2, 100)).sum().backward())
        assert "ranks: 1" in str(error), error
        assert attempt == 0 or time.monotonic() - began < 20  # the second time it doesn't wait for the timeout of 60 s
        print("FAILED", type(error).__name__, str(error)[:300].replace("\n", " "), flush=True)
    for collective in (lambda: dist.all_reduce(torch.ones(1)), dist.barrier, lambda: gathered(1)):
        error = raised(collective)
        assert isinstance(error, dist.DistBackendError)
        assert "ranks: 1" in str(error), error
    end_after_failure()


def switch_stops() -> None:
    start()
    error = train_until_it_fails()
    end_after_failure()
    raise SystemExit(f"training failed: {str(error)[:100]}")


def end_after_failure() -> None:
    """As the test chooses: destroy the group, or leave that to the end of the interpreter."""
    if os.environ.get("END") == "destroy":
        dist.destroy_process_group()


def exit_while_pending() -> None:
    """The program ends while a call and a callback that waits for another are in flight."""
    start()
    if RANK == 0:
        dist.all_reduce(torch.ones(4), async_op=True).get_future().then(lambda done: time.sleep(0.2))
        waiting = threading.Event()

        def blocked(done: Any) -> None:
            waiting.set()
            dist.all_reduce(torch.ones(4), async_op=True).get_future().wait()

        dist.all_reduce(torch.ones(4), async_op=True).get_future().then(blocked)
        waiting.wait(5)
    else:
        dist.all_reduce(torch.ones(4))
        dist.all_reduce(torch.ones(4))
    sys.exit(3)


def interrupted() -> None:
    """Ctrl-C while rank 0 waits for a rank that computes."""
    start()
    if RANK == 0:
        threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            dist.all_reduce(torch.ones(4))
        except KeyboardInterrupt:
            print("INTERRUPTED", flush=True)
            dist.destroy_process_group()
            sys.exit(130)
    try:
        time.sleep(2)
        dist.all_reduce(torch.ones(4))
    except dist.DistBackendError as error:
        print("FAILED", error, flush=True)
        sys.exit(1)


def falls_back() -> None:
    """The switch has no room: everything works, through Gloo."""
    start(pg_options=transport.torch.SwitchOptions.from_environment())
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [WORLD] * 4
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    assert tensor.tolist() == [WORLD] * 4
    assert dist.group.WORLD.reducer._lanes[0].session is None
    trained = train(DistributedDataParallel(small_model()), 2)
    assert_same_everywhere(trained)
    dist.destroy_process_group()


def init_only() -> None:
    start()
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [WORLD] * 2
    dist.destroy_process_group()


def again() -> None:
    """A process may leave and start over; with another store, since PyTorch's own may still be ending."""
    init_only()
    os.environ["MASTER_PORT"] = os.environ["SECOND_PORT"]
    init_only()


def cuda() -> None:
    """All ranks on GPU 0: types, order against the caller's streams, Futures, DDP."""
    start()
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64):
        tensor = torch.arange(-500, 501, device=device).to(dtype)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.arange(-500, 501, device=device).to(dtype) * WORLD), dtype
    strided = torch.ones(6, 4, device=device)
    dist.all_reduce(strided[:, ::2], dist.ReduceOp.AVG)
    assert torch.equal(strided, torch.ones(6, 4, device=device))
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            tensors = [torch.zeros(1 << 20, device=device) for _ in range(4)]
            torch.cuda._sleep(200_000_000)  # the values are written long after the call is made
            for number, tensor in enumerate(tensors):
                tensor.fill_(number + RANK)
            works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
            doubled = [work.get_future().then(lambda done: done.value()[0] * 2) for work in works]
            for number, (work, future) in enumerate(zip(works, doubled, strict=True)):
                expected = sum(number + rank for rank in range(WORLD))
                work.wait()
                tensors[number].mul_(1)  # at once, on the waiting stream
                assert tensors[number].eq(expected).all().item()
                assert future.wait().eq(2 * expected).all().item()
    trained = []
    for hook in (None, switchagg_hook):
        model = DistributedDataParallel(small_model().to(device), device_ids=[0], bucket_cap_mb=0.001)
        if hook is not None:
            model.register_comm_hook(None, hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(4):
            inputs, labels = (part.to(device) for part in batch(step))
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        trained.append(torch.cat([parameter.detach().reshape(-1).cpu() for parameter in model.parameters()]))
        assert_same_everywhere(trained[-1])
    torch.testing.assert_close(trained[0], trained[1], rtol=1e-4, atol=1e-5)
    assert gathered(RANK) == list(range(WORLD))
    dist.destroy_process_group()


def debug_detail() -> None:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL, as people set it when something is wrong."""
    start()
    assert_same_everywhere(train(DistributedDataParallel(small_model()), 2))
    dist.destroy_process_group()


PROGRAMS: dict[str, Callable[[], None]] = {
    program.__name__: program
    for program in (
        ddp, hook_on_gloo, sharded, worker_dies, switch_stops, exit_while_pending, interrupted, falls_back,
        init_only, again, cuda, debug_detail,
    )
}  # fmt: skip

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
    print("DONE", flush=True)
