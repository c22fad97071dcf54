"""The commands of `python -m tools.bench`."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from emulation.cli.outcomes import known, outcomes
from emulation.cli.progress import say
from emulation.experiments.bench import bandwidths, bench_run, document, text_table
from emulation.results.results import write_json
from emulation.testbed.netns import run_in_user_namespace

app = typer.Typer(no_args_is_help=True, help="Micro-benchmarks of our own parts.")

Quick = Annotated[bool, typer.Option("--quick", help="Few sizes and turns")]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also as JSON")]


@app.command()
def collectives(quick: Quick = False, json_file: Json = None) -> None:
    """Reduce-scatter and all-gather in real processes, alone and at once: what FSDP2 sends."""
    from tools.bench import sharding_times

    bench_run.require()
    _show(sharding_times, quick, json_file)


@app.command()
def links(quick: Quick = False, json_file: Json = None) -> None:
    """Messages one way over a veth pair: ZeroMQ beside plain pyzmq, TCP, UDP, and RDMA writes beside plain UDP."""
    from tools.bench import one_way

    bench_run.require()
    _show(one_way, quick, json_file)


@app.command()
def p4(quick: Quick = False, json_file: Json = None) -> None:
    """The P4 engine: packets in memory and on veth, time to ready; beside bmv2 where it is installed."""
    from tools.bench import p4_engine

    _show(p4_engine, quick, json_file)


@app.command()
def engine(
    quick: Quick = False,
    json_file: Json = None,
    docs: Annotated[Path | None, typer.Option(help="Folder with the page engine.md, for the results")] = None,
) -> None:
    """The packet engine of virtual time: packets on links per second of one core; time and memory
    against events, 4 to 1,024 workers."""
    from tools.bench import engine_page, packet_engine

    part = _show(packet_engine, quick, json_file)
    for path in engine_page.write(part, docs) if docs else ():
        typer.echo(str(path))


@app.command()
def where(
    workers: Annotated[int, typer.Option(min=2, max=64)] = 4,
    rate: Annotated[str, typer.Option(help="Of every link, like 200M or unshaped")] = "unshaped",
    size: Annotated[str, typer.Option(help="Of a rank's array")] = "25MB",
    dtype: Annotated[str, typer.Option(help="float32 or int32")] = "float32",
    seconds: Annotated[float, typer.Option(min=0.1, max=30, help="Of operations and the checks between them")] = 10.0,
    functions: Annotated[int, typer.Option(min=0, max=1000, help="How many functions of the kernel")] = 20,
    codec: Annotated[str, typer.Option(help="Of the values, like lanes8  [default: fixed point]")] = "",
) -> None:
    """Where the CPU time of a packet goes, at a worker and at the switch, by part and by function of the kernel."""
    from tools.bench import packet_cpu

    bench_run.require()
    method = f"switch~{codec}:native" if codec else "switch:native"
    rates, sizes = [bandwidths.parse_rate(rate)], [bandwidths.parse_size(size)]
    request = bench_run.BenchMatrix([workers], rates, sizes, method, dtype=dtype).requests()[0]
    typer.echo("\n".join(packet_cpu.lines(packet_cpu.measure(request, seconds, say), functions)))


@app.command()
def killed_training(
    out: Annotated[Path, typer.Option(help="The figure, a PNG")] = Path("killed-training.png"),
    steps: Annotated[int, typer.Option(min=100, help="Of each training")] = 800,
    lease: Annotated[float, typer.Option(min=1, help="Of the switches, in seconds")] = 1.0,
) -> None:
    """A training whose switch is killed three times beside an undisturbed one, on loopback: no loss may differ in a
    bit; the losses of both by time and by step as a figure."""
    from tools.bench.killed_training import measure, write

    with outcomes():
        write(measure(steps, lease, say), out)
    typer.echo(str(out))


@app.command()
def suite(
    part: Annotated[list[str] | None, typer.Argument(metavar="[PART]...", help="[default: all]")] = None,
    quick: Quick = False,
    out: Annotated[Path, typer.Option(help="Folder of the results")] = Path("results/bench"),
    figures: Annotated[bool, typer.Option("--figures", help="Draw the figures again, measure nothing")] = False,
) -> None:
    """The benchmark of `make bench`: planes, numbers, unshaped, codecs, loss, racks, verified, exact, allreduce; the
    same command goes on where it was interrupted. A quick one that names no part has some of them, and says which."""
    from tools.bench.suite import MINUTES, PARTS, QUICK_PARTS
    from tools.bench.suite_figures import FIGURES

    def draw(built: dict[str, Any], folder: Path) -> list[Path]:
        return bench_run.draw(built, folder, FIGURES)

    if figures:
        for path in draw(document.read(out / "bench.json"), out):
            typer.echo(str(path))
        return
    for name in part or ():
        known("part", name, PARTS)
    names = part or (QUICK_PARTS if quick else tuple(PARTS))
    measures = {name: PARTS[name] for name in PARTS if name in names}
    if measures.keys() - bench_run.MEASURES.keys():
        bench_run.require()
    minutes = sum(MINUTES[name][0 if quick else 1] for name in measures)
    say(f"{', '.join(measures)}: about {minutes:.0f} minutes; results in {out}")
    if quick and not part:
        absent = ", ".join(name for name in PARTS if name not in names)
        say(f"quick: few sizes, rates and turns, and without {absent}, which a run has that names them")
    printer = text_table.TablePrinter(typer.echo)
    for line in bench_run.run(measures, quick, out, say, typer.echo, printer, draw):
        typer.echo(line)


def _show(module: ModuleType, quick: bool, json_file: Path | None) -> Any:
    part = module.measure(quick, say)
    if json_file is not None:
        write_json(json_file, part)
    typer.echo("\n".join(module.lines(part)))
    return part


if __name__ == "__main__":
    with outcomes():
        run_in_user_namespace()
        app(prog_name="python -m tools.bench")
