"""Variables of a control that its actions use become parameters of those: then a routine names only its own."""

from collections.abc import Iterable, Sequence

from p4vm.ir import ir_nodes as ir
from p4vm.ir.reach import Reach
from p4vm.ir.walk import code_of, variables_in
from p4vm.node import nodes


def pass_variables(routines: Sequence[ir.Routine], tables: Iterable[ir.Table]) -> None:
    """routines: callees before callers. A variable that an action writes is passed inout, any other in."""
    reach = Reach()
    writes = {routine: {path[0] for path in reach.routine(routine).writes} for routine in routines}
    outer: dict[ir.Routine, list[ir.Variable]] = {}
    for routine in routines:
        local = {*(parameter.variable for parameter in routine.parameters), *routine.locals}
        code = list(nodes(code_of(routine)))
        used = list(variables_in(code))
        calls = [node for node in code if isinstance(node, ir.Invoke)]
        used += [variable for call in calls for variable in outer.get(call.routine, [])]
        outer[routine] = [variable for variable in dict.fromkeys(used) if variable not in local]
        inner = {variable: ir.Variable(variable.name, variable.type, routine.name) for variable in outer[routine]}
        for variable, parameter in inner.items():
            direction = "inout" if variable in writes[routine] else "in"
            routine.parameters.append(ir.Parameter(parameter, direction))
        for node in code:
            if isinstance(node, ir.ReadVariable):
                node.variable = inner.get(node.variable, node.variable)
        for call in calls:
            call.arguments += _read([inner.get(variable, variable) for variable in outer.get(call.routine, [])])
    for table in tables:
        for action in table.actions:
            action.bound += _read(outer.get(action.routine, []))


def _read(variables: Iterable[ir.Variable]) -> list[ir.Expression]:
    return [ir.ReadVariable(variable.type, variable) for variable in variables]
