"""The native switch when the kernel has no room: a slow link, a small socket buffer; results wait at their port."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from switchagg.native import library
from tests.system.xdp_net import Star, star

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(bool(library.missing()), reason=f"needs the compiled core: {library.missing()}"),
    pytest.mark.usefixtures("requires_root_namespaces"),
]

PACKETS = 128

SWITCH_PROGRAM = """
import json, sys
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.job import JobConfig, StreamConfig
from transport.switch.impairments import parse_impairments
from transport.switch.native_switch_loop import NativeSwitchLoop
from transport.links.udp_link import UdpLink
link = UdpLink(("10.77.0.254", 5556), send_buffer_bytes=8192, segments_max=4)
words = sys.argv[1]
loop = NativeSwitchLoop(link, DATAPLANES["native"](128, 360), impairments=parse_impairments(words) if words else None)
loop.start()
for number in (1, 2):
    job = JobConfig(number, 1, 1, 360, (StreamConfig(64 * (number - 1), 64),))
    loop.admit(job, [(f"10.77.0.1", 7000 + number)])
print("ready", flush=True)
sys.stdin.readline()
print(json.dumps(loop.counters()), flush=True)
loop.stop()
"""

WORKER_PROGRAM = """
import json, time
import numpy as np
from switchagg.job import JobConfig, StreamConfig
from switchagg.wire import Op, Packet, decode, encode
from transport.links.udp_link import UdpLink
links = [UdpLink(("10.77.0.1", 7000 + number)) for number in (1, 2)]
frames = []
for number in (1, 2):
    job = JobConfig(number, 1, 1, 360, (StreamConfig(64 * (number - 1), 64),))
    rows = []
    for chunk in range(64):
        slot, version = job.place(0, chunk)
        packet = Packet(number, 1, 0, 0, Op.SUM, slot, version, chunk, np.full(360, chunk, np.int32))
        rows.append(np.frombuffer(encode(packet), np.uint8))
    frames.append(np.stack(rows))
steps = [0, 24, *range(28, 65, 4)]  # first more than fits; later results must not overtake those that wait
for first, end in zip(steps, steps[1:]):
    for link, mine in zip(links, frames):
        link.send(mine[first:end], ("10.77.0.254", 5556))
    time.sleep(0.006)
said = []
for link, silence_s in zip(links, (2.0, 0.2)):  # both get results in turn: the second one's are here by then
    chunks = []
    while len(chunks) < 64 and link.wait(silence_s):
        for bundle, *_ in link.receive():
            packets = [decode(row.tobytes()) for row in bundle]
            assert all((packet.values == packet.chunk).all() for packet in packets)
            chunks += [packet.chunk for packet in packets]
    said.append(chunks)
print(json.dumps(said))
"""


@contextlib.contextmanager
def slow_switch(words: str = "") -> Iterator[tuple[Star, "subprocess.Popen[str]"]]:
    """A switch that sends at 4 Mbit/s from a socket that takes 8 kB."""
    with star(1) as net:
        net.shape(1000)
        net.switch.sh("tc class replace dev p0 parent 1: classid 1:1 htb rate 4mbit ceil 4mbit burst 3000 cburst 3000")
        process = net.switch.spawn([sys.executable, "-c", SWITCH_PROGRAM, words], stdin=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate(timeout=20)[1]
        yield net, process


def exchange(net: Star, process: "subprocess.Popen[str]") -> tuple[list[list[int]], dict[str, Any]]:
    """Chunks that reached each of two workers, in order; the switch's counters."""
    done = net.nodes[0].python(WORKER_PROGRAM)
    assert done.returncode == 0, done.stderr
    told, errors = process.communicate("\n", timeout=300)
    assert process.returncode == 0, errors
    return json.loads(done.stdout), json.loads(told)


def test_results_wait_for_room_without_loss_or_reordering() -> None:
    with slow_switch() as (net, process):
        chunks, counters = exchange(net, process)
    assert counters["link_send_would_block"] > 0, "the socket was never full: this tested nothing"
    assert counters["drop_queue_full"] == counters["drop_pool"] == 0
    assert chunks == [list(range(64))] * 2


@pytest.mark.parametrize("words", ["queue=20kb", "queue=20kb,delay=1ms", "rate=5mbit,queue=5kb"])
def test_a_full_queue_drops_its_tail_and_counts_it(words: str) -> None:
    with slow_switch(words) as (net, process):
        chunks, counters = exchange(net, process)
    arrived = len(chunks[0]) + len(chunks[1])
    assert counters["drop_queue_full"] + counters["up_drop_queue_full"] == PACKETS - arrived > 0
    assert counters["drop_pool"] == 0
    for own in chunks:
        assert own == sorted(set(own))
