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
import logging
import os
import secrets
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

from switchagg.calls.call_request import CallRequest
from switchagg.calls.chunked_call import ArrayCall
from switchagg.calls.member_calls import CallLedger, CallPlace, StreamTurns
from switchagg.codecs import FIXED_POINT, Array
from switchagg.codecs.array_codec import Tensors
from switchagg.description import CallSignature
from switchagg.errors import AggregationFailed, JobError
from switchagg.job import JobConfig
from switchagg.join import Join, MemberOptions
from switchagg.native import library
from switchagg.native.native_codec import missing
from switchagg.option_syntax.option_fields import shared_fields
from switchagg.priority import class_of
from transport.contracts.group_contract import Matching
from transport.control import control_messages
from transport.links.addresses import facing, parse_endpoint, resolve_host
from transport.links.hop_tags import TAG_BYTES, HopKeys
from transport.meshes.job_key import mask_key, sum_key
from transport.worker.call_future import all_of
from transport.worker.exit_reason import exit_reason, listen
from transport.worker.join_options import JoinOptions
from transport.worker.path_diagnosis import PathDiagnosis
from transport.worker.session_calls import Entered, SessionCalls
from transport.worker.session_membership import Lost, SessionMembership
from transport.worker.worker_endpoints import Admission, WorkerEndpoint
from transport.worker.worker_loop import ENDED, CallLoop, UnfinishedCall
from transport.zeromq.keys import as_keys

logger = logging.getLogger(__name__)


class Stay(NamedTuple):
    """What a session shares with a job that outlives its stay at the switch. on_finish(place, call): under the calls'
    lock, before a call's caller gets its array."""

    calls: SessionCalls
    on_failure: Lost
    on_finish: Callable[[CallPlace, ArrayCall], None]


