"""The command `p4vm`: check, test and run P4 programs; `switchagg p4` has the same commands.

Each command imports what it needs when it runs, so that --help answers at once. Exit codes: 0 done; 1 could not do its
work (one line: why, and what to do); 2 wrong usage; 130 interrupted.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from p4vm.cli.bmv2_tools import tools
from p4vm.cli.outcomes import EXIT_FAILED, EXIT_USAGE, at_first_signal, outcomes, stop

if TYPE_CHECKING:
    from p4vm.control.controlled_switch import ControlledSwitch
    from p4vm.host.software_switch import Host, SoftwareSwitchOptions
    from p4vm.ir import ir_nodes as ir
    from p4vm.stf.run import Result
    from p4vm.tree.checked import Checked

FAILURE_LINES_MAX = 10
"""Lines that one test's failures take without --verbose."""

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command()(tools)

Include = Annotated[
    list[Path] | None,
    typer.Option("--include", "-I", metavar="DIR", help="Where to look for #include; may be repeated"),
]
Define = Annotated[
    list[str] | None, typer.Option("--define", "-D", metavar="NAME[=VALUE]", help="Macro for the preprocessor")
]
Backend = Annotated[str, typer.Option(metavar="auto|native|python", help="native: compiled C; auto: it where cc is")]
Program = Annotated[Path, typer.Argument(metavar="PROGRAM.p4")]
Control = Annotated[
    str | None, typer.Option(metavar="PATH|HOST:PORT", help="Where the switch takes commands  [default: one per user]")
]


@app.callback()
def _describe() -> None:
    """Check, test and run P4 programs; no compiler is needed.

    `p4vm check prog.p4` : its faults, or what is in it

    `p4vm test prog.p4 prog.stf` : send packets and compare those that come out, as p4c's tests do

    `p4vm run prog.p4 -i 0@veth0 -i 1@veth1` : a switch on interfaces

    `p4vm fit prog.p4` : whether it fits a Tofino

    `p4vm tools FOLDER` : what scripts for bmv2 call (simple_switch_grpc, …), on this engine

    `p4vm cli` : tables, groups, registers of a switch that runs, with the commands of bmv2's command line
    """


def _defines(texts: list[str] | None) -> dict[str, str]:
    pairs = (text.partition("=") for text in texts or [])
    return {name: value if equals else "1" for name, equals, value in pairs}


def _warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)


def _maker(
    program: Path, backend: str, include: list[Path] | None, define: list[str] | None
) -> "Callable[[], ControlledSwitch]":
    """Makes switches of the program, each with state of its own."""
    from p4vm.compile import compile_program
    from p4vm.control.controlled_switch import ControlledSwitch

    defines = _defines(define)
    return lambda: ControlledSwitch(compile_program(program, backend=backend, includes=include or (), defines=defines))


# ---- check


@app.command()
def check(
    program: Program,
    include: Include = None,
    define: Define = None,
    show: Annotated[
        bool, typer.Option("--show", help="All tables, keys, actions, registers, counters, meters")
    ] = False,
    lowered: Annotated[bool, typer.Option("--ir", help="The IR, which both back ends read")] = False,
    python: Annotated[bool, typer.Option("--python", help="The Python that the program becomes")] = False,
    c: Annotated[bool, typer.Option("--c", help="The C that the program becomes")] = False,
    p4info: Annotated[bool, typer.Option("--p4info", help="What controllers need: P4Runtime's P4Info as JSON")] = False,
) -> None:
    """Compile a program, and show its faults or what is in it.

    The engine runs programs for v1model.p4 and psa.p4; those for tna.p4 are checked, too.

    **Examples**

    `p4vm check prog.p4`

    `p4vm check prog.p4 --p4info > prog.p4info.json`

    `p4vm check prog.p4 -I includes -D WORKERS=4 --show`
    """
    with outcomes():
        from p4vm.compile import checked_program
        from p4vm.lower.lower_program import lower

        tree, _ = checked_program(program, include or (), _defines(define))
        if (other := _checked_only(tree)) and not (show or lowered or python or c or p4info):
            typer.echo(f"{program}: {other}")
            return
        checked = lower(tree, str(program))
        _warn(checked.warnings)
        if p4info:
            from p4vm.control.p4info import p4info as make_p4info
            from p4vm.control.p4info import unserved

            _warn(unserved(checked))
            typer.echo(json.dumps(make_p4info(checked), indent=2))
        elif lowered:
            from p4vm.ir.ir_text import program as as_text

            typer.echo(as_text(checked))
        elif python or c:
            typer.echo(_source(checked, python))
        else:
            typer.echo("\n".join(_contents(checked, show)))


