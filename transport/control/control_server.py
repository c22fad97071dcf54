"""The switch's end of the control plane: `ControlServer`, a ROUTER in the daemon; workers have `client.ControlClient`.

Every request is repeated at each heartbeat until it is answered, and every answer holds the member's whole status, so
that a lost message or a reconnection costs a heartbeat and nothing else (C9). A socket belongs to one thread, has
bounded queues and never blocks.
"""

import contextlib
import errno
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue

import msgspec
import zmq

from switchagg.controller.tree_controller import TreeController
from switchagg.errors import DecodeError, JobError, SwitchaggError
from switchagg.job import Address
from switchagg.join import NAME_MAX, ROOT, Join
from switchagg.membership import (
    Event,
    JobAdmitted,
    JobEvicted,
    JobFailed,
    JobReady,
    JoinRefused,
    Member,
    MemberLeft,
    MembershipState,
    Running,
    Waiting,
)
from transport.contracts.switch_host import QueuePairHost, SwitchHost
from transport.control import control_messages
from transport.control.control_sockets import ControlPeer, bound, listen_locally, peer_of
from transport.control.heartbeats import BEAT_NS
from transport.control.hop_secrets import HopSecrets
from transport.control.member_reports import MemberReports
from transport.control.queue_pair_ends import QueuePairEnds
from transport.control.shares import offer_of, share_message
from transport.control.snapshots import HostSnapshot, HostSnapshots
from transport.control.stalls import STALL_NS, StallDetector
from transport.control.status import VisibleJobs, status_answer
from transport.links.link_kinds import LINKS
from transport.zeromq.keys import Keys
from transport.zeromq.zmq_sockets import Authenticator, ListeningMonitor, Refusals

TURN_MESSAGES_MAX = 1000
ROUTES_KEPT = 8192

FINAL_ANSWERS_S = 3.5 * BEAT_NS / 1e9
VIA_VARIABLE = "SWITCHAGG_VIA"
STOP_LINGER_MS = 500
"""How long sending the final answers may take when the switch stops."""


@dataclass(frozen=True)
class Leaf:
    """Answers of a switch below another. parent: control address of that. name: of this switch. secret: gives the
    incarnation there; held: the jobs here."""

    parent: str
    name: str
    secret: Callable[[], int]
    held: Callable[[], tuple[Running, ...]]

    @property
    def refusal(self) -> str:
        """Answer to workers that join here."""
        return f"this switch is below {self.parent}: join there, by way of this one: {VIA_VARIABLE}={self.name}"


