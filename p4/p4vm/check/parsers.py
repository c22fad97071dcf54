"""Parsers: their states, and where these go."""

from __future__ import annotations

from p4vm.check import convert, expressions, resolve, sets, statements, types
from p4vm.check.scope import Place, State, Symbol, counted, fail, nearest
from p4vm.front import tree

BUILT_IN = ("accept", "reject")


def check_states(state: State, parser: tree.Parser) -> None:
    """Raises P4Error: no start, two states of one name, a transition to none, a wrong select."""
    names: dict[str, tree.State] = {}
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
        with state.inner(Place("parser state")):
            statements.statements(state, node.items)
            if node.transition is None:
                state.warn(node, f"state {node.name!r} has no transition, so it goes to reject")
            else:
                check_transition(state, node.transition, names)


def check_transition(state: State, node: tree.Transition, names: dict[str, tree.State]) -> None:
    if node.select is None:
        check_target(node, node.state, names)
        return
    kinds = [selected(state, expression) for expression in node.select]
    whole = types.Tuple(tuple(kinds))
    for case in node.cases:
        check_target(case, case.state, names)
        check_case(state, case, kinds, whole)


def check_target(node: tree.Node, target: str, names: dict[str, tree.State]) -> None:
    if target not in names and target not in BUILT_IN:
        fail(node, f"transition to unknown state {target!r}" + nearest(target, [*names, *BUILT_IN]))


def selected(state: State, node: tree.Expression) -> types.Type:
    kind = expressions.value_type(state, node)
    if isinstance(kind, types.Integer):
        value = state.checked.constants.get(node)
        width = max(1, value.bit_length()) if isinstance(value, int) else 32
        fail(node, f"select needs a value of a known width; write it with one, as in {width}w…")
    if not matchable(kind):
        fail(node, f"cannot select on {kind}; bits, bool, an enum or an error is expected")
    return kind


def matchable(kind: types.Type) -> bool:
    """As a key of select: also lists of what can be one."""
    parts = convert.parts_of(kind) if isinstance(kind, types.Tuple) else None
    if parts is not None:
        return all(map(matchable, parts))
    return sets.is_matchable(kind)


def check_case(state: State, case: tree.SelectCase, kinds: list[types.Type], whole: types.Tuple) -> None:
    keys = case.keys = unwrapped(case.keys, kinds)
    if len(keys) == len(kinds):
        for key, kind in zip(keys, kinds, strict=True):
            sets.check_set(state, key, kind)
    elif len(keys) == 1 and isinstance(keys[0], tree.Default):
        state.note(keys[0], types.SetOf(whole))
    elif len(keys) == 1 and (symbol := sets.as_value_set(state, keys[0])) is not None:
        sets.check_value_set(state, keys[0], symbol, whole)
        state.note(keys[0], types.SetOf(whole))
    else:
        fail(case, f"{counted(len(keys), 'value')} in this case; select has {len(kinds)}")


def unwrapped(keys: list[tree.Expression], kinds: list[types.Type]) -> list[tree.Expression]:
    """Keys written as one list in parentheses, taken out of it: (a, b), and (a) where a is no list itself."""
    written = keys[0] if len(keys) == 1 else None
    if not isinstance(written, tree.ListExpression) or len(written.items) != len(kinds):
        return keys
    return written.items if len(kinds) > 1 or convert.parts_of(kinds[0]) is None else keys


def declare_value_set(state: State, node: tree.ValueSet) -> None:
    kind = resolve.resolve(state, node.type)
    parts = sets.flat(kind)
    if not parts or not all(map(sets.is_matchable, parts)):
        fail(node, f"value set {node.name!r} cannot hold {kind}; bits, bool, enums and structs of them are expected")
    size = expressions.constant_integer(state, node.size, "the size of a value set")
    if size < 0:
        fail(node.size, f"the size of a value set is {size}; 0 or more is expected")
    state.note(node, types.SetOf(kind))
    state.declare(Symbol(node.name, "value_set", node, types.SetOf(kind)))
