"""Comparisons with a backend that takes no time: files, choice of backend, what must not be overlooked."""

import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from example_results import SCENARIO, FakeCertificate, result, run_method

from emulation.experiments import compare as comparing
from emulation.experiments.compare import choose_backend, choose_plane, compare, problems
from emulation.report import comparison_figures
from emulation.results.results import MethodResult, document, plain
from emulation.results.timeline import COMPUTE, Span
from emulation.scenario.errors import RunFailed
from emulation.scenario.scenario import Scenario, ScenarioError, parse
from switchagg.dataplane.self_test import Choice
from transport.group.method_name import MethodName
from transport.group.method_name import parse as parse_method


def silent(_method: str, _done: int, _total: int, _note: str) -> None:
    pass


@pytest.fixture
def mininet(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Sets what the Mininet backend reports as missing."""

    def set_missing(missing: str | None) -> None:
        module = ModuleType("emulation.testbed.mininet.mininet_run")
        module.missing = lambda: missing  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "emulation.testbed.mininet.mininet_run", module)

    return set_missing


def test_compare_writes_every_file_and_reports_progress(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    done = compare(
        SCENARIO,
        "sim",
        tmp_path / "new" / "folder",
        lambda method, count, total, _note: seen.append((method, count, total)),
        command=["switchagg", "compare", "tiny.toml"],
        runner=run_method,
    )
    names = {path.name for path in done.folder.iterdir()}
    pngs = {"training.png", "breakdown.png", "iterations.png", "wire.png"}
    assert names == {"results.json", "host.json", "report.html", "ring", "switch"} | pngs
    assert (done.folder / "switch" / "kept.txt").read_text() == "switch"
    assert json.loads((done.folder / "results.json").read_text()) == plain(done.document)
    assert json.loads((done.folder / "host.json").read_text())["command"][0] == "switchagg"
    assert seen[0] == ("ring", 0, 4)
    assert seen[-1] == ("switch", 4, 4)


def test_same_run_gives_byte_identical_results_and_keeps_the_host_apart(tmp_path: Path) -> None:
    for name in ("a", "b"):
        compare(SCENARIO, "sim", tmp_path / name, silent, command=[name], runner=run_method)
    first, second = ((tmp_path / name / "results.json").read_bytes() for name in ("a", "b"))
    assert first == second
    assert (tmp_path / "a" / "host.json").read_bytes() != (tmp_path / "b" / "host.json").read_bytes()


def test_every_figure_is_among_those_a_new_run_removes() -> None:
    certified = FakeCertificate(True, [], None, {"gap_deviation_curve": [[0.01, 0.5]]}, {})
    methods = ("gloo", "ring", "ring@udp")
    results = [result(method, 1000, "mininet", certificate=certified) for method in methods]
    built = document(SCENARIO, "mininet", results)
    timelines = {parse_method("gloo"): [Span(0, COMPUTE, "forward", 1, 0, 10)]}
    assert (
        "topology",
        *comparison_figures.draw_all(built, timelines),
    ) == comparing.FIGURES  # that only of what is no star


def test_a_failed_run_removes_the_earlier_report(tmp_path: Path) -> None:
    compare(SCENARIO, "sim", tmp_path, silent, command=["x"], runner=run_method)

    def failing(*_arguments: object) -> MethodResult:
        raise RunFailed("rank 2 was killed")

    with pytest.raises(RunFailed, match="rank 2 was killed"):
        compare(SCENARIO, "sim", tmp_path, silent, command=["x"], runner=failing)
    assert not (tmp_path / "report.html").exists()
    assert not (tmp_path / "results.json").exists()
    assert not list(tmp_path.glob("*.png"))


@pytest.mark.parametrize("name", ["ring", "report.html/x", "training.png/x"])
def test_an_unusable_output_path_is_one_line_before_anything_runs(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("")
    with pytest.raises(RunFailed, match=r"cannot be written .*choose another folder with --out"):
        compare(SCENARIO, "sim", tmp_path, silent, command=["x"], runner=lambda *_: pytest.fail("it ran"))


def test_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFailed, match=r"cannot be written .*choose another folder with --out"):
        compare(SCENARIO, "sim", tmp_path / "file", silent, command=["x"], runner=run_method)
    assert os.path.isfile(tmp_path / "file")


def test_backend_is_mininet_where_it_can_run(mininet: Callable[[str | None], None]) -> None:
    mininet(None)
    assert choose_backend(SCENARIO, None)[0] == "mininet"
    assert choose_backend(SCENARIO, "sim") == ("sim", "as asked")
    mininet("it needs root; run it with sudo")
    backend, reason = choose_backend(SCENARIO, None)
    assert backend == "sim"
    assert "needs root" in reason
    with pytest.raises(RunFailed, match="needs root; run it with sudo; or use --on sim"):
        choose_backend(SCENARIO, "mininet")


def only(backend: str) -> Scenario:
    other = {"sim": "mininet", "mininet": "sim"}[backend]
    return parse(f'name = "t"\ntitle = "t"\n[methods]\n{other} = []\n', "t.toml")


def test_backend_the_scenario_is_not_meant_for(mininet: Callable[[str | None], None]) -> None:
    mininet(None)
    assert choose_backend(only("sim"), None)[0] == "sim"
    assert choose_backend(only("mininet"), None)[0] == "mininet"
    with pytest.raises(ScenarioError, match=r"t\.toml: \[methods\] mininet is empty.*allowed: --on sim"):
        choose_backend(only("sim"), "mininet")
    mininet("it needs root")
    with pytest.raises(RunFailed, match="needs root; the scenario has no methods for sim"):
        choose_backend(only("mininet"), None)


def test_training_methods_are_for_real_ranks(mininet: Callable[[str | None], None]) -> None:
    scenario = parse('name = "t"\ntitle = "t"\n', "t.toml", {"workload.synchronisation": "diloco"})
    mininet(None)
    assert choose_backend(scenario, None)[0] == "mininet"
    with pytest.raises(ScenarioError, match=r"synchronisation: virtual time synchronises in .*allowed: --on mininet"):
        choose_backend(scenario, "sim")
    mininet("it needs root")
    with pytest.raises(RunFailed, match="needs root; virtual time synchronises in every step"):
        choose_backend(scenario, None)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"methods.mininet": ["gloo", "ring+p3"]}, r"with a schedule \(ring\+p3\) real ranks compute as fast as"),
        ({"workload.name": "fsdp"}, "only DDP's ranks compute at a given pace, not those of 'fsdp'"),
        ({"faults.stragglers": [{"rank": 1, "factor": 0.5}]}, "no real rank is faster than it is"),
    ],
)
def test_some_ranks_compute_unequally_in_virtual_time_alone(
    mininet: Callable[[str | None], None], more: dict[str, Any], words: str
) -> None:
    mininet(None)
    tables = {"faults.stragglers": [{"rank": 1}]}
    assert choose_backend(parse('name = "t"\ntitle = "t"\n', "t.toml", tables), None)[0] == "mininet"
    slow = parse('name = "t"\ntitle = "t"\n', "t.toml", {**tables, **more})
    backend, reason = choose_backend(slow, None)
    assert backend == "sim"
    assert re.search(words, reason)
    only_real = dataclasses.replace(slow, methods=dataclasses.replace(slow.methods, sim=()))
    for scenario, wanted in ((slow, "mininet"), (only_real, None)):
        with pytest.raises(ScenarioError, match=rf"t\.toml: \[faults\] stragglers: .*{words}.*; allowed: --on sim"):
            choose_backend(scenario, wanted)


def test_problems_name_ranks_that_disagree_and_invalid_certificates() -> None:
    bad = FakeCertificate(False, ["gap p99 61 %, bound 25 %"], valid_rate_bps=100_000_000)
    built = document(
        SCENARIO,
        "mininet",
        [
            result("gloo", 1000, "mininet", certificate=FakeCertificate(True, [])),
            result("switch", 1000, "mininet", certificate=bad, parameter_hash_per_rank=["a", "b", "a", "a"]),
        ],
    )
    assert built["verdict"] == "INVALID"
    assert problems(built) == [
        "switch: the ranks ended with different parameters: the allreduce was not exact",
        "switch: INVALID: gap p99 61 %, bound 25 % This machine likely keeps [topology] rate_bps = 100000000.",
    ]
    assert problems(document(SCENARIO, "sim", [run_method_result()])) == []


def with_plane(dataplane: str) -> Scenario:
    return parse('name = "t"\ntitle = "t"\n', "t.toml", {"switch.dataplane": dataplane})


def test_auto_chooses_the_fastest_plane_and_reports_why_not_a_faster_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = Choice("reference", {"native": "its self-test failed at packet 7, a result"})
    monkeypatch.setattr(comparing, "fastest", lambda slots, elements: choice if (slots, elements) == (512, 360) else 0)
    assert choose_plane(with_plane("auto"), "sim") == choice
    used = []

    def runner(scenario: Scenario, method: MethodName, *rest: Any) -> MethodResult:
        used.append(scenario.switch.dataplane)
        kept = run_method(scenario, method, *rest)
        return dataclasses.replace(kept, environment={"dataplane": scenario.switch.dataplane})

    scenario = dataclasses.replace(SCENARIO, methods=with_plane("auto").methods)
    done = compare(scenario, "sim", tmp_path, silent, command=["x"], runner=runner)
    assert used == ["reference", "reference"]
    assert done.document["scenario"].switch.dataplane == "auto"
    assert done.document["methods"][1]["environment"]["dataplane"] == "auto"
    assert (done.host["dataplane"], done.host["dataplanes_passed_over"]) == ("reference", choice.passed_over)
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "reference; native passed over: its self-test failed at packet 7, a result" in report


def test_a_plane_that_cannot_run_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "fault", lambda name, slots, elements: f"{name} is broken; mend it")
    with pytest.raises(
        RunFailed, match=r"^t\.toml: \[switch\] dataplane: native can't run here: native is broken; mend"
    ):
        choose_plane(with_plane("native"), "mininet")
    with pytest.raises(
        ScenarioError, match=r"dataplane: xdp runs in the kernel, not in virtual time; allowed .*auto, na"
    ):
        choose_plane(with_plane("xdp"), "sim")
    assert choose_plane(with_plane("xdp"), "mininet") == Choice("xdp", {})
    monkeypatch.setattr(comparing, "fault", lambda name, slots, elements: "")
    assert choose_plane(with_plane("reference"), "sim") == Choice("reference", {})


def test_host_methods_need_no_plane() -> None:
    scenario = parse('name = "t"\ntitle = "t"\n[methods]\nsim = ["ring"]\n', "t.toml", {"switch.dataplane": "xdp"})
    assert choose_plane(scenario, "sim") is None


def run_method_result() -> MethodResult:
    return result("ring", 1000)


CODED = parse(
    'name = "coded"\ntitle = "Coded"\n[methods]\nsim = ["gloo~bf16", "ring", "ring~lanes8+ef"]\n'
    "[workload]\niterations = 4\nwarmup_iterations = 1\n",
    "coded.toml",
)


@pytest.mark.parametrize(
    ("methods", "elements", "wrong"),
    [
        (("switch~lanes8+ef", "ring~lanes8+ef"), [5000, 1024], True),
        (("switch~lanes8+ef", "ring~lanes8+ef"), [5000, 1023], False),  # floats, in an order of the method's own
        (("switch~lanes8+ef", "ring~lanes8+ef+p3"), [5000, 1024], False),  # other packets
        (("switch~lanes8", "ring~lanes8"), [5000, 1024], False),  # may round at random
        (("switch~lanes8:warmup=2+ef", "ring~lanes8:warmup=2+ef"), [5000, 1024], False),
        (("switch~lanes8+ef", "ring~lanes16+ef"), [5000, 1024], False),
        (("switch@rdma~lanes8+ef", "ring~lanes8+ef"), [5000, 1024], False),
        (("switch@rdma~lanes8+ef", "ring@rdma~lanes8+ef"), [5000, 1024], True),
        (("switch", "ring~fixed_point"), [5], True),
        (("switch", "ring"), [5000, 1024], False),
        (("switch~randomk+ef", "ring~randomk+ef"), [5000, 1024], False),  # sums of floats
    ],
)
def test_methods_whose_codec_promises_the_same_bits_must_have_them(
    methods: tuple[str, str], elements: list[int], wrong: bool
) -> None:
    environment = {"bucket_elements": elements}
    results = [
        result(method, 1000, environment=environment, parameter_hash_per_rank=[hashed] * 4)
        for method, hashed in zip(methods, ("a", "b"), strict=True)
    ]
    built = document(CODED, "sim", [result("ring+wfbp", 2000), *results])
    said = (
        f"{parse_method(methods[0])} and {parse_method(methods[1])}: one codec in the same packets, but the parameters"
    )
    assert [problem.startswith(said) for problem in problems(built)] == [True] * wrong
    same = [dataclasses.replace(one, parameter_hash_per_rank=["a"] * 4) for one in results]
    assert problems(document(CODED, "sim", [result("ring+wfbp", 2000), *same])) == []


def test_the_baseline_is_of_float32() -> None:
    assert str(CODED.baseline_for("sim")) == "ring"
