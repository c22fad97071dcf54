"""Forecasts: against packets, against the model of one rank, by hand; and what the command makes of them."""

import dataclasses
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

from emulation.cli.main import app
from emulation.experiments.cells import CellStore
from emulation.experiments.whatif import call_cost as costs
from emulation.experiments.whatif import gains as asking
from emulation.experiments.whatif.call_cost import HostLink
from emulation.experiments.whatif.forecast import ForecastLimits, forecast, iteration_ns
from emulation.experiments.whatif.gains import Question, gains, parse_rates, rank_costs
from emulation.experiments.whatif.recorded_run import (
    BUCKET_BYTES,
    RecordedCollective,
    RecordedRun,
    of_graph,
    of_profile,
    read,
)
from emulation.experiments.whatif.whatif_page import about
from emulation.scenario.profiles.graph import GraphOperation, WorkloadGraph
from emulation.scenario.profiles.model_profile import ModelLayer, ModelProfile
from emulation.scenario.profiles.profile_errors import ProfileError
from emulation.scenario.scenario import parse as parse_scenario
from emulation.sim.simulated_run import run_method
from tests.emulation.scenario.trace_events import ddp_step, write
from tests.shared.html_page import checked
from transport.group.method_name import parse
from transport.schedule.profile import LinearCost
from transport.schedule.schedule_model import Network, TransferOverhead, predict
from transport.schedule.schedule_table import parse_policy

LAYERS = ((5_000, 40, 80), (40_000, 100, 200), (70_000, 60, 150), (20_000, 50, 100))
MODEL = ModelProfile(
    "small",
    tuple(
        ModelLayer(str(place), {"weight": elements}, 1000 * forward_us, 1000 * backward_us)
        for place, (elements, forward_us, backward_us) in enumerate(LAYERS)
    ),
)
LINK = HostLink(10_000_000_000, 1_000)


@pytest.fixture(autouse=True)
def _short_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "LARGE_BYTES", 400_000)
    monkeypatch.setattr(costs, "SHARE_BYTES", 1_000)
    costs.call_cost.cache_clear()


def in_packets(text: str, folder: Path) -> float:
    """An iteration on 4 workers, without jitter, packet by packet."""
    (folder / "small.json").write_text(json.dumps(MODEL.document()))
    scenario = parse_scenario(
        f'name = "t"\ntitle = "t"\n[methods]\nmininet = []\nsim = ["{text}"]\n[workload]\nprofile = "small.json"\n'
        f"iterations = 4\nwarmup_iterations = 1\nbucket_bytes = {BUCKET_BYTES}\n[topology]\nworkers = 4\n"
        f"rate_bps = {LINK.rate_bps}\ndelay_ns = {LINK.delay_ns}\nqueue_bytes = 16_000_000\n",
        "t.toml",
        folder=folder,
    )
    result = run_method(scenario, parse(text), Path(), lambda *_: None)
    return float(np.mean([each.duration_ns for each in result.iterations[1:-1]]))


@pytest.mark.parametrize("text", ["ring", "switch+wfbp", "switch~lanes8+bytescheduler:partition=80kB"])
def test_a_forecast_is_within_some_percent_of_packets_and_flatters_no_switch(tmp_path: Path, text: str) -> None:
    name, run = parse(text), of_profile(MODEL, 4)
    scheduled_run, cost, limits = rank_costs(run, name, LINK)
    found = iteration_ns(scheduled_run, cost, np.ones((5, 4)), limits)
    exact = in_packets(text, tmp_path)
    assert abs(found / exact - 1) < (0.1 if "partition" in text else 0.03)
    if name.is_switch:
        assert found > 0.995 * exact


@pytest.mark.parametrize("text", ["wfbp", "p3:slice=10000,credit=160kB", "bytescheduler:partition=80kB,credit=160kB"])
def test_one_rank_is_as_the_model_of_schedules_has_it(text: str) -> None:
    policy, cost, run = parse_policy(text), LinearCost(30_000, 0.8), of_profile(MODEL, 1)
    assert run.profile is not None
    wanted = predict(policy, run.profile, Network(cost.beta_ns_per_byte, cost.alpha_ns)).iteration_ns
    credit_ns = policy.credit_bytes and policy.credit_bytes * cost.beta_ns_per_byte
    found = iteration_ns(
        run.scheduled(policy, cost),
        lambda each: (0.8 * each.size_bytes, TransferOverhead(after_ns=30_000)),
        np.ones((4, 1)),
        ForecastLimits(credit_ns),
    )
    assert found == pytest.approx(wanted, abs=20)


