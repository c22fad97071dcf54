"""A forecast for people: a table for the terminal, a figure, and one HTML page that needs nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from emulation.experiments.whatif.gains import words
from emulation.report import figure_kit, page_kit
from emulation.report.page_kit import Section, part
from emulation.report.svg import INK, WIDTH, inline_svg, tip
from emulation.report.table_kit import columns
from emulation.report.wording import bytes_text, in_text, time_text
from emulation.results.results import write_json
from emulation.results.whole_file import write_text
from emulation.testbed.certificate.fidelity import rate_text
from transport.group.method_name import parse

HEADS = ("method", "iteration", "shorter by", "held up by")
UNRESOLVED = "#C4C9CF"
WHISKER = "#59636E"
LABEL_MAX = 28
"""Letters of a line of a method's name in the figure."""
BAR_INCHES = 0.3
CAPTION = (
    "How much shorter an iteration would be. The whiskers are the noise; a gain within the noise is grey, since it may "
    "be chance."
)


def write(document: dict[str, Any], folder: Path) -> Path:
    """whatif.json, .svg, .png and .html; the path of the last. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "whatif.json", document)
    figures = figure_kit.draw({"whatif": lambda: figure(document)})
    figure_kit.write(figures, folder)
    svg = inline_svg(figures["whatif"], "whatif", CAPTION)
    write_text(folder / "whatif.svg", svg)
    held_up = (
        '"Held up by" names what costs an iteration most: compute (ranks hardly wait), link (bytes at its rate), '
        "latency (round trips, and what calls cost hosts) or slots (the switch's window)."
    )
    tables = [
        Section(rate := rate_text(link["rate_bps"]), [part("plain_table", HEADS, rows(link), rate)])
        for link in document["links"]
    ]
    name = document["run"]["name"]
    title = f"What other methods would gain for {name}"
    rates = ", ".join(rate_text(link["rate_bps"]) for link in document["links"])
    count, workers = len(document["links"][0]["rows"]), document["run"]["workers"]
    compared = f"{count} methods were compared for {name} with {workers} workers, on links of {rates}."
    trust = (
        "This is a forecast from a recorded run, not a measurement. ± is its noise, and a gain within the noise is "
        "unresolved. What encoding costs a processor, and what a codec does to accuracy, isn't counted."
    )
    text = page_kit.render(
        title,
        page_kit.opening(
            title,
            compared=[page_kit.text(compared)],
            outcome=[
                part("items", [headline(link) for link in document["links"]], "lead"),
                part("figure", svg, CAPTION),
            ],
            trust=[part("stamp", "virtual", "FORECAST", trust)],
        ),
        [
            *tables,
            Section("", [page_kit.text(held_up, "small")]),
            Section("The run, and how this was forecast", [part("facts", list(about(document)))]),
        ],
    )
    path = folder / "whatif.html"
    write_text(path, text)
    return path


def rows(link: dict[str, Any]) -> list[list[str]]:
    """The rows of a link under HEADS, fastest first."""
    table = []
    for row in sorted(link["rows"], key=lambda row: float(row["iteration_ns"])):
        base = row["method"] == link["baseline"]
        chosen = f" ({row['chosen']})" if row["chosen"] else ""
        gain = "baseline" if base else words(row)
        table.append([row["method"] + chosen, time_text(row["iteration_ns"]), gain, row["limit"]])
    return table


def lines(document: dict[str, Any]) -> Iterator[str]:
    """For the terminal."""
    for label, text in about(document):
        yield f"{label}: {text}"
    for link in document["links"]:
        yield ""
        yield headline(link)
        yield from columns(HEADS, rows(link))


def headline(link: dict[str, Any]) -> str:
    """A sentence that sums up a link's rows."""
    by_name = {row["method"]: row for row in link["rows"]}
    base = by_name[link["baseline"]]
    better = [row for row in link["rows"] if row["resolved"] and row["gain"] > 0]
    at, baseline = f"At {rate_text(link['rate_bps'])}", in_text(parse(base["method"]))
    if not better:
        return f"{at} no method gains more over {baseline} than the noise ({base['limit']} holds iterations up)."
    best = max(better, key=lambda row: float(row["gain"]))
    which = in_text(parse(best["method"], virtual=True))
    text = f"{at} an iteration with {which} is {_share(best)} shorter than with {baseline}"
    switch = by_name.get("switch")
    if switch is not None and best is not switch:
        gain = f"is {_share(switch)} shorter" if switch["resolved"] else "shows no gain beyond the noise"
        text += f"; with the switch alone it {gain}"
    return f"{text}."


