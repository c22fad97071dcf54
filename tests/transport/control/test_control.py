"""Control plane on real ZeroMQ sockets over loopback: messages, server, client, and what unknown peers send."""

import contextlib
import ctypes
import dataclasses
import itertools
import random
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
import zmq
from hypothesis import given
from waiting import until

from switchagg.aggregator import SlotView
from switchagg.controller.admission import Controller
from switchagg.errors import DecodeError, JobError, SwitchaggError
from switchagg.job import Address, JobConfig
from switchagg.join import JobTerms, Join
from switchagg.priority import tos_of
from transport.control import control_messages
from transport.control.control_client import ControlClient, query_status
from transport.control.control_server import ControlServer
from transport.control.control_sockets import bound
from transport.links.addresses import parse_endpoint

SECOND = 1_000_000_000
BEAT_S = 0.05
LEASE_S = 0.6
GENERATION = 3_141_592_653
SOON_S = 120.0
"""A generous bound: these things take milliseconds."""


@dataclass
class RecordingHost:
    """In place of the switch loop: records the commands it gets."""

    admitted: list[tuple[JobConfig, list[Address]]] = field(default_factory=list)
    evicted: list[int] = field(default_factory=list)
    refusal: str = ""
    stuck: str = ""
    walk_s: float = 0.0
    walks: int = 0
    views: dict[tuple[int, int], SlotView] = field(default_factory=dict)

    def admit(self, job: JobConfig, addresses: Sequence[Address], secret: bytes = b"") -> None:
        if self.refusal:
            raise JobError(self.refusal)
        self.admitted.append((job, list(addresses)))

    def evict(self, job_id: int) -> None:
        self.evicted.append(job_id)

    def slots_of(self, job: JobConfig) -> dict[tuple[int, int], SlotView]:
        self.answers()
        self.walks += 1
        time.sleep(self.walk_s)
        return self.views

    def answers(self) -> None:
        if self.stuck:
            raise SwitchaggError(self.stuck)

    def counters(self) -> dict[str, int]:
        self.answers()
        return {"absorbed": 7}


class Switch:
    """A control server with its thread."""

    def __init__(self, bind: str = "tcp://127.0.0.1:0", server_class: type[ControlServer] = ControlServer) -> None:
        self.host = RecordingHost()
        controller = Controller(
            64, 360, partial(next, itertools.count(GENERATION)), lease_ns=round(LEASE_S * SECOND), claim_ns=SECOND // 10
        )
        self.server = server_class(bind, controller, self.host, ("", 9999))
        self.endpoint = self.server.endpoint
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while not self.stopping.is_set():
            self.server.run_once(0.02)
        self.server.close("the switch was stopped")

    def stop(self) -> None:
        self.stopping.set()
        self.thread.join(SOON_S)
        assert not self.thread.is_alive()


@pytest.fixture
def switch() -> Iterator[Switch]:
    running = Switch()
    yield running
    running.stop()


def a_join(job: str, address: Address, **changes: Any) -> Join:
    """A join of one rank of one, of one stream with a window of 8."""
    common = {"rank": 0, "workers": 1, "elements": 360, "streams": 1, "window_slots": 8, "incarnation": 77}
    return Join(job=job, address=address, **{"timeout_ns": SECOND, **common, **changes})


class RecordedMember:
    """A client, and a record of its callbacks."""

    def __init__(self, endpoint: str, rank: int = 0, workers: int = 2, timeout_s: float = 5.0, **changes: Any) -> None:
        self.departed: list[control_messages.DepartedMember] = []
        self.ends: list[tuple[list[control_messages.RankAddress], str]] = []
        self.beats = 0
        self.ended = threading.Event()
        self.left = threading.Event()
        join = a_join(
            changes.get("job", "train"),
            (changes.get("host", "127.0.0.1"), 4000 + rank),
            rank=rank,
            workers=workers,
            elements=changes.get("elements", 360),
            incarnation=changes.get("incarnation", random.getrandbits(63)),
            timeout_ns=round(timeout_s * SECOND),
        )
        self.client = ControlClient(endpoint, join, self.on_departure, self.on_end, self.on_beat, BEAT_S)
        self.client.start()

    def on_departure(self, departed: list[control_messages.DepartedMember]) -> None:
        self.departed = departed
        self.left.set()

    def on_end(self, dead: list[control_messages.RankAddress], reason: str) -> None:
        self.ends.append((dead, reason))
        self.ended.set()

    def on_beat(self) -> dict[str, int]:
        self.beats += 1
        return {"retransmitted": 7, "results": 90, "timeouts": 0, "of_my_own": 1}

    def admitted(self) -> control_messages.Admitted:
        return self.client.admitted.result(SOON_S)

    def refusal(self) -> str:
        return str(self.client.admitted.exception(SOON_S))

    def die(self) -> None:
        """Stop without a word, as a killed process does."""
        self.client.close()


