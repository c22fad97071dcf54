"""The benchmark's links and collectives: tables, the ends of a link, and one real pair of namespaces."""

import re
import threading
from typing import Any

import pytest

from emulation.experiments.bench import bench_figures
from emulation.experiments.bench.allreduce import bench_methods
from emulation.scenario.errors import RunFailed
from emulation.scenario.scenario import ScenarioError
from emulation.testbed.mininet import mininet_run
from tests.transport.contracts.meshes import free_addresses
from tools.bench import collective_times, sharding_times
from tools.bench import one_way as links
from tools.bench.link_end import EndPlace, LinkExecutor, OpenCandidate, opened
from tools.bench.plain_zeromq import MODES
from transport.group.method_name import METHODS, links_of, parse
from transport.group.method_name import parse as parse_method


def row(name: str, gbps: float, size: int = 1 << 20) -> dict[str, Any]:
    return links._row(name, size, [gbps / 8e-9] * 3, [1000.0])


def write(kind: str, mtu: int, gbps: float) -> dict[str, Any]:
    spread = {"median": gbps, "low": gbps - 1, "high": gbps + 1}
    return {"kind": kind, "mtu": mtu, "message_bytes": 10**6, "rdma_gbps": spread, "udp_gbps": spread, "share": 1.0}


PART = {
    "rows": [
        row("zeromq", 18.0),
        row("plain dealer copy", 9.0),
        row("plain push no-copy", 19.0),
        row("plain push no-copy bounded", 30.0),
        row("zeromq", 1.0, 1024),
        row("plain push copy", 2.0, 1024),
    ],
    "writes": [write("RC", 1024, 4.0), write("RC", 4096, 6.0), write("UC", 1024, 4.5)],
    "failures": {},
}


def test_the_tables_say_what_the_share_is_of() -> None:
    lines = links.lines(PART)
    assert lines[1].split()[-2:] == ["60", "%"]
    assert lines[1].split()[:4] == ["zeromq", "1048576", "18.00", "18.00"]
    assert any(line.startswith("RDMA WRITE UC, path MTU 1024") for line in lines)


def test_collectives_are_timed_in_virtual_time_beside_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mininet_run, "missing", lambda: "not in this test")
    part = collective_times.measure(True, lambda text: None)
    assert {row["wrong_elements"] for row in part["rows"]} == {0}
    assert len(part["rows"]) == 2 * len(collective_times.ALGORITHMS)
    for one in part["rows"]:
        assert one["time_ns"] == pytest.approx(one["model_ns"], rel=0.05)
    times = {row["algorithm"]: row["time_ns"] for row in part["rows"] if row["size_bytes"] == 65_536}
    assert times["ring"] / times["halving_doubling"] == pytest.approx(2.27, abs=0.05)
    assert len(collective_times.lines(part)) == 2 + len(part["rows"])
    assert part["sharded"] == []


def test_both_at_once_are_set_against_the_longer_alone() -> None:
    times = {
        "switch": {"reduce-scatter": 100, "all-gather": 90, "both at once": 105},
        "ring": {"reduce-scatter": 100, "all-gather": 100, "both at once": 200},
    }
    rows = [
        {"method": method, "kind": kind, "time_ns": {"median": time}, "share_of_bound": 98 / time}
        for method, kinds in times.items()
        for kind, time in kinds.items()
    ]
    assert [sharding_times.together(rows, method) for method in times] == [1.05, 2.0]
    assert sharding_times.together(rows[:2], "switch") is None


@pytest.mark.system
def test_reduce_scatter_and_all_gather_are_timed_in_real_processes(
    monkeypatch: pytest.MonkeyPatch, requires_mininet: None
) -> None:
    monkeypatch.setattr(sharding_times, "METHODS", (parse_method("switch"),))
    rows = sharding_times.measure(True, lambda text: None)
    assert [row["kind"] for row in rows] == ["reduce-scatter", "all-gather", "both at once"]
    assert {row["wrong_elements"] for row in rows} == {0}
    assert len(sharding_times.lines(rows)) == 1 + len(rows)


