"""Types as written made into types, and the declarations that make new ones."""

import re

from p4vm.check import convert, generics
from p4vm.check.scope import CheckState, ScopeSymbol, fail, show, type_parameter_names
from p4vm.tree import tree_nodes as tree
from p4vm.tree import types

LEAVES_MAX = 1 << 16
"""Fields of a structure, counted through everything nested in it."""


BASES: dict[str, types.Type] = {"int": types.INTEGER, "_": types.DONT_CARE}
BASES |= {t.name: t for t in (types.BOOL, types.ERROR, types.STRING, types.MATCH_KIND, types.VOID)}


def resolve(state: CheckState, node: tree.Type) -> types.Type:
    """The type that was written; notes it. Raises P4Error."""
    state.deeper(node)
    if isinstance(node, tree.TypeName):
        kind = named(state, node)
    elif isinstance(node, tree.BitsTypeName):
        kind = bits(state, node)
    elif isinstance(node, tree.BaseType):
        kind = base(node)
    elif isinstance(node, tree.SpecializedType):
        kind = specialised(state, node)
    elif isinstance(node, tree.StackTypeName):
        kind = stack(state, node)
    else:
        assert isinstance(node, tree.TupleTypeName)
        kind = tuple_type(state, node)
    state.depth -= 1
    return state.note(node, kind)


def base(node: tree.BaseType) -> types.Type:
    if node.name not in BASES:
        fail(node, f"unsupported type {node.name!r}")
    return BASES[node.name]


def bits(state: CheckState, node: tree.BitsTypeName) -> types.Type:
    width = convert.constant_integer(state, node.width, f"the width of {node.kind}<…>")
    least = 1 if node.kind == "int" else 0
    if not least <= width <= types.WIDTH_MAX:
        fail(node, f"{node.kind}<{show(width)}>: the width must be from {least} to {types.WIDTH_MAX} bits")
    return types.VarbitsType(width) if node.kind == "varbit" else types.BitsType(width, node.kind == "int")


def symbol_of(state: CheckState, node: tree.TypeName) -> ScopeSymbol:
    """The symbol that a type's name stands for; the declaration is noted."""
    symbol = state.lookup(node, node.name, node.dot, types_only=True)
    state.checked.declared[node] = symbol.declaration
    return symbol


def named(state: CheckState, node: tree.TypeName) -> types.Type:
    symbol = symbol_of(state, node)
    if symbol.kind == "generic":
        names = ", ".join(type_parameter_names(symbol.declaration))
        fail(node, f"{node.name!r} needs type arguments: write {node.name}<{names}>")
    return symbol.type


def specialised(state: CheckState, node: tree.SpecializedType) -> types.Type:
    symbol = symbol_of(state, node.base)
    arguments = tuple(resolve(state, a) for a in node.arguments)
    kind = generics.specialise_symbol(state, node, symbol, arguments)
    state.note(node.base, kind)
    return kind


def stack(state: CheckState, node: tree.StackTypeName) -> types.Type:
    element = resolve(state, node.element)
    if isinstance(element, types.StackType):
        fail(node, "a header stack cannot be an element of another; its elements are headers or header unions")
    if not isinstance(element, types.TypeVariable) and not (
        isinstance(element, types.StructureType) and element.kind != "struct"
    ):
        fail(node, f"{element} cannot be the element of a stack; a header or header union is expected")
    size = convert.constant_integer(state, node.size, "the size of a header stack")
    if not 1 <= size <= LEAVES_MAX:
        fail(node, f"a header stack of {show(size)} elements; from 1 to {LEAVES_MAX} are expected")
    return types.StackType(element, size)  # type: ignore[arg-type]  # a variable stands for a header


def tuple_type(state: CheckState, node: tree.TupleTypeName) -> types.Type:
    items = tuple(resolve(state, a) for a in node.arguments)
    if node.is_list and len(items) != 1:
        fail(node, f"list<…> takes one type argument, not {len(items)}")
    for item in items:
        if not node.is_list and not types.is_data(item) and not isinstance(item, types.IntegerType):
            fail(node, f"{item} cannot be in a tuple")
    kind = types.TupleType(items, node.is_list)
    if types.weight(kind) > types.NAME_MAX:
        fail(node, f"a tuple of more than {types.NAME_MAX} types")
    return kind


# ---- what may stand where


def leaves(state: CheckState, kind: types.Type) -> int:
    """How many fields a type has, counted through everything nested."""
    if isinstance(kind, types.StructureType):
        if kind.name not in state.leaves:
            state.leaves[kind.name] = sum(leaves(state, field) for _, field in kind.fields) or 1
        return state.leaves[kind.name]
    if isinstance(kind, types.StackType):
        return kind.size * leaves(state, kind.element)
    return sum(leaves(state, item) for item in kind.items) if isinstance(kind, types.TupleType) else 1


# ---- declarations of types


