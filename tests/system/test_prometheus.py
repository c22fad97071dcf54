"""The files of `examples/deploy` for Prometheus and Grafana, with a real Prometheus that scrapes a running job."""

import json
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.transport.contracts.meshes import free_addresses
from transport.contracts.group_contract import Group
from transport.group.group_opening import GroupOptions, open_group
from transport.metrics.worker_metrics import metrics_url, stop_serving, watched
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
RULES = (DEPLOY / "alerts.yml").read_text()
SOON_S = 60.0
VARIABLES = {"$instance": ".*", "$job": ".*", "$__rate_interval": "5s"}
THRESHOLD = re.compile(r"\s*(?:==|>|<)\s*[\d.]+")


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def dashboard_expressions() -> list[str]:
    expressions = [target["expr"] for panel in panels() for target in panel["targets"]]
    for name, value in VARIABLES.items():
        expressions = [expression.replace(name, value) for expression in expressions]
    return expressions


def alert_expressions() -> dict[str, str]:
    """By alert: its expression on one line."""
    folded = re.findall(r"alert: (\w+)\n\s+expr: (?:>-\n((?: {10}.*\n)+)|(.*)\n)", RULES)
    return {name: " ".join((lines or line).split()) for name, lines, line in folded}


def metric_names(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:switchagg_\w+|up)\b(?=[{\[ )]|$)", expression))


def test_the_dashboard_is_what_grafana_reads() -> None:
    assert DASHBOARD["schemaVersion"] >= 36
    assert (DASHBOARD["uid"], DASHBOARD["title"]) == ("switchagg", "switchagg")
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert {name: variable["type"] for name, variable in variables.items()} == {
        "datasource": "datasource",
        "instance": "query",
        "job": "query",
    }
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
        covered = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & covered, panel["title"]
        cells |= covered
    for panel in panels():
        assert panel["type"] in ("timeseries", "stat")
        assert {panel["datasource"]["uid"], *(target["datasource"]["uid"] for target in panel["targets"])} == {
            "${datasource}"
        }
        assert panel["title"]
        assert panel["description"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        assert panel["fieldConfig"]["defaults"]["unit"]


def test_the_rules_cover_what_an_operator_must_know() -> None:
    assert list(alert_expressions()) == [
        "SwitchGone",
        "JobFailed",
        "MemberLost",
        "MovedToHosts",
        "Retransmissions",
        "WrongSums",
        "UnauthenticatedPackets",
        "SwitchFull",
    ]


@pytest.fixture
def programs() -> dict[str, str]:
    found = {name: shutil.which(name) for name in ("prometheus", "promtool")}
    if missing := [name for name, path in found.items() if path is None]:
        pytest.skip(f"{' and '.join(missing)}: not on PATH; Debian's package prometheus has both")
    pytest.importorskip("prometheus_client", reason="the extra switchagg[metrics] is not installed")
    return {name: path for name, path in found.items() if path is not None}


def sums_until(group: Group, ending: threading.Event) -> None:
    while True:  # rank 0 says when both end
        more = np.array([not ending.is_set() and group.rank == 0], np.int32)
        if not group.allreduce(more).result(SOON_S)[0]:
            return
        group.allreduce(np.ones(40_000, np.float32)).result(SOON_S)


@pytest.fixture
def metrics_of_a_job(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Where the metrics of a switch are, on which a job of two ranks runs meanwhile, and those of its ranks; by the
    addresses of the shipped configuration."""
    monkeypatch.setenv("SWITCHAGG_METRICS", "0")
    here = DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=512, metrics=("127.0.0.1", 0))
    ending = threading.Event()
    with SwitchDaemon(here) as daemon, ThreadPoolExecutor(2) as pool:
        how = GroupOptions(switch=daemon.control_endpoint, fallback="ring", timeout_s=SOON_S, more={"window_slots": 64})
        place = partial(open_group, "switch", "udp", addresses=free_addresses(2), job="job", options=how)
        zero, one = (opening.result(SOON_S) for opening in [pool.submit(place, rank) for rank in range(2)])
        with closing(watched(zero)), closing(watched(one)):
            calls = [pool.submit(sums_until, group, ending) for group in (zero, one)]
            try:
                urls = {"127.0.0.1:9464": daemon.metrics_url, "127.0.0.1:9500": metrics_url()}
                yield {address: urllib.parse.urlsplit(url).netloc for address, url in urls.items()}
            finally:
                ending.set()
                for call in calls:
                    call.result(SOON_S)
                stop_serving()


class Prometheus:
    """A server of its own, with the shipped configuration but for times and targets."""

    def __init__(self, program: str, folder: Path, targets: dict[str, str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{probe.getsockname()[1]}"
        text = (DEPLOY / "prometheus.yml").read_text()
        for address, target in targets.items():
            text = text.replace(address, target)
        text = text.replace(": 5s", ": 500ms")
        (folder / "prometheus.yml").write_text(text)
        (folder / "alerts.yml").write_text(RULES)
        options = ("config.file", folder / "prometheus.yml"), ("storage.tsdb.path", folder / "data")
        address = f"--web.listen-address={self._address}"
        self._process = subprocess.Popen(
            [program, *(f"--{name}={value}" for name, value in options), address, "--log.level=error"]
        )

    def get(self, path: str, **query: str) -> Any:
        """The data of an answer; None while it doesn't answer."""
        assert self._process.poll() is None
        try:
            text = urllib.request.urlopen(f"http://{self._address}{path}?{urllib.parse.urlencode(query)}", timeout=10)
        except OSError:
            return None
        answer = json.loads(text.read())
        assert answer["status"] == "success"
        return answer["data"]

    def values(self, expression: str) -> list[float]:
        """None of them is NaN."""
        data = self.get("/api/v1/query", query=expression)
        return (
            []
            if data is None
            else [float(sample["value"][1]) for sample in data["result"] if sample["value"][1] != "NaN"]
        )

    def close(self) -> None:
        self._process.terminate()
        assert self._process.wait(SOON_S) == 0


def test_a_real_prometheus_evaluates_every_expression(
    programs: dict[str, str], metrics_of_a_job: dict[str, str], tmp_path: Path
) -> None:
    checked = subprocess.run(
        [programs["promtool"], "check", "config", DEPLOY / "prometheus.yml"], capture_output=True, text=True, timeout=60
    )
    assert checked.returncode == 0, checked.stderr
    assert "SUCCESS: 8 rules found" in checked.stdout
    with closing(Prometheus(programs["prometheus"], tmp_path, metrics_of_a_job)) as prometheus:
        alerts = [THRESHOLD.sub("", expression) for expression in alert_expressions().values()]
        alerts = [alert.replace("[1m]", "[5s]") for alert in alerts]
        end_s = time.monotonic() + SOON_S  # Rates need two scrapes of switch and rank.
        while empty := [
            expression
            for expression in ("rate(switchagg_member_results_total[5s]) > 0", *dashboard_expressions(), *alerts)
            if not prometheus.values(expression)
        ]:
            assert time.monotonic() < end_s, empty
            time.sleep(0.2)
        known = set(prometheus.get("/api/v1/label/__name__/values"))
        used = set().union(*map(metric_names, (*dashboard_expressions(), *alerts)))
        assert used <= known
        assert len(used) >= 15
        firing = {alert["labels"]["alertname"] for alert in prometheus.get("/api/v1/alerts")["alerts"]}
        assert firing <= {"Retransmissions"}  # of a busy machine
        assert len(prometheus.get("/api/v1/rules")["groups"][0]["rules"]) == 8
