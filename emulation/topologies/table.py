"""The topologies, an entry each: a new one is a file with a function that builds it, and an entry here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from emulation.topologies.star import star
from emulation.topologies.topology import LinkSettings, Topology


@dataclass(frozen=True)
class TopologyKind:
    """One topology, as everything else knows it.

    build(workers, servers, settings): with at least one worker; settings: of every host's link, and what other links
    derive theirs from. ValueError, in one line for the user, for numbers that it can't have. summary: in reports, a
    sentence without its full stop; "": the usual one, not worth a word.
    """

    name: str
    build: Callable[[int, int, LinkSettings], Topology]
    summary: str = ""


TOPOLOGIES: dict[str, TopologyKind] = {kind.name: kind for kind in (TopologyKind("star", star),)}


def topology_names() -> tuple[str, ...]:
    return tuple(TOPOLOGIES)


@lru_cache
def topology(kind: str, workers: int, servers: int, settings: LinkSettings) -> Topology:
    """The nodes and links of one network. Raises ValueError."""
    return TOPOLOGIES[kind].build(workers, servers, settings)
