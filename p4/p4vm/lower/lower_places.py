"""Writing to places, and passing them by reference, with copies only where the difference would show."""

from collections.abc import Callable
from dataclasses import dataclass

from p4vm.ir import ir_nodes as ir
from p4vm.ir.reach import Path, RoutineEffects, any_overlap, is_plain, is_whole, overlap, path_of
from p4vm.lower import fold, lower_expressions
from p4vm.lower.body import Body
from p4vm.lower.kinds import BIT32
from p4vm.source import P4Error, Position
from p4vm.tree import tree_nodes as tree


def assign(body: Body, target: ir.Expression, value: ir.Expression) -> None:
    """target = value. A Build is made not to read what it is built into; a union's other members become invalid."""
    if isinstance(target, ir.BitSlice):
        assign(body, target.base, fold.with_bits(target.base, value, ir.Const(BIT32, target.low)))
        return
    path = path_of(target)
    if isinstance(value, ir.Build) and path is not None:
        value = body.unchanged(value, {path})
    if isinstance(value, ir.ReadVariable) and path == (value.variable, ()):
        return
    body.emit(ir.Assign(target, value))
    others_invalid(body, target)


def others_invalid(body: Body, target: ir.Expression) -> None:
    """Where the target is a member of a union: no other member is valid."""
    if isinstance(target, ir.FieldOf) and isinstance(target.base.type, ir.Record) and target.base.type.kind == "union":
        for name, kind in target.base.type.fields:
            if name != target.field:
                body.emit(ir.SetValid(ir.FieldOf(kind, target.base, name), False))


@dataclass(slots=True)
class Passed:
    """An argument: how it is passed, and what."""

    direction: str
    value: ir.Expression

    @property
    def writes(self) -> bool:
        return self.direction in ("out", "inout")

    @property
    def path(self) -> Path | None:
        """The place that is passed by reference; None: it is passed by value."""
        return path_of(self.value) if self.writes or is_whole(self.value.type) else None


def pass_arguments(
    body: Body,
    routine: ir.Routine,
    arguments: list[tuple[tree.ExpressionNode | None, str, ir.Type]],
    result: ir.Expression | None,
) -> None:
    """Invokes the routine. given: for each of its parameters what was written, its direction and type."""
    invoke(body, routine, prepared(body, arguments), result)


def prepared(body: Body, arguments: list[tuple[tree.ExpressionNode | None, str, ir.Type]]) -> list[Passed]:
    """Arguments evaluated from left to right: values, and places with their indexes."""
    steps = [_step(body, node, direction, kind) for node, direction, kind in arguments]
    places = sum(1 << number for number, (_, direction, _) in enumerate(arguments) if direction in ("out", "inout"))
    values = body.sequence(steps, places)
    return [Passed(direction, value) for (_, direction, _), value in zip(arguments, values, strict=True)]


def _step(body: Body, node: tree.ExpressionNode | None, direction: str, kind: ir.Type) -> Callable[[], ir.Expression]:
    if node is None:
        return lambda: body.temporary(kind)
    if direction not in ("out", "inout"):
        return lambda: lower_expressions.expression(body, node, kind)

    def target() -> ir.Expression:
        place = lower_expressions.place(body, node)
        if place.type != kind:
            raise P4Error("an argument that is written must have exactly its parameter's type", node.position)
        return place

    return target


def invoke(body: Body, routine: ir.Routine, passed: list[Passed], result: ir.Expression | None) -> None:
    """Invokes with copies of those arguments whose sharing would show, written back afterwards from left to right."""
    outer = body.world.reach.routine(routine)
    copied = [_needs_copy(number, passed, outer) for number in range(len(passed))]
    writes = {
        path for argument in passed if argument.writes and (path := path_of(argument.value)) is not None
    } | outer.writes
    arguments: list[ir.Expression] = []
    back: list[tuple[ir.Expression, ir.Expression]] = []
    for argument, copy in zip(passed, copied, strict=True):
        if not copy:
            arguments.append(argument.value)
            continue
        place = body.temporary(argument.value.type)
        if argument.writes:
            target = body.frozen(argument.value, writes)
            back.append((target, place))
            if argument.direction == "inout":
                body.emit(ir.Assign(place, target))
        else:
            body.emit(ir.Assign(place, argument.value))
        arguments.append(place)
    if back and outer.exits:
        raise P4Error(
            f"{routine.name} may exit, and an argument that it writes must be copied here (a slice, an element by"
            " variable index, or something it also reaches otherwise); pass a variable and assign it afterwards",
            body.world.place,
        )
    body.emit(ir.Invoke(routine, arguments, result))
    for target, value in back:
        assign(body, target, value)


def _needs_copy(number: int, passed: list[Passed], outer: RoutineEffects) -> bool:
    argument = passed[number]
    if not argument.writes and not is_whole(argument.value.type):
        return False
    if not is_plain(argument.value):
        return True
    path = argument.path
    assert path is not None
    if any_overlap([path], outer.writes) or (argument.writes and any_overlap([path], outer.reads)):
        return True
    for place, other in enumerate(passed):
        if place == number or not (argument.writes or other.writes):
            continue
        if other.path is not None and overlap(path, other.path):
            return True
    return False


def extern_place(
    body: Body, node: tree.ExpressionNode | None, kind: ir.Type | None, position: Position
) -> ir.Expression:
    """Where an extern may write, before the call; `write_back` puts it where it belongs."""
    if node is None:
        if kind is None:
            raise P4Error("`_` stands here for a value of unknown type; give a variable", position)
        return body.temporary(kind)
    return lower_expressions.place(body, node)
