"""How every command ends: exit codes, and what may go wrong as one line on stderr."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import typer

from p4vm.source import P4vmError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CLEANING_S = 30
EXTRAS = {"grpc": "[p4runtime]", "google": "[p4runtime]", "p4": "[p4runtime]"}
"""Package -> the extra that brings it; all others come with p4vm itself."""


def stop(message: str, code: int) -> NoReturn:
    """One line on stderr, then exit."""
    typer.echo(f"p4vm: {message}", err=True)
    raise typer.Exit(code)


@contextmanager
def outcomes() -> Iterator[None]:
    """Turns what may go wrong into one line and an exit code. SIGTERM and SIGHUP are treated like Ctrl-C."""
    try:
        with at_first_signal(_interrupt):
            yield
    except P4vmError as error:
        stop(str(error), EXIT_FAILED)
    except KeyboardInterrupt:
        stop("interrupted", EXIT_INTERRUPTED)
    except OSError as error:
        stop(f"{error.filename}: {error.strerror}" if error.filename else str(error), EXIT_FAILED)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "p4vm":
            raise  # a fault of ours, not of the installation
        extra = EXTRAS.get(package, "")
        stop(f"the Python package '{error.name}' is missing; run: pip install 'p4vm{extra}'", EXIT_FAILED)


@contextmanager
def at_first_signal(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` when the first of ENDS comes, and ignore further ones to the end of the process. If it hasn't ended
    CLEANING_S later, the next one calls `act` again."""
    quiet_until_s = 0.0

    def handle(_signal: int, _frame: FrameType | None) -> None:
        nonlocal quiet_until_s
        if time.monotonic() >= quiet_until_s:
            quiet_until_s = time.monotonic() + CLEANING_S
            act()

    numbers = [number for number in ENDS if signal.getsignal(number) is not signal.SIG_IGN]  # `nohup` stays what it is
    previous = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        if quiet_until_s:
            signal.pthread_sigmask(signal.SIG_BLOCK, numbers)  # or one that comes meanwhile is reported as lost
        for number, handler in previous.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, signal.SIG_IGN if quiet_until_s else handler)


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt
