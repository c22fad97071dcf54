"""`switchagg whatif`: what a switch would gain anyone's run."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from emulation.cli.outcomes import EXIT_USAGE, known, outcomes, stop
from emulation.cli.progress import say
from emulation.cli.start.completion import method_names

RUN, SEARCH = (partial(typer.Option, rich_help_panel=panel) for panel in ("The run", "The forecast"))

Traces = Annotated[
    list[str],
    typer.Argument(
        metavar="TRACE…",
        help="Traces of torch.profiler (.json, .json.gz), one for each rank or of one rank; a file of `switchagg "
        "profile`; or a shipped model, like resnet50",
    ),
]
Names = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Methods, like switch,switch~lanes8,auto+bytescheduler  [default: eight, see below]",
        autocompletion=method_names,
    ),
]
HOSTS = typer.Option(metavar="NAME", help="What communication costs a host: tcp, rdma (as with NCCL), free")
WORKERS = RUN(min=0, max=4096, help="Number of workers, each of which computes as in the run; 0 means the run's")
JITTER = RUN(min=0, max=1, help="Standard deviation over mean of compute times, like 0.02, in place of the run's")
DELAY = RUN(min=0, max=1e6, help="Delay of every link, one way, in microseconds")
SETTINGS = RUN("--set", metavar="KEY=VALUE", help="Keys of [hosts] and [ps], like hosts.transfer_ns=10_000")
LEVEL = SEARCH(help="packet, flow, formula, or auto: packets where that ends soon")
LIMIT = SEARCH(min=0, help="Seconds after which methods are left out; 0 means no limit")


def whatif(
    trace: Traces,
    links: Annotated[str, typer.Option(metavar="RATES", help="Rates of every host's link")] = "10,25,100Gb/s",
    methods: Names = None,
    hosts: Annotated[str, HOSTS] = "tcp",
    out: Annotated[Path | None, typer.Option(help="Folder for the results  [default: results/whatif-NAME]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole document as JSON on stdout")] = False,
    workers: Annotated[int, WORKERS] = 0,
    jitter: Annotated[float | None, JITTER] = None,
    delay_us: Annotated[float, DELAY] = 1.0,
    settings: Annotated[list[str] | None, SETTINGS] = None,
    seeds: Annotated[int, SEARCH(min=5, max=100, help="Repetitions with other jitter")] = 5,
    fidelity_level: Annotated[str, LEVEL] = "auto",
    limit: Annotated[float, LIMIT] = 600.0,
    jobs: Annotated[int, SEARCH(min=0, max=1024, help="Processes; 0 means one on each core")] = 1,
) -> None:
    """Forecast what a switch would gain a run that you have.

    It compares methods, codecs and schedules with the best host method on the same links, and writes a table,
    whatif.html, SVG, PNG and JSON. A gain smaller than what jitter of compute times does to it is "unresolved". Nothing
    is trained, and no gradient is needed. Each forecast is kept in OUT/cells and isn't made again.

    **Examples**

    `switchagg whatif resnet50`

    `switchagg whatif rank*.json.gz --links 1,10Gb/s --workers 16`

    `switchagg whatif run.toml --methods switch,ring~topk:ratio=0.01,auto+p3`

    To record a run: `switchagg profile train.py`, or torch.profiler's `export_chrome_trace` with record_shapes=True.

    **Default methods**: switch, switch~lanes16, switch~lanes8, auto~bf16, auto~topk:ratio=0.01, auto+bytescheduler,
    switch+bytescheduler, switch~lanes8+bytescheduler. `auto` takes the cheapest host collective for each call.
    """
    with outcomes(f"the same command goes on from the forecasts in {out or 'results/whatif-NAME'}/cells"):
        from emulation.experiments.bench.allreduce.bench_methods import COMMA
        from emulation.experiments.cells import CELLS, CellStore
        from emulation.experiments.whatif import gains as asking
        from emulation.experiments.whatif.recorded_run import read
        from emulation.experiments.whatif.whatif_page import lines, write

        names = asking.METHODS if methods is None else tuple(name.strip() for name in COMMA.split(methods))
        try:
            keys = _keys(hosts, settings or [])
            rates_bps, delay_ns = asking.parse_rates(links), round(1000 * delay_us)
            question = asking.Question(rates_bps, names, seeds, delay_ns, keys, jitter, fidelity_level, limit)
            run = read(trace, workers)
            folder = out or Path("results") / f"whatif-{run.name}"
            document = asking.gains(run, question, say, store=CellStore(folder / CELLS), jobs=jobs)
        except ValueError as error:
            stop(str(error), EXIT_USAGE)
        report = write(document, folder)
        typer.echo(json.dumps(document, sort_keys=True) if as_json else "\n".join(lines(document)))
        typer.echo(f"report: {report}", err=True)


def _keys(hosts: str, settings: list[str]) -> dict[str, int | str]:
    """Of [hosts] and [ps]. Raises ValueError."""
    from emulation.cli.compare_console import overrides
    from emulation.experiments.whatif.call_cost import HOST_KEYS

    keys = {**HOST_KEYS[known("--hosts", hosts, HOST_KEYS)], **overrides(None, settings)}
    if other := next((key for key in keys if not key.startswith(("hosts.", "ps."))), ""):
        raise ValueError(f"--set {other}: a forecast has keys of [hosts] and [ps] alone")
    return keys
