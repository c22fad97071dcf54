"""The command line: what bmv2's users write works, prints what they know, and says what is wrong in one line."""

from pathlib import Path

import pytest
from everything import packet, switch

from p4vm.commands.line import COMMANDS, REFUSED, complete, error_line, run_command, run_file
from p4vm.control.controlled_switch import ControlledSwitch
from p4vm.source import P4Error


@pytest.fixture
def running() -> ControlledSwitch:
    return switch()


def talk(running: ControlledSwitch, *lines: str) -> str:
    """What the last line prints, or its error as a user sees it."""
    printed = ""
    for line in lines:
        try:
            printed = run_command(running, line)
        except P4Error as error:
            printed = error_line(error)
    return printed


TRANSCRIPTS = {
    "table_add": (
        "table_add routes forward 10.0.1.0/24 => 08:00:00:00:01:11 1",
        "Adding entry to lpm match table routes\n"
        "match key:           LPM-0a:00:01:00/24\n"
        "action:              forward\n"
        "runtime data:        08:00:00:00:01:11\t00:01\n"
        "Entry has been added with handle 0",
    ),
    "ternary": (
        "table_add MyIngress.filter drop 10.0.0.0&&&0xff000000 1->5 0x1 => 7",
        "Adding entry to range match table MyIngress.filter\n"
        "match key:           TERNARY-0a:00:00:00 &&& ff:00:00:00\tRANGE-01 -> 05\t"
        "TERNARY-00:00:00:00:00:01 &&& ff:ff:ff:ff:ff:ff\n"
        "action:              drop\n"
        "runtime data:        \n"
        "Entry has been added with handle 0",
    ),
    "default": (
        "table_set_default routes forward 0x1 2",
        "Setting default action of routes\naction:              forward\nruntime data:        00:00:00:00:00:01\t00:02",
    ),
    "modify": (
        "table_add routes drop 10.0.0.0/8 => | table_modify routes forward 0 => 1 2",
        "Modifying entry 0 for lpm match table routes",
    ),
    "delete": ("table_add routes drop 10.0.0.0/8 => | table_delete routes 0", "Deleting entry 0 from routes"),
    "no entries": ("table_num_entries routes", "0"),
    "dump": (
        "table_add filter set_tag 10.0.0.0&&&0xff000000 1->5 * => 4 10 | table_dump filter",
        "==========\nTABLE ENTRIES\n**********\nDumping entry 0x0\nMatch key:\n"
        "* hdr.ipv4.src        : TERNARY   0a000000 &&& ff000000\n"
        "* hdr.ipv4.kind       : RANGE     01 -> 05\n"
        "* hdr.ethernet.src    : TERNARY   000000000000 &&& 000000000000\n"
        "Priority: 10\nAction entry: MyIngress.set_tag - 04\n"
        "==========\nDumping default entry\nAction entry: NoAction - \n==========",
    ),
    "dump entry": (
        "table_dump_entry_from_key fixed 2",
        "Dumping entry 0x1\nMatch key:\n* hdr.ipv4.kind       : EXACT     02\nAction entry: MyIngress.set_tag - 08",
    ),
    "profile": (
        "act_prof_create_member hashed forward 1 2 | act_prof_create_group hashed | "
        "act_prof_add_member_to_group hashed 0 0 | table_indirect_add_with_group balanced 7 => 0 | table_dump balanced",
        "==========\nTABLE ENTRIES\n**********\nDumping entry 0x0\nMatch key:\n"
        "* hdr.ipv4.kind       : EXACT     07\nIndex: group(0)\n"
        "==========\nMEMBERS\n**********\nDumping member 0\n"
        "Action entry: MyIngress.forward - 01, 02\n"
        "==========\nGROUPS\n**********\nDumping group 0\nMembers: [0]\n"
        "==========\nDumping default entry\nAction entry: NoAction - \n==========",
    ),
    "short arguments": (
        "table_add routes forward 10.0.1.0/24 => 0 256 | table_dump_entry routes 0",
        "Dumping entry 0x0\nMatch key:\n* hdr.ipv4.dst        : LPM       0a000100/24\n"
        "Action entry: MyIngress.forward - 00, 0100",
    ),
    "older names of members": (
        "table_indirect_create_member chosen set_tag 3",
        "Member has been created with handle 0",
    ),
    "indirect": (
        "act_prof_create_member choices set_tag 3 | table_indirect_add chosen 5 => 0",
        "Adding entry to indirect match table MyIngress.chosen\nEntry has been added with handle 0",
    ),
    "node": (
        "mc_node_create 402 3 1",
        "Creating node with rid 402 , port map 1010 and lag map \nnode was created with handle 0",
    ),
    "groups": (
        "mc_mgrp_create 1 | mc_node_create 5 1 2 | mc_node_associate 1 0 | mc_dump",
        "==========\nMC ENTRIES\n**********\nmgrp(1)\n  -> (L1h=0, rid=5) -> (ports=[1, 2], lags=[])\n"
        "==========\nLAGS\n==========",
    ),
    "mirror": ("mirroring_add 5 7 | mirroring_get 5", "MirroringSessionConfig(port=7, mgid=None)"),
    "mirror to a group": ("mirroring_add_mc 5 22 | mirroring_get 5", "MirroringSessionConfig(port=None, mgid=22)"),
    "register": ("register_write seen 3 0x10 | register_read seen 3", "seen[3]= 16"),
    "whole register": ("register_write seen 1-2 5 | register_read seen", "seen= 0, 5, 5, 0, 0, 0, 0, 0"),
    "part of a register": ("register_write seen 2 5 | register_read seen 1-3", "seen[1-3]= 0, 5, 0"),
    "counter": (
        "counter_write per_port 2 7 900 | counter_read per_port 2",
        "per_port[2]= (900 bytes, 7 packets)",
    ),
    "direct counter": (
        "table_add routes drop 10.0.0.0/8 => | counter_read hits 0",
        "this is the direct counter for table MyIngress.routes\nhits[0]= (0 bytes, 0 packets)",
    ),
    "meter": (
        "meter_set_rates limit 0 0.001:4 0.002:5 | meter_get_rates limit 0",
        "0: info rate = 0.001, burst size = 4\n1: info rate = 0.002, burst size = 5",
    ),
    "value set": ("pvs_add types 0x88f7 | pvs_get types", "88f7"),
    "table_info": (
        "table_info MyIngress.chosen",
        f"MyIngress.chosen               [implementation=MyIngress.choices, mk=hdr.ipv4.kind(exact, 8)]\n{'*' * 80}\n"
        "MyIngress.forward              [dst(48),\tport(9)]\nMyIngress.set_tag              [tag(8)]\n"
        "NoAction                       []",
    ),
    "show_pvs": ("show_pvs", "MyParser.types                 [compressed bitwidth:16]"),
    "ports": (
        "show_ports",
        "  port #       iface name       status  extra info\n" + "=" * 50,
    ),
    "comment": ("   # nothing", ""),
    "words before a comment": ("table_num_entries fixed # how many?", "2"),
}


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_prints(running: ControlledSwitch, name: str) -> None:
    lines, printed = TRANSCRIPTS[name]
    assert talk(running, *lines.split(" | ")) == printed


