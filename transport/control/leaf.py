"""LeafAgent: a switch below another, at the control plane of its tree's root (C18 to C20).

It registers, sends heartbeats, and holds exactly the jobs that the latest answer names: those that are gone first, then
the new ones. So a lost message costs a heartbeat, and slots are free before they are used again.
"""

import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from switchagg.errors import SwitchaggError
from switchagg.job import Address
from switchagg.membership import JobAdmitted, Running
from transport.contracts.switch_host import SwitchHost
from transport.control import control_messages
from transport.control.heartbeats import Heartbeats
from transport.control.requests import Requests
from transport.control.shares import uplink_of
from transport.control.stalls import StallDetector
from transport.links.addresses import facing, parse_endpoint, resolve_host
from transport.zeromq.keys import Keys

SILENCE_NS = 4_000_000_000
"""How long a parent may leave a request to register unanswered before that is logged."""

LEAVE_MS = 500
JOIN_S = 5.0


@dataclass(frozen=True)
class LeafPlace:
    """parent: control address of the switch above. name: ours. data: our data address; host "" or a wildcard: the one
    that faces the root. control_port: of our control plane. slots, elements, packets_held, tags: as of a
    SwitchOffer."""

    parent: str
    name: str
    data: Address
    control_port: int
    slots: int
    elements: int
    packets_held: int = 0
    link: str = "udp"
    tags: bool = False


