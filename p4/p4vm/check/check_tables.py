"""Tables: keys, actions and what binds their parameters, entries, and other properties."""

from p4vm.check import arguments, check_parsers, convert
from p4vm.check.scope import CheckState, EnclosingScope, ScopeSymbol, counted, fail, has_annotation, nearest, show
from p4vm.node import nodes
from p4vm.tree import tree_nodes as tree
from p4vm.tree import types
from p4vm.tree.checked import CallNote

EXTERN_PROPERTIES = frozenset(
    {"implementation", "counters", "meters", "psa_implementation", "psa_direct_counter", "psa_direct_meter"}
)
KNOWN_PROPERTIES = EXTERN_PROPERTIES | {
    "size", "support_timeout", "largest_priority_wins", "priority_delta", "psa_idle_timeout", "psa_empty_group_action"
}  # fmt: skip
SIZE_MAX = 1 << 31
MATCH_SIGNS = {
    "exact": (),
    "lpm": (tree.Mask, tree.Default),
    "ternary": (tree.Mask, tree.Default),
    "optional": (tree.Default,),
    "range": (tree.Range, tree.Default),
}
"""Match kind -> the expressions that entries may hold besides a value."""

RANKED = frozenset(MATCH_SIGNS) - {"exact", "lpm"}
"""Match kinds of which two entries may match one packet, so that priorities decide."""

SIGNS: dict[type, str] = {tree.Mask: "a mask (&&&)", tree.Range: "a range (..)", tree.Default: "_"}


def declare_table(state: CheckState, node: tree.TableDeclaration) -> None:
    names = check_action_names(node)
    kind = types.TableType(node.name, names)
    state.note(node, kind)
    with state.inner(EnclosingScope("table")):
        keys = [check_key(state, node, key) for key in node.keys]
        refs = {ref.name: check_ref(state, ref) for ref in node.actions}
        if node.default_action is not None:
            check_default(state, node, node.default_action, refs)
        if node.entries is not None:
            check_entries(state, node, keys, refs)
        check_properties(state, node)
    state.declare(ScopeSymbol(node.name, "table", node, kind))


def check_action_names(node: tree.TableDeclaration) -> tuple[str, ...]:
    names: list[str] = []
    for ref in node.actions:
        if ref.name in names:
            fail(ref, f"action {ref.name!r} is in the list of table {node.name!r} twice")
        names.append(ref.name)
    return tuple(names)


def check_key(state: CheckState, node: tree.TableDeclaration, key: tree.KeyElement) -> types.Type:
    kind = state.value_type(key.expression)
    if isinstance(kind, types.IntegerType):
        fail(key.expression, "a key needs a known width; cast it, as in (bit<8>)")
    if not check_parsers.is_matchable(kind):
        fail(key.expression, f"a key of table {node.name!r} cannot be {kind}; bits, bool, an enum or error is expected")
    if key.match_kind not in state.match_kinds:
        fail(key, f"unknown match kind {key.match_kind!r}" + nearest(key.match_kind, sorted(state.match_kinds)))
    ordered = isinstance(types.bare(kind), types.BitsType) or (
        isinstance(kind, types.EnumType) and kind.base is not None
    )
    if key.match_kind in ("lpm", "range") and not ordered:
        fail(key, f"match kind {key.match_kind} needs bits; the key is {kind}")
    return kind


# ---- actions


def action_of(state: CheckState, ref: tree.ActionRef) -> tuple[tree.Node, types.CallableType]:
    symbol = state.lookup(ref, ref.name, ref.dot)
    if symbol.kind != "action":
        fail(ref, f"{ref.name!r} is no action; tables run actions only")
    state.checked.declared[ref] = symbol.declaration
    assert isinstance(symbol.type, types.CallableType)
    state.note(ref, symbol.type)
    return symbol.declaration, symbol.type


def check_ref(state: CheckState, ref: tree.ActionRef) -> tree.ActionRef:
    """An action in the table's list: arguments bind its parameters with a direction, and no others."""
    declaration, signature = action_of(state, ref)
    directed = tuple(p for p in signature.parameters if p.direction)
    if len(ref.arguments) > len(directed):
        known = "the control plane gives those of its parameters that have no direction"
        fail(ref, f"action {ref.name!r} is given {counted(len(ref.arguments), 'argument')} here; {known}")
    if len(ref.arguments) < len(directed):
        name = directed[len(ref.arguments)].name
        fail(ref, f"parameter {name!r} of action {ref.name!r} has a direction, so it must be given here")
    part = types.CallableType("action", signature.name, directed)
    note_bound(state, ref, declaration, signature, part)
    return ref


