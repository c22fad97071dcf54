"""What ranks of a chaos run start with, and what they report, a line of JSON each."""

from __future__ import annotations

import msgspec

from emulation.testbed.children import ChildReport


class ChaosRankPlace(msgspec.Struct):
    """What a rank starts with. start: number of the job's start, each with keys of its own in the store.

    first: the step to begin with, for which `folder` has a checkpoint if it isn't 0. last: the step to end before; -1:
    none. lap: after so many steps training begins anew, from the same parameters. lap_plans: laps to train in place of
    that, each as numbers of ranks, with how many steps so many have done.
    """

    rank: int
    workers: int
    store: tuple[str, int]
    start: int
    first: int
    last: int
    lap: int
    folder: str
    seed: int
    timeout_s: float
    lap_plans: list[tuple[tuple[int, int], ...]] = []


class StepDone(ChildReport):
    """A step is done. generation: of the ranks' group, which has `workers` ranks. sha256: of the parameters' bits after
    it. sums: known sums that were checked, and were right."""

    step: int
    begun_ns: int
    done_ns: int
    sha256: str
    sums: int
    workers: int
    generation: int = 0


class StepFailed(ChildReport):
    """A step of this generation failed on this rank, which goes on with those that are left."""

    step: int
    generation: int


class CheckpointSaved(ChildReport):
    """The state before this step is saved."""

    step: int


class SumWrong(ChildReport):
    """A known sum isn't what the arithmetic says."""

    step: int
    what: str


class LapReplayed(ChildReport):
    """sha256 of the parameters after each step of a lap, by the number of the lap in the order given."""

    number: int
    sha256: list[str]


class RankFailed(ChildReport):
    """An operation of the job has failed; the process ends now."""

    error: str


class RankLeft(ChildReport):
    """All ranks have ended after the same step."""


RankReport = StepDone | StepFailed | CheckpointSaved | SumWrong | LapReplayed | RankFailed | RankLeft