@contextlib.contextmanager
def clients(*heard: RecordedMember) -> Iterator[tuple[RecordedMember, ...]]:
    try:
        yield heard
    finally:
        for each in heard:
            each.client.close()


# ---- messages

MESSAGES: list[control_messages.Request | control_messages.Answer] = [
    control_messages.JoinMessage(
        a_join("j", ("10.0.0.1", 1), streams=2, window_slots=(64, 32), priorities=(0, 7), congestion="dctcp")
    ),
    control_messages.Heartbeat(1),
    control_messages.Leave(1, [2], "why", wrong_sum=True),
    control_messages.StatusQuery(3, None),
    control_messages.JobGathering([control_messages.RankAddress(0, "h", 1)], [1], ""),
    control_messages.Admitted("j", 1, 2, 2, JobTerms(window_slots=(64,), priorities=(3,)), 0, "", 5556, 4, []),
    control_messages.Alive(3, [control_messages.DepartedMember(control_messages.RankAddress(1, "h", 2), [4], "bye")]),
    control_messages.Refused("no"),
    control_messages.Failed(3, [control_messages.RankAddress(1, "h", 2)], "dead"),
    control_messages.Unknown(),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_from_its_bytes(message: control_messages.Request | control_messages.Answer) -> None:
    decode = (
        control_messages.decode_request
        if isinstance(message, control_messages.Request)
        else control_messages.decode_answer
    )
    assert decode(control_messages.encode(message)) == message


def test_control_messages_travel_in_the_most_urgent_class() -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        bound(dealer)
        assert dealer.get(zmq.TOS) == tos_of(0) == 0xE0


@given(st.lists(st.binary(max_size=40), max_size=4))
def test_any_frames_decode_or_raise(frames: list[bytes]) -> None:
    for decode in (control_messages.decode_request, control_messages.decode_answer):
        with contextlib.suppress(DecodeError):
            decode(frames)


@given(st.sampled_from(MESSAGES[:4]), st.integers(0, 200), st.integers(0, 255))
def test_a_changed_byte_decodes_or_raises(message: control_messages.Request, place: int, value: int) -> None:
    header, body = control_messages.encode(message)
    changed = bytearray(body)
    changed[place % len(body)] = value
    with contextlib.suppress(DecodeError):
        control_messages.decode_request([header, bytes(changed)])


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "frames"),
        ([control_messages.HEADER], "frames"),
        ([control_messages.HEADER, b"", b""], "frames"),
        ([b"GET", b"/"], "magic"),
        ([b"", b""], "magic"),
        ([b"SAC\x01", b""], "control_version"),
        ([control_messages.HEADER, b""], "body"),
        ([control_messages.HEADER, b"\x81\xa4type\xa4join"], "body"),
        ([control_messages.HEADER, b"\x91" * 5000], "body"),
        ([control_messages.HEADER, msgspec.msgpack.encode({"type": "heartbeat", "incarnation": -1})], "body"),
        ([control_messages.HEADER, msgspec.msgpack.encode(
            {"type": "leave", "incarnation": 1, "calls": 1, "reason": "x" * 1001})], "body"),
        ([control_messages.HEADER, msgspec.msgpack.encode({"type": "admitted"})], "body"),
    ],
)  # fmt: skip
def test_an_invalid_request_is_answered_with_the_reason(frames: list[bytes], reason: str) -> None:
    with pytest.raises(DecodeError) as raised:
        control_messages.decode_request(frames)
    assert raised.value.reason == reason


@pytest.mark.parametrize(
    "text", ["", "foo", "tcp://", "tcp://host", "udp://h:1", "tcp://h:x", "tcp://h:99999", "tcp://h:1/p"]
)
def test_a_bad_endpoint_is_refused_and_how_to_fix_it_is_printed(text: str) -> None:
    with pytest.raises(JobError, match="expected tcp://HOST:PORT"):
        parse_endpoint(text)


