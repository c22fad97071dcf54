"""TorchGroup: a process group of torch.distributed as an `AllreduceGroup`, its calls matched by their order."""

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, cast

import torch
import torch.distributed as dist

from switchagg.calls.call_request import CallRequest
from switchagg.codecs.array_codec import Tensors
from switchagg.codecs.compression import Compression
from switchagg.errors import AggregationFailed
from transport.contracts.group_contract import Array, Matching
from transport.group.staging import checked

_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "avg": dist.ReduceOp.AVG}


class TorchGroup:
    """group: None for torch's default. It stays the caller's; `close` ends only the adapter's threads.

    A thread of the adapter makes the calls and waits for them, in order, since Works of different backends report their
    end differently; callers only hand calls over. Raises ValueError where there is no group, or one that can't (NCCL:
    its tensors are on devices).
    """

    matching: Matching = "order"
    classes = ()
    core, link = "torch", ""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = cast(Any, group or dist.group.WORLD)
        if self._group is None:
            raise ValueError("no group was given and torch.distributed has none; init_process_group comes first")
        self.method = str(self._group.name())
        if self.method == "nccl":
            raise ValueError("NCCL can't sum in host memory; give a Gloo group: dist.new_group(backend='gloo')")
        self.rank, self.workers = self._group.rank(), self._group.size()
        self.failure: AggregationFailed | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._pending: set[Future[Any]] = set()
        self._calls: SimpleQueue[tuple[CallRequest, Array, Future[Any]] | None] = SimpleQueue()
        self._works: SimpleQueue[tuple[Any, Array, Future[Any]] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=target, name=f"priority-{name}", daemon=True)
            for name, target in (("starts", self._start_all), ("waits", self._wait_all))
        ]
        for thread in self._threads:
            thread.start()

    def allreduce(
        self,
        array: Array,
        op: str = "sum",
        *,
        key: int | None = None,
        priority: int = 0,
        tensors: Tensors | None = None,
    ) -> "Future[Any]":
        """See `AllreduceGroup`. key and priority aren't read."""
        request = checked(CallRequest("allreduce", op, key, priority, tensors=tensors), array, self.workers, _OPS)
        future: Future[Any] = Future()
        with self._lock:
            closed = self._closed
            self._pending.add(future)
        if closed:
            self._fail(RuntimeError("the group was closed"), future)
        else:
            self._calls.put((request, array, future))
        return future

    @property
    def compression(self) -> Compression | None:
        """The compression of a group of backend "switchagg"; None of others."""
        return cast("Compression | None", getattr(self._group, "compression", None))

    @property
    def counters(self) -> Mapping[str, int]:
        """There are no counters."""
        return {}

    def set_credit(self, credit_bytes: int | None) -> None:
        """Does nothing: the caller has to bound the calls in flight."""

    def status(self) -> Mapping[str, Any]:
        """Nothing is known."""
        return {}

    def close(self) -> None:
        """See `AllreduceGroup`. A thread that waits for a dead rank ends with the process group's own timeout."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            pending = list(self._pending)
        self._calls.put(None)
        for future in pending:
            self._fail(RuntimeError("the group was closed"), future)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(1.0)

    def _start_all(self) -> None:
        while (call := self._calls.get()) is not None:
            request, array, future = call
            if self._closed:  # and failed
                continue
            try:
                work = self._begin(request, torch.from_numpy(array))
            except Exception as error:
                self._fail(error, future)
                continue
            self._works.put((work, array, future))
        self._works.put(None)

    def _begin(self, request: CallRequest, array: torch.Tensor) -> Any:
        if request.tensors is not None and self.compression is not None:
            return self._group.allreduce_tensors(array, request.tensors, _OPS[request.op])
        options = dist.AllreduceOptions()
        options.reduceOp = _OPS[request.op]  # type: ignore[assignment]  # stub: ReduceOp, but its values are RedOpType
        return self._group.allreduce([array], options)

    def _wait_all(self) -> None:
        while (item := self._works.get()) is not None:
            work, array, future = item
            try:
                work.wait()
            except Exception as error:
                self._fail(error, future)
            else:
                if self._end_pending(future):
                    future.set_result(array)

    def _end_pending(self, future: "Future[Any]") -> bool:
        """Whether the future was still pending; it is no longer."""
        with self._lock:
            pending = future in self._pending
            self._pending.discard(future)
        return pending

    def _fail(self, error: Exception, future: "Future[Any]") -> None:
        if self.failure is None:
            what = f"{self.method}, rank {self.rank} of {self.workers}: {error}"
            self.failure = AggregationFailed(what, job=self.method)
            self.failure.__cause__ = error
        if self._end_pending(future):
            future.set_exception(self.failure)
