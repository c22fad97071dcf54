"""Several jobs on one switch in virtual time: shares of its slots and of links, re-division, every sum checked."""

from typing import Any

import pytest

from emulation.results.shares import jain
from emulation.scenario.scenario_flows import own_hosts
from emulation.scenario.scenario_tables import FIRST_COME, MAX_MIN, FlowOptions, JobOptions
from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.simulations import SIMULATIONS
from emulation.sim.sharing.background_jobs import BackgroundJobs, servers_of
from emulation.sim.traffic.scenario_traffic import ScenarioTraffic

DELAY_NS = 500_000  # 2 ms there and back: 64 slots are less than what is on the way


def run(jobs: list[JobOptions], slots: int, milliseconds: int, policy: str = MAX_MIN, **config: Any) -> dict[str, Any]:
    """What became of jobs of method switch, beside a first one that sends nothing."""
    link = LinkConfig(1_000_000_000, DELAY_NS)
    given: dict[str, Any] = {"workers": 2, "window_slots": 64, "streams": 1, "link": link, **config}
    others = sum(job.workers * (not job.on) + servers_of(job, "switch") for job in jobs)
    first = SIMULATIONS["ring"](
        SimulationConfig(other_hosts=others, pool_slots=slots, first_slot=None, dataplane="reference", **given)
    )
    beside = BackgroundJobs(first, "switch", jobs, 1, policy, 0)
    first.network.schedule(milliseconds * 1_000_000, lambda *_: first.network.stop())
    first.run("the jobs")
    found = beside.document()["tenants"]
    del found["jobs"][0]
    assert [job["wrong_elements"] for job in found["jobs"]] == [0] * len(jobs)
    return found


def sent(found: dict[str, Any]) -> list[int]:
    return [sum(job["bytes"]) for job in found["jobs"]]


def of_weights(*weights: int, **more: Any) -> list[JobOptions]:
    return [JobOptions(f"job{n}", weight=weight, size_bytes=60_000, **more) for n, weight in enumerate(weights)]


