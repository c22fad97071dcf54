"""Sets that values are matched with: in select cases and in table entries."""

from __future__ import annotations

from p4vm.check import convert, expressions, operators, resolve, types
from p4vm.check.scope import State, Symbol, counted, fail
from p4vm.front import tree

LABEL = "a value to match with {to} is {found}"


def check_set(state: State, node: tree.Expression, element: types.Type) -> None:
    """Checks a set of values of one type, and notes SetOf(element) for it. Raises P4Error."""
    state.deeper(node)
    if isinstance(node, tree.Default):
        pass
    elif isinstance(node, tree.Mask):
        ordered(state, node, element, "&&&", node.value, node.mask)
    elif isinstance(node, tree.Range):
        ordered(state, node, element, "..", node.low, node.high)
        constants = state.checked.constants
        low, high = constants.get(node.low), constants.get(node.high)
        if isinstance(low, int) and isinstance(high, int) and low > high:
            state.warn(node, f"the range {low} .. {high} is empty; the lower bound comes first")
    elif isinstance(node, tree.ListExpression) and isinstance(element, types.Tuple | types.Structure):
        parts = convert.parts_of(element)
        if parts is None or len(parts) != len(node.items):
            fail(node, f"{counted(len(node.items), 'value')} to match with {element}")
        for item, part in zip(node.items, parts, strict=True):
            check_set(state, item, part)
    elif isinstance(node, tree.ListExpression) and len(node.items) == 1:
        check_set(state, node.items[0], element)
    elif (value_set := as_value_set(state, node)) is not None:
        check_value_set(state, node, value_set, element)
    else:
        expressions.value_type(state, node, element)
        if isinstance(node, tree.Call) and not state.is_known(node):
            fail(node, "a value to match with cannot be a call; call it before, into a variable")
        convert.convert(state, node, element, LABEL)
        state.depth -= 1
        return
    state.note(node, types.SetOf(element))
    state.depth -= 1


def ordered(
    state: State, node: tree.Expression, element: types.Type, sign: str, one: tree.Expression, other: tree.Expression
) -> None:
    """The two parts of a mask or range."""
    inner = resolve.bare(element)
    if not isinstance(inner, types.Bits) and not (isinstance(inner, types.Enum) and inner.base is not None):
        fail(node, f"{sign} matches bits; what is matched here is {element}")
    for part in (one, other):
        kind = expressions.value_type(state, part, element)
        if kind != element and isinstance(inner, types.Enum):
            operators.plain(state, part)
            assert inner.base is not None
            if operators.plain(state, part) != inner.base:
                convert.convert(state, part, inner.base, LABEL)
        else:
            convert.convert(state, part, element, LABEL)


def as_value_set(state: State, node: tree.Expression) -> Symbol | None:
    if isinstance(node, tree.Name):
        symbol = state.lookup(node, node.name, node.dot)
        return symbol if symbol.kind == "value_set" else None
    return None


def check_value_set(state: State, node: tree.Expression, symbol: Symbol, element: types.Type) -> None:
    state.checked.declared[node] = symbol.declaration
    assert isinstance(symbol.type, types.SetOf)
    own = symbol.type.element
    if own == element or flat(own) == [element]:
        return
    if isinstance(element, types.Tuple) and tuple(flat(own)) == element.items:
        return
    fail(node, f"value set {symbol.name!r} holds {own}; {element} is matched here")


def flat(kind: types.Type) -> list[types.Type]:
    """Types of a structure's or tuple's parts, of nested ones too; of anything else, itself."""
    if isinstance(kind, types.Structure):
        return [part for _, field in kind.fields for part in flat(field)]
    return [part for item in kind.items for part in flat(item)] if isinstance(kind, types.Tuple) else [kind]


def is_matchable(kind: types.Type) -> bool:
    """Whether select, or the key of a table, may look at values of a type."""
    kind = resolve.bare(kind)
    return isinstance(kind, types.Bits | types.Enum) or kind in (types.BOOL, types.ERROR)
