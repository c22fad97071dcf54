"""Published results: the rule, the files of all results, and that the page is what the command writes."""

import itertools
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from emulation.cli.main import app
from emulation.experiments.reproduce import catalogue
from emulation.experiments.reproduce.published import Published, PublishedCell, ReproduceError, judge
from emulation.experiments.reproduce.survey_times import busiest_share, with_pretraining_heads
from emulation.experiments.reproduce.timed import busy_share
from emulation.scenario.profiles.model_profile import load
from tools.documents import reproduced

RESULTS = Path(__file__).parents[3] / "docs/results"
PAGE = RESULTS / "reproduced.md"
AGREE, OPEN = 12, {"atp", "cdsgd", "tictac"}
pytestmark = pytest.mark.long


def published(
    *cells: PublishedCell,
    unit: str = "ms",
    because: str = "",
    calibration: str = "",
    ours: Mapping[str, float] | None = None,
) -> Published:
    return Published(
        name="one", title="One", paper="A", year=2020, source="table 1", conditions="", inputs="", unit=unit,
        cells=cells, run=lambda _: dict(ours or {}), because=because, calibration=calibration,
    )  # fmt: skip


FAST, SLOW = PublishedCell("fast", 10.0, "times"), PublishedCell("slow", 20.0, "times")


def test_within_the_limit_and_in_order_agrees() -> None:
    found = judge(published(FAST, SLOW), {"fast": 11.4, "slow": 17.1})
    assert (found.verdict, found.pairs, found.tau) == ("agrees", 1, 1.0)
    assert found.worst == pytest.approx(-0.145)


@pytest.mark.parametrize(
    ("cells", "ours", "unit", "fault"),
    [
        ((FAST, SLOW), {"fast": 11.6, "slow": 20}, "ms", "fast: +16%"),
        ((PublishedCell("a", 10), PublishedCell("b", 11)), {"a": 11, "b": 10}, "ms", "a and b in the other order"),
        ((PublishedCell("gain", 1.10),), {"gain": 1.0}, "speed-up", "gain: 0.0 times the gain"),
        ((PublishedCell("gain", 1.10),), {"gain": 1.25}, "speed-up", "gain: 2.5 times the gain"),
    ],
)
def test_what_breaks_the_rule(
    cells: tuple[PublishedCell, ...], ours: Mapping[str, float], unit: str, fault: str
) -> None:
    explained = PublishedCell("with that changed", 10.0, role="experiment")
    found = judge(published(*cells, explained, unit=unit, because="it does"), {**ours, "with that changed": 10})
    assert (found.verdict, found.faults) == ("differs", (fault,))


def test_only_cells_of_a_series_that_the_paper_separates_have_an_order() -> None:
    close = published(PublishedCell("a", 100), PublishedCell("b", 104))
    assert judge(close, {"a": 104, "b": 100}).pairs == 0
    assert judge(published(FAST, replace(SLOW, series="other")), {"fast": 10, "slow": 20}).pairs == 0


def test_what_calibrates_is_not_judged() -> None:
    calibrates = published(replace(FAST, role="calibrates"), SLOW, calibration="fast fixes the rate")
    assert set(judge(calibrates, {"fast": 99, "slow": 20}).errors) == {"slow"}


def test_words_must_fit_the_verdict() -> None:
    with pytest.raises(ReproduceError, match=r"one: differs \(fast: \+100%\), and its file doesn't say why"):
        judge(published(FAST), {"fast": 20})
    with pytest.raises(ReproduceError, match="one: agrees, but its file says why it differs"):
        judge(published(FAST, because="no idea"), {"fast": 10})
    explained = replace(FAST, name="fast, with less", role="experiment")
    with pytest.raises(ReproduceError, match="one: differs, and has 0 cells of an experiment"):
        judge(published(FAST, because="it does"), {"fast": 20})
    with pytest.raises(ReproduceError, match="one: agrees, and has 1 cells of an experiment"):
        judge(published(FAST, explained), {"fast": 10, "fast, with less": 10})
    with pytest.raises(ReproduceError, match=r"fast, with less should explain a difference, and is off by \+20%"):
        judge(published(FAST, explained, because="it does"), {"fast": 20, "fast, with less": 12})
    with pytest.raises(ReproduceError, match="one: no number of ours for slow"):
        judge(published(FAST, SLOW), {"fast": 10})
    with pytest.raises(ReproduceError, match="which cells calibrate"):
        published(replace(FAST, role="calibrates"), SLOW)
    with pytest.raises(ReproduceError, match="what is missing"):
        published(replace(FAST, role="shown"))


