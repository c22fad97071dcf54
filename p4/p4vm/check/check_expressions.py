"""Types and compile-time values of expressions; which of them may be assigned to."""

from collections.abc import Callable
from typing import Any

from p4vm.bit_arithmetic import BITS_MAX
from p4vm.check import check_values, convert, generics, resolve
from p4vm.check.convert import unsettled
from p4vm.check.scope import TYPE_KINDS, CheckState, ScopeSymbol, fail, nearest, show
from p4vm.tree import tree_nodes as tree
from p4vm.tree import types

HEADER_METHODS = frozenset({"isValid", "setValid", "setInvalid"})
STACK_METHODS = frozenset({"push_front", "pop_front"})
SIZE_METHODS = frozenset({"minSizeInBits", "minSizeInBytes", "maxSizeInBits", "maxSizeInBytes"})
STACK_PARTS = ("next", "last", "lastIndex", "size")


# ---- literals


def number(state: CheckState, node: tree.Number, expected: types.Type | None) -> types.Type:
    if node.width is None:
        if node.value.bit_length() > BITS_MAX:
            fail(node, f"a number of more than {BITS_MAX} bits")
        state.checked.constants[node] = node.value
        return types.INTEGER
    if not int(node.signed) <= node.width <= types.WIDTH_MAX:
        fail(node, f"a number of {show(node.width)} bits; from {int(node.signed)} to {types.WIDTH_MAX} are possible")
    kind = types.BitsType(node.width, node.signed)
    convert.warn_overflow(state, node, node.value, kind)
    state.checked.constants[node] = check_values.wrap(node.value, kind)
    return kind


def bool_or_string(state: CheckState, node: tree.BoolLiteral | tree.String, expected: types.Type | None) -> types.Type:
    state.checked.constants[node] = node.value
    return types.BOOL if isinstance(node, tree.BoolLiteral) else types.STRING


def only_in_sets(state: CheckState, node: tree.ExpressionNode, expected: types.Type | None) -> types.Type:
    sign = {tree.Mask: "&&&", tree.Range: "..", tree.Default: "_ (or default)"}[type(node)]
    fail(node, f"{sign} stands for a set; it is allowed in select cases and table entries only")


def list_expression(state: CheckState, node: tree.ListExpression, expected: types.Type | None) -> types.Type:
    parts = convert.parts_of(expected) if expected is not None else None
    items = []
    for place, item in enumerate(node.items):
        wanted = parts[place] if parts is not None and place < len(parts) else None
        items.append(state.value_type(item, wanted))
    kind = types.TupleType(tuple(items))
    if types.weight(kind) > types.NAME_MAX:
        fail(node, f"a list of more than {types.NAME_MAX} values, counted through nested ones")
    if not node.rest:
        convert.finish(state, node, node.items, kind.items)
    return kind


def struct_expression(state: CheckState, node: tree.StructExpression, expected: types.Type | None) -> types.Type:
    wanted = struct_expression_type(state, node) if node.type is not None else expected
    fields = dict(wanted.fields) if isinstance(wanted, types.StructureType) else {}
    kinds: dict[str, types.Type] = {}
    for name, value in node.fields:
        if name in kinds:
            fail(value, f"field {name!r} is given twice")
        kinds[name] = state.value_type(value, fields.get(name))
    described = ", ".join(f"{kind} {name}" for name, kind in kinds.items())
    untyped = types.StructureType("struct", f"{types.ANONYMOUS}{described}}}", tuple(kinds.items()))
    if node.type is None:
        if len(untyped.name) > types.NAME_MAX:
            fail(node, f"a struct expression whose type has more than {types.NAME_MAX} characters")
        return untyped
    assert wanted is not None
    if isinstance(wanted, types.StructureType) and mentions_own(state, wanted):
        wanted = infer_structure(state, node, wanted, kinds)
    state.note(node, untyped)
    convert.convert(state, node, wanted)
    state.checked.converted.pop(node, None)
    return wanted


def struct_expression_type(state: CheckState, node: tree.StructExpression) -> types.Type:
    """The written type of a struct expression; a generic one's arguments may be left out."""
    assert node.type is not None
    if isinstance(node.type, tree.TypeName):
        symbol = resolve.symbol_of(state, node.type)
        if symbol.kind == "generic" and isinstance(symbol.type, types.StructureType):
            return state.note(node.type, symbol.type)
    kind = resolve.resolve(state, node.type)
    if not isinstance(kind, types.StructureType) or kind.kind == "header_union":
        fail(node, f"{kind} cannot be made from fields; a struct or header is expected")
    return kind


def mentions_own(state: CheckState, kind: types.StructureType) -> bool:
    """Whether a structure is the generic declaration itself, without arguments."""
    return kind.name == getattr(state.members.get(kind.name), "name", None) and id(kind) in state.specialised


# ---- names and members


