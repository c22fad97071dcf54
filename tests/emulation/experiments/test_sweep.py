"""Sweeps: every combination once, kept by all that decides it; tables and a page over all of them."""

import csv
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from example_results import result
from typer.testing import CliRunner

from emulation.cli.main import app
from emulation.experiments import cells, pool
from emulation.experiments.sweep import sweep_page, sweep_run, sweep_table
from emulation.report import figure_kit
from emulation.results.results import MethodResult, plain
from emulation.scenario.errors import RunFailed
from emulation.scenario.scenario import Scenario, load, load_variants
from tests.shared.html_page import checked
from transport.group.method_name import MethodName

HEAD = (
    'name = "tiny"\ntitle = "A tiny one"\n[methods]\nmininet = []\n'
    'sim = ["ring", "ps+wfbp", "ps+p3", "switch", "switch+p3"]\n'
    "[topology]\nworkers = 4\n[workload]\niterations = 4\nwarmup_iterations = 1\ncompute_ns = 10_000_000\n[sweep]\n"
)
RATES = "topology.rate_bps = [100_000_000, 1e9]\n"
SLOW = "topology.rate_bps = [100_000_000]\n"
GRID = RATES + "topology.workers = [2, 4]\nseed = [1, 2, 3]\n"
COMMUNICATION_NS = {"ring": 150, "ps+wfbp": 150, "ps+p3": 100, "switch": 100, "switch+p3": 80}


class Backend:
    """Ten times the rate, a tenth of the communication; compute takes 10 ms. done: what it has run."""

    def __init__(self) -> None:
        self.done: list[tuple[int, int, int, str]] = []
        self.before: Callable[[Scenario, MethodName], None] = lambda *_: None

    def run_method(self, scenario: Scenario, method: MethodName, _out: Path, _progress: object) -> MethodResult:
        self.before(scenario, method)
        self.done.append((scenario.topology.rate_bps, scenario.topology.workers, scenario.seed, str(method)))
        seed_ns = 100_000 * scenario.seed
        return result(method, COMMUNICATION_NS[str(method)] * 10**14 // scenario.topology.rate_bps + seed_ns)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Backend:
    found, module = Backend(), ModuleType("toy_backend")
    module.run_method = found.run_method  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "toy_backend", module)
    monkeypatch.setitem(sweep_run.RUNNER_MODULES, "sim", "toy_backend")
    return found


