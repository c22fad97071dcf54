"""Ways through the small program: what a routine consists of, its lists of statements, its variables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from p4vm.ir import nodes as ir
from p4vm.node import Node, nodes


def parts(node: Node) -> list[ir.Expression]:
    """The expressions directly within, places too; not those of statements within."""
    found: list[ir.Expression] = []
    for name in node.inner:
        value = getattr(node, name)
        if isinstance(value, ir.Expression):
            found.append(value)
        elif isinstance(value, list):
            found += [item for item in value if isinstance(item, ir.Expression)]
    return found


def inner_lists(statement: ir.Statement) -> list[list[ir.Statement]]:
    match statement:
        case ir.If():
            return [statement.yes, statement.no]
        case ir.Switch():
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
    """What a routine runs: its statements and states."""
    return [*routine.body, *routine.states.values()]


def code_at(table: ir.Table) -> list[Node]:
    """What applying a table runs before an action: what its keys and its actions' arguments are computed by."""
    return [*table.setup, *table.keys, *table.actions]


def with_tables(routine: ir.Routine) -> Iterator[Node]:
    """Every node in the routine, and in what applying its tables runs; not in other routines."""
    for node in nodes(code_of(routine)):
        yield node
        if isinstance(node, ir.ApplyTable):
            yield from nodes(code_at(node.table))


def variables_in(roots: Iterable[Node]) -> Iterator[ir.Variable]:
    """One for each time that a variable stands in them."""
    for node in nodes(roots):
        if isinstance(node, ir.Local):
            yield node.variable
