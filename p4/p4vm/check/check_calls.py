"""Calls: functions, actions, methods, apply, constructors, and what headers and stacks can do by themselves."""

from p4vm.check import arguments as check_arguments
from p4vm.check import check_expressions, convert, generics, resolve
from p4vm.check.scope import CheckState, ScopeSymbol, article, counted, fail, nearest
from p4vm.tree import tree_nodes as tree
from p4vm.tree import types
from p4vm.tree.checked import CallNote

WHERE_APPLIED = {"parser": "parser state", "control": "apply block", "table": "apply block"}
WHERE_TO_APPLY = {
    "parser": "parsers are applied in parser states only",
    "control": "controls are applied in the apply block of a control only",
    "table": "tables are applied in the apply block of a control only",
}


def call(state: CheckState, node: tree.CallExpression, expected: types.Type | None) -> types.Type:
    """Checks a call and notes what it calls; the type of its result."""
    if isinstance(node.callee, tree.MemberExpression):
        note = method_call(state, node, node.callee, expected)
    else:
        node.callee = check_expressions.settle_base(state, node.callee)
        if isinstance(node.callee, tree.TypeExpression):
            note = constructor_call(state, node, node.callee, expected)
        elif isinstance(node.callee, tree.Name):
            note = named_call(state, node, node.callee, expected)
        else:
            fail(node, "this cannot be called; a function, action, method or type is expected")
    state.checked.calls[node] = note
    return note.returns


def note_of(
    state: CheckState,
    node: tree.CallExpression,
    kind: str,
    name: str,
    candidates: list[check_arguments.Candidate],
    expected: types.Type | None,
    receiver: tree.ExpressionNode | None = None,
) -> CallNote:
    """Chooses among overloads and checks the arguments."""
    declaration, signature = check_arguments.choose(node, name, candidates, node.arguments)
    explicit = [resolve.resolve(state, a) for a in node.type_arguments]
    bound = check_arguments.bind(state, node, name, signature, node.arguments, explicit, expected)
    return CallNote(
        kind, name, declaration, bound.parameters, bound.arguments, bound.type_arguments, bound.returns, receiver
    )


def named_call(
    state: CheckState, node: tree.CallExpression, callee: tree.Name, expected: types.Type | None
) -> CallNote:
    symbol = state.lookup(callee, callee.name, callee.dot)
    if symbol.kind == "action":
        if state.place.kind not in ("apply block", "action"):
            where = article(state.place.kind)
            fail(node, f"action {callee.name!r} is called in apply blocks and actions only, not in {where}")
        assert isinstance(symbol.type, types.CallableType)
        note = note_of(state, node, "action", callee.name, [(symbol.declaration, symbol.type)], expected)
    elif symbol.kind == "function":
        overloads: list[check_arguments.Candidate] = list(symbol.overloads)
        note = note_of(state, node, "function", callee.name, overloads, expected)
        if isinstance(note.declaration, tree.ExternFunction):
            note.kind = "extern"
            check_core_call(state, node, note, None)
    else:
        hint = ""
        if isinstance(symbol.type, types.TableType | types.CallableType):
            hint = f"; apply it: {callee.name}.apply(…)"
        fail(node, f"{callee.name!r} cannot be called; a function or action is expected{hint}")
    assert note.declaration is not None
    state.checked.declared[callee] = note.declaration
    state.note(callee, signature_of(note))
    return note


def signature_of(note: CallNote) -> types.CallableType:
    return types.CallableType(note.kind, note.name, note.parameters, note.returns, (), note.type_arguments)


# ---- methods


def method_call(
    state: CheckState, node: tree.CallExpression, callee: tree.MemberExpression, expected: types.Type | None
) -> CallNote:
    callee.base = check_expressions.settle_base(state, callee.base)
    if isinstance(callee.base, tree.TypeExpression):
        note = type_call(state, node, callee, callee.base, expected)
    else:
        base = state.infer(callee.base)
        if isinstance(base, types.ExternType):
            note = extern_method(state, node, callee, base, expected)
        elif isinstance(base, types.TableType | types.CallableType):
            note = apply(state, node, callee, base, expected)
        elif isinstance(base, types.StructureType | types.StackType):
            note = builtin(state, node, callee, base)
        else:
            fail(node, f"{base} has no method {callee.name!r}")
    state.note(callee, signature_of(note))
    return note


