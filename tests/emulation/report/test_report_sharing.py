"""What the report says of a network that a job shares: loads of links, shares over time, rows of the table."""

import dataclasses
import itertools
from typing import Any

import pytest
from example_results import SCENARIO, result
from matplotlib.collections import PolyCollection

from emulation.report import comparison_report, link_sharing, wording
from emulation.report.topology_figure import places, topology_figure
from emulation.results.results import Evaluation, document
from emulation.scenario.scenario import parse
from emulation.scenario.scenario_tables import ParameterServer, Straggler
from tests.emulation.report.test_report import HOST
from transport.group.method_name import parse as parse_method

SHARED = parse(
    'name = "tiny"\ntitle = "A tiny one"\n[methods]\nmininet = []\nsim = ["ring", "switch"]\n'
    "[topology]\nworkers = 4\nrate_bps = 100_000_000\n[workload]\niterations = 4\nwarmup_iterations = 1\n"
    '[[flows]]\nkind = "cubic"\ncount = 2\n[[flows]]\nkind = "short"\nfrom_rank = 1\n',
    "tiny.toml",
)
FLOWS = [
    {"kind": "cubic", "from": ["h5", "h6"], "to": "h1", "goodput_bps": [20_123_456.7, 10_000_000.0]},
    {"kind": "short", "from": ["h2"], "to": "h1", "goodput_bps": [5e6], "finished": 30, "unfinished": 2,
     "time_p50_ns": 2_000_000, "time_p99_ns": 40_000_000, "small_time_p99_ns": 9_000_000},
]  # fmt: skip
LINK = {
    "link": "s1-h1",
    "bytes": {"job": 300_000, "cubic 1": 75_000, "cubic 2": 0, "short": 25_000},
    "jain": 0.456,
    "bin_ns": 10_000_000,
    "bytes_over_time": {"cubic 1": [25_000] * 4, "cubic 2": [0] * 4, "job": [80_000] * 4, "short": [10_000] * 4},
    "queue_p50_bytes": 30_000,
    "queue_p99_bytes": 99_000,
    "converged_ns": None,
}
QUIET_LINK = {**LINK, "link": "s1-h2", "bytes": {"job": 1_000, "short": 1}}
LOSS = {"up": 0.0125, "down": 0.001, "late_packets": 1234, "stopped_transfers": 5}


@pytest.fixture(scope="module")
def shared() -> dict[str, Any]:
    fair = {**LINK, "jain": 1.0, "converged_ns": 30_000_000}
    quicker = [Evaluation(0, 1_000_000, 0.9, 1.5), Evaluation(1, 2_000_000, 0.99, 1.0)]
    runs = [
        result("ring", 150_000_000, flows=FLOWS, shared_links=[QUIET_LINK, LINK]),
        result("switch", 100_000_000, flows=FLOWS, shared_links=[fair], evaluations=quicker),
    ]
    return document(SHARED, "sim", runs)


@pytest.mark.parametrize(
    ("label", "cells"),
    [
        ("Goodput, cubic", [("30.1 Mb/s", "2 flows: 10 Mb/s … 20.1 Mb/s")] * 2),
        ("Goodput, short", [("5 Mb/s", "")] * 2),
        (
            "Time of a flow, 99th percentile, short",
            [("40.0 ms", "median 2.00 ms, 30 finished, 2 not; of up to 100 kB 9.00 ms")] * 2,
        ),
        (
            "Busiest shared link: Jain's index",
            [("0.46", "s1 to h1; the job had 75 % of its bytes"), ("1.00", "s1 to h1; the job had 75 % of its bytes")],
        ),
        ("Its queue, 99th percentile", [("99.0 kB", "median 30.0 kB")] * 2),
        (
            "Time to accuracy",
            [("2.08 s", "to 97.5 % on the test set"), ("2.00 ms", "to 97.5 % on the test set, 1040× as fast")],  # noqa: RUF001
        ),
    ],
)
def test_the_table_says_what_others_had(shared: dict[str, Any], label: str, cells: list[tuple[str, str]]) -> None:
    assert dict(link_sharing.rows(shared))[label] == cells


def test_a_speedup_is_told_beside_what_others_lost_by_it(shared: dict[str, Any]) -> None:
    """75 % of the link in both; once 60 % for the ring."""
    assert "shared link" not in wording.explanations(shared)[0]
    less = {**LINK, "bytes": {**LINK["bytes"], "job": 150_000}}
    runs = [result("ring", 150_000_000, flows=FLOWS, shared_links=[less]),
            result("switch", 100_000_000, flows=FLOWS, shared_links=[LINK])]  # fmt: skip
    told = wording.explanations(document(SHARED, "sim", runs))[0]
    assert " the job had 75 % with the switch and 60 % with the ring: what it takes from others" in told


