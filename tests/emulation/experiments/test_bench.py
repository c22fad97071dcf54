"""The benchmark's arithmetic, names, tables, the longest arrays and figures: no network is built here."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from emulation.cli.main import app
from emulation.experiments.bench import bandwidths, bench_run, document, text_table
from emulation.experiments.bench.allreduce import bench_methods
from emulation.experiments.bench.allreduce.allreduce_cells import AllreduceCell, row
from emulation.experiments.bench.allreduce.answer import answer, summary
from emulation.experiments.bench.allreduce.bench_methods import BenchMethod
from emulation.experiments.bench.allreduce.rank_messages import Operation, OperationsMeasured
from emulation.experiments.bench.bench_figures import draw_all
from emulation.experiments.bench.codec_times import measure as measure_numbers
from emulation.experiments.bench.plane_times import BundleTraffic
from emulation.experiments.cells import CellStore
from emulation.scenario.errors import RunFailed
from emulation.scenario.scenario import ScenarioError, canonical
from emulation.scenario.scenario import parse as parse_scenario
from emulation.testbed.mininet.launch import BY_LINKS, BY_SWITCH
from switchagg.dataplane.plane_kinds import DATAPLANES
from tests.shared.html_page import checked
from tools.bench import __main__ as bench_tools
from tools.bench import suite
from tools.bench.suite_figures import FIGURES, loss_shares
from transport.group.method_name import parse

runner = CliRunner()

# ---- arithmetic, worked out by hand


def test_bandwidths_are_those_of_nccl_tests() -> None:
    assert bandwidths.algbw(25_000_000, 1e9) == 25e6
    assert bandwidths.busbw(parse("gloo"), 25_000_000, 1e9, 4) == 25e6 * 1.5
    assert bandwidths.busbw(parse("ring"), 8, 8.0, 8) == 1e9 * 1.75
    assert bandwidths.busbw(parse("switch"), 25_000_000, 1e9, 4) is None


def test_sizes_go_from_the_least_to_the_most() -> None:
    assert bandwidths.sizes(4096, 67_108_864, 16) == [4096, 65_536, 1_048_576, 16_777_216]
    assert bandwidths.sizes(4, 32, 2) == [4, 8, 16, 32]
    assert bandwidths.sizes(4, 9, 1.2) == [4, 8]  # whole elements, none twice
    for wrong in ((3, 8, 2), (8, 4, 2), (4, 8, 1)):
        with pytest.raises(ValueError, match=r"bytes|factor"):
            bandwidths.sizes(*wrong)


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("4K", 4096), ("25MB", 25_000_000), ("64 MiB", 1 << 26), ("1.5k", 1536), ("7", 4)],
)
def test_sizes_are_read_as_nccl_tests_does(text: str, size: int) -> None:
    assert bandwidths.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "M", "3", "-4K", "4X", "nan", "inf", "1e400"])
def test_invalid_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        bandwidths.parse_size(text)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("200M", 200_000_000), ("1G", 10**9), ("100e6", 10**8), ("2.5Gbit", 25 * 10**8), ("Unshaped", 0)],
)
def test_rates_are_parsed(text: str, rate: int) -> None:
    assert bandwidths.parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "5", "fast", "200G", "-1G", "nan"])
def test_invalid_rates_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a rate"):
        bandwidths.parse_rate(text)


def test_spread_of_measurements() -> None:
    found = bandwidths.spread([4.0, 1.0, 3.0, 2.0, 5.0])
    assert (found.count, found.median, found.p25, found.p75, found.least, found.most) == (5, 3.0, 2.0, 4.0, 1.0, 5.0)


@pytest.mark.parametrize(
    ("wire", "idle", "word"),
    [(0.98, 0.0, "link"), (0.5, 0.05, "cpu"), (0.5, 0.5, "latency"), (0.5, None, "unknown"), (None, 0.01, "cpu")],
)
def test_what_limited_a_figure(wire: float | None, idle: float | None, word: str) -> None:
    assert bandwidths.limited_by(wire, idle) == word


def test_operations_fit_the_time() -> None:
    assert bandwidths.operations_for(1.0, 0.1, 1, 60) == 10
    assert bandwidths.operations_for(1.0, 9.0, 1, 60) == 1
    assert bandwidths.operations_for(1.0, 1e-6, 1, 60) == 60


# ---- planes, numbers


@pytest.mark.parametrize("plane", ["reference"])
def test_traffic_of_the_plane_benchmark_is_absorbed_and_answered(plane: str) -> None:
    traffic = BundleTraffic(3, 8)
    made = DATAPLANES[plane](256, 8)
    made.admit(traffic.job, traffic.ports)
    for _, turn in zip(range(4), traffic.turns(), strict=False):
        answered = sum(len(out.bundle) for bundle, port in turn for out in made.process(bundle, port))
        assert answered == 256
    assert made.counters == {"absorbed": 2 * 4 * 256, "broadcast": 4 * 256}


def test_numbers_are_measured_beside_memcpy() -> None:
    found = measure_numbers(True, lambda _: None)
    named = {(each["what"], each["implementation"]): each for each in found["rows"]}
    assert named["memcpy", "numpy"]["share_of_memcpy"] == 1.0
    assert {"exponents", "quantise", "dequantise"} <= {what for what, name in named if name == "python"}
    if not found["failures"]:
        both = [named[f"lanes8 {what}", "native"]["bytes_per_s"] for what in ("encode", "decode", "encode + decode")]
        assert both[2] < min(both[:2])
        assert {f"exact {what}" for what in ("codes", "encode", "decode", "encode + decode")} <= {
            what for what, _ in named
        }


# ---- names


def test_methods_are_parsed() -> None:
    found, rivals = bench_methods.parse("switch:reference,gloo,ring:bbr", "reference", ["cubic", "reno"])
    assert [method.name for method in found] == ["switch:reference", "gloo:cubic", "gloo:reno", "ring:bbr"]
    assert rivals == set()
    found, rivals = bench_methods.parse("switch, gloo:bbr, gloo", "reference", ["best"])
    assert [method.name for method in found] == ["switch:reference", "gloo:bbr", "gloo:cubic"]
    assert rivals == {BenchMethod(parse("gloo"), "cubic")}  # what was asked for by name stays
    assert bench_methods.parse("ring:kernel", "auto", ["best"])[0] == [
        BenchMethod(parse("ring"), bench_methods.kernel_control())
    ]
    assert bench_methods.parse("gloo", "auto", ["kernel"])[0] == [
        BenchMethod(parse("gloo"), bench_methods.kernel_control())
    ]


def test_methods_with_codecs_are_parsed() -> None:
    """Colons and commas of a codec's options are its own; float32 Gloo is no rival of 16 bits."""
    words = "switch~lanes8:least=0,warmup=3+ef:reference,gloo~bf16:reno,gloo,ring~lanes16:least=7,warmup=1,ps~lanes8"
    found, rivals = bench_methods.parse(words, "reference", ["cubic"])
    assert [method.name for method in found] == [
        "switch~lanes8:least=0,warmup=3+ef:reference", "gloo~bf16:reno", "gloo:cubic",
        "ring~lanes16:least=7,warmup=1:cubic", "ps~lanes8",
    ]  # fmt: skip
    assert [method.kind for method in found[:3]] == ["switch~lanes8:least=0,warmup=3+ef", "gloo~bf16", "gloo"]
    assert not rivals
    with pytest.raises(ScenarioError, match="--methods: gloo~lanes8: method gloo: codec 'lanes8' is none of its"):
        bench_methods.parse("gloo~lanes8", "reference", ["cubic"])


