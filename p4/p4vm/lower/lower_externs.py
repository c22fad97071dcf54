"""What calls of externs become: statements of the IR, and the few calls that back ends have a text for."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from p4vm.algorithms import HASHES
from p4vm.architectures.v1model import DROP_PORT
from p4vm.ir import ir_nodes as ir
from p4vm.ir.ir_nodes import is_signed, width_of
from p4vm.ir.reach import is_plain
from p4vm.ir.walk import parts_of
from p4vm.lower import fold, lower_places
from p4vm.lower.body import Body
from p4vm.lower.kinds import BIT32, BIT64, BOOL, INT
from p4vm.source import P4Error, Position

NO_LIST = ir.Const(BIT32, 0xFFFF_FFFF)
"""The number of a field list that no program has."""


@dataclass(frozen=True, slots=True)
class ExternCall:
    """name: of a function, or kind and method. arguments: values, and places where it writes. returns: type of its
    value, if it has one."""

    name: str
    instance: ir.ExternInstance | None
    arguments: list[ir.Expression]
    returns: ir.Type | None
    position: Position

    @property
    def extern(self) -> ir.ExternInstance:
        assert self.instance is not None
        return self.instance


def call(body: Body, extern: ExternCall) -> ir.Expression | None:
    """Emits the call; gives its value, if it has one. Raises P4Error."""
    if extern.name not in HANDLERS:
        raise P4Error(f"method {extern.name} is not supported", extern.position)
    handler, target = HANDLERS[extern.name]
    value = handler(body, extern)
    if value is None:
        return None
    if extern.returns is not None:
        return body.keep(_fitted(value, extern.returns))
    place = extern.arguments[target]
    lower_places.assign(body, place, _fitted(value, place.type))
    return None


def with_width(value: ir.Expression) -> ir.Expression:
    """A number of type int gets the bits it needs: externs take values of any width."""
    known = fold.number(value)
    if value.type != INT or known is None:
        return value
    return ir.Const(ir.Bits(max(known.bit_length(), 1) + (known < 0), known < 0), known)


def scalars(body: Body, value: ir.Expression) -> list[ir.Expression]:
    """All scalars in a value, in order, whether headers are valid or not."""
    if not isinstance(value.type, ir.Record | ir.Array):
        return [with_width(value)]
    value = body.keep(value) if isinstance(value, ir.Invalid) else value
    return [scalar for part in parts_of(value) for scalar in scalars(body, part)]


def _pieces(value: ir.Expression, condition: ir.Expression | None = None) -> list[ir.Expression]:
    """All scalars in a value, in order; those of headers with the condition that they are valid."""
    if isinstance(value, ir.Invalid):
        return []
    if not isinstance(value.type, ir.Record | ir.Array):
        return [value if condition is None else ir.Guarded(value.type, condition, value)]
    if isinstance(value.type, ir.Record) and value.type.kind == "header" and not isinstance(value, ir.Build):
        condition = ir.Valid(BOOL, value)
    return [piece for part in parts_of(value) for piece in _pieces(part, condition)]


def hashed(
    body: Body, algorithm: str, data: ir.Expression, *, payload: bool = False, padding: int = 0
) -> ir.Expression:
    """The hash of the data, as bit<64>. padding: zero bits before it."""
    target = body.temporary(BIT64)
    zeros = [ir.Const(ir.Bits(padding), 0)] if padding else []
    body.emit(ir.Hash(target, algorithm, [*zeros, *_pieces(data)], payload))
    return target


def _fitted(value: ir.Expression, kind: ir.Type) -> ir.Expression:
    """A number as a value of the type; of a meter's color enum: the member for its 0, 1 or 2."""
    if not isinstance(kind, ir.EnumMember) or value.type == kind:
        return fold.cast(kind, value)
    green, yellow, red = (ir.Const(kind, kind.members.index(color)) for color in ("GREEN", "YELLOW", "RED"))
    is_green, is_yellow = (ir.Binary(BOOL, "==", value, ir.Const(value.type, number)) for number in (0, 1))
    return ir.Mux(kind, is_green, green, ir.Mux(kind, is_yellow, yellow, red))


@contextmanager
def _where(body: Body, condition: ir.Expression) -> Iterator[None]:
    """What is emitted within it runs where the condition holds."""
    with body.into([]) as inner:
        yield
    known = fold.number(condition)
    if known is None:
        body.emit(ir.If([(condition, inner)], []))
    elif known:
        body.out.extend(inner)


def _answered(body: Body, extern: ExternCall, name: str, kind: ir.Bits, *arguments: ir.Expression) -> ir.Expression:
    """Emits a call that writes a variable of this type first; gives that."""
    target = body.temporary(kind)
    body.emit(ir.CallExtern(name, extern.instance, [target, *arguments]))
    return target


