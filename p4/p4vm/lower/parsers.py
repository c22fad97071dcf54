"""Parsers: states, what they select on, and value sets."""

from __future__ import annotations

from functools import partial

from p4vm.ir import nodes as ir
from p4vm.lower import expressions
from p4vm.lower import sets as lower_sets
from p4vm.lower.body import Body
from p4vm.lower.names import control_name, find, text_of
from p4vm.source import P4Error
from p4vm.tree import nodes as tree
from p4vm.tree import types

FINAL = ("accept", "reject")


def states(body: Body, node: tree.Parser) -> None:
    """All states that can be reached from `start`."""
    declared = {state.name: state for state in node.states}
    if "start" not in declared:
        raise P4Error(f"parser {node.name} has no state start", node.position)
    body.routine.start = "start"
    pending, made = ["start"], body.routine.states
    while pending:
        name = pending.pop()
        if name in made or name in FINAL:
            continue
        if name not in declared:
            raise P4Error(f"parser {node.name} has no state {name}", node.position)
        state = made[name] = _state(body, declared[name])
        pending += [state.next, *(case.next for case in state.cases)]


def _state(body: Body, node: tree.State) -> ir.State:
    made = ir.State(node.name, [])
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


def _select(body: Body, node: tree.Transition, selected: list[tree.Expression], made: ir.State) -> None:
    """keys and cases of a state; values that are structs or tuples give a key for each of their fields."""
    values = body.sequence([partial(expressions.expression, body, one) for one in selected])
    widths = [len(lower_sets.leaves(value)) for value in values]
    made.keys = [leaf for value in values for leaf in lower_sets.leaves(value)]
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


def _finished(made: ir.State) -> list[ir.Case]:
    """The cases, with the one that takes all the rest last, if there is one."""
    if made.cases[-1].next == NO_MATCH:
        return made.cases[:-1]
    return [*made.cases, ir.Case([ir.Anything() for _ in made.keys], made.next)]


def _never(keys: list[ir.Expression], sets: list[ir.KeySet]) -> bool:
    """Whether a case can't match, now that its key is known."""
    return any(lower_sets.holds(one, key) is False for one, key in zip(sets, keys, strict=True))


def _always(keys: list[ir.Expression], sets: list[ir.KeySet]) -> bool:
    return all(lower_sets.holds(one, key) is True for one, key in zip(sets, keys, strict=True))


def _case(body: Body, node: tree.SelectCase, keys: list[ir.Expression], widths: list[int]) -> list[ir.KeySet]:
    """One set for each key. widths: how many keys each selected expression has become."""
    if len(node.keys) == 1 and len(widths) != 1:
        single = node.keys[0]
        if isinstance(single, tree.Default):
            return [ir.Anything() for _ in keys]
        found = lower_sets.value_set_of(body, single)
        if found is not None:
            return [ir.InValueSet(found), *(ir.Anything() for _ in keys[1:])]
    if len(node.keys) != len(widths):
        raise P4Error(f"{len(node.keys)} values for {len(widths)} selected expressions", node.position)
    sets: list[ir.KeySet] = []
    for key, width in zip(node.keys, widths, strict=True):
        sets += lower_sets.key_sets(body, key, keys[len(sets) : len(sets) + width])
    return sets


def value_set(body: Body, node: tree.ValueSet) -> None:
    """A value set that a parser declares."""
    kind = body.type_of(node.type)
    lowered = body.kind(kind, node.position)
    kinds: tuple[ir.Type, ...] = (lowered,)
    matches: list[str] = ["exact"]
    if isinstance(lowered, ir.Record):
        kinds = tuple(inner for _, inner in lowered.fields)
        matches = ["exact"] * len(kinds)
        if isinstance(kind, types.Structure):
            matches = _matches(body, kind.name, len(kinds))
    size = expressions.literal(body, node.size, "the size of a value set")
    made = ir.ValueSet(control_name(body.frame.prefix, node.name, node.annotations), kinds, size, tuple(matches))
    body.world.value_sets.append(made)
    body.frame.bindings[node] = made


def _matches(body: Body, name: str, count: int) -> list[str]:
    """Match kinds that @match on a struct's fields says."""
    for declaration in body.world.checked.program.declarations:
        if isinstance(declaration, tree.Structure) and declaration.name == name.split("<", 1)[0]:
            found = []
            for field in declaration.fields:
                annotation = find(field.annotations, "match")
                text = (text_of(annotation) or annotation.tokens).strip() if annotation is not None else "exact"
                found.append(text.strip("() "))
            return found
    return ["exact"] * count
