"""Trains one rank of a scenario in real time and says, line by line, what each iteration took.

Runs as a process of its own, in the network namespace of its worker if it has one:

    python -m emulation.training.trainer --config rank-0.json

Everything is said on stdout, one JSON object per line, flushed: first `started`, then per iteration `iteration`, on
rank 0 `evaluation`, and in the end `finished` or `failed` (then one line on stderr too, and exit status 1). A
configuration that can't be read ends it with status 2. All times are nanoseconds, as integers.

The training loop is the usual one: DistributedDataParallel, backward, step. All methods run the same code; only the
process group differs. Gradients are divided, then summed, as DDP does without a hook; the hook is there to note when
each bucket leaves and returns. With a schedule (`ring+p3`) there is no DDP: see `emulation.training.scheduled_trainer`.

Time. Training time stands still while rank 0 evaluates: the others wait at a barrier, and no clock and no iteration
counts that. Computing runs at a lower priority than the threads that carry packets, on all ranks and for all methods
alike: ranks share the cores of one machine here, and a network that waits for somebody else's convolution would be
slower than the links it stands for.
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from emulation.results import elements_of
from emulation.scenario import Scenario
from emulation.training.workload import Workload, build_workload, compute_on_one_thread
from transport.group.method_name import HOST_METHODS, MethodName, parse

COMPUTE_NICENESS = 10  # above that of the threads that carry packets: a tenth of their share, when both want a CPU
EXIT_SECONDS = 10  # after `finished`: leaving the process group may not take longer
MESSAGE_LENGTH_MAX = 400


class TrainerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rank's part in a run."""

    scenario: Scenario  # as `canonical` writes it; used: seed, workload and switch
    method: str  # as in a scenario: gloo, switch, ring@zeromq, ps+p3
    rank: int
    workers: int
    master_address: str  # where rank 0 listens for the rendezvous: an address that all ranks reach
    master_port: int
    interface: str  # network interface that Gloo binds to, e.g. h1-eth0
    switch: str | None = None  # the switch's control address, tcp://host:port; for method switch
    addresses: tuple[str, ...] = ()  # of all ranks' hosts; for host methods with a schedule
    timeout_s: float = 60.0  # a call that takes longer fails

    def __post_init__(self) -> None:
        name = self.name  # raises ValueError
        if not 0 <= self.rank < self.workers:
            raise ValueError(f"rank {self.rank} of {self.workers} workers: allowed: 0 … workers-1")
        if name.is_switch and not self.switch:
            raise ValueError("method switch: `switch` is missing, the address of the switch, tcp://host:port")
        if name.schedule and name.method in (*HOST_METHODS, "ps", "auto") and len(self.addresses) != self.workers:
            raise ValueError(f"method {self.method}: `addresses` has {len(self.addresses)} entries, not {self.workers}")

    @property
    def name(self) -> MethodName:
        return parse(self.method)

    @property
    def elements(self) -> int:
        """Values in a packet of the switch's method."""
        return elements_of(self.method, self.scenario.switch.elements, self.scenario.topology.mtu_bytes)


def say(event: str, **more: Any) -> None:
    """One line of JSON for whoever follows us."""
    sys.stdout.buffer.write(msgspec.json.encode({"event": event, **more}) + b"\n")
    sys.stdout.buffer.flush()


# ---- what an iteration took


@dataclass
class BucketSpan:
    """One bucket's allreduce, on CLOCK_MONOTONIC."""

    size_bytes: int
    start_ns: int
    end_ns: int = 0


