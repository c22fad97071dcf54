"""The trainer: its reports, that it trains what the replicas train, and how it ends when something is wrong."""

import contextlib
import dataclasses
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from torch_forks import Forked
from waiting import until

from emulation.results.results import gradient_delays
from emulation.results.timeline import union_ns
from emulation.scenario.scenario import parse
from emulation.scenario.workload_kinds import FSDP, WORKLOADS
from emulation.sim.simulated_run import run_method
from emulation.testbed import children
from emulation.testbed.mininet.trainer_processes import TrainerGroup, TrainerProcess
from emulation.testbed.trainers import ddp_trainer
from emulation.testbed.trainers.ddp_trainer import exposed_ns
from emulation.testbed.trainers.scheduled_trainer import ScheduledTrainer
from emulation.testbed.trainers.trainer import one_line, read_config
from emulation.testbed.trainers.trainer_messages import (
    ComputeAlone,
    ComputedAlone,
    Evaluated,
    Go,
    IterationReport,
    TrainerConfig,
    TrainingFailed,
    TrainingFinished,
    TrainingStarted,
    TransferTimes,
    write_config,
)
from emulation.workloads.replicas import Replicas
from transport.group.method_name import parse as parse_method
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.worker.session import SwitchSession

pytestmark = pytest.mark.long

ITERATIONS, BATCH, SEED = 6, 8, 3
SCENARIO = f"""
name = "try"
title = "Try"
seed = {SEED}
[topology]
workers = 2
[workload]
name = "digits"
iterations = {{iterations}}
warmup_iterations = 1
batch_per_worker = {BATCH}
evaluate_every = 4
[switch]
streams = 3
window_slots = 128
"""
TRAINER = "emulation.testbed.trainers.trainer"
RUN = f"\nimport sys\nfrom {TRAINER} import run_rank\nrun_rank(sys.argv[-1])\n"
LIMIT_S = 300.0  # for machines that do much else
HELD_S = 2.0


