"""How a job shared the network with other traffic: each link's load, shares over time, and rows of the table about it.

From the results document alone, and only where it has something to say about it.
"""

from __future__ import annotations

from collections.abc import Set
from functools import partial
from itertools import chain
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from emulation.report import figure_kit, wording
from emulation.report.svg import INK, PAPER, WIDTH, tip
from emulation.report.table_kit import Cell, Row, row_of_some
from emulation.report.topology_figure import HOSTS_ABREAST, aggregating, draw_nodes, places
from emulation.results.shares import JOB, busiest_shared, part_of_job
from emulation.scenario.bounds import servers_of
from emulation.scenario.scenario import Scenario
from emulation.scenario.scenario_flows import own_hosts
from emulation.scenario.topologies.topology import Hop, LinkSettings, Topology
from emulation.scenario.topologies.topology_kinds import topology
from transport.group.method_name import METHODS

PANELS_MOST = 4  # methods
PAUSED_MOST = 6  # links that a row names
COLUMNS = 2
ABREAST = 4
"""Hosts whose labels have room beside each other in half of the width."""
ACCURACY_STEP = 0.005  # what a target accuracy is a multiple of

_SHADES = {
    "cubic": "Greens", "reno": "YlOrBr", "bbr": "Purples", "dcqcn": "BuGn", "roce": "OrRd", "short": "Greys",
    "incast": "RdPu",
}  # fmt: skip
_LOADS = colormaps["YlOrRd"]


def sharing(built: dict[str, Any], *keys: str) -> list[dict[str, Any]]:
    """The methods of a document that weren't alone: that have any of these keys."""
    return [entry for entry in built["methods"] if any(entry.get(key) for key in keys)]


# ---- each link's load


