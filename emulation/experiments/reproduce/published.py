"""What a published result is, and when ours agrees with it. Pure.

The rule, stated beforehand and the same for all (`RULE`): of the cells that are judged, each is within `ERROR_MOST` of
the paper's number; where that is a speed-up, ours also has between half and twice the published gain, so that "nothing
happens" can't agree with a small gain; and the order of any two cells of a series is the paper's, where the paper's
numbers are further apart than they can be read.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

ERROR_MOST = 0.15
"""Of a judged cell, relative to the paper's number."""

READ = 0.05
"""Numbers of a paper that differ by no more have no order: bars are read to about that."""

GAIN_LEAST, GAIN_MOST = 0.5, 2.0
"""Ours over the published gain of a speed-up, where the paper has one at all (more than READ)."""

RULE = (
    f"A result *agrees* if each judged cell is within {100 * ERROR_MOST:g} % of the paper's number, a speed-up has "
    f"{GAIN_LEAST:g} to {GAIN_MOST:g} times the published gain, and cells that the paper separates by more than "
    f"{100 * READ:g} % are in its order. One that *differs* has an experiment: with one thing changed, its failing "
    "cells are within the limit."
)

Role = Literal["judged", "calibrates", "shown", "experiment"]
Verdict = Literal["agrees", "differs", "open"]
Numbers = dict[str, float]
"""Our numbers, by the names of the cells."""


class ReproduceError(ValueError):
    """A result can't be shown: one line, for users."""


@dataclass(frozen=True)
class PublishedCell:
    """One number of a paper. name: unique within the result. series: cells whose order is compared. role: "calibrates"
    fixes a constant, or is of what does, and is not judged; "shown" stands without conditions to run it by, and may
    have no number of ours; "experiment" is a judged cell once more with the one thing changed that its name says.
    """

    name: str
    published: float
    series: str = ""
    role: Role = "judged"


@dataclass(frozen=True)
class Published:
    """One published result.

    paper: authors, title, venue. source: figure, table or section, and where it was read. conditions: as printed.
    inputs: what of the paper's went into ours; calibration: which cells fix a constant, "" if none. unit: of all
    cells; "speed-up" for speed-ups. reading: how exactly the source can be read. because: why ours differs; missing:
    what couldn't be read, where nothing can be judged. run: makes our numbers; constants: what it takes from the paper.
    """

    name: str
    title: str
    paper: str
    year: int
    source: str
    conditions: str
    inputs: str
    unit: str
    cells: tuple[PublishedCell, ...]
    run: Callable[[Published], Numbers]
    constants: Mapping[str, Any] = field(default_factory=dict)
    calibration: str = ""
    reading: str = ""
    because: str = ""
    missing: str = ""

    def __post_init__(self) -> None:
        names = [cell.name for cell in self.cells]
        if len(set(names)) < len(names):
            raise ReproduceError(f"{self.name}: two cells have the same name")
        if bool(self.calibration) != any(cell.role == "calibrates" for cell in self.cells):
            raise ReproduceError(f"{self.name}: say which cells calibrate, and only if there are any")
        if not self.judged and not self.missing:
            raise ReproduceError(f"{self.name}: nothing is judged, and the file doesn't say what is missing")

    def number(self, cell: str) -> float:
        """The paper's, by the cell's name."""
        return next(entry.published for entry in self.cells if entry.name == cell)

    @property
    def judged(self) -> tuple[PublishedCell, ...]:
        return tuple(cell for cell in self.cells if cell.role == "judged")


@dataclass(frozen=True)
class Judgement:
    """Of one result. errors: ours over the paper's number, less 1, of judged cells. tau: Kendall's, of the pairs that
    the paper separates, over all series; nan: there are none. faults: what breaks the rule, a few words each."""

    verdict: Verdict
    reproduced: Mapping[str, float]
    errors: Mapping[str, float]
    tau: float
    pairs: int
    faults: tuple[str, ...]

    @property
    def worst(self) -> float:
        """The largest error, with its sign; nan where nothing is judged."""
        return max(self.errors.values(), key=abs, default=math.nan)


def judge(published: Published, reproduced: Mapping[str, float]) -> Judgement:
    """By the rule. ReproduceError if ours lacks a cell, or the file's words don't fit the verdict."""
    needed = [cell.name for cell in published.cells if cell.role != "shown"]
    lacking = [name for name in needed if not math.isfinite(reproduced.get(name, math.nan))]
    if lacking:
        raise ReproduceError(f"{published.name}: no number of ours for {lacking[0]}")
    errors, faults = dict[str, float](), list[str]()
    for cell in published.judged:
        errors[cell.name] = reproduced[cell.name] / cell.published - 1
        if abs(errors[cell.name]) > ERROR_MOST:
            faults.append(f"{cell.name}: {errors[cell.name]:+.0%}")
        elif published.unit == "speed-up" and abs(cell.published - 1) > READ:
            gain = (reproduced[cell.name] - 1) / (cell.published - 1)
            if not GAIN_LEAST <= gain <= GAIN_MOST:
                faults.append(f"{cell.name}: {gain:.1f} times the gain")
    agreeing, pairs = 0, 0
    for cell, other in _pairs(published):
        pairs += 1
        agrees = (reproduced[cell.name] - reproduced[other.name]) * (cell.published - other.published) > 0
        agreeing += agrees
        if not agrees:
            faults.append(f"{cell.name} and {other.name} in the other order")
    verdict: Verdict = "open" if not published.judged else "differs" if faults else "agrees"
    if verdict == "differs" and not published.because:
        raise ReproduceError(f"{published.name}: differs ({faults[0]}), and its file doesn't say why")
    if verdict == "agrees" and published.because:
        raise ReproduceError(f"{published.name}: agrees, but its file says why it differs")
    _check_experiment(published, verdict, reproduced)
    return Judgement(
        verdict, reproduced, errors, (2 * agreeing - pairs) / pairs if pairs else math.nan, pairs, tuple(faults)
    )


def _check_experiment(published: Published, verdict: Verdict, reproduced: Mapping[str, float]) -> None:
    """What differs is explained by cells within the limit. ReproduceError."""
    cells = [cell for cell in published.cells if cell.role == "experiment"]
    if (verdict == "differs") != bool(cells):
        raise ReproduceError(f"{published.name}: {verdict}, and has {len(cells)} cells of an experiment")
    for cell in cells:
        if abs(error := reproduced[cell.name] / cell.published - 1) > ERROR_MOST:
            raise ReproduceError(
                f"{published.name}: {cell.name} should explain a difference, and is off by {error:+.0%}"
            )


def _pairs(published: Published) -> Iterator[tuple[PublishedCell, PublishedCell]]:
    """Judged cells of one series that the paper separates."""
    for cell, other in itertools.combinations(published.judged, 2):
        larger = max(abs(cell.published), abs(other.published))
        if cell.series == other.series and abs(cell.published - other.published) > READ * larger:
            yield cell, other
