"""Gradients for servers that keep weights, coded: each slice by itself, since no two workers push at one time.

What travels is a code of 32 bits for each row, then the rows' words, in the sender's byte order; a row is what a packet
of 360 elements would carry. Its scale is the worker's own, so all of a lane's bits are one worker's. The server decodes
a gradient as soon as it is there, and applies it; weights come back as they are.
"""

import numpy as np

from switchagg.call import row_of
from switchagg.codecs.codec import Array, CallShape, Codec, Coding, lost
from switchagg.codecs.spec import parse_codec
from switchagg.job import ELEMENTS_MTU_1500
from transport.meshes.mesh import Buffer

FLOAT32 = np.dtype(np.float32)


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
        """Of a slice's message."""
        return 4 * -(-elements // self._width) * (self._words + (self._codec.rounds > 0))

    def encode(self, values: Array, residual: Array | None, key: int) -> Array:
        """A slice's message, int32. residual: is added, and is what the message doesn't hold then. key: of random
        rounding."""
        rows = -(-len(values) // self._width)
        padded = np.zeros((rows, self._width), np.float32)
        flat = padded.reshape(-1)[: len(values)]
        flat[:] = values if residual is None else values + residual
        coding, whole = self._begin(rows, key, residual is not None), slice(0, rows)
        codes = coding.prepare(padded, whole) if self._codec.rounds else np.empty(0, np.int32)
        if len(codes):
            coding.agree(0, codes)
        words = coding.encode(padded, whole)
        if residual is not None:
            residual[:] = lost(coding, padded, words, whole).reshape(-1)[: len(values)]
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
