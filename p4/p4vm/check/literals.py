"""Expressions whose type comes from where they stand: lists, struct expressions, {#} and ..."""

from p4vm.check import types
from p4vm.front import tree

UNTYPED_HEADER = types.Simple("{#}")
UNTYPED_DEFAULT = types.Simple("...")
ANONYMOUS = "struct {"
"""How the name of a struct expression's own type begins."""


def unsettled(node: tree.Expression) -> bool:
    """Whether an expression's type is still to come from where it stands."""
    if isinstance(node, tree.Conditional):
        return unsettled(node.yes) or unsettled(node.no)
    return isinstance(node, tree.ListExpression | tree.StructExpression | tree.InvalidHeader | tree.DefaultRest)
