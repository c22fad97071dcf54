"""SessionCalls: a member's calls above what carries them: codec, layout, numbers, streams. They last as long as the
job, whatever path carries its calls, so that the bits never depend on the path."""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from switchagg.calls.call_request import CallRequest
from switchagg.calls.chunked_call import ArrayCall
from switchagg.calls.member_calls import CallPlace, LaidOutCall, MemberCalls
from switchagg.calls.round_calls import Ended
from switchagg.codecs import Array
from switchagg.codecs.array_codec import Reduction
from switchagg.codecs.compression import Compression
from switchagg.job import JobConfig
from switchagg.native.native_exact import in_c
from transport.worker.codec_thread import ended_future, pass_on
from transport.worker.coded_calls import CodedSessionCalls
from transport.worker.join_options import JoinOptions

logger = logging.getLogger(__name__)

Entered = Sequence[tuple[CallPlace, ArrayCall]]
"""A call, or its parts, with their places."""


class CallCarrier(Protocol):
    """How entered calls travel."""

    def __call__(self, entered: Entered, request: CallRequest, array: Array) -> "Future[Any]":
        """Begin a call, under the lock of the `SessionCalls`; its future resolves to the array."""


class SessionCalls:
    """The calls of one member of a job. `take_job` comes once, before the first call. Any thread may use it.

    carry: what begins calls. fail: ends the job on all ranks, for the reason given. lock: guards the ledger, and is
    held around what must be in order of number.
    """

    def __init__(
        self,
        rank: int,
        workers: int,
        options: JoinOptions,
        carry: CallCarrier,
        fail: Callable[[str], None],
        lock: "threading.RLock | None" = None,
    ) -> None:
        spec, seed = options.codec_spec.for_workers(workers), options.codec_seed
        compression = Compression(in_c(spec), rank, workers, seed)
        self.lock = lock or threading.RLock()
        self.compression = compression if spec.lossy or compression.stepwise else None
        self._carry = carry
        how: dict[str, Any] = {"split_calls": bool(options.split_calls), "windows": options.windows}
        self._open_calls = partial(MemberCalls, rank=rank, sums=spec, codec_seed=seed, **how)
        self._coded: CodedSessionCalls | None = None
        if compression.remembers or compression.stepwise:
            self._coded = CodedSessionCalls(self._submit, compression, fail)
        if rank == 0 and options.codec_spec.warning:
            logger.warning("%s", options.codec_spec.warning)
        self._calls: MemberCalls | None = None
        self._held: list[tuple[LaidOutCall, Array, Ended]] | None = None

    def take_job(self, job: JobConfig, *, routed: bool) -> None:
        """The generation by which calls are laid out, also those of later ones, whose terms are the same."""
        self._calls = self._open_calls(job=job, routed=routed)

    @property
    def has_job(self) -> bool:
        """Whether there is a job."""
        return self._calls is not None

    @property
    def of_job(self) -> MemberCalls:
        """Numbers and layout; once there is a job."""
        assert self._calls is not None
        return self._calls

    def call(self, array: Array, request: CallRequest) -> "Future[Any]":
        """Any collective of a class that the job has. array: what travels. request: with the signature that the ranks
        compare; its op is that of the switch, or "avg" of partial sums."""
        if self._coded is None:
            return self._submit(array, request)
        return self._coded.begin(array, request)

    def hold(self) -> None:
        """From now on calls get no number, and wait for `release`; under the lock."""
        if self._held is None:
            self._held = []

    @property
    def holds(self) -> bool:
        """Whether new calls wait."""
        return self._held is not None

    def release(self) -> None:
        """Begin what was held, in order; under the lock."""
        held, self._held = self._held or [], None
        for laid_out, array, ended in held:
            try:
                self._enter(laid_out, array).add_done_callback(partial(pass_on, ended))
            except BaseException as error:
                ended(error)

    def close(self) -> None:
        """Run no more steps of codecs; calls in progress end with what carries them."""
        if self._coded is not None:
            self._coded.close()

    def _submit(self, array: Array, request: CallRequest, coding: Reduction | None = None) -> "Future[Any]":
        """Begin a call. coding: the step of a codec that it is; None: sums are coded as those of their size are."""
        laid_out = self.of_job.lay_out(array, request, coding)
        with self.lock:  # also around what begins it: on a stream, numbers must be in order
            if self._held is None:
                return self._enter(laid_out, array)
            future, ended = ended_future(array)
            self._held.append((laid_out, array, ended))
            return future

    def _enter(self, laid_out: LaidOutCall, array: Array) -> "Future[Any]":
        return self._carry(self.of_job.enter(laid_out), laid_out.request, array)
