"""MeshLoop: the event loop of one member's party on a mesh, in a thread.

The party decides everything; the loop gives it messages and the time, sends what it returns, most urgent first, and
keeps what lies in the FIFOs below within a credit, or one for each flow of the mesh (a priority class):

    commands -> timer -> messages -> credit -> mesh -> events -> sleep until a message, a command, room or a deadline
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable

from switchagg.codecs.float_environment import use_ieee_arithmetic
from switchagg.errors import AggregationFailed, SwitchaggError
from transport.meshes.credit_queue import Credited, Sends
from transport.meshes.mesh import URGENT, MemberLost, Mesh, MessageReceived, MessageSent, Party

CREDIT_BYTES = 1 << 20
"""How much may lie in the mesh and below, not counting what TCP has in flight: 8 ms at 1 Gb/s."""

IDLE_S = 1.0
"""Longest sleep: an upper bound on what a lost wake-up could cost."""

JOIN_S = 10.0
"""How long `close` waits for the thread beyond the time it lingers."""

Command = Callable[[int], None]
"""Something to do with the party, in the loop's thread; called with the time in ns."""


class MeshLoop:
    """Runs `party` on `mesh`, neither to be used by others from now on; the thread starts at once.

    job: name for errors. credit_bytes: None for no bound. on_iteration: called in the thread after commands or events,
    to look at what the party has finished. on_end: called once, in the thread, with the reason, when the party is not
    touched any more. The loop ends at `fail`, `close` or any unexpected exception; what the machine refuses (OSError,
    MemoryError) becomes an AggregationFailed that names the job.
    """

    def __init__(
        self,
        mesh: Mesh,
        party: Party,
        *,
        job: str,
        on_iteration: Callable[[], None],
        on_end: Callable[[BaseException], None],
        credit_bytes: int | None = CREDIT_BYTES,
    ) -> None:
        self._mesh, self._party, self._job = mesh, party, job
        self._on_iteration, self._on_end = on_iteration, on_end
        self._sends: Sends = mesh if isinstance(mesh, Sends) else Credited(mesh)
        self._sends.set_credit(_checked(credit_bytes))
        self._commands: deque[tuple[Command, Callable[[BaseException], None]]] = deque()
        self._lock = threading.Lock()  # guards the next, and that no command follows it
        self._failure: BaseException | None = None
        self._linger_s = 1.0
        self._asleep = False
        self._thread = threading.Thread(target=self._run, name=f"mesh-loop-{mesh.link}-{mesh.member}", daemon=True)
        self._thread.start()

    # Callable from any thread

    def submit(self, command: Command, refused: Callable[[BaseException], None]) -> None:
        """Have a command executed soon, or, if the loop ends before, `refused` called with the reason: one of the
        two."""
        with self._lock:
            failure = self._failure
            if failure is None:
                self._commands.append((command, refused))
        if failure is not None:
            refused(failure)
        elif self._asleep:
            self._mesh.wake()

    def fail(self, exception: BaseException, linger_s: float = 1.0) -> None:
        """End the loop; the first exception given stays. The loop sends queued messages for linger_s at most."""
        with self._lock:
            if self._failure is None:
                self._failure = exception
                self._linger_s = linger_s
        self._mesh.wake()

    def set_credit(self, credit_bytes: int | None) -> None:
        """Bound what lies below from now on; what does so already stays there."""
        self._sends.set_credit(_checked(credit_bytes))
        self._mesh.wake()

    def close(self, linger_s: float = 1.0) -> None:
        """End the thread and close the mesh; again is allowed. In the loop's own thread it only begins to.

        Raises SwitchaggError if the thread doesn't end, because something called by it blocks it.
        """
        member = self._mesh.member
        self.fail(AggregationFailed(f"member {member}: the group was closed", job=self._job), linger_s)
        if threading.current_thread() is self._thread:
            return
        self._thread.join(linger_s + JOIN_S)
        if self._thread.is_alive():
            raise SwitchaggError(
                f"job {self._job}, member {member}: the loop's thread did not end within {JOIN_S:.0f} s; a callback on "
                "one of its futures must be blocking it"
            )

    @property
    def failure(self) -> BaseException | None:
        """Why the loop has ended or is about to; None while it works."""
        return self._failure

    @property
    def waiting_bytes(self) -> int:
        """Bytes of messages that the mesh has and that are not yet known to have left it."""
        return self._sends.waiting_bytes

    # The thread

    def _run(self) -> None:
        use_ieee_arithmetic()
        try:
            while self._failure is None:
                self._run_once()
        except BaseException as error:
            with self._lock:
                self._failure = self._failure or self._broken(error)
        finally:
            failure = self._failure
            assert failure is not None
            try:
                while self._commands:  # no other can follow
                    self._commands.popleft()[1](failure)
                self._on_end(failure)
                self._send_failure()
            finally:
                self._mesh.close(self._linger_s)

    def _send_failure(self) -> None:
        """The failure may have ended the loop, by `on_iteration`, before the party's messages about it were sent."""
        with contextlib.suppress(SwitchaggError, OSError):
            for message in self._party.messages_to_send():
                if message.priority == URGENT:
                    self._mesh.send(message.to, message.head, message.data, message.ticket, 0)

    def _broken(self, error: BaseException) -> BaseException:
        if not isinstance(error, OSError | MemoryError):
            return error
        failed = AggregationFailed(f"member {self._mesh.member}: the mesh loop ended: {error}", job=self._job)
        failed.__cause__ = error
        return failed

    def _run_once(self) -> None:
        party = self._party
        now_ns = time.monotonic_ns()
        busy = bool(self._commands)
        while self._commands:
            self._commands.popleft()[0](now_ns)
        deadline_ns = party.next_deadline_ns()
        if deadline_ns is not None and now_ns >= deadline_ns:
            party.handle_timer(now_ns)
            busy = True
        self._sends.carry(party.messages_to_send())
        events = self._sends.receive(party.place)
        for event in events:
            if type(event) is MessageReceived:
                party.receive(event.sender, event.head, event.data, now_ns)
            elif type(event) is MessageSent:
                party.on_sent(event.ticket)
            elif type(event) is MemberLost:
                party.lost(event.member, event.reason, now_ns)
        if busy or events:
            self._on_iteration()
        if not events:
            self._sleep()

    def _sleep(self) -> None:
        sleep_s = IDLE_S
        deadline_ns = self._party.next_deadline_ns()
        if deadline_ns is not None:
            sleep_s = min(sleep_s, max(0, deadline_ns - time.monotonic_ns()) / 1e9)
        self._asleep = True
        if not self._commands and self._failure is None:  # else: given before we noted that we sleep
            self._mesh.wait(sleep_s)
        self._asleep = False


def _checked(credit_bytes: int | None) -> int | None:
    if credit_bytes is not None and credit_bytes < 1:
        raise ValueError(f"credit_bytes {credit_bytes}: 1 or more, or None")
    return credit_bytes
