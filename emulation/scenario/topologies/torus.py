"""A torus: no switches; every host has a link to the next and the one before in each of its sides, and forwards.

Hosts are numbered row by row, the last side fastest: consecutive ones are neighbours, but for ends of rows, where the
wrap-around that no other neighbours use is on the way. So a ring of all hosts crosses no link twice, and rows and
columns are rings of their own.
"""

from __future__ import annotations

from itertools import product
from math import prod

from emulation.scenario.topologies.shared_nics import forwarding_hosts, hosts_of
from emulation.scenario.topologies.topology import Fabric, LinkSettings, Topology


def torus(fabric: Fabric, workers: int, servers: int, settings: LinkSettings) -> Topology:
    sides = (fabric.sides,) if isinstance(fabric.sides, int) else fabric.sides
    hosts = hosts_of(fabric, workers)
    if not sides:
        raise ValueError("sides: missing; allowed: hosts along each side, like [4, 4]")
    if prod(sides) != hosts or min(sides) < 2:
        sides_text = " x ".join(map(str, sides))
        raise ValueError(f"sides: {sides_text} hosts, but there are {hosts}; allowed: 2 or more a side, so many in all")
    places = list(product(*map(range, sides)))
    number = {place: index for index, place in enumerate(places)}
    joined = []
    for place in places:
        for axis, side in enumerate(sides):
            after = (*place[:axis], (place[axis] + 1) % side, *place[axis + 1 :])
            if side > 2 or not place[axis]:  # of a side of 2 both ways are one link
                joined.append((f"n{number[place] + 1}", f"n{number[after] + 1}"))
    return forwarding_hosts(joined, (), fabric, (workers, servers), settings)
