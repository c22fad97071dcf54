"""The control plane on ZeroMQ: `ControlServer` (ROUTER, in the daemon) and `ControlClient` (DEALER, one per worker).

Every request is repeated at each heartbeat until it is answered, and every answer holds the member's whole status, so
that a lost message or a reconnection costs a heartbeat and nothing else (C9). Each socket belongs to one thread, has
bounded queues and never blocks.
"""

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from enum import Enum, auto
from queue import Empty, SimpleQueue

import zmq

from switchagg.controller import Controller
from switchagg.errors import DecodeError, JobError, SwitchaggError
from switchagg.membership import (
    Address,
    Event,
    JobAdmitted,
    JobEvicted,
    JobFailed,
    JoinRefused,
    JoinRequest,
    Member,
    MemberLeft,
    Running,
    Standing,
    Waiting,
)
from switchagg.priority import MOST_URGENT, tos_of
from transport.control import messages
from transport.control.snapshots import HostSnapshot, HostSnapshots
from transport.control.stalls import STALL_NS, StallDetector
from transport.links.addresses import parse_endpoint, resolve_host
from transport.links.table import LINKS
from transport.switch.host import QueuePairEnds, QueuePairHost, SwitchHost
from transport.zeromq.keys import Keys, key_advice
from transport.zeromq.sockets import Authenticator, Refusals

HEARTBEAT_S = 0.5
"""How often a client repeats its request or sends a heartbeat: an eighth of the default lease."""

MESSAGE_BYTES_MAX = 1 << 20
"""ZeroMQ closes a connection that announces a larger frame, so an unknown peer can't make us allocate it."""

QUEUE_MESSAGES = 1000
"""High-water marks, in messages per peer; a member sends two a second."""

SLOTS_REPORTED_MAX = 4096
"""Most slot versions in a status answer (about 150 kB); unfinished ones come first."""

TURN_MESSAGES_MAX = 1000
ROUTES_KEPT = 8192
UNSENT_NS = 50_000_000
"""How soon to try again what found no connection."""

FINAL_ANSWERS_S = 1.5 * HEARTBEAT_S
STOP_LINGER_MS = 500
"""How long sending the final answers may take when the switch stops."""

JOIN_GRACE_S = 2.0
"""How long a client that got an answer waits beyond its timeout: the switch's refusal names the missing ranks."""


