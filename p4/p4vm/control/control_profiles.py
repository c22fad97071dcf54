"""Action profiles and selectors: members, groups of members, and tables whose entries refer to them."""

from dataclasses import dataclass, field

from p4vm.control.control_names import ControlNames
from p4vm.control.control_tables import Keys, TableControl, TableState, default_is_const
from p4vm.control.core import Arguments, action_call, action_names, refused_table
from p4vm.engine import ActionCall, Engine, GroupRef, MemberRef, TableEntry
from p4vm.ir import ir_nodes as ir
from p4vm.source import P4Error

PROFILES = ("action_profile", "action_selector")


@dataclass(slots=True, eq=False)
class ProfileState:
    """An action profile. actions: those of its tables; members by handle; groups: handle -> handles of members."""

    instance: ir.ExternInstance
    tables: list[str]
    table_actions: list[ir.TableAction]
    actions: ControlNames[int]
    members: dict[int, ActionCall] = field(default_factory=dict)
    groups: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.instance.name

    @property
    def selects(self) -> bool:
        return self.instance.kind == "action_selector"

    @property
    def size(self) -> int:
        """Members it may hold; 2**20 where the program says none."""
        sizes = [argument for argument in self.instance.arguments if isinstance(argument, int)]
        return sizes[0] if sizes and sizes[0] > 0 else 1 << 20


def profile_states(program: ir.ProgramIr) -> ControlNames[ProfileState]:
    """Profiles of all tables, also those declared in a table's implementation property."""
    states: dict[str, ProfileState] = {}
    for table in program.tables:
        profile = table.implementation
        if profile is None:
            continue
        if profile.name not in states:
            states[profile.name] = ProfileState(profile, [], table.actions, action_names(table.actions))
        states[profile.name].tables.append(table.name)
    for instance in program.externs:
        if instance.kind in PROFILES and instance.name not in states:
            states[instance.name] = ProfileState(instance, [], [], ControlNames("action", {}))
    return ControlNames("action profile", states)


def free_handle(handles: dict[int, object] | dict[int, ActionCall] | dict[int, tuple[int, ...]]) -> int:
    """The smallest handle that isn't taken."""
    handle = 0
    while handle in handles:
        handle += 1
    return handle


