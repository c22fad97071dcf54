"""A whole program as one C file. The runtime that it needs is in runtime/."""

from collections.abc import Iterator

from p4vm.algorithms import RANDOM_SEED
from p4vm.architectures.description import EVERY_PATH, Input, Move, Pass, Source, Step
from p4vm.c_code.c_tables import KeyLayout, ProgramLayout, RecordSite, layout_of
from p4vm.c_code.c_types import CTypes, identifier, is_number
from p4vm.c_code.c_wire import Wire
from p4vm.c_code.c_writer import CWriter
from p4vm.engine import (
    CAUSED_BYTES_MAX,
    LOG_MAX,
    LOOP_TURNS_MAX,
    PACKET_BYTES_MAX,
    PARSER_STEPS_MAX,
    PASSES_MAX,
    RUNS_MAX,
)
from p4vm.ir import ir_nodes as ir
from p4vm.ir.extern_kinds import call_of
from p4vm.ir.ir_nodes import width_of
from p4vm.ir.walk import ending
from p4vm.lines import marked
from p4vm.node import Node, deep
from p4vm.source import P4Error, Position, engine_faults

ERRORS = (
    "NoError",
    "PacketTooShort",
    "NoMatch",
    "StackOutOfBounds",
    "HeaderTooShort",
    "ParserTimeout",
    "ParserInvalidArgument",
)
"""As `enum p4_error`."""
LIMITS = (
    PASSES_MAX,
    RUNS_MAX,
    PARSER_STEPS_MAX,
    LOOP_TURNS_MAX,
    PACKET_BYTES_MAX,
    CAUSED_BYTES_MAX,
    LOG_MAX,
    RANDOM_SEED,
)
"""As `struct p4_limits`."""
SOURCES = {
    Source.PORT: "packet->port",
    Source.LENGTH: "e->length",
    Source.TIME_US: "e->now",
    Source.PATH: "path_numbers[packet->path]",
    Source.INSTANCE: "packet->instance",
    Source.DEPTH: "p4_depth(e, packet->port)",
    Source.ZERO: "0",
    Source.TRUE: "1",
}
FRAMES_MAX = 10_000
"""Python's frames for one program, whose nesting the parser bounds."""


class CProgram:
    """A program, as the writers of its routines see it.

    ending: routines that may end their caller too, by exit, reject or a drop.
    """

    def __init__(self, program: ir.ProgramIr) -> None:
        self.program = program
        self.layout: ProgramLayout = layout_of(program)
        self.types = CTypes()
        self.wire = Wire(self.types, self.error)
        self.names = {routine: f"r{at}_{identifier(routine.name)[-60:]}" for at, routine in enumerate(program.routines)}
        self.ending = ending(program, _ends)
        self.groups: dict[int, list[str]] = {}
        for name, (_, _, cells) in self.layout.registers.items():
            self.groups.setdefault(cells, []).append(name)

    def error(self, name: str) -> int:
        """Number of a core error; 0 where the program doesn't have it."""
        members = self.program.errors.members
        return members.index(name) if name in members else 0

    def register(self, name: str) -> str:
        """Its cell, with {} for the index."""
        number, _, cells = self.layout.registers[name]
        group = list(self.groups).index(cells)
        return f"((struct cells{group} *)e->registers[{group}])[{{}}].c{number}"

    def site(self, site: RecordSite) -> int:
        self.layout.sites.append(site)
        return len(self.layout.sites) - 1


def _ends(node: Node) -> bool:
    """Whether a statement or expression may end its routine's caller too."""
    return isinstance(node, ir.Exit) or (isinstance(node, ir.CallExtern) and call_of(node).ends)


