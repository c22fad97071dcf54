"""A topology is a function and an entry: a toy of two switches is found by everything that deals with them."""

import json
from fractions import Fraction
from pathlib import Path

import pytest
from typer.testing import CliRunner

from emulation.cli.main import app
from emulation.experiments import compare
from emulation.scenario.bounds import NetworkParameters, algbw_bound, bound, busiest, loads
from emulation.scenario.scenario import ScenarioError, canonical, parse
from emulation.scenario.topologies.topology import Fabric, LinkSettings, Topology, TopologyLink, host_names
from emulation.scenario.topologies.topology_kinds import TOPOLOGIES, TopologyKind
from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.timing import time_allreduce
from transport.group.method_name import parse as parse_method

RATE_BPS = 1_000_000_000
SCENARIO = """
name = "toy"
title = "A toy"
[methods]
sim = ["ring", "switch", "ps", "auto"]
[topology]
kind = "toy"
placement = "one"
[workload]
iterations = 3
warmup_iterations = 1
batch_per_worker = 4
compute_ns = 1000000
"""


def toy(_fabric: Fabric, workers: int, servers: int, settings: LinkSettings) -> Topology:
    """The first half of the workers, and servers, behind one switch, the others behind another; a link between them."""
    if workers < 2:
        raise ValueError("two switches need 2 workers or more")
    hosts, server_hosts = host_names(workers, servers)
    near = hosts[: workers // 2] + server_hosts
    links = [TopologyLink(host, "s1" if host in near else "s2", settings) for host in hosts + server_hosts]
    return Topology(hosts, server_hosts, ("s1", "s2"), "s1", (*links, TopologyLink("s1", "s2", settings)))


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TOPOLOGIES, "toy", TopologyKind("toy", toy, "two switches with one link between them"))


def test_scenarios_know_it_and_say_what_is_wrong() -> None:
    assert canonical(parse(SCENARIO, "toy.toml"))["topology"]["kind"] == "toy"
    known = "star, leaf_spine, fat_tree, torus, bcube, toy"
    with pytest.raises(
        ScenarioError, match=rf"\[topology\] kind: 'toys' is unknown; allowed: {known}; did you mean 'toy'\?$"
    ):
        parse(SCENARIO.replace('kind = "toy"', 'kind = "toys"'), "toy.toml")
    with pytest.raises(ScenarioError, match=r"\[topology\] kind: toy: two switches need 2 workers or more$"):
        parse(SCENARIO.replace('kind = "toy"', 'kind = "toy"\nworkers = 1'), "toy.toml")


@pytest.mark.parametrize(
    ("method", "arrays"),
    [
        ("switch", 2),  # of both workers behind s2, and to both
        ("ring", Fraction(3, 2)),  # as in a star: one neighbour each way
        ("halving_doubling", Fraction(3, 2)),
        ("direct", 2),
        ("tree", 2),
    ],
)
def test_bounds_are_those_of_the_busiest_link(method: str, arrays: Fraction) -> None:
    network = NetworkParameters(4, RATE_BPS, 1500, 360, fabric=Fabric("toy", placement="one"))
    assert busiest(method, network).arrays == arrays
    if method == "switch":
        assert loads(method, network) == {
            **{hop: 1 for hop, _ in network.links(method).hops},
            ("s1", "s2"): 2,
            ("s2", "s1"): 2,
        }
        found = bound(parse_method(method), 10**6, network)
        assert found.communication_ns == 2 * found.wire_bytes_per_rank * 8e9 / RATE_BPS


@pytest.mark.parametrize(
    ("method", "share"),
    [("switch", 0.99), ("ring", 0.96), ("direct", 0.96), ("auto", 0.96), ("ps", 0.8), ("halving_doubling", 0.85)],
)
def test_sums_in_virtual_time_are_exact_and_near_the_bound(method: str, share: float) -> None:
    size_bytes, servers = 8_000_000, 2 * (method == "ps")
    config = SimulationConfig(4, LinkConfig(RATE_BPS), fabric=Fabric("toy", placement="one"), servers=servers)
    found = time_allreduce(config, method, size_bytes)
    assert (found.wrong_elements, found.faults["drop_queue"]) == (0, 0)
    network = NetworkParameters(4, RATE_BPS, 1500, 360, fabric=Fabric("toy", placement="one"), servers=servers)
    limit = algbw_bound(parse_method(method), "int32", network)
    assert share * limit < found.algbw_bps / 8 <= limit


@pytest.mark.parametrize("method", ["switch", "ring", "ps"])
def test_faults_on_every_link_change_no_sum(method: str) -> None:
    link = LinkConfig(RATE_BPS, 5_000, loss=0.01, duplicate=0.01, reorder=0.02, corrupt=0.01)
    own = 2 * (method == "ps")
    config = SimulationConfig(
        5, link, fabric=Fabric("toy", placement="one"), servers=own, strict_priority=True, trace=True
    )
    runs = [time_allreduce(config, method, 100_000, "float32") for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0].wrong_elements == 0
    assert runs[0].retransmissions > 0


def test_the_command_line_trains_over_it_and_the_report_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toy.toml").write_text(SCENARIO)
    # In this process, which alone knows the toy.
    monkeypatch.setitem(compare.RUNNER_MODULES, "sim", "emulation.sim.simulated_run")
    done = CliRunner().invoke(app, ["compare", str(tmp_path / "toy.toml"), "--on", "sim", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    results = json.loads((tmp_path / "results.json").read_text())
    factors = {entry["method"]: entry["summary"]["bound"]["traffic_factor"] for entry in results["methods"]}
    assert factors == {"ring": 1.5, "switch": 2, "ps": 2, "auto": 1.5}
    assert all(entry["summary"]["parameters_identical"] for entry in results["methods"])
    report = (tmp_path / "report.html").read_text()
    assert "two switches with one link between them" in report