@pytest.fixture
def backend(drawn: Backend, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """Without figures, which take most of the time."""
    monkeypatch.setattr(figure_kit, "draw", lambda _: {})
    return drawn


def sweep(folder: Path, text: str, *words: str) -> tuple[int, str]:
    """The command's exit code and what it said on stderr."""
    folder.mkdir(exist_ok=True)
    (folder / "tiny.toml").write_text(HEAD + text, encoding="utf-8")
    command = ["sweep", str(folder / "tiny.toml"), "--jobs", "1", "--no-reports", "--out", str(folder / "out"), *words]
    found = CliRunner().invoke(app, command)
    return found.exit_code, found.stderr


def test_every_combination_is_run_once_and_a_second_time_none(tmp_path: Path, backend: Backend) -> None:
    assert sweep(tmp_path, GRID)[0] == 0
    every = [
        (rate, n, seed, m) for rate in (10**8, 10**9) for n in (2, 4) for seed in (1, 2, 3) for m in COMMUNICATION_NS
    ]
    assert backend.done == every
    before = {name: (tmp_path / "out" / name).read_bytes() for name in (sweep_table.CSV, "sweep.json", "sweep.html")}
    code, said = sweep(tmp_path, GRID)
    assert (code, len(backend.done)) == (0, len(every))
    assert "60 runs, of which 60 are there and 0 are to do" in said
    assert {name: (tmp_path / "out" / name).read_bytes() for name in before} == before


def test_an_interrupted_sweep_goes_on_and_comes_to_the_same(tmp_path: Path, backend: Backend) -> None:
    assert sweep(tmp_path / "whole", GRID)[0] == 0
    whole, backend.done = backend.done, []

    def interrupt(scenario: Scenario, _method: MethodName) -> None:
        if len(backend.done) == 7:
            raise KeyboardInterrupt

    backend.before = interrupt
    code, said = sweep(tmp_path / "cut", GRID)
    assert code == 130
    assert said.splitlines()[-1].endswith(f"; the same command goes on from the runs in {tmp_path}/cut/out/cells")
    backend.before = lambda *_: None
    assert sweep(tmp_path / "cut", GRID)[0] == 0
    assert backend.done == whole
    assert (tmp_path / "cut/out" / sweep_table.CSV).read_bytes() == (
        tmp_path / "whole/out" / sweep_table.CSV
    ).read_bytes()


def test_only_what_changed_is_run_again(tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sweep(tmp_path, RATES)[0] == 0
    backend.done.clear()
    assert sweep(tmp_path, "topology.rate_bps = [1e9, 100_000_000, 4e8]\n")[0] == 0, "another order, and one more"
    assert {rate for rate, *_ in backend.done} == {4 * 10**8}
    backend.done.clear()
    renamed = ["--set", "title=other", "--set", "methods.sim=['ring', 'switch']"]
    assert sweep(tmp_path, RATES, *renamed)[0] == 0
    assert not backend.done, "what it is called decides nothing, nor what else is run"
    assert sweep(tmp_path, RATES, *renamed, "--set", "faults.loss=0.5")[0] == 0
    assert len(backend.done) == 4
    backend.done.clear()
    kept = sorted((tmp_path / "out/cells").glob("*.json"))
    kept[0].write_text(kept[0].read_text()[:100])
    kept[1].write_text(json.dumps({**json.loads(kept[1].read_text()), "key": "of another"}))
    assert sweep(tmp_path, "topology.rate_bps = [1e9, 100_000_000, 4e8]\n")[0] == 0
    assert sweep(tmp_path, RATES, "--set", "faults.loss=0.5", "--set", "methods.sim=['ring', 'switch']")[0] == 0
    assert len(backend.done) == 2, "a file that is cut off, or of another cell"
    monkeypatch.setattr(sweep_run, "version", lambda _: "newer")
    monkeypatch.setattr(cells, "version", lambda _: "newer")
    assert sweep(tmp_path, RATES)[0] == 0
    assert len(backend.done) == 2 + 10


def test_the_code_that_decides_results_is_in_a_cells_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("sim/engine.py", "sim/engine.txt", "testbed/launch.py", "cli/main.py", "experiments/study/costs.py")
    for name in (*names, "experiments/study/study_page.py"):
        (tmp_path / "emulation" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "emulation" / name).write_text("")
    found = ModuleType("spec")
    found.submodule_search_locations = [str(tmp_path / "emulation")]  # type: ignore[attr-defined]
    monkeypatch.setattr(cells, "PACKAGES", ("emulation",))
    monkeypatch.setattr(cells, "find_spec", lambda _: found)

    def changes(name: str) -> set[str]:
        before = {code: cells.version.__wrapped__(code) for code in ("sim", "mininet", "study", "whatif")}
        (tmp_path / "emulation" / name).write_text(name)
        return {code for code, old in before.items() if cells.version.__wrapped__(code) != old}

    assert changes("sim/engine.py") == {"sim", "mininet", "study", "whatif"}
    assert changes("testbed/launch.py") == {"mininet", "study"}
    assert changes("experiments/study/costs.py") == {"study"}
    assert changes("cli/main.py") == changes("sim/engine.txt") == changes("experiments/study/study_page.py") == set()


def test_a_profile_is_what_its_file_holds(tmp_path: Path) -> None:
    profile = tmp_path / "mine.toml"
    text = (Path(sweep_run.__file__).parents[2] / "scenario/profiles/models/alexnet.toml").read_text(encoding="utf-8")

    def keys() -> list[str]:
        found = [*load_variants(tmp_path / "tiny.toml", {"workload.profile": profile.name})]
        return [cell.key for cell in sweep_run.planned(load(tmp_path / "tiny.toml"), found, "sim", tmp_path).cells]

    (tmp_path / "tiny.toml").write_text(HEAD + SLOW, encoding="utf-8")
    profile.write_text(text)
    first = keys()
    profile.write_text(f"# the same\n{text}")
    assert keys() == first
    profile.write_text(text.replace("weight = 23_232", "weight = 23_233"))
    assert not set(keys()) & set(first)


def test_a_machine_with_other_code_is_refused(tmp_path: Path, backend: Backend) -> None:
    (tmp_path / "tiny.toml").write_text(HEAD + RATES, encoding="utf-8")
    planned = sweep_run.planned(load(tmp_path / "tiny.toml"), load_variants(tmp_path / "tiny.toml"), "sim", tmp_path)
    with pytest.raises(RunFailed, match="has another version of switchagg, NumPy or PyTorch than the machine where"):
        cells.run_cells([replace(planned.cells[0], version="older")], sweep_run.run_cell, planned.store, print)


def test_what_fails_is_told_and_tried_again(tmp_path: Path, backend: Backend) -> None:
    def fail(scenario: Scenario, method: MethodName) -> None:
        if method.method == "switch" and scenario.topology.workers == 2:
            raise RunFailed("rank 1 is gone")

    backend.before = fail
    code, said = sweep(tmp_path, GRID)
    assert code == 1
    told = "topology.rate_bps = 100 Mb/s, topology.workers = 2, seed = 1"
    assert f"switchagg: 12 of 60 runs failed (switch, {told}, …): rank 1 is gone" in said.splitlines()
    assert len(backend.done) == 48
    with (tmp_path / "out" / sweep_table.CSV).open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == 48
    backend.before = lambda *_: None
    assert sweep(tmp_path, GRID)[0] == 0
    assert len(backend.done) == 60


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("", (), "tiny.toml: no key has several values; give some with --set 'sweep.topology.rate_bps=[1e9, 10e9]'"),
        ("topology.workers = [2, 400]\n", (), "workers: 400 workers or switches send to one switch"),
        (RATES, ("--set", "workload.compute_ns=abc"), "tiny.toml: [workload] compute_ns: 'abc' is not a number"),
        (RATES, ("--on", "simm"), "--on: 'simm' is unknown; allowed: mininet, sim"),
        (RATES, ("--on", "mininet"), "[methods] mininet is empty"),
        (RATES, ("--ray",), "--ray: the Python package 'ray' is missing; run: pip install 'switchagg[ray]'"),
    ],
)
def test_bad_input_is_told_in_a_line(
    tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch, text: str, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    code, said = sweep(tmp_path, text, *words)
    assert (code, backend.done) == (1 if "--ray" in words else 2, [])
    assert message in said.splitlines()[-1]


def test_each_process_would_measure_its_own_compute_time(tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    path.write_text((HEAD + RATES).replace("compute_ns = 10_000_000\n", ""), encoding="utf-8")
    found = CliRunner().invoke(app, ["sweep", str(path), "--out", str(tmp_path / "none")])
    assert (found.exit_code, found.stdout) == (2, "")
    assert "[workload] compute_ns is missing: each process would measure its own" in found.stderr


def test_compare_names_the_command_for_a_sweep(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["compare", "scale", "--out", str(tmp_path)])
    message = "scale.toml: [sweep] has 4 combinations: run `switchagg sweep scale`, or one of them with --set topology"
    assert (found.exit_code, found.stderr.startswith(f"switchagg: {message}.workers=…")) == (2, True)


# ---- tables


def test_the_table_has_a_row_for_each_cell(tmp_path: Path, backend: Backend) -> None:
    assert sweep(tmp_path, GRID)[0] == 0
    with (tmp_path / "out" / sweep_table.CSV).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len({row["cell"] for row in rows}) == 60
    (found,) = (
        row
        for row in rows
        if (row["method"], row["topology.rate_bps"], row["topology.workers"], row["seed"])
        == ("switch", "1000000000", "2", "3")
    )
    assert (found["communication_ns"], found["communication_ns_p90"]) == ("10300000.0",) * 2
    assert float(found["headline_speedup"]) == float(found["iteration_speedup"]) == pytest.approx(25.3 / 20.3)
    assert found["bound_traffic_factor"] == "1.0"
    assert (found["backend"], found["verdict"]) == ("sim", "")


def test_a_spread_is_its_median_and_two_more_columns() -> None:
    summary = {"iteration_ns": {"median": 2, "p10": 1, "p90": 3}, "bound": {"wire": 4}, "accuracy": 0.5}
    found = sweep_table.row(
        {"method": "ring", "verdict": None, "summary": summary, "retransmissions": 7, "comparison": None}
    )
    given = {"iteration_ns": 2, "iteration_ns_p10": 1, "iteration_ns_p90": 3, "bound_wire": 4, "accuracy": 0.5}
    assert {name: value for name, value in found.items() if value is not None} == {
        "method": "ring", **given, "retransmissions": 7
    }  # fmt: skip


def test_the_notebook_draws_any_sweep(tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sweep(tmp_path, GRID)[0] == 0
    monkeypatch.setenv("SWEEP", str(tmp_path / "out"))
    monkeypatch.setenv("MPLBACKEND", "agg")
    notebook = json.loads((Path(__file__).parents[3] / "examples/sweep.ipynb").read_text(encoding="utf-8"))
    codes = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in codes), "kept without what it showed"
    names: dict[str, Any] = {}
    for cell in codes:
        exec("".join(cell["source"]), names)
    assert names["keys"] == ["topology.rate_bps", "topology.workers"]
    assert {line.get_label(): list(line.get_ydata()) for line in names["lines_axes"].lines}["switch"] == [100.2, 10.2]


def test_parquet_has_the_same_table(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is missing: pip install 'switchagg[parquet]'")
    rows = [{"key": 1, "x": 1, "word": "a"}, {"key": 2.5, "x": None, "more": True, "word": 3}]
    _, missing = sweep_table.write(rows, tmp_path)
    assert not missing
    assert parquet.read_table(tmp_path / sweep_table.PARQUET).to_pylist() == [
        {"key": 1.0, "x": 1, "word": "a", "more": None},
        {"key": 2.5, "x": None, "word": "3", "more": True},
    ]


def test_without_pyarrow_there_is_csv_and_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / sweep_table.PARQUET).write_text("of an earlier run")
    paths, missing = sweep_table.write([{"a": 1}], tmp_path)
    assert (paths, missing) == (
        [tmp_path / sweep_table.CSV],
        "no results.parquet: it needs pip install 'switchagg[parquet]'",
    )
    assert not (tmp_path / sweep_table.PARQUET).exists()


# ---- the page


def documents(folder: Path, text: str) -> dict[str, Any]:
    """Of the sweep, with methods as values."""
    folder.mkdir(exist_ok=True)
    (folder / "tiny.toml").write_text(HEAD + text, encoding="utf-8")
    whole, variants = load(folder / "tiny.toml"), load_variants(folder / "tiny.toml")
    planned = sweep_run.planned(whole, variants, "sim", folder / "out")
    sweep_run.run(planned, 1, False, lambda _: None)
    return sweep_run.write_results(planned, ["x"], False, lambda _: None).document


def test_one_key_has_a_row_per_method_and_a_column_per_value(tmp_path: Path, backend: Backend) -> None:
    document = documents(tmp_path, RATES)
    assert json.loads((tmp_path / "out/sweep.json").read_text()) == plain(document)
    ((title, heads, rows, _),) = sweep_page.tables(document)
    assert (title, heads) == ("", ["Iteration time", "100 Mb/s", "1 Gb/s"])
    assert [label for label, _ in rows][:2] == ["ring", "parameter server, WFBP"]
    assert rows[0][1] == [("160 ms", "baseline, limit 16.01×"), ("25.1 ms", "baseline, limit 2.51×")]  # noqa: RUF001
    assert rows[4][1][0] == ("90.1 ms", "1.78×, 1.22× over FIFO")  # noqa: RUF001
    text = sweep_page.headline(document)
    best = "over the parameter server with P3, the fastest method without a switch there, was 1.22×, with the s"  # noqa: RUF001
    assert best in text
    assert "the switch with P3 at topology.rate_bps = 100 Mb/s. Its limit there" in text
    assert "Over the ring it was 1.78×." in text  # noqa: RUF001
    assert "1.45×: the parameter server with P3 over the parameter server with WFBP" in text  # noqa: RUF001
    methods = document["runs"][0]["methods"]
    assert [methods[name]["fifo"] and str(methods[name]["fifo"]) for name in document["methods"]] == [
        None, None, "ps+wfbp", None, "switch"
    ]  # fmt: skip


def test_a_second_key_has_a_table_for_each_value_and_seeds_are_one(tmp_path: Path, backend: Backend) -> None:
    document = documents(tmp_path, GRID)
    found = sweep_page.tables(document)
    assert [title for title, *_ in found] == ["topology.workers = 2", "topology.workers = 4"]
    for _, heads, rows, places in found:
        assert heads == ["Iteration time", "100 Mb/s", "1 Gb/s"]
        assert rows[3][1][1] == ("20.2 ms", "1.25×, 20.1 ms … 20.3 ms")  # noqa: RUF001
        assert [len(place.runs) for place in places] == [3, 3]
    assert "at topology.rate_bps = 100 Mb/s, topology.workers = 4." in sweep_page.headline(document)


@pytest.mark.parametrize("text", ["seed = [1, 2]\n", "topology.workers = [4]\n", 'ps.mode = ["bsp"]\n'])
def test_sweeps_of_one_value_of_seeds_or_of_words_are_drawn(tmp_path: Path, drawn: Backend, text: str) -> None:
    document = documents(tmp_path, text)
    assert len(sweep_page.tables(document)) == 1
    figure = sweep_page.figure(document)
    assert figure is not None
    assert [len(axes.lines) for axes in figure.axes] == [5, 5]
    told = checked(sweep_page._render(document, {"sweep": figure})).told
    assert len(told) == 10 * len(sweep_page.facets(document)[0][1]), "each point of both plots"


def test_reports_are_written_for_each_combination_and_once(tmp_path: Path, backend: Backend) -> None:
    few = ["--set", "methods.sim=['ring', 'switch']", "--reports"]
    assert "report 1/1" in sweep(tmp_path, SLOW, *few)[1]
    out = tmp_path / "out"
    run = "rate_bps-100000000/report.html"
    page_of_all = checked((out / "sweep.html").read_text(), links=(run,))
    assert page_of_all.loaded == [run]
    built = json.loads((out / "rate_bps-100000000/results.json").read_text())
    assert [entry["method"] for entry in built["methods"]] == ["ring", "switch"]
    assert built["methods"][1]["comparison"]["iteration_speedup"] == pytest.approx(160.1 / 110.1)
    assert "report 1/1" not in sweep(tmp_path, SLOW, *few)[1]


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [("topology.rate_bps", 2e8, "200 Mb/s"), ("topology.workers", 16, "16"), ("topology.delay_ns", 1000000, "1.00 ms")],
)
def test_values_have_their_units(key: str, value: float, text: str) -> None:
    assert cells.value_text(key, value) == text


# ---- many processes, many machines


def test_processes_wait_while_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_memory_for_another", lambda: False)
    assert [cell for cell, _ in pool.by_processes(time.sleep, [1.0, 0.0], 2)] == [1.0, 0.0], "one after the other"


def test_a_cluster_of_ray_comes_to_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real runs: on a local cluster, and in this process."""
    pytest.importorskip("ray", reason="Ray is missing: pip install 'switchagg[ray]'")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    tiny = [
        "--set", "methods.sim=['ring', 'switch']", "--set", "topology.workers=2", "--set", "workload.iterations=2",
        "--set", "workload.batch_per_worker=1", "--set", "sweep.topology.rate_bps=[100e9]",
    ]  # fmt: skip
    monkeypatch.setattr(figure_kit, "draw", lambda _: {})
    for name, words in (("here", ()), ("ray", ("--ray",))):
        code, said = sweep(tmp_path / name, RATES, *tiny, *words)
        assert code == 0, said
    for file in (sweep_table.CSV, "sweep.json"):
        assert (tmp_path / "ray/out" / file).read_bytes() == (tmp_path / "here/out" / file).read_bytes()
