"""The STF runner: what passes, what fails and how clearly it is said, and what its grammar takes."""

from pathlib import Path

import pytest
from everything import packet, switch
from hypothesis import given, settings
from hypothesis import strategies as st

from p4vm.control.control_values import parse_key
from p4vm.ir import ir_nodes as ir
from p4vm.source import P4Error, Position
from p4vm.stf.judge import difference
from p4vm.stf.run import Result, run, run_text
from p4vm.stf.stf_parse import Add, CheckCounter, Direct, Expect, Remove, StfPacket, parse

HERE = Position("t.stf", 1, 1)
ROUTE = "add routes hdr.ipv4.dst:0x0a000100/24 MyIngress.forward(dst:0x1, port:2)\n"
DATA = packet().hex()
OUT = "000000000001" + DATA[12:]


def judged(text: str) -> Result:
    return run_text(switch(), text, "t.stf")


# ---- grammar


def test_statements() -> None:
    text = """
    # a comment, and keywords in any case
    ADD c.t 10 data.f2:0x04**0404 extra$0.h:0b1* h.isValid():1 act(val4:0x4040, port:2) = first   # more
    setdefault t2[3].x no_op()
    packet 0 01 0203
    Expect 1 0102**
    expect 2
    expect 3 01 $
    expect 4 $
    check_counter c.cnt($first) bytes >= 2
    check_counter cnt(7)
    remove all
    remove first
    MC_NODE_CREATE 5 1 2
    """
    places = [(statement.position.line, statement.position.column) for statement in parse(text, "t.stf")]
    assert places[:2] == [(3, 5), (4, 5)]
    add, default, sent, *rest = parse(text, "t.stf")
    assert isinstance(add, Add)
    assert (add.table, add.priority, add.action, add.label) == ("c.t", 10, "act", "first")
    assert add.keys == {"data.f2": "0x04**0404", "extra$0.h": "0b1*", "h.isValid()": "1"}
    assert add.arguments == {"val4": "0x4040", "port": "2"}
    assert isinstance(default, Add)
    assert (default.table, default.keys, default.action, default.arguments) == ("t2[3].x", None, "no_op", {})
    assert isinstance(sent, StfPacket)
    assert (sent.port, sent.data) == (0, b"\1\2\3")
    assert [(e.port, e.nibbles, e.exact) for e in rest if isinstance(e, Expect)] == [
        (1, "0102**", False),
        (2, None, False),
        (3, "01", True),
        (4, "", True),
    ]
    checks = [statement for statement in rest if isinstance(statement, CheckCounter)]
    assert [(c.counter, c.index, c.unit, c.relation, c.number) for c in checks] == [
        ("c.cnt", "first", "bytes", ">=", 2),
        ("cnt", "7", "packets", "", 0),
    ]
    assert [statement.label for statement in rest if isinstance(statement, Remove)] == ["", "first"]
    assert [statement.line for statement in rest if isinstance(statement, Direct)] == ["mc_node_create 5 1 2"]


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("fly 3", "t.stf:1:1: 'fly' is no statement; expected add, setdefault, packet"),
        ("packet 0", "t.stf:1:1: packet: 0 hex digits"),
        ("packet 0 123", "packet: 3 hex digits; expected two for each byte"),
        ("packet 0 12 3g", "'g' is no hex digit .nibble 4."),
        ("packet x 12", "packet needs a port number"),
        ("packet 99999 12", "packet needs a port number"),
        ("packet 0 1*", "no hex digit"),
        ("expect 0 12$34", "'\\$' is no hex digit and no . .nibble 3.; a \\$ ends the line"),
        ("expect", "expect needs a port number"),
        ("wait 3", "wait takes no words"),
        ("add t", "t.stf:1:6: found the end of the line; expected a key like"),
        ("add t k:1", "found the end of the line; expected a key like"),
        ("add t k:x a()", "t.stf:1:9: found 'x'; expected a number"),
        ("add t k:1 a(b)", "t.stf:1:14: found '\\)'; expected ':'"),
        ("add t k:1 a(b:1", "found the end of the line; expected ',' or '\\)'"),
        ("add t k:1 a() b", "t.stf:1:15: found 'b'; expected the end of the line"),
        ("add t k:1 a() = 3", "expected a label"),
        ("add t k&1 a()", "t.stf:1:8: '&1 a..': expected a name, a number"),
        ("setdefault t", "expected an action"),
        ("check_counter c", "expected '\\('"),
        ("check_counter c(1) apples == 3", "packets or bytes, not apples"),
        ("check_counter c(1) packets = 3", "expected one of == != <= >= < >"),
        ("remove", "expected all, or the label"),
        ("add t 007 k:1 a()", "t.stf:1:7: '007' is no whole number; write it without zeros in front, or as 0x…"),
        ("add t 0x* k:1 a()", "t.stf:1:7: '0x.' is no whole number"),
        ("check_counter c(1) packets == 0x*", "t.stf:1:31: '0x.' is no whole number"),
        ("check_counter c(1) packets == -010", "t.stf:1:32: '010' is no whole number"),
        ("check_counter c(007)", "t.stf:1:17: '007' is no whole number"),
        ("check_counter c(0b*)", "t.stf:1:17: '0b.' is no whole number"),
        ("check_counter c(" + "9" * 5000 + ")", "t.stf:1:17: '9+…' is no whole number"),
    ],
)
def test_says_where_a_line_is_wrong(line: str, wrong: str) -> None:
    with pytest.raises(P4Error, match=wrong):
        parse(line, "t.stf")


