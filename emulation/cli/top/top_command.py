"""`switchagg top`: what a switch does now: on a terminal live, elsewhere as tables or JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any

import typer

from emulation.cli.daemons.shared_options import SWITCH, KeysOfSwitch, Switch, check_endpoint, keys_in
from emulation.cli.outcomes import outcomes

if TYPE_CHECKING:
    from transport.control.control_messages import StatusAnswer

ANSWER_S = 3.0
KEYS_EVERY_S = 0.05
"""How often keys are looked at while an answer is awaited."""

INTERVAL = typer.Option(
    "--interval",
    "-i",
    min=0.5,
    max=3600,
    metavar="SECONDS",
    help="Time between two answers, over which rates are taken",
)
COUNT = typer.Option(
    "--count",
    "-n",
    min=0,
    help="End after so many answers; 0: never  [default: 0 on a terminal, 1 elsewhere and with --json]",
)


def top(
    address: Switch = SWITCH,
    interval: Annotated[float, INTERVAL] = 1.0,
    count: Annotated[int | None, COUNT] = None,
    keys: KeysOfSwitch = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each interval")] = False,
) -> None:
    """Watch a running switch: jobs, goodput, slots, refusals.

    It shows members and retransmissions, too, and why something was refused. On a terminal it draws itself anew each
    second, until q or Ctrl-C; elsewhere it prints a table, or lines of JSON. Rates are differences between two answers,
    by the switch's clock. It shows the same users the same things as `switchagg status`.

    **Examples**

    `switchagg top`

    `switchagg top tcp://10.0.0.1:5555 --keys keys` : a switch with keys

    `switchagg top --interval 10 --count 6 > minute.txt` : six tables

    `switchagg top --json --interval 5 --count 0 | jq '.jobs[].goodput_bps'` : until it is ended

    **Exit code**: 0 ended by q, Ctrl-C or --count; 1 no switch answers (one line says why, and what to do).
    """
    with outcomes():
        check_endpoint("SWITCH", address)
        watch = _Watch(address, keys_in(keys))
        if sys.stdout.isatty() and not as_json:
            _show_live(watch, interval, count or 0)
        else:
            _print(watch, interval, 1 if count is None else count, as_json)


class _Watch:
    """Asks a switch, and keeps the earlier answer."""

    def __init__(self, address: str, keys: Any) -> None:
        self._address, self._keys = address, keys
        self._earlier: StatusAnswer | None = None

    def ask(self) -> StatusAnswer:
        """Raises JobError if no answer comes in time."""
        from transport.control.control_client import query_status

        return query_status(self._address, timeout_s=ANSWER_S, keys=self._keys)

    def rates(self, answer: StatusAnswer) -> Any:
        """Since the answer before."""
        from emulation.cli.top.switch_rates import rates_of

        earlier, self._earlier = self._earlier, answer
        return rates_of(self._address, answer, earlier)

    def begin_asking(self) -> SimpleQueue[StatusAnswer | BaseException]:
        """A queue that gets the answer, or why there is none; keys and signals are served meanwhile."""
        outcome: SimpleQueue[StatusAnswer | BaseException] = SimpleQueue()

        def run() -> None:
            try:
                outcome.put(self.ask())
            except BaseException as error:
                outcome.put(error)

        Thread(target=run, daemon=True).start()
        return outcome


def _print(watch: _Watch, interval_s: float, count: int, as_json: bool) -> None:
    """count: 0 for no end."""
    from emulation.cli.top.top_tables import table_lines

    watch.rates(watch.ask())  # what the first rates are the difference to
    printed = 0
    due_s = time.monotonic()
    while not count or printed < count:
        due_s += interval_s
        time.sleep(max(0.0, due_s - time.monotonic()))
        rates = watch.rates(watch.ask())
        if as_json:
            now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            typer.echo(json.dumps({"time": now, **rates.as_dict()}))
        else:
            typer.echo("\n".join([*([""] if printed else []), *table_lines(rates)]))
        sys.stdout.flush()
        printed += 1


def _show_live(watch: _Watch, interval_s: float, count: int) -> None:
    """count: 0 for no end."""
    from emulation.cli.top.live_screen import LiveScreen
    from emulation.cli.top.top_tables import table_lines

    answer = watch.ask()  # before the screen changes: a switch that isn't there is a line
    with _ctrl_c_ends(), LiveScreen() as screen:
        tables = 0
        while True:
            screen.show(table_lines(watch.rates(answer)))
            tables += 1
            if screen.ended_within(interval_s) or tables == count:
                return
            outcome = watch.begin_asking()
            while (result := _waited(outcome)) is None:
                if screen.ended_within(0):
                    return
            if isinstance(result, BaseException):
                raise result
            answer = result


def _waited(outcome: SimpleQueue[StatusAnswer | BaseException]) -> StatusAnswer | BaseException | None:
    try:
        return outcome.get(timeout=KEYS_EVERY_S)
    except Empty:
        return None


@contextmanager
def _ctrl_c_ends() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
