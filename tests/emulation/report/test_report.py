"""The report: self-contained, escaped, with a prominent certificate, and with correct sentences."""

import dataclasses
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from example_results import SCENARIO, FakeCertificate, result

from emulation.experiments.compare import problems
from emulation.report import comparison_report, wording
from emulation.report.comparison_report import write_report
from emulation.report.comparison_rows import split_rows
from emulation.report.table_kit import Row
from emulation.results.results import Evaluation, MethodResult, document, plain
from emulation.results.speedups import comparison, finding
from emulation.scenario.scenario import parse
from emulation.scenario.scenario_tables import ParameterServer
from tests.shared.html_page import STEPS, checked
from transport.group.method_name import parse as parse_method

HOST: dict[str, Any] = {
    "started": "2026-01-02T03:04:05+00:00",
    "command": ["switchagg", "compare", "a file.toml"],
    "system": "Debian",
    "kernel": "Linux 6",
    "machine": "x86_64",
    "cpu_model": "A <fast> CPU",
    "cpus_usable": 2,
    "memory_bytes": 8_000_000_000,
    "load_average_1_min": 0.1,
    "root": False,
    "tcp_congestion_control": "cubic",
    "python": "3.11",
    "packages": {"numpy": "2"},
    "source_revision": None,
}
MEASURES = {
    "gap_deviation_curve": [[0.001, 1.0], [0.1, 0.3], [1.0, 0.0]],
    "gap_deviation_p90": 0.61,
    "backlogged_gaps": 1234,
    "timer_lateness_p50_ns": 60_000.0,
    "losses": {"interface": 2},
}
INVALID_STEPS = (STEPS[0], STEPS[2], STEPS[1])
BOUNDS = {"gap_deviation_p90": 0.25, "backlogged_gaps_least": 100}


def sim_document(switch_ns: int = 100_000_000, ring_ns: int = 150_000_000) -> dict[str, Any]:
    return document(SCENARIO, "sim", [result("ring", ring_ns), result("switch", switch_ns)])


def mininet_document(valid: bool) -> dict[str, Any]:
    good = FakeCertificate(True, [], None, {"gap_deviation_p90": 0.02}, BOUNDS)
    bad = FakeCertificate(False, ["gap deviation <p90> 61 %"], 50_000_000, MEASURES, BOUNDS)
    runs: list[MethodResult] = [
        result("gloo", 150_000_000, "mininet", certificate=good, environment={"tcp_congestion_control": "cubic"}),
        result("switch", 100_000_000, "mininet", certificate=good if valid else bad, notes=["a <note>"]),
    ]
    return document(SCENARIO, "mininet", runs)


def table_rows(built: dict[str, Any]) -> list[Row]:
    return [row for rows in split_rows(built) for row in rows]


def written(folder: Path, built: dict[str, Any]) -> str:
    return write_report(folder, built, HOST).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, Path]]:
    """Text and folder of a report of each kind: drawing takes most of the time of these tests."""
    documents = {"sim": sim_document(), "valid": mininet_document(True), "invalid": mininet_document(False)}
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in documents}
    return {kind: (written(folders[kind], built), folders[kind]) for kind, built in documents.items()}


@pytest.mark.parametrize("kind", ["sim", "valid", "invalid"])
def test_report_is_one_well_formed_self_contained_file(pages: dict[str, tuple[str, Path]], kind: str) -> None:
    text, folder = pages[kind]
    page = checked(text, steps=INVALID_STEPS if kind == "invalid" else STEPS)
    assert text.count("<svg ") == len(list(folder.glob("*.png")))
    named = {told.partition(":")[0].partition(",")[0] for told in page.told}
    assert named == {"ring" if kind == "sim" else "Gloo", "switch"}
    assert "switch: sent 1.10 MB, bound 1.05 MB" in page.told
    assert "switch: waiting for communication 100 ms" in page.told


