"""Runs in Mininet with trainers that only load their links: results, certificate, and every way to end early."""

import dataclasses
import json
import os
import signal
import threading
from collections.abc import Callable, Generator
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from emulation.results.results import IterationRecord, document
from emulation.scenario.errors import RunFailed
from emulation.scenario.scenario import Scenario, parse
from emulation.scenario.scenario_flows import Arrivals
from emulation.testbed.mininet import mininet_run
from emulation.testbed.mininet.launch import congestion_control
from emulation.testbed.mininet.mininet_run import (
    hold_after,
    in_turn,
    merge_iterations,
    run_method,
    run_methods,
    time_limits,
    turns_of,
)
from emulation.testbed.mininet.trainer_processes import TrainerGroup
from emulation.testbed.trainers.trainer_messages import IterationReport, TransferTimes
from transport.group.method_name import parse as parse_method

SCENARIO: Scenario = parse(
    'name = "tiny"\ntitle = "A tiny one"\n[topology]\nworkers = 3\nrate_bps = 100_000_000\n'
    '[workload]\niterations = 60\nwarmup_iterations = 2\n[switch]\nelements = 64\n[methods]\nsim = ["switch"]\n',
    "tiny.toml",
)


GLOO = parse_method("gloo")


def record(iteration: int, **values: Any) -> IterationReport:
    report = IterationReport(iteration, 5, 0, 9, 0, 0, 0, 3, 0, 0, 1.0, 0, [])
    return msgspec.structs.replace(report, **values)


def moved(*intervals: tuple[int, int]) -> list[TransferTimes]:
    return [TransferTimes(1458, start_ns, end_ns) for start_ns, end_ns in intervals]


def test_ranks_are_merged_into_the_slowest_and_the_least_delayed() -> None:
    ranks = [
        [record(0, duration_ns=10, compute_ns=4, buckets=moved((7, 13)))],
        [record(0, start_ns=3, duration_ns=12, compute_ns=2, buckets=moved((8, 13)), loss=2.0)],
    ]
    assert merge_iterations(ranks) == [IterationRecord(0, 3, 12, 4, 5, 1.5)]
    behind = [record(0, start_ns=20, duration_ns=2, compute_ns=2, buckets=moved((20, 29)))]
    assert merge_iterations([*ranks[:1], behind])[0].start_ns == 22 - 10, "it ends with the rank that is behind"
    skipped = [record(0, start_ns=90, duration_ns=1, compute_ns=0, buckets=moved((90, 91)), loss=None)]
    assert merge_iterations([*ranks, skipped], backups=1) == [IterationRecord(0, 0, 15, 2, 5, 1.5)]
    with pytest.raises(RunFailed, match=r"ranks disagree on which iteration comes next: \[0, 1\]"):
        merge_iterations([[record(0)], [record(1)]])


def test_time_limits_grow_with_the_workload() -> None:
    slow = dataclasses.replace(SCENARIO, topology=dataclasses.replace(SCENARIO.topology, rate_bps=10_000_000))
    assert all(more > less for more, less in zip(time_limits(slow, GLOO), time_limits(SCENARIO, GLOO), strict=True))
    silence_s, limit_s = time_limits(SCENARIO, GLOO)
    assert 60 < silence_s < 300 < limit_s


def test_congestion_control_that_a_namespace_may_not_choose_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"tcp_allowed_congestion_control": "reno", "tcp_congestion_control": "bbr\n"}
    monkeypatch.setattr(Path, "read_text", lambda path, **_: texts[path.name])
    wanted = {
        control: dataclasses.replace(
            SCENARIO, topology=dataclasses.replace(SCENARIO.topology, congestion_control=control)
        )
        for control in ("best", "kernel", "reno", "bbr", "cubic")
    }
    assert congestion_control(wanted["kernel"]) is None
    assert congestion_control(wanted["best"]) == "reno"
    lossy = dataclasses.replace(wanted["best"], faults=dataclasses.replace(SCENARIO.faults, loss=0.01))
    assert congestion_control(lossy) == "bbr"
    assert (congestion_control(wanted["reno"]), congestion_control(wanted["bbr"])) == ("reno", "bbr")
    with pytest.raises(
        RunFailed, match=r"congestion_control: cubic can't be set .*allowed: best, kernel, bbr, reno \("
    ):
        congestion_control(wanted["cubic"])


@pytest.fixture
def trouble(monkeypatch: pytest.MonkeyPatch, requires_mininet: None) -> Callable[[str], None]:
    """Installs the fake trainer; sets what shall go wrong."""
    monkeypatch.setattr(mininet_run, "TRAINER", "fake_trainer")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    return lambda what: monkeypatch.setenv("FAKE_TRAINER", what)


