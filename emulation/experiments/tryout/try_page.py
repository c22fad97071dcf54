"""A trial for people: a table for the terminal, two figures, and one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from emulation.report import figure_kit, page_kit
from emulation.report.comparison_report import verdict_stamp
from emulation.report.page_kit import Section, part
from emulation.report.svg import WIDTH
from emulation.report.table_kit import columns
from emulation.report.wording import bytes_text, time_text
from emulation.results.results import write_json
from emulation.results.speedups import INVALID, VALID
from emulation.results.whole_file import write_text
from emulation.testbed.certificate.fidelity import rate_text
from transport.group.method_name import parse

HEADS = ("method", "step", "25 % … 75 %", "forecast", "sent by a rank", "exchange at least", "certificate")
LOSSES = "The loss at each step, mean over the ranks, by each method."
STEPS = "How long each step took the slowest rank. Grey: steps that don't count, since methods took turns or warmed up."
ALIKE = 1e-12


def write(document: dict[str, Any], folder: Path) -> Path:
    """try.json, losses.png, steps.png and try.html; the path of the last. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "try.json", document)
    figures = figure_kit.draw({"losses": lambda: losses_figure(document), "steps": lambda: steps_figure(document)})
    figure_kit.write(figures, folder)
    captions = {"losses": LOSSES, "steps": STEPS}
    drawn = {key: page_kit.figure(drawing, key, captions[key]) for key, drawing in figures.items()}
    text = page_kit.render(
        f"{Path(document['script']).name} with other methods",
        _opening(document, drawn.pop("steps")),
        [
            Section("Step times", [part("plain_table", HEADS, rows(document), "Step times")]),
            *(Section("Losses", [drawing]) for drawing in drawn.values()),
            Section("The run", [part("facts", list(about(document)))]),
        ],
        crossed=bool(invalid(document)),
    )
    path = folder / "try.html"
    write_text(path, text)
    return path


def _opening(document: dict[str, Any], steps: Markup) -> list[Markup]:
    """What was compared, what came out and whether to trust it; what is invalid says so first."""
    name, methods = Path(document["script"]).name, [row["method"] for row in document["methods"]]
    certificates = [row["certificate"] for row in document["methods"] if row["certificate"] is not None]
    place = f"on links of {rate_text(document['rate_bps'])}" if document["rate_bps"] else f"on {document['place']}"
    compared = f"{name} ran with {' and with '.join(methods)}, as {document['workers']} ranks {place}."
    stamp = {"kind": "virtual", "word": "NOT CERTIFIED", "text": "No link was emulated here, so none was checked."}
    advice = [remedy(document)] if invalid(document) else []
    if certificates:
        stamp = verdict_stamp(INVALID if invalid(document) else VALID)
    trust = [part("stamp", stamp["kind"], stamp["word"], stamp["text"], [*invalid(document), *advice])]
    gains = _gains(document)
    sentence = page_kit.text(f"{gains[:1].upper()}{gains[1:]}", "lead")
    if invalid(document):
        sentence = page_kit.text(f"What was measured nevertheless: {gains}", "soft")
    outcome = [sentence, steps]
    in_turn = {"trust": trust, "outcome": outcome} if invalid(document) else {"outcome": outcome, "trust": trust}
    return page_kit.opening(f"{name} with other methods", compared=[page_kit.text(compared)], **in_turn)


def lines(document: dict[str, Any]) -> list[str]:
    """For the terminal."""
    facts = [f"{label}: {text}" for label, text in about(document)]
    return [*facts, "", headline(document), *columns(HEADS, rows(document))]


def rows(document: dict[str, Any]) -> list[list[str]]:
    """The rows under HEADS, in the order of the methods."""
    return [
        [
            row["method"],
            time_text(row["step"]["median_ns"]),
            f"{time_text(row['step']['p25_ns'])} … {time_text(row['step']['p75_ns'])}",
            "-" if row["forecast_ns"] is None else time_text(row["forecast_ns"]),
            "-" if row["sent_bytes"] is None else bytes_text(row["sent_bytes"]),
            "-" if row["least_exchange_ns"] is None else time_text(row["least_exchange_ns"]),
            "-" if row["certificate"] is None else "VALID" if row["certificate"]["valid"] else "INVALID",
        ]
        for row in document["methods"]
    ]


def headline(document: dict[str, Any]) -> str:
    """A sentence that sums the trial up."""
    return ("INVALID, as said above: " if invalid(document) else "") + _gains(document)


def _gains(document: dict[str, Any]) -> str:
    base = document["methods"][0]["method"]
    return f"{'; '.join(_gain(compared, base) for compared in document['comparisons'])}."


def _gain(compared: dict[str, Any], base: str) -> str:
    between = compared["interval"]
    spread = "" if between is None else f" ({between[0]:.2f} … {between[1]:.2f})"
    forecast = "" if compared["forecast"] is None else f", forecast {compared['forecast']:.2f}"
    text = f"a step by {compared['method']} is {compared['speedup']:.2f} times as fast as by {base}{spread}{forecast}"
    return text if compared["resolved"] else f"{text}, which can't be told from chance"


def invalid(document: dict[str, Any]) -> list[str]:
    """Why results can't be used, method by method."""
    return [
        f"{row['method']}: {reason}"
        for row in document["methods"]
        if row["certificate"] is not None
        for reason in row["certificate"]["reasons"]
    ]


