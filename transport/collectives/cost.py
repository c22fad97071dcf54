"""α–β–γ costs of the allreduce algorithms: in textbook form, and as segments pipeline here.

α: seconds per message, from its sending to its arrival, however short. β: seconds per byte of one port, full duplex.
γ: seconds per byte that is added. A message of m bytes takes α + mβ. n is the size of the array, p the workers.

`textbook` is what the literature gives: messages one after the other, each whole before the next. Here messages travel
in segments of s bytes and a segment goes on as soon as it can, so a long message costs its port mβ and the way only
α + sβ: `predict` follows that. Both agree where messages are no longer than a segment.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from transport.collectives.execution import SEGMENT_BYTES
from transport.collectives.halving import blocks
from transport.collectives.rings import hierarchical_group, torus_sides
from transport.collectives.servers import colocated_servers

STEPWISE = ("ring", "naive_ring", "halving_doubling", "recursive_doubling", "torus", "hierarchical")
"""Algorithms in which every rank sends message after message, each after what came before."""


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


def textbook(algorithm: str, workers: int, size_bytes: float, option: int = 0) -> Cost:
    """The formula of the literature for an allreduce; option as of `algorithms.plan`. KeyError for another name."""
    p, n = workers, size_bytes
    if p == 1 and algorithm != "ps":
        return Cost(0, 0.0, 0.0)
    depth = (p - 1).bit_length()
    if algorithm in STEPWISE:
        chain = _chain(algorithm, p, n, option)
        reduced = {"naive_ring": (p - 1) * n, "recursive_doubling": depth * n}.get(algorithm, (p - 1) / p * n)
        return Cost(len(chain), math.fsum(chain), reduced)
    servers = option or (1 if algorithm == "ps" else p)
    costs = {
        "tree": lambda: Cost(2 * depth, 2 * depth * n, depth * n),
        "double_tree": lambda: Cost(2 * depth, 2 * n, n),
        "ps": lambda: Cost(2, 2 * max(1.0, p / servers) * n, p * n / servers),
        "ps_colocated": lambda: Cost(2, _colocated_bytes(p, n, servers), (p - 1) * n / servers),
    }
    return costs[algorithm]()


def predict(
    algorithm: str,
    workers: int,
    size_bytes: float,
    link: LinkCost,
    option: int = 0,
    segment_bytes: int = SEGMENT_BYTES,
) -> float:
    """Seconds of an allreduce whose messages travel in segments, begun by all ranks at once on an idle star.

    Additions overlap with receiving, so of γ only what the last segment costs would show; it is left out unless adding
    is slower than a port: then it sets the pace.
    """
    p, n = workers, size_bytes
    if p == 1 and algorithm != "ps":
        return 0.0
    alpha, beta = link.alpha_s, max(link.beta_s, link.gamma_s)
    if algorithm == "halving_doubling" and len(blocks(p)) > 1:
        return 2 * _half_through_blocks(p, n, alpha, beta, segment_bytes)
    if algorithm in STEPWISE:
        met = min(n, segment_bytes) if algorithm == "recursive_doubling" and p & (p - 1) else 0.0
        return _stepwise(_chain(algorithm, p, n, option), alpha, beta, segment_bytes) + met * beta
    depth = (p - 1).bit_length()
    if algorithm == "tree":  # the root's port carries the array once per child, in and then out
        return 2 * (p.bit_length() - 1) * alpha + depth * (min(n, segment_bytes) + n) * beta
    if algorithm == "double_tree":  # up and down `depth` levels of two children, then as fast as an inner port goes
        return 2 * depth * alpha + (3 * (depth - 1) * min(n / 2, segment_bytes) + 2 * n) * beta
    if algorithm == "ps":
        servers = option or 1
        last = p * min(n / servers, segment_bytes)  # the answers to the last segment leave one after the other
        return 2 * alpha + (max(1.0, p / servers) * n + last) * beta
    if algorithm == "ps_colocated":
        return 2 * alpha + _colocated_bytes(p, n, option or p) * beta
    raise KeyError(algorithm)


def switch_seconds(size_bytes: float, link: LinkCost, bytes_factor: float = 1.0) -> float:
    """The switch: up and down at once, whatever the workers. bytes_factor: packets' bytes per byte of the array."""
    return link.alpha_s + size_bytes * bytes_factor * link.beta_s