def test_a_page_says_first_what_was_compared_what_came_out_and_whether_to_trust_it(
    pages: dict[str, tuple[str, Path]],
) -> None:
    text = pages["valid"][0]
    begin = ["A tiny one</h1>", "What was compared</h2>", "Gloo and the switch trained the same model (digits, ",
             "What came out</h2>", '<p class="number">1.45× faster <small>the switch against Gloo</small>',  # noqa: RUF001
             "An iteration with the switch was",
             "<svg ", "Whether to trust it</h2>", "<b>VALID</b>", "<nav", "One iteration takes"]  # fmt: skip
    places = [text.index(words) for words in begin]
    assert places == sorted(places)
    sections = re.findall(r'<section id="([\w-]+)">', text)
    assert sections == re.findall(r'<a href="#([\w-]+)">', text)
    assert sections == ["numbers", "time", "network", "learning", "trust", "set-up", "details"]


def test_the_first_rows_are_the_terminal_s_and_the_others_are_folded(pages: dict[str, tuple[str, Path]]) -> None:
    first, details = split_rows(sim_document())
    folded = pages["sim"][0].index("<summary>Further numbers: algbw, busbw, …</summary>")
    labels = re.findall(r'<th scope="row">(.*?)</th>', pages["sim"][0][:folded])
    assert labels == [label for label, _ in first]
    assert len(first) == 9
    assert [label for label, _ in details][:3] == ["Each rank receives", "algbw", "busbw"]
    assert labels.count("algbw") == 0
    assert pages["sim"][0].index('<th scope="row">algbw</th>') > folded


@pytest.mark.parametrize(
    ("switch_ns", "number"),
    [(100_000_000, "1.45× faster"), (193_000_000, "0.79×: slower"), (150_000_000, "1.00×: as fast")],  # noqa: RUF001
)
def test_the_number_says_an_unfavourable_result_as_plainly(switch_ns: int, number: str) -> None:
    assert wording.finding(sim_document(switch_ns)) == number


def test_what_learned_less_says_so_in_the_number_and_a_single_method_has_no_limit() -> None:
    worse = [Evaluation(3, 1, 0.90, 0.5)]
    built = document(SCENARIO, "sim", [result("ring", 150_000_000), result("mlt", 100_000_000, evaluations=worse)])
    assert wording.finding(built) == "1.45× faster, but learned less"  # noqa: RUF001
    alone = document(SCENARIO, "sim", [result("switch", 100_000_000)])
    assert wording.finding(alone) == "110 ms an iteration"
    assert dict(table_rows(alone))["Speed-up of an iteration"] == [("–", "")], "the baseline isn't here"  # noqa: RUF001


def test_many_methods_are_rows_of_each_group_s_table() -> None:
    names = ("ring", "switch", "naive_ring", "halving_doubling", "direct")
    built = document(SCENARIO, "sim", [result(name, 150_000_000) for name in names])
    text = comparison_report.render(built, HOST, {})
    checked(text)
    heads = [re.findall(r'<th scope="col">(.*?)</th>', head) for head in re.findall(r"<thead>.*?</thead>", text)]
    assert [head[:3] for head in heads] == [
        ["Method", "Iteration", "Speed-up"],
        ["Method", "Computing takes", "Speed-up of communication"],
    ]
    assert text.count('<th scope="row">halving–doubling</th>') == 2  # noqa: RUF001


def test_same_results_same_report(tmp_path: Path, pages: dict[str, tuple[str, Path]]) -> None:
    assert written(tmp_path, sim_document()) == pages["sim"][0]


def test_an_invalid_certificate_is_prominent(pages: dict[str, tuple[str, Path]]) -> None:
    text = pages["invalid"][0]
    assert '<div class="stamp invalid" role="alert"><b>INVALID</b>' in text
    assert text.index("<b>INVALID</b>") < text.index("faster"), "before any finding"
    assert "gap deviation &lt;p90&gt; 61 %" in text
    assert "50 Mb/s is a rate this machine is likely" in text
    assert '<p class="number">' not in text
    assert "INVALID" not in pages["valid"][0]
    assert "VIRTUAL TIME" in pages["sim"][0]