class CRoutineWriter:
    """Writes one routine as a C function: 0, or how it ended its caller too (`enum p4_end`)."""

    def __init__(self, context: CProgram, routine: ir.Routine) -> None:
        self.context = context
        self.routine = routine
        self.writer = CWriter(context, routine)

    def parameters(self) -> list[str]:
        """As C declares them; says where they are."""
        declarations = ["struct p4_engine *e"]
        for at, parameter in enumerate(self.routine.parameters):
            kind, writes = parameter.variable.type, parameter.direction in ("out", "inout")
            by_value = is_number(kind) and not writes
            self.writer.places[parameter.variable] = f"p{at}" if by_value else f"(*p{at})"
            const = "" if by_value or writes else "const "
            declarations.append(f"{const}{self.context.types.storage(kind)} {'' if by_value else '*'}p{at}")
        if self.routine.returns is not None:
            declarations.append(f"{self.context.types.storage(self.routine.returns)} *result")
        return declarations

    def locals(self) -> list[str]:
        """As C declares them; says where they are."""
        lines = []
        for at, variable in enumerate(self.routine.locals):
            name = self.writer.places[variable] = f"v{at}_{identifier(variable.name)[:30]}"
            plain = is_number(variable.type) and width_of(variable.type) <= 64
            lines.append(f"    {self.context.types.storage(variable.type)} {name} = {'0' if plain else '{0}'};")
        return lines

    def lines(self) -> list[str]:
        name = self.context.names[self.routine]
        head = f"/* {self.routine.kind} {identifier(self.routine.name)} */"
        text = [marked(head, self.routine.position, self.writer.comment)]
        text.append(f"static int {name}({', '.join(self.parameters())}) {{")
        text += self.locals()
        writer = self.writer
        writer.statements(self.routine.body)
        for name, statements in self.routine.states.items():
            writer.line(f"{writer.labels[name]}:;")
            writer.statements(statements)
        if self.routine.kind != "parser":
            writer.line("return 0;")
        text += [f"    {kind} {sink};" for kind, sink in writer.sinks.items()]
        return [*text, "    int end;", "    (void)e;", *writer.lines, "}"]


