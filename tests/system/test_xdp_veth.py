"""The switch in the kernel on real interfaces: veth in namespaces of our own, HTB, several CPUs, and sudden ends.

What each worker received is compared with == in the worker's process (tests/system/xdp_worker.py).
"""

import contextlib
import dataclasses
import itertools
import signal
import socket
import struct
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from waiting import until

from emulation.testbed import netns
from emulation.testbed.mininet.services import switchagg_command
from switchagg.dataplane.xdp import frame_of
from switchagg.errors import JobError
from switchagg.job import JobConfig, StreamConfig
from switchagg.native import bpf
from switchagg.wire import Op, Packet, Route, decode, encode
from tests.system.xdp_net import ROOT, SWITCH, Star, star
from transport.contracts.switch_host import Uplink
from transport.switch.xdp import XdpSwitch

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("requires_root_namespaces", "requires_bpf")]

ATTACHED = ["sa_switch", "sa_deliver"]
SO_NO_CHECK = 11

HOST = """
import functools, sys, threading
import transport.switch.switch_endpoints as ends
from transport.switch.daemon import run_switch
from transport.switch.impairments import Impairments, LinkImpairments
from transport.switch.daemon_options import DaemonOptions
ends.XdpOptions = functools.partial(ends.XdpOptions, {options})
at = ("{switch}", 5556)
sys.exit(run_switch(DaemonOptions("tcp://{switch}:5555", at, dataplane="xdp", interfaces={interfaces})))
"""
"""A daemon whose XdpSwitch has options that the command line doesn't offer."""


def exact(said: list[dict[str, Any]], workers: int) -> None:
    assert [one["rank"] for one in said] == list(range(workers))
    assert [one["wrong"] for one in said] == [0] * workers


def host(net: Star, options: str, interfaces: list[str] | None = None) -> "subprocess.Popen[str]":
    process = net.switch.spawn(
        [sys.executable, "-c", HOST.format(options=options, switch=SWITCH, interfaces=interfaces or ())]
    )
    assert process.stdout is not None
    assert "ready" in process.stdout.readline(), process.communicate(timeout=20)[1]
    return process


def names(net: Star) -> dict[str, list[str]]:
    """Programs on the switch's ports, without their numbers."""
    return {port: [name.partition(" ")[0] for name in found if name] for port, found in net.attached().items()}


def log_until(process: "subprocess.Popen[str]", words: str) -> str:
    """The first line of the daemon's log with these words."""
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return line
    raise AssertionError(f"the log ended without {words!r}")


@pytest.mark.parametrize(
    ("mtu", "elements", "gro"),
    [(1500, 360, True), (1500, 360, False), (9000, 2200, True), (9000, 2200, False)],
    ids=["mtu1500-gro", "mtu1500-no-gro", "jumbo-gro", "jumbo-no-gro"],
)
def test_sums_on_a_bridge(mtu: int, elements: int, gro: bool) -> None:
    """P5: results also pass the receivers' checksums, whichever form they were sent in."""
    with star(4, mtu=mtu, gro=gro) as net:
        if gro:
            net.switch.sh("for p in p0 p1 p2 p3; do ethtool -K $p tso off; done")  # or veth takes no part in GRO
        daemon = net.daemon("--elements", str(elements))
        said = net.run("--elements", str(elements), "--size", "300000", "--calls", "3", "--streams", "2")
        exact(said, 4)
        counters = net.status()["data_counters"]
        assert counters["broadcast"] == sum(one["counters"]["results"] for one in said) // 4
        assert counters["results_sent"] == 4 * counters["broadcast"] + counters.get("reply", 0)
        assert counters["drop_checksum"] == counters["send_errors"] == counters["drop_unknown_sender"] == 0
        if gro:
            received = [one["counters"] for one in said]
            assert any(c["link_received_bundles"] < c["link_received_datagrams"] for c in received)
        daemon.terminate()
        assert daemon.wait(20) == 0
        assert names(net) == {f"p{rank}": [] for rank in range(4)}


def test_workers_behind_one_interface() -> None:
    with star(4, bridge=False) as net:
        net.daemon("--interface", "p0")
        exact(net.run("--calls", "3"), 4)


