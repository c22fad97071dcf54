"""Calls: of functions, actions, parsers, controls, tables, externs and what packets, headers, unions, stacks can do."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from p4vm.ir import ir_nodes as ir
from p4vm.ir.walk import parts_of
from p4vm.lower import fold, instances, internet_checksum, lower_expressions, lower_externs, lower_places
from p4vm.lower.body import Body, PacketParameter
from p4vm.lower.fold import number
from p4vm.lower.kinds import BIT32, INT, bind, width_bounds
from p4vm.source import P4Error
from p4vm.tree import tree_nodes as tree
from p4vm.tree import types
from p4vm.tree.checked import CallNote


def value(body: Body, node: tree.CallExpression, want: ir.Type | None) -> ir.Expression:
    """As `call`, for a call within an expression. Raises P4Error: it has no value."""
    result = call(body, node)
    if result is None:
        raise P4Error("this call gives no value; use it as a statement", node.position)
    return result


def statement(body: Body, node: tree.CallStatement) -> None:
    call(body, node.call)


def call(body: Body, node: tree.CallExpression) -> ir.Expression | None:
    """Emits the call; gives its value, None where it has none. Raises P4Error."""
    note = body.world.checked.calls.get(node)
    if note is None:
        raise P4Error("the checker found nothing that this calls; it is not supported", node.position)
    match note.kind:
        case "function":
            return _function(body, note)
        case "action":
            _action(body, note)
        case "apply":
            _apply(body, node, note)
        case "extern":
            return _extern_function(body, node, note)
        case "method":
            return _extern_method(body, node, note)
        case "builtin":
            return _builtin(body, node, note)
        case _:
            raise P4Error("an instance is made here, where a value or statement is expected", node.position)
    return None


# ---- routines


def _function(body: Body, note: CallNote) -> ir.Expression | None:
    declaration = note.declaration
    assert isinstance(declaration, tree.Function)
    prototype = declaration.prototype
    bound = dict(zip(prototype.type_parameters, (bind(t, _bound(body)) for t in note.type_arguments), strict=True))
    externs = bindings(body, prototype.parameters, note.arguments)
    routine = instances.function(body.world, declaration, bound, externs)
    result = body.temporary(routine.returns) if routine.returns is not None else None
    _invoke(body, routine, prototype.parameters, note.arguments, result)
    return result


def _bound(body: Body) -> dict[str, types.Type]:
    frame = body.frame
    while not frame.bound and frame.parent is not None:
        frame = frame.parent
    return frame.bound


def _invoke(
    body: Body,
    routine: ir.Routine,
    parameters: Sequence[tree.ParameterDeclaration],
    arguments: Sequence[tree.ExpressionNode | None],
    result: ir.Expression | None = None,
) -> None:
    """parameters: as declared, those too that the routine has no more because they name instances."""
    passed = [
        argument if argument is not None or parameter.direction == "out" else parameter.default
        for parameter, argument in zip(parameters, arguments, strict=True)
        if not body.is_instance(parameter)
    ]
    for parameter, argument in zip(routine.parameters, passed, strict=True):
        if argument is None and parameter.direction != "out":
            raise P4Error(f"no argument for parameter {parameter.variable.name}", body.world.place)
    typed = [
        (argument, parameter.direction, parameter.variable.type)
        for parameter, argument in zip(routine.parameters, passed, strict=True)
    ]
    lower_places.pass_arguments(body, routine, typed, result)


def bindings(
    body: Body, parameters: Sequence[tree.ParameterDeclaration], arguments: Sequence[tree.ExpressionNode | None]
) -> tuple[instances.ExternArgument, ...]:
    """The instances and ints among the arguments, in order."""
    values: list[instances.ExternArgument] = []
    for parameter, argument in zip(parameters, arguments, strict=True):
        value = argument if argument is not None else parameter.default
        if value is None or not body.is_instance(parameter):
            continue
        if body.world.checked.type_of.get(parameter) == types.INTEGER:
            number = lower_expressions.literal(body, value, f"parameter {parameter.name}")
            values.append(ir.Const(INT, number))
        else:
            values.append(instances.instance(body, value))
    return tuple(values)


def _action(body: Body, note: CallNote) -> None:
    assert isinstance(note.declaration, tree.Action)
    routine = instances.action(body, note.declaration)
    _invoke(body, routine, note.declaration.parameters, note.arguments)


def _apply(body: Body, node: tree.CallExpression, note: CallNote) -> None:
    if isinstance(note.declaration, tree.TableDeclaration):
        body.apply_table(node)
        return
    block = instances.applied(body, node, note)
    parameters = block.declaration.parameters
    externs = bindings(body, parameters, note.arguments)
    routine = instances.routine(body.world, block, externs, node.position)
    _invoke(body, routine, parameters, note.arguments)


# ---- headers, unions, stacks


def _builtin(body: Body, node: tree.CallExpression, note: CallNote) -> ir.Expression | None:
    assert note.receiver is not None
    match note.name:
        case "isValid":
            return fold.valid(lower_expressions.plain(body, note.receiver))
        case "setValid" | "setInvalid":
            target = lower_expressions.place(body, note.receiver)
            lower_places.others_invalid(body, target)
            body.emit(ir.SetValid(target, note.name == "setValid"))
            return None
        case "push_front" | "pop_front":
            target = lower_expressions.place(body, note.receiver)
            count = 1
            if note.arguments and note.arguments[0] is not None:
                count = lower_expressions.literal(body, note.arguments[0], f"the count of {note.name}")
            body.emit(ir.ShiftStack(target, count if note.name == "push_front" else -count))
            return None
        case _:
            return _size(body, node, note)


def _size(body: Body, node: tree.CallExpression, note: CallNote) -> ir.Expression:
    assert note.receiver is not None
    with body.into([]):
        of_type = isinstance(note.receiver, tree.TypeExpression)
        kind = body.kind_of(note.receiver) if of_type else lower_expressions.expression(body, note.receiver).type
    low, high = width_bounds(kind)
    sizes = {
        "minSizeInBits": low,
        "maxSizeInBits": high,
        "minSizeInBytes": (low + 7) // 8,
        "maxSizeInBytes": (high + 7) // 8,
    }
    if note.name not in sizes:
        raise P4Error(f"{note.name}() is not supported", node.position)
    size_type = body.world.checked.type_of.get(node)
    lowered = body.kind(size_type, node.position) if size_type is not None else INT
    assert isinstance(lowered, ir.Bits)
    return ir.Const(lowered, fold.wrapped(sizes[note.name], lowered))


# ---- externs


def _extern_function(body: Body, node: tree.CallExpression, note: CallNote) -> ir.Expression | None:
    """A call of an extern function. Raises P4Error: none that the architecture has."""
    match note.name:
        case "verify":
            _verify(body, note)
            return None
        case "static_assert":
            return _static_assert(body, node, note)
        case "log_msg":
            _log(body, note)
            return None
    architecture = body.world.architecture
    if note.name not in architecture.functions:
        raise P4Error(
            f"extern function {note.name} is not one of {architecture.name}'s; it is not supported", node.position
        )
    return _extern(body, node, note, note.name, None)


def _extern_method(body: Body, node: tree.CallExpression, note: CallNote) -> ir.Expression | None:
    """A call of a method of an extern's instance. Raises P4Error: none that the engine has."""
    if note.receiver is None:
        raise P4Error(f"method {note.name} needs an instance", node.position)
    instance = instances.instance(body, note.receiver)
    if isinstance(instance, PacketParameter):
        return _packet(body, node, note)
    if not isinstance(instance, ir.ExternInstance):
        raise P4Error(f"{note.name} is no method of an extern", node.position)
    if instance.kind == internet_checksum.KIND:
        steps = [partial(_value, body, argument) for argument in note.arguments if argument is not None]
        return internet_checksum.call(body, instance, note.name, body.sequence(steps), node.position)
    name = f"{instance.kind}.{note.name}"
    if note.name == "execute":
        note = _color_blind(body, node, note)
    return _extern(body, node, note, name, instance)


