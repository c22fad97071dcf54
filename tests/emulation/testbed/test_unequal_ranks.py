"""Ranks of a real run that compute for different times: how long each sleeps, and what of them makes an iteration."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_trainer import LIMIT_S, asynchronous, follow, read_until, start  # noqa: F401  # a fixture

from emulation.scenario.compute import ComputeTimes
from emulation.scenario.scenario import Scenario, ScenarioError, parse
from emulation.testbed.mininet.mininet_run import merge_iterations, time_limits
from emulation.testbed.mininet.trainer_processes import TrainerProcess
from emulation.testbed.trainers.pace import ComputePace
from emulation.testbed.trainers.trainer_messages import (
    GROUP_JOB,
    GROUP_PORT,
    Evaluated,
    Go,
    IterationReport,
    TrainingFinished,
)
from switchagg.partial_endpoint import ranks_in
from transport.group.method_name import parse as parse_method
from transport.group.ps_group import PsOptions, open_ps_server
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions


class Machine:
    """Time that passes by computing and sleeping alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = self.own_ns = 0
        self.slept_ns: list[int] = []
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.now_ns)
        monkeypatch.setattr(time, "thread_time_ns", lambda: self.own_ns)

    def compute(self, own_ns: int) -> None:
        self.own_ns += own_ns
        self.now_ns += own_ns

    def sleep(self, seconds: float) -> None:
        self.slept_ns.append(round(seconds * 1e9))
        self.now_ns += self.slept_ns[-1]


def given(**changes: Any) -> Scenario:
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    return parse('name = "try"\ntitle = "try"\n', "try.toml", {"topology.workers": 4, **keys})


STRAGGLERS = {"faults__stragglers": [{"rank": -1, "factor": 3}]}


def test_a_straggler_sleeps_for_as_many_times_of_its_own_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it takes itself is CPU time, and the last iteration's."""
    machine = Machine(monkeypatch)
    planned = ComputeTimes(given(**STRAGGLERS), 1)
    slow = [planned.ns(1, iteration) == 3 for iteration in range(30)]
    assert 1 < sum(slow) < 20
    paced = ComputePace(given(**STRAGGLERS), 1, machine.sleep)
    for iteration in range(30):
        paced.begin(iteration)
        paced.forward_done()
        machine.compute(10 + iteration)
        paced.backward_done()
    before_ns = [0, *(10 + number for number in range(29))]
    assert machine.slept_ns == [2 * took_ns * late for took_ns, late in zip(before_ns, slow, strict=True)]


