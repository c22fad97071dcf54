"""Expressions of the tree -> pure expressions of the IR; their calls become statements before them."""

from collections.abc import Sequence
from functools import partial

from p4vm.bit_arithmetic import limits
from p4vm.ir import ir_nodes as ir
from p4vm.ir.walk import member
from p4vm.lower import fold
from p4vm.lower.body import Body, ExpressionHandler
from p4vm.lower.kinds import BIT32, BOOL, INT
from p4vm.source import P4Error
from p4vm.tree import tree_nodes as tree
from p4vm.tree import types

COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
DEPTH_MAX = 16
"""Deeper expressions are taken apart: Python's own parser has limits."""


def expression(body: Body, node: tree.ExpressionNode, want: ir.Type | None = None) -> ir.Expression:
    """The value, with the type that the checker found. want: the type that the place has, for lists without their own.

    Only lists and structs are ever Build, and only {#} is Invalid.
    """
    checked = body.world.checked
    if node in checked.constants:
        value = fold.constant(body, checked.constants[node], body.type_of(node), node.position)
    else:
        handler = body.world.expression_handlers.get(type(node))
        if handler is None:
            raise P4Error(
                "this has no value here; sets such as a &&& b stand in select and entries only", node.position
            )
        body.depth += 1
        value = handler(body, node, want)
        body.depth -= 1
        if body.depth % DEPTH_MAX == DEPTH_MAX - 1 and isinstance(value.type, ir.Bits | ir.Bool) and value.type != INT:
            value = body.keep(value)
        becomes = checked.converted.get(node)
        if becomes is not None and not isinstance(becomes, types.SetType):
            value = fold.coerce(body, value, body.kind(becomes, node.position), node.position)
    if want is not None:
        value = fold.coerce(body, value, want, node.position)
    return value


def plain(body: Body, node: tree.ExpressionNode, want: ir.Type | None = None) -> ir.Expression:
    """The value, where neither Build nor Invalid may stand."""
    return body.plain(expression(body, node, want))


def values(body: Body, nodes: Sequence[tree.ExpressionNode], want: ir.Type | None = None) -> list[ir.Expression]:
    """The values of the expressions, evaluated from left to right."""
    return body.sequence([partial(expression, body, node, want) for node in nodes])


def literal(body: Body, node: tree.ExpressionNode, what: str) -> int:
    """The number that an expression is now that everything known is put in. Raises P4Error."""
    known = fold.number(expression(body, node))
    if known is None:
        raise P4Error(f"{what} must be known at compile time; write a constant", node.position)
    return known


def place(body: Body, node: tree.ExpressionNode) -> ir.Expression:
    """Where to write. Raises P4Error: nothing can be written there."""
    match node:
        case tree.Name():
            variable = body.frame.find(_declaration(body, node))
            if isinstance(variable, ir.Variable):
                return ir.ReadVariable(variable.type, variable)
        case tree.MemberExpression():
            return _member(body, node, place(body, node.base))
        case tree.IndexExpression():
            return _index_of(body, node, place(body, node.base))
        case tree.SliceExpression():
            if node.high is not None or _known(body, node.low):
                high, low = _bounds(body, node)
                return ir.BitSlice(ir.Bits(high - low + 1), place(body, node.base), high, low)
            raise P4Error("this slice's place is not known at compile time; assign it, don't pass it", node.position)
    raise P4Error("this can't be written to; a variable, a field, an element or a slice is expected", node.position)


def _declaration(body: Body, node: tree.Node) -> tree.Node:
    declaration = body.world.checked.declared.get(node)
    if declaration is None:
        raise P4Error("the checker found no declaration for this name", node.position)
    return declaration


# ---- literals and names


def _number(body: Body, node: tree.Number, want: ir.Type | None) -> ir.Expression:
    kind = INT if node.width is None else ir.Bits(node.width, node.signed)
    return ir.Const(kind, fold.wrapped(node.value, kind))


def _bool(body: Body, node: tree.BoolLiteral, want: ir.Type | None) -> ir.Expression:
    return fold.boolean(node.value)


def _string(body: Body, node: tree.String, want: ir.Type | None) -> ir.Expression:
    return ir.Const(ir.Text(), node.value)


def _name(body: Body, node: tree.Name, want: ir.Type | None) -> ir.Expression:
    declaration = _declaration(body, node)
    binding = body.frame.find(declaration)
    match binding:
        case ir.Variable():
            return ir.ReadVariable(binding.type, binding)
        case ir.Const() | ir.Build() | ir.Invalid():
            return binding
        case None if isinstance(declaration, tree.ConstantDeclaration):
            return expression(body, declaration.value, body.kind_of(declaration))
    raise P4Error(f"{node.name} has no value here; variables, parameters and constants do", node.position)


