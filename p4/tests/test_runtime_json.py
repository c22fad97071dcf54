"""Entries from JSON as the P4 tutorials write them, and the P4Info that controllers read."""

import json
from pathlib import Path
from typing import Any

import pytest
from everything import packet, program, switch

from p4vm.commands.runtime_json import apply, load
from p4vm.control.controlled_switch import ControlledSwitch
from p4vm.control.p4info import jenkins_hash, p4info
from p4vm.source import P4Error

TUTORIAL: dict[str, Any] = {
    "target": "bmv2",
    "p4info": "build/basic.p4.p4info.txtpb",
    "bmv2_json": "build/basic.json",
    "table_entries": [
        {"table": "MyIngress.routes", "default_action": True, "action_name": "MyIngress.drop", "action_params": {}},
        {
            "table": "MyIngress.routes",
            "match": {"hdr.ipv4.dst": ["10.0.1.1", 32]},
            "action_name": "MyIngress.forward",
            "action_params": {"dst": "08:00:00:00:01:11", "port": 1},
        },
        {
            "table": "MyIngress.routes",
            "match": {"hdr.ipv4.dst": ["10.0.2.0", 24]},
            "action_name": "MyIngress.multicast",
            "action_params": {"group": 1},
        },
        {
            "table": "MyIngress.filter",
            "match": {"hdr.ipv4.src": ["10.0.0.9", "255.255.255.255"], "hdr.ethernet.src": "00:00:00:00:00:01"},
            "priority": 1,
            "action_name": "MyIngress.drop",
            "action_params": {},
        },
        {
            "table": "MyIngress.filter",
            "match": {"hdr.ipv4.kind": [3, 4]},
            "priority": 2,
            "action_name": "MyIngress.set_tag",
            "action_params": {"tag": 1},
        },
        {
            "table": "MyIngress.exact_two",
            "match": {"hdr.ethernet.type": 2048, "level": [7]},
            "action_name": "MyIngress.set_level",
            "action_params": {"level": -1},
        },
        {
            "table": "MyIngress.routes",
            "match": {},
            "action_name": "MyIngress.mirror",
            "action_params": {"session": 5},
        },
    ],
    "multicast_group_entries": [
        {"multicast_group_id": 1, "replicas": [{"egress_port": 1, "instance": 7}, {"egress_port": 2, "instance": 8}]}
    ],
    "clone_session_entries": [{"clone_session_id": 5, "replicas": [{"egress_port": 3}], "packet_length_bytes": 20}],
}


@pytest.fixture
def running() -> ControlledSwitch:
    return switch()


def test_a_file_as_the_tutorials_have_it(running: ControlledSwitch, tmp_path: Path) -> None:
    path = tmp_path / "s1-runtime.json"
    path.write_text(json.dumps(TUTORIAL))
    loaded = load(path, running)
    assert (loaded.table_entries, loaded.multicast_groups, loaded.clone_sessions) == (7, 1, 1)
    assert [port for port, _ in running.process(0, packet("0a000101"))] == [1]
    assert [(port, data[11]) for port, data in running.process(0, packet("0a000205"))] == [(1, 7), (2, 8)]
    assert [(port, len(data)) for port, data in running.process(0, packet("0b000001"))] == [(3, 20), (1, 24)]
    ((_, data),) = running.process(0, packet("0a000101", level=7))
    assert data[-2] == 0xFF
    assert running.process(0, packet("0a000101", src="0a000009")) == []
    assert running.process(0, packet("0a000101", src="0a000009", kind=3)) != [], "the greater priority wins"
    load_again = {"multicast_group_entries": [{"multicast_group_id": 1, "replicas": [{"egress_port": 9}]}]}
    apply(load_again, running)
    assert [port for port, _ in running.process(0, packet("0a000205"))] == [9]


