"""SwitchSession: one worker's place in a job on a switch, from `join` to `close`.

It owns two threads: the worker loop, which carries packets unless a thread that waits for a call does, and the control
client, which sends heartbeats and receives which members died or left. Any fault ends in one `AggregationFailed` for
every pending and later call: no call waits for ever.

A call waits at most so long for:

- a rank that is dead: one lease of the switch, 4 s by default (C6)
- a rank that left before it had finished that call: no longer than a lease (C7)
- a switch that has stopped or can't be reached: one lease (C12)
- a data path that carries nothing: about 15 s (C13)
- a rank that lives but is slow: `call_timeout_s`, since it may be evaluating or saving a checkpoint (W9)
"""

import atexit
import contextlib
import logging
import os
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from switchagg.calls.call_ledger import CallLedger, CallPlace
from switchagg.calls.call_request import CallRequest
from switchagg.calls.member_calls import MemberCalls
from switchagg.codecs import FIXED_POINT, Array
from switchagg.codecs.array_codec import Reduction, Tensors
from switchagg.codecs.compression import Compression
from switchagg.description import CallSignature
from switchagg.endpoint import StreamFailed
from switchagg.errors import AggregationFailed, JobError, SwitchaggError
from switchagg.job import MODULUS, JobConfig
from switchagg.join import Join
from switchagg.native import library
from switchagg.native.native_codec import missing
from switchagg.partial_endpoint import PartialEndpoint
from switchagg.priority import class_of
from switchagg.wire import frame_bytes
from transport.contracts.group_contract import Matching
from transport.control import control_messages
from transport.control.control_client import ControlClient
from transport.links.addresses import facing, parse_endpoint, resolve_host
from transport.worker.coded_calls import CodedSessionCalls
from transport.worker.exit_reason import exit_reason, listen
from transport.worker.join_options import JoinOptions
from transport.worker.worker_endpoints import Admission, WorkerEndpoint
from transport.worker.worker_loop import CallLoop, WorkerLoop, all_of
from transport.zeromq.keys import as_keys

logger = logging.getLogger(__name__)

STALL_S = 10.0
"""Time without any result after which the data path is looked into; a round trip takes milliseconds."""

STALL_CHECK_S = 5.0
STALL_TIMEOUTS = 3
"""Resends without a result that make a stall of the path: with fewer, perhaps only our own thread was stalled."""

STATUS_S = 5.0
LEAVE_S = 1.0
"""How long `close` waits for the switch's echo; without it the lease ends for the others."""

CANCEL_S = 0.1
"""How soon a wait for the admission ends when it is cancelled."""

ANSWER_MARGIN_S = 10.0
"""How much longer than its own timeout a join may take to report that it failed."""


@dataclass(slots=True)
class _Stall:
    """The present time without results."""

    results: int = -1
    timeouts: int = 0
    since_ns: int = 0
    asked_ns: int = 0
    strikes: int = 0


