"""How every command ends: exit codes, and what may go wrong as one line on stderr."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import typer

from switchagg.option_syntax import choices

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CLEANING_S = 30
OUR_FAULTS = (errno.EBADF, errno.EFAULT, errno.ENOTSOCK)
"""What no user's machine is to blame for: a report of it needs to say where it was."""

SWITCHAGG_PACKAGES = ("emulation", "transport", "switchagg")
EXTRAS = {"p4vm": "p4", "lark": "p4", "pcpp": "p4", "grpc": "p4runtime", "google": "p4runtime", "p4": "p4runtime"}
"""Package -> extra that brings it; all others are of emulation."""


def stop(message: str, code: int) -> NoReturn:
    """One line on stderr, then exit."""
    typer.echo(f"switchagg: {message}", err=True)
    raise typer.Exit(code)


def known(option: str, value: str, allowed: Iterable[str]) -> str:
    """An option's value; exits with one line, which has what may have been meant, if it isn't allowed."""
    names = list(allowed)
    if value not in names:
        stop(f"{option} {value[:60]}: unknown{choices(value, names)}", EXIT_USAGE)
    return value


@contextmanager
def outcomes(how_to_go_on: str = "") -> Iterator[None]:
    """Turns what may go wrong into one line and an exit code. how_to_go_on: of what was interrupted.

    SIGTERM, and SIGHUP from a terminal that goes, are treated like Ctrl-C: what was started is ended, and a second one
    doesn't cut that short.
    """
    from emulation.scenario.errors import RunFailed, ScenarioError
    from emulation.scenario.profiles.profile_errors import ProfileError
    from switchagg.errors import SwitchaggError

    if any(name.startswith("SWITCHAGG_") for name in os.environ):
        from transport.environment import fault_of_variables

        if fault := fault_of_variables():
            stop(fault, EXIT_USAGE)
    try:
        with at_first_signal(_interrupt):
            yield
    except (ScenarioError, ProfileError) as error:
        stop(str(error), EXIT_USAGE)
    except (RunFailed, SwitchaggError) as error:
        stop(str(error), EXIT_FAILED)
    except KeyboardInterrupt:
        more = f"; {how_to_go_on}" if how_to_go_on else ""
        stop(f"interrupted; everything it had started is stopped{more}", EXIT_INTERRUPTED)
    except OSError as error:  # a full disk, a file that is in the way
        if error.errno in OUR_FAULTS:
            raise
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        remedy = "make room there, or take another folder; " if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        stop(f"{what}; {remedy}nothing it had started is left", EXIT_FAILED)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in SWITCHAGG_PACKAGES:
            raise  # a fault of ours, not of the installation
        extra = EXTRAS.get(package, "emulation")
        stop(f"the Python package '{error.name}' is missing; run: pip install 'switchagg[{extra}]'", EXIT_FAILED)


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

    signals = [number for number in ENDS if signal.getsignal(number) is not signal.SIG_IGN]  # `nohup` stays what it is
    previous = {number: signal.signal(number, handle) for number in signals}
    try:
        yield
    finally:
        if quiet_until_s:
            signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # or one that comes meanwhile is reported as lost
        for number, handler in previous.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, signal.SIG_IGN if quiet_until_s else handler)


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt
