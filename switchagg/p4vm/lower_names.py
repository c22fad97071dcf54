"""Names as the control plane sees them, and annotations read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from switchagg.p4vm import tree
from switchagg.p4vm.checked import Value
from switchagg.p4vm.source import P4Error


def find(annotations: Sequence[tree.Annotation], name: str) -> tree.Annotation | None:
    return next((one for one in annotations if one.name == name), None)


def text_of(annotation: tree.Annotation) -> str | None:
    """The annotation's string, if it has one."""
    if annotation.args and isinstance(annotation.args[0], tree.String):
        return annotation.args[0].value
    written = annotation.tokens.strip()
    return written[1:-1] if len(written) > 1 and written[0] == written[-1] == '"' else None


def given_name(annotations: Sequence[tree.Annotation]) -> str | None:
    """What @name says. Raises P4Error: no string."""
    annotation = find(annotations, "name")
    if annotation is None:
        return None
    text = text_of(annotation)
    if text is None:
        raise P4Error('@name takes a string: @name("…")', annotation.position)
    return text


def control_name(prefix: str, name: str, annotations: Sequence[tree.Annotation]) -> str:
    """The full name: after the prefix, unless @name begins with a dot."""
    called = given_name(annotations) or name
    if called.startswith("."):
        return called[1:]
    return f"{prefix}.{called}" if prefix else called


def notes(annotations: Sequence[tree.Annotation]) -> dict[str, str]:
    """Annotations as text."""
    return {one.name: text_of(one) or one.tokens for one in annotations}


def key_name(node: tree.Expression, known: Mapping[tree.Node, Value]) -> str | None:
    """How a table's key is called after its expression; None: such an expression needs @name. known: constants."""
    match node:
        case tree.Name():
            return node.name
        case tree.Member():
            outer = key_name(node.base, known)
            return f"{outer}.{node.name}" if outer is not None else None
        case tree.Index():
            outer, index = key_name(node.base, known), _number(node.index, known)
            inner = key_name(node.index, known) if index is None else str(index)
            return f"{outer}[{inner}]" if outer is not None and inner is not None else None
        case tree.Slice():
            return _slice_name(node, known)
        case tree.Call():
            callee = node.callee
            if isinstance(callee, tree.Member) and callee.name == "isValid":
                outer = key_name(callee.base, known)
                return f"{outer}.$valid$" if outer is not None else None
        case tree.Binary(operator="&"):
            return key_name(node.right if _number(node.left, known) is not None else node.left, known)
        case tree.Number():
            return str(node.value)
        case tree.Cast():
            return key_name(node.operand, known)
    return None


def _slice_name(node: tree.Slice, known: Mapping[tree.Node, Value]) -> str | None:
    outer, low = key_name(node.base, known), _number(node.low, known)
    high = _number(node.high, known) if node.high is not None else None
    width = _number(node.width, known) if node.width is not None else None
    if low is not None and width is not None:
        high = low + width - 1
    return f"{outer}[{high}:{low}]" if outer is not None and high is not None and low is not None else None


def _number(node: tree.Expression, known: Mapping[tree.Node, Value]) -> int | None:
    value = node.value if isinstance(node, tree.Number) else known.get(node)
    return value if isinstance(value, int) else None