class SwitchSession:
    """A rank's membership of a running job. Made by `join`; `close` it, or use it in a `with` statement.

    An `AllreduceGroup`. name: the job's. job: what the switch gave it. rank, workers: this member's place. core:
    "native" or "python", of its packets. classes: of its streams. Any thread may use it, but no forked child:
    there every method but `close` raises SwitchaggError.
    """

    method = "switch"
    matching: Matching = "class"

    def __init__(
        self,
        end: WorkerEndpoint,
        join: Join,
        switch: str,
        options: JoinOptions,
        cancelled: threading.Event | None = None,
    ) -> None:
        """Private: see `join`."""
        self._pid = os.getpid()
        self._switch = switch
        self._lock = threading.RLock()  # It guards the next four fields.
        self._ledger = CallLedger(())  # until the switch has admitted the job
        self._departed: list[control_messages.DepartedMember] = []
        self._failure: AggregationFailed | None = None
        self._closed = False
        self._departed_ns = 0
        self._stall = _Stall()
        self._slowness: Callable[[], str] = end.slowness
        self._loop: CallLoop[Any] | None = None
        spec, seed = options.codec_spec.for_workers(join.workers), options.codec_seed
        self.compression = Compression(spec, join.rank, join.workers, seed) if spec.lossy else None
        self._coded: CodedSessionCalls | None = None
        if self.compression is not None and (self.compression.remembers or self.compression.stepwise):
            self._coded = CodedSessionCalls(self._submit, self.compression, self._failed)
        self.core = _chosen_core(options)
        self.name, self.link = join.job, join.link
        self.rank = join.rank
        if self.rank == 0 and options.codec_spec.warning:
            logger.warning("%s", options.codec_spec.warning)
        self.workers = join.workers
        self._address = join.address
        self._generation: int | None = None
        keys = as_keys(options.keys)
        self._client = ControlClient(switch, join, self._on_departure, self._on_end, self._on_beat, keys=keys)
        self._client.start()
        try:
            admitted = self._admission(join.timeout_ns / 1e9 + ANSWER_MARGIN_S, cancelled)
            self.job: JobConfig = admitted.config(retry_limit=options.retries)
            if end.queue_pair and len(admitted.queue_pairs) != join.workers:
                raise JobError(f"the switch at {switch} has no {options.kind.label} queue pair for each rank")
            if admitted.narrowed and self.rank == 0:
                self._warn(admitted.narrowed)
            split_calls, chunked = bool(options.split_calls), self.core != "native"
            self._calls = MemberCalls(
                self.job, self.rank, spec, seed, split_calls=split_calls, routed=admitted.routes, chunked=chunked
            )
            self._ledger = self._calls.ledger
            self.classes = self._ledger.turns.classes
            self._generation = self.job.generation
            self._places = {place.rank: place for place in admitted.members}
            self._lease_ns = admitted.lease_ns
            self._data = (admitted.host or resolve_host(parse_endpoint(switch)[0]), admitted.port)
            self._packet_bytes = frame_bytes(self.job.elements) + options.kind.framing.packet_bytes
            loop = self._open_loop(end, admitted, join.incarnation)
        except BaseException as error:
            self._client.leave([], str(error), LEAVE_S if isinstance(error, SwitchaggError) else 0.0)
            self._client.close()
            raise
        with self._lock:
            self._loop = loop
            failure = self._failure
        if failure is not None:
            loop.fail(failure)
        atexit.register(self.close)
        listen()

    def _open_loop(self, end: WorkerEndpoint, admitted: control_messages.Admitted, secret: int) -> CallLoop[Any]:
        """The loop that carries this rank's packets."""
        queue_pair = admitted.queue_pairs[self.rank] if end.queue_pair else None
        native = self.core == "native"
        place = Admission(self.job, self.rank, self._data, native, self._on_stream_failed, queue_pair, secret)
        return end.loop(replace(place, wire_rank=admitted.wire_rank))

    @classmethod
    def join(
        cls,
        switch: str,
        job: str,
        rank: int,
        workers: int,
        options: JoinOptions | None = None,
        cancelled: threading.Event | None = None,
    ) -> "SwitchSession":
        """Join `job` as `rank` and wait, for at most the options' timeout_s, until all `workers` have.

        switch: "tcp://host:port" of its control plane. options: see JoinOptions. cancelled: when it is set, the wait
        ends.

        Raises JobError that names the fault: missing ranks, a disagreement, no room, no answer, an impossible argument.
        """
        options = options or JoinOptions()
        try:
            options.codec_spec.for_workers(workers)
        except ValueError as error:
            raise JobError(str(error)) from None
        host, port = parse_endpoint(switch)
        options = replace(options, keys=as_keys(options.keys))
        local_host = options.bind or facing(resolve_host(host), port)
        try:
            end: WorkerEndpoint = options.kind.opener("worker")(options, local_host)
        except ValueError as error:
            raise JobError(str(error)) from None
        try:
            join = Join(
                job=job,
                workers=workers,
                rank=rank,
                address=end.address,
                incarnation=secrets.randbits(63),
                timeout_ns=round(options.timeout_s * 1e9),
                link=options.link,
                queue_pair=end.queue_pair,
                packets_held=end.packets_held,
                via=options.via,
                wait_for_slots=options.wait_for_slots,
                **vars(options.resolved_terms),
            )
            return cls(end, join, switch, options, cancelled)
        except BaseException:
            end.close()
            raise

    def allreduce(
        self,
        array: Array,
        op: str = "sum",
        stream: int | None = None,
        priority: int | None = None,
        *,
        key: int | None = None,
        requested_op: int = 0,
        tensors: Tensors | None = None,
    ) -> "Future[Any]":
        """Combine `array` over all ranks, in place; the future resolves to the array, or to AggregationFailed.

        array: 1-D, C-contiguous, writable; float32, float64, int32, int64 for op "sum", int32 for "max", and of partial
        sums floats for "avg", the mean of the ranks in each chunk (Q6); it belongs to the session until the future is
        done. priority: a class that one of the streams has; default: the least urgent of them. The streams of a class
        take turns; stream: that one instead. Every rank must make the same calls of a class in the same order; calls of
        different classes may come in any. key: names the array for codecs that remember parameters, if tensors don't.
        requested_op, tensors: see `AllreduceGroup`. Ranks whose calls differ all fail, with an error that names both
        (W12). Futures resolve in the loop's thread, or in one that waits for them: what is chained to one must be
        quick. Raises ValueError for an array, stream or priority that can't be.
        """
        signature = CallSignature("allreduce", op, array.dtype, array.size, 0, requested_op)
        lane = self._lane(priority, stream)
        request = CallRequest("allreduce", op, key, lane, 0, requested_op, signature, tensors, stream=stream)
        return self.call(array, request)

    def call(self, array: Array, request: CallRequest) -> "Future[Any]":
        """Any collective of a class that the job has. array: what travels. request: with the signature that the ranks
        compare; its op is that of the switch, or "avg" of partial sums."""
        if self._coded is None:
            return self._submit(array, request)
        return self._coded.begin(array, request)

    def _submit(self, array: Array, request: CallRequest, coding: Reduction | None = None) -> "Future[Any]":
        """Begin a call. coding: the step of a codec that it is; None: sums are coded as those of their size are."""
        if os.getpid() != self._pid:
            self._check_process()
        laid_out = self._calls.lay_out(array, request, coding)
        loop = self._loop
        assert loop is not None
        with self._lock:  # also around submit: on a stream, numbers must be in order
            entered = self._calls.enter(laid_out)
            if self._departed:  # before packets leave: the sums of who has left may be complete with them
                self._check_departures()
            futures = [loop.submit(place[0], call, array, partial(self._finished, place)) for place, call in entered]
        return futures[0] if len(futures) == 1 else all_of(futures, array)

    def finished_without(self, sizes: Sequence[int]) -> bool:
        """Whether the others have finished our next calls without us, means of so many float32, and all results are
        here: those calls end at once, whatever our arrays hold. False while a call is in progress, and without partial
        sums."""
        loop = self._loop
        with self._lock:
            endpoint = loop.endpoint if isinstance(loop, WorkerLoop) and not self._ledger else None
            return isinstance(endpoint, PartialEndpoint) and self._calls.finished_without(endpoint.has_early, sizes)

    def status(self) -> dict[str, Any]:
        """The switch's report of itself and its jobs, with this job's slots (`seen`); JobError after 5 s."""
        self._check_process()
        if self._closed:
            raise JobError(f"job {self.name}, rank {self.rank}: the session is closed")
        try:
            return control_messages.as_dict(self._client.query(self.name).result(STATUS_S))
        except TimeoutError:
            raise JobError(f"no answer from switch {self._switch} within {STATUS_S:g} s") from None

    @property
    def counters(self) -> dict[str, int]:
        """Packets of this rank, by their fate."""
        assert self._loop is not None
        return self._loop.counters

    @property
    def failure(self) -> AggregationFailed | None:
        """Why the session works no more; None while it does."""
        return self._failure

    @property
    def asked_to_leave(self) -> str:
        """Why the switch asks the job to go on without it, or "" (C21)."""
        return self._client.asked_to_leave

    def give_up(self, reason: str) -> None:
        """See `Group`: the switch is asked for those who are missing."""
        if self._ledger:
            self._client.query(self.name).add_done_callback(partial(self._name_missing, reason, None))

    def set_credit(self, credit_bytes: int | None) -> None:
        """Nothing: a stream's window bounds what is in flight (`AllreduceGroup`)."""

    def close(self) -> None:
        """Leave the job, fail what is pending, end the threads. Again, or in a forked child, it does nothing."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._coded is not None:
            self._coded.close()
        atexit.unregister(self.close)
        assert self._loop is not None
        self._loop.fail(AggregationFailed("the session was closed", job=self.name, generation=self.job.generation))
        try:
            self._loop.close()
        finally:
            # Only now has every finished call been counted: its caller may have come here before `_finished` ran.
            with self._lock:
                finished = self._ledger.finished()
            self._client.leave(finished, str(self._failure or "") or exit_reason(), LEAVE_S)
            self._client.close()

    def __enter__(self) -> "SwitchSession":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Private methods that any thread calls

    def _admission(self, timeout_s: float, cancelled: threading.Event | None) -> control_messages.Admitted:
        """Wait for the admission. Raises JobError, TimeoutError."""
        if cancelled is None:
            return self._client.admitted.result(timeout_s)
        end_s = time.monotonic() + timeout_s
        while not cancelled.is_set():
            with contextlib.suppress(TimeoutError):
                return self._client.admitted.result(min(CANCEL_S, max(0.0, end_s - time.monotonic())))
            if time.monotonic() >= end_s:
                raise TimeoutError(f"job {self.name}, rank {self.rank}: not admitted within {timeout_s:g} s")
        raise JobError(f"job {self.name}, rank {self.rank}: it waits no longer")

    def _lane(self, priority: int | None, stream: int | None) -> int:
        """The class of a call; of one that can't be, which is refused elsewhere, any. None: the least urgent one."""
        if stream is not None and 0 <= stream < len(self.job.streams):
            return class_of(self.job.streams[stream].priority)
        return self.classes[-1] if priority is None else priority

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise SwitchaggError(
                f"job {self.name}, rank {self.rank}: this session belongs to process {self._pid}; a forked child must "
                f"join on its own"
            )

    def _finished(self, place: CallPlace) -> None:
        """Note a call's result. A failed call stays pending: it never finishes, and `leave` must report that."""
        with self._lock:
            self._ledger.finish(place)

    def _failed(self, detail: str, missing: tuple[int, ...] = (), event: StreamFailed | None = None) -> None:
        """Fail every pending and later call, and leave, so that the others learn of it at once."""
        failure = AggregationFailed(
            detail if event and event.rank is not None else f"rank {self.rank}: {detail}",
            job=self.name,
            generation=self._generation,
            stream=event.stream if event else None,
            slot=event.slot if event else None,
            chunk=event.chunk if event else None,
            missing=missing,
        )
        with self._lock:
            if self._failure is not None or self._closed:
                return
            self._failure = failure
            finished = self._ledger.finished()
            loop = self._loop
        if loop is not None:
            loop.fail(failure)
        self._client.leave(finished, str(failure), 0.0)

    def _check_departures(self) -> None:
        """Fail if a call is pending that a member left without finishing (C7)."""
        with self._lock:
            late = time.monotonic_ns() - self._departed_ns >= self._lease_ns if self._departed else False
            # Earlier calls may still be on their way to us, whole: they get a lease's time.
            leavers = [member for member in self._departed if self._ledger.waits_for(member.calls, late=late)]
        if leavers:
            who = "; ".join(
                f"{member.place} left after {sum(member.calls)} calls" + (f": {member.reason}" if member.reason else "")
                for member in leavers
            )
            self._failed(who, tuple(member.place.rank for member in leavers))

    # Private methods that the control thread calls

    def _on_departure(self, departed: list[control_messages.DepartedMember]) -> None:
        with self._lock:
            self._departed = departed
            self._departed_ns = time.monotonic_ns()
        if self._loop is not None:
            self._check_departures()

    def _on_end(self, dead: list[control_messages.RankAddress], reason: str) -> None:
        ranks = tuple(place.rank for place in dead)
        if self.rank in ranks:
            reason += "; this rank was taken for dead: was it stopped, or in one long call that holds the GIL?"
        self._failed(reason, ranks)

    def _on_beat(self) -> None:
        if (loop := self._loop) is None:
            return
        if loop.failure is not None:
            self._failed(f"the worker loop ended: {loop.failure}")
            return
        self._check_departures()
        self._watch(loop.counters)
        if slowness := self._slowness():
            self._slowness = str  # reported once
            self._warn(slowness)

    def _warn(self, slowness: str) -> None:
        with contextlib.suppress(Warning):  # where warnings are errors, this one ends no training
            warnings.warn(f"job {self.name}, rank {self.rank}: {slowness}", stacklevel=1)

    def _watch(self, counters: dict[str, int]) -> None:
        """Look into a stall (C13)."""
        stall, now_ns = self._stall, time.monotonic_ns()
        if not self._ledger or counters["results"] != stall.results or self._client.is_silent:
            self._stall = _Stall(counters["results"], counters["timeouts"], now_ns)
        elif (
            now_ns - stall.since_ns >= STALL_S * 1e9
            and now_ns - stall.asked_ns >= STALL_CHECK_S * 1e9
            and counters["timeouts"] - stall.timeouts >= STALL_TIMEOUTS
        ):
            stall.asked_ns = now_ns
            self._client.query(self.name).add_done_callback(lambda answer: self._diagnose(stall, answer))

    def _diagnose(self, stall: _Stall, answer: "Future[control_messages.StatusAnswer]") -> None:
        """If no unfinished slot holds our contribution, our packets or the switch's are lost (C13)."""
        slots = self._slots(answer)
        if slots is None or len(slots) >= control_messages.SLOTS_REPORTED_MAX or stall is not self._stall:
            return
        if any(self.rank in slot.ranks for slot in slots if len(slot.ranks) < self.workers):
            stall.strikes = 0
            return
        stall.strikes += 1
        if stall.strikes >= 2:
            seconds = (time.monotonic_ns() - stall.since_ns) / 1e9
            arrived = any(self.rank in slot.ranks for slot in slots)
            what = "packets are lost between" if arrived else "no packet gets through between"
            self._failed(
                f"{what} this rank at {_text(self._address)} and the switch at {_text(self._data)} (UDP), for "
                f"{seconds:.0f} s, though its control plane answers; look for a firewall that drops UDP "
                f"{self._data[1]}, or an MTU below {self._packet_bytes}, which {self.job.elements} elements per packet "
                "need (SWITCHAGG_ELEMENTS)"
            )

    def _on_stream_failed(self, event: StreamFailed) -> None:
        """Ask the switch which ranks are missing, unless another rank makes another call (W12); the loop, whose thread
        calls this, fails by itself if no answer comes (W9)."""
        if event.rank is not None:
            self._failed(event.reason, tuple(sorted((event.rank, self.rank))), event)
            return
        waited = f"no result in {event.timeouts} timeouts in a row"
        self._client.query(self.name).add_done_callback(partial(self._name_missing, waited, event))

    def _name_missing(
        self, waited: str, event: StreamFailed | None, answer: "Future[control_messages.StatusAnswer]"
    ) -> None:
        """Fail with the ranks that the switch lacks: in the event's chunk, or else in the one that lacks the fewest."""
        if (slots := self._slots(answer)) is None:
            return
        if event is None:
            candidates = [slot.ranks for slot in slots if self.rank in slot.ranks and len(slot.ranks) < self.workers]
        else:
            place = (event.slot, event.version, event.chunk % MODULUS)
            candidates = [slot.ranks for slot in slots if (slot.slot, slot.version, slot.chunk) == place]
        seen = max(candidates, key=len, default=[])
        missing = tuple(rank for rank in range(self.workers) if rank not in seen)
        if event is None and not candidates:  # none of its sums waits there: it has moved on, or is late itself
            detail, missing = waited, ()
        elif not missing:
            detail = f"{waited}: the switch at {_text(self._data)} has it, but it does not arrive here"
        elif self.rank in missing:
            detail = f"{waited}: own packets do not arrive at the switch at {_text(self._data)}"
        else:
            detail = f"{waited}; missing at the switch: {', '.join(str(self._places[rank]) for rank in missing)}"
        self._failed(detail, missing, event)

    def _slots(self, answer: "Future[control_messages.StatusAnswer]") -> list[control_messages.SlotStatus] | None:
        """This job's slots in an answer; None if there was none."""
        jobs = answer.result().jobs if answer.exception() is None else []
        return next((job.slots for job in jobs if job.generation == self.job.generation), None)


def _chosen_core(options: JoinOptions) -> str:
    """ "native" or "python"; raises JobError for a core that can't be had here."""
    if options.core == "python" or options.partial or options.kind.cores == ("python",):
        return "python"
    reason = library.missing() or missing(options.codec_spec.row_codec or FIXED_POINT)
    if not reason:
        return "native"
    if options.core == "native":
        raise JobError(f"core 'native': {reason}")
    if os.environ.get("SWITCHAGG_NATIVE") != "0":
        _warn(reason)
    return "python"


@lru_cache
def _warn(reason: str) -> None:
    """Warn once for each reason."""
    warnings.warn(f"the Python core carries the packets, which costs about ten times the CPU: {reason}", stacklevel=5)


def _text(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"
