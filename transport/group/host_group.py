"""HostGroup: a party (a collective's, a parameter server's worker) on a mesh, in a thread: a group in real time."""

import atexit
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from switchagg.calls.call_request import CallRequest
from switchagg.calls.round_calls import Ended, RoundCoding, RoundKeys
from switchagg.codecs.compression import Compression
from switchagg.codecs.spec import CodecSpec
from switchagg.description import COMBINING
from switchagg.errors import AggregationFailed
from switchagg.native.native_codec import begin_in_c
from switchagg.native.native_exact import in_c
from transport.bounded.group_party import BoundedGroupParty
from transport.collectives.auto import AutoParty
from transport.collectives.collective_party import CollectiveParty
from transport.contracts.group_contract import Array, Group, Matching
from transport.group.coded_sums import CodedSums
from transport.group.staging import Staged, checked, ops_of
from transport.meshes.mesh import Mesh, Party
from transport.meshes.mesh_loop import CREDIT_BYTES, MeshLoop
from transport.worker.codec_thread import ended_future
from transport.worker.exit_reason import exit_reason, listen

logger = logging.getLogger(__name__)


class GroupParty(Party, Protocol):
    """A Party that makes calls: of a collective, or a worker of a parameter server."""

    @property
    def failure(self) -> AggregationFailed | None: ...

    def events(self) -> Sequence[Any]:
        """Calls that have ended since the last `events`: (call, failure or None)."""

    def give_up(self, reason: str) -> None:
        """Fail all calls, if there are any, for this reason, naming whom the one waits for that has waited longest."""


class Submit(Protocol):
    """How a party begins a call of this array; it returns the call that `events` names."""

    def __call__(self, request: CallRequest, array: Array, *, now_ns: int) -> Any: ...


class HostGroup(Group):
    """A group whose ranks talk to each other, or to servers. Made by `open_group`; `close` it.

    mesh, party: the group's from now on. submit: how the party begins a call. Doesn't survive a fork: in a child every
    method but `close` raises SwitchaggError.
    """

    matching: Matching = "key"
    core = "python"
    link = ""

    def __init__(
        self,
        mesh: Mesh,
        party: GroupParty,
        submit: Submit,
        *,
        workers: int,
        method: str,
        job: str,
        credit_bytes: int | None = CREDIT_BYTES,
    ) -> None:
        self.rank, self.workers, self.method, self.link, self.job = mesh.member, workers, method, mesh.link, job
        super().__init__()
        self._mesh, self._party, self._submit = mesh, party, submit
        self._pending: dict[int, tuple[Any, Ended]] = {}  # by the call's id; only the loop's thread uses it
        self._closed = False
        self._coding = threading.Lock()  # around what begins a coded call
        self._coded: CodedSums | None = None
        self.compression = None
        self._loop = MeshLoop(
            mesh, party, job=job, on_iteration=self._finish, on_end=self._end, credit_bytes=credit_bytes
        )
        atexit.register(self.close)
        listen()

    def submit(self, request: CallRequest, array: Array) -> "Future[Any]":
        """See `Group`."""
        self._require_process()
        result = request.result_of(array, self.rank, self.workers)
        request, staged = self._staged(request, array)
        if self._coded is not None:
            with self._coding:
                if (coded := self._coded.staged(request, array)) is not None:
                    return self._coded.sum(request, coded, result)
        return self._begin(request, staged, result)

    @property
    def counters(self) -> Mapping[str, int]:
        """The mesh's."""
        return self._mesh.counters

    @property
    def failure(self) -> BaseException | None:
        """See `Group`."""
        return self._party.failure or self._loop.failure

    def use_codec(self, spec: CodecSpec, elements: int, seed: int = 0) -> None:
        """Code sums of floats from now on; all ranks, before their first call. elements: as of `CodedSums`. seed:
        of random numbers."""
        compression = Compression(in_c(spec), self.rank, self.workers, seed)
        if self.rank == 0 and spec.warning:
            logger.warning("%s", spec.warning)
        coding = RoundCoding(compression, RoundKeys(self.rank, seed), elements, begin_in_c)
        self._coded = CodedSums(self._plain, self._abandon, coding)
        self.compression = compression if spec.lossy or compression.stepwise else None
        self.means = COMBINING if compression.spec.divides else ()
        self.row = elements if spec.row_codec is not None else 1

    def set_credit(self, credit_bytes: int | None) -> None:
        """See `Group`."""
        self._loop.set_credit(credit_bytes)

    def give_up(self, reason: str) -> None:
        """See `Group`."""
        self._loop.submit(lambda now_ns: self._party.give_up(reason), lambda failure: None)

    def status(self) -> Mapping[str, Any]:
        """Settings of the mesh, such as the congestion control."""
        return dict(self._mesh.details)

    def close(self) -> None:
        """See `Group`."""
        if os.getpid() != self._pid or self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        if words := exit_reason():
            self._tell(f"rank {self.rank} left with {words}").wait(1.0)
        self._loop.close()
        if self._coded is not None:
            self._coded.close()

    # Private methods

    def _staged(self, request: CallRequest, array: Array) -> tuple[CallRequest, Staged]:
        """The request to the party and its array. Raises ValueError for what this method can't do."""
        ops = ops_of(request.kind, array.dtype, self.means)
        return checked(request, array, self.workers, ops), Staged(array, request.op, None)

    def _tell(self, failure: str) -> threading.Event:
        """End the job on all ranks for this reason; set once that is on its way."""
        party, announced = self._party, threading.Event()

        def tell(now_ns: int) -> None:
            if isinstance(party, CollectiveParty | AutoParty | BoundedGroupParty):
                party.fail(failure, (self.rank,))
            announced.set()

        self._loop.submit(tell, lambda reason: announced.set())
        return announced

    def _abandon(self, reason: str) -> None:
        """This rank's codec has failed: the others wait for it in vain."""
        self._tell(f"rank {self.rank}: {reason}")

    def _plain(self, request: CallRequest, array: Array) -> "Future[Any]":
        """Begin a call, whatever the codec is."""
        request, staged = self._staged(request, array)
        return self._begin(request, staged, array)

    def _begin(self, request: CallRequest, staged: Staged, result: object) -> "Future[Any]":
        """Begin a call that has been checked, as it is."""
        if staged.op != request.op:
            request = request._replace(op=staged.op)
        future, ended = ended_future(result, staged.restore)

        def order(now_ns: int) -> None:
            try:
                call = self._submit(request, staged.wire, now_ns=now_ns)
            except BaseException as error:
                ended(error)
                if isinstance(error, ValueError):
                    return
                raise  # such as no memory: what was begun isn't known, so it ends the loop
            self._pending[id(call)] = call, ended

        self._loop.submit(order, ended)
        return future

    def _finish(self) -> None:
        """Resolve the futures of calls that have ended; the loop's thread does it."""
        for call, failure in self._party.events():
            self._pending.pop(id(call))[1](failure)

    def _end(self, failure: BaseException) -> None:
        self._finish()
        pending, self._pending = self._pending, {}
        for _, ended in pending.values():
            ended(failure)
