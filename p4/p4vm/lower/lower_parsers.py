"""Parsers: states, what they select on, sets of values that cases and entries match, and value sets."""

from __future__ import annotations

from p4vm.ir import ir_nodes as ir
from p4vm.lower import fold, lower_expressions
from p4vm.lower.body import Body
from p4vm.lower.lower_names import control_name, find, text_of
from p4vm.source import P4Error
from p4vm.tree import tree_nodes as tree
from p4vm.tree import types

FINAL = ("accept", "reject")


def states(body: Body, node: tree.ParserDeclaration) -> None:
    """All states that can be reached from `start`."""
    declared = {state.name: state for state in node.states}
    body.routine.start = "start"
    pending, states_by_name = ["start"], body.routine.states
    while pending:
        name = pending.pop()
        if name not in states_by_name and name not in FINAL:
            state = states_by_name[name] = _state(body, declared[name])
            pending += [state.next, *(case.next for case in state.cases)]


def _state(body: Body, node: tree.StateDeclaration) -> ir.ParserState:
    state = ir.ParserState(node.name, [])
    with body.into(state.body):
        body.statements(node.items)
        transition = node.transition
        if transition is None:
            state.next = "reject"
        elif transition.select is None:
            state.next = transition.state
        else:
            _select(body, transition, transition.select, state)
    return state


def _select(body: Body, node: tree.Transition, selected: list[tree.ExpressionNode], state: ir.ParserState) -> None:
    """keys and cases of a state; values that are structs or tuples give a key for each of their fields."""
    values = lower_expressions.values(body, selected)
    widths = [len(leaves(value)) for value in values]
    state.keys = [leaf for value in values for leaf in leaves(value)]
    for case in node.cases:
        sets = _case(body, case, state.keys, widths)
        if _never(state.keys, sets):
            continue
        if all(isinstance(key_set, ir.Anything) for key_set in sets) or _always(state.keys, sets):
            state.next = case.state
            break
        state.cases.append(ir.Case(sets, case.state))
    else:
        state.cases.append(ir.Case([ir.Anything() for _ in state.keys], NO_MATCH))
    if not state.cases:
        state.keys = []
    else:
        state.cases = _finished(state)
        state.next = "reject"


NO_MATCH = ""


def _finished(state: ir.ParserState) -> list[ir.Case]:
    """The cases, with the one that takes all the rest last, if there is one."""
    if state.cases[-1].next == NO_MATCH:
        return state.cases[:-1]
    return [*state.cases, ir.Case([ir.Anything() for _ in state.keys], state.next)]


def _never(keys: list[ir.Expression], sets: list[ir.KeySet]) -> bool:
    """Whether a case can't match, now that its key is known."""
    return any(holds(key_set, key) is False for key_set, key in zip(sets, keys, strict=True))


def _always(keys: list[ir.Expression], sets: list[ir.KeySet]) -> bool:
    return all(holds(key_set, key) is True for key_set, key in zip(sets, keys, strict=True))


def _case(body: Body, node: tree.SelectCase, keys: list[ir.Expression], widths: list[int]) -> list[ir.KeySet]:
    """A set for each key. widths: how many keys each selected expression has become."""
    if len(node.keys) == 1 and len(widths) != 1:
        single = node.keys[0]
        if isinstance(single, tree.Default):
            return [ir.Anything() for _ in keys]
        value_set = value_set_of(body, single)
        if value_set is not None:
            return [ir.InValueSet(value_set), *(ir.Anything() for _ in keys[1:])]
    sets: list[ir.KeySet] = []
    for key, width in zip(node.keys, widths, strict=True):
        sets += key_sets(body, key, keys[len(sets) : len(sets) + width])
    return sets


def value_set(body: Body, node: tree.ValueSetDeclaration) -> None:
    """A value set that a parser declares."""
    kind = body.type_of(node.type)
    lowered = body.kind(kind, node.position)
    kinds: tuple[ir.Type, ...] = (lowered,)
    matches: list[str] = ["exact"]
    if isinstance(lowered, ir.Record):
        kinds = tuple(inner for _, inner in lowered.fields)
        matches = ["exact"] * len(kinds)
        if isinstance(kind, types.StructureType):
            matches = _matches(body, kind.name, len(kinds))
    size = lower_expressions.literal(body, node.size, "the size of a value set")
    lowered_set = ir.ValueSet(control_name(body.frame.prefix, node.name, node.annotations), kinds, size, tuple(matches))
    body.world.value_sets.append(lowered_set)
    body.frame.bindings[node] = lowered_set