def configuration(rank: int, method: str = "gloo", iterations: int = ITERATIONS, **changes: Any) -> dict[str, Any]:
    return {
        "scenario": parse(SCENARIO.format(iterations=iterations), "try.toml"),
        "method": method,
        "rank": rank,
        "workers": 2,
        "master_address": "127.0.0.1",
        "master_port": 29_500,
        "interface": "lo",
    } | changes


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., list[TrainerProcess]]]:
    """Starts trainers with these configurations; whatever still runs is killed in the end."""
    started: list[TrainerProcess] = []

    def begin(*configurations: dict[str, Any], program: Sequence[str] = ("-m", TRAINER)) -> list[TrainerProcess]:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        for config in configurations:
            rank = config["rank"]
            config_path = tmp_path / f"rank-{rank}.json"
            write_config(config_path, TrainerConfig(**config | {"master_port": port}))
            log = (tmp_path / f"rank-{rank}.log").open("w+b")
            process = Forked(
                [sys.executable, *program, str(config_path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            started.append(TrainerProcess(rank, process, log))
        return started

    yield begin
    children.close([member.child for member in started])


def follow(members: list[TrainerProcess]) -> None:
    list(TrainerGroup("test", members, stall_s=LIMIT_S, limit_s=LIMIT_S).follow())


def read_until(member: TrainerProcess, event: type[Any], count: int = 1) -> None:
    """Reads a member's reports until it has sent `event` that often, or has ended."""
    while len(member.named(event)) < count and not member.child.ended:
        for report in member.child.read():
            member.add(report)


def test_a_rank_sends_as_long_bundles_as_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(ddp_trainer, "rendezvous", lambda _config, _backend, options: told.append(options))
    monkeypatch.setattr(SwitchSession, "join", lambda *arguments: told.append(arguments[-1]))
    place = {"switch": "tcp://127.0.0.1:5555", "segments_max": 41}
    ddp_trainer.join_process_group(TrainerConfig(**configuration(0, "switch", **place)))
    ScheduledTrainer(TrainerConfig(**configuration(0, "switch+p3", **place)))._open()
    assert [options.segments_max for options in told] == [41, 41]


@pytest.mark.parametrize(
    ("variable", "value"),
    [("KEYS", "some-folder"), ("CODEC_SEED", 7), ("JOB_PRIORITY", 2), ("WEIGHT", 5), ("SLOTS_LEAST", 16)],
)
def test_every_trainer_reads_the_terms_that_the_scenario_does_not_name(
    variable: str, value: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"SWITCHAGG_{variable}", str(value))
    joins: list[Any] = []
    monkeypatch.setattr(
        ddp_trainer, "rendezvous", lambda _config, _backend, options: joins.append(options.join_options(9.0))
    )
    monkeypatch.setattr(SwitchSession, "join", lambda *arguments: joins.append(arguments[-1]))
    place = {"switch": "tcp://127.0.0.1:5555"}
    ddp_trainer.join_process_group(TrainerConfig(**configuration(0, "switch", **place)))
    for method in ("switch+p3", "switch+wfbp"):
        ScheduledTrainer(TrainerConfig(**configuration(0, method, **place)))._open()
    assert [getattr(options, variable.lower()) for options in joins] == [value] * 3


def nicenesses(pid: int) -> dict[int, int]:
    """Thread -> niceness."""
    return {int(name): os.getpriority(os.PRIO_PROCESS, int(name)) for name in os.listdir(f"/proc/{pid}/task")}


# ---- two ranks, to the end


@pytest.mark.parametrize("method", ["gloo", "ring+p3"])
def test_two_ranks_train_what_two_replicas_train(start: Callable[..., list[TrainerProcess]], method: str) -> None:
    """Bit by bit: halving is exact and the sum of two floats has no order. With a schedule iterations overlap.
    After two iterations they wait for word to go on, and meanwhile compute on models apart, which changes nothing."""
    addresses = ["127.0.0.1", "127.0.0.2"]
    members = start(*(configuration(rank, method, addresses=addresses, holds=[2]) for rank in range(2)))
    reached: list[int] = []

    def go_on(done: int) -> None:
        reached.append(done)
        if done == 2:
            assert [member.iterations for member in members] == [2, 2]
            alone = group.answers(ComputeAlone(3), ComputedAlone)
            assert all(len(answer.durations_ns) == 3 and min(answer.durations_ns) > 0 for answer in alone)
            time.sleep(HELD_S)
            for member in members:
                member.child.send(Go())

    group = TrainerGroup("test", members, stall_s=LIMIT_S, limit_s=LIMIT_S)
    for done in group.follow():
        go_on(done)
    assert 2 in reached
    second, third = members[0].named(IterationReport)[1:3]
    between_ns = third.monotonic_start_ns - second.monotonic_start_ns - second.duration_ns
    assert between_ns > HELD_S * 1e9 > third.start_ns - second.start_ns - second.duration_ns, (
        "training time stands still"
    )
    replicas = Replicas("digits", SEED, 2, BATCH, ITERATIONS)
    initial_hash = replicas.parameter_hashes()[0]
    losses = []
    for iteration in range(ITERATIONS):
        gradients = replicas.gradients(iteration)
        averaged = [
            np.float32(0.5) * first + np.float32(0.5) * second for first, second in zip(*gradients, strict=True)
        ]
        losses.append(list(replicas.losses))
        replicas.apply(iteration, [averaged] * 2)
    for member in members:
        (started,), (finished,) = member.named(TrainingStarted), member.named(TrainingFinished)
        assert started.initial_parameter_hash == initial_hash
        assert finished.parameter_hash == replicas.parameter_hashes()[0]
        assert finished.parameters == replicas.parameters
        assert finished.gradient_bytes == replicas.gradient_bytes
        assert finished.retransmissions == 0
        assert [entry.loss for entry in member.named(IterationReport)] == [pair[member.rank] for pair in losses]
    if method == "gloo":
        check_buckets(members[0], replicas)
        check_times(members)
    else:
        check_transfers(members[0], replicas)
    (first, last) = members[0].named(Evaluated)
    assert (first.iteration, last.iteration) == (3, ITERATIONS - 1)
    score = replicas.evaluate()
    assert (last.accuracy, last.loss) == (score.accuracy, score.loss)
    assert members[1].named(Evaluated) == []


SHARDED = """
from dataclasses import replace
from emulation.scenario.workload_kinds import FSDP, WORKLOADS
WORKLOADS["digits"] = replace(WORKLOADS["digits"], parallel=FSDP)
"""


def test_two_ranks_under_fsdp2_train_what_virtual_time_trains(
    start: Callable[..., list[TrainerProcess]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit by bit, as above: with every layer a unit of its own."""
    configurations = [configuration(rank, hold_at_end=True) for rank in range(2)]
    members = start(*configurations, program=("-c", SHARDED + RUN))

    def go_on(done: int) -> None:
        if done == ITERATIONS:
            for member in members:
                member.child.send(Go())

    for done in TrainerGroup("test", members, stall_s=LIMIT_S, limit_s=LIMIT_S).follow():
        go_on(done)
    monkeypatch.setitem(WORKLOADS, "digits", dataclasses.replace(WORKLOADS["digits"], parallel=FSDP))
    workload = dataclasses.replace(configurations[0]["scenario"].workload, compute_ns=1_000_000)
    scenario = dataclasses.replace(configurations[0]["scenario"], workload=workload)
    virtual = run_method(scenario, parse_method("gloo"), Path(), lambda *_: None)
    assert len(set(virtual.parameter_hash_per_rank)) == 1
    for member in members:
        (finished,) = member.named(TrainingFinished)
        assert finished.parameter_hash == virtual.parameter_hash_per_rank[0]
        assert finished.gradient_bytes == virtual.gradient_bytes
        assert finished.collective_bytes == virtual.collective_bytes
        entries = member.named(IterationReport)
        names = [bucket.name for bucket in entries[-1].buckets]
        assert (names[0], names[-1]) == ("all-gather 0", "reduce-scatter 0")
        assert all(0 < entry.compute_ns < entry.duration_ns for entry in entries)
        assert all(union_ns(entry.intervals) <= entry.duration_ns for entry in entries)
    losses = [
        sum(entry.loss or 0 for entry in both) / 2
        for both in zip(*(m.named(IterationReport) for m in members), strict=True)
    ]
    assert losses == [record.loss for record in virtual.iterations]
    (evaluated,) = members[0].named(Evaluated)
    assert (evaluated.iteration, evaluated.loss) == (ITERATIONS - 1, virtual.evaluations[-1].loss)


CUT = """
from torch import nn
from emulation.scenario.workload_kinds import TP, WORKLOADS, WorkloadKind
from emulation.workloads.tasks.text import Gpt
from emulation.workloads.tasks.text_tensor import SharedBlock, TensorTextTask
class Small(TensorTextTask):
    def build_model(self) -> nn.Module:
        return Gpt(256, self.context, 16, heads=2, blocks=1, block=SharedBlock)
WORKLOADS["digits"] = WorkloadKind("digits", Small, parallel=TP)
"""


def test_two_ranks_with_cut_layers_train_what_virtual_time_trains(
    start: Callable[..., list[TrainerProcess]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to rounding: PyTorch adds a bias at another place."""
    configurations = [configuration(rank, iterations=3) for rank in range(2)]
    members = start(
        *configurations,
        program=(
            "-c",
            CUT + RUN,
        ),
    )
    follow(members)
    table: dict[str, Any] = {}
    monkeypatch.setitem(WORKLOADS, "digits", WORKLOADS["digits"])
    exec(CUT, table)
    workload = dataclasses.replace(configurations[0]["scenario"].workload, compute_ns=1_000_000)
    scenario = dataclasses.replace(configurations[0]["scenario"], workload=workload)
    virtual = run_method(scenario, parse_method("gloo"), Path(), lambda *_: None)
    finished = [member.named(TrainingFinished)[0] for member in members]
    assert len({each.parameter_hash for each in finished}) == 1
    assert finished[0].collective_bytes == virtual.collective_bytes
    assert (finished[0].parameters, finished[0].gradient_bytes) == (virtual.parameters, virtual.gradient_bytes)
    losses = [entry.loss for entry in members[0].named(IterationReport)]
    assert losses == pytest.approx([record.loss for record in virtual.iterations], rel=1e-5)


def check_buckets(member: TrainerProcess, replicas: Replicas) -> None:
    """DDP's own first iteration is one bucket; from then on they are as the replicas lay them out."""
    sizes = [[bucket.size_bytes for bucket in entry.buckets] for entry in member.named(IterationReport)]
    assert sizes[0] == [replicas.gradient_bytes]
    assert sizes[1:] == [[4 * bucket.elements for bucket in replicas.buckets]] * (ITERATIONS - 1)


def check_transfers(member: TrainerProcess, replicas: Replicas) -> None:
    """The first iterations are watched and reduced at once, then the plan's slices travel; iterations don't overlap."""
    entries = member.named(IterationReport)
    counts = [len(entry.buckets) for entry in entries]
    assert counts == [1, 1, 1, 35, 35, 35]
    for entry, after in itertools.pairwise(entries):
        assert sum(bucket.size_bytes for bucket in entry.buckets) == replicas.gradient_bytes
        assert entry.start_ns + entry.duration_ns <= after.start_ns
        assert 0 < entry.compute_ns <= entry.duration_ns


def check_times(members: list[TrainerProcess]) -> None:
    for member in members:
        entries = member.named(IterationReport)
        for entry in entries:
            parts = entry.forward_ns + entry.backward_ns + entry.optimizer_ns
            assert parts == entry.compute_ns <= entry.duration_ns
            assert 0 < union_ns(entry.intervals) <= entry.duration_ns
            assert min(entry.forward_ns, entry.backward_ns, entry.optimizer_ns) > 0
        ends_ns = [entry.start_ns + entry.duration_ns for entry in entries]
        assert all(end <= after.start_ns for end, after in zip(ends_ns, entries[1:], strict=False))
    # Rank 1 only waits while rank 0 evaluates after iteration 3: on neither does training time pass.
    assert members[0].named(Evaluated)[0].time_ns <= members[0].named(IterationReport)[4].start_ns
    for member in members:
        before, after = member.named(IterationReport)[3:5]
        passed_ns = after.monotonic_start_ns - before.monotonic_start_ns - before.duration_ns
        counted_ns = after.start_ns - before.start_ns - before.duration_ns
        assert 0 <= counted_ns < passed_ns


def test_through_the_switch_both_ranks_end_with_the_same_bits(start: Callable[..., list[TrainerProcess]]) -> None:
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0))) as daemon:
        where = {"switch": daemon.control_endpoint}
        members = start(configuration(0, "switch", **where), configuration(1, "switch", **where))
        follow(members)
    finals = [member.named(TrainingFinished)[0] for member in members]
    assert finals[0].parameter_hash == finals[1].parameter_hash
    packets = ITERATIONS * finals[0].gradient_bytes // (4 * 360)
    for final in finals:
        assert final.counters["sent"] >= packets  # the gradients went that way, not through Gloo
        assert final.retransmissions == final.counters["retransmitted"]


def test_two_ranks_under_a_training_method_exchange_what_it_says(start: Callable[..., list[TrainerProcess]]) -> None:
    """OD-SGD after two synchronous steps, whose buckets come first; each later sum is taken in the next iteration, and
    the last at the end."""
    word = {"workload.synchronisation": "od_sgd:warm_up=2"}
    scenario = parse(SCENARIO.format(iterations=ITERATIONS), "try.toml", word)
    members = start(*(configuration(rank, "ring", scenario=scenario) for rank in range(2)))
    follow(members)
    finals = [member.named(TrainingFinished)[0] for member in members]
    assert finals[0].parameter_hash == finals[1].parameter_hash
    whole = 4 * finals[0].parameters
    for member in members:
        iterations = member.named(IterationReport)
        sizes = [sum(bucket.size_bytes for bucket in one.buckets) for one in iterations]
        assert sizes == [whole, whole, 0, *[whole] * (ITERATIONS - 3)]
        for one in iterations:
            assert 0 <= one.compute_ns <= one.duration_ns
            assert all(bucket.start_ns <= bucket.end_ns for bucket in one.buckets)
    assert finals[0].facts == {"synchronisation": scenario.workload.synchronisation, "round_iterations": 1}
    assert finals[0].gradient_bytes == round(whole * (ITERATIONS - 2) / (ITERATIONS - 1))


def test_rounds_of_a_training_method_are_counted_whole(start: Callable[..., list[TrainerProcess]]) -> None:
    """Local SGD sums after iterations 1, 3 and 5; the warm-up is iteration 0, so the whole rounds are 1 to 4."""
    word = {"workload.synchronisation": "local_sgd:period=2"}
    scenario = parse(SCENARIO.format(iterations=ITERATIONS), "try.toml", word)
    members = start(configuration(0, "gloo", scenario=scenario), configuration(1, "gloo", scenario=scenario))
    follow(members)
    final = members[0].named(TrainingFinished)[0]
    sizes = [sum(bucket.size_bytes for bucket in one.buckets) for one in members[0].named(IterationReport)]
    assert sizes == [4 * final.parameters * (iteration % 2) for iteration in range(ITERATIONS)]
    assert final.gradient_bytes == 2 * final.parameters


def test_the_switch_without_room_is_not_quietly_replaced_by_gloo(start: Callable[..., list[TrainerProcess]]) -> None:
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=128)) as daemon:
        where = {"switch": daemon.control_endpoint}
        members = start(configuration(0, "switch", **where), configuration(1, "switch", **where))
        for member in members:
            read_until(member, TrainingFailed)
            assert member.child.process.wait(LIMIT_S) == 1
            assert "allreduces would not go through the switch" in member.named(TrainingFailed)[0].message


