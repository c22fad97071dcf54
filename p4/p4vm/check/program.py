"""The type checker: resolves names, types and constants of a program, or reports where it is wrong.

What the result holds is in tree.checked.Checked; besides:
- A switch's subject `t.apply().action_run` has the type types.Table of t; its labels are noted as action names.
- `{#}` and `...` have the type of where they stand; so have branches of ?: that are lists.
- The amount of a shift by a number without width is converted to a bit<> that holds it.
- The left of a dot, and what is called, is a TypeExpression if and only if it names a type: the tree is set right.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from p4vm.check import calls, declarations, expressions, operators, parsers, resolve, statements
from p4vm.check.scope import ExpressionHandler, Place, Scope, State, fail
from p4vm.tree import nodes as tree
from p4vm.tree.checked import Checked

RECURSION = 10_000
"""Python frames that NESTING_MAX levels may take."""

EXPRESSIONS: dict[type, ExpressionHandler] = {
    **expressions.HANDLERS,
    tree.Slice: operators.slice_bits,
    tree.Unary: operators.unary,
    tree.Binary: operators.binary,
    tree.Conditional: operators.conditional,
    tree.Cast: operators.cast,
    tree.Call: calls.call,
}

HANDLERS: dict[type, Callable[[State, Any], object]] = {
    tree.Constant: statements.constant,
    tree.Instance: declarations.instance,
    tree.Structure: resolve.declare_structure,
    tree.Enum: resolve.declare_enum,
    tree.Errors: resolve.declare_errors,
    tree.MatchKinds: resolve.declare_match_kinds,
    tree.TypeDef: resolve.declare_typedef,
    tree.Function: declarations.function,
    tree.Action: declarations.action,
    tree.ExternType: declarations.extern_type,
    tree.ExternFunction: declarations.extern_function,
    tree.ParserType: declarations.parser_type,
    tree.ControlType: declarations.control_type,
    tree.PackageType: declarations.package_type,
    tree.ValueSet: parsers.declare_value_set,
    tree.Parser: declarations.parser,
    tree.Control: declarations.control,
}


def check(program: tree.Program) -> Checked:
    """Raises P4Error: the first thing that is wrong."""
    state = State(Checked(program), Scope(None), Place("top level"), EXPRESSIONS)
    for node in program.declarations:
        state.later.setdefault(declared_name(node), node.position)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, RECURSION))
    try:
        for node in program.declarations:
            declare(state, node)
    finally:
        sys.setrecursionlimit(limit)
    return state.checked


def declared_name(node: tree.Declaration) -> str:
    if isinstance(node, tree.Function | tree.ExternFunction):
        return node.prototype.name
    return getattr(node, "name", "")


def declare(state: State, node: tree.Declaration) -> None:
    handler = HANDLERS.get(node.__class__)
    if handler is None:
        what = type(node).__name__.lower()
        fail(node, f"a declaration of this kind ({what}) cannot stand at the top level; move it into a control")
    if declared_name(node) == "main" and not isinstance(node, tree.Instance | tree.Function):
        fail(node, "main must be an instance of a package")
    state.busy.append(declared_name(node))
    handler(state, node)
    state.busy.pop()