def loads(built: dict[str, Any]) -> Figure | None:
    """Nodes and links, a panel for each method: the part of each link's rate that was used, both ways."""
    entries = sharing(built, "shared_links", "link_loads")[:PANELS_MOST]
    if not entries:
        return None
    networks = [_network(built, entry) for entry in entries]
    wide = max(len(network.hosts) for network in networks) > ABREAST
    columns = 1 if wide else min(COLUMNS, len(entries))
    rows = -(-len(entries) // columns)
    figure = Figure(layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    depth = 1.0
    aggregators = aggregating(built["scenario"])
    for axes, entry, network in zip(panels, entries, networks, strict=False):
        depth = max(depth, *(-y for _, y in places(network).values()))
        _draw(axes, network, link_loads(built, entry), aggregators)
        axes.set_title(wording.name_of(entry["method"]), loc="left", fontsize=10)
    for axes in panels[len(entries) :]:
        axes.axis("off")
    figure.set_size_inches(WIDTH, rows * (0.9 + (1.9 if wide else 1.5) * depth))
    return figure


def _network(built: dict[str, Any], entry: dict[str, Any]) -> Topology:
    """The job's hosts, and those of flows or other jobs."""
    scenario: Scenario = built["scenario"]
    options = scenario.topology
    servers = servers_of(entry["method"].method, scenario.ps.servers)
    settings = LinkSettings(options.rate_bps, options.delay_ns, options.queue_bytes)
    tenants = entry.get("tenants", {}).get("jobs", [])
    jobs = {host for job in tenants for host in job["hosts"]}
    of_jobs = sum(METHODS[job["method"]].servers for job in tenants if not job["measured"])
    job = topology(options.fabric, options.workers, servers, settings)
    extra = own_hosts(scenario.flows) + len(jobs - set(job.hosts)) + of_jobs
    return topology(options.fabric, options.workers, servers, settings, extra)


def link_loads(built: dict[str, Any], entry: dict[str, Any]) -> dict[Hop, float]:
    """Bits per second of each direction that was counted. Where not all were: of ranks' links after the warm-up; of a
    shared link during the whole run, flows included; of a flow's own host without headers."""
    if counted := entry.get("link_loads"):
        return {
            (link["from"], link["to"]): sum(link["bytes"]) * 8e9 / (counted["bin_ns"] * max(1, len(link["bytes"])))
            for link in counted["links"]
        }
    network = _network(built, entry)
    span_ns = sum(record["duration_ns"] for record in entry["iterations"][-entry["wire_iterations"] :])
    load_by_hop: dict[Hop, float] = {}
    for up, counted in ((True, "wire_tx_bytes_per_rank"), (False, "wire_rx_bytes_per_rank")):
        for host, size in zip(network.workers, entry[counted], strict=False):
            (leaf,) = network.neighbours[host]
            load_by_hop[(host, leaf) if up else (leaf, host)] = size * 8e9 / span_ns
    for flow in entry["flows"]:
        for place, host in enumerate(flow["from"]):
            summed = len(flow["goodput_bps"]) != len(flow["from"])
            bps = sum(flow["goodput_bps"]) / len(flow["from"]) if summed else flow["goodput_bps"][place]
            if host in network.other_hosts:
                hop = (host, network.neighbours[host][0])
                load_by_hop[hop] = load_by_hop.get(hop, 0.0) + bps
    for shared in entry["shared_links"]:
        over_time = list(shared["bytes_over_time"].values())
        seen_ns = shared["bin_ns"] * max(map(len, over_time))
        a, b = shared["link"].split("-")
        load_by_hop[a, b] = sum(map(sum, over_time)) * 8e9 / seen_ns
    return load_by_hop


def _draw(axes: Axes, network: Topology, loads_bps: dict[Hop, float], aggregators: Set[str]) -> None:
    where = places(network)
    box = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.8}
    axes.axis("off")
    crowded = len(network.hosts) > 2 * ABREAST
    steps = min(4, (len(network.hosts) - 1) // ABREAST) if crowded else 1
    for number, link in enumerate(network.links):
        (x1, y1), (x2, y2) = where[link.a], where[link.b]
        both = [loads_bps.get(hop) for hop in ((link.a, link.b), (link.b, link.a))]
        known = [bps / link.settings.rate_bps for bps in both if bps is not None]
        load = min(max(known), 1.0) if known else 0.0
        colour = _LOADS(0.15 + 0.6 * load) if known else "#CCCCCC"
        (drawn,) = axes.plot(
            [x1, x2], [y1, y2], color=colour, linewidth=1.2 + 4 * load, zorder=1, solid_capstyle="round"
        )
        below, above = (link.a, link.b) if y1 < y2 else (link.b, link.a)
        ways = ((below, above, "↑"), (above, below, "↓"))
        shares = {sign: loads_bps[a, b] / link.settings.rate_bps for a, b, sign in ways if (a, b) in loads_bps}
        if crowded and shares:
            busier = max(shares, key=lambda sign: shares[sign])
            shares = {busier: shares[busier]}
        text = "\n".join(f"{sign} {wording.percent_text(share, 0)}" for sign, share in shares.items())
        tips = (
            f"{a} to {b} {wording.rate_text(float(f'{loads_bps[a, b]:.3g}'))}"
            for a, b, _ in ways
            if (a, b) in loads_bps
        )
        tip(drawn, f"{'; '.join(tips) or 'not counted'}, of {wording.rate_text(link.settings.rate_bps)}")
        near = 0.2 + 0.13 * (number % steps)  # of the way up: labels that stand side by side have no room
        x, y = ((1 - near) * low + near * high for low, high in zip(where[below], where[above], strict=True))
        axes.text(x, y, text, fontsize=9, bbox=box, ha="center", va="center")
    draw_nodes(axes, where, network, aggregators, upright=len(network.hosts) > HOSTS_ABREAST)
    axes.margins(0.08, 0.18)


# ---- shares over time


def shares(built: dict[str, Any]) -> Figure | None:
    """What each user had of the busiest shared link over time, one above the other, a panel for each method."""
    entries = sharing(built, "shared_links")[:PANELS_MOST]
    if not entries:
        return None
    figure, panels = figure_kit.stacked([1.9 + 0.8 / len(entries)] * len(entries), WIDTH, sharex=True)
    rate_bps = built["scenario"].topology.rate_bps
    keys: dict[str, Any] = {}
    last_s = 0.0
    for axes, entry in zip(panels, entries, strict=True):
        link = busiest_shared(entry)
        assert link is not None
        users = sorted(link["bytes_over_time"], key=lambda user: user != JOB)
        colours = _colours(users, entry["method"].look.colour)
        bins = len(link["bytes_over_time"][users[0]]) - 1  # the last one may be cut short
        times = [place * link["bin_ns"] / 1e9 for place in range(bins + 1)]
        rates = [[8e3 * size / link["bin_ns"] for size in link["bytes_over_time"][user][:bins]] for user in users]
        areas = axes.stackplot(times, *([*values, values[-1]] for values in rates), step="post", linewidth=0,
                               colors=[colours[user] for user in users])  # fmt: skip
        for area, user, values in zip(areas, users, rates, strict=True):
            tip(area, f"{user}: {sum(values) / len(values):.3g} Mb/s in the mean, at most {max(values):.3g}")
        axes.axhline(rate_bps / 1e6, color=INK, linewidth=1, linestyle="--")
        name = wording.name_of(entry["method"])
        axes.set_title(f"{name}: {_direction(link)}\n{_fairness(link)}", loc="left", fontsize=9)
        axes.set(ylabel="Mb/s", ylim=(0, 1.08 * rate_bps / 1e6))
        last_s = max(last_s, times[-1])
        keys |= {_family(user): colours[user] for user in users if user != JOB}
        keys[f"the job, {name}"] = colours.get(JOB, "white")
    clock = "time" if built["backend"] == "mininet" else "virtual time"
    panels[-1].set(xlabel=f"{clock} (s)", xlim=(0, last_s))
    names = sorted(keys)
    figure_kit.legend_above(figure, [Patch(color=keys[name]) for name in names], names)
    return figure


def _direction(link: dict[str, Any]) -> str:
    a, b = link["link"].split("-")
    return f"{a} to {b}"


def _fairness(link: dict[str, Any]) -> str:
    ns = link["converged_ns"]
    when = "which never stays at 0.9" if ns is None else f"at 0.9 from {wording.time_text(ns)} on"
    return f"Jain's index {link['jain']:.2f}, {when}"


def _family(user: str) -> str:
    return user.partition(" ")[0]


def _colours(users: list[str], job: str) -> dict[str, Any]:
    """The job has its method's colour, flows of one kind shades of another."""
    colours: dict[str, Any] = {}
    for user in users:
        alike = [other for other in users if _family(other) == _family(user)]
        shade = 0.35 + 0.4 * alike.index(user) / max(1, len(alike) - 1) if alike[1:] else 0.5
        colours[user] = job if user == JOB else colormaps[_SHADES.get(_family(user), "Greens")](shade)
    return colours


# ---- other jobs


def jobs(built: dict[str, Any]) -> Figure | None:
    """What each job sent over time, and the slots it had of a switch, panels for each method."""
    entries = sharing(built, "tenants")[:PANELS_MOST]
    if not entries:
        return None
    slots = [any(job["slots"] for job in entry["tenants"]["jobs"]) for entry in entries]
    panels_each = [1 + has_slots for has_slots in slots]
    count = sum(panels_each)
    figure, panels = figure_kit.stacked([1.9 + 0.7 / count] * count, WIDTH, sharex=True)
    last_s = 0.0
    for entry, has_slots in zip(entries, slots, strict=True):
        tenants, axes = entry["tenants"], panels.pop(0)
        bin_s = tenants["bin_ns"] / 1e9
        end_s = bin_s * max(len(job["bytes"]) for job in tenants["jobs"])
        last_s = max(last_s, end_s)
        looks = _job_looks(tenants["jobs"], entry["method"].look.colour)
        for look, job in zip(looks, tenants["jobs"], strict=True):
            rates = [8 * size / bin_s / 1e6 for size in _means(job["bytes"])]
            (line,) = axes.plot([bin_s * (place + 0.5) for place in range(len(rates))], rates, **look)
            tip(line, f"{look['label']}: {8e-6 * sum(job['bytes']) / end_s:.3g} Mb/s in the mean")
        axes.set_title(_job_title(entry), loc="left", fontsize=9)
        axes.set(ylabel="Mb/s", ylim=(0, None))
        named = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        if has_slots:
            axes = panels.pop(0)
            for look, job in zip(looks, tenants["jobs"], strict=True):
                steps = [(since_ns / 1e9, slots) for since_ns, slots in job["slots"]]
                if steps:
                    axes.step(*zip(*steps, (end_s, steps[-1][1]), strict=True), where="post", **look)
            axes.set(ylabel="slots", ylim=(0, None))
    axes.set(xlabel="virtual time (s)", xlim=(0, last_s))
    figure_kit.legend_above(figure, list(named.values()), list(named))
    return figure


def _job_title(entry: dict[str, Any]) -> str:
    tenants = entry["tenants"]
    wrong = sum(job.get("wrong_elements", 0) for job in tenants["jobs"])
    title = f"{wording.name_of(entry['method'])}: Jain's index by weight {tenants['jain']:.2f}"
    return f"{title}, {wording.count_text(wrong)} wrong elements"


def _job_looks(jobs: list[dict[str, Any]], measured: str) -> list[dict[str, Any]]:
    """The measured job has its method's colour, the others a shade of grey to green each; and another line."""
    rivals = [job for job in jobs if not job["measured"]]
    looks = []
    for job in jobs:
        look: dict[str, Any] = {"linewidth": 2.6, "color": measured, "linestyle": "-"}
        if not job["measured"]:
            colour = colormaps["viridis"](0.15 + 0.7 * rivals.index(job) / max(1, len(rivals) - 1))
            look = {"linewidth": 1.4, "color": colour, "linestyle": "--"}
        name = "measured" if job["measured"] else job["name"]
        looks.append({**look, "label": f"{name} (weight {job['weight']})"})
    return looks


def _means(values: list[int], span: int = 5) -> list[float]:
    """Each with its neighbours: iterations are bursts."""
    half = span // 2
    windows = (values[max(0, place - half) : place + half + 1] for place in range(len(values)))
    return [sum(window) / len(window) for window in windows]


# ---- rows of the table


def rows(built: dict[str, Any]) -> list[Row]:
    """Of a job that wasn't alone, whose gradients may be lost, or that had stragglers or a tail; none of any other."""
    methods, faults = built["methods"], built["scenario"].faults
    special = sharing(built, "flows", "tenants", "gradient_loss", "partial_sums") or faults.stragglers or faults.tail
    return [
        *_flow_rows(methods),
        *_job_rows(methods),
        *row_of_some("Pauses of links", methods, _paused),
        *_loss_rows(built),
        *(_accuracy_rows(built) if special else []),
    ]


def _flow_rows(methods: list[dict[str, Any]]) -> list[Row]:
    if not any(entry.get("flows") for entry in methods):
        return []
    kinds = list(dict.fromkeys(flow["kind"] for entry in methods for flow in entry.get("flows", [])))
    rows_of = [row_of_some(f"Goodput, {kind}", methods, partial(_goodput, kind)) for kind in kinds]
    rows_of += [
        row_of_some(f"Time of a flow, 99th percentile, {kind}", methods, partial(_times, kind))
        for kind in kinds
        if kind in ("short", "incast")
    ]
    rows_of.append(row_of_some("Busiest shared link: Jain's index", methods, _index))
    return [*chain.from_iterable(rows_of), *row_of_some("Its queue, 99th percentile", methods, _queue)]


def _job_rows(methods: list[dict[str, Any]]) -> list[Row]:
    """Of the other jobs of a network; none without."""
    jobs = [job for entry in methods for job in entry.get("tenants", {}).get("jobs", []) if not job["measured"]]
    names = dict.fromkeys(job["name"] for job in jobs)
    sums = [row_of_some(f"Job {name}: one sum takes", methods, partial(_sum_time, name)) for name in names]
    fullest = row_of_some("Queue of the fullest link, 99th percentile", methods, _fullest) if jobs else []
    return [*chain.from_iterable(sums), *fullest]


def _sum_time(name: str, entry: dict[str, Any]) -> Cell | None:
    (job,) = [job for job in entry.get("tenants", {}).get("jobs", []) if job["name"] == name] or [{}]
    if not job.get("sum_ns"):
        return ("–", "") if job else None  # noqa: RUF001
    wrong = f"{wording.count_text(job['wrong_elements'])} wrong elements"
    ended = f"; ended at {wording.time_text(job['ended_ns'])}" if job.get("ended_ns") else ""
    return wording.time_text(job["sum_ns"]["median"]), f"median of {wording.count_text(job['sums'])}; {wrong}{ended}"


def _fullest(entry: dict[str, Any]) -> Cell | None:
    if not (counted := entry.get("link_loads")):
        return None
    link = max(counted["links"], key=lambda link: link["queue_p99_bytes"])
    marks, drops = (sum(link[key] for link in counted["links"]) for key in ("marked_frames", "dropped_frames"))
    note = (
        f"{link['from']} to {link['to']}; in all {wording.count_text(marks)} marks, {wording.count_text(drops)} drops"
    )
    return wording.bytes_text(link["queue_p99_bytes"]), note


def _paused(entry: dict[str, Any]) -> Cell | None:
    """Of links that can be paused."""
    if not (pauses := entry.get("pauses")):
        return None
    count, percent, links = wording.count_text, wording.percent_text, pauses["links"]
    paused = sorted((link for link in links if link["pauses"]), key=lambda link: -link["paused_ns"])
    parts = [percent(link["paused_ns"] / pauses["run_ns"], 1) for link in paused]
    notes = [
        f"{link['from']} to {link['to']} {count(link['pauses'])}, {part} of the time"
        for link, part in zip(paused[:PAUSED_MOST], parts, strict=False)
    ]
    if len(paused) > PAUSED_MOST:
        notes.append(f"{len(paused) - PAUSED_MOST} more links")
    notes.append(f"{count(sum(link['lossless_drops'] for link in links))} lossless frames lost for want of headroom")
    return count(sum(link["pauses"] for link in links)), "; ".join(notes)


def _of_kind(entry: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [flow for flow in entry.get("flows", []) if flow["kind"] == kind]


def _goodput(kind: str, entry: dict[str, Any]) -> Cell | None:
    rates = [bps for flow in _of_kind(entry, kind) for bps in flow["goodput_bps"]]
    if not rates:
        return None
    note = f"{len(rates)} flows: {_rate(min(rates))} … {_rate(max(rates))}" if rates[1:] else ""
    return _rate(sum(rates)), note


def _rate(bps: float) -> str:
    return wording.rate_text(int(float(f"{bps:.3g}")))


def _times(kind: str, entry: dict[str, Any]) -> Cell | None:
    flows = [flow for flow in _of_kind(entry, kind) if flow.get("finished")]
    if not flows:
        return None
    worst = max(flows, key=lambda flow: flow["time_p99_ns"])
    done, left = (sum(flow.get(key, 0) for flow in flows) for key in ("finished", "unfinished"))
    note = f"median {wording.time_text(worst['time_p50_ns'])}, {done} finished{f', {left} not' if left else ''}"
    if "small_time_p99_ns" in worst:
        note += f"; of up to 100 kB {wording.time_text(worst['small_time_p99_ns'])}"
    return wording.time_text(worst["time_p99_ns"]), note


def _index(entry: dict[str, Any]) -> Cell | None:
    if (link := busiest_shared(entry)) is None:
        return None
    part = wording.percent_text(part_of_job(link), 0)
    return f"{link['jain']:.2f}", f"{_direction(link)}; the job had {part} of its bytes"


def _queue(entry: dict[str, Any]) -> Cell | None:
    if (link := busiest_shared(entry)) is None:
        return None
    return wording.bytes_text(link["queue_p99_bytes"]), f"median {wording.bytes_text(link['queue_p50_bytes'])}"


def _loss_rows(built: dict[str, Any]) -> list[Row]:
    """What of the gradients was lost for good, or late."""
    rows: list[Row] = []
    methods, scenario = built["methods"], built["scenario"]
    if any(entry.get("gradient_loss") for entry in methods):
        rows.append(("Values lost for good", [_lost(entry.get("gradient_loss")) for entry in methods]))
    if any(scenario.backups_of(entry["method"]) is not None for entry in methods):
        rows.append(("Ranks in a sum", [_held(entry, scenario) for entry in methods]))
    return rows


def _held(entry: dict[str, Any], scenario: Scenario) -> tuple[str, str]:
    if not (held := entry.get("partial_sums")):
        if not (backups := scenario.backups_of(entry["method"])):
            return "all", ""
        return str(scenario.topology.workers - backups), "at least: whoever is first"
    return f"{held['ranks_mean']:.2f}", f"in the mean; at least {held['ranks_least']}"


def _lost(loss: dict[str, float] | None) -> tuple[str, str]:
    if not loss:
        return "none", ""
    note = (
        f"of sums {wording.percent_text(loss['down'], 2)}; {wording.count_text(int(loss['late_packets']))} packets late"
    )
    return f"of gradients {wording.percent_text(loss['up'], 2)}", note


def _accuracy_rows(built: dict[str, Any]) -> list[Row]:
    """When each method had the accuracy that all of them reached."""
    methods = built["methods"]
    known = [[e["accuracy"] for e in entry["evaluations"] if e["accuracy"] is not None] for entry in methods]
    target = int(min(max(values, default=0) for values in known) / ACCURACY_STEP + 1e-9) * ACCURACY_STEP
    if target <= 0:
        return []
    reached = {entry["method"]: time_to(entry, target) for entry in methods}
    baseline = reached.get(built["baseline"])
    cells = []
    for entry in methods:
        note = f"to {wording.percent_text(target)} on the test set"
        if baseline and entry["method"] != built["baseline"]:
            note += f", {wording.times_text(baseline / reached[entry['method']])} as fast"
        cells.append((wording.time_text(reached[entry["method"]]), note))
    return [("Time to accuracy", cells)]


def time_to(entry: dict[str, Any], accuracy: float) -> int:
    """Training time at the first evaluation with at least this accuracy, which there is."""
    times = [e["time_ns"] for e in entry["evaluations"] if e["accuracy"] is not None and e["accuracy"] >= accuracy]
    return int(times[0])