@pytest.mark.parametrize(
    "contender", [*(f"plain {way}" for way in MODES), "plain dealer no-copy bounded", "zeromq", "tcp"]
)
def test_all_messages_arrive_at_both_ends(contender: str) -> None:
    (address,) = free_addresses(1)
    ends: list[Any] = [None, None]

    def open_one(member: int) -> None:
        addresses = [("127.0.0.2" if place == 0 else "127.0.0.1", address[1]) for place in (0, 1)]
        ends[member] = opened(contender, member, addresses)

    threads = [threading.Thread(target=open_one, args=(member,)) for member in (1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    try:
        for size, count in ((1000, 300), (100_000, 40)):
            sender = threading.Thread(target=ends[0].send, args=(memoryview(bytes(size)), count))
            sender.start()
            assert ends[1].receive(size, count) > 0
            sender.join(30)
            assert not sender.is_alive()
    finally:
        for end in ends:
            end.close()


# ---- any method, over any link, in one table


def test_methods_are_named_with_their_links() -> None:
    found, rivals = bench_methods.parse(
        "switch@zeromq,ring,ring@zeromq,ps,ps@tcp,switch@rdma:native", "native", ["best"]
    )
    assert [method.name for method in found] == [
        "switch@zeromq:native",
        "ring:cubic",
        "ring:bbr",
        "ring@zeromq",
        "ps",
        "ps@tcp:cubic",
        "ps@tcp:bbr",
        "switch@rdma:native",
    ]
    assert {method.name for method in rivals} == {"ring:cubic", "ring:bbr", "ps@tcp:cubic", "ps@tcp:bbr"}
    assert [method.carrier for method in found] == ["zeromq", "tcp", "tcp", "zeromq", "zeromq", "tcp", "tcp", "rdma"]
    assert (found[0].core, found[-1].core) == ("native", "native")
    assert bench_methods.parse("ring@tcp:bbr", "native", ["best"])[0] == [
        bench_methods.BenchMethod(parse("ring"), "bbr")
    ]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("pigeon@tcp", "'pigeon@tcp' is unknown; allowed: switch, gloo, ring"),
        ("ring@pigeon", "link 'pigeon' can't carry it; allowed: tcp, zeromq, udp, rdma"),
        ("gloo@tcp", "it brings its own"),
        ("ring@zeromq:bbr", "only TCP has a congestion control"),
        ("switch@rdma:reference", "the data plane reference has no link rdma"),
        ("ring@tcp+p3", "schedules are for training"),
    ],
)
def test_impossible_methods_are_refused(words: str, error: str) -> None:
    with pytest.raises(ScenarioError, match=re.escape(error)):
        bench_methods.parse(words, "native", ["best"])


def test_every_method_has_its_own_style_and_label() -> None:
    words = ",".join(f"{method}@{link}" for method in METHODS for link in links_of(method)) + ",gloo,switch+secret"
    names = [method.name for method in bench_methods.parse(words, "native", ["cubic"])[0]]
    looks = [tuple(sorted(bench_figures.look_of(name).items(), key=str)) for name in names]
    assert len(set(map(str, looks))) == len({bench_figures.label_of(name) for name in names}) == len(names)


def test_an_unknown_candidate_is_refused() -> None:
    end = LinkExecutor(EndPlace(0, ("127.0.0.1", "127.0.0.1"), 10))
    with pytest.raises(Exception, match="pigeon"):
        end.carry_out(OpenCandidate("pigeon", 1))


@pytest.mark.system
def test_a_pair_of_namespaces_is_measured_and_leaves_nothing(requires_root_namespaces: None) -> None:
    if reason := links.missing():
        pytest.skip(reason)
    with links.VethPair() as pair, links.EndpointPair(pair, 1000) as ends:
        ends.ask(OpenCandidate("plain push copy", links.PORT))
        speed, cpu_ns = links._run(ends, "plain push copy", 1000, 1000)
        assert speed > 0
        assert cpu_ns > 0
        with pytest.raises(RunFailed, match="pigeon"):
            ends.ask(OpenCandidate("pigeon", links.PORT + 1))
