"""The user-space provider on loopback, end to end: data, completions, errors, and nothing left behind."""

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from switchagg.errors import JobError
from switchagg.native import library
from transport.links.link import LinkClosed
from transport.rdma import soft
from transport.rdma.rdma_sockets import SEGMENTS_VARIABLE
from transport.rdma.verbs import (
    AccessFlags,
    Opcode,
    QPAttributes,
    QPState,
    QPType,
    ReceiveRequest,
    SendFlags,
    SendRequest,
    WCOpcode,
    WCStatus,
    WorkCompletion,
)

pytestmark = pytest.mark.skipif(bool(library.missing()), reason=f"needs the compiled core: {library.missing()}")

BOTH = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE
KINDS = [QPType.RC, QPType.UC]
PATIENT = QPAttributes(timeout=20, min_rnr_timer=1)
"""No answer for 4.3 s counts as loss: nothing is lost here, but on a busy machine an end may wait long for its turn."""


@dataclass
class End:
    context: soft.SoftContext
    domain: soft.SoftDomain
    cq: soft.SoftCompletionQueue
    memory: np.ndarray[Any, Any]
    region: soft.SoftRegion
    pair: soft.SoftQueuePair

    def send(self, to: "End | None", opcode: Opcode, at: int, size: int, **more: Any) -> None:
        """Of our memory from `at` on, to the same offset at the peer unless `remote` gives another."""
        region = self.region
        remote = (to.region.address + more.pop("remote", at), more.pop("rkey", to.region.rkey)) if to else (0, 0)
        request = SendRequest(more.pop("id", 1), opcode, region.address + at, size, region.lkey, *remote, **more)
        assert self.pair.post_send([request]) == 1

    def receive(self, at: int = 0, size: int = 0, id: int = 2) -> None:
        request = ReceiveRequest(id, self.region.address + at, size, self.region.lkey)
        assert self.pair.post_recv([request]) == 1

    def done(self, count: int = 1) -> list[WorkCompletion]:
        """Exactly so many completions."""
        found: list[WorkCompletion] = []
        deadline = time.monotonic() + 120
        while len(found) < count and time.monotonic() < deadline:
            found += self.cq.poll(count - len(found), 1.0)
        assert len(found) == count
        return found


def make(context: soft.SoftContext, kind: QPType, size: int, access: AccessFlags = BOTH) -> End:
    domain, cq = context.alloc_pd(), context.create_cq(64)
    memory = np.zeros(size, np.uint8)
    region = context.reg_mr(domain, memory, access)
    return End(context, domain, cq, memory, region, context.create_qp(domain, kind, cq, cq, send_depth=16))


@contextlib.contextmanager
def pair(
    kind: QPType,
    size: int = 1 << 20,
    attributes: QPAttributes = PATIENT,
    hosts: tuple[str, str] = ("127.0.0.1", "127.0.0.2"),
    **options: Any,
) -> Iterator[tuple[End, End]]:
    with soft.open(hosts[0], port=0, **options) as first, soft.open(hosts[1], port=0, **options) as second:
        a, b = make(first, kind, size), make(second, kind, size)
        a.memory[:] = np.random.default_rng(1).integers(0, 256, size, np.uint8)
        a.pair.connect(b.pair.end, attributes)
        b.pair.connect(a.pair.end, attributes)
        yield a, b


# ---- data


@pytest.mark.parametrize("mtu", [256, 1024, 4096])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gso", [None, False])
def test_messages_of_every_size_arrive_whole(kind: QPType, mtu: int, gso: bool | None) -> None:
    with pair(kind, 40_000, PATIENT._replace(path_mtu=mtu), gso=gso) as (a, b):
        for size in (0, 1, 3, 4, mtu - 1, mtu, mtu + 1, 2 * mtu, 5 * mtu + 2, 39_999):
            for opcode in Opcode:
                b.memory[:] = 0
                writes = opcode in (Opcode.WRITE, Opcode.WRITE_WITH_IMM)
                b.receive(1, 39_999)
                a.send(b if writes else None, opcode, 1, size, immediate=0xFEEDF00D)
                assert a.done() == [
                    WorkCompletion(
                        1, WCStatus.SUCCESS, WCOpcode.RDMA_WRITE if writes else WCOpcode.SEND, a.pair.number, size, None
                    )
                ]
                if opcode is Opcode.WRITE:  # says nothing over there: a second message does
                    a.send(b, Opcode.WRITE_WITH_IMM, 0, 0, immediate=0xFEEDF00D)
                    a.done()
                (came,) = b.done()
                assert (came.id, came.status, came.qp_num) == (2, WCStatus.SUCCESS, b.pair.number)
                assert came.immediate == (None if opcode is Opcode.SEND else 0xFEEDF00D)
                assert came.opcode == (WCOpcode.RECV_RDMA_WITH_IMM if writes else WCOpcode.RECV)
                assert came.byte_len == (0 if opcode is Opcode.WRITE else size)
                assert np.array_equal(b.memory[1 : 1 + size], a.memory[1 : 1 + size])
                assert not b.memory[0]
                assert not b.memory[1 + size :].any()
        assert b.pair.counters["out_of_order"] == 0


