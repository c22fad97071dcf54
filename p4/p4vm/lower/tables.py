"""Tables: keys, actions, entries written in the program, and what a table's properties say."""

from __future__ import annotations

from functools import partial

from p4vm.front import tree
from p4vm.ir import nodes as ir
from p4vm.lower import entries, expressions, fold, instances, places
from p4vm.lower.body import Body, Frame
from p4vm.lower.names import control_name, find, given_name, key_name, notes
from p4vm.source import P4Error

MATCHES = frozenset({"exact", "lpm", "ternary", "range", "optional", "selector"})
SIZE_DEFAULT = 1024
EXTERNS = {
    "implementation": {"action_profile", "action_selector"},
    "counters": {"direct_counter"},
    "meters": {"direct_meter"},
}
READ_ELSEWHERE = frozenset({"largest_priority_wins", "priority_delta"})
TIMEOUTS = frozenset({"support_timeout", "supportTimeout"})


def table(body: Body, node: tree.Table) -> ir.Table:
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
        entries.entries(body, node, made, listed)
        if node.entries_const and all(one.name != "size" for one in node.properties):
            made.size = len(made.entries)
    body.world.tables.append(made)
    return made


def _keys(body: Body, node: tree.Table, made: ir.Table) -> None:
    def key(written: tree.Key) -> ir.Expression:
        value = body.plain(expressions.expression(body, written.expression))
        if isinstance(value.type, ir.Bits) and value.type.signed and written.match_kind != "range":
            value = fold.cast(ir.Bits(value.type.width), value)
        if not isinstance(value.type, ir.Bits | ir.Bool | ir.Symbol):
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
        made.keys.append(ir.Key(name, written.match_kind, value, written.position))


# ---- actions


def _actions(body: Body, node: tree.Table, made: ir.Table) -> list[tree.Action]:
    """Fills the table's actions; gives their declarations, in the same order."""
    listed: list[tree.Action] = []
    for reference in node.actions:
        declaration = action_declaration(body, reference)
        routine = instances.action(body, declaration)
        name = routine_name(body, declaration)
        directed = [parameter for parameter in routine.parameters if parameter.direction != "data"]
        bound: list[ir.Expression] = []
        if directed:
            routine, bound = _bind(body, reference, declaration, routine, directed)
        made.actions.append(
            ir.TableAction(
                name,
                routine,
                bound,
                table_only=find(reference.annotations, "tableonly") is not None,
                default_only=find(reference.annotations, "defaultonly") is not None,
            )
        )
        listed.append(declaration)
    return listed


def action_declaration(body: Body, reference: tree.ActionRef) -> tree.Action:
    found = body.world.checked.declared.get(reference)
    if not isinstance(found, tree.Action):
        raise P4Error(f"{reference.name} is no action", reference.position)
    return found


def routine_name(body: Body, declaration: tree.Action) -> str:
    """An action's name in the control plane: with the control's, unless it stands at the top level."""
    routine = body.frame.find(declaration)
    own = isinstance(routine, ir.Routine) and routine.owner is not None
    return control_name(body.frame.prefix if own else "", declaration.name, declaration.annotations)


def arguments_of(reference: tree.ActionRef, parameters: list[tree.Parameter]) -> dict[str, tree.Expression]:
    """Parameter's name -> argument. parameters: those that the arguments are for, in order. Raises P4Error."""
    found: dict[str, tree.Expression] = {}
    for number, argument in enumerate(reference.arguments):
        if argument.value is None:
            raise P4Error("an action's argument here must have a value", argument.position)
        if argument.name is not None:
            found[argument.name] = argument.value
        elif number < len(parameters):
            found[parameters[number].name] = argument.value
        else:
            raise P4Error(f"too many arguments for action {reference.name}", argument.position)
    return found


def _bind(
    body: Body,
    reference: tree.ActionRef,
    declaration: tree.Action,
    routine: ir.Routine,
    directed: list[ir.Parameter],
) -> tuple[ir.Routine, list[ir.Expression]]:
    """The directed parameters' arguments; where they need statements or copies, an action that makes them and calls."""
    given = arguments_of(reference, [p for p in declaration.parameters if p.direction])
    for parameter in directed:
        if parameter.variable.name not in given:
            raise P4Error(
                f"action {reference.name} needs an argument for its parameter {parameter.variable.name} here",
                reference.position,
            )
    name = body.world.unique(f"{routine.name}.bound")
    wrapper = ir.Routine(name, "action", owner=body.routine, position=reference.position)
    inner = Body(body.world, wrapper, Frame(body.frame, prefix=body.frame.prefix), wrapper.body)
    arguments: list[tuple[tree.Expression | None, str, ir.Type]] = []
    data: dict[str, ir.Variable] = {}
    for parameter in routine.parameters:
        variable = parameter.variable
        if parameter.direction == "data":
            data[variable.name] = inner.parameter(variable.name, variable.type, "data", reference.position)
        else:
            arguments.append((given[variable.name], parameter.direction, variable.type))
    passed = places.prepared(inner, arguments, reference.position)
    values = iter(passed)
    full = [
        places.Passed("data", ir.Local(p.variable.type, data[p.variable.name]), reference.position)
        if p.direction == "data"
        else next(values)
        for p in routine.parameters
    ]
    before = len(wrapper.body)
    places.invoke(inner, routine, full, None, reference.position)
    if before == 0 and len(wrapper.body) == 1 and not wrapper.locals:
        return routine, [one.value for one in passed]
    body.world.routines.append(wrapper)
    return wrapper, []


# ---- properties


def _property(body: Body, made: ir.Table, written: tree.Property) -> None:
    if written.name == "size":
        made.size = expressions.literal(body, written.value, "a table's size")
        if made.size < 0:
            raise P4Error("a table's size is 0 or more", written.position)
    elif written.name in TIMEOUTS:
        made.support_timeout = bool(expressions.literal(body, written.value, written.name))
    elif written.name in EXTERNS:
        found = instances.instance(body, written.value, f"{made.name}.{written.name}")
        if not isinstance(found, ir.ExternInstance) or found.kind not in EXTERNS[written.name]:
            kinds = " or ".join(sorted(EXTERNS[written.name]))
            raise P4Error(f"{written.name} of a table must be {kinds}", written.position)
        _attach(made, written.name, found)
    elif written.name not in READ_ELSEWHERE:
        body.world.warn(f"table property {written.name} is ignored", written.position)


def _attach(made: ir.Table, name: str, found: ir.ExternInstance) -> None:
    if name == "implementation":
        made.implementation = found
    elif name == "counters":
        made.counter = found
    else:
        made.meter = found


def _default(body: Body, node: tree.Table, made: ir.Table, listed: list[tree.Action]) -> None:
    """The default action: what is written, else NoAction, which is added where it is not listed."""
    made.default_const = node.default_const
    reference = node.default_action
    if reference is not None:
        declaration = action_declaration(body, reference)
        if declaration not in listed:
            raise P4Error(f"default action {reference.name} is not in the table's list of actions", reference.position)
        made.default = listed.index(declaration)
        made.default_arguments = entries.data_arguments(body, reference, declaration, made.actions[made.default])
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
