"""Types and values of operators: unary, binary, conditional, casts, slices."""

from p4vm.bit_arithmetic import ValueFault
from p4vm.check import check_values, convert, resolve
from p4vm.check.convert import unsettled
from p4vm.check.scope import CheckState, fail, show
from p4vm.tree import tree_nodes as tree
from p4vm.tree import types
from p4vm.tree.types import UNTYPED_DEFAULT, UNTYPED_HEADER, Value

LOGIC = frozenset({"&&", "||"})
EQUALITY = frozenset({"==", "!="})
ORDER = frozenset({"<", "<=", ">", ">="})
SHIFTS = frozenset({"<<", ">>"})
DIVISIONS = frozenset({"/", "%"})
SATURATING = frozenset({"|+|", "|-|"})


def evaluate(state: CheckState, node: tree.BinaryExpression, kind: types.Type, right_kind: types.Type) -> None:
    """Notes the value of an operation, kind being the operands' type after conversion. Raises P4Error."""
    constants = state.checked.constants
    left, right = constants.get(node.left), constants.get(node.right)
    if left is None or right is None:
        short_circuit(state, node, left)
        if state.is_known(node.left) and state.is_known(node.right):
            state.known.add(node)
        return
    try:
        value = check_values.binary(node.operator, left, right, kind, right_kind)
    except ValueFault as fault:
        fail(node, f"{fault}, in {show(left)} {node.operator} {show(right)}")
    if value is not None:
        constants[node] = value


def short_circuit(state: CheckState, node: tree.BinaryExpression, left: Value | None) -> None:
    if isinstance(left, bool) and ((node.operator == "&&" and not left) or (node.operator == "||" and left)):
        state.checked.constants[node] = left


def binary(state: CheckState, node: tree.BinaryExpression, expected: types.Type | None) -> types.Type:
    sign = node.operator
    state.value_type(node.left)
    state.value_type(node.right)
    if sign in LOGIC:
        return logic(state, node)
    if sign in EQUALITY:
        return equality(state, node)
    if sign in SHIFTS:
        return shift(state, node)
    if sign == "++":
        return concatenation(state, node)
    negative = sign in DIVISIONS and is_negative(state, node.right)
    kind = balance(state, node)
    if negative:
        fail(node.right, f"operator {sign} is not defined for negative numbers")
    if sign in DIVISIONS:
        check_division(state, node, kind)
    if sign in SATURATING and isinstance(kind, types.IntegerType):
        fail(node, f"{sign} needs operands of a known width; write the numbers with one, as in 8w1")
    evaluate(state, node, kind, kind)
    return types.BOOL if sign in ORDER else kind


def refuse(node: tree.BinaryExpression, left: types.Type, right: types.Type) -> None:
    hint = ""
    if isinstance(left, types.BitsType) and isinstance(right, types.BitsType):
        wider = left if left.width >= right.width else right
        hint = f"; cast one, for example to ({wider})"
    elif isinstance(left, types.NewType) or isinstance(right, types.NewType):
        hint = "; types made with 'type' have only == and !=; cast it to its original type"
    fail(node, f"operator {node.operator} is not defined for {left} and {right}{hint}")


def balance(state: CheckState, node: tree.BinaryExpression) -> types.Type:
    """Gives both operands one type, bits or int. Raises P4Error: there is none."""
    left, right = convert.plain(state, node.left), convert.plain(state, node.right)
    if isinstance(left, types.IntegerType) and isinstance(right, types.BitsType):
        convert.convert(state, node.left, right)
        return right
    if isinstance(right, types.IntegerType) and isinstance(left, types.BitsType):
        convert.convert(state, node.right, left)
        return left
    if left != right or not isinstance(left, types.BitsType | types.IntegerType):
        refuse(node, left, right)
    return left


def is_negative(state: CheckState, node: tree.ExpressionNode) -> bool:
    value = state.checked.constants.get(node)
    return isinstance(value, int) and value < 0


def check_division(state: CheckState, node: tree.BinaryExpression, kind: types.Type) -> None:
    if isinstance(kind, types.BitsType) and kind.signed:
        fail(node, f"operator {node.operator} is not defined for signed {kind}; cast to bit<{kind.width}>")
    if state.checked.constants.get(node.right) == 0:
        fail(node.right, f"{'division' if node.operator == '/' else 'remainder of a division'} by zero")


def logic(state: CheckState, node: tree.BinaryExpression) -> types.Type:
    for side in (node.left, node.right):
        kind = state.checked.type_of[side]
        if kind != types.BOOL:
            hint = "; compare it, as in x != 0" if isinstance(kind, types.BitsType | types.IntegerType) else ""
            fail(side, f"an operand of {node.operator} is {kind}; bool is expected{hint}")
    evaluate(state, node, types.BOOL, types.BOOL)
    return types.BOOL


