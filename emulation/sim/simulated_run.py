"""Runs one method of a scenario in virtual time: real training, packet-exact communication, given compute time.

The scenario gives the time of an iteration's forward and backward pass. Without a schedule gradients leave in
DDP's buckets (`training.py`), with one as the schedule decides (`layers.py`).
"""

from __future__ import annotations

import dataclasses
import functools
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from emulation.results.results import MethodResult, codec_notes
from emulation.scenario.bounds import servers_of as servers_with_hosts
from emulation.scenario.compute import ComputeTimes
from emulation.scenario.errors import RunFailed, WorkloadError
from emulation.scenario.profiles.graph import WorkloadGraph
from emulation.scenario.profiles.profile_errors import ProfileError
from emulation.scenario.profiles.workload_keys import rank_ns
from emulation.scenario.scenario import Scenario
from emulation.scenario.scenario_checks import frame_bytes_of, hosts_of
from emulation.scenario.scenario_flows import own_hosts
from emulation.scenario.scenario_tables import BEST, CUBIC, ENDLESS, KERNEL, PACKET, RDMA_CONTROLS
from emulation.scenario.workload_kinds import DDP, FSDP, TP, WORKLOADS
from emulation.sim.asynchronous import AsynchronousTraining
from emulation.sim.failover_terms import LEASE_NS, FailoverTerms
from emulation.sim.fidelity_level import FidelityLevel, fidelity_level_of
from emulation.sim.host_costs import HostCosts, PacketCosts
from emulation.sim.layers import LayeredTraining, Schedule
from emulation.sim.lossless.pausing import PfcConfig, Red
from emulation.sim.network.ps_simulation import PsSimulation
from emulation.sim.network.simulated_link import LinkConfig, Tail
from emulation.sim.network.simulation import Simulation, SimulationConfig
from emulation.sim.network.simulations import SIMULATIONS
from emulation.sim.network.timing import time_allreduce
from emulation.sim.network.virtual_clock import SimulationError
from emulation.sim.prediction import predicted
from emulation.sim.replay.graph_training import GraphTraining
from emulation.sim.replay.size_only_replicas import ProfileReplicas, SizeOnlyReplicas
from emulation.sim.schedule_tuning import tuned
from emulation.sim.sharing.background_jobs import BackgroundJobs, servers_of
from emulation.sim.simulated_training import Progress, Training
from emulation.sim.traffic.scenario_traffic import ScenarioTraffic
from switchagg.dataplane.self_test import fastest
from switchagg.errors import SwitchaggError
from switchagg.join import JobTerms
from switchagg.option_syntax.option_fields import shared_fields
from switchagg.priority import BEST_EFFORT
from transport.group.method_name import METHODS, MethodName
from transport.links.link_kinds import LINKS
from transport.meshes.reliable import ReliableConfig
from transport.schedule.scheduler import LinearCost, Policy, Profile, fit_cost, parse_policy

if TYPE_CHECKING:
    from emulation.workloads.replicas import Replicas

STUCK_NS, STUCK_FRAMES = 100_000_000, 1_000
"""A paused port whose buffer holds still for longer, and for so many frames of the slowest link, is a deadlock."""
RING_MESSAGE_BYTES = 65_536  # at most; cut to whole frames
ACK_EVERY_SEGMENTS = 16  # as receivers that merge segments do (GRO); every second one would cost the ring 2 %
SMALL_BYTES, LARGE_BYTES = 4_000, 1_000_000
"""Allreduces from which the cost of a transfer is fitted, where a policy weighs it."""
TRAININGS = {
    DDP: "emulation.sim.simulated_training:Training",
    FSDP: "emulation.sim.sharded:ShardedTraining",
    TP: "emulation.sim.tensor:TensorTraining",
}
"""By how ranks share a model; some need PyTorch."""