# ---- members, elements, slices


def _member_value(body: Body, node: tree.MemberExpression, want: ir.Type | None) -> ir.Expression:
    if isinstance(node.base, tree.TypeExpression):
        kind = body.world.checked.type_of.get(node) or body.type_of(node.base)
        return fold.constant(body, node.name, kind, node.position)
    if isinstance(node.base, tree.CallExpression) and isinstance(
        body.world.checked.type_of.get(node.base), types.ApplyResultType
    ):
        return _apply_result(body, node, node.base)
    return _member(body, node, expression(body, node.base))


def _apply_result(body: Body, node: tree.MemberExpression, call: tree.CallExpression) -> ir.Expression:
    if node.name == "action_run":
        raise P4Error("action_run stands as the subject of `switch` only", node.position)
    hit = body.temporary(BOOL)
    body.apply_table(call, hit=hit)
    return hit if node.name == "hit" else fold.unary("!", BOOL, hit)


def _member(body: Body, node: tree.MemberExpression, base: ir.Expression) -> ir.Expression:
    if isinstance(base.type, ir.Array):
        base = body.plain(base)
        match node.name:
            case "next" | "last":
                return _by_next_index(body, base, node.name)
            case "lastIndex":
                return ir.Binary(BIT32, "-", ir.NextIndex(BIT32, base), ir.Const(BIT32, 1))
            case "size":
                return ir.Const(BIT32, base.type.size)  # type: ignore[union-attr]  # plain keeps the type
    if isinstance(base.type, ir.Record):
        kind = dict(base.type.fields).get(node.name)
        if kind is not None:
            return member(kind, body.plain(base) if isinstance(base, ir.Invalid) else base, node.name)
    raise P4Error(f"no field {node.name} here", node.position)


def _by_next_index(body: Body, stack: ir.Expression, name: str) -> ir.Expression:
    """stack.next, stack.last: in parsers one beyond the stack is error StackOutOfBounds."""
    assert isinstance(stack.type, ir.Array)
    index: ir.Expression = ir.NextIndex(BIT32, stack)
    if name == "last":
        index = ir.Binary(BIT32, "-", index, ir.Const(BIT32, 1))
    if body.routine.kind == "parser":
        within = ir.Binary(BOOL, "<", index, ir.Const(BIT32, stack.type.size))
        body.reject_unless(within, body.error("StackOutOfBounds"))
    return ir.Index(stack.type.element, stack, index)


def _index_value(body: Body, node: tree.IndexExpression, want: ir.Type | None) -> ir.Expression:
    return _index_of(body, node, expression(body, node.base))


def _index_of(body: Body, node: tree.IndexExpression, base: ir.Expression) -> ir.Expression:
    base, index = body.sequence([lambda: base, lambda: expression(body, node.index)], places=1)
    known = fold.number(index)
    if isinstance(base.type, ir.Array):
        if known is not None and not 0 <= known < base.type.size:
            raise P4Error(
                f"index {known} is beyond the stack; it has elements 0 to {base.type.size - 1}", node.position
            )
        if index.type == INT:
            index = fold.cast(BIT32, index)
        return ir.Index(base.type.element, body.plain(base), fold.small(index))
    if isinstance(base.type, ir.Record) and known is not None and 0 <= known < len(base.type.fields):
        name, kind = base.type.fields[known]
        return member(kind, base, name)
    raise P4Error("only header stacks, and tuples by constants within them, can be indexed", node.position)


def _known(body: Body, node: tree.ExpressionNode) -> bool:
    return isinstance(expression(body, node), ir.Const)


def _bounds(body: Body, node: tree.SliceExpression) -> tuple[int, int]:
    """high, low."""
    low = literal(body, node.low, "the low end of a slice")
    if node.high is not None:
        high = literal(body, node.high, "the high end of a slice")
    else:
        assert node.width is not None
        high = low + literal(body, node.width, "the width of a slice") - 1
    if not 0 <= low <= high:
        raise P4Error(f"slice [{high}:{low}]; the first bound must not be smaller than the second", node.position)
    return high, low


