"""The network as a tree of nodes, and how often each method's arrays cross the links between switches."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from emulation.bounds import loads
from emulation.report.wording import name_of, rate_text
from emulation.scenario import Scenario
from emulation.topologies.topology import Topology

_LINK, _HOST, _SWITCH = "#888888", "#DDDDDD", "#56B4E9"


def topology_figure(scenario: Scenario, built: dict[str, Any]) -> Figure:
    """Hosts at the foot, switches that aggregate framed."""
    has_servers = any(entry["method"].method == "ps" for entry in built["methods"])
    links = scenario.links("ps" if has_servers else "switch")
    where = places(links)
    figure = Figure(figsize=(9, 1.2 + 1.3 * max(-y for _, y in where.values())), layout="constrained")
    axes = figure.subplots()
    axes.axis("off")
    for link in links.links:
        (x1, y1), (x2, y2) = where[link.a], where[link.b]
        axes.plot([x1, x2], [y1, y2], color=_LINK, linewidth=1.2, zorder=1)
        if link.a in links.switches and link.b in links.switches:
            crossing = [
                f"{name_of(entry['method'])} {_most(entry, scenario, link.a, link.b):.2f}×"  # noqa: RUF001
                for entry in built["methods"]
            ]
            text = "\n".join([rate_text(link.settings.rate_bps), *crossing])
            axes.text((x1 + x2) / 2, (y1 + y2) / 2, text, ha="center", va="center", fontsize=8, backgroundcolor="white")
    for name, (x, y) in where.items():
        colour = _SWITCH if name in links.switches else _HOST
        edge = "black" if name in links.aggregators else colour
        frame = {"boxstyle": "round", "facecolor": colour, "edgecolor": edge}
        axes.text(x, y, name, ha="center", va="center", fontsize=8, bbox=frame)
    for label in axes.texts:
        label.set_in_layout(False)
    axes.margins(0.08, 0.15)
    return figure


def _most(entry: dict[str, Any], scenario: Scenario, a: str, b: str) -> float:
    """Arrays over a link, in its busier direction."""
    crossed = loads(entry["method"].method, scenario.network)
    return float(max(crossed[a, b], crossed[b, a]))


def places(links: Topology) -> dict[str, tuple[float, float]]:
    """x, y of each node: leaves side by side, others above the middle of what they lead to; y: minus the depth."""
    found: dict[str, tuple[float, float]] = {}
    leaves = 0

    def place(node: str, above: str, depth: int) -> float:
        nonlocal leaves
        below = [place(name, node, depth + 1) for name in links.neighbours[node] if name != above]
        if not below:
            leaves += 1
        found[node] = (sum(below) / len(below) if below else float(leaves), -depth)
        return found[node][0]

    place(links.top, "", 0)
    return found