def entry(**changes: Any) -> dict[str, Any]:
    whole = {"table": "MyIngress.filter", "match": {}, "priority": 1, "action_name": "MyIngress.drop", **changes}
    return {"table_entries": [{name: value for name, value in whole.items() if value is not ...}]}


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        ([], r"expected the file as {…}, got \[\]"),
        ({"target": "tofino"}, "target 'tofino'"),
        ({"tables": []}, "'tables' is unknown here; expected some of: bmv2_json, "),
        ({"table_entries": {}}, "table_entries: expected a list, got {}"),
        ({"table_entries": [3]}, r"table_entries\[0\]: expected an entry as {…}, got 3"),
        (entry(table=...), r"table_entries\[0\]: table: expected a name, got nothing"),
        (entry(table="x"), r"Invalid table name \(x\)"),
        (entry(action_name="x"), "has no action x"),
        (entry(matches={}), "'matches' is unknown"),
        (entry(match={"x": 1}), "MyIngress.filter has no key x; it has: hdr.ipv4.src, hdr.ipv4.kind, hdr.ethernet.src"),
        (entry(match={"hdr.ipv4.src": 1}), r"match hdr.ipv4.src: expected \[value, mask\], got 1"),
        (entry(match={"hdr.ipv4.kind": [1]}), r"match hdr.ipv4.kind: expected \[low, high\], got \[1\]"),
        (entry(match={"hdr.ipv4.kind": [1, 2.5]}), "expected a number or text"),
        (entry(match={"hdr.ipv4.kind": [9, 1]}), "Invalid match key: .*start is greater"),
        (entry(match={"hdr.ipv4.kind": [1, 300]}), "too large: 0x12c"),
        (entry(match=[1]), r"match: expected {name: value}, got \[1\]"),
        (entry(action_params={"x": 1}), "has no parameter x; it has: none"),
        (entry(priority=...), "MyIngress.filter is range: give a priority from 1"),
        (entry(priority=0), "give a priority from 1"),
        (entry(priority="high"), 'priority: expected a number, got "high"'),
        (entry(default_action=True, match={"hdr.ipv4.kind": [1, 2]}), "a default action has no match"),
        (
            entry(table="MyIngress.routes", match={"hdr.ipv4.dst": ["10.0.0.0", 8]}),
            "MyIngress.routes has no ternary, range or optional key, so no priority",
        ),
        ({"multicast_group_entries": [{"replicas": []}]}, "multicast_group_id: expected a whole number, got nothing"),
        (
            {"multicast_group_entries": [{"multicast_group_id": 1, "replicas": [{"egress_port": 511}]}]},
            r"multicast_group_entries\[0\]: '511' is not a valid port",
        ),
        ({"clone_session_entries": [{"clone_session_id": 1}]}, "replicas: expected a list, got nothing"),
    ],
)  # fmt: skip
def test_says_what_is_wrong_and_where(running: ControlledSwitch, content: object, wrong: str) -> None:
    with pytest.raises(P4Error, match=wrong):
        apply(content, running)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{", r"entries.json:1:2: no JSON"),
        ('{"target":\n 1,}', "entries.json:2:"),
        ("[" * 200_000, "entries.json: no JSON text"),
        ("1" * 5000, "entries.json: no JSON text"),
        ('{"table_entries": [{}]}', r"entries.json: table_entries\[0\]: table"),
    ],
)
def test_names_the_file(running: ControlledSwitch, tmp_path: Path, text: str, wrong: str) -> None:
    path = tmp_path / "entries.json"
    path.write_text(text)
    with pytest.raises(P4Error, match=wrong):
        load(path, running)


def test_p4info_has_all_that_a_controller_names() -> None:
    info = p4info(program())
    assert json.loads(json.dumps(info)) == info
    tables = {table["preamble"]["name"]: table for table in info["tables"]}
    actions = {action["preamble"]["id"]: action["preamble"]["name"] for action in info["actions"]}
    routes = tables["MyIngress.routes"]
    assert routes["matchFields"] == [{"id": 1, "name": "hdr.ipv4.dst", "bitwidth": 32, "matchType": "LPM"}]
    assert [actions[reference["id"]] for reference in routes["actionRefs"]][:2] == [
        "MyIngress.forward",
        "MyIngress.drop",
    ]
    assert routes["actionRefs"][-1]["scope"] == "DEFAULT_ONLY"
    assert routes["size"] == "4"
    counters = {counter["preamble"]["id"]: counter for counter in info["directCounters"]}
    assert counters[routes["directResourceIds"][0]]["directTableId"] == routes["preamble"]["id"]
    assert actions[routes["initialDefaultAction"]["actionId"]] == "MyIngress.drop"
    assert [tables[f"MyIngress.{name}"].get("isConstTable") for name in ("fixed", "first")] == [True, None]
    assert [tables[f"MyIngress.{name}"].get("hasInitialEntries") for name in ("first", "routes")] == [True, None]
    profiles = {profile["preamble"]["alias"]: profile for profile in info["actionProfiles"]}
    assert profiles["hashed"]["withSelector"] is True
    assert profiles["hashed"]["size"] == "8"
    assert tables["MyIngress.balanced"]["implementationId"] == profiles["hashed"]["preamble"]["id"]
    assert [field["name"] for field in tables["MyIngress.balanced"]["matchFields"]] == ["hdr.ipv4.kind"]
    (levels,) = (part for part in info["registers"] if part["preamble"]["alias"] == "levels")
    assert (levels["typeSpec"], levels["size"]) == ({"bitstring": {"int": {"bitwidth": 8}}}, 4)
    ids = [part["preamble"]["id"] for parts in info.values() if isinstance(parts, list) for part in parts]
    assert len(ids) == len(set(ids))


def test_ids_are_those_that_controllers_know() -> None:
    assert jenkins_hash("a") == 0xCA2E9442, "the hash's published example"
    info = p4info(program())
    (no_action,) = (action for action in info["actions"] if action["preamble"]["name"] == "NoAction")
    assert no_action["preamble"]["id"] == 21257015
