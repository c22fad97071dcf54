"""What transfers cost hosts, and connections slower than their links: times of whole allreduces, by arithmetic."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from emulation.scenario.scenario import ScenarioError, canonical, parse
from emulation.sim.flow.flow_methods import FLOWS
from emulation.sim.flow.flow_simulation import NotDescribed
from emulation.sim.host_costs import FREE, NO_PACKET_COSTS, HostCosts, PacketCosts
from emulation.sim.network.simulated_link import UDP_FRAMING_BYTES, LinkConfig
from emulation.sim.network.simulation import Simulation, SimulationConfig
from emulation.sim.network.simulations import SIMULATIONS
from emulation.sim.network.timing import time_allreduce
from switchagg.wire import frame_bytes
from tests.shared.canonical_scenario import from_canonical

DELAY_NS = 500
TRANSFER_NS = 20_000
RATE_BPS = 8_000_000_000  # a byte in a nanosecond
FRAME = 1514  # a full segment's; of its 1448 bytes a message's head takes 48
OVERHEAD = FRAME - 1448
PACKET = frame_bytes(360) + UDP_FRAMING_BYTES


def took(method: str, size_bytes: int, *, workers: int = 2, costs: HostCosts = FREE, **config: Any) -> int:
    link = LinkConfig(RATE_BPS, DELAY_NS)
    run = time_allreduce(SimulationConfig(workers, link, streams=1, costs=costs, **config), method, size_bytes)
    assert (run.wrong_elements, run.retransmissions) == (0, 0)
    return run.duration_ns


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_each_step_of_a_ring_costs_both_hosts_a_transfer(workers: int) -> None:
    piece = 1000
    on_the_way = 2 * (piece + 48 + OVERHEAD + DELAY_NS)
    steps = 2 * (workers - 1)
    ns = took("ring", workers * piece, workers=workers, costs=HostCosts(TRANSFER_NS))
    assert ns == steps * (TRANSFER_NS + on_the_way + TRANSFER_NS)


def test_two_points_of_a_ring_give_what_a_transfer_costs() -> None:
    """The arithmetic of docs/emulate.md."""
    workers, sizes = 4, (4_000, 40_000)
    times = [took("ring", size, workers=workers, costs=HostCosts(TRANSFER_NS)) for size in sizes]
    beta = (times[1] - times[0]) / (sizes[1] - sizes[0])
    way_ns = 2 * DELAY_NS
    assert (times[0] - beta * sizes[0] - 2 * (workers - 1) * way_ns) / (4 * (workers - 1)) == pytest.approx(
        TRANSFER_NS, rel=0.03
    )


def test_segments_of_a_message_are_one_transfer() -> None:
    two_frames = FRAME + 600 + OVERHEAD  # 2000 bytes and the head
    on_the_way = max(FRAME, 600 + OVERHEAD) + two_frames + 2 * DELAY_NS
    assert took("ring", 4000, costs=HostCosts(TRANSFER_NS)) == 2 * (2 * TRANSFER_NS + on_the_way)
    cut = took("ring", 4000, costs=HostCosts(TRANSFER_NS), message_bytes=1448)  # the same in two messages each way
    assert abs(cut - 2 * (2 * TRANSFER_NS + on_the_way)) < TRANSFER_NS


def test_a_host_deals_with_its_peers_one_after_the_other() -> None:
    """`direct` among 4. What comes goes first: two sends, two that came, a send, and the last that comes; both ways."""
    on_the_way = 2 * (1000 + 48 + OVERHEAD + DELAY_NS)
    assert took("direct", 4000, workers=4, costs=HostCosts(TRANSFER_NS)) == 2 * (6 * TRANSFER_NS + on_the_way)


def test_a_call_costs_a_worker_of_the_switch_two_transfers() -> None:
    for size_bytes in (4, 1440, 100_000):
        assert took("switch", size_bytes, costs=HostCosts(TRANSFER_NS)) == took("switch", size_bytes) + 2 * TRANSFER_NS


def test_a_server_takes_a_transfer_for_each_worker_each_way() -> None:
    on_the_way = 2 * (1000 + 48 + OVERHEAD + DELAY_NS)
    for workers in (2, 3):
        ns = took("ps", 1000, workers=workers, servers=1, costs=HostCosts(TRANSFER_NS))
        assert ns == (1 + 2 * workers + 1) * TRANSFER_NS + 2 * on_the_way
    many = [took("ps", 500_000, servers=1, costs=costs) for costs in (HostCosts(10 * TRANSFER_NS), FREE)]
    assert 0 < many[0] - many[1] <= 60 * TRANSFER_NS  # 8 slices, of one call


def test_a_connection_is_no_faster_than_its_rate() -> None:
    slot = 4 * FRAME  # at a quarter of the link's rate
    size_bytes = 2 * (3 * 1448 - 48)  # two pieces of three frames: one goes there, then the sum of the other
    ns = took("ring", size_bytes, costs=HostCosts(flow_bps=RATE_BPS // 4))
    assert ns == 5 * slot + 2 * (FRAME + DELAY_NS)


def test_a_worker_of_the_switch_is_one_connection() -> None:
    later = 100  # packets after the first: so many of values, behind one that describes the call (W12)
    for rate_bps in (RATE_BPS // 4, RATE_BPS // 3):
        ns = took("switch", 100 * 1440, costs=HostCosts(flow_bps=rate_bps))
        assert ns == -(-later * PACKET * 8_000_000_000 // rate_bps) + 2 * (PACKET + DELAY_NS)  # no nanosecond is lost


def test_slow_connections_beside_each_other_fill_a_link() -> None:
    """Three peers of `direct`, a quarter of the rate each, are nearly three times as fast as one of a ring's."""
    config: dict[str, Any] = {"workers": 4, "costs": HostCosts(flow_bps=RATE_BPS // 4)}
    ring, direct = (took(method, 400_000, **config) for method in ("ring", "direct"))
    assert 2.8 < ring / direct < 3.1


def ends(simulation: Simulation, calls: dict[int, list[tuple[int, int]]]) -> dict[tuple[int, int], int]:
    """When each rank's calls (key, priority) of 4,000 bytes end, begun by all at once in each rank's order."""
    found: dict[tuple[int, int], int] = {}

    def done(rank: int, key: int) -> None:
        found[rank, key] = simulation.network.now_ns
        if len(found) == sum(map(len, calls.values())):
            simulation.network.stop()

    def begin(*_: Any) -> None:
        for rank, own in calls.items():
            for key, priority in own:
                simulation.launch(rank, np.ones(1000, np.int32), "sum", partial(done, rank, key), priority, key)

    simulation.network.schedule(0, begin)
    simulation.run("the calls")
    return found


@pytest.mark.parametrize("tables", [SIMULATIONS, FLOWS])
@pytest.mark.parametrize("method", ["ring", "switch", "ps"])
def test_calls_take_turns_and_each_costs_its_hosts_what_it_costs_alone(tables: Any, method: str) -> None:
    link, costs = LinkConfig(RATE_BPS, DELAY_NS), HostCosts(TRANSFER_NS, calls_at_once=1)
    urgent = 7 if method == "switch" else 0  # whose streams have one class here
    three = {rank: [(1, 7), (2, 7), (3, urgent)] for rank in range(2)}
    alone = ends(tables[method](SimulationConfig(2, link, costs=costs)), {rank: [(1, 7)] for rank in range(2)})
    in_turn = ends(tables[method](SimulationConfig(2, link, costs=costs)), three)
    assert max(in_turn.values()) == pytest.approx(3 * max(alone.values()), rel=0.1)  # `ps` greets first
    assert (in_turn[0, 3] < in_turn[0, 2]) == (urgent < 7)  # once the first had ended
    beside = ends(tables[method](SimulationConfig(2, link, costs=HostCosts(TRANSFER_NS))), three)
    assert max(beside.values()) < 0.95 * max(in_turn.values())


@pytest.mark.parametrize("tables", [SIMULATIONS, FLOWS])
@pytest.mark.parametrize("method", ["ring", "switch", "ps"])
def test_a_call_begins_when_its_rank_has_launched_it_and_those_before_it(tables: Any, method: str) -> None:
    link, call_ns = LinkConfig(RATE_BPS, DELAY_NS), 10_000_000  # far longer than a call
    three = {rank: [(1, 7), (2, 7), (3, 7)] for rank in range(2)}

    def last(calls: dict[int, list[tuple[int, int]]], costs: HostCosts) -> list[int]:
        found = ends(tables[method](SimulationConfig(2, link, costs=costs)), calls)
        return [max(found[rank, key] for rank in calls) for key, _ in calls[0]]

    (alone,), (free,) = (last({0: [(1, 7)], 1: [(1, 7)]}, costs) for costs in (HostCosts(call_ns=call_ns), FREE))
    beside, in_turn = (last(three, HostCosts(call_ns=call_ns, calls_at_once=at_once)) for at_once in (0, 1))
    assert alone == pytest.approx(call_ns + free, abs=1000)  # `ps` greets meanwhile
    assert [end // call_ns for end in beside] == [1, 2, 3]
    assert 0 < in_turn[2] - beside[2] <= 2 * (beside[2] - 3 * call_ns) + 30  # two calls; of `ps` less


def test_ranks_that_begin_calls_in_different_orders_wait_for_nobody_who_waits_for_them() -> None:
    config = SimulationConfig(3, LinkConfig(RATE_BPS, DELAY_NS), costs=HostCosts(calls_at_once=1))
    calls = {rank: [(key, 7) for key in np.random.default_rng(rank).permutation(6).tolist()] for rank in range(3)}
    found = ends(SIMULATIONS["ring"](config), calls)
    in_turn = [sorted(range(6), key=lambda key: found[rank, key]) for rank in range(3)]
    assert in_turn[0] == in_turn[1] == in_turn[2]  # whichever was first, all have its order


def scenario(lines: str) -> Any:
    return parse(f'name = "h"\ntitle = "h"\n{lines}', "h.toml")


ALONE = '[methods]\nmininet = []\nsim = ["ring", "switch"]\n'


def test_keys_reach_the_simulation_and_results() -> None:
    pytest.importorskip("torch", reason="training needs torch")
    from emulation.sim.simulated_run import simulation_config

    one = scenario(ALONE + "[hosts]\ntransfer_ns = 30_000\nflow_bps = 12e9")
    config = simulation_config(one)
    assert config.costs == HostCosts(30_000, 12_000_000_000)
    assert from_canonical(canonical(one)).hosts == one.hosts
    assert "hosts" not in canonical(scenario(""))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("[hosts]\ntransfer_ns = 1", "[hosts] transfer_ns: hosts of Mininet take what they take; allowed: 0, or"),
        ("[hosts]\nflow_bps = 1e9", "[hosts] flow_bps: hosts of Mininet"),
        (ALONE + "[hosts]\nflow_bps = 10", "[hosts] flow_bps: 10 is out of range; allowed: 0, or 1000000 and more"),
        (ALONE.replace("ring", "atp") + "[hosts]\ntransfer_ns = 1", "[hosts] transfer_ns: not with atp"),
        (ALONE.replace("ring", "mlt") + "[hosts]\ntransfer_ns = 1", "[hosts] transfer_ns: not with mlt"),
        (
            '[methods]\nmininet = []\nsim = ["ps"]\n[hosts]\ncalls_at_once = 1\n[ps]\nmode = "asp"\n[workload]\n'
            'optimizer = "sgd"',
            "[hosts] calls_at_once: with [ps] mode = 'asp' gradients are no collectives; allowed: 0, or mode = 'bsp'",
        ),
        (
            ALONE + '[hosts]\nflow_bps = 1e9\n[topology]\ncongestion_control = "cubic"',
            "[hosts] flow_bps: TCP and RoCE have a rate of their own; allowed: 0, or no [[flows]]",
        ),
    ],
)
def test_what_hosts_cannot_have_is_one_line(lines: str, words: str) -> None:
    with pytest.raises(ScenarioError) as error:
        scenario(lines)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def occupied(method: str, costs: PacketCosts, size_bytes: int = 4, **config: Any) -> int:
    return took(method, size_bytes, packet_costs=costs, dataplane="native", **config)


def test_packets_that_cost_nothing_change_nothing() -> None:
    for method in ("switch", "ring", "ps", "dgt"):
        traces = [
            time_allreduce(
                SimulationConfig(3, LinkConfig(RATE_BPS, DELAY_NS), packet_costs=costs, trace=True),
                method,
                20_000,
                "float32",
            ).trace
            for costs in (NO_PACKET_COSTS, PacketCosts(cpus=2))
        ]
        assert traces[0] == traces[1]


def test_packets_through_the_switch_take_their_hosts_and_the_switch_a_turn_each() -> None:
    """A call's description and its values, from each of two. The switch wakes, and has both descriptions when it
    answers; the others are done before the host, which wakes, and pays for two that it sent and two that come."""
    way_ns = PACKET + DELAY_NS
    ns = occupied("switch", PacketCosts(10_000, 3_000, 500))
    assert ns == way_ns + (500 + 2 * 3_000) + way_ns + (500 + 4 * 10_000)


def test_one_cpu_never_rests_while_hosts_or_switch_have_packets() -> None:
    ns = occupied("switch", PacketCosts(10_000, 3_000, cpus=1))
    assert ns == PACKET + DELAY_NS + 2 * 4 * 10_000 + 8 * 3_000
    apart, together = (occupied("direct", PacketCosts(5_000, cpus=cpus), 400_000, workers=4) for cpus in (0, 1))
    assert together > 3 * apart


def test_flows_and_forecasts_refuse_packets_costs() -> None:
    config = SimulationConfig(2, LinkConfig(RATE_BPS), packet_costs=PacketCosts(1))
    with pytest.raises(NotDescribed, match=r"\[hosts\] packet_ns"):
        FLOWS["ring"](config)
