"""`switchagg bench hosts`: collectives on the user's own machines, with nccl-tests' flags and columns."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emulation.cli.outcomes import EXIT_FAILED, outcomes
from emulation.cli.start.completion import method_names

if TYPE_CHECKING:
    from emulation.experiments.bench.hosts.hosts_plan import HostsPlan

Least = Annotated[str, typer.Option("--minbytes", "-b", metavar="SIZE", help="Smallest size: bytes, or K, M, G")]
Most = Annotated[str, typer.Option("--maxbytes", "-e", metavar="SIZE", help="Largest size")]
Factor = Annotated[float, typer.Option("--stepfactor", "-f", help="From one size to the next")]
Step = Annotated[str | None, typer.Option("--stepbytes", "-i", metavar="SIZE", help="Instead: so much is added")]
Methods = Annotated[
    str | None,
    typer.Option(
        help="METHOD[@LINK][~CODEC], with commas  [default: ring; with a switch: switch,ring]",
        autocompletion=method_names,
    ),
]
Kind = Annotated[str, typer.Option(help="all_reduce, reduce_scatter, all_gather, broadcast, reduce, alltoall")]
Baseline = Annotated[bool, typer.Option("--baseline/--no-baseline", help="Gloo beside them, in turn")]
Iterations = Annotated[int, typer.Option("--iters", "-n", min=1, help="Timed operations of each method and size")]
Warmup = Annotated[int, typer.Option("--warmup_iters", "-w", min=0, help="Operations before each block of them")]
Together = Annotated[int, typer.Option("--agg_iters", "-m", min=1, max=64, help="Operations begun at once")]
Rounds = Annotated[int, typer.Option(min=1, help="Blocks of timed operations; methods take turns")]
Cycles = Annotated[int, typer.Option("--run_cycles", "-N", min=1, help="How often all sizes are measured")]
Checks = Annotated[int, typer.Option("--check", "-c", min=0, help="Operations whose every element is checked")]
Op = Annotated[str, typer.Option("--op", "-o", help="sum, avg, max, min")]
Type = Annotated[str, typer.Option("--datatype", "-d", help="float, double, half, bfloat16, int32, int64")]
Root = Annotated[int, typer.Option("--root", "-r", min=0, help="Of broadcast and reduce")]
Average = Annotated[
    int, typer.Option("--average", "-a", min=0, max=3, help="0: rank 0, 1: mean, 2: min, 3: max of ranks")
]
Timeout = Annotated[float, typer.Option("--timeout", "-T", min=1, help="Seconds an operation, or a rank, may take")]
Link = Annotated[
    str | None, typer.Option(metavar="RATE", help="Of each rank's link, like 10G: shows the bound of such links")
]
SwitchLink = Annotated[str | None, typer.Option(metavar="RATE", help="Of the switch's link  [default: as --link]")]
Switch = Annotated[
    str, typer.Option(envvar="SWITCHAGG_SWITCH", metavar="tcp://HOST:PORT", help="Where `switchagg switch` runs")
]
Ranks = Annotated[int, typer.Option("--ranks", min=0, max=64, help="Without torchrun: start so many ranks here")]


def hosts(
    least: Least = "4K",
    most: Most = "16M",
    factor: Factor = 16.0,
    step: Step = None,
    methods: Methods = None,
    collective: Kind = "all_reduce",
    baseline: Baseline = True,
    iters: Iterations = 20,
    warmup_iters: Warmup = 5,
    agg_iters: Together = 1,
    rounds: Rounds = 4,
    run_cycles: Cycles = 1,
    check: Checks = 1,
    op: Op = "sum",
    datatype: Type = "float",
    root: Root = 0,
    average: Average = 1,
    timeout: Timeout = 120.0,
    link: Link = None,
    switch_link: SwitchLink = None,
    switch: Switch = "",
    ranks: Ranks = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json", "-J", "--output_file", metavar="FILE", help="Also as JSON")
    ] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Also as CSV")] = None,
) -> None:
    """Collectives on your own machines by any method, beside Gloo: nccl-tests' flags and columns. No root.

    torchrun starts it on every machine, with the same flags; --ranks starts ranks (and a switch) on this one.

    **Examples**

    `switchagg bench hosts --ranks 2`

    `torchrun --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --nproc-per-node 1 --no-python switchagg bench hosts
    -b 8 -e 64M -f 2 --methods ring,halving_doubling@udp --link 10G --json hosts.json`

    Definitions of columns: docs/bench-hosts.md. **Exit code**: 1 if an element was wrong, or something failed.
    """
    with outcomes():
        from emulation.experiments.bench.hosts import hosts_plan as plans
        from emulation.scenario.scenario import ScenarioError

        local = ranks and "RANK" not in os.environ
        plan = plans.HostsPlan(
            plans.sizes(least, most, factor, step),
            plans.methods_of(methods or ("switch,ring" if switch or ranks else "ring"), baseline),
            collective,
            plans.DTYPES.get(datatype, datatype),
            op,
            *(root, iters, warmup_iters, agg_iters, rounds, run_cycles, check, average, timeout),
            *(plans.rate("--link", link), plans.rate("--switch-link", switch_link)),
            switch,
        )
        if local:
            raise typer.Exit(_started_here(plan, ranks))
        if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
            raise ScenarioError(
                "torchrun didn't start this (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not set): torchrun "
                "--nnodes 2 … --no-python switchagg bench hosts on each machine, or --ranks 2 for ranks on this one"
            )
        from emulation.experiments.bench.hosts import hosts_rank

        hosts_rank.run(plan, hosts_rank.Files(json_file, csv_file))


def _started_here(plan: HostsPlan, ranks: int) -> int:
    """Ranks on this machine, by torchrun, and a switch if one is wanted and none is named. The exit code."""
    from emulation.cli.runs.profile import run_to_end, torchrun
    from transport.switch.daemon import SwitchDaemon
    from transport.switch.daemon_options import DaemonOptions

    links = {name.link for name in plan.names if name.is_switch}
    variables, daemon = {}, None
    if links and not plan.switch:
        daemon = SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), link=links.pop()))
        daemon.start()
        variables["SWITCHAGG_SWITCH"] = daemon.control_endpoint
    try:
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            command = [sys.executable, *torchrun(ranks), "-m", "emulation.cli.main", *sys.argv[1:]]
            code = run_to_end(command, variables, output)
            output.seek(0)
            lines = output.read().splitlines()
    finally:
        if daemon is not None:
            daemon.stop()
    errors = {line.split(": ", 2)[-1]: line for line in reversed(lines) if line.startswith("switchagg: ")}
    for line in reversed(errors.values()) if code and errors else lines:  # torchrun tells each rank's end at length
        typer.echo(line, err=True)
    return EXIT_FAILED if code else 0
