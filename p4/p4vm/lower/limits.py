"""Sizes that the engine doesn't hold, refused once for `p4 check` and both back ends; widths: `check`."""

from p4vm.engine import CELLS_MAX
from p4vm.ir import ir_nodes as ir
from p4vm.ir.ir_nodes import width_of
from p4vm.source import P4Error

CELL_BYTES = {"counter": 16, "meter": 64}
"""Approximate memory of a cell."""
STATE_BYTES_MAX = 1 << 36
"""The limit for all registers, counters and meters together; pages are allocated as cells are written."""
LOCALS_BYTES_MAX = 1 << 22
"""The limit for the locals of all routines together: no routine recurses, so no stack overflows."""


def check_limits(program: ir.ProgramIr) -> None:
    """Raises P4Error: the program asks for cells or variables that the engine doesn't hold."""
    total = 0
    for instance in program.externs:
        if instance.kind not in ("register", "counter", "meter"):
            continue
        what = f"{instance.kind} {instance.name}"
        if instance.kind == "register" and not isinstance(instance.cell, ir.Bits | ir.Bool | ir.EnumMember):
            reason = "keep the parts of a struct in one wide number"
            raise P4Error(f"{what} holds neither bit<W>, int<W> nor bool; {reason}", instance.position)
        if not 0 <= instance.cells <= CELLS_MAX:
            raise P4Error(f"{what} has size {instance.cells}; at most {CELLS_MAX} cells", instance.position)
        total += instance.cells * CELL_BYTES.get(instance.kind, width_of(instance.cell) // 8 + 1)
        if total > STATE_BYTES_MAX:
            raise P4Error(
                f"registers, counters and meters up to {what} take {total} bytes; at most {STATE_BYTES_MAX} are held",
                instance.position,
            )
    total = 0
    for routine in program.routines:
        total += sum(bytes_of(variable.type) for variable in routine.locals)
        if total > LOCALS_BYTES_MAX:
            raise P4Error(
                f"variables up to those of {routine.name} take {total} bytes; at most {LOCALS_BYTES_MAX} are held",
                routine.position,
            )


def bytes_of(kind: ir.Type) -> int:
    """About what a variable takes in memory."""
    if isinstance(kind, ir.Record):
        return 8 + sum(bytes_of(field) for _, field in kind.fields)
    if isinstance(kind, ir.Array):
        return 8 + kind.size * bytes_of(kind.element)
    return 8 + (kind.width if isinstance(kind, ir.Varbits) else width_of(kind)) // 8
