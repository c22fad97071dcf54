"""A program's routines as Python functions, and all of it as one module's text.

`packet` is the first argument of every routine. Records and stacks are passed as they are; a scalar that a routine
writes for its caller comes back as its value, after `exited` where the routine may end the whole control. A control
whose actions use its variables keeps those in an object, `here`, that it hands to them.
"""

from __future__ import annotations

from contextlib import nullcontext

from p4vm.ir import ir_nodes as ir
from p4vm.ir.walk import ending, shared_variables
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
        self.shared = shared_variables(program)

    def takes_frame(self, routine: ir.Routine) -> bool:
        return routine.owner is not None and routine.owner in self.shared

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
        self.shared = layout.shared.get(routine, [])
        self.frame_slots = dict(frame_slots(self.shared))
        self.writer = PythonWriter(layout, routine, names)
        self.places = self.writer.places
        self.locals = {p.variable: names.of(p.variable, p.variable.name) for p in routine.parameters}
        for variable in routine.locals:
            self.locals[variable] = names.of(variable, variable.name)
        for variable, name in self.locals.items():
            in_frame = variable in self.frame_slots and is_scalar(variable.type)
            self.places[variable] = f"here.{self.frame_slots[variable]}" if in_frame else name
        if routine.owner is not None:
            for variable, slot in frame_slots(layout.shared.get(routine.owner, [])):
                self.places.setdefault(variable, f"here.{slot}")

    def lines(self) -> list[str]:
        routine = self.routine
        writer = self.writer
        parameters = ["packet", *(["here"] if self.layout.takes_frame(routine) else [])]
        parameters += [self.locals[p.variable] for p in routine.parameters]
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
        if self.shared:
            line(f"here = {frame_name(self.layout, self.routine)}()")
        numbers = []
        for variable in self.routine.locals:
            if not is_scalar(variable.type) or isinstance(variable.type, ir.Varbits):
                line(f"{self.places[variable]} = {zero(variable.type, self.layout.names)}")
            elif variable not in self.frame_slots:
                numbers.append(self.places[variable])
        for at in range(0, len(numbers), 10):
            line(f"{' = '.join(numbers[at : at + 10])} = 0")
        parameters = {p.variable for p in self.routine.parameters}
        for variable in self.shared:
            if variable in parameters or not is_scalar(variable.type):
                line(f"here.{self.frame_slots[variable]} = {self.locals[variable]}")

    def states(self) -> None:
        """A loop over the parser's states, each by its number."""
        writer, word = self.writer, "if"
        writer.line("state = 0")
        with writer.nested("while True:"):
            for name, statements in self.routine.states.items():
                with writer.nested(f"{word} state == {writer.states[name]}:  # {identifier(name)}"):
                    writer.statements(statements)
                word = "elif"


def frame_name(layout: RoutineLayout, control: ir.Routine) -> str:
    return layout.names.globals.of((control, "frame"), f"{control.name}_variables")


def frame_slots(shared: list[ir.Variable]) -> list[tuple[ir.Variable, str]]:
    names = PythonNames()
    return [(variable, names.fresh(variable.name)) for variable in shared]


def frame_lines(layout: RoutineLayout, control: ir.Routine) -> list[str]:
    """The class of a control's variables that its actions use."""
    shared = layout.shared[control]
    slots = frame_slots(shared)
    source = [f"class {frame_name(layout, control)}:"]
    source += ["    " + docstring(f"Variables of {control.name} that its actions use."), ""]
    source += [f"    __slots__ = {tuple(slot for _, slot in slots)!r}", "", "    def __init__(self):"]
    for variable, slot in slots:
        if is_scalar(variable.type):
            source.append(f"        self.{slot} = {zero(variable.type, layout.names)}")
    return source if source[-1].strip() != "def __init__(self):" else [*source, "        pass"]


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
    blocks += [frame_lines(layout, control) for control in layout.shared]
    blocks += [RoutineWriter(layout, routine).lines() for routine in program.routines]
    head = [docstring(f"{program.file}, as Python runs it.")]
    return "\n".join(line for block in [head, *blocks] for line in [*block, "", ""])
