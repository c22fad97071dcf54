"""Lossless links in virtual time: pauses lose nothing; DCQCN; deadlocks are found and their ports named."""

import functools
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from emulation.scenario.scenario import ScenarioError, canonical, parse
from emulation.scenario.scenario_tables import PACKET
from emulation.scenario.topologies.topology import Fabric
from emulation.sim.fidelity_level import FidelityLevel
from emulation.sim.lossless.deadlock import DeadlockWatch, buffer_cycle, refuse_cycles
from emulation.sim.lossless.pausing import PfcConfig, Red
from emulation.sim.lossless.simulated_queue_pair import SimulatedQueuePair
from emulation.sim.network.aggregation_host import SimulatedCall
from emulation.sim.network.simulated_link import CLASS_SHIFT, NODE_MASK, LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.simulations import SIMULATIONS
from emulation.sim.network.timing import time_allreduce
from emulation.sim.network.virtual_clock import SimulationError, VirtualClock
from emulation.sim.simulated_run import _simulation, simulation_config
from switchagg.calls.call_request import CallRequest
from switchagg.priority import BEST_EFFORT
from switchagg.wire import headers
from tests.oracles.oracle_links import OracleLink
from tests.oracles.oracle_network import OracleConfig, OracleLosslessNetwork, oracle
from tests.oracles.pausing import Charges, OracleIngressPort, OraclePausableLink
from tests.shared.canonical_scenario import from_canonical

MB_S = 1_000_000_000 // 8
LINK = LinkConfig(rate_bps=1_000_000_000, delay_ns=2_000)


class Lossless:
    """Switches, named by capitals, and hosts, on cables; `routes` by (switch, host): the next node."""

    def __init__(self, cables, routes, pfc=None):
        self.network = VirtualClock()
        self.charges, self.links, self.ports, self.received = Charges(), {}, {}, {}
        self.routes, self.pfc = routes, pfc or PfcConfig()
        self.hosts = [end for cable in cables for end in cable if end.islower()]
        for a, b in cables:
            for hop in ((a, b), (b, a)):
                self.links[hop] = OraclePausableLink(
                    self.network, LINK, self._at(hop[1]), "-".join(hop), self.pfc, self.charges
                )
        for hop, link in self.links.items():
            if hop[1].isupper():
                self.ports[hop] = OracleIngressPort(link, self.links[hop[::-1]], self.pfc)

    def _at(self, node):
        def receive(frame, sender, to):
            if node.islower():
                self.received[sender] = self.received.get(sender, 0) + 1
            else:
                after = self.routes[node, self.hosts[to & NODE_MASK]]
                size_bytes = getattr(frame, "wire_bytes", 1500)
                self.links[node, after].send(frame, size_bytes, self.network.now_ns, sender, to)

        return receive

    def blast(self, host, to, frames):
        """So many frames of 1,500 bytes at once."""
        link = next(link for hop, link in self.links.items() if hop[0] == host)
        for _ in range(frames):
            link.send(bytes(1500), 1500, self.network.now_ns, self.hosts.index(host), self.hosts.index(to))

    def run(self, milliseconds):
        end_ns = self.network.now_ns + int(milliseconds * 1e6)
        self.network.schedule(end_ns, lambda *_: self.network.stop())
        self.network.run()


def star(senders, pfc=None):
    names = [f"h{number}" for number in range(senders)] + ["to"]
    return Lossless([(name, "S") for name in names], {("S", name): name for name in names}, pfc)


def test_incast_pauses_its_senders_and_loses_nothing():
    net = star(8, PfcConfig(xoff_bytes=30_000, xon_bytes=27_000))
    for number in range(8):
        net.blast(f"h{number}", "to", 500)
    net.run(60)
    assert net.received == dict.fromkeys(range(8), 500)
    for number in range(8):
        port = net.ports[f"h{number}", "S"]
        assert net.links[f"h{number}", "S"].pauses > 0
        assert port.dropped == 0
        assert 30_000 < port.most_bytes <= 30_000 + net.pfc.headroom(LINK)
        assert port.held_bytes == [0] * 8


def test_without_headroom_frames_are_lost():
    net = star(4, PfcConfig(xoff_bytes=30_000, xon_bytes=27_000, headroom_bytes=0))
    for number in range(4):
        net.blast(f"h{number}", "to", 100)
    net.run(20)
    assert sum(port.dropped for port in net.ports.values()) > 0


