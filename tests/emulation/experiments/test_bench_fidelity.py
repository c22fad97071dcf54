"""Predicted beside measured: which runs are paired, what counts, and what a difference consists of."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import pytest
from example_results import FakeCertificate, result

from emulation.experiments.bench import time_fidelity
from emulation.experiments.sweep import sweep_run
from emulation.results.results import MethodResult, plain
from emulation.scenario.errors import RunFailed, ScenarioError
from emulation.scenario.scenario import Scenario, load, load_variants
from emulation.scenario.scenario_tables import HostOptions
from transport.group.method_name import METHODS, MethodName, parse

TEXT = (
    'name = "tiny"\ntitle = "A tiny one"\n[methods]\nmininet = ["gloo", "ring", "ring@udp", "switch"]\nsim = []\n'
    "[topology]\nworkers = 4\n[workload]\niterations = 4\nwarmup_iterations = 1\ncompute_ns = 10_000_000\n"
    "[sweep]\ntopology.rate_bps = [100_000_000, 200_000_000]\n"
)
PREDICTED_NS = {"gloo": 30_000_000, "ring": 30_000_000, "switch": 20_000_000}
MEASURED = {"gloo": 1.02, "ring": 1.0, "ring@udp": 1.1, "switch": 1.6}
"""Over what is predicted."""
UDP_FRAMING = 1448 / 1440
"""Bytes of gradients in a frame of TCP by those in one of the reliable protocol over UDP."""


class Machine:
    """Half the rate, twice the time; over UDP a tenth more bytes. busy: methods whose certificates are INVALID."""

    def __init__(self) -> None:
        self.done: list[tuple[int, str]] = []
        self.busy: tuple[str, ...] = ("gloo",)

    def predict(self, scenario: Scenario, method: MethodName, *_: object) -> MethodResult:
        self.done.append((scenario.topology.rate_bps // 10**6, f"virtual {method}"))
        time_ns = PREDICTED_NS[method.method] * 100_000_000 // scenario.topology.rate_bps
        return result(method, time_ns + scenario.hosts.packet_ns)

    def measure(self, scenario: Scenario, method: MethodName, *_: object) -> MethodResult:
        rate_bps, name = scenario.topology.rate_bps, str(method)
        self.done.append((rate_bps // 10**6, name))
        busy = name in self.busy and rate_bps == 100_000_000
        certificate: Any = FakeCertificate(not busy, ["CPUs | were taken"] * busy, measures={"cpu_idle_share": 0.25})
        time_ns = round(PREDICTED_NS[method.method] * MEASURED[name]) * 100_000_000 // rate_bps
        found = result(method, time_ns, "mininet", certificate=certificate, retransmissions=7)
        sent = [count * 11 // 10 for count in found.wire_tx_bytes_per_rank]
        return replace(found, wire_tx_bytes_per_rank=sent) if name == "ring@udp" else found


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine()
    for backend, run_method in (("sim", found.predict), ("mininet", found.measure)):
        module = ModuleType(f"toy_{backend}")
        module.run_method = run_method  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(sweep_run.RUNNER_MODULES, backend, module.__name__)
    monkeypatch.setattr(sweep_run, "choose_plane", lambda *_: None)
    return found


def plan(folder: Path, tables: Mapping[str, HostOptions] = MappingProxyType({})) -> time_fidelity.FidelityPlan:
    path = folder / "tiny.toml"
    path.write_text(TEXT, encoding="utf-8")
    return time_fidelity.planned(load(path), load_variants(path), folder / "out", tables)


def run(folder: Path, only: str = "", again: bool = False) -> list[str]:
    """What was said."""
    said: list[str] = []
    time_fidelity.run(plan(folder), only, again, 1, said.append)
    return said


def test_every_method_over_every_link_has_a_twin_in_virtual_time() -> None:
    methods = [parse(name) for name in time_fidelity.every()]
    assert len(set(methods)) == len(methods)
    assert {method.method for method in methods} == {name for name in METHODS if name not in ("atp", "esa", "auto")}
    assert {str(method) for method in methods if method.method == "switch"} == {
        "switch",
        "switch@zeromq",
        "switch@rdma",
    }
    assert {str(time_fidelity.twin(parse(name))) for name in ("ps", "ps@tcp", "ps@rdma")} == {"ps"}


def test_virtual_time_is_run_once_for_all_links_and_nothing_twice(tmp_path: Path, toy: Machine) -> None:
    run(tmp_path, "ring@udp, topology.rate_bps = 200")
    assert toy.done == [(200, "virtual ring"), (200, "ring@udp")]
    run(tmp_path)
    every = [(rate, name) for rate in (100, 200) for name in (*(f"virtual {one}" for one in PREDICTED_NS), *MEASURED)]
    assert sorted(toy.done) == sorted(every)
    toy.done.clear()
    run(tmp_path)
    assert not toy.done
    run(tmp_path, again=True)
    assert toy.done == [(100, "gloo")]
    with pytest.raises(ScenarioError, match="--only 'rings': no run has this in its title"):
        run(tmp_path, "rings")


def test_with_the_costs_of_its_path_a_method_is_predicted_again(tmp_path: Path, toy: Machine) -> None:
    costs = {"tcp": HostOptions(packet_ns=600_000), "udp": HostOptions(packet_ns=900_000)}
    for _ in range(2):
        time_fidelity.run(plan(tmp_path, costs), "200 Mb/s", False, 1, lambda _: None)
    assert len(toy.done) == 3 + 3 + 4  # without; gloo, ring, and ring for UDP with; measured
    built = time_fidelity.document(plan(tmp_path, costs))
    by_name = {str(pair["method"]): pair for pair in built["pairs"]}
    framing = by_name["ring@udp"]["predicted_ns"] / 15_000_000
    calibrated = {name: pair.get("calibrated_ns") for name, pair in by_name.items()}
    assert calibrated == {"gloo": 15.6e6, "ring": 15.6e6, "ring@udp": pytest.approx(15.9e6 * framing), "switch": None}
    assert any("With this machine's costs of packets: median" in line for line in time_fidelity.lines(built))
    assert "|200 Mb/s|`ring`|15.0 ms|15.0 ms|+0.0 %|15.6 ms|\u22123.8 %|" in "\n".join(time_fidelity.table(built))


@pytest.mark.parametrize(("spread_ns", "swapped"), [(0, 1), (3_000_000, 1), (5_000_000, 0)])
def test_an_order_within_the_noise_of_both_is_not_wrong(
    tmp_path: Path, toy: Machine, spread_ns: int, swapped: int
) -> None:
    run(tmp_path, "switch")
    run(tmp_path, "ring,")
    pairs = [pair for pair in time_fidelity.document(plan(tmp_path))["pairs"] if pair["method"].link != "udp"][:2]
    for pair, median_ns in zip(pairs, (34_000_000, 30_000_000), strict=True):
        pair["predicted_ns"] = 64_000_000 - median_ns
        pair["measured_ns"] = {"median": median_ns, "p10": median_ns, "p90": median_ns + spread_ns}
    found = time_fidelity.summary([{**pair, "valid": True, "point": {}} for pair in pairs])
    assert (len(found["swapped"]), found["swapped_within_noise"]) == (swapped, 1 - swapped)


def test_invalid_runs_stand_apart_and_count_nowhere(tmp_path: Path, toy: Machine) -> None:
    run(tmp_path)
    built = time_fidelity.document(plan(tmp_path))
    found = built["summary"]
    assert (built["planned"], found["pairs"], found["valid"], found["within_band"]) == (8, 8, 7, 3)
    assert found["median_difference"] == pytest.approx(1.1 / UDP_FRAMING - 1)
    swapped = [[low, high] for _, low, high in plain(found["swapped"])]
    # at 100 Mb/s switch before the ring over TCP alone: 32 ms > 30; over UDP it takes 33. At 200 Mb/s also before Gloo
    assert (found["ordered"], swapped) == (5, [["switch", "ring"], ["switch", "gloo"], ["switch", "ring"]])
    assert found["swapped_over_one_link"] == 0
    assert time_fidelity.lines(built)[1] == (
        "Median difference of the VALID ones: 9.4 %; 3 of 7 differ by at most 5 %, the most by 60.0 %."
    )
    text = "\n".join(time_fidelity.table(built))
    valid, invalid = text.split("INVALID, so that these times say nothing:")
    assert "|100 Mb/s|`gloo`|30.0 ms|30.6 ms|+2.0 %|CPUs / were taken|" in invalid
    assert "`gloo`" in valid
    assert "|200 Mb/s|`gloo`|15.0 ms|15.3 ms|+2.0 %||" in valid
    assert "|100 Mb/s|`switch`|20.0 ms|32.0 ms|+60.0 %|+60.0 % time for each byte, CPUs 25 % idle|" in valid
    assert "`ring@udp`|30.2 ms|33.0 ms|+9.4 %|+9.4 % bytes on the wire, 7 packets sent again|" in valid


def test_a_run_that_is_cut_short_shows_what_is_there(tmp_path: Path, toy: Machine) -> None:
    with pytest.raises(RunFailed, match="no pair of runs has finished"):
        time_fidelity.document(plan(tmp_path))
    run(tmp_path, "switch, topology.rate_bps = 100")
    built = time_fidelity.document(plan(tmp_path))
    assert [(str(pair["method"]), pair["difference"]) for pair in built["pairs"]] == [("switch", pytest.approx(0.6))]
    assert "1 of 8 pairs of runs; 1 of them VALID" in time_fidelity.lines(built)[0]


def test_the_docs_page_has_the_table_between_its_marks(tmp_path: Path, toy: Machine) -> None:
    run(tmp_path)
    built, page = time_fidelity.document(plan(tmp_path)), tmp_path / "fidelity.md"
    begin, end = "<!-- measured: written by `switchagg bench fidelity --docs` -->", "<!-- end -->"
    page.write_text("Nothing.\n")
    with pytest.raises(RunFailed, match="has no place for the results"):
        time_fidelity.write(built, tmp_path / "out", tmp_path)
    page.write_text(f"Before.\n\n{begin}\nold\n{end}\n\nAfter.\n")
    time_fidelity.write(built, tmp_path / "out", tmp_path)
    once = page.read_text()
    assert "old" not in once
    assert once.startswith(f"Before.\n\n{begin}\n")
    assert once.endswith(f"\n{end}\n\nAfter.\n")
    assert "|200 Mb/s|`switch`|" in once  # differs by more than 5 %
    assert "|200 Mb/s|`ring`|" not in once
    assert "|100 Mb/s|`gloo`|30.0 ms|30.6 ms|+2.0 %|CPUs / were taken|" in once  # INVALID
    assert (tmp_path / "fidelity.png").stat().st_size > 10_000
    guide = (Path(__file__).parents[3] / "docs/results/fidelity.md").read_text()
    assert guide.index(begin) < guide.index(end)
