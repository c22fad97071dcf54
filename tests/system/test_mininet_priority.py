"""Priority queues in Mininet: what the kernel holds, where packets go, and what an urgent one waits for."""

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from emulation.scenario.scenario import parse
from emulation.testbed.certificate.fidelity import Bounds
from emulation.testbed.mininet.mininet_run import run_method
from emulation.testbed.mininet.services import ServiceProcess
from emulation.testbed.mininet.shaping import HTB_LEAF
from switchagg.native import library
from switchagg.priority import BEST_EFFORT, CLASSES, tos_of

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("requires_mininet")]

HERE = Path(__file__).parent
LOAD = [sys.executable, "-S", str(HERE / "load.py")]
PROBE = [sys.executable, "-S", str(HERE / "probe.py")]
RATE_BPS = 20_000_000
BUNDLE_BYTES = 16 * 1502
"""What the load hands over at a time: nothing interrupts it on the wire."""


@pytest.fixture(scope="module")
def topology() -> Any:
    from emulation.testbed.mininet import emulated_network

    return emulated_network


def sent_packets(net: Any, node: str, interface: str) -> dict[int, int]:
    """Priority class -> packets that have left a port in it."""
    port = next(port for port in net.verification.ports if (port.node, port.interface) == (node, interface))
    classes = net._readers[node].classes(port.ifindex)
    return {e.handle - HTB_LEAF: e.sent_packets for e in classes if 0 <= e.handle - HTB_LEAF < CLASSES}


def probed(net: Any, tos: int, count: int, port: int) -> list[int]:
    """Delays of datagrams from worker 0 to worker 1."""
    address = net.workers[1].address
    sink = net.spawn(1, [*PROBE, "sink", address, str(port), str(count)], stdout=subprocess.PIPE, text=True)
    assert sink.stdout.readline() == "ready\n"
    sender = net.spawn(0, [*PROBE, "send", address, str(port), str(count), str(tos)])
    output, _ = sink.communicate(timeout=300)
    assert sender.wait(20) == 0
    delays: list[int] = json.loads(output)
    return delays


def under_load(topology: Any, priority_queues: int) -> list[int]:
    """Delays of most urgent datagrams while two others fill the link they come by and the link they leave by."""
    spec = topology.NetworkSpec(workers=3, rate_bps=RATE_BPS, priority_queues=priority_queues)
    with topology.EmulatedNetwork(spec) as net:
        address = net.workers[1].address
        drain = net.spawn(1, [*LOAD, "sink", address, "9000"], stdout=subprocess.PIPE)
        assert drain.stdout.readline() == b"ready\n"
        for rank in (0, 2):
            net.spawn(rank, [*LOAD, "udp", address, "9000", "30"])
        probed(net, 0, 30, 9001)  # until the queues stand
        return probed(net, tos_of(0), 60, 9002)


def test_an_urgent_datagram_waits_for_one_bundle_on_each_link(topology: Any) -> None:
    strict_ns = statistics.median(under_load(topology, CLASSES))
    in_order_ns = statistics.median(under_load(topology, 0))
    bound_ns = 2 * BUNDLE_BYTES * 8e9 / RATE_BPS + Bounds().timer_lateness_p99_ns
    assert strict_ns <= bound_ns < in_order_ns


def test_every_class_has_its_queue_at_both_ends(topology: Any) -> None:
    with topology.EmulatedNetwork(topology.NetworkSpec(workers=2, priority_queues=CLASSES)) as net:
        assert [port.priority_queues for port in net.verification.ports] == [CLASSES] * 4
        assert any("priority classes has a queue" in note for note in net.verification.notes)
        ends = (("h1", "h1-eth0"), ("s1", "s1-eth2"))
        for kind in range(CLASSES):
            before = [sent_packets(net, *end) for end in ends]
            probed(net, tos_of(kind) | 2, 3, 9100 + kind)  # ECN bits don't matter
            after = [sent_packets(net, *end) for end in ends]
            for one, other in zip(before, after, strict=True):
                assert {k: other[k] - one[k] for k in other if other[k] != one[k] and k != BEST_EFFORT} == (
                    {kind: 3} if kind != BEST_EFFORT else {}
                )
                assert other[BEST_EFFORT] - one[BEST_EFFORT] == (3 if kind == BEST_EFFORT else 0)


