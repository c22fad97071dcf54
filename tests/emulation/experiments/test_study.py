"""The study of codecs: it goes on where it stopped, counts what the network carries, and measures what codecs lose."""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import endless_run
import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from emulation.cli.main import app
from emulation.experiments import pool
from emulation.experiments.cells import CELLS, CellStore, version
from emulation.experiments.study import codec_training, costs, study_page, study_plan, study_request, summary
from emulation.experiments.study.probe import probe
from emulation.experiments.study.wire_bytes import ELEMENTS, CountedCompression, WireTraffic
from emulation.scenario.errors import RunFailed
from emulation.scenario.workload_kinds import WORKLOADS, WorkloadKind
from emulation.workloads.tasks.task import Batch
from switchagg.codecs.array_codec import Reduction, Tensor
from switchagg.codecs.spec import parse_codec
from switchagg.lockstep import sum_together

DEFAULT = study_plan.SETTINGS
CODECS = ("float32", "lanes16", "lanes8:least=0+ef")


class Toy:
    """Which half of a square a point lies in."""

    name = "toy"
    description = "one linear layer on points"
    source, source_sha256 = "a square", "0" * 64
    samples = 1024
    peak_learning_rate = 0.1
    sgd_learning_rate = 0.1

    def build_model(self) -> nn.Module:
        return nn.Linear(16, 2)

    def batch(self, indices: np.ndarray, generator: np.random.Generator) -> Batch:
        points = np.stack([np.random.default_rng(index).standard_normal(16) for index in indices]).astype(np.float32)
        return torch.from_numpy(points), torch.from_numpy((points.sum(1) > 0).astype(np.int64))

    def held_out(self) -> Iterator[Batch]:
        yield self.batch(np.arange(5000, 5200), np.random.default_rng(0))


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORKLOADS, "toy", WorkloadKind("toy", Toy, samples=Toy.samples))
    setting = study_plan.TrainingSetting("toy", (2,), 18, 6, 3, (0.1, 0.2), CODECS)
    monkeypatch.setattr(study_plan, "SETTINGS", (setting,))
    monkeypatch.setattr(costs, "MEASURED", 20_000)
    monkeypatch.setattr(costs, "VALUES", 1 << 14)
    monkeypatch.setattr(costs, "SHAPE", (128, 128))


def run(out: Path, *more: str) -> tuple[int, str]:
    words = [word for codec in CODECS for word in ("--codec", codec)]
    found = CliRunner().invoke(
        app, ["study", "accuracy", *words, "--seeds", "2", "--jobs", "1", "--out", str(out), *more]
    )
    return found.exit_code, found.output


def without_times(out: Path) -> dict[str, object]:
    return {record["key"]: {**record, "seconds": 0} for record in CellStore(out / CELLS).all_of(version("study"))}


def test_a_study_goes_on_where_it_stopped_and_repeats_its_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_reports = study_request.write_reports
    monkeypatch.setattr(study_request, "write_reports", lambda *_, **__: [])
    assert run(tmp_path / "whole")[0] == 0
    trained, left = study_request.trained, 3

    def interrupted(cell: study_plan.StudyCell) -> dict[str, object]:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return trained(cell)

    monkeypatch.setattr(study_request, "trained", interrupted)
    code, output = run(tmp_path / "cut")
    assert code == 130
    words = (
        f"interrupted; everything it had started is stopped; the same command goes on from the runs in "
        f"{tmp_path}/cut/cells"
    )
    assert output.splitlines()[-1] == f"switchagg: {words}"
    (tmp_path / "cut" / CELLS / "0.json").write_text('{"cell": {"workload": "to')  # of something else
    left = 100
    code, output = run(tmp_path / "cut")
    assert (code, left) == (0, 100 - (4 * len(CODECS) - 3)), output
    assert without_times(tmp_path / "cut") == without_times(tmp_path / "whole")
    left = 0
    monkeypatch.setattr(study_request, "write_reports", write_reports)
    assert run(tmp_path / "cut")[0] == 0, "nothing is left to train"
    for name in ("study.json", "accuracy.png", "curves.png", "error.png", "tables.md", "study.html"):
        assert (tmp_path / "cut" / name).stat().st_size > 0
    document = json.loads((tmp_path / "cut" / "study.json").read_text())
    assert [row["codec"] for row in document["rows"]] == list(CODECS)
    assert all(row["ranks_alike"] and row["carried"] == 0 and row["seeds"] == 2 for row in document["rows"])
    last = document["rows"][-1] | {"workers": 64, "points": -7.0}
    heads, _, *table = study_page.tables(document | {"rows": [*document["rows"], last]})
    assert (heads.count(", n = "), len(table)) == (2, len(CODECS))
    assert [line.endswith("||") for line in table] == [True] * (len(CODECS) - 1) + [False]
    assert table[-1].split("|")[-2].startswith("-7.0")