def run_method(
    scenario: Scenario, method: MethodName, out_dir: Path, progress: Progress, compute_ns: int = 0
) -> MethodResult:
    """The run of a scenario's method, which is deterministic if the scenario gives compute_ns.

    compute_ns: as `measured_compute_ns` gave it for all methods of a comparison; 0: measure it where it is needed.
    progress(done, total, note) after each iteration of all ranks. out_dir stays empty: the result holds everything.
    RunFailed, in one line, if the workload can't be had or a call is given up.
    """
    workload = scenario.workload
    progress(0, workload.iterations, "building the replicas")
    try:
        replicas = _replicas(scenario, method)
        level = fidelity_level_of(scenario, method, simulation_config(scenario, method), replicas.gradient_bytes)
        notes = [*level.notes, *codec_notes(scenario, method)]
        if scenario.flows and not method.is_switch:
            notes.append(_beside_flows(scenario, method))
        measured_ns: int | tuple[int, ...] = 0
        if workload.profile:
            measured_ns = rank_ns(scenario.replayed, workload, scenario.topology.workers, Path(scenario.folder))
            notes += _profile_notes(scenario)
        elif workload.compute_ns is None:
            measured_ns = compute_ns or measured_compute_ns(workload.name, workload.batch_per_worker, scenario.seed)
            notes.append(
                f"[workload] compute_ns was measured once on this machine: {measured_ns} ns; "
                "put it into the scenario to repeat this run exactly."
            )
        if method.schedule and (tunable := parse_policy(method.schedule).tuning):
            notes.append(
                f"The schedule was tuned before the run: {tunable.steps} points, on iterations that train nothing and "
                "are not in these results."
            )
        training = _training(scenario, method, level, replicas, ComputeTimes(scenario, measured_ns), progress)
        training.run()
    except (SwitchaggError, WorkloadError, SimulationError, ProfileError) as error:
        raise RunFailed(f"{method} in virtual time: {error}") from error
    result = training.result(method, notes)
    if scenario.virtual_time.fidelity_level != PACKET:
        result = dataclasses.replace(result, environment={**result.environment, "fidelity_level": level.name})
    for document in training.simulation.shared.documents:
        result = dataclasses.replace(result, **document())
    return result


def _replicas(scenario: Scenario, method: MethodName) -> Replicas:
    """The ranks' models: real ones, or their numbers."""
    workload, workers = scenario.workload, scenario.topology.workers
    parallel = WORKLOADS[workload.name].parallel
    each_parameter = method.schedule or scenario.asynchronous(method) or parallel != DDP
    bucket_bytes = 1 if each_parameter else workload.bucket_bytes
    if workload.profile:
        replayed = scenario.replayed
        if isinstance(replayed, WorkloadGraph):
            size_only = SizeOnlyReplicas([[]], workers)
            size_only.gradient_bytes = sum(replayed.moved(0).values())
            return cast("Replicas", size_only)
        return cast("Replicas", ProfileReplicas(replayed, workers, bucket_bytes))
    from emulation.workloads.replicas import Replicas  # imports PyTorch
    from emulation.workloads.tensor_ranks import TensorReplicas

    return (TensorReplicas if parallel == TP else Replicas)(
        workload.name,
        scenario.seed,
        workers,
        workload.batch_per_worker,
        workload.iterations,
        bucket_bytes,
        workload.optimizer,
    )


def _profile_notes(scenario: Scenario) -> list[str]:
    """Notes that nothing is trained, and on the source of the numbers."""
    replayed = scenario.replayed
    if isinstance(replayed, WorkloadGraph):
        sources, more = replayed.source, replayed.notes
    else:
        sources, more = "; ".join(f"{what}: {text}" for what, text in replayed.source.items()), ()
    return [
        f"Nothing is trained: times and bytes are those of the profile {replayed.name}, values are zeros.",
        *([f"The profile's own words: {sources.rstrip('.')}."] if sources else []),
        *more,
    ]


def _beside_flows(scenario: Scenario, method: MethodName) -> str:
    """How a host method's messages travel beside flows."""
    if METHODS[method.method].loses:
        marks = "follow marks" if scenario.topology.ecn_bytes else "would follow marks, but no queue has any here"
        return f"Beside flows its windows {marks}; losses change nothing in them."
    if (control := _tcp(scenario)) in RDMA_CONTROLS:
        return f"Its connections are RoCE, {'with DCQCN' if control == 'dcqcn' else 'without congestion control'}."
    return f"Its connections are TCP with {control}, of the kind that flows are."


def _tcp(scenario: Scenario) -> str:
    """As of SimulationConfig: what a scenario names; else cubic beside flows, and windows where a job is alone."""
    wanted = scenario.topology.congestion_control
    if wanted in (BEST, KERNEL):
        return CUBIC if scenario.flows else ""
    if wanted not in ENDLESS:
        allowed = ", ".join((BEST, KERNEL, *ENDLESS))
        raise RunFailed(
            f"{scenario.file}: [topology] congestion_control: {wanted} is not in virtual time; allowed: {allowed}"
        )
    return wanted


