"""Writing and reading over P4Runtime: which message of an update or a query goes where."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2

from p4vm.control.control_tables import TableState
from p4vm.control.controlled_switch import ControlledSwitch
from p4vm.engine import PacketReplica
from p4vm.p4runtime.refusal import INVALID, MISSING, RuntimeRefusal, refusing, unimplemented
from p4vm.p4runtime.runtime_cells import CELLS
from p4vm.p4runtime.runtime_pipeline import ForwardingPipeline, number
from p4vm.p4runtime.runtime_profiles import Profiles
from p4vm.p4runtime.runtime_tables import Tables

Update = p4runtime_pb2.Update


class RuntimeState:
    """All that a controller may change, by the ids of a pipeline. Methods raise RuntimeRefusal; an update that is
    refused has changed nothing."""

    def __init__(self, pipeline: ForwardingPipeline) -> None:
        self.pipeline = pipeline
        self.switch: ControlledSwitch = pipeline.switch
        self.profiles = Profiles(pipeline)
        self.tables = Tables(pipeline, self.profiles)
        self._entities: dict[str, tuple[Callable[[int, Any], None], Callable[[Any], Iterator[Any]] | None]] = {
            "table_entry": (self.tables.write, self.tables.read),
            "action_profile_member": (self.profiles.write_member, self.profiles.read_members),
            "action_profile_group": (self.profiles.write_group, self.profiles.read_groups),
            "value_set_entry": (self._write_value_set, None),
            "packet_replication_engine_entry": (self._write_copies, self._read_copies),
        }
        for word in CELLS:
            arrays = partial(self._write_array, word), partial(self._read_array, word)
            direct = partial(self._write_direct, word), partial(self._read_direct, word)
            self._entities |= {f"{word}_entry": arrays, f"direct_{word}_entry": direct}

    def write(self, update: Any) -> None:
        """Carry out one p4.v1.Update."""
        kind = update.entity.WhichOneof("entity")
        if update.type not in (Update.INSERT, Update.MODIFY, Update.DELETE):
            raise RuntimeRefusal(INVALID, "an update is INSERT, MODIFY or DELETE")
        write, _ = self._entities.get(kind, (None, None))
        if write is None:
            raise unimplemented(f"to write {kind or 'nothing'}")
        write(update.type, getattr(update.entity, kind))

    def read(self, entity: Any) -> list[Any]:
        """All p4.v1.Entity that a question means."""
        kind = entity.WhichOneof("entity")
        _, read = self._entities.get(kind, (None, None))
        if read is None:
            raise unimplemented(f"to read {kind or 'nothing'}")
        with refusing():
            return [p4runtime_pb2.Entity(**{kind: part}) for part in read(getattr(entity, kind))]

    # ---- counters, meters and registers

    def _write_array(self, word: str, kind: int, entry: Any) -> None:
        _only_modify(kind, f"a {word}")
        field, write, _ = CELLS[word]
        for _, name, index in self._cells(word, entry):
            write(self.switch, name, index, getattr(entry, field))

    def _read_array(self, word: str, query: Any) -> Iterator[Any]:
        field, _, fill = CELLS[word]
        for part, name, index in self._cells(word, query):
            message = getattr(p4runtime_pb2, f"{word.title()}Entry")(**{f"{word}_id": part})
            message.index.index = index
            fill(self.switch, name, index, getattr(message, field))
            yield message

    def _cells(self, word: str, query: Any) -> Iterator[tuple[int, str, int]]:
        """(id, name, index) of the cells that are meant: one, all of an array, or all of all arrays."""
        for part in self.pipeline.parts(f"{word}s", getattr(query, f"{word}_id")):
            every = range(part.size)
            for index in [query.index.index] if query.HasField("index") else every:
                yield part.preamble.id, part.preamble.name, index

    def _write_direct(self, word: str, kind: int, entry: Any) -> None:
        _only_modify(kind, f"a {word}")
        field, write, _ = CELLS[word]
        state, handles = self.tables.handles(entry.table_entry)
        for handle in handles:
            write(self.switch, _direct(word, state), handle, getattr(entry, field))

    def _read_direct(self, word: str, query: Any) -> Iterator[Any]:
        field, _, fill = CELLS[word]
        for table in self.pipeline.parts("tables", query.table_entry.table_id):
            state = self.switch.tables.parts[table.preamble.name]
            if getattr(state.table, word) is None and not query.table_entry.table_id:
                continue
            entry = p4runtime_pb2.TableEntry()
            entry.CopyFrom(query.table_entry)
            entry.table_id = table.preamble.id
            for handle in self.tables.handles(entry)[1]:
                identity = self.tables.identity(state, handle)
                message = getattr(p4runtime_pb2, f"Direct{word.title()}Entry")(table_entry=identity)
                fill(self.switch, _direct(word, state), handle, getattr(message, field))
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
            for group in self.switch.groups:
                if wanted in (0, group):
                    message = p4runtime_pb2.PacketReplicationEngineEntry()
                    message.multicast_group_entry.multicast_group_id = group
                    _fill_replicas(message.multicast_group_entry, self.switch.mc_group_replicas(group))
                    yield message
        if kind in (None, "clone_session_entry"):
            wanted = query.clone_session_entry.session_id
            for session, mirror in self.switch.mirrors.items():
                if wanted in (0, session):
                    message = p4runtime_pb2.PacketReplicationEngineEntry()
                    message.clone_session_entry.session_id = session
                    message.clone_session_entry.packet_length_bytes = mirror.truncate
                    _fill_replicas(message.clone_session_entry, mirror.copies)
                    yield message


def _only_modify(kind: int, what: str) -> None:
    if kind != Update.MODIFY:
        raise RuntimeRefusal(INVALID, f"{what} is only modified: neither inserted nor deleted")


def _there(kind: int, present: bool, what: str) -> None:
    if kind == Update.INSERT and present:
        raise RuntimeRefusal(code_pb2.ALREADY_EXISTS, f"{what} is there already; modify it")
    if kind != Update.INSERT and not present:
        raise RuntimeRefusal(MISSING, f"there is no {what}")


def _direct(word: str, state: TableState) -> str:
    """The name of a table's direct counter or meter. Raises RuntimeRefusal."""
    instance = getattr(state.table, word)
    if instance is None:
        raise RuntimeRefusal(INVALID, f"{state.name} has no direct {word}")
    return str(instance.name)


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


def _fill_replicas(message: Any, copies: Sequence[PacketReplica]) -> None:
    for copy in copies:
        message.replicas.add(egress_port=copy.port, instance=copy.instance)
