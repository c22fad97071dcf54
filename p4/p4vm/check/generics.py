"""Types with variables: putting types in their place, and finding them from what is given."""

from dataclasses import replace

from p4vm.check.scope import CheckState, ScopeSymbol, counted, fail, type_parameter_names
from p4vm.tree import tree_nodes as tree
from p4vm.tree import types

Binding = dict[types.TypeVariable, types.Type]
UNION_DEPTH_MAX = 64


def substitute(state: CheckState, kind: types.Type, binding: Binding) -> types.Type:
    """The type with bound variables replaced, those in what they are bound to as well."""
    if not binding:
        return kind
    if isinstance(kind, types.TypeVariable):
        bound = binding.get(kind)
        return kind if bound is None else substitute(state, bound, binding)
    if isinstance(kind, types.StructureType):
        origin = state.specialised.get(id(kind))
        if origin is None:
            return kind
        arguments = tuple(substitute(state, a, binding) for a in origin[1])
        return kind if arguments == origin[1] else specialise(state, origin[0], arguments)
    if isinstance(kind, types.StackType):
        element = substitute(state, kind.element, binding)
        return types.StackType(element, kind.size)  # type: ignore[arg-type]  # checked where it was resolved
    if isinstance(kind, types.TupleType):
        return types.TupleType(tuple(substitute(state, item, binding) for item in kind.items), kind.is_list)
    if isinstance(kind, types.SetType):
        return types.SetType(substitute(state, kind.element, binding))
    if isinstance(kind, types.ExternType):
        return types.ExternType(kind.name, tuple(substitute(state, a, binding) for a in kind.arguments))
    if isinstance(kind, types.CallableType):
        return substitute_callable(state, kind, binding)
    return kind


def substitute_callable(state: CheckState, kind: types.CallableType, binding: Binding) -> types.CallableType:
    if not binding:
        return kind
    return replace(
        kind,
        parameters=tuple(replace(p, type=substitute(state, p.type, binding)) for p in kind.parameters),
        returns=substitute(state, kind.returns, binding),
        type_arguments=tuple(substitute(state, a, binding) for a in kind.type_arguments),
    )


