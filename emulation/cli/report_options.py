"""Options of daemons that say what they report, and to whom: metrics, and the log of events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from emulation.cli.outcomes import EXIT_USAGE, stop

if TYPE_CHECKING:
    from transport.switch.event_log import EventLog

METRICS = typer.Option(
    metavar="[HOST:]PORT",
    help="Serve counters to Prometheus at http://HOST:PORT/metrics  [default: off; HOST: 127.0.0.1]",
)
METRICS_NAMES = typer.Option("--metrics-names", help="With names of jobs: whoever reaches --metrics may read them")
LOG_FORMAT = typer.Option(metavar="text|json", help="Of events on stderr; docs/monitoring.md lists them")
LOG_LEVEL = typer.Option(metavar="info|warning|error", help="Log nothing below")


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
