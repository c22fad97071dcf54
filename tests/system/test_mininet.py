"""The star as it really is: reachability, shaping, the data plane's process, counters, the certificate."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from emulation.testbed.mininet.services import ServiceProcess

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("requires_mininet")]

LOAD = [sys.executable, "-S", str(Path(__file__).with_name("load.py"))]
PORT = "9000"
ECHO = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("10.0.0.254", 9000))
print("starting"); print("echo is ready", flush=True)
while True:
    data, address = s.recvfrom(65536)
    s.sendto(data.upper(), address)
"""
ASK = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(10)
s.sendto(b"gradient", ("10.0.0.254", 9000))
print(s.recvfrom(100))
"""


@pytest.fixture(scope="module")
def topology() -> Any:
    from emulation.testbed.mininet import emulated_network

    return emulated_network


@pytest.fixture(scope="module")
def net(topology: Any, requires_mininet: None) -> Iterator[Any]:
    """A star of three with an echo in the switch."""
    plane = ServiceProcess((sys.executable, "-S", "-c", ECHO), ready="echo is ready")
    with topology.EmulatedNetwork(topology.NetworkSpec(workers=3, rate_bps=100_000_000)) as running:
        running.start_data_plane(plane)
        yield running


def run(net: Any, rank: int, *command: str, timeout_s: float = 30) -> str:
    process = net.spawn(rank, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output, _ = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, output
    return str(output)


# ---- what is there


def test_every_host_reaches_every_other_by_name(net: Any) -> None:
    for rank in range(3):
        names = [f"h{other + 1}" for other in range(3) if other != rank] + ["s1"]
        for name in names:
            assert " 0% packet loss" in run(net, rank, "ping", "-c", "1", "-W", "5", name)


def test_the_first_frame_after_the_build_arrives(topology: Any) -> None:
    """The kernel opens a new link's queues late and drops frames silently until then: the build must wait for it."""
    with topology.EmulatedNetwork(topology.NetworkSpec(workers=2)) as fresh:
        assert " 0% packet loss" in run(fresh, 0, "ping", "-c", "1", "-W", "1", fresh.workers[1].address)


def test_the_data_plane_answers_from_the_switch_and_sees_the_workers(net: Any) -> None:
    answer = run(net, 2, sys.executable, "-S", "-c", ASK)
    assert answer.strip() == "(b'GRADIENT', ('10.0.0.254', 9000))"
    assert "starting\necho is ready" in net.services[0].output()


def test_settings_read_back_are_those_requested(net: Any) -> None:
    report = net.verification
    assert [(port.node, port.interface) for port in report.ports] == [
        *((f"h{rank}", f"h{rank}-eth0") for rank in (1, 2, 3)),
        *(("s1", f"s1-eth{rank}") for rank in (1, 2, 3)),
    ]
    for port in report.ports:
        assert (port.rate_bps, port.ceil_bps, port.queue_bytes, port.mtu_bytes) == (
            100_000_000,
            100_000_000,
            1_000_000,
            1500,
        )
        assert port.offloads["generic-segmentation-offload"]
    assert report.congestion_control in Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    json.dumps(dataclasses.asdict(report))


def test_names_resolve_without_a_name_server_and_the_machine_s_own_files_stay(net: Any) -> None:
    before = (Path("/etc/hosts").read_text(), Path("/etc/resolv.conf").read_bytes())
    assert run(net, 1, "cat", "/etc/resolv.conf") == ""
    own = run(net, 1, sys.executable, "-S", "-c", "import socket; print(socket.gethostbyname(socket.gethostname()))")
    assert own.strip() == net.workers[1].address
    assert "h3" not in before[0].split()
    assert (Path("/etc/hosts").read_text(), Path("/etc/resolv.conf").read_bytes()) == before


def test_interfaces_are_in_their_namespaces_only_and_have_no_ipv6(net: Any) -> None:
    assert "h1-eth0" not in Path("/proc/net/dev").read_text()
    assert "s1-eth1" not in Path("/proc/net/dev").read_text()
    for rank in range(3):
        assert "inet6" not in run(net, rank, "ip", "addr", "show", net.workers[rank].interface)


