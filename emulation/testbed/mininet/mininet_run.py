"""Runs one method of a scenario in Mininet: network, data plane, one trainer per worker, certificate.

Everything it starts ends with the network, whatever happens: failure, timeout, Ctrl-C. Mininet is imported when a run
begins, since it is optional.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from emulation.results.results import (
    Certificate,
    Evaluation,
    IterationRecord,
    MethodResult,
    codec_notes,
    gradient_delays,
    write_json,
)
from emulation.results.timeline import COMPUTE, NETWORK, WAITS, Span, communication_ns, is_recorded, with_median
from emulation.scenario.bounds import bound
from emulation.scenario.compute import ComputeTimes
from emulation.scenario.errors import RunFailed
from emulation.scenario.scenario import Scenario
from emulation.scenario.workload_kinds import DDP, WORKLOADS
from emulation.testbed.host import compiled_core
from emulation.testbed.mininet.flows import RunningFlows
from emulation.testbed.mininet.launch import RENDEZVOUS_PORT, NetworkTraffic, RunningScenario, RunningSwitch, words_of
from emulation.testbed.mininet.shaping import UnfitError
from emulation.testbed.mininet.trainer_processes import EXIT_S, TrainerGroup, TrainerProcess
from emulation.testbed.nursery import Nursery
from emulation.testbed.patience import STARVED_MOST
from emulation.testbed.trainers.trainer_messages import (
    ComputeAlone,
    ComputedAlone,
    Evaluated,
    Go,
    IterationReport,
    TrainerConfig,
    TrainingFinished,
    TrainingStarted,
    write_config,
)
from switchagg.partial_endpoint import ranks_in
from transport.bounded.bounded_calls import COUNTED, loss_of
from transport.group.method_name import METHODS, MethodName
from transport.links.link_kinds import LINKS

if TYPE_CHECKING:
    from emulation.testbed.mininet.emulated_network import EmulatedNetwork

TRAINER = "emulation.testbed.trainers.trainer"
SILENCE_S, SILENCE_PER_WORKER_S = 60.0, 3.0  # importing torch takes seconds of CPU for every worker
GRADIENT_BYTES_MOST = 50_000_000  # above every shipped workload's: sizes aren't known before the trainers are
SLOW_FACTOR = 10.0  # how much slower than its bound a run may be before it is given up
COUNTED_LEAST = 3  # iterations of a block
RANK_BYTES, MEMORY_SHARE = 350_000_000, 0.75  # a rank with PyTorch; what of the free memory ranks may have
ALONE_ITERATIONS, ALONE_LEAST = 8, 2  # without exchange, over all blocks; before a block
ALONE_WARM_UP = 2  # more of them before the first block: in the second one DDP puts its buckets in order
COMPUTE_S = 5.0  # generous: what an iteration may compute, all ranks sharing the CPUs

Progress = Callable[[int, int, str], None]


def missing() -> str | None:
    """The reason why Mininet can't run here, with the remedy; None if it can."""
    try:
        from emulation.testbed.mininet import emulated_network

        emulated_network.require_mininet()
    except UnfitError as error:
        return str(error).removesuffix(", or run it with --on sim")
    except ImportError as error:
        return f"Mininet is there, but Python can't import it ({error}); pip install setuptools brings what it needs"
    return None


def run_method(scenario: Scenario, method: MethodName, out_dir: Path, progress: Progress) -> MethodResult:
    """Run one method of a scenario in real time. Call it from the main thread.

    out_dir keeps the network as read back, each rank's config and log, and the data plane's log. Raises RunFailed in
    one line; UnfitError if this machine can't honour the scenario.
    """
    with Nursery([f"{TRAINER}:prepare"]) as nursery:
        ((result, _),) = in_turn([_run(scenario, method, out_dir, progress, (hold_after(scenario),), nursery)])
    return result