# ---- ends


def test_a_killed_rank_ends_the_others_with_one_line(start: Callable[..., list[TrainerProcess]]) -> None:
    survivor, victim = start(configuration(0, iterations=100_000), configuration(1, iterations=100_000))
    read_until(survivor, IterationReport, 2)
    (started,) = survivor.named(TrainingStarted)
    niceness = nicenesses(survivor.child.process.pid)
    assert {niceness[thread] for thread in started.compute_threads} == {min(19, 10 + os.nice(0))}
    assert started.network_threads
    assert {niceness[thread] for thread in started.network_threads} == {os.nice(0)}
    victim.child.process.kill()
    read_until(survivor, TrainingFailed)
    assert survivor.child.process.wait(LIMIT_S) == 1
    (failed,) = survivor.named(TrainingFailed)
    assert failed.iteration >= 1
    (line,) = [line for line in Path(survivor.child.log.name).read_text().splitlines() if line.startswith("trainer: ")]
    assert line == f"trainer: rank 0 (gloo) failed in iteration {failed.iteration}: {failed.message}"
    assert "peer" in line or "reset" in line


def test_the_wait_for_a_missing_rank_times_out(start: Callable[..., list[TrainerProcess]]) -> None:
    (alone,) = start(configuration(0, timeout_s=1.0))
    read_until(alone, TrainingFailed)
    assert alone.child.process.wait(LIMIT_S) == 1
    assert "trainer: rank 0 (gloo) failed at its start" in Path(alone.child.log.name).read_text()


