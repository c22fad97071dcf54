"""Parsers: their states, and where these go."""

from p4vm.check import check_statements, convert, resolve
from p4vm.check.scope import CheckState, EnclosingScope, ScopeSymbol, counted, fail, nearest
from p4vm.tree import tree_nodes as tree
from p4vm.tree import types

BUILT_IN = ("accept", "reject")


def check_states(state: CheckState, parser: tree.ParserDeclaration) -> None:
    """Raises P4Error: no start, two states of one name, a transition to none, a wrong select."""
    names: dict[str, tree.StateDeclaration] = {}
    for node in parser.states:
        if node.name in BUILT_IN:
            fail(node, f"state {node.name!r} is built in and cannot be declared")
        if node.name in names:
            fail(node, f"state {node.name!r} is declared twice; first in line {names[node.name].position.line}")
        if node.name in state.scope.names:
            first = state.scope.names[node.name].declaration.position.line
            fail(node, f"{node.name!r} is declared twice; first in line {first}; rename one")
        names[node.name] = node
    if "start" not in names:
        fail(parser, f"parser {parser.name!r} has no state called 'start', where it begins")
    for node in parser.states:
        with state.inner(EnclosingScope("parser state")):
            check_statements.statements(state, node.items)
            if node.transition is None:
                state.warn(node, f"state {node.name!r} has no transition, so it goes to reject")
            else:
                check_transition(state, node.transition, names)
    check_end(parser, names)


def check_end(parser: tree.ParserDeclaration, names: dict[str, tree.StateDeclaration]) -> None:
    """Raises P4Error: from start, no transition leads to accept or reject. A select that has no default may reject."""
    reached, ways = {"start"}, ["start"]
    for name in ways:  # it grows
        transition = names[name].transition if name in names else None
        targets = [transition.state] if transition and transition.select is None else []
        targets += [case.state for case in transition.cases] if transition else []
        default = transition and any(isinstance(case.keys[0], tree.Default) for case in transition.cases)
        targets += ["reject"] if name in names and (not transition or (transition.select and not default)) else []
        ways += [target for target in dict.fromkeys(targets) if target not in reached]
        reached |= set(targets)
    if not reached & set(BUILT_IN):
        fail(parser, f"parser {parser.name!r} never comes to accept or reject")


def check_transition(state: CheckState, node: tree.Transition, names: dict[str, tree.StateDeclaration]) -> None:
    if node.select is None:
        check_target(node, node.state, names)
        return
    kinds = [selected(state, expression) for expression in node.select]
    tuple_type = types.TupleType(tuple(kinds))
    for case in node.cases:
        check_target(case, case.state, names)
        check_case(state, case, kinds, tuple_type)


def check_target(node: tree.Node, target: str, names: dict[str, tree.StateDeclaration]) -> None:
    if target not in names and target not in BUILT_IN:
        fail(node, f"transition to unknown state {target!r}" + nearest(target, [*names, *BUILT_IN]))


def selected(state: CheckState, node: tree.ExpressionNode) -> types.Type:
    kind = state.value_type(node)
    if isinstance(kind, types.IntegerType):
        value = state.checked.constants.get(node)
        width = max(1, value.bit_length()) if isinstance(value, int) else 32
        fail(node, f"select needs a value of a known width; write it with one, as in {width}w…")
    if not matchable(kind):
        fail(node, f"cannot select on {kind}; bits, bool, an enum or an error is expected")
    return kind


def matchable(kind: types.Type) -> bool:
    """As a key of select: also lists of what can be one."""
    parts = convert.parts_of(kind) if isinstance(kind, types.TupleType) else None
    if parts is not None:
        return all(map(matchable, parts))
    return is_matchable(kind)


def check_case(state: CheckState, case: tree.SelectCase, kinds: list[types.Type], tuple_type: types.TupleType) -> None:
    keys = case.keys = unwrapped(case.keys, kinds)
    if len(keys) == len(kinds):
        for key, kind in zip(keys, kinds, strict=True):
            check_set(state, key, kind)
    elif len(keys) == 1 and isinstance(keys[0], tree.Default):
        state.note(keys[0], types.SetType(tuple_type))
    elif len(keys) == 1 and (symbol := as_value_set(state, keys[0])) is not None:
        check_value_set(state, keys[0], symbol, tuple_type)
        state.note(keys[0], types.SetType(tuple_type))
    else:
        fail(case, f"{counted(len(keys), 'value')} in this case; select has {len(kinds)}")


