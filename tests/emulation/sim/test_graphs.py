"""Torus and BCube, whose hosts forward, and links of rates of their own: ways, times, bounds, and what is refused."""

import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from emulation.report.topology_figure import topology_figure
from emulation.report.wording import topology_text
from emulation.scenario.bounds import Busiest, NetworkParameters, bound, busiest, loads
from emulation.scenario.scenario import Scenario, ScenarioError, canonical, parse
from emulation.scenario.topologies.topology import HASH, STAR, Fabric, LinkSettings, Topology
from emulation.scenario.topologies.topology_kinds import topology
from emulation.sim.host_costs import HostCosts
from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.timing import time_allreduce
from tests.shared.canonical_scenario import from_canonical
from transport.collectives.cost import traffic_matrix
from transport.group.method_name import parse as parse_method

DELAY_NS = 500
RATE_BPS = 8_000_000_000  # a byte in a nanosecond
TRANSFER_NS = 5_000
FRAME = 1000 + 48 + 66
TORUS, BCUBE = Fabric("torus", sides=(2, 4)), Fabric("bcube", ports=3)


def built(fabric: Fabric, workers: int) -> Topology:
    return topology(fabric, workers, 0, LinkSettings(RATE_BPS, DELAY_NS))


def took(method: str, size_bytes: int, fabric: Fabric, workers: int, **config: Any) -> int:
    made = SimulationConfig(workers, LinkConfig(RATE_BPS, DELAY_NS), fabric=fabric, **config)
    run = time_allreduce(made, method, size_bytes)
    assert (run.wrong_elements, run.faults["drop_queue"]) == (0, 0)
    return run.duration_ns


def test_a_torus_joins_neighbours_along_each_side() -> None:
    links = built(Fabric("torus", sides=(3, 2, 4)), 24)
    nodes = [name for name in links.switches if name.startswith("n")]
    assert all(len(links.neighbours[name]) == 1 + 2 + 1 + 2 for name in nodes)  # a side of 2 is one link
    assert sorted(links.neighbours["n1"]) == sorted(("h1", "n9", "n17", "n5", "n2", "n4"))
    assert links.settings(("h1", "n1")) == LinkSettings(5 * RATE_BPS, 0)
    assert [len(links.layers("h1", to)) for to in ("h2", "h3", "h4", "h24")] == [3, 4, 3, 5]
    assert links.aggregators == ()


