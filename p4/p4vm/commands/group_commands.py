"""Commands for multicast groups, mirror sessions and output queues."""

from p4vm.commands.words import Command, table
from p4vm.control.controlled_switch import ControlledSwitch
from p4vm.control.multicast_groups import Mirror


def _port_map(ports: tuple[int, ...]) -> str:
    """A digit for each port, the lowest port last."""
    return "".join("1" if port in ports else "0" for port in range(max(ports, default=-1), -1, -1))


def _node_created(switch: ControlledSwitch, handle: int, rid: int, _: list[int]) -> str:
    ports = _port_map(switch.nodes[handle].ports)
    return f"Creating node with rid {rid} , port map {ports} and lag map \nnode was created with handle {handle}"


def _node_updated(switch: ControlledSwitch, _: None, handle: int, ports: list[int]) -> str:
    return f"Updating node {handle} with port map {_port_map(switch.nodes[handle].ports)} and lag map "


def _dump(switch: ControlledSwitch) -> str:
    lines = ["==========", "MC ENTRIES"]
    for group, handles in sorted(switch.groups.items()):
        lines += ["**********", f"mgrp({group})"]
        for handle in handles:
            node = switch.nodes[handle]
            ports = ", ".join(map(str, node.ports))
            lines.append(f"  -> (L1h={handle}, rid={node.rid}) -> (ports=[{ports}], lags=[])")
    return "\n".join([*lines, "==========", "LAGS", "=========="])


def _mirror_text(switch: ControlledSwitch, mirror: Mirror, session: int) -> str:
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
            prints=_node_created,
        ),
        Command("mc_node_update NODE PORTS…", "Give a node other ports.", prints=_node_updated, least=2),
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
        Command("mirroring_get SESSION", "Where its clones go.", prints=_mirror_text),
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