def test_complete_and_partial_checksums() -> None:
    """P5: two workers' kernels complete what they send; two ports of the switch have to complete what they pass on."""
    with star(4) as net:
        for rank in (0, 1):
            net.nodes[rank].sh("ethtool -K eth0 tx off")
        for rank in (1, 2):
            net.switch.sh(f"ethtool -K p{rank} tx off")
            net.nodes[rank].sh("ethtool -K eth0 rx off")
        net.daemon()
        exact(net.run("--size", "200000", "--calls", "3"), 4)
        counters = net.status()["data_counters"]
        assert counters["drop_checksum"] == counters["send_errors"] == 0
        for node in net.nodes:
            wrong = node.sh("awk '/^Udp:/ {print $8}' /proc/net/snmp | tail -1")
            assert int(wrong) == 0


AT, WORKERS, PARENT = (SWITCH, 5556), [("10.77.0.1", 7000), ("10.77.0.2", 7000)], ("10.77.0.3", 5556)


def test_sums_below_another_switch() -> None:
    """H3 to H5: two workers by way of the kernel, a third at the root, whose switch is a process; with losses."""
    control = f"tcp://{PARENT[0]}:5555"
    with star(3) as net:
        root = net.nodes[2].spawn(
            switchagg_command("switch", "--dataplane", "reference", "--data", f"{PARENT[0]}:5556", "--control", control)
        )
        assert root.stdout is not None
        assert "ready" in root.stdout.readline()
        net.daemon("--parent", control, "--name", "rack1", "--impair", "loss=2%")
        words = [sys.executable, "-m", "tests.system.xdp_worker", "--switch", control, "--workers", "3", "--ranks"]
        vias = (["--via", "rack1"], ["--via", "rack1"], [])
        said = net.finish(
            [net.nodes[rank].spawn([*words, str(rank), "--size", "30000", *via]) for rank, via in enumerate(vias)]
        )
        exact(said, 3)
        counters = net.status()["data_counters"]
        assert counters["up"] == counters["broadcast"] >= said[0]["counters"]["results"]
        assert counters["up_again"] > 0


def test_a_leaf_finds_its_parent_on_its_link() -> None:
    """H3 to H5: sums go up to a neighbour that has never sent anything, its result to all, later to who asks."""
    job, values = JobConfig(5, 9, 4, 8, (StreamConfig(0, 2),)), np.arange(8, dtype=np.int32)
    with star(3) as net, contextlib.ExitStack() as ends:
        switch = netns.within(net.switch.holder.pid, lambda: XdpSwitch(AT, 2, 8))
        ends.callback(switch.stop)
        netns.within(net.switch.holder.pid, switch.start)
        with pytest.raises(JobError, match=r"no neighbour has the parent's address 10\.77\.0\.99"):
            netns.within(net.switch.holder.pid, lambda: switch.admit(job, WORKERS, Uplink(("10.77.0.99", 1), 4)))
        netns.within(net.switch.holder.pid, lambda: switch.admit(job, WORKERS, Uplink(PARENT, 4)))
        sockets = []
        for node, address in zip(net.nodes, [*WORKERS, PARENT], strict=True):
            opened = netns.open_socket(node.holder.pid, socket.AF_INET, socket.SOCK_DGRAM)
            sockets.append(ends.enter_context(opened))
            opened.bind(address)
            opened.settimeout(20)
        packets = [Packet(5, 9, 0, rank, Op.SUM, 0, 0, 0, values * (rank + 1)) for rank in (0, 1)]
        for rank in (0, 1):
            sockets[rank].sendto(encode(packets[rank]), AT)
        up = decode(sockets[2].recv(2000))
        assert up == dataclasses.replace(packets[0], rank=4, values=values * 3)
        result = dataclasses.replace(up, values=values * 10, result=True)
        sockets[2].sendto(encode(result), AT)
        assert [decode(end.recv(2000)) for end in sockets[:2]] == [result, result]
        sockets[1].sendto(encode(packets[1]), AT)
        assert decode(sockets[1].recv(2000)) == dataclasses.replace(result, rank=1)
        assert switch.counters() == {**switch.counters(), "up": 1, "broadcast": 1, "reply": 1, "send_errors": 0}


