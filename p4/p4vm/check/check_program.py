"""The type checker's entry, and declarations: names, types and constants are resolved, or a fault is reported.

tree.checked.Checked says what the result holds; besides:
- A switch's subject `t.apply().action_run` has the type types.Table of t; its labels are noted as action names.
- `{#}` and `...` have the type of where they stand; so have branches of ?: that are lists.
- The amount of a shift by a number without width is converted to a bit<> that holds it.
- The left of a dot, and what is called, is a TypeExpression if and only if it names a type: the tree is set right.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from p4vm.check import (
    check_calls,
    check_expressions,
    check_parsers,
    check_statements,
    check_tables,
    convert,
    generics,
    operators,
    resolve,
)
from p4vm.check.scope import CheckState, EnclosingScope, ExpressionHandler, Scope, ScopeSymbol, fail, has_annotation
from p4vm.node import deep
from p4vm.source import engine_faults
from p4vm.tree import tree_nodes as tree
from p4vm.tree import types
from p4vm.tree.checked import Checked
from p4vm.tree.types import DONT_CARE, variables_of

FRAMES_MAX = 10_000
"""Python frames that NESTING_MAX levels may take."""

EXPRESSIONS: dict[type, ExpressionHandler] = {
    **check_expressions.HANDLERS,
    tree.SliceExpression: operators.slice_bits,
    tree.UnaryExpression: operators.unary,
    tree.BinaryExpression: operators.binary,
    tree.Conditional: operators.conditional,
    tree.CastExpression: operators.cast,
    tree.CallExpression: check_calls.call,
}


def check(program: tree.SyntaxTree) -> Checked:
    """The tree with the checker's notes. Raises P4Error: the first thing that is wrong."""
    state = CheckState(Checked(program), Scope(None), EnclosingScope("top level"), EXPRESSIONS)
    for node in program.declarations:
        state.later.setdefault(declared_name(node), node.position)
    with deep(FRAMES_MAX):
        for node in program.declarations:
            declare(state, node)
    return state.checked


def declared_name(node: tree.Declaration) -> str:
    if isinstance(node, tree.Function | tree.ExternFunction):
        return node.prototype.name
    return getattr(node, "name", "")


def declare(state: CheckState, node: tree.Declaration) -> None:
    handler = HANDLERS.get(node.__class__)
    if handler is None:
        what = tree.class_word(node)
        fail(node, f"a declaration of this kind ({what}) cannot stand at the top level; move it into a control")
    if declared_name(node) == "main" and not isinstance(node, tree.Instance | tree.Function):
        fail(node, "main must be an instance of a package")
    state.busy.append(declared_name(node))
    with engine_faults(lambda _: node.position):
        handler(state, node)
    state.busy.pop()


Prototype = tree.FunctionPrototype
LOCALS = (
    tree.VariableDeclaration,
    tree.ConstantDeclaration,
    tree.Instance,
    tree.Action,
    tree.TableDeclaration,
    tree.ValueSetDeclaration,
)


def parameters(
    state: CheckState, nodes: list[tree.ParameterDeclaration], owner: str, kind: str
) -> tuple[types.ParameterType, ...]:
    """Types of parameters, in the scope around. Raises P4Error: a type, direction or default that cannot be."""
    results: list[types.ParameterType] = []
    for node in nodes:
        parameter_type = resolve.resolve(state, node.type)
        state.note(node, parameter_type)
        if node.name in (p.name for p in results):
            fail(node, f"{owner!r} has two parameters called {node.name!r}")
        check_parameter(node, parameter_type, owner, kind)
        if node.default is not None:
            if node.direction in ("out", "inout"):
                fail(node, f"parameter {node.name!r} is {node.direction}, so it cannot have a default value")
            with state.compile_time(kind in ("package", "constructor")):
                state.value_type(node.default, parameter_type)
            if not isinstance(parameter_type, types.CallableType):
                convert.convert(state, node.default, parameter_type)
            if not state.is_known(node.default):
                fail(node.default, f"the default value of parameter {node.name!r} must be known at compile time")
        optional = node.default is not None or has_annotation(node, "optional")
        results.append(types.ParameterType(node.direction, parameter_type, node.name, optional))
    return tuple(results)