def traffic_factor(algorithm: str, workers: int, option: int = 0) -> float:
    """How many times the array passes the busiest port of a worker or server, one way: the bound of long arrays."""
    p = workers
    if algorithm == "switch":
        return 1.0
    if p == 1 and algorithm != "ps":
        return 0.0
    if algorithm in ("ring", "torus", "hierarchical"):
        return 2 * (p - 1) / p
    if algorithm == "halving_doubling":
        return 2 * (p - 1) / p if len(blocks(p)) == 1 else 2.0
    if algorithm == "ps":
        return max(1.0, p / (option or 1))
    if algorithm == "ps_colocated":
        return _colocated_bytes(p, 1.0, option or p)
    depth = (p - 1).bit_length()
    return {
        "naive_ring": p - 1.0,
        "recursive_doubling": float(depth),
        "tree": float(depth),
        "double_tree": 2.0 if p > 2 else 1.0,
    }[algorithm]


def _chain(algorithm: str, workers: int, size_bytes: float, option: int) -> list[float]:
    """Bytes of the messages that a rank sends one after the other, each after what came before."""
    p, n = workers, size_bytes
    if algorithm == "naive_ring":
        return [n] * (p - 1)
    if algorithm == "recursive_doubling":
        core = 1 << (p.bit_length() - 1)
        extra = p - core  # up to half of them cost one step: the other half is ahead by it
        return [n] * (core.bit_length() - 1 + (extra > 0) + (2 * extra > core))
    if algorithm == "halving_doubling":
        half = max(_ways_through_blocks(p, n), key=lambda way: (len(way), sum(way)))
        return half + half[::-1]
    inside = {"ring": p, "torus": torus_sides(p)[0]}.get(algorithm) or hierarchical_group(p, option)
    across = p // inside
    half = [n / inside] * (inside - 1)
    return half + [n / p] * (2 * (across - 1)) + half


def _ways_through_blocks(workers: int, size_bytes: float) -> list[list[float]]:
    """Messages until the largest block has the sum: of its own ranks; of the smallest block's, through all others."""
    sizes = [size for _, size in blocks(workers)]
    ways = [[size_bytes / (2 << step) for step in range(size.bit_length() - 1)] for size in (sizes[0], sizes[-1])]
    if len(sizes) == 1:
        return ways[:1]
    return [ways[0], ways[1] + [size_bytes / size for size in reversed(sizes[1:])]]


def _half_through_blocks(workers: int, size_bytes: float, alpha: float, beta: float, segment_bytes: int) -> float:
    """Seconds until the largest block has the sum. What passes between blocks goes on segment by segment."""
    inside, outside = _ways_through_blocks(workers, size_bytes)
    own = blocks(workers)[-1][1].bit_length() - 1
    between = outside[own:]
    first = sum(alpha + min(size, segment_bytes) * beta for size in between)
    rest = max(size - min(size, segment_bytes) for size in between) * beta
    before = _stepwise(outside[:own], alpha, beta, segment_bytes) if own else 0.0
    return max(_stepwise(inside, alpha, beta, segment_bytes), before + first + rest)


def _colocated_bytes(workers: int, size_bytes: float, servers: int) -> float:
    """Bytes that the port of a rank with a server sends: shards to the others, answers to all."""
    servers = len(colocated_servers(workers, servers))
    return ((servers - 1) + (workers - 1)) * size_bytes / servers


def _stepwise(messages: Sequence[float], alpha: float, beta: float, segment_bytes: int) -> float:
    """Messages of one rank, each of which needs what came with the one before, segment by segment.

    A step begins when the port is free and the first segment of the step before is there.
    """
    begin = end = 0.0
    for number, size in enumerate(messages):
        if number:
            begin = max(end, begin + alpha + min(messages[number - 1], segment_bytes) * beta)
        end = begin + size * beta
    return end + alpha
