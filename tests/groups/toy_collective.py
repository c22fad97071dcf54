"""A collective that is in no table until this module is imported: all ranks send to rank 0 and get the sum back."""

from transport.collectives import table
from transport.collectives.collective import Algorithm, Collective, Cost, Costs, Load, Look, Pace, Sent, Task
from transport.collectives.plan import Draft, Plan


def _plan(task: Task) -> Plan:
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


def _sent(task: Task) -> Sent:
    messages = 1 if task.member else task.workers - 1
    return Sent(messages, messages * task.elements)


def _textbook(load: Load) -> Cost:
    others = load.workers - 1
    return Cost(2, 2 * others * load.size_bytes, others * load.size_bytes)


def _seconds(load: Load, pace: Pace) -> float:
    return 2 * pace.alpha + 2 * (load.workers - 1) * load.size_bytes * pace.beta


TOY = Collective(
    "toy",
    {"allreduce": Algorithm(_plan, _sent)},
    Costs(_textbook, _seconds),
    Look("toy star", "everything passes rank 0", "#123456", "8"),
)
table.COLLECTIVES[TOY.name] = TOY
table.NAMES = tuple(table.COLLECTIVES)