@pytest.mark.parametrize(
    "broken",
    [
        "tc filter del dev h1-eth0 parent 5: prio 1",
        "tc class change dev h1-eth0 parent 5:1 classid 5:12 htb rate 200kbit ceil 200mbit prio 5",
        "tc class change dev h1-eth0 parent 5:1 classid 5:12 htb rate 100mbit ceil 200mbit prio 2",
        "tc qdisc replace dev h1-eth0 parent 5:13 handle a3: bfifo limit 5000",
    ],
    ids=["no filter", "another order", "a rate of its own", "a short queue"],
)
def test_a_queue_with_wrong_settings_is_reported(topology: Any, broken: str) -> None:
    from emulation.testbed import netns, qdisc
    from emulation.testbed.mininet import shaping

    spec = topology.NetworkSpec(workers=1, priority_queues=CLASSES)
    with topology.EmulatedNetwork(spec) as net:
        worker = net.workers[0]
        netns.run_script(worker.pid, broken)
        reader = qdisc.QdiscReader(worker.pid)
        with pytest.raises(topology.UnfitError, match=r"[017] priority queues instead of 8"):
            shaping.read_back({worker.interface: spec}, "h1", worker.pid, reader)
        reader.close()


def test_a_scheduled_ring_sends_each_class_through_its_queue(
    topology: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P3 over TCP: gradients of the first layers in the urgent classes, those of the last ones in best effort."""
    pytest.importorskip("torch", reason="training needs torch")
    nets: list[Any] = []
    sent: list[dict[int, int]] = []

    class Seen(topology.EmulatedNetwork):  # type: ignore[misc]
        def __enter__(self) -> Any:
            nets.append(super().__enter__())
            return nets[0]

    monkeypatch.setattr(topology, "EmulatedNetwork", Seen)
    scenario = parse(
        'name = "classes"\ntitle = "Classes"\n[methods]\nmininet = ["ring+p3"]\n'
        "[topology]\nworkers = 2\npriority_queues = 8\n"
        "[workload]\niterations = 8\nwarmup_iterations = 5\nbatch_per_worker = 4\n",
        "classes.toml",
    )
    (method,) = scenario.methods_for("mininet")
    found = run_method(
        scenario, method, tmp_path, lambda *_: sent.append(sent_packets(nets[0], "s1", "s1-eth2") if nets else {})
    )
    assert len(set(found.parameter_hash_per_rank)) == 1
    priorities = {span.priority for span in found.timeline if span.priority is not None}
    assert all(sent[-1][kind] > 20 for kind in priorities), "more than what opens a connection"


# ---- what lies below a worker's streams, where the queue knows no classes

CREDIT_BYTES = 131_072


def wait_ns(topology: Any, core: str, credit_bytes: int, priority_queues: int = 0) -> int:
    """How long an urgent packet takes to the switch, behind a window of bulk of 0.9 MB."""
    worker = [sys.executable, str(HERE / "urgent_worker.py")]
    plane = ServiceProcess((*worker, "listen", "10.0.0.254", "9000"), ready="ready")
    spec = topology.NetworkSpec(workers=1, rate_bps=RATE_BPS, priority_queues=priority_queues)
    with topology.EmulatedNetwork(spec) as net:
        listening = net.start_data_plane(plane)
        sender = net.spawn(0, [*worker, "send", "10.0.0.254", "9000", core, str(credit_bytes)])
        assert sender.wait(30) == 0
        return int(listening.output().split()[1])


@pytest.mark.parametrize("core", ["native", "python"])
def test_an_urgent_packet_waits_for_the_credit_and_a_bundle(topology: Any, core: str) -> None:
    if core == "native" and library.missing():
        pytest.skip(f"native core: {library.missing()}")
    bound_ns = (CREDIT_BYTES + BUNDLE_BYTES) * 8e9 / RATE_BPS + Bounds().timer_lateness_p99_ns
    looks = range(3)  # a machine that is busy elsewhere only adds to a wait
    assert any(wait_ns(topology, core, CREDIT_BYTES) <= bound_ns for _ in looks)
    if core == "native":  # without a credit it waits for what the window holds; in a queue of its own for a bundle
        assert wait_ns(topology, core, 0) > bound_ns
        strict_ns = BUNDLE_BYTES * 8e9 / RATE_BPS + Bounds().timer_lateness_p99_ns
        assert any(wait_ns(topology, core, 0, CLASSES) <= strict_ns for _ in looks)
