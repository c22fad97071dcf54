"""The control plane on the Python back end: every rule is seen to change what packets do, or to be refused."""

import re

import pytest
from everything import packet, switch
from hypothesis import given, settings
from hypothesis import strategies as st

from p4vm.commands.line import run_command
from p4vm.control.control_values import Pair, fit, full_mask, parse_key, parse_number
from p4vm.control.controlled_switch import ControlledSwitch
from p4vm.engine import GroupRef, MemberRef, MeterRate, PacketReplica
from p4vm.ir import ir_nodes as ir
from p4vm.source import P4Error


@pytest.fixture
def running() -> ControlledSwitch:
    return switch()


def key_words(pair: Pair, kind: ir.Type, match: str) -> str:
    """A key as a command takes it."""
    value, other = pair[0] & full_mask(kind), pair[1]
    if match == "exact" or other is None:
        return f"{value:#x}"
    if match == "lpm":
        return f"{value:#x}/{other}"
    return f"{value:#x}->{other & full_mask(kind):#x}" if match == "range" else f"{value:#x}&&&{other:#x}"


def ports(running: ControlledSwitch, data: bytes, port: int = 0, now_us: int = 0) -> list[int]:
    return [number for number, _ in running.process(port, data, now_us)]


def refuses(pattern: str) -> "pytest.RaisesExc[P4Error]":
    return pytest.raises(P4Error, match=pattern)


# ---- values

BIT8, INT8, BIT32, BIT48, BIT128 = ir.Bits(8), ir.Bits(8, signed=True), ir.Bits(32), ir.Bits(48), ir.Bits(128)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("10", BIT8, 10),
        ("0xff", BIT8, 255),
        ("0b101", BIT8, 5),
        ("true", ir.Bool(), 1),
        ("10.0.1.2", BIT32, 0x0A000102),
        ("08:00:00:00:01:11", BIT48, 0x080000000111),
        ("8:0:0:0:1:11", BIT48, 0x080000000111),
        ("2001:db8::1", BIT128, 0x20010DB8 << 96 | 1),
        ("-1", INT8, -1),
        ("0xff", INT8, -1),
        ("127", INT8, 127),
        ("green", ir.EnumMember("Color", ("red", "green")), 1),
        ("1", ir.EnumMember("Color", ("red", "green")), 1),
    ],
)
def test_reads_a_value(text: str, kind: ir.Type, value: int) -> None:
    assert parse_number(text, kind) == value


@pytest.mark.parametrize(
    ("text", "kind", "wrong"),
    [
        ("256", BIT8, "needs 9 bits, but the type has 8"),
        ("-1", BIT8, "negative"),
        ("-129", INT8, "negative"),
        ("0x100", INT8, "too large"),
        ("nine", BIT8, "could not cast to integer"),
        ("010", BIT8, "could not cast to integer"),
        ("9" * 5000, BIT8, "could not cast"),
        ("10.0.0.256", BIT32, "Invalid IPv4"),
        ("10.0.0", BIT32, "Invalid IPv4"),
        ("08:00:00:00:01", BIT48, "Invalid MAC"),
        ("08:00:00:00:01:111", BIT48, "Invalid MAC"),
        ("1::2::3", BIT128, "Invalid IPv6"),
        ("10.0.0.1", BIT48, "could not cast"),
        ("2", ir.EnumMember("Color", ("red", "green")), "no member of Color; it has: red, green"),
        ("2", ir.Bool(), "too large"),
    ],
)
def test_refuses_a_value(text: str, kind: ir.Type, wrong: str) -> None:
    with refuses(wrong):
        parse_number(text, kind)


