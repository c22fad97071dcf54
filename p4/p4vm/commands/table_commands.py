"""Commands for tables, action profiles and selectors."""

from p4vm.commands.words import Command, data_words, keys_text, short_data_words, table
from p4vm.control.control_profiles import ProfileState
from p4vm.control.control_tables import TableState
from p4vm.control.control_values import BMV2_MATCHES, show_key
from p4vm.control.controlled_switch import ControlledSwitch
from p4vm.engine import ActionCall, GroupRef, MemberRef, TableEntry

RULE = "=========="
STARS = "**********"


def _added(switch: ControlledSwitch, handle: int, table: str, action: str, *_: object) -> str:
    state = switch.tables[table]
    entry = state.entries[handle]
    return "\n".join(
        [
            f"Adding entry to {state.kind} match table {table}",
            f"{'match key:':<20} {keys_text(state.keys, entry.keys)}",
            *_call_lines(state, action, entry.action),
            f"Entry has been added with handle {handle}",
        ]
    )


def _call_lines(state: TableState, action: str, call: ActionCall | MemberRef | GroupRef) -> list[str]:
    assert isinstance(call, ActionCall)
    data = "\t".join(data_words(state.table.actions[call.action], call, ":"))
    return [f"{'action:':<20} {action}", f"{'runtime data:':<20} {data}"]


def _modified(switch: ControlledSwitch, _: None, table: str, action: str, handle: int, data: list[str]) -> str:
    return f"Modifying entry {handle} for {switch.tables[table].kind} match table {table}"


def _default_set(switch: ControlledSwitch, _: None, table: str, action: str, data: list[str]) -> str:
    state = switch.tables[table]
    return "\n".join([f"Setting default action of {table}", *_call_lines(state, action, state.default)])


def _indirect_added(switch: ControlledSwitch, handle: int, table: str, *_: object) -> str:
    name = switch.tables.full(table)
    return f"Adding entry to indirect match table {name}\nEntry has been added with handle {handle}"


# ---- dumps


def _action_line(state: TableState, action: ActionCall | MemberRef | GroupRef) -> str:
    if isinstance(action, MemberRef):
        return f"Index: member({action.handle})"
    if isinstance(action, GroupRef):
        return f"Index: group({action.handle})"
    chosen = state.table.actions[action.action]
    return f"Action entry: {chosen.name} - {', '.join(short_data_words(chosen, action))}"


def _entry_lines(state: TableState, entry: TableEntry) -> list[str]:
    width = max([20, *(len(key.name) for key in state.keys)])
    lines = [f"Dumping entry {entry.handle:#x}", "Match key:"]
    for key, pair in zip(state.keys, entry.keys, strict=True):
        word = BMV2_MATCHES[key.match].upper()
        lines.append(f"* {key.name:{width}}: {word:10}{show_key(pair, key.expression.type, key.match)}")
    if state.prioritized:
        lines.append(f"Priority: {entry.priority}")
    return [*lines, _action_line(state, entry.action)]


def _profile_lines(profile: ProfileState) -> list[str]:
    lines = [RULE, "MEMBERS"]
    for handle in profile.members:
        lines += [STARS, *_member_lines(profile, handle)]
    if profile.selects:
        lines += [RULE, "GROUPS"]
        for handle in profile.groups:
            lines += [STARS, *_group_lines(profile, handle)]
    return lines


def _member_lines(profile: ProfileState, handle: int) -> list[str]:
    call = profile.members[handle]
    chosen = profile.table_actions[call.action]
    return [f"Dumping member {handle}", f"Action entry: {chosen.name} - {', '.join(short_data_words(chosen, call))}"]


def _group_lines(profile: ProfileState, handle: int) -> list[str]:
    return [f"Dumping group {handle}", f"Members: [{', '.join(map(str, profile.groups[handle]))}]"]


def _table_dump(switch: ControlledSwitch, table: str) -> str:
    state = switch.tables[table]
    lines = [RULE, "TABLE ENTRIES"]
    for entry in state.entries.values():
        lines += [STARS, *_entry_lines(state, entry)]
    if state.table.implementation is not None:
        lines += _profile_lines(switch.profiles[state.table.implementation.name])
    return "\n".join([*lines, RULE, "Dumping default entry", _action_line(state, state.default), RULE])


def _table_dump_entry(switch: ControlledSwitch, table: str, handle: int) -> str:
    state = switch.tables[table]
    return "\n".join(_entry_lines(state, switch._entry(state, handle)))


def _table_dump_entry_from_key(switch: ControlledSwitch, table: str, keys: list[str], priority: int | None) -> str:
    return _table_dump_entry(switch, table, switch.table_find(table, keys, priority))


def _dump_profile(switch: ControlledSwitch, name: str) -> str:
    return "\n".join(_profile_lines(switch.profiles[name]))


