"""Instances of parsers, controls and externs, and the routines of those, of actions and of functions."""

from collections.abc import Sequence

from p4vm.ir import ir_nodes as ir
from p4vm.ir.tidy import tidy
from p4vm.lower import internet_checksum, lower_expressions, lower_parsers
from p4vm.lower.body import Binding, BlockInstance, Body, BodyFrame, PacketParameter, World
from p4vm.lower.lower_names import control_name, given_name, notes, unused
from p4vm.source import P4Error, Position
from p4vm.tree import tree_nodes as tree
from p4vm.tree import types
from p4vm.tree.checked import CallNote

Instance = ir.ExternInstance | BlockInstance | PacketParameter
ExternArgument = Instance | ir.Const
"""A constructor argument that is known when compiling: an instance or a constant."""
LOCALS = (
    tree.VariableDeclaration,
    tree.ConstantDeclaration,
    tree.Instance,
    tree.Action,
    tree.TableDeclaration,
    tree.ValueSetDeclaration,
)
"""Declarations of parsers and controls before their states or apply block."""


def scratch(world: World, frame: BodyFrame) -> Body:
    """A place to evaluate constants in, outside all routines."""
    return Body(world, ir.Routine("", "function"), frame)


# ---- making instances


def make(body: Body, note: CallNote, name: str, annotations: Sequence[tree.Annotation], position: Position) -> Instance:
    """The instance that a constructor call makes, under its name in the control plane. Raises P4Error."""
    declaration = note.declaration
    match declaration:
        case tree.ParserDeclaration() | tree.ControlDeclaration():
            frame = BodyFrame(body.world.globals, prefix=name)
            arguments = {p.name: a for p, a in zip(note.parameters, note.arguments, strict=False) if a is not None}
            for parameter in declaration.constructor_parameters:
                argument = arguments.get(parameter.name, parameter.default)
                if argument is None:
                    raise P4Error(f"constructor parameter {parameter.name} is not given", position)
                frame.bindings[parameter] = _argument(body, parameter, argument, f"{name}.{parameter.name}")
            return BlockInstance(declaration, name, frame)
        case tree.ExternDeclaration():
            return _extern(body, declaration, note, name, annotations, position)
    raise P4Error(f"an instance of {note.name} is not supported here", position)


def _argument(body: Body, parameter: tree.ParameterDeclaration, argument: tree.ExpressionNode, name: str) -> Binding:
    kind = body.world.checked.type_of.get(parameter)
    if isinstance(kind, types.ExternType | types.CallableType):
        return instance(body, argument, name)
    value = lower_expressions.expression(body, argument, body.kind_of(parameter))
    if not isinstance(value, ir.Const | ir.Build):
        raise P4Error("a constructor's argument must be known at compile time; write a constant", argument.position)
    return value


def _extern(
    body: Body,
    declaration: tree.ExternDeclaration,
    note: CallNote,
    name: str,
    annotations: Sequence[tree.Annotation],
    position: Position,
) -> ir.ExternInstance:
    architecture = body.world.architecture
    kind = architecture.externs.get(declaration.name)
    if kind is None:
        raise P4Error(f"extern {declaration.name} is not one of {architecture.name}'s; it is not supported", position)
    arguments: list[int | str] = []
    for argument in note.arguments:
        if argument is None:
            continue
        value = lower_expressions.expression(body, argument)
        if not isinstance(value, ir.Const):
            raise P4Error("a constructor's argument must be known at compile time; write a constant", argument.position)
        if isinstance(value.type, ir.EnumMember) and isinstance(value.value, int):
            member = value.type.members[value.value].lower()
            arguments.append(architecture.algorithms.get(member, member))
        else:
            arguments.append(value.value)
    kinds = tuple(body.kind(kind, position) for kind in note.type_arguments)
    extern = ir.ExternInstance(name, kind, kinds, tuple(arguments), notes(annotations), position)
    body.world.externs.append(extern)
    return extern


def declare(body: Body, node: tree.Instance) -> None:
    """An instance declared in a parser, a control, a block or at the top level."""
    note = body.world.checked.instances[node]
    if node.members is not None:
        raise P4Error(f"instance {node.name} has a body: abstract methods are not supported", node.position)
    name = control_name(body.frame.prefix, node.name, node.annotations)
    extern = body.frame.bindings[node] = make(body, note, name, node.annotations, node.position)
    if isinstance(extern, ir.ExternInstance) and extern.kind == internet_checksum.KIND:
        internet_checksum.declare(body, extern, node.name, node.position)


def instance(body: Body, node: tree.ExpressionNode, name: str = "") -> Instance:
    """The instance that an expression names, or makes under this name."""
    if isinstance(node, tree.Name):
        declaration = body.world.checked.declared.get(node)
        binding = body.frame.find(declaration) if declaration is not None else None
        if isinstance(binding, ir.ExternInstance | BlockInstance | PacketParameter):
            return binding
    if isinstance(node, tree.CallExpression):
        note = body.world.checked.calls.get(node)
        if note is not None and note.kind == "constructor":
            return nameless(body, node, note, name)
    raise P4Error("an instance of a parser, control or extern is expected here", node.position)