def _color_blind(body: Body, node: tree.CallExpression, note: CallNote) -> CallNote:
    """The meter's call without the color that the packet has already. Raises P4Error: that isn't GREEN."""
    colors = [at for at, parameter in enumerate(note.parameters) if parameter.name == "color"]
    for at in colors:
        argument = note.arguments[at]
        color = lower_expressions.expression(body, argument) if argument is not None else None
        match color:
            case ir.Const(type=ir.EnumMember() as kind, value=int(value)) if kind.members[value] == "GREEN":
                continue
        raise P4Error("meters here know no color of a packet but GREEN; call execute without a color", node.position)
    positions = [at for at in range(len(note.parameters)) if at not in colors]
    parameters = tuple(note.parameters[at] for at in positions)
    return replace(note, parameters=parameters, arguments=[note.arguments[at] for at in positions])


def _extern(
    body: Body, node: tree.CallExpression, note: CallNote, name: str, instance: ir.ExternInstance | None
) -> ir.Expression | None:
    steps: list[Callable[[], ir.Expression]] = []
    places = 0
    for at, (parameter, argument) in enumerate(zip(note.parameters, note.arguments, strict=False)):
        if parameter.direction in ("out", "inout"):
            places |= 1 << at
            kind = None if argument is not None else body.kind(parameter.type, node.position)
            steps.append(partial(lower_places.extern_place, body, argument, kind, node.position))
        elif argument is not None:
            steps.append(partial(_value, body, argument))
        else:
            raise P4Error(f"{note.name}: no argument for {parameter.name}", node.position)
    arguments = body.sequence(steps, places)
    returns = body.kind(note.returns, node.position) if note.returns != types.VOID else None
    return lower_externs.call(body, lower_externs.ExternCall(name, instance, arguments, returns, node.position))