def test_what_a_run_has_started_ends_with_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by Ctrl-C: its processes, and its files."""
    monkeypatch.setenv("ENDLESS_RUN", str(tmp_path))
    cells = [study_plan.cell(study_plan.SETTINGS[0], "float32", 2, seed, 0.1) for seed in (1, 2)]
    ended = pool.by_processes(endless_run.trained, cells, 2)
    assert next(ended) == (cells[0], {})
    while not (names := [path.name for path in tmp_path.iterdir() if path.name.isdigit()]):
        time.sleep(0.02)
    ended.close()  # type: ignore[attr-defined]
    with pytest.raises(ProcessLookupError):
        os.kill(int(names[0]), 0)
    assert not list(tmp_path.iterdir())


def test_ray_is_started_for_what_is_missing_and_a_failure_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what stands in for Ray: a task's exception has its traceback as text."""

    def get(task: tuple[Callable[..., object], tuple[object, ...]]) -> object:
        try:
            return task[0](*task[1])
        except RunFailed as error:
            raise type("RayTaskError", (RunFailed,), {})(traceback.format_exc()) from error

    started: list[object] = []
    ray = SimpleNamespace(
        init=lambda **options: started.append(options),
        remote=lambda **_: lambda function: SimpleNamespace(remote=lambda *words: (function, words)),
        wait=lambda tasks: (tasks[:1], tasks[1:]),
        get=get,
        shutdown=lambda: None,
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(study_request, "write_reports", lambda *_, **__: [])
    monkeypatch.setattr(study_request, "trained", lambda _: {"accuracy": 0.5, "loss": 1.0, "diverged": False})
    for _ in range(2):
        assert run(tmp_path, "--ray")[0] == 0
        assert len(started) == 2, "to choose rates, and for the runs that count"
    assert len(without_times(tmp_path)) == 4 * len(CODECS)

    def fails(cell: study_plan.StudyCell) -> dict[str, object]:
        raise RunFailed(f"{cell.workload}: no")

    monkeypatch.setattr(study_request, "trained", fails)
    code, output = run(tmp_path, "--ray", "--seeds", "3")
    told = "3 of 15 runs failed (toy, n = 2, float32, rate 0.1, seed 3, …): toy: no"
    assert (code, output.splitlines()[-1]) == (1, f"switchagg: {told}")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--codec", "lanes7"], 2, "--codec codec 'lanes7' is unknown; allowed: "),
        (["--workers", "4"], 2, "--workers 4: toy has 18 samples an iteration for all"),
        (["--workload", "tay"], 2, "--workload 'tay': unknown to this study; allowed: toy"),
        (["--only", "lanes5"], 2, "--only 'lanes5': no run has this in its title, as in 'toy, n = 2, float32, rate 0."),
        (["--codec", "cd_sgd~lanes7"], 2, "--codec cd_sgd: codec 'lanes7' is unknown; allowed: "),
        (["--codec", "dpsgd"], 2, "--codec dpsgd: what its ranks exchange is no sum"),
        (["--ray"], 1, "--ray: the Python package 'ray' is missing; run: pip install 'switchagg[ray]'"),
        (["--codec", "lanes4", "--workers", "9"], 0, "toy: left out: codec lanes4 can't sum 9 workers exactly"),
        (["--codec", "topk"], 0, "codec topk without error feedback: training may stall or diverge; with it: topk+ef"),
    ],
)
def test_bad_input_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, message: str
) -> None:
    monkeypatch.setattr(
        study_request, "trained", lambda cell: pytest.fail("bad input is found before anything is trained")
    )
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    monkeypatch.setattr(pool, "by_processes", lambda work, cells, jobs: iter(()))
    monkeypatch.setattr(study_request, "write_reports", lambda *_, **__: [])
    found, output = run(tmp_path, *words)
    assert found == code, output
    assert message in output.replace("\n", " ")
    assert "Traceback" not in output


@pytest.mark.parametrize("codec", ["lanes8", "lanes16+ef", "topk:ratio=0.01+ef", "randomk:ratio=0.1+ef", "agreed+ef"])
def test_bytes_are_counted_as_the_network_carries_them(codec: str) -> None:
    found = costs.measured_bytes(codec, 4)
    assert (found["up"], found["down"]) == (found["counted_up"], found["counted_down"])
    assert costs.rate(codec, 4, turns=1) > 0


def test_errors_are_those_of_the_codes() -> None:
    codec = parse_codec("lanes8").for_workers(4).codec
    values = [np.linspace(-1, 1, 1440, dtype=np.float32) for _ in range(4)]
    found = probe(codec, [values], True, 0)
    step = 1 / 31
    assert found["own"] == pytest.approx(step**2 / 12 / np.mean(np.square(values[0])), rel=0.1)
    assert (found["clipped"], found["carried"]) == (0, 0)


