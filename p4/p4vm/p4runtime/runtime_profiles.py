"""Action profiles: members and groups by the numbers that controllers give them."""

from collections.abc import Iterator
from typing import Any

from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2

from p4vm.control.control_profiles import ProfileState
from p4vm.control.control_tables import TableState
from p4vm.control.controlled_switch import ControlledSwitch
from p4vm.engine import GroupRef, MemberRef
from p4vm.p4runtime.refusal import INVALID, MISSING, RuntimeRefusal, refusing, unimplemented
from p4vm.p4runtime.runtime_pipeline import ForwardingPipeline

Update = p4runtime_pb2.Update


class Numbers:
    """A controller's numbers for the members, or groups, of profiles, and the engine's handles."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._handles: dict[tuple[str, int], int] = {}

    def add(self, profile: str, number: int, handle: int) -> None:
        self._handles[profile, number] = handle

    def free(self, profile: str, number: int) -> None:
        """Raises RuntimeRefusal: the number is taken."""
        if (profile, number) in self._handles:
            raise RuntimeRefusal(code_pb2.ALREADY_EXISTS, f"{profile} has a {self.what} {number} already")

    def handle(self, profile: str, number: int) -> int:
        handle = self._handles.get((profile, number))
        if handle is None:
            raise RuntimeRefusal(MISSING, f"{profile} has no {self.what} {number}")
        return handle

    def number(self, profile: str, handle: int) -> int:
        """0: the engine's own command line made it."""
        return next((n for (name, n), other in self._handles.items() if (name, other) == (profile, handle)), 0)

    def numbers(self, profile: str) -> list[int]:
        return [number for name, number in self._handles if name == profile]

    def remove(self, profile: str, number: int) -> None:
        del self._handles[profile, number]


class Profiles:
    """Members and groups, by the ids of a pipeline. Every method raises RuntimeRefusal."""

    def __init__(self, pipeline: ForwardingPipeline) -> None:
        self.pipeline = pipeline
        self.switch: ControlledSwitch = pipeline.switch
        self.members, self.groups = Numbers("member"), Numbers("group")

    def write_member(self, kind: int, member: Any) -> None:
        profile, number = self._profile(member.action_profile_id), member.member_id
        with refusing():
            if kind == Update.DELETE:
                self.switch.act_prof_delete_member(profile.name, self.members.handle(profile.name, number))
                self.members.remove(profile.name, number)
                return
            action, arguments = self.pipeline.call(member.action)
            if kind == Update.MODIFY:
                handle = self.members.handle(profile.name, number)
                self.switch.act_prof_modify_member(profile.name, action, handle, arguments)
                return
            self.members.free(profile.name, number)
            handle = self.switch.act_prof_create_member(profile.name, action, arguments)
            self.members.add(profile.name, number, handle)

    def write_group(self, kind: int, group: Any) -> None:
        profile, number = self._profile(group.action_profile_id), group.group_id
        with refusing():
            if kind == Update.DELETE:
                self.switch.act_prof_delete_group(profile.name, self.groups.handle(profile.name, number))
                self.groups.remove(profile.name, number)
                return
            wanted = [self._group_member(profile, member) for member in group.members]
            if kind == Update.INSERT:
                self.groups.free(profile.name, number)
                self.groups.add(profile.name, number, self.switch.act_prof_create_group(profile.name))
            handle = self.groups.handle(profile.name, number)
            before = profile.groups[handle]
            for member in wanted:
                if member not in before:
                    self.switch.act_prof_add_member_to_group(profile.name, member, handle)
            for member in before:
                if member not in wanted:
                    self.switch.act_prof_remove_member_from_group(profile.name, member, handle)

    def _group_member(self, profile: ProfileState, member: Any) -> int:
        if member.weight != 1:
            raise unimplemented(f"{profile.name}: weight {member.weight} of a group's member, other than 1")
        if member.WhichOneof("watch_kind"):
            raise unimplemented(f"{profile.name}: a group's member that watches a port")
        return self.members.handle(profile.name, member.member_id)

    def _profile(self, number: int) -> ProfileState:
        return self.switch.profiles.parts[self.pipeline.part("action_profiles", number).preamble.name]

    # ---- entries that refer to them

    def reference(self, state: TableState, action: Any) -> MemberRef | GroupRef:
        """The member or group that a p4.v1.TableAction without an action of its own refers to."""
        kind, profile = action.WhichOneof("type"), state.table.implementation
        if kind == "action_profile_action_set":
            raise unimplemented(f"{state.name}: an action set in an entry (one shot); write members and a group")
        if kind is None or profile is None:
            why = "no action" if kind is None else f"{kind}, and the table has no action profile"
            raise RuntimeRefusal(INVALID, f"{state.name}: the entry has {why}")
        if kind == "action_profile_member_id":
            return MemberRef(self.members.handle(profile.name, action.action_profile_member_id))
        return GroupRef(self.groups.handle(profile.name, action.action_profile_group_id))

    def fill_reference(self, message: Any, state: TableState, reference: MemberRef | GroupRef) -> None:
        assert state.table.implementation is not None
        name = state.table.implementation.name
        if isinstance(reference, MemberRef):
            message.action_profile_member_id = self.members.number(name, reference.handle)
        else:
            message.action_profile_group_id = self.groups.number(name, reference.handle)

    # ---- reading

    def read_members(self, query: Any) -> Iterator[Any]:
        for part, profile in self._profiles(query):
            for number in [query.member_id] if query.member_id else self.members.numbers(profile.name):
                call = profile.members[self.members.handle(profile.name, number)]
                message = p4runtime_pb2.ActionProfileMember(action_profile_id=part.preamble.id, member_id=number)
                self.pipeline.fill_action(message.action, profile.table_actions[call.action], call.arguments)
                yield message

    def read_groups(self, query: Any) -> Iterator[Any]:
        for part, profile in self._profiles(query):
            for number in [query.group_id] if query.group_id else self.groups.numbers(profile.name):
                message = p4runtime_pb2.ActionProfileGroup(action_profile_id=part.preamble.id, group_id=number)
                for member in profile.groups[self.groups.handle(profile.name, number)]:
                    message.members.add(member_id=self.members.number(profile.name, member), weight=1)
                yield message

    def _profiles(self, query: Any) -> list[tuple[Any, ProfileState]]:
        parts = self.pipeline.parts("action_profiles", query.action_profile_id)
        return [(part, self.switch.profiles.parts[part.preamble.name]) for part in parts]
