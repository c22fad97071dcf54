"""EventLog: what a daemon logs, a line for each event: text for people, or JSON for programs (docs/failures.md).

A full disk or a reader that is gone ends no daemon: lines that can't be written are lost.
"""

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from switchagg.errors import SwitchaggError
from switchagg.membership import (
    Event,
    JobAdmitted,
    JobEvicted,
    JobFailed,
    JobReady,
    JoinRefused,
    Member,
    MemberLeft,
)
from switchagg.option_syntax import choices

LEVELS = ("info", "warning", "error")
FORMATS = ("text", "json")


@dataclass(frozen=True)
class LogEntry:
    """A line of the log. text: for people; the rest for programs. job, generation, members, reason: where the event has
    some. machine_only: people read it elsewhere, as on stdout."""

    event: str
    text: str
    level: str = "info"
    job: str = ""
    generation: int | None = None
    members: Sequence[Member] = field(default=())
    reason: str = ""
    machine_only: bool = False

    def as_json(self, time: datetime) -> str:
        """One line. time: aware. A member alone has rank and address, too."""
        facts: dict[str, object] = {
            "time": time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": self.level,
            "event": self.event,
            "text": self.text,
        }
        if self.job:
            facts["job"] = self.job
        if self.generation is not None:
            facts["generation"] = self.generation
        members = [{"rank": member.rank, "address": "{}:{}".format(*member.address)} for member in self.members]
        if members:
            facts |= {**(members[0] if len(members) == 1 else {}), "members": members}
        if self.reason:
            facts["reason"] = self.reason
        return json.dumps(facts)


class EventLog:
    """Writes entries to stderr. program: the words before each text. format, level: of FORMATS, LEVELS.

    Raises SwitchaggError for another format or level.
    """

    def __init__(self, program: str, format: str = "text", level: str = "info") -> None:
        for what, value, allowed in (("format", format, FORMATS), ("level", level, LEVELS)):
            if value not in allowed:
                raise SwitchaggError(f"--log-{what} {value}: unknown{choices(value, allowed)}")
        self._program = program
        self.is_json = format == "json"
        self._least = LEVELS.index(level)

    def write(self, entry: LogEntry) -> None:
        """Write an entry, unless it is below the level."""
        if LEVELS.index(entry.level) < self._least or (entry.machine_only and not self.is_json):
            return
        line = entry.as_json(datetime.now(UTC)) if self.is_json else f"{self._program}: {printable(entry.text)}"
        with contextlib.suppress(OSError, ValueError, AttributeError):  # gone, closed, or closed before we began
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    def note(self, text: str, event: str = "note", level: str = "info") -> None:
        """Write a line that concerns no job."""
        self.write(LogEntry(event, text, level))

    def failure(self, text: str) -> None:
        """Write why the program ends with an error; as text under the name of the command line."""
        self.write(LogEntry("failed", text, "error")) if self.is_json else _write_failure(text)


def _write_failure(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"switchagg: {text}\n")
        sys.stderr.flush()


def printable(line: str) -> str:
    """Names, hosts and reasons come from other processes: line breaks and escape sequences are removed."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in line)


def print_line(line: str) -> None:
    """Print a line on stdout; where that can't be written, nothing is from now on, at the end of the process either."""
    try:
        print(line, flush=True)
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)


def hold_standard_streams() -> None:
    """Let no socket or file take the numbers of standard streams that were closed before the process began."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # It takes the lowest free number.


def entries_of(event: Event) -> Iterator[LogEntry]:
    """What is logged of an event of the controller; its name is that of the event's class."""
    name = re.sub("(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
    match event:
        case JobAdmitted():
            first, end = event.job.slots
            number = event.job.generation
            who = ", ".join(map(str, event.members))
            text = f"job {event.name!r} generation {number} runs in slots {first}-{end - 1}: {who}"
            yield LogEntry(name, text, job=event.name, generation=number, members=event.members)
            if event.narrowed:
                text = f"job {event.name!r}: {event.narrowed}"
                yield LogEntry("job_narrowed", text, job=event.name, generation=number, reason=event.narrowed)
        case JobEvicted():
            text = f"job {event.name!r} generation {event.job.generation} has ended; its slots are free"
            yield LogEntry(name, text, job=event.name, generation=event.job.generation)
        case JoinRefused():
            text = f"refused {', '.join(map(str, event.members))}: {event.reason}"
            yield LogEntry(name, text, "warning", event.name, None, event.members, event.reason)
        case JobFailed():
            text = f"job {event.name!r} generation {event.generation} failed: {event.reason}"
            yield LogEntry(name, text, "error", event.name, event.generation, event.dead, event.reason)
        case JobReady():
            switches = ", ".join(str(share.offer or "this switch") for share in event.admitted.shares)
            text = f"job {event.admitted.name!r} is summed by {switches}"
            yield LogEntry(name, text, job=event.admitted.name, generation=event.admitted.job.generation)
        case MemberLeft():
            departure = event.departure
            why = f": {departure.reason}" if departure.reason else ""
            text = f"job {event.name!r}: {departure.member} left after {sum(departure.calls)} calls{why}"
            level = "warning" if why else "info"
            yield LogEntry(name, text, level, event.name, None, (departure.member,), departure.reason)