class ControlServer:
    """Serves the control plane of one switch; all methods but the constructor belong to one thread.

    bind: "tcp://host:port", port 0 for any; `endpoint` is what it became. data_address: where workers send packets; a
    host "" means the host they reached the control plane at. queue_pairs: `host` again, if jobs come over RDMA. link:
    what carries packets there, if they don't. keys: encrypt, and accept only the clients they allow. log: called with
    each event before it is carried out. Raises OSError if the address can't be had.
    """

    def __init__(
        self,
        bind: str,
        controller: Controller,
        host: SwitchHost,
        data_address: Address,
        log: Callable[[Event], None] = lambda event: None,
        queue_pairs: QueuePairHost | None = None,
        link: str = "udp",
        keys: Keys | None = None,
    ) -> None:
        self.counters = dict.fromkeys((*(f"drop_{reason}" for reason in messages.REASONS), "requests", "answers"), 0)
        self._controller = controller
        self._host = host
        self._ends = QueuePairEnds(host, queue_pairs)
        self._data_address = data_address
        self._link = link
        self._log = log
        self._routes: dict[int, bytes] = {}
        self._stalls = StallDetector()
        self._patient_ns = 0
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._authenticator: Authenticator | None = None
        try:
            _bound(self._socket)
            if keys is not None:
                self._authenticator = Authenticator(self._context, keys, Refusals(f"control plane {bind}"))
                keys.secure_server(self._socket)
            self._socket.bind(bind)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            number = error.errno or errno.EINVAL
            raise OSError(number, os.strerror(number)) from error
        except JobError:
            self._context.destroy(linger=0)
            raise
        self._poller = zmq.Poller()
        for polled in (self._socket, *([self._authenticator.socket] if self._authenticator else [])):
            self._poller.register(polled, zmq.POLLIN)
        self.endpoint = str(self._socket.get_string(zmq.LAST_ENDPOINT))
        self._snapshots: HostSnapshots[tuple[bytes, messages.StatusQuery]] = HostSnapshots(host)
        self._poller.register(self._snapshots.descriptor, zmq.POLLIN)

    def run_once(self, wait_s: float) -> None:
        """Wait for requests, at most wait_s, which is half a second or less; take them, then the time; act on both."""
        ready = dict(self._poller.poll(max(0, round(wait_s * 1000))))
        if self._authenticator is not None:
            self._authenticator.serve()
        if self._socket in ready:
            for _ in range(TURN_MESSAGES_MAX):
                try:
                    frames = self._socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                self._take(frames)
        if self._snapshots.descriptor in ready:
            for (peer, query), snapshot in self._snapshots.answers():
                self._send(peer, self._status(query, snapshot))
        # Only now: heartbeats that lay in the queue count before any lease ends.
        now_ns = time.monotonic_ns()
        if self._stalls.ended(now_ns):
            self._patient_ns = now_ns + STALL_NS
        if now_ns >= self._patient_ns:
            self._controller.handle_timer(now_ns)
        self._carry_out()

    def close(self, reason: str) -> None:
        """Tell every member why the switch stops (C10), then free the socket: takes a second if there are members.

        It continues to answer for more than a heartbeat: a socket closed with unread requests resets its connections,
        and the answers just sent would be lost with them.
        """
        members = bool(list(self._controller.jobs()) or list(self._controller.waiting()))
        try:
            self._controller.stop(reason)
            self._carry_out()
            end_s = time.monotonic() + (FINAL_ANSWERS_S if members else 0.0)
            while (left_s := end_s - time.monotonic()) > 0:
                self.run_once(min(left_s, HEARTBEAT_S))
        finally:
            self._context.destroy(linger=STOP_LINGER_MS)
            self._snapshots.close()

    def _take(self, frames: list[bytes]) -> None:
        peer, *message = frames
        try:
            request = messages.decode_request(message)
        except DecodeError as error:
            self.counters[f"drop_{error.reason}"] += 1
            if error.reason == "control_version":  # the other version's client knows our header, if not our messages
                self._send(peer, messages.Refused(f"control protocol: {error}"))
            return
        self.counters["requests"] += 1
        if isinstance(request, messages.StatusQuery):
            jobs = {running.admitted.name: running.admitted.job for running in self._controller.jobs()}
            if not self._snapshots.ask((peer, request), jobs.get(request.job or "")):
                self.counters["drop_busy"] = self.counters.get("drop_busy", 0) + 1  # it will ask again
            return
        now_ns = time.monotonic_ns()
        match request:
            case messages.Join():
                if fault := self._ends.fault(request) or self._link_fault(request):
                    self._send(peer, messages.Refused(fault))
                    return
                self._controller.join(_join_request(request), now_ns)
            case messages.Heartbeat():
                self._controller.heartbeat(request.incarnation, now_ns)
            case messages.Leave():
                self._controller.leave(request.incarnation, request.calls, request.reason)
        standing = self._controller.standing(request.incarnation)
        if standing is not None:
            self._routes[request.incarnation] = peer  # a reconnected peer has a new identity
        self._carry_out()
        self._send(peer, self._answer(standing, brief=isinstance(request, messages.Heartbeat)))

    def _link_fault(self, request: messages.Join) -> str:
        if request.queue_pair is None and request.link != self._link:
            return f"this switch carries packets over {self._link}, rank {request.place.rank} over {request.link}"
        return LINKS[self._link].elements_fault(request.elements)

    def _answer(self, standing: Standing | None, brief: bool) -> messages.Answer:
        match standing:
            case None:
                return messages.Unknown()
            case Waiting():
                return messages.Gathering(messages.places(standing.present), list(standing.missing), standing.reason)
            case Running() if brief:
                return messages.Alive(standing.admitted.job.generation, messages.gone(standing.departed))
            case Running():
                return self._admitted(standing.admitted)
            case JoinRefused():
                return messages.Refused(standing.reason, standing.lacks_room)
            case JobFailed():
                return messages.Failed(standing.generation, messages.places(standing.dead), standing.reason)

    def _admitted(self, event: JobAdmitted) -> messages.Admitted:
        job = event.job
        return messages.Admitted(
            name=event.name,
            job_id=job.job_id,
            generation=job.generation,
            workers=job.workers,
            elements=job.elements,
            streams=[(stream.first_slot, stream.window_slots) for stream in job.streams],
            host=self._data_address[0],
            port=self._data_address[1],
            lease_ns=self._controller.lease_ns,
            members=messages.places(event.members),
            priorities=[stream.priority for stream in job.streams],
            queue_pairs=self._ends.of_switch(job),
        )

    def _carry_out(self) -> None:
        while (event := self._controller.next_event()) is not None:
            self._carry_out_one(event)
        if len(self._routes) > ROUTES_KEPT:
            self._routes = {key: peer for key, peer in self._routes.items() if self._controller.standing(key)}
            self._ends.keep(self._routes)

    def _carry_out_one(self, event: Event) -> None:
        self._log(event)
        match event:
            case JobAdmitted():
                try:
                    self._ends.admit(event)
                except SwitchaggError as error:
                    self._controller.fail(event.name, f"the data plane refused the job: {error}")
                    return
                self._send_all(event.members, self._admitted(event))
            case JobEvicted():
                with contextlib.suppress(SwitchaggError):  # the loop has ended: it holds no job any more
                    self._host.evict(event.job.job_id)
            case JoinRefused() | JobFailed():
                self._send_all(event.members, self._answer(event, brief=False))
            case MemberLeft():
                for member in event.members:
                    self._send_all([member], self._answer(self._controller.standing(member.incarnation), brief=True))

    def _send_all(self, members: Sequence[Member], answer: messages.Answer) -> None:
        for member in members:
            peer = self._routes.get(member.incarnation)
            if peer is not None:
                self._send(peer, answer)

    def _send(self, peer: bytes, answer: messages.Answer) -> None:
        """Best effort: a peer that can't take it now asks again."""
        try:
            self._socket.send_multipart([peer, *messages.encode(answer)], zmq.NOBLOCK)
            self.counters["answers"] += 1
        except zmq.ZMQError:
            self.counters["unsent"] = self.counters.get("unsent", 0) + 1

    def _status(self, query: messages.StatusQuery, snapshot: HostSnapshot) -> messages.StatusAnswer:
        controller = self._controller
        waiting = {
            gathering.name: messages.Gathering(
                messages.places(gathering.present), list(gathering.missing), gathering.reason
            )
            for gathering in controller.waiting()
        }
        return messages.StatusAnswer(
            token=query.token,
            slots=controller.slots,
            free_slots=controller.free_slots(),
            jobs=[
                self._job_status(running, snapshot if running.admitted.name == query.job else HostSnapshot())
                for running in controller.jobs()
            ],
            waiting=waiting,
            control_counters={**controller.counters, **self.counters},
            data_counters=snapshot.counters,
        )

    def _job_status(self, running: Running, snapshot: HostSnapshot) -> messages.JobStatus:
        """Slot versions: unfinished ones first."""
        job = running.admitted.job
        views = sorted(snapshot.slots.items(), key=lambda item: len(item[1].ranks) == job.workers)
        return messages.JobStatus(
            name=running.admitted.name,
            job_id=job.job_id,
            generation=job.generation,
            workers=job.workers,
            elements=job.elements,
            streams=[(stream.first_slot, stream.window_slots) for stream in job.streams],
            members=messages.places(running.admitted.members),
            departed=messages.gone(running.departed),
            slots=[
                messages.SlotStatus(slot, version, view.chunk, list(view.ranks))
                for (slot, version), view in views[:SLOTS_REPORTED_MAX]
            ],
            priorities=[stream.priority for stream in job.streams],
        )


