"""Tables: keys, actions, a table's properties, and entries written in the program, with their priorities."""

from functools import partial

from p4vm.bit_arithmetic import limits
from p4vm.ir import ir_nodes as ir
from p4vm.ir.ir_nodes import is_signed
from p4vm.lower import fold, instances, lower_expressions, lower_parsers, lower_places
from p4vm.lower.body import Body, BodyFrame
from p4vm.lower.lower_names import control_name, find, given_name, key_name, notes
from p4vm.source import P4Error, Position
from p4vm.tree import tree_nodes as tree

MATCHES = frozenset({"exact", "lpm", "ternary", "range", "optional", "selector"})
SIZE_DEFAULT = 1024
EXTERNS = {
    "implementation": {"action_profile", "action_selector"},
    "counters": {"direct_counter"},
    "meters": {"direct_meter"},
}
OPTIONS = frozenset({"largest_priority_wins", "priority_delta"})
"""Properties that say how entries are numbered."""
TIMEOUTS = frozenset({"support_timeout", "supportTimeout"})


def table(body: Body, node: tree.TableDeclaration) -> None:
    """The table of this control's instance. Raises P4Error."""
    name = control_name(body.frame.prefix, node.name, node.annotations)
    table = ir.Table(name, [], [], 0, size=SIZE_DEFAULT, annotations=notes(node.annotations), position=node.position)
    with body.into(table.setup):
        _keys(body, node, table)
    listed = _actions(body, node, table)
    body.world.listed[table] = listed
    for table_property in node.properties:
        _property(body, table, table_property)
    _default(body, node, table, listed)
    table.entries_const = node.entries_const
    if node.entries is not None:
        entries(body, node, table, listed)
        if node.entries_const and all(p.name != "size" for p in node.properties):
            table.size = len(table.entries)
    body.world.tables.append(table)
    body.frame.bindings[node] = table


def _keys(body: Body, node: tree.TableDeclaration, table: ir.Table) -> None:
    def key(element: tree.KeyElement) -> ir.Expression:
        value = body.plain(lower_expressions.expression(body, element.expression))
        if is_signed(value.type) and element.match_kind != "range":
            value = fold.cast(ir.Bits(value.type.width), value)
        if not isinstance(value.type, ir.Bits | ir.Bool | ir.EnumMember):
            raise P4Error("a table's key is of bits, bool, an enum or error; list a header's fields", element.position)
        return value

    values = body.sequence([partial(key, element) for element in node.keys])
    for element, value in zip(node.keys, values, strict=True):
        if element.match_kind not in MATCHES:
            known = ", ".join(sorted(MATCHES))
            raise P4Error(f"match kind {element.match_kind} is not supported; {known} are", element.position)
        if element.match_kind in ("lpm", "ternary", "range") and not isinstance(value.type, ir.Bits | ir.Bool):
            raise P4Error(f"a {element.match_kind} key is of bits; match this one exact", element.position)
        name = given_name(element.annotations) or key_name(element.expression, body.world.checked)
        if name is None:
            raise P4Error('this key needs a name for the control plane: @name("…")', element.position)
        table.keys.append(ir.Key(name, element.match_kind, value, position=element.position))


# ---- actions


def _actions(body: Body, node: tree.TableDeclaration, table: ir.Table) -> list[tree.Action]:
    """Fills the table's actions; gives their declarations, in the same order."""
    listed: list[tree.Action] = []
    for reference in node.actions:
        declaration = action_declaration(body, reference)
        routine = instances.action(body, declaration)
        name = routine_name(body, declaration)
        bound: list[ir.Expression] = []
        if any(parameter.direction != "data" for parameter in routine.parameters):
            routine, bound = _bind(body, reference, declaration, routine)
        table.actions.append(
            ir.TableAction(
                name,
                routine,
                bound,
                table_only=find(reference.annotations, "tableonly") is not None,
                default_only=find(reference.annotations, "defaultonly") is not None,
                annotations=notes(declaration.annotations),
            )
        )
        listed.append(declaration)
    return listed


