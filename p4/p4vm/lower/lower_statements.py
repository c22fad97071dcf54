"""Statements of the tree -> statements of the IR."""

from collections.abc import Callable

from p4vm.ir import ir_nodes as ir
from p4vm.lower import fold, lower_expressions, lower_places
from p4vm.lower.body import ENDS, Body, StatementHandler
from p4vm.lower.kinds import BIT32, BOOL, INT
from p4vm.source import P4Error
from p4vm.tree import tree_nodes as tree
from p4vm.tree import types


def _variable(body: Body, node: tree.VariableDeclaration) -> None:
    kind = body.kind_of(node)
    value = None
    if node.value is not None:
        value = lower_expressions.expression(body, node.value, kind)
    variable = body.declare(node.name, kind, node.position)
    body.frame.bindings[node] = variable
    local = ir.ReadVariable(kind, variable)
    if value is None:
        body.emit(ir.Reset(local))
    else:
        lower_places.assign(body, local, value)


def _constant(body: Body, node: tree.ConstantDeclaration) -> None:
    if isinstance(body.world.checked.type_of.get(node), types.TupleType) and not isinstance(node.value, tree.Name):
        kind = body.type_of(node)
        if isinstance(kind, types.TupleType) and kind.is_list:
            return  # only loops read it, item by item
    value = lower_expressions.expression(body, node.value, body.kind_of(node))
    if isinstance(value, ir.Const) or _is_constant(value):
        assert isinstance(value, ir.Const | ir.Build | ir.Invalid)
        body.frame.bindings[node] = value
        return
    raise P4Error(f"{node.name} is constant, but its value is not known at compile time", node.position)


def _is_constant(value: ir.Expression) -> bool:
    if isinstance(value, ir.Build):
        return all(map(_is_constant, value.items))
    return isinstance(value, ir.Const | ir.Invalid)


def _assign(body: Body, node: tree.AssignmentStatement) -> None:
    if isinstance(node.target, tree.SliceExpression) and node.target.high is None:
        low = lower_expressions.expression(body, node.target.low)
        if not isinstance(low, ir.Const):
            _assign_moving_slice(body, node, node.target, low)
            return
    target = lower_expressions.place(body, node.target)
    with body.into([]) as later:
        if node.operator:
            value = _compound(body, node, target)
        else:
            value = lower_expressions.expression(body, node.value, target.type)
    if later:
        target = body.frozen(target, body.world.reach.statements(later).writes)
        body.out.extend(later)
    lower_places.assign(body, target, value)


def _compound(body: Body, node: tree.AssignmentStatement, target: ir.Expression) -> ir.Expression:
    """target operator value"""
    if node.operator in ("&&", "||"):
        raise P4Error(f"{node.operator}= is not supported; write it out", node.position)
    left, right = body.sequence([lambda: target, lambda: lower_expressions.expression(body, node.value)])
    value = lower_expressions.operation(body, node.operator, left, right, node)
    return fold.coerce(body, value, target.type, node.position)


def _assign_moving_slice(
    body: Body, node: tree.AssignmentStatement, target: tree.SliceExpression, low: ir.Expression
) -> None:
    """base[low +: width] = value, with low known only when it runs: the bits are masked out and put in."""
    base = lower_expressions.place(body, target.base)
    kind = base.type
    if not isinstance(kind, ir.Bits) or target.width is None:
        raise P4Error("slices are of bits", node.position)
    width = lower_expressions.literal(body, target.width, "the width of a slice")
    low = body.keep(low)
    part = ir.Bits(width)
    with body.into([]) as later:
        if node.operator:
            old = fold.cut(fold.binary(">>", kind, base, low), width - 1, 0)
            value = lower_expressions.operation(
                body, node.operator, old, lower_expressions.expression(body, node.value), node
            )
        else:
            value = lower_expressions.expression(body, node.value, part)
    base = body.frozen(base, body.world.reach.statements(later).writes)
    body.out.extend(later)
    lower_places.assign(body, base, fold.with_bits(base, fold.coerce(body, value, part, node.position), low))


def _if(body: Body, node: tree.IfStatement) -> None:
    condition = lower_expressions.expression(body, node.condition)
    known = fold.number(condition)
    if known is not None:
        chosen = node.yes if known else node.no
        if chosen is not None:
            body.statements([chosen])
        return
    yes, no = body.block(node.yes), body.block(node.no)
    if not yes and no:
        condition, yes, no = fold.unary("!", BOOL, condition), no, []
    if len(no) == 1 and isinstance(no[0], ir.If):
        body.emit(ir.If([(condition, yes), *no[0].cases], no[0].otherwise))
    elif yes:
        body.emit(ir.If([(condition, yes)], no))


def _return(body: Body, node: tree.ReturnStatement) -> None:
    value = None
    if node.value is not None:
        value = lower_expressions.plain(body, node.value, body.routine.returns)
    body.emit(ir.Return(value))


