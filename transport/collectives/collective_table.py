"""The collectives, a line each, and look-ups by name: plans, compiled programs.

A method's name is also its collective's. A collective may lack a kind: `fitting` then returns the
collective that the method uses.
"""

from switchagg.description import KINDS, ROOTED, Kind
from transport.collectives.collective import Collective, Task
from transport.collectives.collective_plan import CollectivePlan
from transport.collectives.direct import DIRECT
from transport.collectives.halving import DISSEMINATION, HALVING_DOUBLING, RECURSIVE_DOUBLING
from transport.collectives.programs import CompiledProgram, ProgramCache
from transport.collectives.rings import HIERARCHICAL, MULTI_RING, NAIVE_RING, RING, TORUS
from transport.collectives.trees import DOUBLE_TREE, TREE

COLLECTIVES: dict[str, Collective] = {
    collective.name: collective
    for collective in (
        RING,
        NAIVE_RING,
        HALVING_DOUBLING,
        RECURSIVE_DOUBLING,
        TREE,
        DOUBLE_TREE,
        TORUS,
        HIERARCHICAL,
        DIRECT,
        DISSEMINATION,
        MULTI_RING,
    )
}
"""In an order that both sides of a message share, and in which users see them."""

NAMES = tuple(COLLECTIVES)

COMMON: dict[Kind, str] = (
    dict.fromkeys(KINDS, RING.name) | dict.fromkeys(ROOTED, TREE.name) | {"barrier": DISSEMINATION.name}
)
"""The collective of each kind for a method without a kind of its own."""

_cache: ProgramCache = ProgramCache()


def with_kind(kind: Kind) -> tuple[str, ...]:
    """The collectives that have a kind."""
    return tuple(name for name, collective in COLLECTIVES.items() if kind in collective.kinds)


def fitting(kind: Kind, method: str, workers: int) -> str:
    """The collective that a method uses for a kind: its own if it has one for so many workers, or else a common one."""
    algorithm = COLLECTIVES[method].kinds.get(kind) if method in COLLECTIVES else None
    return method if algorithm is not None and algorithm.fits(workers) else COMMON[kind]


def plan(task: Task) -> CollectivePlan:
    """The plan of one member. Raises ValueError for what isn't defined."""
    kind, name, _, workers, _, root, _ = task
    if kind not in COLLECTIVES[name].kinds:
        raise ValueError(f"{name} {kind} is not defined; there are: {', '.join(with_kind(kind))}")
    algorithm = COLLECTIVES[name].kinds[kind]
    if not algorithm.fits(workers):
        raise ValueError(f"{name} {kind}: {workers} workers; it is defined for {algorithm.needs}")
    if kind in ROOTED and not 0 <= root < workers:
        raise ValueError(f"{kind} with root {root} of {workers}")
    return algorithm.plan(task)


def program(task: Task, itemsize: int, segment_bytes: int) -> CompiledProgram:
    """The compiled plan, from a cache. Raises as `plan`."""
    key = (task, itemsize, segment_bytes)
    compiled = _cache.get(key)
    if compiled is None:
        compiled = CompiledProgram(plan(task), itemsize, segment_bytes)
        _cache.put(key, compiled)
    return compiled
