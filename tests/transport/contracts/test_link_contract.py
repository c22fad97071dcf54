"""What every link owes its users: one test body for all of `transport.links.link_kinds` that are links, and
variants."""

import select
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest

from switchagg.errors import JobError
from switchagg.wire import Bundle
from transport.links.link import Address, Link, LinkClosed
from transport.links.link_kinds import LINKS, links_with
from transport.links.udp_link import UdpLink
from transport.zeromq.zmq_link import ZeroMqLink

LIVENESS_S = 120.0

MAKERS: dict[str, Callable[[], Link]] = {
    "udp-gso": partial(UdpLink, ("127.0.0.1", 0), gso=True),
    "udp-plain": partial(UdpLink, ("127.0.0.1", 0), gso=False),
    "udp-ipv6": partial(UdpLink, ("::1", 0)),
    "zeromq-ipv6": partial(ZeroMqLink, ("::1", 0)),
    **{name: partial(LINKS[name].opener("link"), ("127.0.0.1", 0)) for name in links_with("link")},
}


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Iterator[Callable[[], Link]]:
    """Makes links of one kind and closes them all at the end."""
    made: list[Link] = []

    def maker() -> Link:
        try:
            made.append(MAKERS[request.param]())
        except JobError as error:
            pytest.skip(f"{request.param}: {error}")
        return made[-1]

    yield maker
    for link in made:
        link.close()


def bundle(rows: int, size: int, seed: int = 0) -> Bundle:
    """Rows that all differ, so that a swap or a mix-up shows."""
    frames = np.random.default_rng(seed).integers(0, 256, (rows, size), np.uint8)
    width = min(size, 4)
    frames[:, :width] = np.arange(rows, dtype=">u4").view(np.uint8).reshape(rows, 4)[:, 4 - width :]
    return frames


def take(link: Link, datagrams: int) -> list[tuple[bytes, Address]]:
    """Receive exactly that many datagrams, or fail."""
    taken: list[tuple[bytes, Address]] = []
    end = time.monotonic() + LIVENESS_S
    while len(taken) < datagrams:
        assert time.monotonic() < end, f"{len(taken)} of {datagrams} datagrams arrived"
        link.wait(0.5)
        for frames, sender, _ in link.receive():
            assert frames.dtype == np.uint8
            assert frames.ndim == 2
            assert frames.flags.c_contiguous
            taken += [(row.tobytes(), sender) for row in frames]
    assert len(taken) == datagrams
    return taken


def send_all(link: Link, frames: Bundle, to: Address) -> None:
    """Send every row, waiting while the link is full."""
    end = time.monotonic() + LIVENESS_S
    while len(frames):
        assert time.monotonic() < end, "the link stayed full"
        accepted = link.send(frames, to)
        assert 0 <= accepted <= len(frames)
        frames = frames[accepted:]
        if len(frames):
            link.wait(0.5, writable=True)


def test_a_bundle_arrives_row_by_row_in_order(make: Callable[[], Link]) -> None:
    here, there = make(), make()
    frames = bundle(100, 1460)
    send_all(here, frames, there.address)
    assert take(there, 100) == [(row.tobytes(), here.address) for row in frames]


@pytest.mark.parametrize("size", [1, 2, 148, 1460, 1461, 9000, 32_753, 32_754, 65_000, 65_487])
def test_any_size_arrives_whole(make: Callable[[], Link], size: int) -> None:
    here, there = make(), make()
    frames = bundle(3, size)
    send_all(here, frames, there.address)
    assert [data for data, _ in take(there, 3)] == [row.tobytes() for row in frames]


def test_rows_larger_than_a_datagram_are_refused(make: Callable[[], Link]) -> None:
    here, there = make(), make()
    with pytest.raises(ValueError, match="65508"):
        here.send(bundle(1, 65_508), there.address)


def test_no_rows_are_no_datagram(make: Callable[[], Link]) -> None:
    here, there = make(), make()
    assert here.send(bundle(0, 100), there.address) == 0
    send_all(here, bundle(1, 7), there.address)
    assert take(there, 1)[0][0] == bundle(1, 7).tobytes()


def test_an_empty_datagram_is_a_datagram(make: Callable[[], Link]) -> None:
    here, there = make(), make()
    send_all(here, bundle(2, 0), there.address)
    send_all(here, bundle(1, 5), there.address)
    assert [data for data, _ in take(there, 3)] == [b"", b"", bundle(1, 5).tobytes()]


def test_bundles_of_different_sizes_do_not_mix(make: Callable[[], Link]) -> None:
    here, there = make(), make()
    bundles = [
        bundle(rows, size, seed) for seed, (rows, size) in enumerate([(5, 100), (1, 60), (7, 1460), (3, 9), (64, 100)])
    ]
    for frames in bundles:
        send_all(here, frames, there.address)
    expected = [row.tobytes() for frames in bundles for row in frames]
    assert [data for data, _ in take(there, len(expected))] == expected


def test_a_burst_within_the_buffers_arrives_whole(make: Callable[[], Link]) -> None:
    here, there = make(), make()
    frames = bundle(1024, 1460)
    send_all(here, frames, there.address)
    assert [data for data, _ in take(there, 1024)] == [row.tobytes() for row in frames]


def test_one_receive_is_bounded(make: Callable[[], Link]) -> None:
    here, there = make(), make()
    for seed in range(200):
        send_all(here, bundle(1, 50 + seed, seed), there.address)
    there.wait(LIVENESS_S)
    arrived = len(there.receive())
    assert 0 < arrived < 200
    take(there, 200 - arrived)


