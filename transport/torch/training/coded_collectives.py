"""Sums over a process group through a codec of ours: its integers and bytes travel, so any backend can do it.

All collectives are made by the thread that trains, in the order of its program: a codec's first collectives, which
depend on each other, are waited for at once; the last one travels meanwhile. Where the process group has a codec
itself, the group's threads do all of this.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from switchagg.calls.array_calls import rounds_of
from switchagg.codecs.array_codec import ArrayCodec, Reduction, Tensors
from switchagg.codecs.codec import Array
from switchagg.codecs.compression import Compression
from switchagg.codecs.rounding import call_key
from switchagg.codecs.spec import CodecSpec
from switchagg.description import shard_range
from switchagg.job import ELEMENTS_MTU_1500
from switchagg.native.native_exact import in_c
from transport.torch.calls.tensor_layout import array_dtype

logger = logging.getLogger(__name__)

_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


class CodedCollectives:
    """A rank's coded sums. group: any of torch.distributed; all ranks start the same sums in the same order."""

    def __init__(self, spec: CodecSpec, group: Any) -> None:
        """Raises ValueError for more ranks than the codec sums."""
        self.group, self.rank, self.workers = group, int(group.rank()), int(group.size())
        self.compression = Compression(in_c(spec), self.rank, self.workers)
        if self.rank == 0 and spec.warning:
            logger.warning("%s", spec.warning)
        codec = self.compression.spec.codec
        self.rounds = codec.rounds if isinstance(codec, ArrayCodec) else 1 + codec.rounds
        self.reduced: Callable[[Reduction], None] = lambda reduction: None  # called with each collective of the codec
        self._sums = 0

    def start(self, values: torch.Tensor, tensors: Tensors) -> Any:
        """The Work of the sum of `values`, 1-D, in place. tensors: the parameters in it; their last sum has ended."""
        if not self.compression.takes(array_dtype(values.dtype), len(values), named=True):
            return dist.all_reduce(values, group=self.group, async_op=True)
        self._sums += 1
        return CodedSum(self, values, tensors, self._sums)


class _Started(NamedTuple):
    work: Any
    finish: Callable[[], None]


class CodedSum:
    """A Work, as far as training methods need it. size_bytes: of the arrays that its collectives have summed so far; of
    those gathered half, since each value of them crosses a link at most once, not twice."""

    def __init__(self, calls: CodedCollectives, values: torch.Tensor, tensors: Tensors, number: int) -> None:
        self._calls, self._values, self._number = calls, values, number
        self._host = values if values.device.type == "cpu" else values.cpu()
        self._rounds = self._collectives(calls.compression.rounds(self._host.numpy(), tensors))
        self._started: _Started | None = None
        self.size_bytes = 0
        for _ in range(calls.rounds):
            self._go_on()

    def wait(self) -> None:
        """Wait until the values are the sums. It raises the group's errors."""
        while self._go_on():
            pass
        if self._host is not self._values:
            self._values.copy_(self._host)

    def _go_on(self) -> bool:
        """End the collective in progress, and begin the next one if there is one."""
        if self._started is not None:
            self._started.work.wait()
            self._started.finish()
        reduction = next(self._rounds, None)
        self._started = None if reduction is None else self._begin(reduction)
        return reduction is not None

    def _collectives(self, rounds: Iterator[Reduction]) -> Iterator[Reduction]:
        """The collectives of integers and bytes that the codec's rounds consist of."""
        calls = self._calls
        for reduction in rounds:
            calls.reduced(reduction)
            if reduction.codec is None or reduction.is_plain:
                yield reduction
                continue
            key = call_key(0, calls.rank, 0, self._number)
            words = rounds_of(
                reduction.array, ELEMENTS_MTU_1500, calls.workers, reduction.codec, key=key, residual=reduction.residual
            )
            yield from (Reduction(array, op) for array, op in words)

    def _begin(self, reduction: Reduction) -> _Started:
        group, workers = self._calls.group, self._calls.workers
        self.size_bytes += reduction.array.nbytes if reduction.kind == "allreduce" else reduction.array.nbytes // 2
        if reduction.kind == "allreduce":
            work = dist.all_reduce(torch.from_numpy(reduction.array), _OPS[reduction.op], group=group, async_op=True)
            return _Started(work, lambda: None)
        shards = [slice(*shard_range(len(reduction.array), rank, workers)) for rank in range(workers)]
        width = max(reduction.array[place].nbytes for place in shards)
        padded, gathered = np.zeros(width, np.uint8), np.zeros((workers, width), np.uint8)
        local = reduction.array[shards[self._calls.rank]].view(np.uint8)
        padded[: len(local)] = local

        def put() -> None:
            for place, row in zip(shards, gathered, strict=True):
                part: Array = reduction.array[place].view(np.uint8)
                part[:] = row[: len(part)]

        return _Started(
            dist.all_gather([*torch.from_numpy(gathered)], torch.from_numpy(padded), group, async_op=True), put
        )