def note_bound(
    state: CheckState,
    ref: tree.ActionRef,
    declaration: tree.Node,
    signature: types.CallableType,
    part: types.CallableType,
) -> CallNote:
    """Checks the arguments against some of the action's parameters, and notes them in order of all."""
    for part_node in nodes(ref.arguments):
        if isinstance(part_node, tree.MemberExpression) and part_node.name == "apply":
            fail(part_node, f"a table cannot be applied in an argument of action {ref.name!r}")
    bound = arguments.bind(state, ref, ref.name, part, ref.arguments, [])
    values = {p.name: value for p, value in zip(bound.parameters, bound.arguments, strict=True)}
    ordered = [values.get(p.name) for p in signature.parameters]
    note = CallNote("action", ref.name, declaration, signature.parameters, ordered)
    state.checked.bound[ref] = note
    return note


def check_full_ref(
    state: CheckState, node: tree.TableDeclaration, ref: tree.ActionRef, refs: dict[str, tree.ActionRef]
) -> None:
    """A default action, or an entry's: all parameters are given; the directed ones as in the list."""
    listed = refs.get(ref.name)
    if listed is None:
        fail(ref, f"action {ref.name!r} is not in the list of table {node.name!r}" + nearest(ref.name, list(refs)))
    declaration, signature = action_of(state, ref)
    if declaration is not state.checked.declared[listed]:
        fail(ref, f"{ref.name!r} is another action here than in the list of table {node.name!r}")
    first = state.checked.bound[listed].arguments
    data = tuple(p for p in signature.parameters if not p.direction)
    directed = tuple(p for p in signature.parameters if p.direction)
    part = types.CallableType("action", signature.name, signature.parameters)
    if len(ref.arguments) == len(data) and directed:
        part = types.CallableType("action", signature.name, data)
    note = note_bound(state, ref, declaration, signature, part)
    for number, (parameter, value) in enumerate(zip(signature.parameters, note.arguments, strict=True)):
        if parameter.direction:
            same = value is None or alike(value, first[number])
            if not same:
                fail(
                    ref, f"argument {parameter.name!r} of {ref.name!r} differs from that in the table's list of actions"
                )
            note.arguments[number] = first[number]
        elif value is not None and not state.is_known(value):
            fail(value, f"argument {parameter.name!r} of {ref.name!r} must be known at compile time")


def alike(left: tree.ExpressionNode | None, right: tree.ExpressionNode | None) -> bool:
    """Whether two expressions are written the same, as far as bindings of actions need it."""
    if type(left) is not type(right):
        return False
    if isinstance(left, tree.Name) and isinstance(right, tree.Name):
        return (left.name, left.dot) == (right.name, right.dot)
    if isinstance(left, tree.MemberExpression) and isinstance(right, tree.MemberExpression):
        return left.name == right.name and alike(left.base, right.base)
    if isinstance(left, tree.Number) and isinstance(right, tree.Number):
        return left.value == right.value
    if isinstance(left, tree.IndexExpression) and isinstance(right, tree.IndexExpression):
        return alike(left.base, right.base) and alike(left.index, right.index)
    return left is not None


def check_default(
    state: CheckState, node: tree.TableDeclaration, ref: tree.ActionRef, refs: dict[str, tree.ActionRef]
) -> None:
    check_full_ref(state, node, ref, refs)
    if has_annotation(refs[ref.name], "tableonly"):
        fail(ref, f"action {ref.name!r} is marked @tableonly, so it cannot be the default action")


# ---- entries


def check_entries(
    state: CheckState, node: tree.TableDeclaration, keys: list[types.Type], refs: dict[str, tree.ActionRef]
) -> None:
    assert node.entries is not None
    numbered = next((entry.priority for entry in node.entries if entry.priority is not None), None)
    if numbered is not None and not any(key.match_kind in RANKED for key in node.keys):
        fail(numbered, f"entries of table {node.name!r} have no priorities: no key of it lets two of them match")
    if numbered is not None and node.entries_const:
        fail(numbered, f"entries of table {node.name!r} are const, so their order decides; leave out the priority")
    if numbered is not None and node.entries[0].priority is None:
        fail(node.entries[0], "where an entry has a priority, the first one needs a priority too")
    if not keys and node.entries:
        fail(node, f"table {node.name!r} has entries and no key")
    for entry in node.entries:
        check_entry_keys(state, node, entry, keys)
        check_full_ref(state, node, entry.action, refs)
        if has_annotation(refs[entry.action.name], "defaultonly"):
            fail(entry.action, f"action {entry.action.name!r} is marked @defaultonly, so no entry can have it")
        if entry.priority is not None:
            priority = convert.constant_integer(state, entry.priority, "the priority of an entry")
            if priority < 0:
                fail(entry.priority, f"the priority of an entry is {show(priority)}; 0 or more is expected")