def test_senders_are_told_apart(make: Callable[[], Link]) -> None:
    first, second, there = make(), make(), make()
    send_all(first, bundle(10, 200, 1), there.address)
    send_all(second, bundle(10, 200, 2), there.address)
    taken = take(there, 20)
    assert [data for data, sender in taken if sender == first.address] == [row.tobytes() for row in bundle(10, 200, 1)]
    assert [data for data, sender in taken if sender == second.address] == [row.tobytes() for row in bundle(10, 200, 2)]


def test_an_address_resolves_to_what_receive_reports(make: Callable[[], Link]) -> None:
    here, there = make(), make()
    send_all(here, bundle(1, 8), there.address)
    assert take(there, 1)[0][1] == there.resolve(here.address) == here.address
    with pytest.raises(JobError, match="port"):
        here.resolve((there.address[0], 0))


def test_received_bundles_stay_as_they_are(make: Callable[[], Link]) -> None:
    here, there = make(), make()
    kept: list[tuple[Bundle, bytes]] = []
    for seed, (rows, size) in enumerate([(2, 30), (16, 1460), (16, 1460), (2, 30), (1, 60_000), (16, 1460)]):
        send_all(here, bundle(rows, size, seed), there.address)
        arrived = 0
        while arrived < rows:
            assert there.wait(LIVENESS_S)
            for frames, *_ in there.receive():
                kept.append((frames, frames.tobytes()))
                arrived += len(frames)
    assert all(frames.tobytes() == copy for frames, copy in kept)


def test_a_sent_bundle_may_be_reused_at_once(make: Callable[[], Link]) -> None:
    here, there = make(), make()
    frames = bundle(16, 1000)
    expected = [row.tobytes() for row in frames]
    send_all(here, frames, there.address)
    frames[:] = 0
    assert [data for data, _ in take(there, 16)] == expected


def test_receive_never_blocks_and_wait_times_out(make: Callable[[], Link]) -> None:
    link = make()
    assert link.receive() == []
    begin = time.monotonic()
    assert not link.wait(0.05)
    assert 0.04 < time.monotonic() - begin < LIVENESS_S
    assert not link.wait(0)


def test_attributes_of_an_idle_link(make: Callable[[], Link]) -> None:
    link = make()
    assert link.has_room()
    assert link.slowness() == ""
    assert link.segments_max >= 1
    assert link.credit_bytes >= 0
    assert link.tos is None or 0 <= link.tos <= 255


def test_a_send_may_have_a_class_of_its_own(make: Callable[[], Link]) -> None:
    here, there = make(), make()
    frames = bundle(4, 300)
    assert here.send(frames, there.address, 0xB8) == 4
    assert [data for data, _ in take(there, 4)] == [row.tobytes() for row in frames]


def test_an_idle_link_is_writable(make: Callable[[], Link]) -> None:
    link = make()
    assert link.wait(LIVENESS_S, writable=True)
    assert not link.wait(0)


def test_a_frame_ends_a_wait(make: Callable[[], Link]) -> None:
    here, there = make(), make()
    sender = threading.Timer(0.05, here.send, (bundle(1, 10), there.address))
    sender.start()
    assert there.wait(LIVENESS_S)
    sender.join()
    assert len(there.receive()) == 1


def test_wake_ends_a_wait_once(make: Callable[[], Link]) -> None:
    link = make()
    waker = threading.Timer(0.05, link.wake)
    waker.start()
    assert link.wait(LIVENESS_S)
    waker.join()
    assert not link.wait(0)
    link.wake()  # before the wait, several times: one wake
    link.wake()
    assert link.wait(LIVENESS_S)
    assert not link.wait(0)
    assert link.receive() == []


def test_sending_to_a_dead_peer_is_loss_and_no_error(make: Callable[[], Link]) -> None:
    here, there = make(), make()
    gone = there.address
    there.close()
    for _ in range(10):
        send_all(here, bundle(20, 500), gone)
        here.wait(0.01)
        assert here.receive() == []
    alive = make()
    send_all(here, bundle(20, 500), alive.address)
    assert len(take(alive, 20)) == 20


def test_bundles_arrive_after_garbage(make: Callable[[], Link]) -> None:
    here, unknown_sender, there = make(), make(), make()
    random = np.random.default_rng(5)
    for _ in range(50):
        size = int(random.integers(0, 3000))
        send_all(unknown_sender, random.integers(0, 256, (int(random.integers(1, 5)), size), np.uint8), there.address)
    send_all(here, bundle(16, 1460), there.address)
    ours: list[bytes] = []
    while len(ours) < 16:
        assert there.wait(LIVENESS_S)
        ours += [row.tobytes() for frames, sender, _ in there.receive() if sender == here.address for row in frames]
    assert ours == [row.tobytes() for row in bundle(16, 1460)]


def test_fileno_polls_readable(make: Callable[[], Link]) -> None:
    here, there = make(), make()
    poll = select.poll()
    poll.register(there.fileno(), select.POLLIN)
    assert not poll.poll(0)
    send_all(here, bundle(1, 1), there.address)
    assert poll.poll(LIVENESS_S * 1000)


def test_a_closed_link_raises(make: Callable[[], Link]) -> None:
    link = make()
    address = link.address
    link.close()
    link.close()
    link.wake()
    assert link.address == address
    for use in (link.receive, link.fileno, partial(link.wait, 0), partial(link.send, bundle(1, 1), address)):
        with pytest.raises(LinkClosed, match=str(address[1])):
            use()