@pytest.mark.parametrize(
    ("text", "kind", "match", "pair"),
    [
        ("7", BIT8, "exact", (7, None)),
        ("10.1.2.3/8", BIT32, "lpm", (0x0A000000, 8)),
        ("10.1.2.3/0", BIT32, "lpm", (0, 0)),
        ("0x12&&&0xf0", BIT8, "ternary", (0x10, 0xF0)),
        ("*", BIT8, "ternary", (0, 0)),
        ("5", BIT8, "optional", (5, 0xFF)),
        ("*", BIT8, "optional", (0, 0)),
        ("1->5", BIT8, "range", (1, 5)),
        ("-2->5", INT8, "range", (-2, 5)),
        ("0xf0&&&0xf0", INT8, "ternary", (-16, 0xF0)),
    ],
)
def test_reads_a_key(text: str, kind: ir.Type, match: str, pair: tuple[int, int | None]) -> None:
    assert parse_key(text, kind, match) == pair


@pytest.mark.parametrize(
    ("text", "kind", "match", "wrong"),
    [
        ("10.0.0.1", BIT32, "lpm", "use '/'"),
        ("10.0.0.1/33", BIT32, "lpm", "beyond the key's 32 bits"),
        ("10.0.0.1/-1", BIT32, "lpm", "use '/'"),
        ("5", BIT8, "ternary", "use '&&&'"),
        ("5&&&0x100", BIT8, "ternary", "too large"),
        ("5", BIT8, "range", "use '->'"),
        ("5->1", BIT8, "range", "start is greater"),
        ("5&&&0xf0", BIT8, "optional", "whole value or anything"),
    ],
)
def test_refuses_a_key(text: str, kind: ir.Type, match: str, wrong: str) -> None:
    with refuses(wrong):
        parse_key(text, kind, match)


@given(st.integers(1, 140), st.booleans(), st.data())
def test_words_of_a_key_give_the_key_again(width: int, signed: bool, data: st.DataObject) -> None:
    kind = ir.Bits(width, signed)
    numbers = st.integers(0, (1 << width) - 1)
    value, other = data.draw(numbers), data.draw(numbers)
    for match, words in (
        ("exact", hex(value)),
        ("lpm", f"{value}/{other % (width + 1)}"),
        ("ternary", f"{value}&&&{other}"),
    ):
        pair = parse_key(words, kind, match)
        assert parse_key(key_words(pair, kind, match), kind, match) == pair
    low, high = sorted((fit(value, kind), fit(other, kind)))
    pair = parse_key((low, high), kind, "range")
    assert parse_key(key_words(pair, kind, "range"), kind, "range") == pair


# ---- names


def test_a_name_is_full_or_a_suffix_that_means_one_thing(running: ControlledSwitch) -> None:
    for name in ("routes", "MyIngress.routes"):
        assert running.tables[name].name == "MyIngress.routes"
    with refuses(r"Invalid table name \(route\); did you mean MyIngress.routes\?"):
        running.table_num_entries("route")
    with refuses(r"Invalid register name \(x\); the program has: MyIngress.levels, MyIngress.seen"):
        running.register_read("x", 0)


# ---- entries


def test_an_entry_sends_packets_and_a_deleted_one_does_not(running: ControlledSwitch) -> None:
    handle = running.table_add("routes", "forward", ["10.0.1.0/24"], ["08:00:00:00:01:11", 3])
    assert ports(running, packet("0a000105")) == [3]
    assert ports(running, packet("0a000205")) == []
    running.table_modify("routes", "MyIngress.forward", handle, {"port": 4, "dst": 1})
    assert ports(running, packet("0a000105")) == [4]
    running.table_delete("routes", handle)
    assert ports(running, packet("0a000105")) == []
    with refuses("INVALID_HANDLE.*was deleted"):
        running.table_delete("routes", handle)
    with refuses("INVALID_HANDLE"):
        running.table_modify("routes", "drop", 77)


def test_entries_by_key(running: ControlledSwitch) -> None:
    running.table_add("routes", "forward", {"hdr.ipv4.dst": "10.0.1.0/24"}, [1, 3])
    assert running.table_find("routes", [(0x0A0001FF, 24)]) == 0
    with refuses("BAD_MATCH_KEY"):
        running.table_find("routes", ["10.0.1.0/25"])


