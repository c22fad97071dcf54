"""Statements of the tree -> statements of the small program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from p4vm.check import types
from p4vm.front import tree
from p4vm.ir import nodes as ir
from p4vm.lower import calls, expressions, fold, instances, loops, places, values
from p4vm.lower.body import Body
from p4vm.lower.kinds import BOOL
from p4vm.source import P4Error

ENDS = (ir.Return, ir.Exit, ir.Break, ir.Continue)


def statements(body: Body, nodes: Sequence[tree.Node]) -> None:
    """All of them, up to one that surely leaves: what follows it is never reached."""
    for node in nodes:
        statement(body, node)
        if body.out and isinstance(body.out[-1], ENDS):
            return


def statement(body: Body, node: tree.Node) -> None:
    body.world.place = node.position
    handler = HANDLERS.get(type(node))
    if handler is None:
        raise P4Error("this statement is not supported here", node.position)
    handler(body, node)


def _variable(body: Body, node: tree.Variable) -> None:
    kind = body.kind_of(node)
    value = None
    if node.value is not None:
        value = expressions.expression(body, node.value, kind)
    variable = body.declare(node.name, kind, node.position)
    body.frame.bindings[node] = variable
    local = ir.Local(kind, variable)
    if value is None:
        body.emit(ir.Reset(local))
    else:
        places.assign(body, local, value, node.position)


def _constant(body: Body, node: tree.Constant) -> None:
    if isinstance(body.world.checked.type_of.get(node), types.Tuple) and not isinstance(node.value, tree.Name):
        kind = body.type_of(node)
        if isinstance(kind, types.Tuple) and kind.is_list:
            return  # only loops read it, item by item
    value = expressions.expression(body, node.value, body.kind_of(node))
    if isinstance(value, ir.Const) or _is_constant(value):
        assert isinstance(value, ir.Const | ir.Build | ir.Invalid)
        body.frame.bindings[node] = value
        return
    raise P4Error(f"{node.name} is constant, but its value is not known at compile time", node.position)


def _is_constant(value: ir.Expression) -> bool:
    if isinstance(value, ir.Build):
        return all(map(_is_constant, value.items))
    return isinstance(value, ir.Const | ir.Invalid)


def _instance(body: Body, node: tree.Instance) -> None:
    instances.declare(body, node)


def _assign(body: Body, node: tree.Assign) -> None:
    if isinstance(node.target, tree.Slice) and node.target.high is None:
        low = expressions.expression(body, node.target.low)
        if not isinstance(low, ir.Const):
            _assign_moving_slice(body, node, node.target, low)
            return
    target = expressions.place(body, node.target)
    with body.into([]) as later:
        if node.operator:
            value = _compound(body, node, target)
        else:
            value = expressions.expression(body, node.value, target.type)
    if later:
        target = body.frozen(target, body.world.reach.statements(later).writes)
        body.out.extend(later)
    places.assign(body, target, value, node.position)


def _compound(body: Body, node: tree.Assign, target: ir.Expression) -> ir.Expression:
    """target operator value"""
    if node.operator in ("&&", "||"):
        raise P4Error(f"{node.operator}= is not supported; write it out", node.position)
    left, right = body.sequence([lambda: target, lambda: expressions.expression(body, node.value)])
    value = expressions.operation(body, node.operator, left, right, node)
    return values.coerce(body, value, target.type, node.position)


def _assign_moving_slice(body: Body, node: tree.Assign, target: tree.Slice, low: ir.Expression) -> None:
    """base[low +: width] = value, with low known only when it runs: the bits are masked out and put in."""
    base = expressions.place(body, target.base)
    kind = base.type
    if not isinstance(kind, ir.Bits) or target.width is None:
        raise P4Error("slices are of bits", node.position)
    width = expressions.literal(body, target.width, "the width of a slice")
    low = body.keep(low)
    part = ir.Bits(width)
    raw = ir.Bits(kind.width)
    with body.into([]) as later:
        if node.operator:
            old = fold.cut(fold.binary(">>", kind, base, low), width - 1, 0)
            value = expressions.operation(body, node.operator, old, expressions.expression(body, node.value), node)
        else:
            value = expressions.expression(body, node.value, part)
    base = body.frozen(base, body.world.reach.statements(later).writes)
    body.out.extend(later)
    ones = fold.binary("<<", raw, ir.Const(raw, fold.wrapped((1 << width) - 1, raw)), low)
    kept = fold.binary("&", raw, fold.cast(raw, base), fold.unary("~", raw, ones))
    moved = fold.binary("<<", raw, fold.cast(raw, value), low)
    places.assign(body, base, fold.cast(kind, fold.binary("|", raw, kept, moved)), node.position)


def _call(body: Body, node: tree.CallStatement) -> None:
    calls.call(body, node.call)


def block(body: Body, node: tree.Statement | None) -> list[ir.Statement]:
    """The statement's own list."""
    with body.into([]) as inner:
        if node is not None:
            statements(body, [node])
    return inner