# ---- server and client


def test_a_job_is_joined_run_and_left(switch: Switch) -> None:
    with clients(RecordedMember(switch.endpoint, 0), RecordedMember(switch.endpoint, 1)) as (zero, one):
        admission = zero.admitted()
        assert admission == one.admitted()
        assert admission.generation == GENERATION
        assert [str(place) for place in admission.members] == ["rank 0 at 127.0.0.1:4000", "rank 1 at 127.0.0.1:4001"]
        ((job, addresses),) = switch.host.admitted
        assert job == admission.config()
        assert addresses == [("127.0.0.1", 4000), ("127.0.0.1", 4001)]
        assert one.client.leave([7, 5], "done", SOON_S)
        assert zero.left.wait(SOON_S)
        assert zero.departed == [
            control_messages.DepartedMember(control_messages.RankAddress(1, "127.0.0.1", 4001), [7, 5], "done")
        ]
        assert switch.host.evicted == []
        assert zero.client.leave([7, 5], "", SOON_S)
        assert switch.host.evicted == [job.job_id]
        assert zero.ends == one.ends == []


def test_a_dead_member_is_named_to_the_others(switch: Switch) -> None:
    with clients(*(RecordedMember(switch.endpoint, rank, 3) for rank in range(3))) as (zero, one, two):
        zero.admitted(), one.admitted(), two.admitted()
        one.die()
        for other in (zero, two):
            assert other.ended.wait(SOON_S)
            ((dead, reason),) = other.ends
            assert [str(place) for place in dead] == ["rank 1 at 127.0.0.1:4001"]
            assert "rank 1 at 127.0.0.1:4001: no heartbeat" in reason
        assert switch.host.evicted == [switch.host.admitted[0][0].job_id]


def test_missing_ranks_are_named_to_those_who_wait(switch: Switch) -> None:
    with clients(
        RecordedMember(switch.endpoint, 0, 3, timeout_s=0.5), RecordedMember(switch.endpoint, 2, 3, timeout_s=0.5)
    ) as both:
        for heard in both:
            assert "rank 1 of 3 did not join job 'train' within 0.5 s; present: rank 0 at" in heard.refusal()


def test_a_disagreement_is_reported_to_both_sides(switch: Switch) -> None:
    members = [RecordedMember(switch.endpoint, rank, workers, timeout_s=1.0) for rank, workers in ((0, 3), (1, 4))]
    with clients(*members) as both:
        for heard in both:
            assert "all ranks must agree" in heard.refusal()


def test_a_switch_that_is_not_there_is_named_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, never speaks ZeroMQ
        endpoint = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with clients(RecordedMember(endpoint, timeout_s=0.3)) as (heard,):
            words = (
                f"no answer from switch {endpoint} within 0.3 s: TCP {silent.getsockname()[1]} is open there, but no"
            )
            assert words in heard.refusal()
        with pytest.raises(JobError, match="no answer from switch"):
            query_status(endpoint, timeout_s=0.2)


def test_workers_may_come_before_the_switch() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
    with clients(RecordedMember(endpoint, workers=1)) as (heard,):
        time.sleep(0.2)
        late = Switch(endpoint)
        try:
            assert heard.admitted().workers == 1
        finally:
            late.stop()


class NotificationLosingServer(ControlServer):
    """Loses every notification: members only get answers to their own requests."""

    def _send_all(self, members: Sequence[Any], answer: control_messages.Answer) -> None:
        pass


def test_lost_notifications_only_delay() -> None:
    switch = Switch(server_class=NotificationLosingServer)
    try:
        with clients(*(RecordedMember(switch.endpoint, rank, 3) for rank in range(3))) as (zero, one, two):
            zero.admitted(), one.admitted(), two.admitted()
            assert two.client.leave([4], "", SOON_S)
            assert zero.left.wait(SOON_S)
            one.die()
            assert zero.ended.wait(SOON_S)
            assert [place.rank for place in zero.ends[0][0]] == [1]
    finally:
        switch.stop()


