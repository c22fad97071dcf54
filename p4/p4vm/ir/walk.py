"""Walks through the IR: what a routine consists of, its lists of statements, its variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from p4vm.ir import ir_nodes as ir
from p4vm.node import Node, nodes


def parts(node: Node) -> list[ir.Expression]:
    """The expressions directly within, places too; not those of statements within."""
    expressions: list[ir.Expression] = []
    for name in node.inner:
        value = getattr(node, name)
        if isinstance(value, ir.Expression):
            expressions.append(value)
        elif isinstance(value, list):
            expressions += [item for item in value if isinstance(item, ir.Expression)]
    return expressions


def inner_lists(statement: ir.Statement) -> list[list[ir.Statement]]:
    match statement:
        case ir.If():
            return [statement.yes, statement.no]
        case ir.Branches():
            return [*(body for _, body in statement.cases), statement.default]
        case ir.Loop():
            return [statement.body, statement.step]
    return []


def all_lists(routine: ir.Routine) -> Iterator[list[ir.Statement]]:
    """Every list of statements in the routine, inner ones too."""
    pending = [routine.body, *(state.body for state in routine.states.values())]
    while pending:
        statements = pending.pop()
        yield statements
        for statement in statements:
            pending.extend(inner_lists(statement))


def code_of(routine: ir.Routine) -> list[Node]:
    """The statements and states of a routine."""
    return [*routine.body, *routine.states.values()]


def code_at(table: ir.Table) -> list[Node]:
    """The code that computes a table's keys and its actions' arguments, before an action runs."""
    return [*table.setup, *table.keys, *table.actions]


def with_tables(routine: ir.Routine) -> Iterator[Node]:
    """Every node in the routine, and in what applying its tables runs; not in other routines."""
    for node in nodes(code_of(routine)):
        yield node
        if isinstance(node, ir.ApplyTable):
            yield from nodes(code_at(node.table))


def variables_in(among: Iterable[Node]) -> Iterator[ir.Variable]:
    """The variables that these nodes read or write, once for each occurrence."""
    return (node.variable for node in among if isinstance(node, ir.ReadVariable))


# ---- what the code of one routine must know of others


def ending(program: ir.ProgramIr, ends: Callable[[Node], bool]) -> set[ir.Routine]:
    """Routines that may end their callers too: those with a node that does, and those that run such routines."""
    routines: set[ir.Routine] = set()

    def does(node: Node) -> bool:
        match node:
            case ir.Invoke():
                return node.routine in routines
            case ir.ApplyTable():
                return any(action.routine in routines for action in node.table.actions)
        return ends(node)

    for routine in program.routines:  # callees first
        if any(does(node) for node in with_tables(routine)):
            routines.add(routine)
    return routines


def shared_variables(program: ir.ProgramIr) -> dict[ir.Routine, list[ir.Variable]]:
    """Controls whose actions use variables of theirs -> those variables."""
    shared: dict[ir.Routine, dict[ir.Variable, None]] = {}
    for routine in program.routines:
        if routine.owner is not None:
            local = {*(parameter.variable for parameter in routine.parameters), *routine.locals}
            for variable in variables_in(with_tables(routine)):
                if variable not in local:
                    shared.setdefault(routine.owner, {})[variable] = None
    return {routine: list(variables) for routine, variables in shared.items()}


def run_in_parser(program: ir.ProgramIr) -> set[ir.Routine]:
    """The program's parsers, and all that they call: a step beyond a stack ends them."""
    routines: set[ir.Routine] = set()
    pending = [routine for routine in program.blocks.values() if routine.kind == "parser"]
    while pending:
        routine = pending.pop()
        if routine not in routines:
            routines.add(routine)
            pending += [node.routine for node in nodes(code_of(routine)) if isinstance(node, ir.Invoke)]
    return routines