@pytest.mark.parametrize("weights", [(1, 1, 1, 1), (1, 2, 4, 8)])
def test_jobs_share_slots_by_their_weights(weights: tuple[int, ...]) -> None:
    found = run(of_weights(*weights), slots=60, milliseconds=100)
    assert found["jain"] >= 0.98
    for size, weight in zip(sent(found), weights, strict=True):
        assert size / sum(sent(found)) == pytest.approx(weight / sum(weights), rel=0.05)
    assert all(job["sums"] > 0 for job in found["jobs"])
    assert [job["slots"] for job in found["jobs"]] == [[[0, 60 * w // sum(weights)]] for w in weights]


def test_first_come_first_served_leaves_the_last_waiting() -> None:
    found = run(of_weights(1, 1, 1, 1), slots=100, milliseconds=50, policy=FIRST_COME)
    assert found["jain"] < 0.6
    assert [job["slots"][-1][1] for job in found["jobs"]] == [64, 36, 0, 0]
    assert sent(found)[2:] == [0, 0]


def test_jobs_share_aggregators_as_atp_does() -> None:
    """Whoever comes first has one: weights don't count, and what finds none is summed by the job's own server."""
    found = run(of_weights(1, 8, method="atp"), slots=20, milliseconds=50)
    one, other = sent(found)
    assert one / other == pytest.approx(1, abs=0.1)
    assert all(job["sums"] > 0 and not job["slots"] for job in found["jobs"])


def completion_ms(method: str, slots: int, sums: int, policy: str = MAX_MIN, *, by_class: bool = True) -> list[float]:
    """How long each of four jobs takes to its end; the later one comes, the shorter and more urgent it is.

    Each has four of eight hosts, so that workers are behind others by what their links carry for other jobs.
    """
    places = ((0, 1, 2, 3), (2, 3, 4, 5), (4, 5, 6, 7), (0, 2, 4, 6))
    jobs = [
        JobOptions(
            f"job{n}",
            on=on,
            method=method,
            size_bytes=60_000,
            sums=sums >> n,
            start_ns=n * sums * 125_000,
            priority=3 - n if by_class else 0,
        )
        for n, on in enumerate(places)
    ]
    found = run(jobs, slots, 10 * sums, policy, workers=8, aggregators=2 * slots)
    return [(told["ended_ns"] - job.start_ns) / 1e6 for told, job in zip(found["jobs"], jobs, strict=True)]


def test_urgent_jobs_end_sooner_where_they_may_take_what_others_hold() -> None:
    """Slots by class, or ESA's aggregators: the shortest job, the last to come, ends sooner, and all do on average.
    First come, first served, it waits longest."""
    waiting = completion_ms("switch", 24, 8, FIRST_COME, by_class=False)
    slots, by_class = (completion_ms("switch", 24, 8, by_class=classes) for classes in (False, True))
    atp, esa = (completion_ms(method, 12, 8) for method in ("atp", "esa"))
    assert by_class[-1] < slots[-1] < waiting[-1]
    assert sum(by_class) < min(sum(slots), sum(waiting))
    assert esa[-1] < atp[-1]
    assert sum(esa) < sum(atp)


def test_slots_are_divided_anew_when_a_job_begins_or_ends() -> None:
    jobs = [
        JobOptions("long", size_bytes=60_000),
        JobOptions("short", size_bytes=60_000, start_ns=30_000_000, stop_ns=70_000_000, method="switch"),
        JobOptions("urgent", size_bytes=60_000, start_ns=90_000_000, quota_slots=20, weight=9),
    ]
    found = run(jobs, slots=60, milliseconds=120)
    long, short, urgent = ([slots for _, slots in job["slots"]] for job in found["jobs"])
    assert (long, short, urgent) == ([60, 30, 60, 40], [30, 0], [20])
    assert all(job["sums"] > 0 for job in found["jobs"])
    begun_ns = [found["jobs"][0]["slots"][change][0] for change in (1, 2, 3)]
    assert begun_ns == pytest.approx([30_000_000, 70_000_000, 90_000_000], abs=20_000_000), "once calls are complete"


@pytest.mark.parametrize("methods", [("switch",) * 4, ("switch", "ring")])
def test_jobs_on_the_same_hosts_share_their_links(methods: tuple[str, ...]) -> None:
    jobs = [JobOptions(f"job{n}", on=(0, 1), size_bytes=60_000, method=each) for n, each in enumerate(methods)]
    found = run(jobs, 256, 60, link=LinkConfig(200_000_000, 10_000), window_slots=16)
    sums = [job["sums"] for job in found["jobs"]]
    assert all(sums)
    if set(methods) == {"switch"}:
        assert jain(sums) >= 0.98


@pytest.mark.parametrize("method", ["switch", "ring", "atp"])
def test_jobs_share_links_with_flows_of_their_own_hosts(method: str) -> None:
    """All bytes of the link to the first host of a job are the job's or the flows'."""
    flows = [FlowOptions("cubic", count=2)]
    jobs = [JobOptions("on", on=(0, 1), size_bytes=60_000, method=method), *of_weights(1, method=method)]
    others = own_hosts(flows) + sum(job.workers * (not job.on) + servers_of(job, method) for job in jobs)
    link = LinkConfig(100_000_000, 100_000, 100_000)
    config = SimulationConfig(2, link, other_hosts=others, pool_slots=64, first_slot=None, window_slots=32, tcp="cubic")
    first = SIMULATIONS["ring"](config)
    beside = ScenarioTraffic(first, flows)
    tenants = BackgroundJobs(first, method, jobs, 1, MAX_MIN, 0, own_hosts(flows))
    first.network.schedule(200_000_000, lambda *_: first.network.stop())
    first.run("jobs and flows")
    assert all(job["sums"] > 0 == job["wrong_elements"] for job in tenants.document()["tenants"]["jobs"][1:])
    loads = tenants.loads.document()
    for each in loads["links"]:  # what waits in a queue hasn't crossed its link
        assert max(each["bytes"]) * 8e9 / loads["bin_ns"] <= each["rate_bps"] * 1.05
    (shared,) = beside.document()["shared_links"]
    assert set(shared["bytes"]) == {"job on", "cubic 1", "cubic 2"}
    delivered = first.shared.links["s1", "h1"].delivered_bytes
    assert 0 <= delivered - sum(shared["bytes"].values()) <= link.queue_bytes, "what is in the queue when it ends"
    assert min(shared["bytes"].values()) > delivered / 50
