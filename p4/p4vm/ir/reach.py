"""What statements read and write, place by place: where an argument passed by reference would show.

A path is a variable and the fields and elements that lead to a part of it; None stands for an element not known before
the program runs. Two paths overlap when one leads to a part of the other.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from p4vm.ir import ir_nodes as ir
from p4vm.ir.extern_kinds import CALLS
from p4vm.ir.walk import code_of, inner_lists, parts

Path = tuple[ir.Variable, tuple[str | int | None, ...]]


def overlap(path: Path, other_path: Path) -> bool:
    if path[0] is not other_path[0]:
        return False
    return all(a == b or a is None or b is None for a, b in zip(path[1], other_path[1], strict=False))


def any_overlap(paths: Iterable[Path], other_paths: Iterable[Path]) -> bool:
    listed = list(other_paths)
    return any(overlap(path, other_path) for path in paths for other_path in listed)


def path_of(place: ir.Expression) -> Path | None:
    """Where a place is; slices count as the whole that they cut. None: not a place."""
    steps: list[str | int | None] = []
    while True:
        match place:
            case ir.ReadVariable():
                return place.variable, tuple(reversed(steps))
            case ir.FieldOf():
                steps.append(place.field)
            case ir.Index():
                known = place.index.value if isinstance(place.index, ir.Const) else None
                steps.append(known if isinstance(known, int) else None)
            case ir.NextIndex():
                steps.append("next_index")
            case ir.BitSlice() | ir.Valid() | ir.Cast():
                pass
            case _:
                return None
        place = place.base if not isinstance(place, ir.Cast) else place.operand


def is_plain(place: ir.Expression) -> bool:
    """Whether a reference to it can be passed: a ReadVariable, or its fields and known elements, that no union owns."""
    while not isinstance(place, ir.ReadVariable):
        match place:
            case ir.FieldOf():
                if isinstance(place.base.type, ir.Record) and place.base.type.kind == "union":
                    return False
            case ir.Index():
                if not isinstance(place.index, ir.Const):
                    return False
            case _:
                return False
        place = place.base
    return True


def is_whole(kind: ir.Type) -> bool:
    """Whether `in` arguments of this type are passed by reference."""
    return isinstance(kind, ir.Record | ir.Array | ir.Varbits)


def reads(expression: ir.Expression) -> Iterator[Path]:
    """Places whose values decide the expression's."""
    pending = [expression]
    while pending:
        node = pending.pop()
        if isinstance(node, ir.ReadVariable | ir.FieldOf | ir.Index | ir.NextIndex) and (path := path_of(node)):
            yield path
            pending.extend(indexes(node))
        else:
            pending.extend(parts(node))


def indexes(place: ir.Expression) -> Iterator[ir.Expression]:
    """The index expressions along a place."""
    while not isinstance(place, ir.ReadVariable):
        if isinstance(place, ir.Index | ir.RegisterCell):
            yield place.index
        inner = parts(place)
        if not inner or isinstance(place, ir.RegisterCell):
            return
        place = inner[0]


@dataclass(slots=True)
class RoutineEffects:
    """exits: may end the top-level control."""

    reads: set[Path] = field(default_factory=set)
    writes: set[Path] = field(default_factory=set)
    exits: bool = False

    def add(self, other: "RoutineEffects") -> None:
        self.reads |= other.reads
        self.writes |= other.writes
        self.exits |= other.exits

    def read(self, expression: ir.Expression | None) -> None:
        if expression is not None:
            self.reads.update(reads(expression))

    def write(self, place: ir.Expression | None) -> None:
        if place is None:
            return
        path = path_of(place)
        if path is not None:
            self.writes.add(path)
        for index in indexes(place):
            self.reads.update(reads(index))


class Reach:
    """Effects of statements, and of routines on variables that are not their own; each routine is looked at once."""

    def __init__(self) -> None:
        self._routines: dict[ir.Routine, RoutineEffects] = {}

    def routine(self, routine: ir.Routine) -> RoutineEffects:
        """What running a finished routine does to other routines' variables (an action's: its control's)."""
        known = self._routines.get(routine)
        if known is None:
            inside = self.statements(code_of(routine))
            known = RoutineEffects(
                {path for path in inside.reads if path[0].routine != routine.name},
                {path for path in inside.writes if path[0].routine != routine.name},
                inside.exits,
            )
            self._routines[routine] = known
        return known

    def statements(self, statements: Iterable[ir.Statement]) -> RoutineEffects:
        total = RoutineEffects()
        for statement in statements:
            self._statement(statement, total)
        return total

    def _statement(self, statement: ir.Statement, total: RoutineEffects) -> None:
        for inner in inner_lists(statement):
            total.add(self.statements(inner))
        match statement:
            case ir.Invoke():
                total.add(self.routine(statement.routine))
                self._arguments(statement.routine.parameters, statement.arguments, total)
                total.write(statement.result)
            case ir.ApplyTable():
                total.add(self.table(statement.table))
                total.write(statement.hit)
                total.write(statement.action)
            case ir.CallExtern():
                for argument in statement.arguments[CALLS[statement.name].writes :]:
                    total.read(argument)
                total.write(statement.arguments[0] if CALLS[statement.name].writes else None)
            case ir.Exit():
                total.exits = True
            case _:
                target = getattr(statement, "target", None)
                total.write(target)
                for part in parts(statement):
                    if part is not target or isinstance(statement, ir.ShiftStack | ir.Extract | ir.Lookahead):
                        total.read(part)

    def _arguments(self, parameters: list[ir.Parameter], arguments: list[ir.Expression], total: RoutineEffects) -> None:
        for parameter, argument in zip(parameters, arguments, strict=False):
            if parameter.direction != "out":
                total.read(argument)
            if parameter.direction in ("out", "inout"):
                total.write(argument)

    def table(self, table: ir.Table) -> RoutineEffects:
        """The effects that applying a table may have, whichever of the table's actions runs."""
        total = self.statements(table.setup)
        for key in table.keys:
            total.read(key.expression)
        for action in table.actions:
            total.add(self.routine(action.routine))
            self._arguments([p for p in action.routine.parameters if p.direction != "data"], action.bound, total)
        return total
