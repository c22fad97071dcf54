"""The command line that users of bmv2's runtime CLI know: one line in, text out.

Rows stand by subject in table_commands, group_commands (multicast, mirrors, queues), cell_commands (registers,
counters, meters, value sets) and show_commands. Output and errors have the words that scripts for bmv2 look for.
"""

import difflib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from p4vm.commands import cell_commands, group_commands, show_commands, table_commands
from p4vm.commands.words import Command
from p4vm.control.controlled_switch import ControlledSwitch
from p4vm.source import P4Error, Position, read_text

LINE_MAX = 1 << 16

COMMANDS: dict[str, Command] = {
    **table_commands.COMMANDS,
    **group_commands.COMMANDS,
    **cell_commands.COMMANDS,
    **show_commands.COMMANDS,
}

REFUSED = {
    "load_new_config_file": "a program can't be changed while it runs; stop the switch and start it with the new one",
    "swap_configs": "a program can't be changed while it runs; stop the switch and start it with the new one",
    "mc_set_lag_membership": "this switch has no LAGs; give each port a node of its own",
    "table_set_timeout": "entries of this switch don't age; delete them by table_delete",
    "table_indirect_set_default_with_group": "a default can be a member, not a group; use table_indirect_set_default",
    "port_add": "ports are given when the switch starts: p4vm run prog.p4 -i 3@veth3",
    "port_remove": "ports are given when the switch starts; take the interface down instead: ip link set veth3 down",
    "write_config_to_file": "there is no compiled JSON; `p4vm check --p4info` writes what a controller needs",
    "serialize_state": "a switch's state can't be saved; keep the commands that made it in a file",
    "set_toeplitz_hash_key": "v1model has no Toeplitz hash",
    "shell": "commands reach the switch alone; use a shell for the rest",
}
"""Commands of bmv2 that this switch doesn't have, and what to do instead."""

_OWN_WORDS = re.compile(r"Invalid (match key|runtime data|[a-zA-Z ]+ operation)\b")


def run_command(switch: ControlledSwitch, line: str) -> str:
    """Carry out a line; the command's output, without a last newline. Raises P4Error."""
    if len(line) > LINE_MAX:
        raise P4Error(f"a line of {len(line)} characters; expected at most {LINE_MAX}")
    words = line.partition("#")[0].split()
    if not words:
        return ""
    command = COMMANDS.get(words[0])
    if command is None and words[0] in ("help", "?"):
        return help_text(words[1] if len(words) > 1 else "")
    return (command or find(words[0])).run(switch, words[1:])


def find(name: str) -> Command:
    """Raises P4Error: no such command."""
    if name in COMMANDS:
        return COMMANDS[name]
    if name in REFUSED:
        raise P4Error(f"{name}: {REFUSED[name]}")
    near = difflib.get_close_matches(name, COMMANDS, 1)
    remedy = f"did you mean {near[0]}?" if near else "see help"
    raise P4Error(f"Unknown command: {name[:80]}; {remedy}")


def run_file(switch: ControlledSwitch, path: Path) -> str:
    """Carry out a file; the output of all lines. The first fault raises P4Error with the file's name and line."""
    printed = []
    with switch.batch():
        for number, line in file_lines(path):
            try:
                text = run_command(switch, line)
            except P4Error as error:
                raise P4Error(error_line(error), Position(str(path), number, 1)) from None
            if text:
                printed.append(text)
    return "\n".join(printed)


def file_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines of a text file. Raises P4Error if it can't be read."""
    yield from enumerate(read_text(path).splitlines(), 1)


def error_line(error: P4Error) -> str:
    """An error as scripts for bmv2 expect to see it."""
    return error.message if _OWN_WORDS.match(error.message) else f"Error: {error.message}"


def help_text(name: str = "") -> str:
    """All commands, or what one does."""
    if name:
        command = find(name)
        return f"{command.usage}\n{command.says}"
    width = max(len(command) for command in COMMANDS) + 2
    columns = max(1, 118 // width)
    names = sorted([*COMMANDS, "help"])
    rows = [names[start : start + columns] for start in range(0, len(names), columns)]
    table = "\n".join("".join(f"{word:<{width}}" for word in row).rstrip() for row in rows)
    return f"Commands (help COMMAND says more):\n{table}"


def complete(switch: ControlledSwitch, line: str) -> list[str]:
    """Completions of a line's last word."""
    words = line.split()
    if not words or (len(words) == 1 and not line.endswith(" ")):
        start = words[0] if words else ""
        return sorted(name for name in [*COMMANDS, "help"] if name.startswith(start))
    start = "" if line.endswith(" ") else words.pop()
    if words[0] == "help":
        return sorted(name for name in COMMANDS if name.startswith(start)) if len(words) == 1 else []
    if words[0] not in COMMANDS:
        return []
    place = len(words) - 1
    kinds = COMMANDS[words[0]].names
    if place >= len(kinds):
        return []
    return sorted(name for name in _candidates(switch, kinds[place], words[1:]) if name.startswith(start))


def _candidates(switch: ControlledSwitch, kind: str, before: list[str]) -> list[str]:
    try:
        if kind == "table action":
            return list(switch.tables[before[0]].actions)
        if kind == "profile action":
            return list(switch.profiles[before[0]].actions)
    except P4Error:
        return []
    named: dict[str, Iterable[str]] = {
        "table": switch.tables,
        "profile": switch.profiles,
        "register": switch.registers,
        "counter": switch.counters,
        "meter": switch.meters,
        "value set": switch.value_sets,
    }
    return list(named[kind]) if kind in named else []
