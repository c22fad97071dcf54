"""Tags of the packets between a switch and its children: keys, and both ends (A1 to A5).

A `Hop` of a switch has all children of a job, that of a child its own keys alone. Its twin in C is
`transport/native/network/hop.h`.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from switchagg.tag import KEY_BYTES, PRIME, SumTags, siphash
from switchagg.wire import (
    FLAG_RESULT,
    FLAGS_AT,
    HEADER_BYTES,
    RANK_BITS,
    STREAM_OFFSET,
    Bundle,
    frame_bytes,
    headers,
    payload,
)

TAG_BYTES = 8
SECRET_BYTES = 32

Tags = NDArray[np.uint64]
"""(m,) numbers below PRIME."""


@dataclass(frozen=True)
class HopKeys:
    """The keys of one child's packets (A2), KEY_BYTES each; `results` is alike for all children of a switch."""

    up: bytes = field(repr=False)
    down: bytes = field(repr=False)
    results: bytes = field(repr=False)

    @classmethod
    def of(cls, secret: bytes, rank: int) -> Self:
        """The keys of the child with this rank. secret: SECRET_BYTES, of the switch in one generation of a job."""
        child = rank.to_bytes(2, "big")
        return cls(
            _key(secret, b"sa hop up", child), _key(secret, b"sa hop down", child), _key(secret, b"sa hop results")
        )

    @classmethod
    def read(cls, text: bytes) -> Self | None:
        """The keys that `bytes` of one gave; None of b"". Raises ValueError for another length."""
        if not text:
            return None
        if len(text) != 3 * KEY_BYTES:
            raise ValueError(f"keys of packets have {3 * KEY_BYTES} bytes, not {len(text)}")
        return cls(*(text[at : at + KEY_BYTES] for at in range(0, len(text), KEY_BYTES)))

    def __bytes__(self) -> bytes:
        return self.up + self.down + self.results


def secret_of_switch(secret: bytes, switch: str) -> bytes:
    """The secret of a switch below the root, whose secret is given."""
    return hashlib.blake2b(switch.encode(), digest_size=SECRET_BYTES, key=secret, person=b"sa hop switch").digest()


def _key(secret: bytes, person: bytes, text: bytes = b"") -> bytes:
    return hashlib.blake2b(text, digest_size=KEY_BYTES, key=secret, person=person).digest()


class Hop:
    """The tags of one job's packets, at one end.

    elements: of its packets that have values. keys: of the children, in the order of their ranks, or of the one child
    that this end is. ports: where they are; (): nowhere that matters.
    """

    def __init__(self, elements: int, keys: Sequence[HopKeys], ports: Sequence[int] = ()) -> None:
        self._elements, self._keys, self._ports = elements, keys, list(ports)
        self._up = [SumTags(child.up, elements) for child in keys]
        self._results = SumTags(keys[0].results, elements)
        self._newest = np.zeros(256, np.int64)  # the newest chunk of each stream, not wrapped

    def verified(self, bundle: Bundle, *, result: bool) -> Bundle:
        """The rows that have a right tag, without it (A4, A5). result: whether they must be results for the one child,
        or else contributions, each of the child whose rank it names."""
        size = bundle.shape[1] - TAG_BYTES
        if size not in (HEADER_BYTES, frame_bytes(self._elements)):
            return bundle[:0]
        frames, header = bundle[:, :size], headers(bundle)
        children = np.zeros(len(bundle), np.intp) if result else (header["rank"] & RANK_BITS).astype(np.intp)
        fits = HEADER_BYTES + 4 * header["elements"].astype(np.int64) == size
        fits &= ((bundle[:, FLAGS_AT] & FLAG_RESULT) != 0) == result
        fits &= children < len(self._keys)
        claimed = np.ascontiguousarray(bundle[:, size:]).view(">u8")[:, 0]
        chunks = self._unwrapped(frames)
        for child in np.unique(children[fits]).tolist():
            rows = np.flatnonzero(fits & (children == child))
            of_child = frames[rows]
            fits[rows] = self._tags(of_child, chunks[rows], self.hashes(of_child, child), child) == claimed[rows]
        right = np.ascontiguousarray(frames[fits])
        np.maximum.at(self._newest, right[:, STREAM_OFFSET], chunks[fits])
        return right

    def tagged(self, frames: Bundle) -> Bundle:
        """What the one child sends, with its tags."""
        np.maximum.at(self._newest, frames[:, STREAM_OFFSET], self._unwrapped(frames))
        return self._with_tags(frames, self.hashes(frames, 0), 0)

    def tagged_for(self, frames: Bundle, hashes: Tags, port: int) -> Bundle:
        """Packets to the child at a port, with their tags. hashes: of these packets."""
        return self._with_tags(frames, hashes, self._ports.index(port))

    def hashes(self, frames: Bundle, child: int = 0) -> Tags:
        """The part of the tags that is the values' (A3); of results it is the same for all children. (m,) of (m, size),
        all results or none."""
        if frames.shape[1] == HEADER_BYTES or not len(frames):
            return np.zeros(len(frames), np.uint64)
        tags = self._results if frames[0, FLAGS_AT] & FLAG_RESULT else self._up[child]
        return np.array(tags.hashes(payload(frames).astype(np.int32), signed=False), np.uint64)

    def _with_tags(self, frames: Bundle, hashes: Tags, child: int) -> Bundle:
        tags = self._tags(frames, self._unwrapped(frames), hashes, child)
        return np.concatenate((frames, tags.astype(">u8").view(np.uint8).reshape(-1, TAG_BYTES)), axis=1)

    def _tags(self, frames: Bundle, chunks: NDArray[np.int64], hashes: Tags, child: int) -> Tags:
        """The tags of packets of one direction, which don't have them yet."""
        message = np.zeros((len(frames), HEADER_BYTES + 4), np.uint8)
        message[:, :HEADER_BYTES] = frames[:, :HEADER_BYTES]
        message[:, HEADER_BYTES:] = (chunks >> 32).astype("<u4").view(np.uint8).reshape(-1, 4)
        keys = self._keys[child]
        is_result = len(frames) and frames[0, FLAGS_AT] & FLAG_RESULT
        words = message.view("<u8").astype(np.uint64).T
        pads = siphash(keys.down if is_result else keys.up, *words) >> np.uint64(3)
        tags: Tags = (hashes + pads % np.uint64(PRIME)) % np.uint64(PRIME)
        return tags

    def _unwrapped(self, frames: Bundle) -> NDArray[np.int64]:
        """A4: of each packet the chunk that is nearest to the newest one of its stream."""
        newest = self._newest[frames[:, STREAM_OFFSET]]
        ahead = (headers(frames)["chunk"].astype(np.int64) - newest).astype(np.uint32).view(np.int32)
        return newest + ahead
