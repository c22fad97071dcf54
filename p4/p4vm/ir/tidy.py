"""Removes what lowering leaves behind: results that go through a temporary, resets without effect, unused locals."""

from collections import Counter
from collections.abc import Iterator, Set

from p4vm.ir import ir_nodes as ir
from p4vm.ir.reach import Reach, any_overlap, is_plain, path_of, reads
from p4vm.ir.walk import all_lists, code_at, code_of, variables_in
from p4vm.node import nodes


def tidy(routine: ir.Routine, reach: Reach, temporaries: Set[ir.Variable]) -> None:
    """Simplifies a routine just lowered. temporaries: variables that only the routine's statements use."""
    uses = _uses(routine)
    for statements in all_lists(routine):
        _forward(statements, uses, temporaries)
        _drop_resets(statements, reach)


def _uses(routine: ir.Routine) -> Counter[ir.Variable]:
    return Counter(variables_in(nodes(code_of(routine))))


# ---- results that go through a temporary


def _forward(statements: list[ir.Statement], uses: Counter[ir.Variable], temporaries: Set[ir.Variable]) -> None:
    """call -> t; x = t  becomes  call -> x, where t is used for nothing else."""
    number = 0
    while number + 1 < len(statements):
        call, after = statements[number], statements[number + 1]
        number += 1
        if not isinstance(after, ir.Assign) or not isinstance(after.value, ir.ReadVariable):
            continue
        variable = after.value.variable
        if variable not in temporaries or uses[variable] != 2 or after.target.type != variable.type:
            continue
        if _redirect(call, variable, after.target):
            statements[number - 1 : number + 1] = [call]


def _redirect(call: ir.Statement, variable: ir.Variable, target: ir.Expression) -> bool:
    """Redirects the call's result to the target, if that changes nothing else."""
    path = path_of(target)
    if path is None or not is_plain(target):
        return False
    match call:
        case ir.Invoke() if _is(call.result, variable):
            if any_overlap([path], [read for argument in call.arguments for read in reads(argument)]):
                return False
            call.result = target
            return True
        case ir.Lookahead() if _is(call.target, variable):
            call.target = target
            return True
    return False


def _is(expression: ir.Expression | None, variable: ir.Variable) -> bool:
    return isinstance(expression, ir.ReadVariable) and expression.variable is variable


# ---- resets that nobody sees


def _drop_resets(statements: list[ir.Statement], reach: Reach) -> None:
    """Removes a Reset whose variable is written whole before anything reads it."""
    resets = {number: item.target for number, item in enumerate(statements) if isinstance(item, ir.Reset)}
    if not resets:
        return
    effects = [reach.statements([item]) for item in statements]
    mentioned = [{path[0] for path in item.reads | item.writes} for item in effects]
    remaining = []
    for number, statement in enumerate(statements):
        target = resets.get(number)
        if isinstance(target, ir.ReadVariable):
            variable = target.variable
            after = next((at for at in range(number + 1, len(statements)) if variable in mentioned[at]), None)
            overwritten = after is not None and _writes_whole(statements[after], variable)
            if after is not None and overwritten and not any_overlap([(variable, ())], effects[after].reads):
                continue
        remaining.append(statement)
    statements[:] = remaining


def _writes_whole(statement: ir.Statement, variable: ir.Variable) -> bool:
    match statement:
        case ir.Assign() | ir.Reset() | ir.Lookahead():
            return _is(statement.target, variable)
        case ir.If():
            bodies = [*(body for _, body in statement.cases), statement.otherwise]
            return all(body and _writes_whole(body[0], variable) for body in bodies)
        case ir.Invoke():
            if _is(statement.result, variable):
                return True
            return any(
                parameter.direction == "out" and _is(argument, variable)
                for parameter, argument in zip(statement.routine.parameters, statement.arguments, strict=True)
            )
    return False


# ---- variables nobody uses


def drop_unused(routines: list[ir.Routine], tables: list[ir.Table]) -> None:
    """Removes locals that nothing but a Reset reads or writes."""
    used: set[ir.Variable] = set()
    for routine in routines:
        used.update(_looked_at(routine))
    for table in tables:
        used.update(variables_in(nodes(code_at(table))))
    for routine in routines:
        seen = used | {parameter.variable for parameter in routine.parameters}
        for statements in all_lists(routine):
            statements[:] = [item for item in statements if not _idle(item, seen)]
        routine.locals = [variable for variable in routine.locals if variable in used]


def _looked_at(routine: ir.Routine) -> Iterator[ir.Variable]:
    resets: Counter[ir.Variable] = Counter()
    for statements in all_lists(routine):
        for statement in statements:
            if isinstance(statement, ir.Reset) and isinstance(statement.target, ir.ReadVariable):
                resets[statement.target.variable] += 1
    for variable, count in _uses(routine).items():
        if count > resets[variable]:
            yield variable


def _idle(statement: ir.Statement, used: set[ir.Variable]) -> bool:
    target = statement.target if isinstance(statement, ir.Reset) else None
    return isinstance(target, ir.ReadVariable) and target.variable not in used
