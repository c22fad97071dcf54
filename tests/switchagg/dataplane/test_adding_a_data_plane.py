"""A data plane is one file and one entry: a toy in the table is found by everything that deals with planes."""

from collections.abc import Iterator
from pathlib import Path

import matplotlib
import pytest

from emulation.cli.daemons.switch_command import _check_choices
from emulation.experiments.bench import bench_figures, plane_times
from emulation.experiments.bench.allreduce import bench_methods
from emulation.experiments.compare import choose_plane
from emulation.scenario.scenario import load
from emulation.sim.simulated_run import run_method
from switchagg.dataplane.plane_kinds import DATAPLANES, PlaneKind
from switchagg.dataplane.reference import ReferencePlane
from switchagg.dataplane.self_test import Choice, fastest
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions

SCENARIO = """
name = "toy"
title = "A toy"
[methods]
sim = ["ring", "switch"]
[workload]
iterations = 2
warmup_iterations = 1
compute_ns = 1000000
[switch]
dataplane = "toy"
"""


class Toy(ReferencePlane):
    name = "toy"


@pytest.fixture(autouse=True)
def toy() -> Iterator[None]:
    kinds = dict(DATAPLANES)
    kind = PlaneKind("toy", Toy, "a toy", measured="as it comes", colour="#123456", tested=True)
    DATAPLANES.clear()
    DATAPLANES.update({"toy": kind, **kinds})  # first in the table: `auto` tries it first
    yield
    del DATAPLANES["toy"]


def test_scenarios_virtual_time_and_the_command_line_include_it(tmp_path: Path) -> None:
    file = tmp_path / "toy.toml"
    file.write_text(SCENARIO)
    scenario = load(file)
    assert choose_plane(scenario, "sim") == Choice("toy", {})
    result = run_method(scenario, scenario.methods_for("sim")[1], tmp_path, lambda *_: None)
    assert len(set(result.parameter_hash_per_rank)) == 1
    assert result.switch_counters["broadcast"] > 0
    _check_choices("toy", "udp", None)


def test_auto_and_the_daemon_can_choose_it() -> None:
    assert fastest(64, 32) == Choice("toy", {})
    daemon = SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), dataplane="auto"))
    daemon.start()
    try:
        assert daemon.dataplane == Choice("toy", {})
    finally:
        daemon.stop()


def test_the_benchmark_measures_names_and_draws_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plane_times, "endpoint_rows", lambda *_: [])
    monkeypatch.setattr(plane_times, "WORKERS", (2,))
    monkeypatch.setattr(plane_times, "ELEMENTS", (32, 256))
    rows = [row for row in plane_times.measure(True, lambda _: None)["rows"] if row["plane"] == "toy"]
    assert {row["note"] for row in rows} == {"as it comes"}
    assert [method.name for method in bench_methods.parse("switch:toy", "auto", ["cubic"])[0]] == ["switch:toy"]
    figure = bench_figures.planes({"rows": rows})
    assert figure is not None
    (line,) = [line for axes in figure.axes for line in axes.get_lines() if line.get_label() == "toy"]
    assert matplotlib.colors.to_hex(line.get_color()) == "#123456"
