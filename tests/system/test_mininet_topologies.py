"""Two switches with one link between them, for real: all reach all, and every link is shaped, counted and certified."""

import dataclasses
import sys
from pathlib import Path

import pytest

from emulation.scenario.topologies.topology import Fabric, LinkSettings, Topology, TopologyLink, host_names
from emulation.scenario.topologies.topology_kinds import TOPOLOGIES, TopologyKind

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("requires_mininet")]

LOAD = [sys.executable, "-S", str(Path(__file__).with_name("load.py"))]
RATE_BPS, TRUNK_BPS = 100_000_000, 50_000_000


def pair(_fabric: Fabric, workers: int, servers: int, settings: LinkSettings) -> Topology:
    """h1 behind s1, which aggregates, all others behind s2; half the rate between the switches."""
    hosts, server_hosts = host_names(workers, servers)
    links = [TopologyLink(host, "s1" if host == "h1" else "s2", settings) for host in hosts + server_hosts]
    trunk = TopologyLink("s1", "s2", dataclasses.replace(settings, rate_bps=settings.rate_bps // 2))
    return Topology(hosts, server_hosts, ("s1", "s2"), "s1", (*links, trunk))


def test_links_between_switches_are_shaped_counted_and_certified(monkeypatch: pytest.MonkeyPatch) -> None:
    from emulation.testbed.certificate.fidelity import FidelityMonitor
    from emulation.testbed.mininet.emulated_network import EmulatedNetwork, NetworkSpec

    monkeypatch.setitem(TOPOLOGIES, "pair", TopologyKind("pair", pair, "two switches"))
    with EmulatedNetwork(NetworkSpec(workers=3, rate_bps=RATE_BPS, fabric=Fabric("pair", placement="one"))) as net:
        rates = {(port.node, port.interface): port.rate_bps for port in net.verification.ports}
        trunk = {("s1", "s1-eth2"), ("s2", "s2-eth3")}
        assert {port for port, rate_bps in rates.items() if rate_bps == TRUNK_BPS} == trunk
        assert len(rates) == 2 * 4
        assert [host.port for host in net.hosts] == [("s1", "s1-eth1"), ("s2", "s2-eth1"), ("s2", "s2-eth2")]
        for rank in range(3):
            for name in {"h1", "h2", "h3", "s1"} - {f"h{rank + 1}"}:
                ping = net.spawn(rank, ["ping", "-c", "1", "-W", "5", name])
                assert ping.wait(20) == 0, f"h{rank + 1} does not reach {name}"
        sink = net.spawn(0, [*LOAD, "sink", net.workers[0].address, "9000"], stdout=-1)
        assert sink.stdout.readline() == b"ready\n"
        monitor = FidelityMonitor(net)
        monitor.start()
        before = net.counters()
        net.spawn(2, [*LOAD, "tcp", net.workers[0].address, "9000", "1"]).wait(60)
        after = net.counters()
        certificate = monitor.stop()
        assert after[2].up_bytes - before[2].up_bytes > 1_000_000
        assert after[0].down_bytes - before[0].down_bytes > 1_000_000
        polls = certificate.measures["backlogged_polls_share"]
        assert set(polls) == {interface for _, interface in rates}
        assert polls["s2-eth3"] > 0.3, "the queue is where the link is slowest"
        assert certificate.measures["backlogged_gaps"] > 50


def test_switches_below_a_switch_sum_exactly_and_pass_up_one_sum_for_a_rack() -> None:
    from emulation.experiments.bench.allreduce.allreduce_cells import Bench
    from emulation.experiments.bench.allreduce.ranks import Ranks
    from emulation.experiments.bench.bench_run import BenchMatrix
    from emulation.testbed.mininet.launch import RunningScenario

    (wish,) = BenchMatrix([3], [RATE_BPS], [200_000], "switch", iterations=2).requests()
    racks = dataclasses.replace(wish.scenario.topology, kind="leaf_spine", racks=(2, 1), oversubscription=2)
    wish = dataclasses.replace(wish, scenario=dataclasses.replace(wish.scenario, topology=racks))
    (method,) = wish.methods
    with RunningScenario(wish.scenario) as network:
        switch = network.start_switch(method.cell(wish.scenario, 200_000), method.method, method.name)
        assert [network.via(rank) for rank in range(3)] == [
            "leaf1",
            "leaf1",
            "",
        ]  # one worker's leaf would gain nothing
        with Ranks(network, "float32", 200_000, 60.0) as ranks:
            bench = Bench(wish, network, {method: switch}, ranks)
            bench.open(method)
            cell = bench.size([method], 200_000, lambda line: None)[method]
            counters = network.switch_counters(switch)
    assert len(cell.durations_ns) == 2
    assert cell.wrong == 0
    assert counters["up"] == counters["broadcast"] / 2 > 200_000 / 4 / 360