def run(folder: Path, method: str = "gloo", seen: list[tuple[int, str]] | None = None) -> mininet_run.MethodResult:
    return run_method(
        SCENARIO, parse_method(method), folder, lambda done, _total, note: (seen or []).append((done, note))
    )


def own_children() -> list[Path]:
    """Command line files of this process's children."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
    return [Path(f"/proc/{child}/cmdline") for child in listed]


@pytest.mark.parametrize(("warmup", "held"), [(1, 1), (2, 1), (5, 4)])
def test_trainers_go_on_once_they_are_watched_and_their_bytes_noted(warmup: int, held: int) -> None:
    """Iteration k sends 1000 bytes up and 2000 down."""
    text = 'name = "t"\ntitle = "T"\n[topology]\nworkers = 2\n[workload]\niterations = 10\n'
    scenario = parse(f"{text}warmup_iterations = {warmup}\n", "t")
    said: list[IterationReport] = []
    orders: list[tuple[int, str]] = []
    child = SimpleNamespace(process=None, send=lambda order: orders.append((len(said), type(order).__name__)))
    members = [
        SimpleNamespace(named=lambda kind: said if kind is IterationReport else [], child=child) for _ in range(2)
    ]

    def counters() -> list[SimpleNamespace]:
        none = {"up_packets": 0, "up_drops": 0, "down_drops": 0}
        return [SimpleNamespace(up_bytes=1000 * len(said), down_bytes=2000 * len(said), **none)] * 2

    network: Any = SimpleNamespace(counters=counters, segments_resent=lambda: 0)
    flows = SimpleNamespace(begin=lambda: None, end=lambda: None, interfaces=(), document=lambda _: {})
    observed = mininet_run.Observation(network, scenario, members, lambda *_: None, flows)  # type: ignore[arg-type]
    watching: list[int] = []
    turns: list[tuple[int, str]] = []
    observed._monitor = SimpleNamespace(  # type: ignore[assignment]
        start=lambda: watching.append(len(said)),
        pause=lambda: turns.append((len(said), "pause")),
        resume=lambda: turns.append((len(said), "resume")),
        stop=lambda: None,
        looks={},
    )
    for done in range(1, 11):
        said.append(record(done - 1, retransmissions=done - 1))
        observed.on_iteration(done)
        if done in (hold_after(scenario), 7):
            observed.pause()
            observed.go_on(done)
    assert watching == [1]
    assert orders == [(held, "Go"), (held, "Go"), (7, "Go"), (7, "Go")]
    assert turns == [(held, "pause"), (held, "resume"), (7, "pause"), (7, "resume")]
    assert observed.iterations == 10 - held
    assert observed.traffic.up_bytes == [1000 * (10 - held)] * 2
    assert observed.traffic.down_bytes == [2000 * (10 - held)] * 2
    assert observed.packets_resent == 2 * (10 - held)


@pytest.mark.system
def test_flows_share_a_rank_s_link_and_the_certificate_still_judges_it(
    tmp_path: Path, requires_mininet: None, trouble: Callable[[str], None]
) -> None:
    trouble("none")
    text = (
        'name = "t"\ntitle = "T"\n[topology]\nworkers = 2\nrate_bps = 100_000_000\nqueue_bytes = 200_000\n'
        '[workload]\niterations = 25\nwarmup_iterations = 2\n[[flows]]\nkind = "cubic"\ncount = 2\n'
        '[[flows]]\nkind = "bbr"\nfrom_rank = 1\nto_rank = -1\nstart_ns = 100_000_000\n'
        '[[flows]]\nkind = "short"\nload = 0.2\nmost_bytes = 20_000\ncount = 2\nto_rank = -1\nstop_ns = 200_000_000\n'
        '[[flows]]\nkind = "incast"\ncount = 3\nsize_bytes = 9_000\nperiod_ns = 80_000_000\nfrom_rank = 1\n'
    )
    scenario = parse(text, "t")
    found = run_method(scenario, GLOO, tmp_path, lambda *_: None)
    cubic, bbr, short, incast = found.flows
    assert (cubic["kind"], cubic["from"], cubic["to"]) == ("cubic", ["h3", "h4"], "h1")
    assert (bbr["kind"], bbr["from"], bbr["to"]) == ("bbr", ["h2"], "h5")
    assert all(goodput > 0 for goodput in [*cubic["goodput_bps"], *bbr["goodput_bps"]])
    sizes = [one.size_bytes for one in Arrivals.of(scenario.flows[2], 2, 100_000_000, scenario.seed, 2)]
    assert (short["finished"], short["unfinished"]) == (len(sizes), 0), "what the seed draws, also in virtual time"
    assert short["goodput_bps"] == [sum(sizes) * 8 / 0.2], "each byte of them"
    assert 0 < short["time_p50_ns"] < short["time_p99_ns"] == short["small_time_p99_ns"]
    assert incast["from"] == ["h2"]
    assert (incast["finished"] + incast["unfinished"]) % 3 == 0
    assert incast["finished"] > 0
    assert found.shared_links[1]["bytes"]["incast"] >= 9_000 * incast["finished"], "read by whom they went to"
    links = {link["link"]: link for link in found.shared_links}
    assert list(links) == ["h2-s1", "s1-h1"], "those that the job crosses, too"
    assert list(links["s1-h1"]["bytes"]) == ["cubic 1", "cubic 2", "job", "incast"]
    assert links["h2-s1"]["bytes"].keys() == {"bbr 1", "job", "incast"}
    for name, link in links.items():
        assert min(link["bytes"].values()) > 0
        counted = found.wire_tx_bytes_per_rank[1] if name == "h2-s1" else found.wire_rx_bytes_per_rank[0]
        carried = sum(map(sum, link["bytes_over_time"].values()))
        assert carried == pytest.approx(counted, rel=0.3), "by the kernel, until a moment before"
        assert 0 <= link["queue_p50_bytes"] <= link["queue_p99_bytes"] <= 220_000
    late = links["h2-s1"]
    assert not sum(late["bytes_over_time"]["bbr 1"][: 100_000_000 // late["bin_ns"] - 1])
    assert found.wire_tx_bytes_per_server == []
    assert found.certificate is not None
    assert found.certificate.measures["backlogged_gaps"] > 100
    assert found.certificate.measures["backlogged_rate_share"] > 0.5


@pytest.mark.system
def test_a_run_however_short_is_watched(tmp_path: Path, trouble: Callable[[str], None]) -> None:
    """All iterations together take less time than the monitor needs to start."""
    trouble("fast")
    found = run(tmp_path)
    assert found.wire_iterations == 59
    assert found.certificate is not None
    assert found.certificate.measures["departures"] >= 3 * 3 * 59


@pytest.mark.system
def test_a_run_is_measured_from_outside_and_certified(tmp_path: Path, trouble: Callable[[str], None]) -> None:
    trouble("")
    seen: list[tuple[int, str]] = [(-1, "")]
    found = run(tmp_path, seen=seen)
    assert len(found.iterations) == 60
    assert found.wire_iterations == 59, "counted from where the trainers wait for the monitor"
    for sent, received in zip(found.wire_tx_bytes_per_rank, found.wire_rx_bytes_per_rank, strict=True):
        assert sent > 0.8 * 171 * 1500 * found.wire_iterations, "171 datagrams of 1500 B an iteration"
        assert received > 0.8 * 171 * 1500 * found.wire_iterations
    assert found.certificate is not None
    assert found.certificate.measures["departures"] > 1000
    assert found.certificate.measures["network_threads"] == 3
    usual = congestion_control(SCENARIO)
    assert found.environment["tcp_congestion_control"] == usual
    assert len(found.environment["network"]["ports"]) == 6
    assert (found.switch_counters, found.retransmissions) == ({}, 0)
    assert (found.parameters, found.evaluations[0].accuracy) == (62_500, 0.98)
    assert found.compute_alone_ns == [3_000_000] * 8, "the slowest rank's"
    assert seen[-1] == (60, "training")
    assert json.loads((tmp_path / "network.json").read_text())["congestion_control"] == usual
    assert json.loads((tmp_path / "rank-2.json").read_text())["switch"] is None


@pytest.mark.system
def test_methods_take_turns_and_what_they_do_beside_each_other_is_not_measured(
    tmp_path: Path, trouble: Callable[[str], None]
) -> None:
    trouble("")
    workload = dataclasses.replace(SCENARIO.workload, blocks=4)
    scenario, said = dataclasses.replace(SCENARIO, workload=workload), list[tuple[str, int]]()
    methods = (GLOO, parse_method("switch"))
    for method in methods:
        (tmp_path / method.slug).mkdir()
    found = run_methods(scenario, methods, tmp_path, lambda method, done, _total, _note: said.append((method, done)))
    turns = [(method, max(done for _, done in each)) for method, each in groupby(said, lambda one: one[0])]
    assert turns == [
        ("gloo", 1), ("switch", 16), ("gloo", 31), ("switch", 45), ("gloo", 60), ("switch", 60),
    ], "the second round in opposite order, and so on"  # fmt: skip
    for (result, seconds), other in zip(found, reversed(methods), strict=True):
        assert len(result.iterations) == 60
        assert result.blocks == [(2, 16), (17, 31), (32, 45), (46, 60)]
        assert result.in_turn_with == [other]
        assert result.wire_iterations == 59
        assert result.compute_alone_ns == [3_000_000] * 8, "two before each block"
        assert min(result.wire_tx_bytes_per_rank) > 0.8 * 171 * 1500 * 59
        assert result.certificate is not None
        watched_s = result.certificate.measures["duration_ns"] / 1e9
        assert 59 * 0.025 < watched_s < seconds, "not while the other had its turn"
    built = document(scenario, "mininet", [result for result, _ in found])
    assert built["methods"][1]["comparison"]["headline"]["interval"] is not None


def test_a_method_that_fails_ends_those_that_wait() -> None:
    ended: list[str] = []

    def method(name: str, turns: int) -> Generator[None, None, Any]:
        try:
            for _ in range(turns):
                yield
            raise RunFailed(f"{name} failed")
        finally:
            ended.append(name)

    with pytest.raises(RunFailed, match="second failed"):
        in_turn([method("first", 5), method("second", 2)])
    assert ended == ["second", "first"]


@pytest.mark.parametrize(
    ("changes", "blocks"),
    [
        ({}, [(5, 15), (16, 26), (27, 37), (38, 48), (49, 59), (60, 70), (71, 81), (82, 92)]),
        ({"workload.iterations": 17}, [(5, 9), (10, 13), (14, 17)]),
        ({"workload.iterations": 10}, None),
        ({"workload.blocks": 1}, None),
        ({"flows": [{"kind": "cubic"}]}, None),
        ({"workload.synchronisation": "local_sgd:period=20"}, [(5, 26), (27, 48), (49, 70), (71, 92)]),
    ],
)
def test_blocks_share_the_counted_iterations(changes: dict[str, Any], blocks: list[tuple[int, int]] | None) -> None:
    """Each pause costs one; a block holds a round of a training method."""
    scenario = parse('name = "t"\ntitle = "T"\n', "t", {"workload.iterations": 92, **changes})
    turns = turns_of(scenario)
    assert (turns and list(turns.blocks)) == blocks
    assert turns is None or turns.holds == (4, *(end for _, end in turns.blocks[:-1]))


@pytest.mark.system
def test_the_switch_daemon_is_started_and_its_counters_are_read(tmp_path: Path, trouble: Callable[[str], None]) -> None:
    trouble("")
    found = run(tmp_path, "switch")
    assert found.retransmissions == (0 + 1 + 2) * found.wire_iterations, "those of the warm-up are left out"
    assert found.switch_counters["drop_unknown_sender"] == 0
    assert json.loads((tmp_path / "rank-0.json").read_text())["switch"] == "tcp://10.0.0.254:5555"
    assert "switchagg switch ready" in (tmp_path / "switch.log").read_text()


@pytest.mark.system
@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("killed 1", r"^gloo: rank 1 was killed by SIGKILL at iteration 3$"),
        ("failed 2", r"^gloo: rank 2 failed at iteration 3: the switch at tcp://10\.0\.0\.254:5555 is gone$"),
    ],
)
def test_a_dead_trainer_ends_the_run(tmp_path: Path, trouble: Callable[[str], None], what: str, expected: str) -> None:
    trouble(what)
    with pytest.raises(RunFailed, match=expected):
        run(tmp_path)


@pytest.mark.system
def test_a_run_without_reports_times_out(
    tmp_path: Path, trouble: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble("silent 0")
    groups: list[TrainerGroup] = []

    def group(*arguments: Any, **options: Any) -> TrainerGroup:
        groups.append(TrainerGroup(*arguments, **options))
        return groups[0]

    def impatient(done: int, _total: int, _note: str) -> None:
        if done == 3:  # before, a busy machine may take long to start them
            groups[0]._stall.limit_s = 4.0

    monkeypatch.setattr(mininet_run, "TrainerGroup", group)
    with pytest.raises(RunFailed, match=r"no rank said anything for 4 s.*; rank 0 at iteration 3"):
        run_method(SCENARIO, parse_method("gloo"), tmp_path, impatient)


@pytest.mark.system
def test_a_switch_that_dies_is_named(tmp_path: Path, trouble: Callable[[str], None]) -> None:
    trouble("silent 0")

    def kill_the_switch(done: int, _total: int, _note: str) -> None:
        if done >= 1:
            for child in own_children():
                if b"emulation.cli.main\0switch\0" in child.read_bytes():
                    os.kill(int(child.parent.name), signal.SIGKILL)

    with pytest.raises(RunFailed, match=r"^switch: the switch was killed by SIGKILL .*switch\.log\)$"):
        run_method(SCENARIO, parse_method("switch"), tmp_path, kill_the_switch)


@pytest.mark.system
def test_an_interrupt_leaves_nothing_running(tmp_path: Path, trouble: Callable[[str], None]) -> None:
    trouble("silent 0")
    timer = threading.Timer(2.5, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    timer.join()
    commands = [child.read_bytes() for child in own_children()]
    assert not [command for command in commands if b"fake_trainer" in command or b"monitor" in command]
