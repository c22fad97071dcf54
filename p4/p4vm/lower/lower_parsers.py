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
    pending, made = ["start"], body.routine.states
    while pending:
        name = pending.pop()
        if name not in made and name not in FINAL:
            state = made[name] = _state(body, declared[name])
            pending += [state.next, *(case.next for case in state.cases)]


def _state(body: Body, node: tree.StateDeclaration) -> ir.ParserState:
    made = ir.ParserState(node.name, [])
    with body.into(made.body):
        body.statements(node.items)
        transition = node.transition
        if transition is None:
            made.next = "reject"
        elif transition.select is None:
            made.next = transition.state
        else:
            _select(body, transition, transition.select, made)
    return made


def _select(body: Body, node: tree.Transition, selected: list[tree.ExpressionNode], made: ir.ParserState) -> None:
    """keys and cases of a state; values that are structs or tuples give a key for each of their fields."""
    values = lower_expressions.values(body, selected)
    widths = [len(leaves(value)) for value in values]
    made.keys = [leaf for value in values for leaf in leaves(value)]
    for case in node.cases:
        sets = _case(body, case, made.keys, widths)
        if _never(made.keys, sets):
            continue
        if all(isinstance(one, ir.Anything) for one in sets) or _always(made.keys, sets):
            made.next = case.state
            break
        made.cases.append(ir.Case(sets, case.state))
    else:
        made.cases.append(ir.Case([ir.Anything() for _ in made.keys], NO_MATCH))
    if not made.cases:
        made.keys = []
    else:
        made.cases = _finished(made)
        made.next = "reject"


NO_MATCH = ""


def _finished(made: ir.ParserState) -> list[ir.Case]:
    """The cases, with the one that takes all the rest last, if there is one."""
    if made.cases[-1].next == NO_MATCH:
        return made.cases[:-1]
    return [*made.cases, ir.Case([ir.Anything() for _ in made.keys], made.next)]


def _never(keys: list[ir.Expression], sets: list[ir.KeySet]) -> bool:
    """Whether a case can't match, now that its key is known."""
    return any(holds(one, key) is False for one, key in zip(sets, keys, strict=True))


def _always(keys: list[ir.Expression], sets: list[ir.KeySet]) -> bool:
    return all(holds(one, key) is True for one, key in zip(sets, keys, strict=True))


def _case(body: Body, node: tree.SelectCase, keys: list[ir.Expression], widths: list[int]) -> list[ir.KeySet]:
    """One set for each key. widths: how many keys each selected expression has become."""
    if len(node.keys) == 1 and len(widths) != 1:
        single = node.keys[0]
        if isinstance(single, tree.Default):
            return [ir.Anything() for _ in keys]
        found = value_set_of(body, single)
        if found is not None:
            return [ir.InValueSet(found), *(ir.Anything() for _ in keys[1:])]
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
    made = ir.ValueSet(control_name(body.frame.prefix, node.name, node.annotations), kinds, size, tuple(matches))
    body.world.value_sets.append(made)
    body.frame.bindings[node] = made


def _matches(body: Body, name: str, count: int) -> list[str]:
    """Match kinds of a struct's fields, as their @match gives them."""
    for declaration in body.world.checked.program.declarations:
        if isinstance(declaration, tree.StructureDeclaration) and declaration.name == name.split("<", 1)[0]:
            found = []
            for field in declaration.fields:
                annotation = find(field.annotations, "match")
                text = (text_of(annotation) or annotation.tokens).strip() if annotation is not None else "exact"
                found.append(text.strip("() "))
            return found
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
    found = body.frame.find(declaration) if declaration is not None else None
    return found if isinstance(found, ir.ValueSet) else None


def key_sets(body: Body, node: tree.ExpressionNode, keys: list[ir.Expression]) -> list[ir.KeySet]:
    """One set for each of these keys, which one written set is matched with. Raises P4Error."""
    if isinstance(node, tree.Default):
        return [ir.Anything() for _ in keys]
    found = value_set_of(body, node)
    if found is not None:
        return [ir.InValueSet(found), *(ir.Anything() for _ in keys[1:])]
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
    body: Body, node: tree.Mask | tree.Range, one: tree.ExpressionNode, other: tree.ExpressionNode, kind: ir.Type
) -> ir.KeySet:
    first, second = lower_expressions.values(body, [one, other], kind)
    return ir.Masked(first, second) if isinstance(node, tree.Mask) else ir.Between(first, second)


def holds(one: ir.KeySet, key: ir.Expression) -> bool | None:
    """Whether a set holds a key, where both are known."""
    if isinstance(one, ir.Anything):
        return True
    value = fold.number(key)
    if value is None:
        return None
    match one:
        case ir.Exactly():
            other = fold.number(one.value)
            return None if other is None else value == other
        case ir.Masked():
            other, mask = fold.number(one.value), fold.number(one.mask)
            return None if other is None or mask is None else value & mask == other & mask
        case ir.Between():
            low, high = fold.number(one.low), fold.number(one.high)
            return None if low is None or high is None else low <= value <= high
    return None