def unwrapped(keys: list[tree.ExpressionNode], kinds: list[types.Type]) -> list[tree.ExpressionNode]:
    """Keys written as one list in parentheses, taken out of it: (a, b), and (a) where a is no list itself."""
    key = keys[0] if len(keys) == 1 else None
    if not isinstance(key, tree.ListExpression) or len(key.items) != len(kinds):
        return keys
    return key.items if len(kinds) > 1 or convert.parts_of(kinds[0]) is None else keys


def declare_value_set(state: CheckState, node: tree.ValueSetDeclaration) -> None:
    kind = resolve.resolve(state, node.type)
    parts = flat(kind)
    if not parts or not all(map(is_matchable, parts)):
        fail(node, f"value set {node.name!r} cannot hold {kind}; bits, bool, enums and structs of them are expected")
    size = convert.constant_integer(state, node.size, "the size of a value set")
    if size < 0:
        fail(node.size, f"the size of a value set is {size}; 0 or more is expected")
    state.note(node, types.SetType(kind))
    state.declare(ScopeSymbol(node.name, "value_set", node, types.SetType(kind)))


LABEL = "a value to match with {to} is {found}"


def check_set(state: CheckState, node: tree.ExpressionNode, element: types.Type) -> None:
    """Checks a set of values of one type, and notes SetType(element) for it. Raises P4Error."""
    state.deeper(node)
    if isinstance(node, tree.Default):
        pass
    elif isinstance(node, tree.Mask):
        ordered(state, node, element, "&&&", node.value, node.mask)
    elif isinstance(node, tree.Range):
        check_range(state, node, element)
    elif isinstance(node, tree.ListExpression) and isinstance(element, types.TupleType | types.StructureType):
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
        state.value_type(node, element)
        if isinstance(node, tree.CallExpression) and not state.is_known(node):
            fail(node, "a value to match with cannot be a call; call it before, into a variable")
        convert.convert(state, node, element, LABEL)
        state.depth -= 1
        return
    state.note(node, types.SetType(element))
    state.depth -= 1


def check_range(state: CheckState, node: tree.Range, element: types.Type) -> None:
    ordered(state, node, element, "..", node.low, node.high)
    for bound in (node.low, node.high):
        if not state.is_known(bound):
            fail(bound, "the bounds of a range must be known at compile time")
    low, high = (state.checked.constants.get(bound) for bound in (node.low, node.high))
    if isinstance(low, int) and isinstance(high, int) and low > high:
        state.warn(node, f"the range {low} .. {high} is empty; the lower bound comes first")


def ordered(
    state: CheckState,
    node: tree.ExpressionNode,
    element: types.Type,
    sign: str,
    left: tree.ExpressionNode,
    right: tree.ExpressionNode,
) -> None:
    """The two parts of a mask or range."""
    inner = types.bare(element)
    if not isinstance(inner, types.BitsType) and not (isinstance(inner, types.EnumType) and inner.base is not None):
        fail(node, f"{sign} matches bits; what is matched here is {element}")
    for part in (left, right):
        kind = state.value_type(part, element)
        if kind != element and isinstance(inner, types.EnumType):
            convert.plain(state, part)
            assert inner.base is not None
            if convert.plain(state, part) != inner.base:
                convert.convert(state, part, inner.base, LABEL)
        else:
            convert.convert(state, part, element, LABEL)


def as_value_set(state: CheckState, node: tree.ExpressionNode) -> ScopeSymbol | None:
    if isinstance(node, tree.Name):
        symbol = state.lookup(node, node.name, node.dot)
        return symbol if symbol.kind == "value_set" else None
    return None


def check_value_set(state: CheckState, node: tree.ExpressionNode, symbol: ScopeSymbol, element: types.Type) -> None:
    state.checked.declared[node] = symbol.declaration
    assert isinstance(symbol.type, types.SetType)
    held = symbol.type.element
    if held == element or flat(held) == [element]:
        return
    if isinstance(element, types.TupleType) and tuple(flat(held)) == element.items:
        return
    fail(node, f"value set {symbol.name!r} holds {held}; {element} is matched here")


def flat(kind: types.Type) -> list[types.Type]:
    """Types of a structure's or tuple's parts, of nested ones too; of anything else, itself."""
    if not isinstance(kind, types.StructureType | types.TupleType):
        return [kind]
    return [leaf for part in types.inside(kind) for leaf in flat(part)]


def is_matchable(kind: types.Type) -> bool:
    """Whether select, or the key of a table, may look at values of a type."""
    kind = types.bare(kind)
    return isinstance(kind, types.BitsType | types.EnumType) or kind in (types.BOOL, types.ERROR)
