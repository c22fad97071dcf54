"""WorkerLoop: the event loop of one worker's endpoint on a link, in a thread.

The endpoint decides everything; the loop gives it packets and the time, sends what it returns, and resolves futures:

    calls -> receive -> timer -> send -> events -> sleep until a packet, a call, room on the link or a deadline

Futures resolve in this thread, or in one that waits for them: whatever is chained to one must be quick, or it delays
packets. `CallLoop` says what a loop owes its callers; `transport.worker.native_worker_loop.NativeWorkerLoop` does the
same with its iterations in C.
"""

import errno
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from switchagg.calls.chunked_call import ArrayCall
from switchagg.codecs.float_environment import use_ieee_arithmetic
from switchagg.endpoint import CallCompleted, Endpoint, StreamFailed, WrongSum
from switchagg.errors import AggregationFailed, SwitchaggError
from switchagg.job import UNCONTROLLED, JobConfig
from switchagg.native.native_endpoint import NativeEndpoint
from switchagg.partial_endpoint import endpoint_of
from switchagg.priority import CE, ECN_MASK, ECT_0, marks
from switchagg.wire import STREAM_OFFSET, Bundle
from transport.links.hop_tags import Hop, HopKeys
from transport.links.link import Address, Link
from transport.worker.call_future import CallFuture

ROWS_PER_ASK = 64
"""Frames asked of the endpoint at a time: four sends of 16 segments."""

ROWS_PER_TURN = 128
"""Frames sent before the loop receives again, so that results are not kept waiting behind a long send."""

IDLE_S = 1.0
"""Longest sleep: an upper bound on what a lost wake-up could cost."""

DIAGNOSIS_S = 5.0
"""How long the reason of a failed stream is waited for, before the loop gives up with one of its own."""

JOIN_S = 10.0
"""How long `close` waits for the thread."""

ENDED = "the worker loop ended"

Finish = Callable[[], object]


class UnfinishedCall(NamedTuple):
    """A call of a loop that was stopped. Who gets it must end it: its future waits.

    held: (rows,) as of `Endpoint.held`. ended(None): the array has the call's result, and the future resolves to it;
    ended(error): the call has failed. What is chained to the future runs in the thread that calls this.
    """

    stream: int
    call: ArrayCall
    held: NDArray[np.bool_]
    ended: Callable[[BaseException | None], None]


class Pending(NamedTuple):
    """A call whose event hasn't come; it keeps the array alive."""

    stream: int
    call: ArrayCall
    future: CallFuture
    result: object
    finish: Finish | None

    def end(self, failure: BaseException | None) -> None:
        """Resolve the future, or fail it. Again, if that was interrupted."""
        if failure is not None:
            self.future.fail(failure)
            return
        if self.finish is not None:
            self.finish()
        self.future.resolve(self.result)


class LoopWatch(Protocol):
    """What sees to it that a loop which can't go on ends: each method is quick, any thread of the loop's may call it,
    and `fail` or `stop` follows soon, from any thread. Again, it does nothing."""

    def stream_failed(self, event: StreamFailed) -> None:
        """A stream has exhausted its retries, or has a wrong sum; what can be found out, as the missing ranks, is the
        reason of the loop's end."""

    def loop_ended(self, reason: str, event: StreamFailed | None = None) -> None:
        """The loop carries nothing any more: its socket is broken, or nobody has said why a stream failed. Its calls
        are as its last packet has left them."""


class PacketCarrier(Protocol):
    """The carrier of a loop's packets: a `Link`, or an end of a queue pair."""

    @property
    def counters(self) -> Mapping[str, int]:
        """See `Link.counters`."""

    def resolve(self, address: Address) -> Address:
        """See `Link.resolve`."""

    def wake(self) -> None:
        """See `Link.wake`."""

    def close(self) -> None:
        """See `Link.close`."""