def _slice(body: Body, node: tree.SliceExpression, want: ir.Type | None) -> ir.Expression:
    if node.high is None and not _known(body, node.low):
        base, low = values(body, [node.base, node.low])
        assert node.width is not None
        width = literal(body, node.width, "the width of a slice")
        moved = fold.binary(">>", base.type, base, low, node.position)
        return fold.cut(moved, width - 1, 0)
    high, low_bit = _bounds(body, node)
    base = expression(body, node.base)
    if isinstance(base.type, ir.Bits) and base.type != INT and high >= base.type.width:
        raise P4Error(f"slice [{high}:{low_bit}] of a value of {base.type.width} bits", node.position)
    return fold.cut(base, high, low_bit)


# ---- operators


def _unary(body: Body, node: tree.UnaryExpression, want: ir.Type | None) -> ir.Expression:
    operand = expression(body, node.operand)
    return fold.unary(node.operator, operand.type, operand)


def _binary(body: Body, node: tree.BinaryExpression, want: ir.Type | None) -> ir.Expression:
    if node.operator in ("&&", "||"):
        return _short(body, node)
    if node.operator not in ("==", "!="):
        left, right = values(body, [node.left, node.right])
    elif isinstance(node.left, tree.ListExpression | tree.StructExpression):
        left = expression(body, node.left)
        right = plain(body, node.right)
        left = body.plain(fold.coerce(body, left, right.type, node.position))
    else:
        left, right = body.sequence([lambda: plain(body, node.left), lambda: expression(body, node.right)])
        if isinstance(right, ir.Build | ir.Invalid):
            right = body.plain(fold.coerce(body, right, left.type, node.position))
    return operation(body, node.operator, left, right, node)


def operation(body: Body, sign: str, left: ir.Expression, right: ir.Expression, node: tree.Node) -> ir.Expression:
    """left sign right, for all but && and ||; ints take the other operand's type."""
    if sign == "++":
        if not isinstance(left.type, ir.Bits) or not isinstance(right.type, ir.Bits) or INT in (left.type, right.type):
            raise P4Error("++ joins values of known widths; give the number one", node.position)
        return fold.concat(ir.Bits(left.type.width + right.type.width, left.type.signed), left, right)
    if sign in ("<<", ">>"):
        count = fold.number(right)
        if right.type == INT and count is not None and left.type != INT:
            right = ir.Const(ir.Bits(max(count.bit_length(), 1)), count)
            if count < 0:
                raise P4Error("shift by a negative number; shift the other way", node.position)
        return fold.binary(sign, left.type, left, right, node.position)
    if left.type == INT and right.type != INT:
        left = fold.coerce(body, left, right.type, node.position)
    elif left.type != right.type:
        right = fold.coerce(body, right, left.type, node.position)
    if sign in ("|+|", "|-|") and not (isinstance(left, ir.Const) and isinstance(right, ir.Const)):
        return _saturated(body, sign, left, right)
    return fold.binary(sign, BOOL if sign in COMPARISONS else left.type, left, right, node.position)


def _saturated(body: Body, sign: str, left: ir.Expression, right: ir.Expression) -> ir.Expression:
    """left sign right, in a bit more than the operands have, then cut at the least and the largest value."""
    kind = left.type
    assert isinstance(kind, ir.Bits)
    if not kind.width:
        return ir.Const(kind, 0)
    wide = ir.Bits(kind.width + 1, kind.signed or sign == "|-|")
    result = body.keep(fold.binary(sign[1], wide, fold.cast(wide, left), fold.cast(wide, right)))
    value, (low, high) = fold.cast(kind, result), limits(kind)
    if kind.signed or sign == "|+|":
        over = ir.Binary(BOOL, ">", result, ir.Const(wide, high))
        value = ir.Mux(kind, over, ir.Const(kind, high), value)
    if wide.signed:
        value = ir.Mux(kind, ir.Binary(BOOL, "<", result, ir.Const(wide, low)), ir.Const(kind, low), value)
    return value


def _short(body: Body, node: tree.BinaryExpression) -> ir.Expression:
    """left && right, left || right: the right operand's statements run only where its value matters."""
    left = expression(body, node.left)
    decided = node.operator == "||"
    known = fold.number(left)
    if known is not None:
        return fold.boolean(decided) if bool(known) == decided else expression(body, node.right)
    with body.into([]) as later:
        right = expression(body, node.right)
    if not later:
        return fold.binary(node.operator, BOOL, left, right)
    result = body.temporary(BOOL)
    body.emit(ir.Assign(result, left))
    later.append(ir.Assign(result, right))
    body.emit(ir.If([(fold.unary("!", BOOL, result) if decided else result, later)], []))
    return result


