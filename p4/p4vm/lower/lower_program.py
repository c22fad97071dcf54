"""The checked program made small: `main` elaborated, one routine for each instance, everything known put in.

Start here, then body.py: what all parts work in. One file per kind of thing that is lowered.
"""

from collections.abc import Sequence

from p4vm.architectures.architecture_table import ARCHITECTURES
from p4vm.architectures.description import Architecture
from p4vm.ir import ir_nodes as ir
from p4vm.ir.closures import pass_variables
from p4vm.ir.tidy import drop_unused
from p4vm.ir.walk import all_lists
from p4vm.lower import instances, lower_calls, lower_expressions, lower_parsers, lower_statements, lower_tables
from p4vm.lower.body import BlockInstance, BodyFrame, ExpressionHandler, PacketParameter, StatementHandler, World
from p4vm.lower.kinds import INT, Kinds, plain
from p4vm.lower.limits import check_limits
from p4vm.lower.lower_names import control_name, find, text_of
from p4vm.node import deep
from p4vm.source import P4Error, engine_faults
from p4vm.tree import tree_nodes as tree
from p4vm.tree import types
from p4vm.tree.checked import CallNote, Checked

FRAMES_MAX = 20_000
"""Python's frames for one program: the checker bounds nesting, and each level takes some of them."""
FIELD_LISTS_DEPTH_MAX = 64

EXPRESSIONS: dict[type, ExpressionHandler] = {**lower_expressions.HANDLERS, tree.CallExpression: lower_calls.value}
STATEMENTS: dict[type, StatementHandler] = {
    **lower_statements.HANDLERS,
    tree.CallStatement: lower_calls.statement,
    tree.Instance: instances.declare,
    tree.Action: instances.action_of,
    tree.TableDeclaration: lower_tables.table,
    tree.ValueSetDeclaration: lower_parsers.value_set,
}


def lower(checked: Checked, file: str) -> ir.ProgramIr:
    """The whole program. file: its path, for reports. Raises P4Error: what its architecture can't have."""
    architecture = architecture_of(checked)
    world = World(checked, architecture, Kinds(checked.errors), EXPRESSIONS, STATEMENTS)
    with deep(FRAMES_MAX), engine_faults(lambda _: world.place):
        try:
            return _program(world, file)
        except RecursionError:
            raise P4Error("nested too deeply here; split the expression or statement", world.place) from None


def _program(world: World, file: str) -> ir.ProgramIr:
    _top_level(world)
    blocks = _blocks(world)
    state = _state(world, blocks)
    for routine in blocks.values():
        if routine.kind == "parser" and routine.body and isinstance(routine.body[0], ir.Reset):
            del routine.body[0]  # the pipeline gives zeros
    if world.architecture.listed:
        _field_lists(world, state[world.architecture.listed])
    _names_differ(world)
    reachable = _reachable(world, list(blocks.values()))
    drop_unused(reachable, world.tables)
    pass_variables(reachable, world.tables)
    program = ir.ProgramIr(
        file,
        world.architecture,
        blocks,
        state,
        errors=world.kinds.error,
        routines=reachable,
        records=[record for record in world.kinds.records if all(kind != INT for _, kind in record.fields)],
        tables=world.tables,
        externs=world.externs,
        value_sets=world.value_sets,
        field_lists=world.field_lists,
        warnings=[*world.checked.warnings, *world.warnings],
        controller_headers=_controller_headers(world.checked),
        enums=_enums(world.checked),
    )
    check_limits(program)
    return program


def _controller_headers(checked: Checked) -> dict[str, ir.ControllerHeader]:
    """Headers with @controller_header("packet_in") and the like."""
    headers = {}
    for declaration in checked.program.declarations:
        if isinstance(declaration, tree.StructureDeclaration):
            annotation = find(declaration.annotations, "controller_header")
            kind = checked.type_of.get(declaration)
            if annotation is not None and isinstance(kind, types.StructureType) and (name := text_of(annotation)):
                fields = tuple((field, _bits(of)) for field, of in kind.fields)
                headers[name] = ir.ControllerHeader(kind.name, fields)
    return headers


def _bits(kind: types.Type) -> int:
    base = kind.base if isinstance(kind, types.EnumType) else kind
    return base.width if isinstance(base, types.BitsType) else 1


def _enums(checked: Checked) -> dict[str, ir.SerializableEnum]:
    enums = {}
    for declaration in checked.program.declarations:
        kind = checked.type_of.get(declaration) if isinstance(declaration, tree.EnumDeclaration) else None
        if isinstance(kind, types.EnumType) and kind.base is not None:
            enums[kind.name] = ir.SerializableEnum(_bits(kind), dict(zip(kind.members, kind.values, strict=True)))
    return enums


def architecture_of(checked: Checked) -> Architecture:
    """The architecture whose switch `main` is. Raises P4Error: there is none."""
    main = checked.main
    known = [f"{entry.package} of {entry.include}" for entry in ARCHITECTURES.values()]
    if main is None:
        raise P4Error("the program has no main; end it with V1Switch(…) main;", checked.program.position)
    package = checked.instances[main].name
    if package not in ARCHITECTURES:
        raise P4Error(f"main is a {package}; the engine runs {', '.join(known)}", main.position)
    return ARCHITECTURES[package]


def _top_level(world: World) -> None:
    """Instances outside parsers and controls; other declarations are looked at when they are used."""
    body = instances.scratch(world, world.globals)
    for declaration in world.checked.program.declarations:
        if isinstance(declaration, tree.Instance) and declaration is not world.checked.main:
            note = world.checked.instances.get(declaration)
            if note is not None and isinstance(note.declaration, tree.PackageType):
                continue
            instances.declare(body, declaration)