def _simulation(scenario: Scenario, method: str, config: SimulationConfig, level: FidelityLevel) -> Simulation:
    """The measured job, and whatever is beside it."""
    if level.name != PACKET:
        return level.simulation(method, config)
    switch, jobs, of_flows = scenario.switch, scenario.jobs, own_hosts(scenario.flows)
    demand_slots = config.requested_slots
    other_hosts = of_flows + hosts_of(jobs) + sum(servers_of(job, method) for job in jobs)
    config = dataclasses.replace(config, other_hosts=other_hosts)
    if scenario.topology.pfc_bytes:
        config = dataclasses.replace(config, pfc=_pfc(scenario, method, config))
    if jobs:
        asked_slots = demand_slots + len(jobs) * switch.requested_slots
        config = dataclasses.replace(config, pool_slots=switch.slots or asked_slots, first_slot=None)
    first = SIMULATIONS[method](config)
    if scenario.topology.pfc_flows:
        first.shared.tcp_bits = 0
    if scenario.flows:
        ScenarioTraffic(first, scenario.flows)
    if jobs:
        beside = BackgroundJobs(
            first, method, jobs, switch.weight, switch.shares, demand_slots, of_flows, scenario.folder
        )
        first.shared.documents.append(beside.document)
    return first


def _pfc(scenario: Scenario, method: str, config: SimulationConfig) -> PfcConfig:
    """Pauses of a method's links: one lossless class, and one that drops for TCP of flows."""
    options, built = scenario.topology, config.built(servers_with_hosts(method, scenario.ps.servers))
    frame_bytes = frame_bytes_of(options)
    slowest_bps = min(link.settings.rate_bps for link in built.links)
    red = None
    if options.ecn_most_bytes:
        red = Red(options.ecn_bytes, options.ecn_most_bytes, options.ecn_chance)
    return PfcConfig(
        xoff_bytes=options.pfc_bytes,
        xon_bytes=options.pfc_xon_bytes or options.pfc_bytes - 2 * frame_bytes,
        headroom_bytes=options.pfc_headroom_bytes or None,
        classes=frozenset({BEST_EFFORT}),
        red=red,
        stuck_ns=max(STUCK_NS, STUCK_FRAMES * frame_bytes * 8_000_000_000 // slowest_bps),
        frame_bytes=frame_bytes,
        strict=False,
    )


def _training(
    scenario: Scenario,
    name: MethodName,
    level: FidelityLevel,
    replicas: Replicas,
    compute: ComputeTimes,
    progress: Progress,
) -> Training:
    if scenario.asynchronous(name):
        config = simulation_config(scenario)
        options = {**config.ps, **replicas.workloads[0].ps_options, "codec": name.codec}
        config = dataclasses.replace(config, ps=options)
        servers = _simulation(scenario, name.method, config, level)
        assert isinstance(servers, PsSimulation)
        return AsynchronousTraining(scenario, servers, replicas, compute, progress)
    config = simulation_config(scenario, name)
    if METHODS[name.method].loses:
        config = dataclasses.replace(config, bounded=scenario.bounded.options(name.method))
    if scenario.workload.profile and isinstance(scenario.replayed, WorkloadGraph):
        make = functools.partial(_simulation, scenario, name.method, level=level)
        return GraphTraining(
            scenario, scenario.replayed, config, name.method, make, level.job_beside, compute, progress
        )
    if not name.schedule:
        module, _, attribute = TRAININGS[WORKLOADS[scenario.workload.name].parallel].partition(":")
        kind: type[Training] = getattr(import_module(module), attribute)
        return kind(scenario, _simulation(scenario, name.method, config, level), replicas, compute, progress)
    profile = replicas.profile(compute.planned_ns)

    def planned(policy: Policy) -> tuple[Schedule, Simulation]:
        schedule = _schedule(scenario, name, policy, profile)
        return schedule, _simulation(scenario, name.method, scheduled(config, name, schedule), level)

    policy = parse_policy(name.schedule).with_cost(lambda: _cost(scenario, name))
    if policy.tuning is not None:
        policy = tuned(scenario, policy.tuning, profile, planned, compute)
    schedule, simulation = planned(policy)
    return LayeredTraining(scenario, simulation, replicas, compute, progress, schedule)


def schedule_of(scenario: Scenario, name: MethodName, profile: Profile) -> Schedule:
    """The plan of a method's schedule on the scenario's links, untuned, and the model's prediction."""
    return _schedule(scenario, name, parse_policy(name.schedule).with_cost(lambda: _cost(scenario, name)), profile)


def _schedule(scenario: Scenario, name: MethodName, policy: Policy, profile: Profile) -> Schedule:
    prediction = predicted(scenario, name, policy, profile)
    return Schedule(policy, profile, policy.plan(profile, None), name.in_packets, prediction)


def _cost(scenario: Scenario, name: MethodName) -> LinearCost:
    """The cost of a transfer alone, measured in virtual time."""
    sizes = (SMALL_BYTES, LARGE_BYTES)
    spec = name.spec and dataclasses.replace(name.spec, feedback="", momentum=0.0, least=0, warmup=0)
    coded = dataclasses.replace(name, codec=str(spec or ""))
    config = dataclasses.replace(simulation_config(scenario, coded), tcp="", failover=None)  # not of how it starts
    times = [time_allreduce(config, name.method, size, "float32" if spec else "int32").duration_ns for size in sizes]
    return fit_cost(sizes, times)


def scheduled(config: SimulationConfig, name: MethodName, schedule: Schedule) -> SimulationConfig:
    """The simulation for a schedule: a stream of the switch per priority class, or the credit below a host's queue."""
    if not name.in_packets:
        credit_bytes = schedule.policy.credit_bytes
        return config if credit_bytes is None else dataclasses.replace(config, credit_bytes=credit_bytes)
    if not schedule.urgencies:
        return config
    used = sorted(set(schedule.classes))
    return dataclasses.replace(config, streams=len(used), priorities=tuple(used))


@functools.cache
def measured_compute_ns(name: str, batch_per_worker: int, seed: int) -> int:
    """Measured once per process, so that all methods of a comparison compute for the same time."""
    from emulation.workloads.replicas import Replicas  # imports PyTorch

    return Replicas(name, seed, 1, batch_per_worker).measure_compute_ns()


def failover_terms(scenario: Scenario, name: MethodName | None) -> FailoverTerms | None:
    """What a method with a switch has against its loss; None where no switch is lost."""
    switch, lost = scenario.switch, scenario.faults.lost_switches
    if name is None or name.method != "switch" or not (lost or switch.fallback):
        return None
    return FailoverTerms(switch.fallback, switch.standby, switch.lease_ns or LEASE_NS, lost)


def simulation_config(scenario: Scenario, name: MethodName | None = None) -> SimulationConfig:
    """The simulation of a scenario. The ring's segments fill the MTU. name: whose codec and secrecy it has."""
    topology, faults, switch, ps = scenario.topology, scenario.faults, scenario.switch, scenario.ps
    segment_bytes = LINKS["tcp"].framing.payload_bytes(topology.mtu_bytes)
    verify = switch.resolved(switch.elements, topology.workers).verify
    dataplane = switch.dataplane
    if dataplane == "auto":
        dataplane = fastest(switch.requested_slots, switch.elements).name
    return SimulationConfig(
        workers=topology.workers,
        link=LinkConfig(
            rate_bps=topology.rate_bps,
            delay_ns=topology.delay_ns,
            queue_bytes=topology.queue_bytes,
            ecn_bytes=topology.ecn_bytes or None,
            drop_bytes=topology.drop_bytes or None,
            loss=faults.loss,
            duplicate=faults.duplicate,
            reorder=faults.reorder,
            corrupt=faults.corrupt,
            tail=Tail(faults.tail.ratio, faults.tail.p50_ns, faults.tail.burst_ns) if faults.tail else None,
        ),
        tail_rank=faults.tail.rank if faults.tail else -1,
        fabric=topology.fabric,
        seed=scenario.seed,
        **shared_fields(switch, JobTerms) | {"verify": verify} | (name.terms if name else {"codec": ""}),
        failover=failover_terms(scenario, name),
        trees=switch.trees,
        aggregators=switch.aggregators,
        dataplane=dataplane,
        retry_limit=switch.retry_limit,
        reliable=ReliableConfig(segment_bytes=segment_bytes, ack_every_segments=ACK_EVERY_SEGMENTS),
        message_bytes=max(1, RING_MESSAGE_BYTES // segment_bytes) * segment_bytes,
        strict_priority=topology.priority_queues > 0,
        tcp=_tcp(scenario),
        servers=ps.servers,
        ps=ps.options,
        group=topology.fabric.group(topology.workers),
        costs=HostCosts(**shared_fields(scenario.hosts, HostCosts)),
        packet_costs=PacketCosts(**shared_fields(scenario.hosts, PacketCosts)),
    )