@settings(max_examples=300)
@given(st.text(st.sampled_from('ad expctk0123x*.:()=,/$#"[]-&>\n'), max_size=60))
def test_any_text_is_statements_or_an_error_of_one_line(text: str) -> None:
    for line in (text, f"add {text}", f"expect 1 {text}", f"check_counter {text}"):
        outcome = parsed(line)
        assert "\n" not in outcome


def parsed(text: str) -> str:
    try:
        parse(text, "t.stf")
    except P4Error as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("word", "kind", "match", "pair"),
    [
        ("0x12", ir.Bits(8), "exact", (0x12, None)),
        ("0x1*", ir.Bits(8), "ternary", (0x10, 0xF0)),
        ("0x1", ir.Bits(8), "ternary", (1, 0xFF)),
        ("0b1*0", ir.Bits(3), "ternary", (4, 5)),
        ("*", ir.Bits(8), "optional", (0, 0)),
        ("*", ir.Bits(8), "lpm", (0, 0)),
        ("0x***", ir.Bits(9), "ternary", (0, 0)),
        ("0x0a******", ir.Bits(32), "lpm", (0x0A000000, 8)),
        ("7", ir.Bits(8), "lpm", (7, 8)),
        ("7", ir.Bits(8), "range", (7, 7)),
        ("7->9", ir.Bits(8), "range", (7, 9)),
        ("7&&&9", ir.Bits(8), "ternary", (1, 9)),
    ],
)
def test_values_of_keys(word: str, kind: ir.Type, match: str, pair: object) -> None:
    assert parse_key(word, kind, match, plain=True) == pair


@pytest.mark.parametrize(
    ("word", "match", "wrong"),
    [
        ("0x1*", "exact", "belongs to ternary, optional and lpm keys; this one is exact"),
        ("0x1*", "range", "belongs to ternary, optional and lpm keys; this one is range"),
        ("0x*1", "lpm", "only the last digits may be"),
        ("0x***", "ternary", "3 digits are more than the key's 8 bits"),
        ("1*3", "ternary", "could not cast to integer"),
        ("1/8", "ternary", "'/' belongs to lpm keys; this one is ternary"),
        ("1->8", "exact", "'->' belongs to range keys; this one is exact"),
        ("1&&&8", "lpm", "'&&&' belongs to ternary keys; this one is lpm"),
        ("0x100", "exact", "too large"),
    ],
)
def test_values_that_a_key_does_not_take(word: str, match: str, wrong: str) -> None:
    with pytest.raises(P4Error, match=wrong):
        parse_key(word, ir.Bits(8), match, plain=True)


# ---- judging