def _block(body: Body, node: tree.Block) -> None:
    statements(body, node.items)


def _if(body: Body, node: tree.If) -> None:
    condition = expressions.expression(body, node.condition)
    known = fold.number(condition)
    if known is not None:
        chosen = node.yes if known else node.no
        if chosen is not None:
            statements(body, [chosen])
        return
    yes, no = block(body, node.yes), block(body, node.no)
    if not yes and no:
        condition, yes, no = fold.unary("!", BOOL, condition), no, []
    if yes:
        body.emit(ir.If(condition, yes, no))


def _return(body: Body, node: tree.Return) -> None:
    value = None
    if node.value is not None:
        value = expressions.plain(body, node.value, body.routine.returns)
    body.emit(ir.Return(value))


# ---- switch


def _switch(body: Body, node: tree.Switch) -> None:
    subject = node.subject
    if isinstance(subject, tree.Member) and subject.name == "action_run" and isinstance(subject.base, tree.Call):
        _switch_action(body, node, subject.base)
        return
    value = expressions.expression(body, subject)
    if not isinstance(value.type, ir.Bits | ir.Bool | ir.Symbol):
        raise P4Error("switch looks at bits, bool, enums, errors and action_run", node.position)

    def number(label: tree.Expression) -> int:
        found = fold.number(expressions.expression(body, label, value.type))
        if found is None:
            raise P4Error("a switch label must be known at compile time; write a constant", label.position)
        return found

    cases, default = _merged(node, number)
    known = fold.number(value)
    if known is not None:
        chosen = next((inner for labels, inner in cases if known in labels), default)
        if chosen is not None:
            statements(body, [chosen])
        return
    _emit_switch(body, value, cases, default)


def _switch_action(body: Body, node: tree.Switch, call: tree.Call) -> None:
    table = calls.table_of(body, call)
    names = tuple(action.name for action in table.actions)
    ran = body.temporary(ir.Symbol(table.name, names), node.position)
    calls.apply_table(body, call, action=ran)

    def number(label: tree.Expression) -> int:
        listed = body.world.listed[table]
        declaration = body.world.checked.declared.get(label)
        if not isinstance(declaration, tree.Action) or declaration not in listed:
            raise P4Error(f"this is no action of table {table.name}", label.position)
        return listed.index(declaration)

    cases, default = _merged(node, number)
    _emit_switch(body, ran, cases, default)


Cases = list[tuple[list[int], tree.Block]]


def _merged(node: tree.Switch, number: Callable[[tree.Expression], int]) -> tuple[Cases, tree.Block | None]:
    """Labels that fall through joined with the body they fall to; those that share the default's are left out."""
    cases: Cases = []
    default: tree.Block | None = None
    labels: list[int] = []
    seen: set[int] = set()
    falls_default = False
    for case in node.cases:
        if isinstance(case.label, tree.Default):
            falls_default = True
        else:
            value = number(case.label)
            if value not in seen:
                labels.append(value)
            seen.add(value)
        if case.body is None:
            continue
        if falls_default:
            default = case.body
        if labels:
            cases.append((labels, case.body))
        labels, falls_default = [], False
    return cases, default


def _emit_switch(body: Body, value: ir.Expression, cases: Cases, default: tree.Block | None) -> None:
    lowered = [(labels, block(body, inner)) for labels, inner in cases if inner is not default]
    otherwise = block(body, default)
    if default is None or not otherwise:
        lowered = [(labels, inner) for labels, inner in lowered if inner]
    if lowered:
        body.emit(ir.Switch(value, lowered, otherwise))
    else:
        body.out.extend(otherwise)


def _for(body: Body, node: tree.For) -> None:
    loops.classic(body, node)


def _for_in(body: Body, node: tree.ForIn) -> None:
    loops.each(body, node)


def _break(body: Body, node: tree.Break) -> None:
    body.emit(ir.Break())


def _continue(body: Body, node: tree.Continue) -> None:
    body.emit(ir.Continue())


def _exit(body: Body, node: tree.Exit) -> None:
    body.emit(ir.Exit())


def _empty(body: Body, node: tree.Node) -> None:
    pass


HANDLERS: dict[type, Callable[[Body, Any], None]] = {
    tree.Variable: _variable,
    tree.Constant: _constant,
    tree.Instance: _instance,
    tree.Assign: _assign,
    tree.CallStatement: _call,
    tree.Block: _block,
    tree.If: _if,
    tree.Switch: _switch,
    tree.For: _for,
    tree.ForIn: _for_in,
    tree.Return: _return,
    tree.Exit: _exit,
    tree.Break: _break,
    tree.Continue: _continue,
    tree.Empty: _empty,
}