def test_the_python_planes_have_workers_in_python() -> None:
    assert {name: BenchMethod(parse("switch"), name).core for name in ("native", "xdp", "reference")} == {
        "native": "native",
        "xdp": "native",
        "reference": "python",
    }


# ---- scenarios


def test_a_network_and_each_cell_of_it_is_a_scenario() -> None:
    (wish,) = bench_run.BenchMatrix([4], [10**9], [4096, 65_536], "switch:reference,ring:reno", iterations=7).requests()
    assert wish.sizes == (4096, 65_536)
    switch, ring = (method.cell(wish.scenario, 65_536) for method in wish.methods)
    assert [str(name) for name in wish.scenario.methods.mininet] == ["switch", "ring"]
    assert (switch.switch.dataplane, ring.topology.congestion_control) == ("reference", "reno")
    assert [cell.workload.bucket_bytes for cell in (switch, ring)] == [65_536, 65_536]
    record = json.loads(json.dumps(wish.record))["scenario"]
    assert record["sweep"] == {"workload.bucket_bytes": [4096, 65_536]}
    assert (record["workload"]["name"], record["workload"]["iterations"]) == ("allreduce", 7)
    assert set(record) == set(canonical(parse_scenario('name = "a"\ntitle = "A"', "a"))) | {"sweep"}