def test_ranks_wait_for_the_slowest_where_they_need_sums_and_nowhere_else() -> None:
    """By hand: 100 ns of computing, a collective of 30 ns from 40 on, needed at 60; the second rank takes twice as
    long. It begins at 80, ends at 110, and the rest takes the second rank 80; the first one has waited since 60."""
    blocking = RecordedRun("hand", 2, 100, (RecordedCollective("all_gather", 1, 2, 40, 60),))
    scale = np.array([[1.0, 2.0]] * 3)
    assert (
        iteration_ns(blocking, lambda _: (30.0, TransferOverhead()), scale, settling=0) == 200
    )  # hidden: needed at 120
    assert iteration_ns(blocking, lambda _: (50.0, TransferOverhead()), scale, settling=0) == 210
    at_the_end = RecordedRun("hand", 2, 100, (RecordedCollective("allreduce", 1, 2, 40, 100),))
    assert iteration_ns(
        at_the_end, lambda _: (130.0, TransferOverhead(after_ns=5.0)), scale, settling=0
    ) == pytest.approx(215, abs=6)


def test_jitter_costs_time_and_seeds_differ_but_methods_share_them() -> None:
    run = of_profile(MODEL, 8)
    cost = lambda each: (0.1 * each.size_bytes, TransferOverhead(after_ns=1_000.0))  # noqa: E731
    noisy, calm = (forecast(dataclasses.replace(run, jitter=jitter), cost, range(5)) for jitter in (0.1, 0.0))
    assert noisy.mean_ns > 1.05 * calm.mean_ns
    assert noisy.spread > 0
    assert calm.spread == 0
    assert forecast(dataclasses.replace(run, jitter=0.1), cost, range(5)) == noisy


def test_what_is_within_the_noise_is_unresolved() -> None:
    question = Question((10_000_000_000,), ("switch",), keys={})
    run = of_profile(MODEL, 4)
    exact, noisy = (gains(run, dataclasses.replace(question, jitter=jitter)) for jitter in (0.0, 0.5))
    for document, resolved in ((exact, True), (noisy, False)):
        (link,) = document["links"]
        rows = {row["method"]: row for row in link["rows"]}
        hosts = [rows[name] for name in ("ring", "halving_doubling", "double_tree", "direct", "auto")]
        assert rows[link["baseline"]]["iteration_ns"] == min(row["iteration_ns"] for row in hosts)
        assert rows[link["baseline"]]["gain"] == 0
        assert rows["switch"]["resolved"] == resolved
    assert exact["links"][0]["rows"][5]["gain"] > 0.1
    assert exact["run"]["slowest_ns"] == pytest.approx(run.compute_ns, rel=1e-5)
    assert noisy["run"]["slowest_ns"] > 1.3 * run.compute_ns  # of four ranks that vary by half
    assert exact["links"][0]["rows"][5]["limit"] == "link"


def test_a_run_of_16_bits_is_compared_with_hosts_that_send_16_bits() -> None:
    run = dataclasses.replace(of_profile(MODEL, 2), sent_as="bfloat16")
    (link,) = gains(run, Question((10_000_000_000,), ("switch",)))["links"]
    assert link["baseline"].endswith("~bf16")


def test_what_limits() -> None:
    """A slow link, long ways, a window that ways outlast, and computing alone."""
    run = of_profile(MODEL, 2)
    wanted = {
        ("switch", 1_000_000_000, 0): "link",
        ("switch", 400_000_000_000, 300_000): "slots",
        ("ring", 400_000_000_000, 300_000): "latency",
        ("switch", 400_000_000_000, 0): "compute",
    }
    for (method, rate_bps, delay_ns), limit in wanted.items():
        asked = Question((rate_bps,), (method,), delay_ns=delay_ns, keys={})
        rows = {row["method"]: row for row in gains(run, asked)["links"][0]["rows"]}
        assert rows[method]["limit"] == limit


