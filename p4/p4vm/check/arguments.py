"""The declaration that a call means, the argument for each parameter, and the types of type parameters."""

from dataclasses import dataclass

from p4vm.check import check_expressions, convert, generics
from p4vm.check.convert import unsettled
from p4vm.check.scope import CheckState, counted, fail, nearest
from p4vm.node import nodes
from p4vm.tree import tree_nodes as tree
from p4vm.tree import types
from p4vm.tree.types import UNTYPED_DEFAULT, UNTYPED_HEADER

Candidate = tuple[tree.Node, types.CallableType]


@dataclass(slots=True)
class BoundArguments:
    """A call's parameters and result with type arguments in place, and its arguments in order of the parameters."""

    parameters: tuple[types.ParameterType, ...]
    arguments: list[tree.ExpressionNode | None]
    type_arguments: tuple[types.Type, ...]
    returns: types.Type


def required(signature: types.CallableType) -> int:
    return sum(not p.optional for p in signature.parameters)


def fits(signature: types.CallableType, arguments: list[tree.CallArgument]) -> bool:
    """Whether number and names of the arguments are those of a declaration."""
    names = [p.name for p in signature.parameters]
    keywords = {a.name for a in arguments if a.name is not None}
    if keywords:
        return keywords <= set(names) and all(p.optional or p.name in keywords for p in signature.parameters)
    return len(arguments) <= len(names) and all(p.optional for p in signature.parameters[len(arguments) :])


def choose(node: tree.Node, name: str, candidates: list[Candidate], arguments: list[tree.CallArgument]) -> Candidate:
    """The declaration that a call means. Raises P4Error: none, or several."""
    if len(candidates) == 1:
        return candidates[0]
    matches = [c for c in candidates if fits(c[1], arguments)]
    if len(matches) > 1:
        exact = [c for c in matches if len(c[1].parameters) == len(arguments)]
        matches = exact or matches
    if len(matches) == 1:
        return matches[0]
    forms = ", ".join(f"{name}({', '.join(p.name for p in c[1].parameters)})" for c in candidates[:4])
    if not matches:
        fail(node, f"no {name!r} takes {counted(len(arguments), 'argument')} so; there are {forms}")
    fail(node, f"call of {name!r} is ambiguous between {forms}; name the arguments")


def in_order(
    node: tree.Node, name: str, signature: types.CallableType, arguments: list[tree.CallArgument]
) -> list[tree.CallArgument | None]:
    """Arguments by parameter, None where left out. Raises P4Error: too many, missing, unknown, twice, mixed."""
    names = [p.name for p in signature.parameters]
    ordered: list[tree.CallArgument | None] = [None] * len(names)
    if any(a.name is not None for a in arguments):
        by_name(name, names, arguments, ordered)
    elif len(arguments) > len(names):
        fail(node, f"{name} takes {counted(len(names), 'argument')}, not {len(arguments)}")
    else:
        ordered[: len(arguments)] = arguments
    for parameter, argument in zip(signature.parameters, ordered, strict=True):
        if argument is None and not parameter.optional:
            takes = required(signature)
            fail(node, f"argument {parameter.name!r} of {name} is missing; {name} takes {takes}")
    return ordered


def by_name(
    name: str, names: list[str], arguments: list[tree.CallArgument], ordered: list[tree.CallArgument | None]
) -> None:
    """Puts arguments with names in the places of their parameters. Raises P4Error."""
    for argument in arguments:
        if argument.name is None:
            fail(argument, f"call of {name}: name all arguments or none")
        if argument.name not in names:
            fail(argument, f"{name} has no parameter {argument.name!r}" + nearest(argument.name, names))
        place = names.index(argument.name)
        if ordered[place] is not None:
            fail(argument, f"argument {argument.name!r} of {name} is given twice")
        ordered[place] = argument