def _unfilled(certificate: dict[str, Any]) -> bool:
    least: int = certificate["bounds"]["backlogged_gaps_least"]
    return bool(certificate["measures"]["backlogged_gaps"] < least)


def remedy(document: dict[str, Any]) -> str:
    """What to change where a certificate is INVALID, for a newcomer who takes that for a fault of the script."""
    bad = [row["certificate"] for row in document["methods"] if row["certificate"] and not row["certificate"]["valid"]]
    rates = [certificate["valid_rate_bps"] for certificate in bad]
    slower = f"slower links (--links {rate_text(min(rates)).replace(' ', '') if all(rates) else 'RATE'})"
    ways = [slower] if all(rates) else ["no other programs beside it"]
    if any(_unfilled(certificate) for certificate in bad):
        ways = [slower, "larger gradients (--width 16000 for the script of switchagg init)"]
    again = f"run it again with {' or '.join(ways)}"
    return f"your script ran to its end and its losses count, but its times prove nothing; {again}"


def about(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Facts of the run, the forecast and the losses."""
    links = f"links of {rate_text(document['rate_bps'])}" if document["rate_bps"] else document["place"]
    yield "run", f"{' '.join([document['script'], *document['arguments']])}, {document['workers']} ranks, {links}"
    forecast = document["forecast"]
    if forecast is not None:
        recorded = forecast["run"]
        yield (
            "recorded",
            f"{time_text(recorded['compute_ns'])} of computing a step, {bytes_text(recorded['exchanged_bytes'])} in "
            f"{recorded['collectives']} collective{'s' * (recorded['collectives'] != 1)}, {recorded['sent_as']}",
        )
        link = forecast["links"][0]
        best = next(row for row in link["rows"] if row["method"] == link["baseline"])
        yield "best host method", f"{best['method']}, forecast {time_text(best['iteration_ns'])} a step"
    elif document["why_no_forecast"]:
        yield "no forecast", document["why_no_forecast"]
    turns = "methods took turns" if document["in_turn"] else "methods ran one after the other"
    counted = sum(end - begin for begin, end in document["blocks"])
    yield (
        "steps",
        f"{document['steps']} of each method, of which {counted} count; {turns}, {len(document['blocks'])} each",
    )
    base = document["methods"][0]["method"]
    for compared in document["comparisons"]:
        yield f"losses, {compared['method']} and {base}", losses_text(compared["losses"])
    for reason in invalid(document):
        yield "INVALID", reason
    if invalid(document):
        yield "what to do", remedy(document)
    for note in document["notes"]:
        yield "note", note


def losses_text(losses: dict[str, Any]) -> str:
    """How alike the losses of two methods are."""
    if not losses["steps"]:
        return "unknown: at no step does the backward pass begin from one finite number; is the loss NaN?"
    before, after = losses["last"]
    unknown = losses["all_steps"] - losses["steps"]
    remark = f"; unknown, NaN or infinite at the other {unknown} steps" if unknown else ""
    if losses["largest"] < ALIKE:
        return f"the same at all {losses['steps']} steps; {after:.6g} at the end{remark}"
    apart = f"at most {losses['largest']:.2g} apart, at step {losses['largest_at']} of {losses['all_steps']}"
    return f"{apart}; {before:.6g} and {after:.6g} at the end{remark}"


def losses_figure(document: dict[str, Any]) -> Figure | None:
    """A line for each method; None where no loss is known."""
    known = [row for row in document["methods"] if any(loss is not None for loss in row["losses"])]
    if not known:
        return None
    drawn, panels = figure_kit.grid(WIDTH, 3.0)
    axes = panels[0, 0]
    for row, style in zip(known, figure_kit.LINESTYLES, strict=False):
        values = [float("nan") if loss is None else loss for loss in row["losses"]]
        steps = range(1, len(values) + 1)
        axes.plot(steps, values, linestyle=style, color=_colour(row["method"]), label=row["method"])
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    figure_kit.legend_above(drawn, *axes.get_legend_handles_labels())
    return drawn


def steps_figure(document: dict[str, Any]) -> Figure:
    """A line for each method, and its forecast."""
    drawn, panels = figure_kit.grid(WIDTH, 3.0)
    axes = panels[0, 0]
    for row in document["methods"]:
        colour, milliseconds = _colour(row["method"]), [ns / 1e6 for ns in row["durations_ns"]]
        axes.plot(range(1, len(milliseconds) + 1), milliseconds, color=colour, label=row["method"])
        if row["forecast_ns"] is not None:
            axes.axhline(row["forecast_ns"] / 1e6, color=colour, linestyle=":", label=f"{row['method']}, forecast")
    counted = {step for begin, end in document["blocks"] for step in range(begin, end)}
    for step in set(range(document["steps"])) - counted:
        axes.axvspan(step + 0.5, step + 1.5, color="#bbbbbb", alpha=0.3, linewidth=0)
    most_ns = max(ns for row in document["methods"] for step, ns in enumerate(row["durations_ns"]) if step in counted)
    axes.set_ylim(0, 1.15 * most_ns / 1e6)
    axes.set_xlabel("step")
    axes.set_ylabel("ms")
    figure_kit.legend_above(drawn, *axes.get_legend_handles_labels())
    return drawn


def _colour(method: str) -> str:
    return "#56B4E9" if method == "nccl" else parse(method).look.colour
