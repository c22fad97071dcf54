"""Addresses of an emulated network's hosts and aggregating switches, all in one subnet. Standard library only."""

from __future__ import annotations

from typing import NamedTuple

from emulation.scenario.topologies.topology import Topology

SUBNET_BITS = 24
SWITCH_ADDRESS = "10.0.0.254"  # of the switch that aggregates, or of the root of several
_ROOT = 254
_SWITCHES_MOST = 100  # with `mn --custom` hosts have addresses from below


class NodeAddress(NamedTuple):
    """IPv4 and MAC address."""

    address: str
    mac: str


def host_address(number: int) -> str:
    """IPv4 address of a host: of workers by rank, then of servers."""
    return f"10.0.0.{number + 1}"


def host_mac(number: int) -> str:
    """MAC address of its interface."""
    return f"02:00:00:00:00:{number + 1:02x}"


def switch_places(links: Topology) -> dict[str, NodeAddress]:
    """By aggregating switch, the root first: where its data plane answers, at its bridge."""
    names = sorted(links.aggregators, key=lambda name: name != links.root)
    return {name: _place(_ROOT - at) for at, name in enumerate(names)}


def switch_place(number: int) -> NodeAddress:
    """The address of the switch with this number, from 1, at Mininet's command line. Raises ValueError."""
    if not 1 <= number <= _SWITCHES_MOST:
        raise ValueError(f"its number is {number}; expected s1 to s{_SWITCHES_MOST}, each with an address of its own")
    return _place(_ROOT + 1 - number)


def _place(last: int) -> NodeAddress:
    return NodeAddress(f"10.0.0.{last}", f"02:00:00:00:00:{last:02x}")


def places(links: Topology) -> dict[str, NodeAddress]:
    """By node, of all that have an address: hosts, then aggregating switches."""
    hosts = {name: NodeAddress(host_address(rank), host_mac(rank)) for rank, name in enumerate(links.members)}
    return hosts | switch_places(links)
