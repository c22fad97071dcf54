"""Messages between `switchagg try` and the ranks of the user's script."""

from __future__ import annotations

import msgspec

from emulation.testbed.children import ChildCommand, ChildReport


class ScriptPlace(msgspec.Struct, frozen=True):
    """A rank of the script. environment: what torchrun would set, and what the method needs.

    holds: steps after which it reports and waits for `GoOn`; after the last one it ends. trace: in their place, the
    stem of the files for recordings of `recorded` steps after `warmup`. niceness: of its computing, so that threads
    that carry packets on the same processors come first.
    """

    rank: int
    workers: int
    program: str
    arguments: list[str]
    is_module: bool
    method: str
    seed: int
    environment: dict[str, str]
    holds: list[int] = []
    trace: str = ""
    warmup: int = 0
    recorded: int = 0
    niceness: int = 0

    @property
    def phase(self) -> str:
        """What the rank does, by the name that messages and logs have."""
        return "recording" if self.trace else self.method


class GoOn(ChildCommand):
    """Train up to the next hold."""


class StepsDone(ChildReport):
    """The steps since the last hold: how long each took, and the values that `backward` began from, None if unknown.

    threads: kernel ids of all threads but the one that computes. peak_bytes: the most memory it has had.
    """

    durations_ns: list[int]
    losses: list[float | None]
    threads: list[int]
    peak_bytes: int


class RunRecorded(ChildReport):
    """The recording is written."""

    peak_bytes: int
