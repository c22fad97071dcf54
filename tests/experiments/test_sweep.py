"""Sweeps: one comparison per value, a page over all of them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from example_results import result

from emulation import sweep
from emulation.compare import Comparison, compare
from emulation.results import MethodResult, plain
from emulation.scenario import Scenario, load, load_variants
from transport.group.method_name import MethodName

TEXT = (
    'name = "tiny"\ntitle = "A tiny one"\n[methods]\nsim = ["ring", "ps+wfbp", "ps+p3", "switch", "switch+p3"]\n'
    "[topology]\nworkers = 4\n[workload]\niterations = 4\nwarmup_iterations = 1\n"
    '[sweep]\nkey = "topology.rate_bps"\nvalues = [100_000_000, 1e9]\n'
)
COMMUNICATION_NS = {"ring": 150, "ps+wfbp": 150, "ps+p3": 100, "switch": 100, "switch+p3": 80}


def run_method(
    scenario: Scenario, method: MethodName, out_dir: Path, progress: Callable[[int, int, str], None]
) -> MethodResult:
    """Ten times the rate, a tenth of the communication; compute takes 10 ms."""
    return result(method, COMMUNICATION_NS[str(method)] * 100_000_000_000_000 // scenario.topology.rate_bps)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the scenario, and the results of its runs in `out`: drawing takes most of the time of these tests."""
    made = tmp_path_factory.mktemp("sweep")
    (made / "tiny.toml").write_text(TEXT, encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def whole(folder: Path) -> Scenario:
    return load(folder / "tiny.toml")


@pytest.fixture(scope="module")
def runs(folder: Path, whole: Scenario) -> list[Comparison]:
    variants = load_variants(folder / "tiny.toml")
    return [
        compare(variant, "sim", folder / "out" / name, lambda *_: None, command=["x"], runner=run_method)
        for variant, name in zip(variants, sweep.folders(whole, variants), strict=True)
    ]


def test_each_value_has_its_folder_and_all_have_a_page(folder: Path, whole: Scenario, runs: list[Comparison]) -> None:
    document, page = sweep.write(whole, runs, folder / "out")
    assert {path.name for path in (folder / "out").iterdir()} == {
        "rate_bps-100000000",
        "rate_bps-1000000000",
        "sweep.html",
        "sweep.json",
        "sweep.png",
    }
    assert json.loads((folder / "out" / "sweep.json").read_text()) == plain(document)
    text = page.read_text()
    assert 'href="rate_bps-100000000/report.html"' in text
    assert "switch, P3" in text


def test_schedules_are_compared_with_the_same_method_first_come_first_served(
    whole: Scenario, runs: list[Comparison]
) -> None:
    document = plain(sweep.build(whole, runs))
    methods = document["runs"][0]["methods"]
    assert [methods[name]["fifo"] for name in document["methods"]] == [None, None, "ps+wfbp", None, "switch"]
    assert methods["ps+p3"]["speedup_over_fifo"] == pytest.approx(160 / 110)
    assert methods["switch+p3"]["speedup_over_fifo"] == pytest.approx(110 / 90)
    assert methods["switch"]["comparison"]["iteration_speedup"] == pytest.approx(160 / 110)


def test_the_table_has_a_row_per_method_and_a_column_per_value(whole: Scenario, runs: list[Comparison]) -> None:
    heads, rows = sweep.table(sweep.build(whole, runs))
    assert heads == ["Iteration time", "100 Mb/s", "1 Gb/s"]
    assert [label for label, _ in rows][:2] == ["ring", "parameter server, WFBP"]
    assert rows[0][1] == [("160 ms", "baseline"), ("25.0 ms", "baseline")]
    assert rows[4][1][0] == ("90.0 ms", "1.78×, 1.22× over FIFO")  # noqa: RUF001


def test_the_headline_names_the_largest_gains(whole: Scenario, runs: list[Comparison]) -> None:
    text = sweep.headline(sweep.build(whole, runs))
    assert "over the ring was 1.78×, with the switch with P3 at topology.rate_bps = 100 Mb/s" in text  # noqa: RUF001
    assert "1.45×: the parameter server with P3 over the parameter server with WFBP" in text  # noqa: RUF001


def test_the_same_runs_give_the_same_bytes(tmp_path: Path, whole: Scenario, runs: list[Comparison]) -> None:
    for name in ("a", "b"):
        sweep.write(whole, runs, tmp_path / name)
    for file in ("sweep.json", "sweep.html"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [("topology.rate_bps", 2e8, "200 Mb/s"), ("topology.workers", 16, "16"), ("topology.delay_ns", 1000000, "1.00 ms")],
)
def test_values_have_their_units(key: str, value: float, text: str) -> None:
    assert sweep.value_text(key, value) == text