def _checked_only(program: "Checked") -> str:
    """The line that reports a program for an architecture that is checked but doesn't run; "" for all others."""
    main = program.instances.get(program.main) if program.main is not None else None
    declared = main.declaration.position.file if main is not None and main.declaration is not None else ""
    architecture = Path(declared).name
    if main is None or architecture != "tna.p4":
        return ""
    advice = "`p4vm fit` says whether it fits a chip"
    return f"no fault found; checked only: {main.name} of {architecture} doesn't run here; {advice}"


def _source(program: "ir.ProgramIr", python: bool) -> str:
    if python:
        from p4vm.python.python_engine import PythonEngine

        return PythonEngine(program).source
    from p4vm.c_code.c_program import c_of

    return c_of(program)[0]


def _contents(program: "ir.ProgramIr", show: bool) -> list[str]:
    """A program's contents: a line of counts, and with show all that a control plane may name."""
    counted: dict[str, int] = {"table": len(program.tables)}
    for instance in program.externs:
        counted[instance.kind] = counted.get(instance.kind, 0) + 1
    counted["parser value set"] = len(program.value_sets)
    parts = ", ".join(f"{count} {kind}{'s' * (count != 1)}" for kind, count in counted.items() if count)
    lines = [f"{program.file}: {parts or 'no tables, no state'}; {len(program.routines)} routines"]
    if show:
        from p4vm.commands.show_commands import describe

        lines += describe(program)
    return lines


# ---- test


@app.command("test")
def run_tests(
    program: Program,
    tests: Annotated[list[Path] | None, typer.Argument(metavar="TEST.stf…")] = None,
    backend: Annotated[str, typer.Option(metavar="native|python|both|auto")] = "auto",
    include: Include = None,
    define: Define = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="All failures; what commands and log_msg printed")
    ] = False,
) -> None:
    """Run STF tests, and print a line for each.

    A test fills tables, sends packets and compares those that come out. The default is PROGRAM.stf beside the program.
    On every port packets must come as `expect` lines say, in their order, and no others.

    **Example of a test**

    `add ipv4_lpm hdr.ipv4.dstAddr:0x0a000100/24 forward(dstAddr:0x080000000111, port:1)`

    `packet 0 ffffffffffff 000000000001 0800 4500 …`

    `expect 1 080000000111 ************ 0800 45** …`

    **Examples**

    `p4vm test prog.p4 prog.stf`

    `p4vm test prog.p4 tests/*.stf --backend both`

    **Exit code**: 1 if a test failed.
    """
    if backend not in ("native", "python", "both", "auto"):
        stop(f"--backend {backend}: unknown; allowed: native, python, both, auto", EXIT_USAGE)
    failed = False
    with outcomes():
        for name in ("python", "native") if backend == "both" else (backend,):
            make = _maker(program, name, include, define)
            for path in tests or [program.with_suffix(".stf")]:
                failed |= not _run_test(make, path, verbose)
    raise typer.Exit(EXIT_FAILED if failed else 0)


def _run_test(make: "Callable[[], ControlledSwitch]", path: Path, verbose: bool) -> bool:
    from p4vm.stf.run import run

    switches: list[ControlledSwitch] = []

    def keep() -> "ControlledSwitch":
        switches.append(make())
        return switches[0]

    try:
        result = run(keep, path)
        backend = switches[0].engine.backend if switches else "not run"
    finally:
        for switch in switches:
            switch.engine.close()
    for line in _result_lines(result, backend, verbose):
        typer.echo(line)
    return result.passed