def test_a_pause_stops_a_class_alone_and_links_of_one_class_are_exact():
    net = star(2)
    link = net.links["h0", "S"]
    link.pause(7, True)
    net.blast("h0", "to", 10)
    link.send(bytes(1500), 1500, 0, 0, net.hosts.index("to") | 7 << 16)  # class 0
    net.run(5)
    assert net.received == {0: 1}
    link.pause(7, False)
    begun_ns = net.network.now_ns
    times = []
    net.links["S", "to"].receive = lambda *_: times.append(net.network.now_ns - begun_ns)
    net.run(5)
    assert times == [2 * (12_000 + 2_000) + 12_000 * number for number in range(10)]


def dcqcn_pairs(count, pfc):
    net = star(count, pfc)
    to, pairs = net.hosts.index("to"), []
    for number in range(count):
        links = net.links[f"h{number}", "S"], net.links["to", "S"]
        pairs.append(SimulatedQueuePair(number, links, (number, to), (to, number)))
        pairs[-1].write(None)
        net.links["S", f"h{number}"].receive = pairs[number].receive
    net.links["S", "to"].receive = lambda frame, sender, to: pairs[sender].receive(frame, sender, to)
    return net, pairs


def test_dcqcn_keeps_the_queue_short_and_shares_evenly():
    """Of two senders: with marks there are no pauses, without them pauses alone hold the senders back."""
    results = {}
    for name, red in (("marks", Red(5_000, 50_000, 0.1)), ("none", None)):
        net, pairs = dcqcn_pairs(2, PfcConfig(red=red))
        for pair in pairs:
            pair.open()
        net.run(40)
        before = [pair.arrived_bytes for pair in pairs]
        pauses = sum(link.pauses for link in net.links.values())
        net.run(40)
        rates = [(pair.arrived_bytes - count) / 0.04 / MB_S for pair, count in zip(pairs, before, strict=True)]
        results[name] = rates, sum(link.pauses for link in net.links.values()) - pauses
        assert not any(port.dropped for port in net.ports.values())
        assert not any(pair.counters["retransmitted"] for pair in pairs)
    assert all(rate == pytest.approx(0.5, abs=0.02) for rate in results["none"][0])
    assert results["none"][1] > 100
    assert sum(results["marks"][0]) > 0.8
    assert results["marks"][1] == 0
    assert min(results["marks"][0]) > 0.4 * sum(results["marks"][0])


def test_time_in_pauses_is_counted_and_classes_share_a_link_fairly_unless_one_is_paused():
    net = star(2, PfcConfig(classes=frozenset({7}), strict=False))
    link, to = net.links["h0", "S"], net.hosts.index("to")
    lossy = 1 << CLASS_SHIFT
    for _ in range(100):
        link.send(bytes(1500), 1500, 0, 0, to)
        link.send(bytes(1500), 1500, 0, 0, to | lossy)
    order = []
    link.receive = lambda _frame, _sender, to: order.append(to & lossy)
    net.run(0.6)  # 50 frames less the way
    assert 48 <= len(order) <= 50
    assert abs(2 * sum(map(bool, order)) - len(order)) <= 1
    link.pause(7, True)
    net.run(0.12)
    link.pause(7, False)
    assert (link.paused_ns(7), link.pauses) == (120_000, 1)
    assert all(order[51:59])  # the paused class has none, and asks for no more than its part afterwards
    net.run(0.6)
    assert abs(2 * sum(map(bool, order[62:])) - len(order[62:])) <= 1


SCENARIO = """
name = "pauses"
title = "Pauses"
[methods]
mininet = []
sim = ["switch", "ring", "ps", "mlt"]
[topology]
kind = "leaf_spine"
racks = 2
workers = 4
rate_bps = 100_000_000
delay_ns = 2_000
queue_bytes = 60_000
pfc_bytes = 20_000
[switch]
streams = 1
window_slots = 64
[[flows]]
kind = "roce"
count = 3
[[flows]]
kind = "cubic"
[[flows]]
kind = "incast"
congestion = "dcqcn"
count = 2
size_bytes = 20_000
period_ns = 20_000_000
"""


def job_beside(text, method, elements=40_000):
    """One sum of int32 beside the scenario's flows, exact; its network's result."""
    scenario = parse(text, "pauses.toml")
    job = _simulation(scenario, method, simulation_config(scenario), FidelityLevel(PACKET, ()))
    arrays, left = [np.full(elements, rank, np.int32) for rank in range(4)], [4]

    def done():
        left[0] -= 1
        if not left[0]:
            job.network.stop()

    for rank, array in enumerate(arrays):
        job.launch(rank, array, "sum", done)
    job.network.schedule(2_000_000_000, lambda *_: job.network.stop())
    job.run("the sum")
    assert all((array == 6).all() for array in arrays)
    found = {}
    for document in job.shared.documents:
        found |= document()
    return job, found