def type_call(
    state: CheckState,
    node: tree.CallExpression,
    callee: tree.MemberExpression,
    base: tree.TypeExpression,
    expected: types.Type | None,
) -> CallNote:
    """Type.apply(…): an instance without a name is applied; or the size of a type."""
    kind = resolve.resolve(state, base.type)
    state.note(base, kind)
    if callee.name in check_expressions.SIZE_METHODS and isinstance(kind, types.StructureType | types.StackType):
        return builtin(state, node, callee, kind)
    if callee.name != "apply" or not isinstance(kind, types.CallableType) or not isinstance(base.type, tree.TypeName):
        fail(node, f"type {kind} has no method {callee.name!r}; parsers and controls have apply")
    declaration = resolve.symbol_of(state, base.type).declaration
    constructor = state.constructors.get(declaration)
    if constructor is None:
        fail(node, f"{kind} is declared without a body, so it cannot be applied")
    if check_arguments.required(constructor):
        fail(node, f"{kind.name!r} takes arguments when it is made; declare an instance: {kind.name}(…) x;")
    return apply(state, node, callee, kind, expected)


def apply(
    state: CheckState,
    node: tree.CallExpression,
    callee: tree.MemberExpression,
    base: types.TableType | types.CallableType,
    expected: types.Type | None,
) -> CallNote:
    what = "table" if isinstance(base, types.TableType) else base.kind
    if callee.name != "apply" or what not in WHERE_APPLIED:
        known = "apply" if what in WHERE_APPLIED else "no method"
        fail(node, f"{base} has no method {callee.name!r}; it has {known}" + nearest(callee.name, ["apply"]))
    in_key = what == "table" and state.place.kind == "table"
    if state.place.kind != WHERE_APPLIED[what] and not in_key:
        fail(node, f"{base} cannot be applied in {article(state.place.kind)}; {WHERE_TO_APPLY[what]}")
    if isinstance(base, types.TableType):
        if node.arguments or node.type_arguments:
            fail(node, f"apply of {base} takes no arguments")
        declaration = state.checked.declared.get(callee.base)
        return CallNote("apply", "apply", declaration, (), [], (), types.ApplyResultType(base), callee.base)
    declaration = instance_declaration(state, callee.base)
    return note_of(state, node, "apply", "apply", [(declaration, base)], expected, callee.base)


def instance_declaration(state: CheckState, base: tree.ExpressionNode) -> tree.Node:
    """The parser or control that an instance (or a type's name) stands for; a parameter for itself."""
    if isinstance(base, tree.TypeExpression):
        assert isinstance(base.type, tree.TypeName)
        return state.checked.declared[base.type]
    declaration = state.checked.declared.get(base)
    if isinstance(declaration, tree.Instance):
        definition = state.checked.instances[declaration].declaration
        assert definition is not None
        return definition
    if declaration is None:
        fail(base, "only a named parser or control can be applied")
    return declaration


def extern_method(
    state: CheckState,
    node: tree.CallExpression,
    callee: tree.MemberExpression,
    base: types.ExternType,
    expected: types.Type | None,
) -> CallNote:
    methods = state.methods[base.name]
    prototypes = methods.get(callee.name)
    if prototypes is None or callee.name == base.name:
        known = [name for name in methods if name != base.name]
        have = f"; it has {', '.join(known[:6])}" if known else "; it has none"
        fail(node, f"extern {base} has no method {callee.name!r}" + (nearest(callee.name, known) or have))
    candidates = [(p, generics.specialise_method(state, base, signature)) for p, signature in prototypes]
    note = note_of(state, node, "method", callee.name, list(candidates), expected, callee.base)
    check_core_call(state, node, note, base)
    return note


# ---- headers and stacks


def builtin(
    state: CheckState,
    node: tree.CallExpression,
    callee: tree.MemberExpression,
    base: types.StructureType | types.StackType,
) -> CallNote:
    name = callee.name
    if name in check_expressions.SIZE_METHODS:
        require_arguments(node, name, 0)
        size = size_of(base, name)
        if size is None:
            state.known.add(node)
        else:
            state.checked.constants[node] = size
        return CallNote("builtin", name, None, (), [], (), types.INTEGER, callee.base)
    if isinstance(base, types.StackType):
        return stack_method(state, node, callee, base)
    if name not in check_expressions.HEADER_METHODS or base.kind == "struct":
        methods = sorted(check_expressions.HEADER_METHODS) if base.kind != "struct" else []
        fail(node, f"{base.kind} {base} has no method {name!r}" + nearest(name, methods))
    if base.kind == "header_union" and name != "isValid":
        every = "; one member's setInvalid() makes all invalid" if name == "setInvalid" else ""
        fail(node, f"header union {base} has no method {name!r}; call it for one of its members{every}")
    require_arguments(node, name, 0)
    if name == "isValid":
        return CallNote("builtin", name, None, (), [], (), types.BOOL, callee.base)
    check_expressions.require_writable(state, callee.base, f"{name}() changes what it is called for")
    return CallNote("builtin", name, None, (), [], (), types.VOID, callee.base)