def test_losses_for_good_stand_beside_methods_that_lose_nothing() -> None:
    built = document(SCENARIO, "sim", [result("ring", 1), result("switch", 1)])
    assert link_sharing.rows(built) == []
    slow = dataclasses.replace(SCENARIO.faults, stragglers=(Straggler(1),))
    built["scenario"] = dataclasses.replace(SCENARIO, faults=slow)
    assert [label for label, _ in link_sharing.rows(built)] == ["Time to accuracy"]
    built["methods"][1]["gradient_loss"] = LOSS
    found = dict(link_sharing.rows(built))
    assert found["Values lost for good"] == [
        ("none", ""),
        ("of gradients 1.25 %", "of sums 0.10 %; 1 234 packets late"),
    ]
    assert "Time to accuracy" in found
    assert "Goodput, cubic" not in found
    assert "Ranks in a sum" not in found
    switch = dataclasses.replace(SCENARIO.switch, backups=1)
    built["scenario"] = dataclasses.replace(built["scenario"], switch=switch)
    built["methods"][1]["partial_sums"] = {"ranks_mean": 6.987, "ranks_least": 5, "chunks": 100}
    assert dict(link_sharing.rows(built))["Ranks in a sum"] == [("all", ""), ("6.99", "in the mean; at least 5")]
    methods = dataclasses.replace(SCENARIO.methods, sim=(parse_method("ring"), parse_method("ps")))
    waiting = dataclasses.replace(SCENARIO, methods=methods, ps=ParameterServer(mode="backup", backups=1))
    servers = document(waiting, "sim", [result("ring", 1), result("ps", 1)])
    assert dict(link_sharing.rows(servers))["Ranks in a sum"] == [("all", ""), ("3", "at least: whoever is first")]


def test_loads_of_links_are_what_was_counted(shared: dict[str, Any]) -> None:
    _, switch = shared["methods"]
    found = link_sharing.link_loads(shared, switch)
    assert found["h1", "s1"] == pytest.approx(3e6 * 8 / 0.33)  # three iterations of 110 ms
    assert found["h2", "s1"] == pytest.approx(3.3e6 * 8 / 0.33)
    assert found["s1", "h1"] == pytest.approx(115_000 * 8 / 0.01), "with the flows"
    assert found["h5", "s1"] == 20_123_456.7
    assert ("s1", "h5") not in found


def test_each_has_its_share_drawn_and_the_page_its_section(shared: dict[str, Any]) -> None:
    loads, shares = link_sharing.loads(shared), link_sharing.shares(shared)
    assert loads is not None
    assert shares is not None
    texts = [text.get_text() for text in loads.axes[1].texts]
    assert "↑ 73 %\n↓ 92 %" in texts
    assert {"h5", "h6", "s1"} <= set(texts)
    assert [axes.get_title(loc="left") for axes in shares.axes] == [
        "ring: s1 to h1\nJain's index 0.46, which never stays at 0.9",
        "switch: s1 to h1\nJain's index 1.00, at 0.9 from 30.0 ms on",
    ]
    stacked = [each for each in shares.axes[1].collections if isinstance(each, PolyCollection)]
    tops = [each.get_paths()[0].vertices[:, 1].max() for each in stacked]
    assert tops == pytest.approx([64.0, 84.0, 84.0, 92.0]), "Mb/s, the job at the foot"
    page = comparison_report.render(shared, HOST, {"loads": loads, "shares": shares})
    assert "What the links carried" in page
    assert page.index("loads-") < page.index("shares-")


def test_a_job_alone_has_none_of_it() -> None:
    built = document(SCENARIO, "sim", [result("ring", 1)])
    assert (link_sharing.loads(built), link_sharing.shares(built), link_sharing.rows(built)) == (None, None, [])
    assert "What else was on the links" not in comparison_report.render(built, HOST, {})


def test_in_mininet_they_are_drawn_over_real_time() -> None:
    built = document(SHARED, "mininet", [result("gloo", 1, "mininet", flows=FLOWS, shared_links=[LINK])])
    figure = link_sharing.shares(built)
    assert figure is not None
    assert figure.axes[0].get_xlabel() == "time (s)"


# ---- other jobs


def tenant(name: str, weight: int, bytes_over_time: list[int], **more: Any) -> dict[str, Any]:
    host = f"h{5 + weight}" if name else "h1"
    told = {"name": name, "measured": not name, "method": "switch", "weight": weight, "hosts": [host],
            "shared_hosts": False, "bytes": bytes_over_time, "slots": []}  # fmt: skip
    return told | more


def link(a: str, b: str, *sizes: int, p99: int = 0) -> dict[str, Any]:
    return {"from": a, "to": b, "rate_bps": 100_000_000, "bytes": list(sizes), "queue_p50_bytes": 0,
            "queue_p99_bytes": p99, "marked_frames": 2, "dropped_frames": 1}  # fmt: skip