@pytest.mark.parametrize("method", ["switch", "ring", "ps", "mlt"])
def test_every_method_s_links_pause_and_only_tcp_loses_anything(method):
    job, found = job_beside(SCENARIO, method)
    links = found["pauses"]["links"]
    assert sum(link["pauses"] for link in links) > 10
    assert not any(link["lossless_drops"] for link in links)
    assert sum(link["dropped_frames"] for link in links) == job.faults()["drop_queue"] > 0
    assert all(0 <= link["paused_ns"] <= found["pauses"]["run_ns"] for link in links)
    assert all(link["held_most_bytes"] <= 20_000 + link["headroom_bytes"] for link in links)
    roce, cubic, incast = found["flows"]
    assert all(link["queue_most_bytes"] <= 12_500 for link in links if link["from"] in roce["from"])  # 1 ms of a host
    assert roce["goodput_bps"][0] > 0
    assert incast["finished"] > 0
    assert cubic["counters"]["retransmitted"] > 0


def test_tcp_in_the_lossless_class_loses_nothing_either_and_thresholds_are_derived_or_given():
    shared = SCENARIO.replace("pfc_bytes", "pfc_flows = 1\npfc_bytes")
    _, found = job_beside(shared, "ring", 10_000)
    assert found["flows"][1]["counters"]["retransmitted"] == 0
    assert not any(link["lossless_drops"] + link["dropped_frames"] for link in found["pauses"]["links"])
    assert found["pauses"]["xon_bytes"] == 20_000 - 2 * 1_514
    headroom = {link["to"]: link["headroom_bytes"] for link in found["pauses"]["links"]}
    assert (headroom["h1"], headroom["leaf1"]) == (0, 100 + 3 * 1_514 + 64)  # 2 · 2 us at 200 Mb/s
    given = parse(SCENARIO.replace("pfc_bytes", "pfc_headroom_bytes = 9\npfc_xon_bytes = 7\npfc_bytes"), "t")
    network = _simulation(given, "ring", simulation_config(given), FidelityLevel(PACKET, ())).shared
    assert (network.pfc.xon_bytes, network.pfc.headroom(LINK)) == (7, 9)


def test_a_queue_pair_s_last_packets_and_acknowledgements_may_be_lost():
    network = VirtualClock(events_max=20_000)
    ways = [OracleLink(network, replace(LINK, loss=0.2), lambda *frame: pair.receive(*frame), seed) for seed in "ab"]
    pair = SimulatedQueuePair(0, (ways[0], ways[1]), (0, 1), (1, 0), control="roce")
    ended = []
    pair.ended = lambda: ended.append(network.now_ns) or (pair.write(7) if len(ended) < 4 else network.stop())
    pair.write(7)
    pair.open()
    network.run()
    assert (len(ended), pair.received) == (4, 28)
    assert pair.counters["retransmitted"] > 0


@pytest.mark.parametrize("method", ["switch", "direct"])
def test_the_oracle_has_the_same_pauses(method, monkeypatch):
    """On up-links of an eighth of what their racks send, with marks by chance; frames are lost and damaged."""
    more = "oversubscription = 8\necn_bytes = 2_000\necn_most_bytes = 9_000\necn_chance = 0.5\npfc_bytes"
    text = SCENARIO[: SCENARIO.index("[[flows]]")].replace("pfc_bytes = 20_000", f"{more} = 4_000")
    told = []
    for kinds in (SimulationConfig.network_kinds, OracleConfig.network_kinds):
        monkeypatch.setattr(SimulationConfig, "network_kinds", kinds)
        job, found = job_beside(text + "[faults]\nloss = 0.001\ncorrupt = 0.001\n", method)
        told.append((found, job.network.now_ns, job.network.events, job.retransmissions(), job.faults()))
    assert told[0] == told[1]
    assert sum(link["pauses"] for link in told[0][0]["pauses"]["links"]) > 10
    assert method == "direct" or any(link["marked_frames"] for link in told[0][0]["pauses"]["links"])


