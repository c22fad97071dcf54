"""Plans: the transfers of an iteration, fixed in advance from a profile and a policy. This module is pure.

Every rank makes the same plan, since the profile is rank 0's and nothing else goes in. Ranks differ
only in when a transfer becomes ready.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import floor, log2
from typing import NamedTuple

from switchagg.codecs.array_codec import Tensor, Tensors
from transport.schedule.profile import Profile


class TensorRange(NamedTuple):
    """Elements low … high-1 of a tensor, named by its place in the profile."""

    tensor: int
    low: int
    high: int


class Transfer(NamedTuple):
    """An allreduce of a plan, of all its parts together, which have one type.

    key: its number in the plan, from 0, in rank 0's order of arrival. priority: lower is more urgent; equal ones keep
    the order of their keys.
    """

    key: int
    priority: int
    parts: tuple[TensorRange, ...]
    size_bytes: int


Lanes = tuple[tuple[int, ...], ...]
"""Keys of a plan in sequences of fixed order, each key in one of them."""


def tensors_of(transfer: Transfer, tensors: Sequence[Tensor]) -> Tensors:
    """The tensor ranges of its array. tensors: the profile's."""
    return [tensors[part.tensor].part(part.low, part.high) for part in transfer.parts]


def whole_tensor(profile: Profile, tensor: int) -> TensorRange:
    """All of a tensor."""
    return TensorRange(tensor, 0, profile.tensors[tensor].elements)


def numbered(profile: Profile, content: Iterable[tuple[int, Sequence[TensorRange]]]) -> tuple[Transfer, ...]:
    """Keys in the order of the content: (priority, parts) each."""
    return tuple(
        Transfer(
            key,
            priority,
            tuple(parts),
            sum((part.high - part.low) * profile.tensors[part.tensor].item_bytes for part in parts),
        )
        for key, (priority, parts) in enumerate(content)
    )


def fifo(profile: Profile, groups: Iterable[Sequence[int]]) -> tuple[Transfer, ...]:
    """A transfer per group of whole tensors, all equally urgent; groups are split by type: a transfer has one."""
    split: list[list[int]] = []
    for group in groups:
        kinds: dict[str, list[int]] = {}
        for index in group:
            kinds.setdefault(profile.tensors[index].dtype, []).append(index)
        split += kinds.values()
    return numbered(profile, ((0, [whole_tensor(profile, index) for index in group]) for group in split))


def sliced(profile: Profile, slice_elements: Callable[[int], int]) -> tuple[Transfer, ...]:
    """Tensors apart, in slices, as urgent as the layer is early. slice_elements: from the bytes of an element."""

    def slices() -> Iterator[tuple[int, list[TensorRange]]]:
        for index in profile.arrivals:
            tensor = profile.tensors[index]
            step = slice_elements(tensor.item_bytes)
            for low in range(0, tensor.elements, step):
                yield tensor.layer, [TensorRange(index, low, min(low + step, tensor.elements))]

    return numbered(profile, slices())


def classes_of(transfers: Sequence[Transfer], count: int) -> tuple[int, ...]:
    """A class for each transfer, 0 (most urgent) … count-1, for what knows only so many: streams, DSCP, queues.

    Each priority has a class if there are enough classes. Else a transfer's class follows from the share of all bytes
    that are more urgent than it: half of them or more, the last class; a quarter or more, the one before; and so on. So
    what a transfer may have to wait for in its own class is at most about what goes before it anyway.
    """
    sizes: dict[int, int] = {}
    for transfer in transfers:
        sizes[transfer.priority] = sizes.get(transfer.priority, 0) + transfer.size_bytes
    levels = sorted(sizes)
    if len(levels) <= count:
        of_level = {level: place for place, level in enumerate(levels)}
    else:
        of_level, before, total = {}, 0, sum(sizes.values())
        for level in levels:
            of_level[level] = max(0, count + floor(log2(before / total))) if before else 0
            before += sizes[level]
    return tuple(of_level[transfer.priority] for transfer in transfers)


def class_lanes(transfers: Sequence[Transfer], count: int) -> Lanes:
    """A lane for each class that is used, most urgent first; in each, the order of arrival."""
    lanes: dict[int, list[int]] = {}
    for transfer, lane in zip(transfers, classes_of(transfers, count), strict=True):
        lanes.setdefault(lane, []).append(transfer.key)
    return tuple(tuple(lanes[lane]) for lane in sorted(lanes))