def bind(
    state: CheckState,
    node: tree.Node,
    name: str,
    signature: types.CallableType,
    arguments: list[tree.CallArgument],
    explicit: list[types.Type],
    expected: types.Type | None = None,
) -> BoundArguments:
    """Checks a call's arguments against a declaration. Raises P4Error."""
    ordered = in_order(node, name, signature, arguments)
    inference = generics.Inference(state, signature.type_parameters)
    give_type_arguments(node, name, signature, explicit, inference)
    patterns = [inference.renamed(p.type) for p in signature.parameters]
    kinds: list[types.Type | None] = [None] * len(ordered)
    for late in (False, True):
        for number, argument in enumerate(ordered):
            value = argument.value if argument is not None else None
            if value is not None and late == is_generic_instance(state, value):
                pattern = patterns[number]
                wanted = inference.resolve(pattern) if late or not inference.loose(pattern) else None
                kinds[number] = state.value_type(value, wanted)
        find_variables(name, inference, patterns, ordered, kinds)
    returns = inference.renamed(signature.returns)
    if expected is not None and inference.loose(returns):
        inference.unify(returns, expected)
    for variable in inference.missing():
        used = [p.type for p, a in zip(signature.parameters, ordered, strict=True) if a is not None]
        package = isinstance(signature.returns, types.CallableType) and signature.returns.kind == "package"
        if (not explicit or not (package or only_consumed(state, signature.returns, variable))) and any(
            generics.mentions(state, k, {variable}) for k in (*used, *(() if package else (signature.returns,)))
        ):
            fail(node, f"cannot tell what type {variable} of {name} is; write it: {name}<…>(…)")
        inference.leave_open(variable)
    check_settled(state, name, signature, inference, ordered)
    parameters = tuple(
        types.ParameterType(p.direction, inference.resolve(p.type), p.name, p.optional) for p in signature.parameters
    )
    for parameter, argument, kind in zip(parameters, ordered, kinds, strict=True):
        if argument is not None:
            check_argument(state, name, signature.kind, parameter, argument, kind)
    type_arguments = tuple(inference.resolve(v) for v in signature.type_parameters)
    values = [None if a is None else a.value for a in ordered]
    return BoundArguments(parameters, values, type_arguments, inference.resolve(signature.returns))


def only_consumed(state: CheckState, extern: types.Type, variable: types.TypeVariable) -> bool:
    """Whether an extern takes values of this type and returns none: Register<bit<32>, _> may be indexed by anything."""
    declaration = state.members.get(extern.name) if isinstance(extern, types.ExternType) else None
    if not isinstance(declaration, tree.ExternDeclaration):
        return False
    results = [
        node
        for method in declaration.methods
        for node in (method.returns, *(p.type for p in method.parameters if p.direction in ("out", "inout")))
        if node is not None
    ]
    return not any(isinstance(node, tree.TypeName) and node.name == variable.name for node in nodes(results))


def check_settled(
    state: CheckState,
    name: str,
    signature: types.CallableType,
    inference: generics.Inference,
    ordered: list[tree.CallArgument | None],
) -> None:
    """Raises P4Error: a number without width, or fields without a struct, is all that tells a type parameter."""
    if signature.kind == "constructor":
        return
    for parameter, argument in zip(signature.parameters, ordered, strict=True):
        if argument is None or argument.value is None or parameter.type not in signature.type_parameters:
            continue
        kind = inference.resolve(parameter.type)
        if isinstance(kind, types.CallableType):
            fail(argument.value, f"argument {parameter.name!r} of {name} cannot be {kind}")
        part = undecided(state, argument.value, kind)
        if part is not None:
            what = state.checked.type_of[part]
            hint = "write its struct's name before it"
            if isinstance(what, types.IntegerType):
                hint = "give it a width, as in 8w1"
            fail(part, f"argument {parameter.name!r} of {name} doesn't tell what type is meant; {hint}")


def undecided(state: CheckState, node: tree.ExpressionNode, kind: types.Type) -> tree.ExpressionNode | None:
    """The part of an argument whose type nothing tells."""
    if isinstance(node, tree.ListExpression) and isinstance(kind, types.TupleType) and not kind.is_list:
        parts = (undecided(state, item, part) for item, part in zip(node.items, kind.items, strict=False))
        return next((part for part in parts if part is not None), None)
    if isinstance(kind, types.StructureType) and kind.name.startswith(types.ANONYMOUS):
        return node
    return node if isinstance(kind, types.IntegerType) else None


