"""EarlyResults: results that a rank which is behind has of calls that it hasn't begun, with partial sums (Q7)."""

import copy
from collections.abc import Sequence

import numpy as np

from switchagg.call import array_call, chunked_call
from switchagg.codecs import FIXED_POINT, Codec
from switchagg.endpoint import Endpoint
from switchagg.job import JobConfig
from switchagg.partial_endpoint import PartialEndpoint
from switchagg.priority import StreamTurns


class EarlyResults:
    """The early results of one rank. codec: of sums of `least` values or more; shorter sums are in fixed point."""

    def __init__(self, job: JobConfig, codec: Codec, least: int) -> None:
        self._job, self._codec, self._least = job, codec, least
        self._chunks_of: dict[int, int] = {}

    def are_there(self, endpoint: Endpoint, turns: StreamTurns, sizes: Sequence[int]) -> bool:
        """Whether an endpoint that has no call in progress has all results of the next calls, means of so many float32,
        best effort. turns: those that the calls will take."""
        if not isinstance(endpoint, PartialEndpoint):
            return False
        ends, turns = [0] * len(self._job.streams), copy.deepcopy(turns)
        for size in sizes:
            ends[turns.take()] += self._chunks(size)
        return all(endpoint.has_early(stream, chunks) for stream, chunks in enumerate(ends))

    def _chunks(self, size: int) -> int:
        if size not in self._chunks_of:
            codec = self._codec if size >= self._least else FIXED_POINT
            call = array_call(np.zeros(size, np.float32), "avg", self._job, codec)
            self._chunks_of[size] = chunked_call(call, self._job).chunks
        return self._chunks_of[size]