def check_parameter(node: tree.ParameterDeclaration, parameter_type: types.Type, owner: str, kind: str) -> None:
    what = f"parameter {node.name!r} of {owner!r}"
    if parameter_type in (types.VOID, types.MATCH_KIND, DONT_CARE):
        fail(node, f"{what} cannot be of type {parameter_type}")
    if kind in ("package", "constructor"):
        if node.direction:
            fail(node, f"{what} has direction {node.direction}; parameters given when an instance is made have none")
        return
    if isinstance(parameter_type, types.CallableType):
        fail(node, f"{what} is {parameter_type}; parsers and controls are given when an instance is made only")
    if isinstance(parameter_type, types.ExternType) and node.direction:
        fail(node, f"{what} is extern {parameter_type}, so it has no direction; remove {node.direction!r}")
    if isinstance(parameter_type, types.IntegerType) and node.direction:
        fail(node, f"{what} is int, so it has no direction: its value is known at compile time; give it a width")
    if isinstance(parameter_type, types.TupleType) and parameter_type.is_list and kind == "action":
        fail(node, f"{what} cannot be of type {parameter_type}")
    if parameter_type == types.STRING and node.direction:
        fail(node, f"{what} is a string, so it has no direction; remove {node.direction!r}")


def declare_parameters(
    state: CheckState, nodes: list[tree.ParameterDeclaration], parameter_types: tuple[types.ParameterType, ...]
) -> None:
    """Puts parameters into the present scope. Parameters without direction are read-only, and callers know them."""
    for node, parameter in zip(nodes, parameter_types, strict=True):
        data = not isinstance(parameter.type, types.ExternType | types.CallableType)
        writable = parameter.direction in ("out", "inout")
        known = not parameter.direction
        what = "variable" if data else "instance"
        state.declare(ScopeSymbol(node.name, what, node, parameter.type, writable, known=known))


# ---- functions and externs


def prototype(state: CheckState, node: Prototype, kind: str, owner: str) -> types.CallableType:
    """The signature of a function, extern function, method or constructor."""
    with state.inner():
        resolve.declare_type_parameters(state, node, node.type_parameters, owner)
        returns = types.VOID if node.returns is None else resolve.resolve(state, node.returns)
        parameter_types = parameters(state, node.parameters, node.name, kind)
    if isinstance(returns, types.CallableType) or returns in (types.MATCH_KIND, DONT_CARE):
        fail(node, f"{node.name!r} cannot return {returns}")
    signature = types.CallableType(kind, node.name, parameter_types, returns, variables_of(node.type_parameters, owner))
    state.note(node, signature)
    return signature


def add_function(state: CheckState, declaration: tree.Node, name: str, signature: types.CallableType) -> None:
    """Declares a function, or one more of its name with other parameters."""
    before = state.scope.names.get(name)
    if before is None or before.kind != "function":
        state.declare(ScopeSymbol(name, "function", declaration, signature, overloads=[(declaration, signature)]))
        return
    check_overload(declaration, name, signature, [s for _, s in before.overloads])
    before.overloads.append((declaration, signature))


def check_overload(
    node: tree.Node, name: str, signature: types.CallableType, overloads: list[types.CallableType]
) -> None:
    for other in overloads:
        if [p.name for p in other.parameters] == [p.name for p in signature.parameters]:
            fail(node, f"{name!r} is declared twice with the same parameters; rename one, or its parameters")


def extern_function(state: CheckState, node: tree.ExternFunction) -> None:
    signature = prototype(state, node.prototype, "function", node.prototype.name)
    state.note(node, signature)
    add_function(state, node, node.prototype.name, signature)


def function(state: CheckState, node: tree.Function) -> None:
    signature = prototype(state, node.prototype, "function", node.prototype.name)
    state.note(node, signature)
    function_body(state, node, signature, "function")
    add_function(state, node, node.prototype.name, signature)


def function_body(state: CheckState, node: tree.Function, signature: types.CallableType, place: str) -> None:
    head = node.prototype
    with state.inner(EnclosingScope(place, signature.returns)):
        resolve.declare_type_parameters(state, head, head.type_parameters, head.name)
        with state.inner():
            declare_parameters(state, head.parameters, signature.parameters)
            check_statements.block(state, node.body)
    if signature.returns != types.VOID and not check_statements.returns(node.body):
        fail(head, f"function {head.name!r} can end without return; it returns {signature.returns}")


def extern_type(state: CheckState, node: tree.ExternDeclaration) -> None:
    variables = variables_of(node.type_parameters, node.name)
    extern = types.ExternType(node.name, variables)
    state.note(node, extern)
    state.members[node.name] = node
    methods = state.methods[node.name] = {}
    # An extern's methods may have parameters and results of the extern's type.
    state.declare(ScopeSymbol(node.name, "generic" if variables else "type", node, extern))
    with state.inner():
        resolve.declare_type_parameters(state, node, node.type_parameters, node.name)
        for method in node.methods:
            signature = method_signature(state, node, method, extern)
            known = methods.setdefault(method.name, [])
            check_overload(method, method.name, signature, [s for _, s in known])
            known.append((method, signature))


