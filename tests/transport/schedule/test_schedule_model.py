"""Predicted iterations, against closed forms and the recursion of the surveys."""

import random

import pytest
from test_scheduler_plan import MS, chain, random_profile

from transport.group.method_name import traffic
from transport.schedule.schedule_model import Network, NetworkQueue, TransferOverhead, predict, serve
from transport.schedule.scheduler import LinearCost, TensorRange, Transfer, plan_transfers


def test_bsp_is_compute_and_then_the_network() -> None:
    profile = chain(1000, 2000, 3000)
    found = predict("bsp", profile, Network(beta_ns_per_byte=100, latency_ns=7, overhead_ns=5))
    assert found.compute_ns == 6 * MS
    assert found.iteration_ns == 6 * MS + 24_000 * 100 + 7 + 5
    assert found.waits_ns == (24_000 * 100 + 12, 0, 0)


@pytest.mark.parametrize("words", ["bsp", "wfbp", "mg_wfbp", "fusion", "p3", "tictac", "bytescheduler"])
def test_an_infinite_network_leaves_the_computation(words: str) -> None:
    profile = chain(1000, 2000, 3000)
    found = predict(words, profile, Network(0.0))
    held = 1 * MS if words == "fusion" else 0  # the end of the cycle in which the first layer's gradient exists
    assert found.iteration_ns == found.bound_ns + held == 6 * MS + held


def test_wfbp_follows_the_recursion() -> None:
    """start = max(end before, ready); iteration = forward + end of the last, where forward waits for all."""
    for seed in range(50):
        profile = random_profile(random.Random(seed))
        cost = LinearCost(30_000, 2)
        end = 0.0
        for index in profile.arrivals:
            tensor = profile.tensors[index]
            end = max(end, tensor.ready_ns) + cost.time_ns(tensor.size_bytes)
        found = predict("wfbp", profile, Network(2, overhead_ns=30_000), crossing=False)
        assert found.iteration_ns == profile.forward_ns + max(end, profile.backward_ns)


def test_mg_wfbp_is_never_slower_than_both_extremes_here() -> None:
    for seed in range(50):
        profile = random_profile(random.Random(seed))
        network = Network(0.5, overhead_ns=200_000)
        merged, each, fused = (
            predict(words, profile, network, crossing=False).iteration_ns for words in ("mg_wfbp", "wfbp", "bsp")
        )
        assert merged <= max(each, fused)


def test_overlap_across_iterations_starts_first_layers_before_the_last_sums_arrive() -> None:
    # Layer 1 has nearly all parameters and needs 20 ms; both forward passes need 10 ms.
    profile = chain(1000, 1_000_000, ready_ns=[2 * MS, 1 * MS], forward_ns=10 * MS)
    network = Network(5)
    fifo = predict("wfbp", profile, network, crossing=False)
    assert fifo.waits_ns == (19 * MS + 1000 * 4 * 5, 0)
    crossing = predict("wfbp", profile, network)
    assert crossing.waits_ns == fifo.waits_ns  # first come, first served: the first layer's sums come last
    urgent = predict("p3:credit=160kB", profile, network)
    # At 2 ms slice 2 (0.8 ms each) is on the link since 1.8; the credit let no other follow it.
    assert urgent.waits_ns[0] == 600_000 + 1000 * 4 * 5
    assert urgent.iteration_ns == 2 * MS + urgent.waits_ns[0] + 10 * MS + urgent.waits_ns[1] + 10 * MS
    assert fifo.iteration_ns / urgent.iteration_ns > 1.2


def test_more_credit_means_a_longer_wait() -> None:
    profile = chain(1000, 1_000_000, ready_ns=[2 * MS, 1 * MS], forward_ns=10 * MS)
    waits = [
        predict("p3", profile, Network(5), credit_bytes=credit).waits_ns[0] for credit in (1, 320_000, 10**6, 10**9)
    ]
    assert waits == sorted(waits)
    assert waits[0] < waits[1] < waits[2] < waits[3]


def test_the_wait_is_at_most_credit_and_a_slice() -> None:
    for seed in range(30):
        profile = random_profile(random.Random(seed))
        credit, beta = random.Random(seed).choice([1, 50_000, 400_000]), 3
        plan = plan_transfers("p3", profile)
        largest = max(transfer.size_bytes for transfer in plan)
        found = predict("p3", profile, Network(beta), credit_bytes=credit)
        for service in found.services:
            if plan[service.key].priority == 0:  # nothing is more urgent: only others of layer 0 may go before it
                same = sum(transfer.size_bytes for transfer in plan if transfer.priority == 0)
                assert service.completed_ns - service.ready_ns <= (credit + largest + same) * beta


