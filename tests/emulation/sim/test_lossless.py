"""Without faults no host method resends or drops anything, under any schedule, on the network of any shipped scenario.

Real scenarios and schedules; of the model only the sizes are smaller, and no gradients are computed. Each method meets
each network and each schedule, and each network each schedule; of all three together a sixth.
"""

import functools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="profiles of models need torch")

from emulation.scenario.compute import ComputeTimes
from emulation.scenario.scenario import Faults, Scenario, load_variants, shipped
from emulation.scenario.scenario_tables import PACKET
from emulation.scenario.workload_kinds import DDP, WORKLOADS
from emulation.sim import simulated_run
from emulation.sim.fidelity_level import FidelityLevel
from emulation.sim.simulated_training import Training
from emulation.workloads.replicas import Replicas
from emulation.workloads.workload import Score
from transport.group.method_name import METHODS, parse
from transport.schedule.schedule_table import POLICIES
from transport.schedule.scheduler import LinearCost, Profile

HOSTS = [name for name, kind in METHODS.items() if name != "gloo" and not kind.packets and not kind.loses]
BYTES_MAX = 64_000


@functools.cache
def traced(workload: str, bucket_bytes: int) -> Replicas:
    return Replicas(workload, 1, 1, 4, bucket_bytes=bucket_bytes)


class SmallReplicas:
    """The model's tensors, each smaller by the same factor, and gradients of zeros."""

    def __init__(self, scenario: Scenario, bucket_bytes: int, bytes_max: int) -> None:
        workload = scenario.workload
        self._model = traced(workload.name, bucket_bytes)
        self._factor = max(1, math.ceil(self._model.gradient_bytes / bytes_max))
        self.buckets = [replace(one, elements=self._small(one.elements)) for one in self._model.buckets]
        self.losses = [0.0] * scenario.topology.workers
        self.forward_fraction = self._model.forward_fraction

    def _small(self, elements: int) -> int:
        return -(-elements // self._factor)

    def compute(self, scenario: Scenario) -> ComputeTimes:
        compute_ns = ComputeTimes(scenario).planned_ns // self._factor
        return ComputeTimes(replace(scenario, workload=replace(scenario.workload, compute_ns=compute_ns)))

    def ready_ns(self, compute_ns: int) -> list[int]:
        return self._model.ready_ns(compute_ns)

    def profile(self, compute_ns: int) -> Profile:
        profile = self._model.profile(compute_ns)
        return replace(profile, tensors=tuple(replace(t, elements=self._small(t.elements)) for t in profile.tensors))

    def gradients_of(self, _rank: int, _iteration: int) -> list[Any]:
        return [np.zeros(bucket.elements, np.float32) for bucket in self.buckets]

    def apply_to(self, *_: object) -> None:
        pass

    def evaluate(self) -> Score:
        return Score(0.5, 1.5)


@functools.cache
def networks() -> dict[str, Scenario]:
    """Of the shipped scenarios, without faults, each network once; of a sweep the first and the last."""
    found: dict[Any, tuple[str, Scenario]] = {}
    for name, path in shipped().items():
        variants = [variant for _, variant in load_variants(path)]
        if WORKLOADS[variants[0].workload.name].parallel != DDP:
            continue  # no schedules
        for variant in (variants[0], variants[-1]):
            given = replace(
                variant,
                faults=Faults(),
                flows=(),
                jobs=(),
                workload=replace(variant.workload, iterations=2, warmup_iterations=1, evaluate_every=2),
            )
            key = given.topology, given.ps, given.workload.name
            rate_gbps, servers = given.topology.rate_bps / 1e9, given.ps.servers
            label = f"{name}-{given.topology.workers}-{rate_gbps:g}Gbps" + (f"-{servers}servers" if servers else "")
            found.setdefault(key, (label, given))
    return dict(found.values())


def training_of(given: Scenario, method: str, bytes_max: int = BYTES_MAX) -> Training:
    name = parse(method)
    replicas: Any = SmallReplicas(given, 1 if name.schedule else given.workload.bucket_bytes, bytes_max)
    return simulated_run._training(
        given, name, FidelityLevel(PACKET, ()), replicas, replicas.compute(given), lambda *_: None
    )


def resent_and_dropped(training: Training) -> tuple[int, int]:
    training.run()
    return training.simulation.retransmissions(), training.simulation.faults()["drop_queue"]


@pytest.fixture(autouse=True)
def cost_of_the_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a transfer costs is weighed by some schedules; it isn't measured here."""
    monkeypatch.setattr(simulated_run, "_cost", lambda given, _: LinearCost(20_000, 8e9 / given.topology.rate_bps))


def schedules_of(network: str, method: str) -> list[str]:
    """A sixth of all, others for neighbouring methods and networks."""
    place = list(networks()).index(network) + HOSTS.index(method)
    return [schedule for number, schedule in enumerate(POLICIES) if (place + number) % 6 == 0]


def test_schedules_meet_all_methods_and_networks() -> None:
    for schedule in POLICIES:
        assert all(any(schedule in schedules_of(network, method) for network in networks()) for method in HOSTS)
        assert all(any(schedule in schedules_of(network, method) for method in HOSTS) for network in networks())


@pytest.mark.parametrize("method", HOSTS)
@pytest.mark.parametrize("network", networks())
def test_every_method_under_every_schedule_resends_and_drops_nothing(network: str, method: str) -> None:
    given = networks()[network]
    if given.ps.servers and method != "ps":
        return
    of_scenario = [str(one) for one in given.methods.sim if one.method == method]
    done = set()
    for name in dict.fromkeys(
        [method, *(f"{method}+{schedule}" for schedule in schedules_of(network, method)), *of_scenario]
    ):
        training = training_of(given, name)
        plan = training.simulation.config.credit_bytes, getattr(training, "transfers", None)
        if plan not in done:  # else schedules agree about a model so small
            assert (name, resent_and_dropped(training)) == (name, (0, 0))
        done.add(plan)


@pytest.mark.parametrize("method", ["ring+mg_wfbp", "tree", "tree+wfbp", "double_tree", "direct+p3"])
def test_nor_does_a_larger_model_whose_gradients_fill_the_queues(method: str) -> None:
    given = networks()["codecs-4-0.2Gbps"]
    given = replace(given, topology=replace(given.topology, workers=8, rate_bps=400_000_000))
    assert resent_and_dropped(training_of(given, method, 2_000_000)) == (0, 0)
