"""Conversions: those that happen by themselves, and those that a cast may ask for."""

from typing import NoReturn

from p4vm.check import check_values as check_values
from p4vm.check.scope import CheckState, counted, fail, nearest, show
from p4vm.tree import tree_nodes as tree
from p4vm.tree import types

ASSIGN = "cannot assign {found} to {to}"


def convert(state: CheckState, node: tree.ExpressionNode, to: types.Type, template: str = ASSIGN) -> None:
    """Notes how an expression (inferred before) becomes type `to` where that happens by itself. Raises P4Error.

    template: the message for when it doesn't, with {found} and {to}.
    """
    kind = state.checked.type_of[node]
    if isinstance(node, tree.Conditional) and kind != to and unsettled(node):
        convert(state, node.yes, to, template)
        convert(state, node.no, to, template)
        state.note(node, to)
        settle_conditional(state, node)
    elif isinstance(node, tree.ListExpression):
        convert_list(state, node, to, template)
    elif isinstance(node, tree.StructExpression) and kind != to and kind.__class__ is types.StructureType:
        convert_struct(state, node, to, template)
    elif isinstance(node, tree.InvalidHeader | tree.DefaultRest) and node not in state.checked.converted:
        convert_placeholder(state, node, to)
    elif kind != to:
        convert_value(state, node, kind, to, template)


def settle_conditional(state: CheckState, node: tree.Conditional) -> None:
    """The value of a conditional expression from those of its parts."""
    constants = state.checked.constants
    if node.condition in constants:
        chosen = node.yes if constants[node.condition] else node.no
        if chosen in constants:
            constants[node] = constants[chosen]
    if all(state.is_known(part) for part in (node.condition, node.yes, node.no)):
        state.known.add(node)


def mismatch(node: tree.Node, kind: types.Type, to: types.Type, template: str) -> NoReturn:
    hint = ""
    if castable(kind, to):
        hint = f"; write an explicit cast ({to})"
    elif isinstance(kind, types.BitsType) and isinstance(to, types.BitsType):
        hint = f"; cast in two steps: first to {types.BitsType(to.width, kind.signed)}, then to {to}"
    elif isinstance(kind, types.IntegerType) and isinstance(to, types.EnumType):
        hint = f"; name one of its members ({', '.join(to.members[:4])})"
    elif to == types.BOOL and isinstance(kind, types.BitsType):
        hint = "; compare it, as in x != 0"
    fail(node, template.replace("{found}", str(kind)).replace("{to}", str(to)) + hint)


def convert_value(
    state: CheckState, node: tree.ExpressionNode, kind: types.Type, to: types.Type, template: str
) -> None:
    constants = state.checked.constants
    number = isinstance(kind, types.BitsType) and isinstance(to, types.IntegerType) and state.is_known(node)
    # The reference compiler lets a number without width become a `type` where it is assigned, and nowhere else.
    named = isinstance(kind, types.IntegerType) and isinstance(to, types.NewType) and template == ASSIGN
    if not number and not (named and castable(kind, to)) and not converts(kind, to):
        mismatch(node, kind, to, template)
    bits = types.bare(to)
    if node in constants:
        value = constants[node]
        if isinstance(kind, types.IntegerType) and isinstance(bits, types.BitsType) and isinstance(value, int):
            warn_overflow(state, node, value, bits)
        result = check_values.cast(value, kind, bits)
        if result is None:
            del constants[node]
        else:
            constants[node] = result
    elif isinstance(kind, types.IntegerType) and node not in state.known:
        fail(node, f"an int that is not known at compile time cannot become {to}; give its parts a width")
    state.checked.converted[node] = to


def warn_overflow(state: CheckState, node: tree.ExpressionNode, value: int, to: types.BitsType) -> None:
    if check_values.wrap(value, to) != value:
        least = types.BitsType(value.bit_length() + to.signed, to.signed) if value >= 0 or to.signed else None
        needs = f"it needs {least}; " if least else ""
        wrapped = show(check_values.wrap(value, to))
        state.warn(node, f"{show(value)} does not fit {to}; {needs}{wrapped} is used")


def converts(kind: types.Type, to: types.Type) -> bool:
    """Whether a value (no list or struct expression) becomes the type by itself."""
    if kind == to:
        return True
    if isinstance(kind, types.IntegerType):
        return isinstance(to, types.BitsType)
    if isinstance(kind, types.EnumType):
        return kind.base is not None and kind.base == to
    return False


def parts_of(kind: types.Type) -> tuple[types.Type, ...] | None:
    """Types of what a list may fill; None: no list becomes this type."""
    if isinstance(kind, types.StructureType) and kind.kind != "header_union":
        return tuple(field for _, field in kind.fields)
    if isinstance(kind, types.TupleType) and not kind.is_list:
        return kind.items
    if isinstance(kind, types.StackType):
        return (kind.element,) * kind.size
    return None


def convert_list(state: CheckState, node: tree.ListExpression, to: types.Type, template: str) -> None:
    """{a, b, …} becomes a struct, header, tuple, list or stack, item by item."""
    if isinstance(to, types.TupleType) and to.is_list:
        parts: tuple[types.Type, ...] | None = (to.items[0],) * len(node.items)
    else:
        parts = parts_of(to)
    if parts is None:
        mismatch(node, state.checked.type_of[node], to, template)
        return
    if len(node.items) > len(parts) or (len(node.items) < len(parts) and not node.rest):
        hint = "" if len(node.items) > len(parts) else "; end it with ... for default values"
        fail(node, f"a list of {counted(len(node.items), 'value')} for {to}, which takes {len(parts)}{hint}")
    names = [name for name, _ in to.fields] if isinstance(to, types.StructureType) else None
    for number, item in enumerate(node.items):
        inner = template if names is None else f"field {names[number]!r} of {to}: {ASSIGN}"
        convert(state, item, parts[number], inner)
    state.note_conversion(node, to)
    finish(state, node, node.items, parts)