def _conditional(body: Body, node: tree.Conditional, want: ir.Type | None) -> ir.Expression:
    condition = expression(body, node.condition)
    known = fold.number(condition)
    kind = want or body.kind_of(node)
    if known is not None:
        return expression(body, node.yes if known else node.no, None if kind == INT else kind)
    if kind == INT:
        raise P4Error("this number has no width; write its parts with one: 32w5", node.position)
    with body.into([]) as before_yes:
        yes = expression(body, node.yes, kind)
    with body.into([]) as before_no:
        no = expression(body, node.no, kind)
    scalar = not isinstance(kind, ir.Record | ir.Array | ir.Varbits)
    if scalar and not before_yes and not before_no:
        return fold.mux(kind, condition, yes, no)
    result = body.temporary(kind)
    for statements, value in ((before_yes, yes), (before_no, no)):
        with body.into(statements):
            body.emit(ir.Assign(result, value))
    body.emit(ir.If([(condition, before_yes)], before_no))
    return result


def _cast(body: Body, node: tree.CastExpression, want: ir.Type | None) -> ir.Expression:
    kind = body.kind_of(node.type)
    if kind == INT:
        return expression(body, node.operand)
    if isinstance(node.operand, tree.ListExpression | tree.StructExpression | tree.InvalidHeader | tree.DefaultRest):
        return expression(body, node.operand, kind)
    return fold.coerce(body, expression(body, node.operand), kind, node.position)


# ---- lists and structs


def _goal(body: Body, node: tree.ExpressionNode, want: ir.Type | None) -> ir.Type | None:
    """The type that a list, struct or {#} is to have, if that is known."""
    checked = body.world.checked
    becomes = checked.converted.get(node)
    if becomes is not None and not isinstance(becomes, types.SetType):
        return body.kind(becomes, node.position)
    kind = checked.type_of.get(node)
    if isinstance(kind, types.StructureType | types.StackType):
        return body.kind(kind, node.position)
    return want


def _list(body: Body, node: tree.ListExpression, want: ir.Type | None) -> ir.Expression:
    goal = _goal(body, node, want)
    if not isinstance(goal, ir.Record | ir.Array):
        items = values(body, node.items)
        for item in items:
            fold.settled(item, node.position)
        return ir.Build(body.world.kinds.tuple_record(tuple(item.type for item in items)), items)
    inner = [kind for _, kind in goal.fields] if isinstance(goal, ir.Record) else [goal.element] * goal.size
    items = body.sequence(
        [partial(expression, body, item, kind) for item, kind in zip(node.items, inner, strict=False)]
    )
    items += [fold.default(body, kind, node.position) for kind in inner[len(items) :]]
    return ir.Build(goal, items)


def _struct(body: Body, node: tree.StructExpression, want: ir.Type | None) -> ir.Expression:
    goal = body.kind_of(node.type) if node.type is not None else _goal(body, node, want)
    if not isinstance(goal, ir.Record):
        raise P4Error("which struct this is isn't known here; write its name before {", node.position)
    kinds = dict(goal.fields)
    values = body.sequence([partial(expression, body, value, kinds[name]) for name, value in node.fields])
    by_name = dict(zip((name for name, _ in node.fields), values, strict=True))
    items = [by_name[name] if name in by_name else fold.default(body, kinds[name], node.position) for name in kinds]
    return ir.Build(goal, items)


def _invalid(body: Body, node: tree.InvalidHeader, want: ir.Type | None) -> ir.Expression:
    goal = _goal(body, node, want)
    if goal is None:
        raise P4Error("which header {#} stands for isn't known here; write a cast: (H){#}", node.position)
    return ir.Invalid(goal)


def _rest(body: Body, node: tree.DefaultRest, want: ir.Type | None) -> ir.Expression:
    goal = _goal(body, node, want)
    if goal is None:
        raise P4Error("what `...` stands for isn't known here; write the values", node.position)
    return fold.default(body, goal, node.position)


HANDLERS: dict[type, ExpressionHandler] = {
    tree.Number: _number,
    tree.BoolLiteral: _bool,
    tree.String: _string,
    tree.Name: _name,
    tree.MemberExpression: _member_value,
    tree.IndexExpression: _index_value,
    tree.SliceExpression: _slice,
    tree.UnaryExpression: _unary,
    tree.BinaryExpression: _binary,
    tree.Conditional: _conditional,
    tree.CastExpression: _cast,
    tree.ListExpression: _list,
    tree.StructExpression: _struct,
    tree.InvalidHeader: _invalid,
    tree.DefaultRest: _rest,
}
