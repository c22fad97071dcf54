"""Real TCP flows without Mininet: what can't be had is refused, and a process of theirs that dies is named."""

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from emulation.scenario.errors import RunFailed
from emulation.scenario.scenario import parse
from emulation.scenario.scenario_flows import Arrival, Arrivals
from emulation.testbed.mininet import flow_end, flows
from emulation.testbed.mininet.shaping import NetworkSpec

SCENARIO = parse(
    'name = "t"\ntitle = "T"\n[topology]\nworkers = 2\n[[flows]]\nkind = "incast"\ncount = 3\nfrom_rank = 1\n'
    "size_bytes = 5_000\nperiod_ns = 50_000_000\nstart_ns = 10_000_000\nstop_ns = 110_000_000\n",
    "t.toml",
)
ARRIVALS = Arrivals.of(SCENARIO.flows[0], 2, 100_000_000, 1, 0)


def test_bursts_come_every_period_until_they_stop() -> None:
    bursts = [[Arrival(at_ns, source, 5_000) for source in (0, 1, 0)] for at_ns in (10_000_000, 60_000_000)]
    assert list(ARRIVALS) == [*bursts[0], *bursts[1]]


def test_a_congestion_control_that_the_kernel_lacks_is_refused_before_the_run() -> None:
    end = flow_end.FlowEnd("127.0.0.1", 1, ARRIVALS, ("127.0.0.1",), source=0, congestion="none")
    with pytest.raises(ValueError, match=r"^TCP none can't be had here \(No such file.*\); this kernel has: .*reno"):
        flow_end.begin(end)


def test_a_process_of_flows_that_dies_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def spawn(_host: int, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, **options)

    monkeypatch.setattr(flows, "PORT", 0)  # any
    hosts = [SimpleNamespace(name=name, address="127.0.0.1") for name in ("h1", "h2")]
    network: Any = SimpleNamespace(spec=NetworkSpec(workers=2), hosts=hosts, spawn=spawn, interface="-".join)
    with flows.RunningFlows(network, SCENARIO) as running:
        assert running.interfaces == {"h2-s1", "s1-h1"}
        running.check()
        receiver, sender = (child.process for child in running._children)
        sender.kill()
        sender.wait()
        with pytest.raises(RunFailed, match=r"^flows from h2 was killed by SIGKILL$"):
            running.check()
    assert receiver.poll() is not None, "none outlives the run"
