"""Entries that a program writes into its tables, with their priorities."""

from __future__ import annotations

from p4vm.front import tree
from p4vm.ir import nodes as ir
from p4vm.lower import expressions, fold, sets, tables
from p4vm.lower.body import Body
from p4vm.lower.names import find
from p4vm.source import P4Error, Position

NEEDS_PRIORITY = frozenset({"ternary", "range", "optional"})


def entries(body: Body, node: tree.Table, made: ir.Table, listed: list[tree.Action]) -> None:
    """Fills the table's entries. Raises P4Error."""
    written = node.entries or []
    for entry in written:
        made.entries.append(_entry(body, entry, made, listed))
    if any(key.match in NEEDS_PRIORITY for key in made.keys):
        for entry_made, priority in zip(made.entries, _priorities(body, node, written), strict=True):
            entry_made.priority = priority


def _entry(body: Body, node: tree.Entry, made: ir.Table, listed: list[tree.Action]) -> ir.Entry:
    declaration = tables.action_declaration(body, node.action)
    if declaration not in listed:
        raise P4Error(f"action {node.action.name} is not in the table's list of actions", node.action.position)
    place = listed.index(declaration)
    arguments = data_arguments(body, node.action, declaration, made.actions[place])
    matched = [key for key in made.keys if key.match != "selector"]
    written = node.keys
    if len(written) == 1 and len(matched) > 1:
        if isinstance(written[0], tree.ListExpression):
            written = written[0].items
        elif isinstance(written[0], tree.Default):
            written = [written[0]] * len(matched)
    if len(written) != len(matched):
        raise P4Error(f"{len(written)} keys in this entry; the table has {len(matched)}", node.position)
    keys = [_key(body, one, key) for one, key in zip(written, matched, strict=True)]
    return ir.Entry(keys, place, arguments)


def _key(body: Body, node: tree.Expression, key: ir.Key) -> tuple[int, int | None]:
    """As `ir.Entry` says: (value, None), (value, prefix length), (value, mask), (low, high)."""
    signed = key.expression.type
    width = signed.width if isinstance(signed, ir.Bits) else (1 if isinstance(signed, ir.Bool) else 32)
    ones = (1 << width) - 1
    (one,) = sets.key_sets(body, node, [key.expression])
    match one:
        case ir.Anything():
            return _anything(node, key, ones)
        case ir.Exactly():
            value = _known(one.value, node)
            match key.match:
                case "exact":
                    return value, None
                case "lpm":
                    return value, width
                case "range":
                    return value, value
            return value, ones
        case ir.Masked() if key.match in ("lpm", "ternary", "optional"):
            value, mask = _known(one.value, node), _known(one.mask, node) & ones
            if key.match == "optional" and mask not in (0, ones):
                raise P4Error("an optional key matches one value or `_`, no mask", node.position)
            return value & mask, (_prefix(mask, width, node.position) if key.match == "lpm" else mask)
        case ir.Between() if key.match == "range":
            return _known(one.low, node), _known(one.high, node)
    raise P4Error(f"a {key.match} key doesn't take this kind of set", node.position)


def _anything(node: tree.Expression, key: ir.Key, ones: int) -> tuple[int, int | None]:
    if key.match == "exact":
        raise P4Error("an exact key takes a value; `_` stands for ternary, lpm, range and optional ones", node.position)
    if key.match == "range":
        return fold.limits(key.expression.type) if isinstance(key.expression.type, ir.Bits) else (0, ones)
    return 0, 0


def _known(value: ir.Expression, node: tree.Expression) -> int:
    known = fold.number(value)
    if known is None:
        raise P4Error("an entry's key must be known at compile time; write a constant", node.position)
    return known


def _prefix(mask: int, width: int, position: Position) -> int:
    length = mask.bit_count()
    if mask != ((1 << length) - 1) << (width - length):
        raise P4Error(f"the mask {mask:#x} of an lpm key has ones that don't all come first", position)
    return length


def data_arguments(
    body: Body, reference: tree.ActionRef, declaration: tree.Action, action: ir.TableAction
) -> tuple[int, ...]:
    """Values of the parameters without direction. Raises P4Error: missing, or not known."""
    parameters = [p for p in declaration.parameters if not p.direction]
    positional = [argument for argument in reference.arguments if argument.name is None]
    every = len(positional) > len(parameters) or len(positional) == len(declaration.parameters)
    given = tables.arguments_of(reference, list(declaration.parameters) if every else parameters)
    kinds = [parameter.variable.type for parameter in action.data]
    values = []
    for parameter, kind in zip(parameters, kinds, strict=True):
        argument = given.get(parameter.name, parameter.default)
        if argument is None:
            raise P4Error(f"no argument for parameter {parameter.name} of action {reference.name}", reference.position)
        known = fold.number(expressions.expression(body, argument, kind))
        if known is None:
            raise P4Error(f"argument {parameter.name} must be known at compile time", argument.position)
        values.append(known)
    return tuple(values)


# ---- priorities


def _priorities(body: Body, node: tree.Table, written: list[tree.Entry]) -> list[int]:
    """For each entry: smaller wins. @priority and tables without any number them from 1 in order."""
    explicit = [_explicit(body, entry) for entry in written]
    options = {
        one.name: expressions.literal(body, one.value, one.name) for one in node.properties if one.name in OPTIONS
    }
    if all(one is None for one in explicit) and not options:
        annotated = [find(entry.annotations, "priority") for entry in written]
        return [
            number if annotation is None else _annotated(body, annotation)
            for number, annotation in enumerate(annotated, 1)
        ]
    largest = bool(options.get("largest_priority_wins", 1))
    step = options.get("priority_delta", 1)
    if step < 1:
        raise P4Error("priority_delta is 1 or more", node.position)
    current = (len(written) - 1) * step + 1 if largest else 1
    found: list[int] = []
    for number, given in enumerate(explicit):
        if given is not None:
            current = given
        elif number:
            current += -step if largest else step
        found.append(current)
    if not largest:
        return found
    top = max(found, default=0)
    return [top - one + 1 for one in found]


OPTIONS = frozenset({"largest_priority_wins", "priority_delta"})


def _explicit(body: Body, entry: tree.Entry) -> int | None:
    return None if entry.priority is None else expressions.literal(body, entry.priority, "a priority")


def _annotated(body: Body, annotation: tree.Annotation) -> int:
    if annotation.args:
        argument = annotation.args[0]
        if isinstance(argument, tree.Number):
            return argument.value
    text = annotation.tokens.strip()
    if not text.isdigit():
        raise P4Error("@priority takes a number", annotation.position)
    return int(text)