def equality(state: CheckState, node: tree.BinaryExpression) -> types.Type:
    of = state.checked.type_of
    left, right = of[node.left], of[node.right]
    loose = unsettled(node.left), unsettled(node.right)
    if loose == (True, False):
        convert.convert(state, node.left, right, compare(node))
    elif loose == (False, True) or (loose == (True, True) and isinstance(left, types.TupleType)):
        convert.convert(state, node.right, left, compare(node))
    elif left != right:
        kind = balance(state, node)
        evaluate(state, node, kind, kind)
        return types.BOOL
    if not comparable(right if loose[0] else left):
        fail(node, f"values of type {left} cannot be compared")
    evaluate(state, node, left, right)
    return types.BOOL


def compare(node: tree.BinaryExpression) -> str:
    return f"operator {node.operator} cannot compare {{found}} with {{to}}"


def comparable(kind: types.Type) -> bool:
    if isinstance(kind, types.StructureType | types.StackType | types.TupleType):
        return all(map(comparable, types.inside(kind)))
    if isinstance(kind, types.SimpleType):
        return kind.name in ("bool", "error")
    return isinstance(kind, types.BitsType | types.IntegerType | types.VarbitsType | types.EnumType | types.NewType)


def shift(state: CheckState, node: tree.BinaryExpression) -> types.Type:
    left, right = convert.plain(state, node.left), convert.plain(state, node.right)
    if not isinstance(left, types.BitsType | types.IntegerType) or not isinstance(
        right, types.BitsType | types.IntegerType
    ):
        refuse(node, left, right)
    if isinstance(right, types.BitsType) and right.signed and node.right not in state.checked.constants:
        fail(node.right, f"shift by signed {right}; an unsigned amount is expected: cast to bit<{right.width}>")
    known = node.right in state.checked.constants or (
        isinstance(right, types.IntegerType) and state.is_known(node.right)
    )
    if isinstance(left, types.IntegerType) and not known:
        fail(node.left, "the shifted number needs a width, as in 8w1, when the amount is not known at compile time")
    amount = state.checked.constants.get(node.right)
    evaluate(state, node, left, right)
    if isinstance(amount, int):
        check_amount(state, node, left, right, amount)
    return left


def check_amount(
    state: CheckState, node: tree.BinaryExpression, left: types.Type, right: types.Type, amount: int
) -> None:
    """A shift by a number that is known; one without width gets that which it needs."""
    if amount < 0:
        fail(node.right, f"shift by {show(amount)}; a positive amount is expected")
    if isinstance(left, types.BitsType) and amount >= left.width:
        state.warn(node, f"{left} is shifted by {show(amount)} bits, all that it has")
    if isinstance(right, types.IntegerType):
        width = min(max(1, amount.bit_length()), types.WIDTH_MAX)
        convert.convert(state, node.right, types.BitsType(width))


def concatenation(state: CheckState, node: tree.BinaryExpression) -> types.Type:
    left, right = convert.plain(state, node.left), convert.plain(state, node.right)
    if left == types.STRING and right == types.STRING:
        evaluate(state, node, left, right)
        if not state.is_known(node):
            fail(node, "strings can be joined only where both are known at compile time")
        return types.STRING
    for side, kind in ((node.left, left), (node.right, right)):
        if isinstance(kind, types.IntegerType):
            fail(side, "an operand of ++ needs a width, as in 8w1")
    if not isinstance(left, types.BitsType) or not isinstance(right, types.BitsType):
        refuse(node, left, right)
        raise AssertionError
    if left.width + right.width > types.WIDTH_MAX:
        fail(node, f"{left.width + right.width} bits in one value; at most {types.WIDTH_MAX} are possible")
    evaluate(state, node, left, right)
    return types.BitsType(left.width + right.width, left.signed)


def unary(state: CheckState, node: tree.UnaryExpression, expected: types.Type | None) -> types.Type:
    kind = state.value_type(node.operand)
    if node.operator == "!":
        if kind != types.BOOL:
            hint = "; use ~ for bits, or compare with 0" if isinstance(kind, types.BitsType) else ""
            fail(node, f"operator ! is not defined for {kind}; bool is expected{hint}")
    else:
        kind = convert.plain(state, node.operand)
        if not isinstance(kind, types.BitsType) and not (isinstance(kind, types.IntegerType) and node.operator != "~"):
            fail(node, f"operator {node.operator} is not defined for {kind}; bit<W> or int<W> is expected")
    constants = state.checked.constants
    if node.operand in constants:
        value = constants[node.operand]
        assert isinstance(value, int)
        if node.operator == "!":
            constants[node] = not value
        else:
            constants[node] = check_values.wrap({"-": -value, "~": ~value, "+": value}[node.operator], kind)
    elif node.operand in state.known:
        state.known.add(node)
    return kind


def conditional(state: CheckState, node: tree.Conditional, expected: types.Type | None) -> types.Type:
    if state.value_type(node.condition) != types.BOOL:
        fail(node.condition, f"the condition of ?: is {state.checked.type_of[node.condition]}; bool is expected")
    yes, no = (state.value_type(node.yes, expected), state.value_type(node.no, expected))
    template = "the branches of ?: are {to} and {found}; they need one type"
    if unsettled(node.yes) and not unsettled(node.no):
        convert.convert(state, node.yes, no, template)
        yes = no
    elif unsettled(node.no) and not unsettled(node.yes):
        convert.convert(state, node.no, yes, template)
    elif isinstance(yes, types.IntegerType) and isinstance(no, types.BitsType):
        convert.convert(state, node.yes, no, template)
        yes = no
    elif isinstance(yes, types.IntegerType) and isinstance(no, types.IntegerType):
        if node.condition not in state.checked.constants:
            fail(node, "one branch of ?: needs a width, as in 8w1")
    elif not unsettled(node.yes):
        convert.convert(state, node.no, yes, template)
    convert.settle_conditional(state, node)
    return yes