# ---- switch


def _switch(body: Body, node: tree.SwitchStatement) -> None:
    subject = node.subject
    if (
        isinstance(subject, tree.MemberExpression)
        and subject.name == "action_run"
        and isinstance(subject.base, tree.CallExpression)
    ):
        _switch_action(body, node, subject.base)
        return
    value = lower_expressions.expression(body, subject)
    if not isinstance(value.type, ir.Bits | ir.Bool | ir.EnumMember):
        raise P4Error("switch looks at bits, bool, enums, errors and action_run", node.position)

    def number(label: tree.ExpressionNode) -> int:
        label_value = fold.number(lower_expressions.expression(body, label, value.type))
        if label_value is None:
            raise P4Error("a switch label must be known at compile time; write a constant", label.position)
        return label_value

    cases, default = _merged(node, number)
    known = fold.number(value)
    if known is not None:
        chosen = next((inner for labels, inner in cases if known in labels), default)
        if chosen is not None:
            body.statements([chosen])
        return
    _emit_switch(body, value, cases, default)


def _switch_action(body: Body, node: tree.SwitchStatement, call: tree.CallExpression) -> None:
    table = body.table_of(call)
    names = tuple(action.name for action in table.actions)
    ran = body.temporary(ir.EnumMember(table.name, names))
    body.apply_table(call, action=ran)

    def number(label: tree.ExpressionNode) -> int:
        listed = body.world.listed[table]
        declaration = body.world.checked.declared.get(label)
        if not isinstance(declaration, tree.Action) or declaration not in listed:
            raise P4Error(f"this is no action of table {table.name}", label.position)
        return listed.index(declaration)

    cases, default = _merged(node, number)
    _emit_switch(body, ran, cases, default)


Cases = list[tuple[list[int], tree.BlockStatement]]


def _merged(
    node: tree.SwitchStatement, number: Callable[[tree.ExpressionNode], int]
) -> tuple[Cases, tree.BlockStatement | None]:
    """Labels that fall through joined with the body they fall to; those that share the default's are left out."""
    cases: Cases = []
    default: tree.BlockStatement | None = None
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


def _emit_switch(body: Body, value: ir.Expression, cases: Cases, default: tree.BlockStatement | None) -> None:
    lowered = [(labels, body.block(inner)) for labels, inner in cases if inner is not default]
    otherwise = body.block(default)
    if default is None or not otherwise:
        lowered = [(labels, inner) for labels, inner in lowered if inner]
    if lowered:
        body.emit(_choice(body, value, lowered, otherwise))
    else:
        body.out.extend(otherwise)


def _choice(
    body: Body,
    value: ir.Expression,
    cases: list[tuple[list[int], list[ir.Statement]]],
    otherwise: list[ir.Statement],
) -> ir.If:
    """The statements of the case that has the value among its labels."""
    subject = value if isinstance(value, ir.ReadVariable) else body.keep(value)

    def condition(labels: list[int]) -> ir.Expression:
        tests = [ir.Binary(BOOL, "==", subject, ir.Const(subject.type, label)) for label in labels]
        return fold.all_of(tests, "||")

    return ir.If([(condition(labels), inner) for labels, inner in cases], otherwise)


# ---- loops: all become a loop for ever that a condition leaves


def _for(body: Body, node: tree.ForStatement) -> None:
    """for (init; condition; step) body"""
    body.statements(node.init)
    with body.into([]) as inside:
        condition = lower_expressions.expression(body, node.condition)
        known = fold.number(condition)
        if known == 0:
            pass
        elif known is None:
            body.emit(ir.If([(fold.unary("!", BOOL, condition), [ir.Break()])], []))
    if known == 0:
        body.out.extend(inside)
        return
    _loop(body, inside, node.body, lambda: body.statements(node.step))


def _loop(body: Body, head: list[ir.Statement], node: tree.StatementNode, step: Callable[[], None]) -> None:
    """A loop whose turns begin with `head`; the step follows the loop's body, and comes before each `continue`."""
    with body.into([]) as inside:
        body.emit(ir.CallExtern("loop.turn", None, []))
        body.out.extend(head)
        body.steps.append(step)
        body.statements([node])
        body.steps.pop()
        if not isinstance(inside[-1], ENDS):
            step()
    body.emit(ir.Loop(inside))


def _continue(body: Body, _: tree.ContinueStatement) -> None:
    body.steps[-1]()
    body.emit(ir.Continue())


