"""All collective algorithms by kind and name, as functions that return plans; and compiled programs, kept.

A method's name is also its algorithm's for allreduce. Not every algorithm is defined for every kind: `fitting` says
which one a method uses then.
"""

from collections.abc import Callable
from typing import Literal

from transport.collectives.execution import Program, ProgramCache, compile_plan
from transport.collectives.halving import (
    dissemination_barrier,
    doubling_all_gather,
    halving_doubling_allreduce,
    halving_reduce_scatter,
    is_power_of_two,
    recursive_doubling_allreduce,
)
from transport.collectives.plan import Plan
from transport.collectives.rings import (
    hierarchical_allreduce,
    naive_ring_allreduce,
    ring_all_gather,
    ring_allreduce,
    ring_broadcast,
    ring_reduce_scatter,
    torus_allreduce,
)
from transport.collectives.servers import ps_allreduce, ps_colocated_allreduce
from transport.collectives.trees import double_tree_allreduce, tree_allreduce, tree_broadcast

Kind = Literal["allreduce", "reduce_scatter", "all_gather", "broadcast", "barrier"]
KINDS: tuple[Kind, ...] = ("allreduce", "reduce_scatter", "all_gather", "broadcast", "barrier")

ALGORITHMS: dict[Kind, dict[str, Callable[..., Plan]]] = {
    "allreduce": {
        "ring": ring_allreduce,
        "naive_ring": naive_ring_allreduce,
        "halving_doubling": halving_doubling_allreduce,
        "recursive_doubling": recursive_doubling_allreduce,
        "tree": tree_allreduce,
        "double_tree": double_tree_allreduce,
        "torus": torus_allreduce,
        "hierarchical": hierarchical_allreduce,
        "ps": ps_allreduce,
        "ps_colocated": ps_colocated_allreduce,
    },
    "reduce_scatter": {"ring": ring_reduce_scatter, "halving_doubling": halving_reduce_scatter},
    "all_gather": {"ring": ring_all_gather, "halving_doubling": doubling_all_gather},
    "broadcast": {"ring": ring_broadcast, "tree": tree_broadcast},
    "barrier": {"dissemination": dissemination_barrier},
}
"""(member, workers, elements) -> Plan; some take one number more, see `plan`. At least 1 worker, 0 elements."""

WITH_OPTION = ("hierarchical", "ps", "ps_colocated")
"""Algorithms that `option` is for: ranks per group (0: chosen); dedicated servers; servers on workers (0: all)."""

NAMES = tuple(dict.fromkeys(name for kind in KINDS for name in ALGORITHMS[kind]))
"""Every algorithm once, in an order that both sides of a message share."""

_cache = ProgramCache()


def fitting(kind: Kind, method: str, workers: int) -> str:
    """The algorithm that a method uses for a kind: its own if it has one for so many workers, or else a common one."""
    if method in ALGORITHMS[kind]:
        if kind == "allreduce" or method != "halving_doubling" or is_power_of_two(workers):
            return method
        return "ring"
    return {"allreduce": "ring", "reduce_scatter": "ring", "all_gather": "ring", "broadcast": "tree"}.get(
        kind, "dissemination"
    )


def plan(kind: Kind, algorithm: str, member: int, workers: int, elements: int, root: int = 0, option: int = 0) -> Plan:
    """One member's plan. root: of a broadcast. option: see WITH_OPTION. ValueError for what isn't defined."""
    function = ALGORITHMS[kind].get(algorithm)
    if function is None:
        raise ValueError(f"{algorithm} {kind} is not defined; there are: {', '.join(ALGORITHMS[kind])}")
    if kind == "broadcast":
        if not 0 <= root < workers:
            raise ValueError(f"broadcast from rank {root} of {workers}")
        return function(member, workers, elements, root)
    if algorithm in WITH_OPTION:
        return function(member, workers, elements, option or 1 if algorithm == "ps" else option)
    return function(member, workers, elements)


def servers_of(algorithm: str, option: int) -> int:
    """How many dedicated servers an algorithm has: members n and more."""
    return option or 1 if algorithm == "ps" else 0


def program(
    kind: Kind,
    algorithm: str,
    member: int,
    workers: int,
    elements: int,
    itemsize: int,
    segment_bytes: int,
    root: int = 0,
    option: int = 0,
) -> Program:
    """The compiled plan, from a cache. Raises as `plan`."""
    key = (kind, algorithm, member, workers, elements, itemsize, segment_bytes, root, option)
    found = _cache.get(key)
    if found is None:
        found = compile_plan(plan(kind, algorithm, member, workers, elements, root, option), itemsize, segment_bytes)
        _cache.put(key, found)
    return found
