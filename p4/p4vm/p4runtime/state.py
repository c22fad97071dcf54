"""What P4Runtime can write and read: which message of an update or a question goes where."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2

from p4vm.control.control_values import width_of
from p4vm.control.controlled_switch import ControlledSwitch
from p4vm.control.multicast_groups import Mirror
from p4vm.control.p4info import shortest
from p4vm.engine import PacketReplica
from p4vm.ir import ir_nodes as ir
from p4vm.p4runtime.meters import fill_meter, set_meter
from p4vm.p4runtime.refusal import INVALID, MISSING, RuntimeRefusal, refusing, unimplemented
from p4vm.p4runtime.runtime_pipeline import ForwardingPipeline, number
from p4vm.p4runtime.runtime_profiles import Profiles
from p4vm.p4runtime.runtime_tables import Tables

Update = p4runtime_pb2.Update


class RuntimeState:
    """All that a controller may change, by the ids of a pipeline. Methods raise Refused; what is refused has changed
    nothing."""

    def __init__(self, pipeline: ForwardingPipeline) -> None:
        self.pipeline = pipeline
        self.switch: ControlledSwitch = pipeline.switch
        self.profiles = Profiles(pipeline)
        self.tables = Tables(pipeline, self.profiles)
        self._write: dict[str, Callable[[int, Any], None]] = {
            "table_entry": self.tables.write,
            "action_profile_member": self.profiles.write_member,
            "action_profile_group": self.profiles.write_group,
            "counter_entry": self._write_counter,
            "direct_counter_entry": self._write_direct_counter,
            "meter_entry": self._write_meter,
            "direct_meter_entry": self._write_direct_meter,
            "register_entry": self._write_register,
            "value_set_entry": self._write_value_set,
            "packet_replication_engine_entry": self._write_copies,
        }
        self._read: dict[str, Callable[[Any], Iterator[Any]]] = {
            "table_entry": self.tables.read,
            "action_profile_member": self.profiles.read_members,
            "action_profile_group": self.profiles.read_groups,
            "counter_entry": self._read_counters,
            "direct_counter_entry": self._read_direct_counters,
            "meter_entry": self._read_meters,
            "direct_meter_entry": self._read_direct_meters,
            "register_entry": self._read_registers,
            "packet_replication_engine_entry": self._read_copies,
        }

    def write(self, update: Any) -> None:
        """Carry out one p4.v1.Update."""
        kind = update.entity.WhichOneof("entity")
        if update.type not in (Update.INSERT, Update.MODIFY, Update.DELETE):
            raise RuntimeRefusal(INVALID, "an update is INSERT, MODIFY or DELETE")
        if kind not in self._write:
            raise unimplemented(f"to write {kind or 'nothing'}")
        self._write[kind](update.type, getattr(update.entity, kind))

    def read(self, entity: Any) -> list[Any]:
        """All p4.v1.Entity that a question means."""
        kind = entity.WhichOneof("entity")
        if kind not in self._read:
            raise unimplemented(f"to read {kind or 'nothing'}")
        with refusing():
            return [p4runtime_pb2.Entity(**{kind: part}) for part in self._read[kind](getattr(entity, kind))]

    # ---- counters, meters and registers: arrays

    def _cells(self, kind: str, query: Any, wanted: int) -> Iterator[tuple[int, str, int]]:
        """(id, name, index) of the cells that are meant: one, all of an array, or all of all arrays."""
        for part in self.pipeline.parts(kind, wanted):
            name, every = part.preamble.name, range(part.size)
            for index in [query.index.index] if query.HasField("index") else every:
                yield part.preamble.id, name, index

    def _write_counter(self, kind: int, entry: Any) -> None:
        _only_modify(kind, "a counter")
        with refusing():
            for _, name, index in self._cells("counters", entry, entry.counter_id):
                self.switch.counter_write(name, index, entry.data.packet_count, entry.data.byte_count)

    def _read_counters(self, query: Any) -> Iterator[Any]:
        for part, name, index in self._cells("counters", query, query.counter_id):
            packets, size = self.switch.counter_read(name, index)
            message = p4runtime_pb2.CounterEntry(counter_id=part)
            message.index.index, message.data.packet_count, message.data.byte_count = index, packets, size
            yield message

    def _write_meter(self, kind: int, entry: Any) -> None:
        _only_modify(kind, "a meter")
        for _, name, index in self._cells("meters", entry, entry.meter_id):
            set_meter(self.switch, name, index, entry.config)

    def _read_meters(self, query: Any) -> Iterator[Any]:
        for part, name, index in self._cells("meters", query, query.meter_id):
            message = p4runtime_pb2.MeterEntry(meter_id=part)
            message.index.index = index
            fill_meter(message, "config", self.switch.meter_get_rates(name, index))
            yield message

    def _write_register(self, kind: int, entry: Any) -> None:
        _only_modify(kind, "a register")
        for _, name, index in self._cells("registers", entry, entry.register_id):
            with refusing():
                width = width_of(_cell_type(self.switch.registers.parts[name]))
                self.switch.register_write(name, index, number(entry.data.bitstring, width, name))

    def _read_registers(self, query: Any) -> Iterator[Any]:
        for part, name, index in self._cells("registers", query, query.register_id):
            message = p4runtime_pb2.RegisterEntry(register_id=part)
            message.index.index = index
            value = self.switch.register_read(name, index)
            message.data.bitstring = shortest(value, _cell_type(self.switch.registers.parts[name]))
            yield message

    # ---- direct ones

    def _write_direct_counter(self, kind: int, entry: Any) -> None:
        _only_modify(kind, "a counter")
        state, handles = self.tables.handle(entry.table_entry)
        with refusing():
            for handle in handles:
                name = _direct(state.table.counter, state.name, "counter")
                self.switch.counter_write(name, handle, entry.data.packet_count, entry.data.byte_count)

    def _read_direct_counters(self, query: Any) -> Iterator[Any]:
        for table in self.pipeline.parts("tables", query.table_entry.table_id):
            if self.switch.tables.parts[table.preamble.name].table.counter is None and not query.table_entry.table_id:
                continue
            entry = p4runtime_pb2.TableEntry()
            entry.CopyFrom(query.table_entry)
            entry.table_id = table.preamble.id
            state, handles = self.tables.handle(entry)
            for handle in handles:
                packets, size = self.switch.counter_read(_direct(state.table.counter, state.name, "counter"), handle)
                message = p4runtime_pb2.DirectCounterEntry(table_entry=self.tables.identity(state, handle))
                message.data.packet_count, message.data.byte_count = packets, size
                yield message

    def _write_direct_meter(self, kind: int, entry: Any) -> None:
        _only_modify(kind, "a meter")
        state, handles = self.tables.handle(entry.table_entry)
        for handle in handles:
            set_meter(self.switch, _direct(state.table.meter, state.name, "meter"), handle, entry.config)

    def _read_direct_meters(self, query: Any) -> Iterator[Any]:
        state, handles = self.tables.handle(query.table_entry)
        for handle in handles:
            message = p4runtime_pb2.DirectMeterEntry(table_entry=self.tables.identity(state, handle))
            name = _direct(state.table.meter, state.name, "meter")
            fill_meter(message, "config", self.switch.meter_get_rates(name, handle))
            yield message

    # ---- parser value sets

    def _write_value_set(self, kind: int, entry: Any) -> None:
        _only_modify(kind, "a value set")
        part = self.pipeline.part("value_sets", entry.value_set_id)
        name = part.preamble.name
        members: list[list[tuple[int, int | None]]] = []
        for member in entry.members:
            fields = {match.field_id: match for match in member.match}
            if {field.id for field in part.match} != set(fields):
                raise RuntimeRefusal(
                    INVALID, f"{name}: a member needs a match for each of its {len(part.match)} fields"
                )
            members.append([_exact(fields[field.id], field, name) for field in part.match])
        with refusing():
            self.switch.pvs_clear(name)
            for words in members:
                self.switch.pvs_add(name, *words)

    # ---- multicast groups and clone sessions

    def _write_copies(self, kind: int, entry: Any) -> None:
        if entry.WhichOneof("type") == "multicast_group_entry":
            group = entry.multicast_group_entry
            _there(kind, group.multicast_group_id in self.switch.groups, f"multicast group {group.multicast_group_id}")
            with refusing():
                if kind == Update.DELETE:
                    for handle in list(self.switch.groups[group.multicast_group_id]):
                        self.switch.mc_node_destroy(handle)
                    self.switch.mc_mgrp_destroy(group.multicast_group_id)
                else:
                    self.switch.mc_group_set(group.multicast_group_id, _replicas(group))
        elif entry.WhichOneof("type") == "clone_session_entry":
            session = entry.clone_session_entry
            _there(kind, session.session_id in self.switch.mirrors, f"clone session {session.session_id}")
            if session.class_of_service:
                raise unimplemented(f"clone session {session.session_id}: a class of service other than 0")
            with refusing():
                if kind == Update.DELETE:
                    self.switch.mirroring_delete(session.session_id)
                else:
                    self.switch.mirroring_set(session.session_id, _replicas(session), session.packet_length_bytes)
        else:
            raise RuntimeRefusal(INVALID, "neither a multicast group nor a clone session")

    def _read_copies(self, query: Any) -> Iterator[Any]:
        kind = query.WhichOneof("type")
        if kind in (None, "multicast_group_entry"):
            wanted = query.multicast_group_entry.multicast_group_id
            for group, handles in self.switch.groups.items():
                if wanted in (0, group):
                    message = p4runtime_pb2.PacketReplicationEngineEntry()
                    message.multicast_group_entry.multicast_group_id = group
                    nodes = [self.switch.nodes[handle] for handle in handles]
                    copies = [PacketReplica(port, node.rid) for node in nodes for port in node.ports]
                    _fill_replicas(message.multicast_group_entry, copies)
                    yield message
        if kind in (None, "clone_session_entry"):
            wanted = query.clone_session_entry.session_id
            for session, mirror in self.switch.mirrors.items():
                if wanted in (0, session):
                    message = p4runtime_pb2.PacketReplicationEngineEntry()
                    message.clone_session_entry.session_id = session
                    message.clone_session_entry.packet_length_bytes = mirror.truncate
                    _fill_replicas(message.clone_session_entry, _copies(mirror))
                    yield message


def _only_modify(kind: int, what: str) -> None:
    if kind != Update.MODIFY:
        raise RuntimeRefusal(INVALID, f"{what} is only modified: neither inserted nor deleted")


def _there(kind: int, present: bool, what: str) -> None:
    if kind == Update.INSERT and present:
        raise RuntimeRefusal(code_pb2.ALREADY_EXISTS, f"{what} is there already; modify it")
    if kind != Update.INSERT and not present:
        raise RuntimeRefusal(MISSING, f"there is no {what}")


def _direct(instance: ir.ExternInstance | None, table: str, what: str) -> str:
    if instance is None:
        raise RuntimeRefusal(INVALID, f"{table} has no direct {what}")
    return instance.name


def _cell_type(register: ir.ExternInstance) -> ir.Type:
    return register.type_arguments[0] if register.type_arguments else ir.Bits(32)


def _exact(match: Any, field: Any, name: str) -> tuple[int, int | None]:
    if match.WhichOneof("field_match_type") != "exact":
        raise unimplemented(f"{name}: a member of a value set that is no exact value")
    return number(match.exact.value, field.bitwidth, name), None


def _replicas(entry: Any) -> list[PacketReplica]:
    replicas = []
    for replica in entry.replicas:
        if replica.backup_replicas:
            raise unimplemented("backup replicas")
        port = number(replica.port, 32, "port") if replica.WhichOneof("port_kind") == "port" else replica.egress_port
        replicas.append(PacketReplica(port, replica.instance))
    return replicas


def _copies(mirror: Mirror) -> list[PacketReplica]:
    return [PacketReplica(mirror.port)] if mirror.port is not None else list(mirror.replicas)


def _fill_replicas(message: Any, copies: list[PacketReplica]) -> None:
    for copy in copies:
        message.replicas.add(egress_port=copy.port, instance=copy.instance)