def action_declaration(body: Body, reference: tree.ActionRef) -> tree.Action:
    action = body.world.checked.declared[reference]
    assert isinstance(action, tree.Action)
    return action


def routine_name(body: Body, declaration: tree.Action) -> str:
    """An action's name in the control plane: with the control's, unless it stands at the top level."""
    routine = body.frame.find(declaration)
    local = isinstance(routine, ir.Routine) and routine.owner is not None
    return control_name(body.frame.prefix if local else "", declaration.name, declaration.annotations)


def arguments_of(
    reference: tree.ActionRef, parameters: list[tree.ParameterDeclaration]
) -> dict[str, tree.ExpressionNode]:
    """Parameter's name -> argument. parameters: those that the arguments are for, in order. Raises P4Error."""
    by_name: dict[str, tree.ExpressionNode] = {}
    for number, argument in enumerate(reference.arguments):
        if argument.value is None:
            raise P4Error("an action's argument here must have a value", argument.position)
        if argument.name is not None:
            by_name[argument.name] = argument.value
        else:
            by_name[parameters[number].name] = argument.value
    return by_name


def _bind(
    body: Body, reference: tree.ActionRef, declaration: tree.Action, routine: ir.Routine
) -> tuple[ir.Routine, list[ir.Expression]]:
    """The directed parameters' arguments; where they need statements or copies, an action that makes them and calls."""
    by_name = arguments_of(reference, [p for p in declaration.parameters if p.direction])
    body.world.place = reference.position
    name = body.world.unique(f"{routine.name}.bound")
    wrapper = ir.Routine(name, "action", owner=body.routine, position=reference.position)
    inner = Body(body.world, wrapper, BodyFrame(body.frame, prefix=body.frame.prefix), wrapper.body)
    arguments: list[tuple[tree.ExpressionNode | None, str, ir.Type]] = []
    data: dict[str, ir.Variable] = {}
    for parameter in routine.parameters:
        variable = parameter.variable
        if parameter.direction == "data":
            data[variable.name] = inner.parameter(variable.name, variable.type, "data", reference.position)
        else:
            arguments.append((by_name[variable.name], parameter.direction, variable.type))
    passed = lower_places.prepared(inner, arguments)
    values = iter(passed)
    full = [
        lower_places.Passed("data", ir.ReadVariable(p.variable.type, data[p.variable.name]))
        if p.direction == "data"
        else next(values)
        for p in routine.parameters
    ]
    before = len(wrapper.body)
    lower_places.invoke(inner, routine, full, None)
    if before == 0 and len(wrapper.body) == 1 and not wrapper.locals:
        return routine, [argument.value for argument in passed]
    body.world.routines.append(wrapper)
    return wrapper, []


# ---- properties


def _property(body: Body, table: ir.Table, node: tree.Property) -> None:
    if node.name == "size":
        table.size = lower_expressions.literal(body, node.value, "a table's size")
        if table.size < 0:
            raise P4Error("a table's size is 0 or more", node.position)
    elif node.name in TIMEOUTS:
        table.support_timeout = bool(lower_expressions.literal(body, node.value, node.name))
    elif node.name in body.world.architecture.properties:
        role = body.world.architecture.properties[node.name]
        extern = instances.instance(body, node.value, f"{table.name}.{node.name}")
        if not isinstance(extern, ir.ExternInstance) or extern.kind not in EXTERNS[role]:
            kinds = " or ".join(
                sorted(name for name, kind in body.world.architecture.externs.items() if kind in EXTERNS[role])
            )
            raise P4Error(f"{node.name} of a table must be {kinds}", node.position)
        _attach(table, role, extern)
    elif node.name not in OPTIONS:
        body.world.warn(f"table property {node.name} is ignored", node.position)