def test_a_stopping_switch_notifies_its_members(switch: Switch) -> None:
    with clients(RecordedMember(switch.endpoint, 0, 1), RecordedMember(switch.endpoint, 0, 2, job="other")) as (
        running,
        waiting,
    ):
        running.admitted()
        until(lambda: "other" in query_status(switch.endpoint).waiting)
        switch.stop()
        assert running.ended.wait(SOON_S)
        assert running.ends == [([], "the switch was stopped")]
        assert "the switch was stopped" in waiting.refusal()


def test_a_silent_switch_is_given_up_after_a_lease(switch: Switch) -> None:
    with clients(RecordedMember(switch.endpoint, 0, 1)) as (heard,):
        heard.admitted()
        switch.server.run_once = lambda wait_s: time.sleep(wait_s)  # type: ignore[method-assign]
        assert heard.ended.wait(SOON_S)
        assert f"switch {switch.endpoint} has not answered for" in heard.ends[0][1]


def test_a_stall_of_the_whole_process_expires_no_lease(switch: Switch) -> None:
    with clients(RecordedMember(switch.endpoint, 0), RecordedMember(switch.endpoint, 1)) as (zero, one):
        zero.admitted(), one.admitted()
        until(lambda: zero.beats > 3)
        ctypes.PyDLL(None).usleep(1_500_000)  # holds the GIL: no thread runs for more than two leases
        beats = zero.beats, one.beats
        until(lambda: zero.beats > beats[0] + 20 and one.beats > beats[1] + 20)
        assert zero.ends == one.ends == []
        one.die()
        assert zero.ended.wait(SOON_S)


def test_a_restarted_switch_is_noticed(switch: Switch) -> None:
    with clients(RecordedMember(switch.endpoint, 0, 1)) as (heard,):
        heard.admitted()
        switch.server._controller = Controller(64, 360, lambda: 9_000)  # all it knew is gone
        assert heard.ended.wait(SOON_S)
        assert "does not know this job any more: it was restarted" in heard.ends[0][1]


def test_a_client_that_leaves_while_waiting_is_forgotten(switch: Switch) -> None:
    with clients(RecordedMember(switch.endpoint, 0, 2)) as (heard,):
        until(lambda: "train" in query_status(switch.endpoint).waiting)
        assert heard.client.leave([], "", SOON_S)
        assert query_status(switch.endpoint).waiting == {}


def test_a_job_the_data_plane_refuses_fails_with_its_reason(switch: Switch) -> None:
    switch.host.refusal = "no memory"
    with clients(RecordedMember(switch.endpoint, 0, 1)) as (heard,):
        assert "the data plane refused the job: no memory" in heard.refusal()
    assert query_status(switch.endpoint).free_slots == 64


def test_status_has_slots_counters_and_members(switch: Switch) -> None:
    switch.host.views = {(0, 1): SlotView(8, (0, 1)), (3, 0): SlotView(3, (1,))}
    with clients(RecordedMember(switch.endpoint, 0), RecordedMember(switch.endpoint, 1)) as (zero, one):
        zero.admitted(), one.admitted()
        until(lambda: zero.beats > 3 and one.beats > 3)
        answer = zero.client.query("train").result(SOON_S)
        (job,) = answer.jobs
        assert [member.counters for member in job.activity] == 2 * [{"retransmitted": 7, "results": 90}]
        assert all(member.silent_ns < answer.up_ns <= answer.clock_ns for member in job.activity)
        assert switch.server.overview(SOON_S).clock_ns > answer.clock_ns
        assert [(s.slot, s.version, s.chunk, s.ranks) for s in job.slots] == [(3, 0, 3, [1]), (0, 1, 8, [0, 1])]
        assert answer.free_slots == 56
        assert answer.data_counters == {"absorbed": 7}
        assert query_status(switch.endpoint).jobs[0].slots == []
        assert control_messages.as_dict(answer)["jobs"][0]["members"][1] == {
            "rank": 1,
            "host": "127.0.0.1",
            "port": 4001,
        }


