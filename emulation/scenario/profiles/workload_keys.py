"""A scenario's [workload] keys applied to a profile: the model, or a graph of its ranks, and their times."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from emulation.scenario.profiles.graph import WorkloadGraph
from emulation.scenario.profiles.model_profile import ModelProfile
from emulation.scenario.profiles.profile_errors import ProfileError
from emulation.scenario.profiles.profile_formats import MAKERS, Profile, load

DDP = "ddp"
OPTIONS = {"tp": ("degree",), "pp": ("degree", "micro_batches"), "3d": ("degree", "stages", "micro_batches")}
"""Keys that kinds of model parallelism read."""


class WorkloadKeys(Protocol):
    """The part of `emulation.scenario.scenario_tables.WorkloadOptions` that is read here."""

    @property
    def profile(self) -> str: ...
    @property
    def parallel(self) -> str: ...
    @property
    def degree(self) -> int: ...
    @property
    def stages(self) -> int: ...
    @property
    def micro_batches(self) -> int: ...
    @property
    def device_flops(self) -> float: ...
    @property
    def batch_per_worker(self) -> int: ...
    @property
    def bucket_bytes(self) -> int: ...


class Tenant(Protocol):
    """The part of `emulation.scenario.scenario_tables.JobOptions` that is read here."""

    @property
    def profile(self) -> str: ...
    @property
    def workers(self) -> int: ...
    @property
    def on(self) -> tuple[int, ...]: ...


def tenant_graph(job: Tenant, folder: Path) -> WorkloadGraph:
    """The graph that a job beside the measured one replays: computing, sends, receives. Raises ProfileError."""
    graph = load(job.profile, folder, len(job.on) or job.workers)
    if not isinstance(graph, WorkloadGraph) or any(
        operation.collective for operation in itertools.chain(*graph.programs)
    ):
        raise ProfileError(
            f"{job.profile}: it has collectives; allowed beside a job: sends and receives alone, as GOAL's"
        )
    return graph


def tenants_fault(jobs: Sequence[Tenant], folder: Path) -> str:
    """The fault of the first graph that jobs replay which has one; "" if none has."""
    try:
        for job in (job for job in jobs if job.profile):
            tenant_graph(job, folder)
    except ProfileError as error:
        return str(error)
    return ""


def batch_of(keys: WorkloadKeys, workers: int, folder: Path) -> int:
    """Samples of a rank, as the profile has it; 1 where it doesn't say. Raises ProfileError."""
    profile = load(keys.profile, folder, workers)
    return profile.batch if isinstance(profile, ModelProfile) else 1


def load_workload(keys: WorkloadKeys, workers: int, folder: Path) -> Profile:
    """The model with this batch and device, where ranks have all of it (DDP); else a graph. Raises ProfileError."""
    profile = load(keys.profile, folder, workers)
    if isinstance(profile, WorkloadGraph):
        if keys.parallel != DDP or keys.device_flops:
            raise ProfileError("it says itself what ranks do; allowed: without parallel and device_flops")
        return profile
    profile = profile.at(batch=keys.batch_per_worker, device_flops=keys.device_flops)
    profile.rank_ns(workers)
    if keys.parallel == DDP:
        return profile
    more = {key: getattr(keys, key) for key in OPTIONS.get(keys.parallel, ())}
    return MAKERS[keys.parallel](profile, workers, bucket_bytes=keys.bucket_bytes, **more)


def rank_ns(profile: Profile, keys: WorkloadKeys, workers: int, folder: Path) -> int | tuple[int, ...]:
    """Compute time by rank; a single number if all are alike. profile: of `load_workload`. Raises ProfileError."""
    if isinstance(profile, ModelProfile):
        return profile.rank_ns(workers)
    model = load(keys.profile, folder, workers)
    skew = model.skew if isinstance(model, ModelProfile) and model.skew else (1.0,) * workers
    times_ns = tuple(round(profile.compute_ns(rank) * factor) for rank, factor in enumerate(skew))
    return times_ns if len(set(times_ns)) > 1 else times_ns[0]