def declare_structure(state: CheckState, node: tree.StructureDeclaration) -> types.StructureType:
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
            generics.check_field(node, field, kind)
            check_annotations(state, field.annotations)
            total += leaves(state, kind)
            if total > LEAVES_MAX:
                fail(field, f"{node.kind} {node.name!r} has more than {LEAVES_MAX} fields, counted through nested ones")
            seen.add(field.name)
            kinds.append((field.name, kind))
    notes = tuple((a.name, a.tokens) for a in node.annotations)
    structure = types.StructureType(node.kind, node.name, tuple(kinds), notes)
    state.note(node, structure)
    if node.type_parameters:
        variables = types.variables_of(node.type_parameters, node.name)
        state.specialised[id(structure)] = (node, variables)
        state.structures[node, variables] = structure
    state.members[node.name] = node
    state.declare(ScopeSymbol(node.name, "generic" if node.type_parameters else "type", node, structure))
    return structure


def check_annotations(state: CheckState, annotations: list[tree.Annotation]) -> None:
    """Evaluates the numbers of @field_list; other annotations are passed on as they are."""
    for annotation in annotations:
        if annotation.name == "field_list":
            for argument in annotation.args:
                convert.constant_integer(state, argument, "an argument of @field_list")


def declare_type_parameters(state: CheckState, node: tree.Node, names: list[str], owner: str) -> None:
    for variable in types.variables_of(names, owner):
        if variable.name in state.scope.names:
            fail(node, f"{owner!r} has two type parameters called {variable.name!r}")
        state.declare(ScopeSymbol(variable.name, "type", node, variable))


def declare_enum(state: CheckState, node: tree.EnumDeclaration) -> None:
    underlying: types.BitsType | None = None
    if node.base is not None:
        kind = resolve(state, node.base)
        if not isinstance(kind, types.BitsType):
            fail(node.base, f"enum {node.name!r} has base {kind}; bit<W> or int<W> is expected")
        underlying = kind
    names: list[str] = []
    values: list[int] = []
    for number, (name, value, position) in enumerate(node.members):
        place = tree.EmptyStatement(position=position)
        if name in names:
            fail(place, f"enum {node.name!r} has two members called {name!r}")
        names.append(name)
        values.append(member_value(state, node, place, value, underlying, number))
    if not names:
        fail(node, f"enum {node.name!r} has no members")
    enum = types.EnumType(node.name, tuple(names), underlying, tuple(values))
    state.note(node, enum)
    state.members[node.name] = node
    state.declare(ScopeSymbol(node.name, "type", node, enum))


def member_value(
    state: CheckState,
    node: tree.EnumDeclaration,
    place: tree.Node,
    value: tree.ExpressionNode | None,
    underlying: types.BitsType | None,
    number: int,
) -> int:
    if underlying is None:
        if value is not None:
            fail(place, f"enum {node.name!r} has no base, so its members have no values; write enum bit<W> {node.name}")
        return number
    if value is None:
        fail(place, f"every member of an enum with base {underlying} needs a value")
    state.infer(value, underlying)
    convert.convert(state, value, underlying, "a member of an enum with base {to} cannot have the value {found}")
    constant = state.checked.constants.get(value)
    if not isinstance(constant, int):
        fail(value, "the value of an enum's member must be known at compile time")
    return constant


def declare_typedef(state: CheckState, node: tree.TypeDef) -> None:
    if isinstance(node.type, tree.StructureDeclaration):
        kind: types.Type = declare_structure(state, node.type)
    else:
        kind = resolve(state, node.type)
    if kind == types.DONT_CARE or kind == types.VOID:
        fail(node, f"{node.name!r} cannot be another name of {kind}")
    if isinstance(kind, types.CallableType):
        fail(node, f"{node.name!r} cannot be another name of {kind}; a type of data is expected")
    for annotation in node.annotations:
        target = annotation.tokens.rpartition(",")[2].strip()
        if annotation.name == "p4runtime_translation" and not re.fullmatch(r"string|\d\w*|bit\s*<.*>", target):
            fail(annotation, f"{node.name!r} cannot be translated into {target}; string, bit<W> or W is expected")
    if node.distinct:
        inner = types.bare(kind)
        if not (
            isinstance(inner, types.BitsType | types.VarbitsType | types.IntegerType | types.EnumType)
            or inner == types.BOOL
        ):
            fail(node, f"'type' cannot make a new type of {kind}; bits, bool or an enum is expected; use typedef")
        kind = types.NewType(node.name, kind)
    state.note(node, kind)
    state.declare(ScopeSymbol(node.name, "type", node, kind))


def declare_errors(state: CheckState, node: tree.Errors) -> None:
    for name, position in node.names:
        if name in state.error_declarations:
            fail(tree.EmptyStatement(position=position), f"error.{name} is declared twice; leave one out")
        state.error_declarations[name] = node
        state.checked.errors.append(name)


def declare_match_kinds(state: CheckState, node: tree.MatchKinds) -> None:
    for name, position in node.names:
        if name in state.match_kinds:
            fail(tree.EmptyStatement(position=position), f"match_kind {name!r} is declared twice; leave one out")
        state.match_kinds.add(name)
