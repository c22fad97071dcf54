"""Types as written made into types, and the declarations that make new ones."""

from __future__ import annotations

from p4vm.check import convert, expressions, types, unify
from p4vm.check.checked import Value
from p4vm.check.scope import State, Symbol, counted, fail, show, type_parameter_names
from p4vm.front import tree

WIDTH_MAX = 1 << 16
"""Bits of one value. The reference compiler stops at 2048; nothing that a packet holds in one field needs more."""

LEAVES_MAX = 1 << 16
"""Fields of a structure, counted through everything nested in it."""

NAME_MAX = 2000
"""Characters of a type's name with its arguments: generics nested without end stop here."""

BASES = {t.name: t for t in (types.BOOL, types.ERROR, types.STRING, types.MATCH_KIND, types.VOID)}
DATA_SIMPLE = frozenset({"bool", "error"})


def resolve(state: State, node: tree.Type) -> types.Type:
    """The type that was written; notes it. Raises P4Error."""
    state.deeper(node)
    if isinstance(node, tree.TypeName):
        kind = named(state, node)
    elif isinstance(node, tree.BitsType):
        kind = bits(state, node)
    elif isinstance(node, tree.BaseType):
        kind = base(node)
    elif isinstance(node, tree.SpecializedType):
        kind = specialised(state, node)
    elif isinstance(node, tree.StackType):
        kind = stack(state, node)
    else:
        kind = tuple_type(state, node)
    state.depth -= 1
    return state.note(node, kind)


def base(node: tree.BaseType) -> types.Type:
    if node.name == "int":
        return types.INTEGER
    if node.name == "_":
        return unify.DONT_CARE
    found = BASES.get(node.name)
    if found is None:
        fail(node, f"unsupported type {node.name!r}")
    return found


def bits(state: State, node: tree.BitsType) -> types.Type:
    width = expressions.constant_integer(state, node.width, f"the width of {node.kind}<…>")
    least = 1 if node.kind == "int" else 0
    if not least <= width <= WIDTH_MAX:
        fail(node, f"{node.kind}<{show(width)}>: the width must be from {least} to {WIDTH_MAX} bits")
    return types.Varbits(width) if node.kind == "varbit" else types.Bits(width, node.kind == "int")


def symbol_of(state: State, node: tree.TypeName) -> Symbol:
    """What a type's name stands for; notes the declaration."""
    symbol = state.lookup(node, node.name, node.dot, types_only=True)
    state.checked.declared[node] = symbol.declaration
    return symbol


def named(state: State, node: tree.TypeName) -> types.Type:
    symbol = symbol_of(state, node)
    if symbol.kind == "generic":
        names = ", ".join(type_parameter_names(symbol.declaration))
        fail(node, f"{node.name!r} needs type arguments: write {node.name}<{names}>")
    return symbol.type


def specialised(state: State, node: tree.SpecializedType) -> types.Type:
    symbol = symbol_of(state, node.base)
    arguments = tuple(resolve(state, a) for a in node.arguments)
    kind = specialise_symbol(state, node, symbol, arguments)
    state.note(node.base, kind)
    return kind


def specialise_symbol(state: State, node: tree.Node, symbol: Symbol, arguments: tuple[types.Type, ...]) -> types.Type:
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
        if isinstance(argument, types.Table | types.Callable):
            fail(node, f"{argument} cannot be a type argument of {symbol.name!r}")
    if isinstance(symbol.declaration, tree.Structure):
        return specialise(state, symbol.declaration, arguments)
    if isinstance(symbol.type, types.Extern):
        return types.Extern(symbol.name, arguments)
    assert isinstance(symbol.type, types.Callable)
    variables = symbol.type.type_parameters
    kind = unify.substitute_callable(state, symbol.type, dict(zip(variables, arguments, strict=True)))
    return types.Callable(kind.kind, kind.name, kind.parameters, kind.returns, (), arguments)


def specialise(state: State, declaration: tree.Structure, arguments: tuple[types.Type, ...]) -> types.Structure:
    """A generic structure with its arguments; the same object for the same arguments."""
    key = (declaration, arguments)
    found = state.structures.get(key)
    if found is not None:
        return found
    name = f"{declaration.name}<{', '.join(map(str, arguments))}>"
    if len(name) > NAME_MAX:
        fail(declaration, f"{declaration.name!r} is nested too deep in its own type arguments")
    generic = state.checked.type_of[declaration]
    assert isinstance(generic, types.Structure)
    variables = unify.variables_of(declaration.type_parameters, declaration.name)
    binding = dict(zip(variables, arguments, strict=True))
    fields = tuple((field, unify.substitute(state, kind, binding)) for field, kind in generic.fields)
    made = types.Structure(generic.kind, name, fields, generic.annotations)
    for field, (_, kind) in zip(declaration.fields, fields, strict=True):
        check_field(declaration, field, kind, loose=True)
    state.structures[key] = made
    state.specialised[id(made)] = key
    state.members[name] = declaration
    return made