def ask_over_tcp(endpoint: str, *requests: control_messages.Request) -> list[control_messages.Answer]:
    """The answers that an unknown sender who only reaches the port gets."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as unknown_sender:
        unknown_sender.set(zmq.LINGER, 0)
        unknown_sender.connect(endpoint)
        answers = []
        for request in requests:
            unknown_sender.send_multipart(control_messages.encode(request))
            assert unknown_sender.poll(round(SOON_S * 1e3))
            answers.append(control_messages.decode_answer(unknown_sender.recv_multipart()))
        return answers


def test_c14_a_unknown_sender_learns_no_generation_and_no_member(switch: Switch) -> None:
    with clients(RecordedMember(switch.endpoint, 0, 1), RecordedMember(switch.endpoint, 0, 2, job="other")) as (
        one,
        _,
    ):
        assert one.admitted().generation == GENERATION
        until(lambda: query_status(switch.endpoint).gathering == 1)
        same_name = control_messages.JoinMessage(a_join("train", ("127.0.0.1", 9)))
        answers = ask_over_tcp(
            switch.endpoint, control_messages.StatusQuery(1, "train"), same_name, control_messages.Heartbeat(77)
        )
        for answer in answers:
            assert str(GENERATION) not in str(control_messages.as_dict(answer))
        status = answers[0]
        assert isinstance(status, control_messages.StatusAnswer)
        assert (status.slots, status.free_slots, status.running, status.gathering) == (64, 56, 1, 1)
        assert not status.details
        assert (status.jobs, status.waiting, status.control_counters, status.data_counters) == ([], {}, {}, {})


def test_c14_a_member_learns_its_own_job_and_the_switchs_user_all(switch: Switch) -> None:
    with clients(RecordedMember(switch.endpoint, 0, 1), RecordedMember(switch.endpoint, 0, 2, job="other")) as (
        one,
        two,
    ):
        one.admitted()
        until(lambda: query_status(switch.endpoint).waiting.keys() == {"other"})
        assert [job.name for job in query_status(switch.endpoint, "train").jobs] == ["train"]
        for heard, jobs, waiting in ((one, ["train"], []), (two, [], ["other"])):
            answer = heard.client.query("train").result(SOON_S)
            assert ([job.name for job in answer.jobs], list(answer.waiting)) == (jobs, waiting)
        with_wrong_secret = ask_over_tcp(switch.endpoint, control_messages.StatusQuery(1, "train", 123))[0]
        assert isinstance(with_wrong_secret, control_messages.StatusAnswer)
        assert not with_wrong_secret.details


def test_c15_a_join_that_gives_another_hosts_address_is_refused(switch: Switch) -> None:
    victim = control_messages.JoinMessage(a_join("train", ("127.0.0.9", 4000)))
    (refused,) = ask_over_tcp(switch.endpoint, victim)
    assert isinstance(refused, control_messages.Refused)
    assert (
        "rank 0 at 127.0.0.9:4000 gives a data address that its join does not come from (127.0.0.1)" in refused.reason
    )
    assert query_status(switch.endpoint).control_counters["refused_address"] == 1
    with clients(RecordedMember(switch.endpoint, 0, 1, host="127.0.0.9")) as (own,):
        assert own.admitted().members == [control_messages.RankAddress(0, "127.0.0.9", 4000)]


@pytest.mark.parametrize(
    "changes", [{"streams": 1 << 62}, {"streams": 1 << 62, "window_slots": 0}, {"window_slots": 1 << 62}]
)
def test_a_join_of_any_numbers_is_refused_and_costs_the_switch_nothing(switch: Switch, changes: dict[str, int]) -> None:
    join = control_messages.JoinMessage(a_join("train", ("127.0.0.1", 4000), **changes))
    (refused,) = ask_over_tcp(switch.endpoint, join)
    assert isinstance(refused, control_messages.Refused)
    assert "this switch takes" in refused.reason


@pytest.mark.parametrize("name", ["job", "codec", "link", "via"])
def test_a_join_with_a_long_text_is_dropped_before_the_switch_holds_it(name: str) -> None:
    join = dataclasses.replace(a_join("train", ("127.0.0.1", 4000)), **{name: "!" * 1000})  # type: ignore[arg-type]
    frames = control_messages.encode(control_messages.JoinMessage(join))
    body = msgspec.msgpack.decode(frames[1])
    body["join"][name] *= 100
    with pytest.raises(DecodeError, match="at most 1000"):
        control_messages.decode_request([frames[0], msgspec.msgpack.encode(body)])


def test_no_query_delays_a_heartbeat(switch: Switch) -> None:
    """A walk through a job's slots that takes longer than a lease; ranks that ask together share it."""
    switch.host.walk_s = 2 * LEASE_S
    switch.host.views = {(0, 1): SlotView(8, (1,))}
    with clients(RecordedMember(switch.endpoint, 0), RecordedMember(switch.endpoint, 1)) as (one, other):
        one.admitted(), other.admitted()
        answers = [heard.client.query("train") for heard in (one, other) for _ in range(3)]
        for answer in answers:
            assert answer.result(SOON_S).jobs[0].slots == [control_messages.SlotStatus(0, 1, 8, [1])]
        assert switch.host.walks == 1
        assert not one.ends
        assert not other.ends
        assert query_status(switch.endpoint).control_counters["failed"] == 0


