"""Parsers: states, what they select on, sets of values that cases and entries match, and value sets."""

from collections.abc import Sequence
from dataclasses import dataclass

from p4vm.ir import ir_nodes as ir
from p4vm.ir.walk import parts_of
from p4vm.lower import fold, lower_expressions
from p4vm.lower.body import Body
from p4vm.lower.kinds import BOOL
from p4vm.lower.lower_names import control_name, find, text_of
from p4vm.node import nodes
from p4vm.source import P4Error
from p4vm.tree import tree_nodes as tree
from p4vm.tree import types


@dataclass(frozen=True, slots=True)
class Anything:
    """The set that holds every key."""


@dataclass(frozen=True, slots=True)
class Exactly:
    """The set of one value."""

    value: ir.Expression


@dataclass(frozen=True, slots=True)
class Masked:
    """Those whose bits under the mask are the value's."""

    value: ir.Expression
    mask: ir.Expression


@dataclass(frozen=True, slots=True)
class Between:
    """low .. high"""

    low: ir.Expression
    high: ir.Expression


KeySet = Anything | Exactly | Masked | Between | ir.ValueSet
"""A value set stands in the first key's place and holds as many keys as its types; those are Anything."""


def states(body: Body, node: tree.ParserDeclaration) -> None:
    """All states that can be reached from `start`."""
    declared = {state.name: state for state in node.states}
    pending, states_by_name = ["start"], body.routine.states
    while pending:
        name = pending.pop()
        if name not in states_by_name:
            statements = states_by_name[name] = _state(body, declared[name])
            pending += [node.state for node in nodes(statements) if isinstance(node, ir.GoTo)]


def _state(body: Body, node: tree.StateDeclaration) -> list[ir.Statement]:
    with body.into([]) as statements:
        body.emit(ir.CallExtern("parser.step", None, [body.error("ParserTimeout")]))
        body.statements(node.items)
        transition = node.transition
        if transition is not None and transition.select is not None:
            _select(body, transition, transition.select)
        else:
            body.emit(_go(body, "reject" if transition is None else transition.state))
    return statements


def _go(body: Body, name: str) -> ir.Statement:
    """On to a state, or out of the parser."""
    if name == "accept":
        return ir.Return()
    return _reject(body, "NoError") if name == "reject" else ir.GoTo(name)


def _reject(body: Body, error: str) -> ir.Statement:
    return ir.CallExtern("parser.reject", None, [body.error(error)])


def _select(body: Body, transition: tree.Transition, selected: list[tree.ExpressionNode]) -> None:
    """Goes on by the first case that holds the keys; values that are structs give a key for each of their fields."""
    values = lower_expressions.values(body, selected)
    widths = [len(leaves(value)) for value in values]
    keys = [leaf for value in values for leaf in leaves(value)]
    keys = [key if isinstance(key, ir.ReadVariable) else body.keep(key) for key in keys]
    for case in transition.cases:
        sets = _case(body, case, keys, widths)
        conditions = [holds(key_set, keys[at:]) for at, key_set in enumerate(sets)]
        known = [fold.number(condition) for condition in conditions]
        if 0 in known:
            continue
        if None not in known:
            body.emit(_go(body, case.state))
            return
        condition = fold.all_of([condition for condition in conditions if fold.number(condition) is None])
        body.emit(ir.If([(condition, [_go(body, case.state)])], []))
    body.emit(_reject(body, "NoMatch"))


def _case(body: Body, node: tree.SelectCase, keys: list[ir.Expression], widths: list[int]) -> list[KeySet]:
    """A set for each key. widths: how many keys each selected expression has become."""
    if len(node.keys) == 1 and len(widths) != 1:
        single = node.keys[0]
        if isinstance(single, tree.Default):
            return [Anything() for _ in keys]
        value_set = value_set_of(body, single)
        if value_set is not None:
            return [value_set, *(Anything() for _ in keys[1:])]
    sets: list[KeySet] = []
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
    parts = parts_of(value)
    return [leaf for part in parts for leaf in leaves(part)]


def value_set_of(body: Body, node: tree.ExpressionNode) -> ir.ValueSet | None:
    if not isinstance(node, tree.Name):
        return None
    declaration = body.world.checked.declared.get(node)
    binding = body.frame.find(declaration) if declaration is not None else None
    return binding if isinstance(binding, ir.ValueSet) else None


def key_sets(body: Body, node: tree.ExpressionNode, keys: list[ir.Expression]) -> list[KeySet]:
    """A set for each of the keys that one set in the program is matched with. Raises P4Error."""
    if isinstance(node, tree.Default):
        return [Anything() for _ in keys]
    value_set = value_set_of(body, node)
    if value_set is not None:
        return [value_set, *(Anything() for _ in keys[1:])]
    if len(keys) == 1 and not (isinstance(node, tree.ListExpression) and len(node.items) == 1):
        return [_key_set(body, node, keys[0].type)]
    if not isinstance(node, tree.ListExpression):
        values = leaves(lower_expressions.expression(body, node))
        return [Exactly(fold.coerce(body, v, k.type, node.position)) for v, k in zip(values, keys, strict=True)]
    return _of_list(body, node, keys)


def _of_list(body: Body, node: tree.ListExpression, keys: list[ir.Expression]) -> list[KeySet]:
    sets: list[KeySet] = []
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


def _key_set(body: Body, node: tree.ExpressionNode, kind: ir.Type) -> KeySet:
    match node:
        case tree.Mask():
            return _set_of_two(body, node, node.value, node.mask, kind)
        case tree.Range():
            return _set_of_two(body, node, node.low, node.high, kind)
        case tree.ListExpression() if len(node.items) == 1:
            return _key_set(body, node.items[0], kind)
    return Exactly(lower_expressions.expression(body, node, kind))


def _set_of_two(
    body: Body, node: tree.Mask | tree.Range, left: tree.ExpressionNode, right: tree.ExpressionNode, kind: ir.Type
) -> KeySet:
    first, second = lower_expressions.values(body, [left, right], kind)
    return Masked(first, second) if isinstance(node, tree.Mask) else Between(first, second)


def holds(key_set: KeySet, keys: Sequence[ir.Expression]) -> ir.Expression:
    """Whether the set holds the first of the keys; a value set: as many as it has types."""
    key = keys[0]
    match key_set:
        case Exactly(value):
            return fold.binary("==", BOOL, key, value)
        case Masked(value, mask):
            left, right = (fold.binary("&", key.type, operand, mask) for operand in (key, value))
            return fold.binary("==", BOOL, left, right)
        case Between(low, high):
            above, below = fold.binary("<=", BOOL, low, key), fold.binary("<=", BOOL, key, high)
            return fold.binary("&&", BOOL, above, below)
        case ir.ValueSet():
            return ir.InValueSet(BOOL, key_set, list(keys[: len(key_set.types)]))
    return fold.boolean(True)