def require_arguments(node: tree.CallExpression, name: str, count: int) -> None:
    if len(node.arguments) != count or node.type_arguments:
        fail(node, f"{name} takes {counted(count, 'argument') if count else 'no arguments'}, not {len(node.arguments)}")


def stack_method(
    state: CheckState, node: tree.CallExpression, callee: tree.MemberExpression, base: types.StackType
) -> CallNote:
    name = callee.name
    if name not in check_expressions.STACK_METHODS:
        known = sorted(check_expressions.STACK_METHODS)
        fail(node, f"header stack {base} has no method {name!r}" + nearest(name, known))
    require_arguments(node, name, 1)
    count = node.arguments[0].value
    if count is None:
        fail(node, f"{name} needs a number")
    number = convert.constant_integer(state, count, f"the argument of {name}")
    if number < 0:
        fail(count, f"the argument of {name} is {number}; 0 or more is expected")
    if isinstance(state.checked.type_of[count], types.IntegerType):
        convert.convert(state, count, types.BitsType(32))
    check_expressions.require_writable(state, callee.base, f"{name}() changes what it is called for")
    parameter = types.ParameterType("", types.INTEGER, "count")
    return CallNote("builtin", name, None, (parameter,), [count], (), types.VOID, callee.base)


# ---- constructors


def constructor_call(
    state: CheckState, node: tree.CallExpression, callee: tree.TypeExpression, expected: types.Type | None
) -> CallNote:
    if not state.constructing:
        fail(node, "constructors are called in declarations of instances and their arguments only")
    note = construct(state, node, callee.type, node.type_arguments, node.arguments, expected)
    if isinstance(note.returns, types.ExternType):
        for overloads in state.methods[note.returns.name].values():
            if any(p.abstract for p, _ in overloads):
                fail(node, f"extern {note.returns} has abstract methods, so its instances are declared, with a body")
    state.note(callee, note.returns)
    state.known.add(node)
    return note


def construct(
    state: CheckState,
    node: tree.Node,
    type_node: tree.Type,
    more: list[tree.Type],
    arguments: list[tree.CallArgument],
    expected: types.Type | None = None,
) -> CallNote:
    """The constructor call of an instance. more: type arguments after the name. Raises P4Error: no instances."""
    name_node = type_node.base if isinstance(type_node, tree.SpecializedType) else type_node
    if not isinstance(name_node, tree.TypeName):
        fail(node, "this type has no instances; an extern, parser, control or package is expected")
    symbol = resolve.symbol_of(state, name_node)
    explicit_nodes = type_node.arguments if isinstance(type_node, tree.SpecializedType) else more
    explicit = [resolve.resolve(state, a) for a in explicit_nodes]
    candidates = constructors_of(state, node, symbol, explicit)
    with state.compile_time():
        declaration, signature = check_arguments.choose(node, symbol.name, candidates, arguments)
        bound = check_arguments.bind(state, node, symbol.name, signature, arguments, explicit, expected)
    owner = symbol.declaration
    if isinstance(declaration, tree.FunctionPrototype):
        assert isinstance(bound.returns, types.ExternType)
        owner = state.members[bound.returns.name]
        if bound.returns.arguments and not bound.type_arguments:
            bound.type_arguments = bound.returns.arguments
    for part in {type_node, name_node}:
        state.note(part, bound.returns)
    return CallNote(
        "constructor", symbol.name, owner, bound.parameters, bound.arguments, bound.type_arguments, bound.returns
    )


def constructors_of(
    state: CheckState, node: tree.Node, symbol: ScopeSymbol, explicit: list[types.Type]
) -> list[check_arguments.Candidate]:
    if isinstance(symbol.type, types.ExternType):
        extern = symbol.type
        overloads = state.methods[extern.name].get(extern.name)
        if not overloads:
            fail(node, f"extern {extern.name!r} has no constructor, so it has no instances of its own")
        if symbol.kind == "generic":
            return list(overloads)
        if explicit:
            fail(node, f"{symbol.name!r} is not generic; leave out its type arguments")
        return [(p, generics.specialise_method(state, extern, signature)) for p, signature in overloads]
    constructor = state.constructors.get(symbol.declaration)
    if constructor is None:
        what = str(symbol.type) if isinstance(symbol.type, types.CallableType) else f"type {symbol.name!r}"
        fail(node, f"{what} has no instances; an extern, a package, or a parser or control with a body is expected")
    return [(symbol.declaration, constructor)]


