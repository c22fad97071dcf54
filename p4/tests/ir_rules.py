"""Whether a lowered program keeps what ir.py promises the back ends: types, places, sharing, variables that exist."""

from collections.abc import Iterator

from p4vm.ir import ir_nodes as ir
from p4vm.ir import ir_text
from p4vm.ir.extern_kinds import CALLS
from p4vm.ir.reach import Reach, indexes, overlap, path_of
from p4vm.ir.walk import all_lists, parts
from p4vm.node import nodes

PLACES = ir.ReadVariable | ir.FieldOf | ir.Index | ir.NextIndex | ir.RegisterCell
SAME = {"+", "-", "*", "/", "%", "&", "|", "^"}
COMPARED = {"==", "!=", "<", "<=", ">", ">="}
WHOLE = ir.Record | ir.Array | ir.Varbits


def faults(program: ir.ProgramIr) -> list[str]:
    """One line for each rule broken."""
    found: list[str] = []
    reach = Reach()
    for routine in program.routines:
        seen = _own(routine) | (_own(routine.owner) if routine.owner is not None else set())
        lists = list(all_lists(routine))
        for statement in [one for statements in lists for one in statements]:
            where = f"{routine.name}: {' '.join(ir_text.statement(statement)[0].split())}"
            found += [f"{where}: {fault}" for fault in _statement(statement, routine, reach)]
            for expression in parts(statement):
                found += [f"{where}: {fault}" for fault in _expression(expression, seen)]
        for name, state in routine.states.items():
            found += [f"{routine.name}.{name}: {fault}" for fault in _state(state, routine)]
    for table in program.tables:
        found += [f"{table.name}: {fault}" for fault in _table(table, reach)]
    order = {routine: number for number, routine in enumerate(program.routines)}
    for routine in program.routines:
        for statements in all_lists(routine):
            for one in statements:
                if isinstance(one, ir.Invoke) and not order.get(one.routine, 1 << 30) < order[routine]:
                    found.append(f"{routine.name} calls {one.routine.name}, which doesn't come before it")
    return found


def _own(routine: ir.Routine) -> set[ir.Variable]:
    return {parameter.variable for parameter in routine.parameters} | set(routine.locals)


# ---- expressions


def _expression(root: ir.Expression, seen: set[ir.Variable]) -> Iterator[str]:
    pending = [root]
    while pending:
        one = pending.pop()
        pending.extend(parts(one))
        if isinstance(one.type, ir.Bits) and one.type.width < 0:
            yield f"{ir_text.expression(one)} has no width"
        if isinstance(one, ir.ReadVariable) and one.variable not in seen:
            yield f"variable {one.variable.name} of {one.variable.routine} is not known here"
        if isinstance(one, ir.Build | ir.Invalid):
            yield f"{ir_text.expression(one)} stands for nothing that back ends know"
        elif not all(_fits(one)):
            yield f"{ir_text.expression(one)}: not the type that its parts give"


def _fits(one: ir.Expression) -> Iterator[bool]:
    """What must hold of an expression's own type."""
    match one:
        case ir.Const(type=ir.Bits() as kind, value=int(value)):
            yield not kind.width or (-kind.signed << (kind.width - kind.signed)) <= value < 1 << (
                kind.width - kind.signed
            )
        case ir.ReadVariable():
            yield one.type == one.variable.type
        case ir.FieldOf():
            yield isinstance(one.base.type, ir.Record) and one.base.type.field_type(one.field) == one.type
        case ir.Index():
            yield isinstance(one.base.type, ir.Array) and one.base.type.element == one.type and _small(one.index)
        case ir.NextIndex():
            yield isinstance(one.base.type, ir.Array) and one.type == ir.Bits(32)
        case ir.RegisterCell():
            yield one.type == one.instance.cell and _small(one.index)
        case ir.Mux():
            yield one.yes.type == one.no.type == one.type
            yield not isinstance(one.type, ir.Record | ir.Array)
        case ir.Not():
            yield one.type == one.operand.type == ir.Bool()
        case ir.Binary():
            yield _binary(one)
        case _:
            yield _bits(one)


def _binary(one: ir.Binary) -> bool:
    left, right = one.left.type, one.right.type
    if one.operator in SAME:
        divides = one.operator in ("/", "%")
        return left == right == one.type and isinstance(left, ir.Bits) and not (divides and left.signed)
    if one.operator in COMPARED:
        return left == right and one.type == ir.Bool()
    if one.operator in ("<<", ">>"):
        known = int(one.right.value) if isinstance(one.right, ir.Const) else 0
        return one.type == left and isinstance(left, ir.Bits) and _small(one.right) and known < left.width
    return left == right == one.type == ir.Bool()


