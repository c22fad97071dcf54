"""Peers of a mesh take turns on a slow link: none waits until another's window has left."""

import itertools
import json
import sys

import pytest

from switchagg.native import library
from tests.system.xdp_net import star

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(bool(library.missing()), reason=f"needs the compiled core: {library.missing()}"),
    pytest.mark.usefixtures("requires_root_namespaces"),
]

MESSAGES, MESSAGE_BYTES = 64, 16_000

MEMBER_PROGRAM = f"""
import json, sys, time
from transport.meshes.mesh import MessageReceived, MessageSent
from transport.meshes.mesh_opening import connect_mesh
link, member = sys.argv[1], int(sys.argv[2])
addresses = [(f"10.77.0.{{number + 1}}", 6000) for number in range(3)]
mesh = connect_mesh(link, member, addresses, job="turns", method="ring", options={{}}, timeout_s=60.0)
wanted = MessageReceived if member else MessageSent
if member == 0:
    for to in (1, 2):
        for number in range({MESSAGES}):
            mesh.send(to, b"", bytes({MESSAGE_BYTES}), to * {MESSAGES} + number)
times, left = [], {MESSAGES} if member else {2 * MESSAGES}
while len(times) < left:
    mesh.wait(10.0)
    times += [time.monotonic_ns() for event in mesh.receive() if isinstance(event, wanted)]
print(json.dumps(times), flush=True)
mesh.close()
"""


@pytest.mark.parametrize("link", ["udp", "rdma"])
def test_peers_take_turns_on_a_slow_link(link: str) -> None:
    with star(3) as net:
        net.shape(20, burst=8000)
        ranks = [net.nodes[rank].spawn([sys.executable, "-c", MEMBER_PROGRAM, link, str(rank)]) for rank in range(3)]
        outputs = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0], outputs
    times = [json.loads(out) for out, _ in outputs]
    order = [to for _, to in sorted((at, to) for to in (1, 2) for at in times[to])]
    turns = len(list(itertools.groupby(order)))
    assert turns >= MESSAGES // 2, order  # in windows it would be 8 to 13
