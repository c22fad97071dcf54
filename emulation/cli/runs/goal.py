"""`switchagg goal`: an iteration as a GOAL file, for others' simulators."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

import typer

from emulation.cli.outcomes import known, outcomes
from emulation.results.whole_file import whole_file


def goal(
    profile: Annotated[
        str, typer.Argument(help="A shipped model, like resnet50; a file of `switchagg profile`; Chakra, SimAI traces")
    ],
    workers: Annotated[
        int, typer.Option(min=0, max=65_536, help="Ranks; of a trace as many as it has  [default: 8, or the trace's]")
    ] = 0,
    method: Annotated[str, typer.Option(help="Host method whose messages stand for collectives")] = "ring",
    parallel: Annotated[str, typer.Option(help="How ranks share a model: ddp, fsdp, tp, pp, 3d")] = "ddp",
    degree: Annotated[
        int, typer.Option(min=0, help="Of tp and pp: ranks that have a model together, of 3d: tensors; 0: all")
    ] = 0,
    stages: Annotated[int, typer.Option(min=1, help="Of 3d")] = 1,
    micro_batches: Annotated[int, typer.Option(min=1, help="Of pp and 3d")] = 4,
    bucket_bytes: Annotated[int, typer.Option(min=4, help="Of DDP's buckets, of FSDP's units")] = 25 << 20,
    out: Annotated[Path | None, typer.Option(help="File to write  [default: standard output]")] = None,
) -> None:
    """Write an iteration of a model as GOAL, which LogGOPSim and ATLAHS read, to compare their forecasts.

    GOAL knows messages, not collectives: these become the messages of a host method's plans, in the order in which
    values depend on each other. Times are nanoseconds.

    **Examples**

    `switchagg goal resnet50 --workers 16 --out resnet50.goal`

    `switchagg goal llama7b --workers 32 --parallel tp --degree 8 --method halving_doubling > llama.goal`
    """
    with outcomes():
        from emulation.scenario.profiles import goal_format as language
        from emulation.scenario.profiles.graph import WorkloadGraph
        from emulation.scenario.profiles.profile_formats import MAKERS, load
        from emulation.scenario.profiles.workload_keys import load_workload

        known("--parallel", parallel, MAKERS)
        workload = load(profile, Path(), workers)
        if not isinstance(workload, WorkloadGraph):
            keys = SimpleNamespace(
                profile=profile,
                parallel=parallel,
                degree=degree,
                stages=stages,
                micro_batches=micro_batches,
                device_flops=0.0,
                batch_per_worker=workload.batch,
                bucket_bytes=bucket_bytes,
            )
            workload = load_workload(keys, workers or 8, Path())
        if not isinstance(workload, WorkloadGraph):
            workload = MAKERS["ddp"](workload, workers or 8, bucket_bytes=bucket_bytes)
        lines = language.encode(workload, method)
        if out is None:
            for line in lines:
                typer.echo(line)
            return
        with whole_file(out) as partial, partial.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
        typer.echo(f"{out}: {workload.ranks} ranks", err=True)