class LeafAgent:
    """From `start` to `stop`. log: called with a line per event. on_refused: called once, with the reason, if the
    switch can't be where it is told to; it has no jobs then."""

    def __init__(
        self,
        place: LeafPlace,
        host: SwitchHost,
        keys: Keys | None,
        log: Callable[[str], None],
        on_refused: Callable[[str], None],
    ) -> None:
        self.place = place
        self.incarnation = secrets.randbits(63)
        self._host = host
        self._keys = keys
        self._log, self._on_refused = log, on_refused
        self._held: dict[tuple[int, int], tuple[control_messages.JobShare, str]] = {}
        self._running: tuple[Running, ...] = ()
        self._target, self._above, self._path = place.parent, "", [place.parent]
        self._root_host = ""
        self._lease_ns = 0  # It is 0 while this switch is not registered.
        self._beats = Heartbeats()
        self._last_line = ""
        self._stalls = StallDetector()
        self._reason: str | None = None
        self._draining = ""
        self._wake_out, self._wake_in = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="switch-leaf", daemon=True)

    @property
    def running(self) -> tuple[Running, ...]:
        """The jobs that are here; from any thread."""
        return self._running

    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()

    def drain(self, reason: str) -> None:
        """Tell the root, by the next heartbeat, that this switch is to stop, so that its jobs leave (C27); from any
        thread."""
        self._draining = reason

    def stop(self, reason: str) -> None:
        """Tell the root that we go, and end the thread; again, or before `start`, is allowed."""
        self._reason = self._reason or reason or "it was stopped"
        with contextlib.suppress(OSError):
            self._wake_out.send(b"!")
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(JOIN_S)

    # Methods that run in the thread

    def _run(self) -> None:
        context = zmq.Context()
        try:
            while self._reason is None:
                requests = self._connected(context)
                try:
                    self._serve(requests)
                finally:
                    requests.close()
        except SwitchaggError as error:
            self._refuse(str(error))
        finally:
            with contextlib.suppress(SwitchaggError):  # the loop has ended: it holds nothing any more
                self._hold([])
            context.destroy(linger=LEAVE_MS)
            self._wake_in.close()
            self._wake_out.close()

    def _connected(self, context: "zmq.Context[zmq.Socket[bytes]]") -> Requests:
        host, port = parse_endpoint(self._target, "parent")
        self._root_host = resolve_host(host)
        bind_host = self.place.data[0]
        self._local_host = facing(self._root_host, port) if bind_host in ("", "0.0.0.0") else bind_host
        self._beats = Heartbeats()
        root = self._root_host, port
        return Requests(context, self._local_host, root, self._target, self._keys, self._wake_in, LEAVE_MS)

    def _serve(self, requests: Requests) -> None:
        """Serve until we stop, or another address is the parent's."""
        target = self._target
        while self._reason is None and self._target == target:
            now_ns = time.monotonic_ns()
            if now_ns >= self._beats.due_ns:
                requests.send(self._request(), fresh=self._beats.fresh)
                self._beats.note_sent(now_ns)
            requests.wait(self._beats.due_ns - now_ns)
            for answer in requests.answers():
                self._beats.note_answer()
                self._take(answer)
                if self._reason is not None:
                    break
            self._check_silence(time.monotonic_ns())
        if self._lease_ns and self._reason is not None:
            requests.send(control_messages.Leave(self.incarnation, [], self._reason[: control_messages.TEXT_MAX]))

    def _request(self) -> control_messages.Request:
        if self._lease_ns:
            held = [control_messages.HeldJob(*which, fault) for which, (_, fault) in self._held.items()]
            return control_messages.SwitchBeat(self.incarnation, held, self._draining)
        place = self.place
        return control_messages.Register(
            place.name,
            self._above,
            self._local_host,
            place.data[1],
            place.control_port,
            self.incarnation,
            place.slots,
            place.elements,
            place.packets_held,
            place.link,
            place.tags,
        )

    def _take(self, answer: control_messages.Answer) -> None:
        match answer:
            case control_messages.Redirected() if not self._lease_ns:
                if answer.parent in self._path:
                    circle = " is below ".join([*self._path, answer.parent])
                    raise SwitchaggError(f"switches in a circle, without a root: {circle}")
                self._above = self._above or answer.name
                self._path.append(answer.parent)
                self._target = answer.parent
            case control_messages.JobShares():
                if not self._lease_ns:
                    self._log_once(f"below {self.place.parent} as {self.place.name!r}")
                self._lease_ns = answer.lease_ns
                if self._hold(answer.jobs):
                    self._beats.hurry()  # the root waits for it
            case control_messages.Postponed():
                self._log_once(f"not below {self._target} yet: {answer.reason}")
            case control_messages.Refused():
                raise SwitchaggError(f"parent {self._target}: {answer.reason}")
            case control_messages.Unknown() if self._lease_ns:
                self._begin_anew(f"parent {self._target} does not know this switch any more: it was restarted")

    def _hold(self, shares: list[control_messages.JobShare]) -> bool:
        """Have exactly these jobs; whether anything has changed."""
        wanted = {(share.job_id, share.generation): share for share in shares}
        ended = [which for which in self._held if which not in wanted]
        for which in ended:
            share, fault = self._held.pop(which)
            if not fault:
                self._host.evict(share.job_id)
                self._log(f"job {share.name!r} generation {share.generation} has ended; its slots are free")
        new = {which: share for which, share in wanted.items() if which not in self._held}
        for which, share in new.items():
            self._held[which] = (share, self._admit(share))
        if ended or new:
            admitted = [share for share, fault in self._held.values() if not fault]
            admissions = [JobAdmitted(share.name, share.config(), share.terms, ()) for share in admitted]
            self._running = tuple(Running(admitted, ()) for admitted in admissions)
        return bool(ended or new)

    def _admit(self, share: control_messages.JobShare) -> str:
        """Why the data plane can't have it, or ""."""
        try:
            uplink = uplink_of(share, self._root_host)
            self._host.admit(share.config(), share.children, uplink, share.hop_secret)
        except (SwitchaggError, ValueError) as error:
            self._log(f"job {share.name!r} generation {share.generation}: refused: {error}")
            return str(error)[: control_messages.TEXT_MAX]
        above = "its root" if share.parent is None else f"below {share.parent[0] or self._root_host}:{share.parent[1]}"
        self._log(f"job {share.name!r} generation {share.generation} runs here, {above}: {len(share.children)} below")
        return ""

    def _check_silence(self, now_ns: int) -> None:
        if self._stalls.ended(now_ns):
            self._beats.forgive(now_ns)
        silent_ns = self._beats.silent_ns(now_ns)
        if self._lease_ns and silent_ns >= self._lease_ns:
            self._begin_anew(f"parent {self._target} has not answered for {silent_ns / 1e9:.1f} s")
        elif not self._lease_ns and silent_ns >= SILENCE_NS:
            self._log_once(f"no answer from parent {self._target}; is `switchagg switch` running there?")

    def _begin_anew(self, why: str) -> None:
        """The root has ended our jobs, or will: so do we, and ask again."""
        self._log_once(why)
        self._hold([])
        self.incarnation = secrets.randbits(63)
        self._lease_ns = 0
        self._beats = Heartbeats()
        self._above, self._path, self._target = "", [self.place.parent], self.place.parent

    def _refuse(self, reason: str) -> None:
        self._reason = reason
        self._on_refused(reason)

    def _log_once(self, line: str) -> None:
        """Log a line, but not again while nothing else happens."""
        if line != self._last_line:
            self._last_line = line
            self._log(line)
