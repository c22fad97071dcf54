"""Commands for multicast groups, mirror sessions and output queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p4vm.commands.words import Command, number, table
from p4vm.source import P4Error

if TYPE_CHECKING:
    from p4vm.control.switch import Switch


def _ports(words: list[str]) -> list[int]:
    if "|" in words:
        if words.index("|") < len(words) - 1:
            raise P4Error("this switch has no LAGs; give ports alone")
        words = words[: words.index("|")]
    ports = []
    for word in words:
        try:
            ports.append(int(word, 0))
        except ValueError:
            raise P4Error(f"'{word[:80]}' is not a valid port number") from None
    return ports


def _port_map(ports: tuple[int, ...]) -> str:
    """A digit for each port, the lowest port last."""
    return "".join("1" if port in ports else "0" for port in range(max(ports, default=-1), -1, -1))


def _node_create(switch: Switch, words: list[str]) -> str:
    rid = number(words[0], "rid")
    handle = switch.mc_node_create(rid, _ports(words[1:]))
    ports = _port_map(switch.nodes[handle].ports)
    return f"Creating node with rid {rid} , port map {ports} and lag map \nnode was created with handle {handle}"


def _node_update(switch: Switch, words: list[str]) -> str:
    handle = number(words[0], "node handle")
    switch.mc_node_update(handle, _ports(words[1:]))
    return f"Updating node {handle} with port map {_port_map(switch.nodes[handle].ports)} and lag map "


def _dump(switch: Switch, words: list[str]) -> str:
    lines = ["==========", "MC ENTRIES"]
    for group, handles in sorted(switch.groups.items()):
        lines += ["**********", f"mgrp({group})"]
        for handle in handles:
            node = switch.nodes[handle]
            ports = ", ".join(map(str, node.ports))
            lines.append(f"  -> (L1h={handle}, rid={node.rid}) -> (ports=[{ports}], lags=[])")
    return "\n".join([*lines, "==========", "LAGS", "=========="])


def _mirror_get(switch: Switch, words: list[str]) -> str:
    mirror = switch.mirroring_get(number(words[0], "mirror_id"))
    if mirror.replicas:
        copies = ", ".join(f"(port={replica.port}, instance={replica.instance})" for replica in mirror.replicas)
        return f"MirroringSessionConfig(replicas=[{copies}])"
    return f"MirroringSessionConfig(port={mirror.port}, mgid={mirror.group})"


COMMANDS = table(
    (
        Command(
            "mc_mgrp_create GROUP", "An empty multicast group, 1 to 65535.", prints="Creating multicast group {GROUP}"
        ),
        Command("mc_mgrp_destroy GROUP", "Its nodes stay.", prints="Destroying multicast group {GROUP}"),
        Command(
            "mc_node_create RID PORTS…",
            "A node; prints its handle. Each port gets one copy with egress_rid = RID: a node per port tells them "
            "apart.\nExample: mc_mgrp_create 1; mc_node_create 7 1 2 (prints handle 0); mc_node_associate 1 0",
            _node_create,
        ),
        Command("mc_node_update NODE PORTS…", "Give a node other ports.", _node_update, counted="mc NODE PORT …"),
        Command(
            "mc_node_associate GROUP NODE",
            "A node belongs to one group at a time.",
            prints="Associating node {NODE} to multicast group {GROUP}",
        ),
        Command(
            "mc_node_dissociate GROUP NODE",
            "Take a node out of a group.",
            prints="Dissociating node {NODE} from multicast group {GROUP}",
        ),
        Command("mc_node_destroy NODE", "Also out of its group.", prints="Destroying node {NODE}"),
        Command("mc_dump", "All groups and their nodes.", _dump),
        Command("mirroring_add SESSION PORT", "Clones of this session leave through a port."),
        Command("mirroring_add_mc SESSION GROUP", "Clones of this session go to a multicast group."),
        Command("mirroring_delete SESSION", "Clones of it are dropped from now on."),
        Command("mirroring_get SESSION", "Where its clones go.", _mirror_get),
        Command(
            "set_queue_depth PACKETS [PORT [PRIORITY]]",
            "How many packets wait at most in each output queue, or in one port's.",
        ),
        Command(
            "set_queue_rate PACKETS_PER_S [PORT [PRIORITY]]",
            "How fast output queues are emptied; 0: as fast as possible.",
        ),
    )
)