def test_signals_end_a_trainer_at_once(start: Callable[..., list[TrainerProcess]]) -> None:
    """Also in the middle of a wait inside torch: rank 2 never comes. Others notice the end of rank 0."""
    members = start(*(configuration(rank, workers=3) for rank in range(2)))
    for member, number in ((members[1], signal.SIGINT), (members[0], signal.SIGTERM)):
        until(lambda member=member: listens_or_waits(member))  # type: ignore[misc]
        member.child.process.send_signal(number)
        assert member.child.process.wait(10) == -number


def listens_or_waits(member: TrainerProcess) -> bool:
    """Whether it has opened a socket, as the rendezvous does first."""
    for entry in Path(f"/proc/{member.child.process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(entry).startswith("socket:"):
                return True
    return False


def test_no_switch_is_one_clear_line(
    start: Callable[..., list[TrainerProcess]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWITCHAGG_JOIN_TIMEOUT_S", "2")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        switch = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        members = start(*(configuration(rank, "switch", switch=switch) for rank in range(2)))
        for member in members:
            read_until(member, TrainingFailed)
            assert member.child.process.wait(LIMIT_S) == 1
        assert switch in members[0].named(TrainingFailed)[0].message


# ---- configuration


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "rings"}, "method 'rings' is unknown; allowed: switch, gloo, ring"),
        ({"method": "ring@udp+p3"}, r"method ring@udp\+p3: `addresses` has 0 entries, not 2"),
        ({"rank": 2}, "rank 2 of 2 workers"),
        ({"method": "switch"}, "the address of the switch"),
        ({"colour": "red"}, "unknown field `colour`"),
        ({"scenario": {}}, r"missing required field `name` - at `\$\.scenario`"),
    ],
)
def test_a_wrong_configuration_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "rank.json"
    path.write_bytes(msgspec.json.encode(configuration(0) | changes))
    with pytest.raises(ValueError, match=rf"rank\.json: .*{message}"):
        read_config(path)


