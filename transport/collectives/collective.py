"""Collective: everything that the rest of the code must know of one algorithm, in one record.

A record is in the file of its family, beside its plans; `collective_table.py` lists it. The plan has what a member
sends; `Sent` has it again in closed form, and tests compare the two. Costs are those of an allreduce.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from switchagg.description import Kind
from transport.collectives.collective_plan import CollectivePlan


class Task(NamedTuple):
    """The part of one member in a call: at least 1 worker, 0 elements. root: for rooted kinds. option: see `Option`."""

    kind: Kind
    algorithm: str
    member: int
    workers: int
    elements: int
    root: int = 0
    option: int = 0


class LinkCost(NamedTuple):
    """alpha_s: seconds per message; beta_s: per byte of a port; gamma_s: per byte added."""

    alpha_s: float
    beta_s: float
    gamma_s: float = 0.0


class Cost(NamedTuple):
    """steps·α + bytes·β + reduced_bytes·γ: messages one after the other, and their bytes."""

    steps: int
    size_bytes: float
    reduced_bytes: float

    def seconds(self, link: LinkCost) -> float:
        return self.steps * link.alpha_s + self.size_bytes * link.beta_s + self.reduced_bytes * link.gamma_s


class AllreduceLoad(NamedTuple):
    """An allreduce to be timed; option: as a plan gets it."""

    workers: int
    size_bytes: float
    option: int


class LinkPace(NamedTuple):
    """Seconds per message and per byte of a port, and the most bytes of a segment."""

    alpha: float
    beta: float
    segment_bytes: int


@dataclass(frozen=True)
class Costs:
    """An allreduce's costs. textbook: the formula of the literature. seconds: as messages travel here, in segments."""

    textbook: Callable[[AllreduceLoad], Cost]
    seconds: Callable[[AllreduceLoad, LinkPace], float]


def any_number(workers: int) -> bool:
    """The rule of a collective that works with any number of workers."""
    return True


@dataclass(frozen=True)
class Algorithm:
    """How a collective does one kind. Functions get the number that `option` stands for.

    fits: for which numbers of workers it is defined; needs:
    those as a text. turns: a member's plan is member 0's, with its number added to all members and to all pieces of the
    array, of which there is one for each worker, cut as shards are.
    """

    plan: Callable[[Task], CollectivePlan]
    fits: Callable[[int], bool] = any_number
    needs: str = "any number"
    turns: bool = False


@dataclass(frozen=True)
class MethodStyle:
    """How reports name and draw a method. label: in tables. article: within a sentence. summary: what it does."""

    label: str
    summary: str
    colour: str
    marker: str = "x"
    article: str = "the "


@dataclass(frozen=True)
class Option:
    """The one number that a collective takes; 0: it chooses. name: as in the options of `open_group`."""

    name: str


@dataclass(frozen=True)
class Collective:
    """An algorithm by its name in messages. costs: None if it has no allreduce. look: None if users can't ask for it by
    name, as a method.

    in_auto: whether `auto` weighs it; among equals the earlier in the table wins. pipelined: long arrays are passed on
    piece by piece.
    """

    name: str
    kinds: Mapping[Kind, Algorithm]
    costs: Costs | None = None
    look: MethodStyle | None = None
    option: Option | None = None
    in_auto: bool = False
    pipelined: bool = False


def stepwise(
    chain: Callable[[AllreduceLoad], list[float]], reduced: Callable[[AllreduceLoad], float] | None = None
) -> Costs:
    """Costs of messages one after the other, each after what came before. chain: their bytes. reduced: bytes added;
    None: each worker's share of the array by all others."""

    def textbook(load: AllreduceLoad) -> Cost:
        messages = chain(load)
        added = (load.workers - 1) / load.workers * load.size_bytes if reduced is None else reduced(load)
        return Cost(len(messages), math.fsum(messages), added)

    return Costs(textbook, lambda load, pace: stepwise_seconds(chain(load), pace))


def stepwise_seconds(messages: list[float], pace: LinkPace) -> float:
    """Messages of one rank, each of which needs what came with the one before, segment by segment.

    A step begins when the port is free and the first segment of the step before is there.
    """
    begin = end = 0.0
    for number, size in enumerate(messages):
        if number:
            begin = max(end, begin + pace.alpha + min(messages[number - 1], pace.segment_bytes) * pace.beta)
        end = begin + size * pace.beta
    return end + pace.alpha