class ProgramWriter:
    """Writes the C file. tag: part of the names that the library shows, for several programs in one."""

    def __init__(self, program: ir.ProgramIr, tag: str) -> None:
        self.program = program
        self.tag = tag
        self.context = CProgram(program)

    def text(self) -> str:
        types = self.context.types
        program = self.program
        state = ["struct state {"]
        for name, record in program.state.items():
            state.append(f"    _Alignas(16) {types.storage(record)} {name};")
        state.append("};")
        registers = self.registers()
        writers = [CRoutineWriter(self.context, routine) for routine in program.routines]
        functions = [line for writer in writers for line in [*writer.lines(), ""]]
        description = self.description()
        parts = [
            [f"/* {identifier(program.file)}, made by p4vm */", '#include "p4vm.h"', ""],
            types.definitions,
            state,
            registers,
            [""],
            types.functions,
            functions,
            description,
        ]
        return "\n".join(line for part in parts for line in part) + "\n"

    def registers(self) -> list[str]:
        lines = []
        for number, names in enumerate(self.context.groups.values()):
            lines.append(f"struct cells{number} {{")
            for name in names:
                at, kind, _ = self.context.layout.registers[name]
                lines.append(f"    {self.context.types.storage(kind)} c{at};")
            lines.append("};")
        return lines

    # ---- the description of the program

    def description(self) -> list[str]:
        context, tag = self.context, self.tag
        lines = self.entries() + self.keep() + self.shapes() + self.parts() + self.passes()
        layout = context.layout
        lines.append(f"P4_EXPORT const struct p4_program p4_program_{tag} = {{")
        lines.append(f"    P4_ABI, sizeof(struct state), {len(self.program.state)}, parts,")
        lines.append("    pass_ingress, pass_egress, keep,")
        lines.append("    {" + ", ".join(str(context.error(name)) for name in ERRORS) + "},")
        lines.append("    {" + ", ".join(f"{limit}u" for limit in LIMITS) + "},")
        counts = [layout.tables, layout.profiles, context.groups, layout.counters, layout.meters, layout.value_sets]
        lines.append("    " + ", ".join(str(len(things)) for things in counts) + ",")
        lines.append("    table_shapes, value_set_shapes, groups, counter_cells, meter_cells,")
        lines.append("};")
        return lines

    def entries(self) -> list[str]:
        """Functions of one type for all blocks."""
        lines = []
        for role, routine in self.program.blocks.items():
            records = self.program.architecture.step_of(role).records
            passed = ", ".join(["e", *(f"&s->{name}" for name in records)])
            lines.append(f"static int {run_name(role)}(struct p4_engine *e, void *state) {{")
            lines.append("    struct state *s = state;")
            lines.append(f"    return {self.context.names[routine]}({passed});")
            lines.append("}")
        return lines

    def parts(self) -> list[str]:
        parts = [f"{{offsetof(struct state, {n}), sizeof(((struct state *)0)->{n})}}" for n in self.program.state]
        return ["static const struct p4_part parts[] = {", *(f"    {part}," for part in parts), "};"]

    def passes(self) -> list[str]:
        architecture = self.program.architecture
        numbers = ", ".join(f"{number}u" for number in architecture.paths)
        lines = [f"static const uint32_t path_numbers[] = {{{numbers}}};"]
        for name, described in (("ingress", architecture.ingress), ("egress", architecture.egress)):
            lines += PassWriter(self.context, name, described).lines()
        return lines

    def keep(self) -> list[str]:
        lines = ["static void keep(uint32_t list, void *to, const void *from) {"]
        lines += ["    struct state *t = to;", "    const struct state *f = from;", "    (void)t, (void)f;"]
        lines.append("    switch (list) {")
        listed = self.program.architecture.listed
        for number, paths in self.program.field_lists.items():
            lines.append(f"        case {number}u:")
            for path in paths:
                place = ".".join(CTypes.field(name) for name in path)
                lines.append(f"            t->{listed}.{place} = f->{listed}.{place};")
            lines.append("            break;")
        return [*lines, "        default: break;", "    }", "}"]

    def shapes(self) -> list[str]:
        layout = self.context.layout
        lines = shapes_of("table_shapes", [table.keys for table in layout.tables])
        lines += shapes_of("value_set_shapes", layout.value_sets)
        groups = [f"{{{cells}u, sizeof(struct cells{at})}}" for at, cells in enumerate(self.context.groups)]
        lines.append(f"static const struct p4_register_group groups[] = {{{', '.join(groups) or '{0, 0}'}}};")
        by_bytes = {e.name: int("bytes" in e.arguments) for e in self.program.externs}
        for what, cells_of in (("counter", layout.counters), ("meter", layout.meters)):
            cells = [f"{{{cells}u, {by_bytes[name]}}}" for name, (_, cells) in cells_of.items()]
            lines.append(f"static const struct p4_cells {what}_cells[] = {{{', '.join(cells) or '{0, 0}'}}};")
        places = []
        for name, (number, _, _) in layout.registers.items():
            group = next(at for at, names in enumerate(self.context.groups.values()) if name in names)
            cell = f"struct cells{group}"
            places.append(f"{group}, offsetof({cell}, c{number}), sizeof(({cell} *)0)->c{number}, sizeof({cell})")
        lines.append(f"P4_EXPORT const uint64_t p4_registers_{self.tag}[] = {{{', '.join([*places, '0'])}}};")
        return lines


def run_name(role: str) -> str:
    """The function that runs a block on a state."""
    return f"run_{role.replace(' ', '_')}"