def name(state: CheckState, node: tree.Name, expected: types.Type | None) -> types.Type:
    symbol = state.lookup(node, node.name, node.dot)
    state.checked.declared[node] = symbol.declaration
    kind = symbol.kind
    if kind == "variable":
        if symbol.known:
            state.known.add(node)
    elif kind == "constant":
        state.known.add(node)
        if symbol.value is not None:
            state.checked.constants[node] = symbol.value
    elif kind == "instance":
        state.known.add(node)
    elif kind in ("function", "action"):
        fail(node, f"{node.name!r} is {'an' if kind == 'action' else 'a'} {kind}; call it: {node.name}(…)")
    elif kind in TYPE_KINDS:
        fail(node, f"{node.name!r} is a type; a value is expected")
    return symbol.type


def settle_base(state: CheckState, base: tree.ExpressionNode) -> tree.ExpressionNode:
    """The left of a dot or call as a TypeExpression if it names a type, else as a Name."""
    if isinstance(base, tree.Name):
        symbol = state.scope.find(base.name) if not base.dot else None
        if base.dot:
            symbol = state.lookup(base, base.name, True)
        if symbol is not None and symbol.kind in TYPE_KINDS:
            return tree.TypeExpression(
                tree.TypeName(base.name, base.dot, position=base.position), position=base.position
            )
    elif isinstance(base, tree.TypeExpression) and isinstance(base.type, tree.TypeName):
        symbol = state.lookup(base, base.type.name, base.type.dot)
        if symbol.kind not in TYPE_KINDS:
            return tree.Name(base.type.name, base.type.dot, position=base.position)
    return base


def type_expression(state: CheckState, node: tree.TypeExpression, expected: types.Type | None) -> types.Type:
    if isinstance(node.type, tree.TypeName):
        symbol = state.lookup(node, node.type.name, node.type.dot)
        if symbol.kind not in TYPE_KINDS:
            fail(node, f"{node.type.name!r} is not a type")
    fail(node, "a type stands where a value is expected")


def member(state: CheckState, node: tree.MemberExpression, expected: types.Type | None) -> types.Type:
    node.base = settle_base(state, node.base)
    if isinstance(node.base, tree.TypeExpression):
        return type_member(state, node, node.base)
    base = state.infer(node.base)
    if isinstance(base, types.StructureType):
        return field(state, node, base)
    if isinstance(base, types.StackType):
        return stack_part(state, node, base)
    if isinstance(base, types.ApplyResultType):
        if node.name in ("hit", "miss"):
            return types.BOOL
        if node.name == "action_run":
            return base.table
        fail(node, f"apply() of a table has no {node.name!r}; hit, miss and action_run are known")
    if isinstance(base, types.TableType | types.CallableType | types.ExternType):
        fail(node, f"{node.name!r} of {base} is a method or unknown; call a method: .{node.name}(…)")
    fail(node, f"{base} has no fields; .{node.name} needs a struct, header, union or stack")


def field(state: CheckState, node: tree.MemberExpression, base: types.StructureType) -> types.Type:
    kind = base.field_type(node.name)
    if kind is None:
        if node.name in HEADER_METHODS | SIZE_METHODS:
            fail(node, f"{node.name!r} is a method; call it: {node.name}()")
        known = [field_name for field_name, _ in base.fields]
        fail(node, f"{base.kind} {base} has no field {node.name!r}" + nearest(node.name, known))
    base_value = state.checked.constants.get(node.base)
    if isinstance(base_value, tuple):
        state.checked.constants[node] = base_value[[field_name for field_name, _ in base.fields].index(node.name)]
    elif node.base in state.known:
        state.known.add(node)
    return kind


def stack_part(state: CheckState, node: tree.MemberExpression, base: types.StackType) -> types.Type:
    if node.name == "size":
        state.checked.constants[node] = base.size
        return types.BitsType(32)
    if node.name in STACK_PARTS:
        if state.place.kind != "parser state":
            fail(node, f".{node.name} of a header stack is known in parser states only; use an index")
        return types.BitsType(32) if node.name == "lastIndex" else base.element
    if node.name in STACK_METHODS | SIZE_METHODS:
        fail(node, f"{node.name!r} is a method; call it: {node.name}(…)")
    fail(node, f"header stack {base} has no {node.name!r}; an index, {', '.join(STACK_PARTS)} are known")


def type_member(state: CheckState, node: tree.MemberExpression, base: tree.TypeExpression) -> types.Type:
    """E.member of an enum, or error.member."""
    kind = resolve.resolve(state, base.type)
    state.note(base, kind)
    if kind == types.ERROR:
        declaration: tree.Node | None = state.error_declarations.get(node.name)
        if declaration is None:
            fail(node, f"error.{node.name} is not declared" + nearest(node.name, state.checked.errors))
    elif isinstance(kind, types.EnumType):
        if node.name not in kind.members:
            fail(node, f"enum {kind} has no member {node.name!r}" + nearest(node.name, list(kind.members)))
        declaration = state.members[kind.name]
    else:
        fail(node, f"type {kind} has no members; .{node.name} needs an enum or error")
    state.checked.declared[node] = declaration
    state.checked.constants[node] = node.name
    return kind


