"""Sets of values: what a select case matches, and the keys of entries written in the program."""

from __future__ import annotations

from p4vm.ir import nodes as ir
from p4vm.lower import expressions, fold
from p4vm.lower.body import Body
from p4vm.source import P4Error
from p4vm.tree import nodes as tree


def leaves(value: ir.Expression) -> list[ir.Expression]:
    """The value itself, or the fields of a struct, and those of structs within."""
    if not isinstance(value.type, ir.Record):
        return [value]
    parts = value.items if isinstance(value, ir.Build) else fold.fields_of(value)
    return [leaf for part in parts for leaf in leaves(part)]


def value_set_of(body: Body, node: tree.Expression) -> ir.ValueSet | None:
    if not isinstance(node, tree.Name):
        return None
    declaration = body.world.checked.declared.get(node)
    found = body.frame.find(declaration) if declaration is not None else None
    return found if isinstance(found, ir.ValueSet) else None


def key_sets(body: Body, node: tree.Expression, keys: list[ir.Expression]) -> list[ir.KeySet]:
    """One set for each of these keys, which one written set is matched with. Raises P4Error."""
    if isinstance(node, tree.Default):
        return [ir.Anything() for _ in keys]
    found = value_set_of(body, node)
    if found is not None:
        return [ir.InValueSet(found), *(ir.Anything() for _ in keys[1:])]
    if len(keys) == 1 and not (isinstance(node, tree.ListExpression) and len(node.items) == 1):
        return [_key_set(body, node, keys[0].type)]
    if not isinstance(node, tree.ListExpression):
        values = leaves(expressions.expression(body, node))
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


def count(node: tree.Expression) -> int:
    return sum(map(count, node.items)) if isinstance(node, tree.ListExpression) else 1


def _key_set(body: Body, node: tree.Expression, kind: ir.Type) -> ir.KeySet:
    match node:
        case tree.Mask():
            return _set_of_two(body, node, node.value, node.mask, kind)
        case tree.Range():
            return _set_of_two(body, node, node.low, node.high, kind)
        case tree.ListExpression() if len(node.items) == 1:
            return _key_set(body, node.items[0], kind)
    return ir.Exactly(expressions.expression(body, node, kind))


def _set_of_two(
    body: Body, node: tree.Mask | tree.Range, one: tree.Expression, other: tree.Expression, kind: ir.Type
) -> ir.KeySet:
    first, second = body.sequence(
        [lambda: expressions.expression(body, one, kind), lambda: expressions.expression(body, other, kind)]
    )
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