def test_a_configuration_that_is_not_there_ends_with_status_2(tmp_path: Path) -> None:
    words = [sys.executable, "-m", TRAINER, str(tmp_path / "none.json")]
    process = Forked(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert (errors, process.returncode) == (f"trainer: {tmp_path}/none.json: No such file or directory\n", 2)


# ---- times


def test_only_waiting_after_the_last_bucket_has_left_is_exposed() -> None:
    assert exposed_ns([TransferTimes(1, 10, 20), TransferTimes(1, 30, 70)]) == 40
    assert exposed_ns([TransferTimes(1, 10, 90), TransferTimes(1, 30, 70)]) == 60
    assert exposed_ns([TransferTimes(1, 10, 20)]) == 10


def test_a_message_is_one_line() -> None:
    assert one_line(RuntimeError("closed\nException raised from …\nframe #0")) == "closed"
    assert one_line(RuntimeError()) == "RuntimeError"


# ---- servers that keep the weights


def asynchronous(
    rank: int, workers: int, mode: str, more: dict[str, str | int] | None = None, method: str = "ps", **changes: Any
) -> dict[str, Any]:
    given = {
        "topology.workers": workers,
        "methods.mininet": [method],
        "workload.optimizer": "sgd",
        "ps.mode": mode,
        "ps.staleness": 1 if mode == "ssp" else 0,
        "ps.backups": 1 if mode == "backup" else 0,
    }
    scenario = parse(SCENARIO.format(iterations=ITERATIONS), "try.toml", given | dict(more or {}))
    addresses = [f"127.0.0.{1 + place}" for place in range(workers)]
    return configuration(rank, method, scenario=scenario, workers=workers, addresses=addresses) | changes


@pytest.mark.parametrize(("mode", "method"), [("ssp", "ps~lanes8+ef"), ("dc_asgd", "ps")])
def test_ranks_whose_servers_keep_the_weights_end_with_those(
    start: Callable[..., list[TrainerProcess]], mode: str, method: str
) -> None:
    members = start(*(asynchronous(rank, 2, mode, method=method) for rank in range(2)))
    follow(members)
    finals = [member.named(TrainingFinished)[0] for member in members]
    assert finals[0].parameter_hash == finals[1].parameter_hash
    assert finals[0].parameter_hash != members[0].named(TrainingStarted)[0].initial_parameter_hash
    delays = gradient_delays([final.counters for final in finals])
    assert delays["gradient_delay_most"] >= 1, "one of the two came second"
    if mode == "ssp":
        assert delays["gradient_delay_most"] <= 3
    check_times_alone(members)
    first, last = members[0].named(Evaluated)
    assert (first.iteration, last.iteration) == (3, ITERATIONS - 1)
    ends_ns = [entry.start_ns + entry.duration_ns for entry in members[0].named(IterationReport)]
    assert ends_ns[3] <= first.time_ns <= members[0].named(IterationReport)[4].start_ns
    assert ends_ns[-1] <= last.time_ns
    assert members[1].named(Evaluated) == []


def check_times_alone(members: list[TrainerProcess]) -> None:
    """Of each rank by itself; nothing stands still in between."""
    for member in members:
        entries = member.named(IterationReport)
        for entry in entries:
            assert (
                sum(bucket.size_bytes for bucket in entry.buckets) == member.named(TrainingFinished)[0].gradient_bytes
            )
            assert all(bucket.start_ns < bucket.end_ns for bucket in entry.buckets)
            assert 0 < entry.compute_ns <= entry.duration_ns
            assert entry.forward_ns + entry.backward_ns + entry.optimizer_ns == entry.compute_ns
            assert 0 < entry.first_layer_ns <= union_ns(entry.intervals)
        shifts_ns = {entry.monotonic_start_ns - entry.start_ns for entry in entries}
        assert len(shifts_ns) == 1


def test_one_rank_trains_what_virtual_time_trains(start: Callable[..., list[TrainerProcess]], tmp_path: Path) -> None:
    """Bit by bit, also what is evaluated on the way."""
    given = asynchronous(0, 1, "asp")
    (member,) = start(given)
    follow([member])
    virtual = dataclasses.replace(
        given["scenario"], workload=dataclasses.replace(given["scenario"].workload, compute_ns=1)
    )
    result = run_method(virtual, parse_method("ps"), tmp_path, lambda *_: None)
    assert [member.named(TrainingFinished)[0].parameter_hash] == result.parameter_hash_per_rank
    scores = [(score.iteration, score.accuracy, score.loss) for score in member.named(Evaluated)]
    assert scores == [(score.iteration, score.accuracy, score.loss) for score in result.evaluations]
    assert [entry.loss for entry in member.named(IterationReport)] == [record.loss for record in result.iterations]


def test_a_rank_that_is_killed_is_named_by_the_others(start: Callable[..., list[TrainerProcess]]) -> None:
    members = start(*(asynchronous(rank, 2, "ssp") for rank in range(2)))
    read_until(members[1], IterationReport)
    members[1].child.process.kill()
    read_until(members[0], TrainingFailed)
    (said,) = members[0].named(TrainingFailed)
    assert "rank 1" in said.message
    assert "train" in said.message