@dataclass
class BucketClock:
    """DDP communication hook: the average over all ranks, and when each bucket left and came back."""

    workers: int
    spans: list[BucketSpan] = field(default_factory=list)

    def reduce(self, _state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """What DDP does without a hook, timed. DDP insists on the name `bucket` and on these annotations."""
        flat = bucket.buffer()
        flat.mul_(1.0 / self.workers)  # not div_: the same operation, and so the same bits, as DDP's own
        span = BucketSpan(flat.numel() * flat.element_size(), time.monotonic_ns())
        self.spans.append(span)

        def returned(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            reduced = done.value()[0]  # raises here if the call failed; DDP would crash on the failed future itself
            span.end_ns = time.monotonic_ns()
            return reduced

        return dist.all_reduce(flat, async_op=True).get_future().then(returned)


def covered_ns(spans: Sequence[BucketSpan]) -> int:
    """Time during which at least one bucket was under way."""
    covered = until = 0
    for span in sorted(spans, key=lambda span: span.start_ns):
        if span.end_ns > until:
            covered += span.end_ns - max(span.start_ns, until)
            until = span.end_ns
    return covered


def exposed_ns(spans: Sequence[BucketSpan]) -> int:
    """Time spent waiting for buckets with nothing left to compute: the last one starts as the backward pass ends."""
    return max(0, max(span.end_ns for span in spans) - max(span.start_ns for span in spans))


class TrainingClock:
    """Time since training began, except while paused."""

    def __init__(self) -> None:
        self._begun_ns = time.monotonic_ns()
        self._paused_ns = 0

    def at(self, monotonic_ns: int) -> int:
        return monotonic_ns - self._begun_ns - self._paused_ns

    def leave_out(self, since_ns: int) -> None:
        """Nothing since then has counted."""
        self._paused_ns += time.monotonic_ns() - since_ns


# ---- one rank


class Trainer:
    """One rank of a run. `run()` says everything there is to say."""

    def __init__(self, config: TrainerConfig) -> None:
        self.config = config
        self.name = config.name
        self.iteration: int | None = None  # where a failure happened
        self._buckets = BucketClock(config.workers)

    def run(self) -> None:
        config, plan = self.config, self.config.scenario.workload
        compute_on_one_thread()
        workload = build_workload(
            plan.name, config.scenario.seed, config.rank, config.workers, plan.batch_per_worker, plan.iterations
        )
        before = thread_ids()
        self._attach(workload)
        network_threads = sorted(thread_ids() - before)
        niceness = min(19, os.getpriority(os.PRIO_PROCESS, 0) + COMPUTE_NICENESS)  # we may run under `nice` ourselves
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
        say(
            "started",
            rank=config.rank,
            pid=os.getpid(),
            network_threads=network_threads,
            compute_threads=[threading.get_native_id()],
            parameters=workload.parameters,
            gradient_bytes=workload.gradient_bytes,
            initial_parameter_hash=workload.parameter_sha256(),
        )
        self._train(workload)
        self._detach()
        say(
            "finished",
            rank=config.rank,
            parameters=workload.parameters,
            gradient_bytes=workload.gradient_bytes,
            parameter_hash=workload.parameter_sha256(),
            retransmissions=self._counters().get("retransmitted", 0),
            counters=self._counters(),
            core=self._core(),
            facts=self._facts(),
            notes=[
                *self._notes(),
                f"Workload {plan.name}: {workload.task.description}; {workload.task.source} "
                f"(sha256 {workload.task.source_sha256[:16]}).",
                f"Ranks compute at a niceness {COMPUTE_NICENESS} above their network threads', with every method.",
            ],
        )

    def _attach(self, workload: Workload) -> None:
        """Meet the other ranks, and let gradients be reduced from now on. Threads that carry packets start here."""
        plan = self.config.scenario.workload
        join_process_group(self.config)
        self._model = DistributedDataParallel(workload.model, bucket_cap_mb=plan.bucket_bytes / (1 << 20))
        self._model.register_comm_hook(None, self._buckets.reduce)
        dist.all_reduce(torch.zeros(1))  # whatever makes its threads at the first call makes them now
        self._check_path()

    def _detach(self) -> None:
        """The last iteration is over."""

    def _facts(self) -> dict[str, Any]:
        """What is to be known of the schedule; of DDP's own nothing."""
        return {}

    def _core(self) -> str | None:
        """What carries the switch's packets: "native" or "python"."""
        return switch_group().reducer.core() if self.name.is_switch else None

    def _notes(self) -> list[str]:
        return []

    def _train(self, workload: Workload) -> None:
        plan = self.config.scenario.workload
        dist.barrier()
        clock = TrainingClock()
        for iteration in range(plan.iterations):
            self.iteration = iteration
            self._iterate(workload, iteration, clock)
            if (iteration + 1) % plan.evaluate_every == 0 or iteration + 1 == plan.iterations:
                self._evaluate(workload, iteration, clock)
        self.iteration = None

    def _iterate(self, workload: Workload, iteration: int, clock: TrainingClock) -> None:
        self._buckets.spans.clear()
        start_ns = time.monotonic_ns()
        loss = workload.loss(self._model, iteration)
        forward_end_ns = time.monotonic_ns()
        loss.backward()  # returns when all buckets are back
        backward_end_ns = time.monotonic_ns()
        workload.step(iteration)
        end_ns = time.monotonic_ns()
        spans = self._buckets.spans
        waited_ns = exposed_ns(spans)
        say(
            "iteration",
            iteration=iteration,
            start_ns=clock.at(start_ns),
            duration_ns=end_ns - start_ns,
            forward_ns=forward_end_ns - start_ns,
            backward_ns=backward_end_ns - forward_end_ns - waited_ns,
            optimizer_ns=end_ns - backward_end_ns,
            compute_ns=end_ns - start_ns - waited_ns,
            communication_ns=covered_ns(spans),
            first_layer_ns=spans[-1].end_ns - spans[-1].start_ns,  # DDP's last bucket holds the first layer
            first_layer_bytes=spans[-1].size_bytes,
            loss=loss.item(),
            begun_at_ns=start_ns,
            retransmissions=self._counters().get("retransmitted", 0),
            buckets=[asdict(span) for span in spans],
        )

    def _evaluate(self, workload: Workload, iteration: int, clock: TrainingClock) -> None:
        """On rank 0; the others wait. Training time stands still."""
        since_ns = time.monotonic_ns()
        if self.config.rank == 0:
            score = workload.evaluate()
            say(
                "evaluation",
                iteration=iteration,
                time_ns=clock.at(since_ns),
                accuracy=score.accuracy,
                loss=score.loss,
            )
        dist.barrier()
        clock.leave_out(since_ns)

    def _check_path(self) -> None:
        """A comparison of another method must not quietly be one of Gloo. Raises RuntimeError."""
        if self.name.method == "gloo" or switch_group().connect():
            return
        if self.name.is_switch:
            raise RuntimeError(
                "allreduces would not go through the switch: it has no slots free for this job, or there is one worker"
            )
        if self.config.workers > 1:
            raise RuntimeError(f"allreduces would not go by {self.name}: the group fell back to Gloo")

    def _counters(self) -> dict[str, int]:
        """The transport's own, by name; none for Gloo."""
        counters: dict[str, int] = {} if self.name.method == "gloo" else switch_group().reducer.counters()
        return counters


def switch_group() -> Any:
    """The default group, of backend `switchagg`."""
    return dist.group.WORLD


def join_process_group(config: TrainerConfig) -> None:
    """Rendezvous of all ranks. Raises what torch.distributed raises, after timeout_s at the latest."""
    name = config.name
    if name.method != "gloo":
        import transport.torch  # noqa: F401  # registers the backend

        options = config.scenario.switch
        os.environ["SWITCHAGG_METHOD"], os.environ["SWITCHAGG_LINK"] = name.method, name.link
        os.environ["SWITCHAGG_INTERFACE"] = "" if name.is_switch else config.interface
        os.environ["SWITCHAGG_SWITCH"] = config.switch or ""
        os.environ["SWITCHAGG_ELEMENTS"] = str(config.elements)
        for option in ("streams", "window_slots"):
            os.environ[f"SWITCHAGG_{option.upper()}"] = str(getattr(options, option))
    rendezvous(config, "gloo" if name.method == "gloo" else "switchagg")


def rendezvous(config: TrainerConfig, backend: str) -> None:
    """All ranks' process group over this backend."""
    os.environ["GLOO_SOCKET_IFNAME"] = config.interface
    timeout = timedelta(seconds=config.timeout_s)
    store = dist.TCPStore(
        config.master_address, config.master_port, config.workers, is_master=config.rank == 0, timeout=timeout
    )
    dist.init_process_group(backend, store=store, rank=config.rank, world_size=config.workers, timeout=timeout)


def thread_ids() -> set[int]:
    """Kernel ids of this process's threads."""
    return {int(name) for name in os.listdir("/proc/self/task")}


def one_line(error: BaseException) -> str:
    """The first line of an exception: torch appends its C++ stack."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].strip()[:MESSAGE_LENGTH_MAX]


def make_trainer(config: TrainerConfig) -> Trainer:
    """The trainer for this method: with a schedule it doesn't go through DDP."""
    if not config.name.schedule:
        return Trainer(config)
    from emulation.training.scheduled_trainer import ScheduledTrainer  # which builds on this file

    return ScheduledTrainer(config)


def guarded(config: TrainerConfig, run: Callable[[Trainer], None]) -> None:
    """Runs a trainer and ends the process: status 0, or 1 after one line on stderr and a `failed` record."""
    trainer = make_trainer(config)
    try:
        run(trainer)
    except Exception as error:
        where = "at its start" if trainer.iteration is None else f"in iteration {trainer.iteration}"
        message = one_line(error)
        say("failed", rank=config.rank, iteration=trainer.iteration, message=message)
        sys.stderr.write(f"trainer: rank {config.rank} ({config.method}) failed {where}: {message}\n")
        sys.stderr.flush()
        # At once and without clean-up: taking a process group down waits for ranks that may be gone. The kernel closes
        # our sockets, and that is how the others learn of it.
        os._exit(1)
    signal.alarm(EXIT_SECONDS)  # if this hangs, the kernel ends us
    dist.destroy_process_group()
    # Taking the interpreter and torch down takes half a second of processor time, and many at our niceness.
    os._exit(0)


def read_config(path: Path) -> TrainerConfig:
    """Raises ValueError with one line that names the file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=TrainerConfig)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path}: {error}") from error


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    fields = "\n".join(
        f"  {name:15} {'optional' if known.default is not msgspec.NODEFAULT else 'required'}"
        for name, known in ((known.name, known) for known in msgspec.structs.fields(TrainerConfig))
    )
    parser = argparse.ArgumentParser(
        prog="python -m emulation.training.trainer",
        description=__doc__,
        epilog=f"The configuration, a JSON object:\n{fields}\n\n{EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE.json", help="this rank's configuration")
    return parser.parse_args(arguments)


EXAMPLE = """One rank alone, to try it:
  {"scenario": {"name": "try", "title": "Try", "seed": 1, "methods": {}, "topology": {"workers": 1}, "faults": {},
                "workload": {"name": "digits", "iterations": 20}, "switch": {}},
   "method": "gloo", "rank": 0, "workers": 1, "master_address": "127.0.0.1", "master_port": 29500, "interface": "lo"}
More: start one process per rank, each with its own `rank`, at about the same time."""


def main() -> None:
    # Python's own handlers wait for the interpreter, which may be waiting for the network: end at once instead.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    arguments = parse_arguments()
    try:
        config = read_config(arguments.config)
    except ValueError as error:
        sys.stderr.write(f"trainer: {error}\n")
        sys.exit(2)
    guarded(config, Trainer.run)


if __name__ == "__main__":
    main()
