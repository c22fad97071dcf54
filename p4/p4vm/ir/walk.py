"""Ways through the small program, read off the fields of its nodes: parts of a node, lists of statements, variables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from p4vm.ir import nodes as ir

Node = ir.Expression | ir.Statement | ir.KeySet | ir.State | ir.Key | ir.TableAction
"""What has expressions in it."""


EXPRESSION = ("Expression", "Expression | None", "list[Expression]")
_FIELDS: dict[type, tuple[str, ...]] = {}


def expression_fields(node: type) -> tuple[str, ...]:
    """Names of the fields of a class of nodes that hold an expression, a list of them, or perhaps none, in order."""
    if node not in _FIELDS:
        _FIELDS[node] = tuple(one.name for one in fields(node) if one.type in EXPRESSION)
    return _FIELDS[node]


def parts(node: Node) -> list[ir.Expression]:
    """The expressions directly within, places too."""
    found: list[ir.Expression] = []
    for name in expression_fields(type(node)):
        value = getattr(node, name)
        if isinstance(value, list):
            found += value
        elif value is not None:
            found.append(value)
    return found


Lists = list[list[ir.Statement]]


def inner_lists(statement: ir.Statement) -> Lists:
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
    pending: Lists = [routine.body, *(state.body for state in routine.states.values())]
    while pending:
        statements = pending.pop()
        yield statements
        for statement in statements:
            pending.extend(inner_lists(statement))


def variables_in(node: Node) -> Iterator[ir.Variable]:
    """One for each time that a variable stands in it, not in statements within."""
    pending: list[Node] = [node]
    while pending:
        one = pending.pop()
        if isinstance(one, ir.Local):
            yield one.variable
        pending.extend(parts(one))


def variables_of(routine: ir.Routine) -> Iterator[ir.Variable]:
    """One for each time that a variable stands in the routine."""
    for statements in all_lists(routine):
        for statement in statements:
            yield from variables_in(statement)
    for state in routine.states.values():
        yield from variables_in(state)
        for case in state.cases:
            for one in case.sets:
                yield from variables_in(one)
