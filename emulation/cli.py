"""The command `switchagg`. Each command imports what it needs when it runs, so that --help answers at once.

Exit codes: 0 done; 1 could not do its work (one line says why and the remedy); 2 wrong usage or scenario; 3 done, but a
fidelity certificate is INVALID; 130 interrupted.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

try:
    import typer
except KeyboardInterrupt:  # nothing has been started yet
    sys.stderr.write("switchagg: interrupted\n")
    sys.exit(130)

if TYPE_CHECKING:
    from emulation.compare import Comparison
    from emulation.scenario import Scenario
    from switchagg.dataplane.self_test import Choice
    from transport.impairments import Impairments

from emulation.bench.cli import app as bench

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INVALID = 3
EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="switchagg",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


app.add_typer(bench)


@app.callback()
def _describe() -> None:
    """Gradient aggregation in the network, for anyone with a Linux box.

    **First steps**

    `switchagg doctor` : what can this machine do?

    `switchagg compare quickstart` : train through the switch and over host allreduce; a table and a report

    `switchagg switch` : run a switch for real workers: `init_process_group("switchagg")`
    """


def stop(message: str, code: int) -> NoReturn:
    """One line on stderr, then exit."""
    typer.echo(f"switchagg: {message}", err=True)
    raise typer.Exit(code)


@contextmanager
def outcomes() -> Iterator[None]:
    """Turns what may go wrong into one line and an exit code.

    SIGTERM, and SIGHUP from a terminal that goes, are treated like Ctrl-C: what was started is ended.
    """
    from emulation.results import RunFailed
    from emulation.scenario import ScenarioError
    from switchagg.errors import SwitchaggError

    heard = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, _interrupt) for number in heard}  # `nohup` stays what it is
    try:
        yield
    except ScenarioError as error:
        stop(str(error), EXIT_USAGE)
    except (RunFailed, SwitchaggError) as error:
        stop(str(error), EXIT_FAILED)
    except KeyboardInterrupt:
        stop("interrupted; everything it had started is stopped", EXIT_INTERRUPTED)
    except OSError as error:  # a full disk, a file that is in the way
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        stop(f"{what}; nothing it had started is left", EXIT_FAILED)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in {"emulation", "transport", "switchagg"}:
            raise  # a fault of ours, not of the installation
        stop(f"the Python package '{error.name}' is missing; run: pip install 'switchagg[emulation]'", EXIT_FAILED)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


@app.command()
def compare(
    scenario: Annotated[str, typer.Argument(help="A scenario file, or the name of a shipped one: quickstart")],
    on: Annotated[str | None, typer.Option(metavar="mininet|sim", help="Default: mininet where it can run")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results  [default: results/NAME]")] = None,
    seed: Annotated[int | None, typer.Option(help="Instead of the scenario's seed")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Instead of the scenario's value")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Summary as JSON on stdout")] = False,
) -> None:
    """Run one scenario with each of its methods; write results.json, report.html and figures.

    **Examples**

    `switchagg compare quickstart`

    `switchagg compare quickstart --on sim --set topology.rate_bps=10e9`

    `sudo switchagg compare mine.toml --on mininet --out results/mine --seed 3`

    **Exit code**: 0 done, 1 failed, 2 wrong scenario or usage, 3 done but certified INVALID.
    """
    with outcomes():
        from emulation import compare as comparing
        from emulation import scenario as scenarios

        if on is not None and on not in scenarios.BACKENDS:
            raise scenarios.ScenarioError(f"--on: '{on}' is unknown; allowed: {', '.join(scenarios.BACKENDS)}")
        loaded = scenarios.load(scenarios.find(scenario), _overrides(seed, setting or []))
        if on == "mininet":
            from emulation.netns import run_in_user_namespace

            run_in_user_namespace()  # a plain user becomes root of a namespace, where that is allowed
        backend, reason = comparing.choose_backend(loaded, on)
        plane = comparing.choose_plane(loaded, backend)
        _announce(loaded, backend, reason, plane)
        folder = out or Path("results") / loaded.name
        with _progress() as progress:
            done = comparing.compare(
                loaded, backend, folder, progress, command=["switchagg", *sys.argv[1:]], plane=plane
            )
        if as_json:
            typer.echo(json.dumps(_summary(done), sort_keys=True))
        else:
            _print_table(done)
        _finish(done)


def _overrides(seed: int | None, settings: list[str]) -> dict[str, Any]:
    """Command-line values by dotted key; a value is read as TOML, so `10e9`, `true` and `"text"` mean what they say."""
    import tomllib

    from emulation.scenario import ScenarioError

    found: dict[str, Any] = {} if seed is None else {"seed": seed}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise ScenarioError(f"--set {setting}: not understood; allowed: TABLE.KEY=VALUE, like topology.workers=8")
        try:
            found[key.strip()] = tomllib.loads(f"value = {text.strip()}")["value"]
        except (ValueError, RecursionError):
            found[key.strip()] = text.strip()  # a bare word: name=text
    return found


def _announce(scenario: Scenario, backend: str, reason: str, plane: Choice | None) -> None:
    methods = " and ".join(scenario.methods_for(backend))
    where = "Mininet (real time)" if backend == "mininet" else "virtual time (sim)"
    typer.echo(f"{scenario.title}\n{methods} in {where}: {reason}", err=True)
    if plane is not None:
        typer.echo(f"data plane of the switch: {plane}", err=True)


@contextmanager
def _progress() -> Iterator[Any]:
    """A progress callback: bars on a terminal, plain lines elsewhere. Everything goes to stderr."""
    from emulation.progress import bars, lines

    with bars() if sys.stderr.isatty() else lines() as report:
        yield report


def _summary(done: Comparison) -> dict[str, Any]:
    built = done.document
    return {
        "scenario": built["scenario"]["name"],
        "backend": built["backend"],
        "valid": built["valid"],
        "results": str(done.folder / "results.json"),
        "report": str(done.report),
        "methods": {
            entry["method"]: {**entry["summary"], "comparison": entry["comparison"]} for entry in built["methods"]
        },
    }


def _print_table(done: Comparison) -> None:
    from rich.console import Console
    from rich.table import Table

    from emulation import wording
    from emulation.report import table_rows

    built = done.document
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for entry in built["methods"]:
        table.add_column(wording.METHOD_NAMES[entry["method"]])
    for label, cells in table_rows(built):
        table.add_row(label, *(f"{value}  [dim]({note})[/dim]" if note else value for value, note in cells))
    console = Console(width=None if sys.stdout.isatty() else 130, highlight=False, soft_wrap=False)
    console.print()
    console.print(table)
    doubt = "INVALID, what was measured nevertheless: " if built["valid"] is False else ""
    console.print(f"\n{doubt}{wording.headline(built)}", soft_wrap=True)
    if any(entry["comparison"] and entry["comparison"]["beyond_bound"] for entry in built["methods"]):
        for sentence in wording.explanations(built):  # the table says "see below"
            console.print(sentence, soft_wrap=True)


def _finish(done: Comparison) -> None:
    """Last lines: certificate, report, problems. Exits with 1 or 3 where there is a problem."""
    from emulation.compare import problems

    built = done.document
    verdict = {None: "none needed in virtual time", True: "VALID", False: "INVALID: do not use these times"}
    typer.echo(f"Certificate: {verdict[built['valid']]}", err=True)
    typer.echo(f"Report: {done.report}", err=True)
    for problem in problems(built):
        typer.echo(f"switchagg: {problem}", err=True)
    if not all(entry["summary"]["parameters_identical"] for entry in built["methods"]):
        raise typer.Exit(EXIT_FAILED)
    if built["valid"] is False:
        raise typer.Exit(EXIT_INVALID)


@app.command()
def switch(
    control: Annotated[str, typer.Option(help="Address workers join at")] = "tcp://0.0.0.0:5555",
    data: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address of the data plane (UDP)")] = "0.0.0.0:5556",
    dataplane: Annotated[
        str, typer.Option(help="auto (the fastest that works here), native, batched, reference; xdp: in the kernel")
    ] = "auto",
    interface: Annotated[
        list[str] | None, typer.Option(help="For xdp: where to attach, may be repeated  [default: by --data]")
    ] = None,
    impair: Annotated[
        str | None,
        typer.Option(metavar="WORDS", help="For native (xdp: loss): bad links, both ways, like loss=1%,delay=1ms"),
    ] = None,
    impair_up: Annotated[
        str | None, typer.Option(metavar="WORDS", help="The same for the way from the workers, on top of --impair")
    ] = None,
    impair_down: Annotated[
        str | None, typer.Option(metavar="WORDS", help="The same for the way to the workers, on top of --impair")
    ] = None,
    slots: Annotated[int, typer.Option(min=1, max=65_536, help="Slots for all jobs together")] = 4096,
    elements: Annotated[
        int, typer.Option(min=1, max=16_000, help="Most int32 values in a packet; 360 fill an MTU of 1500")
    ] = 360,
    advertise: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Data address told to workers, if it isn't the one they see")
    ] = None,
    lease: Annotated[
        float, typer.Option(min=1, max=3600, help="Seconds of silence after which a worker is dead")
    ] = 4.0,
    ready_file: Annotated[Path | None, typer.Option(help="Written once the switch answers")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing about jobs")] = False,
) -> None:
    """Run a switch on this host until Ctrl-C. Workers need only its address.

    **Examples**

    `switchagg switch`

    `switchagg switch --control tcp://10.0.0.1:7000 --data 10.0.0.1:7001`

    `sudo switchagg switch --dataplane xdp --data 10.0.0.1:5556 --interface eth0`

    `switchagg switch --impair "rate=200mbit,delay=1ms,jitter=100us,queue=1mb,ecn=200kb" --impair-down loss=1%`

    On the workers: `SWITCHAGG_SWITCH=tcp://10.0.0.1:5555 torchrun ... train.py`

    **Words of --impair**: loss, duplicate, reorder, corrupt (probability per packet), delay, jitter, span (how late
    reordered packets are), rate, queue, ecn (marks above so many bytes), seed
    """
    with outcomes():
        from emulation.scenario import DATAPLANES
        from transport.daemon import run_switch

        if dataplane not in DATAPLANES:
            stop(f"--dataplane {dataplane}: unknown; allowed: {', '.join(DATAPLANES)}", EXIT_USAGE)
        _check_endpoint("--control", control)
        status = run_switch(
            control,
            _host_port("--data", data),
            dataplane=dataplane,
            slots=slots,
            elements=elements,
            advertise=None if advertise is None else _host_port("--advertise", advertise),
            lease_s=lease,
            interfaces=interface,
            impairments=_impairments(impair, impair_up, impair_down),
            ready_file=ready_file,
            quiet=quiet,
        )
    raise typer.Exit(status)


def _impairments(both: str | None, up: str | None, down: str | None) -> Impairments | None:
    """None if none are asked for."""
    from switchagg.errors import JobError
    from transport.impairments import parse_impairments

    if both is None and up is None and down is None:
        return None
    try:
        return parse_impairments(both or "", up or "", down or "")
    except JobError as error:
        stop(f"--impair: {error}", EXIT_USAGE)


def _host_port(option: str, text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        stop(f"{option} {text}: not understood; allowed: HOST:PORT, like 0.0.0.0:5556", EXIT_USAGE)
    return host, int(port)


def _check_endpoint(option: str, text: str) -> None:
    from switchagg.errors import JobError
    from transport.addresses import parse_endpoint

    try:
        parse_endpoint(text)
    except JobError:
        stop(f"{option} {text}: not understood; allowed: tcp://HOST:PORT, like tcp://0.0.0.0:5555", EXIT_USAGE)


@app.command()
def status(
    address: Annotated[str, typer.Argument(metavar="SWITCH", help="tcp://HOST:PORT")] = "tcp://127.0.0.1:5555",
    job: Annotated[str | None, typer.Option(help="Also its slots: which ranks each chunk has been seen from")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON on stdout")] = False,
) -> None:
    """Ask a running switch for its jobs, members and counters.

    **Examples**

    `switchagg status tcp://10.0.0.1:5555`

    `switchagg status tcp://10.0.0.1:5555 --job train` : who is the job waiting for?
    """
    with outcomes():
        import msgspec

        from emulation.status import status_lines
        from transport.control import query_status

        _check_endpoint("SWITCH", address)
        answer = query_status(address, job)
        if as_json:
            typer.echo(json.dumps(msgspec.to_builtins(answer), sort_keys=True))
        else:
            typer.echo("\n".join(status_lines(answer)))
        if job is not None and job not in {running.name for running in answer.jobs} | set(answer.waiting):
            stop(f"{address}: no job {job!r} runs or waits there", EXIT_FAILED)


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON on stdout")] = False,
) -> None:
    """Say what this machine can do, what is missing, and how to get it.

    **Exit code**: 1 if something is missing that every run needs, else 0.
    """
    with outcomes():
        from emulation.doctor import run_doctor

        code = run_doctor(json_wanted=as_json)
    raise typer.Exit(code)


@app.command()
def scenarios() -> None:
    """List the shipped scenarios, ready for `switchagg compare NAME`."""
    with outcomes():
        from emulation.scenario import load, shipped

        for name, path in shipped().items():
            typer.echo(f"{name:<12} {load(path).title}")


_ClickError: Any = typer.BadParameter.mro()[2]  # click's own base of usage errors, wherever typer keeps click


def main() -> None:
    """Entry point of the console script. Wrong usage is one line too, where typer would draw a box."""
    try:
        code = app(prog_name="switchagg", standalone_mode=False)
    except _ClickError as error:
        if len(sys.argv) == 1:  # the message is the whole help
            error.show()
        else:
            words = " ".join(error.format_message().split()).rstrip(".")
            sys.stderr.write(f"switchagg: {words} (see {_asked(error)} --help)\n")
        sys.exit(EXIT_USAGE)
    except KeyboardInterrupt:
        sys.stderr.write("switchagg: interrupted\n")
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(code)


def _asked(error: Any) -> str:
    """The command that was given wrong arguments."""
    return str(error.ctx.command_path) if getattr(error, "ctx", None) is not None else "switchagg"


if __name__ == "__main__":
    main()