@pytest.mark.parametrize(
    ("pattern", "exact", "data", "where"),
    [
        ("0102", False, "0102", None),
        ("0102", False, "010203", None),
        ("0102", True, "010203", 4),
        ("01*2", False, "01f2", None),
        ("0102", False, "0112", 2),
        ("0102", False, "01", 2),
        ("", True, "", None),
        ("", True, "01", 0),
        (None, False, "99", None),
    ],
)
def test_difference(pattern: str | None, exact: bool, data: str, where: int | None) -> None:
    found = difference(Expect(HERE, 1, pattern, exact), bytes.fromhex(data))
    assert (None if found is None else found[0]) == where


def test_a_test_that_passes() -> None:
    result = judged(f"{ROUTE}expect 2 {OUT} $\npacket 0 {DATA}\npacket 0 {DATA}\nexpect 2 000000000001 *\nno_packet\n")
    assert (result.failures, result.packets_in, result.packets_out) == ([], 2, 2)


FAILURES = {
    f"{ROUTE}packet 0 {DATA}\nexpect 2 000000000001 000000000001 08ff\n": [
        "t.stf:3: expect 2: packet 1 on this port differs at byte 13\n"
        "    expected 00000000 00010000 00000001 08ff\n"
        "    got      00000000 00010000 00000001 08000a00 00010a00 01050001\n"
        "                                          ^"
    ],
    f"{ROUTE}packet 0 {DATA}\nexpect 2 {OUT} 00\n": [
        "t.stf:3: expect 2: packet 1 on this port is too short: 24 bytes, expected 25\n"
        "    expected 00000000 00010000 00000001 08000a00 00010a00 01050001 00\n"
        "    got      00000000 00010000 00000001 08000a00 00010a00 01050001\n"
        f"             {' ' * 54}^"
    ],
    f"{ROUTE}packet 0 {DATA}\nexpect 2 00 $\n": [
        "t.stf:3: expect 2: packet 1 on this port is too long: 24 bytes, expected exactly 1\n"
        "    expected 00 $\n"
        "    got      00000000 00010000 00000001 08000a00 00010a00 01050001\n"
        "               ^"
    ],
    f"packet 0 {DATA}\nexpect 2 00\nexpect 1\n": [
        "t.stf:3: expect 1: no packet came: port 1 sent 0, this would be packet 1",
        "t.stf:2: expect 2: no packet came: port 2 sent 0, this would be packet 1; expected 00",
    ],
    f"{ROUTE}\npacket 0 {DATA}\n": [
        "t.stf:3: nothing expects what this packet caused: port 2 sent 24 bytes (packet 1 there): 00000000 00010000 "
        "00000001 08000a00 00010a00 01050001"
    ],
    f"{ROUTE}packet 0 {DATA}\nno_packet\nexpect 2\n": [
        f"t.stf:3: no_packet: port 2 sent 1 so far, 0 expected above; the last: {OUT}"
    ],
    "add routes dst:0x0a000000/8 fly()\nexpect 1 00\n": [
        "t.stf:1: Error: Table MyIngress.routes has no action fly; the program has: MyIngress.drop, MyIngress.forward, "
        "MyIngress.mirror, MyIngress.multicast, NoAction"
    ],
    "add routes src:1 drop()\n": ["t.stf:1: Error: Table MyIngress.routes has no key src; it has: hdr.ipv4.dst"],
    "add filter ipv4.src:0x0******* drop()\n": [
        "t.stf:1: Error: Table MyIngress.filter is range: write a priority after its name (the greater wins)"
    ],
    "add first kind:0x1* set_tag(tag:1)\n": [
        "t.stf:1: Invalid match key: Error while parsing hdr.ipv4.kind - 0x1*: * belongs to ternary, optional and lpm "
        "keys; this one is exact"
    ],
    "check_counter per_port(1) packets == 1\n": ["t.stf:1: per_port(1): 0 packets; expected == 1"],
    "check_counter hits(none) packets == 1\n": [
        "t.stf:1: Error: no entry has the label none; give it one: add … = none"
    ],
    "register_read seen 99\n": [
        "t.stf:1: Invalid register operation (INVALID_INDEX): MyIngress.seen has 8 cells, from 0; 99 is none of them"
    ],
}


