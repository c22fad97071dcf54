"""The workers' end of the control plane: `ControlClient` (DEALER, one per worker), and `query_status` for anyone."""

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from enum import Enum, auto
from queue import Empty, SimpleQueue

import zmq

from switchagg.errors import DecodeError, JobError, SwitchaggError, as_line
from switchagg.job import Address
from switchagg.join import Join
from transport.control import control_messages
from transport.control.control_sockets import bound, local_endpoint
from transport.control.heartbeats import BEAT_NS, Heartbeats
from transport.control.member_reports import reported
from transport.control.requests import Requests
from transport.control.stalls import StallDetector
from transport.links.addresses import parse_endpoint, resolve_host, tcp_fault
from transport.zeromq.keys import Keys, key_advice

IDLE_NS = 500_000_000
"""Longest wait once the session has ended."""

SILENT_NS = 1_000_000_000

JOIN_GRACE_S = 2.0
"""How long a client that got an answer waits beyond its timeout: the switch's refusal names the missing ranks."""


class _Phase(Enum):
    JOINING = auto()
    RUNNING = auto()
    LEAVING = auto()
    ENDED = auto()


class ControlClient:
    """A worker's side: joins, sends heartbeats, receives ends and departures, queries, leaves. It owns a thread.

    switch: "tcp://host:port". join: its timeout_ns included. The future `admitted` resolves to the admission or a
    JobError. `asked_to_leave`: why the job shall leave, or "" (C21). Called in the thread, after the admission only:
    on_departure(all who left), on_end(dead, reason) at most once, on_beat() with every heartbeat: it gives the counters
    that the next one carries. patience_s: how long the switch may be silent, if that is less than its lease (C12).
    Raises JobError for an address that can't be.
    """

    def __init__(
        self,
        switch: str,
        join: Join,
        on_departure: Callable[[list[control_messages.DepartedMember]], None],
        on_end: Callable[[list[control_messages.RankAddress], str], None],
        on_beat: Callable[[], Mapping[str, int]],
        heartbeat_s: float = BEAT_NS / 1e9,
        keys: Keys | None = None,
        patience_s: float = math.inf,
    ) -> None:
        host, port = parse_endpoint(switch)
        self.switch = switch
        self.admitted: Future[control_messages.Admitted] = Future()
        self.asked_to_leave = ""
        self._peer = resolve_host(host), port
        self._join = join
        self._keys = keys
        self._on_departure = on_departure
        self._on_end = on_end
        self._on_beat = on_beat
        self._beats = Heartbeats(round(heartbeat_s * 1e9))
        self._phase = _Phase.JOINING
        self._counters: dict[str, int] = {}
        self._answered = False
        self._lease_ns, self._patience_s = 0, patience_s
        self._departed = 0
        self._last_reason = ""
        self._leave_message: tuple[list[int], str, bool] | None = None
        self._left = threading.Event()
        self._stopping = False
        self._query_queue: SimpleQueue[tuple[str | None, Future[control_messages.StatusAnswer]]] = SimpleQueue()
        self._queries: dict[int, tuple[control_messages.StatusQuery, Future[control_messages.StatusAnswer]]] = {}
        self._token = 0
        self._stalls = StallDetector()
        self._wake_out, self._wake_in = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._thread = threading.Thread(target=self._run, name=f"control-{join.job}-{join.rank}", daemon=True)

    # Methods that any thread may call

    def start(self) -> None:
        """Start the thread, and with it the join; once."""
        self._thread.start()

    @property
    def is_silent(self) -> bool:
        """Whether the switch has left a request unanswered for a second: it or the path may be down."""
        return self._beats.silent_ns(time.monotonic_ns()) >= SILENT_NS

    def query(self, job: str | None) -> "Future[control_messages.StatusAnswer]":
        """Ask for the switch's status, with the slots of this job; wait for the future with a timeout."""
        future: Future[control_messages.StatusAnswer] = Future()
        self._query_queue.put((job, future))
        self._wake()
        return future

    def leave(self, calls: Sequence[int], reason: str, timeout_s: float, wrong_sum: bool = False) -> bool:
        """Send the leave message and wait for its echo; True if it came. Without it the lease ends for the others (C6).

        calls: how many are finished, by stream (C7). wrong_sum: the reason is a wrong sum. Only the first leave message
        is sent.
        """
        if self._leave_message is None:
            self._leave_message = (list(calls), reason[: control_messages.TEXT_MAX], wrong_sum)
        self._wake()
        return self._left.wait(timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread and free the socket; a second call does nothing."""
        self._stopping = True
        self._wake()
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    # Methods that run in the thread

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake; closed: it has ended
            self._wake_out.send(b"!")

    def _run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()  # the process's: each context has two threads
        try:
            host, peer = self._join.address[0], self._peer  # C15: it connects from there.
            with contextlib.closing(Requests(context, host, peer, self.switch, self._keys, self._wake_in)) as requests:
                self._serve(requests)
        except SwitchaggError as error:
            self._end([], str(error))
        except BaseException as error:
            self._end([], f"the control plane's thread failed: {as_line(error)}")
        finally:
            self._end([], "the session was closed")
            self._left.set()
            self._fail_queries()
            self._wake_in.close()
            self._wake_out.close()

    def _serve(self, requests: Requests) -> None:
        deadline_ns = time.monotonic_ns() + self._join.timeout_ns
        while not self._stopping:
            now_ns = time.monotonic_ns()
            self._send_queries(requests)
            self._send_due(requests, now_ns)
            requests.wait(IDLE_NS if self._phase is _Phase.ENDED else self._beats.due_ns - now_ns)
            self._drain_wake()
            replaced = requests.replaced
            for answer in requests.answers():
                self._receive_answer(answer)
            if requests.replaced > replaced:
                for query, _ in self._queries.values():
                    requests.send(query)
            self._check_silence(time.monotonic_ns(), deadline_ns)

    def _send_queries(self, requests: Requests) -> None:
        """Send the queries that were asked for since the last time."""
        with contextlib.suppress(Empty):
            while True:
                job, future = self._query_queue.get_nowait()
                self._token += 1
                query = control_messages.StatusQuery(self._token, job, self._join.incarnation)
                self._queries[self._token] = query, future
                requests.send(query)

    def _send_due(self, requests: Requests, now_ns: int) -> None:
        """Send what repeats itself, if it is due."""
        if self._leave_message is not None and self._phase in (_Phase.JOINING, _Phase.RUNNING):
            self._phase = _Phase.LEAVING
            self._beats.hurry()
        if self._phase is _Phase.ENDED or now_ns < self._beats.due_ns:
            return
        requests.send(self._due_request(), fresh=self._beats.fresh)
        self._beats.note_sent(now_ns)
        if self._phase is _Phase.RUNNING:
            self._counters = reported(self._on_beat())

    def _due_request(self) -> control_messages.Request:
        match self._phase:
            case _Phase.JOINING:
                return control_messages.JoinMessage(self._join)
            case _Phase.RUNNING:
                return control_messages.Heartbeat(self._join.incarnation, self._counters)
            case _:
                assert self._leave_message is not None
                return control_messages.Leave(self._join.incarnation, *self._leave_message)

    def _receive_answer(self, answer: control_messages.Answer) -> None:
        self._answered = True
        self._beats.note_answer()
        match answer:
            case control_messages.StatusAnswer():
                if (query := self._queries.pop(answer.token, None)) is not None:
                    query[1].set_result(answer)
            case control_messages.JobGathering():
                ranks = ", ".join(map(str, answer.missing))
                self._last_reason = answer.reason or f"waiting for ranks {ranks}"
            case control_messages.Admitted() if self._phase is _Phase.JOINING:
                self._lease_ns = round(min(answer.lease_ns, self._patience_s * 1e9))
                self._phase = _Phase.RUNNING
                self.admitted.set_result(answer)
            case control_messages.Alive() if self._phase is _Phase.RUNNING:
                self.asked_to_leave = answer.asked_to_leave
                if len(answer.departed) > self._departed:
                    self._departed = len(answer.departed)
                    self._on_departure(answer.departed)
            case control_messages.Refused():
                self._end([], answer.reason, lacks_room=answer.lacks_room)
            case control_messages.Failed():
                self._end(answer.dead, answer.reason)
            case control_messages.Unknown():
                self._end_without_switch("does not know this job any more: it was restarted")

    def _check_silence(self, now_ns: int, deadline_ns: int) -> None:
        """Give up on a switch that doesn't answer (C12)."""
        if self._stalls.ended(now_ns):
            self._beats.forgive(now_ns)
        silent_ns = self._beats.silent_ns(now_ns)
        if self._phase is _Phase.RUNNING and silent_ns >= self._lease_ns:
            self._end_without_switch(f"has not answered for {silent_ns / 1e9:.1f} s: it or the path is down")
        elif self._phase is _Phase.JOINING and now_ns >= deadline_ns:
            waited = f"within {self._join.timeout_ns / 1e9:g} s"
            if not self._answered:
                self._end([], f"no answer from switch {self.switch} {waited}: {_why_silent(self._peer, self._keys)}")
            elif now_ns >= deadline_ns + round(JOIN_GRACE_S * 1e9):
                self._end([], f"switch {self.switch} did not admit the job {waited}: {self._last_reason}")

    def _end_without_switch(self, what: str) -> None:
        able = not (self._join.can_fall_back or self._join.partial or self._join.secret == "on")
        remedy = "; SWITCHAGG_FALLBACK=ring lets a job go on without its switch" if able else ""
        self._end([], f"switch {self.switch} {what}{remedy}")

    def _end(self, dead: list[control_messages.RankAddress], reason: str, *, lacks_room: bool = False) -> None:
        phase, self._phase = self._phase, _Phase.ENDED
        self._left.set()
        if phase is _Phase.JOINING or not self.admitted.done():
            detail = f"job {self._join.job!r}, rank {self._join.rank}: {reason}"
            self.admitted.set_exception(JobError(detail, lacks_room=lacks_room))
        elif phase is _Phase.RUNNING:
            self._on_end(dead, reason)

    def _drain_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake_in.recv(4096):
                pass

    def _fail_queries(self) -> None:
        futures = [future for _, future in self._queries.values()]
        while not self._query_queue.empty():
            futures.append(self._query_queue.get()[1])
        for future in futures:
            future.set_exception(JobError(f"switch {self.switch}: the session was closed"))
        self._queries.clear()


def query_status(
    switch: str,
    job: str | None = None,
    timeout_s: float = 5.0,
    keys: Keys | None = None,
    incarnation: int | None = None,
) -> control_messages.StatusAnswer:
    """Ask a switch once, without joining (C14). incarnation: of one who may know more. Raises JobError if no answer
    comes in time."""
    host, port = parse_endpoint(switch)
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        bound(dealer)
        if keys is not None:
            keys.secure_client(dealer)
        host = resolve_host(host)
        local = local_endpoint(host, port) if keys is None else ""
        dealer.connect(local or f"tcp://{host}:{port}")
        dealer.send_multipart(control_messages.encode(control_messages.StatusQuery(1, job, incarnation)))
        deadline_ns = time.monotonic_ns() + round(timeout_s * 1e9)
        while dealer.poll(max(0, (deadline_ns - time.monotonic_ns()) // 1_000_000)):
            try:
                answer = control_messages.decode_answer(dealer.recv_multipart())
            except DecodeError as error:
                raise JobError(f"{switch} answers, but is no switch of this version: {error}") from error
            if isinstance(answer, control_messages.StatusAnswer):
                return answer
            if isinstance(answer, control_messages.Refused):
                raise JobError(answer.reason)
    raise JobError(f"no answer from switch {switch} within {timeout_s:g} s: {_why_silent((host, port), keys)}")


def _why_silent(peer: Address, keys: Keys | None) -> str:
    """The reason why no switch answers, and the remedy."""
    open_port = f"TCP {peer[1]} is open there, but no switch speaks"
    return tcp_fault(*peer) or f"{open_port}: correct the address, or {key_advice(keys)}"
