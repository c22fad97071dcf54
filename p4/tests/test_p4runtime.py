"""Controllers over gRPC: what they write is there and does what it says, what they ask wrongly is refused by code."""

import json
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from everything import packet, switch

import p4vm.p4runtime  # noqa: F401
from p4vm.check.check_program import check
from p4vm.compile import compile_program
from p4vm.control.controlled_switch import ControlledSwitch
from p4vm.control.p4info import p4info
from p4vm.front.parse_program import parse_text
from p4vm.host.software_switch import Host, SoftwareSwitchOptions
from p4vm.lower.lower_program import lower
from p4vm.python.python_engine import PythonEngine

grpc = pytest.importorskip("grpc", reason="needs the extra p4runtime")
pb = pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs the extra p4runtime")
INSERT, MODIFY, DELETE = pb.Update.INSERT, pb.Update.MODIFY, pb.Update.DELETE

RELAY = """
#include <core.p4>
#include <v1model.p4>
enum bit<8> Why { sent = 3, other = 200 }
@controller_header("packet_out") header packet_out_header_t { bit<9> port; bit<7> pad; }
@controller_header("packet_in") header packet_in_header_t { bit<9> port; Why why; bit<7> pad; }
struct headers_t { packet_out_header_t out_; packet_in_header_t in_; }
struct meta_t { }
parser MyParser(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    state start { packet.extract(hdr.out_); transition accept; }
}
control Nothing(inout headers_t hdr, inout meta_t meta) { apply { } }
control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    @id(0x77) action quiet() { }
    @id(5) table nothing { key = { hdr.out_.port: exact; } actions = { quiet; } support_timeout = true; }
    apply { nothing.apply(); standard.egress_spec = hdr.out_.port; hdr.out_.setInvalid(); }
}
control MyEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    apply { hdr.in_.setValid(); hdr.in_ = { standard.ingress_port, Why.sent, 0 }; }
}
control MyDeparser(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.in_); } }
V1Switch(MyParser(), Nothing(), MyIngress(), MyEgress(), Nothing(), MyDeparser()) main;
"""


def relay() -> ControlledSwitch:
    return ControlledSwitch(PythonEngine(lower(check(parse_text(RELAY, "relay.p4")), "relay.p4")))


class Controller:
    """A client as controllers are: a stream that asks for the primary's place, and calls."""

    def __init__(self, address: str, election: int = 1, device: int = 7) -> None:
        from p4.v1.p4runtime_pb2_grpc import P4RuntimeStub

        self.device, self.election = device, pb.Uint128(low=election)
        self.channel = grpc.insecure_channel(address)
        self.stub = P4RuntimeStub(self.channel)
        self.requests: queue.Queue[Any] = queue.Queue()
        self.stream = self.stub.StreamChannel(iter(self.requests.get, None), timeout=60)

    def arbitrate(self) -> int:
        """The code that says whether it is primary: 0."""
        request = pb.StreamMessageRequest()
        request.arbitration.device_id, request.arbitration.election_id.low = self.device, self.election.low
        self.requests.put(request)
        return int(next(self.stream).arbitration.status.code)

    def write(self, kind: int, **entity: Any) -> None:
        self.write_all([(kind, entity)])

    def write_all(self, updates: list[tuple[int, dict[str, Any]]]) -> None:
        made = [pb.Update(type=kind, entity=pb.Entity(**entity)) for kind, entity in updates]
        self.stub.Write(pb.WriteRequest(device_id=self.device, election_id=self.election, updates=made))

    def read(self, **entity: Any) -> list[Any]:
        asked = pb.ReadRequest(device_id=self.device, entities=[pb.Entity(**entity)])
        (name,) = entity
        return [getattr(found, name) for answer in self.stub.Read(asked) for found in answer.entities]

    def install(self, info: Any, device_config: bytes = b"") -> None:
        request = pb.SetForwardingPipelineConfigRequest(device_id=self.device, election_id=self.election)
        request.action = pb.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
        request.config.p4info.CopyFrom(info)
        request.config.p4_device_config = device_config
        self.stub.SetForwardingPipelineConfig(request)

    def close(self) -> None:
        self.requests.put(None)
        self.channel.close()


