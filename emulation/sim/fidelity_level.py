"""The fidelity level of a method's simulation, and why: packet by packet, calls as flows, or by α–β–γ."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

from emulation.scenario.scenario import Scenario
from emulation.scenario.scenario_tables import AUTO, FLOW, FORMULA, PACKET
from emulation.sim.flow.flow_methods import FLOWS
from emulation.sim.flow.flow_simulation import FlowSimulation, NotDescribed
from emulation.sim.network.simulation import Simulation, SimulationConfig
from emulation.sim.network.simulations import SIMULATIONS
from emulation.sim.network.timing import time_allreduce
from emulation.sim.size_only import SizeOnlyArray
from switchagg.calls.call_request import CallRequest
from switchagg.errors import JobError
from transport.group.method_name import METHODS, MethodName
from transport.schedule.scheduler import parse_policy

PROBE_BYTES = 100_000
"""The size of an allreduce by packets whose wall-clock time predicts longer ones: the cost is linear in bytes."""

_MEANS = {
    PACKET: "Time is virtual and exact; no certificate is needed.",
    FLOW: (
        "Time is virtual, at fidelity level flow: calls share links max-min fairly, from what each takes alone, "
        "message by message; no packets are lost or sent again. docs/results/fidelity-levels.md has its error."
    ),
    FORMULA: (
        "Time is virtual, at fidelity level formula: bytes of the busiest link at its rate, and a latency for each "
        "message of the plan. docs/results/fidelity-levels.md has its error."
    ),
}


@dataclass(frozen=True)
class FidelityLevel:
    """name: the level taken. notes: sentences on what it means, and why it isn't the requested one."""

    name: str
    notes: tuple[str, ...]

    def simulation(self, method: str, config: SimulationConfig) -> FlowSimulation:
        """The method's simulation at a level other than packet."""
        assert self.name != PACKET
        return FLOWS[method](config, by_formula=self.name == FORMULA)

    def job_beside(self, method: str, config: SimulationConfig, shared: Any) -> Simulation:
        """A further job's simulation at this level, on a network that jobs share."""
        if self.name == PACKET:
            return SIMULATIONS[method](config, shared)
        return FLOWS[method](config, shared, by_formula=self.name == FORMULA)


def _level(name: str, why: str = "") -> FidelityLevel:
    values = "" if name == PACKET else (
        "Sums of float32 without a codec are added in the order of ranks, not in that of the method's messages: their "
        "last bits differ from those by packets. Codecs' sums, the switch's fixed point among them, have the same bits."
    )  # fmt: skip
    return FidelityLevel(name, tuple(filter(None, (_MEANS[name], why, values))))


def fidelity_level_of(
    scenario: Scenario, name: MethodName, config: SimulationConfig, gradient_bytes: int
) -> FidelityLevel:
    """The level that [virtual_time] names, or packets where no other level describes the method. gradient_bytes: of an
    iteration."""
    wanted = scenario.virtual_time.fidelity_level
    if wanted == PACKET:
        return _level(PACKET)
    if wanted == AUTO and name.schedule and parse_policy(name.schedule).tuning is not None:
        raise JobError("a schedule that is tuned runs many times; allowed: --fidelity-level packet, flow or formula")
    why = refusal(scenario, name, config)
    if why:
        return _level(PACKET, f"Fidelity level packet, not {wanted}: {why}.")
    if wanted != AUTO:
        return _level(wanted)
    within_s, size_bytes = scenario.virtual_time.within_s, gradient_bytes * scenario.workload.iterations
    packet_s = seconds_by_packets(name.method, config, size_bytes)
    if packet_s <= within_s:
        return _level(PACKET, f"Fidelity level auto took packet: about {packet_s:.2g} s here, of {within_s} s allowed.")
    flow_s = _seconds_by_flows(name.method, config, gradient_bytes, scenario)
    packets_text = f"packets would take about {packet_s:.2g} s here"
    if flow_s <= within_s:
        return _level(FLOW, f"Fidelity level auto took flow: {packets_text}, of {within_s} s allowed.")
    return _level(
        FORMULA, f"Fidelity level auto took formula: {packets_text}, flows {flow_s:.2g} s, of {within_s} s allowed."
    )


def refusal(scenario: Scenario, name: MethodName, config: SimulationConfig) -> str:
    """Why only packets will do; "" if others do, too."""
    if scenario.flows:
        return "other traffic is beside the job ([[flows]])"
    if scenario.jobs:
        return "other jobs are beside this one ([[jobs]])"
    if config.failover is not None:
        return "the job may lose its switch"
    if scenario.topology.pfc_bytes:
        return "links pause each other (PFC)"
    if scenario.asynchronous(name):
        return "its servers answer gradients as they come"
    if METHODS[name.method].loses:
        return "what it gives up depends on when packets come"
    if name.method not in FLOWS:
        return "which switch sums which packets depends on the packets"
    try:
        FLOWS[name.method](config)
    except NotDescribed as refused:
        return str(refused)
    return ""


def seconds_by_packets(method: str, config: SimulationConfig, size_bytes: int) -> float:
    """Wall-clock time that allreduces of so many bytes in all would take on this machine."""
    probe_bytes = min(max(PROBE_BYTES, 64 * config.workers), max(4, size_bytes)) // 4 * 4
    begin = time.perf_counter()
    time_allreduce(dataclasses.replace(config, codec=""), method, probe_bytes)
    return (time.perf_counter() - begin) * size_bytes / probe_bytes


def _seconds_by_flows(method: str, config: SimulationConfig, gradient_bytes: int, scenario: Scenario) -> float:
    """The shapes of an iteration's calls are all there is to compute; later iterations repeat them."""
    probe_bytes = min(gradient_bytes, scenario.workload.bucket_bytes) // 4 * 4
    begin = time.perf_counter()
    flow_seconds(FLOWS[method](dataclasses.replace(config, codec="")), probe_bytes)
    return (time.perf_counter() - begin) * gradient_bytes / probe_bytes


def flow_seconds(simulation: FlowSimulation, size_bytes: int, dtype: str = "float32") -> float:
    """Virtual seconds of one allreduce of so many bytes, begun by all ranks at once."""
    array = SizeOnlyArray(size_bytes // 4, dtype)
    request = CallRequest("allreduce", priority=simulation.plain_priority)
    simulation.network.schedule(0, lambda *_: simulation.launch_all(array, request, simulation.network.stop))
    simulation.run(f"an allreduce of {size_bytes} bytes")
    return simulation.network.now_ns / 1e9