def _blocks(world: World) -> dict[str, ir.Routine]:
    """The routines of main's arguments and of the packages within it, by role."""
    main = world.checked.main
    assert main is not None
    world.place = main.position
    package = world.architecture.package
    body = instances.scratch(world, BodyFrame(world.globals))
    routines: dict[str, ir.Routine] = {}
    roles = iter(world.architecture.roles)
    for argument in _arguments(world, world.checked.instances[main]):
        if argument is None:
            raise P4Error(f"an argument of {package} is missing: the {next(roles)}", world.place)
        constructor = world.checked.calls.get(argument) if isinstance(argument, tree.CallExpression) else None
        block = instances.instance(body, argument, constructor.name if constructor is not None else "")
        if isinstance(block, BlockInstance):
            role = next(roles)
            routines[role] = _routine(world, block, role)
        elif not isinstance(block, ir.ExternInstance):
            raise P4Error(f"{package} needs an instance of a parser or control here", argument.position)
    return routines


def _arguments(world: World, note: CallNote) -> list[tree.ExpressionNode | None]:
    """The arguments of a package's constructor; a package among them stands for its own."""
    checked = world.checked
    arguments: list[tree.ExpressionNode | None] = []
    for argument in note.arguments:
        inner = None
        if isinstance(argument, tree.CallExpression):
            inner = checked.calls.get(argument)
        elif isinstance(argument, tree.Name) and isinstance(declared := checked.declared.get(argument), tree.Instance):
            inner = checked.instances.get(declared)
        if inner is not None and isinstance(inner.declaration, tree.PackageType):
            arguments += _arguments(world, inner)
        else:
            arguments.append(argument)
    return arguments


def _routine(world: World, block: BlockInstance, role: str) -> ir.Routine:
    routine = instances.routine(world, block, (PacketParameter(),), block.declaration.position)
    count = len(world.architecture.step_of(role).records)
    if len(routine.parameters) != count:
        raise P4Error(
            f"the {role} of {world.architecture.package} has {count} parameters besides the packet", routine.position
        )
    return routine


def _state(world: World, blocks: dict[str, ir.Routine]) -> dict[str, ir.Record]:
    """The types of the architecture's records. Raises P4Error: one is no struct, or two blocks differ in one."""
    state: dict[str, ir.Record] = {}
    for role, routine in blocks.items():
        for name, parameter in zip(world.architecture.step_of(role).records, routine.parameters, strict=True):
            kind, called = parameter.variable.type, name.replace("_", " ")
            if not isinstance(kind, ir.Record):
                raise P4Error(f"the {called} of {world.architecture.package} must be a struct", routine.position)
            if state.setdefault(name, kind) != kind:
                raise P4Error(f"the {called} of the {role} is a {kind.name}, not {state[name].name}", routine.position)
    return state


def _names_differ(world: World) -> None:
    """Raises P4Error: two tables, actions, or externs of a kind, that a control plane could not tell apart."""
    named = [("table", declaration.name, declaration.position) for declaration in world.tables]
    named += [(extern.kind, extern.name, extern.position) for extern in world.externs]
    for declaration in world.checked.program.declarations:
        prefix, inner = (
            (declaration.name, declaration.locals)
            if isinstance(declaration, tree.ControlDeclaration)
            else ("", [declaration])
        )
        for action in inner:
            if isinstance(action, tree.Action):
                named.append(("action", control_name(prefix, action.name, action.annotations), action.position))
    seen: set[tuple[str, str]] = set()
    for kind, name, position in named:
        if (kind, name) in seen:
            raise P4Error(f"another {kind} is called {name} too; rename one, or its @name", position)
        seen.add((kind, name))


# ---- field lists


def _field_lists(world: World, metadata: ir.Record) -> None:
    """Fields of metadata with @field_list(n, …): kept by resubmit, recirculate and clone of list n."""
    structures = {
        declaration.name: declaration
        for declaration in world.checked.program.declarations
        if isinstance(declaration, tree.StructureDeclaration)
    }
    pending: list[tuple[ir.Record, tuple[str, ...]]] = [(metadata, ())]
    while pending:
        record, path = pending.pop(0)
        declaration = structures.get(plain(record.name))
        if declaration is None or len(path) > FIELD_LISTS_DEPTH_MAX:
            continue
        for field in declaration.fields:
            annotation = find(field.annotations, "field_list")
            if annotation is not None:
                for argument in annotation.args:
                    number = world.checked.constants[argument]
                    assert isinstance(number, int), "the checker takes nothing else"
                    world.field_lists.setdefault(number, []).append((*path, field.name))
            kind = dict(record.fields).get(field.name)
            if isinstance(kind, ir.Record):
                pending.append((kind, (*path, field.name)))


# ---- what is used


def _reachable(world: World, roots: Sequence[ir.Routine]) -> list[ir.Routine]:
    """Routines that may run, in the order they were finished: callees before callers."""
    pending = [*roots, *(action.routine for table in world.tables for action in table.actions)]
    for table in world.tables:
        pending += [statement.routine for statement in table.setup if isinstance(statement, ir.Invoke)]
    seen: set[ir.Routine] = set()
    while pending:
        routine = pending.pop()
        if routine in seen:
            continue
        seen.add(routine)
        for body in all_lists(routine):
            pending += [statement.routine for statement in body if isinstance(statement, ir.Invoke)]
    return [routine for routine in world.routines if routine in seen]