def run_methods(
    scenario: Scenario,
    methods: Sequence[MethodName],
    folder: Path,
    progress: Callable[[str, int, int, str], None],
    nursery: Nursery | None = None,
) -> list[tuple[MethodResult, float]]:
    """Methods of a scenario in turn, block by block, so that what else happens on this machine meets all of them; each
    with the seconds that it took. Their networks and ranks stay meanwhile, and wait. So many methods take turns as
    memory has room for. nursery: which loads PyTorch, and outlives the run. Raises as `run_method`.
    """
    turns, results = turns_of(scenario), []
    most = len(methods) if turns is None else methods_at_once(scenario.topology.workers)
    with contextlib.nullcontext(nursery) if nursery else Nursery([]) as fork:
        fork.load([f"{TRAINER}:prepare"])
        for first in range(0, len(methods), 1 if turns is None else most):
            group = methods[first : first + (1 if turns is None else most)]
            holds = (hold_after(scenario),) if turns is None or len(group) == 1 else turns.holds
            running = [
                _run(scenario, method, folder / method.slug, partial(progress, str(method)), holds, fork)
                for method in group
            ]
            for result, seconds in in_turn(running):
                if turns is not None and len(group) > 1:
                    rivals = [other for other in group if other != result.method]
                    result = dataclasses.replace(result, blocks=list(turns.blocks), in_turn_with=rivals)
                if turns is not None and len(methods) > len(group):
                    note = (
                        f"Memory has room for the ranks of {most} methods at a time: not all took turns with this one."
                    )
                    result = dataclasses.replace(result, notes=[*result.notes, note])
                results.append((result, seconds))
    return results


def in_turn(running: Sequence[Generator[None, None, MethodResult]]) -> list[tuple[MethodResult, float]]:
    """Runs methods, each up to where it gives way to the others, until all have ended; each result with the seconds it
    took. Every second round is in opposite order, so that what grows steadily is no method's. Leaves nothing running.
    """
    results: dict[int, MethodResult] = {}
    seconds = [0.0] * len(running)
    order = list(range(len(running)))
    try:
        while order:
            for place in list(order):
                start = time.monotonic()
                try:
                    next(running[place])
                except StopIteration as ended:
                    results[place] = ended.value
                    order.remove(place)
                seconds[place] += time.monotonic() - start
            order.reverse()
    finally:
        for method in running:
            method.close()
    return [(results[place], seconds[place]) for place in range(len(running))]


def methods_at_once(workers: int) -> int:
    """How many methods' ranks this machine's memory has room for, beside all else."""
    words = Path("/proc/meminfo").read_text(encoding="ascii").partition("MemAvailable:")[2].split()
    available_bytes = 1024 * int(words[0])
    return max(1, int(MEMORY_SHARE * available_bytes / (workers * RANK_BYTES)))


def _run(
    scenario: Scenario,
    method: MethodName,
    out_dir: Path,
    progress: Progress,
    holds: tuple[int, ...],
    nursery: Nursery,
) -> Generator[None, None, MethodResult]:
    """A method that yields at each of `holds`, when all ranks have done so many iterations and wait."""
    total, workers = scenario.workload.iterations, scenario.topology.workers
    stall_s, limit_s = time_limits(scenario, method)
    servers = scenario.ps.servers if method.method == "ps" else 0
    progress(0, total, "building the network")
    with _failures(method, out_dir), RunningScenario(scenario, servers=servers) as network:
        switch = (
            network.start_switch(scenario, method, str(method), out_dir / "switch.log") if method.is_switch else None
        )
        network.start_servers(method, STARVED_MOST * stall_s, out_dir)
        read_back = network.facts
        write_json(out_dir / "network.json", read_back)
        progress(0, total, f"starting {workers} workers")
        members = [_start(network, method, switch, rank, out_dir, holds, nursery) for rank in range(workers)]
        with (
            RunningFlows(network.star, scenario) as flows,
            Observation(network.star, scenario, members, progress, flows) as observed,
        ):

            def alive() -> None:
                network.check_services()
                flows.check()

            group = TrainerGroup(
                str(method), members, stall_s=stall_s, limit_s=limit_s, alive=alive, beside=network.pids_of_services
            )
            alone_ns: list[int] = []
            for done in group.follow():
                observed.on_iteration(done)
                if done in holds:
                    observed.pause()
                    yield
                    if computes_alone(scenario, method):
                        alone_ns += compute_alone_ns(group, len(holds), first=not alone_ns)
                    observed.go_on(done)
        network.end_servers(EXIT_S)
        counters = {} if switch is None else network.switch_counters(switch)
        plane = None if switch is None else switch.plane
    environment: dict[str, Any] = {"tcp_congestion_control": read_back["congestion_control"], "network": read_back}
    if plane is not None:
        environment["dataplane"] = plane
        environment["worker_cores"] = [member.named(TrainingFinished)[0].core for member in members]
        environment["compiled_core"] = compiled_core()
    return dataclasses.replace(
        _result(scenario, method, members, observed, counters, environment), compute_alone_ns=alone_ns
    )


