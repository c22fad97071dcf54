"""Calls: of functions, actions, parsers, controls, tables and what headers, unions and stacks can do."""

from __future__ import annotations

from collections.abc import Sequence

from p4vm.ir import nodes as ir
from p4vm.lower import expressions, fold, instances, places
from p4vm.lower import externs as lower_externs
from p4vm.lower.body import Body
from p4vm.lower.kinds import BOOL, INT, bind, width_bounds
from p4vm.source import P4Error
from p4vm.tree import nodes as tree
from p4vm.tree import types
from p4vm.tree.checked import CallNote


def value(body: Body, node: tree.Call, want: ir.Type | None) -> ir.Expression:
    """As `call`, for a call within an expression. Raises P4Error: it has no value."""
    result = call(body, node)
    if result is None:
        raise P4Error("this call gives no value; use it as a statement", node.position)
    return result


def statement(body: Body, node: tree.CallStatement) -> None:
    call(body, node.call)


def call(body: Body, node: tree.Call) -> ir.Expression | None:
    """Emits the call; gives its value, None where it has none. Raises P4Error."""
    note = body.world.checked.calls.get(node)
    if note is None:
        raise P4Error("the checker found nothing that this calls; it is not supported", node.position)
    match note.kind:
        case "function":
            return _function(body, node, note)
        case "action":
            _action(body, node, note)
        case "apply":
            _apply(body, node, note)
        case "extern":
            return lower_externs.function(body, node, note)
        case "method":
            return lower_externs.method(body, node, note)
        case "builtin":
            return _builtin(body, node, note)
        case _:
            raise P4Error("an instance is made here, where a value or statement is expected", node.position)
    return None


# ---- routines


def _function(body: Body, node: tree.Call, note: CallNote) -> ir.Expression | None:
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
    parameters: Sequence[tree.Parameter],
    arguments: Sequence[tree.Expression | None],
    result: ir.Expression | None = None,
) -> None:
    """parameters: as declared, those too that the routine has no more because they name instances."""
    kept = [
        argument if argument is not None or parameter.direction == "out" else parameter.default
        for parameter, argument in zip(parameters, arguments, strict=True)
        if not body.is_instance(parameter)
    ]
    for parameter, argument in zip(routine.parameters, kept, strict=True):
        if argument is None and parameter.direction != "out":
            raise P4Error(f"no argument for parameter {parameter.variable.name}", body.world.place)
    given = [
        (argument, parameter.direction, parameter.variable.type)
        for parameter, argument in zip(routine.parameters, kept, strict=True)
    ]
    places.pass_arguments(body, routine, given, result)


def bindings(
    body: Body, parameters: Sequence[tree.Parameter], arguments: Sequence[tree.Expression | None]
) -> tuple[instances.Given, ...]:
    """The instances and ints among the arguments, in order."""
    found: list[instances.Given] = []
    for parameter, argument in zip(parameters, arguments, strict=True):
        written = argument if argument is not None else parameter.default
        if written is None or not body.is_instance(parameter):
            continue
        if body.world.checked.type_of.get(parameter) == types.INTEGER:
            number = expressions.literal(body, written, f"parameter {parameter.name}")
            found.append(ir.Const(INT, number))
        else:
            found.append(instances.instance(body, written))
    return tuple(found)


def _action(body: Body, node: tree.Call, note: CallNote) -> None:
    assert isinstance(note.declaration, tree.Action)
    routine = instances.action(body, note.declaration)
    _invoke(body, routine, note.declaration.parameters, note.arguments)


def _apply(body: Body, node: tree.Call, note: CallNote) -> None:
    if isinstance(note.declaration, tree.Table):
        body.apply_table(node)
        return
    made = instances.applied(body, node, note)
    parameters = made.declaration.parameters
    externs = bindings(body, parameters, note.arguments)
    routine = instances.routine(body.world, made, externs, node.position)
    _invoke(body, routine, parameters, note.arguments)


# ---- headers, unions, stacks


def _builtin(body: Body, node: tree.Call, note: CallNote) -> ir.Expression | None:
    assert note.receiver is not None
    match note.name:
        case "isValid":
            value = expressions.plain(body, note.receiver)
            return ir.Valid(BOOL, value)
        case "setValid" | "setInvalid":
            target = expressions.place(body, note.receiver)
            body.emit(ir.SetValid(target, note.name == "setValid"))
            return None
        case "push_front" | "pop_front":
            target = expressions.place(body, note.receiver)
            count = 1
            if note.arguments and note.arguments[0] is not None:
                count = expressions.literal(body, note.arguments[0], f"the count of {note.name}")
            body.emit(ir.Push(target, count if note.name == "push_front" else -count))
            return None
        case _:
            return _size(body, node, note)


def _size(body: Body, node: tree.Call, note: CallNote) -> ir.Expression:
    assert note.receiver is not None
    with body.into([]):
        of_type = isinstance(note.receiver, tree.TypeExpression)
        kind = body.kind_of(note.receiver) if of_type else expressions.expression(body, note.receiver).type
    low, high = width_bounds(kind)
    sizes = {
        "minSizeInBits": low,
        "maxSizeInBits": high,
        "minSizeInBytes": (low + 7) // 8,
        "maxSizeInBytes": (high + 7) // 8,
    }
    if note.name not in sizes:
        raise P4Error(f"{note.name}() is not supported", node.position)
    own = body.world.checked.type_of.get(node)
    lowered = body.kind(own, node.position) if own is not None else INT
    assert isinstance(lowered, ir.Bits)
    return ir.Const(lowered, fold.wrapped(sizes[note.name], lowered))