FAULTS = {
    "table_dump nothing": "Error: Invalid table name (nothing); the program has: MyIngress.balanced, ",
    "table_add routes fly 10.0.0.0/8 => 1": "Error: Table MyIngress.routes has no action fly; ",
    "table_add routes forward 10.0.0.0/8 1 2": "Error: Table MyIngress.routes needs 1 key fields, then => and the act",
    "table_add routes": "Error: Insufficient number of args, expected 2 but got 1; table_add TABLE ACTION KEYS",
    "table_add routes drop 10.0.0.0/8 => 4": "Error: Action MyIngress.drop needs 0 parameters, got 1",
    "table_add routes forward 10.0.0.0 => 1 2": "Invalid match key: Error while parsing hdr.ipv4.dst - Invalid LPM",
    "table_add routes forward 10.0.0.0/8 => 1 512": "Invalid runtime data: Error while parsing port - Parameter is too",
    "table_add filter drop * 1->2 * => seven": "Error: Table MyIngress.filter is range, but could not extract a v",
    "table_add fixed set_tag 7 => 1": "Invalid table operation (IMMUTABLE_TABLE_ENTRIES): the program declares",
    "table_delete routes 5": "Invalid table operation (INVALID_HANDLE): MyIngress.routes never had an entry 5",
    "table_delete routes x": "Error: Bad format for entry handle, expected integer, got 'x'",
    "table_delete routes": "Error: Wrong number of args, expected 2 but got 1; table_delete TABLE HANDLE",
    "table_set_default filter drop": "Invalid table operation (DEFAULT_ENTRY_IS_CONST): ",
    "table_indirect_add routes 10.0.0.0/8 => 1": "Error: Cannot run this command on non-indirect table",
    "register_read seen 8": "Invalid register operation (INVALID_INDEX): MyIngress.seen has 8 cells",
    "register_write seen 0 x": "Error: Bad format for value of MyIngress.seen: 'x'",
    "register_write seen 3-9 1": "Invalid register operation (INVALID_INDEX): ",
    "counter_read per_port 9": "Invalid counter operation (INVALID_INDEX): ",
    "meter_set_rates limit 0 1:1": "Error: Invalid number of rates, expected 2 but got 1",
    "meter_set_rates limit 0 1 2": "Error: Error while parsing rates: '1'; expected RATE:BURST",
    "mirroring_get 5": "Invalid mirroring operation (SESSION_NOT_FOUND): there is no session 5",
    "mc_node_associate 1 0": "Invalid PRE operation (INVALID_L1_HANDLE): there is no node 0",
    "mc_node_create 1 x": "Error: 'x' is not a valid port number",
    "mc_node_create 1 2 2": "Error: Found duplicate port number '2'",
    "mc_node_create 1 2 | 3": "Error: this switch has no LAGs",
    "load_new_config_file x.json": "Error: load_new_config_file: a program can't be changed while it runs",
    "tabel_add routes": "Error: Unknown command: tabel_add; did you mean table_add?",
    "zzzz": "Error: Unknown command: zzzz; see help",
    "x" * 70_000: "Error: a line of 70000 characters; expected at most",
}


