"""A program's routines as Python functions, and all of it as one module's text.

`packet` is the first argument of every routine. Records and stacks are passed as they are; a scalar that a routine
writes for its caller comes back as its value, after `exited` where the routine may end the whole control.
"""

from contextlib import nullcontext

from p4vm.ir import ir_nodes as ir
from p4vm.ir.walk import ending
from p4vm.lines import marked
from p4vm.python.python_names import ProgramNames, PythonNames, docstring, identifier
from p4vm.python.python_writer import PythonWriter
from p4vm.python.records import RecordWriter, in_order, is_scalar, zero


class RoutineLayout:
    """What one routine's code must know of the others. exits: routines that may end the whole control."""

    def __init__(self, program: ir.ProgramIr) -> None:
        self.program = program
        self.names = ProgramNames()
        for routine in program.routines:
            self.names.of(routine)
        self.exits = ending(program, lambda node: isinstance(node, ir.Exit))

    def scalar_outs(self, routine: ir.Routine) -> list[ir.Variable]:
        return [
            p.variable for p in routine.parameters if p.direction in ("out", "inout") and is_scalar(p.variable.type)
        ]

    def gives_rejected(self, routine: ir.Routine) -> bool:
        """Sub-parsers that write scalars for their caller do so also where they reject."""
        return routine.kind == "parser" and bool(self.scalar_outs(routine))


class RoutineWriter:
    """Writes one routine's function."""

    def __init__(self, layout: RoutineLayout, routine: ir.Routine) -> None:
        self.layout = layout
        self.routine = routine
        names = PythonNames(layout.names.globals.reserved)
        self.writer = PythonWriter(layout, routine, names)
        self.places = self.writer.places
        for variable in [*(p.variable for p in routine.parameters), *routine.locals]:
            self.places[variable] = names.of(variable, variable.name)

    def lines(self) -> list[str]:
        routine = self.routine
        writer = self.writer
        parameters = ["packet", *(self.places[p.variable] for p in routine.parameters)]
        head = f"def {self.layout.names.of(routine)}({', '.join(parameters)}):"
        heading = [marked(head, routine.position, writer.comment), "    " + docstring(f"{routine.kind} {routine.name}")]
        self.openings()
        guarded = self.layout.gives_rejected(routine)
        with writer.nested("try:") if guarded else nullcontext():
            writer.statements(routine.body)
            if routine.kind == "parser":
                self.states()
            elif writer.returned(False, None):
                writer.give_back(False)
        if guarded:
            writer.line("except Reject as rejected:")
            outs = [self.places[variable] for variable in self.layout.scalar_outs(routine)]
            writer.line(f"    return ({', '.join(['rejected', *outs])})")
        return heading + (writer.lines or ["    pass"])

    def openings(self) -> None:
        """Variables before the first statement."""
        line = self.writer.line
        numbers = []
        for variable in self.routine.locals:
            if not is_scalar(variable.type) or isinstance(variable.type, ir.Varbits):
                line(f"{self.places[variable]} = {zero(variable.type, self.layout.names)}")
            else:
                numbers.append(self.places[variable])
        for at in range(0, len(numbers), 10):
            line(f"{' = '.join(numbers[at : at + 10])} = 0")

    def states(self) -> None:
        """A loop over the parser's states, each by its number."""
        writer, word = self.writer, "if"
        writer.line("state = 0")
        with writer.nested("while True:"):
            for name, statements in self.routine.states.items():
                with writer.nested(f"{word} state == {writer.states[name]}:  # {identifier(name)}"):
                    writer.statements(statements)
                word = "elif"


def module_of(layout: RoutineLayout) -> str:
    """The whole program's Python. Raises P4Error for what can't be written."""
    program = layout.program
    records: dict[str, ir.Record] = {}
    roots: list[ir.Type] = [*program.state.values(), *program.records]
    for routine in program.routines:
        roots += [p.variable.type for p in routine.parameters] + [variable.type for variable in routine.locals]
        roots += [routine.returns] if routine.returns is not None else []
    for root in roots:
        for record in in_order(root):
            records.setdefault(record.name, record)
    blocks = [RecordWriter(record, layout.names).lines() for record in records.values()]
    blocks += [RoutineWriter(layout, routine).lines() for routine in program.routines]
    head = [docstring(f"{program.file}, as Python runs it.")]
    return "\n".join(line for block in [head, *blocks] for line in [*block, "", ""])
