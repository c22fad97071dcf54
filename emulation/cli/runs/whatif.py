"""`switchagg whatif`: what a switch would gain anyone's run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from emulation.cli.outcomes import EXIT_USAGE, outcomes, renamed_option, stop
from emulation.cli.start.completion import method_names

Traces = Annotated[
    list[str],
    typer.Argument(
        metavar="TRACE…",
        help="Traces of torch.profiler (.json, .json.gz), one for each rank or of one; a file of `switchagg "
        "profile`; or a shipped model, like resnet50",
    ),
]
Names = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Like switch,switch~lanes8,auto+bytescheduler  [default: eight, see below]",
        autocompletion=method_names,
    ),
]


def whatif(
    trace: Traces,
    links: Annotated[str, typer.Option(metavar="RATES", help="Of every host's link")] = "10,25,100Gb/s",
    methods: Names = None,
    workers: Annotated[
        int, typer.Option(min=0, max=4096, help="Instead of the run's own, each with the run's compute times")
    ] = 0,
    jitter: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Of compute times, instead of the run's: deviation over mean, like 0.02"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=5, max=100, help="Jittered repetitions")] = 5,
    delay_us: Annotated[float, typer.Option(min=0, max=1e6, help="Of every link, one way, in microseconds")] = 1.0,
    hosts: Annotated[
        str, typer.Option(metavar="NAME", help="What communicating costs them: tcp or rdma, as with NCCL; free")
    ] = "tcp",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Of [hosts] and [ps], like hosts.transfer_ns=10_000"),
    ] = None,
    fidelity_level: Annotated[
        str, typer.Option(help="How calls are measured: packet, flow, formula; auto: packets where that ends soon")
    ] = "auto",
    zoom: Annotated[str | None, renamed_option("--zoom", "--fidelity-level")] = None,
    limit: Annotated[float, typer.Option(min=0, help="Seconds, after which methods are left out; 0: none")] = 600.0,
    jobs: Annotated[int, typer.Option(min=0, max=1024, help="Processes; 0: one on each core")] = 1,
    out: Annotated[Path | None, typer.Option(help="Folder for the results  [default: results/whatif-NAME]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The whole document as JSON on stdout")] = False,
) -> None:
    """What other methods, codecs and schedules would gain a run that you have: a table, whatif.html, SVG, PNG, JSON.

    Compared with the best host method on the same links. A gain smaller than what jitter of compute times does to it is
    "unresolved". Nothing is trained, and no gradient is needed. Each forecast is kept in OUT/cells; what is there isn't
    made again.

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
            log, store = (lambda text: typer.echo(text, err=True)), CellStore(folder / CELLS)
            document = asking.gains(run, question, log, store=store, jobs=jobs)
        except ValueError as error:
            stop(str(error), EXIT_USAGE)
        report = write(document, folder)
        typer.echo(json.dumps(document, sort_keys=True) if as_json else "\n".join(lines(document)))
        typer.echo(f"report: {report}", err=True)


def _keys(hosts: str, settings: list[str]) -> dict[str, int | str]:
    """Of [hosts] and [ps]. Raises ValueError."""
    from emulation.cli.compare_console import overrides
    from emulation.experiments.whatif.call_cost import HOST_KEYS

    if hosts not in HOST_KEYS:
        raise ValueError(f"--hosts {hosts}: unknown; allowed: {', '.join(HOST_KEYS)}")
    keys = {**HOST_KEYS[hosts], **overrides(None, settings)}
    if other := next((key for key in keys if not key.startswith(("hosts.", "ps."))), ""):
        raise ValueError(f"--set {other}: a forecast has keys of [hosts] and [ps] alone")
    return keys