@pytest.mark.parametrize("text", FAILURES)
def test_a_failure_says_where_and_what(text: str) -> None:
    assert judged(text).failures == FAILURES[text]


def test_a_far_difference_is_shown_in_a_window() -> None:
    payload = "00" * 700
    result = judged(f"{ROUTE}packet 0 {DATA}{payload}\nexpect 2 {OUT}{payload[:-2]}01\n")
    (failure,) = result.failures
    lines = failure.splitlines()
    assert lines[0].endswith("differs at byte 723")
    assert max(map(len, lines)) < 130
    column = lines[3].index("^")
    assert (lines[1][column], lines[2][column]) == ("1", "0")


# ---- statements at work


def test_a_greater_priority_wins_and_keys_left_out_match() -> None:
    text = (
        "setdefault routes forward(dst:1, port:2)\nadd filter 1 hdr.ipv4.src:0x0a****** drop()\n"
        f"packet 0 {DATA}\nadd filter 5 hdr.ipv4.kind:1 set_tag(tag:1)\npacket 0 {DATA}\nexpect 2 {OUT} $\n"
    )
    assert judged(text).failures == []


def test_counters_labels_and_remove() -> None:
    text = (
        f"{ROUTE.strip()} = far\nadd exact_two hdr.ethernet.type:0x0800 level:0 count_and_log()\n"
        f"packet 1 {DATA}\npacket 1 {DATA}\nexpect 2\nexpect 2\n"
        "check_counter hits($far) packets == 2\ncheck_counter hits(far) bytes > 47\n"
        "check_counter per_port(1) packets <= 2\ncheck_counter per_port(1)\n"
        f"remove far\npacket 1 {DATA}\ncheck_counter per_port(1) packets == 3\n"
        f"remove all\npacket 1 {DATA}\ncheck_counter per_port(1) packets != 4\nregister_read seen 0\nwait\n"
    )
    result = judged(text)
    assert result.failures == []
    assert result.printed == [
        "port 1", "port 1", "per_port[1]= (48 bytes, 2 packets)", "port 1", "seen[0]= 7"
    ]  # fmt: skip


def test_commands_of_the_switch_among_the_statements() -> None:
    text = (
        "add routes dst:0x00000000/0 multicast(group:3)\nmc_mgrp_create 3\nmc_node_create 9 1 2\n"
        f"mc_node_associate 3 0\npacket 0 {DATA}\nexpect 1 ************ 000000000009\nexpect 2\n"
        f"mc_node_update 0 5\npacket 0 {DATA}\nexpect 5\n"
        f"mirroring_add 7 4\nadd routes dst:0x0a****** mirror(session:7)\npacket 0 {DATA}\nexpect 4\nexpect 1\n"
    )
    assert judged(text).failures == []


def test_time_passes_with_packets_and_waits() -> None:
    text = (
        "setdefault routes forward(dst:1, port:2)\nadd policed kind:1 NoAction()\n"
        "meter_set_rates policer 0 0.001:1 0.001:1\n"
        + f"packet 0 {DATA}\nexpect 2\n" * 2
        + f"wait\npacket 0 {DATA}\nexpect 2"
    )
    running = switch()
    times: list[int] = []
    process = running.engine.process
    running.engine.process = lambda port, data, now_us=0: (times.append(now_us), process(port, data, now_us))[1]
    assert run_text(running, text).failures == []
    assert times == [1000, 2000, 1_003_000]


# ---- files


def test_runs_a_file_on_a_switch_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "one.stf"
    path.write_text(f"{ROUTE}packet 0 {DATA}\nexpect 2 {OUT} $")
    assert [run(switch, path).passed for _ in range(2)] == [True, True]
    path.write_text("packet 0 1\n")
    assert run(switch, path).failures == [
        f"{path}:1:1: packet: 1 hex digits; expected two for each byte, at least one byte"
    ]
    with pytest.raises(P4Error, match="can't be read"):
        run(switch, tmp_path / "none.stf")