# ---- state


def _register_read(body: Body, extern: ExternCall) -> ir.Expression | None:
    *targets, index = extern.arguments
    target = targets[0] if targets else body.temporary(extern.extern.cell)
    if isinstance(target.type, ir.Record):
        raise P4Error(f"a register is read into a value of bits, not into {target.type.name}", extern.position)
    place = target if is_plain(target) else body.temporary(target.type)
    _at_cell(body, extern.extern, index, lambda cell: ir.Assign(place, cell), [ir.Reset(place)])
    return None if place is target and targets else place


def _register_write(body: Body, extern: ExternCall) -> None:
    index, value = extern.arguments
    _at_cell(body, extern.extern, index, lambda cell: ir.Assign(cell, fold.cast(cell.type, value)), [])


def _at_cell(
    body: Body,
    register: ir.ExternInstance,
    index: ir.Expression,
    access: Callable[[ir.Expression], ir.Statement],
    beyond: list[ir.Statement],
) -> None:
    """Emits an access to a register's cell, and what to do where there is no such cell."""
    index = fold.small(index)
    if not isinstance(index, ir.ReadVariable):
        index = body.keep(index)
    known = fold.number(index)
    inside = [access(ir.RegisterCell(register.cell, register, index))]
    outside = [*beyond, ir.CallExtern("register.out_of_range", None, [])]
    if known is not None or 1 << width_of(index.type) <= register.cells:
        for statement in inside if (known or 0) < register.cells else outside:
            body.emit(statement)
    else:
        within = ir.Binary(BOOL, "<", index, ir.Const(index.type, register.cells))
        body.emit(ir.If([(within, inside)], outside))


def _count(body: Body, extern: ExternCall) -> None:
    body.emit(ir.CallExtern("counter.count", extern.instance, [fold.small(extern.arguments[0])]))


def _meter(body: Body, extern: ExternCall) -> ir.Expression:
    return _answered(body, extern, "meter.color", BIT32, fold.small(extern.arguments[0]))


def _direct_meter(body: Body, extern: ExternCall) -> ir.Expression:
    return _answered(body, extern, "direct_meter.color", BIT32)


# ---- numbers


def _random(body: Body, extern: ExternCall) -> None:
    target, *bounds = extern.arguments
    kind = ir.Bits(64, is_signed(bounds[0].type))
    low, high = (body.keep(fold.cast(kind, bound)) for bound in bounds)
    with _where(body, fold.binary("<=", BOOL, low, high)):
        drawn = _answered(body, extern, "random", BIT64, low, high)
        lower_places.assign(body, target, _fitted(drawn, target.type))


def _random_read(body: Body, extern: ExternCall) -> ir.Expression:
    """Raises P4Error: the least number is greater than the greatest."""
    low, high = (int(argument) for argument in extern.extern.arguments)
    if not 0 <= low <= high < 1 << 64:
        raise P4Error(
            f"{extern.extern.name} draws from {low} to {high}; from 0 to 2**64 - 1 is possible", extern.extern.position
        )
    return _answered(body, extern, "random", BIT64, ir.Const(BIT64, low), ir.Const(BIT64, high))


def _algorithm(extern: ExternCall, argument: ir.Expression) -> str:
    """The member of HashAlgorithm that a call names. Raises P4Error: it isn't known when compiling."""
    kind = argument.type
    if not isinstance(argument, ir.Const) or not isinstance(kind, ir.EnumMember):
        raise P4Error(
            f"the algorithm of {extern.name} isn't known when compiling; name one of HashAlgorithm", extern.position
        )
    return _known(kind.members[int(argument.value)], extern.position)


def _known(algorithm: str, position: Position) -> str:
    if algorithm != "random" and algorithm not in HASHES:
        raise P4Error(f"there is no algorithm {algorithm}; there are {', '.join(HASHES)} and random", position)
    return algorithm


def _within(value: ir.Expression, base: ir.Expression, limit: ir.Expression) -> ir.Expression:
    """base + value mod limit, all of 64 bits; a limit of 0 counts as 1."""
    part = fold.binary("%", BIT64, value, fold.cast(BIT64, limit))
    return fold.binary("+", BIT64, part, fold.cast(BIT64, base))


def _hash(body: Body, extern: ExternCall) -> ir.Expression:
    _, algorithm, base, data, limit = extern.arguments
    return _within(hashed(body, _algorithm(extern, algorithm), data), base, limit)


