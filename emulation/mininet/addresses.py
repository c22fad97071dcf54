"""Addresses of an emulated network's hosts and aggregating switches, all in one subnet. Standard library only."""

from __future__ import annotations

from typing import NamedTuple

from emulation.topologies.topology import Topology

SUBNET_BITS = 24
SWITCH_ADDRESS = "10.0.0.254"  # of the switch that aggregates, or of the root of several
SWITCH_MAC = "02:00:00:00:00:fe"
_ROOT = 254


class Place(NamedTuple):
    """IPv4 and MAC address."""

    address: str
    mac: str


def host_address(number: int) -> str:
    """IPv4 address of a host: of workers by rank, then of servers."""
    return f"10.0.0.{number + 1}"


def host_mac(number: int) -> str:
    """MAC address of its interface."""
    return f"02:00:00:00:00:{number + 1:02x}"


def switch_places(links: Topology) -> dict[str, Place]:
    """By aggregating switch, the root first: where its data plane answers, at its bridge."""
    names = sorted(links.aggregators, key=lambda name: name != links.root)
    numbers = range(_ROOT, _ROOT - len(names), -1)
    return {name: Place(f"10.0.0.{n}", f"02:00:00:00:00:{n:02x}") for name, n in zip(names, numbers, strict=True)}


def places(links: Topology) -> dict[str, Place]:
    """By node, of all that have an address: hosts, then aggregating switches."""
    hosts = {name: Place(host_address(rank), host_mac(rank)) for rank, name in enumerate(links.members)}
    return hosts | switch_places(links)
