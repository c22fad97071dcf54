"""Names as the control plane sees them, and annotations read."""

from collections.abc import Container, Sequence

from p4vm.source import P4Error
from p4vm.tree import tree_nodes as tree
from p4vm.tree import types
from p4vm.tree.checked import Checked


def unused(name: str, used: Container[str], number: int = 1) -> str:
    """The name, or where it is taken the first of name_1, name_2, … that isn't, from `number` on."""
    free_name = name
    while free_name in used:
        free_name, number = f"{name}_{number}", number + 1
    return free_name


def find(annotations: Sequence[tree.Annotation], name: str) -> tree.Annotation | None:
    return next((annotation for annotation in annotations if annotation.name == name), None)


def text_of(annotation: tree.Annotation) -> str | None:
    """The annotation's string, if it has one."""
    if annotation.args and isinstance(annotation.args[0], tree.String):
        return annotation.args[0].value
    tokens = annotation.tokens.strip()
    return tokens[1:-1] if len(tokens) > 1 and tokens[0] == tokens[-1] == '"' else None


def given_name(annotations: Sequence[tree.Annotation]) -> str | None:
    """The string of @name. Raises P4Error: it has none."""
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
    return {annotation.name: text_of(annotation) or annotation.tokens for annotation in annotations}


def key_name(node: tree.ExpressionNode, checked: Checked) -> str | None:
    """How a table's key is called after its expression; None: such an expression needs @name."""
    match node:
        case tree.Name():
            return node.name
        case tree.MemberExpression():
            return _member_name(node, checked)
        case tree.IndexExpression():
            outer, index = key_name(node.base, checked), _number(node.index, checked)
            inner = key_name(node.index, checked) if index is None else str(index)
            return f"{outer}[{inner}]" if outer is not None and inner is not None else None
        case tree.SliceExpression():
            return _slice_name(node, checked)
        case tree.CallExpression():
            callee = node.callee
            if isinstance(callee, tree.MemberExpression) and callee.name == "isValid":
                outer = key_name(callee.base, checked)
                return f"{outer}.$valid$" if outer is not None else None
        case tree.BinaryExpression(operator="&"):
            parts = [_mask_part(side, checked) for side in (node.left, node.right)]
            return f"{parts[0]} & {parts[1]}" if None not in parts else None
        case tree.Number():
            return str(node.value)
    return None


def _mask_part(node: tree.ExpressionNode, checked: Checked) -> str | None:
    number = _number(node, checked)
    return f"{number:#x}" if number is not None else key_name(node, checked)


def _member_name(node: tree.MemberExpression, checked: Checked) -> str | None:
    """base.field, by the field's @name if it has one; one that begins with a dot is the whole name."""
    called = node.name
    kind = checked.type_of.get(node.base)
    if isinstance(kind, types.StructureType):
        for declaration in checked.program.declarations:
            if isinstance(declaration, tree.StructureDeclaration) and declaration.name == kind.name:
                fields = {field.name: field.annotations for field in declaration.fields}
                called = given_name(fields.get(node.name, ())) or called
    if called.startswith("."):
        return called[1:]
    outer = key_name(node.base, checked)
    return f"{outer}.{called}" if outer is not None else None


def _slice_name(node: tree.SliceExpression, checked: Checked) -> str | None:
    outer, low = key_name(node.base, checked), _number(node.low, checked)
    high = _number(node.high, checked) if node.high is not None else None
    width = _number(node.width, checked) if node.width is not None else None
    if low is not None and width is not None:
        high = low + width - 1
    return f"{outer}[{high}:{low}]" if outer is not None and high is not None and low is not None else None


def _number(node: tree.ExpressionNode, checked: Checked) -> int | None:
    value = node.value if isinstance(node, tree.Number) else checked.constants.get(node)
    return value if isinstance(value, int) else None
