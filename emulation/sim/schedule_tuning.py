"""Tuning of a schedule in virtual time: before the run, on iterations of the same links that train nothing.

A real run tries points while it trains. Virtual time repeats itself, so what is tried here is no part of the results.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from emulation.scenario.compute import ComputeTimes
from emulation.scenario.errors import RunFailed
from emulation.scenario.scenario import Scenario
from emulation.sim.layers import LayeredTraining, Schedule
from emulation.sim.network.simulation import Simulation
from emulation.sim.replay.size_only_replicas import SizeOnlyReplicas
from switchagg.codecs.array_codec import Tensor
from transport.schedule.policy import Policy, Tunable
from transport.schedule.scheduler import Profile
from transport.schedule.tuning import Tuner, missing

SETTLING_ITERATIONS, MEASURED_ITERATIONS = 2, 2
"""Per point. Nothing but faults of links makes iterations of virtual time differ once they have settled."""

Make = Callable[[Policy], tuple[Schedule, Simulation]]


def tuned(scenario: Scenario, tunable: Tunable, profile: Profile, make: Make, compute: ComputeTimes) -> Policy:
    """The fastest of as many points as the schedule asks for. Raises RunFailed without the optimiser's package."""
    if lacking := missing():
        raise RunFailed(lacking)
    tuner = Tuner(tunable.first, tunable.steps)
    iterations = SETTLING_ITERATIONS + MEASURED_ITERATIONS + 1  # the last one overlaps with no next one
    short = dataclasses.replace(scenario.workload, iterations=iterations, warmup_iterations=SETTLING_ITERATIONS)
    shortened = dataclasses.replace(scenario, workload=short)
    while not tuner.done:
        schedule, simulation = make(tunable.at(tuner.current))
        tensors = [[Tensor(tensor.name, (tensor.elements,))] for tensor in profile.tensors]
        size_only = SizeOnlyReplicas(tensors, scenario.topology.workers)
        training = LayeredTraining(shortened, simulation, size_only, compute, lambda *_: None, schedule)  # type: ignore[arg-type]
        training.run()
        measured = training.records()[SETTLING_ITERATIONS:-1]
        tuner.observe(sum(record.duration_ns for record in measured) / len(measured))
    return tunable.at(tuner.best)
