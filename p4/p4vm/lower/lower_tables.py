"""Tables: keys, actions, a table's properties, and entries written in the program, with their priorities."""

from __future__ import annotations

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
    made = ir.Table(name, [], [], 0, size=SIZE_DEFAULT, annotations=notes(node.annotations), position=node.position)
    with body.into(made.setup):
        _keys(body, node, made)
    listed = _actions(body, node, made)
    body.world.listed[made] = listed
    for written in node.properties:
        _property(body, made, written)
    _default(body, node, made, listed)
    made.entries_const = node.entries_const
    if node.entries is not None:
        entries(body, node, made, listed)
        if node.entries_const and all(one.name != "size" for one in node.properties):
            made.size = len(made.entries)
    body.world.tables.append(made)
    body.frame.bindings[node] = made


def _keys(body: Body, node: tree.TableDeclaration, made: ir.Table) -> None:
    def key(written: tree.KeyElement) -> ir.Expression:
        value = body.plain(lower_expressions.expression(body, written.expression))
        if is_signed(value.type) and written.match_kind != "range":
            value = fold.cast(ir.Bits(value.type.width), value)
        if not isinstance(value.type, ir.Bits | ir.Bool | ir.EnumMember):
            raise P4Error("a table's key is of bits, bool, an enum or error; list a header's fields", written.position)
        return value

    values = body.sequence([partial(key, one) for one in node.keys])
    for written, value in zip(node.keys, values, strict=True):
        if written.match_kind not in MATCHES:
            known = ", ".join(sorted(MATCHES))
            raise P4Error(f"match kind {written.match_kind} is not supported; {known} are", written.position)
        if written.match_kind in ("lpm", "ternary", "range") and not isinstance(value.type, ir.Bits | ir.Bool):
            raise P4Error(f"a {written.match_kind} key is of bits; match this one exact", written.position)
        name = given_name(written.annotations) or key_name(written.expression, body.world.checked)
        if name is None:
            raise P4Error('this key needs a name for the control plane: @name("…")', written.position)
        made.keys.append(ir.Key(name, written.match_kind, value, position=written.position))


# ---- actions