def test_status_is_answered_although_the_data_plane_does_not_answer(switch: Switch) -> None:
    switch.host.views = {(0, 1): SlotView(8, (0, 1))}
    with clients(RecordedMember(switch.endpoint, 0, 1)) as (heard,):
        heard.admitted()
        switch.host.stuck = "the switch loop did not answer"
        answer = heard.client.query("train").result(SOON_S)
        assert (answer.data_counters, answer.jobs[0].slots) == ({}, [])
        switch.host.stuck = ""
        answer = heard.client.query("train").result(SOON_S)
        assert (answer.data_counters, len(answer.jobs[0].slots)) == ({"absorbed": 7}, 1)
        assert heard.ends == []


def test_an_address_in_use_is_an_os_error(switch: Switch) -> None:
    with pytest.raises(OSError, match="in use"):
        ControlServer(switch.endpoint, Controller(1, 1, lambda: 0), RecordingHost(), ("", 1))


def test_closing_twice_and_before_starting(switch: Switch) -> None:
    heard = RecordedMember(switch.endpoint, 0, 1)
    heard.admitted()
    heard.client.close()
    heard.client.close()
    assert not any(thread.name.startswith("control-train") for thread in threading.enumerate())


# ---- unknown senders


def test_garbage_is_counted_by_reason_and_changes_nothing(switch: Switch) -> None:
    chance = random.Random(1)
    with clients(RecordedMember(switch.endpoint, 0), RecordedMember(switch.endpoint, 1)) as (zero, one):
        zero.admitted(), one.admitted()
        with zmq.Context() as context, context.socket(zmq.DEALER) as unknown_sender:
            unknown_sender.set(zmq.LINGER, 0)
            unknown_sender.connect(switch.endpoint)
            for number in range(100):
                unknown_sender.send_multipart([chance.randbytes(chance.randrange(8))] * chance.randrange(1, 4))
                unknown_sender.send_multipart([control_messages.HEADER, chance.randbytes(chance.randrange(60))])
                unknown_sender.send_multipart([b"SAC\x63", b""])
                unknown_sender.send_multipart(control_messages.encode(control_messages.Heartbeat(number)))
                unknown_sender.send_multipart(control_messages.encode(control_messages.Leave(number, [1], "")))
            answers = set()
            while len(answers) < 2:
                assert unknown_sender.poll(10_000)
                answers.add(type(control_messages.decode_answer(unknown_sender.recv_multipart())))
            assert answers == {control_messages.Refused, control_messages.Unknown}
            until(lambda: query_status(switch.endpoint).control_counters["unknown_senders"] == 200)
        counters = query_status(switch.endpoint).control_counters
        assert counters["drop_control_version"] == 100
        assert counters["drop_body"] == 100
        assert counters["drop_frames"] + counters["drop_magic"] == 100
        assert zero.ends == one.ends == []
        assert len(query_status(switch.endpoint).jobs) == 1


def test_what_is_not_even_zeromq_disturbs_no_one(switch: Switch) -> None:
    port = parse_endpoint(switch.endpoint)[1]
    with clients(RecordedMember(switch.endpoint, 0, 1)) as (heard,):
        heard.admitted()
        for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 5000, b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f"):
            with socket.create_connection(("127.0.0.1", port), timeout=5) as raw:
                raw.sendall(data)
        with zmq.Context() as context, context.socket(zmq.DEALER) as greedy:
            greedy.set(zmq.LINGER, 0)
            greedy.connect(switch.endpoint)
            greedy.send_multipart([control_messages.HEADER, b"\x00" * (2 << 20)])
            beats = heard.beats
            until(lambda: heard.beats > beats + 3)
        assert query_status(switch.endpoint).jobs[0].name == "train"
        assert heard.ends == []
