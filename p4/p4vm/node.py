"""The common base of nodes of the syntax tree and of the IR: how they are made, and walks through them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import ClassVar, dataclass_transform

from p4vm.source import NOWHERE, Position

NO_NODES = frozenset({"str", "str | None", "int", "int | None", "int | str", "bool", "list[str]", "Position"})
"""Types, as written, of fields that no node can be in."""


@dataclass_transform(eq_default=False, field_specifiers=(field,))
class Entity:
    """Its subclasses are dataclasses, equal to nothing but themselves: so dictionaries can be keyed by them."""

    def __init_subclass__(cls) -> None:
        dataclass(eq=False)(cls)


class Node(Entity):
    """An entity that is part of one other node, or the root of all. position: of the first token that tells what it is;
    in the IR where a message may need it. inner: names of the fields that may hold nodes."""

    position: Position = field(default=NOWHERE, kw_only=True)
    inner: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.inner = tuple(part.name for part in fields(cls) if part.type not in NO_NODES)


def children(node: Node) -> list[Node]:
    """The nodes right below this one, in order of writing; also those in lists, tuples and dictionaries."""
    below: list[Node] = []
    for name in node.inner:
        value = getattr(node, name)
        if isinstance(value, Node):
            below.append(value)
        elif isinstance(value, (list, tuple, dict)):
            _collect(value, below)
    return below


def _collect(values: Iterable[object], below: list[Node]) -> None:
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, Node):
            below.append(value)
        elif isinstance(value, (list, tuple)):
            _collect(value, below)


def nodes(roots: Iterable[Node]) -> Iterator[Node]:
    """These nodes and every one below them, each before what is below it, in order of writing."""
    pending = list(roots)[::-1]
    while pending:
        node = pending.pop()
        yield node
        pending += reversed(children(node))


@contextmanager
def deep(frames: int) -> Iterator[None]:
    """Within it, Python may recurse this deep. It is for Python code alone, which doesn't grow the interpreter's own
    stack."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, frames))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
