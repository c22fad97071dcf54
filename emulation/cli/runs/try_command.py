"""`switchagg try`: does a switch gain anyone's own training script anything?"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from emulation.cli.outcomes import EXIT_USAGE, outcomes, stop
from emulation.cli.progress import say
from emulation.cli.start.completion import method_names

EXIT_INVALID = 3


RUNS, MACHINES = (partial(typer.Option, rich_help_panel=panel) for panel in ("The runs", "Several machines"))

RATE = typer.Option(metavar="RATE", help="Rate of a rank's link, both ways  [default: 200Mb/s]")
METHODS = typer.Option(
    metavar="NAMES", help="METHOD[@LINK][~CODEC], with commas; the first is the baseline", autocompletion=method_names
)
LOOPBACK = RUNS("--loopback", help="Ranks have no links of their own, so that nothing can be gained")
TIMEOUT = RUNS(min=1, help="Seconds that a turn's steps may take, or the start of the ranks")
SWITCH = MACHINES(metavar="tcp://HOST:PORT", help="The switch  [default: node 0 starts one]")


def try_script(
    script: Annotated[str, typer.Argument(help="A training script for torchrun, as it is: DDP or FSDP2")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Arguments of the script")] = None,
    ranks: Annotated[int, typer.Option(min=0, max=64, help="Ranks here  [default: 3; with --nnodes 1]")] = 0,
    links: Annotated[str, RATE] = "",
    methods: Annotated[str, METHODS] = "gloo,switch",
    module: Annotated[bool, typer.Option("--module", "-m", help="SCRIPT is a module, as with python -m")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for the results  [default: results/try-NAME]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole document as JSON on stdout")] = False,
    steps: Annotated[int, RUNS(help="Steps of each method, of which the first 5 don't count")] = 50,
    seed: Annotated[int, RUNS(min=0, help="Seed of the ranks, until the script sets its own")] = 1,
    delay_us: Annotated[float, RUNS(min=0, max=1e6, help="Delay of every link, one way, in microseconds")] = 0.0,
    loopback: Annotated[bool, LOOPBACK] = False,
    timeout: Annotated[float, TIMEOUT] = 300.0,
    nnodes: Annotated[int, MACHINES(min=1, max=64, help="Machines, each with this command, without emulation")] = 1,
    node_rank: Annotated[int, MACHINES(min=0, help="Place of this machine; 0 has the result")] = 0,
    rendezvous: Annotated[str, MACHINES(metavar="HOST:PORT", help="Address of node 0")] = "",
    switch: Annotated[str, SWITCH] = "",
) -> None:
    """Try your training script with the switch, beside Gloo.

    It makes a forecast, trains with Gloo and the switch in turn, and compares times and losses. The script stays as it
    is, whatever backend it names. Each rank has a network namespace with a link of its own (Mininet; as root, or where
    user namespaces are allowed). It runs three times in this folder: recorded, by Gloo, by the switch. Outputs of ranks
    are in OUT/logs; OUT/try.html, try.json and two figures show the result.

    **Examples**

    `switchagg try train.py --epochs 1`

    `switchagg try --ranks 4 --links 1Gb/s --methods gloo,switch,switch~lanes8 train.py`

    `switchagg try --nnodes 3 --node-rank 0 --rendezvous 10.0.0.1:29500 train.py` : on each of three machines

    **Exit code**: 0 done, 1 failed, 2 wrong usage, 3 done but certified INVALID.
    """
    name = script.rpartition(".")[2] if module else Path(script).stem
    folder = out or Path("results") / f"try-{name}"
    with outcomes():
        if not module and not Path(script).is_file():
            stop(f"{script}: no such file", EXIT_USAGE)
        alone = nnodes == 1
        if alone and (node_rank or rendezvous or switch):
            stop("--node-rank, --rendezvous and --switch are of several machines: --nnodes 2 or more", EXIT_USAGE)
        if (ranks or 3) * nnodes < 2:
            stop("one rank alone exchanges nothing: --ranks 2 or more", EXIT_USAGE)
        if alone and not loopback:
            from emulation.testbed.netns import run_in_user_namespace

            run_in_user_namespace()  # a plain user becomes root of a namespace, where that is allowed
        from emulation.experiments.tryout.try_machines import machines_of, serve_node
        from emulation.experiments.tryout.try_run import Trial
        from emulation.experiments.tryout.try_start import method_names, try_here

        machines = None if alone else machines_of(nnodes, node_rank, ranks or 1, rendezvous, switch)
        words, delay_ns = tuple(arguments or ()), round(1000 * delay_us)
        if machines is not None and node_rank:
            serve_node(machines, script, words, folder, timeout, say)
            say(f"done: node 0 has the result; outputs of ranks: {folder / 'logs'}")
            return
        trial = Trial(script, words, module, method_names(methods), steps, seed, timeout, delay_ns)
        document, lines = try_here(trial, ranks or 3, links, machines, folder, loopback, say)
        typer.echo(json.dumps(document, sort_keys=True) if as_json else "\n".join(lines))
        say(f"report: {folder / 'try.html'}")
    raise typer.Exit(EXIT_INVALID if any(map(_invalid, document["methods"])) else 0)


def _invalid(row: dict[str, object]) -> bool:
    certificate = row["certificate"]
    return isinstance(certificate, dict) and not certificate["valid"]