def _share(row: dict[str, Any]) -> str:
    return f"{100 * row['gain']:.1f} ± {100 * row['floor']:.1f} %"


def about(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Facts of the run and of the forecast."""
    run, question = document["run"], document["question"]
    computing = f"{time_text(run['compute_ns'])} of computing an iteration"
    yield "run", f"{run['name']}, {run['workers']} workers, {computing if run['compute_ns'] else 'communication alone'}"
    exchanged = f"{bytes_text(run['exchanged_bytes'])} in {run['collectives']} collectives, {run['sent_as']}"
    yield "exchanged", exchanged
    how = "measured" if run["jitter_measured"] else "assumed"
    if run["compute_ns"]:
        least = time_text(run["slowest_ns"])
        why = f"since ranks wait for the slowest, an iteration takes {least} where communication is free"
        yield "compute times", f"vary by {100 * run['jitter']:.1f} % between iterations ({how}); {why}"
    if run["workers"] == 2:
        why = (
            "each sends its whole array once by every method, so a switch saves no bytes; codecs and schedules may gain"
        )
        yield "2 workers", f"{why}; for more of them: --workers 8"
    yield (
        "links",
        f"one for each host, {time_text(question['delay_ns'])} one way",
    )
    yield "hosts", hosts_text(question["keys"])
    yield (
        "±",
        f"twice the standard deviation of {question['seeds']} seeds of {question['iterations']} iterations, of both "
        "methods",
    )
    yield "not counted", "what encoding costs a processor, and what a codec does to accuracy"
    for note in run["notes"]:
        yield "from", note
    for name, why in document["left_out"].items():
        yield "left out", f"{name}: {why}"


def hosts_text(keys: dict[str, Any]) -> str:
    """The costs of communication on hosts, and other keys as they are."""
    options = dict(keys)
    transfer_ns, at_once = options.pop("hosts.transfer_ns", 0), options.pop("hosts.calls_at_once", 0)
    cost = f"a transfer takes {time_text(transfer_ns)} at both ends" if transfer_ns else "transfers take no time"
    calls = f"{at_once} call{'s' * (at_once > 1)} at once" if at_once else "any number of calls at once"
    return ", ".join([cost, calls, *(f"{key} = {value}" for key, value in options.items())])


def figure(document: dict[str, Any]) -> Figure:
    """Gains by method, a panel for each rate; what isn't resolved is grey."""
    panels = [
        (link, sorted((row for row in link["rows"] if row["method"] != link["baseline"]), key=lambda row: row["gain"]))
        for link in document["links"]
    ]
    drawn, every = figure_kit.stacked([0.7 + BAR_INCHES * len(rows) for _, rows in panels], WIDTH, sharex=True)
    for axes, (link, rows) in zip(every, panels, strict=True):
        colours = [parse(row["method"], virtual=True).look.colour if row["resolved"] else UNRESOLVED for row in rows]
        bars = axes.barh(
            [_broken(row["method"]) for row in rows],
            [100 * row["gain"] for row in rows],
            xerr=[100 * row["floor"] for row in rows],
            color=colours,
            ecolor=WHISKER,
            capsize=2,
            height=0.72,
        )
        for bar, row in zip(bars, rows, strict=True):
            tip(bar, f"{row['method']}: {words(row)}, {time_text(row['iteration_ns'])} an iteration")
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set_title(f"{rate_text(link['rate_bps'])}, against {link['baseline']}", loc="left", fontsize=10)
        axes.tick_params(axis="y", labelsize=9)
        axes.grid(axis="y", visible=False)
    every[-1].set_xlabel("iteration shorter by, %")
    handles = _legend(document)
    figure_kit.legend_above(drawn, handles, [str(handle.get_label()) for handle in handles])
    return drawn


def _legend(document: dict[str, Any]) -> list[Artist]:
    """The legend of colours and whiskers."""
    rows = [row for link in document["links"] for row in link["rows"] if row["method"] != link["baseline"]]
    looks = {parse(row["method"], virtual=True).look for row in rows if row["resolved"]}
    colours = {look.label: look.colour for look in sorted(looks, key=lambda look: look.label)}
    if not all(row["resolved"] for row in rows):
        colours["within the noise"] = UNRESOLVED
    whisker = Line2D([], [], color=WHISKER, marker="|", label="the noise, ±")
    return [*(Patch(color=colour, label=label) for label, colour in colours.items()), whisker]


def _broken(method: str) -> str:
    """A name in lines short enough that the bars keep their room."""
    lines = [""]
    for piece in re.split(r"(?=[~+,])", method):
        if lines[-1] and len(lines[-1]) + len(piece) > LABEL_MAX:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)