def test_hosts_of_a_bcube_meet_in_a_switch_for_each_digit_that_differs() -> None:
    links = built(Fabric("bcube", ports=3), 27)
    assert len(links.switches) == 27 + 3 * 9
    for to in range(1, 27):
        differ = sum(to // 3**digit % 3 != 0 for digit in range(3))
        ways = links.layers("h1", f"h{to + 1}")
        assert len(ways) == 2 + 2 * differ
        assert len(ways[1]) == differ  # any of these digits may be first
    assert Counter(len(links.neighbours[name]) for name in links.switches) == {4: 27, 3: 27}


@pytest.mark.parametrize(
    ("fabric", "workers"), [(Fabric("torus", sides=(3, 5)), 15), (Fabric("torus", sides=(4, 2, 3)), 24), (BCUBE, 9)]
)
def test_a_ring_of_all_hosts_crosses_no_link_twice(fabric: Fabric, workers: int) -> None:
    crossed: Counter[Any] = Counter()
    links = built(fabric, workers)
    for (sender, to), arrays in traffic_matrix("ring", workers).items():
        for layer in links.layers(links.workers[sender], links.workers[to]):
            crossed.update({hop: part * arrays for hop, part in layer.items()})
    once = 2 * Fraction(workers - 1, workers)
    assert max(crossed.values()) <= once
    assert busiest("ring", NetworkParameters(workers, RATE_BPS, 1500, 360, fabric=fabric)).arrays == once


def test_frames_are_forwarded_by_hosts_store_and_forward() -> None:
    """4 hosts in a circle, two NICs each: from the rank at twice the rate, one link, to the rank at twice the rate."""
    ns = took("ring", 4 * 1000, Fabric("torus", sides=4), 4, costs=HostCosts(TRANSFER_NS))
    assert ns == 6 * (2 * TRANSFER_NS + FRAME // 2 + FRAME + DELAY_NS + FRAME // 2)
    ns = took("ring", 2 * 1000, Fabric("bcube", ports=2), 2, costs=HostCosts(TRANSFER_NS))
    assert ns == 2 * (2 * TRANSFER_NS + 4 * FRAME + 2 * DELAY_NS)  # one level: one NIC, and a switch


@pytest.mark.parametrize(("fabric", "workers"), [(TORUS, 8), (BCUBE, 9)])
def test_no_method_beats_its_bound_and_rings_come_near(fabric: Fabric, workers: int) -> None:
    size_bytes = 100_000
    for method in ("ring", "torus", "halving_doubling", "direct", "ps", "hierarchical", "double_tree"):
        for paths in ("spray", HASH):
            one = replace(fabric, paths=paths)
            least = bound(parse_method(method), size_bytes, NetworkParameters(workers, RATE_BPS, 1500, 360, fabric=one))
            assert took(method, size_bytes, one, workers) > 0.9999 * least.communication_ns, (method, paths)
    least = bound(parse_method("ring"), 4_000_000, NetworkParameters(workers, RATE_BPS, 1500, 360, fabric=fabric))
    assert took("ring", 4_000_000, fabric, workers) < 1.07 * least.communication_ns


def test_rings_along_rows_and_columns_both_ways_use_all_nics() -> None:
    """Of a torus of 4 by 4 a link each way for a quarter of the array, of a BCube a NIC for two."""
    for fabric, arrays in (
        (Fabric("torus", sides=(4, 4)), Fraction(15, 32)),
        (Fabric("bcube", ports=4), Fraction(15, 16)),
    ):
        network = NetworkParameters(16, RATE_BPS, 1500, 360, fabric=fabric)
        assert busiest("multi_ring", network).arrays == arrays
        least_ns = bound(parse_method("multi_ring"), 600_000, network).communication_ns
        ns = took("multi_ring", 600_000, fabric, 16, group=fabric.group(16))
        assert least_ns < ns < 0.75 * took("torus", 600_000, fabric, 16, group=fabric.group(16))


def test_flows_that_are_hashed_meet_where_sprayed_frames_do_not() -> None:
    spray, hashed = (took("direct", 300_000, replace(BCUBE, paths=paths), 9) for paths in ("spray", HASH))
    assert spray < 0.9 * hashed


def test_links_may_have_rates_of_their_own() -> None:
    slow = replace(STAR, link_bps=(("h2", RATE_BPS // 2),))
    ns = took("ring", 2000, slow, 2, costs=HostCosts(TRANSFER_NS))
    assert ns == 2 * (2 * TRANSFER_NS + FRAME + 2 * FRAME + 2 * DELAY_NS)
    network = NetworkParameters(4, RATE_BPS, 1500, 360, fabric=slow)
    assert busiest("switch", network) == Busiest(("h2", "s1"), Fraction(1), RATE_BPS // 2)
    fast = replace(slow, link_bps=(("s1", 2 * RATE_BPS), ("h3-s1", 5), ("s1-h4", 7)))
    rates = [built(fast, 4).settings((f"h{host}", "s1")).rate_bps for host in (1, 2, 3, 4)]
    assert rates == [2 * RATE_BPS, 2 * RATE_BPS, 5, 7]


ALONE = 'name = "g"\ntitle = "g"\n[methods]\nmininet = []\nsim = ["ring", "direct"]\n[topology]\n'


def scenario(lines: str) -> Scenario:
    return parse(ALONE + lines, "g.toml")


def test_results_and_reports_know_them() -> None:
    lines = 'kind = "torus"\nworkers = 4\nranks_per_host = 2\ninside_bps = 9e9\nsides = [2]\nlink_bps = {n1-n2 = 3e9}'
    one = scenario(lines)
    assert from_canonical(json.loads(json.dumps(canonical(one)))).topology == one.topology
    assert not {"sides", "ports", "link_bps"} & {*canonical(scenario(""))["topology"]}
    assert loads("ring", one.network)["n1", "n2"] == Fraction(3, 2)
    told = {"scenario": one, "methods": [{"method": parse_method("ring")}]}
    assert "a torus of hosts, which forward; 2 ranks on each host" in topology_text(told)
    assert "ring n1 to n2, 1.50" in topology_text(told)
    drawn = {text.get_text().split()[0] for text in topology_figure(one, told).axes[0].texts}
    assert {"h1", "h4", "n1", "n2"} <= drawn


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ('kind = "torus"', "[topology] kind: torus: sides: missing; allowed: hosts along each side, like [4, 4]"),
        ('kind = "torus"\nsides = [3, 1]', "sides: 3 x 1 hosts, but there are 4; allowed: 2 or more a side"),
        (
            'kind = "torus"\nsides = "4"',
            "[topology] sides: '4' is not allowed; allowed: how many, or a list like [4, 2]",
        ),
        ('kind = "bcube"', "[topology] kind: bcube: ports: missing; allowed: 2 or more, of which"),
        (
            'kind = "bcube"\nports = 3',
            "ports: 3 for 4 hosts; allowed: 2 or more, of which the number of hosts is a power",
        ),
        ("ports = 2", "[topology] kind: star: ports: it has none; leave ports out, or take kind = bcube"),
        ('kind = "bcube"\nports = 2\nracks = 2', "racks: it has no racks"),
        ('kind = "bcube"\nports = 2\n[ps]\nservers = 2', "it has no place for 2 more hosts, of servers"),
        ('kind = "bcube"\nports = 2\n[[flows]]\nkind = "cubic"', "it has no place for 1 more hosts, of [[jobs]]"),
        ('kind = "bcube"\nports = 2\npfc_bytes = 9000', "pauses stop circles of links for good"),
        ("link_bps = {h9 = 1e9}", "link_bps: h9: no node or link has this name; allowed: like h1, or h4-s1"),
        ("link_bps = {h1 = 9}", "[topology] link_bps: h1: 9 is out of range; allowed: 1000000 … 400000000000 (bits/s)"),
        ("link_bps = 7", '[topology] link_bps: 7 is not allowed; allowed: a table, like {"h3" = 10e9}'),
    ],
)
def test_what_they_cannot_have_is_one_line(lines: str, words: str) -> None:
    with pytest.raises(ScenarioError) as error:
        scenario(lines)
    assert words in str(error.value)


def test_methods_and_mininet_that_have_none_say_so() -> None:
    square = 'kind = "torus"\nsides = [2, 2]'
    with pytest.raises(
        ScenarioError, match=r"\[methods\] switch: hosts of a torus forward, and no switch is above all"
    ):
        parse(ALONE.replace('"direct"', '"switch"') + square, "g.toml")
    for lines, words in ((square, "bridges in Mininet need"), ("link_bps = {h1 = 1e9}", "in Mininet links have one")):
        with pytest.raises(ScenarioError, match=words):
            parse(
                f'name = "g"\ntitle = "g"\n[methods]\nmininet = ["ring"]\nsim = ["ring"]\n[topology]\n{lines}', "g.toml"
            )
