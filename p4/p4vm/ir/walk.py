"""Ways through the small program: parts of expressions, expressions of statements, variables of routines."""

from __future__ import annotations

from collections.abc import Iterator

from p4vm.ir import nodes as ir


def parts(expression: ir.Expression) -> list[ir.Expression]:
    """The expressions directly within."""
    match expression:
        case ir.Index():
            return [expression.base, expression.index]
        case ir.Member() | ir.Next() | ir.Last() | ir.LastIndex() | ir.Slice() | ir.Valid() | ir.SizeBits():
            return [expression.base]
        case ir.Unary() | ir.Cast():
            return [expression.operand]
        case ir.Binary() | ir.Concat():
            return [expression.left, expression.right]
        case ir.Mux():
            return [expression.condition, expression.yes, expression.no]
        case ir.Build():
            return list(expression.items)
    return []


Lists = list[list[ir.Statement]]


def all_lists(routine: ir.Routine) -> Iterator[list[ir.Statement]]:
    """Every list of statements in the routine, inner ones too."""
    pending: Lists = [routine.body, *(state.body for state in routine.states.values())]
    while pending:
        statements = pending.pop()
        yield statements
        for statement in statements:
            pending.extend(inner_lists(statement))


def inner_lists(statement: ir.Statement) -> Lists:
    match statement:
        case ir.If():
            return [statement.yes, statement.no]
        case ir.Switch():
            return [*(body for _, body in statement.cases), statement.default]
        case ir.Loop():
            return [statement.body, statement.step]
    return []


def expressions_of(statement: ir.Statement) -> list[ir.Expression]:
    """Those directly in a statement, places too."""
    found: list[ir.Expression | None]
    match statement:
        case ir.Assign():
            found = [statement.target, statement.value]
        case ir.Reset() | ir.SetValid() | ir.Push() | ir.Lookahead():
            found = [statement.target]
        case ir.If():
            found = [statement.condition]
        case ir.Switch():
            found = [statement.subject]
        case ir.Invoke() | ir.CallExtern():
            found = [*statement.arguments, statement.result]
        case ir.ApplyTable():
            found = [statement.hit, statement.action]
        case ir.Return() | ir.Emit():
            found = [statement.value]
        case ir.Extract():
            found = [statement.target, statement.varbits]
        case ir.Advance():
            found = [statement.bits]
        case ir.Verify():
            found = [statement.condition, statement.error]
        case _:
            found = []
    return [one for one in found if one is not None]


def set_expressions(one: ir.KeySet) -> list[ir.Expression]:
    match one:
        case ir.Exactly():
            return [one.value]
        case ir.Masked():
            return [one.value, one.mask]
        case ir.Between():
            return [one.low, one.high]
    return []


def variables_in(expression: ir.Expression) -> Iterator[ir.Variable]:
    """One for each time that a variable stands in it."""
    pending = [expression]
    while pending:
        one = pending.pop()
        if isinstance(one, ir.Local):
            yield one.variable
        pending.extend(parts(one))


def variables_of(routine: ir.Routine) -> Iterator[ir.Variable]:
    """One for each time that a variable stands in the routine."""
    for statements in all_lists(routine):
        for statement in statements:
            for expression in expressions_of(statement):
                yield from variables_in(expression)
    for state in routine.states.values():
        for expression in state.keys:
            yield from variables_in(expression)
        for case in state.cases:
            for one in case.sets:
                for expression in set_expressions(one):
                    yield from variables_in(expression)