def _value(body: Body, node: tree.ExpressionNode) -> ir.Expression:
    return lower_externs.with_width(lower_expressions.expression(body, node))


# ---- functions with a node of their own


def _verify(body: Body, note: CallNote) -> None:
    condition, error = note.arguments[:2]
    assert condition is not None
    assert error is not None
    holds, number_of_error = lower_expressions.values(body, [condition, error])
    if number(holds) != 1:
        body.reject_unless(holds, number_of_error)


def _static_assert(body: Body, node: tree.CallExpression, note: CallNote) -> ir.Expression:
    first = note.arguments[0]
    assert first is not None
    if not lower_expressions.literal(body, first, "what static_assert checks"):
        second = note.arguments[1] if len(note.arguments) > 1 else None
        message = lower_expressions.expression(body, second) if second is not None else None
        reason = f": {message.value}" if isinstance(message, ir.Const) else ""
        raise P4Error(f"static_assert fails{reason}", node.position)
    return ir.Const(ir.Bool(), 1)


def _log(body: Body, note: CallNote) -> None:
    """log_msg(text, {a, b}): the list's values become arguments of their own, structs field by field."""
    text = note.arguments[0]
    assert text is not None
    arguments = [lower_expressions.expression(body, text)]
    data = note.arguments[1] if len(note.arguments) > 1 else None
    if isinstance(data, tree.ListExpression) and data not in body.world.checked.constants:
        steps = [partial(_value, body, item) for item in data.items]
        values = body.sequence(steps)
    else:
        values = [_value(body, data)] if data is not None else []
    for value in values:
        arguments += lower_externs.scalars(body, value)
    body.emit(ir.CallExtern("log_msg", None, arguments))


# ---- the packet


def _packet(body: Body, node: tree.CallExpression, note: CallNote) -> ir.Expression | None:
    first = note.arguments[0] if note.arguments else None
    match note.name:
        case "extract":
            _extract(body, node, note)
        case "lookahead":
            kind = body.kind(note.type_arguments[0] if note.type_arguments else note.returns, node.position)
            place = body.temporary(kind)
            body.emit(ir.Lookahead(place, position=node.position))
            return place
        case "advance":
            assert first is not None
            bits = lower_expressions.expression(body, first, BIT32)
            body.emit(ir.CallExtern("packet_in.advance", None, [bits, body.error("PacketTooShort")]))
        case "length":
            place = body.temporary(BIT32)
            body.emit(ir.CallExtern("packet_in.length", None, [place]))
            return place
        case "emit":
            assert first is not None
            _emit(body, first)
        case _:
            raise P4Error(f"the packet's method {note.name} is not supported", node.position)
    return None


def _extract(body: Body, node: tree.CallExpression, note: CallNote) -> None:
    first = note.arguments[0]
    second = note.arguments[1] if len(note.arguments) > 1 else None
    if first is None:
        kind = body.kind(note.type_arguments[0] if note.type_arguments else note.parameters[0].type, node.position)
        target: ir.Expression = body.temporary(kind)
    else:
        target = lower_expressions.place(body, first)
    advanced = _next_index(target)
    varbits = None
    if second is not None:
        with body.into([]) as later:
            varbits = lower_expressions.expression(body, second, BIT32)
        target = body.frozen(target, body.world.reach.statements(later).writes)
        body.out.extend(later)
    body.emit(ir.Extract(target, varbits))
    lower_places.others_invalid(body, target)
    if advanced is not None:
        body.emit(ir.Assign(advanced, ir.Binary(BIT32, "+", advanced, ir.Const(BIT32, 1))))


def _next_index(target: ir.Expression) -> ir.Expression | None:
    """The nextIndex of the stack where the target is its next element, or within it."""
    while isinstance(target, ir.FieldOf):
        target = target.base
    return target.index if isinstance(target, ir.Index) and isinstance(target.index, ir.NextIndex) else None


def _emit(body: Body, node: tree.ExpressionNode) -> None:
    pending = [body.plain(lower_expressions.expression(body, node))]
    while pending:
        value = pending.pop(0)
        match value.type:
            case ir.Record(kind="header") | ir.Array(element=ir.Record(kind="header")):
                body.emit(ir.Emit(value))
            case ir.Record() | ir.Array():
                pending[:0] = [body.plain(part) for part in parts_of(value)]
