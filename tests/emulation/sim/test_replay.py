"""Profiles in virtual time: the same times and bytes as training with as many values, and no PyTorch."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulation.report.comparison_report import render
from emulation.results.results import MethodResult, document, plain
from emulation.scenario.profiles.model_profile import decode
from emulation.scenario.scenario import Scenario, ScenarioError, canonical, load, parse
from emulation.sim import simulated_run, simulated_training
from emulation.sim.network.timing import time_allreduce
from emulation.sim.replay.size_only_replicas import ProfileReplicas
from emulation.sim.simulated_run import run_method, simulation_config
from emulation.testbed.host import host_facts
from tests.shared.canonical_scenario import from_canonical
from transport.group.method_name import parse as parse_method

MODEL = """
name = "small"
batch = 4
device_flops = 1e12
source.times = "chosen"
layers = [
    { name = "a", tensors = { weight = 2000, bias = 20 }, flops = 25_000_000 },
    { name = "b", tensors = { weight = 15000 }, flops = 20_000_000 },
    { name = "c", tensors = { weight = 9000 }, flops = 5_000_000 },
]
"""
TEXT = (
    'name = "t"\ntitle = "t"\n[methods]\nmininet = []\nsim = ["ring", "switch"]\n[workload]\nprofile = "small.toml"\n'
)
COMPUTE_NS = 3 * 4 * (25_000 + 20_000 + 5_000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "small.toml").write_text(MODEL)
    return tmp_path


def scenario(folder: Path, **overrides: Any) -> Scenario:
    fast = {"topology.workers": 3, "topology.rate_bps": 10**10, "workload.iterations": 3}
    given = {
        **fast,
        "workload.warmup_iterations": 1,
        **{key.replace("__", "."): each for key, each in overrides.items()},
    }
    return parse(TEXT, "t.toml", given, folder)


def ran(given: Scenario, method: str) -> MethodResult:
    return run_method(given, parse_method(method, virtual=True), Path(), lambda *_: None)


@pytest.mark.parametrize("method", ["ring", "switch"])
def test_one_bucket_takes_computing_and_one_allreduce(folder: Path, method: str) -> None:
    given = scenario(folder)
    result = ran(given, method)
    alone = time_allreduce(simulation_config(given), method, 4 * 26_020, "float32")
    assert result.iterations[0].duration_ns == COMPUTE_NS + alone.duration_ns
    assert result.iterations[2].duration_ns == pytest.approx(COMPUTE_NS + alone.duration_ns, abs=20)
    assert sum(result.wire_tx_bytes_per_rank) >= 2 * 3 * result.gradient_bytes
    assert (result.gradient_bytes, result.parameters) == (4 * 26_020, 26_020)


@pytest.mark.parametrize(
    "method", ["ring", "switch", "ps", "switch+p3:slice=3000", "ring+mg_wfbp", "ring~topk:ratio=0.1"]
)
def test_it_takes_as_long_as_with_values(folder: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = scenario(folder, faults__loss=0.01, workload__bucket_bytes=40_000)
    size_only = ran(given, method)
    seen: list[float] = []

    class Ones(ProfileReplicas):
        def gradients_of(self, rank: int, iteration: int) -> Any:
            return [np.ones(each.size, each.dtype) for each in super().gradients_of(rank, iteration)]

        def apply_to(self, rank: int, iteration: int, averaged: Any) -> None:
            seen.extend(float(each.mean()) for each in averaged)

    monkeypatch.setattr(simulated_run, "ProfileReplicas", Ones)
    real = ran(given, method)
    assert seen
    assert "topk" in method or set(seen) == {1.0}
    for result in (size_only, real):
        result.iterations[:] = [replace(record, loss=0.0) for record in result.iterations]
    assert size_only == real


def test_a_schedule_hides_what_plain_ddp_does_not(folder: Path) -> None:
    given = scenario(folder, topology__rate_bps=10**9)
    plainly, scheduled = ran(given, "ring"), ran(given, "ring+p3:slice=3000")
    assert scheduled.iterations[1].duration_ns < 0.9 * plainly.iterations[1].duration_ns
    assert scheduled.iterations[1].duration_ns > COMPUTE_NS


def test_batch_device_skew_and_compute_time_can_be_others(folder: Path) -> None:
    def compute_ns(**overrides: Any) -> Any:
        return ran(scenario(folder, **overrides), "switch").environment["compute_ns"]

    assert compute_ns() == COMPUTE_NS
    assert compute_ns(workload__batch_per_worker=8) == 2 * COMPUTE_NS
    assert compute_ns(workload__device_flops=5e11) == 2 * COMPUTE_NS
    assert compute_ns(workload__compute_ns=77_000) == 77_000
    (folder / "small.toml").write_text(MODEL.replace("batch = 4", "batch = 4\nskew = [1, 1, 2]"))
    uneven = ran(scenario(folder), "switch")
    assert uneven.iterations[1].compute_ns == 2 * COMPUTE_NS
    with pytest.raises(ScenarioError, match=r"t\.toml: \[workload\] profile: small: skew: 3 numbers for 4 workers"):
        scenario(folder, topology__workers=4)


def test_results_and_report_say_nothing_of_training(folder: Path) -> None:
    given = scenario(folder)
    assert given.workload.batch_per_worker == 4
    assert from_canonical(plain(canonical(given))).workload == given.workload
    assert "name" not in canonical(given)["workload"]
    built = document(given, "sim", [ran(given, "ring"), ran(given, "switch")])
    written = json.loads(json.dumps(plain(built)))
    for entry in written["methods"]:
        numbers = entry["summary"]
        absent = ("final_accuracy", "final_loss", "final_training_loss", "parameters_identical")
        assert [numbers[key] for key in absent] == [None] * 4
        assert {record["loss"] for record in entry["iterations"]} == {None}
        assert "Nothing is trained: times and bytes are those of the profile small, values are zeros." in entry["notes"]
    page = render(built, host_facts(["switchagg"]), {})
    assert "without training" in page
    assert "accuracy" not in page
    assert "Parameters on all ranks" not in page


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("workload.name", "digits", "name: it is of training; allowed: profile or name, not both"),
        ("workload.profile", "absent", "profile: absent: no such file; shipped profiles: alexnet"),
        ("workload.profile", 5, "profile: 5 is not allowed; allowed: one line of text"),
        ("methods.mininet", ["gloo"], "a model as numbers trains nothing"),
        ("workload.device_flops", -1, "device_flops: -1 is out of range"),
    ],
)
def test_what_a_scenario_cannot_have(folder: Path, key: str, value: Any, message: str) -> None:
    with pytest.raises(ScenarioError, match=rf"^t\.toml: .*{message}"):
        scenario(folder, **{key: value})
    with pytest.raises(ScenarioError, match="device_flops: it needs a profile"):
        parse('name = "t"\ntitle = "t"\n', "t.toml", {"workload.device_flops": 1e12})
    with pytest.raises(ScenarioError, match=r"with \[workload\] profile no server has weights"):
        scenario(folder, **{"ps.mode": "ssp", "methods.sim": ["ps"]})


def test_a_profile_beside_the_scenario_is_found_and_needs_no_torch(folder: Path) -> None:
    (folder / "t.toml").write_text(TEXT)
    assert load(folder / "t.toml").replayed == decode(MODEL, "")
    code = (
        "import sys; from pathlib import Path; from emulation.scenario.scenario import load;"
        "from emulation.sim.simulated_run import run_method;"
        "s = load(Path(sys.argv[1]), {'workload.iterations': 2, 'workload.warmup_iterations': 1});"
        "run_method(s, s.methods.sim[1], Path(), lambda *_: None); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(folder / "t.toml")], check=True, timeout=300)


@pytest.mark.parametrize(("method", "parallel"), [("ring", "ddp"), ("ring+p3", "ddp"), ("ring", "fsdp")])
def test_an_iteration_that_takes_long_says_how_far_it_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch, method: str, parallel: str
) -> None:
    """By a clock that goes on by a minute whenever it is asked."""
    minutes, said = iter(range(10**6)), list[tuple[int, str]]()
    monkeypatch.setattr(simulated_training.time, "monotonic", lambda: 60.0 * next(minutes))
    given = scenario(folder, workload__parallel=parallel, workload__iterations=2, methods__sim=[method])
    run_method(given, parse_method(method), Path(), lambda done, _, note: said.append((done, note)))
    before_any_end = [note for done, note in said if done == 0 and "virtual time" in note]
    assert len(before_any_end) >= 3
    assert before_any_end == sorted(before_any_end, key=lambda note: float(note.split()[0]))