def test_a_key_may_stand_once(running: ControlledSwitch) -> None:
    running.table_add("routes", "drop", ["10.0.1.7/24"])
    with refuses("DUPLICATE_ENTRY.*entry 0.*table_modify"):
        running.table_add("routes", "drop", ["10.0.1.0/24"])
    running.table_add("filter", "drop", ["*", "0->255", "*"], priority=1)
    running.table_add("filter", "drop", ["*", "0->255", "*"], priority=2)
    with refuses("DUPLICATE_ENTRY"):
        running.table_add("filter", "drop", ["*", "0->255", "*"], priority=2)


def test_a_full_table(running: ControlledSwitch) -> None:
    for prefix in range(4):
        running.table_add("routes", "drop", [f"10.0.{prefix}.0/24"])
    with refuses("TABLE_FULL.*MyIngress.routes holds 4 entries"):
        running.table_add("routes", "drop", ["10.1.0.0/16"])
    running.table_delete("routes", 2)
    assert running.table_add("routes", "drop", ["10.1.0.0/16"]) == 4


def test_const_tables_refuse(running: ControlledSwitch) -> None:
    for change in (
        lambda: running.table_add("fixed", "set_tag", [3], [1]),
        lambda: running.table_delete("fixed", 0),
        lambda: running.table_modify("fixed", "NoAction", 0),
        lambda: running.table_clear("fixed"),
    ):
        with refuses("IMMUTABLE_TABLE_ENTRIES.*entries of MyIngress.fixed const"):
            change()
    with refuses("DEFAULT_ENTRY_IS_CONST"):
        running.table_set_default("filter", "drop")
    running.table_set_default("filter", "NoAction")  # what it is already
    assert running.table_num_entries("fixed") == 2


def test_entries_of_the_program_can_be_changed_unless_const(running: ControlledSwitch) -> None:
    assert running.table_find("first", [1]) == 0
    running.table_delete("first", 0)
    assert running.table_add("first", "set_tag", [1], [3]) == 1
    running.reset_state()
    assert list(running.tables["first"].entries) == [0]


def test_priorities(running: ControlledSwitch) -> None:
    running.table_add("routes", "forward", ["0.0.0.0/0"], [1, 2])
    keys = ["10.0.0.0&&&0xff000000", "0->9", "*"]
    running.table_add("filter", "set_tag", keys, [1], priority=20)
    assert ports(running, packet(kind=5)) == [2]
    running.table_add("filter", "drop", ["*", "5->5", 1], priority=10)
    assert ports(running, packet(kind=5)) == []
    assert ports(running, packet(kind=6)) == [2]
    with refuses("Table MyIngress.filter is range, but no priority was given"):
        running.table_add("filter", "drop", keys)
    with refuses("priority -1: expected 0 to"):
        running.table_add("filter", "drop", keys, priority=-1)


def test_keys_left_out_match_anything_but_exact_ones_may_not(running: ControlledSwitch) -> None:
    running.table_add("filter", "drop", {"kind": "3->4"}, priority=1)
    assert running.tables["filter"].entries[0].keys == ((0, 0), (3, 4), (0, 0))
    with refuses("needs a value for level: its kind is exact"):
        running.table_add("exact_two", "drop", {"hdr.ethernet.type": 1})
    with refuses("Table MyIngress.filter has no key nothing; it has: hdr.ipv4.src, "):
        running.table_add("filter", "drop", {"nothing": 3}, priority=1)


def test_signed_keys_and_arguments(running: ControlledSwitch) -> None:
    running.table_add("routes", "forward", ["0.0.0.0/0"], [1, 2])
    running.table_add("exact_two", "set_level", ["0x800", "-5"], ["-7"])
    running.table_add("exact_two", "set_level", [0x800, 0xFA], [0x80])  # -6, -128 by their bits
    for level, wanted in ((-5, 0xF9), (-6, 0x80), (5, 5)):
        ((_, data),) = running.process(0, packet(level=level))
        assert data[-2] == wanted


