"""Racks behind leaf switches: which switches aggregate, what up-links carry, and what is refused."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from emulation.experiments.compare import choose_plane
from emulation.report.topology_figure import up_links
from emulation.report.wording import topology_text
from emulation.scenario.bounds import NetworkParameters, algbw_bound, busiest, loads
from emulation.scenario.scenario import Scenario, ScenarioError, canonical, parse
from emulation.scenario.topologies.topology import Fabric, LinkSettings, Topology
from emulation.scenario.topologies.topology_kinds import topology
from switchagg.dataplane.plane_kinds import DATAPLANES
from tests.shared.canonical_scenario import from_canonical
from transport.group.method_name import parse as parse_method

RATE_BPS = 200_000_000


def built(kind: str, racks: int | tuple[int, ...], workers: int, **values: Any) -> Topology:
    return topology(Fabric(kind, racks, **values), workers, 0, LinkSettings(RATE_BPS))


def scenario(lines: str, switch: str = "") -> Scenario:
    return parse(f'name = "r"\ntitle = "r"\n[topology]\n{lines}\n[switch]\n{switch}\n', "r.toml")


def test_unequal_racks_sum_where_workers_join() -> None:
    links = built("leaf_spine", (5, 2, 1), 8, oversubscription=4)
    assert links.children == {
        "leaf1": ("h1", "h2", "h3", "h4", "h5"),
        "leaf2": ("h6", "h7"),
        "spine1": ("h8", "leaf1", "leaf2"),  # leaf3 would only pass on what h8 sends
    }
    assert (links.root, links.parent("leaf2"), links.parent("spine1")) == ("spine1", "spine1", None)
    rates = [links.settings((leaf, "spine1")).rate_bps for leaf in ("leaf1", "leaf2", "leaf3")]
    assert rates == [250_000_000, 100_000_000, 50_000_000]
    assert built("leaf_spine", (5, 2, 1), 8, placement="one").children == {"spine1": links.workers}
    assert built("leaf_spine", 1, 4).children == {"leaf1": ("h1", "h2", "h3", "h4")}
    assert built("leaf_spine", 4, 4).aggregators == ("spine1",)
    assert built("fat_tree", 1, 1).root == "leaf1"


def test_a_fat_tree_has_as_much_upward_as_downward_above_its_racks() -> None:
    links = built("fat_tree", 8, 20, oversubscription=2)
    assert links.children["core1"] == ("pod1", "pod2", "pod3", "pod4")
    assert links.children["pod2"] == ("leaf3", "leaf4")
    assert links.children["leaf4"] == ("h10", "h11", "h12")
    assert links.children["leaf5"] == ("h13", "h14")
    assert [links.settings((pod, "core1")).rate_bps for pod in ("pod1", "pod4")] == [600_000_000, 400_000_000]


@pytest.mark.parametrize(
    ("method", "placement", "oversubscription", "arrays", "rate_bps"),
    [  # arrays over the busiest link, and its rate: 2 racks of 4
        ("switch", "every", 4, 1, RATE_BPS),
        ("switch", "every", 8, 1, RATE_BPS // 2),
        ("switch", "one", 1, 1, RATE_BPS),
        ("switch", "one", 4, 4, RATE_BPS),
        ("ring", "every", 4, Fraction(7, 4), RATE_BPS),
        ("gloo", "every", 8, Fraction(7, 4), RATE_BPS // 2),
        ("direct", "every", 4, 4, RATE_BPS),  # 4 workers send an eighth to each of 4 others, twice
    ],
)
def test_bounds_are_those_of_up_links(
    method: str, placement: str, oversubscription: float, arrays: Fraction, rate_bps: int
) -> None:
    network = NetworkParameters(8, RATE_BPS, 1500, 360, fabric=Fabric("leaf_spine", 2, oversubscription, placement))
    most = busiest(method, network)
    assert (most.arrays, most.rate_bps) == (arrays, rate_bps)
    if method == "switch":
        limit = rate_bps / 8 * 1440 / 1502 / arrays
        assert algbw_bound(parse_method(method), "int32", network) == pytest.approx(limit)


def test_a_sum_of_shards_goes_everywhere_in_a_tree() -> None:
    """H2: no routes."""
    network = NetworkParameters(8, RATE_BPS, 1500, 360, fabric=Fabric("fat_tree", 2))
    assert set(loads("switch", network, "reduce_scatter").values()) == {1}


def test_a_ring_of_all_ranks_enters_every_rack_once() -> None:
    """So rank order is its best order."""
    for racks, workers in ((4, 16), ((3, 6, 1), 10)):
        network = NetworkParameters(workers, RATE_BPS, 1500, 360, fabric=Fabric("leaf_spine", racks))
        assert set(loads("ring", network).values()) == {Fraction(2 * (workers - 1), workers)}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            'kind = "leaf_spine"',
            "kind: leaf_spine: racks: missing; allowed: how many, or a list of the workers in each",
        ),
        ('kind = "leaf_spine"\nracks = 5', "racks: 5 for 4 workers; allowed: 1 … 4, at least a worker in each"),
        ('kind = "fat_tree"\nracks = [4, 0]', "racks: rack 2 has no worker; allowed: 1 or more in each; leave it out"),
        ('kind = "fat_tree"\nracks = [4, 4]', "racks: 8 workers in all, but [topology] workers = 4; allowed: the same"),
        ("racks = 2", "kind: star: racks: it has no racks; leave racks out, or take kind = leaf_spine or fat_tree"),
        ("oversubscription = 2", "star: oversubscription: it has no racks; leave oversubscription out"),
        ('kind = "fat_tree"\nracks = "2"', "racks: '2' is not allowed; allowed: how many, or a list like [4, 2]"),
        ('kind = "fat_tree"\nracks = []', "racks: [] is not allowed; allowed: how many, or a list like [4, 2]"),
        ("spines = 2", "kind: star: spines: it has no racks; leave spines out, or take kind = leaf_spine or fat_tree"),
        ('kind = "leaf_spine"\nracks = 2\nspines = 0', "spines: 0 is out of range; allowed: 1 … 64 (spines)"),
        ('kind = "leaf_spine"\nracks = 2\nspines = 2', "spines: 2: bridges in Mininet spread nothing over several; "),
        ('paths = "ecmp"', "paths: 'ecmp' is unknown; allowed: spray, hash"),
        ("oversubscription = 0.5", "oversubscription: 0.5 is out of range; allowed: 1 … 1000 (times)"),
        ('placement = "leaf"', "placement: 'leaf' is unknown; allowed: every, one"),
    ],
)
def test_what_a_network_can_t_be_is_said_in_one_line(lines: str, said: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        scenario(lines)
    assert str(refused.value).startswith("r.toml: [topology] ")
    assert said in str(refused.value)


def test_a_tree_of_switches_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATAPLANES, "xdp", replace(DATAPLANES["xdp"], leaf=False))
    racks = 'kind = "leaf_spine"\nracks = 2\n'
    with pytest.raises(ScenarioError, match=r"placement: every: data plane xdp can't be below .* allowed: one, or "):
        choose_plane(scenario(racks, 'dataplane = "xdp"'), "mininet")


def test_scenarios_keep_their_racks_and_stars_say_nothing_of_them() -> None:
    lines = 'kind = "leaf_spine"\nracks = [3, 1]\noversubscription = 3\n'
    given = scenario(lines)
    assert from_canonical(canonical(given)).topology == given.topology
    assert not {"racks", "oversubscription", "placement"} & set(canonical(scenario(""))["topology"])
    words = topology_text({"scenario": given, "methods": [{"method": parse_method("switch")}]})
    assert "workers in a rack: 3, 1; oversubscription of up-links 3:1). " in words
    assert " Switches that aggregate: leaf1, spine1; the others forward. " in words


def test_windows_fit_the_queue_of_a_port_that_many_workers_packets_cross() -> None:
    racks = 'kind = "leaf_spine"\nworkers = 8\nracks = 2\n'
    assert scenario(racks).switch.window_slots == 256
    assert scenario(racks + 'placement = "one"').switch.window_slots == 1_000_000 // (2 * 1502 * 4)


SPINES = 'name = "r"\ntitle = "r"\nmethods = {mininet = []}\n[topology]\nkind = "leaf_spine"\nracks = 2\nspines = 3\n'


def test_several_spines_have_a_stream_and_a_tree_each_and_a_report_that_says_so() -> None:
    given = parse(SPINES + 'paths = "hash"\n', "r.toml")
    assert (given.switch.trees, given.switch.streams, given.switch.split_calls) == (0, 3, 1)
    assert from_canonical(canonical(given)).topology == given.topology
    assert [tree.root for tree in given.network.topologies("switch")] == ["spine1", "spine2", "spine3"]
    built = {"scenario": given, "methods": [{"method": parse_method(name)} for name in ("ring", "switch")]}
    words = topology_text(built)
    assert "3 at the top, each with an equal part" in words
    assert "flow takes one by a hash; the switch sums over 3 trees. Switches that aggregate: leaf1, leaf2, " in words
    lines = ["leaf1 to spine1 and 5 more: 133.333 Mb/s; ring 0.50×, switch 0.33×."]  # noqa: RUF001
    assert up_links(given, built) == lines
    assert [given.network.folded.links("ring").settings(("leaf1", "spine1")).rate_bps] == [2 * RATE_BPS]


def test_a_method_s_trees_are_bound_by_the_spines_that_they_use() -> None:
    given = parse(SPINES + "workers = 8\noversubscription = 4\n[switch]\ntrees = 2\n", "r.toml")
    assert (given.switch.streams, given.network.trees) == (2, 2)
    most = {method: busiest(method, given.network) for method in ("switch", "ring", "ps")}
    assert {method: each.arrays / each.rate_bps * RATE_BPS for method, each in most.items()} == pytest.approx(
        {"switch": 1.5, "ring": 1.75, "ps": 4}
    )
    backed_up = [busiest("ps", replace(each, backups=2)) for each in (given.network, given.network.folded)]
    assert backed_up[0] == backed_up[1]


@pytest.mark.parametrize(
    ("switch", "said"),
    [
        ("trees = 4", "[switch] trees: 4 are too many for spines = 3; allowed: 0 … 3"),
        ("trees = 3\nstreams = 2", "trees: 3 are too many for streams = 2, one at least for each; allowed: 0 … 2"),
    ],
)
def test_more_trees_than_there_can_be_are_refused(switch: str, said: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        parse(f"{SPINES}[switch]\n{switch}\n", "r.toml")
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("pfc_bytes = 30000", "spines: 3: links that can be paused lead over one; allowed: 1, or pfc_bytes = 0"),
        ('congestion_control = "roce"', "paths: spray: RoCE takes what is overtaken for lost; allowed: hash"),
        ('[[flows]]\nkind = "dcqcn"', "paths: spray: RoCE takes what is overtaken for lost; allowed: hash"),
    ],
)
def test_what_spines_can_t_be_with_is_refused(lines: str, said: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        parse(f"{SPINES}{lines}\n", "r.toml")
    assert said in str(refused.value)
    parse(f"{SPINES}paths = 'hash'\n{lines}\n".replace("pfc_bytes", "queue_bytes"), "r.toml")