class SwitchSession:
    """A rank's membership of a running job. Made by `join`; `close` it, or use it in a `with` statement.

    An `AllreduceGroup`. name: the job's. job: what the switch gave it. rank, workers: this member's place. core:
    "native" or "python", of its packets. classes: of its streams. authenticated: whether packets are, by tags (A1) or
    CURVE. Any thread may use it, but no forked child: there every method but `close` raises SwitchaggError.
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
        stay: "Stay | None" = None,
    ) -> None:
        """Private: see `join`."""
        self._pid = os.getpid()
        self.name, self.rank, self.workers, self.link = join.job, join.rank, join.workers, join.link
        self.core = chosen_core(options)
        self._slowness: Callable[[], str] = end.slowness
        self._loop: CallLoop | None = None
        self._diagnosis: PathDiagnosis | None = None
        lock, on_failure = (None, None) if stay is None else (stay.calls.lock, stay.on_failure)
        self._membership = membership = SessionMembership(
            switch, join, options, self._on_beat, lock=lock, on_failure=on_failure
        )
        self._stay = stay
        self._calls = (
            SessionCalls(join.rank, join.workers, options, self.carry, membership.fail, membership.lock)
            if stay is None
            else stay.calls
        )
        self.compression = self._calls.compression
        try:
            admitted = membership.admission(cancelled)
            if fault := admitted.fault(join):
                raise JobError(f"the switch at {switch} {fault}")
            self.job: JobConfig = admitted.config(retry_limit=options.retries)
            self.routed = admitted.routes
            if end.queue_pair and len(admitted.queue_pairs) != join.workers:
                raise JobError(f"the switch at {switch} has no {options.kind.label} queue pair for each rank")
            if options.authenticate == "on" and not (admitted.hop_keys or options.kind.keys):
                raise JobError(f"authenticate 'on': the switch at {switch} gave no keys for tags of packets (A2)")
            self.authenticated = bool(admitted.hop_keys) or (options.kind.keys and options.keys is not None)
            if admitted.narrowed and self.rank == 0:
                membership.warn(admitted.narrowed)
            if not self._calls.has_job:
                self._calls.take_job(self.job, routed=self.routed)
            if stay is None:
                membership.ledger = self._calls.of_job.ledger
            else:
                self.begin_at(())
            self.classes = StreamTurns([stream.priority for stream in self.job.streams]).classes
            switch_address = admitted.host or resolve_host(parse_endpoint(switch)[0]), admitted.port
            members = {place.rank: place for place in admitted.members}
            framing_bytes = options.kind.framing.packet_bytes + (TAG_BYTES if admitted.hop_keys else 0)
            diagnosis = PathDiagnosis(membership, self.job, members, join.address, switch_address, framing_bytes)
            facts = options.job_token, join.job, self.job.generation, admitted.nonces
            loop = self._open_loop(end, admitted, join.incarnation, diagnosis, sum_key(*facts) + mask_key(*facts))
        except BaseException as error:
            membership.give_up_joining(error)
            raise
        self._loop, self._diagnosis = loop, diagnosis
        membership.start(loop)
        if stay is None:
            atexit.register(self.close)
        listen()

    def _open_loop(
        self,
        end: WorkerEndpoint,
        admitted: control_messages.Admitted,
        secret: int,
        diagnosis: PathDiagnosis,
        key: bytes,
    ) -> CallLoop:
        """The loop that carries this rank's packets."""
        queue_pair = admitted.queue_pairs[self.rank] if end.queue_pair else None
        native, switch_address = self.core == "native", diagnosis.switch_address
        place = Admission(self.job, self.rank, switch_address, native, diagnosis, queue_pair, secret)
        hop_keys = HopKeys.read(admitted.hop_keys)
        return end.loop(replace(place, wire_rank=admitted.wire_rank, key=key, hop_keys=hop_keys))

    @classmethod
    def join(
        cls,
        switch: str,
        job: str,
        rank: int,
        workers: int,
        options: JoinOptions | None = None,
        cancelled: threading.Event | None = None,
        stay: "Stay | None" = None,
    ) -> "SwitchSession":
        """Join `job` as `rank` and wait, for at most the options' timeout_s, until all `workers` have.

        switch: "tcp://host:port" of its control plane. options: see JoinOptions. cancelled: when it is set, the wait
        ends. stay: of a job that outlives its stay at the switch.

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
            terms = options.resolved_terms(job, workers)
            join = Join(
                job=job,
                workers=workers,
                rank=rank,
                address=end.address,
                incarnation=secrets.randbits(63),
                timeout_ns=round(options.timeout_s * 1e9),
                queue_pair=end.queue_pair,
                packets_held=end.packets_held,
                nonce=secrets.randbits(63),
                **shared_fields(options, MemberOptions),
                **vars(terms),
            )
            return cls(end, join, switch, options, cancelled, stay)
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
        tensors: Tensors | None = None,
    ) -> "Future[Any]":
        """Combine `array` over all ranks, in place; the future resolves to the array, or to AggregationFailed.

        array: 1-D, C-contiguous, writable; float32, float64, int32, int64 for op "sum", int32 for "max", and of partial
        sums floats for "avg", the mean of the ranks in each chunk (Q6); it belongs to the session until the future is
        done. priority: a class that one of the streams has; default: the least urgent of them. The streams of a class
        take turns; stream: that one instead. Every rank must make the same calls of a class in the same order; calls of
        different classes may come in any. key: names the array for codecs that remember parameters, if tensors don't.
        tensors: see `AllreduceGroup`. Ranks whose calls differ all fail, with an error that names both
        (W12). Futures resolve in the loop's thread, or in one that waits for them: what is chained to one must be
        quick. Raises ValueError for an array, stream or priority that can't be.
        """
        signature, lane = CallSignature("allreduce", op, array.dtype, array.size), self._lane(priority, stream)
        request = CallRequest("allreduce", op, key, lane, signature=signature, tensors=tensors, stream=stream)
        return self.call(array, request)

    def call(self, array: Array, request: CallRequest) -> "Future[Any]":
        """Any collective of a class that the job has. array: what travels. request: with the signature that the ranks
        compare; its op is that of the switch, or "avg" of partial sums."""
        self._membership.check_process()
        return self._calls.call(array, request)

    def carry(self, entered: Entered, request: CallRequest, array: Array) -> "Future[Any]":
        """See `CallCarrier`."""
        loop, membership = self._loop, self._membership
        assert loop is not None
        if entered[0][1].shares.routed != self.routed:  # it was laid out for another switch
            entered = [
                (place, replace(call, shares=call.shares._replace(routed=self.routed))) for place, call in entered
            ]
        if membership.departed:  # before packets leave: the sums of who has left may be complete with them
            membership.check_departures()
        if self._stay is not None:
            for place, _ in entered:
                membership.ledger.note(place)
        futures = [loop.submit(place[0], call, array, partial(self._finished, place, call)) for place, call in entered]
        return futures[0] if len(futures) == 1 else all_of(futures, array)

    @property
    def lease_s(self) -> float:
        """The switch's: how long a member may be silent."""
        return self._membership.lease_ns / 1e9

    @property
    def is_outlived(self) -> bool:
        """Whether the job goes on after the failure of this stay."""
        return self._membership.is_outlived

    def fail(self, reason: str) -> None:
        """End the job, here and on the other ranks, for this reason."""
        self._membership.fail(reason)

    def fail_calls(self, failure: AggregationFailed) -> None:
        """Fail all pending and later calls of a stay that has ended."""
        assert self._loop is not None
        self._loop.fail(failure)

    def begin_at(self, first: Sequence[int]) -> None:
        """The numbers, by stream, of the first calls that a stay carries; under the calls' lock."""
        self._membership.ledger = CallLedger([stream.priority for stream in self.job.streams], first)

    def stop(self, failure: AggregationFailed) -> list[UnfinishedCall]:
        """End this stay at the switch, and leave calls that aren't finished to others; none fails."""
        self._membership.close()
        assert self._loop is not None
        unfinished = self._loop.stop(failure)
        self._membership.leave(str(failure), 0.0)
        return unfinished

    def finished_without(self, sizes: Sequence[int]) -> bool:
        """Whether the others have finished our next calls without us, means of so many float32, and all results are
        here: those calls end at once, whatever our arrays hold. False while a call is in progress, and without partial
        sums."""
        loop = self._loop
        with self._membership.lock:
            calls = self._calls.of_job
            if loop is None or not self.job.partial or calls.ledger:
                return False
            return calls.finished_without(loop.has_early, sizes)

    def status(self) -> dict[str, Any]:
        """The switch's report of itself and its jobs, with this job's slots (`seen`); JobError after 5 s."""
        return self._membership.status()

    @property
    def counters(self) -> dict[str, int]:
        """Packets of this rank, by their fate."""
        assert self._loop is not None
        return self._loop.counters

    @property
    def failure(self) -> AggregationFailed | None:
        """Why the session works no more; None while it does."""
        return self._membership.failure

    @property
    def asked_to_leave(self) -> str:
        """Why the switch asks the job to go on without it, or "" (C21)."""
        return self._membership.client.asked_to_leave

    def give_up(self, reason: str) -> None:
        """See `Group`: the switch is asked for those who are missing."""
        if self._membership.ledger and self._diagnosis is not None:
            self._diagnosis.name_missing(reason)

    def set_credit(self, credit_bytes: int | None) -> None:
        """Nothing: a stream's window bounds what is in flight (`AllreduceGroup`)."""

    def close(self) -> None:
        """Leave the job, fail what is pending, end the threads. Again, or in a forked child, it does nothing."""
        if os.getpid() != self._pid:
            return
        if not self._membership.close():
            return
        if self._stay is None:
            self._calls.close()
        atexit.unregister(self.close)
        assert self._loop is not None
        self._loop.fail(AggregationFailed("the session was closed", job=self.name, generation=self.job.generation))
        try:
            self._loop.close()
        finally:
            # Only now has every finished call been counted: its caller may have come here before `_finished` ran.
            self._membership.leave(exit_reason())

    def __enter__(self) -> "SwitchSession":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lane(self, priority: int | None, stream: int | None) -> int:
        """The class of a call; of one that can't be, which is refused elsewhere, any. None: the least urgent one."""
        if stream is not None and 0 <= stream < len(self.job.streams):
            return class_of(self.job.streams[stream].priority)
        return self.classes[-1] if priority is None else priority

    def _finished(self, place: CallPlace, call: ArrayCall) -> None:
        """Note a call's result. A failed call stays pending: it never finishes, and `leave` must report that."""
        with self._membership.lock:
            self._membership.ledger.finish(place)
            if self._stay is not None:
                self._stay.on_finish(place, call)

    def _on_beat(self) -> dict[str, int]:
        """Look after the loop, and give its counters; the control thread calls it."""
        loop, diagnosis, membership = self._loop, self._diagnosis, self._membership
        if loop is None or diagnosis is None:
            return {}
        if loop.failure is not None:
            membership.fail(f"{ENDED}: {loop.failure}")
            return {}
        membership.check_departures()
        diagnosis.watch(counters := loop.counters)
        if slowness := self._slowness():
            self._slowness = str  # reported once
            membership.warn(slowness)
        return counters


def chosen_core(options: JoinOptions) -> str:
    """ "native" or "python"; raises JobError for a core that can't be had here."""
    if options.core == "python":
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
