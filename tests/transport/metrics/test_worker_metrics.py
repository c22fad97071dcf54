"""Metrics of a process with groups: what Prometheus' own parser reads over HTTP, and what goes wrong."""

import logging
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from switchagg.errors import SwitchaggError
from transport.metrics import worker_metrics
from transport.metrics.metrics_server import MetricsServer, is_open, metrics_address
from transport.metrics.worker_metrics import metrics_url, stop_serving, watched

pytest.importorskip("prometheus_client", reason="the extra switchagg[metrics] is not installed")
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families


class CountingGroup:
    """A group of one rank of four."""

    workers, method, link, core = 4, "ring", "tcp", "native"
    failure: BaseException | None = None

    def __init__(self, rank: int = 2) -> None:
        self.rank = rank
        self.counters = {"tx_bytes": 512, "moves_to_hosts": 3}


@pytest.fixture(autouse=True)
def no_server_is_left() -> Iterator[None]:
    yield
    stop_serving()


def scraped(url: str) -> dict[tuple[str, ...], float]:
    """By name and values of labels (by name of label): the value."""
    text = urllib.request.urlopen(url, timeout=10).read().decode()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_group_is_served_with_any_counter_while_it_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("SWITCHAGG_METRICS", str(free_port() - 2))
    group = watched(CountingGroup())
    values = scraped(metrics_url())
    assert values["switchagg_group_bytes_total", "0", "tx", "2"] == 512
    assert values["switchagg_group_events_total", "moves_to_hosts", "0", "2"] == 3
    assert values["switchagg_group_info", "native", "0", "tcp", "ring", "2", "4"] == 1
    group.counters["tx_bytes"] += 1
    group.failure = ValueError()
    assert scraped(metrics_url())["switchagg_group_bytes_total", "0", "tx", "2"] == 513
    assert scraped(metrics_url())["switchagg_group_failed", "0", "2"] == 1
    del group
    assert not [name for name in scraped(metrics_url()) if name[0].startswith("switchagg_group")]


def test_rank_is_added_to_the_port_and_torchruns_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("SWITCHAGG_METRICS", f"localhost:{port - 7}")
    watched(CountingGroup())
    assert metrics_url() == f"http://localhost:{port}/metrics"


def test_without_the_variable_there_is_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWITCHAGG_METRICS", raising=False)
    watched(CountingGroup())
    assert watched(None) is None
    assert (metrics_url(), dict(worker_metrics._servers)) == ("", {})


def test_what_can_not_be_served_is_a_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("SWITCHAGG_METRICS", "here:there")
    with caplog.at_level(logging.WARNING):
        watched(CountingGroup())
    assert "no metrics of rank 2: SWITCHAGG_METRICS here:there: not understood; allowed: PORT or HOST" in caplog.text


def test_a_taken_port_is_named_and_a_failing_read_is_no_answer() -> None:
    def broken() -> Iterator[Metric]:
        yield CounterMetricFamily("a", "a", 1)
        raise ValueError

    server = MetricsServer(("127.0.0.1", 0), broken, "--metrics")
    try:
        with pytest.raises(SwitchaggError, match=r"--metrics 127.0.0.1:\d+: Address already in use; choose another"):
            MetricsServer(server.address, list, "--metrics")
        with pytest.raises(urllib.error.HTTPError, match="500"):
            urllib.request.urlopen(server.url, timeout=10)
    finally:
        server.close()


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(
        SwitchaggError, match=r"--metrics: it needs prometheus_client: pip install 'switchagg\[metrics\]'"
    ):
        MetricsServer(("127.0.0.1", 0), list, "--metrics")


def test_addresses() -> None:
    assert metrics_address("9464", "--metrics") == ("127.0.0.1", 9464)
    assert metrics_address("[::1]:0", "--metrics") == ("::1", 0)
    assert [is_open(host) for host in ("127.0.0.3", "localhost", "::1", "0.0.0.0", "switch1")] == [False] * 3 + [
        True
    ] * 2
    for text in ("", "host", "host:", "host:70000", "host:-1"):
        with pytest.raises(SwitchaggError, match="not understood; allowed: PORT or HOST:PORT"):
            metrics_address(text, "--metrics")