def finish(
    state: CheckState, node: tree.ExpressionNode, items: list[tree.ExpressionNode], parts: tuple[types.Type, ...]
) -> None:
    """The value of a whole from its items', in order; parts beyond the items have default values."""
    constants = state.checked.constants
    constants.pop(node, None)
    if all(item in constants for item in items):
        defaults = [types.zero(part) for part in parts[len(items) :]]
        value = types.all_or_none([*(constants[item] for item in items), *defaults])
        if value is not None:
            constants[node] = value
    if all(state.is_known(item) for item in items):
        state.known.add(node)


def convert_struct(state: CheckState, node: tree.StructExpression, to: types.Type, template: str) -> None:
    """{x = a, …} becomes a struct or header, field by field."""
    if not isinstance(to, types.StructureType) or to.kind == "header_union":
        mismatch(node, state.checked.type_of[node], to, template)
        return
    fields = dict(to.fields)
    values_by_field: dict[str, tree.ExpressionNode] = {}
    for name, value in node.fields:
        kind = fields.get(name)
        if kind is None:
            fail(value, f"{to.kind} {to} has no field {name!r}" + nearest(name, list(fields)))
        if name in values_by_field:
            fail(value, f"field {name!r} is given twice")
        convert(state, value, kind, f"field {name!r} of {to}: {ASSIGN}")
        values_by_field[name] = value
    missing = [name for name in fields if name not in values_by_field]
    if missing and not node.rest:
        fail(node, f"field {missing[0]!r} of {to} is missing; give it, or end with ... for default values")
    state.note_conversion(node, to)
    constants = state.checked.constants
    values = [
        constants.get(values_by_field[name]) if name in values_by_field else types.zero(kind)
        for name, kind in fields.items()
    ]
    struct_value = types.all_or_none(values)
    if struct_value is not None:
        constants[node] = struct_value
    if all(state.is_known(value) for value in values_by_field.values()):
        state.known.add(node)


def convert_placeholder(state: CheckState, node: tree.InvalidHeader | tree.DefaultRest, to: types.Type) -> None:
    """{#} and ... take the type of where they stand."""
    if isinstance(node, tree.InvalidHeader):
        if not isinstance(to, types.StructureType) or to.kind == "struct":
            fail(node, f"{{#}} is an invalid header; {to} is expected here")
    else:
        if not types.is_data(to) and not isinstance(to, types.IntegerType):
            fail(node, f"... cannot be a default value of {to}")
        value = types.zero(to)
        if value is not None:
            state.checked.constants[node] = value
    state.note(node, to)
    state.checked.converted[node] = to
    state.known.add(node)


# ---- casts


def castable(kind: types.Type, to: types.Type) -> bool:
    """Whether `(to) x` is allowed for x of type `kind` (no list or struct expression)."""
    if kind == to or converts(kind, to):
        return True
    if isinstance(to, types.NewType):
        inner = isinstance(to.original, types.NewType) or not isinstance(kind, types.IntegerType)
        return kind == to.original if inner else castable(kind, to.original)
    if isinstance(kind, types.NewType):
        return to == kind.original
    if isinstance(to, types.BitsType):
        return castable_to_bits(kind, to)
    if isinstance(to, types.EnumType):
        source = kind.base if isinstance(kind, types.EnumType) else kind
        return to.base is not None and (source == to.base or isinstance(source, types.IntegerType))
    if isinstance(to, types.IntegerType):
        return isinstance(kind, types.BitsType)
    return to == types.BOOL and (kind == types.BitsType(1) or isinstance(kind, types.IntegerType))


def castable_to_bits(kind: types.Type, to: types.BitsType) -> bool:
    if isinstance(kind, types.BitsType):
        return kind.width == to.width or kind.signed == to.signed
    if isinstance(kind, types.EnumType):
        return kind.base is not None and castable_to_bits(kind.base, to)
    return isinstance(kind, types.IntegerType) or (kind == types.BOOL and to == types.BitsType(1))


def unsettled(node: tree.ExpressionNode) -> bool:
    """Whether an expression's type is still to come from where it stands."""
    if isinstance(node, tree.Conditional):
        return unsettled(node.yes) or unsettled(node.no)
    return isinstance(node, tree.ListExpression | tree.StructExpression | tree.InvalidHeader | tree.DefaultRest)


def constant_integer(state: CheckState, node: tree.ExpressionNode, what: str) -> int:
    """The value of an expression that must be a number known at compile time."""
    value = known_integer(state, node, what)
    if value is None:
        fail(node, f"{what} must be known at compile time, whoever uses what is declared here")
    return value


def known_integer(state: CheckState, node: tree.ExpressionNode, what: str) -> int | None:
    """As constant_integer; None where the value depends on how a parser or control is instantiated."""
    kind = state.value_type(node)
    if isinstance(kind, types.EnumType) and kind.base is not None:
        convert(state, node, kind.base)
    elif not isinstance(types.bare(kind), types.BitsType | types.IntegerType):
        fail(node, f"{what} is {kind}; a number is expected")
    value = state.checked.constants.get(node)
    if not isinstance(value, int):
        if node not in state.known:
            fail(node, f"{what} must be known at compile time")
        return None
    return value


def plain(state: CheckState, node: tree.ExpressionNode) -> types.Type:
    """An operand's type; a serializable enum is converted to its base."""
    kind = state.checked.type_of[node]
    if isinstance(kind, types.EnumType) and kind.base is not None:
        convert(state, node, kind.base)
        return kind.base
    return kind
