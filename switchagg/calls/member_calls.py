"""MemberCalls: what a member of a job does with a call before its endpoint sees it: codec, split, number, description.

A session and a host in virtual time both use it, so that they lay out, number and round the same calls alike. Pure.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from switchagg.calls.array_calls import array_call, chunked_call, split
from switchagg.calls.call_ledger import CallLedger, CallPlace
from switchagg.calls.call_request import CallRequest
from switchagg.codecs import FIXED_POINT, Array
from switchagg.codecs.array_codec import Reduction
from switchagg.codecs.rounding import call_key
from switchagg.codecs.spec import CodecSpec
from switchagg.description import DESCRIBED_WORKERS_MOST, Words
from switchagg.job import JobConfig
from switchagg.layout import EVERYONE, shares_of


class LaidOutCall(NamedTuple):
    """A call that has no number yet."""

    request: CallRequest
    parts: Sequence[Any]
    """What the endpoint takes: the call, or a part for each of `streams`."""
    streams: Sequence[int]
    """The streams of a call that is split over several (W11); else empty."""


class MemberCalls:
    """The calls of one member. `lay_out` may run in any thread, the other methods in one at a time.

    job: the generation in progress; a new one may take its place between calls. sums: how sums of floats are coded.
    codec_seed: of random rounding (F10). split_calls: whether a long call is spread over the streams of its class.
    routed: whether the switch and the link know routes (W15). chunked: whether the endpoint asks for a call's chunks
    (`Call`) instead of laying it out itself.
    """

    def __init__(
        self,
        job: JobConfig,
        rank: int,
        sums: CodecSpec,
        codec_seed: int = 0,
        *,
        split_calls: bool = False,
        routed: bool = True,
        chunked: bool = True,
    ) -> None:
        """Raises ValueError for more workers than the codec sums."""
        self.job = job
        self.ledger = CallLedger([stream.priority for stream in job.streams])
        spec = sums.for_workers(job.workers)
        self._rank, self._codec_seed, self._split_calls = rank, codec_seed, split_calls
        self._codec = spec.row_codec or FIXED_POINT
        self._least = spec.least if self._codec.lossy else 0
        self.routed, self.chunked = routed, chunked
        self._early_chunks: dict[int, int] = {}  # by the size of a mean

    def lay_out(self, array: Array, request: CallRequest, coding: Reduction | None = None) -> LaidOutCall:
        """Decide how a call travels. array: what is sent. coding: the reduction of a codec that the call carries out;
        None: sums are coded as those of their size are. Raises ValueError for what no switch can do (`array_call`)."""
        job, shares = self.job, shares_of(request.kind, request.root, request.unit)
        if coding is None:
            codec, residual = self._codec if array.size >= self._least else FIXED_POINT, None
        else:
            codec, residual = coding.codec or FIXED_POINT, coding.residual
        if not array.size and not self._described:  # nothing else would say that this rank is there
            # Q8: a partial sum wouldn't wait for all
            array, shares = np.zeros(1, np.int32), shares_of("broadcast") if job.partial else EVERYONE
        call = array_call(array, request.op, job, codec, shares._replace(routed=self.routed), residual)
        cut = {}
        if self._split_calls and request.stream is None:
            cut = split(call, job, self.ledger.turns.streams_of(request.priority))
        parts = [replace(call, shares=part_shares) for part_shares in cut.values()] or [call]
        return LaidOutCall(request, [chunked_call(part, job) for part in parts] if self.chunked else parts, tuple(cut))

    def enter(self, call: LaidOutCall) -> list[tuple[CallPlace, Any]]:
        """Give a call the next number of its stream, or its parts theirs: (place, what the endpoint takes), described
        (W12). Raises ValueError for a class or stream there isn't."""
        request, parts, streams = call
        places = self.ledger.begin(request.priority, request.stream, streams)
        words: Words | None = None
        if self._described and request.signature is not None:
            words = request.signature.words(self.ledger.calls_before(places))
        for place, part in zip(places, parts, strict=True):
            part.description = words
            part.key = call_key(self._codec_seed, self._rank, *place)
        return list(zip(places, parts, strict=True))

    def finished_without(self, has_early: Callable[[int, int], bool], sizes: Sequence[int]) -> bool:
        """Whether all results of the next calls, means of so many float32, are there; no call is in progress (Q7).

        has_early: of the endpoint, by stream and number of chunks.
        """
        ends, turns = [0] * len(self.job.streams), copy.deepcopy(self.ledger.turns)
        for size in sizes:
            ends[turns.take()] += self._mean_chunks(size)
        return all(has_early(stream, chunks) for stream, chunks in enumerate(ends))

    @property
    def _described(self) -> bool:
        return self.job.workers <= DESCRIBED_WORKERS_MOST and not self.job.partial

    def _mean_chunks(self, size: int) -> int:
        if size not in self._early_chunks:
            codec = self._codec if size >= self._least else FIXED_POINT
            call = array_call(np.zeros(size, np.float32), "avg", self.job, codec)
            self._early_chunks[size] = chunked_call(call, self.job).chunks
        return self._early_chunks[size]