def give_type_arguments(
    node: tree.Node, name: str, signature: types.CallableType, explicit: list[types.Type], inference: generics.Inference
) -> None:
    variables = signature.type_parameters
    if explicit and len(explicit) != len(variables):
        fail(node, f"{name} takes {counted(len(variables), 'type argument')}, not {len(explicit)}")
    for variable, kind in zip(variables, explicit, strict=False):
        if isinstance(kind, types.TableType):
            fail(node, f"{kind} cannot be a type argument of {name}")
        inference.bind(variable, kind)


def is_generic_instance(state: CheckState, node: tree.ExpressionNode | None) -> bool:
    """Whether an argument makes a generic parser or control without type arguments: these come from the parameter."""
    if not isinstance(node, tree.CallExpression) or node.type_arguments:
        return False
    callee = node.callee.type if isinstance(node.callee, tree.TypeExpression) else node.callee
    symbol = state.scope.find(callee.name) if isinstance(callee, tree.TypeName | tree.Name) else None
    return (
        symbol is not None
        and symbol.kind == "generic"
        and isinstance(symbol.declaration, tree.ParserDeclaration | tree.ControlDeclaration)
    )


def find_variables(
    name: str,
    inference: generics.Inference,
    patterns: list[types.Type],
    ordered: list[tree.CallArgument | None],
    kinds: list[types.Type | None],
) -> None:
    """Finds type variables from arguments: those with a type of their own first, numbers and lists after."""
    late = []
    for number, kind in enumerate(kinds):
        argument = ordered[number]
        if kind is None or argument is None or argument.value is None:
            continue
        if unsettled(argument.value) or isinstance(kind, types.IntegerType):
            late.append(number)
        elif not inference.unify(patterns[number], kind) and isinstance(kind, types.CallableType):
            fail(argument.value, unlike(name, inference, patterns[number], kind))
    for number in late:
        kind = kinds[number]
        if kind is not None and kind not in (UNTYPED_HEADER, UNTYPED_DEFAULT) and inference.loose(patterns[number]):
            inference.unify(patterns[number], kind)


def unlike(name: str, inference: generics.Inference, pattern: types.Type, kind: types.CallableType) -> str:
    """Why a parser, control or package doesn't fit a parameter: the first difference of their own parameters."""
    wanted = inference.resolve(pattern)
    start = f"{kind} cannot be an argument of {name}; {wanted} is expected"
    if not isinstance(wanted, types.CallableType) or wanted.kind != kind.kind:
        return start
    if len(wanted.parameters) != len(kind.parameters):
        return f"{start}, with {counted(len(wanted.parameters), 'parameter')}, not {len(kind.parameters)}"
    for expected, other in zip(wanted.parameters, kind.parameters, strict=True):
        if expected.direction != other.direction:
            return f"{start}: parameter {other.name!r} needs direction {expected.direction or 'none'}"
        if not inference.unify(inference.renamed(expected.type), other.type):
            return (
                f"{start}: parameter {other.name!r} is {other.type}, and {inference.resolve(expected.type)} is expected"
            )
    return start


def check_argument(
    state: CheckState,
    name: str,
    called: str,
    parameter: types.ParameterType,
    argument: tree.CallArgument,
    kind: types.Type | None,
) -> None:
    where = f"argument {parameter.name!r} of {name}"
    value = argument.value
    if value is None or kind is None:
        if parameter.direction != "out":
            fail(argument, f"{where} cannot be '_'; only out arguments can be left out so")
        return
    if parameter.direction in ("out", "inout"):
        if kind != parameter.type:
            fail(value, f"{where} is {kind}; {parameter.type} is expected, as it is {parameter.direction}")
        check_expressions.require_writable(state, value, f"{where} is {parameter.direction}")
        return
    if isinstance(parameter.type, types.CallableType):
        if not isinstance(kind, types.CallableType):
            fail(value, f"{where} is {kind}; {parameter.type} is expected")
        return
    if parameter.type == types.DONT_CARE:
        if isinstance(kind, types.IntegerType):
            convert.convert(state, value, types.BitsType(32, False), where)
        return
    instance = isinstance(parameter.type, types.ExternType)
    if not instance or not generics.Inference(state, ()).unify(parameter.type, kind):
        convert.convert(state, value, parameter.type, f"{where} is {{found}}; {{to}} is expected")
    if not parameter.direction and called != "action" and not instance and not state.is_known(value):
        fail(value, f"{where} has no direction, so it must be known at compile time")