def cast(state: CheckState, node: tree.CastExpression, expected: types.Type | None) -> types.Type:
    to = resolve.resolve(state, node.type)
    source = state.value_type(node.operand, to)
    constants = state.checked.constants
    if unsettled(node.operand) or source in (UNTYPED_HEADER, UNTYPED_DEFAULT):
        convert.convert(state, node.operand, to, "cannot cast {found} to {to}")
        if node.operand in constants:
            constants[node] = constants[node.operand]
    else:
        check_cast(state, node, source, to)
        if node.operand in constants:
            result = check_values.cast(constants[node.operand], types.bare(source), types.bare(to))
            if result is not None:
                constants[node] = result
    if state.is_known(node.operand):
        state.known.add(node)
    return to


def check_cast(state: CheckState, node: tree.CastExpression, source: types.Type, to: types.Type) -> None:
    if not convert.castable(source, to):
        hint = ""
        if isinstance(source, types.BitsType) and isinstance(to, types.BitsType):
            hint = f"; width and sign change one after the other: ({to})({types.BitsType(to.width, source.signed)})"
        elif isinstance(source, types.BitsType) and to == types.BOOL:
            hint = "; only bit<1> becomes bool; compare it, as in x != 0"
        elif isinstance(source, types.NewType):
            hint = f"; it becomes {source.original} only, which can be cast further"
        elif isinstance(to, types.NewType):
            hint = f"; only {to.original} becomes it: cast to that first"
        elif source == types.BOOL and isinstance(to, types.BitsType):
            hint = f"; bool becomes bit<1>: ({to})(bit<1>)"
        fail(node, f"cannot cast {source} to {to}{hint}")
    inner = types.bare(to)
    if isinstance(inner, types.IntegerType) and not state.is_known(node.operand):
        fail(node, f"{source} can become int only where its value is known at compile time")
    value = state.checked.constants.get(node.operand)
    if inner == types.BOOL and isinstance(source, types.IntegerType) and value not in (0, 1):
        fail(node, "only 0 and 1 become bool")
    if isinstance(source, types.IntegerType) and isinstance(inner, types.BitsType) and isinstance(value, int):
        convert.warn_overflow(state, node, value, inner)


def slice_bits(state: CheckState, node: tree.SliceExpression, expected: types.Type | None) -> types.Type:
    state.value_type(node.base)
    kind = convert.plain(state, node.base)
    constants = state.checked.constants
    if not isinstance(kind, types.BitsType) and not (isinstance(kind, types.IntegerType) and node.base in constants):
        fail(node, f"cannot take bits of {kind}; bit<W> or int<W> is expected")
    limit = kind.width if isinstance(kind, types.BitsType) else types.WIDTH_MAX
    if node.high is not None:
        high = convert.constant_integer(state, node.high, "the upper bound of a slice")
        low = convert.constant_integer(state, node.low, "the lower bound of a slice")
        if low < 0 or high < low:
            fail(node, f"slice [{show(high)}:{show(low)}]: the upper bound comes first, and none is negative")
        width = high - low + 1
        if high >= limit:
            fail(node.high, f"bit {show(high)} of {kind}; its highest bit is {limit - 1}")
    else:
        assert node.width is not None
        width = convert.constant_integer(state, node.width, "the width of a slice")
        low = plus_slice_low(state, node)
        if width < 1 or width > limit or low + width > limit:
            fail(node, f"slice [{show(low)} +: {show(width)}] of {kind} reaches beyond bit {limit - 1}")
    value = constants.get(node.base)
    if isinstance(value, int) and (node.high is not None or node.low in constants):
        constants[node] = (value >> low) & ((1 << width) - 1)
    elif state.is_known(node.base) and (node.high is not None or state.is_known(node.low)):
        state.known.add(node)
    return types.BitsType(width)


def plus_slice_low(state: CheckState, node: tree.SliceExpression) -> int:
    """The lowest bit of base[low +: width]; 0 where it is not known before it runs."""
    state.infer(node.low)
    kind = convert.plain(state, node.low)
    if not isinstance(kind, types.BitsType | types.IntegerType) or (isinstance(kind, types.BitsType) and kind.signed):
        fail(node.low, f"the lowest bit of a slice is {kind}; bit<W> is expected")
    low = state.checked.constants.get(node.low, 0)
    assert isinstance(low, int)
    if low < 0:
        fail(node.low, f"the lowest bit of a slice is {show(low)}; 0 or more is expected")
    if isinstance(kind, types.IntegerType):
        convert.convert(state, node.low, types.BitsType(32))
    return low