# ---- rows, tables


def a_network(rate_bps: int = 10**9, loss: float = 0.0, loss_by: str | None = None) -> dict[str, Any]:
    """As a document has it, with no rows yet."""
    (wish,) = bench_run.BenchMatrix(
        [4], [rate_bps], [4096, 25_000_000], "ring:reno", loss=loss, loss_by=loss_by
    ).requests()
    return {**wish.record, "failures": {}, "rows": []}


def a_row(
    name: str = "switch:native",
    size: int = 25_000_000,
    ms: float = 209.0,
    rate_bps: int = 10**9,
    dtype: str = "float32",
) -> dict[str, Any]:
    kind, variant = bench_methods.cut(name)
    method = BenchMethod(parse(kind), variant)
    (wish,) = bench_run.BenchMatrix([4], [rate_bps], [size], "ring:reno").requests()
    cell = AllreduceCell()
    starts, ends = (1000, 2000, 1500, 1200), (1000, 2000, 1500, 1200 + round(ms * 1e6))
    for _ in range(3):
        answers = [
            OperationsMeasured(
                [Operation(s, e, 4000, 0, [50, 0, 0, 50] + [0] * 4)], {"retransmitted": 1}, memory_bytes=0
            )
            for s, e in zip(starts, ends, strict=True)
        ]
        block = {
            "operations": 1,
            "worth": 2.0,
            "up_bytes": [200, 220, 200, 200],
            "down_bytes": [100, 100, 100, 100],
            "up_packets": 16,
            "drops": 1,
            "switch_cpu_ns": 800 if kind == "switch" else None,
            "segments_resent": 2,
            "losses": {"interface": 3},
            "resident_bytes": [10, 20, 30, 40],
        }
        cell.add(answers, block)
    return row(method.cell(wish.scenario, size), method, dtype, cell)


def test_a_row_takes_the_slowest_rank_and_counts_per_operation() -> None:
    found = a_row()
    assert found["time_ns"]["median"] == 209e6
    assert found["time_ns"]["count"] == 3
    assert found["start_skew_ns"] == 1000
    assert found["wire_tx_bytes_per_rank"] == 110  # the rank that sent most; a warm-up operation counts too
    assert found["wire_rx_bytes_per_rank"] == 50
    assert found["algbw_bytes_per_s"] == pytest.approx(25e6 / 0.209)
    assert found["busbw_bytes_per_s"] is None
    assert found["share_of_payload_limit"] == pytest.approx(25e6 / 0.209 / (125e6 * 1440 / 1502))
    assert found["worker_cpu_ns_per_packet"] == 4000 * 4 / 8
    assert found["switch_cpu_ns_per_packet"] == 2400 / 6 / 8
    assert (found["packets_resent"], found["segments_resent"], found["queue_drops"]) == (12, 6, 3)
    assert found["losses"] == {"interface": 9}
    assert found["cpu_idle_share"] == 0.5
    assert found["limited_by"] == "latency"


def test_an_unshaped_row_has_neither_limit_nor_bound() -> None:
    found = a_row(rate_bps=0)
    assert found["share_of_payload_limit"] is found["share_of_bound"] is found["bound_bytes_per_s"] is None
    words = text_table.line(found).split()
    assert words[-6:-4] == ["110", "50"]  # sent and received
    assert words[:5] == ["25000000", "6250000", "float32", "sum", "-1"]
    assert words[-4:] == ["0", "-", "-", "latency"]


def test_the_table_s_headings_align_with_its_columns() -> None:
    lines = [*text_table.heading(a_network(200_000_000)), text_table.line(a_row())]
    assert "links shaped to 200 Mb/s in both directions (HTB), MTU 1500" in lines[0]
    assert lines[1].index("#wrong") + len("#wrong") == lines[3].index(" 0 ") + 2
    assert {line.find("limited by") for line in lines[1:2]} == {lines[3].index("latency")}