def _dump_member(switch: ControlledSwitch, name: str, handle: int) -> str:
    profile = switch.profiles[name]
    switch._member(profile, handle)
    return "\n".join(_member_lines(profile, handle))


def _dump_group(switch: ControlledSwitch, name: str, handle: int) -> str:
    profile = switch._selector(name)
    switch._members_of(profile, handle)
    return "\n".join(_group_lines(profile, handle))


_COMMANDS = (
    Command(
        "table_add TABLE ACTION KEYS… => [PARAMETERS…] [PRIORITY]",
        "Add an entry; prints its handle. Keys: 10.0.0.1 (exact), 10.0.0.0/8 (lpm), 0x10&&&0xf0 (ternary), 1->5 "
        "(range).\nA priority ends the line where a key is ternary, range or optional; smaller wins.\n"
        "Example: table_add ipv4_lpm forward 10.0.1.0/24 => 08:00:00:00:01:11 1",
        prints=_added,
    ),
    Command(
        "table_modify TABLE ACTION HANDLE [PARAMETERS…]",
        "Give an entry another action or other parameters; its counter stays.",
        prints=_modified,
    ),
    Command("table_delete TABLE HANDLE", "Delete one entry.", prints="Deleting entry {HANDLE} from {TABLE}"),
    Command(
        "table_set_default TABLE ACTION [PARAMETERS…]",
        "Set what a packet gets that no entry matches.",
        prints=_default_set,
    ),
    Command("table_reset_default TABLE", "The default action as the program has it."),
    Command("table_clear TABLE", "Delete all entries; the default action stays."),
    Command("table_num_entries TABLE", "How many entries it has.", prints="{result}"),
    Command("table_dump TABLE", "All entries and the default action.", _table_dump),
    Command("table_dump_entry TABLE HANDLE", "One entry.", _table_dump_entry),
    Command("table_dump_entry_from_key TABLE KEYS… [PRIORITY]", "The entry with this key.", _table_dump_entry_from_key),
    Command(
        "act_prof_create_member PROFILE ACTION [PARAMETERS…]",
        "Add a member to an action profile; prints its handle.",
        prints="Member has been created with handle {result}",
    ),
    Command(
        "act_prof_modify_member PROFILE ACTION MEMBER [PARAMETERS…]",
        "Give a member another action or parameters.",
    ),
    Command("act_prof_delete_member PROFILE MEMBER", "Delete a member that nothing uses."),
    Command(
        "act_prof_create_group PROFILE",
        "An empty group of a selector; prints its handle.",
        prints="Group has been created with handle {result}",
    ),
    Command("act_prof_delete_group PROFILE GROUP", "Delete a group that nothing uses."),
    Command("act_prof_add_member_to_group PROFILE MEMBER GROUP", "Put a member into a group."),
    Command("act_prof_remove_member_from_group PROFILE MEMBER GROUP", "Take a member out of a group."),
    Command("act_prof_dump PROFILE", "Its members and groups.", _dump_profile),
    Command("act_prof_dump_member PROFILE MEMBER", "One member.", _dump_member),
    Command("act_prof_dump_group PROFILE GROUP", "One group.", _dump_group),
    Command(
        "table_indirect_add TABLE KEYS… => MEMBER [PRIORITY]",
        "Add an entry that runs a member; prints its handle.",
        prints=_indirect_added,
    ),
    Command(
        "table_indirect_add_with_group TABLE KEYS… => GROUP [PRIORITY]",
        "Add an entry that runs the member a selector picks; prints its handle.",
        prints=_indirect_added,
    ),
    Command("table_indirect_delete TABLE HANDLE", "Delete one entry.", prints="Deleting entry {HANDLE} from {TABLE}"),
    Command("table_indirect_set_default TABLE MEMBER", "The member for packets that no entry matches."),
    Command(
        "table_indirect_reset_default TABLE",
        "The default action as the program has it.",
        lambda switch, table: switch.table_reset_default(table),
    ),
)


def _for_table(name: str, older: str) -> Command:
    """The older form of an act_prof_ command: it names a table of the profile."""
    command = next(row for row in _COMMANDS if row.name == f"act_prof_{name}")

    def calls(switch: ControlledSwitch, table: str, *values: object) -> object:
        return command.call(switch, switch._profile_of(switch.tables[table]).name, *values)

    usage = command.usage.replace(f"act_prof_{name}", f"{older}_{name}").replace("PROFILE", "TABLE")
    return Command(usage, f"Older form of act_prof_{name}: {command.says}", calls, command.prints)


_OLDER = {
    "table_indirect": (
        "create_member",
        "modify_member",
        "delete_member",
        "create_group",
        "delete_group",
        "add_member_to_group",
        "remove_member_from_group",
    ),
    "table": ("dump_member", "dump_group"),
}
COMMANDS = table((*_COMMANDS, *(_for_table(name, older) for older, names in _OLDER.items() for name in names)))