@pytest.mark.parametrize("stuck_ns", [400_000, 1_000_000])
def test_the_watch_sees_ports_in_c(stuck_ns):
    """Frames of 1.2 ms each: what waits for a link so slow counts as stuck."""
    pfc = PfcConfig(xoff_bytes=3_000, xon_bytes=2_000, stuck_ns=stuck_ns)
    fabric, errors = Fabric("leaf_spine", racks=2, oversubscription=4.0), []
    terms = SimulationConfig(8, LinkConfig(rate_bps=10_000_000), fabric=fabric, pfc=pfc)
    for config in (terms, oracle(terms)):
        with pytest.raises(
            SimulationError, match=r"port \w+-\w+ is paused for good: switch \w+ holds \d+ bytes"
        ) as found:
            time_allreduce(config, "direct", 100_000)
        errors.append(str(found.value))
    assert errors[0] == errors[1]


@pytest.mark.parametrize("control", ["dcqcn", "roce"])
def test_a_job_over_roce_loses_nothing_and_hears_of_its_queues(control):
    """On up-links of a quarter of what their racks send."""
    more = f'oversubscription = 4\necn_bytes = 4_000\ncongestion_control = "{control}"\npfc_bytes'
    text = SCENARIO[: SCENARIO.index("[[flows]]")].replace("pfc_bytes", more)
    job, found = job_beside(text, "direct")
    links = found["pauses"]["links"]
    assert sum(link["pauses"] for link in links) > 0 == job.retransmissions()
    assert not any(link["lossless_drops"] + link["dropped_frames"] for link in links)
    pairs = job._tcp.connections
    assert len(pairs) == 12
    assert all(pair.payload_bytes == 1024 for pair in pairs)
    assert sum(pair.counters["cnps"] for pair in pairs) > 0
    assert all((pair._rate is not None) == (control == "dcqcn") for pair in pairs)


def test_dcqcn_on_links_that_drop_goes_back_to_what_was_lost():
    text = SCENARIO.replace("pfc_bytes = 20_000", "").replace("count = 2", "count = 12").replace('"roce"', '"cubic"')
    _, found = job_beside(text, "ring", 10_000)
    assert "pauses" not in found
    assert found["flows"][2]["counters"]["retransmitted"] > 0 < found["flows"][2]["finished"]


def test_what_links_with_pauses_cannot_have_is_refused_in_one_line():
    for old, new, words in (
        ("mininet = []", 'mininet = ["gloo"]', "pfc_bytes: 20000: Linux's shapers send no pauses; allowed: [methods]"),
        ("pfc_bytes = 20_000", "pfc_bytes = 2_000", "holds less than two frames; allowed: 3028 or more"),
        ("pfc_bytes = 20_000", "pfc_xon_bytes = 9", "pfc_xon_bytes: 9 is of links that can be paused; allowed: 0, or"),
        ("pfc_bytes", "pfc_xon_bytes = 30_000\npfc_bytes", "pfc_xon_bytes: 30000 is out of range; allowed: 0 … pfc_"),
        ("pfc_bytes", "ecn_most_bytes = 9\npfc_bytes", "ecn_most_bytes: 9 is out of range; allowed: 0, or above an"),
        ("pfc_bytes", "priority_queues = 8\npfc_bytes", "a link has one lossless class; allowed: priority_queues = 0"),
        ("pfc_bytes", "drop_bytes = 9\npfc_bytes", "nothing is dropped there; allowed: drop_bytes = 0"),
        ("[switch]", "[faults]\nreorder = 0.1\n[switch]", "headroom is for links that deliver once, after delay_ns"),
    ):
        with pytest.raises(ScenarioError) as refused:
            parse(SCENARIO.replace(old, new, 1), "pauses.toml")
        assert words in str(refused.value)
        assert len(str(refused.value).splitlines()) == 1
    alone = SCENARIO.replace("mininet = []", 'mininet = ["gloo"]').replace("pfc_bytes = 20_000", "")
    with pytest.raises(ScenarioError, match="congestion_control: roce: RoCE is in virtual time alone"):
        parse(alone.replace("[switch]", 'congestion_control = "roce"\n[switch]'), "pauses.toml")
    with pytest.raises(ScenarioError, match="kind: 'roce' is in virtual time alone"):
        parse(alone, "pauses.toml")
    given = parse(SCENARIO, "pauses.toml")
    assert from_canonical(canonical(given)) == replace(given, file="scenario")
    assert "pfc_bytes" not in canonical(parse(SCENARIO.replace("pfc_bytes = 20_000", ""), "t"))["topology"]