@contextlib.contextmanager
def _failures(method: MethodName, out_dir: Path) -> Iterator[None]:
    """Raises RunFailed for a node that died under us, or a program that failed."""
    try:
        yield
    except (OSError, subprocess.SubprocessError) as error:
        raise RunFailed(
            f"{method}: the emulated network failed: {words_of(error)}; its logs are in {out_dir}"
        ) from error


def time_limits(scenario: Scenario, method: MethodName) -> tuple[float, float]:
    """Longest time without a report of any rank, and longest run, in seconds."""
    bounds = [bound(name, GRADIENT_BYTES_MOST, scenario.network) for name in (MethodName("gloo", ""), method)]
    ideal_s = max(least.communication_ns for least in bounds) / 1e9
    compute_s = COMPUTE_S
    if scenario.paced or scenario.unequal_compute:
        compute_s += ComputeTimes(scenario, round(COMPUTE_S * 1e9)).most_ns() / 1e9
    silence_s = SILENCE_S + SILENCE_PER_WORKER_S * scenario.topology.workers + SLOW_FACTOR * ideal_s + compute_s
    return silence_s, silence_s + scenario.workload.iterations * (SLOW_FACTOR * ideal_s + compute_s)


def computes_alone(scenario: Scenario, method: MethodName) -> bool:
    """Whether ranks also compute without exchange, which says what the exchange takes from computing: each rank has the
    whole model, computes as fast as this machine lets it, and is waited for."""
    if scenario.paced or scenario.unequal_compute:
        return False
    return WORKLOADS[scenario.workload.name].parallel == DDP and scenario.backups_of(method) is None