def _result_lines(result: "Result", backend: str, verbose: bool) -> list[str]:
    word = "ok  " if result.passed else "FAIL"
    lines = [f"{word} {result.path} ({backend}): {result.packets_in} packets in, {result.packets_out} out"]
    if verbose:
        lines += [f"  {line}" for line in result.printed]
    count = 0
    for place, failure in enumerate(result.failures):
        failure_lines = [f"  {line}" for line in failure.splitlines()]
        count += len(failure_lines)
        left = len(result.failures) - place
        if not verbose and count > FAILURE_LINES_MAX - (left > 1):
            return [*lines, f"  … and {left} more failures: --verbose shows all"]
        lines += failure_lines
    return lines


# ---- run


@app.command()
def run(
    context: typer.Context,
    program: Program,
    interface: Annotated[
        list[str] | None, typer.Option("--interface", "-i", metavar="PORT@INTERFACE", help="May be repeated")
    ] = None,
    backend: Backend = "auto",
    commands: Annotated[Path | None, typer.Option(help="File of commands, carried out before the first packet")] = None,
    runtime_json: Annotated[
        Path | None, typer.Option("--runtime-json", help="Entries as the P4 tutorials have them: s1-runtime.json")
    ] = None,
    pcap: Annotated[Path | None, typer.Option(metavar="DIR", help="Captures of each interface, in and out")] = None,
    log: Annotated[bool, typer.Option("--log", help="Show log_msg, failed asserts and digests")] = False,
    control: Control = None,
    p4runtime: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve controllers that speak P4Runtime (gRPC)")
    ] = None,
    cpu_port: Annotated[int | None, typer.Option(min=0, max=510, help="With it: the port of packets to them")] = None,
    device_id: Annotated[int, typer.Option(min=0, help="With it: the device that they ask for")] = 0,
    seconds: Annotated[float | None, typer.Option(min=0, help="End after so long  [default: at Ctrl-C]")] = None,
    ready_file: Annotated[Path | None, typer.Option(help="Written once packets are taken")] = None,
    include: Include = None,
    define: Define = None,
) -> None:
    """Run a program as a switch on interfaces until Ctrl-C.

    At the end it says what became of packets. It needs root (or a user namespace: `unshare -Urn`). Turn offloads off on
    the hosts' interfaces (`ethtool -K IF tx off tso off gso off gro off`), or bundles of packets look like one.

    **Examples**

    `sudo $(which p4vm) run prog.p4 -i 0@veth0 -i 1@veth1 --commands entries.txt`

    `sudo $(which p4vm) run basic.p4 -i 1@s1-eth1 -i 2@s1-eth2 --runtime-json s1-runtime.json --pcap pcaps`

    `sudo $(which p4vm) run prog.p4 -i 1@veth1 --p4runtime 0.0.0.0:9559 --cpu-port 510` : with P4Runtime

    `p4vm cli` : in another terminal, commands for the switch that runs

    **Example of a file of commands**

    `table_add MyIngress.ipv4_lpm forward 10.0.1.0/24 => 08:00:00:00:01:11 1`

    `mc_mgrp_create 1`

    `set_queue_rate 1000 2` : at most 1000 packets per second leave through port 2
    """
    with outcomes():
        from p4vm.host.control import default_address
        from p4vm.host.native_host import make_host
        from p4vm.host.ports import parse_ports
        from p4vm.host.software_switch import SoftwareSwitchOptions

        ports = parse_ports(interface or [])
        switch = _maker(program, backend, include, define)()
        try:
            _fill(switch, commands, runtime_json)
            options = SoftwareSwitchOptions(pcap, control or default_address(), typer.echo if log else None)
            with (
                _controllers(switch, options, p4runtime, device_id, cpu_port),
                make_host(switch, ports, options) as host,
            ):
                _serve(host, program, _prompt_words(context, control), seconds, ready_file)
        finally:
            switch.engine.close()


@contextmanager
def _controllers(
    switch: "ControlledSwitch", options: "SoftwareSwitchOptions", address: str | None, device: int, cpu_port: int | None
) -> Iterator[None]:
    """Serves P4Runtime, where an address is given; enters what the host needs for it into its options."""
    if address is None:
        yield
        return
    from p4vm.control.p4info import unserved
    from p4vm.p4runtime.service import RuntimeService

    _warn(unserved(switch.program))
    with RuntimeService(switch, address, device, cpu_port) as service:
        options.turns, options.cpu = service.turns, None if service.cpu is None else service.cpu.port
        typer.echo(f"P4Runtime at {address}, device {device}: whoever reaches it controls the switch")
        yield