class Served:
    """A switch that is served, with a thread of its own; no interface but the CPU port."""

    def __init__(self, running: ControlledSwitch, folder: Path) -> None:
        from p4vm.p4runtime.service import RuntimeService

        self.switch = running
        self.service = RuntimeService(running, "127.0.0.1:0", device=7, cpu_port=510)
        assert self.service.cpu is not None
        options = SoftwareSwitchOptions(control=str(folder / "c"), cpu=self.service.cpu.port, turns=self.service.turns)
        self.host = Host(running, {}, options)
        self.thread = threading.Thread(target=self.host.run)
        self.thread.start()
        self.controllers: list[Controller] = []

    def controller(self, election: int = 1) -> Controller:
        self.controllers.append(Controller(f"127.0.0.1:{self.service.port}", election))
        return self.controllers[-1]

    def process(self, data: bytes) -> list[tuple[int, bytes]]:
        return self.service.turns.carry_out(lambda: self.switch.process(0, data))

    def close(self) -> None:
        for one in self.controllers:
            one.close()
        self.host.stop()
        self.thread.join(10)
        self.host.close()
        self.service.close()
        assert not self.thread.is_alive()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[ControlledSwitch], Served]]:
    made: list[Served] = []

    def start(running: ControlledSwitch) -> Served:
        made.append(Served(running, tmp_path))
        return made[-1]

    yield start
    for one in made:
        one.close()


def other_ids(running: ControlledSwitch) -> tuple[Any, dict[str, int]]:
    """The program's P4Info with other ids, as another compiler may give; ids by name."""
    from p4vm.p4runtime.runtime_pipeline import info_of

    text = json.dumps(p4info(running.program))
    for part in (one for parts in p4info(running.program).values() if isinstance(parts, list) for one in parts):
        number = part["preamble"]["id"]
        text = text.replace(f": {number}", f": {number ^ 0x5A}").replace(f"[{number}]", f"[{number ^ 0x5A}]")
    from google.protobuf import json_format
    from p4.config.v1 import p4info_pb2

    info = json_format.Parse(text, p4info_pb2.P4Info())
    assert info != info_of(running.program)
    lists = (
        info.tables,
        info.actions,
        info.counters,
        info.registers,
        info.action_profiles,
        info.meters,
        info.value_sets,
    )
    return info, {part.preamble.name.rpartition(".")[2]: part.preamble.id for parts in lists for part in parts}


def action(number: int, *values: int) -> Any:
    made = pb.TableAction()
    made.action.CopyFrom(direct(number, *values))
    return made


