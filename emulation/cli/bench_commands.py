"""`switchagg bench …`: measurements beside their baselines. Definitions of every column: README.md in this folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from emulation.cli.outcomes import EXIT_USAGE, outcomes, stop
from emulation.cli.runs.hosts import hosts
from emulation.cli.start.completion import method_names
from switchagg.dataplane.plane_kinds import DATAPLANES

if TYPE_CHECKING:
    from emulation.experiments.bench.bench_run import BenchMatrix

app = typer.Typer(
    name="bench",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Measure planes, numbers and allreduce beside their baselines, and show what limited each figure.",
)

app.command()(hosts)

T = TypeVar("T")

Out = Annotated[Path, typer.Option(help="Folder of the results")]
OUT = Path("results/bench")
Quick = Annotated[bool, typer.Option("--quick", help="Few sizes and operations: does everything work?")]


WorkersOption = Annotated[list[int] | None, typer.Option("--workers", min=2, max=64, help="Repeat for more")]
RateOption = Annotated[
    list[str] | None, typer.Option(help="Of every link, like 200M or unshaped; repeat for more  [default: 200M]")
]
IterationsOption = Annotated[
    int | None, typer.Option("--iterations", "-n", min=1, help="Per size and method  [default: as many as fit]")
]
MethodsOption = Annotated[
    str,
    typer.Option(
        help="METHOD[@LINK][~CODEC][:VARIANT], with commas, like switch:xdp,gloo:cubic,ring,switch~lanes8+ef",
        autocompletion=method_names,
    ),
]
PLANES = ", ".join(("auto", *(kind.name for kind in DATAPLANES.values() if kind.measured)))
PlaneOption = Annotated[str, typer.Option(help=f"Of a bare `switch`: {PLANES}")]
ControlOption = Annotated[
    list[str] | None,
    typer.Option(help="TCP of a bare host method: best (of cubic and bbr), kernel, or a name; repeat  [default: best]"),
]
ElementsOption = Annotated[
    int | None, typer.Option(min=1, max=16_000, help="int32 values per packet  [default: fill the MTU]")
]
WindowOption = Annotated[int, typer.Option(min=1, max=4096, help="Packets in flight per stream")]
SegmentsOption = Annotated[
    int | None,
    typer.Option(min=1, max=64, help="Packets per send of the switch's workers  [default: a burst of the links]"),
]

LossOption = Annotated[
    float | None, typer.Option(min=0, max=0.5, metavar="SHARE", help="Of packets, on each link and way (BPF)")
]
RacksOption = Annotated[int, typer.Option(min=0, max=32, help="With a switch each, below one; 0: one switch")]
UpLinksOption = Annotated[float, typer.Option(min=1, max=64, help="Of the racks' up-links")]


@app.command()
def allreduce(
    workers: WorkersOption = None,
    rate: RateOption = None,
    least: Annotated[str, typer.Option("--min-bytes", "-b", help="Smallest size")] = "4K",
    most: Annotated[str, typer.Option("--max-bytes", "-e", help="Largest size")] = "16M",
    factor: Annotated[float, typer.Option("--factor", "-f", help="From one size to the next")] = 16.0,
    sizes: Annotated[str | None, typer.Option(help="Instead: sizes, separated by commas")] = None,
    iterations: IterationsOption = None,
    warmup: Annotated[int, typer.Option("--warmup", "-w", min=0, help="Operations before each block")] = 1,
    dtype: Annotated[str, typer.Option(help="float32 or int32")] = "float32",
    methods: MethodsOption = "switch,gloo,ring",
    dataplane: PlaneOption = "auto",
    congestion_control: ControlOption = None,
    elements: ElementsOption = None,
    window: WindowOption = 256,
    segments: SegmentsOption = None,
    mtu: Annotated[int, typer.Option(min=576, max=65_535, help="Of every link, in bytes")] = 1500,
    seconds: Annotated[float, typer.Option(min=0.01, max=600, help="Per size and method, without -n")] = 1.0,
    loss: LossOption = None,
    racks: RacksOption = 0,
    oversubscription: UpLinksOption = 1.0,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also as JSON")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for allreduce.json and its figures")] = None,
) -> None:
    """Allreduce on emulated links, by each method in turn: a table with nccl-tests' columns.

    **Examples**

    `switchagg bench allreduce`

    `switchagg bench allreduce --workers 8 --rate 1G --sizes 25MB --methods switch:native,switch:reference,gloo`

    `switchagg bench allreduce --methods switch,switch@zeromq,ring,ring@zeromq,ps,tree,gloo --sizes 64K,4MB`

    A plain user gets a namespace, in which some limits of TCP stay. Definitions: emulation/experiments/bench/README.md
    """
    with outcomes(f"the same command goes on from the networks in {out}/cells" if out else ""):
        from emulation.experiments.bench import bandwidths, bench_run
        from emulation.experiments.bench.allreduce.allreduce_cells import OperationPace
        from emulation.testbed.mininet.launch import BY_LINKS
        from emulation.testbed.netns import run_in_user_namespace

        run_in_user_namespace()  # a plain user becomes root of a namespace, where that is allowed
        matrix = bench_run.BenchMatrix(
            workers or [4],
            [_parsed("--rate", bandwidths.parse_rate, text) for text in rate or ["200M"]],
            _sizes(least, most, factor, sizes),
            methods,
            dataplane,
            congestion_control or ["best"],
            dtype,
            elements,
            window,
            mtu,
            segments,
            iterations or 0,
            warmup,
            OperationPace(seconds),
            loss or 0.0,
            None if loss is None else BY_LINKS,
            racks,
            oversubscription,
        )
        _measure(matrix, json_file, out)


def _measure(matrix: BenchMatrix, json_file: Path | None, out: Path | None) -> None:
    """Measures the networks of a matrix, prints and writes what was measured. Raises ScenarioError, RunFailed."""
    from emulation.experiments.bench import bench_run, document, text_table
    from emulation.experiments.cells import CELLS, CellStore, version
    from emulation.scenario.errors import RunFailed

    requests = matrix.requests()
    targets = [path for path in (json_file, out and out / "allreduce.json") if path is not None]
    for target in targets:
        bench_run.require_folder(target.parent)
    store, load = CellStore(out and out / CELLS), document.MachineLoad()
    networks = bench_run.run_allreduce(requests, _log, text_table.TablePrinter(typer.echo), store)
    content = bench_run.documented({"allreduce": networks}, load.measures())
    for target in targets:
        document.write(target, content)
    for path in bench_run.draw(content, out) if out is not None else ():
        _log(str(path))
    if failed := document.failures({"allreduce": networks}, ("allreduce",))[0]:
        raise RunFailed("; ".join(failed))
    store.clear(version("bench"))


@app.command()
def planes(quick: Quick = False, out: Out = OUT) -> None:
    """Data planes and endpoints in memory: ns per packet, packets/s, elements/s."""
    _part("planes", quick, out)


@app.command()
def numbers(quick: Quick = False, out: Out = OUT) -> None:
    """Codecs, fixed point and lanes, beside a copy of the same array: GB/s on one core."""
    _part("numbers", quick, out)


def _moved(name: str, instead: str) -> None:
    """A command of earlier versions: hidden from the help, and refused with what took its place."""

    @app.command(name, hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
    def refuse() -> None:
        stop(f"bench {name}: it is measured by {instead}", EXIT_USAGE)


for _name, _instead in (
    ("all", "`make bench` in a checkout"),
    ("matrix", "`make bench ARGS=allreduce` in a checkout; one network by `switchagg bench allreduce`"),
    ("unshaped", "`switchagg bench allreduce --rate unshaped`"),
    ("codecs", "`switchagg bench allreduce --methods switch,switch~lanes8,gloo~bf16`"),
    ("loss", "`switchagg bench allreduce --loss 0.01`"),
    ("racks", "`switchagg bench allreduce --racks 2 --oversubscription 4`"),
):
    _moved(_name, _instead)


@app.command()
def figures(
    file: Annotated[Path, typer.Argument(help="What a benchmark has written")] = OUT / "bench.json",
) -> None:
    """Draw the figures again from a file of results."""
    with outcomes():
        from emulation.experiments.bench import bench_run, document

        for path in bench_run.draw(document.read(file), file.parent):
            typer.echo(str(path))


@app.command()
def fidelity(
    scenario: Annotated[
        str | None, typer.Argument(help="Its methods for Mininet  [default: transports, every method over every link]")
    ] = None,
    setting: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As of a sweep")] = None,
    only: Annotated[str, typer.Option(metavar="TEXT", help="Run only those whose title has this in it")] = "",
    again: Annotated[bool, typer.Option("--again", help="Measure again what was certified INVALID")] = False,
    jobs: Annotated[int, typer.Option(min=0, max=1024, help="Processes in virtual time; 0: one on each core")] = 0,
    hosts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Of `switchagg calibrate`: predict with its costs, too")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs and of what comes of them")] = Path("results/fidelity"),
    docs: Annotated[Path | None, typer.Option(help="Folder with the page fidelity.md, for the results")] = None,
) -> None:
    """Virtual time held to Mininet: the same scenario in both, predicted beside measured communication time.

    Each run is kept in OUT/cells; what is there isn't run again. Nearly an hour in Mininet by default, at 100 and
    200 Mb/s, on a machine with nothing else to do: runs that were disturbed are certified INVALID, and kept apart.
    fidelity.json, a figure and a table are made of all pairs that are there.

    **Examples**

    `switchagg bench fidelity --docs docs/results`

    `switchagg bench fidelity --only switch`

    `switchagg bench fidelity --hosts results/hosts.toml`

    `switchagg bench fidelity quickstart --set 'sweep.topology.rate_bps=[100e6, 200e6]'`
    """
    with outcomes(f"the same command goes on from the runs in {out}/cells"):
        from emulation.cli.compare_console import overrides
        from emulation.experiments.bench import calibration
        from emulation.experiments.bench import time_fidelity as held
        from emulation.experiments.bench.bench_run import require
        from emulation.scenario import scenario as scenarios
        from emulation.testbed.netns import run_in_user_namespace

        tables = calibration.load(hosts) if hosts is not None else {}
        run_in_user_namespace()
        require()
        path, settings = scenarios.find(scenario or held.SCENARIO), overrides(None, setting or [])
        if scenario is None:
            settings = {"methods.mininet": held.every(), "sweep.topology.rate_bps": list(held.RATES_BPS), **settings}
        plan = held.planned(scenarios.load(path, settings), scenarios.load_variants(path, settings), out, tables)
        held.run(plan, only, again, jobs, _log)
        built = held.document(plan)
        for line in [*held.lines(built), *map(str, held.write(built, out, docs))]:
            typer.echo(line)


def _part(name: str, quick: bool, out: Path) -> None:
    with outcomes():
        from emulation.experiments.bench import bench_run, text_table

        printer = text_table.TablePrinter(typer.echo)
        for line in bench_run.run({name: bench_run.MEASURES[name]}, quick, out, _log, typer.echo, printer):
            typer.echo(line)


def _log(text: str) -> None:
    typer.echo(text, err=True)


def _sizes(least: str, most: str, factor: float, listed: str | None) -> list[int]:
    from emulation.experiments.bench import bandwidths

    if listed is not None:
        return sorted({_parsed("--sizes", bandwidths.parse_size, word) for word in listed.split(",")})
    smallest = _parsed("--min-bytes", bandwidths.parse_size, least)
    largest = _parsed("--max-bytes", bandwidths.parse_size, most)
    return _parsed("--min-bytes, --max-bytes, --factor", lambda _: bandwidths.sizes(smallest, largest, factor), "")


def _parsed(option: str, parse: Callable[[str], T], text: str) -> T:
    """A value, or one line and exit code 2."""
    from emulation.scenario.scenario import ScenarioError

    try:
        return parse(text)
    except ValueError as error:
        raise ScenarioError(f"{option}: {error}") from error
