"""The choice of a rank as int32 words: positions, then values. Of three ways to write ascending positions the
shortest is used, which follows from the numbers of values alone, so every rank uses the same:

| way | words for k of d values | shortest |
|---|---|---|
| bits | d/32 | from one value in 16 |
| halves: the low 16 bits of each; how many there are in each block of 65,536 values | k/2 + d/65536 | |
| whole | k | up to one value in 32,768 |
"""

from collections.abc import Generator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from switchagg.codecs.array_codec import Reduction
from switchagg.codecs.codec import Array

Words = NDArray[np.int32]
Positions = NDArray[np.intp]

_BLOCK = 16
_NOTHING = -1
"""In place of a position, where a rank has fewer than others."""


def bit_words(values: int) -> int:
    """Words that have a bit for each."""
    return -(-values // 32)


def pack_bits(bits: NDArray[np.bool_]) -> Words:
    packed = np.zeros(4 * bit_words(len(bits)), np.uint8)
    packed[: -(-len(bits) // 8)] = np.packbits(bits, bitorder="little")
    return packed.view(np.int32)


def unpack_bits(words: Words, values: int) -> NDArray[np.bool_]:
    return np.unpackbits(words.view(np.uint8), count=values, bitorder="little").view(np.bool_)


def _blocks(values: int) -> int:
    return -(-values // (1 << _BLOCK))


def position_words(values: int, most: int) -> int:
    """Words for up to `most` positions below `values`."""
    return min(bit_words(values), _blocks(values) + -(-most // 2), most)


def pack_positions(positions: Positions, values: int, most: int) -> Words:
    words = np.zeros(position_words(values, most), np.int32)
    count, blocks = len(positions), _blocks(values)
    if len(words) == bit_words(values):
        bits = np.zeros(values, np.bool_)
        bits[positions] = True
        words[:] = pack_bits(bits)
    elif len(words) == most:
        words[:count] = positions
        words[count:] = _NOTHING
    else:
        words[:blocks] = np.bincount(positions >> _BLOCK, minlength=blocks)
        words[blocks:].view(np.uint16)[:count] = positions & (1 << _BLOCK) - 1
    return words


def unpack_positions(words: Words, values: int, most: int) -> Positions:
    blocks = _blocks(values)
    if len(words) == bit_words(values):
        return np.flatnonzero(unpack_bits(words, values))
    if len(words) == most:
        positions: Positions = words[words != _NOTHING].astype(np.intp)
        return positions
    positions = np.repeat(np.arange(blocks) << _BLOCK, words[:blocks])
    positions += words[blocks:].view(np.uint16)[: len(positions)]
    return positions


def gather(words: Words, rank: int, workers: int) -> Generator[Reduction, None, Words]:
    """(workers, words): those of all ranks, of equal length."""
    everyones = np.empty((workers, len(words)), np.int32)
    everyones[rank] = words
    if everyones.size:
        yield Reduction(everyones.reshape(-1), kind="all_gather")
    return everyones


def gather_beside(
    positions: Positions, beside: Words, size: tuple[int, int], place: tuple[int, int]
) -> Generator[Reduction, None, list[tuple[Positions, Words]]]:
    """Gather positions of all ranks, and words beside them, of equal length. size: of the array, and the most positions
    that any rank has. place: rank and workers."""
    head = position_words(*size)
    everyones = yield from gather(np.concatenate([pack_positions(positions, *size), beside]), *place)
    return [(unpack_positions(words[:head], *size), words[head:]) for words in everyones]


class Chosen(NamedTuple):
    """The choice of one rank: positions, ascending, and the values there."""

    positions: Positions
    values: Array


def gather_chosen(
    chosen: Chosen, size: int, place: tuple[int, int], most: int | None = None
) -> Generator[Reduction, None, list[Chosen]]:
    """Gather the choices of all ranks. size: values of the array. most: that any rank chose; None: all chose equally
    many."""
    if most is None and len(chosen.values) == size:
        everyones = yield from gather(chosen.values.view(np.int32), *place)
        return [Chosen(chosen.positions, words.view(np.float32)) for words in everyones]
    most = len(chosen.values) if most is None else most
    beside = np.zeros(most, np.int32)
    beside[: len(chosen.values)] = chosen.values.view(np.int32)
    gathered = yield from gather_beside(chosen.positions, beside, (size, most), place)
    return [Chosen(positions, words[: len(positions)].view(np.float32)) for positions, words in gathered]


def add_up(chosen: Sequence[Chosen], array: Array) -> None:
    """The sum of all ranks' values, in the ranks' order; 0 where no rank chose a value."""
    array.fill(0)
    array[chosen[0].positions] = chosen[0].values  # and not added: -0 stays
    with np.errstate(invalid="ignore", over="ignore"):
        for positions, values in chosen[1:]:
            array[positions] += values
