"""The network as a tree of nodes, and how often each method's arrays cross the links between switches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from fractions import Fraction
from math import cos, pi, sin
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from emulation.report import figure_kit
from emulation.report.svg import INK, ON_LIGHT, PAPER, WIDTH, tip
from emulation.report.wording import name_of, rate_text
from emulation.scenario.bounds import loads
from emulation.scenario.scenario import Scenario
from emulation.scenario.topologies.topology import Hop, Topology, TopologyLink

_LINK, HOST, SWITCH = "#888888", "#DDDDDD", "#56B4E9"

HOSTS_DRAWN, SWITCHES_DRAWN = 24, 12
"""Of a network with more, the first and the last below each switch stand for all."""

HOSTS_ABREAST = 12  # whose names have room beside each other; those of more are written upwards


def topology_figure(scenario: Scenario, built: dict[str, Any]) -> Figure:
    """Hosts at the foot, or outside, switches that aggregate framed."""
    links = scenario.links("ps" if has_servers(built) else "switch")
    folded = not links.graph and (len(links.hosts) > HOSTS_DRAWN or len(links.switches) > SWITCHES_DRAWN)
    where = places(links, folded)
    figure, ((axes,),) = figure_kit.grid(WIDTH, 1.2 + 1.3 * max(-y for _, y in where.values()))
    axes.axis("off")
    crossed = _crossed(scenario, built)
    for link in links.links:
        if link.a not in where or link.b not in where:
            continue
        (x1, y1), (x2, y2) = where[link.a], where[link.b]
        (drawn,) = axes.plot([x1, x2], [y1, y2], color=_LINK, linewidth=1.2, zorder=1)
        tip(
            drawn, "; ".join([f"{link.a} to {link.b}: {rate_text(link.settings.rate_bps)}", *_crossings(crossed, link)])
        )
    for above in links.switches if folded else ():
        first, *remaining = below(links, above)
        if len(remaining) > 1 and above in where:
            (x1, y), (x2, _) = where[first], where[remaining[-1]]
            more = axes.text(
                (x1 + x2) / 2, y - 0.25, f"{len(remaining) - 1} more", ha="center", va="center", fontsize=9
            )
            more.set_in_layout(False)
    draw_nodes(axes, where, links, aggregating(scenario), upright=len(where) - len(links.switches) > HOSTS_ABREAST)
    axes.margins(0.08, 0.15)
    return figure


def draw_nodes(
    axes: Axes, where: Mapping[str, tuple[float, float]], links: Topology, aggregators: Set[str], upright: bool = False
) -> None:
    """Names in frames, dark ones of switches that aggregate. upright: names of hosts are written upwards."""
    for name, (x, y) in where.items():
        of_switch = name in links.switches
        colour = SWITCH if of_switch else PAPER if name in links.other_hosts else HOST
        edge = "black" if name in aggregators else "#AAAAAA" if colour == PAPER else colour
        frame = {"boxstyle": "round,pad=0.2", "facecolor": colour, "edgecolor": edge}
        turn = 90 * (upright and name in links.hosts and not links.graph)
        axes.text(x, y, name, ha="center", va="center", fontsize=9, bbox=frame, rotation=turn,
                  color=ON_LIGHT if of_switch else INK)  # fmt: skip
    for label in axes.texts:
        label.set_in_layout(False)


def aggregating(scenario: Scenario) -> set[str]:
    """The switches that sum, in any of the job's trees."""
    return {name for network in scenario.network.topologies("switch") for name in network.aggregators}


def up_links(scenario: Scenario, built: dict[str, Any]) -> list[str]:
    """Links between switches, those alike together: which, their rate, and how often each method's arrays cross each in
    its busier direction. Those of a graph are too many."""
    links = scenario.links("ps" if has_servers(built) else "switch")
    crossed = _crossed(scenario, built)
    ends: dict[str, list[str]] = {}
    for link in links.links if not links.graph else ():
        if link.a in links.switches and link.b in links.switches:
            text = f"{rate_text(link.settings.rate_bps)}; {', '.join(_crossings(crossed, link))}"
            ends.setdefault(text, []).append(f"{link.a} to {link.b}")
    return [
        f"{' and '.join(names) if len(names) < 3 else f'{names[0]} and {len(names) - 1} more'}: {text}."
        for text, names in ends.items()
    ]


def has_servers(built: dict[str, Any]) -> bool:
    return any(entry["method"].method == "ps" for entry in built["methods"])


def _crossed(scenario: Scenario, built: dict[str, Any]) -> dict[str, Mapping[Hop, Fraction]]:
    """By each method's name, how often its arrays cross each link."""
    return {name_of(entry["method"]): loads(entry["method"].method, scenario.network) for entry in built["methods"]}


def _crossings(crossed: Mapping[str, Mapping[Hop, Fraction]], link: TopologyLink) -> list[str]:
    """Arrays of each method over a link, in its busier direction."""
    most = {name: max(arrays[link.a, link.b], arrays[link.b, link.a]) for name, arrays in crossed.items()}
    return [f"{name} {float(count):.2f}×" for name, count in most.items()]  # noqa: RUF001


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