def check_core_call(
    state: CheckState, node: tree.CallExpression, note: CallNote, base: types.ExternType | None
) -> None:
    """Raises P4Error: the call breaks a rule of the core library. Notes the value of static_assert."""
    if base is None:
        if note.name == "verify" and state.place.kind != "parser state":
            fail(node, "verify can be called in parser states only; use if")
        if note.name == "static_assert":
            check_static_assert(state, node, note)
    elif base.name == "packet_in" and note.type_arguments:
        kind = note.type_arguments[0]
        if note.name == "extract":
            check_extract(node, note, kind)
        elif note.name == "lookahead" and (varbits(kind) or not fixed(kind)):
            fail(node, f"lookahead reads values of a fixed size; {kind} has none")
    elif (base.name, note.name) == ("packet_out", "emit") and not all(map(emittable, note.type_arguments)):
        fail(node, f"emit writes headers, header stacks, unions and structs of them, not {note.type_arguments[0]}")


def check_static_assert(state: CheckState, node: tree.CallExpression, note: CallNote) -> None:
    constants = state.checked.constants
    condition = note.arguments[0]
    if condition is None or condition not in constants:
        fail(node, "static_assert needs a condition known at compile time")
    if not constants[condition]:
        text = note.arguments[1] if len(note.arguments) > 1 else None
        message = constants.get(text, "") if text is not None else ""
        fail(node, "static_assert failed" + (f": {' '.join(str(message).split())}" if message else ""))
    constants[node] = True


def check_extract(node: tree.CallExpression, note: CallNote, kind: types.Type) -> None:
    if isinstance(kind, types.TypeVariable):
        return
    if not isinstance(kind, types.StructureType) or kind.kind != "header":
        fail(node, f"extract fills a header, not {kind}")
    varbit_count = varbits(kind)
    if len(note.parameters) == 1 and varbit_count:
        fail(node, f"header {kind} has a varbit field; write extract(header, bits of the varbit)")
    if len(note.parameters) == 2 and varbit_count != 1:
        fail(node, f"extract with two arguments needs a header with one varbit field; {kind} has {varbit_count}")


def varbits(kind: types.Type) -> int:
    """How many varbit fields a type has."""
    kind = types.bare(kind)
    return sum(map(varbits, types.inside(kind))) + isinstance(kind, types.VarbitsType)


def fixed(kind: types.Type) -> bool:
    """Whether values of the type have bits on the wire; those of a union are its valid member's, so it has none."""
    kind = types.bare(kind)
    if isinstance(kind, types.StructureType) and kind.kind == "header_union":
        return False
    if isinstance(kind, types.StructureType | types.StackType | types.TupleType):
        return all(map(fixed, types.inside(kind)))
    if isinstance(kind, types.EnumType):
        return kind.base is not None
    return isinstance(kind, types.BitsType | types.VarbitsType | types.TypeVariable) or kind == types.BOOL


def emittable(kind: types.Type) -> bool:
    if isinstance(kind, types.TupleType) or (isinstance(kind, types.StructureType) and kind.kind == "struct"):
        return all(map(emittable, types.inside(kind)))
    return isinstance(kind, types.StructureType | types.StackType | types.TypeVariable)


def size_of(kind: types.Type, method: str) -> int | None:
    """The result of minSizeInBits and its like for a type; None: it depends on type parameters."""
    bits = size_in_bits(kind, method.startswith("max"))
    return bits if bits is None or method.endswith("Bits") else (bits + 7) // 8


def size_in_bits(kind: types.Type, largest: bool) -> int | None:
    kind = types.bare(kind)
    if isinstance(kind, types.BitsType):
        return kind.width
    if isinstance(kind, types.VarbitsType):
        return kind.width if largest else 0
    if isinstance(kind, types.EnumType) and kind.base is not None:
        return kind.base.width
    if kind == types.BOOL:
        return 1
    if isinstance(kind, types.StackType):
        element_bits = size_in_bits(kind.element, largest)
        return None if element_bits is None else kind.size * element_bits
    if isinstance(kind, types.StructureType):
        sizes = [size_in_bits(field, largest) for _, field in kind.fields]
        known = [size for size in sizes if size is not None]
        if len(known) < len(sizes):
            return None
        if kind.kind == "header_union":
            return (max if largest else min)(known, default=0)
        return sum(known)
    return None