def nameless(body: Body, node: tree.Node, note: CallNote, name: str = "") -> Instance:
    """The instance that a constructor in an expression makes: one for each place and use of what is around."""
    known = body.world.nameless.get((node, body.frame))
    if known is None:
        called = name or control_name(body.frame.prefix, note.name, getattr(note.declaration, "annotations", []))
        called = unused(called, {block.name for block in body.world.nameless.values()})
        new_instance = make(body, note, called, (), node.position)
        assert not isinstance(new_instance, PacketParameter)
        known = body.world.nameless[node, body.frame] = new_instance
    return known


def applied(body: Body, node: tree.CallExpression, note: CallNote) -> BlockInstance:
    """The parser or control instance that a call of apply runs; `Type.apply(…)` makes one."""
    receiver = note.receiver
    if receiver is not None and not isinstance(receiver, tree.TypeExpression):
        block = instance(body, receiver)
    else:
        assert note.declaration is not None
        declaration = note.declaration
        name = getattr(declaration, "name", "")
        block = nameless(body, node, CallNote("constructor", name, declaration, (), []))
    if not isinstance(block, BlockInstance):
        raise P4Error("only parsers and controls can be applied", node.position)
    return block


# ---- routines


def distinct(externs: Sequence[Binding]) -> tuple[object, ...]:
    """A key that tells two uses apart; all packets count as the same."""
    return tuple(
        extern.value if isinstance(extern, ir.Const) else extern
        for extern in externs
        if not isinstance(extern, PacketParameter)
    )


def routine(world: World, block: BlockInstance, externs: tuple[ExternArgument, ...], position: Position) -> ir.Routine:
    """The routine of an instance. externs: what its extern and int parameters stand for. Raises P4Error."""
    if block.routine is not None:
        if distinct(block.externs) != distinct(externs):
            raise P4Error(f"{block.name} is applied with different externs; make one instance for each", position)
        return block.routine
    declaration = block.declaration
    kind = "parser" if isinstance(declaration, tree.ParserDeclaration) else "control"
    block.routine = ir.Routine(world.unique(block.name), kind, position=declaration.position)
    block.externs = externs
    body = Body(world, block.routine, block.frame, block.routine.body)
    _parameters(body, declaration.parameters, externs)
    for local in declaration.locals:
        if not isinstance(local, LOCALS):
            raise P4Error("this declaration is not supported here; move it to the top level", local.position)
        body.statement(local)
    if isinstance(declaration, tree.ParserDeclaration):
        lower_parsers.states(body, declaration)
    else:
        body.statements(declaration.body.items)
    tidy(block.routine, world.reach, body.temporaries)
    world.routines.append(block.routine)
    return block.routine


def _parameters(body: Body, parameters: Sequence[tree.ParameterDeclaration], externs: Sequence[Binding]) -> None:
    """Declares them; values that are `out` start at zero."""
    instances = iter(externs)
    for parameter in parameters:
        if body.is_instance(parameter):
            body.frame.bindings[parameter] = next(instances, PacketParameter())
            continue
        direction = parameter.direction or ("data" if body.routine.kind == "action" else "in")
        called = (given_name(parameter.annotations) if direction == "data" else None) or parameter.name
        variable = body.parameter(called, body.kind_of(parameter), direction, parameter.position)
        body.frame.bindings[parameter] = variable
        if direction == "out":
            body.emit(ir.Reset(ir.ReadVariable(variable.type, variable)))


def action(body: Body, node: tree.Action) -> ir.Routine:
    """The action's routine here: the control's own, or one at the top level."""
    binding = body.frame.find(node)
    if isinstance(binding, ir.Routine):
        return binding
    world = body.world
    lowered = ir.Routine(world.unique(control_name("", node.name, node.annotations)), "action", position=node.position)
    world.globals.bindings[node] = lowered
    _finish_action(Body(world, lowered, BodyFrame(world.globals), lowered.body), node)
    return lowered


def action_of(body: Body, node: tree.Action) -> None:
    """An action declared in a control."""
    name = control_name(body.frame.prefix, node.name, node.annotations)
    lowered = ir.Routine(body.world.unique(name), "action", owner=body.routine, position=node.position)
    body.frame.bindings[node] = lowered
    _finish_action(Body(body.world, lowered, BodyFrame(body.frame, prefix=body.frame.prefix), lowered.body), node)


def _finish_action(body: Body, node: tree.Action) -> None:
    _parameters(body, node.parameters, ())
    body.statements(node.body.items)
    tidy(body.routine, body.world.reach, body.temporaries)
    body.world.routines.append(body.routine)


def function(
    world: World, node: tree.Function, bound: dict[str, types.Type], externs: tuple[ExternArgument, ...]
) -> ir.Routine:
    """The function's routine for these types and externs."""
    frame = BodyFrame(world.globals, bound=bound)
    looking = scratch(world, frame)
    parameters = [p for p in node.prototype.parameters if not looking.is_instance(p)]
    kinds = tuple(looking.kind_of(p) for p in parameters)
    returns = world.checked.type_of.get(node.prototype.returns) if node.prototype.returns is not None else None
    result = looking.kind(returns, node.position) if returns is not None and returns != types.VOID else None
    key = (node, kinds, result, tuple(str(kind) for kind in bound.values()), distinct(externs))
    known = world.functions.get(key)
    if known is not None:
        return known
    lowered = ir.Routine(world.unique(node.prototype.name), "function", returns=result, position=node.position)
    world.functions[key] = lowered
    body = Body(world, lowered, frame, lowered.body)
    _parameters(body, node.prototype.parameters, externs)
    body.statements(node.body.items)
    tidy(lowered, world.reach, body.temporaries)
    world.routines.append(lowered)
    return lowered
