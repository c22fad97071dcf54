"""Other jobs beside the measured one: sums again and again, every one of them checked."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulation.results.results import spread
from emulation.results.shares import jain
from emulation.scenario.profiles.workload_keys import tenant_graph
from emulation.scenario.scenario_tables import SAME, JobOptions
from emulation.scenario.topologies.topology_kinds import seen_by
from emulation.sim.network.simulation import Simulation, SimulationConfig
from emulation.sim.network.simulations import SIMULATIONS
from emulation.sim.network.switch_simulation import SwitchSimulation
from emulation.sim.replay.graph_training import POINT_TO_POINT
from emulation.sim.replay.tenant import JOB_IDS, ReplayedJob
from emulation.sim.sharing.loads import Loads
from emulation.sim.sharing.slot_division import SlotDivision
from switchagg.controller.slot_shares import SlotDemand
from transport.group.method_name import METHODS

Sums = NDArray[np.int32]


class OtherJob:
    """An entry of `[[jobs]]`: in_flight sums of size_bytes at once, each followed by computing for compute_ns, from
    start_ns until stop_ns, or so many sums; `ended` is called when the last is complete on all ranks."""

    def __init__(self, options: JobOptions, simulation: Simulation, seed: int, ended: Callable[[], None]) -> None:
        self.options, self.simulation = options, simulation
        self.durations_ns: list[int] = []  # of sums, on rank 0
        self.ended_ns: int | None = None
        self.wrong_elements = 0
        self._time, self._ended = simulation.network, ended
        workers, count = simulation.config.workers, options.size_bytes // 4
        generator = np.random.Generator(np.random.PCG64(seed))
        self._inputs = [generator.integers(-1000, 1000, count, np.int32) for _ in range(workers)]
        self._sum = np.sum(self._inputs, axis=0, dtype=np.int32)
        self._started = [0] * workers  # sums, by rank
        self._complete = [0] * workers
        self._last = options.sums or None  # how many there are, once that is known

    def start(self, _frame: None = None, _sender: int = 0, _to: int = 0) -> None:
        """Begin now."""
        for rank in range(len(self._inputs)):
            for _ in range(self.options.in_flight):
                self._next(np.empty_like(self._sum), rank)

    def _next(self, array: Sums, rank: int, _to: int = 0) -> None:
        number = self._started[rank]
        stop_ns = self.options.stop_ns
        if self._last is None and stop_ns and self._time.now_ns >= stop_ns:
            self._last = max(self._started)  # those that any rank has begun: all have to
            self._note_end()
        if number == self._last:
            return
        self._started[rank] = number + 1
        np.add(self._inputs[rank], np.int32(number % 1000), out=array)
        done = partial(self._done, array, rank, number, self._time.now_ns)
        self.simulation.launch(rank, array, "sum", done)

    def _done(self, array: Sums, rank: int, number: int, since_ns: int) -> None:
        self.wrong_elements += int(np.count_nonzero(array != self._sum + len(self._inputs) * (number % 1000)))
        self._complete[rank] += 1
        if not rank:
            self.durations_ns.append(self._time.now_ns - since_ns)
        if not self._note_end():
            self._time.schedule(self._time.now_ns + self.options.compute_ns, self._next, array, rank)

    def _note_end(self) -> bool:
        """Whether all ranks have the last sum."""
        if self._last is None or any(complete != self._last for complete in self._complete):
            return False
        self.ended_ns = self._time.now_ns
        self._ended()
        return True


def servers_of(options: JobOptions, method: str) -> int:
    """How many servers' hosts another job has, where the measured one's method is as given."""
    if options.profile:
        return 0
    return METHODS[method if options.method == SAME else options.method].servers


class BackgroundJobs:
    """The jobs of a scenario on the network of the measured one, `first`, which is one of them where slots are shared.

    weight: of the measured job. folder: where files are that jobs name. hosts: how many of others' hosts come before
    those of jobs. `document` once the run is over.
    """

    def __init__(
        self,
        first: Simulation,
        method: str,
        jobs: Sequence[JobOptions],
        weight: int,
        policy: str,
        demand_slots: int,
        hosts: int = 0,
        folder: str = ".",
    ) -> None:
        self._folder = Path(folder)
        self.network, self._method = first.shared, method
        if any(not options.profile for options in jobs):
            self.network.keep_values()
        config, self._first = first.config, first
        self.division = SlotDivision(first.network, config.pool_slots, policy)
        self._measured = (method, weight)
        if isinstance(first, SwitchSimulation):
            self.division.enter(first, SlotDemand(demand_slots, weight, least=config.streams))
        self.jobs: list[OtherJob | ReplayedJob] = []
        free_hosts = list(first.topology.other_hosts[hosts:])
        for number, options in enumerate(jobs):
            places = tuple(first.topology.workers[rank] for rank in options.on)
            if not places:
                places, free_hosts = tuple(free_hosts[: options.workers]), free_hosts[options.workers :]
            servers, free_hosts = tuple(free_hosts[: (count := servers_of(options, method))]), free_hosts[count:]
            self._add(number, options, places, servers, config)
        self.loads = Loads(self.network)

    def _add(
        self,
        number: int,
        options: JobOptions,
        hosts: tuple[str, ...],
        servers: tuple[str, ...],
        config: SimulationConfig,
    ) -> None:
        name = self._method if options.method == SAME else options.method
        place = seen_by(self.network.topology, hosts, config.fabric.placement, servers)
        its = replace(
            config,
            workers=len(hosts),
            servers=0,
            place=place,
            job_id=number + 2,
            user=f"{config.user} {options.name}",
            codec="",
            priorities=(),
            priority=options.priority,
        )
        if options.profile:
            its = replace(its, job_id=JOB_IDS * (number + 1))
        simulation = SIMULATIONS[POINT_TO_POINT if options.profile else name](its, self.network)
        ended = partial(self._ended, simulation)
        job: OtherJob | ReplayedJob
        if options.profile:
            job = ReplayedJob(options, simulation, tenant_graph(options, self._folder), ended)
        else:
            job = OtherJob(options, simulation, config.seed + number, ended)
        self.jobs.append(job)
        self.network.time.schedule(options.start_ns, partial(self._start, job))

    def _start(self, job: OtherJob | ReplayedJob, _frame: None, _sender: int, _to: int) -> None:
        simulation, options = job.simulation, job.options
        if isinstance(simulation, SwitchSimulation):
            terms, quota = simulation.config, options.quota_slots or None
            demand = SlotDemand(
                terms.requested_slots, options.weight, options.priority, least=terms.streams, quota=quota
            )
            self.division.enter(simulation, demand)
        job.start()

    def _ended(self, simulation: Simulation) -> None:
        if isinstance(simulation, SwitchSimulation):
            self.division.leave(simulation)

    def document(self) -> dict[str, Any]:
        """`tenants` and `link_loads` of a result, as `results_schema.md` has them."""
        documents = [self._job_document(None, self._first, *self._measured)]
        documents += [
            self._job_document(
                job, job.simulation, POINT_TO_POINT if job.options.profile else job.options.method, job.options.weight
            )
            for job in self.jobs
        ]
        rates = [sum(job["bytes"]) / job["weight"] for job in documents[1:] if not job["shared_hosts"]]
        tenants = {"bin_ns": self.loads.bin_ns, "jobs": documents, "jain": jain(rates)}
        return {"tenants": tenants, "link_loads": self.loads.document()}

    def _job_document(
        self, job: OtherJob | ReplayedJob | None, simulation: Simulation, method: str, weight: int
    ) -> dict[str, Any]:
        host = simulation.topology.workers[0]
        hop = f"{host}-{self.network.topology.neighbours[host][0]}"
        document: dict[str, Any] = {
            "name": job.options.name if job else "",
            "measured": job is None,
            "method": self._method if method == SAME else method,
            "weight": weight,
            "hosts": list(simulation.topology.workers),
            "shared_hosts": bool(job and job.options.on),
            "bytes": self.loads.bytes(hop),
            "slots": [],
        }
        if isinstance(simulation, SwitchSimulation):
            document["slots"] = [list(share) for share in self.division.history.get(simulation.job.job_id, [])]
        if job:
            document |= {
                "priority": job.options.priority,
                "sums": len(job.durations_ns),
                "sum_ns": spread(job.durations_ns) if job.durations_ns else None,
                "wrong_elements": job.wrong_elements,
                "ended_ns": job.ended_ns,
            }
        return document