class _Phase(Enum):
    JOINING = auto()
    RUNNING = auto()
    LEAVING = auto()
    ENDED = auto()


class ControlClient:
    """One worker's side: joins, sends heartbeats, receives ends and departures, queries, leaves. Owns a thread.

    switch: "tcp://host:port". wish: the join, its timeout_ns included. `admitted` resolves to the admission or a
    JobError. Called in the thread, after the admission only: on_departure(all who left), on_end(dead, reason) at most
    once, on_beat() with every heartbeat. Raises JobError for an address that can't be.
    """

    def __init__(
        self,
        switch: str,
        wish: messages.Join,
        on_departure: Callable[[list[messages.Gone]], None],
        on_end: Callable[[list[messages.Place], str], None],
        on_beat: Callable[[], None],
        heartbeat_s: float = HEARTBEAT_S,
        keys: Keys | None = None,
    ) -> None:
        host, port = parse_endpoint(switch)
        self.switch = switch
        self.admitted: Future[messages.Admitted] = Future()
        self._target = f"tcp://{resolve_host(host)}:{port}"
        self._wish = wish
        self._keys = keys
        self._on_departure = on_departure
        self._on_end = on_end
        self._on_beat = on_beat
        self._beat_ns = round(heartbeat_s * 1e9)
        self._phase = _Phase.JOINING
        self._due_ns = 0
        self._unanswered_ns: int | None = None
        self._heard = False
        self._lease_ns = 0
        self._departed = 0
        self._last_reason = ""
        self._farewell: tuple[list[int], str] | None = None
        self._left = threading.Event()
        self._stopping = False
        self._asked: SimpleQueue[tuple[str | None, Future[messages.StatusAnswer]]] = SimpleQueue()
        self._queries: dict[int, Future[messages.StatusAnswer]] = {}
        self._token = 0
        self._stalls = StallDetector()
        self._wake_out, self._wake_in = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._thread = threading.Thread(target=self._run, name=f"control-{wish.job}-{wish.place.rank}", daemon=True)

    # Callable from any thread

    def start(self) -> None:
        """Start the thread, and with it the join; once."""
        self._thread.start()

    def query(self, job: str | None) -> "Future[messages.StatusAnswer]":
        """Ask for the switch's status, with the slots of this job; wait for the future with a timeout."""
        future: Future[messages.StatusAnswer] = Future()
        self._asked.put((job, future))
        self._wake()
        return future

    def leave(self, calls: Sequence[int], reason: str, timeout_s: float) -> bool:
        """Send the leave message and wait for its echo; True if it came. Without it the lease ends for the others (C6).

        calls: how many are finished, by stream (C7). Only the first leave message is sent.
        """
        if self._farewell is None:
            self._farewell = (list(calls), reason[: messages.TEXT_MAX])
        self._wake()
        return self._left.wait(timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread and free the socket; again is allowed."""
        self._stopping = True
        self._wake()
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    # The thread

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake; closed: it has ended
            self._wake_out.send(b"!")

    def _run(self) -> None:
        context = zmq.Context()
        dealer = context.socket(zmq.DEALER)
        try:
            _bound(dealer)
            dealer.set(zmq.IMMEDIATE, 1)  # queue nothing for a switch that isn't running yet
            dealer.set(zmq.RECONNECT_IVL, 100)
            dealer.set(zmq.RECONNECT_IVL_MAX, 1000)
            if self._keys is not None:
                self._keys.secure_client(dealer)
            dealer.connect(self._target)
            poller = zmq.Poller()
            poller.register(dealer, zmq.POLLIN)
            poller.register(self._wake_in, zmq.POLLIN)
            deadline_ns = time.monotonic_ns() + self._wish.timeout_ns
            while not self._stopping:
                self._send_due(dealer, time.monotonic_ns())
                left_ns = self._due_ns - time.monotonic_ns() if self._phase is not _Phase.ENDED else self._beat_ns
                poller.poll(max(0, left_ns // 1_000_000 + 1))
                self._drain_wake()
                while (answer := self._receive(dealer)) is not None:
                    self._receive_answer(answer)
                self._check_silence(time.monotonic_ns(), deadline_ns)
        except BaseException as error:
            self._end([], f"the control plane's thread failed: {error!r}")
        finally:
            self._end([], "the session was closed")
            self._left.set()
            self._fail_queries()
            context.destroy(linger=0)
            self._wake_in.close()
            self._wake_out.close()

    def _send_due(self, dealer: "zmq.Socket[bytes]", now_ns: int) -> None:
        """Send the messages that are due."""
        while True:
            try:
                job, future = self._asked.get_nowait()
            except Empty:
                break
            self._token += 1
            self._queries[self._token] = future
            self._send(dealer, messages.StatusQuery(self._token, job))
        if self._farewell is not None and self._phase in (_Phase.JOINING, _Phase.RUNNING):
            self._phase = _Phase.LEAVING
            self._due_ns = now_ns
        if self._phase is _Phase.ENDED or now_ns < self._due_ns:
            return
        if self._unanswered_ns is None:
            self._unanswered_ns = now_ns
        sent = self._send(dealer, self._due_request())
        self._due_ns = now_ns + (self._beat_ns if sent else UNSENT_NS)
        if self._phase is _Phase.RUNNING:
            self._on_beat()

    def _due_request(self) -> messages.Request:
        match self._phase:
            case _Phase.JOINING:
                return self._wish
            case _Phase.RUNNING:
                return messages.Heartbeat(self._wish.incarnation)
            case _:
                assert self._farewell is not None
                return messages.Leave(self._wish.incarnation, *self._farewell)

    def _send(self, dealer: "zmq.Socket[bytes]", request: messages.Request) -> bool:
        """False if there is no connection (yet), or its queue is full."""
        try:
            dealer.send_multipart(messages.encode(request), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _receive(self, dealer: "zmq.Socket[bytes]") -> messages.Answer | None:
        """The next answer; what is none counts as one that ends the join if only the version is at fault."""
        while True:
            try:
                frames = dealer.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return None
            try:
                return messages.decode_answer(frames)
            except DecodeError as error:
                if error.reason == "control_version":
                    return messages.Refused(f"control protocol of switch {self.switch}: {error}")

    def _receive_answer(self, answer: messages.Answer) -> None:
        self._heard = True
        self._unanswered_ns = None
        match answer:
            case messages.StatusAnswer():
                future = self._queries.pop(answer.token, None)
                if future is not None:
                    future.set_result(answer)
            case messages.Gathering():
                ranks = ", ".join(map(str, answer.missing))
                self._last_reason = answer.reason or f"waiting for ranks {ranks}"
            case messages.Admitted() if self._phase is _Phase.JOINING:
                self._lease_ns = answer.lease_ns
                self._phase = _Phase.RUNNING
                self.admitted.set_result(answer)
            case messages.Alive() if self._phase is _Phase.RUNNING and len(answer.departed) > self._departed:
                self._departed = len(answer.departed)
                self._on_departure(answer.departed)
            case messages.Refused():
                self._end([], answer.reason, lacks_room=answer.lacks_room)
            case messages.Failed():
                self._end(answer.dead, answer.reason)
            case messages.Unknown():
                self._end([], f"switch {self.switch} does not know this job any more: it was restarted")

    def _check_silence(self, now_ns: int, deadline_ns: int) -> None:
        """Give up on a switch that doesn't answer (C12)."""
        if self._stalls.ended(now_ns) and self._unanswered_ns is not None:
            self._unanswered_ns = now_ns
        silent_ns = 0 if self._unanswered_ns is None else now_ns - self._unanswered_ns
        if self._phase is _Phase.RUNNING and silent_ns >= self._lease_ns:
            self._end([], f"switch {self.switch} has not answered for {silent_ns / 1e9:.1f} s: it or the path is down")
        elif self._phase is _Phase.JOINING and now_ns >= deadline_ns:
            waited = f"within {self._wish.timeout_ns / 1e9:g} s"
            if not self._heard:
                remedy = f"start it there with `switchagg switch`, correct the address, or {key_advice(self._keys)}"
                self._end([], f"no answer from switch {self.switch} {waited}; {remedy}")
            elif now_ns >= deadline_ns + round(JOIN_GRACE_S * 1e9):
                self._end([], f"switch {self.switch} did not admit the job {waited}: {self._last_reason}")

    def _end(self, dead: list[messages.Place], reason: str, *, lacks_room: bool = False) -> None:
        phase, self._phase = self._phase, _Phase.ENDED
        self._left.set()
        if phase is _Phase.JOINING or not self.admitted.done():
            detail = f"job {self._wish.job!r}, rank {self._wish.place.rank}: {reason}"
            self.admitted.set_exception(JobError(detail, lacks_room=lacks_room))
        elif phase is _Phase.RUNNING:
            self._on_end(dead, reason)

    def _drain_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake_in.recv(4096):
                pass

    def _fail_queries(self) -> None:
        while not self._asked.empty():
            self._token += 1
            self._queries[self._token] = self._asked.get()[1]
        for future in self._queries.values():
            future.set_exception(JobError(f"switch {self.switch}: the session was closed"))
        self._queries.clear()


def query_status(
    switch: str, job: str | None = None, timeout_s: float = 5.0, keys: Keys | None = None
) -> messages.StatusAnswer:
    """Ask a switch once, without joining. Raises JobError if no answer comes in time."""
    host, port = parse_endpoint(switch)
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        _bound(dealer)
        if keys is not None:
            keys.secure_client(dealer)
        dealer.connect(f"tcp://{resolve_host(host)}:{port}")
        dealer.send_multipart(messages.encode(messages.StatusQuery(1, job)))
        deadline_ns = time.monotonic_ns() + round(timeout_s * 1e9)
        while dealer.poll(max(0, (deadline_ns - time.monotonic_ns()) // 1_000_000)):
            try:
                answer = messages.decode_answer(dealer.recv_multipart())
            except DecodeError as error:
                raise JobError(f"{switch} answers, but is no switch of this version: {error}") from error
            if isinstance(answer, messages.StatusAnswer):
                return answer
            if isinstance(answer, messages.Refused):
                raise JobError(answer.reason)
    asked = f"no answer from switch {switch} within {timeout_s:g} s; is `switchagg switch` running there?"
    raise JobError(f"{asked} If so, {key_advice(keys)}")


def _bound(zmq_socket: "zmq.Socket[bytes]") -> None:
    """Bound what a socket may hold, and how long it may live; its few bytes go first, or leases would end."""
    zmq_socket.set(zmq.TOS, tos_of(MOST_URGENT))
    zmq_socket.set(zmq.LINGER, 0)
    zmq_socket.set(zmq.SNDHWM, QUEUE_MESSAGES)
    zmq_socket.set(zmq.RCVHWM, QUEUE_MESSAGES)
    zmq_socket.set(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)


def _join_request(request: messages.Join) -> JoinRequest:
    alike = ("job", "workers", "elements", "streams", "window_slots", "incarnation", "timeout_ns", "codec")
    return JoinRequest(
        **{name: getattr(request, name) for name in alike},
        rank=request.place.rank,
        address=(request.place.host, request.place.port),
        windows=tuple(request.windows),
        priorities=tuple(request.priorities),
        queue_pair=request.queue_pair.queue_pair if request.queue_pair else None,
    )
