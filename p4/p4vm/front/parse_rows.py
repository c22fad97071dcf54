"""Rules of the grammar (p4.lark) that become a node, or a list, by their parts alone: a row for each."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from p4vm.front.lexer import Token
from p4vm.front.preprocess import Preprocessed
from p4vm.source import Position
from p4vm.tree import tree_nodes as tree

Parts = list[Any]
Source = int | slice | None


@dataclass(frozen=True, slots=True)
class Row:
    """node: what the rule becomes. parts: which of the rule's parts each field of it is, in order; None: none of them.
    at: the part that has the node's position.

    A token stands for its text. Parts left out are empty lists in fields of lists; fields of bool say whether a part is
    there.
    """

    node: type[tree.Node]
    parts: tuple[Source, ...]
    at: int


ROWS = {
    "plain_type": Row(tree.BaseType, (0,), 0),
    "specialized_type": Row(tree.SpecializedType, (0, 1), 0),
    "stack_type": Row(tree.StackTypeName, (0, 2), 0),
    "tuple_type": Row(tree.TupleTypeName, (1,), 0),
    "unary": Row(tree.UnaryExpression, (0, 1), 0),
    "conditional": Row(tree.Conditional, (0, 1, 2), 0),
    "cast": Row(tree.CastExpression, (1, 2), 0),
    "mask": Row(tree.Mask, (0, 1), 0),
    "range": Row(tree.Range, (0, 1), 0),
    "any_value": Row(tree.Default, (), 0),
    "rest": Row(tree.DefaultRest, (), 0),
    "invalid": Row(tree.InvalidHeader, (), 0),
    "struct": Row(tree.StructExpression, (1, None, 2), 0),
    "index": Row(tree.IndexExpression, (0, 1), 0),
    "slice": Row(tree.SliceExpression, (0, 1, 2), 0),
    "sized_slice": Row(tree.SliceExpression, (0, None, 1, 2), 0),
    "member": Row(tree.MemberExpression, (0, 1), 1),
    "call": Row(tree.CallExpression, (0, 1, 2), 0),
    "empty": Row(tree.EmptyStatement, (), 0),
    "exit": Row(tree.ExitStatement, (), 0),
    "break_": Row(tree.BreakStatement, (), 0),
    "continue_": Row(tree.ContinueStatement, (), 0),
    "return_": Row(tree.ReturnStatement, (1,), 0),
    "switch": Row(tree.SwitchStatement, (1, slice(2, None)), 0),
    "switch_case": Row(tree.SwitchCase, (0, 1), 0),
    "instantiation": Row(tree.Instance, (0, 1, 2, 3, 4), 3),
    "structure": Row(tree.StructureDeclaration, (0, 1, 2, 3, slice(4, None)), 2),
    "constructor": Row(tree.FunctionPrototype, (0, None, 1, None, 2), 1),
    "prototype": Row(tree.FunctionPrototype, (None, 0, 1, 2, 3), 1),
    "extern_type": Row(tree.ExternDeclaration, (0, 1, 2, slice(3, None)), 1),
    "parser_head": Row(tree.ParserType, (0, 1, 2, 3), 1),
    "control_head": Row(tree.ControlType, (0, 1, 2, 3), 1),
    "package_type": Row(tree.PackageType, (0, 1, 2, 3), 1),
    "action": Row(tree.Action, (0, 1, 2, 3), 1),
    "value_set": Row(tree.ValueSetDeclaration, (0, 1, 2, 3), 3),
    "transition": Row(tree.Transition, (1,), 1),
    "select_case": Row(tree.SelectCase, (0, 1), 0),
    "key": Row(tree.KeyElement, (2, 0, 1), 0),
    "action_ref": Row(tree.ActionRef, (None, 1, 2, 0), 1),
}

SERIES = ("expressions", "pairs", "enum_members", "names")
"""Rules that are lists, which grow to the right."""
LISTS = ("type_arguments", "object_body", "parameters", "if_head", "for_inits", "for_steps", "keyset", "arguments")
"""Rules that are the list of their parts."""
ONE_PART = {"parser_type": 0, "control_type": 0, "annotation_arguments": 0, "in_parentheses": 1}
"""Rules that are one of their parts."""


def position(source: Preprocessed, part: Any) -> Position:
    """The position of a token, a node, or the first of a list of nodes."""
    if isinstance(part, Token):
        return source.position(part.at)
    place: Position = part[0].position if isinstance(part, list) else part.position
    return place


def _filler(part: Source, kind: str) -> Callable[[Parts], Any]:
    """A function that takes a field of this type from a rule's parts."""
    if isinstance(part, slice):
        return lambda c: c[part]
    if part is None:
        empty: Any = "" if kind == "str" else None
        return lambda c: [] if kind.startswith("list[") else empty
    if kind == "bool":
        return lambda c: c[part] is not None
    if kind.startswith("list["):
        return (lambda c: c[part]) if kind.endswith("| None") else (lambda c: c[part] or [])
    return lambda c: c[part].value if isinstance(c[part], Token) else c[part]


def _method(row: Row) -> Callable[[Any, Parts], tree.Node]:
    kinds = [str(column.type) for column in fields(row.node) if column.name != "position"]
    fillers = [_filler(part, kind) for part, kind in zip(row.parts, kinds, strict=False)]
    node, at = row.node, row.at

    def build(self: Any, c: Parts) -> tree.Node:
        return node(*[fill(c) for fill in fillers], position=position(self.source, c[at]))

    return build


def _series(_: Any, c: Parts) -> Parts:
    if len(c) == 1:
        return [c[0]]
    items: Parts = c[0]
    items.append(c[1])
    return items


def _part(number: int) -> Callable[[Any, Parts], Any]:
    return lambda _, c: c[number]


METHODS: dict[str, Callable[[Any, Parts], Any]] = {
    **{rule: _method(row) for rule, row in ROWS.items()},
    **dict.fromkeys(SERIES, _series),
    **dict.fromkeys(LISTS, lambda _, c: c),
    **{rule: _part(number) for rule, number in ONE_PART.items()},
    "extern_forward": lambda _, c: None,  # announces what is declared later
}
"""Rule -> what makes it, as a method of a builder that has `source`."""