def method_signature(
    state: CheckState, node: tree.ExternDeclaration, method: Prototype, extern: types.ExternType
) -> types.CallableType:
    if method.returns is not None:
        if method.name == node.name:
            fail(method, f"{method.name!r} is extern {node.name!r}'s constructor, so it returns nothing")
        return prototype(state, method, "method", f"{node.name}.{method.name}")
    if method.name != node.name:
        fail(method, f"{method.name!r} has no type of result; only the constructor {node.name!r} has none")
    constructor = prototype(state, method, "constructor", f"{node.name}.{method.name}")
    variables = tuple(v for v in extern.arguments if isinstance(v, types.TypeVariable))
    signature = types.CallableType("constructor", node.name, constructor.parameters, extern, variables)
    state.note(method, signature)
    return signature


# ---- actions, parsers, controls


def action(state: CheckState, node: tree.Action) -> None:
    with state.inner(EnclosingScope("action")):
        parameter_types = parameters(state, node.parameters, node.name, "action")
        seen_data = False
        for parameter, parameter_node in zip(parameter_types, node.parameters, strict=True):
            if not types.is_data(parameter.type):
                fail(
                    parameter_node,
                    f"parameter {parameter_node.name!r} of action {node.name!r} cannot be {parameter.type}",
                )
            if seen_data and parameter.direction:
                fail(
                    parameter_node,
                    f"parameter {parameter_node.name!r} has a direction; those without one come last in an action",
                )
            seen_data = seen_data or not parameter.direction
        declare_parameters(state, node.parameters, parameter_types)
        check_statements.block(state, node.body)
    kind = types.CallableType("action", node.name, parameter_types)
    state.note(node, kind)
    state.declare(ScopeSymbol(node.name, "action", node, kind))


def type_without_body(kind: str, state: CheckState, node: tree.Applicable) -> None:
    """parser P<…>(…); control C<…>(…); package P<…>(…);"""
    with state.inner():
        resolve.declare_type_parameters(state, node, node.type_parameters, node.name)
        parameter_types = parameters(state, node.parameters, node.name, kind)
    variables = variables_of(node.type_parameters, node.name)
    callable_type = types.CallableType(kind, node.name, parameter_types, types.VOID, variables, variables)
    state.note(node, callable_type)
    package = isinstance(node, tree.PackageType)
    if package:
        state.constructors[node] = types.CallableType(
            "constructor", node.name, parameter_types, callable_type, variables
        )
    state.declare(
        ScopeSymbol(node.name, "generic" if variables else "package" if package else "type", node, callable_type)
    )


def container(kind: str, state: CheckState, node: tree.ParserDeclaration | tree.ControlDeclaration) -> None:
    """A parser or control with a body. Raises P4Error."""
    variables = variables_of(node.type_parameters, node.name)
    with state.inner(EnclosingScope(kind)):
        resolve.declare_type_parameters(state, node, node.type_parameters, node.name)
        parameter_types = parameters(state, node.parameters, node.name, kind)
        for parameter_node, parameter in zip(node.parameters, parameter_types, strict=True):
            if parameter.direction and not types.is_data(parameter.type):
                fail(parameter_node, f"parameter {parameter.name!r} of {node.name!r} cannot be {parameter.type}")
        constructor_types = parameters(state, node.constructor_parameters, node.name, "constructor")
        declare_parameters(state, node.constructor_parameters, constructor_types)
        declare_parameters(state, node.parameters, parameter_types)
        callable_type = types.CallableType(kind, node.name, parameter_types, types.VOID, variables, variables)
        state.note(node, callable_type)
        with state.inner():
            before = state.later
            state.later = before | {d.name: d.position for d in node.locals if isinstance(d, LOCALS)}
            for declaration in node.locals:
                local(state, declaration, kind)
            state.later = before
            if isinstance(node, tree.ParserDeclaration):
                check_parsers.check_states(state, node)
            else:
                with state.inner(EnclosingScope("apply block")):
                    check_statements.block(state, node.body)
    state.constructors[node] = types.CallableType("constructor", node.name, constructor_types, callable_type, variables)
    state.declare(ScopeSymbol(node.name, "generic" if variables else "constructed", node, callable_type))


def local(state: CheckState, node: tree.Declaration, kind: str) -> None:
    """A declaration in a parser or control, before its states or apply block."""
    if isinstance(node, tree.VariableDeclaration):
        check_statements.variable(state, node)
    elif isinstance(node, tree.ConstantDeclaration):
        check_statements.constant(state, node)
    elif isinstance(node, tree.Instance):
        instance(state, node)
    elif isinstance(node, tree.ValueSetDeclaration) and kind == "parser":
        check_parsers.declare_value_set(state, node)
    elif isinstance(node, tree.Action | tree.TableDeclaration) and kind == "control":
        state.busy.append(node.name)
        if isinstance(node, tree.Action):
            action(state, node)
        else:
            check_tables.declare_table(state, node)
        state.busy.pop()
    else:
        what = tree.class_word(node)
        fail(node, f"a declaration of this kind ({what}) cannot stand in a {kind}; move it to the top level")


