"""α–β–γ costs of an allreduce: in textbook form, as segments pipeline here, and the bound of long arrays.

α: seconds per message, from its sending to its arrival, however short. β: seconds per byte of one port, full duplex.
γ: seconds per byte that is added. A message of m bytes takes α + mβ. n is the size of the array, p the workers.

`textbook` is what the literature gives: messages one after the other, each whole before the next. Here messages travel
in segments of s bytes and a segment goes on as soon as it can, so a long message costs its port mβ and the way only
α + sβ: `predict` follows that. The two agree where messages are no longer than a segment.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from fractions import Fraction
from functools import cache

from switchagg.description import Kind
from transport.collectives.collective import AllreduceLoad, Cost, Costs, LinkCost, LinkPace, Task
from transport.collectives.collective_plan import Send
from transport.collectives.collective_table import COLLECTIVES, plan
from transport.collectives.programs import SEGMENT_BYTES

_ELEMENTS = math.lcm(*range(1, 65)) << 6
"""Length of an array that every plan for up to 64 workers cuts into whole parts."""


def textbook(name: str, workers: int, size_bytes: float, option: int = 0) -> Cost:
    """The formula of the literature for an allreduce. Raises Raises KeyError for a collective without one."""
    if workers == 1:
        return Cost(0, 0.0, 0.0)
    return _costs(name).textbook(AllreduceLoad(workers, size_bytes, option))


def predict(
    name: str, workers: int, size_bytes: float, link: LinkCost, option: int = 0, segment_bytes: int = SEGMENT_BYTES
) -> float:
    """Seconds of an allreduce whose messages travel in segments, begun by all ranks at once on an idle star.

    Additions overlap with receiving, so of γ only what the last segment costs would show; it is left out unless adding
    is slower than a port: then it sets the pace. Raises Raises KeyError for a collective without an allreduce.
    """
    if workers == 1:
        return 0.0
    pace = LinkPace(link.alpha_s, max(link.beta_s, link.gamma_s), segment_bytes)
    return _costs(name).seconds(AllreduceLoad(workers, size_bytes, option), pace)


def _costs(name: str) -> Costs:
    costs = COLLECTIVES[name].costs
    if costs is None:
        raise KeyError(name)
    return costs


def switch_seconds(size_bytes: float, link: LinkCost, bytes_factor: float = 1.0) -> float:
    """The switch: up and down at once, whatever the workers. bytes_factor: packets' bytes per byte of the array."""
    return link.alpha_s + size_bytes * bytes_factor * link.beta_s


@cache
def traffic_matrix(
    name: str, workers: int, option: int = 0, kind: Kind = "allreduce"
) -> Mapping[tuple[int, int], Fraction]:
    """Traffic of a call, (sender, receiver) -> arrays, read off the plans."""
    elements = _ELEMENTS * max(1, option)
    volumes: defaultdict[tuple[int, int], int] = defaultdict(int)
    alike = COLLECTIVES[name].kinds[kind].turns and elements % workers == 0
    for member in range(1 if alike else workers):
        for operation in plan(Task(kind, name, member, workers, elements, 0, option)).operations:
            if isinstance(operation, Send):
                volumes[member, operation.to] += operation.high - operation.low
    if alike:
        for (_, to), number in list(volumes.items()):
            volumes.update(((turn, (to + turn) % workers), number) for turn in range(workers))
    return {pair: Fraction(number, elements) for pair, number in volumes.items()}


@cache
def transfers_most(name: str, workers: int, option: int = 0, kind: Kind = "allreduce") -> int:
    """Messages that some member sends and receives in a call, before any is cut into segments: the most of all members.
    Read off the plans."""
    counts: defaultdict[int, int] = defaultdict(int)
    elements = _ELEMENTS * max(1, option)
    alike = COLLECTIVES[name].kinds[kind].turns and elements % workers == 0
    for member in range(1 if alike else workers):
        for operation in plan(Task(kind, name, member, workers, elements, 0, option)).operations:
            if isinstance(operation, Send):
                counts[member] += 1
                counts[member if alike else operation.to] += 1  # of members that are alike each receives as many
    return max(counts.values(), default=0)


@cache
def traffic_factor(name: str, workers: int, option: int = 0) -> Fraction:
    """How many times the array of an allreduce passes the busiest port of a member, in its busier direction.

    No long array can be faster.
    """
    ports: defaultdict[tuple[int, bool], Fraction] = defaultdict(Fraction)
    for (sender, to), arrays in traffic_matrix(name, workers, option).items():
        ports[sender, True] += arrays
        ports[to, False] += arrays
    return max(ports.values(), default=Fraction(0))