def direct(number: int, *values: int) -> Any:
    made = pb.Action(action_id=number)
    for at, value in enumerate(values, 1):
        made.params.add(param_id=at, value=value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big"))
    return made


def test_what_a_controller_writes_is_there_and_works(serve: Callable[[ControlledSwitch], Served]) -> None:
    served = serve(switch())
    controller = served.controller()
    assert controller.arbitrate() == 0
    info, ids = other_ids(served.switch)
    controller.install(info)
    lpm = pb.FieldMatch(field_id=1, lpm=pb.FieldMatch.LPM(value=b"\x0a\0\1\0", prefix_len=24))
    route = pb.TableEntry(table_id=ids["routes"], match=[lpm], action=action(ids["forward"], 0x22, 2), metadata=b"mine")
    ternary = pb.FieldMatch(field_id=1, ternary=pb.FieldMatch.Ternary(value=b"\x0a\0\0\x09", mask=b"\xff" * 4))
    low = pb.FieldMatch(field_id=2, range=pb.FieldMatch.Range(low=b"\3", high=b"\4"))
    sender = pb.FieldMatch(field_id=3, optional=pb.FieldMatch.Optional(value=b"\1"))
    blocked = pb.TableEntry(
        table_id=ids["filter"], match=[ternary, low, sender], priority=5, action=action(ids["drop"])
    )
    allowed = pb.TableEntry(table_id=ids["filter"], match=[ternary], priority=9, action=action(ids["set_tag"], 1))
    level = pb.TableEntry(
        table_id=ids["exact_two"],
        match=[
            pb.FieldMatch(field_id=1, exact=pb.FieldMatch.Exact(value=b"\x08\0")),
            pb.FieldMatch(field_id=2, exact=pb.FieldMatch.Exact(value=b"\xff")),
        ],
        action=action(ids["set_level"], 0x80),
    )
    entries = [route, blocked, allowed, level]
    controller.write_all([(INSERT, {"table_entry": entry}) for entry in entries])
    for entry in entries:
        wanted = [entry] if entry.table_id != ids["filter"] else [blocked, allowed]
        assert controller.read(table_entry=pb.TableEntry(table_id=entry.table_id)) == wanted
    assert [port for port, _ in served.process(packet("0a000107"))] == [2]
    assert served.process(packet("0b000001")) == []
    ((_, data),) = served.process(packet("0a000107", level=-1))
    assert data[-2] == 0x80
    assert served.process(packet("0a000107", src="0a000009", kind=3)) != [], "the greater priority wins"
    controller.write(DELETE, table_entry=allowed)
    assert served.process(packet("0a000107", src="0a000009", kind=3)) == []
    default = pb.TableEntry(table_id=ids["routes"], is_default_action=True, action=action(ids["multicast"], 6))
    controller.write(MODIFY, table_entry=default)
    assert controller.read(table_entry=pb.TableEntry(table_id=ids["routes"], is_default_action=True)) == [default]
    group = pb.MulticastGroupEntry(
        multicast_group_id=6, replicas=[pb.Replica(egress_port=4, instance=9), pb.Replica(egress_port=5, instance=8)]
    )
    copies = pb.PacketReplicationEngineEntry(multicast_group_entry=group)
    session = pb.PacketReplicationEngineEntry(
        clone_session_entry=pb.CloneSessionEntry(session_id=3, replicas=group.replicas, packet_length_bytes=20)
    )
    controller.write_all([(INSERT, {"packet_replication_engine_entry": one}) for one in (copies, session)])
    assert controller.read(packet_replication_engine_entry=pb.PacketReplicationEngineEntry()) == [copies, session]
    assert [(port, data[11]) for port, data in served.process(packet("0b000001"))] == [(4, 9), (5, 8)]
    counted = controller.read(direct_counter_entry=pb.DirectCounterEntry(table_entry=route))
    assert [(one.data.packet_count, one.data.byte_count) for one in counted] == [(4, 96)]
    asked = pb.TableEntry(table_id=ids["routes"], counter_data=pb.CounterData())
    assert controller.read(table_entry=asked)[0].counter_data.packet_count == 4


def test_members_counters_registers_meters_and_value_sets(serve: Callable[[ControlledSwitch], Served]) -> None:
    served = serve(switch())
    controller = served.controller()
    assert controller.arbitrate() == 0
    info, ids = other_ids(served.switch)
    controller.install(info)
    members = [
        pb.ActionProfileMember(
            action_profile_id=ids["hashed"], member_id=number, action=direct(ids["forward"], 1, port)
        )
        for number, port in ((40, 3), (50, 5))
    ]
    group = pb.ActionProfileGroup(action_profile_id=ids["hashed"], group_id=9)
    group.members.add(member_id=40, weight=1)
    exact = pb.FieldMatch(field_id=1, exact=pb.FieldMatch.Exact(value=b"\1"))
    entry = pb.TableEntry(table_id=ids["balanced"], match=[exact], action=pb.TableAction(action_profile_group_id=9))
    controller.write_all([(INSERT, {"action_profile_member": one}) for one in members])
    controller.write(INSERT, action_profile_group=group)
    controller.write(INSERT, table_entry=entry)
    assert controller.read(table_entry=pb.TableEntry(table_id=ids["balanced"])) == [entry]
    assert controller.read(action_profile_member=pb.ActionProfileMember()) == members
    assert [port for port, _ in served.process(packet())] == [3]
    group.members[0].member_id = 50
    controller.write(MODIFY, action_profile_group=group)
    assert controller.read(action_profile_group=pb.ActionProfileGroup()) == [group]
    assert [port for port, _ in served.process(packet())] == [5]

    counter = pb.CounterEntry(counter_id=ids["per_port"], data=pb.CounterData(packet_count=4, byte_count=500))
    counter.index.index = 3
    cell = pb.RegisterEntry(register_id=ids["wide"], data={"bitstring": b"\x01" + bytes(15)})
    cell.index.index = 1
    meter = pb.MeterEntry(meter_id=ids["limit"], config=pb.MeterConfig(cir=1000, cburst=5, pir=2000, pburst=6))
    meter.index.index = 2
    written = {"counter_entry": counter, "register_entry": cell, "meter_entry": meter}
    for name, one in written.items():
        controller.write(MODIFY, **{name: one})
        assert controller.read(**{name: one}) == [one]
    assert len(controller.read(counter_entry=pb.CounterEntry(counter_id=ids["per_port"]))) == 4
    types = pb.ValueSetEntry(value_set_id=ids["types"])
    types.members.add().match.add(field_id=1, exact=pb.FieldMatch.Exact(value=b"\x12\x34"))
    controller.write(MODIFY, value_set_entry=types)
    assert [port for port, _ in served.process(packet(ether_type="1234"))] == [5]


def test_each_update_that_is_refused_has_its_code(serve: Callable[[ControlledSwitch], Served]) -> None:
    from google.rpc import status_pb2

    served = serve(switch())
    controller = served.controller()
    assert controller.arbitrate() == 0
    info, ids = other_ids(served.switch)
    controller.install(info)
    exact = [pb.FieldMatch(field_id=1, exact=pb.FieldMatch.Exact(value=b"\2"))]
    lpm = [pb.FieldMatch(field_id=1, lpm=pb.FieldMatch.LPM(value=b"\x0a\0\1\1", prefix_len=24))]
    fixed = pb.TableEntry(table_id=ids["fixed"], match=exact, action=action(ids["set_tag"], 1))
    first = pb.TableEntry(table_id=ids["first"], match=exact, action=action(ids["set_tag"], 1))
    cases = [
        (0, "", INSERT, first),
        (6, "has this key already", INSERT, first),
        (7, "declares the entries of MyIngress.fixed const", INSERT, fixed),
        (7, "default action of MyIngress.filter const", MODIFY, pb.TableEntry(
            table_id=ids["filter"], is_default_action=True, action=action(ids["drop"]))),
        (5, "has no entry with this key", DELETE, pb.TableEntry(table_id=ids["exact_two"], match=[
            *exact, pb.FieldMatch(field_id=2, exact=pb.FieldMatch.Exact(value=b"\2"))])),
        (5, "there is no table with id 17", INSERT, pb.TableEntry(table_id=17)),
        (3, "0xa000101 has bits outside its mask", INSERT, pb.TableEntry(
            table_id=ids["routes"], match=lpm, action=action(ids["drop"]))),
        (3, "hdr.ipv4.kind is exact; the match given is lpm", INSERT, pb.TableEntry(table_id=ids["first"], match=lpm)),
        (3, "needs 9 bits, the P4Info says 8", INSERT, pb.TableEntry(
            table_id=ids["first"], match=exact, action=action(ids["set_tag"], 256))),
        (3, "needs a value for parameter tag", MODIFY, pb.TableEntry(
            table_id=ids["first"], match=exact, action=action(ids["set_tag"]))),
        (3, "give a priority from 1", INSERT, pb.TableEntry(table_id=ids["filter"], action=action(ids["drop"]))),
        (12, "entries that age", INSERT, pb.TableEntry(table_id=ids["first"], match=exact, idle_timeout_ns=1)),
        (0, "", DELETE, first),
    ]  # fmt: skip
    with pytest.raises(grpc.RpcError) as refused:
        controller.write_all([(kind, {"table_entry": entry}) for _, _, kind, entry in cases])
    assert refused.value.code() == grpc.StatusCode.UNKNOWN
    details = dict(refused.value.trailing_metadata())["grpc-status-details-bin"]
    for (code, words, _, _), packed in zip(cases, status_pb2.Status.FromString(details).details, strict=True):
        error = pb.Error()
        assert packed.Unpack(error)
        assert (error.canonical_code, words in error.message) == (code, True), error
    for wrong, code in (
        (pb.WriteRequest(device_id=8), "NOT_FOUND"),
        (pb.WriteRequest(device_id=7), "PERMISSION_DENIED"),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            controller.stub.Write(wrong)
        assert refused.value.code().name == code


def test_a_p4info_of_another_program_is_refused(serve: Callable[[ControlledSwitch], Served]) -> None:
    served = serve(switch())
    controller = served.controller()
    assert controller.arbitrate() == 0
    info, _ = other_ids(served.switch)
    for change, words in (
        (
            lambda: info.tables[0].match_fields[0].__setattr__("bitwidth", 9),
            "table MyIngress.routes: bit<9> LPM in the",
        ),
        (
            lambda: info.tables[0].preamble.__setattr__("name", "x"),
            "the P4Info has a table x, the program everything.p4",
        ),
    ):
        change()
        with pytest.raises(grpc.RpcError) as refused:
            controller.install(info)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert words in refused.value.details()
    with pytest.raises(grpc.RpcError) as refused:
        controller.install(other_ids(served.switch)[0], b'{"sha256": "' + b"0" * 64 + b'"}')
    assert "the program is not everything.p4 as it runs here" in refused.value.details()


def test_packets_to_and_from_the_primary_controller(serve: Callable[[ControlledSwitch], Served]) -> None:
    served = serve(relay())
    first, second = served.controller(1), served.controller(2)
    assert first.arbitrate() == 0
    assert second.arbitrate() == 0, "the higher election id"
    assert next(first.stream).arbitration.status.code == 6
    with pytest.raises(grpc.RpcError, match="election id 0, 1 is not the primary's; 0, 2 is"):
        first.write(INSERT, table_entry=pb.TableEntry())
    sent = pb.StreamMessageRequest()
    sent.packet.payload = b"hello, controller"
    for number, value in ((1, b"\1\xfe"), (2, b"\0")):
        sent.packet.metadata.add(metadata_id=number, value=value)
    first.requests.put(sent)
    assert next(first.stream).error.canonical_code == 7
    second.requests.put(sent)
    got = next(second.stream).packet
    assert got.payload == b"hello, controller"
    assert [(one.metadata_id, one.value) for one in got.metadata] == [(1, b"\1\xfe"), (2, b"\3"), (3, b"\0")]
    del sent.packet.metadata[1]
    second.requests.put(sent)
    assert next(second.stream).error.message == "packet-out needs pad"
    second.close()
    gone = next(first.stream).arbitration
    assert (gone.status.code, gone.election_id.low) == (5, 2), "its place stays free for it"


def test_ids_and_headers_are_those_that_p4c_gives() -> None:
    info = p4info(relay().program)
    headers = {one["preamble"]["name"]: one for one in info["controllerPacketMetadata"]}
    assert {name: one["preamble"]["id"] for name, one in headers.items()} == {
        "packet_in": 81826293,
        "packet_out": 76689799,
    }
    assert [(one["name"], one["bitwidth"]) for one in headers["packet_in"]["metadata"]] == [
        ("port", 9), ("why", 8), ("pad", 7)
    ]  # fmt: skip
    assert [one["preamble"]["id"] for one in info["tables"]] == [0x02000005]
    assert 0x01000077 in [one["preamble"]["id"] for one in info["actions"]]
    assert info["typeInfo"]["serializableEnums"]["Why"]["members"] == [
        {"name": "sent", "value": "Aw=="}, {"name": "other", "value": "yA=="}
    ]  # fmt: skip


def test_digests_are_said_to_be_unimplemented_and_their_program_forwards(
    serve: Callable[[ControlledSwitch], Served], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from p4vm.cli import bmv2_compiler as compiler

    path = Path(__file__).parent / "features" / "digest_is_sent.p4"
    files = ["--p4runtime-files", str(tmp_path / "info.json"), "-o", str(tmp_path / "made.json")]
    assert compiler.main([*files, str(path)]) == 0
    assert capsys.readouterr().err.startswith(f"warning: {path}:12:9: digests over P4Runtime are UNIMPLEMENTED")
    served = serve(ControlledSwitch(compile_program(path, backend="python")))
    controller = served.controller()
    controller.arbitrate()
    info = served.service.state.pipeline.info
    info.digests.add().preamble.id = 9  # as p4c's P4Info has them
    controller.install(info)
    with pytest.raises(grpc.RpcError, match=r"digest_entry.*this switch doesn't have it"):
        controller.write(INSERT, digest_entry=pb.DigestEntry(digest_id=9))
    data = bytes.fromhex("0500123400000000")
    assert served.process(data) == [(1, data)]
