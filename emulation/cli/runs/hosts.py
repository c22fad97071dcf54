"""`switchagg bench hosts`: collectives on the user's own machines, with nccl-tests' flags and columns."""

from __future__ import annotations

import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emulation.cli.outcomes import EXIT_FAILED, outcomes
from emulation.cli.start.completion import method_names

if TYPE_CHECKING:
    from emulation.experiments.bench.hosts.hosts_plan import HostsPlan

LINKS, SIZES, COLLECTIVE, FILES = (
    partial(typer.Option, rich_help_panel=panel)
    for panel in ("The network", "Sizes and operations", "The collective", "Files")
)
METHODS = typer.Option(
    help="METHOD[@LINK][~CODEC], with commas  [default: ring; with a switch: switch,ring]",
    autocompletion=method_names,
)
BASELINE = typer.Option("--baseline/--no-baseline", help="Measure Gloo, too, in turn with the methods")
RANKS = typer.Option("--ranks", min=0, max=64, help="Without torchrun: start so many ranks on this machine")
SWITCH = LINKS(envvar="SWITCHAGG_SWITCH", metavar="tcp://HOST:PORT", help="Address of `switchagg switch`")
LINK = LINKS(metavar="RATE", help="Rate of each rank's link, like 10G, to show the bound of such links")
SWITCH_LINK = LINKS(metavar="RATE", help="Rate of the switch's link  [default: as --link]")
TIMEOUT = LINKS("--timeout", "-T", min=1, help="Seconds that an operation, or a rank, may take")
LEAST = SIZES("--minbytes", "-b", metavar="SIZE", help="Smallest size, in bytes, K, M or G")
MOST = SIZES("--maxbytes", "-e", metavar="SIZE", help="Largest size")
FACTOR = SIZES("--stepfactor", "-f", help="Factor from one size to the next")
STEP = SIZES("--stepbytes", "-i", metavar="SIZE", help="Add so much instead, from one size to the next")
ITERATIONS = SIZES("--iters", "-n", min=1, help="Timed operations of each method and size")
WARMUP = SIZES("--warmup_iters", "-w", min=0, help="Operations before each block of timed ones")
TOGETHER = SIZES("--agg_iters", "-m", min=1, max=64, help="Operations begun at once")
ROUNDS = SIZES(min=1, help="Blocks of timed operations, in which methods take turns")
CYCLES = SIZES("--run_cycles", "-N", min=1, help="How often all sizes are measured")
CHECKS = SIZES("--check", "-c", min=0, help="Operations of which every element is checked")
KIND = COLLECTIVE(help="all_reduce, reduce_scatter, all_gather, broadcast, reduce, alltoall")
OP = COLLECTIVE("--op", "-o", help="sum, avg, max, min")
TYPE = COLLECTIVE("--datatype", "-d", help="float, double, half, bfloat16, int32, int64")
ROOT = COLLECTIVE("--root", "-r", min=0, help="Root of broadcast and reduce")
AVERAGE = COLLECTIVE(
    "--average", "-a", min=0, max=3, help="Times of rank 0 (0), or mean (1), min (2), max (3) of ranks"
)
JSON_FILE = FILES("--json", "-J", "--output_file", metavar="FILE", help="File for the rows as JSON")
CSV_FILE = FILES("--csv", metavar="FILE", help="File for the rows as CSV")


def hosts(
    methods: Annotated[str | None, METHODS] = None,
    baseline: Annotated[bool, BASELINE] = True,
    ranks: Annotated[int, RANKS] = 0,
    switch: Annotated[str, SWITCH] = "",
    link: Annotated[str | None, LINK] = None,
    switch_link: Annotated[str | None, SWITCH_LINK] = None,
    timeout: Annotated[float, TIMEOUT] = 120.0,
    least: Annotated[str, LEAST] = "4K",
    most: Annotated[str, MOST] = "16M",
    factor: Annotated[float, FACTOR] = 16.0,
    step: Annotated[str | None, STEP] = None,
    iters: Annotated[int, ITERATIONS] = 20,
    warmup_iters: Annotated[int, WARMUP] = 5,
    agg_iters: Annotated[int, TOGETHER] = 1,
    rounds: Annotated[int, ROUNDS] = 4,
    run_cycles: Annotated[int, CYCLES] = 1,
    check: Annotated[int, CHECKS] = 1,
    collective: Annotated[str, KIND] = "all_reduce",
    op: Annotated[str, OP] = "sum",
    datatype: Annotated[str, TYPE] = "float",
    root: Annotated[int, ROOT] = 0,
    average: Annotated[int, AVERAGE] = 1,
    json_file: Annotated[Path | None, JSON_FILE] = None,
    csv_file: Annotated[Path | None, CSV_FILE] = None,
) -> None:
    """Measure collectives on your own machines by any method, beside Gloo; no root is needed.

    It has nccl-tests' flags and columns. torchrun starts it on every machine, with the same flags; --ranks starts ranks
    (and a switch) on this one.

    **Examples**

    `switchagg bench hosts --ranks 2`

    `torchrun --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --nproc-per-node 1 --no-python switchagg bench hosts
    -b 8 -e 64M -f 2 --methods ring,halving_doubling@udp --link 10G --json hosts.json`

    **Exit code**: 1 if an element was wrong, or something failed.
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