def ready(
    net: Star, ends: contextlib.ExitStack, elements: int = 8
) -> tuple[XdpSwitch, list[socket.socket], list[socket.socket]]:
    """A switch with a job of WORKERS, their sockets, and sockets that get whole frames, as the switch sent them."""
    switch = netns.within(net.switch.holder.pid, lambda: XdpSwitch(AT, 2, elements))
    ends.callback(switch.stop)
    netns.within(net.switch.holder.pid, switch.start)
    switch.admit(JobConfig(5, 9, 2, elements, (StreamConfig(0, 2),)), WORKERS)
    sending, arriving = [], []
    for node, address in zip(net.nodes, WORKERS, strict=True):
        pid = node.holder.pid
        sending.append(ends.enter_context(netns.open_socket(pid, socket.AF_INET, socket.SOCK_DGRAM)))
        sending[-1].bind(address)
        sending[-1].settimeout(20)
        raw = netns.open_socket(pid, socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
        arriving.append(ends.enter_context(raw))
        raw.settimeout(20)
    return switch, sending, arriving


def checksum(data: bytes, sender: tuple[str, int], to: tuple[str, int], *, partial: bool = False) -> int:
    return int.from_bytes(frame_of(data, sender, to, partial=partial)[40:42], "big")


@pytest.mark.parametrize("last", [0, 1], ids=["complete", "partial"])
def test_checksums_at_their_edges(last: int) -> None:
    """P5: a request may be right in both forms, which 1 in 65,536 is; a result's sum that comes to 0 is sent as 0xFFFF.

    `last` is who completes the sums. The kernel of worker 0 completes what it sends, and both ports of the switch what
    they pass on.
    """
    with star(2) as net, contextlib.ExitStack() as ends:
        net.nodes[0].sh("ethtool -K eth0 tx off")
        net.switch.sh("ethtool -K p0 tx off; ethtool -K p1 tx off")
        switch, sending, arriving = ready(net, ends)

        def data(chunk: int, value: int, *, rank: int = last, result: bool = False) -> bytes:
            values = np.array([value, 0, 0, 0, 0, 0, 0, 0], np.int32)
            return encode(Packet(5, 9, 0, rank, Op.SUM, chunk % 2, chunk // 2 % 2, chunk, values, result=result))

        def edges(chunk: int) -> list[int]:
            """Values that make the checksum of the request that of both forms, and that of each result zero."""
            request, result = data(chunk, 0), data(chunk, 0, result=True)
            both = checksum(request, WORKERS[last], AT) - checksum(request, WORKERS[last], AT, partial=True)
            return [both % 0xFFFF, *(checksum(result, AT, worker) for worker in WORKERS)]

        for chunk, (edge, beside) in enumerate(itertools.product(range(3), (0, 1, -1))):
            value = edges(chunk)[edge] + beside
            for rank in (1 - last, last):
                sent = data(chunk, value) if rank == last else data(chunk, 0, rank=rank)
                sending[rank].sendto(sent, AT)
                until_seen(switch, rank, chunk % 2, chunk // 2 % 2)
            expected = data(chunk, value, result=True)
            for raw, worker in zip(arriving, WORKERS, strict=True):
                while (frame := raw.recv(200))[23] != 17:  # UDP
                    pass
                assert frame[42:] == expected
                assert int.from_bytes(frame[40:42], "big") == checksum(expected, AT, worker)
                if beside == 0:
                    assert edge != WORKERS.index(worker) + 1 or frame[40:42] == b"\xff\xff"


@pytest.mark.parametrize("last", [0, 1])
def test_requests_without_checksum(last: int) -> None:
    """P5: taken from a sender that makes none, as sockets do; all results have one, whoever's request caused them."""
    with star(2) as net, contextlib.ExitStack() as ends:
        switch, sending, arriving = ready(net, ends)
        sending[0].setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)
        for chunk in range(4):
            values = np.array([chunk, 1, 2, 3, 4, 5, 6, 7], np.int32)
            packet = Packet(5, 9, 0, 0, Op.SUM, chunk % 2, chunk // 2 % 2, chunk, values)
            for rank in (1 - last, last):
                sending[rank].sendto(encode(dataclasses.replace(packet, rank=rank)), AT)
                until_seen(switch, rank, chunk % 2, chunk // 2 % 2)
            expected = encode(dataclasses.replace(packet, rank=last, values=2 * values, result=True))
            for socket_of, raw, worker in zip(sending, arriving, WORKERS, strict=True):
                assert socket_of.recv(200) == expected
                while (frame := raw.recv(200))[23] != 17:  # UDP
                    pass
                now = int.from_bytes(frame[40:42], "big")
                assert now in {checksum(expected, AT, worker), checksum(expected, AT, worker, partial=True)}
        assert switch.counters()["drop_checksum"] == 0


def until_seen(switch: XdpSwitch, rank: int, slot: int, version: int) -> None:
    until(lambda: rank in switch.seen(slot, version).ranks)


def send_and_wait(switch: XdpSwitch, sending: list[socket.socket], packet: Packet) -> None:
    """Send it, and wait until its rank is seen."""
    sending[packet.rank].sendto(encode(packet), AT)
    until_seen(switch, packet.rank, packet.slot, packet.version)


@pytest.mark.parametrize(
    ("mtu", "elements", "offload", "gro"),
    [(1500, 360, "on", True), (1500, 360, "off", False), (9000, 2200, "on", False), (9000, 2200, "off", True)],
)  # each pair of settings
def test_results_of_routes(mtu: int, elements: int, offload: str, gro: bool) -> None:
    """S6: in two sizes, whoever's packet completes the chunk, header-only or not; lengths and checksums are right
    (P5)."""
    with star(2, mtu=mtu, gro=gro) as net, contextlib.ExitStack() as ends:
        net.switch.sh(f"for p in p0 p1; do ethtool -K $p tso off; ethtool -K $p tx {offload}; done")
        net.nodes[0].sh(f"ethtool -K eth0 tx {offload}")
        switch, sending, arriving = ready(net, ends, elements)
        ways = itertools.product((Route.TO_OWNER, Route.FROM_OWNER), (0, 1), (0, 1))
        for chunk, (route, owner, last) in enumerate(ways):
            giver = owner if route is Route.FROM_OWNER else 1 - owner
            values = np.arange(chunk, chunk + elements, dtype=np.int32)
            packet = Packet(5, 9, 0, giver, Op.SUM, chunk % 2, chunk // 2 % 2, chunk, values, route=route, owner=owner)
            header_only = dataclasses.replace(packet, rank=1 - giver, values=values[:0])
            for each in (packet, header_only) if giver != last else (header_only, packet):
                send_and_wait(switch, sending, each)
            for each in (packet, header_only):  # and again: what is lost is repaired for the one who asks
                sending[each.rank].sendto(encode(dataclasses.replace(each, retransmission=True)), AT)
            for receiver, raw in enumerate(arriving):
                carried = values[:0] if receiver == giver else values
                for cause in (last, receiver):
                    expected = encode(dataclasses.replace(packet, rank=cause, values=carried, result=True))
                    assert sending[receiver].recv(10_000) == expected
                    while (frame := raw.recv(10_000))[23] != 17:  # UDP
                        pass
                    assert (frame[16:18], frame[42:]) == (struct.pack("!H", 28 + len(expected)), expected)
                    now = int.from_bytes(frame[40:42], "big")
                    whole, part = (checksum(expected, AT, WORKERS[receiver], partial=each) for each in (False, True))
                    assert now == whole or (now == part and offload == "on")
        counters = switch.counters()
        assert (counters["drop_checksum"], counters["send_errors"], counters["results_sent"]) == (0, 0, 32)


def test_results_leave_through_the_shaper() -> None:
    with star(2) as net:
        net.shape(100)
        net.daemon()
        said = net.run("--size", "100000", "--calls", "2")
        exact(said, 2)
        for rank in range(2):
            shown = net.switch.sh(f"tc -s class show dev p{rank}")
            packets = int(shown.split("pkt")[0].split()[-1])
            assert packets >= said[rank]["counters"]["results"]


@pytest.mark.parametrize(("mtu", "elements"), [(1500, 360), (9000, 2200)], ids=["mtu1500", "jumbo"])
def test_few_slots_and_all_cpus(mtu: int, elements: int) -> None:
    """All workers want the same few slots at once: without the lock sums are wrong, or no worker gets an answer.

    Long packets hold the lock for long: more of them meet, most of all in tests/conformance/test_xdp.py.
    """
    with star(4, mtu=mtu) as net:
        net.daemon("--elements", str(elements))
        size = str(4_000 * elements)
        exact(net.run("--elements", str(elements), "--window", "2", "--size", size, "--calls", "2"), 4)


def test_a_killed_switch_leaves_nothing_attached() -> None:
    with star(2) as net:
        daemon = net.daemon()
        assert names(net) == {"p0": ATTACHED, "p1": ATTACHED}
        daemon.kill()
        daemon.wait(20)
        assert names(net) == {"p0": [], "p1": []}
        net.daemon()
        exact(net.run(), 2)


def test_a_filter_of_a_killed_switch_is_replaced_and_of_a_living_one_not() -> None:
    """Kernels before 6.6: the filter at tc ingress is no link, and survives."""
    with star(2) as net:
        first = host(net, "tcx=False")
        assert names(net) == {"p0": ATTACHED, "p1": ATTACHED}
        other = net.switch.python(
            "from switchagg.native import bpf\n"
            "from switchagg.dataplane.xdp import KernelSwitch\n"
            "kernel = KernelSwitch(4, 8, ['10.0.0.1'], 5556)\n"
            "bpf.attach_ingress(kernel.object.program('sa_deliver'), 'p0', bpf.interface_index('p0'), tcx=False)"
        )
        assert f"the switch with process id {first.pid}" in other.stderr
        first.kill()
        first.wait(20)
        assert names(net) == {"p0": ["sa_deliver"], "p1": ["sa_deliver"]}
        second = host(net, "tcx=False")
        exact(net.run(), 2)
        second.send_signal(signal.SIGTERM)
        assert second.wait(20) == 0
        assert names(net) == {"p0": [], "p1": []}


def test_generic_xdp() -> None:
    """Also for drivers without native XDP: bundles must be taken apart by the sender."""
    with star(2) as net:
        for node in net.nodes:
            node.sh("ethtool -K eth0 tx-udp-segmentation off")
        daemon = host(net, "native=False")
        assert "tx-udp-segmentation off" in log_until(daemon, "generically")
        assert "generic XDP on p0, p1" in log_until(daemon, "data plane xdp")
        exact(net.run(), 2)


def test_a_foreign_program_is_refused_and_left_alone() -> None:
    code = (
        "import sys\nfrom switchagg.native.bpf import LossProgram\n"
        "with LossProgram('p1', 0.5, 1):\n    print('on', flush=True)\n    sys.stdin.readline()"
    )
    with star(2) as net:
        other = net.switch.spawn([sys.executable, "-c", code], stdin=subprocess.PIPE)
        assert other.stdout is not None
        assert other.stdout.readline() == "on\n"
        with pytest.raises(AssertionError, match="p1 already has an XDP program, sa_lose") as refusal:
            net.daemon()
        assert "ip link set dev p1 xdp off" in str(refusal.value)
        assert names(net) == {"p0": [], "p1": ["sa_lose"]}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--interface", "nowhere"), "there is no interface 'nowhere' here; there are: br0, "),
        (("--elements", "364"), "p0 has an MTU of 1500 bytes, packets of 364 elements need 1504"),
        (("--data", "0.0.0.0:5556"), "--data HOST:PORT"),
        (("--data", "10.99.0.1:5556"), "no interface that is up has the address 10.99.0.1"),
        (("--impair", "delay=1ms"), "can lose packets, and do nothing else to them (both ways delay_ns=1000000)"),
        (("--elements", "2241", "--interface", "lo"), "up to 2240"),
    ],
)
def test_impossible_options_are_refused_in_one_line(options: tuple[str, ...], words: str) -> None:
    with star(1) as net:
        with pytest.raises(AssertionError, match=r"the switch didn't start: switchagg: [^\n]*\n$") as refusal:
            net.daemon(*options)
        assert words in str(refusal.value)
        assert names(net) == {"p0": []}


@pytest.mark.parametrize(
    "privileges", [["setpriv", "--bounding-set=-all", "--inh-caps=-all"], ["unshare", "-Urn"]], ids=["none", "user-ns"]
)
def test_without_privileges_it_is_refused(privileges: list[str]) -> None:
    code = "from switchagg.native import bpf; print(bpf.missing())"
    done = subprocess.run([*privileges, sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True)
    assert done.stdout.startswith("not permitted: run it as root (not of a user namespace)"), done.stderr
    assert done.stdout.count("\n") == 1


def test_loss_is_counted_and_repaired() -> None:
    with star(2) as net:
        net.daemon("--impair", "loss=1%,seed=3")
        said = net.run("--size", "200000", "--calls", "2")
        exact(said, 2)
        counters = net.status()["data_counters"]
        assert counters["up_lost"] > 0
        assert counters["down_lost"] > 0
        packets = sum(
            counters.get(name, 0) for name in ("absorbed", "broadcast", "reply", "drop_duplicate", "drop_older")
        )
        assert sum(one["counters"]["sent"] + one["counters"]["retransmitted"] for one in said) == (
            packets + counters["up_lost"]
        )


def test_results_are_marked_where_workers_use_ecn() -> None:
    with star(2) as net:
        host(net, "mark=1.0")
        exact(net.run("--size", "50000"), 2)
        counters = net.status()["data_counters"]
        assert counters["ecn_marked"] == counters["results_sent"] > 0
    with star(2) as net:
        host(net, "mark=1.0")
        exact(net.run("--congestion", "none", "--size", "50000"), 2)
        assert net.status()["data_counters"]["ecn_marked"] == 0


def test_loss_program_loses_packets_one_by_one() -> None:
    """All traffic, also that of TCP: what was lost and what passed is what was sent."""
    code = (
        "import socket, sys\nfrom switchagg.native.bpf import LossProgram\n"
        "sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); sock.bind(('10.77.0.2', 7000)); sock.settimeout(5)\n"
        "with LossProgram('eth0', 0.25, 7) as loss:\n    print('on', flush=True)\n    sys.stdin.readline()\n"
        "    print(*loss.counts, flush=True)\nprint(*loss.counts)"
    )
    with star(2) as net:
        net.nodes[0].sh("ping -c 1 -W 5 10.77.0.2 >/dev/null")  # ARP would be lost as well
        losing = net.nodes[1].spawn([sys.executable, "-c", code], stdin=subprocess.PIPE)
        assert losing.stdout is not None
        assert losing.stdout.readline() == "on\n"
        sent = net.nodes[0].python(
            "import socket, time\nsock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            "sock.connect(('10.77.0.2', 7000))\nsock.setsockopt(17, 103, 1000)\n"
            "for turn in range(200):\n    sock.send(bytes(20000)); time.sleep(0.001)"
        )
        assert sent.returncode == 0, sent.stderr
        out, errors = losing.communicate("\n", timeout=300)
        assert losing.returncode == 0, errors
        during, after = (tuple(map(int, line.split())) for line in out.splitlines())
        assert during[1] <= after[1]
        passed, lost = after
        assert passed + lost >= 4000  # 20 in each bundle: they were taken apart
        assert 800 < lost < 1200  # binomial: within 7 standard deviations of 1000
        assert net.nodes[1].sh("ip -d link show eth0").count("xdp") == 0


def test_a_port_that_vanishes_in_mid_job() -> None:
    """It is logged with the workers behind it; it is used again when it is back, and the job continues."""
    with star(2) as net:
        daemon = net.daemon()
        workers = net.spawn("--after-first", "--calls", "2", "--size", "50000", stdin=subprocess.PIPE)
        for worker in workers:
            assert worker.stdout.readline() == "first\n"
        net.switch.sh("ip link set p1 down")
        assert "rank 1 of job number" in log_until(daemon, "port p1 is down")
        net.switch.sh("ip link set p1 up")
        log_until(daemon, "port p1 is up again")
        net.switch.sh("ip link del p1")
        assert "rank 1 of job number" in log_until(daemon, "port p1 has vanished")
        assert names_of(net, "p0") == ATTACHED
        net.link(1, 1500, True)
        log_until(daemon, "port p1 is back and in use again")
        for worker in workers:
            worker.stdin.write("\n")
            worker.stdin.flush()
        exact(Star.finish(workers), 2)


def names_of(net: Star, port: str) -> list[str]:
    found = net.switch.python(
        "import sys\nfrom switchagg.native import bpf\nindex = bpf.interface_index(sys.argv[1])\n"
        "print(bpf.attached(index).split()[0], *bpf.at_ingress(index))",
        port,
    )
    return found.stdout.split()


IMPOSTOR = """
import os, select, sys
from switchagg.job import JobConfig, StreamConfig
from switchagg.native import bpf
from transport.switch.xdp import XdpSwitch

switch = XdpSwitch(("10.77.0.254", 5556), 2, 8)
switch.start()
switch.admit(JobConfig(5, 9, 2, 8, (StreamConfig(0, 2),)), [("10.77.0.1", 7000), ("10.77.0.2", 7000)])
ports = [bpf.interface_index(name) for name in ("p0", "p1")]
print("ready", flush=True)
for _ in sys.stdin:
    print(*(ports.index(at) if at else "-" for at in switch._kernel.ports_of(5)), flush=True)
switch.stop()
end, start = os.pipe()
for _ in range(64):
    os.dup(start)  # takes the number of every descriptor that the switch had
switch.stop()
assert not select.select([end], [], [], 0)[0], "it wrote to another's descriptor"
"""

PACKET = """
import socket
import numpy as np
from switchagg.wire import Op, Packet, encode
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("10.77.0.1", 7000))
sock.sendto(encode(Packet(5, 9, 0, 0, Op.SUM, 0, 0, 0, np.zeros(8, np.int32))), ("10.77.0.254", 5556))
"""


def test_a_worker_s_address_on_another_port_gets_no_results() -> None:
    """Where a worker is stays what it was, until its port is down. Stopping again touches nothing."""
    with star(2) as net:
        switch = net.switch.spawn([sys.executable, "-c", IMPOSTOR], stdin=subprocess.PIPE)
        assert switch.stdin is not None
        assert switch.stdout is not None
        assert switch.stdout.readline() == "ready\n"

        def learnt() -> str:
            switch.stdin.write("\n")
            switch.stdin.flush()
            return str(switch.stdout.readline()).strip()

        def heard_from(node: int) -> str:
            assert net.nodes[node].python(PACKET).returncode == 0
            return learnt()

        net.nodes[1].sh("ip addr add 10.77.0.1/24 dev eth0")
        assert learnt() == "- -"
        assert heard_from(0) == "0 -"
        assert heard_from(1) == "0 -"
        net.switch.sh("ip link set p0 down")
        until(lambda: heard_from(1) == "1 -")
        assert learnt() == "1 -"
        switch.stdin.close()
        assert switch.wait(20) == 0


def test_it_takes_its_own_traffic_only() -> None:
    """Ping, TCP and UDP between workers go over the bridge as before; a fragmented datagram reaches the socket."""
    with star(2) as net:
        daemon = net.daemon()
        net.nodes[0].sh("ping -c 2 -i 0.01 -W 2 10.77.0.2 >/dev/null && ping -c 1 -W 2 10.77.0.254 >/dev/null")
        net.nodes[0].python(
            "import socket\nsock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            "sock.sendto(bytes(4000), ('10.77.0.254', 5556))"
        )
        log_until(daemon, "past the program, the first from 10.77.0.1")
        until(lambda: net.status()["data_counters"]["drop_unknown_sender"] == 1)
        assert bpf.missing() == ""