# ---- the longest arrays, figures, the document


MACHINE = {"started": "today", "cpu_model": "a CPU", "cpus_usable": 2, "kernel": "Linux 6"}


def a_document() -> dict[str, Any]:
    rows = [a_row(), a_row("gloo:cubic", ms=420.0), a_row("gloo:bbr", ms=400.0), a_row("ring:cubic", ms=318.0)]
    small = [a_row(size=4096, ms=0.3), a_row("gloo:cubic", size=4096, ms=0.5)]
    shaped = a_network() | {"rows": rows + small}
    free = a_network(0) | {"rows": [a_row(ms=20.0, rate_bps=0), a_row("ring:bbr", ms=40.0, rate_bps=0)]}
    lossy = [
        a_network(200_000_000, loss, BY_LINKS) | {"rows": [a_row(ms=ms)]}
        for loss, ms in ((0.0, 200.0), (0.001, 204.0), (0.01, 250.0))
    ]
    spread = {"count": 5, "median": 90.0, "p25": 80.0, "p75": 100.0, "least": 70.0, "most": 120.0}
    planes = [{"plane": "native", "elements": 256, "workers": n, "ns_per_packet": spread} for n in (2, 4)]
    numbers = [
        {"what": what, "implementation": name, "size_bytes": 25_000_000, "bytes_per_s": 4e9, "share_of_memcpy": share}
        for what, name, share in (("memcpy", "numpy", 1.0), ("quantise", "native", 0.6), ("dequantise", "native", 0.4))
    ]
    parts = {
        "allreduce": [shaped],
        "unshaped": [free],
        "loss": lossy,
        "planes": {"rows": planes, "failures": {}},
        "numbers": {"rows": numbers, "failures": {}},
    }
    return document.build(parts, {**MACHINE, "tcp_congestion_control": "cubic"}, {}, False)


def test_the_longest_array_stands_beside_its_bound_and_its_baseline() -> None:
    built = a_document()
    assert summary(built) == [
        ["25.0 MB, n = 4, 1 Gb/s", "209 ms", "100.9%", "1.91×", "1.50×", "78.4%", "latency"]  # noqa: RUF001
    ]
    assert summary({**built, "parts": {"allreduce": [a_network() | {"rows": [a_row()]}]}}) == [], "without Gloo"


def coded_networks() -> list[dict[str, Any]]:
    """Part codecs: names and times, at 200 Mb/s, at 1 Gb/s and unshaped; each int32 row is of a network of its own."""
    found = []
    for rate, times in (
        (
            200_000_000,
            {"switch~lanes8:native": 250, "switch~lanes16:native": 520, "gloo:bbr": 1500, "gloo~bf16:bbr": 600},
        ),
        (10**9, {"switch~lanes8:native": 65, "switch~lanes16:native": 105, "gloo:bbr": 300, "gloo:cubic": 290}),
        (
            0,
            {
                "switch~lanes8:native": 20,
                "switch~lanes16:native": 25,
                "ring:bbr": 40,
                "ring:cubic": 36,
                "ring~lanes8:bbr": 30,
            },
        ),
    ):
        rows = [a_row(name, ms=ms, rate_bps=rate) for name, ms in times.items()]
        integers = a_row(ms=rate and 2e11 / rate, rate_bps=rate, dtype="int32") if rate else None
        found += [a_network(rate) | {"rows": rows}, a_network(rate) | {"rows": [integers] if integers else []}]
    return found


def test_codecs_are_drawn_from_their_part() -> None:
    assert set(draw_all({**a_document(), "parts": {"codecs": coded_networks()}}, FIGURES)) == {"codecs"}