def _get_hash(body: Body, extern: ExternCall) -> ir.Expression:
    """psa_switch puts the zeros that the data's bytes lack before the first bit."""
    data = extern.arguments[len(extern.arguments) // 2]
    algorithm = _known(str(extern.extern.arguments[0]), extern.position)
    value = hashed(body, algorithm, data, padding=-width_of(data.type) % 8)
    return _within(value, extern.arguments[0], extern.arguments[2]) if len(extern.arguments) > 1 else value


def _checksum16(body: Body, extern: ExternCall) -> ir.Expression:
    return hashed(body, "csum16", extern.arguments[0])


def _checksum(body: Body, extern: ExternCall) -> ir.Expression:
    """The checksum of a call of verify_checksum or update_checksum."""
    _, data, checksum, algorithm = extern.arguments
    payload = extern.name.endswith("_with_payload")
    return fold.cast(checksum.type, hashed(body, _algorithm(extern, algorithm), data, payload=payload))


def _verify_checksum(body: Body, extern: ExternCall) -> None:
    condition, _, checksum, _ = extern.arguments
    conditions = [condition]
    if isinstance(checksum, ir.FieldOf) and getattr(checksum.base.type, "kind", "") == "header":
        conditions.append(ir.Valid(BOOL, checksum.base))
    with _where(body, fold.all_of(conditions)):
        differs = ir.Binary(BOOL, "!=", _checksum(body, extern), checksum)
        body.emit(ir.If([(differs, [ir.CallExtern("checksum_error", None, [])])], []))


def _update_checksum(body: Body, extern: ExternCall) -> None:
    with _where(body, extern.arguments[0]):
        lower_places.assign(body, extern.arguments[2], _checksum(body, extern))


# ---- requests to the pipeline, and what programs tell


def _mark_to_drop(body: Body, extern: ExternCall) -> None:
    if not extern.arguments:
        body.emit(ir.CallExtern("mark_to_drop", None, []))
        return
    standard = extern.arguments[0]
    assert isinstance(standard.type, ir.Record)
    for name, kind in standard.type.fields:
        if name in ("egress_spec", "mcast_grp"):
            value = ir.Const(kind, DROP_PORT if name == "egress_spec" else 0)
            lower_places.assign(body, ir.FieldOf(kind, standard, name), value)


def _request(body: Body, extern: ExternCall) -> None:
    """clone, resubmit or recirculate, with the field list that the packet keeps."""
    name = extern.name.removesuffix("_preserving_field_list")
    session = [fold.cast(BIT64, extern.arguments[1])] if name.startswith("clone") else []
    fields = NO_LIST if name == extern.name else fold.small(extern.arguments[-1])
    body.emit(ir.CallExtern(name.removesuffix("3"), None, [*session, fields]))


def _truncate(body: Body, extern: ExternCall) -> None:
    body.emit(ir.CallExtern("truncate", None, [fold.small(extern.arguments[0])]))


def _digest(body: Body, extern: ExternCall) -> None:
    *receivers, data = extern.arguments
    receiver = receivers[0] if receivers else ir.Const(BIT32, 0)
    body.emit(ir.CallExtern(extern.name, None, [receiver, *scalars(body, data)], position=extern.position))


def _check(body: Body, extern: ExternCall) -> None:
    with _where(body, fold.unary("!", BOOL, extern.arguments[0])):
        body.emit(ir.CallExtern(extern.name, None, [], position=extern.position))


Handler = Callable[[Body, ExternCall], ir.Expression | None]
HANDLERS: dict[str, tuple[Handler, int]] = {
    "register.read": (_register_read, 0),
    "register.write": (_register_write, 0),
    "counter.count": (_count, 0),
    "direct_counter.count": (lambda *_: None, 0),  # where its table is applied
    "meter.execute_meter": (_meter, 1),
    "meter.execute": (_meter, 0),
    "direct_meter.read": (_direct_meter, 0),
    "direct_meter.execute": (_direct_meter, 0),
    "random": (_random, 0),
    "Random.read": (_random_read, 0),
    "hash": (_hash, 0),
    "Hash.get_hash": (_get_hash, 0),
    "Checksum16.get": (_checksum16, 0),
    "verify_checksum": (_verify_checksum, 0),
    "verify_checksum_with_payload": (_verify_checksum, 0),
    "update_checksum": (_update_checksum, 0),
    "update_checksum_with_payload": (_update_checksum, 0),
    "mark_to_drop": (_mark_to_drop, 0),
    "clone": (_request, 0),
    "clone3": (_request, 0),
    "clone_preserving_field_list": (_request, 0),
    "resubmit": (_request, 0),
    "resubmit_preserving_field_list": (_request, 0),
    "recirculate": (_request, 0),
    "recirculate_preserving_field_list": (_request, 0),
    "truncate": (_truncate, 0),
    "digest": (_digest, 0),
    "Digest.pack": (_digest, 0),
    "assert": (_check, 0),
    "assume": (_check, 0),
}
"""Name of a function, or type and method -> what writes its calls, giving a value or not; which argument takes that
where the program's call returns nothing."""
