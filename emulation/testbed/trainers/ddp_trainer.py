"""A rank's training loop with DistributedDataParallel, and the times of each iteration.

Gradients are divided, then summed, as DDP does without a hook; the hook is there to note when each bucket leaves and
returns.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from emulation.testbed.children import send_report
from emulation.testbed.trainers.pace import ComputePace
from emulation.testbed.trainers.trainer_messages import (
    GROUP_JOB,
    GROUP_PORT,
    ComputeAlone,
    ComputedAlone,
    Evaluated,
    Go,
    IterationReport,
    TrainerConfig,
    TrainingFinished,
    TrainingStarted,
    TransferTimes,
)
from emulation.testbed.trainers.weight_snapshots import WeightSnapshots
from emulation.workloads.workload import RankWorkload, build_workload, compute_on_one_thread
from switchagg.codecs.array_codec import Tensor, Tensors
from switchagg.description import Kind
from switchagg.join import JobTerms
from switchagg.option_syntax.option_fields import changed_fields
from transport.contracts.group_contract import AllreduceGroup, Group
from transport.group.group_opening import GroupOptions, open_group
from transport.group.method_name import METHODS
from transport.torch.backup import BackupGroup, BackupRounds, allreduce
from transport.torch.rendezvous import SwitchOptions

if TYPE_CHECKING:
    from transport.worker.join_options import JoinOptions

HOOKS = {"bf16": default_hooks.bf16_compress_hook, "fp16": default_hooks.fp16_compress_hook}
"""PyTorch's own codecs, for Gloo."""

COMPUTE_NICENESS = 10  # above that of the threads that carry packets: a tenth of their share, when both want a CPU


# ---- what an iteration took


@dataclass
class BucketClock:
    """DDP communication hook: the average over all ranks, and when each bucket left and came back.

    group: sums in place of torch's own. op: "avg" where sums are divided below: they may lack some ranks, or are exact.
    hook: does all of it in torch's own group. names: of the parameters, for a codec.
    """

    workers: int
    hook: Callable[[Any, Any], torch.futures.Future[torch.Tensor]] | None = None
    group: AllreduceGroup | None = None
    op: str = "sum"
    names: dict[torch.Tensor, str] = field(default_factory=dict)
    elements: set[int] = field(default_factory=set)  # all sizes of buckets with names
    spans: list[TransferTimes] = field(default_factory=list)

    def reduce(
        self,
        _state: None,
        bucket: dist.GradBucket,  # type: ignore[name-defined]  # DDP insists on this name and annotation
    ) -> torch.futures.Future[torch.Tensor]:
        """Average as DDP does without a hook, and take the times."""
        if (hook := self.hook) is not None:
            return self._timed(bucket.buffer(), lambda: hook(_state, bucket))
        if not self.names:
            return self.mean(bucket.buffer())
        self.elements.add(bucket.buffer().numel())
        return self.mean(
            bucket.buffer(),
            [Tensor(self.names[parameter], tuple(parameter.shape)) for parameter in bucket.parameters()],
        )

    def mean(self, flat: torch.Tensor, tensors: Tensors | None = None) -> torch.futures.Future[torch.Tensor]:
        """The mean of a bucket's values, in place, timed. tensors: the parameters in it, for a codec."""
        if self.op == "sum":
            flat.mul_(1.0 / self.workers)  # not div_: the same operation, and so the same bits, as DDP's own
        return self._timed(flat, lambda: self._start(flat, tensors))

    def _timed(
        self, flat: torch.Tensor, start: Callable[[], torch.futures.Future[Any]]
    ) -> torch.futures.Future[torch.Tensor]:
        span = TransferTimes(flat.numel() * flat.element_size(), time.monotonic_ns())
        self.spans.append(span)

        def returned(done: torch.futures.Future[Any]) -> torch.Tensor:
            done.value()  # raises here if the call failed; DDP would crash on the failed future itself
            span.end_ns = time.monotonic_ns()
            return flat

        future: torch.futures.Future[torch.Tensor] = start().then(returned)
        return future

    def _start(self, flat: torch.Tensor, tensors: Tensors | None) -> torch.futures.Future[Any]:
        if self.group is None:
            coded = tensors is not None
            op = dist.ReduceOp.AVG if self.op == "avg" else dist.ReduceOp.SUM
            work = (
                switch_group().allreduce_tensors(flat, tensors, op)
                if coded
                else dist.all_reduce(flat, op, async_op=True)
            )
            assert work is not None, "asynchronous"
            future: torch.futures.Future[list[torch.Tensor]] = work.get_future()
            return future
        return allreduce(self.group, flat, self.op, tensors)