def record_of(method: str) -> dict[str, object]:
    """Of a run by the method, in processes; float32: in this one."""
    setting = study_plan.TrainingSetting("digits", (2,), 16, 8, 4, (0.02,), ())
    return {**codec_training.train(study_plan.cell(setting, method, 2, 1, 0.02)), "seconds": 0}


def test_a_training_method_has_the_batches_and_rates_of_the_others() -> None:
    synchronous, plain = record_of("od_sgd:warm_up=8"), record_of("float32")
    assert {**plain, **{name: synchronous[name] for name in ("up_bytes", "down_bytes", "rounds")}} == synchronous


def test_cd_sgd_counts_exact_and_coded_steps() -> None:
    found = record_of("cd_sgd:warm_up=2,period=3~ternary")
    assert found["ranks_alike"]
    values = int(str(found["parameters"]))
    exact, coded = WireTraffic(2), CountedCompression(parse_codec("ternary"), 0, 2)
    exact.add(Reduction(np.empty(values, np.float32)))
    arrays = [np.ones(values, np.float32) for _ in range(2)]
    sum_together(
        [coded, CountedCompression(parse_codec("ternary"), 1, 2)], arrays, [Tensor("one", (values,))], 0, ELEMENTS
    )
    # steps 1 and 2 are synchronous, 3 and 6 are sent in full
    assert found["up_bytes"] == pytest.approx((4 * exact.up + 4 * coded.traffic.up) / 8, rel=1e-12)


def test_what_is_studied_by_default_can_be() -> None:
    for setting in study_plan.settings(DEFAULT, (), (), ()):
        for codec in setting.codecs:
            refused = [workers for workers in setting.workers if study_plan.can(codec, workers)]
            assert refused == ([8] if codec.startswith("lanes4") and 8 in setting.workers else [])
            assert not study_plan.warning(codec)


def test_every_codec_has_the_best_of_its_own_rates() -> None:
    setting = replace(study_plan.SETTINGS[0], codecs=("float32", "lanes8", "sign"))
    tuned = list(study_plan.tuning_cells([setting]))
    rates = [(cell.codec, round(cell.rate, 6)) for cell in tuned]
    grids = {"float32": (0.1, 0.2), "lanes8": (0.1, 0.2), "sign": (0.0005, 0.001)}
    assert rates == [(codec, rate) for codec, grid in grids.items() for rate in grid]
    store = CellStore()
    for cell in tuned:
        store.keep(cell, {"loss": 1 / cell.rate if cell.codec == "float32" else cell.rate})
    best = study_plan.best_rates([replace(setting, codecs=("float32", "lanes8", "lanes4"))], store.find)
    assert best == {
        ("toy", "float32"): 0.2,
        ("toy", "lanes8"): 0.1,
        ("toy", "lanes4"): 0.2,
    }  # none has ended: the middle


def test_points_are_of_the_same_seeds_and_the_benchmark_judges_them() -> None:
    def record(codec: str, seed: int, accuracy: float) -> dict[str, object]:
        cell = study_plan.cell(replace(study_plan.SETTINGS[0], workload="images", workers=(4,)), codec, 4, seed, 0.1)
        bits = 1 if codec == "float32" else 0.25
        return {
            "cell": {name: getattr(cell, name) for name in cell.__dataclass_fields__},
            "curve": [[3, accuracy - 0.1, 1.0], [6, accuracy, 0.5]],
            "accuracy": accuracy,
            "diverged": False,
            "ranks_alike": True,
            "errors": [],
            "up_bytes": 4000 * bits,
            "down_bytes": 4000 * bits,
            "rounds": 2,
            "parameters": 1000,
        }

    found = [record("float32", 1, 0.5)]
    found[0]["cell"] = {**found[0]["cell"], "rate": 0.05}  # type: ignore[dict-item]  # of an earlier study
    found += [record("float32", seed, 0.9 + 0.01 * seed) for seed in (1, 2)]
    found += [record("lanes8+ef", seed, 0.898 + 0.01 * seed) for seed in (1, 2)] + [record("lanes16", 1, 0.9)]
    found += [record("cd_sgd:period=5~ternary", seed, 0.89 + 0.01 * seed) for seed in (1, 2)]
    document = summary.build(found, {"lanes8+ef": 1e9}, {"images": 10_000_000}, {}, {})
    row = next(row for row in document["rows"] if row["codec"] == "lanes8+ef")
    assert row["points"] == pytest.approx(-0.2)
    assert row["points_spread"] == pytest.approx(0, abs=1e-9)
    assert row["vanishes_bps"] == pytest.approx(8e9 * 0.75)
    assert row["time_s"]["1000000000"] == pytest.approx(6 * (0.01 + 4e-6 + 8e-6))
    assert not next(row for row in document["rows"] if study_plan.is_method(row["codec"]))["time_s"]
