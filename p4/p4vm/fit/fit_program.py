"""Does a TNA program fit a Tofino 1? Stages, stateful ALUs, memory, headers, passes; and what of line rate is left.

A static check against published limits (`chip_model.Limits`), without the vendor's compiler: what breaks one whatever a
compiler does is refused; what a compiler may find a way around is a warning; what is accepted, a compiler may still
refuse for reasons that are not public (header allocation, crossbars).
"""

from collections.abc import Sequence
from pathlib import Path

from p4vm.compile import checked_program
from p4vm.fit.chip_model import TOFINO, Fault, Fit, Limits
from p4vm.fit.elaborate import Elaboration
from p4vm.fit.place import Placement, repeated_accesses, without_room
from p4vm.fit.registers import flat_widths
from p4vm.node import nodes
from p4vm.source import P4Error
from p4vm.tree import tree_nodes as tree
from p4vm.tree.checked import CallNote, Checked

RECIRCULATIONS = "RECIRCULATIONS"
"""A constant of this name in the program: how many further passes a packet makes."""

PIPELINE_BLOCKS = 6
SWITCHES = ("Switch", "MultiParserSwitch")
PARSERS = ("IngressParsers", "EgressParsers")
"""Packages that hold a parser for each port in the place of one; the first parser is read."""


def fit(
    path: Path | str,
    *,
    includes: Sequence[Path | str] = (),
    defines: dict[str, str] | None = None,
    recirculations: int | None = None,
    limits: Limits = TOFINO,
) -> Fit:
    """Judge a program. recirculations: instead of what the program says. Raises P4Error if it isn't a TNA program."""
    checked, _ = checked_program(path, includes, {"__TARGET_TOFINO__": "1"} | (defines or {}))
    ingress_parser, ingress, _, egress_parser, egress, _ = pipeline(checked, str(path))
    result = Fit(str(path), [], [], [], {}, 0, [], limits)
    for direction, parser, control in (("ingress", ingress_parser, ingress), ("egress", egress_parser, egress)):
        assert isinstance(control, tree.ControlDeclaration)
        elaboration = Elaboration(checked, direction, limits)
        elaboration.run(control)
        result.units += elaboration.units
        result.memories += elaboration.memories
        result.faults += elaboration.faults
        result.header_bits[direction] = header_bits(checked, parser) + elaboration.locals_bits
        if result.header_bits[direction] > limits.header_bits:
            result.faults.append(
                Fault(
                    f"{direction} headers, metadata and variables take {result.header_bits[direction]} bits; the "
                    f"header vector has {limits.header_bits}",
                    control.position,
                    certain=False,  # headers that no packet has at once may share their place
                )
            )
    result.faults += repeated_accesses(result.units)
    impossible = without_room(result.units, limits)
    placement = Placement(result.units, limits)
    placement.run()
    result.stages = placement.stages
    result.faults += impossible or placement.faults
    result.recirculations = passes(checked, limits, recirculations, result.faults)
    faults = sorted(set(result.faults), key=lambda fault: (str(fault.position.file), fault.position.line, str(fault)))
    result.faults = [fault for fault in faults if fault.certain]
    result.warnings = [fault for fault in faults if not fault.certain]
    return result


def pipeline(checked: Checked, path: str) -> list[tree.ParserDeclaration | tree.ControlDeclaration]:
    """The six blocks of the first pipeline: the parser, control and deparser of ingress, then of egress."""
    main = checked.main
    if main is None or checked.instances[main].name not in SWITCHES or not main.arguments:
        raise P4Error(f"{path}: not a TNA program: it has no `Switch(pipe) main;` over Pipeline(…)")
    first = construction(checked, checked.instances[main].arguments[0])
    blocks = [construction(checked, argument) for argument in first.arguments] if first is not None else []
    blocks = [construction(checked, b.arguments[0]) if b and b.name in PARSERS else b for b in blocks]
    declarations = [block.declaration for block in blocks if block is not None]
    if len(declarations) != PIPELINE_BLOCKS:
        raise P4Error("a pipeline needs its six blocks, each a parser or control made here", main.position)
    return [block for block in declarations if isinstance(block, tree.ParserDeclaration | tree.ControlDeclaration)]


def construction(checked: Checked, node: tree.ExpressionNode | None) -> CallNote | None:
    """The constructor call in Name(…), or in the declaration of the instance of this name."""
    if isinstance(node, tree.CallExpression):
        return checked.calls[node]
    instance = checked.declared.get(node) if isinstance(node, tree.Name) else None
    return checked.instances[instance] if isinstance(instance, tree.Instance) else None


def header_bits(checked: Checked, parser: tree.ParserDeclaration | tree.ControlDeclaration) -> int:
    """Bits of all headers and metadata that a parser fills; intrinsic metadata has its place of its own."""
    outs = [p for p in parser.parameters if p.direction in ("out", "inout")]
    return sum(sum(flat_widths(checked.type_of[parameter.type])) for parameter in outs[:2])


def passes(checked: Checked, limits: Limits, recirculations: int | None, faults: list[Fault]) -> int:
    """Recirculations per packet: as given, as the constant says, or none if no packet is sent to such a port."""
    if recirculations is not None:
        return recirculations
    for declaration in checked.program.declarations:
        if isinstance(declaration, tree.ConstantDeclaration) and declaration.name == RECIRCULATIONS:
            value = checked.constants.get(declaration.value)
            if isinstance(value, int) and value >= 0:
                return value
            raise P4Error(f"{RECIRCULATIONS} must be a number of passes", declaration.position)
    for node in nodes(checked.program.declarations):
        if isinstance(node, tree.AssignmentStatement) and _to_recirculation(checked, node, limits):
            faults.append(
                Fault(
                    f"packets go to a recirculation port, but nothing says how often: declare const {RECIRCULATIONS}, "
                    f"or give --recirculations",
                    node.position,
                    certain=False,
                )
            )
            break
    return 0


def _to_recirculation(checked: Checked, node: tree.AssignmentStatement, limits: Limits) -> bool:
    target, value = node.target, checked.constants.get(node.value)
    if (
        not isinstance(target, tree.MemberExpression)
        or target.name != "ucast_egress_port"
        or not isinstance(value, int)
    ):
        return False
    return value % 128 in limits.recirculation_ports
