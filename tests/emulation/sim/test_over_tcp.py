"""Host methods over TCP or RoCE in virtual time: sums under faults, time on idle links, what flows beside them get."""

from dataclasses import replace

import numpy as np
import pytest

from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.timing import time_allreduce
from tests.emulation.sim.test_flows import LINK, beside

CONFIG = SimulationConfig(4, LinkConfig(200_000_000, 10_000, 100_000), tcp="cubic")
FAULTY = replace(CONFIG.link, loss=0.01, duplicate=0.01, reorder=0.01, corrupt=0.01)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("method", "tcp"),
    [("ring", "cubic"), ("direct", "reno"), ("ps", "bbr"), ("gloo", "cubic"), ("ps", "dcqcn"), ("ring", "roce")],
)
def test_sums_are_exact_under_any_faults(method: str, tcp: str, strict: bool) -> None:
    timing = time_allreduce(replace(CONFIG, link=FAULTY, tcp=tcp, strict_priority=strict), method, 200_000)
    assert timing.wrong_elements == 0
    assert timing.retransmissions > 10
    assert timing.drop_checksum > 5


@pytest.mark.parametrize("tcp", ["cubic", "reno", "bbr", "dcqcn"])
def test_a_ring_alone_takes_as_long_as_over_windows(tcp: str) -> None:
    config = replace(CONFIG, reliable=replace(CONFIG.reliable, ack_every_segments=16))
    windows, over_tcp = (time_allreduce(replace(config, tcp=name), "ring", 1_000_000) for name in ("", tcp))
    assert (over_tcp.wrong_elements, over_tcp.retransmissions) == (0, 0)
    assert 1 < over_tcp.duration_ns / windows.duration_ns < 1.04


def test_a_ring_shares_with_a_flow_as_one_where_one_over_windows_takes_nearly_all() -> None:
    shares = []
    for tcp in ("cubic", ""):
        config = SimulationConfig(4, replace(LINK, ecn_bytes=20_000), tcp=tcp)
        (link,) = beside('[[flows]]\nkind = "cubic"\n', config=config, calls=20).document()["shared_links"]
        shares.append(link["bytes"]["job"] / link["bytes"]["cubic 1"])
    assert 0.7 < shares[0] < 1.4
    assert shares[1] > 4


def test_bounded_loss_follows_marks_and_leaves_a_flow_its_share() -> None:
    """Three ranks send to the link's host, over a path each; without congestion control they take nearly all."""
    bounded = {"early_close": False}  # nothing is lost: the sums are exact
    config = SimulationConfig(4, replace(LINK, ecn_bytes=20_000), bounded=bounded)
    made = beside('[[flows]]\nkind = "cubic"\n', "ltp", 20, config=config, dtype=np.float32)
    (link,) = made.document()["shared_links"]
    assert link["bytes"]["job"] / link["bytes"]["cubic 1"] < 3