class CallLoop(ABC):
    """The calls of one rank and the thread that runs them; a subclass implements the event loop.

    link: bound, not to be used by others from now on; the loop closes it when the thread ends. switch_address: where
    the switch's data link is; other datagrams are counted as drop_unknown_sender and ignored. wire_rank: our
    rank at that switch, one of several (H1); None: as rank. key: of verified sums (C26). hop_keys: packets have tags of
    these keys (A1), and those without a right one are counted as drop_unauthenticated and ignored. watch: without it
    the loop fails by itself, naming stream, slot and chunk of a failed stream.

    The thread starts at once. It ends at `fail`, `close` or any unexpected exception; in each case every pending call
    fails with that exception, and so does every later one; what the machine refuses (MemoryError, and OSError without
    a watch) becomes an AggregationFailed that names job and rank. `stop` ends it, too, and fails no pending call.
    Raises JobError if the link can't reach such an address.
    """

    def __init__(
        self,
        link: PacketCarrier,
        job: JobConfig,
        rank: int,
        switch_address: Address,
        *,
        watch: LoopWatch | None = None,
        wire_rank: int | None = None,
        key: bytes = bytes(16),
        hop_keys: HopKeys | None = None,
    ) -> None:
        self._link = link
        self._hop_keys = hop_keys
        self._job = job
        self._rank = rank
        self._wire_rank = wire_rank
        self._key_of_sums = key
        self._switch = link.resolve(switch_address)
        self._watch = watch
        self._diagnosis: tuple[int, StreamFailed] | None = None
        self._lock = threading.Lock()  # guards what is added to the next two, and what subclasses list
        self._pending: dict[int, Pending] = {}  # by key
        self._failure: BaseException | None = None
        self._stopped = False  # the failure is that of `stop`
        self._ending = threading.Event()  # there is a failure
        self._unfinished: list[UnfinishedCall] = []  # at the thread's end, until somebody takes them
        self._prepare()
        self._thread = threading.Thread(target=self._run, name=f"worker-loop-{job.job_id}-{rank}", daemon=True)
        self._thread.start()

    # Methods that any thread may call

    def submit(self, stream: int, call: ArrayCall, result: object = ..., finish: Finish | None = None) -> CallFuture:
        """Queue a call on a stream; the future resolves to `result`, or to the call if none is given.

        The call's array belongs to the loop until the future is done. The future can't be cancelled: the other ranks
        count on this one. finish: called before it resolves, unless to a failure; quick, and harmless when called
        again. After a failure it holds the exception. Raises ValueError for a stream the job lacks.
        """
        if not 0 <= stream < len(self._job.streams):
            raise ValueError(f"stream {stream}: job {self._job.job_id} has {len(self._job.streams)}")
        future = CallFuture(self)
        with self._lock:
            if self._failure is None:
                key = future.key = self._key(call)
                self._pending[key] = Pending(stream, call, future, call if result is ... else result, finish)
                try:
                    self._enqueue(stream, call, key)
                except MemoryError as error:  # the other ranks count on this call; the next can't take its place
                    del self._pending[key]
                    self._end(self._broken(error))
            failure = self._failure
        if failure is not None:
            future.set_exception(failure)
        return future

    def fail(self, exception: BaseException) -> None:
        """Fail every pending and later call; the first exception given stays.

        Pending futures are resolved by the loop's thread, after which it writes into no array any more.
        """
        with self._lock:
            self._end(exception)

    def stop(self, exception: BaseException) -> list[UnfinishedCall]:
        """End the thread without failing pending calls, and hand them over, in the order of `submit` on each stream.

        From then on nothing is written into their arrays, and later calls fail with `exception`. A call that has its
        result is resolved and isn't among them. Each call is handed over once: again, or after a failure, which has
        failed them, the list is empty. What nobody takes before `close` fails then. Not for callbacks in the loop's
        thread. The caller must hold no lock that a `finish` needs. Raises SwitchaggError as `close` does.
        """
        if threading.current_thread() is self._thread:
            raise SwitchaggError(f"{self._name}: the worker loop can't be stopped in its own thread")
        with self._lock:
            self._stopped = self._failure is None or self._stopped
            self._end(exception)
        self._join()
        return self._take_unfinished()

    def close(self) -> None:
        """Fail what is pending, end the thread, close the link; again is allowed. Don't use the loop afterwards.

        Raises SwitchaggError if the thread doesn't end within 10 s, because something chained to a future blocks it.
        """
        closed = AggregationFailed("the worker has closed", job=self._job.job_id, generation=self._job.generation)
        self.fail(closed)
        if threading.current_thread() is self._thread:
            return  # a callback closes us: the thread ends after it
        self._join()
        for call in self._take_unfinished():
            call.ended(closed)

    def _end(self, exception: BaseException) -> None:
        """The thread ends soon, for the first reason that is given. Under the lock."""
        self._failure = self._failure or exception
        self._ending.set()
        self._interrupt()

    @property
    def _name(self) -> str:
        return f"job {self._job.job_id}, rank {self._rank}"

    def _take_unfinished(self) -> list[UnfinishedCall]:
        with self._lock:
            unfinished, self._unfinished = self._unfinished, []
        return unfinished

    def _join(self) -> None:
        self._thread.join(JOIN_S)
        if self._thread.is_alive():
            raise SwitchaggError(
                f"{self._name}: the worker loop did not end within {JOIN_S:.0f} s; "
                "a callback on one of its futures must be blocking it"
            )

    @property
    def failure(self) -> BaseException | None:
        """Why the loop has ended or is about to; None while it works."""
        return self._failure

    @abstractmethod
    def has_early(self, stream: int, chunks: int) -> bool:
        """See `Endpoint.has_early`."""

    @property
    @abstractmethod
    def counters(self) -> dict[str, int]:
        """The endpoint's counters, drop_unknown_sender, ecn_marked, and the link's with the prefix link_."""

    def run_for(self, future: CallFuture, timeout_s: float | None) -> float | None:
        """See `Awaited`. Here the thread runs the loop alone: it can't be interrupted in the middle of Python code."""
        return timeout_s

    # Implemented by subclasses

    @abstractmethod
    def _prepare(self) -> None:
        """Allocate what `_run_once` needs, before the thread starts."""

    def _key(self, call: ArrayCall) -> int:
        """The key by which the next call finishes; the caller holds the lock."""
        return id(call)

    @abstractmethod
    def _enqueue(self, stream: int, call: ArrayCall, key: int) -> None:
        """Have the loop start the call soon. Under the lock, while there is no failure."""

    @abstractmethod
    def _interrupt(self) -> None:
        """Have the present iteration end soon. Under the lock; also after the thread's end."""

    @abstractmethod
    def _run_once(self) -> None:
        """Handle packets, at most until `_next_check_ns`, and report; the thread's iteration."""

    @abstractmethod
    def _finish_last(self) -> None:
        """Resolve the calls that have their results; from then on nothing writes into an array. The thread of a loop
        that was stopped does it after its last iteration."""

    @abstractmethod
    def _held_rows(self, key: int, call: ArrayCall) -> NDArray[np.bool_] | None:
        """The rows that hold results, after `_finish_last`; None: the call has its result, and another thread is about
        to resolve it."""

    @abstractmethod
    def _forget(self) -> None:
        """Release every array, for good; the thread does it after its last iteration."""

    # Methods that run in the thread

    def _run(self) -> None:
        use_ieee_arithmetic()
        try:
            while self._failure is None:
                try:
                    self._run_once()
                except OSError as error:
                    self._ended_by(error)
                    self._ending.wait()
                self._check_diagnosis()
            if self._stopped:
                self._collect()
        except BaseException as error:
            ending = self._broken(error) if isinstance(error, OSError | MemoryError) else error
            with self._lock:  # what the endpoint was doing is unknown: what could be handed over isn't
                self._failure = ending if self._stopped else self._failure or ending
                self._stopped = False
        finally:
            try:
                self._forget()
            finally:
                self._settle()
                self._link.close()

    def _collect(self) -> None:
        """Resolve what has its result, and list the other calls."""
        self._finish_last()
        unfinished = []
        for key, pending in list(self._pending.items()):
            held = self._held_rows(key, pending.call)
            if held is not None:
                unfinished.append((key, UnfinishedCall(pending.stream, pending.call, held, pending.end)))
            elif pending.finish is not None:
                pending.finish()  # who stops the loop may count on it
        with self._lock:
            for key, _ in unfinished:
                del self._pending[key]
            self._unfinished = [call for _, call in unfinished]

    def _settle(self) -> None:
        """Give every pending future the failure. No other can follow: `submit` looks at the failure under the lock."""
        with self._lock:
            failure, pending = self._failure, []
            if not self._stopped:
                pending = list(self._pending.values())
                self._pending.clear()
        assert failure is not None
        for call in pending:
            call.end(failure)

    def _completed(self, key: int) -> None:
        """Resolve the future of the call with this key. Again, if that was interrupted."""
        call = self._pending.get(key)
        if call is not None:
            call.end(None)
            self._pending.pop(key, None)

    def _stream_failed(self, event: StreamFailed) -> None:
        """Ask for the reason of the first failed stream, or fail at once where no switch can be asked."""
        if self._diagnosis is not None:
            return
        self._diagnosis = (time.monotonic_ns() + round(DIAGNOSIS_S * 1e9), event)
        if self._watch is None:
            self.fail(self._stream_error(event))
        else:
            self._watch.stream_failed(event)

    def _ended_by(self, error: OSError) -> None:
        """The machine refuses what the loop needs. Any thread may call it; `fail` or `stop` follows."""
        if self._watch is None or error.errno == errno.ENOMEM:  # without memory an event may be lost
            self.fail(self._broken(error))
        else:
            self._watch.loop_ended(f"{ENDED}: {error}")

    def _check_diagnosis(self) -> None:
        """Give up, for a reason of our own, if none for a failed stream came in time."""
        if self._diagnosis is None or time.monotonic_ns() < self._diagnosis[0]:
            return
        (_, event), self._diagnosis = self._diagnosis, None
        if self._watch is None:
            self.fail(self._stream_error(event))
        else:
            self._watch.loop_ended(_reason(event), event)

    def _broken(self, error: Exception) -> AggregationFailed:
        """An error of the machine, as one that names the calls it ends."""
        failed = AggregationFailed(
            f"rank {self._rank}: {ENDED}: {error}", job=self._job.job_id, generation=self._job.generation
        )
        failed.__cause__ = error
        return failed

    def _stream_error(self, event: StreamFailed) -> AggregationFailed:
        return AggregationFailed(
            f"rank {self._rank}: {_reason(event)}" if event.rank is None else event.reason,
            job=self._job.job_id,
            generation=self._job.generation,
            stream=event.stream,
            slot=event.slot,
            chunk=event.chunk,
        )

    def _next_check_ns(self, now_ns: int) -> int:
        """When an iteration must end even if nothing happens."""
        end_ns = now_ns + round(IDLE_S * 1e9)
        return end_ns if self._diagnosis is None else min(end_ns, self._diagnosis[0])


