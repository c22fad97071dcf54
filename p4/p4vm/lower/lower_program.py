"""The checked program made small: `main` elaborated, one routine for each instance, everything known put in.

Start here, then body.py: what all parts work in. One file per kind of thing that is lowered.
"""

from __future__ import annotations

from collections.abc import Sequence

from p4vm.ir import ir_nodes as ir
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

ROLES = ("parser", "verify", "ingress", "egress", "compute", "deparser")
SIGNATURES = {"parser": 3, "verify": 2, "ingress": 3, "egress": 3, "compute": 2, "deparser": 1}
"""How many parameters are left of each when the packet is gone."""
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
    """The whole program. file: its path, for reports. Raises P4Error: what v1model programs can't have."""
    world = World(checked, Kinds(checked.errors), EXPRESSIONS, STATEMENTS)
    with deep(FRAMES_MAX), engine_faults(lambda _: world.place):
        try:
            return _program(world, file)
        except RecursionError:
            raise P4Error("nested too deeply here; split the expression or statement", world.place) from None


def _program(world: World, file: str) -> ir.ProgramIr:
    note = _main(world)
    _top_level(world)
    routines = _six(world, note)
    headers, metadata, standard = (p.variable.type for p in routines["ingress"].parameters)
    for kind, what in ((headers, "headers"), (metadata, "metadata"), (standard, "standard metadata")):
        if not isinstance(kind, ir.Record):
            raise P4Error(f"the {what} of V1Switch must be a struct", routines["ingress"].position)
    assert isinstance(headers, ir.Record)
    assert isinstance(metadata, ir.Record)
    assert isinstance(standard, ir.Record)
    parser = routines["parser"]
    if parser.body and isinstance(parser.body[0], ir.Reset):
        del parser.body[0]  # the pipeline gives zeros
    _field_lists(world, metadata)
    _names_differ(world)
    reachable = _reachable(world, list(routines.values()))
    drop_unused(reachable, world.tables)
    program = ir.ProgramIr(
        file,
        **routines,
        headers=headers,
        metadata=metadata,
        standard=standard,
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


def _main(world: World) -> CallNote:
    main = world.checked.main
    if main is None:
        raise P4Error("the program has no main; end it with V1Switch(…) main;", world.checked.program.position)
    world.place = main.position
    note = world.checked.instances[main]
    if note.name != "V1Switch":
        raise P4Error(f"main is a {note.name}; the engine runs V1Switch of v1model.p4", main.position)
    return note


def _top_level(world: World) -> None:
    """Instances outside parsers and controls; other declarations are looked at when they are used."""
    body = instances.scratch(world, world.globals)
    for declaration in world.checked.program.declarations:
        if isinstance(declaration, tree.Instance) and declaration is not world.checked.main:
            note = world.checked.instances.get(declaration)
            if note is not None and isinstance(note.declaration, tree.PackageType):
                continue
            instances.declare(body, declaration)


def _six(world: World, note: CallNote) -> dict[str, ir.Routine]:
    """The routines of V1Switch's arguments, by role."""
    body = instances.scratch(world, BodyFrame(world.globals))
    routines: dict[str, ir.Routine] = {}
    for role, argument in zip(ROLES, note.arguments, strict=True):
        if argument is None:
            raise P4Error(f"V1Switch needs six arguments; the {role} is missing", world.place)
        constructor = world.checked.calls.get(argument) if isinstance(argument, tree.CallExpression) else None
        block = instances.instance(body, argument, constructor.name if constructor is not None else "")
        if not isinstance(block, BlockInstance):
            raise P4Error(f"the {role} must be an instance of a parser or control", argument.position)
        routines[role] = _routine(world, block, role)
    return routines


def _routine(world: World, block: BlockInstance, role: str) -> ir.Routine:
    routine = instances.routine(world, block, (PacketParameter(),), block.declaration.position)
    if len(routine.parameters) != SIGNATURES[role]:
        raise P4Error(f"the {role} of V1Switch has {SIGNATURES[role]} parameters besides the packet", routine.position)
    return routine


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