def compute_alone_ns(group: TrainerGroup, blocks: int, *, first: bool) -> list[int]:
    """What the slowest rank computes for in each of some iterations without exchange, before one of so many blocks.
    first: before the first one."""
    extra = ALONE_WARM_UP if first else 0
    answers = group.answers(ComputeAlone(max(ALONE_LEAST, ALONE_ITERATIONS // blocks) + extra), ComputedAlone)
    return [max(times_ns) for times_ns in zip(*(answer.durations_ns for answer in answers), strict=True)][extra:]


def hold_after(scenario: Scenario) -> int:
    """Iterations after which the trainers wait until we measure. One of the warm-up follows, if it has more than one:
    after a pause TCP's windows are small, and no sums of an iteration before are on their way."""
    return max(1, scenario.workload.warmup_iterations - 1)


@dataclasses.dataclass(frozen=True)
class MethodTurns:
    """holds: iterations after which a method gives way to the others. blocks: [first, end) of what is counted between:
    not the first iteration after a pause, for the same reason."""

    holds: tuple[int, ...]
    blocks: tuple[tuple[int, int], ...]


def turns_of(scenario: Scenario) -> MethodTurns | None:
    """How methods take turns; None: one runs after the other, as a single one does, where there are too few iterations
    to divide, and beside flows, whose times go on."""
    workload, first = scenario.workload, hold_after(scenario)
    begin, end = workload.warmup_iterations, workload.iterations
    count = min(workload.blocks, (end - begin) // (1 + max(COUNTED_LEAST, round_iterations(scenario))))
    if count < 2 or scenario.flows:
        return None
    ends = [begin + (end - begin) * number // count for number in range(1, count + 1)]
    begins = [begin, *(before + 1 for before in ends[:-1])]
    return MethodTurns((first, *ends[:-1]), tuple(zip(begins, ends, strict=True)))


def round_iterations(scenario: Scenario) -> int:
    """Iterations of a training method that belong together."""
    if not scenario.workload.synchronisation:
        return 1
    from transport.torch.training.training_methods import parse_method

    return parse_method(scenario.workload.synchronisation).round_steps


def hold_at_end(scenario: Scenario) -> bool:
    """Whether ranks gather the model at the end, once we have measured."""
    return WORKLOADS[scenario.workload.name].parallel != DDP


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The counters at the end of an iteration."""

    traffic: NetworkTraffic
    packets_resent: int  # by the switch method's own transport, all workers


class Observation:
    """The measurements from outside while the trainers run: link counters, retransmissions, fidelity.

    The monitor starts after the first iteration: start-up, when every interpreter imports torch at once, is not what
    is certified. The trainers wait for it (`hold_after`), with nothing on the wire; bytes are counted from there.
    Monitor and counting end with the last iteration, and stand still while other methods have their turn. A context
    manager: leaving it ends the monitor.
    """

    def __init__(
        self,
        network: EmulatedNetwork,
        scenario: Scenario,
        members: Sequence[TrainerProcess],
        progress: Progress,
        flows: RunningFlows,
    ) -> None:
        from emulation.testbed.certificate.fidelity import FidelityMonitor

        self._network, self._members, self._progress = network, members, progress
        held, self._total = hold_after(scenario), scenario.workload.iterations
        self._gathers = hold_at_end(scenario)
        self._flows = flows
        self.beside: dict[str, Any] = {}  # what became of the flows
        self._monitor = FidelityMonitor(network, follow=flows.interfaces)
        self._watching = False
        self._first: Snapshot | None = None
        self.certificate: Certificate | None = None
        self.traffic = NetworkTraffic([], [], 0, 0, 0)
        self.packets_resent = 0
        self.iterations = self._total - held  # that the counts cover

    def __enter__(self) -> Observation:
        return self

    def __exit__(self, *_: object) -> None:
        self._monitor.close()

    def on_iteration(self, done: int) -> None:
        """All ranks have done `done` iterations."""
        if not self._watching:
            self._watch()  # takes a while, in which they go on, but not past where they wait
        if done == self._total:
            self._end(done)
            if self._gathers:
                for member in self._members:
                    member.child.send(Go())
        self._progress(done, self._total, "training" if self._first is not None else "warming up")

    def pause(self) -> None:
        """All ranks wait; what happens until they go on is not measured."""
        self._monitor.pause()

    def go_on(self, done: int) -> None:
        """They do. The first time, counting begins."""
        if self._first is None:
            self._flows.begin()
            self._first = self._snapshot(done)
        self._monitor.resume()
        for member in self._members:
            member.child.send(Go())

    def _watch(self) -> None:
        self._watching = True
        try:
            self._monitor.start()
        except RuntimeError as error:
            raise RunFailed(str(error)) from error
        for member in self._members:
            for thread in _network_threads(member):
                self._monitor.watch(member.child.process.pid, thread)

    def _snapshot(self, done: int) -> Snapshot:
        records = [member.named(IterationReport)[done - 1] for member in self._members]
        return Snapshot(
            NetworkTraffic.of(self._network),
            sum(record.retransmissions for record in records),
        )

    def _end(self, done: int) -> None:
        first, last = self._first, self._snapshot(done)
        assert first is not None, "the trainers go on only once it is there"
        self.traffic = last.traffic - first.traffic
        self._flows.end()
        self.packets_resent = last.packets_resent - first.packets_resent
        self.certificate = self._monitor.stop()
        self.beside = self._flows.document(self._monitor.looks)


def _network_threads(member: TrainerProcess) -> list[int]:
    """Kernel ids of the threads that carry packets, as the trainer reported at its start."""
    return [thread for report in member.named(TrainingStarted) for thread in report.network_threads]


def _start(
    network: RunningScenario,
    method: MethodName,
    switch: RunningSwitch | None,
    rank: int,
    out_dir: Path,
    holds: tuple[int, ...],
    nursery: Nursery,
) -> TrainerProcess:
    """Starts one rank's trainer on its host."""
    scenario, workers = network.scenario, network.star.workers
    config = TrainerConfig(
        scenario=scenario,
        method=str(method),
        rank=rank,
        workers=len(workers),
        master_address=workers[0].address,
        master_port=RENDEZVOUS_PORT,
        interface=workers[rank].interface,
        switch=None if switch is None else switch.control,
        via="" if switch is None else network.via(rank),
        addresses=tuple(host.address for host in workers),
        servers=tuple(host.address for host in network.star.servers),
        timeout_s=STARVED_MOST * time_limits(scenario, method)[0],  # of one call: it is we who give up first
        segments_max=network.segments_max,
        holds=holds,
        hold_at_end=hold_at_end(scenario),
    )
    config_path = out_dir / f"rank-{rank}.json"
    write_config(config_path, config)
    log = (out_dir / f"rank-{rank}.log").open("w+b")
    process = network.fork_rank(rank, nursery, f"{TRAINER}:run_rank", str(config_path.resolve()), log)
    return TrainerProcess(rank, cast("subprocess.Popen[bytes]", process), log)


def _result(
    scenario: Scenario,
    method: MethodName,
    members: Sequence[TrainerProcess],
    observed: Observation,
    counters: dict[str, int],
    environment: dict[str, Any],
) -> MethodResult:
    finals = [member.named(TrainingFinished)[0] for member in members]
    per_rank = [member.named(IterationReport) for member in members]
    iterations = merge_iterations(per_rank, scenario.backups_of(method))
    hosts = len(members) + (scenario.ps.servers if method.method == "ps" else 0)  # the job's
    link = LINKS.get(method.link)
    if link is not None and not link.framing.stream:
        retransmissions = observed.packets_resent
        note = "Retransmissions are packets, counted by the workers over as many iterations as wire bytes."
    else:
        retransmissions = observed.traffic.segments_resent
        note = "Retransmissions are TCP segments, counted by the kernel over as many iterations as wire bytes."
    return MethodResult(
        method=method,
        backend="mininet",
        workers=len(members),
        iterations=iterations,
        evaluations=[
            Evaluation(score.iteration, score.time_ns, score.accuracy, score.loss)
            for score in members[0].named(Evaluated)
        ],
        parameters=finals[0].parameters,
        gradient_bytes=finals[0].gradient_bytes,
        collective_bytes=finals[0].collective_bytes,
        call_paths=finals[0].call_paths,
        wire_tx_bytes_per_rank=observed.traffic.up_bytes[: len(members)],
        wire_rx_bytes_per_rank=observed.traffic.down_bytes[: len(members)],
        wire_tx_bytes_per_server=observed.traffic.up_bytes[len(members) : hosts],
        wire_rx_bytes_per_server=observed.traffic.down_bytes[len(members) : hosts],
        wire_iterations=observed.iterations,
        retransmissions=retransmissions,
        switch_counters=counters,
        parameter_hash_per_rank=[final.parameter_hash for final in finals],
        certificate=observed.certificate,
        notes=[*environment["network"]["notes"], note, *codec_notes(scenario, method), *finals[0].notes],
        environment={
            **environment,
            **finals[0].facts,
            **gradient_delays([final.counters for final in finals]),
        },
        first_layer_bytes=per_rank[0][-1].first_layer_bytes,
        gradient_loss=_lost(method, [final.counters for final in finals]),
        partial_sums=ranks_in(finals[0].counters),
        **observed.beside,
        timeline=timeline(per_rank, iterations, scenario.workload.warmup_iterations),
    )


def _lost(method: MethodName, per_rank: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """The losses for good of a method with bounded loss; {} for other methods."""
    if not METHODS[method.method].loses:
        return {}
    return loss_of({name: sum(counters[f"packets_{name}"] for counters in per_rank) for name in COUNTED})


def timeline(
    per_rank: Sequence[Sequence[IterationReport]], merged: Sequence[IterationRecord], warmup_iterations: int
) -> list[Span]:
    """Spans of the kept iterations, from each rank's own reports."""
    spans = (
        span
        for rank, records in enumerate(per_rank)
        for record in records
        if is_recorded(record.iteration, warmup_iterations, rank)
        for span in _spans(rank, record)
    )
    return with_median(spans, {record.iteration: record.duration_ns for record in merged}, warmup_iterations)


def _spans(rank: int, record: IterationReport) -> list[Span]:
    iteration, start_ns = record.iteration, record.start_ns
    end_ns, forward_ns = start_ns + record.duration_ns, start_ns + record.forward_ns
    backward_ns = forward_ns + record.backward_ns
    # With a schedule the step follows at once, and the iteration goes on while its sums return.
    step_ns = backward_ns if record.waits is not None else end_ns - record.optimizer_ns
    computed = (
        (start_ns, forward_ns, "forward"),
        (forward_ns, backward_ns, "backward"),
        (step_ns, step_ns + record.optimizer_ns, "optimizer"),
    )
    spans = [Span(rank, COMPUTE, name, iteration, low_ns, high_ns) for low_ns, high_ns, name in computed]
    shift_ns = start_ns - record.monotonic_start_ns  # buckets are on the machine's clock, iterations on the training's
    for wait in record.waits or []:
        low_ns, high_ns = wait.start_ns + shift_ns, wait.end_ns + shift_ns
        spans.append(Span(rank, COMPUTE, f"{WAITS}{wait.name}", iteration, low_ns, high_ns))
    for index, bucket in enumerate(record.buckets):
        low_ns, high_ns = bucket.start_ns + shift_ns, bucket.end_ns + shift_ns
        label = bucket.name or f"bucket {index}"
        spans.append(Span(rank, NETWORK, label, iteration, low_ns, high_ns, bucket.size_bytes, bucket.priority))
    return spans


def merge_iterations(
    per_rank: Sequence[Sequence[IterationReport]], backups: int | None = None
) -> list[IterationRecord]:
    """One record per iteration of the ranks' own: it ends with the slowest's; duration and compute of the slowest.

    backups: so many ranks aren't waited for, those that are last by each of these; and since late ranks take rounds in
    bursts, an iteration lasts from the end of the one before, as in virtual time."""
    merged: list[IterationRecord] = []
    spare = backups or 0
    slowest = len(per_rank) - 1 - spare
    for records in zip(*per_rank, strict=True):
        numbers = {record.iteration for record in records}
        if len(numbers) != 1:
            raise RunFailed(f"ranks disagree on which iteration comes next: {sorted(numbers)}")
        end_ns = sorted(record.start_ns + record.duration_ns for record in records)[slowest]
        duration_ns = sorted(record.duration_ns for record in records)[slowest]
        if backups is not None:
            duration_ns = end_ns - (merged[-1].start_ns + merged[-1].duration_ns if merged else 0)
        merged.append(
            IterationRecord(
                iteration=numbers.pop(),
                start_ns=end_ns - duration_ns,
                duration_ns=duration_ns,
                compute_ns=sorted(record.compute_ns for record in records)[slowest],
                communication_ns=communication_ns([record.intervals for record in records], spare),
                loss=statistics.fmean(record.loss for record in records if record.loss is not None),
                first_layer_ns=sorted(record.first_layer_ns for record in records)[slowest] or None,
            )
        )
    return merged