class EndpointLoop(CallLoop):
    """Runs the endpoint of one rank, in C if `native`, and all else in Python; a subclass moves packets.

    endpoint: not to be called by others, who may ask it what changes nothing.
    """

    def __init__(
        self,
        link: PacketCarrier,
        job: JobConfig,
        rank: int,
        switch_address: Address,
        *,
        native: bool = False,
        **rest: Any,
    ) -> None:
        self._native = native
        super().__init__(link, job, rank, switch_address, **rest)

    def _prepare(self) -> None:
        place = self._job, self._rank, self._wire_rank, self._key_of_sums
        self.endpoint: NativeEndpoint | Endpoint = NativeEndpoint(*place) if self._native else endpoint_of(*place)
        self._calls: deque[tuple[int, ArrayCall]] = deque()
        self._loop_counters: dict[str, int] = {}

    @property
    def counters(self) -> dict[str, int]:
        link_counters = {f"link_{name}": value for name, value in self._link.counters.items()}
        return {**self.endpoint.counters, **self._loop_counters, **link_counters}

    def has_early(self, stream: int, chunks: int) -> bool:
        return self.endpoint.has_early(stream, chunks)

    def _enqueue(self, stream: int, call: ArrayCall, key: int) -> None:
        self._calls.append((stream, call))
        self._link.wake()

    def _interrupt(self) -> None:
        self._link.wake()

    def _finish_last(self) -> None:
        while self._calls:
            self.endpoint.submit(*self._calls.popleft())
        while (event := self.endpoint.next_event()) is not None:
            if isinstance(event, CallCompleted):
                self._completed(id(event.call))

    def _held_rows(self, key: int, call: ArrayCall) -> NDArray[np.bool_] | None:
        return self.endpoint.held(call)

    def _forget(self) -> None:
        self._calls.clear()

    def _run_once(self) -> None:
        while self._calls:
            self.endpoint.submit(*self._calls.popleft())
        self._receive()
        now_ns = time.monotonic_ns()
        deadline_ns = self.endpoint.next_deadline_ns()
        if deadline_ns is not None and now_ns >= deadline_ns:
            self.endpoint.handle_timer(now_ns)
        more = self._send(now_ns)
        self._report()
        if not self._calls and self._failure is None:
            self._wait(0 if more else self._left_s(now_ns))

    def _report(self) -> None:
        """Resolve the futures of finished calls; see to a failed stream."""
        while (event := self.endpoint.next_event()) is not None:
            if isinstance(event, CallCompleted):
                self._completed(id(event.call))
            else:
                self._stream_failed(event)

    def _left_s(self, now_ns: int) -> float:
        """How long the loop may sleep."""
        end_ns = self._next_check_ns(now_ns)
        deadline_ns = self.endpoint.next_deadline_ns()
        if deadline_ns is not None:
            end_ns = min(end_ns, deadline_ns)
        return max(0, end_ns - time.monotonic_ns()) / 1e9

    @abstractmethod
    def _receive(self) -> None:
        """Give the endpoint what has come."""

    @abstractmethod
    def _send(self, now_ns: int) -> bool:
        """Send until the endpoint has nothing more, the link is full, or an iteration's share is used; returns whether
        the loop goes on at once."""

    @abstractmethod
    def _wait(self, left_s: float) -> None:
        """Sleep until there is work, at most so long; 0: not at all."""