RING = [("a", "A"), ("b", "B"), ("c", "C"), ("A", "B"), ("B", "C"), ("C", "A")]
CLOCKWISE = {
    ("A", "a"): "a", ("B", "b"): "b", ("C", "c"): "c",
    ("A", "b"): "B", ("A", "c"): "B", ("B", "c"): "C", ("B", "a"): "C", ("C", "a"): "A", ("C", "b"): "A",
}  # fmt: skip


def test_routes_in_a_circle_are_refused_and_trees_are_not():
    circle = [list(pairwise(route)) for route in ("aABCc", "bBCAa", "cCABb")]
    assert buffer_cycle(circle) == [("A", "B"), ("B", "C"), ("C", "A")]
    with pytest.raises(SimulationError, match="wait for each other in a circle: A-B, B-C, C-A"):
        refuse_cycles(circle)
    refuse_cycles([list(pairwise(route)) for route in ("aABb", "bBAa", "aABCc", "cCBAa", "cCBb")])


def test_a_deadlock_in_a_run_is_found_and_its_ports_are_named():
    pfc = PfcConfig(xoff_bytes=20_000, xon_bytes=17_000, stuck_ns=5_000_000)
    net = Lossless(RING, CLOCKWISE, pfc)
    DeadlockWatch(net.network, net.links, pfc.stuck_ns)
    for host, to in ("ac", "ba", "cb"):
        net.blast(host, to, 400)
    with pytest.raises(SimulationError, match=r"paused ports wait for each other: A-B, B-C, C-A"):
        net.run(100)


def test_busy_links_are_no_deadlock():
    pfc = PfcConfig(xoff_bytes=20_000, xon_bytes=17_000, stuck_ns=5_000_000)
    net = star(8, pfc)
    DeadlockWatch(net.network, net.links, pfc.stuck_ns)
    for number in range(8):
        net.blast(f"h{number}", "to", 500)
    net.run(60)
    assert sum(net.received.values()) == 8 * 500


def staggered_job(wrong):
    """Two racks of two behind one aggregating switch; rank 1 begins late. wrong: room is held until a sum is whole."""
    config = SimulationConfig(
        workers=4,
        link=LinkConfig(rate_bps=100_000_000, delay_ns=2_000),
        fabric=Fabric("leaf_spine", racks=2, oversubscription=2.0, placement="one"),
        streams=1,
        window_slots=64,
    )
    pfc = PfcConfig(xoff_bytes=20_000, xon_bytes=17_000, stuck_ns=50_000_000)
    network = OracleLosslessNetwork(config.built(), config.link, pfc)
    job = SIMULATIONS["switch"](config, network)
    (root,) = network.topology.aggregators
    for hop, port in network.ports.items():
        if wrong and hop[1] == root:
            hold_until_whole(network, port)
    arrays = [np.full(100_000, rank, np.int32) for rank in range(4)]
    left = [4]

    def done():
        left[0] -= 1
        if not left[0]:
            network.time.stop()

    for rank in range(4):
        begin = functools.partial(
            job.begin, rank, SimulatedCall(arrays[rank], CallRequest("allreduce", priority=BEST_EFFORT), done)
        )
        network.time.schedule(20_000_000 * (rank == 1), lambda *_, begin=begin: begin())
    network.time.run()
    return network, arrays


HELD = {}


def hold_until_whole(network, port):
    receive = port.link.receive

    def slot(frame):
        header = headers(frame)[0]
        return int(header["slot"]), int(header["chunk"])

    def receive_and_release(frame, sender, to):
        receive(frame, sender, to)
        if network.charges.now.frames > 1:  # it completed a sum, whose results are on their way
            for charge in HELD.pop(slot(frame), []):
                charge.port.release(charge)

    port.link.receive = receive_and_release
    port.absorbed = lambda charge, frame: HELD.setdefault(slot(frame), []).append(charge)


def test_a_sum_that_waits_for_a_late_rank_holds_nobody_s_credit():
    network, arrays = staggered_job(wrong=False)
    assert all((array == 6).all() for array in arrays)
    assert sum(link.pauses for link in network.pausable.values()) > 0
    assert network.faults()["drop_queue"] == 0
    assert not any(port.dropped for port in network.ports.values())


def test_one_that_holds_it_until_it_is_whole_deadlocks_and_is_found():
    """As in-network reduction in htsim did: the late rank's packets wait behind the pause that only they could end."""
    HELD.clear()
    with pytest.raises(SimulationError, match=r"port leaf1-\w+ is paused for good: switch \w+ holds \d+ bytes"):
        staggered_job(wrong=True)