@pytest.mark.parametrize("line", FAULTS)
def test_says_what_is_wrong(running: ControlledSwitch, line: str) -> None:
    assert talk(running, line).startswith(FAULTS[line])


def test_every_command_has_help_and_none_is_also_refused() -> None:
    running = switch()
    listed = run_command(running, "help")
    for name, command in COMMANDS.items():
        assert name in listed.split()
        assert run_command(running, f"help {name}").startswith(command.usage)
        assert command.usage.split()[0] == name
    assert not COMMANDS.keys() & REFUSED.keys()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("table_du", ["table_dump", "table_dump_entry", "table_dump_entry_from_key", "table_dump_group",
                      "table_dump_member"]),
        ("table_add MyIngress.f", ["MyIngress.filter", "MyIngress.first", "MyIngress.fixed"]),
        ("table_add MyIngress.filter ", ["MyIngress.drop", "MyIngress.set_tag", "NoAction"]),
        ("act_prof_create_member hashed MyIngress.s", ["MyIngress.set_tag"]),
        ("table_indirect_create_member chosen MyIngress.s", ["MyIngress.set_tag"]),
        ("register_read MyIngress.s", ["MyIngress.seen"]),
        ("counter_read MyIngress.", ["MyIngress.hits", "MyIngress.per_port"]),
        ("help mc_d", ["mc_dump"]),
        ("table_add nothing x", []),
        ("nothing x", []),
    ],
)  # fmt: skip
def test_completes(running: ControlledSwitch, line: str, words: list[str]) -> None:
    assert complete(running, line) == words


def test_a_file_of_commands(running: ControlledSwitch, tmp_path: Path) -> None:
    good = tmp_path / "good.txt"
    good.write_text(
        "# entries\ntable_add routes forward 10.0.0.0/8 => 1 2\n\nregister_write seen 0 1\nregister_read seen 0\n"
    )
    assert run_file(running, good).splitlines()[-1] == "seen[0]= 1"
    assert [port for port, _ in running.process(0, packet())] == [2]
    bad = tmp_path / "bad.txt"
    bad.write_text("register_write seen 1 7\n\ntable_add routes forward 10.0.0.0/8 => 1 2\nregister_write seen 2 7\n")
    with pytest.raises(P4Error, match=r"bad.txt:3:1: Invalid table operation \(DUPLICATE_ENTRY\)"):
        run_file(running, bad)
    assert running.register_read_all("seen")[:3] == [1, 7, 0]
    with pytest.raises(P4Error, match="can't be read: No such file"):
        run_file(running, tmp_path / "none.txt")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(P4Error, match="no text"):
        run_file(running, tmp_path / "binary")