def _attach(table: ir.Table, name: str, extern: ir.ExternInstance) -> None:
    if name == "implementation":
        table.implementation = extern
    elif name == "counters":
        table.counter = extern
    else:
        table.meter = extern


def _default(body: Body, node: tree.TableDeclaration, table: ir.Table, listed: list[tree.Action]) -> None:
    """The default action: what is written, else NoAction, which is added where it is not listed."""
    table.default_const = node.default_const
    reference = node.default_action
    if reference is not None:
        declaration = action_declaration(body, reference)
        table.default = listed.index(declaration)
        table.default_arguments = data_arguments(body, reference, declaration, table.actions[table.default])
        return
    for number, action in enumerate(table.actions):
        if action.name == "NoAction" and not action.routine.parameters:
            table.default = number
            return
    table.actions.append(ir.TableAction("NoAction", no_action(body), default_only=True))
    table.default = len(table.actions) - 1


def no_action(body: Body) -> ir.Routine:
    for declaration in body.world.checked.program.declarations:
        if isinstance(declaration, tree.Action) and declaration.name == "NoAction":
            return instances.action(body, declaration)
    key = ("NoAction",)
    routine = body.world.functions.get(key)
    if routine is None:
        routine = body.world.functions[key] = ir.Routine(body.world.unique("NoAction"), "action")
        body.world.routines.append(routine)
    return routine


NEEDS_PRIORITY = frozenset({"ternary", "range", "optional"})


# ---- entries


def entries(body: Body, node: tree.TableDeclaration, table: ir.Table, listed: list[tree.Action]) -> None:
    """Fills the table's entries. Raises P4Error."""
    nodes = node.entries or []
    for entry in nodes:
        table.entries.append(_entry(body, entry, table, listed))
    if any(key.match in NEEDS_PRIORITY for key in table.keys):
        for entry_made, priority in zip(table.entries, _priorities(body, node, nodes), strict=True):
            entry_made.priority = priority


def _entry(body: Body, node: tree.EntryDeclaration, table: ir.Table, listed: list[tree.Action]) -> ir.Entry:
    declaration = action_declaration(body, node.action)
    place = listed.index(declaration)
    arguments = data_arguments(body, node.action, declaration, table.actions[place])
    matched = [key for key in table.keys if key.match != "selector"]
    key_nodes = node.keys
    if len(key_nodes) == 1 and len(matched) > 1:
        if isinstance(key_nodes[0], tree.ListExpression):
            key_nodes = key_nodes[0].items
        elif isinstance(key_nodes[0], tree.Default):
            key_nodes = [key_nodes[0]] * len(matched)
    keys = [_entry_key(body, key_node, key) for key_node, key in zip(key_nodes, matched, strict=True)]
    return ir.Entry(keys, place, arguments)


def _entry_key(body: Body, node: tree.ExpressionNode, key: ir.Key) -> tuple[int, int | None]:
    """As `ir.Entry` has it: (value, None), (value, prefix length), (value, mask), (low, high)."""
    signed = key.expression.type
    width = signed.width if isinstance(signed, ir.Bits) else (1 if isinstance(signed, ir.Bool) else 32)
    ones = (1 << width) - 1
    (key_set,) = lower_parsers.key_sets(body, node, [key.expression])
    match key_set:
        case lower_parsers.Anything():
            return _anything(node, key, ones)
        case lower_parsers.Exactly():
            value = _known(key_set.value, node)
            match key.match:
                case "exact":
                    return value, None
                case "lpm":
                    return value, width
                case "range":
                    return value, value
            return value, ones
        case lower_parsers.Masked() if key.match in ("lpm", "ternary", "optional"):
            value, mask = _known(key_set.value, node), _known(key_set.mask, node) & ones
            if key.match == "optional" and mask not in (0, ones):
                raise P4Error("an optional key matches one value or `_`, no mask", node.position)
            return value & mask, (_prefix(mask, width, node.position) if key.match == "lpm" else mask)
        case lower_parsers.Between() if key.match == "range":
            return _known(key_set.low, node), _known(key_set.high, node)
    raise P4Error(f"a {key.match} key doesn't take this kind of set", node.position)