def stack(state: State, node: tree.StackType) -> types.Type:
    element = resolve(state, node.element)
    if isinstance(element, types.Stack):
        fail(node, "a header stack cannot be an element of another; its elements are headers or header unions")
    if not isinstance(element, types.Variable) and not (
        isinstance(element, types.Structure) and element.kind != "struct"
    ):
        fail(node, f"{element} cannot be the element of a stack; a header or header union is expected")
    size = expressions.constant_integer(state, node.size, "the size of a header stack")
    if not 1 <= size <= LEAVES_MAX:
        fail(node, f"a header stack of {show(size)} elements; from 1 to {LEAVES_MAX} are expected")
    return types.Stack(element, size)  # type: ignore[arg-type]  # a variable stands for a header


def tuple_type(state: State, node: tree.TupleType) -> types.Type:
    items = tuple(resolve(state, a) for a in node.arguments)
    if node.is_list and len(items) != 1:
        fail(node, f"list<…> takes one type argument, not {len(items)}")
    for item in items:
        if not node.is_list and not is_data(item) and not isinstance(item, types.Integer):
            fail(node, f"{item} cannot be in a tuple")
    kind = types.Tuple(items, node.is_list)
    if weight(kind) > NAME_MAX:
        fail(node, f"a tuple of more than {NAME_MAX} types")
    return kind


def weight(kind: types.Type) -> int:
    return 1 + sum(weight(item) for item in kind.items) if isinstance(kind, types.Tuple) else 1


# ---- what may stand where


def bare(kind: types.Type) -> types.Type:
    """Without `type T name` around it."""
    while isinstance(kind, types.Distinct):
        kind = kind.original
    return kind


def is_data(kind: types.Type) -> bool:
    """Whether a variable or a struct's field may have this type."""
    kind = bare(kind)
    if isinstance(kind, types.Tuple):
        return not kind.is_list and all(map(is_data, kind.items))
    if isinstance(kind, types.Simple):
        return kind.name in DATA_SIMPLE
    return isinstance(kind, types.Bits | types.Varbits | types.Enum | types.Structure | types.Stack | types.Variable)


def fits_header(kind: types.Type) -> bool:
    """Whether a header's field may have this type: bits alone, also in structs."""
    kind = bare(kind)
    if isinstance(kind, types.Structure):
        return kind.kind == "struct" and all(
            fits_header(field) and not isinstance(bare(field), types.Varbits) for _, field in kind.fields
        )
    if isinstance(kind, types.Enum):
        return kind.base is not None
    return isinstance(kind, types.Bits | types.Varbits | types.Variable) or kind == types.BOOL


def check_field(structure: tree.Structure, field: tree.Field, kind: types.Type, loose: bool = False) -> None:
    """Raises P4Error: the field's type is not allowed in this kind of structure. loose: fields of generic ones."""
    where = f"field {field.name!r} of {structure.kind} {structure.name!r} cannot be of type {kind}"
    if structure.kind == "struct":
        if not is_data(kind) and not (loose and isinstance(kind, types.Integer)):
            fail(field, f"{where}; a type of data is expected (bits, bool, enum, error, header, stack, struct, tuple)")
    elif structure.kind == "header":
        if not fits_header(kind):
            fail(field, f"{where}; bit<>, int<>, varbit<>, bool, enums with a base and structs of these are expected")
    elif not (isinstance(kind, types.Variable) or (isinstance(kind, types.Structure) and kind.kind == "header")):
        fail(field, f"{where}; a header is expected")


def leaves(state: State, kind: types.Type) -> int:
    """How many fields a type has, counted through everything nested."""
    if isinstance(kind, types.Structure):
        if kind.name not in state.leaves:
            state.leaves[kind.name] = sum(leaves(state, field) for _, field in kind.fields) or 1
        return state.leaves[kind.name]
    if isinstance(kind, types.Stack):
        return kind.size * leaves(state, kind.element)
    return sum(leaves(state, item) for item in kind.items) if isinstance(kind, types.Tuple) else 1


# ---- declarations of types


def declare_structure(state: State, node: tree.Structure) -> types.Structure:
    kinds: list[tuple[str, types.Type]] = []
    seen: set[str] = set()
    total = 0
    with state.inner():
        declare_type_parameters(state, node, node.type_parameters, node.name)
        for field in node.fields:
            kind = resolve(state, field.type)
            state.note(field, kind)
            if field.name in seen:
                fail(field, f"{node.kind} {node.name!r} has two fields called {field.name!r}")
            if field.name == "_":
                fail(field, "'_' cannot be a field's name")
            check_field(node, field, kind)
            check_annotations(state, field.annotations)
            total += leaves(state, kind)
            if total > LEAVES_MAX:
                fail(field, f"{node.kind} {node.name!r} has more than {LEAVES_MAX} fields, counted through nested ones")
            seen.add(field.name)
            kinds.append((field.name, kind))
    notes = tuple((a.name, a.tokens) for a in node.annotations)
    made = types.Structure(node.kind, node.name, tuple(kinds), notes)
    state.note(node, made)
    if node.type_parameters:
        variables = unify.variables_of(node.type_parameters, node.name)
        state.specialised[id(made)] = (node, variables)
        state.structures[node, variables] = made
    state.members[node.name] = node
    state.declare(Symbol(node.name, "generic" if node.type_parameters else "type", node, made))
    return made


