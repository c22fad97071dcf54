"""Lossless links in virtual time: pauses lose nothing; DCQCN; deadlocks are found and their ports named."""

import functools
from itertools import pairwise

import numpy as np
import pytest

from emulation.sim.lossless.dcqcn import QueuePair
from emulation.sim.lossless.deadlock import DeadlockWatch, buffer_cycle, refuse_cycles
from emulation.sim.lossless.network import LosslessNetwork
from emulation.sim.lossless.pausing import Charges, PausableLink, PfcConfig, Port, Red
from emulation.sim.network.link import NODE_MASK, LinkConfig
from emulation.sim.network.network import Network, SimulationError
from emulation.sim.network.simulation import Call, SimulationConfig
from emulation.sim.network.simulations import SIMULATIONS
from emulation.topologies.topology import Fabric
from switchagg.wire import headers

MB_S = 1_000_000_000 // 8
LINK = LinkConfig(rate_bps=1_000_000_000, delay_ns=2_000)


class Lossless:
    """Switches, named by capitals, and hosts, on cables; `routes` by (switch, host): the next node."""

    def __init__(self, cables, routes, pfc=None):
        self.network = Network()
        self.charges, self.links, self.ports, self.received = Charges(), {}, {}, {}
        self.routes, self.pfc = routes, pfc or PfcConfig()
        self.hosts = [end for cable in cables for end in cable if end.islower()]
        for a, b in cables:
            for hop in ((a, b), (b, a)):
                self.links[hop] = PausableLink(
                    self.network, LINK, self._at(hop[1]), "-".join(hop), self.pfc, self.charges
                )
        for hop, link in self.links.items():
            if hop[1].isupper():
                self.ports[hop] = Port(link, self.links[hop[::-1]], self._at(hop[1]), self.pfc)

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
        pairs.append(QueuePair(number, links, (number, to), (to, number)))
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
    network = LosslessNetwork(config.built(), config.link, pfc)
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
        begin = functools.partial(job.begin, rank, Call(arrays[rank], "sum", done))
        network.time.schedule(20_000_000 * (rank == 1), lambda *_, begin=begin: begin())
    network.time.run()
    return network, arrays


HELD = {}


def hold_until_whole(network, port):
    receive = port._receive

    def slot(frame):
        header = headers(frame)[0]
        return int(header["slot"]), int(header["chunk"])

    def receive_and_release(frame, sender, to):
        receive(frame, sender, to)
        if network.charges.now.frames > 1:  # it completed a sum, whose results are on their way
            for charge in HELD.pop(slot(frame), []):
                charge.port.release(charge)

    port._receive = receive_and_release
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