@pytest.mark.parametrize("name", catalogue.names())
def test_every_result_loads_with_the_conditions_it_runs_under(name: str) -> None:
    result = catalogue.find(name)
    assert all((result.source, result.conditions, result.inputs))
    assert (RESULTS / "reproduced" / f"{name}.svg").exists() == bool(result.judged)


@pytest.mark.parametrize("name", catalogue.names())
def test_ours_are_on_the_page_as_they_are_now_whatever_judged_cells_say(name: str) -> None:
    result = catalogue.find(name)
    blind = [cell if cell.role == "calibrates" else replace(cell, published=-1.0) for cell in result.cells]
    found = judge(result, replace(result, cells=tuple(blind)).run(replace(result, cells=tuple(blind))))
    written = [line for line in reproduced.page([(result, found)]).splitlines() if f"`{name}`" in line]
    assert len(written) == (2 if found.verdict == "differs" else 1)
    assert set(written) <= set(PAGE.read_text().splitlines())
    assert (found.verdict == "open") == (name in OPEN)


def test_so_many_agree() -> None:
    assert len(re.findall(r"^\|`\w+`\|.*\|agrees\|$", PAGE.read_text(), re.MULTILINE)) == AGREE


def test_one_model_of_the_survey_gives_two_others_to_five_per_cent_and_their_order() -> None:
    survey = catalogue.find("quantitative_survey")
    ours = survey.run(survey)
    errors = [abs(ours[cell.name] / cell.published - 1) for cell in survey.judged]
    assert len(errors) == 42
    assert sum(errors) / len(errors) <= 0.05
    orders = [
        (ours[cell.name] - ours[other.name]) * (cell.published - other.published) > 0
        for cell, other in itertools.combinations(survey.cells, 2)
        if cell.series == other.series
        and abs(cell.published - other.published) > 0.02 * max(cell.published, other.published)
    ]
    assert (len(orders), sum(orders)) >= (162, 150)


def test_keys_go_to_the_server_that_their_digits_say() -> None:
    """DJB2 of "0" is odd and of "65536", the key of the next tensor's first partition, even."""
    assert busiest_share([(0, 300), (1, 100)], 2, 1000) == 1.5
    assert busiest_share([(0, 300), (1, 100)], 1, 100) == 1.0
    assert busiest_share([(0, 200)], 2, 100) == 1.0  # "0" and "1"
    assert busiest_share([(0, 300), (1, 100)], 3, 1000) == 3.0  # last digits decide, 0 and 6


def test_bert_for_pretraining_has_the_parameters_that_pytorch_counts() -> None:
    for model, tensors, values in (("bert_base", 206, 110_111_042), ("bert_large", 398, 336_232_258)):
        whole = with_pretraining_heads(load(model), vocabulary=30_528, tokens=128)
        assert (sum(len(layer.tensors) for layer in whole.layers), whole.elements) == (tensors, values)


def test_servers_of_a_closed_network_are_as_busy_as_mean_value_analysis_says() -> None:
    for workers, servers in ((8, 1), (8, 3), (2, 5)):
        waiting = 0.0  # at each of the servers, which are alike, with one worker fewer
        for number in range(1, workers + 1):
            rate = number / (servers * (1 + waiting))
            waiting = rate * (1 + waiting)
        assert busy_share(workers, servers) == pytest.approx(rate)


def test_the_example_is_met_exactly() -> None:
    example = catalogue.find("bytescheduler_example")
    exact = {"first in, first out": 26, "priorities and partitions": 18, "speed-up": 26 / 18}
    assert example.run(example) == {name: pytest.approx(value, abs=1e-5) for name, value in exact.items()}


def test_the_command_shows_cells_and_lists_names() -> None:
    shown = CliRunner().invoke(app, ["reproduce", "bytescheduler_example"])
    assert shown.exit_code == 0
    assert re.search("priorities and partitions.*\ninputs: the drawing's units.*\nagrees", shown.stdout, re.DOTALL)
    unknown = CliRunner().invoke(app, ["reproduce", "nothing"])
    assert unknown.exit_code == 2
    assert "'nothing' is unknown; published results: atp, byteps_servers" in unknown.stderr