class ControlServer:
    """Serves the control plane of one switch; all methods but the constructor belong to one thread.

    bind: "tcp://host:port", port 0 for any; `endpoint` is what it became. data_address: where workers send packets; a
    host "" means the host they reached the control plane at. queue_pairs: `host` again, if jobs come over RDMA. link:
    what carries packets there, if they don't. keys: encrypt, and accept only the clients they allow. log: called with
    each event before it is carried out. `routes`: see `Admitted`. `hops`: whether packets have tags. `leaf`: where this
    switch is below another, whose it is to admit jobs: what it answers to others, and what it holds; None: it is no
    leaf. `data_plane`: its name, for status answers.
    Raises OSError if the address can't be had.
    """

    def __init__(
        self,
        bind: str,
        controller: TreeController,
        host: SwitchHost,
        data_address: Address,
        log: Callable[[Event], None] = lambda event: None,
        queue_pairs: QueuePairHost | None = None,
        link: str = "udp",
        keys: Keys | None = None,
    ) -> None:
        self.counters = dict.fromkeys(
            (*(f"drop_{reason}" for reason in control_messages.REASONS), "requests", "answers"), 0
        )
        self._controller = controller
        self._host = host
        self._ends = QueuePairEnds(host, queue_pairs, secrets=LINKS[link].secrets)
        self._data_address = data_address
        self._link = link
        self.routes = False
        self.data_plane = ""
        self.hops = HopSecrets("this switch has no keys")
        self.leaf: Leaf | None = None
        self._log = log
        self._routes: dict[int, bytes] = {}
        self._switch_routes: dict[int, bytes] = {}
        self._reports = MemberReports()
        self._tallies = Counter(members_lost=0, left_wrong_sum=0)
        self._start_ns = time.monotonic_ns()
        self._stalls = StallDetector()
        self._grace_end_ns = 0
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._keyed = keys is not None
        self._authenticator: Authenticator | None = None
        try:
            refusals = Refusals(f"control plane {bind}")
            bound(self._socket)
            self._monitor = ListeningMonitor(self._socket, keys, refusals, ended=False)
            if keys is not None:
                self._authenticator = Authenticator(self._context, keys, refusals)
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
        for polled in (
            self._socket,
            self._monitor.socket,
            *([self._authenticator.socket] if self._authenticator else []),
        ):
            self._poller.register(polled, zmq.POLLIN)
        self.endpoint = str(self._socket.get_string(zmq.LAST_ENDPOINT))
        refusals.address = f"control plane {self.endpoint}"
        if not self._keyed:
            listen_locally(self._socket, self.endpoint)
        self._snapshots: HostSnapshots[tuple[ControlPeer, control_messages.StatusQuery]] = HostSnapshots(host, keys)
        self._poller.register(self._snapshots.descriptor, zmq.POLLIN)
        self._overviews: SimpleQueue[tuple[HostSnapshot, Future[control_messages.StatusAnswer]]] = SimpleQueue()

    def overview(self, timeout_s: float) -> control_messages.StatusAnswer:
        """A status answer with everything, for this process; any thread but the server's may ask. Raises
        SwitchaggError if the host has ended, TimeoutError if the server's thread doesn't answer."""
        future: Future[control_messages.StatusAnswer] = Future()
        self._overviews.put((HostSnapshot(self._host.counters()), future))
        return future.result(timeout_s)

    def run_once(self, wait_s: float) -> None:
        """Wait for requests, at most wait_s, which is half a second or less; take them, then the time; act on both."""
        ready = dict(self._poller.poll(max(0, round(wait_s * 1000))))
        if self._authenticator is not None:
            self._authenticator.serve()
        if self._monitor.socket in ready:
            self._monitor.read()
        if self._socket in ready:
            for _ in range(TURN_MESSAGES_MAX):
                try:
                    frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
                except zmq.Again:
                    break
                self._take(frames)
        if self._snapshots.descriptor in ready:
            for (peer, query), snapshot in self._snapshots.answers():
                self._answer_status(peer, query, snapshot)
        self._answer_overviews()
        # Leases end after the messages: heartbeats that lay in the queue count.
        now_ns = time.monotonic_ns()
        if self._stalls.ended(now_ns):
            self._grace_end_ns = now_ns + STALL_NS
        if now_ns >= self._grace_end_ns:
            self._controller.handle_timer(now_ns)
        self._carry_out()

    def drain(self, reason: str) -> None:
        """Take no more jobs, and ask those that can to leave (C27); a leaf's agent tells the root, too."""
        self._controller.drain(reason)
        self._carry_out()

    @property
    def running(self) -> tuple[Running, ...]:
        """The jobs that have slots of this switch, or that its controller admitted."""
        return tuple(self._controller.jobs()) if self.leaf is None else self.leaf.held()

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
                self.run_once(min(left_s, 0.5))
        finally:
            self._monitor.close()
            self._context.destroy(linger=STOP_LINGER_MS)
            self._snapshots.close()

    def _take(self, frames: list[zmq.Frame]) -> None:
        sender = peer_of(frames[0])
        peer = sender.identity
        try:
            request = control_messages.decode_request([frame.bytes for frame in frames[1:]])
        except DecodeError as error:
            self.counters[f"drop_{error.reason}"] += 1
            if error.reason == "control_version":  # the other version's client knows our header, if not our messages
                self._send(peer, control_messages.Refused(f"control protocol: {error}"))
            return
        self.counters["requests"] += 1
        if isinstance(request, control_messages.StatusQuery):
            self._take_query(sender, request)
            return
        now_ns = time.monotonic_ns()
        if self._take_of_switch(sender, request, now_ns):
            return
        match request:
            case control_messages.JoinMessage(join):
                kind, fault = self._refusal(join, sender)
                if fault:
                    self._tallies[f"refused_{kind}"] += 1
                    self._send(peer, control_messages.Refused(fault))
                    return
                self._controller.join(join, now_ns)
            case control_messages.Heartbeat():
                self._controller.heartbeat(request.incarnation, now_ns)
            case control_messages.Leave():
                known = isinstance(self._controller.membership_state(request.incarnation), Running)
                self._tallies["left_wrong_sum"] += request.wrong_sum and known
                self._controller.leave(request.incarnation, request.calls, request.reason)
        member = request.join if isinstance(request, control_messages.JoinMessage) else request
        standing = self._controller.membership_state(member.incarnation)
        if standing is not None:
            self._routes[member.incarnation] = peer  # a reconnected peer has a new identity
            counters = request.counters if isinstance(request, control_messages.Heartbeat) else None
            self._reports.note(member.incarnation, now_ns, counters)
        self._carry_out()
        rank = member.rank if isinstance(member, Join) else 0
        self._send(peer, self._answer(standing, brief=isinstance(request, control_messages.Heartbeat), rank=rank))

    def _take_of_switch(self, sender: ControlPeer, request: control_messages.Request, now_ns: int) -> bool:
        """Whether it is a request of a switch: then it is served."""
        match request:
            case control_messages.Register():
                self._take_switch(sender, request, now_ns)
            case control_messages.SwitchBeat():
                held = {(job.job_id, job.generation): job.fault for job in request.held}
                if self._controller.beat(request.incarnation, held, now_ns, request.draining):
                    self._carry_out()
                    self._send_shares(request.incarnation, sender.identity)
                else:
                    self._send(sender.identity, control_messages.Unknown())
            case control_messages.Leave() if request.incarnation in self._switch_routes:
                del self._switch_routes[request.incarnation]
                self._controller.withdraw(request.incarnation, request.reason)
                self._carry_out()
                self._send(sender.identity, control_messages.Unknown())
            case _:
                return False
        return True

    def _take_switch(self, sender: ControlPeer, request: control_messages.Register, now_ns: int) -> None:
        """A switch wants to be below this one (C18)."""
        peer = sender.identity
        if self.leaf is not None:
            self._send(peer, control_messages.Redirected(self.leaf.parent, self.leaf.name))
            return
        fault = ""
        if request.link != self._link or not LINKS[self._link].trees:
            able = ", ".join(name for name, kind in LINKS.items() if kind.trees)
            fault = f"switches below others need the link {able}; this one has {self._link}, that {request.link}"
        elif request.host != sender.host:
            fault = (
                f"switch {request.name!r} gives the data address {request.host}, its request comes from {sender.host}"
            )
        if fault:
            self._send(peer, control_messages.Refused(fault))
            return
        fault, again = self._controller.register(offer_of(request), now_ns)
        self._carry_out()
        if fault:
            self._send(peer, control_messages.Postponed(fault) if again else control_messages.Refused(fault))
        else:
            self._switch_routes[request.incarnation] = peer
            self._send_shares(request.incarnation, peer)

    def _send_shares(self, incarnation: int, peer: bytes) -> None:
        """Send a switch all that it has to hold (C19)."""
        self._switch_routes[incarnation] = peer
        shares = [
            share_message(admitted, share, self._data_address, self.hops)
            for admitted, share in self._controller.shares(incarnation)
        ]
        self._send(peer, control_messages.JobShares(self._controller.lease_ns, shares))

    def _send_shares_to(self, names: set[str]) -> None:
        """Send these switches their shares at once; a switch frees the jobs it loses before it takes new ones."""
        for offer in self._controller.switches.offers:
            if offer.name in names and (peer := self._switch_routes.get(offer.incarnation)) is not None:
                self._send_shares(offer.incarnation, peer)

    def _take_query(self, sender: ControlPeer, query: control_messages.StatusQuery) -> None:
        """The data plane's host is asked only for those who may know what it says (C14)."""
        visible = self._visible_jobs(sender, query)
        jobs = {running.admitted.name: running.admitted for running in visible.running}
        if not visible.details:
            self._answer_status(sender, query, HostSnapshot())
        elif not self._snapshots.ask((sender, query), jobs.get(query.job or "")):
            self.counters["drop_busy"] = self.counters.get("drop_busy", 0) + 1  # it will ask again

    def _answer_status(self, sender: ControlPeer, query: control_messages.StatusQuery, snapshot: HostSnapshot) -> None:
        self._send(sender.identity, self._status(query, self._visible_jobs(sender, query), snapshot))

    def _status(
        self, query: control_messages.StatusQuery, visible: VisibleJobs, snapshot: HostSnapshot
    ) -> control_messages.StatusAnswer:
        counters = {**self._controller.counters, **self.counters, **self._tallies}
        held = () if self.leaf is None else self.leaf.held()
        now_ns = time.monotonic_ns()
        answer = status_answer(self._controller, query, visible, snapshot, counters, self.hops, held)
        if not visible.details:
            return answer
        jobs = [
            msgspec.structs.replace(job, activity=self._reports.activity(running.admitted.members, now_ns))
            for job, running in zip(answer.jobs, visible.running, strict=True)
        ]
        up_ns = now_ns - self._start_ns
        return msgspec.structs.replace(
            answer, jobs=jobs, clock_ns=now_ns, up_ns=up_ns, data_plane=self.data_plane, link=self._link
        )

    def _answer_overviews(self) -> None:
        """Answer what this process asks for itself."""
        while not self._overviews.empty():
            snapshot, future = self._overviews.get()
            query = control_messages.StatusQuery(0)
            held = None if self.leaf is None else self.leaf.held()
            visible = VisibleJobs.of_query(self._controller, query, trusted=True, held=held)
            future.set_result(self._status(query, visible, snapshot))

    def _visible_jobs(self, sender: ControlPeer, query: control_messages.StatusQuery) -> VisibleJobs:
        parent = self.leaf is not None and query.incarnation == self.leaf.secret()
        held = None if self.leaf is None else self.leaf.held()
        return VisibleJobs.of_query(self._controller, query, self._keyed or sender.is_own_user or parent, held)

    def _refusal(self, join: Join, sender: ControlPeer) -> tuple[str, str]:
        """The kind of fault for which the switch itself refuses a join, and the fault in words; or two ""."""
        faults = {
            "below_another": "" if self.leaf is None else self.leaf.refusal,
            "queue_pair": self._ends.fault(join),
            "link": self._link_fault(join),
            "address": _address_fault(join, sender),
            "authenticate": self.hops.refusal(join),
        }
        return next(((kind, fault) for kind, fault in faults.items() if fault), ("", ""))

    def _link_fault(self, request: Join) -> str:
        if request.queue_pair is None and request.link != self._link:
            return f"this switch carries packets over {self._link}, rank {request.rank} over {request.link[:NAME_MAX]}"
        return LINKS[self._link].elements_fault(request.elements)

    def _answer(self, state: MembershipState | None, brief: bool, rank: int = 0) -> control_messages.Answer:
        """rank: of the member that shall get it."""
        match state:
            case None:
                return control_messages.Unknown()
            case Waiting():
                return control_messages.JobGathering(
                    control_messages.rank_addresses(state.present), list(state.missing), state.reason
                )
            case Running() if brief:
                departed = control_messages.departed_members(state.departed)
                return control_messages.Alive(state.admitted.job.generation, departed, state.asked_to_leave)
            case Running():
                return self._admitted(state.admitted, rank)
            case JoinRefused():
                return control_messages.Refused(state.reason, state.lacks_room)
            case JobFailed():
                return control_messages.Failed(
                    state.generation, control_messages.rank_addresses(state.dead), state.reason
                )

    def _admitted(self, event: JobAdmitted, rank: int) -> control_messages.Admitted:
        place = event.place(rank)
        address, wire_rank, hop_keys = self._data_address, None, b""
        if place is None:
            hop_keys = self.hops.keys(event, ROOT, rank)
        else:
            share, wire_rank = place
            address = share.offer.address if share.offer is not None else address
            hop_keys = self.hops.keys(event, share.switch, wire_rank)
        return control_messages.Admitted(
            *control_messages.facts_of(event),
            host=address[0],
            port=address[1],
            lease_ns=self._controller.lease_ns,
            members=control_messages.rank_addresses(event.members),
            queue_pairs=self._ends.of_switch(event.job),
            narrowed=event.narrowed,
            routes=self.routes and not event.shares,
            wire_rank=wire_rank,
            nonces=[member.nonce for member in event.members],
            hop_keys=hop_keys,
        )

    def _carry_out(self) -> None:
        while (event := self._controller.next_event()) is not None:
            self._carry_out_one(event)
        if len(self._routes) + len(self._switch_routes) > ROUTES_KEPT:
            self._routes = {key: peer for key, peer in self._routes.items() if self._controller.membership_state(key)}
            routes = self._switch_routes.items()
            self._switch_routes = {key: peer for key, peer in routes if self._controller.switches.of(key) is not None}
            self._ends.keep(self._routes)
            self._reports.keep(self._routes)

    def _carry_out_one(self, event: Event) -> None:
        self._log(event)
        match event:
            case JobAdmitted():
                try:
                    self.hops.check(event)
                    if event.is_at(ROOT):
                        self._ends.admit(event, self.hops.of(event, ROOT))
                except SwitchaggError as error:
                    self._controller.fail(event.name, f"the data plane refused the job: {error}")
                    return
                if event.shares:
                    self._send_shares_to({share.switch for share in event.shares})
                else:
                    self._send_admitted(event)
            case JobReady():
                self._send_admitted(event.admitted)
            case JobEvicted():
                with contextlib.suppress(SwitchaggError):  # the loop has ended: it holds no job any more
                    self._host.evict(event.job.job_id)
                self.hops.forget(event.job)
                self._send_shares_to({share.switch for share in event.shares})
            case JoinRefused() | JobFailed():
                self._tallies["members_lost"] += len(event.dead) if isinstance(event, JobFailed) else 0
                self._send_all(event.members, self._answer(event, brief=False))
            case MemberLeft():
                for member in event.members:
                    self._send_all(
                        [member], self._answer(self._controller.membership_state(member.incarnation), brief=True)
                    )

    def _send_admitted(self, event: JobAdmitted) -> None:
        for member in event.members:
            self._send_all([member], self._admitted(event, member.rank))

    def _send_all(self, members: Sequence[Member], answer: control_messages.Answer) -> None:
        for member in members:
            peer = self._routes.get(member.incarnation)
            if peer is not None:
                self._send(peer, answer)

    def _send(self, peer: bytes, answer: control_messages.Answer) -> None:
        """Best effort: a peer that can't take it now asks again."""
        try:
            self._socket.send_multipart([peer, *control_messages.encode(answer)], zmq.NOBLOCK)
            self.counters["answers"] += 1
        except zmq.ZMQError:
            self.counters["unsent"] = self.counters.get("unsent", 0) + 1


def _address_fault(join: Join, sender: ControlPeer) -> str:
    """Why this is no join of the host that will get the results, or "" (C15): TCP has proved where it comes from."""
    if join.address[0] == sender.host:
        return ""
    place = f"rank {join.rank} at {join.address[0][:NAME_MAX]}:{join.address[1]}"
    return (
        f"{place} gives a data address that its join does not come from ({sender.host or 'a Unix socket'}): it could "
        "be another's; join by an address of the switch that is reached from the data address, without NAT or proxy"
    )