def exposed_ns(spans: Sequence[TransferTimes]) -> int:
    """Time spent waiting for buckets with nothing left to compute: the last one starts as the backward pass ends."""
    if not spans:
        return 0
    return max(0, max(span.end_ns for span in spans) - max(span.start_ns for span in spans))


class TrainingClock:
    """Time since training began, except while paused."""

    def __init__(self) -> None:
        self._start_ns = time.monotonic_ns()
        self._paused_ns = 0

    def at(self, monotonic_ns: int) -> int:
        return monotonic_ns - self._start_ns - self._paused_ns

    def leave_out(self, since_ns: int) -> None:
        """Nothing since then has counted."""
        self._paused_ns += time.monotonic_ns() - since_ns


# ---- a rank's training


class Trainer:
    """A rank of a run. `run()` writes all reports."""

    def __init__(self, config: TrainerConfig) -> None:
        self.config = config
        self.name = config.name
        self.iteration: int | None = None  # where a failure happened
        hook = HOOKS[self.name.codec] if self.name.is_hook else None
        self._buckets = BucketClock(config.workers, hook)
        if self.name.spec is not None and self.name.spec.divides:
            self._buckets.op = "avg"
        self._group: AllreduceGroup | None = None  # sums in place of torch's group
        self._rounds: BackupRounds | None = None  # where sums may lack some ranks
        self._snapshots: WeightSnapshots | None = None  # where nobody waits for an evaluation
        self._pace = ComputePace(config.scenario, config.rank)
        self._replica: RankWorkload | None = None  # computes without exchange
        self._replica_model: torch.nn.Module

    def run(self) -> None:
        config, plan = self.config, self.config.scenario.workload
        compute_on_one_thread()
        workload = build_workload(
            plan.name,
            config.scenario.seed,
            *self._share(),
            plan.batch_per_worker,
            plan.iterations,
            plan.optimizer,
        )
        initial_hash, before = workload.parameter_sha256(), thread_ids()
        self._attach(workload)
        self._pace.attach(workload)
        network_threads = sorted(thread_ids() - before)
        niceness = min(19, os.getpriority(os.PRIO_PROCESS, 0) + COMPUTE_NICENESS)  # we may run under `nice` ourselves
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
        send_report(TrainingStarted(network_threads, [threading.get_native_id()], initial_hash))
        self._train(workload)
        self._detach()
        notes = [
            *self._notes(),
            f"Workload {plan.name}: {workload.task.description}; {workload.task.source} "
            f"(sha256 {workload.task.source_sha256[:16]}).",
            f"Ranks compute at a niceness {COMPUTE_NICENESS} above their network threads', with every method.",
        ]
        send_report(
            TrainingFinished(
                parameters=workload.parameters,
                gradient_bytes=self._gradient_bytes(workload),
                parameter_hash=workload.parameter_sha256(),
                retransmissions=self._counters().get("retransmitted", 0),
                counters=self._counters(),
                collective_bytes=self._collective_bytes(),
                call_paths=self._call_paths(),
                core=self._core(),
                facts=self._facts(),
                notes=notes,
            )
        )

    def _share(self) -> tuple[int, int]:
        """The rank's share of the data: number, and number of shares."""
        return self.config.rank, self.config.workers

    def _attach(self, workload: RankWorkload) -> None:
        """Connect to the other ranks, and let gradients be reduced from now on. Threads that carry packets start
        here."""
        config, plan = self.config, self.config.scenario.workload
        group: Any = None
        if config.partial:
            rendezvous(config, "gloo")
            group = partial_group(config) if self.name.is_switch else host_group(config)
        elif config.on_known_ports:
            rendezvous(config, "gloo")
            group = host_group(config)
        else:
            join_process_group(config)
        self._group = self._buckets.group = group
        self._model = DistributedDataParallel(workload.model, bucket_cap_mb=plan.bucket_bytes / (1 << 20))
        if config.partial:
            self._buckets.op, self._snapshots = "avg", WeightSnapshots(workload)
            self._rounds = BackupRounds(self._model, group, self._buckets.mean)
        else:
            spec = self.name.spec
            if spec is not None and (spec.row_codec is None or spec.feedback or spec.warmup):
                self._buckets.names = {parameter: name for name, parameter in workload.model.named_parameters()}
            self._model.register_comm_hook(None, self._buckets.reduce)
        dist.all_reduce(torch.zeros(1))  # whatever makes its threads at the first call makes them now
        if self._group is None:
            self._check_path()

    def _detach(self) -> None:
        """The last iteration is over."""
        if self._group is not None:
            self._group.close()

    def _facts(self) -> dict[str, Any]:
        """Facts of the schedule; without one, the bucket sizes on which a codec's least size depends."""
        return {"bucket_elements": sorted(self._buckets.elements)} if self._buckets.names else {}

    def _gradient_bytes(self, workload: RankWorkload) -> int:
        """Summed over ranks in an iteration."""
        return workload.gradient_bytes

    def _collective_bytes(self) -> dict[Kind, int]:
        """Bytes of the arrays of each kind of collective in an iteration, where there are others than allreduces."""
        return {}

    def _core(self) -> str | None:
        """The core that carries the switch's packets: "native" or "python"."""
        if not self.name.is_switch:
            return None
        return switch_group().reducer.core() if self._group is None else self._group.core

    def _notes(self) -> list[str]:
        return self._pace.notes()

    def _forward(self, workload: RankWorkload, model: torch.nn.Module, iteration: int) -> torch.Tensor:
        """The loss, no earlier than the rank's pace has it."""
        self._pace.begin(iteration)
        loss = workload.loss(model, iteration)
        self._pace.forward_done()
        return loss

    def _train(self, workload: RankWorkload) -> None:
        plan = self.config.scenario.workload
        dist.barrier()
        clock = TrainingClock()
        for iteration in range(plan.iterations):
            self.iteration = iteration
            self._iterate(workload, iteration, clock)
            if self._evaluates_after(iteration):
                self._evaluate(workload, iteration, clock)
            if iteration + 1 in self.config.holds:
                self._hold(clock, workload)
        self.iteration = None

    def _evaluates_after(self, iteration: int) -> bool:
        plan = self.config.scenario.workload
        return (iteration + 1) % plan.evaluate_every == 0 or iteration + 1 == plan.iterations

    def _iterate(self, workload: RankWorkload, iteration: int, clock: TrainingClock) -> None:
        self._buckets.spans.clear()
        start_ns = time.monotonic_ns()
        rounds = self._rounds
        finished = rounds is not None and rounds.behind  # by the others; a gradient of ours would be dropped
        loss = None if finished else self._forward(workload, self._model, iteration)
        forward_end_ns = time.monotonic_ns()
        if loss is not None:
            loss.backward()  # returns when all buckets are back
            self._pace.backward_done()
        elif rounds is not None:
            rounds.take()
        backward_end_ns = time.monotonic_ns()
        workload.step(iteration)
        end_ns = time.monotonic_ns()
        buckets, in_step_ns = self._buckets.spans, self._waited_in_step_ns()
        waited_ns = exposed_ns(buckets)
        send_report(
            IterationReport.of(
                (start_ns, forward_end_ns, backward_end_ns, end_ns),
                self._returned(),
                waited_ns + in_step_ns,
                buckets[-1] if buckets else None,  # DDP's last bucket holds the first layer
                iteration=iteration,
                start_ns=clock.at(start_ns),
                backward_ns=backward_end_ns - forward_end_ns - waited_ns,
                optimizer_ns=end_ns - backward_end_ns - in_step_ns,
                loss=None if loss is None else loss.item(),
                retransmissions=self._counters().get("retransmitted", 0),
            )
        )

    def _returned(self) -> list[TransferTimes]:
        """The transfers that were back by the end of this iteration, and weren't reported."""
        return self._buckets.spans

    def _waited_in_step_ns(self) -> int:
        """How long this iteration's step of the optimiser has waited for sums."""
        return 0

    def _evaluate(self, workload: RankWorkload, iteration: int, clock: TrainingClock) -> None:
        """On rank 0; the others wait. Training time stands still. Where a sum needn't wait for all ranks, an evaluation
        doesn't either: rank 0 keeps its weights, and evaluates in the end."""
        since_ns = time.monotonic_ns()
        time_ns = clock.at(since_ns)
        if self._snapshots is not None:
            if self.config.rank == 0:
                self._snapshots.keep(iteration, time_ns)
            if iteration + 1 == self.config.scenario.workload.iterations:
                self._evaluate_snapshots(workload)
            return
        if self.config.rank == 0:
            self._report_score(workload, iteration, time_ns)
        dist.barrier()
        clock.leave_out(since_ns)

    def _evaluate_snapshots(self, workload: RankWorkload) -> None:
        """The last iteration is over. Afterwards the model has its weights again."""
        assert self._snapshots is not None
        dist.barrier()
        if self.config.rank == 0:
            for iteration, time_ns in self._snapshots.restore_each():
                self._report_score(workload, iteration, time_ns)
        dist.barrier()

    def _report_score(self, workload: RankWorkload, iteration: int, time_ns: int) -> None:
        score = workload.evaluate()
        send_report(Evaluated(iteration, time_ns, score.accuracy, score.loss))

    def _hold(self, clock: TrainingClock, workload: RankWorkload) -> None:
        """Until the process that started us says go; nothing is on its way. Training time stands still."""
        if self._snapshots is not None:
            dist.barrier()  # some may be behind: for all of them time stands still from the same moment on
        since_ns = time.monotonic_ns()
        while isinstance(command := _next_command(), ComputeAlone):
            send_report(ComputedAlone([self._compute_alone(workload, number) for number in range(command.iterations)]))
        dist.barrier()
        clock.leave_out(since_ns)

    def _without_exchange(self, model: torch.nn.Module) -> torch.nn.Module:
        """A model as it is trained, whose gradients stay on this rank."""
        alone = DistributedDataParallel(model, bucket_cap_mb=self.config.scenario.workload.bucket_bytes / (1 << 20))
        alone.register_comm_hook(1.0 / self.config.workers, _at_once)
        return alone

    def _compute_alone(self, workload: RankWorkload, iteration: int) -> int:
        """How long an iteration without exchange takes, in ns. All ranks begin it at once, as after a sum."""
        if self._replica is None:
            self._replica = workload.replica()
            self._replica_model = self._without_exchange(self._replica.model)
        dist.barrier()
        start_ns = time.monotonic_ns()
        self._replica.loss(self._replica_model, iteration).backward()
        self._replica.step(iteration)
        return time.monotonic_ns() - start_ns

    def _check_path(self) -> None:
        """A comparison of another method must not quietly be one of Gloo. Raises RuntimeError."""
        if self.name.is_torch or switch_group().connect():
            return
        if self.name.is_switch:
            raise RuntimeError(
                "allreduces would not go through the switch: it has no slots free for this job, or there is one worker"
            )
        if self.config.workers > 1:
            raise RuntimeError(f"allreduces would not go by {self.name}: the group fell back to Gloo")

    def _counters(self) -> dict[str, int]:
        """The transport's own, by name; none for Gloo."""
        if self._group is not None:
            return dict(self._group.counters)
        counters: dict[str, int] = {} if self.name.is_torch else switch_group().reducer.counters()
        return counters

    def _call_paths(self) -> dict[str, dict[str, dict[str, int]]]:
        """See `TrainingFinished`. There are none where the process group is Gloo's own, as beside parameter servers."""
        traffic = getattr(switch_group(), "traffic", None)
        return {} if traffic is None else dict(traffic.counts())


