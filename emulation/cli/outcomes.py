"""How every command ends: exit codes, and what may go wrong as one line on stderr."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import typer

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

OURS = ("emulation", "transport", "switchagg", "p4vm")
EXTRAS = {"lark": "p4", "pcpp": "p4", "grpc": "p4runtime", "google": "p4runtime", "p4": "p4runtime"}
"""Package -> extra that brings it; all others are of emulation."""


def stop(message: str, code: int) -> NoReturn:
    """One line on stderr, then exit."""
    typer.echo(f"switchagg: {message}", err=True)
    raise typer.Exit(code)


@contextmanager
def outcomes(how_to_go_on: str = "") -> Iterator[None]:
    """Turns what may go wrong into one line and an exit code. how_to_go_on: of what was interrupted.

    SIGTERM, and SIGHUP from a terminal that goes, are treated like Ctrl-C: what was started is ended.
    """
    from emulation.errors import RunFailed
    from emulation.profiles.errors import ProfileError
    from emulation.scenario import ScenarioError
    from switchagg.errors import SwitchaggError

    heard = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, _interrupt) for number in heard}  # `nohup` stays what it is
    try:
        yield
    except (ScenarioError, ProfileError) as error:
        stop(str(error), EXIT_USAGE)
    except (RunFailed, SwitchaggError) as error:
        stop(str(error), EXIT_FAILED)
    except KeyboardInterrupt:
        more = f"; {how_to_go_on}" if how_to_go_on else ""
        stop(f"interrupted; everything it had started is stopped{more}", EXIT_INTERRUPTED)
    except OSError as error:  # a full disk, a file that is in the way
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        stop(f"{what}; nothing it had started is left", EXIT_FAILED)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in OURS:
            raise  # a fault of ours, not of the installation
        extra = EXTRAS.get(package, "emulation")
        stop(f"the Python package '{error.name}' is missing; run: pip install 'switchagg[{extra}]'", EXIT_FAILED)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
