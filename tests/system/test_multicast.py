"""Results leave the switch once and the kernel copies them: who gets them, over which ports, and what loss does."""

import socket
import struct
from functools import partial

import pytest

from emulation.experiments.bench.allreduce.allreduce_cells import Bench
from emulation.experiments.bench.allreduce.rank_messages import RunOperations
from emulation.experiments.bench.allreduce.ranks import Ranks
from emulation.experiments.bench.bench_run import BenchMatrix
from emulation.testbed import netns
from emulation.testbed.mininet.launch import BY_LINKS, RunningScenario
from emulation.testbed.mininet.shaping import NetworkSpec
from switchagg.native import bpf, multicast
from switchagg.native.multicast import Multicast

SWITCH, PORT = "10.0.0.254", 5556
SOL_UDP, UDP_SEGMENT = 17, 103

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("requires_mininet")]


@pytest.fixture(autouse=True)
def _requires_bpf() -> None:
    if reason := bpf.missing((multicast.OBJECT,)):
        pytest.skip(reason)


def bound(address: str, port: int = 0) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind((address, port))
    made.settimeout(0.15)
    return made


def received(link: socket.socket) -> list[bytes]:
    found = []
    while True:
        try:
            found.append(link.recv(2048))
        except TimeoutError:
            return found


def test_every_worker_of_a_job_gets_each_result_once_over_its_own_port() -> None:
    from emulation.testbed.mininet.emulated_network import EmulatedNetwork

    with EmulatedNetwork(NetworkSpec(4, rate_bps=100_000_000)) as star:
        switch = netns.within(star.switch_pid, partial(bound, SWITCH, PORT))
        hosts = [netns.within(host.pid, partial(bound, host.address)) for host in star.workers]
        copies = netns.within(star.switch_pid, partial(Multicast, "s1", switch.fileno(), PORT))
        addresses = [host.getsockname() for host in hosts]
        netns.within(star.switch_pid, partial(copies.admit, 0x1234, addresses[:3]))  # the last host is in no job

        def sent(group: str, rows: list[bytes]) -> list[list[bytes]]:
            segment = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", len(rows[0])))]
            switch.sendmsg([b"".join(rows)], segment, 0, (group, 9))
            return [received(host) for host in hosts]

        rows = [bytes([number]) * 1000 for number in range(20)]
        before = star.counters()
        assert sent("239.0.18.52", rows) == [rows, rows, rows, []]
        down = [after.down_bytes - earlier.down_bytes for after, earlier in zip(star.counters(), before, strict=True)]
        assert down == [20 * (1000 + 42)] * 3 + [0]  # as HTB of each port counts them
        assert sent("239.128.18.52", rows[:2]) == [[], rows[:2], rows[:2], []]  # without rank 0
        assert sent("239.130.18.52", rows[:2]) == [rows[:2], rows[:2], [], []]  # without the last
        assert sent("239.0.18.53", rows[:2]) == [[], [], [], []]  # another job
        with pytest.raises(multicast.SwitchaggError, match=r"10\.0\.0\.99 is no neighbour at s1"):
            netns.within(star.switch_pid, partial(copies.admit, 7, [*addresses[:2], ("10.0.0.99", 1)]))
        copies.evict(0x1234)
        assert sent("239.0.18.52", rows[:2]) == [[], [], [], []]
        copies.close()
        for link in (switch, *hosts):
            link.close()


@pytest.mark.parametrize("loss", [0.0, 0.03])
def test_the_copy_that_one_port_loses_is_repaired(loss: float) -> None:
    loss_by = BY_LINKS if loss else None
    words = BenchMatrix([3], [200_000_000], [1_000_000], "switch:native", dtype="int32", loss=loss, loss_by=loss_by)
    (wish,) = words.requests()
    method = wish.methods[0]
    with RunningScenario(wish.scenario, loss_by) as network:
        switch = network.start_switch(method.cell(wish.scenario, 1_000_000), method.method, method.name)
        with Ranks(network, wish.dtype, 1_000_000, 60.0) as ranks:
            Bench(wish, network, {method: switch}, ranks).open(method)
            answers = ranks.ask(RunOperations(method, 1_000_000, 2, 0, 0, 0, False), 60.0)
        counted = network.switch_counters(switch)
        assert "each result leaves once, and s1 copies it for all" in switch.running.output()
    assert [one.wrong for answer in answers for one in answer.operations] == [0] * 6
    chunks = 2 * -(-250_000 // 360)
    assert counted["link_sent_datagrams"] < 1.5 * chunks  # with a send for each worker: 3 times
    if loss:  # a rank of a busy machine may send again without any
        assert sum(answer.counters["retransmitted"] for answer in answers) > 0