def test_smaller_grains_let_urgent_transfers_preempt_large_ones() -> None:
    profile = chain(1000, 1_000_000, ready_ns=[2 * MS, 1 * MS], forward_ns=10 * MS)
    whole = predict("tictac", profile, Network(5), credit_bytes=1)
    grained = predict("tictac", profile, Network(5, grain_bytes=100_000), credit_bytes=1)
    assert whole.waits_ns[0] == 19 * MS + 20_000
    assert grained.waits_ns[0] == 520_000  # one piece more, that leaves at the very moment


def test_a_start_up_is_paid_once_per_transfer_whatever_its_pieces() -> None:
    plan = (Transfer(0, 0, (TensorRange(0, 0, 250),), 1000),)
    network = Network(1, overhead_ns=70, grain_bytes=300)
    assert serve(plan, [0.0], network, 1)[0].completed_ns == 1070


def test_priorities_of_one_class_are_served_alike() -> None:
    profile = chain(*([50_000] * 16), forward_ns=MS)
    network = Network(20)
    all_told, four, one = (
        predict("p3", profile, network, classes=classes, credit_bytes=1).iteration_ns for classes in (None, 4, 1)
    )
    assert all_told <= four <= one
    assert one == predict("wfbp", profile, network).iteration_ns


def test_serve_sends_every_byte_once_and_equals_in_order() -> None:
    plan = tuple(Transfer(key, 0, (TensorRange(key, 0, 25),), 100) for key in range(5))
    found = serve(plan, [0.0, 0.0, 500.0, 0.0, 120.0], Network(1, overhead_ns=10, latency_ns=3), 50)
    assert [(service.key, service.launched_ns, service.completed_ns) for service in found] == [
        (0, 0, 113),
        (1, 110, 223),
        (3, 220, 333),
        (4, 330, 443),
        (2, 500, 613),
    ]


@pytest.mark.parametrize(
    ("method", "workers", "servers", "factor"),
    [
        ("switch", 8, 0, 1.0),
        ("ring", 4, 0, 1.5),
        ("halving_doubling", 8, 0, 1.75),
        ("halving_doubling", 3, 0, 1.5),
        ("tree", 8, 0, 3.0),
        ("ps", 4, 0, 1.5),
        ("ps", 4, 2, 2.0),
        ("ps", 2, 4, 1.0),
    ],
)
def test_traffic_of_a_method_relative_to_the_array(method: str, workers: int, servers: int, factor: float) -> None:
    assert traffic(method, workers, servers) == factor
    network = Network.of_star(traffic(method, workers, servers), 1e9, framing=1.1)
    assert network.beta_ns_per_byte == pytest.approx(8 * 1.1 * factor)


def test_calls_that_take_turns_begin_when_the_one_before_has_its_sum() -> None:
    """By hand: 10 ns on the link and 5 until the sum; then two ready at one time, long after the last sum."""
    for at_once, ends in ((0, [15, 25, 35, 115, 125]), (1, [15, 30, 45, 115, 130]), (2, [15, 25, 35, 115, 125])):
        carrier = NetworkQueue(Network(1.0, calls_at_once=at_once), None)
        for key, ready in enumerate((0.0, 1.0, 2.0)):
            carrier.submit(key, ready, 0, 10, TransferOverhead(after_ns=5.0))
        carrier.carry(2)
        for key in (3, 4):
            carrier.submit(key, 100.0, 0, 10, TransferOverhead(after_ns=5.0))
        carrier.carry()
        assert list(carrier.completed.values()) == ends


def test_hosts_and_answers_are_busy_beside_the_link() -> None:
    """By hand: of two transfers of 10 ns a host has 30 to do with each from its start; or 10 come back after each."""
    found = []
    for beside in (TransferOverhead(host_ns=30.0), TransferOverhead(answer_ns=10.0)):
        carrier = NetworkQueue(Network(1.0), None)
        for key in (0, 1):
            carrier.submit(key, 0.0, 0, 10, beside)
        carrier.carry()
        found.append(list(carrier.completed.values()))
    assert found == [[30, 60], [20, 30]]