def _matches(body: Body, name: str, count: int) -> list[str]:
    """Match kinds of a struct's fields, as their @match gives them."""
    for declaration in body.world.checked.program.declarations:
        if isinstance(declaration, tree.StructureDeclaration) and declaration.name == name.split("<", 1)[0]:
            match_kinds = []
            for field in declaration.fields:
                annotation = find(field.annotations, "match")
                text = (text_of(annotation) or annotation.tokens).strip() if annotation is not None else "exact"
                match_kinds.append(text.strip("() "))
            return match_kinds
    return ["exact"] * count


# ---- sets of values


def leaves(value: ir.Expression) -> list[ir.Expression]:
    """The value itself, or the fields of a struct, and those of structs within."""
    if not isinstance(value.type, ir.Record):
        return [value]
    parts = value.items if isinstance(value, ir.Build) else fold.fields_of(value)
    return [leaf for part in parts for leaf in leaves(part)]


def value_set_of(body: Body, node: tree.ExpressionNode) -> ir.ValueSet | None:
    if not isinstance(node, tree.Name):
        return None
    declaration = body.world.checked.declared.get(node)
    binding = body.frame.find(declaration) if declaration is not None else None
    return binding if isinstance(binding, ir.ValueSet) else None


def key_sets(body: Body, node: tree.ExpressionNode, keys: list[ir.Expression]) -> list[ir.KeySet]:
    """A set for each of the keys that one set in the program is matched with. Raises P4Error."""
    if isinstance(node, tree.Default):
        return [ir.Anything() for _ in keys]
    value_set = value_set_of(body, node)
    if value_set is not None:
        return [ir.InValueSet(value_set), *(ir.Anything() for _ in keys[1:])]
    if len(keys) == 1 and not (isinstance(node, tree.ListExpression) and len(node.items) == 1):
        return [_key_set(body, node, keys[0].type)]
    if not isinstance(node, tree.ListExpression):
        values = leaves(lower_expressions.expression(body, node))
        return [ir.Exactly(fold.coerce(body, v, k.type, node.position)) for v, k in zip(values, keys, strict=True)]
    return _of_list(body, node, keys)


def _of_list(body: Body, node: tree.ListExpression, keys: list[ir.Expression]) -> list[ir.KeySet]:
    sets: list[ir.KeySet] = []
    for number, item in enumerate(node.items):
        if isinstance(item, tree.ListExpression):
            width = count(item)
        else:
            width = len(keys) - len(sets) - (len(node.items) - number - 1) if isinstance(item, tree.Default) else 1
        sets += key_sets(body, item, keys[len(sets) : len(sets) + width])
    if len(sets) != len(keys):
        raise P4Error(f"{len(sets)} values for {len(keys)} selected ones", node.position)
    return sets


def count(node: tree.ExpressionNode) -> int:
    return sum(map(count, node.items)) if isinstance(node, tree.ListExpression) else 1


def _key_set(body: Body, node: tree.ExpressionNode, kind: ir.Type) -> ir.KeySet:
    match node:
        case tree.Mask():
            return _set_of_two(body, node, node.value, node.mask, kind)
        case tree.Range():
            return _set_of_two(body, node, node.low, node.high, kind)
        case tree.ListExpression() if len(node.items) == 1:
            return _key_set(body, node.items[0], kind)
    return ir.Exactly(lower_expressions.expression(body, node, kind))


def _set_of_two(
    body: Body, node: tree.Mask | tree.Range, left: tree.ExpressionNode, right: tree.ExpressionNode, kind: ir.Type
) -> ir.KeySet:
    first, second = lower_expressions.values(body, [left, right], kind)
    return ir.Masked(first, second) if isinstance(node, tree.Mask) else ir.Between(first, second)


def holds(key_set: ir.KeySet, key: ir.Expression) -> bool | None:
    """Whether a set holds a key, where both are known."""
    if isinstance(key_set, ir.Anything):
        return True
    value = fold.number(key)
    if value is None:
        return None
    match key_set:
        case ir.Exactly():
            other = fold.number(key_set.value)
            return None if other is None else value == other
        case ir.Masked():
            other, mask = fold.number(key_set.value), fold.number(key_set.mask)
            return None if other is None or mask is None else value & mask == other & mask
        case ir.Between():
            low, high = fold.number(key_set.low), fold.number(key_set.high)
            return None if low is None or high is None else low <= value <= high
    return None
