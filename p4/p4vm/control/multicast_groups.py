"""Copies of packets: multicast groups made of nodes, and mirror (clone) sessions."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from p4vm.control.core import ControlCore, refused
from p4vm.engine import Engine, PacketReplica
from p4vm.source import P4Error

GROUP_MAX = (1 << 16) - 1
RID_MAX = (1 << 16) - 1
PORT_MAX = 510
"""511 is the port of dropped packets."""
SESSION_MAX = (1 << 15) - 1
NODES_MAX = 1 << 14


@dataclass(slots=True, eq=False)
class MulticastNode:
    """A copy for each port, all with the same rid (egress_rid). group: None while associated to none."""

    rid: int
    ports: tuple[int, ...]
    group: int | None = None


@dataclass(frozen=True, slots=True)
class Mirror:
    """Where a clone session's copies go: one port, a multicast group, or replicas; truncate: bytes kept, 0: all."""

    port: int | None = None
    group: int | None = None
    replicas: tuple[PacketReplica, ...] = ()
    truncate: int = 0

    @property
    def copies(self) -> tuple[PacketReplica, ...]:
        """The copies that no multicast group makes."""
        return self.replicas if self.port is None else (PacketReplica(self.port),)


def checked_port(port: int) -> int:
    """Raises P4Error beyond 0 to 510."""
    if not 0 <= port <= PORT_MAX:
        raise P4Error(f"'{port}' is not a valid port number; expected 0 to {PORT_MAX}")
    return port


class ReplicationControl(ControlCore):
    """Commands mc_* and mirroring_*. Methods raise P4Error as those of `TableControl` do."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.groups: dict[int, list[int]] = {}
        self.nodes: dict[int, MulticastNode] = {}
        self.mirrors: dict[int, Mirror] = {}

    # ---- multicast

    def mc_mgrp_create(self, group: int) -> None:
        """Create an empty multicast group, 1 to 65535. A group that exists is kept as it is."""
        if not 1 <= group <= GROUP_MAX:
            raise refused("PRE", "INVALID_MGID", f"group {group}: expected 1 to {GROUP_MAX} (0 means no multicast)")
        self.groups.setdefault(group, [])

    def mc_mgrp_destroy(self, group: int) -> None:
        """Remove a group; its nodes stay, associated to no group."""
        for handle in self._group(group):
            self.nodes[handle].group = None
        del self.groups[group]
        self._set_group(group)

    def mc_node_create(self, rid: int, ports: Sequence[int]) -> int:
        """A node; its handle. Every port gets one copy, with egress_rid = rid."""
        if not 0 <= rid <= RID_MAX:
            raise P4Error(f"rid {rid}: expected 0 to {RID_MAX}")
        checked = _port_list(ports)
        if len(self.nodes) >= NODES_MAX:
            raise refused("PRE", "TABLE_FULL", f"there are {NODES_MAX} nodes already; destroy some")
        handle = next(number for number in range(NODES_MAX) if number not in self.nodes)
        self.nodes[handle] = MulticastNode(rid, checked)
        return handle

    def mc_node_update(self, handle: int, ports: Sequence[int]) -> None:
        node = self._node(handle)
        node.ports = _port_list(ports)
        if node.group is not None:
            self._set_group(node.group)

    def mc_node_associate(self, group: int, handle: int) -> None:
        """A node belongs to one group at a time."""
        node, handles = self._node(handle), self._group(group)
        if node.group is not None:
            raise refused(
                "PRE", "ERROR", f"node {handle} belongs to group {node.group} already; make another node for {group}"
            )
        handles.append(handle)
        node.group = group
        self._set_group(group)

    def mc_node_dissociate(self, group: int, handle: int) -> None:
        node, handles = self._node(handle), self._group(group)
        if node.group != group:
            raise refused("PRE", "ERROR", f"node {handle} isn't associated to group {group}; see mc_dump")
        handles.remove(handle)
        node.group = None
        self._set_group(group)

    def mc_node_destroy(self, handle: int) -> None:
        node = self._node(handle)
        if node.group is not None:
            self.mc_node_dissociate(node.group, handle)
        del self.nodes[handle]

    def mc_group_set(self, group: int, replicas: Sequence[PacketReplica]) -> None:
        """All of a group at once, as P4Runtime does: new nodes in the order of the replicas."""
        for replica in replicas:
            checked_port(replica.port)
        self.mc_mgrp_create(group)
        for handle in list(self.groups[group]):
            self.mc_node_destroy(handle)
        for replica in replicas:
            self.mc_node_associate(group, self.mc_node_create(replica.instance, [replica.port]))

    def mc_group_replicas(self, group: int) -> list[PacketReplica]:
        """All copies that a group makes; none where there is no such group."""
        nodes = [self.nodes[handle] for handle in self.groups.get(group, ())]
        return [PacketReplica(port, node.rid) for node in nodes for port in node.ports]

    # ---- mirroring

    def mirroring_add(self, session: int, port: int, truncate: int = 0) -> None:
        """Copies of clone session `session` leave through this port; replaces what the session was."""
        self._set_mirror(session, Mirror(port=checked_port(port), truncate=truncate))

    def mirroring_add_mc(self, session: int, group: int, truncate: int = 0) -> None:
        if not 1 <= group <= GROUP_MAX:
            raise refused("PRE", "INVALID_MGID", f"group {group}: expected 1 to {GROUP_MAX}")
        self._set_mirror(session, Mirror(group=group, truncate=truncate))

    def mirroring_set(self, session: int, replicas: Sequence[PacketReplica], truncate: int = 0) -> None:
        """All copies of a session at once, as P4Runtime does."""
        for replica in replicas:
            checked_port(replica.port)
        self._set_mirror(session, Mirror(replicas=tuple(replicas), truncate=truncate))

    def mirroring_delete(self, session: int) -> None:
        self.mirroring_get(session)
        del self.mirrors[session]
        self.engine.set_mirror(session, ())

    def mirroring_get(self, session: int) -> Mirror:
        if session not in self.mirrors:
            raise refused("mirroring", "SESSION_NOT_FOUND", f"there is no session {session}; add it by mirroring_add")
        return self.mirrors[session]

    # ---- checks

    def _group(self, group: int) -> list[int]:
        if group not in self.groups:
            raise refused("PRE", "INVALID_MGRP_HANDLE", f"there is no group {group}; create it by mc_mgrp_create")
        return self.groups[group]

    def _node(self, handle: int) -> MulticastNode:
        if handle not in self.nodes:
            raise refused("PRE", "INVALID_L1_HANDLE", f"there is no node {handle}; mc_node_create prints handles")
        return self.nodes[handle]

    def _set_group(self, group: int) -> None:
        self.engine.set_group(group, self.mc_group_replicas(group))

    def _set_mirror(self, session: int, mirror: Mirror) -> None:
        if not 0 <= session <= SESSION_MAX:
            raise P4Error(f"mirror session {session}: expected 0 to {SESSION_MAX}")
        if mirror.truncate < 0:
            raise P4Error(f"mirror session {session}: {mirror.truncate} bytes kept; expected 0 (all) or more")
        self.mirrors[session] = mirror
        self.engine.set_mirror(session, mirror.copies, mirror.group or 0, mirror.truncate)


def _port_list(ports: Sequence[int]) -> tuple[int, ...]:
    checked = sorted(checked_port(port) for port in ports)
    for port, following in pairwise(checked):
        if port == following:
            raise P4Error(f"Found duplicate port number '{port}'; a node gives each port one copy")
    return tuple(checked)
