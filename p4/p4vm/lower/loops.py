"""Loops: all become a loop for ever that a condition leaves."""

from __future__ import annotations

from functools import partial

from p4vm.front import tree
from p4vm.ir import nodes as ir
from p4vm.lower import expressions, fold, places, statements
from p4vm.lower.body import Body
from p4vm.lower.kinds import BIT32, BOOL, INT
from p4vm.source import P4Error


def classic(body: Body, node: tree.For) -> None:
    """for (init; condition; step) body"""
    statements.statements(body, node.init)
    with body.into([]) as inside:
        condition = expressions.expression(body, node.condition)
        known = fold.number(condition)
        if known == 0:
            pass
        elif known is None:
            body.emit(ir.If(fold.unary("!", BOOL, condition), [ir.Break()], []))
    if known == 0:
        body.out.extend(inside)
        return
    inside.extend(statements.block(body, node.body))
    with body.into([]) as step:
        statements.statements(body, node.step)
    body.emit(ir.Loop(inside, step, node.position))


def each(body: Body, node: tree.ForIn) -> None:
    """for (x in collection) body: the collection is evaluated once, before the first turn."""
    collection = node.collection
    if isinstance(collection, tree.Range):
        _over_range(body, node, collection)
        return
    items = _items(body, collection)
    if items is not None:
        _over_list(body, node, items)
        return
    value = expressions.expression(body, collection)
    if not isinstance(value.type, ir.Array):
        raise P4Error("for … in goes through a range, a list or a header stack", collection.position)
    stack = body.temporary(value.type)
    places.assign(body, stack, value, collection.position)
    counter = body.temporary(BIT32)
    with body.into([]) as first:
        places.assign(body, _variable(body, node, value.type.element), ir.Index(value.type.element, stack, counter))
    _turns(body, node, counter, ir.Const(BIT32, 0), ir.Const(BIT32, value.type.size - 1), first)


def _variable(body: Body, node: tree.ForIn, kind: ir.Type) -> ir.Local:
    """The loop's own variable, or the one that it names."""
    if node.type is None:
        declaration = body.world.checked.declared.get(node)
        found = body.frame.find(declaration) if declaration is not None else None
        if not isinstance(found, ir.Variable):
            raise P4Error(
                f"{node.name} is not a variable; declare it in the loop: for (bit<8> {node.name} in …)", node.position
            )
        return ir.Local(found.type, found)
    wanted = body.kind_of(node.type)
    found = body.frame.bindings.get(node)
    if not isinstance(found, ir.Variable):
        found = body.declare(node.name, kind if wanted == INT else wanted, node.position)
        body.frame.bindings[node] = found
    return ir.Local(found.type, found)


def _items(body: Body, node: tree.Expression) -> list[tree.Expression] | None:
    """The expressions of a list, also of one that a constant names."""
    seen = 0
    while isinstance(node, tree.Name) and seen < 64:
        declaration = body.world.checked.declared.get(node)
        if not isinstance(declaration, tree.Constant):
            return None
        node, seen = declaration.value, seen + 1
    while isinstance(node, tree.Cast):
        node = node.operand
    return list(node.items) if isinstance(node, tree.ListExpression) else None


def _over_range(body: Body, node: tree.ForIn, collection: tree.Range) -> None:
    """The counter has a bit more than the variable, so that it passes the last value whatever that is."""
    low, high = body.sequence(
        [
            lambda: expressions.expression(body, collection.low),
            lambda: expressions.expression(body, collection.high),
        ]
    )
    kind = high.type if low.type == INT else low.type
    variable = _variable(body, node, kind)
    if not isinstance(variable.type, ir.Bits):
        raise P4Error("a range goes from number to number", collection.position)
    wide = ir.Bits(variable.type.width + 1, variable.type.signed)
    counter = body.temporary(wide)
    last = body.keep(fold.cast(wide, high))
    with body.into([]) as first:
        body.emit(ir.Assign(variable, fold.cast(variable.type, counter), node.position))
    _turns(body, node, counter, fold.cast(wide, low), last, first)


def _over_list(body: Body, node: tree.ForIn, items: list[tree.Expression]) -> None:
    if not items:
        return
    probe = expressions.expression(body, items[0]) if node.type is None else None
    variable = _variable(body, node, probe.type if probe is not None else body.kind_of(items[0]))
    values = body.sequence([partial(expressions.expression, body, one, variable.type) for one in items])
    values = [body.keep(value) for value in values]
    counter = body.temporary(BIT32)
    with body.into([]) as first:
        cases: list[tuple[list[int], list[ir.Statement]]] = [
            ([number], [ir.Assign(variable, value, node.position)]) for number, value in enumerate(values)
        ]
        body.emit(ir.Switch(counter, cases, []))
    _turns(body, node, counter, ir.Const(BIT32, 0), ir.Const(BIT32, len(items) - 1), first)


def _turns(
    body: Body,
    node: tree.ForIn,
    counter: ir.Local,
    low: ir.Expression,
    last: ir.Expression,
    first: list[ir.Statement],
) -> None:
    """counter from low to last; `first` begins each turn."""
    body.emit(ir.Assign(counter, low, node.position))
    over = ir.Binary(BOOL, ">", counter, last)
    inside = [ir.If(over, [ir.Break()], []), *first, *statements.block(body, node.body)]
    one = ir.Binary(counter.type, "+", counter, ir.Const(counter.type, 1))
    body.emit(ir.Loop(inside, [ir.Assign(counter, one, node.position)], node.position))
