"""Walks through the IR: what a routine consists of, its lists of statements, its variables."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

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
            items = (item[0] if isinstance(item, tuple) else item for item in value)
            expressions += [item for item in items if isinstance(item, ir.Expression)]
    return expressions


def member(kind: ir.Type, base: ir.Expression, field: str) -> ir.Expression:
    """A field; of a record just built: that part of it."""
    if isinstance(base, ir.Build) and isinstance(base.type, ir.Record):
        names = [name for name, _ in base.type.fields]
        return base.items[names.index(field)]
    return ir.FieldOf(kind, base, field)


def parts_of(value: ir.Expression) -> list[ir.Expression]:
    """The fields of a record or the elements of an array, each an expression."""
    if isinstance(value, ir.Build):
        return value.items
    if isinstance(value.type, ir.Array):
        return [ir.Index(value.type.element, value, ir.Const(ir.Bits(32), at)) for at in range(value.type.size)]
    assert isinstance(value.type, ir.Record)
    return [ir.FieldOf(kind, value, name) for name, kind in value.type.fields]


def inner_lists(statement: ir.Statement) -> list[list[ir.Statement]]:
    match statement:
        case ir.If():
            return [*(body for _, body in statement.cases), statement.otherwise]
        case ir.Loop():
            return [statement.body]
    return []


def all_lists(routine: ir.Routine) -> Iterator[list[ir.Statement]]:
    """Every list of statements in the routine, inner ones too."""
    pending = [routine.body, *routine.states.values()]
    while pending:
        statements = pending.pop()
        yield statements
        for statement in statements:
            pending.extend(inner_lists(statement))


def code_of(routine: ir.Routine) -> list[ir.Statement]:
    """The statements of a routine, and of its states."""
    return [*routine.body, *chain.from_iterable(routine.states.values())]


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
