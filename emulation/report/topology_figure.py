"""The network as a tree of nodes, and how often each method's arrays cross the links between switches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import cos, pi, sin
from typing import Any

from matplotlib.figure import Figure

from emulation.report import figure_kit
from emulation.report.svg import INK, ON_LIGHT, PAPER, WIDTH, tip
from emulation.report.wording import name_of, rate_text
from emulation.scenario.bounds import loads
from emulation.scenario.scenario import Scenario
from emulation.scenario.topologies.topology import Hop, Topology, TopologyLink

_LINK, HOST, SWITCH = "#888888", "#DDDDDD", "#56B4E9"

HOSTS_DRAWN = 64
"""Of a network with more, the first and the last below each switch stand for all."""


def topology_figure(scenario: Scenario, built: dict[str, Any]) -> Figure:
    """Hosts at the foot, or outside, switches that aggregate framed. Links of a graph are too many to have labels."""
    has_servers = any(entry["method"].method == "ps" for entry in built["methods"])
    links = scenario.links("ps" if has_servers else "switch")
    folded = len(links.hosts) > HOSTS_DRAWN and not links.graph
    where = places(links, folded)
    figure, ((axes,),) = figure_kit.grid(WIDTH, 1.2 + 1.3 * max(-y for _, y in where.values()))
    axes.axis("off")
    crossed = {name_of(entry["method"]): loads(entry["method"].method, scenario.network) for entry in built["methods"]}
    upward: dict[str, list[TopologyLink]] = {}
    for link in links.links:
        if link.a not in where or link.b not in where:
            continue
        (x1, y1), (x2, y2) = where[link.a], where[link.b]
        (drawn,) = axes.plot([x1, x2], [y1, y2], color=_LINK, linewidth=1.2, zorder=1)
        tip(drawn, "; ".join([f"{link.a} to {link.b}: {_rates([link])}", *_crossings(crossed, [link])]))
        if link.a in links.switches and link.b in links.switches and not links.graph:
            upward.setdefault(min(link.a, link.b, key=lambda end: where[end][1]), []).append(link)
    for lower, beside in upward.items():  # one label for links beside each other, near the switch that they are of
        counts = [count for arrays in crossed.values() for count in _counts(arrays, beside)]
        ends_text = dict.fromkeys(f"{count:.2f}" for count in (min(counts), max(counts)))
        text = f"{_rates(beside)}\n{' to '.join(ends_text)}×"  # noqa: RUF001
        ends = [where[end] for link in beside for end in (link.a, link.b)]
        x, y = (sum(axis) / len(ends) for axis in zip(*ends, strict=True))
        if beside[1:]:
            x, y = where[lower][0], where[lower][1] + 0.45
        axes.text(x, y, text, ha="center", va="center", fontsize=9, backgroundcolor=PAPER)
    aggregators = aggregating(scenario)
    for name, (x, y) in where.items():
        colour = SWITCH if name in links.switches else HOST
        edge = "black" if name in aggregators else colour
        frame = {"boxstyle": "round", "facecolor": colour, "edgecolor": edge}
        axes.text(
            x, y, name, ha="center", va="center", fontsize=9, bbox=frame, color=INK if name in links.hosts else ON_LIGHT
        )
    for above in links.switches if folded else ():
        first, *remaining = below(links, above)
        if len(remaining) > 1 and above in where:
            (x1, y), (x2, _) = where[first], where[remaining[-1]]
            axes.text((x1 + x2) / 2, y, f"… {len(remaining) - 1} more …", ha="center", va="center", fontsize=9)
    for label in axes.texts:
        label.set_in_layout(False)
    axes.margins(0.08, 0.15)
    return figure


def aggregating(scenario: Scenario) -> set[str]:
    """The switches that sum, in any of the job's trees."""
    return {name for network in scenario.network.topologies("switch") for name in network.aggregators}


def _rates(beside: Sequence[TopologyLink]) -> str:
    return f"{len(beside)} × " * (len(beside) > 1) + rate_text(beside[0].settings.rate_bps)  # noqa: RUF001


def _crossings(crossed: Mapping[str, Mapping[Hop, Fraction]], beside: Sequence[TopologyLink]) -> list[str]:
    """Arrays of each method over each of some links beside each other, in its busier direction."""
    texts = []
    for name, arrays in crossed.items():
        texts.append(f"{name} {' or '.join(f'{count:.2f}×' for count in _counts(arrays, beside))}")  # noqa: RUF001
    return texts


def _counts(arrays: Mapping[Hop, Fraction], beside: Sequence[TopologyLink]) -> list[float]:
    return sorted({float(max(arrays[link.a, link.b], arrays[link.b, link.a])) for link in beside})


def below(links: Topology, switch: str) -> list[str]:
    """What a switch leads to, away from the top."""
    above = set() if switch in (tops := links.tops or (links.top,)) else {*tops, links.next_hop(switch, links.top)}
    return [name for name in links.neighbours[switch] if name not in above]


def _around(names: Sequence[str], radius: float) -> dict[str, tuple[float, float]]:
    """On a circle whose uppermost point may be at 0."""
    angles = [2 * pi * place / len(names) for place in range(len(names))]
    return {name: (radius * sin(angle), radius * cos(angle) - 2.0) for name, angle in zip(names, angles, strict=True)}


def places(links: Topology, folded: bool = False) -> dict[str, tuple[float, float]]:
    """x, y of each node: leaves side by side, others above the middle of what they lead to; y: minus the depth. Tops
    lie side by side. Of a graph: hosts around their nodes, these around the switches.

    folded: only of the first and the last below each switch, with room between them.
    """
    if links.graph:
        switches = [name for name in links.switches if name not in links.inside]
        rings = ((links.hosts, 2.0), (links.inside, 1.6), (switches, 0.8))
        return {name: place for names, radius in rings for name, place in _around(names, radius).items()}
    positions: dict[str, tuple[float, float]] = {}
    leaves = 0.0

    def place(node: str, depth: int) -> float:
        nonlocal leaves
        names = below(links, node) if node in links.switches else []
        across = []
        for name in [names[0], names[-1]] if folded and len(names) > 2 else names:
            across.append(place(name, depth + 1))
            leaves += 1.5 * (folded and name is names[0] and len(names) > 2)
        if not names:
            leaves += 1
        positions[node] = (sum(across) / len(across) if across else leaves, -depth)
        return positions[node][0]

    middle, tops = place(links.top, 0), links.tops or (links.top,)
    apart = leaves / len(tops)
    for number, top in enumerate(tops):
        positions[top] = (middle + (number - (len(tops) - 1) / 2) * apart, 0)
    return positions
