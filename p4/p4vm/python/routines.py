"""A program's routines as Python functions, and all of it as one module's text.

`packet` is the first argument of every routine. Records and stacks are passed as they are; a scalar that a routine
writes for its caller comes back as its value, after `exited` where the routine may end the whole control. A control
whose actions use its variables keeps those in an object, `here`, that it hands to them.
"""

from __future__ import annotations

from contextlib import nullcontext

from p4vm.ir import ir_nodes as ir
from p4vm.ir.walk import ending, run_in_parser, shared_variables, with_tables
from p4vm.lines import marked
from p4vm.python.python_names import ProgramNames, PythonNames, docstring, identifier
from p4vm.python.python_statements import StatementWriter
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
        self.rejecting = run_in_parser(program)

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
        self.names = PythonNames(layout.names.globals.taken)
        self.shared = layout.shared.get(routine, [])
        self.frame_slots = {id(variable): name for variable, name in frame_slots(self.shared)}
        self.writer = StatementWriter(layout, routine, self.names, self.returned)
        self.places = self.writer.expression.places
        self.locals = {id(p.variable): self.names.of(p.variable, p.variable.name) for p in routine.parameters}
        for variable in routine.locals:
            self.locals[id(variable)] = self.names.of(variable, variable.name)
        for variable in [*(p.variable for p in routine.parameters), *routine.locals]:
            scalar_in_frame = id(variable) in self.frame_slots and is_scalar(variable.type)
            name = f"here.{self.frame_slots[id(variable)]}" if scalar_in_frame else self.locals[id(variable)]
            self.places[id(variable)] = name
        if routine.owner is not None:
            for variable, slot in frame_slots(layout.shared.get(routine.owner, [])):
                self.places.setdefault(id(variable), f"here.{slot}")

    def returned(self, exited: bool, value: str | None) -> str:
        """What `return` gives: exited, rejected, the function's value, scalars written for the caller."""
        results = []
        if self.routine in self.layout.exits:
            results.append(str(exited))
        if self.layout.gives_rejected(self.routine):
            results.append("None")
        if self.routine.returns is not None:
            results.append(zero(self.routine.returns, self.layout.names) if value is None else value)
        results += [self.places[id(variable)] for variable in self.layout.scalar_outs(self.routine)]
        return results[0] if len(results) == 1 else f"({', '.join(results)})" if results else ""

    def lines(self) -> list[str]:
        routine = self.routine
        writer = self.writer
        parameters = ["packet", *(["here"] if self.layout.takes_frame(routine) else [])]
        parameters += [self.locals[id(p.variable)] for p in routine.parameters]
        head = f"def {self.layout.names.of(routine)}({', '.join(parameters)}):"
        heading = [marked(head, routine.position, writer.comment), "    " + docstring(f"{routine.kind} {routine.name}")]
        self.openings()
        guarded = self.layout.gives_rejected(routine)
        with writer.nested("try:") if guarded else nullcontext():
            writer.statements(routine.body)
            if routine.kind == "parser":
                self.states()
            elif self.returned(False, None):
                writer.give_back(False)
        if guarded:
            writer.line("except Reject as rejected:")
            outs = [self.places[id(variable)] for variable in self.layout.scalar_outs(routine)]
            writer.line(f"    return ({', '.join(['rejected', *outs])})")
        return heading + (writer.lines or ["    pass"])

    def openings(self) -> None:
        """Variables before the first statement."""
        line = self.writer.line
        if self.shared:
            line(f"here = {frame_name(self.layout, self.routine)}()")
        numbers = []
        for variable in self.routine.locals:
            if not is_scalar(variable.type):
                line(f"{self.places[id(variable)]} = {zero(variable.type, self.layout.names)}")
            elif isinstance(variable.type, ir.Varbits):
                line(f"{self.places[id(variable)]} = EMPTY")
            elif id(variable) not in self.frame_slots:
                numbers.append(self.places[id(variable)])
        for at in range(0, len(numbers), 10):
            line(f"{' = '.join(numbers[at : at + 10])} = 0")
        parameters = {id(p.variable) for p in self.routine.parameters}
        for variable in self.shared:
            if id(variable) in parameters or not is_scalar(variable.type):
                line(f"here.{self.frame_slots[id(variable)]} = {self.locals[id(variable)]}")

    def states(self) -> None:
        """A loop over the parser's states, each by its number."""
        writer, routine = self.writer, self.routine
        numbers = {name: at for at, name in enumerate(routine.states)}
        if routine.start not in numbers:
            writer.transition(routine.start, numbers)
            return
        writer.line(f"state = {numbers[routine.start]}")
        with writer.nested("while True:"):
            writer.line("packet.step()")
            for name, state in routine.states.items():
                word = "elif" if numbers[name] else "if"
                with writer.nested(f"{word} state == {numbers[name]}:  # {identifier(name)}"):
                    writer.statements(state.body)
                    writer.select(state, numbers)


def frame_name(layout: RoutineLayout, control: ir.Routine) -> str:
    return layout.names.globals.of(layout.shared[control], f"{control.name}_variables")


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
        roots += [node.type for node in with_tables(routine) if isinstance(node, ir.Build | ir.Invalid)]
    for root in roots:
        for record in in_order(root):
            records.setdefault(record.name, record)
    blocks = [RecordWriter(record, layout.names).lines() for record in records.values()]
    blocks += [frame_lines(layout, control) for control in layout.shared]
    blocks += [RoutineWriter(layout, routine).lines() for routine in program.routines]
    head = [docstring(f"{program.file}, as Python runs it.")]
    return "\n".join(line for block in [head, *blocks] for line in [*block, "", ""])