# ---- instances


def instance(state: CheckState, node: tree.Instance) -> None:
    note = check_calls.construct(state, node, node.type, [], node.arguments)
    kind = note.returns
    if state.place.kind == "top level" and isinstance(kind, types.CallableType) and kind.kind != "package":
        fail(node, f"{kind} cannot have an instance at the top level; declare it in a {kind.kind}, or give it to main")
    if (
        state.place.kind in ("parser", "control")
        and isinstance(kind, types.CallableType)
        and kind.kind != state.place.kind
    ):
        fail(node, f"{kind} cannot have an instance in a {state.place.kind}")
    state.checked.instances[node] = note
    state.note(node, kind)
    abstract_methods(state, node, kind)
    if isinstance(kind, types.CallableType) and kind.kind == "package" and node.name == "main":
        state.checked.main = node
    elif node.name == "main" and state.place.kind == "top level":
        fail(node, f"main is {kind}; an instance of a package is expected")
    state.declare(ScopeSymbol(node.name, "instance", node, kind, known=True))


def abstract_methods(state: CheckState, node: tree.Instance, kind: types.Type) -> None:
    """Methods that an instance gives in its body: all abstract ones, with a signature declared."""
    wanted: dict[str, list[tuple[Prototype, types.CallableType]]] = {}
    if isinstance(kind, types.ExternType):
        for name, overloads in state.methods[kind.name].items():
            overloads = [(p, generics.specialise_method(state, kind, s)) for p, s in overloads if p.abstract]
            if overloads:
                wanted[name] = overloads
    implemented: set[str] = set()
    place = state.place
    with state.inner(EnclosingScope("abstract method")):
        state.scope.names["this"] = ScopeSymbol("this", "instance", node, kind, known=True)
        for member in node.members or []:
            if isinstance(member, tree.Instance):
                state.place = place
                instance(state, member)
                state.place = EnclosingScope("abstract method")
            elif isinstance(member, tree.Function):
                abstract_method(state, member, wanted.get(member.prototype.name, []), kind)
                implemented.add(member.prototype.name)
            else:
                fail(member, "the body of an instance holds functions and instances only")
    optional = {name for name, overloads in wanted.items() if all(has_annotation(p, "optional") for p, _ in overloads)}
    missing = sorted(set(wanted) - optional - implemented)
    if missing:
        fail(node, f"instance {node.name!r} must give the abstract method {missing[0]!r} of {kind}")


def abstract_method(
    state: CheckState, node: tree.Function, wanted: list[tuple[Prototype, types.CallableType]], kind: types.Type
) -> None:
    name = node.prototype.name
    signature = prototype(state, node.prototype, "function", name)
    state.note(node, signature)
    if not wanted:
        fail(node, f"{kind} has no abstract method {name!r}")
    if not any(implements(declared, signature) for _, declared in wanted):
        fail(node, f"method {name!r} differs from its declaration in {kind} in parameters or result")
    function_body(state, node, signature, "abstract method")


def implements(declared: types.CallableType, signature: types.CallableType) -> bool:
    """Whether a method has the parameters declared, but for optional ones at the end, and the result."""
    most = len(signature.parameters)
    return (
        declared.returns == signature.returns
        and most <= len(declared.parameters)
        and all(p.optional for p in declared.parameters[most:])
        and all(
            (expected.direction, expected.type) == (actual.direction, actual.type)
            for expected, actual in zip(declared.parameters, signature.parameters, strict=False)
        )
    )


HANDLERS: dict[type, Callable[[CheckState, Any], object]] = {
    tree.ConstantDeclaration: check_statements.constant,
    tree.Instance: instance,
    tree.StructureDeclaration: resolve.declare_structure,
    tree.EnumDeclaration: resolve.declare_enum,
    tree.Errors: resolve.declare_errors,
    tree.MatchKinds: resolve.declare_match_kinds,
    tree.TypeDef: resolve.declare_typedef,
    tree.Function: function,
    tree.Action: action,
    tree.ExternDeclaration: extern_type,
    tree.ExternFunction: extern_function,
    tree.ParserType: partial(type_without_body, "parser"),
    tree.ControlType: partial(type_without_body, "control"),
    tree.PackageType: partial(type_without_body, "package"),
    tree.ValueSetDeclaration: check_parsers.declare_value_set,
    tree.ParserDeclaration: partial(container, "parser"),
    tree.ControlDeclaration: partial(container, "control"),
}
