"""A collective that is in no table until this module is imported: all ranks send to rank 0 and get the sum back."""

from transport.collectives import collective_table
from transport.collectives.collective import (
    Algorithm,
    AllreduceLoad,
    Collective,
    Cost,
    Costs,
    LinkPace,
    MethodStyle,
    Task,
)
from transport.collectives.collective_plan import CollectivePlan, Draft


def _plan(task: Task) -> CollectivePlan:
    draft = Draft(task.member, task.workers, task.elements)
    if task.member:
        draft.send(0, 0, task.elements)
        draft.receive(0, 0, task.elements, False)
        return draft.plan()
    for rank in range(1, task.workers):
        draft.receive(rank, 0, task.elements, True)
    for rank in range(1, task.workers):
        draft.send(rank, 0, task.elements)
    return draft.plan()


def _textbook(load: AllreduceLoad) -> Cost:
    others = load.workers - 1
    return Cost(2, 2 * others * load.size_bytes, others * load.size_bytes)


def _seconds(load: AllreduceLoad, pace: LinkPace) -> float:
    return 2 * pace.alpha + 2 * (load.workers - 1) * load.size_bytes * pace.beta


TOY = Collective(
    "toy",
    {"allreduce": Algorithm(_plan)},
    Costs(_textbook, _seconds),
    MethodStyle("toy star", "everything passes rank 0", "#123456", "8"),
)
collective_table.COLLECTIVES[TOY.name] = TOY
collective_table.NAMES = tuple(collective_table.COLLECTIVES)