@pytest.fixture(scope="module")
def tenants() -> dict[str, Any]:
    took = {"median": 2_500_000, "p10": 2e6, "p90": 3e6}
    done = {"sums": 1200, "sum_ns": took, "wrong_elements": 0, "priority": 0}
    slots = [[0, 64], [30_000_000, 32]]
    jobs = [
        tenant("", 1, [50_000] * 10, slots=slots),
        tenant("a", 1, [100_000] * 10, slots=slots, **done),
        tenant("late", 2, [0] * 10, slots=[[30_000_000, 64]], sums=0, sum_ns=None, wrong_elements=3, priority=0),
    ]
    told = {"bin_ns": 10_000_000, "jobs": jobs, "jain": 0.5}
    links = {"bin_ns": 10_000_000, "links": [link("h1", "s1", 125_000, 62_500), link("s1", "h1", 0, 0, p99=2_000)]}
    built = document(SCENARIO, "sim", [result("switch", 100_000_000)])
    built["methods"][0] |= {"tenants": told, "link_loads": links}
    return built


def test_other_jobs_have_lines_slots_and_rows(tenants: dict[str, Any]) -> None:
    found = dict(link_sharing.rows(tenants))
    assert found["Job a: one sum takes"] == [("2.50 ms", "median of 1 200; 0 wrong elements")]
    assert found["Job late: one sum takes"] == [("–", "")]  # noqa: RUF001
    assert found["Queue of the fullest link, 99th percentile"] == [("2.00 kB", "s1 to h1; in all 4 marks, 2 drops")]
    assert link_sharing.link_loads(tenants, tenants["methods"][0])["h1", "s1"] == pytest.approx(75e6)
    paused = {"from": "h1", "to": "s1", "pauses": 1_200, "paused_ns": 250, "lossless_drops": 0}
    links = [
        paused,
        paused | {"pauses": 0, "lossless_drops": 2},
        paused | {"from": "h2", "pauses": 3, "paused_ns": 500},
    ]
    lost = "lossless frames lost for want of headroom"
    note = f"h2 to s1 3, 50.0 % of the time; h1 to s1 1 200, 25.0 % of the time; 2 {lost}"
    assert link_sharing._paused({"pauses": {"run_ns": 1_000, "links": links}}) == ("1 203", note)
    assert dict(
        link_sharing.rows({**tenants, "methods": [tenants["methods"][0] | {"pauses": {"run_ns": 1, "links": []}}]})
    )["Pauses of links"] == [("0", f"0 {lost}")]
    figure, loads = link_sharing.jobs(tenants), link_sharing.loads(tenants)
    assert figure is not None
    assert loads is not None
    rates, slots = figure.axes
    assert rates.get_title(loc="left").endswith("by weight 0.50, 3 wrong elements")
    assert [line.get_label() for line in rates.lines] == ["measured (weight 1)", "a (weight 1)", "late (weight 2)"]
    assert rates.lines[1].get_ydata() == pytest.approx([80.0] * 10)
    assert list(slots.lines[0].get_xdata()) == pytest.approx([0.0, 0.03, 0.1])
    assert "↑ 75 %\n↓ 0 %" in [text.get_text() for text in loads.axes[0].texts]


def test_hosts_of_flows_and_of_other_jobs_are_all_drawn(tenants: dict[str, Any]) -> None:
    entry = {**tenants["methods"][0], "flows": FLOWS}
    built = {**document(SHARED, "sim", [result("switch", 100_000_000)]), "methods": [entry]}
    assert len(link_sharing._network(built, entry).other_hosts) == 2 + 2  # of cubic; of jobs a and late


def test_names_of_24_hosts_lie_beside_each_other() -> None:
    racks = '[workload]\nbatch_per_worker = 1\n[topology]\nkind = "leaf_spine"\nracks = 4\nworkers = 24\n'
    scenario = parse(f'name = "t"\ntitle = "T"\n[methods]\nmininet = []\nsim = ["switch"]\n{racks}', "t")
    figure = topology_figure(scenario, {"methods": [{"method": parse_method("switch")}]})
    figure.draw_without_rendering()
    frames = {text.get_text(): text.get_bbox_patch() for text in figure.axes[0].texts}
    hosts = [frame.get_window_extent() for name, frame in frames.items() if frame and name.startswith("h")]
    assert len(hosts) == 24
    assert not any(one.overlaps(other) for one, other in itertools.pairwise(hosts))


def test_of_a_large_network_the_first_and_the_last_are_drawn() -> None:
    scenario = parse(
        'name = "t"\ntitle = "T"\n[methods]\nmininet = []\nsim = ["switch"]\n[workload]\nbatch_per_worker = 1\n'
        '[topology]\nkind = "fat_tree"\nracks = 32\nworkers = 1024\n',
        "t",
    )
    figure = topology_figure(scenario, {"methods": [{"method": parse_method("switch")}]})
    words = [text.get_text() for text in figure.axes[0].texts]
    assert {"h1", "h32", "h1024"} < set(words)
    assert "h2" not in words
    assert words.count("30 more") == 4
    assert len(places(scenario.links("switch"))) > 1024
