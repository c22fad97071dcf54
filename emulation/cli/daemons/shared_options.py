"""Options that several commands about daemons have: addresses, keys, metrics, the log of events; and their checks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from emulation.cli.outcomes import EXIT_USAGE, stop

if TYPE_CHECKING:
    from transport.switch.event_log import EventLog

REPORTS = "Reports"
"""The panel of a daemon's options that say what it reports, and to whom."""

METRICS = typer.Option(
    metavar="[HOST:]PORT",
    help="Serve counters to Prometheus at http://HOST:PORT/metrics  [default: off; HOST: 127.0.0.1]",
    rich_help_panel=REPORTS,
)
METRICS_NAMES = typer.Option(
    "--metrics-names", help="Serve names of jobs, too, to all who reach --metrics", rich_help_panel=REPORTS
)
LOG_FORMAT = typer.Option(metavar="text|json", help="Format of the events on stderr", rich_help_panel=REPORTS)
LOG_LEVEL = typer.Option(
    metavar="info|warning|error", help="Log events of this level and above", rich_help_panel=REPORTS
)
QUIET = typer.Option("--quiet", "-q", help="Log nothing about jobs and workers", rich_help_panel=REPORTS)
READY_FILE = typer.Option(metavar="FILE", help="File that is written once workers are served", rich_help_panel=REPORTS)

Switch = Annotated[str, typer.Argument(metavar="SWITCH", help="Its address, tcp://HOST:PORT")]
SWITCH = "tcp://127.0.0.1:5555"
KeysOfSwitch = Annotated[
    Path | None, typer.Option("--keys", metavar="DIR", help="Keys that the switch was started with")
]


def keys_in(folder: Path | None) -> Any:
    """The keys in a folder, None for no folder. Raises SwitchaggError."""
    from transport.zeromq.keys import load_keys

    return None if folder is None else load_keys(folder)


def check_endpoint(option: str, text: str) -> None:
    """Exits with one line for what is no address of a switch."""
    from switchagg.errors import JobError
    from transport.links.addresses import parse_endpoint

    try:
        parse_endpoint(text)
    except JobError:
        stop(f"{option} {text}: not understood; allowed: tcp://HOST:PORT, like {SWITCH}", EXIT_USAGE)


def event_log(program: str, log_format: str, log_level: str) -> EventLog:
    """A daemon's log; exits with one line for a format or a level that isn't there."""
    from switchagg.errors import SwitchaggError
    from transport.switch.event_log import EventLog

    try:
        return EventLog(program, log_format, log_level)
    except SwitchaggError as error:
        stop(str(error), EXIT_USAGE)


def metrics_option(text: str | None) -> tuple[str, int] | None:
    """The address of --metrics, or None; exits with one line for one that can't be."""
    from switchagg.errors import SwitchaggError
    from transport.metrics.metrics_server import metrics_address

    try:
        return None if text is None else metrics_address(text, "--metrics")
    except SwitchaggError as error:
        stop(str(error), EXIT_USAGE)
