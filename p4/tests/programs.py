"""Small programs built by hand from ir nodes: what back ends are given, without a front end in between."""

from p4vm.architectures.v1model import V1MODEL
from p4vm.ir import ir_nodes as ir

ERRORS = ir.EnumMember("error", ("NoError", "PacketTooShort", "NoMatch", "StackOutOfBounds", "HeaderTooShort"))
STANDARD = ir.Record(
    "struct",
    "standard_metadata_t",
    (
        ("ingress_port", ir.Bits(9)),
        ("egress_spec", ir.Bits(9)),
        ("egress_port", ir.Bits(9)),
        ("instance_type", ir.Bits(32)),
        ("packet_length", ir.Bits(32)),
        ("enq_timestamp", ir.Bits(32)),
        ("enq_qdepth", ir.Bits(19)),
        ("deq_timedelta", ir.Bits(32)),
        ("deq_qdepth", ir.Bits(19)),
        ("ingress_global_timestamp", ir.Bits(48)),
        ("egress_global_timestamp", ir.Bits(48)),
        ("mcast_grp", ir.Bits(16)),
        ("egress_rid", ir.Bits(16)),
        ("checksum_error", ir.Bits(1)),
        ("parser_error", ERRORS),
        ("priority", ir.Bits(3)),
    ),
)
ETHERNET = ir.Record("header", "ethernet_t", (("dst", ir.Bits(48)), ("src", ir.Bits(48)), ("kind", ir.Bits(16))))
HEADERS = ir.Record("struct", "headers_t", (("ethernet", ETHERNET),))
METADATA = ir.Record("struct", "metadata_t", (("seen", ir.Bits(32)),))


def bits(width: int, value: int) -> ir.Const:
    return ir.Const(ir.Bits(width), value)


def member(base: ir.Expression, *path: str) -> ir.Expression:
    """base.path[0].path[1]…"""
    for field in path:
        assert isinstance(base.type, ir.Record)
        base = ir.FieldOf(base.type.field_type(field), base, field)
    return base


def local(variable: ir.Variable) -> ir.ReadVariable:
    return ir.ReadVariable(variable.type, variable)


def routine(name: str, kind: str, *parameters: tuple[str, str, ir.Type]) -> ir.Routine:
    """parameters: (direction, name, type)."""
    made = ir.Routine(name, kind)
    made.parameters = [ir.Parameter(ir.Variable(called, of, name), direction) for direction, called, of in parameters]
    return made


def empty_control(name: str, *, standard: bool) -> ir.Routine:
    last = [("inout", "standard", STANDARD)] if standard else []
    return routine(name, "control", ("inout", "hdr", HEADERS), ("inout", "meta", METADATA), *last)


def parameter(of: ir.Routine, name: str) -> ir.ReadVariable:
    return local(next(p.variable for p in of.parameters if p.variable.name == name))


def ethernet_parser() -> ir.Routine:
    made = routine(
        "MyParser", "parser", ("out", "hdr", HEADERS), ("inout", "meta", METADATA), ("inout", "standard", STANDARD)
    )
    extract = ir.Extract(member(parameter(made, "hdr"), "ethernet"))
    made.states = {"start": [extract, ir.Return()]}
    return made


def ethernet_deparser() -> ir.Routine:
    made = routine("MyDeparser", "control", ("in", "hdr", HEADERS))
    made.body = [ir.Emit(member(parameter(made, "hdr"), "ethernet"))]
    return made


def program(ingress: ir.Routine, actions: list[ir.Routine]) -> ir.ProgramIr:
    """Ethernet in, Ethernet out, this ingress in between. actions: routines it needs, callees before callers."""
    six = {
        "parser": ethernet_parser(),
        "verify": empty_control("MyVerify", standard=False),
        "ingress": ingress,
        "egress": empty_control("MyEgress", standard=True),
        "compute": empty_control("MyCompute", standard=False),
        "deparser": ethernet_deparser(),
    }
    return ir.ProgramIr(
        "by hand",
        V1MODEL,
        six,
        {"headers": HEADERS, "metadata": METADATA, "standard": STANDARD},
        errors=ERRORS,
        routines=[*actions, *six.values()],
        records=[ETHERNET, HEADERS, METADATA, STANDARD],
    )


def forwarder() -> ir.ProgramIr:
    """Table MyIngress.forwarding: exact destination -> MyIngress.forward(port), or MyIngress.drop (the default)."""
    ingress = empty_control("MyIngress", standard=True)
    standard = parameter(ingress, "standard")
    forward = routine("MyIngress.forward", "action", ("data", "port", ir.Bits(9)), ("inout", "standard", STANDARD))
    forward.owner = ingress
    spec = member(parameter(forward, "standard"), "egress_spec")
    forward.body = [ir.Assign(spec, parameter(forward, "port"))]
    drop = routine("MyIngress.drop", "action")
    drop.owner = ingress
    drop.body = [ir.CallExtern("mark_to_drop", None, [])]
    table = ir.Table(
        "MyIngress.forwarding",
        [ir.Key("hdr.ethernet.dst", "exact", member(parameter(ingress, "hdr"), "ethernet", "dst"))],
        [ir.TableAction("MyIngress.forward", forward, [standard]), ir.TableAction("MyIngress.drop", drop)],
        default=1,
        entries=[ir.Entry([(0x0000_0000_0001, None)], 0, (1,))],
    )
    hit = ir.Variable("hit", ir.Bool(), "MyIngress")
    ingress.locals = [hit]
    source = ir.Assign(member(parameter(ingress, "hdr"), "ethernet", "src"), bits(48, 0xA))
    ingress.body = [
        ir.If(
            [
                (
                    ir.Valid(ir.Bool(), member(parameter(ingress, "hdr"), "ethernet")),
                    [ir.ApplyTable(table, hit=local(hit)), ir.If([(local(hit), [source])], [])],
                )
            ],
            [ir.Invoke(drop, [])],
        )
    ]
    made = program(ingress, [forward, drop])
    made.tables = [table]
    return made


def counter_of_ports() -> ir.ProgramIr:
    """Sends each packet back; register MyIngress.seen counts packets per ingress port, and goes out as src.

    Counter MyIngress.packets (8 cells) counts them too, by ingress port.
    """
    ingress = empty_control("MyIngress", standard=True)
    standard, metadata = parameter(ingress, "standard"), parameter(ingress, "meta")
    register = ir.ExternInstance("MyIngress.seen", "register", (ir.Bits(32),), (512,))
    counter = ir.ExternInstance("MyIngress.packets", "counter", (), (8, "packets_and_bytes"))
    port = ir.Cast(ir.Bits(32), member(standard, "ingress_port"))
    seen = member(metadata, "seen")
    ingress.body = [
        ir.Assign(seen, ir.Binary(ir.Bits(32), "+", ir.RegisterCell(ir.Bits(32), register, port), bits(32, 1))),
        ir.Assign(ir.RegisterCell(ir.Bits(32), register, port), seen),
        ir.CallExtern("counter.count", counter, [port]),
        ir.Assign(member(parameter(ingress, "hdr"), "ethernet", "src"), ir.Cast(ir.Bits(48), seen)),
        ir.Assign(member(standard, "egress_spec"), member(standard, "ingress_port")),
    ]
    made = program(ingress, [])
    made.externs = [register, counter]
    return made