def test_ranks_that_differ_outweigh_a_valid_certificate() -> None:
    certified = FakeCertificate(True, [])
    results = [
        result("gloo", 1000, "mininet", certificate=certified),
        result("switch", 900, "mininet", certificate=certified, parameter_hash_per_rank=["a", "b", "a", "a"]),
    ]
    stamp = comparison_report._stamp(document(SCENARIO, "mininet", results))
    assert (stamp["word"], stamp["kind"]) == ("WRONG", "invalid")
    assert "With the switch the ranks ended with different parameters" in stamp["text"]


def test_where_servers_keep_the_weights_ranks_agree_on_theirs() -> None:
    delays = {"gradient_delay_mean": 2.875, "gradient_delay_most": 6}
    kept = result("ps", 900, environment=delays)
    (cells,) = dict(table_rows(document(SCENARIO, "sim", [kept])))["Parameters on all ranks"]
    assert cells == ("the servers', in the end", "2.9 gradients of others before one's own, at most 6")
    differing = document(SCENARIO, "sim", [replace(kept, parameter_hash_per_rank=["a", "b", "a", "a"])])
    assert comparison_report._stamp(differing)["word"] == "WRONG"
    words = "the servers' weights did not reach all alike"
    assert words in comparison_report._stamp(differing)["text"]
    assert problems(differing) == [f"ps: the ranks ended with different parameters: {words}"]


def test_everything_from_outside_is_escaped(pages: dict[str, tuple[str, Path]]) -> None:
    text = pages["valid"][0]
    assert "A &lt;fast&gt; CPU" in text
    assert "a &lt;note&gt;" in text
    assert "switchagg compare &#39;a file.toml&#39;" in text


def test_certificate_stands_beside_its_bounds_and_is_drawn(pages: dict[str, tuple[str, Path]]) -> None:
    text, folder = pages["invalid"]
    for name, value, limit in (
        ("deviation of a gap, 90th percentile of bytes", "61 %", "≤ 25 %"),
        ("gaps between queued frames seen", "1 234", "≥ 100"),
        ("lateness of a timer, median", "60.0 µs", ""),
        ("losses by the machine", "interface 2", ""),
    ):
        assert f'<th scope="row">{name}</th><td>{value}</td><td>{limit}</td>' in text.replace("\u00a0", " ")
    assert (folder / "fidelity.png").read_bytes().startswith(b"\x89PNG")
    assert not (pages["sim"][1] / "fidelity.png").exists()


def test_table_has_the_promised_rows_and_the_bound_beside() -> None:
    rows = dict(table_rows(sim_document()))
    assert rows["One iteration takes"] == [("160 ms", ""), ("110 ms", "")]
    assert rows["Communication takes"][0] == ("150 ms", "bound 125 ms, 84 % of it reached")
    assert rows["algbw"] == [("6.67 MB/s", ""), ("10.0 MB/s", "")]
    assert rows["busbw"] == [("10.0 MB/s", ""), ("not defined", "")]
    assert rows["Each rank sends"][1] == ("1.10 MB", "bound 1.05 MB")
    assert rows["Retransmissions"] == [("0", ""), ("0", "")]
    assert rows["Final test accuracy"] == [("97.50 %", "")] * 2
    assert rows["Parameters on all ranks"] == [("bit-identical", "")] * 2
    assert rows["Speed-up of an iteration"][0] == ("baseline", "")
    assert rows["Speed-up of an iteration"][1][0] == "1.45×"  # noqa: RUF001
    assert rows["Speed-up of communication"][1] == ("1.50×", "bound 1.49×")  # noqa: RUF001


def test_what_an_exchange_takes_from_computing_has_a_row_where_ranks_computed_without() -> None:
    alone = [8_000_000, 7_900_000, 8_100_000]
    built = document(
        SCENARIO, "mininet", [result("gloo", 150_000_000), result("switch", 100_000_000, compute_alone_ns=alone)]
    )
    assert dict(table_rows(built))["Computing slowed by"] == [
        ("–", ""),  # noqa: RUF001
        ("1.25×", "8.00 ms without exchange"),  # noqa: RUF001
    ]
    assert "Computing slowed by" not in dict(table_rows(sim_document()))


