"""`switchagg profile`: a profile of anyone's training script, unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Annotated

import typer

from emulation.cli.outcomes import EXIT_FAILED, EXIT_USAGE, outcomes, stop
from emulation.results.whole_file import write_text

END_S = 30
"""How long ranks may take to end once they are told to."""


def profile(
    script: Annotated[str, typer.Argument(help="A training script for torchrun, with DDP, FSDP2 or any collectives")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Arguments of the script")] = None,
    ranks: Annotated[int, typer.Option(min=2, max=64, help="Ranks to start here; under torchrun its ranks")] = 2,
    out: Annotated[
        Path | None, typer.Option(help="File for the profile  [default: the script's name with .toml]")
    ] = None,
    warmup: Annotated[int, typer.Option(min=1, max=100_000, help="Steps of the optimizer that aren't recorded")] = 5,
    iterations: Annotated[int, typer.Option(min=2, max=1_000, help="Iterations to record")] = 10,
    until_recorded: Annotated[bool, typer.Option("--stop", help="End the script once enough is recorded")] = False,
    module: Annotated[bool, typer.Option("--module", "-m", help="SCRIPT is a module, as with python -m")] = False,
) -> None:
    """Record a training script, unchanged: layers, times, buckets.

    The profile holds layers and their times, buckets, jitter and the skew of ranks; a trace of each rank is kept beside
    it. The script is started with torchrun on this machine. Where torchrun starts this command, on any number of
    machines, each rank records itself, and each machine's last rank writes the profile of its ranks. Training that
    isn't data parallel (FSDP2, tensor parallel) has no layers to schedule: there the traces are the profile.

    **Examples**

    `switchagg profile train.py --epochs 1`

    `switchagg profile --ranks 4 --stop train.py` : ends the script after 16 steps

    `torchrun --nproc-per-node 8 --no-python switchagg profile --out run.toml train.py`

    Then `switchagg whatif train.toml`
    """
    with outcomes():
        stem = (out or Path(script.replace(".", "_") if module else Path(script).stem)).with_suffix("")
        command = ["--stem", str(stem), "--warmup", str(warmup), "--iterations", str(iterations)]
        command += ["--stop"] * until_recorded + ["--module"] * module + [script, *(arguments or ())]
        if not module and not Path(script).is_file():
            stop(f"{script}: no such file", EXIT_USAGE)
        under_torchrun = "RANK" in os.environ and "WORLD_SIZE" in os.environ
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if under_torchrun else ranks
        first = int(os.environ["RANK"]) - int(os.environ.get("LOCAL_RANK", "0")) if under_torchrun else 0
        start = [] if under_torchrun else torchrun(ranks)
        code = run_to_end([sys.executable, *start, "-m", "transport.torch.recording", *command])
        if code:
            stop(f"{script}: ended with exit code {code}; nothing was recorded", EXIT_FAILED)
        traces = [Path(f"{stem}.rank{rank}.json.gz") for rank in range(first, first + local)]
        if all(trace.exists() for trace in traces):  # else another rank of this machine is still to finish
            for line in _write_profiles(traces, stem):
                typer.echo(line)


def torchrun(ranks: int) -> list[str]:
    """Arguments of Python that start so many ranks of a program on this machine."""
    where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]
    return ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), *where]


def run_to_end(command: list[str], variables: Mapping[str, str] | None = None, stderr: IO[str] | None = None) -> int:
    """Its exit code. What it has started ends with this process. stderr: takes its standard error."""
    environment = {"OMP_NUM_THREADS": "1", **os.environ, **(variables or {})}
    with subprocess.Popen(command, env=environment, stderr=stderr) as running:
        try:
            return running.wait()
        except BaseException:
            running.terminate()  # torchrun ends its ranks
            try:
                running.wait(END_S)
            except subprocess.TimeoutExpired:
                running.kill()
            raise


def _write_profiles(traces: list[Path], stem: Path) -> list[str]:
    """Writes the profile of data-parallel ranks; what to say."""
    from emulation.report.wording import bytes_text, time_text
    from emulation.scenario.profiles.torch_trace import model_profile, record

    recordings = [record(trace) for trace in traces]
    first = recordings[0]
    sent_bytes = sum(call.size_bytes for call in first.like.collectives)
    times = [recording.like.compute for recording in recordings]
    lines = [
        f"{len(recordings)} of {first.workers} ranks, {len(first.compute)} iterations",
        f"computing: {time_text(1000 * first.like.compute)}; iterations vary by {100 * first.jitter:.1f} % (standard "
        f"deviation), ranks by {100 * (max(times) / min(times) - 1):.1f} %",
        f"exchanged: {bytes_text(sent_bytes)} in {len(first.like.collectives)} collectives",
        f"traces: {traces[0]} … {traces[-1].name}",
    ]
    if not first.data_parallel:
        return [*lines, f"not data parallel: the traces are the profile; next: switchagg whatif {stem}.rank*.json.gz"]
    model = model_profile(recordings, stem.name)
    path = stem.with_suffix(".toml")
    write_text(path, model.toml())
    return [*lines, f"profile: {path}, {len(model.layers)} layers; next: switchagg whatif {path}"]