def check_entry_keys(
    state: CheckState, node: tree.TableDeclaration, entry: tree.EntryDeclaration, keys: list[types.Type]
) -> None:
    entry_keys = entry.keys
    if len(entry_keys) == 1 and isinstance(entry_keys[0], tree.ListExpression):
        entry.keys = entry_keys = entry_keys[0].items
    elif len(entry_keys) == 1 and len(keys) > 1 and isinstance(entry_keys[0], tree.Default):
        state.note(entry_keys[0], types.SetType(types.TupleType(tuple(keys))))
        return
    if len(entry_keys) != len(keys):
        fail(entry, f"an entry with {counted(len(entry_keys), 'key')}; table {node.name!r} has {len(keys)}")
    for key, part, kind in zip(node.keys, entry_keys, keys, strict=True):
        check_parsers.check_set(state, part, kind)
        allowed = MATCH_SIGNS.get(key.match_kind)
        sign = SIGNS.get(type(part))
        if allowed is not None and sign is not None and not isinstance(part, allowed):
            fail(part, f"{sign} cannot be matched {key.match_kind}")
        for value in values_in(part):
            if not state.is_known(value):
                fail(value, "the keys of an entry must be known at compile time")
        if key.match_kind == "lpm" and isinstance(part, tree.Mask):
            check_prefix(state, part, kind)


def check_prefix(state: CheckState, node: tree.Mask, kind: types.Type) -> None:
    """Raises P4Error: the mask is not ones followed by zeros."""
    mask = state.checked.constants.get(node.mask)
    bits = types.bare(kind)
    if isinstance(mask, int) and isinstance(bits, types.BitsType):
        low = ~mask & ((1 << bits.width) - 1)
        if low & (low + 1):
            fail(node.mask, f"mask {mask:#x} of an lpm key is no prefix; ones followed by zeros are expected")


def values_in(part: tree.ExpressionNode) -> list[tree.ExpressionNode]:
    if isinstance(part, tree.Mask):
        return [part.value, part.mask]
    if isinstance(part, tree.Range):
        return [part.low, part.high]
    return [] if isinstance(part, tree.Default) else [part]


# ---- other properties


def check_properties(state: CheckState, node: tree.TableDeclaration) -> None:
    seen: set[str] = set()
    for item in node.properties:
        if item.name in seen:
            fail(item, f"table {node.name!r} has two properties called {item.name!r}")
        seen.add(item.name)
        if item.name == "size":
            size = convert.known_integer(state, item.value, f"the size of table {node.name!r}")
            if size is not None and not 0 <= size < SIZE_MAX:
                fail(
                    item.value, f"the size of table {node.name!r} is {show(size)}; from 0 to {SIZE_MAX - 1} is expected"
                )
            continue
        check_property(state, node, item)


def check_property(state: CheckState, node: tree.TableDeclaration, item: tree.Property) -> None:
    with state.compile_time():
        kind = state.value_type(item.value)
    if convert.unsettled(item.value) or isinstance(kind, types.IntegerType):
        state.known.add(item.value)
    if item.name in EXTERN_PROPERTIES and not isinstance(kind, types.ExternType):
        fail(
            item.value, f"property {item.name!r} of table {node.name!r} is {kind}; an instance of an extern is expected"
        )
    if item.name in ("support_timeout", "largest_priority_wins") and kind != types.BOOL:
        fail(item.value, f"property {item.name!r} is {kind}; true or false is expected")
    if item.name == "priority_delta":
        step = convert.constant_integer(state, item.value, "priority_delta")
        if step < 1:
            fail(item.value, f"priority_delta is {show(step)}; 1 or more is expected")
    if item.name not in KNOWN_PROPERTIES and not isinstance(kind, types.ExternType):
        message = f"table {node.name!r} has a property {item.name!r}, which means nothing here"
        state.warn(item, message + nearest(item.name, sorted(KNOWN_PROPERTIES)))
