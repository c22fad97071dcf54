"""Gradients for servers that keep weights, coded: each slice by itself, since no two workers push at one time.

A message is a code of 32 bits for each row, then the rows' words, in the sender's byte order; a row is what a packet
of 360 elements would carry. The scale is the worker's own, so all of a lane's bits are one worker's. The server decodes
a gradient as soon as it is there, and applies it; weights come back as they are.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from switchagg.calls.chunked_call import row_of
from switchagg.codecs.codec import FLOAT32, Array, CallShape, Codec, Coding, lost
from switchagg.codecs.compression import check_state
from switchagg.codecs.rounding import call_key
from switchagg.codecs.spec import parse_codec
from switchagg.job import ELEMENTS_MTU_1500
from transport.meshes.mesh import Buffer
from transport.ps.sharding import ServerSlice


class PushCodec:
    """text: as `switchagg.codecs.spec` reads it. Raises ValueError for what can't code a worker's values alone."""

    def __init__(self, text: str) -> None:
        spec = parse_codec(text)
        codec = spec.for_workers(1).codec
        if not isinstance(codec, Codec) or FLOAT32 not in codec.dtypes or spec.warmup or spec.momentum:
            raise ValueError(
                f"codec {spec}: gradients for servers take codecs of rows, with +ef or without, and least=…"
            )
        if spec.feedback not in ("", "ef"):
            raise ValueError(f"codec {spec}: servers that keep weights keep no gradients, as +{spec.feedback} would")
        self.feeds_back = spec.feedback == "ef"
        self._codec, self._least = codec, spec.least
        self._words, self._width = row_of(FLOAT32, ELEMENTS_MTU_1500, codec)

    def takes(self, dtype: "np.dtype[np.generic]", tensor_elements: int) -> bool:
        """Whether gradients of such a tensor are coded."""
        return dtype == FLOAT32 and tensor_elements >= self._least

    def size_bytes(self, elements: int) -> int:
        """Size of a slice's message."""
        return 4 * -(-elements // self._width) * (self._words + (self._codec.rounds > 0))

    def encode(self, values: Array, residual: Array | None, key: int) -> Array:
        """A slice's message, int32. residual: is added, and is what the message doesn't hold then. key: of random
        rounding."""
        rows = -(-len(values) // self._width)
        padded = np.zeros((rows, self._width), np.float32)
        flat = padded.reshape(-1)[: len(values)]
        flat[:] = values if residual is None else values + residual
        coding, all_rows = self._begin(rows, key, residual is not None), slice(0, rows)
        codes = coding.prepare(padded, all_rows) if self._codec.rounds else np.empty(0, np.int32)
        if len(codes):
            coding.agree(0, codes)
        words = coding.encode(padded, all_rows)
        if residual is not None:
            residual[:] = lost(coding, padded, words, all_rows).reshape(-1)[: len(values)]
        return np.concatenate([codes, words.reshape(-1)])

    def decode(self, data: Buffer, elements: int) -> Array:
        """The gradient, float32, that a message of the right size holds."""
        rows = -(-elements // self._width)
        numbers = np.frombuffer(data, np.int32)
        coding, codes = self._begin(rows, 0, False), rows if self._codec.rounds else 0
        if codes:
            coding.agree(0, numbers[:codes])
        return coding.decode(numbers[codes:].reshape(rows, self._words), slice(0, rows)).reshape(-1)[:elements]

    def _begin(self, rows: int, key: int, nearest: bool) -> Coding:
        return self._codec.begin(CallShape(FLOAT32, rows, self._words, 1, key, nearest))


class CodedPushes:
    """How one worker's gradients travel, and what is kept of them by tensor, for `state_dict`. text: as PushCodec's."""

    def __init__(self, text: str, rank: int, workers: int) -> None:
        self._text, self._rank, self._workers = text, rank, workers
        self._codec = PushCodec(text)
        self._residuals: dict[int, Array] = {}
        self._pushed: dict[int, int] = {}  # how often

    def __str__(self) -> str:
        return self._text

    def code(self, key: int, gradient: Array, slices: Sequence[ServerSlice]) -> list[Buffer]:
        """The next push of a tensor: a message for each of its slices."""
        if not self._codec.takes(gradient.dtype, len(gradient)):
            return [gradient[part.low : part.high].data.cast("B") for part in slices]
        residual = None
        if self._codec.feeds_back:
            residual = self._residuals.setdefault(key, np.zeros(len(gradient), np.float32))
        before = self._pushed.get(key, 0)
        self._pushed[key] = before + 1
        messages: list[Buffer] = []
        for part in slices:
            lost = None if residual is None else residual[part.low : part.high]
            drawn = call_key(0, self._rank, key, before * len(slices) + part.number)
            messages.append(self._codec.encode(gradient[part.low : part.high], lost, drawn).data.cast("B"))
        return messages

    def forget(self, key: int) -> None:
        """A tensor begins anew."""
        self._residuals.pop(key, None)
        self._pushed.pop(key, None)

    def state_dict(self) -> dict[str, Any]:
        """As `Compression` has it, tensors named by their keys. No push may be under way."""
        return {
            "codec": self._text,
            "rank": self._rank,
            "workers": self._workers,
            "sums": {str(key): count for key, count in self._pushed.items()},
            "kept": {"residual": {str(key): part.copy() for key, part in self._residuals.items()}},
            "memory": {},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there. Raises ValueError for a state of another codec, or another place."""
        check_state(state, self._text, self._rank, self._workers)
        self._pushed = {int(key): count for key, count in state["sums"].items()}
        self._residuals = {int(key): np.array(part, np.float32) for key, part in state["kept"]["residual"].items()}