def _at_once(share: float, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """DDP communication hook: what `BucketClock` does to a bucket, but for the exchange."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer().mul_(share))
    return future


def _next_command() -> Go | ComputeAlone:
    """Of the process that started us."""
    line = sys.stdin.buffer.readline()
    if not line:
        raise RuntimeError("the process that started this one is gone")
    command: Go | ComputeAlone = msgspec.json.decode(line, type=Go | ComputeAlone)
    return command


def switch_group() -> Any:
    """The default group, of backend `switchagg`."""
    return dist.group.WORLD


def join_process_group(config: TrainerConfig) -> None:
    """Rendezvous of all ranks. Raises what torch.distributed raises, after timeout_s at the latest."""
    if config.name.is_torch:
        rendezvous(config, "gloo", None)
        return
    import transport.torch  # noqa: F401  # registers the backend

    rendezvous(config, "switchagg", session_options(config))


def session_options(config: TrainerConfig, priorities: tuple[int, ...] = ()) -> SwitchOptions:
    """How a rank sends, by any method but Gloo: the terms of the job that the scenario names are the scenario's, all
    others the environment's. priorities: the class of each stream; (): streams as the scenario says."""
    name, terms = config.name, changed_fields(config.scenario.switch, JobTerms)
    if not name.is_switch:
        terms |= {"backups": 0, "close_after_ns": 0}
        terms.pop("secret", None)
    if priorities:
        terms |= {"priorities": priorities, "streams": 0}
    return replace(
        SwitchOptions.from_environment(slots_least=0),  # the scenario's windows, or none
        **terms | {"elements": config.elements} | name.terms,
        method=name.method,
        link=name.link,
        interface="" if name.is_switch else config.interface,
        switch=config.switch or "",
        via=config.via,
        segments_max=config.segments_max,
        bounded=",".join(f"{option}={value}" for option, value in bounded_options(config).items()),
    )


def join_options(config: TrainerConfig, priorities: tuple[int, ...] = ()) -> "JoinOptions":
    """How a rank joins the switch by itself, without a process group of its own for that; as `session_options`."""
    return session_options(config, priorities).join_options(config.timeout_s, config.timeout_s)


def partial_group(config: TrainerConfig) -> BackupGroup:
    """The group of a job at the switch whose sums may lack some ranks. Raises JobError."""
    from transport.group.switch_group import SwitchGroup  # imports ZeroMQ: only for the switch

    return SwitchGroup.join(str(config.switch), GROUP_JOB, config.rank, config.workers, join_options(config))


def bounded_options(config: TrainerConfig) -> dict[str, Any]:
    """The options of a method with bounded loss, as numbers and words, without its paper's; {} of other methods."""
    if not METHODS[config.name.method].loses:
        return {}
    options = config.scenario.bounded.options(config.name.method).items()
    return {name: int(value) if isinstance(value, bool) else value for name, value in options if value is not None}


def host_group(config: TrainerConfig, priorities: Sequence[int] = ()) -> Group:
    """The group of a host method, at addresses that are known beforehand. priorities: classes with connections of their
    own. Raises JobError."""
    name, options = config.name, session_options(config)
    return open_group(
        name.method,
        name.link,
        config.rank,
        [(address, GROUP_PORT) for address in config.addresses],
        servers=[(address, GROUP_PORT) for address in config.servers],
        job=GROUP_JOB,
        options=GroupOptions(
            config.timeout_s,
            config.timeout_s,
            ps=config.scenario.ps.options if name.method == "ps" else None,
            more=options.link_keys | ({"priorities": priorities} if priorities else {}),
            codec=name.codec or None,
            codec_elements=config.elements if name.codec else None,
            codec_seed=options.codec_seed,
            token=options.token,
            token_file=options.token_file,
            verify=options.verify,
        ),
    )


def rendezvous(config: TrainerConfig, backend: str, options: SwitchOptions | None = None) -> None:
    """All ranks' process group over this backend."""
    os.environ["GLOO_SOCKET_IFNAME"] = config.interface
    timeout = timedelta(seconds=config.timeout_s)
    store = dist.TCPStore(  # type: ignore[attr-defined]  # exported, but not explicitly
        config.master_address, config.master_port, config.workers, is_master=config.rank == 0, timeout=timeout
    )
    dist.init_process_group(
        backend, store=store, rank=config.rank, world_size=config.workers, timeout=timeout, pg_options=options
    )


def thread_ids() -> set[int]:
    """Kernel ids of this process's threads."""
    return {int(name) for name in os.listdir("/proc/self/task")}