def check_annotations(state: State, annotations: list[tree.Annotation]) -> None:
    """Evaluates the numbers of @field_list; other annotations are passed on as they are."""
    for annotation in annotations:
        if annotation.name == "field_list":
            for argument in annotation.args:
                expressions.constant_integer(state, argument, "an argument of @field_list")


def declare_type_parameters(state: State, node: tree.Node, names: list[str], owner: str) -> None:
    for variable in unify.variables_of(names, owner):
        if variable.name in state.scope.names:
            fail(node, f"{owner!r} has two type parameters called {variable.name!r}")
        state.declare(Symbol(variable.name, "type", node, variable))


def declare_enum(state: State, node: tree.Enum) -> None:
    underlying: types.Bits | None = None
    if node.base is not None:
        kind = resolve(state, node.base)
        if not isinstance(kind, types.Bits):
            fail(node.base, f"enum {node.name!r} has base {kind}; bit<W> or int<W> is expected")
        underlying = kind
    names: list[str] = []
    values: list[int] = []
    for number, (name, value, position) in enumerate(node.members):
        place = tree.Empty(position=position)
        if name in names:
            fail(place, f"enum {node.name!r} has two members called {name!r}")
        names.append(name)
        values.append(member_value(state, node, place, value, underlying, number))
    if not names:
        fail(node, f"enum {node.name!r} has no members")
    made = types.Enum(node.name, tuple(names), underlying, tuple(values))
    state.note(node, made)
    state.members[node.name] = node
    state.declare(Symbol(node.name, "type", node, made))


def member_value(
    state: State,
    node: tree.Enum,
    place: tree.Node,
    value: tree.Expression | None,
    underlying: types.Bits | None,
    number: int,
) -> int:
    if underlying is None:
        if value is not None:
            fail(place, f"enum {node.name!r} has no base, so its members have no values; write enum bit<W> {node.name}")
        return number
    if value is None:
        fail(place, f"every member of an enum with base {underlying} needs a value")
    expressions.infer(state, value, underlying)
    convert.convert(state, value, underlying, "a member of an enum with base {to} cannot have the value {found}")
    found = state.checked.constants.get(value)
    if not isinstance(found, int):
        fail(value, "the value of an enum's member must be known at compile time")
    return found


def declare_typedef(state: State, node: tree.TypeDef) -> None:
    if isinstance(node.type, tree.Structure):
        kind: types.Type = declare_structure(state, node.type)
    else:
        kind = resolve(state, node.type)
    if kind == unify.DONT_CARE or kind == types.VOID:
        fail(node, f"{node.name!r} cannot be another name of {kind}")
    if isinstance(kind, types.Callable):
        fail(node, f"{node.name!r} cannot be another name of {kind}; a type of data is expected")
    if node.distinct:
        inner = bare(kind)
        if not (isinstance(inner, types.Bits | types.Varbits | types.Integer | types.Enum) or inner == types.BOOL):
            fail(node, f"'type' cannot make a new type of {kind}; bits, bool or an enum is expected; use typedef")
        kind = types.Distinct(node.name, kind)
    state.note(node, kind)
    state.declare(Symbol(node.name, "type", node, kind))


def declare_errors(state: State, node: tree.Errors) -> None:
    for name, position in node.names:
        if name in state.error_declarations:
            fail(tree.Empty(position=position), f"error.{name} is declared twice; leave one out")
        state.error_declarations[name] = node
        state.checked.errors.append(name)


def declare_match_kinds(state: State, node: tree.MatchKinds) -> None:
    for name, position in node.names:
        if name in state.match_kinds:
            fail(tree.Empty(position=position), f"match_kind {name!r} is declared twice; leave one out")
        state.match_kinds.add(name)


def zero(kind: types.Type) -> Value | None:
    """The default value `...` of a type, where it is a value: headers, which become invalid, have none."""
    kind = bare(kind)
    if isinstance(kind, types.Bits | types.Integer):
        return 0
    if kind == types.BOOL:
        return False
    if kind == types.ERROR:
        return "NoError"
    if isinstance(kind, types.Enum):
        return kind.members[kind.values.index(0)] if 0 in kind.values else None
    if isinstance(kind, types.Structure) and kind.kind == "struct":
        return all_or_none([zero(field) for _, field in kind.fields])
    return all_or_none([zero(item) for item in kind.items]) if isinstance(kind, types.Tuple) else None


def all_or_none(values: list[Value | None]) -> Value | None:
    """A tuple of the values if all are known."""
    known = [value for value in values if value is not None]
    return tuple(known) if len(known) == len(values) else None
