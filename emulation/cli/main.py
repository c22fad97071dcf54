"""The command `switchagg`. Each command imports what it needs when it runs, so that --help answers at once.

Exit codes: 0 done; 1 could not do its work (one line: why, and what to do); 2 wrong usage or scenario; 3 done, but a
fidelity certificate is INVALID; 130 interrupted.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

try:
    import typer
except KeyboardInterrupt:  # nothing has been started yet
    sys.stderr.write("switchagg: interrupted\n")
    sys.exit(130)
except ModuleNotFoundError:  # installed without extras: the protocol alone
    sys.stderr.write("switchagg: the Python package 'typer' is missing; run: pip install 'switchagg[emulation]'\n")
    sys.exit(1)

if TYPE_CHECKING:
    from switchagg.controller.quota import PeerQuota
    from transport.switch.impairments import Impairments

from emulation.cli.bench_commands import app as bench
from emulation.cli.curve_keys import keys as make_keys
from emulation.cli.link_help import LinkCommand
from emulation.cli.outcomes import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, outcomes, renamed_option, stop
from emulation.cli.p4_commands import add_p4
from emulation.cli.report_options import LOG_FORMAT, LOG_LEVEL, METRICS, METRICS_NAMES, event_log, metrics_option
from emulation.cli.runs.calibrate import calibrate
from emulation.cli.runs.chaos_command import chaos
from emulation.cli.runs.goal import goal
from emulation.cli.runs.profile import profile
from emulation.cli.runs.reproduce_command import reproduce
from emulation.cli.runs.whatif import whatif
from emulation.cli.server_command import server
from emulation.cli.start.completion import scenario_names
from emulation.cli.start.init import init
from emulation.cli.start.scenario_command import ReferenceCommand, scenario
from emulation.cli.start.shipped import examples
from emulation.cli.start.version import show_version
from emulation.cli.study import app as study
from emulation.cli.top.top_command import top
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.option_syntax import choices

app = typer.Typer(
    name="switchagg",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


app.add_typer(bench)
add_p4(app)
app.add_typer(study)
app.command("keys")(make_keys)
app.command(cls=LinkCommand)(server)
app.command()(reproduce)
app.command()(whatif)
app.command()(calibrate)
app.command()(goal)
app.command()(top)
app.command()(chaos)
app.command()(init)
app.command()(examples)
app.command(cls=ReferenceCommand)(scenario)
app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})(profile)


@app.callback()
def _describe(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="For a report of a fault, and exit")
    ] = False,
) -> None:
    """Gradient aggregation in the network, for anyone with a Linux box.

    **First steps**

    `switchagg doctor` : what can this machine do?

    `switchagg compare quickstart` : train through the switch and over host allreduce; a table and a report

    `switchagg init` : a scenario and a training script to start from

    `switchagg sweep scale` : the same at several rates, sizes or seeds, on all cores; a table and a page

    `switchagg switch` : run a switch for real workers: `init_process_group("switchagg")`

    `switchagg top` : watch the switch and its jobs

    `switchagg server` : run a parameter server for them

    `switchagg bench hosts` : nccl-tests for your own machines: any method beside Gloo

    `switchagg study codecs` : which codec trains as well as float32, and where it pays

    `switchagg reproduce` : papers' numbers beside ours

    `switchagg whatif TRACE` : what a switch would gain your own run

    `switchagg calibrate` : what packets cost this machine, for virtual time

    `switchagg chaos` : kill workers and switches, cut links, and see what training makes of it
    """


@app.command()
def compare(
    scenario: Annotated[
        str,
        typer.Argument(
            help="A scenario file, or the name of a shipped one (`switchagg scenarios`)", autocompletion=scenario_names
        ),
    ],
    on: Annotated[str | None, typer.Option(metavar="mininet|sim", help="Default: mininet where it can run")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results  [default: results/NAME]")] = None,
    seed: Annotated[int | None, typer.Option(help="Instead of the scenario's seed")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Instead of the scenario's value")
    ] = None,
    fidelity_level: Annotated[
        str | None,
        typer.Option(
            metavar="packet|flow|formula|auto",
            help="Of virtual time: every packet; calls as flows on links; a formula; or the finest that ends --within",
        ),
    ] = None,
    zoom: Annotated[str | None, renamed_option("--zoom", "--fidelity-level")] = None,
    within: Annotated[
        int | None, typer.Option(metavar="SECONDS", help="Of --fidelity-level auto, for each method  [default: 60]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Summary as JSON on stdout")] = False,
) -> None:
    """Run one scenario with each of its methods; write results.json, report.html, timeline.json and figures.

    **Examples**

    `switchagg compare quickstart`

    `switchagg compare quickstart --on sim --set topology.rate_bps=10e9`

    `switchagg compare quickstart --fidelity-level auto --within 20`

    `switchagg compare mine.toml --on mininet --out results/mine --seed 3`

    **Exit code**: 0 done, 1 failed, 2 wrong scenario or usage, 3 done but certified INVALID.
    """
    with outcomes():
        if on == "mininet":
            from emulation.testbed.netns import run_in_user_namespace

            run_in_user_namespace()  # a plain user becomes root of a namespace, where that is allowed
        from emulation.testbed.nursery import Nursery

        with Nursery(["torch"]) as nursery:  # a second of another core, while we read the scenario
            from emulation.cli import compare_console as console
            from emulation.scenario import scenario as scenarios

            console.check_backend(on)
            path, overrides = scenarios.find(scenario), console.overrides(seed, setting or [])
            if fidelity_level is not None or within is not None:
                overrides |= console.fidelity_overrides(fidelity_level, within, on)
                on = "sim"
            loaded = scenarios.load(path, overrides)
            if loaded.sweep.axes:
                keys = ", ".join(f"--set {key}=…" for key, _ in loaded.sweep.axes)
                raise scenarios.ScenarioError(
                    f"{loaded.file}: [sweep] has {len(loaded.sweep.points)} combinations: run `switchagg sweep "
                    f"{scenario}`, or one of them with {keys}"
                )
            folder = out or Path("results") / loaded.name
            status = console.run(loaded, on, folder, ["switchagg", *sys.argv[1:]], as_json, nursery)
    raise typer.Exit(status)


SWEPT = typer.Argument(
    help="A scenario file with a [sweep], or the name of a shipped one", autocompletion=scenario_names
)


@app.command()
def sweep(
    scenario: Annotated[str, SWEPT],
    on: Annotated[str | None, typer.Option(metavar="mininet|sim", help="Default: sim where it is meant for it")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results  [default: results/NAME]")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Instead of the scenario's; may end an axis")
    ] = None,
    jobs: Annotated[int, typer.Option(min=0, max=1024, help="Processes in virtual time; 0: one on each core")] = 0,
    ray: Annotated[bool, typer.Option("--ray", help="On a Ray cluster (RAY_ADDRESS), or this machine by Ray")] = False,
    reports: Annotated[bool, typer.Option(help="A report of each combination; takes seconds each")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="All summaries as JSON on stdout")] = False,
) -> None:
    """Run a scenario with each combination of the values in its [sweep]; write tables, a page and a report of each.

    Every run of one method is kept in OUT/cells, named by all that decides it: scenario, seed, backend, code.
    What is there isn't run again, so an interrupted sweep goes on, and one with more values adds to what is there.

    **In the file**

    `[sweep]`

    `topology.rate_bps = [1e9, 10e9]` : any key of a scenario with a number or a word

    `topology.workers = [4, 8]` : each rate with each number of workers

    `seed = [1, 2, 3]` : the page shows medians over seeds, with their spread

    `zip = [["topology.rate_bps", "topology.workers"]]` : first with first, second with second, instead

    **Examples**

    `switchagg sweep scale`

    `switchagg sweep quickstart --on sim --set 'sweep.topology.rate_bps=[200e6, 1e9]' --set 'sweep.seed=[1, 2, 3]'`

    `RAY_ADDRESS=auto switchagg sweep mine.toml --ray --no-reports`

    **Files in OUT**: results.csv (and results.parquet, with pyarrow), sweep.json, sweep.html, sweep.png, cells/

    **Exit code**: 0 done, 1 failed, 2 wrong scenario or usage, 3 done but a run was certified INVALID.
    """
    remedy = f"the same command goes on from the runs in {out or 'results/NAME'}/cells"
    with outcomes(remedy):
        from emulation.cli import compare_console as console
        from emulation.scenario import scenario as scenarios

        console.check_backend(on)
        path, overrides = scenarios.find(scenario), console.overrides(None, setting or [])
        loaded = scenarios.load(path, overrides)
        if not loaded.sweep.axes:
            raise scenarios.ScenarioError(
                f"{loaded.file}: no key has several values; give some with --set 'sweep.topology.rate_bps=[1e9, 10e9]' "
                f"or in a table [sweep]; a single run: switchagg compare {scenario}"
            )
        if on == "mininet":
            from emulation.testbed.netns import run_in_user_namespace

            run_in_user_namespace()
        status = console.run_sweep(
            loaded,
            scenarios.load_variants(path, overrides),
            on or ("sim" if loaded.methods.sim and not loaded.workload.synchronisation else None),
            out or Path("results") / loaded.name,
            ["switchagg", *sys.argv[1:]],
            console.HowToSweep(jobs, ray, reports, as_json),
        )
    raise typer.Exit(status)


KeysOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Of `switchagg keys`: only holders can connect; encrypts (over {without_keys}: control only)",
    ),
]
PLANES = "; ".join(
    ("auto: the fastest that works here", *(f"{kind.name}: {kind.summary}" for kind in DATAPLANES.values()))
)
ELEMENTS = typer.Option(
    min=1, max=16_000, help="Most int32 values in a packet  [default: {elements}: what fills an MTU of 1500]"
)
PACKETS = typer.Option(
    min=1,
    max=128,
    help="For {messages}: most packets in a message of results; 1 for workers on the kernel's rxe  [default: 16]",
)
CONTROL = typer.Option(help="Address workers join at  [default: tcp://127.0.0.1:5555; with --keys all addresses]")
DATA = typer.Option(
    metavar="HOST:PORT",
    help="Address of the data plane  [default: the host of --control, port 5556 (taken: a free one) or the link's]",
)
INTERFACE = typer.Option(help="For xdp: where to attach, may be repeated  [default: by --data]")
SEGMENTS = typer.Option(min=1, max=64, help="Packets per send: what a shaper's burst holds")
MULTICAST = typer.Option(metavar="INTERFACE", help="Send a result once; at this interface the kernel copies it (BPF)")
ADVERTISE = typer.Option(metavar="HOST:PORT", help="Data address told to workers, if it isn't the one they see")
PEER_QUOTA = typer.Option(
    metavar="QUOTA",
    help="Most for one address, but 127.0.0.1, and of any job (job_slots)  [default: joins=256,jobs=64,slots=half of "
    "--slots]",
)
PARENT = typer.Option(metavar="tcp://HOST:PORT", help="Control address of the switch above: this one is its rack's")
NAME = typer.Option(help="With --parent: what its workers set SWITCHAGG_VIA to  [default: its data address]")
IMPAIR = typer.Option(
    metavar="FAULTS", help="For native (xdp: loss): bad links in both directions, like loss=1%,delay=1ms"
)
IMPAIR_UP = typer.Option(metavar="FAULTS", help="From workers to switch only; adds to or overrides --impair")
IMPAIR_DOWN = typer.Option(metavar="FAULTS", help="From switch to workers only; adds to or overrides --impair")

SWITCH_HELP = """Run a switch on this host until Ctrl-C. Workers need only its address. On SIGTERM it drains.