def _fill(switch: "ControlledSwitch", commands: Path | None, runtime_json: Path | None) -> None:
    _warn(switch.program.warnings)
    if runtime_json is not None:
        from p4vm.commands.runtime_json import load

        load(runtime_json, switch)
    if commands is not None:
        from p4vm.commands.line import run_file

        printed = run_file(switch, commands)
        if printed:
            typer.echo(printed)


def _prompt_words(context: typer.Context, control: str | None) -> str:
    """How this user calls the prompt of the switch: by the name that `run` was called by."""
    command, *words = (context.parent or context).command_path.split()
    if "SUDO_UID" in os.environ:  # the socket is its user's alone
        command = f"sudo $(which {command})"
    return " ".join([command, *words, "cli", *(["--control", control] if control else [])])


def _serve(host: "Host", program: Path, prompt: str, seconds: float | None, ready_file: Path | None) -> None:
    _warn(host.warnings)
    names = ", ".join(f"{number}@{state.port.interface}" for number, state in host.port_states.items())
    typer.echo(f"{program} ({host.switch.engine.backend}) on {names}; commands: {prompt}; Ctrl-C ends")
    if ready_file is not None:
        ready_file.write_text(f"{host.control.address if host.control else ''}\n")
    sys.stdout.flush()
    try:
        with at_first_signal(host.stop):  # a pass is finished first: what it has sent is counted and captured
            host.run(seconds)
    finally:
        typer.echo("\n".join(host.summary()))
        sys.stdout.flush()


# ---- Tofino


@app.command()
def fit(
    program: Program,
    include: Include = None,
    define: Define = None,
    recirculations: Annotated[
        int | None, typer.Option(min=0, help="Further passes a packet makes  [default: as the program says]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON")] = False,
) -> None:
    """Show whether a TNA program fits a Tofino, and the share of line rate left.

    It checks stages, stateful ALUs, memory, headers and passes against published limits of Tofino 1. It refuses, with
    the line, what no compiler can make work, and warns of what one may or may not get around. The vendor's compiler may
    still refuse what it accepts, for reasons that are not public.

    **Examples**

    `p4vm fit prog.p4`

    `p4vm fit mine.p4 -D SLOTS=8192 --json`

    **Exit code**: 0 it fits, perhaps with warnings, 1 it doesn't.
    """
    with outcomes():
        from p4vm.fit.fit_program import fit as judge
        from p4vm.fit.report import summary, text

        verdict = judge(program, includes=include or (), defines=_defines(define), recirculations=recirculations)
        typer.echo(json.dumps(summary(verdict), indent=2) if as_json else text(verdict))
        if verdict.faults:
            raise typer.Exit(1)


# ---- commands


@app.command()
def cli(
    command: Annotated[
        list[str] | None, typer.Option("--command", "-c", help="Carry out this and end; may be repeated")
    ] = None,
    control: Control = None,
) -> None:
    """Send commands to a running switch, as with bmv2's command line.

    **Examples**

    `p4vm cli` : a prompt; Tab completes, `help table_add` explains, Ctrl-D ends

    `p4vm cli -c "table_dump MyIngress.ipv4_lpm" -c "counter_read MyIngress.packets 0"`

    `p4vm cli < commands.txt`

    **Exit code**: 1 if a command failed.
    """
    with outcomes():
        from p4vm.host.control import PromptClient, default_address

        client = PromptClient(control or default_address())
        try:
            failed = _converse(client, command)
        finally:
            client.close()
    raise typer.Exit(EXIT_FAILED if failed else 0)


def _converse(client: Any, commands: list[str] | None) -> bool:
    """Carry out all lines; whether one failed."""
    from p4vm.cli.prompt import converse, say

    if commands is None and sys.stdin.isatty():
        return converse(client)
    failed = False
    for line in commands if commands is not None else sys.stdin:
        failed |= not say(client, line.rstrip("\n"))
    return failed


def main() -> None:
    """The console script."""
    app(prog_name="p4vm")


if __name__ == "__main__":
    main()