def test_two_networks_run_side_by_side(net: Any, topology: Any) -> None:
    with topology.EmulatedNetwork(topology.NetworkSpec(workers=2)) as other:
        assert other.workers[0].address == net.workers[0].address
        assert " 0% packet loss" in run(other, 0, "ping", "-c", "1", "-W", "5", "h2")
        assert " 0% packet loss" in run(net, 0, "ping", "-c", "1", "-W", "5", "h2")


# ---- what it carries


@pytest.mark.parametrize(("segments", "payload_bytes"), [(1, 1000), (16, 1460)])
def test_every_frame_is_counted_as_it_would_be_on_the_wire(net: Any, segments: int, payload_bytes: int) -> None:
    before = net.counters()
    send = f"""
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(("10.0.0.2", 9))
if {segments} > 1: s.setsockopt(17, 103, {payload_bytes})
for _ in range(5):
    try: s.send(bytes({segments * payload_bytes}))
    except ConnectionRefusedError: s.send(bytes({segments * payload_bytes}))  # nobody listens there: ICMP says so
"""
    run(net, 0, sys.executable, "-S", "-c", send)
    expected = 5 * segments * (payload_bytes + 42)
    until(
        lambda: net.counters()[1].down_bytes - before[1].down_bytes >= expected
    )  # what was queued may still be leaving
    after = net.counters()
    assert after[0].up_bytes - before[0].up_bytes == expected
    assert after[0].up_packets - before[0].up_packets == 5 * segments
    assert after[1].down_bytes - before[1].down_bytes == expected
    assert after[2] == before[2]


def test_a_link_carries_no_more_than_its_rate(net: Any) -> None:
    sink = net.spawn(1, [*LOAD, "sink", net.workers[1].address, PORT], stdout=subprocess.PIPE)
    assert sink.stdout.readline() == b"ready\n"
    before, began = net.counters(), time.monotonic()
    run(net, 0, *LOAD, "tcp", net.workers[1].address, PORT, "0.7")
    sent, spent_s = net.counters()[0].up_bytes - before[0].up_bytes, time.monotonic() - began
    assert 1_000_000 < sent < 1.02 * 100_000_000 / 8 * spent_s + net.spec.burst_bytes + 70_000


# ---- what is refused