@pytest.mark.parametrize(
    ("keys", "action", "arguments", "wrong"),
    [
        (
            ["10.0.0.0/8"],
            "forward",
            [1],
            "Action MyIngress.forward needs 2 parameters .bit<48> dst, bit<9> port., got 1",
        ),
        (["10.0.0.0/8"], "forward", [1, 512], "Invalid runtime data: Error while parsing port - .*10 bits.*type has 9"),
        (["10.0.0.0/8"], "forward", {"dst": 1}, "needs a value for parameter port"),
        (["10.0.0.0/8"], "forward", {"dst": 1, "port": 1, "vlan": 2}, "has no parameter vlan; it has: dst, port"),
        (["10.0.0.0/8"], "set_tag", [1], "Table MyIngress.routes has no action set_tag; "),
        (["10.0.0.0/8", 1], "drop", [], "Table MyIngress.routes needs 1 key fields .hdr.ipv4.dst lpm., got 2"),
        (["10.0.0.0/40"], "drop", [], "Invalid match key: Error while parsing hdr.ipv4.dst - prefix length 40"),
        (["10.0.0.0/8"], "NoAction", [], "@defaultonly"),
    ],
)
def test_refuses_a_wrong_entry(running: ControlledSwitch, keys: list, action: str, arguments: list, wrong: str) -> None:
    with refuses(wrong):
        running.table_add("routes", action, keys, arguments)
    assert running.table_num_entries("routes") == 0


def test_default_actions(running: ControlledSwitch) -> None:
    running.table_set_default("routes", "forward", ["00:00:00:00:00:09", 6])
    assert ports(running, packet()) == [6]
    running.table_reset_default("routes")
    assert ports(running, packet()) == []
    with refuses("@tableonly"):
        running.table_set_default("exact_two", "drop")