def _actions(body: Body, node: tree.TableDeclaration, made: ir.Table) -> list[tree.Action]:
    """Fills the table's actions; gives their declarations, in the same order."""
    listed: list[tree.Action] = []
    for reference in node.actions:
        declaration = action_declaration(body, reference)
        routine = instances.action(body, declaration)
        name = routine_name(body, declaration)
        bound: list[ir.Expression] = []
        if any(parameter.direction != "data" for parameter in routine.parameters):
            routine, bound = _bind(body, reference, declaration, routine)
        made.actions.append(
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
    found = body.world.checked.declared[reference]
    assert isinstance(found, tree.Action)
    return found


def routine_name(body: Body, declaration: tree.Action) -> str:
    """An action's name in the control plane: with the control's, unless it stands at the top level."""
    routine = body.frame.find(declaration)
    own = isinstance(routine, ir.Routine) and routine.owner is not None
    return control_name(body.frame.prefix if own else "", declaration.name, declaration.annotations)


def arguments_of(
    reference: tree.ActionRef, parameters: list[tree.ParameterDeclaration]
) -> dict[str, tree.ExpressionNode]:
    """Parameter's name -> argument. parameters: those that the arguments are for, in order. Raises P4Error."""
    found: dict[str, tree.ExpressionNode] = {}
    for number, argument in enumerate(reference.arguments):
        if argument.value is None:
            raise P4Error("an action's argument here must have a value", argument.position)
        if argument.name is not None:
            found[argument.name] = argument.value
        else:
            found[parameters[number].name] = argument.value
    return found


def _bind(
    body: Body, reference: tree.ActionRef, declaration: tree.Action, routine: ir.Routine
) -> tuple[ir.Routine, list[ir.Expression]]:
    """The directed parameters' arguments; where they need statements or copies, an action that makes them and calls."""
    given = arguments_of(reference, [p for p in declaration.parameters if p.direction])
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
            arguments.append((given[variable.name], parameter.direction, variable.type))
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
        return routine, [one.value for one in passed]
    body.world.routines.append(wrapper)
    return wrapper, []


# ---- properties


def _property(body: Body, made: ir.Table, written: tree.Property) -> None:
    if written.name == "size":
        made.size = lower_expressions.literal(body, written.value, "a table's size")
        if made.size < 0:
            raise P4Error("a table's size is 0 or more", written.position)
    elif written.name in TIMEOUTS:
        made.support_timeout = bool(lower_expressions.literal(body, written.value, written.name))
    elif written.name in EXTERNS:
        found = instances.instance(body, written.value, f"{made.name}.{written.name}")
        if not isinstance(found, ir.ExternInstance) or found.kind not in EXTERNS[written.name]:
            kinds = " or ".join(sorted(EXTERNS[written.name]))
            raise P4Error(f"{written.name} of a table must be {kinds}", written.position)
        _attach(made, written.name, found)
    elif written.name not in OPTIONS:
        body.world.warn(f"table property {written.name} is ignored", written.position)


def _attach(made: ir.Table, name: str, found: ir.ExternInstance) -> None:
    if name == "implementation":
        made.implementation = found
    elif name == "counters":
        made.counter = found
    else:
        made.meter = found


def _default(body: Body, node: tree.TableDeclaration, made: ir.Table, listed: list[tree.Action]) -> None:
    """The default action: what is written, else NoAction, which is added where it is not listed."""
    made.default_const = node.default_const
    reference = node.default_action
    if reference is not None:
        declaration = action_declaration(body, reference)
        made.default = listed.index(declaration)
        made.default_arguments = data_arguments(body, reference, declaration, made.actions[made.default])
        return
    for number, action in enumerate(made.actions):
        if action.name == "NoAction" and not action.routine.parameters:
            made.default = number
            return
    made.actions.append(ir.TableAction("NoAction", no_action(body), default_only=True))
    made.default = len(made.actions) - 1


def no_action(body: Body) -> ir.Routine:
    for declaration in body.world.checked.program.declarations:
        if isinstance(declaration, tree.Action) and declaration.name == "NoAction":
            return instances.action(body, declaration)
    key = ("NoAction",)
    found = body.world.functions.get(key)
    if found is None:
        found = body.world.functions[key] = ir.Routine(body.world.unique("NoAction"), "action")
        body.world.routines.append(found)
    return found


NEEDS_PRIORITY = frozenset({"ternary", "range", "optional"})


# ---- entries


def entries(body: Body, node: tree.TableDeclaration, made: ir.Table, listed: list[tree.Action]) -> None:
    """Fills the table's entries. Raises P4Error."""
    written = node.entries or []
    for entry in written:
        made.entries.append(_entry(body, entry, made, listed))
    if any(key.match in NEEDS_PRIORITY for key in made.keys):
        for entry_made, priority in zip(made.entries, _priorities(body, node, written), strict=True):
            entry_made.priority = priority


def _entry(body: Body, node: tree.EntryDeclaration, made: ir.Table, listed: list[tree.Action]) -> ir.Entry:
    declaration = action_declaration(body, node.action)
    place = listed.index(declaration)
    arguments = data_arguments(body, node.action, declaration, made.actions[place])
    matched = [key for key in made.keys if key.match != "selector"]
    written = node.keys
    if len(written) == 1 and len(matched) > 1:
        if isinstance(written[0], tree.ListExpression):
            written = written[0].items
        elif isinstance(written[0], tree.Default):
            written = [written[0]] * len(matched)
    keys = [_entry_key(body, one, key) for one, key in zip(written, matched, strict=True)]
    return ir.Entry(keys, place, arguments)


def _entry_key(body: Body, node: tree.ExpressionNode, key: ir.Key) -> tuple[int, int | None]:
    """As `ir.Entry` has it: (value, None), (value, prefix length), (value, mask), (low, high)."""
    signed = key.expression.type
    width = signed.width if isinstance(signed, ir.Bits) else (1 if isinstance(signed, ir.Bool) else 32)
    ones = (1 << width) - 1
    (one,) = lower_parsers.key_sets(body, node, [key.expression])
    match one:
        case ir.Anything():
            return _anything(node, key, ones)
        case ir.Exactly():
            value = _known(one.value, node)
            match key.match:
                case "exact":
                    return value, None
                case "lpm":
                    return value, width
                case "range":
                    return value, value
            return value, ones
        case ir.Masked() if key.match in ("lpm", "ternary", "optional"):
            value, mask = _known(one.value, node), _known(one.mask, node) & ones
            if key.match == "optional" and mask not in (0, ones):
                raise P4Error("an optional key matches one value or `_`, no mask", node.position)
            return value & mask, (_prefix(mask, width, node.position) if key.match == "lpm" else mask)
        case ir.Between() if key.match == "range":
            return _known(one.low, node), _known(one.high, node)
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
    given = arguments_of(reference, list(declaration.parameters) if every else parameters)
    kinds = [parameter.variable.type for parameter in action.data]
    values = []
    for parameter, kind in zip(parameters, kinds, strict=True):
        argument = given.get(parameter.name, parameter.default)
        if argument is None:
            raise P4Error(f"no argument for parameter {parameter.name} of action {reference.name}", reference.position)
        known = fold.number(lower_expressions.expression(body, argument, kind))
        if known is None:
            raise P4Error(f"argument {parameter.name} must be known at compile time", argument.position)
        values.append(known)
    return tuple(values)


def _priorities(body: Body, node: tree.TableDeclaration, written: list[tree.EntryDeclaration]) -> list[int]:
    """For each entry: smaller wins. @priority and tables without any number them from 1 in order."""
    explicit = [_explicit(body, entry) for entry in written]
    options = {
        one.name: lower_expressions.literal(body, one.value, one.name) for one in node.properties if one.name in OPTIONS
    }
    if all(one is None for one in explicit) and not options:
        annotated = [find(entry.annotations, "priority") for entry in written]
        return [
            number if annotation is None else _annotated(annotation) for number, annotation in enumerate(annotated, 1)
        ]
    largest = bool(options.get("largest_priority_wins", 1))
    step = options.get("priority_delta", 1)
    if step < 1:
        raise P4Error("priority_delta is 1 or more", node.position)
    current = (len(written) - 1) * step + 1 if largest else 1
    found: list[int] = []
    for number, given in enumerate(explicit):
        if given is not None:
            current = given
        elif number:
            current += -step if largest else step
        if current < 0:
            raise P4Error(
                f"the priority of this entry comes to {current}; 0 or more is expected", written[number].position
            )
        found.append(current)
    if not largest:
        return found
    top = max(found, default=0)
    return [top - one + 1 for one in found]


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
