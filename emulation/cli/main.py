"""The command `switchagg`. Each command imports what it needs when it runs, so that --help answers at once.

Exit codes: 0 done; 1 could not do its work (one line: why, and what to do); 2 wrong usage or scenario; 3 done, but a
fidelity certificate is INVALID; 130 interrupted.
"""

from __future__ import annotations

import copy
import gc
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

try:
    import typer
except ModuleNotFoundError:  # installed without extras: the protocol alone
    sys.stderr.write("switchagg: the Python package 'typer' is missing; run: pip install 'switchagg[emulation]'\n")
    sys.exit(1)

from emulation.cli.bench_commands import app as bench
from emulation.cli.command_group import PanelGroup, usage_text
from emulation.cli.daemons.curve_keys import keys
from emulation.cli.daemons.link_help import LinkCommand
from emulation.cli.daemons.server_command import server
from emulation.cli.daemons.switch_command import SWITCH_HELP, status, switch
from emulation.cli.outcomes import EXIT_INTERRUPTED, EXIT_USAGE, outcomes
from emulation.cli.p4_commands import add_p4
from emulation.cli.runs.calibrate import calibrate
from emulation.cli.runs.chaos_command import chaos
from emulation.cli.runs.compare_commands import compare, sweep
from emulation.cli.runs.profile import profile
from emulation.cli.runs.reproduce_command import reproduce
from emulation.cli.runs.try_command import try_script
from emulation.cli.runs.whatif import whatif
from emulation.cli.start.init import init
from emulation.cli.start.scenarios_command import scenarios
from emulation.cli.start.shipped import examples
from emulation.cli.start.version import show_version
from emulation.cli.study import app as study
from emulation.cli.top.top_command import top

app = typer.Typer(
    name="switchagg",
    cls=PanelGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@app.callback()
def _describe(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print what a bug report needs.")
    ] = False,
) -> None:
    """Train PyTorch through an emulated switch that sums gradients, and measure it.

    Begin with `switchagg doctor`, then run `switchagg compare quickstart`.
    """


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout")] = False,
) -> None:
    """Show what this machine can run, what is missing, and the remedy.

    **Example**

    `switchagg doctor`

    **Exit code**: 1 if something is missing that every run needs, else 0.
    """
    with outcomes():
        from emulation.cli.doctor import run_doctor

        code = run_doctor(json_wanted=as_json)
    raise typer.Exit(code)


for _command in (
    init,
    examples,
    compare,
    sweep,
    scenarios,
    status,
    top,
    keys,
    whatif,
    reproduce,
    calibrate,
    chaos,
):
    app.command()(_command)
app.command(cls=LinkCommand, help=SWITCH_HELP)(switch)
app.command(cls=LinkCommand)(server)
for _name, _starter in (("profile", profile), ("try", try_script)):
    app.command(_name, context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})(_starter)
app.add_typer(bench)
app.add_typer(study)
add_p4(app)

_ClickError: Any = typer.BadParameter.mro()[2]  # click's own base of usage errors, wherever typer keeps click


def main() -> None:
    """The command, once it is loaded. Wrong usage is one line too, where typer would draw a box."""
    word = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    called = app if "_SWITCHAGG_COMPLETE" in os.environ else _in_full(word)
    try:
        code = called(prog_name="switchagg", standalone_mode=False)
    except _ClickError as error:
        if len(sys.argv) == 1:  # the message is the whole help
            error.show()
        else:
            sys.stderr.write(f"switchagg: {usage_text(error)}\n")
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


if __name__ == "__main__":
    main()