def test_what_pytorch_s_calls_took_has_a_row_where_it_was_counted() -> None:
    call_paths = {
        "all_gather": {"switch": {"calls": 12, "bytes": 86_000_000}},
        "broadcast": {"gloo": {"calls": 1, "bytes": 8}, "switch": {"calls": 2, "bytes": 16}},
    }
    built = document(
        SCENARIO, "sim", [result("ring", 150_000_000), result("switch", 100_000_000, call_paths=call_paths)]
    )
    assert dict(table_rows(built))["Calls of each rank, by path"] == [
        ("–", ""),  # noqa: RUF001
        ("switch 86.0 MB, gloo 8 B", "switch: 12 all_gather, 2 broadcast; gloo: 1 broadcast"),
    ]
    assert not any("way" in label for label, _ in table_rows(sim_document()))


def test_servers_with_links_of_their_own_have_rows_and_a_bound_that_names_the_link() -> None:
    given = dataclasses.replace(SCENARIO, ps=ParameterServer(servers=2, mode="backup", backups=1))
    sent = {"wire_tx_bytes_per_server": [6_300_000, 6_600_000], "wire_rx_bytes_per_server": [6_300_000] * 2}
    built = document(given, "sim", [result("ring", 150_000_000), result("ps", 150_000_000, **sent)])
    rows = dict(table_rows(built))
    assert rows["Communication takes"][1] == ("150 ms", "bound 125 ms by the servers' links, 84 % of it reached")
    assert rows["Each server sends"] == [("–", ""), ("2.20 MB", "bound 2.09 MB")]  # noqa: RUF001
    assert wording.description(built["methods"][1], built["scenario"]).endswith(
        "; 2 servers with links of their own; mode backup: a mean holds the gradients of the first 3 of 4 workers, the "
        "same on all ranks."
    )
    built["scenario"] = dataclasses.replace(given, ps=ParameterServer())
    assert wording.description(built["methods"][1], built["scenario"]).endswith(
        "; one beside each worker, on its link."
    )
    assert not any("server" in label for label, _ in table_rows(sim_document()))


def test_speedup_beyond_the_bound_is_explained() -> None:
    within, beyond = sim_document(), sim_document(ring_ns=300_000_000)
    assert dict(table_rows(beyond))["Speed-up of communication"][1][1].endswith("; beyond it, see below")
    text, iteration = wording.explanations(beyond)
    assert "3.00 = 1.49 (bound: fewer bytes on each link, and framing) × 2.02 (the switch" in text  # noqa: RUF001
    assert "It is beyond the bound: the part above 1.49 is no merit of the switch" in text
    assert "compute (10.0 ms)" in iteration
    assert "at most 31.00× over the ring" in iteration  # noqa: RUF001
    assert "beyond the bound" not in wording.explanations(within)[0]
    ring, switch = within["methods"]
    switch["summary"]["compute_ns"]["median"] *= 1.4
    switch["summary"]["iteration_ns"]["median"] += 10_000_000
    switch["comparison"] = comparison(ring["summary"], switch["summary"])
    within["finding"] = finding(SCENARIO, ring, within["methods"])
    shared = wording.explanations(within)[1]
    assert "compute took 10.0 ms with the ring and 14.0 ms with the switch, since workers and network share" in shared
    assert shared.count("at equal compute the speed-up is 1.45×") == 1  # noqa: RUF001
    told = "10.0 ms with the ring and for 14.0 ms with the switch, so a part of the difference is not the method's: as"
    assert f"{told} measured an iteration's speed-up is 1.33×." in wording.headline(within)  # noqa: RUF001
    assert "was 1.45× faster at equal compute than with the ring; the limit" in wording.headline(within)  # noqa: RUF001
    assert wording.finding(within) == "1.45× faster at equal compute"  # noqa: RUF001
    cell = ("1.45× at equal compute", "1.33× as measured; limit 16.00×")  # noqa: RUF001
    assert dict(table_rows(within))["Speed-up of an iteration"][1] == cell
    assert problems(within) == ["switch: " + wording.unequal_compute(ring, switch, switch["comparison"])]
    assert wording.explanations(document(SCENARIO, "sim", [result("ring", 1000)])) == []


