"""Table entries, multicast groups and clone sessions from JSON, as the P4 tutorials write them (`s1-runtime.json`).

    {"target": "bmv2", "p4info": "…", "bmv2_json": "…",
     "table_entries": [
       {"table": "MyIngress.ipv4_lpm", "default_action": true, "action_name": "MyIngress.drop", "action_params": {}},
       {"table": "MyIngress.ipv4_lpm", "match": {"hdr.ipv4.dstAddr": ["10.0.1.1", 32]},
        "action_name": "MyIngress.ipv4_forward", "action_params": {"dstAddr": "08:00:00:00:01:11", "port": 1}}],
     "multicast_group_entries": [{"multicast_group_id": 1, "replicas": [{"egress_port": 1, "instance": 1}]}],
     "clone_session_entries": [{"clone_session_id": 5, "replicas": [{"egress_port": 3, "instance": 1}]}]}

Values are numbers, or text as on the command line; a key of kind exact (or optional) is a value, lpm [value, prefix],
ternary [value, mask], range [low, high]; keys left out match anything. As in P4Runtime a greater priority wins.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p4vm.commands.line import error_line
from p4vm.control.control_tables import TableState
from p4vm.control.control_values import SEPARATORS
from p4vm.control.controlled_switch import ControlledSwitch
from p4vm.engine import PacketReplica
from p4vm.source import P4Error, read_text

TOP = frozenset(
    {"target", "p4info", "bmv2_json", "table_entries", "multicast_group_entries", "clone_session_entries", "comment"}
)
TABLE_ENTRY = frozenset(
    {"table", "match", "action_name", "action_params", "default_action", "priority", "is_const", "comment"}
)
GROUP_ENTRY = frozenset({"multicast_group_id", "replicas", "comment"})
SESSION_ENTRY = frozenset({"clone_session_id", "replicas", "packet_length_bytes", "class_of_service", "comment"})
REPLICA = frozenset({"egress_port", "instance", "comment"})


@dataclass(slots=True)
class Loaded:
    """Numbers of table entries, multicast groups and clone sessions that were set."""

    table_entries: int = 0
    multicast_groups: int = 0
    clone_sessions: int = 0


def load(path: str | Path, switch: ControlledSwitch) -> Loaded:
    """Set all that the file names. Raises P4Error: file, the entry's place in it, and what is wrong; entries before
    it have been set."""
    place = Path(path)
    try:
        content = json.loads(read_text(place))
    except json.JSONDecodeError as error:
        raise P4Error(f"{place}:{error.lineno}:{error.colno}: no JSON: {error.msg}") from None
    except (RecursionError, ValueError):
        raise P4Error(f"{place}: no JSON text") from None
    try:
        return apply(content, switch)
    except P4Error as error:
        raise P4Error(f"{place}: {error.message}") from None


def apply(content: object, switch: ControlledSwitch) -> Loaded:
    """As `load` for what the file holds."""
    document = _object(content, "the file", TOP)
    target = document.get("target", "bmv2")
    if target != "bmv2":
        raise P4Error(f"target {target!r}: entries for another switch; expected bmv2")
    loaded = Loaded()
    with switch.batch():
        loaded.table_entries = _apply_entries(document, "table_entries", lambda entry: _table_entry(switch, entry))
        loaded.multicast_groups = _apply_entries(
            document, "multicast_group_entries", lambda entry: _group_entry(switch, entry)
        )
        loaded.clone_sessions = _apply_entries(
            document, "clone_session_entries", lambda entry: _session_entry(switch, entry)
        )
    return loaded


def _apply_entries(document: dict[str, Any], name: str, carry_out: Callable[[object], None]) -> int:
    entries = document.get(name, [])
    if not isinstance(entries, list):
        raise P4Error(f"{name}: expected a list, got {_what(entries)}")
    for place, entry in enumerate(entries):
        try:
            carry_out(entry)
        except P4Error as error:
            raise P4Error(f"{name}[{place}]: {error_line(error).removeprefix('Error: ')}") from None
    return len(entries)


def _table_entry(switch: ControlledSwitch, content: object) -> None:
    entry = _object(content, "an entry", TABLE_ENTRY)
    table, action = _text(entry, "table"), _text(entry, "action_name")
    arguments = {name: _value(value, name) for name, value in _fields(entry, "action_params").items()}
    if entry.get("default_action"):
        if entry.get("match"):
            raise P4Error(f"{table}: a default action has no match")
        switch.table_set_default(table, action, arguments)
        return
    state = switch.tables[table]
    keys = {name: _key(state, name, value) for name, value in _fields(entry, "match").items()}
    priority = entry.get("priority")
    if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):
        raise P4Error(f"priority: expected a number, got {_what(priority)}")
    switch.table_add(table, action, keys, arguments, state.rank(priority))


def _key(state: TableState, name: str, value: object) -> str:
    """The key as a word of the command line."""
    match = state.keys[state.key_index(name)].match
    parts = value if isinstance(value, list) else [value]
    if len(parts) != (1 if match == "exact" else 2) and (match != "optional" or len(parts) != 1):
        pair = {"exact": "a value", "lpm": "[value, prefix length]", "range": "[low, high]"}
        raise P4Error(f"match {name}: expected {pair.get(match, '[value, mask]')}, got {_what(value)}")
    return SEPARATORS.get(match, "").join(str(_value(part, f"match {name}")) for part in parts)


def _group_entry(switch: ControlledSwitch, content: object) -> None:
    entry = _object(content, "a group", GROUP_ENTRY)
    switch.mc_group_set(_integer(entry, "multicast_group_id"), _replicas(entry))


def _session_entry(switch: ControlledSwitch, content: object) -> None:
    entry = _object(content, "a session", SESSION_ENTRY)
    truncate = _integer(entry, "packet_length_bytes", 0)
    switch.mirroring_set(_integer(entry, "clone_session_id"), _replicas(entry), truncate)


def _replicas(entry: dict[str, Any]) -> list[PacketReplica]:
    listed = entry.get("replicas")
    if not isinstance(listed, list):
        raise P4Error(f"replicas: expected a list, got {_what(listed)}")
    copies = [_object(copy, "a replica", REPLICA) for copy in listed]
    return [PacketReplica(_integer(copy, "egress_port"), _integer(copy, "instance", 0)) for copy in copies]


# ---- checks


def _object(content: object, what: str, allowed: frozenset[str]) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise P4Error(f"expected {what} as {{…}}, got {_what(content)}")
    strange = sorted(set(content) - allowed)
    if strange:
        raise P4Error(f"'{strange[0]}' is unknown here; expected some of: {', '.join(sorted(allowed))}")
    return content


def _fields(entry: dict[str, Any], name: str) -> Mapping[str, object]:
    fields = entry.get(name) or {}
    if not isinstance(fields, dict):
        raise P4Error(f"{name}: expected {{name: value}}, got {_what(fields)}")
    return fields


def _text(entry: dict[str, Any], name: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str):
        raise P4Error(f"{name}: expected a name, got {_what(value)}")
    return value


def _integer(entry: dict[str, Any], name: str, otherwise: int | None = None) -> int:
    value = entry.get(name, otherwise)
    if isinstance(value, bool) or not isinstance(value, int):
        raise P4Error(f"{name}: expected a whole number, got {_what(value)}")
    return value


def _value(value: object, name: str) -> str | int:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str | int):
        return value
    raise P4Error(f'{name}: expected a number or text like "10.0.1.1", got {_what(value)}')


def _what(value: object) -> str:
    return "nothing" if value is None else json.dumps(value)[:60]
