"""Which hosts the flows of a scenario have, in both backends; and which of them can't be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # `mn_custom.py` comes here under the system's Python, which has no NumPy
    from emulation.scenario_tables import FlowOptions


class FlowPlace(NamedTuple):
    """Hosts by number: the workers' by rank, then those of parameter servers, then the flows' own."""

    sources: tuple[int, ...]
    to: int


def places(flows: Sequence[FlowOptions], first: int) -> list[FlowPlace]:
    """The hosts of each entry of `[[flows]]`; first: the number of the first host that is no job's."""
    found = []
    for flow in flows:
        sources: tuple[int, ...] = (flow.from_rank,)
        if flow.from_rank < 0:
            sources = tuple(range(first, first + flow.count))
            first += flow.count
        to = flow.to_rank
        if to < 0:
            to, first = first, first + 1
        found.append(FlowPlace(sources, to))
    return found


def own_hosts(flows: Sequence[FlowOptions]) -> int:
    """How many hosts flows have for themselves."""
    return sum(flow.count * (flow.from_rank < 0) + (flow.to_rank < 0) for flow in flows)


def flows_fault(flows: Sequence[FlowOptions], workers: int, mininet: bool) -> str:
    """What is wrong with them, behind the file's name; "" if nothing is."""
    for flow in flows:
        for key in ("to_rank", "from_rank"):
            if getattr(flow, key) >= workers:
                return f"[[flows]] {key}: {getattr(flow, key)} is out of range; allowed: -1 … {workers - 1}"
        if 0 <= flow.to_rank == flow.from_rank:
            return f"[[flows]] from_rank: {flow.from_rank} is where they go to; allowed: another rank, or -1"
        if flow.stop_ns and flow.stop_ns <= flow.start_ns:
            return f"[[flows]] stop_ns: {flow.stop_ns} is not after start_ns = {flow.start_ns}; allowed: later, or 0"
        if mininet and not flow.endless:
            return (
                f"[[flows]] kind: '{flow.kind}' is in virtual time alone; allowed: [methods] mininet = [], and --on sim"
            )
        if mininet and (flow.start_ns or flow.stop_ns):
            return "[[flows]] start_ns, stop_ns: in Mininet flows last as long as what is counted; allowed: 0"
    return ""