def test_computing_of_ranks_that_no_sum_waits_for_is_not_called_unequal() -> None:
    waiting = replace(SCENARIO, switch=replace(SCENARIO.switch, backups=1))
    ring, switch = result("ring", 10_000_000), result("switch", 10_000_000)
    slow = [replace(one, compute_ns=30_000_000, duration_ns=40_000_000) for one in ring.iterations]
    for scenario, same_wait in ((waiting, False), (SCENARIO, True)):
        built = document(scenario, "sim", [replace(ring, iterations=slow), switch])
        compared = built["methods"][1]["comparison"]
        assert compared["compute_ratio"] == 1 / 3
        assert (compared["compute_alike"], "same_wait" not in compared) == (not same_wait, same_wait)
        assert bool(problems(built)) == same_wait
        assert (wording.against_baseline(built, built["methods"][1], "final_accuracy") == "") == same_wait
        assert ("Ranks computed for" in wording.headline(built)) == same_wait
        explained = "the slowest rank that a sum waits for computes for 30.0 ms with the ring, for 10.0 ms with the sw"
        assert (explained in wording.explanations(built)[1]) != same_wait
        assert (dict(table_rows(built))["Speed-up of an iteration"][1][1] == "waits for fewer ranks") != same_wait


def test_the_number_is_over_the_fastest_method_without_a_switch_with_the_baseline_s_beside_it() -> None:
    ring, halving, switch = (
        result(name, ns)
        for name, ns in (("ring", 150_000_000), ("halving_doubling", 120_000_000), ("switch", 110_000_000))
    )
    atp = replace(result("switch", 115_000_000), method=parse_method("atp", virtual=True))
    built = document(SCENARIO, "sim", [ring, atp, halving, switch])
    assert built["finding"]["comparison"]["headline"]["speedup"] == 130 / 120
    assert plain(built)["finding"]["over"] == "halving_doubling"
    assert wording.finding(built) == "1.08× faster"  # noqa: RUF001
    about = "the switch against halving–doubling, the fastest without a switch; 1.33× against the ring"  # noqa: RUF001
    assert wording.finding_about(built) == about
    over = "was 1.08× faster than with halving–doubling, the fastest method without a switch; the limit, "  # noqa: RUF001
    beside = "Over the ring, the scenario's baseline, the gain is 1.33×. Communication alone was 1.09× f"  # noqa: RUF001
    assert over in wording.headline(built)
    assert beside in wording.headline(built)
    halving = result("halving_doubling", 150_000_000)
    built = document(SCENARIO, "sim", [ring, halving, switch])
    assert wording.finding_about(built) == "the switch against the ring"
    assert "without a switch" not in wording.headline(built)


def test_headline_says_faster_slower_or_equal() -> None:
    assert wording.headline(sim_document()) == (
        "Over 4 workers on 100 Mb/s links, an iteration with the switch was 1.45× faster than with the ring; the "  # noqa: RUF001
        "limit, if communication were free, is 16.00×. "  # noqa: RUF001
        "Communication alone was 1.50× faster; the bound is 1.49×."  # noqa: RUF001
    )
    assert "was 1.27× slower than with the ring" in wording.headline(sim_document(switch_ns=193_000_000))  # noqa: RUF001
    assert "was as fast as with the ring" in wording.headline(sim_document(switch_ns=150_000_000))
    alone = document(SCENARIO, "sim", [result("switch", 100_000_000)])
    assert wording.headline(alone) == "Over 4 workers on 100 Mb/s links, an iteration with the switch took 110 ms."


def test_one_worker_has_no_comparison() -> None:
    alone = parse('name = "t"\ntitle = "T"\n[topology]\nworkers = 1\n[workload]\nwarmup_iterations = 1\n', "t")
    built = document(alone, "sim", [result("ring", 0), result("switch", 1_000_000_000)])
    assert wording.headline(built).startswith("Over 1 worker on 200 Mb/s links, an iteration with the ring took ")