def test_the_codecs_part_compares_as_many_elements_of_each_type(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(suite, "run_allreduce", lambda wanted, *_: asked.extend(wanted) or [])
    suite.PARTS["codecs"](False, lambda _: None, lambda *_: None, CellStore())
    assert {wish.sizes for wish in asked} == {(25_000_000,)}
    names = {(wish.scenario.topology.rate_bps, wish.dtype): {m.kind for m in wish.methods} for wish in asked}
    coded = {"switch", "switch~lanes8", "switch~lanes16"}
    for rate in (200_000_000, 10**9):
        assert names[rate, "float32"] == coded | {"gloo", "gloo~bf16"}
    assert names[0, "float32"] == coded | {"ring", "ring~lanes8"}
    assert [names[rate, "int32"] for rate in suite.CODEC_RATES] == [{"switch"}] * 3


def test_the_verified_part_has_open_verified_and_secret_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(suite, "run_allreduce", lambda wanted, *_: asked.extend(wanted) or [])
    suite.PARTS["verified"](False, lambda _: None, lambda *_: None, CellStore())
    names = [(wish.scenario.switch.verify, [method.kind for method in wish.methods]) for wish in asked]
    assert names == 2 * [("off", ["switch"]), ("on", ["switch", "switch+secret"])]


def test_loss_shares_are_of_the_same_method_s_own_goodput() -> None:
    shares = loss_shares(a_document()["parts"]["loss"])
    assert set(shares) == {"switch:native"}
    assert shares["switch:native"] == {0.0: 1.0, 0.001: pytest.approx(200 / 204), 0.01: pytest.approx(0.8)}


def test_without_bpf_the_loss_figure_is_of_the_switch_alone() -> None:
    absent = {"title": "loss on the links", "failures": {"links": "no BPF"}, "rows": []}
    built = a_document()
    assert set(draw_all({**built, "parts": {"loss": [absent, *built["parts"]["loss"]]}}, FIGURES)) == {"loss"}


def test_losses_in_the_switch_are_listed_separately() -> None:
    networks = a_document()["parts"]["loss"]
    for network in networks:
        network["loss_by"] = BY_SWITCH
    assert set(loss_shares(networks)) == {"switch:native, lost in the switch"}


def test_every_figure_is_drawn_from_the_document(tmp_path: Path) -> None:
    built = a_document()
    assert list(draw_all(built)) == ["speedup", "allreduce", "planes", "numbers"], "the answer first"
    assert set(draw_all(built, FIGURES)) == {"allreduce", "speedup", "unshaped", "loss", "planes", "numbers"}
    assert draw_all({**built, "parts": {}}, FIGURES) == {}
    paths = bench_run.draw({**built, "parts": {"planes": built["parts"]["planes"]}}, tmp_path / "made")
    assert [path.name for path in paths] == ["planes.png", "bench.html"]
    assert paths[0].read_bytes().startswith(b"\x89PNG")


def test_the_page_is_self_contained(tmp_path: Path) -> None:
    built = a_document()
    built["machine"] = document.machine() | {"command": ["<script>"]}
    bench_run.draw(built, tmp_path, FIGURES)
    text = (tmp_path / "bench.html").read_text()
    page = checked(text)
    assert text.count("<svg") == 6
    assert "n = 4, 1 Gb/s, 25 MB: 1.91×" in page.told  # noqa: RUF001
    assert text.index("1.91× faster") < text.index("<svg") < text.index("<h2>The longest") < text.index("<table")  # noqa: RUF001
    assert "25.0 MB, n = 4, 1 Gb/s" in text
    assert "switch:native" in text
    assert "&lt;script&gt;</dd>" in text


def test_the_answer_is_of_four_workers_with_its_bound_and_where_it_does_not_pay() -> None:
    built = a_document()
    found = answer(built)
    assert found is not None
    assert (found["number"], found["bound"]) == ("1.91× faster", "beyond the bound of 1.50×")  # noqa: RUF001
    assert found["what"].startswith("Allreduce of 25.0 MB on 4 workers at 1 Gb/s: through the switch")
    assert found["stamp"]["word"] == "EXACT"
    beyond, longest, slower = found["sentences"]
    assert beyond.startswith("What is beyond the bound is no merit of the switch")
    assert longest == "With the longest arrays, over all rates, the speed-up is 1.91× with 4 workers (bound 1.50×)."  # noqa: RUF001
    assert slower == "The switch was never slower than Gloo."
    rows = built["parts"]["allreduce"][0]["rows"]
    for one in rows:
        if one["size_bytes"] == 4096 and one["method"] == "gloo":
            one["time_ns"]["median"] = 0.27e6
        if one["name"] == "switch:native":
            one["limited_by"] = "cpu"
    found = answer(built)
    assert found is not None
    assert found["sentences"][-1].endswith("slower than Gloo for 4.10 kB on 4 workers at 1 Gb/s (0.90×).")  # noqa: RUF001
    assert found["stamp"]["word"] == "EXACT, NOT AT SPEED"
    rows[0]["wrong_elements"] = 7
    assert answer(built)["stamp"] == {"kind": "invalid", "word": "WRONG", "text": "7 elements of sums were wrong."}  # type: ignore[index]
    assert answer({**built, "parts": {}}) is None


def test_a_document_is_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "bench" / "bench.json"
    built = a_document()
    document.write(path, built)
    assert document.read(path)["parts"]["numbers"] == built["parts"]["numbers"]
    path.write_text('{"schema": "other"}')
    with pytest.raises(RunFailed, match="not a benchmark's results"):
        document.read(path)


def test_a_data_plane_that_this_machine_lacks_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "xdp_missing", lambda: "no BPF here")
    monkeypatch.setattr(suite, "run_allreduce", lambda *_: [])
    for part in ("allreduce", "unshaped"):
        said: list[str] = []
        found = suite.PARTS[part](True, said.append, lambda *_: None, CellStore())
        assert said == ["switch:xdp: left out: no BPF here"]
        assert document.failures({part: found}, [part]) == (["switch:xdp: no BPF here"], [])