class WorkerLoop(EndpointLoop):
    """The loop over any link."""

    _link: Link

    def _prepare(self) -> None:
        super()._prepare()
        self._unsent: Bundle | None = None
        self._held = False
        self._loop_counters = {"drop_unknown_sender": 0, "ecn_marked": 0}
        self._hop = None if self._hop_keys is None else Hop(self._job.elements, [self._hop_keys])
        if self._hop is not None:
            self._loop_counters["drop_unauthenticated"] = 0
        allow_marks(self._link, self._job)
        link_tos = self._link.tos
        self._tos = () if link_tos is None else marks([stream.priority for stream in self._job.streams], link_tos)

    def _receive(self) -> None:
        switch = self._switch
        for bundle, sender, tos in self._link.receive():
            if sender != switch:
                self._loop_counters["drop_unknown_sender"] += len(bundle)
                continue
            if self._hop is not None:
                rows, bundle = len(bundle), self._hop.verified(bundle, result=True)
                self._loop_counters["drop_unauthenticated"] += rows - len(bundle)
            congested = tos & ECN_MASK == CE
            self._loop_counters["ecn_marked"] += len(bundle) * congested
            if len(bundle):
                self.endpoint.receive(bundle, time.monotonic_ns(), congested)

    def _send(self, now_ns: int) -> bool:
        rows = 0
        while rows < ROWS_PER_TURN:
            frames = self._unsent
            if frames is None:
                frames = self._ask(now_ns)
                if not len(frames):
                    return False
                if self._hop is not None:
                    frames = self._hop.tagged(frames)
            accepted = self._hand_over(frames)
            if accepted < len(frames):
                self._unsent = frames[accepted:]
                return False
            self._unsent = None
            rows += accepted
        return True

    def _ask(self, now_ns: int) -> Bundle:
        """The next frames, or none while the link's credit is used: what is asked for can't be overtaken any more."""
        link = self._link
        if not link.credit_bytes:
            return self.endpoint.frames_to_send(now_ns, ROWS_PER_ASK)
        self._held = not link.has_room()
        return self.endpoint.frames_to_send(now_ns, 0 if self._held else link.segments_max)

    def _hand_over(self, frames: Bundle) -> int:
        """Send, a run of one class at a time: a bundle of the kernel has one TOS (W10)."""
        if not self._tos:
            return self._link.send(frames, self._switch)
        tos = [self._tos[stream] for stream in frames[:, STREAM_OFFSET].tolist()]
        begin = 0
        while begin < len(frames):
            end = begin + 1
            while end < len(frames) and tos[end] == tos[begin]:
                end += 1
            accepted = self._link.send(frames[begin:end], self._switch, tos[begin])
            begin += accepted
            if begin < end:
                break
        return begin

    def _wait(self, left_s: float) -> None:
        if left_s:
            self._link.wait(left_s, writable=self._unsent is not None or self._held)


def _reason(event: StreamFailed) -> str:
    """Why a stream failed, where nobody knows more."""
    return event.reason if isinstance(event, WrongSum) else f"{event.reason} after {event.timeouts} timeouts in a row"


def allow_marks(link: Link, job: JobConfig) -> None:
    """From now on packets may be marked (ECT(0)) where windows follow marks, and the link has a TOS (G5)."""
    if job.congestion != UNCONTROLLED and link.tos is not None and not link.tos & ECN_MASK:
        link.set_tos(link.tos | ECT_0)
