"""The type checker: resolves names, types and constants of a program, or says where it is wrong.

Its parts: check_scope (names), check_types, check_unify (generics), check_convert, check_values (constants),
check_expressions, check_operators, check_arguments, check_calls, check_core, check_statements, check_sets,
check_parsers, check_tables, check_declarations. What the result holds is in checked.Checked; besides:
- A switch's subject `t.apply().action_run` has the type types.Table of t; its labels are noted as action names.
- `{#}` and `...` have the type of where they stand; so have branches of ?: that are lists.
- The amount of a shift by a number without width is converted to a bit<> that holds it.
- The left of a dot, and what is called, is a TypeExpression if and only if it names a type: the tree is set right.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from switchagg.p4vm import (
    check_calls,
    check_declarations,
    check_expressions,
    check_operators,
    check_parsers,
    check_statements,
    check_types,
    tree,
)
from switchagg.p4vm.check_scope import Place, Scope, State, fail
from switchagg.p4vm.checked import Checked

RECURSION = 10_000
"""Python frames that NESTING_MAX levels may take."""

check_expressions.HANDLERS.update(
    {
        tree.Slice: check_operators.slice_bits,
        tree.Unary: check_operators.unary,
        tree.Binary: check_operators.binary,
        tree.Conditional: check_operators.conditional,
        tree.Cast: check_operators.cast,
        tree.Call: check_calls.call,
    }
)

HANDLERS: dict[type, Callable[[State, Any], object]] = {
    tree.Constant: check_statements.constant,
    tree.Instance: check_declarations.instance,
    tree.Structure: check_types.declare_structure,
    tree.Enum: check_types.declare_enum,
    tree.Errors: check_types.declare_errors,
    tree.MatchKinds: check_types.declare_match_kinds,
    tree.TypeDef: check_types.declare_typedef,
    tree.Function: check_declarations.function,
    tree.Action: check_declarations.action,
    tree.ExternType: check_declarations.extern_type,
    tree.ExternFunction: check_declarations.extern_function,
    tree.ParserType: check_declarations.parser_type,
    tree.ControlType: check_declarations.control_type,
    tree.PackageType: check_declarations.package_type,
    tree.ValueSet: check_parsers.declare_value_set,
    tree.Parser: check_declarations.parser,
    tree.Control: check_declarations.control,
}


def check(program: tree.Program) -> Checked:
    """Raises P4Error: the first thing that is wrong."""
    state = State(Checked(program), Scope(None), Place("top level"))
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
