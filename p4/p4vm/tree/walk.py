"""Ways through the tree, read off the fields of its nodes: the nodes below a node, in order of writing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from p4vm.tree import nodes as tree

PLAIN = ("str", "str | None", "list[str]", "bool", "int", "int | None", "Position")
"""Types of fields that hold no node."""
_FIELDS: dict[type, tuple[str, ...]] = {}


def node_fields(node: type[tree.Node]) -> tuple[str, ...]:
    """Names of the fields of a class of nodes that may hold others."""
    if node not in _FIELDS:
        _FIELDS[node] = tuple(one.name for one in fields(node) if one.type not in PLAIN)
    return _FIELDS[node]


def children(root: object) -> list[tree.Node]:
    """The nodes right below a node, or in a list."""
    below: list[tree.Node] = []
    for value in [getattr(root, name) for name in node_fields(type(root))] if isinstance(root, tree.Node) else [root]:
        _collect(value, below)
    return below


def _collect(value: object, below: list[tree.Node]) -> None:
    if isinstance(value, tree.Node):
        below.append(value)
    elif isinstance(value, list | tuple):
        for item in value:
            _collect(item, below)
    elif isinstance(value, dict):
        below += value.values()


def nodes(root: object) -> Iterator[tree.Node]:
    """Every node below, and the root itself, in order of writing."""
    if isinstance(root, tree.Node):
        yield root
    for child in children(root):
        yield from nodes(child)
