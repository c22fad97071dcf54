"""`switchagg bench …`: measurements beside their baselines. Columns: emulation/experiments/bench/README.md."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from emulation.cli.command_group import CommandGroup
from emulation.cli.outcomes import outcomes
from emulation.cli.progress import say
from emulation.cli.runs.hosts import hosts
from emulation.cli.start.completion import method_names
from switchagg.dataplane.plane_kinds import DATAPLANES

if TYPE_CHECKING:
    from emulation.experiments.bench.bench_run import BenchMatrix

app = typer.Typer(
    name="bench",
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Measure data planes, codecs and allreduce beside baselines.",
)

app.command()(hosts)

T = TypeVar("T")

Out = Annotated[Path, typer.Option(help="Folder for the results")]
OUT = Path("results/bench")
Quick = Annotated[bool, typer.Option("--quick", help="Few sizes and operations, to see whether everything works")]

NETWORK, METHODS, SIZES, PACKETS = (
    partial(typer.Option, rich_help_panel=panel) for panel in ("Network", "Methods", "Sizes and operations", "Packets")
)
PLANES = ", ".join(("auto", *(kind.name for kind in DATAPLANES.values() if kind.measured)))
METHODS_HELP = "METHOD[@LINK][~CODEC][:VARIANT], with commas, like switch:xdp,gloo:cubic,ring,switch~lanes8+ef"
CONTROL = METHODS(
    help="TCP of a host method without a variant: best (of cubic and bbr), kernel, or a name; may be repeated  "
    "[default: best]"
)
RATE = NETWORK(help="Rate of every link, like 200M or unshaped; may be repeated  [default: 200M]")
LOSS = NETWORK(min=0, max=0.5, metavar="SHARE", help="Share of packets lost on each link and way (BPF)")
ITERATIONS = SIZES("--iterations", "-n", min=1, help="Operations per size and method  [default: as many as fit]")
SECONDS = SIZES(min=0.01, max=600, help="Time for each size and method, without -n")
SEGMENTS = PACKETS(
    min=1, max=64, help="Packets per send of the switch's workers  [default: a burst that the links hold]"
)


@app.command()
def allreduce(
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="File for the rows as JSON")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for allreduce.json and its figures")] = None,
    methods: Annotated[str, METHODS(help=METHODS_HELP, autocompletion=method_names)] = "switch,gloo,ring",
    dataplane: Annotated[str, METHODS(help=f"Data plane of `switch` without a variant: {PLANES}")] = "auto",
    congestion_control: Annotated[list[str] | None, CONTROL] = None,
    least: Annotated[str, SIZES("--min-bytes", "-b", help="Smallest size")] = "4K",
    most: Annotated[str, SIZES("--max-bytes", "-e", help="Largest size")] = "16M",
    factor: Annotated[float, SIZES("--factor", "-f", help="Factor from one size to the next")] = 16.0,
    sizes: Annotated[str | None, SIZES(help="These sizes instead, separated by commas")] = None,
    iterations: Annotated[int | None, ITERATIONS] = None,
    warmup: Annotated[int, SIZES("--warmup", "-w", min=0, help="Operations before each block")] = 1,
    seconds: Annotated[float, SECONDS] = 1.0,
    dtype: Annotated[str, SIZES(help="float32 or int32")] = "float32",
    workers: Annotated[list[int] | None, NETWORK(min=2, max=64, help="Ranks; may be repeated  [default: 4]")] = None,
    rate: Annotated[list[str] | None, RATE] = None,
    mtu: Annotated[int, NETWORK(min=576, max=65_535, help="MTU of every link, in bytes")] = 1500,
    loss: Annotated[float | None, LOSS] = None,
    racks: Annotated[int, NETWORK(min=0, max=32, help="Racks, each with a switch below one; 0 means one switch")] = 0,
    oversubscription: Annotated[float, NETWORK(min=1, max=64, help="Oversubscription of the racks' up-links")] = 1.0,
    elements: Annotated[
        int | None, PACKETS(min=1, max=16_000, help="int32 values per packet  [default: what fills the MTU]")
    ] = None,
    window: Annotated[int, PACKETS(min=1, max=4096, help="Packets in flight per stream")] = 256,
    segments: Annotated[int | None, SEGMENTS] = None,
) -> None:
    """Measure allreduce on emulated links by each method in turn: a table with nccl-tests' columns.

    **Examples**

    `switchagg bench allreduce`

    `switchagg bench allreduce --workers 8 --rate 1G --sizes 25MB --methods switch:native,switch:reference,gloo`

    `switchagg bench allreduce --methods switch,switch@zeromq,ring,ring@zeromq,ps,tree,gloo --sizes 64K,4MB`

    A user without root gets a namespace, in which some limits of TCP stay. The columns are defined in
    emulation/experiments/bench/README.md.
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
    networks = bench_run.run_allreduce(requests, say, text_table.TablePrinter(typer.echo), store)
    content = document.build({"allreduce": networks}, document.machine(), load.measures(), quick=False)
    for target in targets:
        document.write(target, content)
    for path in bench_run.draw(content, out) if out is not None else ():
        say(str(path))
    if failed := document.failures({"allreduce": networks}, ("allreduce",))[0]:
        raise RunFailed("; ".join(failed))
    store.clear(version("bench"))