def test_what_is_too_large_for_packets_is_measured_as_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    """On 4 workers both agree; 80 are in racks, and a codec's bytes are as many as it needs."""
    packets = [costs.call_cost(parse(name), "allreduce", 4, LINK) for name in ("ring", "switch")]
    monkeypatch.setattr(costs, "PACKETS_BYTES", 0)
    costs.call_cost.cache_clear()
    flows = [costs.call_cost(parse(name), "allreduce", 4, LINK) for name in ("ring", "switch")]
    for one, other in zip(packets, flows, strict=True):
        assert one.time_ns(400_000) == pytest.approx(other.time_ns(400_000), rel=0.02)
    coded = costs.call_cost(parse("switch~lanes16"), "allreduce", 80, LINK)
    assert coded.beta_ns_per_byte == pytest.approx(flows[1].beta_ns_per_byte / 2, rel=0.01)
    with pytest.raises(ValueError, match="direct: 80 workers are too many"):
        costs.call_cost(parse("direct"), "allreduce", 80, LINK)


def test_rates() -> None:
    assert parse_rates("10,25,100Gb/s") == (10**10, 25 * 10**9, 10**11)
    assert parse_rates("500mbit, 2.5Gbps") == (500_000_000, 2_500_000_000)
    for text in ("10", "ten", "10furlongs", "", "900Gb/s", "1,,2Gb/s"):
        with pytest.raises(ValueError, match="is no rate; allowed"):
            parse_rates(text)


def test_traces_of_different_runs_are_refused(tmp_path: Path) -> None:
    first = write(tmp_path / "0.json", [*ddp_step(0), *ddp_step(200)])
    odd = [event for event in ddp_step(0) if event["ts"] < 130 or event["cat"] == "user_annotation"]
    other = write(tmp_path / "1.json", odd, rank=1)
    with pytest.raises(ProfileError, match="not of the same run"):
        read([str(first), str(other)])
    with pytest.raises(ProfileError, match="two traces of rank 0"):
        read([str(first), str(first)])
    assert read([str(first)], 4).workers == 4


def test_a_graph_of_equal_ranks_is_a_run() -> None:
    """By hand: 10 ns of computing, a gather that the next 20 need, a sum of theirs that nothing needs."""
    program = (
        GraphOperation("compute", duration_ns=10),
        GraphOperation("all_gather", needs=(0,), elements=100, group="pairs"),
        GraphOperation("compute", needs=(1,), duration_ns=20),
        GraphOperation("allreduce", needs=(2,), elements=50),
    )
    pairs = {"pairs": ((0, 1), (2, 3))}
    run = of_graph(WorkloadGraph("hand", (program,), (0, 0, 0, 0), pairs))
    assert (run.workers, run.compute_ns) == (4, 30)
    assert run.collectives == (
        RecordedCollective("all_gather", 400, 2, 10, 10),
        RecordedCollective("allreduce", 200, 4, 30, 30),
    )
    sent = (GraphOperation("send", peer=1, elements=1), GraphOperation("receive", peer=1, elements=1))
    apart = WorkloadGraph("hand", (sent[:1], (GraphOperation("receive", peer=-1, elements=1),)), (0, 1))
    with pytest.raises(ProfileError, match="`switchagg compare` replays the others"):
        of_graph(apart)


def test_the_command_writes_a_page_that_needs_nothing_else(tmp_path: Path) -> None:
    trace = write(tmp_path / "job.rank0.json.gz", [*ddp_step(0), *ddp_step(200)])
    options = ["--links", "100Mb/s", "--methods", "switch,ring~topk:ratio=0.1,least=8", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["whatif", str(trace), *options])
    assert done.exit_code == 0, done.output
    assert "job, 2 workers, 160 µs of computing an iteration" in done.output
    assert "baseline" in done.output
    assert "so a switch saves no bytes" in done.output
    assert "for more of them: --workers" in done.output
    assert re.search(
        r"At 100 Mb/s an iteration with the ring with topk\S* is [\d.]+ ± [\d.]+ % shorter than with ", done.output
    )
    document = json.loads((tmp_path / "out/whatif.json").read_text())
    page = (tmp_path / "out/whatif.html").read_text()
    assert [row["method"] for row in document["links"][0]["rows"]][-2:] == ["switch", "ring~topk:ratio=0.1,least=8"]
    assert any(told.startswith("switch: ") and told.endswith(" an iteration") for told in checked(page).told)
    ElementTree.fromstring((tmp_path / "out/whatif.svg").read_text())
    assert (tmp_path / "out/whatif.png").stat().st_size > 1000
    for wrong, words in (("--links=3", "is no rate"), ("--methods=carrier_pigeon", "unknown; allowed")):
        refused = CliRunner().invoke(app, ["whatif", str(trace), wrong])
        assert refused.exit_code == 2
        assert words in refused.output