class Inference:
    """Finds the types that a generic declaration's variables stand for. open: those still to be found."""

    def __init__(self, state: CheckState, variables: tuple[types.TypeVariable, ...]) -> None:
        self.state = state
        self.fresh: Binding = {v: state.new_variable(v.name) for v in variables}
        self.open = set(self.fresh.values())
        self.binding: Binding = {}

    def renamed(self, kind: types.Type) -> types.Type:
        """The declaration's type, in variables of this use."""
        return substitute(self.state, kind, self.fresh)

    def resolve(self, kind: types.Type) -> types.Type:
        return substitute(self.state, substitute(self.state, kind, self.fresh), self.binding)

    def missing(self) -> list[types.TypeVariable]:
        """Variables, as the declaration has them, that nothing was found for."""
        return [old for old, new in self.fresh.items() if self.loose(new)]

    def leave_open(self, variable: types.TypeVariable) -> None:
        """Nothing needs the type: it may be any."""
        self.binding[self.fresh[variable]] = types.DONT_CARE  # type: ignore[index]  # fresh holds variables

    def loose(self, kind: types.Type) -> bool:
        """Whether a type still has variables to be found."""
        return mentions(self.state, substitute(self.state, kind, self.binding), self.open)

    def bind(self, variable: types.TypeVariable, kind: types.Type) -> None:
        """Gives the declaration's variable its type, as a type argument does; `_` leaves it open."""
        if kind != types.DONT_CARE:
            self.binding[self.fresh[variable]] = kind  # type: ignore[index]  # fresh holds variables

    def unify(self, pattern: types.Type, actual: types.Type, depth: int = 0) -> bool:
        """Whether pattern (in renamed variables) can be the actual type; binds what that tells."""
        if pattern == types.DONT_CARE or actual == types.DONT_CARE or depth > UNION_DEPTH_MAX:
            return depth <= UNION_DEPTH_MAX
        if isinstance(pattern, types.TypeVariable) and pattern in self.open:
            return self._unify_variable(pattern, actual, depth)
        if isinstance(actual, types.TypeVariable) and actual in self.open:
            return self._unify_variable(actual, pattern, depth)
        return self._unify_parts(pattern, actual, depth + 1)

    def _unify_variable(self, variable: types.TypeVariable, actual: types.Type, depth: int) -> bool:
        bound = self.binding.get(variable)
        if bound is None:
            if actual != variable and not mentions(self.state, actual, {variable}):
                self.binding[variable] = actual
            return actual == variable or variable in self.binding
        if isinstance(bound, types.IntegerType) and isinstance(actual, types.BitsType):
            self.binding[variable] = actual
            return True
        if isinstance(actual, types.IntegerType) and isinstance(bound, types.BitsType):
            return True
        return self.unify(bound, actual, depth + 1)

    def _unify_parts(self, pattern: types.Type, actual: types.Type, depth: int) -> bool:
        if isinstance(pattern, types.StructureType) and isinstance(actual, types.StructureType):
            left, right = self.state.specialised.get(id(pattern)), self.state.specialised.get(id(actual))
            if left and right and left[0] is right[0]:
                return self._unify_all(left[1], right[1], depth)
            return pattern == actual
        if isinstance(pattern, types.CallableType) and isinstance(actual, types.CallableType):
            return self._unify_callables(pattern, actual, depth)
        if isinstance(pattern, types.ExternType) and isinstance(actual, types.ExternType):
            return pattern.name == actual.name and self._unify_all(pattern.arguments, actual.arguments, depth)
        if isinstance(pattern, types.TupleType) and isinstance(actual, types.TupleType):
            if pattern.is_list and len(pattern.items) == 1 and not actual.is_list:
                return all(self.unify(pattern.items[0], item, depth) for item in actual.items)
            return pattern.is_list == actual.is_list and self._unify_all(pattern.items, actual.items, depth)
        if isinstance(pattern, types.StackType) and isinstance(actual, types.StackType):
            return pattern.size == actual.size and self.unify(pattern.element, actual.element, depth)
        if isinstance(pattern, types.SetType) and isinstance(actual, types.SetType):
            return self.unify(pattern.element, actual.element, depth)
        return pattern == actual

    def _unify_all(self, patterns: tuple[types.Type, ...], actual: tuple[types.Type, ...], depth: int) -> bool:
        return len(patterns) == len(actual) and all(
            self.unify(left, right, depth) for left, right in zip(patterns, actual, strict=True)
        )

    def _unify_callables(self, pattern: types.CallableType, actual: types.CallableType, depth: int) -> bool:
        """Parsers and controls fit by their parameters' directions and types; packages by name."""
        if pattern.kind != actual.kind or (pattern.kind == "package" and pattern.name != actual.name):
            return False
        if pattern.kind == "package":
            return self._unify_all(pattern.type_arguments, actual.type_arguments, depth)
        fixed = pattern.parameters
        shared = min(len(fixed), len(actual.parameters))
        if not all(p.optional for p in (*fixed[shared:], *actual.parameters[shared:])):
            return False
        return all(
            pattern_parameter.direction == actual_parameter.direction
            and self.unify(pattern_parameter.type, actual_parameter.type, depth)
            for pattern_parameter, actual_parameter in zip(fixed, actual.parameters, strict=False)
        )


def mentions(
    state: CheckState, kind: types.Type, variables: set[types.Type] | set[types.TypeVariable], depth: int = 0
) -> bool:
    """Whether any of the variables occurs in a type."""
    if isinstance(kind, types.TypeVariable):
        return kind in variables
    if depth > UNION_DEPTH_MAX or not variables:
        return False
    parts = types.inside(kind)
    if isinstance(kind, types.StructureType):
        parts = state.specialised[id(kind)][1] if id(kind) in state.specialised else ()
    elif isinstance(kind, types.SetType):
        parts = (kind.element,)
    elif isinstance(kind, types.ExternType):
        parts = kind.arguments
    elif isinstance(kind, types.CallableType):
        parts = (*(p.type for p in kind.parameters), *kind.type_arguments, kind.returns)
    return any(mentions(state, part, variables, depth + 1) for part in parts)


