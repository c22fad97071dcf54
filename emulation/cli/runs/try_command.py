"""`switchagg try`: does a switch gain anyone's own training script anything?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from emulation.cli.outcomes import EXIT_USAGE, outcomes, stop

EXIT_INVALID = 3


def try_script(
    script: Annotated[str, typer.Argument(help="A training script for torchrun, as it is: DDP or FSDP2")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="The script's own")] = None,
    ranks: Annotated[int, typer.Option(min=0, max=64, help="Of this machine  [default: 3; with --nnodes 1]")] = 0,
    links: Annotated[str, typer.Option(metavar="RATE", help="Of a rank's link, both ways  [default: 200Mb/s]")] = "",
    methods: Annotated[
        str, typer.Option(metavar="NAMES", help="METHOD[@LINK][~CODEC], with commas; the first is the baseline")
    ] = "gloo,switch",
    steps: Annotated[int, typer.Option(help="Of each method; the first 5 don't count")] = 50,
    seed: Annotated[int, typer.Option(min=0, help="Of ranks before the script sets its own")] = 1,
    delay_us: Annotated[float, typer.Option(min=0, max=1e6, help="Of every link, one way, in microseconds")] = 0.0,
    loopback: Annotated[bool, typer.Option("--loopback", help="No links of their own: nothing can be gained")] = False,
    nnodes: Annotated[int, typer.Option(min=1, max=64, help="Machines; the same command on each, no emulation")] = 1,
    node_rank: Annotated[int, typer.Option(min=0, help="With --nnodes: of this machine; 0 has the result")] = 0,
    rendezvous: Annotated[str, typer.Option(metavar="HOST:PORT", help="With --nnodes: where node 0 is reached")] = "",
    switch: Annotated[
        str, typer.Option(metavar="tcp://HOST:PORT", help="With --nnodes: the switch  [default: node 0 starts one]")
    ] = "",
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for a turn's steps, or for ranks to start")] = 300.0,
    module: Annotated[bool, typer.Option("--module", "-m", help="SCRIPT is a module, as of python -m")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for the results  [default: results/try-NAME]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The whole document as JSON on stdout")] = False,
) -> None:
    """Try a training script with the switch: a forecast, runs with Gloo and the switch in turn, losses compared.

    The script stays as it is, whatever backend it names. Each rank has a network namespace with a link of its own
    (Mininet; as root, or where user namespaces are allowed). It runs three times in this folder: recorded, by Gloo, by
    the switch. Outputs of ranks are in OUT/logs; OUT/try.html, try.json and two figures show the result.

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
        from emulation.experiments.tryout import try_start
        from emulation.experiments.tryout.try_machines import machines_of

        machines = None if alone else machines_of(nnodes, node_rank, ranks or 1, rendezvous, switch)
        words = (script, tuple(arguments or ()), module, ranks or 3, links, methods, steps, seed, timeout, delay_us)
        how = try_start.HowToTry(*words, machines)
        if node_rank:
            try_start.serve(how, folder, _say)
            _say(f"done: node 0 has the result; outputs of ranks: {folder / 'logs'}")
            return
        document, lines = try_start.try_here(how, folder, loopback, _say)
        typer.echo(json.dumps(document, sort_keys=True) if as_json else "\n".join(lines))
        _say(f"report: {folder / 'try.html'}")
    raise typer.Exit(EXIT_INVALID if any(map(_invalid, document["methods"])) else 0)


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _invalid(row: dict[str, object]) -> bool:
    certificate = row["certificate"]
    return isinstance(certificate, dict) and not certificate["valid"]