Without keys it serves this host alone, until you name an address that others reach: then these may forge packets.

**Examples**

`switchagg switch`

`switchagg switch --control tcp://10.0.0.1:5555` : for workers on other hosts

`sudo $(which switchagg) switch --dataplane xdp --control tcp://10.0.0.1:5555 --data 10.0.0.1:5556 --interface eth0`

`switchagg keys keys; switchagg switch --link zeromq --keys keys` : encrypted; the workers need keys too

`switchagg switch --impair "rate=200mbit,delay=1ms,jitter=100us,queue=1mb,ecn=200kb" --impair-down loss=1%`

`switchagg switch --metrics 9464 --log-format json` : counters for Prometheus, on this host; events as lines of JSON

On the workers: `SWITCHAGG_SWITCH=tcp://10.0.0.1:5555 torchrun ... train.py`

**Keys of --impair**: loss, duplicate, reorder, corrupt (per packet), delay, jitter, span (how late reordered ones
are), rate, queue, ecn (marks above so many bytes), seed"""


@app.command(cls=LinkCommand, help=SWITCH_HELP)
def switch(
    control: Annotated[str | None, CONTROL] = None,
    data: Annotated[str | None, DATA] = None,
    link: Annotated[str, typer.Option(help="Transport of the packets: {switch}")] = "udp",
    keys: KeysOption = None,
    packets: Annotated[int | None, PACKETS] = None,
    dataplane: Annotated[str, typer.Option(help=PLANES)] = "auto",
    interface: Annotated[list[str] | None, INTERFACE] = None,
    impair: Annotated[str | None, IMPAIR] = None,
    impair_up: Annotated[str | None, IMPAIR_UP] = None,
    impair_down: Annotated[str | None, IMPAIR_DOWN] = None,
    slots: Annotated[int, typer.Option(min=1, max=65_536, help="Slots for all jobs together")] = 4096,
    elements: Annotated[int | None, ELEMENTS] = None,
    segments: Annotated[int, SEGMENTS] = 16,
    multicast: Annotated[str, MULTICAST] = "",
    parent: Annotated[str | None, PARENT] = None,
    name: Annotated[str, NAME] = "",
    advertise: Annotated[str | None, ADVERTISE] = None,
    peer_quota: Annotated[str | None, PEER_QUOTA] = None,
    lease: Annotated[float, typer.Option(min=1, max=3600, help="A worker silent for so many seconds is dead")] = 4.0,
    drain: Annotated[float, typer.Option(min=0, max=3600, help="On SIGTERM jobs may leave for so many seconds")] = 5.0,
    metrics: Annotated[str | None, METRICS] = None,
    metrics_names: Annotated[bool, METRICS_NAMES] = False,
    log_format: Annotated[str, LOG_FORMAT] = "text",
    log_level: Annotated[str, LOG_LEVEL] = "info",
    ready_file: Annotated[Path | None, typer.Option(help="Written once the switch answers")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Log nothing about jobs")] = False,
) -> None:
    with outcomes():
        from transport.switch.daemon import run_switch
        from transport.switch.daemon_options import DaemonOptions

        _check_choices(dataplane, link, packets)
        options = DaemonOptions(
            **_switch_addresses(control, data, parent, dataplane, link, loaded := _keys(keys)),
            link=link,
            keys=loaded,
            packets=packets or DaemonOptions.packets,
            dataplane=dataplane,
            slots=slots,
            elements=elements,
            advertise=None if advertise is None else _host_port("--advertise", advertise),
            lease_s=lease,
            drain_s=drain,
            peer_quota=_peer_quota(peer_quota or ""),
            segments_max=segments,
            multicast=multicast,
            parent=parent or "",
            name=name,
            metrics=metrics_option(metrics),
            metrics_names=metrics_names,
            interfaces=interface or (),
            impairments=_impairments(impair, impair_up, impair_down),
        )
        log = event_log("switchagg switch", log_format, log_level)
        status = run_switch(options, ready_file=ready_file, quiet=quiet, log=log)
    raise typer.Exit(status)


def _switch_addresses(
    control: str | None, data: str | None, parent: str | None, dataplane: str, link: str, keys: Any
) -> dict[str, Any]:
    """Control and data address, as named or by default, and whether a free port will do: where none is named, but for
    the control port of a root, which workers have to know."""
    from transport.links.link_kinds import LINKS
    from transport.switch.daemon_options import default_addresses

    if control is not None:
        _check_endpoint("--control", control)
    bind_control, bind_data = default_addresses(dataplane, link, keys, control or _facing(parent))
    return {
        "bind_control": bind_control,
        "bind_data": bind_data if data is None else _host_port("--data", data),
        "any_control_port": control is None and parent is not None,
        "any_data_port": data is None and LINKS[link].port is None,
    }


def _facing(parent: str | None) -> str | None:
    """Control address of a switch below another, where none is named: on the way to it."""
    from transport.links.addresses import facing, parse_endpoint, resolve_host
    from transport.switch.daemon_options import CONTROL_PORT

    if parent is None:
        return None
    _check_endpoint("--parent", parent)
    host, port = parse_endpoint(parent)
    local_host = facing(resolve_host(host), port)
    return f"tcp://{local_host}:{0 if (local_host, CONTROL_PORT) == (resolve_host(host), port) else CONTROL_PORT}"


def _check_choices(dataplane: str, link: str, packets: int | None) -> None:
    from transport.group.method_name import links_of
    from transport.links.link_kinds import LINKS, links_with

    _check_dataplane(dataplane)
    _known("--link", link, links_of("switch"))
    if packets is not None and not LINKS[link].messages:
        stop(f"--packets: only {', '.join(links_with('messages'))} has messages of packets, not {link}", EXIT_USAGE)


def _check_dataplane(name: str) -> None:
    _known("--dataplane", name, ("auto", *DATAPLANES))


def _keys(folder: Path | None) -> Any:
    from transport.zeromq.keys import load_keys

    return None if folder is None else load_keys(folder)


def _known(option: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        stop(f"{option} {value}: unknown{choices(value, allowed)}", EXIT_USAGE)
    return value


def _impairments(both: str | None, up: str | None, down: str | None) -> Impairments | None:
    """None if none are asked for."""
    from switchagg.errors import JobError
    from transport.switch.impairments import parse_impairments

    if both is None and up is None and down is None:
        return None
    try:
        return parse_impairments(both or "", up or "", down or "")
    except JobError as error:
        stop(f"--impair: {error}", EXIT_USAGE)


def _peer_quota(text: str) -> PeerQuota:
    from switchagg.controller.quota import parse_peer_quota

    try:
        return parse_peer_quota(text)
    except ValueError as error:
        stop(f"--peer-quota: {error}", EXIT_USAGE)


def _host_port(option: str, text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        stop(f"{option} {text}: not understood; allowed: HOST:PORT, like 10.0.0.1:5556", EXIT_USAGE)
    return host, int(port)


def _check_endpoint(option: str, text: str) -> None:
    from switchagg.errors import JobError
    from transport.links.addresses import parse_endpoint

    try:
        parse_endpoint(text)
    except JobError:
        stop(f"{option} {text}: not understood; allowed: tcp://HOST:PORT, like tcp://10.0.0.1:5555", EXIT_USAGE)


@app.command()
def status(
    address: Annotated[str, typer.Argument(metavar="SWITCH", help="tcp://HOST:PORT")] = "tcp://127.0.0.1:5555",
    job: Annotated[str | None, typer.Option(help="Also its slots: which ranks each chunk has been seen from")] = None,
    keys: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Of `switchagg keys`, if the switch was started with keys")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON on stdout")] = False,
) -> None:
    """Ask a running switch for its jobs, members and counters.

    It gives them to the user that runs it, and to root, on its own host (no option needed), and to holders of its
    keys; to others only how many jobs it has and how many slots are free.

    **Examples**

    `switchagg status tcp://10.0.0.1:5555`

    `switchagg status tcp://10.0.0.1:5555 --job train` : who is the job waiting for?
    """
    with outcomes():
        import msgspec

        from emulation.cli.switch_status import DETAILS_ARE_FOR, status_lines
        from transport.control.control_client import query_status

        _check_endpoint("SWITCH", address)
        answer = query_status(address, job, keys=_keys(keys))
        if as_json:
            typer.echo(json.dumps(msgspec.to_builtins(answer), sort_keys=True))
        else:
            typer.echo("\n".join(status_lines(answer)))
        if job is not None and not answer.details:
            stop(f"{address}: jobs are told {DETAILS_ARE_FOR.removeprefix('more ')}", EXIT_FAILED)
        if job is not None and job not in {running.name for running in answer.jobs} | set(answer.waiting):
            stop(f"{address}: no job {job!r} runs or waits there", EXIT_FAILED)


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON on stdout")] = False,
) -> None:
    """Show what this machine can do, what is missing, and how to get it.

    **Exit code**: 1 if something is missing that every run needs, else 0.
    """
    with outcomes():
        from emulation.cli.doctor import run_doctor

        code = run_doctor(json_wanted=as_json)
    raise typer.Exit(code)


@app.command()
def scenarios() -> None:
    """List the shipped scenarios, ready for `switchagg compare NAME`."""
    with outcomes():
        from emulation.scenario.scenario import load, shipped

        for name, path in shipped().items():
            typer.echo(f"{name:<12} {load(path).title}")


_ClickError: Any = typer.BadParameter.mro()[2]  # click's own base of usage errors, wherever typer keeps click


def main() -> None:
    """Entry point of the console script. Wrong usage is one line too, where typer would draw a box."""
    word = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    called = app if "_SWITCHAGG_COMPLETE" in os.environ else _in_full(word)
    try:
        code = called(prog_name="switchagg", standalone_mode=False)
    except _ClickError as error:
        if len(sys.argv) == 1:  # the message is the whole help
            error.show()
        else:
            words = " ".join(error.format_message().split()).rstrip(".")
            sys.stderr.write(f"switchagg: {words} (see {_command_of(error)} --help)\n")
        sys.exit(EXIT_USAGE)
    except KeyboardInterrupt:
        sys.stderr.write("switchagg: interrupted\n")
        sys.exit(EXIT_INTERRUPTED)
    gc.freeze()  # else the interpreter looks for garbage among all that was loaded before it ends
    sys.exit(code)


def _in_full(word: str) -> typer.Typer:
    """The app with one command in full: of the others only what a list of them shows, as making options takes time."""
    partial = copy.copy(app)
    partial.registered_commands = [copy.copy(command) for command in app.registered_commands]
    for command in partial.registered_commands:
        function: Any = command.callback
        if word != (command.name or function.__name__):
            command.callback = _without_options(function)
    partial.registered_groups = [copy.copy(group) for group in app.registered_groups]
    for group in partial.registered_groups:
        group.typer_instance = commands = copy.copy(group.typer_instance)
        if commands is not None and word not in (group.name, commands.info.name):
            commands.registered_commands, commands.registered_groups = [], []
    return partial


def _without_options(command: Any) -> Callable[[], None]:
    def listed() -> None:
        raise AssertionError("only the command that is called runs")

    listed.__name__, listed.__doc__ = command.__name__, command.__doc__
    return listed


def _command_of(error: Any) -> str:
    """The command that was given wrong arguments."""
    return str(error.ctx.command_path) if getattr(error, "ctx", None) is not None else "switchagg"


if __name__ == "__main__":
    main()