def _for_in(body: Body, node: tree.ForInStatement) -> None:
    """for (x in collection) body: the collection is evaluated once, before the first iteration."""
    collection = node.collection
    if isinstance(collection, tree.Range):
        _over_range(body, node, collection)
        return
    items = _items(body, collection)
    if items is not None:
        _over_list(body, node, items)
        return
    value = lower_expressions.expression(body, collection)
    if not isinstance(value.type, ir.Array):
        raise P4Error("for … in goes through a range, a list or a header stack", collection.position)
    stack = body.temporary(value.type)
    lower_places.assign(body, stack, value)
    counter = body.temporary(BIT32)
    with body.into([]) as first:
        lower_places.assign(
            body, _loop_variable(body, node, value.type.element), ir.Index(value.type.element, stack, counter)
        )
    _turns(body, node, counter, ir.Const(BIT32, 0), ir.Const(BIT32, value.type.size - 1), first)


def _loop_variable(body: Body, node: tree.ForInStatement, kind: ir.Type) -> ir.ReadVariable:
    """The loop's own variable, or the one that it names."""
    if node.type is None:
        declaration = body.world.checked.declared.get(node)
        variable = body.frame.find(declaration) if declaration is not None else None
        if not isinstance(variable, ir.Variable):
            raise P4Error(
                f"{node.name} is not a variable; declare it in the loop: for (bit<8> {node.name} in …)", node.position
            )
        return ir.ReadVariable(variable.type, variable)
    wanted = body.kind_of(node.type)
    variable = body.frame.bindings.get(node)
    if not isinstance(variable, ir.Variable):
        variable = body.declare(node.name, kind if wanted == INT else wanted, node.position)
        body.frame.bindings[node] = variable
    return ir.ReadVariable(variable.type, variable)


def _items(body: Body, node: tree.ExpressionNode) -> list[tree.ExpressionNode] | None:
    """The expressions of a list, also of one that a constant names."""
    seen = 0
    while isinstance(node, tree.Name) and seen < 64:
        declaration = body.world.checked.declared.get(node)
        if not isinstance(declaration, tree.ConstantDeclaration):
            return None
        node, seen = declaration.value, seen + 1
    while isinstance(node, tree.CastExpression):
        node = node.operand
    return list(node.items) if isinstance(node, tree.ListExpression) else None


def _over_range(body: Body, node: tree.ForInStatement, collection: tree.Range) -> None:
    """The counter has a bit more than the variable, so that it passes the last value whatever that is."""
    low, high = lower_expressions.values(body, [collection.low, collection.high])
    kind = high.type if low.type == INT else low.type
    variable = _loop_variable(body, node, kind)
    if not isinstance(variable.type, ir.Bits):
        raise P4Error("a range goes from number to number", collection.position)
    wide = ir.Bits(variable.type.width + 1, variable.type.signed)
    counter = body.temporary(wide)
    last = body.keep(fold.cast(wide, high))
    with body.into([]) as first:
        body.emit(ir.Assign(variable, fold.cast(variable.type, counter)))
    _turns(body, node, counter, fold.cast(wide, low), last, first)


def _over_list(body: Body, node: tree.ForInStatement, items: list[tree.ExpressionNode]) -> None:
    if not items:
        return
    probe = lower_expressions.expression(body, items[0]) if node.type is None else None
    variable = _loop_variable(body, node, probe.type if probe is not None else body.kind_of(items[0]))
    values = [body.keep(value) for value in lower_expressions.values(body, items, variable.type)]
    counter = body.temporary(BIT32)
    with body.into([]) as first:
        cases: list[tuple[list[int], list[ir.Statement]]] = [
            ([number], [ir.Assign(variable, value)]) for number, value in enumerate(values)
        ]
        body.emit(_choice(body, counter, cases, []))
    _turns(body, node, counter, ir.Const(BIT32, 0), ir.Const(BIT32, len(items) - 1), first)


def _turns(
    body: Body,
    node: tree.ForInStatement,
    counter: ir.ReadVariable,
    low: ir.Expression,
    last: ir.Expression,
    first: list[ir.Statement],
) -> None:
    """counter from low to last; `first` begins each iteration."""
    body.emit(ir.Assign(counter, low))
    over = ir.Binary(BOOL, ">", counter, last)
    head: list[ir.Statement] = [ir.If([(over, [ir.Break()])], []), *first]

    def step() -> None:
        body.emit(ir.Assign(counter, ir.Binary(counter.type, "+", counter, ir.Const(counter.type, 1))))

    _loop(body, head, node.body, step)


HANDLERS: dict[type, StatementHandler] = {
    tree.VariableDeclaration: _variable,
    tree.ConstantDeclaration: _constant,
    tree.AssignmentStatement: _assign,
    tree.BlockStatement: lambda body, node: body.statements(node.items),
    tree.IfStatement: _if,
    tree.SwitchStatement: _switch,
    tree.ForStatement: _for,
    tree.ForInStatement: _for_in,
    tree.ReturnStatement: _return,
    tree.ExitStatement: lambda body, _: body.emit(ir.Exit()),
    tree.BreakStatement: lambda body, _: body.emit(ir.Break()),
    tree.ContinueStatement: _continue,
    tree.EmptyStatement: lambda *_: None,
}