def test_a_batch_reaches_the_engine_once_even_if_it_ends_early(
    running: ControlledSwitch, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    set_table = running.engine.set_table
    monkeypatch.setattr(
        running.engine, "set_table", lambda table, entries, default: (told.append(len(entries)),
                                                                      set_table(table, entries, default))
    )  # fmt: skip
    with refuses("IMMUTABLE"), running.batch():
        for kind in range(100):
            running.table_add("first", "set_tag", [kind + 2], [1])
        running.table_clear("fixed")
    assert told == [101]


# ---- action profiles


def test_members_and_tables_of_a_profile(running: ControlledSwitch) -> None:
    running.table_add("routes", "forward", ["0.0.0.0/0"], [1, 2])
    member = running.act_prof_create_member("choices", "forward", ["00:00:00:00:00:01", 7])
    running.table_indirect_add("chosen", [1], member)
    assert ports(running, packet(kind=1)) == [7]
    running.act_prof_modify_member("choices", "forward", member, [1, 8])
    assert ports(running, packet(kind=1)) == [8]
    with refuses("MBR_STILL_USED.*MyIngress.chosen"):
        running.act_prof_delete_member("choices", member)
    running.table_indirect_delete("chosen", 0)
    assert ports(running, packet(kind=1)) == [2]
    running.table_indirect_set_default("chosen", member)
    assert ports(running, packet(kind=9)) == [8]
    running.act_prof_modify_member("choices", "forward", member, [1, 9])
    assert ports(running, packet(kind=9)) == [9]
    running.table_reset_default("chosen")
    running.act_prof_delete_member("choices", member)
    assert running.act_prof_create_member("choices", "NoAction") == member
    for _ in range(3):
        running.act_prof_create_member("choices", "NoAction")
    with refuses("TABLE_FULL.*4 members"):
        running.act_prof_create_member("choices", "NoAction")


def test_groups_of_a_selector_spread_by_its_keys(running: ControlledSwitch) -> None:
    members = [running.act_prof_create_member("hashed", "forward", [1, port]) for port in (3, 4)]
    group = running.act_prof_create_group("hashed")
    with refuses("EMPTY_GRP"):
        running.table_indirect_add_with_group("balanced", [1], group)
    for member in members:
        running.act_prof_add_member_to_group("hashed", member, group)
    running.table_indirect_add_with_group("balanced", [1], group)
    seen = {tuple(ports(running, packet(src=f"0a0000{host:02x}"))) for host in range(20)}
    assert seen == {(3,), (4,)}
    running.act_prof_remove_member_from_group("hashed", members[0], group)
    assert {tuple(ports(running, packet(src=f"0a0000{host:02x}"))) for host in range(20)} == {(4,)}
    for refusal, change in (
        ("EMPTY_GRP", lambda: running.act_prof_remove_member_from_group("hashed", members[1], group)),
        ("GRP_STILL_USED", lambda: running.act_prof_delete_group("hashed", group)),
        ("MBR_ALREADY_IN_GRP", lambda: running.act_prof_add_member_to_group("hashed", members[1], group)),
        ("MBR_NOT_IN_GRP", lambda: running.act_prof_remove_member_from_group("hashed", members[0], group)),
        ("MBR_STILL_USED", lambda: running.act_prof_delete_member("hashed", members[1])),
        ("INVALID_GRP_HANDLE", lambda: running.act_prof_delete_group("hashed", 9)),
        ("INVALID_MBR_HANDLE", lambda: running.table_indirect_add("balanced", [3], 9)),
        ("without selector", lambda: running.act_prof_create_group("choices")),
        ("non-indirect", lambda: running.table_indirect_add("routes", ["10.0.0.0/8"], 0)),
        ("WRONG_TABLE_TYPE", lambda: running.table_add("balanced", "set_tag", [3], [1])),
    ):
        with refuses(refusal):
            change()
    running.table_indirect_modify("balanced", 0, MemberRef(members[0]))
    assert ports(running, packet()) == [3]
    running.act_prof_delete_group("hashed", group)
    with refuses("INVALID_GRP_HANDLE"):
        running.table_indirect_modify("balanced", 0, GroupRef(group))


# ---- copies


def test_multicast_groups(running: ControlledSwitch) -> None:
    running.table_add("routes", "multicast", ["0.0.0.0/0"], [7])
    assert ports(running, packet()) == []
    running.mc_mgrp_create(7)
    one, two = running.mc_node_create(5, [2, 1]), running.mc_node_create(6, [1])
    running.mc_node_associate(7, one)
    running.mc_node_associate(7, two)
    copies = running.process(0, packet())
    assert [(port, data[11]) for port, data in copies] == [(1, 5), (2, 5), (1, 6)]
    with refuses("belongs to group 7 already"):
        running.mc_node_associate(7, one)
    running.mc_node_update(one, [3])
    assert ports(running, packet()) == [3, 1]
    running.mc_node_dissociate(7, one)
    assert ports(running, packet()) == [1]
    running.mc_node_destroy(two)
    assert ports(running, packet()) == []
    assert running.mc_node_create(0, []) == two  # the least free handle
    running.mc_node_associate(7, one)
    running.mc_mgrp_destroy(7)
    assert (ports(running, packet()), running.nodes[one].group) == ([], None)
    for wrong in (
        lambda: running.mc_node_associate(7, one),
        lambda: running.mc_mgrp_create(0),
        lambda: running.mc_mgrp_create(65536),
        lambda: running.mc_node_create(65536, [1]),
        lambda: running.mc_node_create(0, [1, 1]),
        lambda: running.mc_node_create(0, [511]),
        lambda: running.mc_node_destroy(44),
        lambda: running.mc_node_dissociate(7, 44),
    ):
        with pytest.raises(P4Error):
            wrong()


def test_mirror_sessions(running: ControlledSwitch) -> None:
    running.table_add("routes", "mirror", ["0.0.0.0/0"], [5])
    assert ports(running, packet()) == [1]
    running.mirroring_add(5, 9)
    assert ports(running, packet()) == [9, 1]
    running.mc_group_set(3, [PacketReplica(4, 1), PacketReplica(6, 2)])
    running.mirroring_add_mc(5, 3)
    assert ports(running, packet()) == [4, 6, 1]
    running.mirroring_set(5, [PacketReplica(8, 1)], truncate=14)
    assert [(port, len(data)) for port, data in running.process(0, packet())] == [(8, 14), (1, 24)]
    running.mirroring_delete(5)
    assert ports(running, packet()) == [1]
    with refuses("SESSION_NOT_FOUND"):
        running.mirroring_get(5)
    with refuses("expected 0 to 32767"):
        running.mirroring_add(1 << 15, 1)


# ---- registers, counters, meters, value sets


def test_registers(running: ControlledSwitch) -> None:
    running.register_write("seen", 7, "10.0.0.1")
    running.register_write("levels", 0, -3)
    running.register_write("wide", 1, (1 << 128) - 1)
    assert running.register_read("seen", 7) == 0x0A000001
    assert running.register_read("levels", 0) == -3
    assert running.register_read("wide", 1) == (1 << 128) - 1
    running.register_write_range("seen", 2, 4, 9)
    assert running.register_read_all("seen") == [0, 0, 9, 9, 9, 0, 0, 0x0A000001]
    running.register_reset("seen")
    assert running.register_read_all("seen") == [0] * 8
    with refuses("INVALID_INDEX.*MyIngress.seen has 8 cells, from 0; 8 is none"):
        running.register_write("seen", 8, 1)
    with refuses("INVALID_INDEX"):
        running.register_read("seen", -1)
    with refuses("Bad format for value of MyIngress.seen: .*33 bits"):
        running.register_write("seen", 0, 1 << 32)


def test_counters(running: ControlledSwitch) -> None:
    entry = running.table_add("routes", "forward", ["10.0.0.0/8"], [1, 2])
    running.table_add("exact_two", "count_and_log", [0x800, 0])
    for _ in range(3):
        running.process(1, packet())
    assert running.counter_read("per_port", 1) == (3, 72)
    assert running.counter_read("hits", entry) == (3, 72)
    assert running.engine.take_log() == ["port 1"] * 3
    running.table_modify("routes", "forward", entry, [1, 3])
    running.table_add("routes", "drop", ["11.0.0.0/8"])
    assert running.counter_read("hits", entry) == (3, 72), "a changed entry, or another, resets no counter"
    running.counter_write("hits", entry, 10, 20)
    assert running.counter_read("hits", entry) == (10, 20)
    running.counter_reset("hits")
    running.counter_reset("per_port")
    assert (running.counter_read("hits", entry), running.counter_read("per_port", 1)) == ((0, 0), (0, 0))
    with refuses("INVALID_HANDLE"):
        running.counter_read("hits", 9)
    with refuses("INVALID_INDEX"):
        running.counter_write("per_port", 4, 1, 1)
    with refuses("counter value -1"):
        running.counter_write("per_port", 1, -1, 1)


def test_cells_of_an_entry_added_in_the_same_batch(running: ControlledSwitch, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine need not keep counts of entries that it has not been told of."""
    calls: list[str] = []
    for name in ("set_table", "counter_write"):
        whole = getattr(running.engine, name)
        monkeypatch.setattr(running.engine, name, lambda *a, name=name, whole=whole: (calls.append(name), whole(*a)))
    with running.batch():
        entry = running.table_add("routes", "forward", ["10.0.0.0/8"], [1, 2])
        running.counter_write("hits", entry, 5, 6)
    assert calls == ["set_table", "counter_write"]
    running.process(0, packet())
    assert running.counter_read("hits", entry) == (6, 30)


def test_meters(running: ControlledSwitch) -> None:
    rates = [MeterRate(0.001, 1), MeterRate(0.002, 2)]
    running.meter_set_rates("limit", 0, rates)
    assert running.meter_get_rates("limit", 0) == tuple(rates)
    assert running.meter_get_rates("limit", 1) == ()
    running.meter_array_set_rates("MyIngress.limit", rates)
    assert running.meter_get_rates("limit", 2) == tuple(rates)
    entry = running.table_add("policed", "NoAction", [1])
    running.meter_array_set_rates("policer", rates)
    assert running.meter_get_rates("policer", entry) == tuple(rates)
    with refuses("expected 2 but got 1"):
        running.meter_set_rates("limit", 0, rates[:1])
    with refuses("above the peak rate"):
        running.meter_set_rates("limit", 0, rates[::-1])
    with refuses("INVALID_INFO_RATE_VALUE"):
        running.meter_set_rates("limit", 0, [MeterRate(float("nan"), 1), MeterRate(1, 1)])
    with refuses("INVALID_INDEX"):
        running.meter_get_rates("limit", 3)


def test_value_sets(running: ControlledSwitch) -> None:
    running.table_set_default("routes", "forward", [1, 2])
    running.table_add("filter", "drop", ["10.0.0.1&&&0xffffffff", "0->255", "*"], priority=1)
    assert ports(running, packet(ether_type="0900")) == [2], "not parsed, so not filtered"
    running.pvs_add("types", "0x900")
    running.pvs_add("types", 0x900)
    assert ports(running, packet(ether_type="0900")) == []
    assert running.pvs_get("types") == [((0x900, None),)]
    running.pvs_add("types", 1)
    with refuses("holds 2 values"):
        running.pvs_add("types", 2)
    with refuses("too large"):
        running.pvs_add("types", 0x10000)
    running.pvs_remove("types", 0x900)
    assert ports(running, packet(ether_type="0900")) == [2]
    running.pvs_clear("types")
    assert running.pvs_get("types") == []


# ---- queues, and all of it


def test_queue_settings_narrow(running: ControlledSwitch) -> None:
    running.set_queue_depth(10)
    running.set_queue_rate(1000, 3)
    assert [running.queues.depth(port) for port in (1, 3)] == [10, 10]
    assert [running.queues.rate(port) for port in (1, 3)] == [0, 1000]
    running.set_queue_rate(5)  # for all: also for those set before
    assert running.queues.rate(3) == 5
    for wrong in (
        lambda: running.set_queue_depth(0),
        lambda: running.set_queue_rate(-1),
        lambda: running.set_queue_rate(1, 511),
        lambda: running.set_queue_depth(1, 1, 1),
    ):
        with pytest.raises(P4Error):
            wrong()


def test_reset_state_is_the_start_again(running: ControlledSwitch) -> None:
    fresh = [(name, state.entries, state.default) for name, state in switch().tables.parts.items()]
    running.table_add("routes", "multicast", ["0.0.0.0/0"], [7])
    running.table_delete("first", 0)
    running.mc_group_set(7, [PacketReplica(1)])
    running.mirroring_add(5, 9)
    running.pvs_add("types", 1)
    running.register_write("seen", 0, 1)
    running.meter_set_rates("limit", 0, [MeterRate(1, 1), MeterRate(1, 1)])
    running.act_prof_create_member("choices", "NoAction")
    running.reset_state()
    assert [(name, state.entries, state.default) for name, state in running.tables.parts.items()] == fresh
    assert (running.groups, running.nodes, running.mirrors, running.pvs_get("types")) == ({}, {}, {}, [])
    assert running.register_read("seen", 0) == 0
    assert running.meter_get_rates("limit", 0) == ()
    assert ports(running, packet()) == []


FUZZED = switch()


@settings(max_examples=60)
@given(st.text(max_size=60))
def test_any_line_gives_text_or_an_error_of_one_line(line: str) -> None:
    for command in (line, f"table_add filter {line}", f"register_write seen {line}", f"mc_node_create {line}"):
        text = error = ""
        try:
            text = run_command(FUZZED, command)
        except P4Error as wrong:
            error = str(wrong)
        assert isinstance(text, str)
        assert not re.search(r"[\r\n]", error)