class ProfileControl(TableControl):
    """Commands for action profiles (members) and selectors (groups). Methods raise P4Error as `TableControl`'s do."""

    def __init__(self, engine: Engine) -> None:
        self.profiles = profile_states(engine.program)
        super().__init__(engine)

    def _tell(self, kind: str, name: str) -> None:
        if kind == "profile":
            profile = self.profiles.parts[name]
            self.engine.set_profile(name, dict(profile.members), dict(profile.groups))
        else:
            super()._tell(kind, name)

    def _default_call(self, state: TableState) -> ActionCall:
        if isinstance(state.default, MemberRef):
            return self._profile_of(state).members[state.default.handle]
        return state.default

    # ---- members

    def act_prof_create_member(self, profile: str, action: str, arguments: Arguments = ()) -> int:
        """Add a member; its handle."""
        chosen = self.profiles[profile]
        call = self._member_call(chosen, action, arguments)
        if len(chosen.members) >= chosen.size:
            raise refused_table("TABLE_FULL", f"{chosen.name} holds {chosen.size} members")
        handle = free_handle(chosen.members)
        chosen.members[handle] = call
        self._push("profile", chosen.name)
        return handle

    def act_prof_modify_member(self, profile: str, action: str, member: int, arguments: Arguments = ()) -> None:
        chosen = self.profiles[profile]
        self._member(chosen, member)
        chosen.members[member] = self._member_call(chosen, action, arguments)
        self._push("profile", chosen.name)
        for name in chosen.tables:
            if self.tables.parts[name].default == MemberRef(member):
                self._push("table", name)

    def act_prof_delete_member(self, profile: str, member: int) -> None:
        chosen = self.profiles[profile]
        self._member(chosen, member)
        group = next((group for group, members in chosen.groups.items() if member in members), None)
        if group is not None:
            raise refused_table("MBR_STILL_USED", f"member {member} of {chosen.name} is in group {group}")
        self._unused(chosen, MemberRef(member), "MBR_STILL_USED", f"member {member}")
        del chosen.members[member]
        self._push("profile", chosen.name)

    # ---- groups

    def act_prof_create_group(self, profile: str) -> int:
        """An empty group; its handle."""
        chosen = self._selector(profile)
        handle = free_handle(chosen.groups)
        chosen.groups[handle] = ()
        self._push("profile", chosen.name)
        return handle

    def act_prof_delete_group(self, profile: str, group: int) -> None:
        chosen = self._selector(profile)
        self._members_of(chosen, group)
        self._unused(chosen, GroupRef(group), "GRP_STILL_USED", f"group {group}")
        del chosen.groups[group]
        self._push("profile", chosen.name)

    def act_prof_add_member_to_group(self, profile: str, member: int, group: int) -> None:
        chosen = self._selector(profile)
        self._member(chosen, member)
        members = self._members_of(chosen, group)
        if member in members:
            raise refused_table("MBR_ALREADY_IN_GRP", f"member {member} is in group {group} of {chosen.name}")
        chosen.groups[group] = (*members, member)
        self._push("profile", chosen.name)

    def act_prof_remove_member_from_group(self, profile: str, member: int, group: int) -> None:
        chosen = self._selector(profile)
        self._member(chosen, member)
        members = self._members_of(chosen, group)
        if member not in members:
            raise refused_table("MBR_NOT_IN_GRP", f"member {member} isn't in group {group} of {chosen.name}")
        if len(members) == 1 and self._users(chosen, GroupRef(group)):
            raise refused_table("EMPTY_GRP", f"entries use group {group} of {chosen.name}: it needs a member")
        chosen.groups[group] = tuple(other for other in members if other != member)
        self._push("profile", chosen.name)

    # ---- tables of profiles

    def table_indirect_add(self, table: str, keys: Keys, member: int, priority: int | None = None) -> int:
        """Add an entry that runs a member of the table's profile; its handle."""
        state = self.tables[table]
        self._member(self._profile_of(state), member)
        return self._add(state, MemberRef(member), keys, priority)

    def table_indirect_add_with_group(self, table: str, keys: Keys, group: int, priority: int | None = None) -> int:
        """Add an entry that runs the member a selector picks from this group; its handle."""
        state = self.tables[table]
        profile = self._profile_of(state)
        self._needs_selector(profile)
        if not self._members_of(profile, group):
            raise refused_table("EMPTY_GRP", f"group {group} of {profile.name} has no member")
        return self._add(state, GroupRef(group), keys, priority)

    def table_indirect_modify(self, table: str, handle: int, reference: MemberRef | GroupRef) -> None:
        """Let an entry run another member or group."""
        state = self.tables[table]
        profile = self._profile_of(state)
        self._changeable(state)
        entry = self._entry(state, handle)
        if isinstance(reference, MemberRef):
            self._member(profile, reference.handle)
        elif not self._members_of(profile, reference.handle):
            raise refused_table("EMPTY_GRP", f"group {reference.handle} of {profile.name} has no member")
        self._put(state, TableEntry(entry.keys, reference, entry.priority, handle))

    def table_indirect_delete(self, table: str, handle: int) -> None:
        self._profile_of(self.tables[table])
        self.table_delete(table, handle)

    def table_indirect_set_default(self, table: str, member: int) -> None:
        """The member that a packet gets that no entry matches."""
        state = self.tables[table]
        profile = self._profile_of(state)
        self._member(profile, member)
        if state.table.default_const:
            raise default_is_const(state)
        state.default = MemberRef(member)
        self._push("table", state.name)

    # ---- checks

    def _profile_of(self, state: TableState) -> ProfileState:
        if state.table.implementation is None:
            raise P4Error(
                f"Cannot run this command on non-indirect table {state.name}: it has no action profile; use table_add"
            )
        return self.profiles.parts[state.table.implementation.name]

    def _selector(self, profile: str) -> ProfileState:
        chosen = self.profiles[profile]
        self._needs_selector(chosen)
        return chosen

    def _needs_selector(self, profile: ProfileState) -> None:
        if not profile.selects:
            raise P4Error(
                f"Cannot run this command on an action profile without selector: {profile.name} has no groups"
            )

    def _member(self, profile: ProfileState, member: int) -> ActionCall:
        if member not in profile.members:
            raise refused_table("INVALID_MBR_HANDLE", f"{profile.name} has no member {member}; see act_prof_dump")
        return profile.members[member]

    def _members_of(self, profile: ProfileState, group: int) -> tuple[int, ...]:
        if group not in profile.groups:
            raise refused_table("INVALID_GRP_HANDLE", f"{profile.name} has no group {group}; see act_prof_dump")
        return profile.groups[group]

    def _users(self, profile: ProfileState, reference: MemberRef | GroupRef) -> list[str]:
        """Tables in which an entry or the default refers to it."""
        return [
            name
            for name in profile.tables
            if (state := self.tables.parts[name]).default == reference
            or any(entry.action == reference for entry in state.entries.values())
        ]

    def _unused(self, profile: ProfileState, reference: MemberRef | GroupRef, code: str, what: str) -> None:
        users = self._users(profile, reference)
        if users:
            raise refused_table(code, f"{what} of {profile.name} is used in {', '.join(users)}; delete entries first")

    def _member_call(self, profile: ProfileState, action: str, arguments: Arguments) -> ActionCall:
        try:
            index = profile.actions[action]
        except P4Error:
            known = ", ".join(profile.actions) or "none"
            raise P4Error(f"Action profile '{profile.name}' has no action '{action[:80]}'; it has: {known}") from None
        return action_call(profile.table_actions[index], index, arguments)
