"""Links that mark (ECN) by a BPF program before their shaper: in a network namespace of its own."""

import json
import subprocess
import sys

import pytest

from emulation.testbed import netns
from emulation.testbed.mininet import marks
from emulation.testbed.mininet.shaping import NetworkSpec, marking_missing, shape_lines

PROBE = """
import json, socket, struct, time
receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.bind(("127.0.0.1", 0))
receiver.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
receiver.settimeout(5)
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(80):
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x20 | 2 * (number % 2))
    sender.sendto(struct.pack("=I", number) + bytes(954), receiver.getsockname())
def receive(count):
    found = []
    for _ in range(count):
        data, ancillary, _, _ = receiver.recvmsg(2000, 64)
        found.append((struct.unpack("=I", data[:4])[0], ancillary[0][2][0]))
    return found
single = receive(80)
time.sleep(0.1)  # an empty queue, whose burst is back
sender.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, bytes([1] * 40))
sender.setsockopt(socket.IPPROTO_UDP, 103, 10)  # UDP_SEGMENT
sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x22)
for number in range(40):
    sender.sendto(struct.pack("=I6x", number) * 20, receiver.getsockname())
print(json.dumps([single, receive(40 * 20)]))
"""


def test_only_capable_packets_behind_more_than_the_threshold_are_marked() -> None:
    if not netns.is_privileged() or (reason := marking_missing()):
        pytest.skip("needs root" if not netns.is_privileged() else reason)
    spec = NetworkSpec(2, rate_bps=8_000_000, ecn_bytes=20_000, queue_bytes=200_000)
    script = "\n".join(["ip link set lo up", *shape_lines(spec, "lo"), f"exec {sys.executable} -c '{PROBE}'"])
    done = subprocess.run(["unshare", "-n", "sh", "-es"], input=script, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    single, bundled = json.loads(done.stdout)
    tos = dict(single)
    assert sorted(tos) == list(range(80))
    assert {tos[number] for number in range(0, 80, 2)} == {0x20}
    first = next(number for number in range(1, 80, 2) if tos[number] == 0x23)
    before = (spec.ecn_bytes + spec.burst_bytes) / 1000  # packets of 1000 bytes with their framing, sent at once
    assert before - 2 <= first <= before + 8
    assert {tos[number] for number in range(first, 80, 2)} == {0x23}
    first = next(number for number, tos in bundled if tos == 0x23)
    before = (spec.ecn_bytes + spec.burst_bytes) / (20 * 92)  # a bundle counts as its segments, each with all headers
    assert before - 1 <= first <= before + 5


def test_each_port_has_a_program_with_its_numbers() -> None:
    if not marks.OBJECT.exists():
        pytest.skip("not built")
    one, other = marks.program(10**8, 30_000, 9000, 10**6), marks.program(10**9, 30_000, 9000, 10**6)
    assert one.read_bytes() != other.read_bytes()
    assert len(one.read_bytes()) == len(marks.OBJECT.read_bytes())
