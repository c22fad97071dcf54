"""PSA's InternetChecksum, as statements on a variable of 16 bits: what has been added up, in ones' complement."""

from p4vm.ir import ir_nodes as ir
from p4vm.lower import fold, lower_externs
from p4vm.lower.body import Body
from p4vm.source import P4Error, Position

KIND = "InternetChecksum"
SUM = ir.Bits(16)
WIDE = ir.Bits(17)


def declare(body: Body, instance: ir.ExternInstance, name: str, position: Position) -> None:
    """The instance's variable, zero whenever its parser or control starts."""
    variable = body.world.sums[instance] = body.declare(name, SUM, position)
    body.emit(ir.Reset(ir.ReadVariable(SUM, variable)))


def call(
    body: Body, instance: ir.ExternInstance, method: str, arguments: list[ir.Expression], position: Position
) -> ir.Expression | None:
    """A call of one of the instance's methods. Raises P4Error: it isn't this parser's or control's own instance."""
    variable = body.world.sums.get(instance)
    owner = body.routine.owner
    if variable is None or variable.routine not in (body.routine.name, owner.name if owner is not None else ""):
        raise P4Error(f"{instance.name} is used outside the parser or control that declares it", position)
    total = ir.ReadVariable(SUM, variable)
    match method:
        case "clear":
            body.emit(ir.Reset(total))
        case "set_state":
            body.emit(ir.Assign(total, arguments[0]))
        case "get_state":
            return body.keep(total)
        case "get":
            return body.keep(fold.unary("~", SUM, total))
        case _:
            negative = fold.cast(SUM, lower_externs.hashed(body, "csum16", arguments[0]))
            _add(body, total, negative if method == "subtract" else fold.unary("~", SUM, negative))
    return None


def _add(body: Body, total: ir.ReadVariable, word: ir.Expression) -> None:
    """The carry comes back in at the low end."""
    wide = body.temporary(WIDE)
    body.emit(ir.Assign(wide, ir.Binary(WIDE, "+", ir.Cast(WIDE, total), ir.Cast(WIDE, word))))
    carry = ir.Cast(SUM, ir.BitSlice(ir.Bits(1), wide, 16, 16))
    body.emit(ir.Assign(total, ir.Binary(SUM, "+", ir.BitSlice(SUM, wide, 15, 0), carry)))