def test_missing_kernel_features_are_refused_before_anything_is_built(
    topology: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from emulation.testbed.mininet import shaping

    if shaping.netem_missing() is None:
        pytest.skip("this kernel has netem: nothing to refuse")
    monkeypatch.setattr(topology.EmulatedNetwork, "_build", lambda network: pytest.fail("it builds"))
    wish = topology.NetworkSpec(workers=2, delay_ns=1_000_000)
    with (
        pytest.raises(topology.UnfitError, match=r"\[topology\] delay_ns.*netem.*--on sim"),
        topology.EmulatedNetwork(wish),
    ):
        pass


def test_a_link_with_other_settings_than_requested_is_refused(topology: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from emulation.testbed.mininet import shaping

    monkeypatch.setattr(shaping, "shape_lines", lambda spec, interface: [":"])
    with (
        pytest.raises(topology.UnfitError) as refused,
        topology.EmulatedNetwork(topology.NetworkSpec(workers=1)),
    ):
        pass
    assert "h1: h1-eth0 is not the link that was asked for (rate 0 instead of 200000000 bits/s" in str(refused.value)


def test_an_unknown_congestion_control_is_refused(topology: Any) -> None:
    wish = topology.NetworkSpec(workers=1, congestion_control="carrier_pigeon")
    with pytest.raises(topology.UnfitError, match="carrier_pigeon"), topology.EmulatedNetwork(wish):
        pass


def test_congestion_control_is_set_in_every_namespace(topology: Any) -> None:
    with topology.EmulatedNetwork(topology.NetworkSpec(workers=1, congestion_control="reno")) as reno:
        assert reno.verification.congestion_control == "reno"


def test_a_failed_data_plane_is_reported_with_its_last_output(topology: Any) -> None:
    spec = topology.NetworkSpec(workers=1)
    ends = ServiceProcess(("sh", "-c", "echo no slots left; exit 3"))
    with (
        pytest.raises(topology.UnfitError, match=r"ended at its start.*no slots left"),
        topology.EmulatedNetwork(spec) as net,
    ):
        net.start_data_plane(ends)
    silent = ServiceProcess(("sleep", "1000"), timeout_s=0.2)
    with (
        pytest.raises(topology.UnfitError, match=r"not ready after 0.2 s.*wrote nothing"),
        topology.EmulatedNetwork(spec) as net,
    ):
        net.start_data_plane(silent)


# ---- the certificate


def loaded(
    topology: Any,
    spec: Any,
    kind: str,
    seconds: str,
    beside: Callable[[int], contextlib.AbstractContextManager[None]] = lambda _pid: contextlib.nullcontext(),
) -> Any:
    """Certificate of a run in which worker 0 sends to worker 1 as fast as it can; `beside` is open while it sends."""
    from emulation.testbed.certificate.fidelity import FidelityMonitor

    with topology.EmulatedNetwork(spec) as net:
        sink = net.spawn(1, [*LOAD, "sink", net.workers[1].address, PORT], stdout=subprocess.PIPE)
        assert sink.stdout.readline() == b"ready\n"
        sender = net.spawn(
            0,
            [*LOAD, "--wait", kind, net.workers[1].address, PORT, seconds],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert sender.stdout.readline() == b"ready\n"
        monitor = FidelityMonitor(net)
        monitor.start()
        try:
            monitor.watch(sender.pid)
            with beside(sender.pid):
                sender.stdin.close()
                sender.wait(60)
        finally:
            certificate = monitor.stop()
    return certificate


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_a_loaded_link_is_measured(topology: Any, kind: str) -> None:
    """Whether it is VALID depends on what else this machine does; that it was measured does not."""
    certificate = loaded(topology, topology.NetworkSpec(workers=2, rate_bps=100_000_000), kind, "1.5")
    measures = certificate.measures
    assert measures["backlogged_gaps"] >= 50
    assert 0 < measures["gap_deviation_median"] < 1
    assert 0.5 < measures["backlogged_rate_share"] < 1.1
    assert 50e6 < measures["peak_bps"] < 150e6
    assert measures["network_threads"] >= 1
    assert measures["timer_lateness_p99_ns"] > 0
    assert certificate.valid == (not certificate.reasons)
    json.dumps(dataclasses.asdict(certificate), allow_nan=False)


def test_a_rate_no_machine_fills_is_invalid(topology: Any) -> None:
    certificate = loaded(topology, topology.NetworkSpec(workers=2, rate_bps=100_000_000_000), "udp", "0.5")
    assert not certificate.valid
    assert certificate.reasons
    if certificate.valid_rate_bps is None:
        assert "Other programs had" in certificate.reasons[-1]
    else:
        assert certificate.valid_rate_bps < 100_000_000_000


@contextlib.contextmanager
def busy_loops_on_the_cpu_of(pid: int) -> Iterator[None]:
    """The process has the lowest priority on one CPU, beside four busy loops."""
    cpu = min(os.sched_getaffinity(0))
    os.sched_setaffinity(pid, {cpu})
    os.setpriority(os.PRIO_PROCESS, pid, 19)
    hogs = [
        subprocess.Popen(["taskset", "-c", str(cpu), sys.executable, "-S", "-c", "while True: pass"]) for _ in range(4)
    ]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def test_network_threads_that_starve_make_a_run_invalid(topology: Any) -> None:
    """The sender has started before busy loops take its CPU: only what it sends waits for them."""
    spec = topology.NetworkSpec(workers=2, rate_bps=1_000_000_000)
    certificate = loaded(topology, spec, "udp", "3", busy_loops_on_the_cpu_of)
    assert not certificate.valid
    assert any("waited for a CPU" in reason for reason in certificate.reasons), certificate
    assert certificate.valid_rate_bps is None or certificate.valid_rate_bps < 1_000_000_000