def _small(index: ir.Expression) -> bool:
    """Whether it may index, shift or count."""
    kind = index.type
    return isinstance(kind, ir.Bits) and not kind.signed and kind.width <= 64


def _bits(one: ir.Expression) -> bool:
    match one:
        case ir.BitSlice():
            base = one.base.type
            inside = isinstance(base, ir.Bits) and 0 <= one.low <= one.high < base.width
            return inside and one.type == ir.Bits(one.high - one.low + 1)
        case ir.Cast():
            plain = isinstance(one.type, ir.Bits | ir.Bool) and isinstance(one.operand.type, ir.Bits | ir.Bool)
            return plain and one.type != one.operand.type
    return True


# ---- statements


def _statement(one: ir.Statement, routine: ir.Routine, reach: Reach) -> Iterator[str]:
    match one:
        case ir.Assign():
            yield from _assign(one)
        case ir.Invoke():
            yield from _invoke(one, reach)
        case ir.CallExtern() if CALLS[one.name].writes and not isinstance(one.arguments[0], ir.ReadVariable):
            yield "no variable to write"
        case ir.Return() if (one.value.type if one.value is not None else None) != routine.returns:
            yield "returns another type"
        case ir.If() if any(condition.type != ir.Bool() for condition, _ in one.cases):
            yield "condition is not bool"


def _assign(one: ir.Assign) -> Iterator[str]:
    if one.target.type != one.value.type:
        yield "target and value differ in type"
    if not isinstance(one.target, PLACES):
        yield "no place to write"


def _plain(place: ir.Expression) -> bool:
    known = all(isinstance(index, ir.Const) for index in indexes(place))
    while isinstance(place, ir.FieldOf | ir.Index):
        place = place.base
    return isinstance(place, ir.ReadVariable) and known


def _invoke(one: ir.Invoke, reach: Reach) -> Iterator[str]:
    routine = one.routine
    if len(routine.parameters) != len(one.arguments):
        yield "another number of arguments"
        return
    if (one.result.type if one.result is not None else None) != routine.returns:
        yield "the result is of another type"
    outer = reach.routine(routine)
    shared = []
    for parameter, argument in zip(routine.parameters, one.arguments, strict=True):
        if argument.type != parameter.variable.type:
            yield f"{parameter.variable.name} is of another type"
        written = parameter.direction in ("out", "inout")
        if not written and not isinstance(argument.type, WHOLE):
            continue
        path = path_of(argument)
        if path is None or not _plain(argument):
            yield f"{parameter.variable.name} is no plain place"
            continue
        shared.append((path, written))
        touched = outer.writes | outer.reads if written else outer.writes
        if any(overlap(path, other) for other in touched):
            yield f"{parameter.variable.name} is also seen otherwise"
    result = path_of(one.result) if one.result is not None else None
    if result is not None:
        shared.append((result, True))
    for number, (path, written) in enumerate(shared):
        for other, other_written in shared[:number]:
            if overlap(path, other) and (written or other_written):
                yield "two arguments share a place"


def _state(state: list[ir.Statement], routine: ir.Routine) -> Iterator[str]:
    last = state[-1]
    if not isinstance(last, ir.GoTo | ir.Return) and not (isinstance(last, ir.CallExtern) and CALLS[last.name].ends):
        yield "has no end"
    for node in nodes(state):
        if isinstance(node, ir.GoTo) and node.state not in routine.states:
            yield f"goes to unknown state {node.state}"


def _table(table: ir.Table, reach: Reach) -> Iterator[str]:
    for action in table.actions:
        directed = [p for p in action.routine.parameters if p.direction != "data"]
        if len(directed) != len(action.bound):
            yield f"{action.name}: parameters without arguments"
        outer = reach.routine(action.routine)
        for parameter, argument in zip(directed, action.bound, strict=False):
            path = path_of(argument)
            if argument.type != parameter.variable.type:
                yield f"{action.name}: {parameter.variable.name} is of another type"
            if parameter.direction == "in" and not isinstance(argument.type, WHOLE):
                continue
            if path is None or any(overlap(path, other) for other in outer.writes):
                yield f"{action.name}: {parameter.variable.name} is also seen otherwise"
    for entry in table.entries:
        action = table.actions[entry.action]
        if len(entry.arguments) != len(action.data) or len(entry.keys) != len(table.keys):
            yield "an entry that doesn't fit"