def test_many_messages_in_both_directions_at_once() -> None:
    with pair(QPType.RC, 1 << 18) as (a, b):
        b.memory[:] = a.memory[::-1]
        kept = a.memory.copy(), b.memory.copy()
        half, rng = 1 << 17, random.Random(1)

        def stream(end: End, other: End, first: int) -> None:
            sent = done = at = 0
            while done < 200:
                while sent < 200 and sent - done < 16:
                    size = rng.randrange(1, 1300)
                    at = first + (at - first + size) % (half - 1300)
                    end.send(other, Opcode.WRITE, at, size)
                    sent += 1
                for completion in end.cq.poll(16, 5):
                    assert completion.status == WCStatus.SUCCESS
                    done += 1

        threads = [threading.Thread(target=stream, args=(a, b, 0)), threading.Thread(target=stream, args=(b, a, half))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert np.array_equal(a.memory[:half], kept[0][:half])
        assert np.array_equal(b.memory[half:], kept[1][half:])
        written = b.memory[:half] != kept[1][:half]
        assert written.any()
        assert np.array_equal(b.memory[:half][written], kept[0][:half][written])


@pytest.mark.parametrize("kind", KINDS)
def test_over_ipv6(kind: QPType) -> None:
    try:
        with pair(kind, 10_000, hosts=("::1", "::1")) as (a, b):
            b.receive()
            a.send(b, Opcode.WRITE_WITH_IMM, 0, 10_000)
            assert [end.done()[0].status for end in (a, b)] == [WCStatus.SUCCESS] * 2
            assert np.array_equal(a.memory, b.memory)
    except (JobError, OSError) as error:
        pytest.skip(f"needs IPv6 on loopback: {error}")


def test_progress_can_be_driven_without_a_thread() -> None:
    with pair(QPType.RC, 100_000, thread=False) as (a, b):
        a.send(b, Opcode.WRITE, 0, 100_000)
        found: list[WorkCompletion] = []
        for _ in range(1000):
            b.context.progress(0)
            a.context.progress(0.001)
            if found := a.cq.poll():
                break
        assert found[0].status == WCStatus.SUCCESS
        assert np.array_equal(a.memory, b.memory)


def test_progress_gathers_completions_after_the_first() -> None:
    with pair(QPType.UC, 1000, thread=False) as (a, b):
        for _ in range(2):
            b.receive()
        late = threading.Timer(0.05, a.send, (b, Opcode.WRITE_WITH_IMM, 0, 1000))
        a.send(b, Opcode.WRITE_WITH_IMM, 0, 1000)
        late.start()
        b.context.progress(10.0, gather_s=2.0)
        late.join()
        assert len(b.cq.poll()) == 2


# ---- what is refused


@pytest.mark.parametrize(
    ("remote", "rkey", "size"),
    [(0, 0xDEAD00, 10), (1, None, 1 << 20), (-1, None, 10), (1 << 20, None, 1), (1 << 50, None, 10), (0, 0, 10)],
)
@pytest.mark.parametrize("opcode", [Opcode.WRITE, Opcode.WRITE_WITH_IMM])
def test_a_wrong_key_or_place_is_refused_and_nothing_written(
    opcode: Opcode, remote: int, rkey: int | None, size: int
) -> None:
    for kind in KINDS:
        with pair(kind) as (a, b):
            key = b.region.rkey if rkey is None else rkey
            b.receive(id=9)
            a.send(b, opcode, 0, size, remote=remote, rkey=key)
            if kind == QPType.RC:
                assert a.done()[0].status == WCStatus.REM_ACCESS_ERR
                assert a.pair.state == b.pair.state == QPState.ERR
                assert b.done()[0].status == WCStatus.WR_FLUSH_ERR
            else:  # as if it had been lost
                assert a.done()[0].status == WCStatus.SUCCESS
                a.send(b, Opcode.WRITE_WITH_IMM, 0, 0, immediate=5)
                assert b.done()[0].immediate == 5
                assert b.pair.counters["refused"] == 1
            assert not b.memory.any()


def test_access_is_asked_of_region_queue_pair_and_domain() -> None:
    for case in ("region", "pair", "domain", "gone"):
        with soft.open("127.0.0.1", port=0) as first, soft.open("127.0.0.2", port=0) as second:
            a, b = make(first, QPType.RC, 100), make(second, QPType.RC, 100)
            a.memory[:] = 7
            access = AccessFlags.LOCAL_WRITE if case == "region" else BOTH
            domain = second.alloc_pd() if case == "domain" else b.domain
            target = second.reg_mr(domain, np.zeros(100, np.uint8), access)
            key, address = target.lkey, target.address
            assert target.rkey == (0 if case == "region" else key)
            if case == "gone":
                target.close()
            a.pair.connect(b.pair.end, PATIENT)
            b.pair.connect(
                a.pair.end, PATIENT._replace(access=AccessFlags.LOCAL_WRITE if case == "pair" else PATIENT.access)
            )
            a.pair.post_send([SendRequest(1, Opcode.WRITE, a.region.address, 100, a.region.lkey, address, key)])
            refused = WCStatus.REM_INV_REQ_ERR if case == "pair" else WCStatus.REM_ACCESS_ERR
            assert a.done()[0].status == refused
            assert not target._buffer.any()


def test_own_wrong_memory_completes_with_an_error() -> None:
    for address, size, key in ((0, 101, None), (-1, 1, None), (0, 1, 0xABCD00)):
        with pair(QPType.RC, 100) as (a, b):
            a.send(b, Opcode.WRITE, 0, 50, id=1)
            region = a.region
            lkey = region.lkey if key is None else key
            target = (b.region.address, b.region.rkey)
            a.pair.post_send([SendRequest(2, Opcode.WRITE, region.address + address, size, lkey, *target)])
            a.pair.post_send([SendRequest(3, Opcode.WRITE, region.address, 1, region.lkey, *target)])
            statuses = [completion.status for completion in a.done(3)]
            assert statuses == [WCStatus.SUCCESS, WCStatus.LOC_PROT_ERR, WCStatus.WR_FLUSH_ERR]


def test_a_receive_that_is_too_small_or_wrong_fails_both_ends() -> None:
    for size, wrong, here, there in (
        (99, False, WCStatus.REM_INV_REQ_ERR, WCStatus.LOC_LEN_ERR),
        (100, True, WCStatus.REM_OP_ERR, WCStatus.LOC_PROT_ERR),
    ):
        with pair(QPType.RC, 1000) as (a, b):
            b.pair.post_recv([ReceiveRequest(1, b.region.address, size, 0xABCD00 if wrong else b.region.lkey)])
            b.receive(id=2, size=100)
            a.send(None, Opcode.SEND, 0, 100)
            assert [completion.status for completion in a.done()] == [here]
            assert [(wc.id, wc.status) for wc in b.done(2)] == [(1, there), (2, WCStatus.WR_FLUSH_ERR)]
            assert not b.memory.any()


# ---- receives that are late, and peers that are gone


@pytest.mark.parametrize("opcode", [Opcode.SEND, Opcode.WRITE_WITH_IMM])
def test_a_sender_waits_for_a_receive(opcode: Opcode) -> None:
    with pair(QPType.RC, 10_000) as (a, b):
        a.send(b, opcode, 0, 10_000)
        while not b.pair.counters["no_receive"]:
            time.sleep(0.001)
        assert a.cq.poll() == []
        b.receive(0, 10_000)
        assert a.done()[0].status == WCStatus.SUCCESS
        assert b.done()[0].byte_len == 10_000
        assert np.array_equal(a.memory, b.memory)
        assert b.pair.counters["naks_sent"] >= 1


def test_a_sender_gives_up_after_its_rnr_retries() -> None:
    with pair(QPType.RC, 100, PATIENT._replace(rnr_retry=2)) as (a, b):
        a.send(b, Opcode.SEND, 0, 100)
        a.send(b, Opcode.SEND, 0, 100)
        assert [wc.status for wc in a.done(2)] == [WCStatus.RNR_RETRY_EXC_ERR, WCStatus.WR_FLUSH_ERR]
        assert b.pair.counters["no_receive"] == 3
        assert b.pair.state == QPState.RTS


def test_a_dead_peer_is_an_error() -> None:
    with pair(QPType.RC, 5000, PATIENT._replace(timeout=8, retry_count=3)) as (a, b):
        b.context.close()
        a.send(None, Opcode.SEND, 0, 5000, id=4)
        a.send(None, Opcode.SEND, 0, 5000, id=5)
        assert [(wc.id, wc.status) for wc in a.done(2)] == [(4, WCStatus.RETRY_EXC_ERR), (5, WCStatus.WR_FLUSH_ERR)]
        assert a.pair.counters["timeouts"] == 4
        assert a.pair.state == QPState.ERR


# ---- states, room, closing


def test_states_change_in_their_order_only() -> None:
    with soft.open("127.0.0.1", port=0) as context:
        end = make(context, QPType.RC, 10)
        queue_pair, peer = end.pair, end.pair.end
        request = [SendRequest(1, Opcode.SEND, 0, 0, 0)]
        for state, wrong in (
            (QPState.INIT, (QPState.RTR, QPState.RTS, QPState.SQD)),
            (QPState.RTR, (QPState.INIT, QPState.RTS, QPState.SQD)),
            (QPState.RTS, (QPState.INIT, QPState.RTR, QPState.SQD)),
            (QPState.SQD, (QPState.INIT, QPState.RTR, QPState.RTS)),
        ):
            for other in wrong:
                with pytest.raises(JobError, match=f"to {other.name}"):
                    queue_pair.modify(other, PATIENT, peer)
            with pytest.raises(JobError):
                queue_pair.post_send(request)
            queue_pair.modify(state, PATIENT, peer)
            assert queue_pair.state == state
            if state == QPState.RTS:
                break
        queue_pair.modify(QPState.SQD, PATIENT)
        queue_pair.modify(QPState.RTS, PATIENT)
        queue_pair.modify(QPState.ERR)
        with pytest.raises(JobError):
            queue_pair.modify(QPState.RTS, PATIENT)
        queue_pair.modify(QPState.RESET)
        queue_pair.connect(peer, PATIENT)


@pytest.mark.parametrize(
    "wrong",
    [
        {"path_mtu": 1000},
        {"path_mtu": 8192},
        {"dscp": 64},
        {"timeout": 32},
        {"retry_count": 8},
        {"rnr_retry": 8},
        {"window_packets": 0},
        {"min_rnr_timer": 32},
        {"access": AccessFlags(8)},
        {"line_bps": 1},
    ],
)
def test_values_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with soft.open("127.0.0.1", port=0) as context:
        queue_pair = make(context, QPType.RC, 10).pair
        with pytest.raises(JobError):
            queue_pair.connect(queue_pair.end, PATIENT._replace(**wrong))


def test_err_flushes_and_reset_forgets() -> None:
    with pair(QPType.RC, 100) as (a, _):
        for number in range(3):
            a.receive(0, 10, number)
        a.pair.modify(QPState.ERR)
        assert [(wc.id, wc.status) for wc in a.done(3)] == [(i, WCStatus.WR_FLUSH_ERR) for i in range(3)]
        a.receive(0, 10, 8)
        a.send(None, Opcode.SEND, 0, 10, id=9)
        assert [(wc.id, wc.status) for wc in a.done(2)] == [(i, WCStatus.WR_FLUSH_ERR) for i in (8, 9)]
        a.pair.modify(QPState.RESET)
        a.pair.modify(QPState.INIT, PATIENT)
        a.receive(0, 10)
        with pytest.raises(JobError, match="in use"):
            a.region.close()
        a.pair.modify(QPState.RESET)
        a.region.close()
        assert a.cq.poll() == []


def test_a_queue_that_is_full_takes_no_more_and_loses_nothing() -> None:
    with soft.open("127.0.0.1", port=0) as context:
        domain, cq = context.alloc_pd(), context.create_cq(5)
        queue_pair = context.create_qp(domain, QPType.RC, cq, cq, send_depth=8, receive_depth=4)
        queue_pair.modify(QPState.INIT, PATIENT)
        assert queue_pair.post_recv([ReceiveRequest(i) for i in range(9)]) == 4  # the queue's depth
        queue_pair.modify(QPState.RTR, PATIENT, queue_pair.end)
        queue_pair.modify(QPState.RTS, PATIENT)
        queue_pair.modify(QPState.ERR)
        sends = [SendRequest(10 + i, Opcode.SEND, 0, 0, 0) for i in range(3)]
        assert queue_pair.post_send(sends) == 1  # the completion queue's capacity
        assert [wc.id for wc in cq.poll(9)] == [0, 1, 2, 3, 10]
        assert queue_pair.post_send(sends) == 3


def test_unsignaled_sends_give_no_completion() -> None:
    with pair(QPType.RC, 1000) as (a, b):
        for number in range(40):  # more than the queue holds, less than would fit if each kept its place
            while not a.pair.post_send(
                [
                    SendRequest(
                        number,
                        Opcode.WRITE,
                        a.region.address,
                        9,
                        a.region.lkey,
                        b.region.address,
                        b.region.rkey,
                        flags=SendFlags.NONE if number < 39 else SendFlags.SIGNALED,
                    )
                ]
            ):
                time.sleep(0.0005)
        assert [wc.id for wc in a.done()] == [39]


def test_objects_in_use_are_not_freed() -> None:
    with pair(QPType.RC, 100) as (a, _):
        for thing in (a.domain, a.cq):
            with pytest.raises(JobError, match="in use"):
                thing.close()
        for thing in (a.pair, a.region, a.domain, a.cq, a.pair):
            thing.close()
        assert not a.context._owned


def test_a_wake_ends_the_present_wait_or_the_next() -> None:
    with soft.open("127.0.0.1", port=0) as context:
        queue, begun = context.create_cq(1), time.monotonic()
        queue.wake()
        assert queue.poll() == []
        assert queue.poll(timeout_s=30) == []
        threading.Timer(0.02, queue.wake).start()
        assert queue.poll(timeout_s=30) == []
        assert time.monotonic() - begun < 20
        assert queue.poll(timeout_s=0.01) == []
    queue.wake()


def test_closing_ends_waits_and_frees_the_memory() -> None:
    context = soft.open("127.0.0.1", port=0)
    end = make(context, QPType.RC, 100)
    said: list[str] = []

    def wait() -> None:
        try:
            end.cq.poll(1, 30)
        except LinkClosed as closed:
            said.append(str(closed))

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    context.close()
    context.close()
    thread.join(10)
    assert said == ["the RDMA context is closed"]
    with pytest.raises(LinkClosed):
        end.pair.post_send([SendRequest(1, Opcode.SEND, 0, 0, 0)])
    with pytest.raises(LinkClosed):
        context.alloc_pd()
    end.pair.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1"])
def test_an_address_of_another_host_is_refused(host: str) -> None:
    with pytest.raises(JobError):
        soft.open(host, port=0)


def test_a_missing_library_is_reported_with_how_to_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHAGG_NATIVE", "0")
    library.load.cache_clear()
    try:
        with pytest.raises(JobError, match="no RDMA in user space: SWITCHAGG_NATIVE=0"):
            soft.open("127.0.0.1", port=0)
    finally:
        monkeypatch.undo()
        library.load.cache_clear()


def test_mtus() -> None:
    assert [soft.mtu_for(mtu) for mtu in (320, 1499, 1500, 4200, 9000, 65536)] == [256, 1024, 1024, 4096, 4096, 4096]
    assert soft.mtu_for(1107, ipv6=True) == 512
    with pytest.raises(JobError):
        soft.mtu_for(319)


def test_packets_of_a_send_are_as_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SEGMENTS_VARIABLE, "3")
    with soft.open("127.0.0.1", port=0, thread=False) as context:
        assert context.segments_max == 3
    monkeypatch.setenv(SEGMENTS_VARIABLE, "65")
    with pytest.raises(JobError, match=r"SWITCHAGG_RDMA_SEGMENTS='65' is not allowed; allowed: 1 … 64 packets"):
        soft.open("127.0.0.1", port=0, thread=False)
