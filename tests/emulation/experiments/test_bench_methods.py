"""The names of the benchmark's methods with their links, and its reduce-scatter and all-gather in real processes."""

import re

import pytest

from emulation.experiments.bench import bench_figures
from emulation.experiments.bench.allreduce import bench_methods
from emulation.scenario.scenario import ScenarioError
from tools.bench import sharding_times
from transport.group.method_name import METHODS, links_of, parse


@pytest.mark.system
def test_reduce_scatter_and_all_gather_are_timed_in_real_processes(
    monkeypatch: pytest.MonkeyPatch, requires_mininet: None
) -> None:
    monkeypatch.setattr(sharding_times, "METHODS", (parse("switch"),))
    rows = sharding_times.measure(True, lambda text: None)
    assert [row["kind"] for row in rows] == ["reduce-scatter", "all-gather", "both at once"]
    assert {row["wrong_elements"] for row in rows} == {0}
    assert len(sharding_times.lines(rows)) == 1 + len(rows)


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