def _anything(node: tree.ExpressionNode, key: ir.Key, ones: int) -> tuple[int, int | None]:
    if key.match == "exact":
        raise P4Error("an exact key takes a value; `_` stands for ternary, lpm, range and optional ones", node.position)
    if key.match == "range":
        return limits(key.expression.type) if isinstance(key.expression.type, ir.Bits) else (0, ones)
    return 0, 0


def _known(value: ir.Expression, node: tree.ExpressionNode) -> int:
    known = fold.number(value)
    if known is None:
        raise P4Error("an entry's key must be known at compile time; write a constant", node.position)
    return known


def _prefix(mask: int, width: int, position: Position) -> int:
    length = mask.bit_count()
    if mask != ((1 << length) - 1) << (width - length):
        raise P4Error(f"the mask {mask:#x} of an lpm key has ones that don't all come first", position)
    return length


def data_arguments(
    body: Body, reference: tree.ActionRef, declaration: tree.Action, action: ir.TableAction
) -> tuple[int, ...]:
    """Values of the parameters without direction. Raises P4Error: missing, or not known."""
    parameters = [p for p in declaration.parameters if not p.direction]
    positional = [argument for argument in reference.arguments if argument.name is None]
    every = len(positional) > len(parameters) or len(positional) == len(declaration.parameters)
    by_name = arguments_of(reference, list(declaration.parameters) if every else parameters)
    kinds = [parameter.variable.type for parameter in action.data]
    values = []
    for parameter, kind in zip(parameters, kinds, strict=True):
        argument = by_name.get(parameter.name, parameter.default)
        if argument is None:
            raise P4Error(f"no argument for parameter {parameter.name} of action {reference.name}", reference.position)
        known = fold.number(lower_expressions.expression(body, argument, kind))
        if known is None:
            raise P4Error(f"argument {parameter.name} must be known at compile time", argument.position)
        values.append(known)
    return tuple(values)


def _priorities(body: Body, node: tree.TableDeclaration, nodes: list[tree.EntryDeclaration]) -> list[int]:
    """For each entry: smaller wins. @priority and tables without any number them from 1 in order."""
    explicit = [_explicit(body, entry) for entry in nodes]
    options = {
        option.name: lower_expressions.literal(body, option.value, option.name)
        for option in node.properties
        if option.name in OPTIONS
    }
    if all(priority is None for priority in explicit) and not options:
        annotated = [find(entry.annotations, "priority") for entry in nodes]
        return [
            number if annotation is None else _annotated(annotation) for number, annotation in enumerate(annotated, 1)
        ]
    largest = bool(options.get("largest_priority_wins", 1))
    step = options.get("priority_delta", 1)
    if step < 1:
        raise P4Error("priority_delta is 1 or more", node.position)
    current = (len(nodes) - 1) * step + 1 if largest else 1
    priorities: list[int] = []
    for number, priority in enumerate(explicit):
        if priority is not None:
            current = priority
        elif number:
            current += -step if largest else step
        if current < 0:
            raise P4Error(
                f"the priority of this entry comes to {current}; 0 or more is expected", nodes[number].position
            )
        priorities.append(current)
    if not largest:
        return priorities
    top = max(priorities, default=0)
    return [top - priority + 1 for priority in priorities]


def _explicit(body: Body, entry: tree.EntryDeclaration) -> int | None:
    return None if entry.priority is None else lower_expressions.literal(body, entry.priority, "a priority")


def _annotated(annotation: tree.Annotation) -> int:
    if annotation.args:
        argument = annotation.args[0]
        if isinstance(argument, tree.Number):
            return argument.value
    text = annotation.tokens.strip()
    if not text.isdigit():
        raise P4Error("@priority takes a number", annotation.position)
    return int(text)