def test_a_graph_that_only_communicates_is_forecast() -> None:
    """By hand: two sums one after the other, and a gather beside them; what follows waits for what it needs."""
    chain = (
        GraphOperation("allreduce", elements=100),
        GraphOperation("allreduce", needs=(0,), elements=50),
        GraphOperation("all_gather", elements=50),
    )
    run = of_graph(WorkloadGraph("hand", (chain,), (0, 0)))
    assert (run.compute_ns, len(run.collectives), run.collectives[0].chained) == (0, 3, True)
    cost = lambda each: (float(each.size_bytes), TransferOverhead(after_ns=1_000.0))  # noqa: E731
    assert iteration_ns(run, cost, np.ones((4, 2))) == pytest.approx(400 + 1_000 + 200 + 200 + 1_000)
    document = gains(run, Question((10_000_000_000,), ("switch",)))
    assert [text for label, text in about(document) if label == "run"] == ["hand, 2 workers, communication alone"]
    assert all(row["iteration_ns"] > 0 for row in document["links"][0]["rows"])
    silent = WorkloadGraph("silent", ((GraphOperation("compute", duration_ns=5),),), (0, 0))
    with pytest.raises(ProfileError, match="no collectives among ranks"):
        of_graph(silent)


def test_a_limit_ends_a_forecast_with_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by a second whenever it is asked: what was begun too late is left out, and named; and what
    was forecast in time isn't again."""
    run, said, ticks = of_profile(MODEL, 2), list[str](), iter(range(10**6))
    monkeypatch.setattr(asking.time, "monotonic", lambda: float(next(ticks)))
    question = Question((10**10, 10**11), ("switch", "switch+p3"), limit_s=700)
    store = CellStore()
    document = gains(run, question, said.append, store=store)
    (link,) = document["links"]
    done = [row["method"] for row in link["rows"]]
    assert "ring" in done
    assert "switch+p3" not in done
    first, second = document["left_out"]
    assert first.startswith("10 Gb/s, ")
    assert first.endswith("switch+p3")
    assert second.startswith("100 Gb/s, ring, ")
    assert set(document["left_out"].values()) == {"the limit of 700 s was reached (--limit)"}
    assert said[0] == "14 runs, of which 0 are there and 14 are to do, 1 at a time"
    assert said[1].startswith("[1/14] 10 Gb/s: ring: ")
    assert all(" left" in text for text in said[1:])
    more = gains(run, dataclasses.replace(question, limit_s=0), said.append, store=store)
    assert said[-15 + len(done)].startswith(f"14 runs, of which {len(done)} are there")
    assert [len(entry["rows"]) for entry in more["links"]] == [7, 7]
    assert (
        more["links"][0]["rows"][: len(done)]
        == gains(run, Question((10**10,), ("switch", "switch+p3")))["links"][0]["rows"][: len(done)]
    )
    with pytest.raises(ProfileError, match="no method was forecast within 1 s; raise --limit"):
        gains(run, dataclasses.replace(question, limit_s=1))


def test_calls_are_measured_at_any_fidelity_level() -> None:
    packet, flow, formula = (
        costs.call_cost(parse("ring"), "allreduce", 4, dataclasses.replace(LINK, fidelity_level=level)).time_ns(400_000)
        for level in ("packet", "flow", "formula")
    )
    assert flow == pytest.approx(packet, rel=0.02)
    assert formula == pytest.approx(packet, rel=0.1)
    assert len({packet, flow, formula}) == 3
    with pytest.raises(ValueError, match="--fidelity-level far: unknown; allowed: packet, flow, formula, auto"):
        gains(of_profile(MODEL, 2), Question((10**10,), ("switch",), fidelity_level="far"))