def specialise_method(state: CheckState, extern: types.ExternType, signature: types.CallableType) -> types.CallableType:
    """A method's signature for an instance of a generic extern."""
    names = getattr(state.members.get(extern.name), "type_parameters", [])
    if not names or not extern.arguments:
        return signature
    variables = types.variables_of(names, extern.name)
    binding: Binding = dict(zip(variables, extern.arguments, strict=False))
    method = substitute_callable(state, signature, binding)
    variables_left = tuple(v for v in signature.type_parameters if v not in binding)
    return types.CallableType(method.kind, method.name, method.parameters, method.returns, variables_left)


def check_field(structure: tree.StructureDeclaration, field: tree.Field, kind: types.Type, loose: bool = False) -> None:
    """Raises P4Error: the field's type is not allowed in this kind of structure. loose: fields of generic ones."""
    where = f"field {field.name!r} of {structure.kind} {structure.name!r} cannot be of type {kind}"
    if structure.kind == "struct":
        if not types.is_data(kind) and not (loose and isinstance(kind, types.IntegerType)):
            fail(field, f"{where}; a type of data is expected (bits, bool, enum, error, header, stack, struct, tuple)")
    elif structure.kind == "header":
        if not types.fits_header(kind):
            fail(field, f"{where}; bit<>, int<>, varbit<>, bool, enums with a base and structs of these are expected")
    elif not (
        isinstance(kind, types.TypeVariable) or (isinstance(kind, types.StructureType) and kind.kind == "header")
    ):
        fail(field, f"{where}; a header is expected")


def specialise_symbol(
    state: CheckState, node: tree.Node, symbol: ScopeSymbol, arguments: tuple[types.Type, ...]
) -> types.Type:
    """A generic type with its arguments. Raises P4Error: not generic, or another number of arguments."""
    names = type_parameter_names(symbol.declaration)
    if symbol.kind != "generic":
        fail(node, f"{symbol.name!r} is not generic; leave out its type arguments")
    if len(names) != len(arguments):
        fail(
            node,
            f"{symbol.name!r} takes {counted(len(names), 'type argument')} ({', '.join(names)}), not {len(arguments)}",
        )
    for argument in arguments:
        if isinstance(argument, types.TableType | types.CallableType):
            fail(node, f"{argument} cannot be a type argument of {symbol.name!r}")
    if isinstance(symbol.declaration, tree.StructureDeclaration):
        return specialise(state, symbol.declaration, arguments)
    if isinstance(symbol.type, types.ExternType):
        return types.ExternType(symbol.name, arguments)
    assert isinstance(symbol.type, types.CallableType)
    variables = symbol.type.type_parameters
    kind = substitute_callable(state, symbol.type, dict(zip(variables, arguments, strict=True)))
    return types.CallableType(kind.kind, kind.name, kind.parameters, kind.returns, (), arguments)


def specialise(
    state: CheckState, declaration: tree.StructureDeclaration, arguments: tuple[types.Type, ...]
) -> types.StructureType:
    """A generic structure with its arguments; the same object for the same arguments."""
    key = (declaration, arguments)
    structure = state.structures.get(key)
    if structure is not None:
        return structure
    name = f"{declaration.name}<{', '.join(map(str, arguments))}>"
    if len(name) > types.NAME_MAX:
        fail(declaration, f"{declaration.name!r} is nested too deep in its own type arguments")
    generic = state.checked.type_of[declaration]
    assert isinstance(generic, types.StructureType)
    variables = types.variables_of(declaration.type_parameters, declaration.name)
    binding = dict(zip(variables, arguments, strict=True))
    fields = tuple((field, substitute(state, kind, binding)) for field, kind in generic.fields)
    structure = types.StructureType(generic.kind, name, fields, generic.annotations)
    for field, (_, kind) in zip(declaration.fields, fields, strict=True):
        check_field(declaration, field, kind, loose=True)
    state.structures[key] = structure
    state.specialised[id(structure)] = key
    state.members[name] = declaration
    return structure
