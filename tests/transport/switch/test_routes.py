"""Results of two sizes to two sets of ports, through each event loop of the switch (S6): in memory, pool and queues."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import numpy as np
import pytest

from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.job import JobConfig, StreamConfig
from switchagg.native import library
from switchagg.priority import tos_of
from switchagg.wire import HEADER_BYTES, Op, Packet, Route, decode, encode, frame_bytes
from transport.links.udp_link import UdpLink
from transport.switch.impairments import parse_impairments
from transport.switch.native_switch_loop import NativeSwitchLoop
from transport.switch.switch_loop import CommandLoop, SwitchLoop

WORKERS, ELEMENTS, WINDOW, RUN = 3, 50, 48, 8
JOB = JobConfig(7, 3, WORKERS, ELEMENTS, (StreamConfig(0, WINDOW),))
requires_native = pytest.mark.skipif(bool(library.missing()), reason=f"needs the compiled core: {library.missing()}")


def in_c(words: str) -> Callable[[UdpLink], CommandLoop]:  # type: ignore[type-arg]
    impairments = parse_impairments(words) if words else None
    return lambda link: NativeSwitchLoop(link, DATAPLANES["native"](WINDOW, 2 * ELEMENTS), impairments=impairments)


LOOPS = {
    "Python": lambda link: SwitchLoop(link, DATAPLANES["reference"](WINDOW, 2 * ELEMENTS)),
    "C": in_c(""),
    "C, delayed": in_c("delay=200us"),
    "C, with a rate": in_c("rate=1gbit,queue=1mb"),
}


@contextmanager
def switch_of(name: str, links: list[UdpLink]) -> Iterator[UdpLink]:
    link = UdpLink(("127.0.0.1", 0))
    loop = LOOPS[name](link)
    loop.start()
    try:
        loop.admit(JOB, [one.address for one in links])
        yield link
        counters = loop.counters()
        assert counters["broadcast"] == WINDOW
        assert counters["link_sent_datagrams"] == WINDOW * WORKERS
    finally:
        loop.stop()


def contribution(rank: int, chunk: int) -> Packet:
    """Runs of one owner, and so of one size; the routes alternate."""
    route, owner = Route(1 + chunk // RUN % 2), chunk // RUN % WORKERS
    gives = (rank == owner) == (route is Route.FROM_OWNER)
    values = np.full(ELEMENTS * gives, 100 * rank + chunk, np.int32)
    return Packet(7, 3, 0, rank, Op.SUM, *JOB.place(0, chunk), chunk, values, route=route, owner=owner)


@requires_native
@pytest.mark.parametrize("name", LOOPS)
def test_each_rank_gets_values_or_a_header_only_result(name: str) -> None:
    links = [UdpLink(("127.0.0.1", 0)) for _ in range(WORKERS)]
    with closing(links[0]), closing(links[1]), closing(links[2]), switch_of(name, links) as switch:
        for rank, link in enumerate(links):
            for first in range(0, WINDOW, RUN):
                rows = [encode(contribution(rank, chunk)) for chunk in range(first, first + RUN)]
                bundle = np.frombuffer(b"".join(rows), np.uint8).reshape(RUN, -1)
                assert link.send(bundle, switch.address) == RUN
        for rank, link in enumerate(links):
            got: dict[int, Packet] = {}
            while len(got) < WINDOW and link.wait(5):
                for bundle, sender, _ in link.receive():
                    assert sender == switch.address
                    assert bundle.shape[1] in (HEADER_BYTES, frame_bytes(ELEMENTS))
                    got |= {packet.chunk: packet for packet in map(decode, map(bytes, bundle))}
            assert sorted(got) == list(range(WINDOW))
            for chunk, packet in got.items():
                given = [contribution(r, chunk).values for r in range(WORKERS)]
                wanted = [] if given[rank].size else np.sum([v for v in given if v.size], axis=0).tolist()
                assert packet.values.tolist() == wanted, (rank, chunk)
                assert (packet.result, packet.route, packet.owner) == (True, *_routed(chunk))


def _routed(chunk: int) -> tuple[Route, int]:
    packet = contribution(0, chunk)
    return packet.route, packet.owner


@requires_native
@pytest.mark.parametrize("name", LOOPS)
def test_w10_results_of_both_sizes_have_the_class_of_their_stream(name: str) -> None:
    streams = tuple(StreamConfig(RUN * place, RUN, priority) for place, priority in enumerate((0, 3, 7)))
    job = replace(JOB, workers=2, streams=streams)
    with ExitStack() as stack:
        ranks = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(2)]
        for rank in ranks:
            rank.bind(("127.0.0.1", 0))
            rank.settimeout(20)
            rank.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        link = UdpLink(("127.0.0.1", 0))
        loop = LOOPS[name](link)
        loop.start()
        stack.callback(loop.stop)
        loop.admit(job, [rank.getsockname() for rank in ranks])
        for stream, route in ((0, Route.TO_OWNER), (1, Route.FROM_OWNER), (2, Route.TO_OWNER)):
            tos = tos_of(streams[stream].priority)
            for number, rank in enumerate(ranks):
                gives = (number == 0) == (route is Route.FROM_OWNER)
                values = np.full(ELEMENTS * gives, 5, np.int32)
                place = job.place(stream, 0)
                packet = Packet(7, 3, stream, number, Op.SUM, *place, 0, values, route=route, owner=0)
                rank.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
                rank.sendto(encode(packet), link.address)
            for number, rank in enumerate(ranks):
                data, ((_, _, mark),), _, _ = rank.recvmsg(2048, socket.CMSG_SPACE(4))
                header_only = (number == 0) == (route is Route.FROM_OWNER)
                assert len(data) == (HEADER_BYTES if header_only else frame_bytes(ELEMENTS))
                assert mark[0] == tos