@app.command()
def planes(quick: Quick = False, out: Out = OUT) -> None:
    """Measure data planes and endpoints in memory: ns per packet, packets/s, elements/s.

    **Example**

    `switchagg bench planes --quick`
    """
    _part("planes", quick, out)


@app.command()
def codecs(quick: Quick = False, out: Out = OUT) -> None:
    """Measure codecs beside a copy of the same array: GB/s on one core.

    **Example**

    `switchagg bench codecs --quick`
    """
    _part("numbers", quick, out)


@app.command()
def figures(
    file: Annotated[Path, typer.Argument(help="File that a benchmark has written")] = OUT / "bench.json",
) -> None:
    """Draw the figures again from a file of results.

    **Example**

    `switchagg bench figures results/bench/bench.json`
    """
    with outcomes():
        from emulation.experiments.bench import bench_run, document

        for path in bench_run.draw(document.read(file), file.parent):
            typer.echo(str(path))


@app.command()
def fidelity(
    scenario: Annotated[
        str | None,
        typer.Argument(help="Scenario whose methods are run  [default: transports, with every method over every link]"),
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As with switchagg sweep")
    ] = None,
    only: Annotated[str, typer.Option(metavar="TEXT", help="Run only what has this text in its title")] = "",
    again: Annotated[bool, typer.Option("--again", help="Measure again what was certified INVALID")] = False,
    jobs: Annotated[int, typer.Option(min=0, max=1024, help="Processes in virtual time; 0 means one on each core")] = 0,
    hosts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File of `switchagg calibrate`, with whose costs it predicts, too"),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the runs and the results")] = Path("results/fidelity"),
    docs: Annotated[Path | None, typer.Option(help="Folder with the page fidelity.md, which gets the results")] = None,
) -> None:
    """Compare virtual time with Mininet: predicted beside measured communication time of the same scenario.

    By default it takes nearly an hour in Mininet, at 100 and 200 Mb/s, on a machine with nothing else to do: disturbed
    runs are certified INVALID, and kept apart. Each run is kept in OUT/cells and isn't run again. fidelity.json, a
    figure and a table are made of all pairs that are there.

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
        held.run(plan, only, again, jobs, say)
        built = held.document(plan)
        for line in [*held.lines(built), *map(str, held.write(built, out, docs))]:
            typer.echo(line)


def _part(name: str, quick: bool, out: Path) -> None:
    with outcomes():
        from emulation.experiments.bench import bench_run, text_table

        printer = text_table.TablePrinter(typer.echo)
        for line in bench_run.run({name: bench_run.MEASURES[name]}, quick, out, say, typer.echo, printer):
            typer.echo(line)


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