@pytest.mark.parametrize(("factor", "planned_ns"), [(1, 1000), (3, 3000)])
def test_each_layer_s_gradient_is_there_no_earlier_than_its_share_of_the_pace(
    monkeypatch: pytest.MonkeyPatch, factor: int, planned_ns: int
) -> None:
    """Of three layers: a fifth of the time is the forward pass; then their gradients come, last layer first."""
    machine = Machine(monkeypatch)
    slow = {"faults__stragglers": [{"rank": 1, "factor": factor}]} if factor > 1 else {}
    paced = ComputePace(given(workload__paced=1, workload__compute_ns=1000, **slow), 1, machine.sleep)
    layers = [torch.ones(1, requires_grad=True) for _ in range(3)]
    arrived: dict[int, float] = {}

    class Slow(torch.autograd.Function):
        """Its backward pass takes 50 ns."""

        @staticmethod
        def forward(_context: Any, given: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return given * weight

        @staticmethod
        def backward(_context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
            machine.compute(50)
            return gradient, gradient

    for place, weight in enumerate(layers):
        weight.register_post_accumulate_grad_hook(lambda _, place=place: arrived.update({place: machine.now_ns}))
    paced.hold(0.2, layers, [1.0, 0.5, 0.1])
    paced.begin(0)
    machine.compute(30)
    value = torch.ones(1)
    for weight in layers:
        value = Slow.apply(value, weight)
    paced.forward_done()
    assert machine.now_ns == 0.2 * planned_ns
    value.sum().backward()
    paced.backward_done()
    assert arrived == {2: 28 * planned_ns // 100, 1: 6 * planned_ns // 10, 0: planned_ns}
    assert paced._cpu_times_ns == [30 + 3 * 50]
    arrived.clear()
    before_ns = machine.now_ns
    paced.begin(1)
    machine.compute(2 * planned_ns)  # slower than the pace: nothing sleeps
    slept = len(machine.slept_ns)
    paced.forward_done()
    Slow.apply(torch.ones(1), layers[0]).sum().backward()
    assert (arrived[0], len(machine.slept_ns)) == (before_ns + 2 * planned_ns + 50, slept)


def test_a_pace_is_asked_for_and_known() -> None:
    assert given(workload__paced=1, workload__compute_ns=5).paced
    assert not given(workload__compute_ns=5).paced
    assert not given(workload__paced=1, workload__compute_ns=0).paced, "real pace"
    assert given(workload__compute_ns=5, **STRAGGLERS).paced
    assert not given(**STRAGGLERS).paced
    with pytest.raises(
        ScenarioError, match=r"\[workload\] paced: 1 needs to know the pace; allowed: 0, or with compute"
    ):
        given(workload__paced=1)


def iteration(number: int, start_ns: int, end_ns: int, compute_ns: int) -> IterationReport:
    times = (start_ns, start_ns, end_ns, end_ns)
    waited_ns = end_ns - start_ns - compute_ns
    return IterationReport.of(times, [], waited_ns, iteration=number, start_ns=start_ns, loss=1.0, retransmissions=0)


def test_where_a_sum_does_not_wait_an_iteration_ends_with_those_that_it_waits_for() -> None:
    """Rank 2 is late, and then takes two rounds at once."""
    even = [[iteration(k, 100 * k, 100 * k + 100, 80) for k in range(3)] for _ in range(2)]
    late = [iteration(0, 0, 290, 290), iteration(1, 290, 295, 1), iteration(2, 295, 301, 1)]
    waits = merge_iterations([*even, late])
    assert [record.duration_ns for record in waits] == [290, 100, 100]
    goes_on = merge_iterations([*even, late], 1)
    assert [(record.start_ns, record.duration_ns, record.compute_ns) for record in goes_on] == [
        (0, 100, 80),
        (100, 100, 80),
        (200, 100, 80),
    ]
    closed_by_time = merge_iterations([*even, late], 0)
    assert [record.duration_ns for record in closed_by_time] == [290, 5, 6]


def test_a_run_may_last_as_long_as_its_stragglers() -> None:
    changes = {"workload.compute_ns": 10**10, "workload.iterations": 20}
    alone, slow = (
        time_limits(parse('name = "t"\ntitle = "t"\n', "t", {**changes, **more}), parse_method("switch"))
        for more in ({}, {"faults.stragglers": [{"rank": 1, "factor": 6}]})
    )
    assert slow[0] > max(alone[0], 60)
    assert slow[1] > alone[1] + 20 * 60


STRAGGLER = """
import sys
from emulation.testbed.trainers import trainer
from emulation.workloads import workload

loss = workload.RankWorkload.loss

def held(workload_, model, iteration):
    if iteration >= 2 and workload_.rank == 1:
        workload.RankWorkload.loss = loss
        sys.stdin.readline()
    return loss(workload_, model, iteration)

workload.RankWorkload.loss = held
trainer.run_rank(sys.argv[-1])
"""
"""A trainer whose rank 1 takes as long for its third gradient as the test says."""


@pytest.mark.parametrize("method", ["ps", "switch"])
def test_a_straggler_takes_the_rounds_that_it_missed_without_computing(
    start: Callable[..., list[TrainerProcess]],  # noqa: F811
    method: str,
) -> None:
    """The other one trains to the end meanwhile, and waits for no evaluation."""
    iterations = 20
    more = {"workload.iterations": iterations, "workload.evaluate_every": iterations // 2}
    more |= {"workload.name": "images", "switch.backups": 1}
    given = [asynchronous(rank, 2, "backup", more, method, servers=["127.0.0.9"]) for rank in range(2)]
    with contextlib.ExitStack() as running:
        if method == "switch":
            daemon = running.enter_context(SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0))))
            given = [one | {"switch": daemon.control_endpoint} for one in given]
        members = start(*given, program=("-c", STRAGGLER))
        if method == "ps":
            places = [[(address, GROUP_PORT) for address in given[0][kind]] for kind in ("addresses", "servers")]
            server = open_ps_server(parse_method("ps").link, 0, *places, job=GROUP_JOB, options=PsOptions(LIMIT_S))
            running.callback(server.close)
        read_until(members[0], IterationReport, iterations)
        members[1].child.send(Go())
        follow(members)
        assert method == "switch" or server.wait(LIMIT_S)
    finals = [member.named(TrainingFinished)[0] for member in members]
    assert finals[0].parameter_hash == finals[1].parameter_hash
    skipped = [sum(entry.loss is None for entry in member.named(IterationReport)) for member in members]
    assert skipped[0] == 0
    assert skipped[1] > iterations - 6, "but the first three, and those whose results were still on their way"
    counters = finals[1].counters
    if method == "switch":
        assert counters["chunks_of_1"] > 0.9 * ranks_in(counters)["chunks"]
        assert ranks_in(counters) == ranks_in(finals[0].counters)
    else:
        assert counters["pushes_saved"] >= skipped[1]
    middle, end = members[0].named(Evaluated)
    assert (middle.iteration, end.iteration) == (iterations // 2 - 1, iterations - 1)
    assert middle.time_ns < members[0].named(IterationReport)[-1].start_ns < end.time_ns
    assert middle.loss != end.loss