def index(state: CheckState, node: tree.IndexExpression, expected: types.Type | None) -> types.Type:
    base = state.infer(node.base)
    state.value_type(node.index)
    kind = convert.plain(state, node.index)
    if not isinstance(kind, types.BitsType | types.IntegerType):
        fail(node.index, f"an index is {kind}; a number is expected")
    place = state.checked.constants.get(node.index)
    size = (
        base.size if isinstance(base, types.StackType) else len(base.items) if isinstance(base, types.TupleType) else -1
    )
    if size < 0:
        hint = "; write [high:low] for bits" if isinstance(base, types.BitsType) else ""
        fail(node, f"{base} has no elements; a header stack or tuple is expected{hint}")
    if isinstance(place, int) and not 0 <= place < size:
        fail(node.index, f"index {show(place)} is out of range: {base} has {size} elements, from 0")
    if isinstance(base, types.StackType):
        if isinstance(kind, types.IntegerType):
            convert.convert(state, node.index, types.BitsType(32))
        return base.element
    assert isinstance(base, types.TupleType)
    if not isinstance(place, int):
        fail(node.index, "the index of a tuple must be known at compile time")
    if base.is_list:
        fail(node, "a list has no elements that can be named")
    base_value = state.checked.constants.get(node.base)
    if isinstance(base_value, tuple):
        state.checked.constants[node] = base_value[place]
    elif node.base in state.known:
        state.known.add(node)
    return base.items[place]


# ---- what may be written


def why_not_writable(state: CheckState, node: tree.ExpressionNode) -> str | None:
    """Why an expression (inferred before) cannot be assigned to; None: it can."""
    while True:
        if isinstance(node, tree.Name):
            return name_not_writable(None if node.dot else state.scope.find(node.name), node.name)
        if isinstance(node, tree.MemberExpression):
            kind = state.checked.type_of.get(node.base)
            if isinstance(kind, types.StructureType) or (
                isinstance(kind, types.StackType) and node.name in ("next", "last")
            ):
                node = node.base
                continue
            return f".{node.name} cannot be assigned to"
        if isinstance(node, tree.IndexExpression | tree.SliceExpression):
            node = node.base
        else:
            return "only variables, their fields, elements and slices can be assigned to"


def name_not_writable(symbol: ScopeSymbol | None, name: str) -> str | None:
    if symbol is not None and symbol.writable:
        return None
    if symbol is None or symbol.kind not in ("variable", "constant"):
        return f"{name!r} is no variable"
    if isinstance(symbol.declaration, tree.ParameterDeclaration):
        direction = symbol.declaration.direction
        what = f"parameter {name!r} has direction {direction}" if direction else f"parameter {name!r} has no direction"
        return f"{what} and is read-only; out or inout is expected"
    return f"{name!r} is a constant" if symbol.kind == "constant" else f"{name!r} is read-only"


def require_writable(state: CheckState, node: tree.ExpressionNode, what: str) -> None:
    reason = why_not_writable(state, node)
    if reason is not None:
        fail(node, f"{what}: {reason}")


HANDLERS: dict[type, Callable[[CheckState, Any, types.Type | None], types.Type]] = {
    tree.Number: number,
    tree.BoolLiteral: bool_or_string,
    tree.String: bool_or_string,
    tree.Name: name,
    tree.TypeExpression: type_expression,
    tree.MemberExpression: member,
    tree.IndexExpression: index,
    tree.InvalidHeader: lambda state, node, expected: types.UNTYPED_HEADER,
    tree.DefaultRest: lambda state, node, expected: types.UNTYPED_DEFAULT,
    tree.Mask: only_in_sets,
    tree.Range: only_in_sets,
    tree.Default: only_in_sets,
    tree.ListExpression: list_expression,
    tree.StructExpression: struct_expression,
}


def infer_structure(
    state: CheckState, node: tree.StructExpression, generic: types.StructureType, kinds: dict[str, types.Type]
) -> types.StructureType:
    """The type of `S {x = a, …}` where S is generic, from its fields' types."""
    variables = state.specialised[id(generic)][1]
    inference = generics.Inference(state, tuple(v for v in variables if isinstance(v, types.TypeVariable)))
    for late in (False, True):
        for name, value in node.fields:
            pattern = generic.field_type(name)
            if pattern is not None and late == (unsettled(value) or isinstance(kinds[name], types.IntegerType)):
                inference.unify(inference.renamed(pattern), kinds[name])
    missing = inference.missing()
    if missing:
        fail(node, f"cannot tell what type {missing[0]} of {generic} is; write its type arguments")
    structure = inference.resolve(generic)
    assert isinstance(structure, types.StructureType)
    return structure