class PassWriter:
    """Writes what a packet's pass begins with and does, as its architecture describes it."""

    def __init__(self, context: CProgram, name: str, described: Pass) -> None:
        self.context = context
        self.program = context.program
        self.name = name
        self.described = described

    def lines(self) -> list[str]:
        lines = [line for step in self.described.steps if step.move == Move.CLONE for line in self.parser_again(step)]
        lines.append(f"static void pass_{self.name}(struct p4_engine *e, struct p4_packet *packet) {{")
        lines.append("    struct state *s = packet->state;")
        lines += [f"    {line}" for entry in self.described.inputs for line in self.begin(entry)]
        return [*lines, *(f"    {line}" for step in self.described.steps for line in self.step(step)), "}"]

    def place(self, path: str, state: str = "s") -> str | None:
        """A field of the state; None: there is none, or none that the pipeline can read."""
        kind = self.program.field_type(path) if path else None
        if kind is None or not is_number(kind) or width_of(kind) > 64:
            return None
        record, _, name = path.partition(".")
        return f"{state}->{record}.{CTypes.field(name)}"

    def begin(self, entry: Input) -> Iterator[str]:
        place, kind = self.place(entry.field), self.program.field_type(entry.field)
        if place is None or kind is None:
            return
        value = self.place(entry.other) if entry.other else SOURCES[entry.source]
        paths = sum(1 << path for path in entry.paths)
        guard = "" if len(entry.paths) == len(EVERY_PATH) else f"if ({paths}u >> packet->path & 1) "
        cut = f"(uint64_t){value} & p4_ones({width_of(kind)})"
        yield f"{guard}{place} = ({self.context.types.storage(kind)})({cut});"

    def parser_again(self, step: Step) -> list[str]:
        """The function that parses a clone's bytes again."""
        if not step.role:
            return []
        to, source = (self.place(step.parsed_with, state) for state in ("s", "f"))
        lines = ["static int parse_again(struct p4_engine *e, void *to, const void *from) {"]
        lines += ["    struct state *s = to;", "    const struct state *f = from;", "    (void)s, (void)f;"]
        lines += [f"    {to} = {source};"] if to is not None else []
        return [*lines, f"    return {run_name(step.role)}(e, to);", "}"]

    def step(self, step: Step) -> Iterator[str]:
        """The C of one step."""
        kept_bits = f"{sum(1 << at for at, record in enumerate(self.program.state) if record in step.records)}u"
        field = self.place(step.field)
        request = step.move.name.lower()
        holds = f"e->requests.{request}" if field is None else field
        if field is not None and step.equals is not None:
            holds = f"{field} == {step.equals}u"
        fields = "UINT32_MAX" if step.field else f"e->requests.{request}_list"
        run = run_name(step.role) if step.role else ""
        match step.move:
            case Move.PARSE:
                yield f"int end = p4_parse(e, {run}, packet);"
                if field is not None:
                    yield f"{field} = end == P4_REJECT ? e->error : 0;"
                yield "if (end == P4_DROP) { p4_drop(e); return; }"
            case Move.RUN:
                yield f"if ({run}(e, s) == P4_DROP) {{ p4_drop(e); return; }}"
            case Move.DEPARSE:
                yield f"if (p4_deparse(e, {run}, packet)) return;"
            case Move.CLONE:
                path = "P4_CLONE_I2E" if self.name == "ingress" else "P4_CLONE_E2E"
                session = self.place(step.session) or "e->requests.clone_session"
                parser = "parse_again" if step.role else "NULL"
                yield f"if ({holds}) p4_clone(e, packet, {path}, {kept_bits}, (uint32_t){session}, {fields}, {parser});"
            case Move.DROP:
                yield f"if ({holds}) {{ p4_drop(e); return; }}"
            case Move.RESUBMIT | Move.RECIRCULATE:
                yield f"if ({holds}) {{ p4_{request}(e, packet, {kept_bits}, {fields}); return; }}"
            case Move.MULTICAST:
                yield f"if ({field}) {{ p4_multicast(e, packet, {kept_bits}, (uint32_t){field}); return; }}"
            case Move.UNICAST:
                yield f"p4_unicast(e, packet, {kept_bits}, (uint32_t){field});"
            case Move.SEND:
                yield "p4_send(e, packet);"


def shapes_of(name: str, layouts: list[KeyLayout]) -> list[str]:
    lines, shapes = [], []
    for at, layout in enumerate(layouts):
        if layout.range_limbs:
            lines.append(f"static const uint8_t {name}_{at}[] = {{{', '.join(map(str, layout.range_limbs))}}};")
        limbs = f"{name}_{at}" if layout.range_limbs else "NULL"
        shapes.append(f"{{{layout.words}, {layout.range_words}, {len(layout.range_limbs)}, {limbs}}}")
    return [*lines, f"static const struct p4_table_shape {name}[] = {{{', '.join(shapes) or '{0, 0, 0, NULL}'}}};"]


def c_of(program: ir.ProgramIr, tag: str = "0") -> tuple[str, ProgramLayout]:
    """The program as C, and where its names stand in it. Raises P4Error."""
    try:
        with deep(FRAMES_MAX), engine_faults(lambda _: Position(program.file, 0, 0)):
            writer = ProgramWriter(program, tag)
            return writer.text(), writer.context.layout
    except RecursionError:
        raise P4Error(f"{program.file}: an expression or block is nested too deeply; take it apart") from None