def test_report_with_one_worker_and_without_evaluations(tmp_path: Path) -> None:
    alone = parse('name = "t"\ntitle = "t"\n[topology]\nworkers = 1\n[workload]\nwarmup_iterations = 1\n', "t")
    built = document(alone, "sim", [result("ring", 0, evaluations=[]), result("switch", 0)])
    assert "1 worker on 200 Mb/s links" in written(tmp_path, built)


@pytest.mark.parametrize(
    ("ns", "text"),
    [(None, "–"), (0, "0 ns"), (999, "999 ns"), (1500, "1.50 µs"), (12_345_678, "12.3 ms"), (2.5e9, "2.50 s")],  # noqa: RUF001
)
def test_times_have_readable_units(ns: float | None, text: str) -> None:
    assert wording.time_text(ns) == text


def test_rates_and_bytes() -> None:
    assert wording.rate_text(200_000_000) == "200 Mb/s"
    assert wording.rate_text(100e9) == "100 Gb/s"
    assert wording.rate_text(2_500_000) == "2.5 Mb/s"
    assert wording.bytes_text(1_500_000) == "1.50 MB"
    assert wording.bytes_text(99.9e3) == "99.9 kB"
    assert wording.bytes_text(12) == "12 B"


def test_methods_with_codecs_stand_beside_float32_by_what_they_learned() -> None:
    worse = [Evaluation(3, 4_000_000_000, 0.95, 0.5)]
    built = document(
        SCENARIO,
        "sim",
        [
            result("ring", 150_000_000),
            result("switch", 100_000_000),
            result("gloo~bf16", 76_000_000),
            result("ring~topk:ratio=0.01+ef", 5_000_000, evaluations=worse),
        ],
    )
    rows = dict(table_rows(built))
    assert rows["Bits per value"][:3] == [("32 bits", "float32"), ("32 bits", "fixed point"), ("16 bits", "")]
    assert rows["Bits per value"][3][1] == "gathered: it does not add"
    notes = [note for _, note in rows["Final test accuracy"]]
    assert notes == ["", "", "+0.00 points against the ring", "-2.50 points against the ring"]
    assert rows["Final test loss"][3] == ("0.5", "0.25 with the ring")
    said = wording.headline(built)
    assert "with Gloo with bf16, the fastest of those that learned as much as the ring, was 1.86" in said
    assert "Its sums are not exact: test accuracy in the end +0.00 points against the ring." in said
    assert "Faster, but worse by more than a point: the ring with topk+ef (-2.50 points)." in said
    lost = [result(method, 5_000_000, evaluations=worse) for method in ("mlt", "ring~topk:ratio=0.01+ef")]
    said = wording.headline(document(SCENARIO, "sim", [result("ring", 150_000_000), *lost]))
    assert "with MLT, the fastest of 3 methods, was" in said
    assert "None learned as much as the ring: MLT (-2.50 points), the ring with topk+ef (-2.50 points)." in said
    assert "not exact" not in said
    names = wording.short_names([entry["method"] for entry in built["methods"]]).values()
    assert list(names) == ["ring", "switch", "Gloo, bf16", "ring, topk+ef"]
    assert "Bits per value" not in dict(table_rows(sim_document()))


def test_one_codec_with_two_outcomes_outweighs_a_valid_certificate() -> None:
    good = FakeCertificate(True, [], None, {"gap_deviation_p90": 0.02}, BOUNDS)
    runs = [
        result(method, 1000, "mininet", certificate=good, parameter_hash_per_rank=[hashed] * 4)
        for method, hashed in (("ring~fixed_point", "a"), ("switch", "b"))
    ]
    stamp = comparison_report._stamp(document(SCENARIO, "mininet", runs))
    assert stamp["word"] == "WRONG"
    assert stamp["text"].startswith("By one codec in the same packets the ring with fixed_point and the switch ended ")