def test_failures_are_listed_once() -> None:
    part = [{"title": "n = 4", "failures": {"a": "a: broke"}}, {"title": "n = 4", "failures": {"a": "a: broke"}}]
    found = {"loss": part, "planes": {"failures": {"xdp": "no BPF"}}}
    assert document.failures(found, tuple(found)) == (["n = 4: a: broke", "planes: no BPF"], [])


@pytest.mark.parametrize(
    ("loss", "method", "measured"), [(0.05, "gloo:cubic", True), (0, "ring", False), (0.05, "switch:native", False)]
)
def test_a_host_method_that_loss_halts_is_a_result(loss: float, method: str, measured: bool) -> None:
    part = [a_network(loss=loss, loss_by=BY_LINKS) | {"title": "n = 4", "failures": {method: f"{method}: no answer"}}]
    words = [f"n = 4: {method}: no answer"]
    assert document.failures({"loss": part}, ["loss"]) == (([], words) if measured else (words, []))


def test_machine_facts_and_load() -> None:
    facts = document.machine()
    assert {"cpu_model", "kernel", "tcp_congestion_control", "tcp_available_congestion_control"} <= set(facts)
    load = document.MachineLoad().measures()
    assert 0 <= load["idle_share"] <= 1


# ---- the command line


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--rate", "5"), "--rate: 5: not a rate; allowed: 1M to 100G"),
        (("--methods", "moon"), "--methods: 'moon' is unknown; allowed: switch, gloo, ring"),
        (("--methods", "switch:moon"), "data plane 'moon' is unknown; allowed: auto, native, reference, xdp"),
        (("--methods", "gloo:moon"), "congestion control 'moon' is unknown; allowed: best, kernel, cubic, bbr, reno"),
        (("--sizes", "4K,1"), "--sizes: 1: not a size"),
        (("-b", "8K", "-e", "4K"), "4096 bytes: less than the smallest, 8192"),
        (("--factor", "1"), "factor 1: more than 1"),
        (("--elements", "400"), "--elements 400: an MTU of 1500 bytes holds 363"),
        (("--dtype", "float64"), "--dtype float64: unknown; allowed: float32, int32"),
        (("--racks", "9"), "--racks 9: racks: 9 for 4 workers; allowed: 1 … 4"),
    ],
)
def test_wrong_usage_is_one_line(arguments: tuple[str, ...], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emulation.testbed.netns.run_in_user_namespace", lambda: None)
    done = runner.invoke(app, ["bench", "allreduce", *arguments])
    assert done.exit_code == 2
    assert done.stderr.startswith("switchagg: ")
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_privileges_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emulation.testbed.netns.run_in_user_namespace", lambda: None)
    monkeypatch.setattr("emulation.testbed.mininet.mininet_run.missing", lambda: "Mininet needs root")
    for command in (["--methods", "ring:reno"], ["--loss", "0.01"]):
        done = runner.invoke(app, ["bench", "allreduce", *command])
        assert done.exit_code == 1
        assert done.stderr == "switchagg: this benchmark needs emulated links: Mininet needs root\n"


@pytest.mark.parametrize("arguments", [("codecs", "--out"), ("allreduce", "--out"), ("allreduce", "--json")])
def test_an_unwritable_output_is_refused_before_anything_is_measured(
    arguments: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr("emulation.testbed.netns.run_in_user_namespace", lambda: None)
    monkeypatch.setattr("emulation.testbed.mininet.mininet_run.missing", lambda: "")
    monkeypatch.setattr(bench_run, "run_allreduce", lambda *_: pytest.fail("it was measured"))
    monkeypatch.setitem(bench_run.MEASURES, "numbers", lambda *_: pytest.fail("it was measured"))
    done = runner.invoke(app, ["bench", *arguments, str(tmp_path / "file" / "results")])
    assert done.exit_code == 1
    assert f"switchagg: {tmp_path / 'file'}" in done.stderr


def test_figures_of_a_missing_file_say_what_writes_it(tmp_path: Path) -> None:
    missing = runner.invoke(app, ["bench", "figures", str(tmp_path / "none.json")])
    assert missing.exit_code == 1
    assert "`make bench` writes it" in missing.stderr


def test_another_extent_is_not_mixed_into_a_document(tmp_path: Path) -> None:
    document.write(tmp_path / "bench.json", a_document())
    with pytest.raises(RunFailed, match="holds a full run"):
        list(bench_run.run({"loss": lambda *_: []}, True, tmp_path, print, print, lambda *_: None))


def test_an_unknown_type_is_refused_before_anything_starts() -> None:
    with pytest.raises(ScenarioError, match="--dtype"):
        bench_run.BenchMatrix([4], [0], [4096], "ring", dtype="int8").requests()


def test_an_interrupted_benchmark_goes_on_from_the_networks_that_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that can't be had is an entry with the reason, and once all are measured a command starts anew."""
    monkeypatch.setattr(bench_run, "require", lambda: None)
    measured: list[int] = []

    def measure(request: bench_run.BenchRequest, *_: object) -> dict[str, Any]:
        workers = request.scenario.topology.workers
        if len(measured) == 1:
            measured.append(0)
            raise KeyboardInterrupt
        measured.append(workers)
        if workers == 4 and measured.count(4) == 1:
            raise RunFailed("no room")
        return {**request.record, "failures": {}, "rows": []}

    monkeypatch.setattr(bench_run, "measure", measure)
    requests = bench_run.BenchMatrix([2, 4], [10**9], [4096], "ring:reno").requests()

    def part(quick: bool, log: Any, on_row: Any, store: CellStore) -> list[dict[str, Any]]:
        return bench_run.run_allreduce(requests, log, on_row, store)

    def run() -> list[str]:
        said: list[str] = []
        list(bench_run.run({"allreduce": part}, True, tmp_path, said.append, said.append, lambda *_: None))
        return said

    with pytest.raises(KeyboardInterrupt):
        run()
    with pytest.raises(RunFailed, match="not everything could be measured: n = 4, 1 Gb/s: no room"):
        run()
    assert measured == [2, 0, 4]
    assert any(text.startswith("2 runs, of which 1 are there and 1 are to do") for text in run())
    assert measured == [2, 0, 4, 4]
    assert any(text.startswith("2 runs, of which 0 are there and 2 are to do") for text in run())


def test_a_quick_benchmark_says_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[set[str]] = []
    monkeypatch.setattr(bench_run, "require", lambda: None)
    monkeypatch.setattr(bench_run, "run", lambda measures, *_: runs.append(set(measures)) or ())
    quick = runner.invoke(bench_tools.app, ["suite", "--quick"])
    named = runner.invoke(bench_tools.app, ["suite", "--quick", "exact"])
    assert runs == [set(suite.QUICK_PARTS), {"exact"}]
    assert f"without {', '.join(name for name in suite.PARTS if name not in suite.QUICK_PARTS)}, " in quick.stderr
    assert "without" not in named.stderr
