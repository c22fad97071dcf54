"""Several ranks on each host, behind its one link: times by arithmetic, bounds, who sums, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest

from emulation.report.wording import topology_text
from emulation.scenario.bounds import NetworkParameters, bound, loads
from emulation.scenario.scenario import Scenario, ScenarioError, canonical, parse
from emulation.scenario.topologies.topology import SINGLE, Fabric, LinkSettings
from emulation.scenario.topologies.topology_kinds import topology
from emulation.sim.host_costs import HostCosts
from emulation.sim.network.simulated_link import UDP_FRAMING_BYTES, LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.timing import time_allreduce
from switchagg.wire import frame_bytes
from tests.shared.canonical_scenario import from_canonical
from transport.group.method_name import parse as parse_method

DELAY_NS = 500
RATE_BPS = 8_000_000_000  # a byte in a nanosecond
TRANSFER_NS = 1000
PACKET = frame_bytes(360) + UDP_FRAMING_BYTES
PAIRS = Fabric(ranks_per_host=2, inside_bps=2 * RATE_BPS)


def took(
    method: str, size_bytes: int, fabric: Fabric, workers: int = 4, queue_bytes: int = 1_000_000, **config: Any
) -> int:
    link = LinkConfig(RATE_BPS, DELAY_NS, queue_bytes)
    made = SimulationConfig(workers, link, fabric=fabric, streams=1, **config)
    run = time_allreduce(made, method, size_bytes)
    assert (run.wrong_elements, run.retransmissions) == (0, 0)
    return run.duration_ns


def test_ranks_of_a_host_meet_inside_and_others_over_both_nics() -> None:
    """A ring of 4 on 2 hosts: of any 6 hops one after the other, 3 stay inside a host and 3 leave it."""
    frame = 996 + 48 + 66
    inside, across = 2 * (frame // 2), 2 * (frame // 2) + 2 * (frame + DELAY_NS)
    ns = took("ring", 4 * 996, PAIRS, costs=HostCosts(TRANSFER_NS))
    assert ns == 6 * 2 * TRANSFER_NS + 3 * (inside + across)


def test_a_rank_faster_than_its_nic_fills_no_queue_beyond_its_end() -> None:
    fast = replace(PAIRS, inside_bps=20 * RATE_BPS)
    assert took("ring", 400_000, fast, queue_bytes=50_000) < 1.1 * 1.5 * 400_000 * 1514 / 1448


@pytest.mark.parametrize(("sums", "at_once"), [(False, 2), (True, 1)])
def test_a_nic_carries_the_packets_of_all_its_ranks_or_their_sums(sums: bool, at_once: int) -> None:
    packets = 101  # 100 of values, behind one that describes the call (W12)
    ns = took("switch", 100 * 1440, replace(PAIRS, inside_sums=sums))
    assert ns == 2 * (PACKET // 2) + packets * at_once * PACKET + at_once * PACKET + 2 * DELAY_NS


def test_bounds_are_of_nics_and_groups() -> None:
    network = NetworkParameters(16, RATE_BPS, 1500, 360, fabric=Fabric(ranks_per_host=8, inside_bps=100 * RATE_BPS))
    nic = ("n1", "s1")
    carried = {method: loads(method, network)[nic] for method in ("switch", "ring", "hierarchical", "halving_doubling")}
    assert carried == {"switch": 8, "ring": 30 / 16, "hierarchical": 1, "halving_doubling": 1}
    summing = replace(network, fabric=replace(network.fabric, inside_sums=True))
    assert loads("switch", summing)[nic] == 1
    size_bytes = 320_000
    for method in (*carried, "torus", "direct", "ps", "double_tree"):
        least_ns = bound(parse_method(method), size_bytes, network).communication_ns
        ns = took(method, size_bytes, network.fabric, 16, group=network.fabric.group(16), window_slots=80)
        assert ns > least_ns * 0.9999, method  # of int32 here, without exponents
        assert ns < 1.1 * least_ns, method


def test_what_joins_ranks_sums_only_if_asked() -> None:
    settings = LinkSettings(RATE_BPS, DELAY_NS)

    def built(workers: int, **fabric: Any) -> Any:
        return topology(replace(PAIRS, **fabric), workers, 1, settings)

    assert built(5).children == {"s1": ("h1", "h2", "h3", "h4", "h5")}  # the third host has one rank
    assert built(5, inside_sums=True).children == {"n1": ("h1", "h2"), "n2": ("h3", "h4"), "s1": ("h5", "n1", "n2")}
    assert built(2).root == "s1" != built(2, inside_sums=True).root == "n1"
    assert built(6, inside_sums=True, placement=SINGLE).aggregators == ("s1",)
    assert built(4).servers == ("h5",)
    racks = built(6, kind="leaf_spine", racks=(2, 1))
    assert racks.children == {"leaf1": ("h1", "h2", "h3", "h4"), "spine1": ("h5", "h6", "leaf1")}
    assert racks.nic("h4") == "n2"
    assert racks.settings(("h1", "n1")).delay_ns == 0


def scenario(lines: str, *methods: str) -> Scenario:
    names = ", ".join(f'"{name}"' for name in methods or ("ring", "switch"))
    return parse(f'name = "h"\ntitle = "h"\n[methods]\nmininet = []\nsim = [{names}]\n[topology]\n{lines}\n', "h.toml")


def test_results_have_the_keys_where_they_say_something() -> None:
    lines = "ranks_per_host = 2\ninside_bps = 3e9"
    one = scenario(lines)
    assert from_canonical(canonical(one)).topology == one.topology
    assert "inside_bps" not in canonical(scenario("workers = 4"))["topology"]
    assert one.network.fabric.group(4) == 2
    words = topology_text({"scenario": one, "methods": [{"method": parse_method("ring")}]})
    assert "one switch; 2 ranks on each host share its link, and are joined inside by links of 3 Gb/s" in words


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("ranks_per_host = 2", "[topology] kind: star: inside_bps: missing; allowed: the rate of a rank's link"),
        ("inside_bps = 1e9", "inside_bps: with ranks_per_host = 1 nothing is inside a host"),
        (
            'kind = "leaf_spine"\nracks = [2, 2]\nranks_per_host = 2\ninside_bps = 1e9',
            "racks: 4 hosts in all, but there",
        ),
        ("ranks_per_host = 2\ninside_bps = 1e9\npfc_bytes = 9000", "ranks_per_host: 2: what joins ranks"),
    ],
)
def test_what_hosts_cannot_be_is_one_line(lines: str, words: str) -> None:
    with pytest.raises(ScenarioError) as error:
        scenario(lines)
    assert words in str(error.value)


def test_methods_and_mininet_that_have_no_such_hosts_say_so() -> None:
    two = "ranks_per_host = 2\ninside_bps = 1e9"
    with pytest.raises(ScenarioError, match="ranks_per_host: 2: esa sums in the switch that a worker is at"):
        scenario(two, "esa")
    with pytest.raises(ScenarioError, match="ranks_per_host: 2: in Mininet each rank has a host of its own"):
        parse(f'name = "h"\ntitle = "h"\n[topology]\n{two}\n', "h.toml")
