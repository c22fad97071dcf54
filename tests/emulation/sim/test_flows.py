"""Flows beside a job in virtual time: shares of links, sizes and times of short ones, incast; and the job's sums."""

from dataclasses import replace

import numpy as np
import pytest

from emulation.results.shares import jain
from emulation.scenario.scenario import parse
from emulation.scenario.scenario_flows import WEB_SEARCH, mean_web_bytes, own_hosts, web_size_bytes
from emulation.sim.network.aggregation_host import SimulatedCall
from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.simulations import SIMULATIONS
from emulation.sim.traffic.scenario_traffic import ScenarioTraffic
from switchagg.calls.call_request import CallRequest
from switchagg.priority import BEST_EFFORT

LINK = LinkConfig(rate_bps=50_000_000, delay_ns=100_000, queue_bytes=100_000)


def flows(text):
    return parse(f'name = "t"\ntitle = "T"\n[methods]\nmininet = []\n{text}', "t").flows


def beside(text, method="ring", calls=6, elements=50_000, config=None, dtype=np.int32):
    """A job of four that sums so many arrays, one after the other, beside flows; these after it."""
    config = config or SimulationConfig(workers=4, link=LINK, streams=1, window_slots=32, tcp="cubic")
    job = SIMULATIONS[method](replace(config, other_hosts=own_hosts(flows(text))))
    made = ScenarioTraffic(job, flows(text))
    left = 4

    def launch(rank, number):
        nonlocal left
        array = np.full(elements, rank + number, dtype)

        def done():
            nonlocal left
            assert (array == 6 + 4 * number).all()
            if number + 1 < calls:
                launch(rank, number + 1)
            else:
                left -= 1
                if not left:
                    job.network.stop()

        job.begin(rank, SimulatedCall(array, CallRequest("allreduce", priority=BEST_EFFORT), done))

    for rank in range(4):
        launch(rank, 0)
    job.network.run()
    return made


@pytest.mark.parametrize("method", ["ring", "ps", "switch"])
def test_sums_beside_flows_are_exact_and_shares_are_all_of_the_link(method):
    made = beside('[[flows]]\nkind = "cubic"\ncount = 2\n[[flows]]\nkind = "bbr"\nfrom_rank = 1\nto_rank = 2\n', method)
    told = made.document()
    assert [one["kind"] for one in told["flows"]] == ["cubic", "bbr"]
    assert [len(one["goodput_bps"]) for one in told["flows"]] == [2, 1]
    assert all(rate > 0 for one in told["flows"] for rate in one["goodput_bps"])
    links = {link["link"]: link for link in told["shared_links"]}
    assert list(links) == ["h2-s1", "s1-h1", "s1-h3"]
    for name, link in links.items():
        sender, to = name.split("-")
        assert sum(link["bytes"].values()) == pytest.approx(made.network.links[sender, to].delivered_bytes, rel=0.02)
        assert {user: sum(counts) for user, counts in link["bytes_over_time"].items()} == link["bytes"]
        shares = [count for user, count in link["bytes"].items() if user == "job" or user[-1].isdigit()]
        assert link["jain"] == jain(shares)
    assert list(links["s1-h1"]["bytes"]) == ["cubic 1", "cubic 2", "job"]
    assert links["s1-h1"]["queue_p50_bytes"] <= links["s1-h1"]["queue_p99_bytes"] <= 100_000


def test_short_flows_end_and_have_the_web_s_sizes():
    told = beside('[[flows]]\nkind = "short"\nload = 0.3\nmost_bytes = 30_000\ncount = 3\n').document()
    (short,) = told["flows"]
    assert short["finished"] > 20
    assert 0 < short["time_p50_ns"] < short["time_p99_ns"]
    assert short["small_time_p99_ns"] == short["time_p99_ns"]
    assert web_size_bytes(0, 10**9) == 1
    for size, part in WEB_SEARCH[1:]:
        assert web_size_bytes(part, 10**9) == pytest.approx(size, abs=1)
        assert web_size_bytes(1.0, size) == size
    assert mean_web_bytes(10**9) == pytest.approx(1_710_000, rel=0.05)


def test_incast_comes_in_bursts_and_stops():
    (incast,) = beside(
        '[[flows]]\nkind = "incast"\ncount = 4\nsize_bytes = 20_000\nperiod_ns = 50_000_000\nstop_ns = 160_000_000\n'
    ).document()["flows"]
    assert incast["finished"] == 4 * 4
    assert incast["from"] == ["h5", "h6", "h7", "h8"]


def test_a_run_with_damaged_segments_repeats_itself():
    config = SimulationConfig(
        workers=4,
        link=LinkConfig(rate_bps=50_000_000, delay_ns=100_000, queue_bytes=100_000, corrupt=0.01),
        trace=True,
        tcp="reno",
    )
    hashes = []
    for _ in range(2):
        network = beside('[[flows]]\nkind = "bbr"\n', calls=1, config=config).network
        assert network.faults()["corrupted"]
        hashes.append(network.time.trace_hash())
    assert hashes[0] == hashes[1]
