"""Plans: which transfers an iteration consists of, fixed in advance from a profile and a policy. Pure.

Every rank makes the same plan, since the profile is rank 0's and nothing else goes in. What differs between ranks is
only when a transfer becomes ready.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import floor, log2
from typing import NamedTuple

from transport.schedule.order import layer_order
from transport.schedule.policy import P3, Bsp, ByteScheduler, Fusion, MgWfbp, Policy, TicTac, Wfbp, parse_policy
from transport.schedule.profile import LinearCost, Profile


class Part(NamedTuple):
    """Elements low … high-1 of a tensor, named by its place in the profile."""

    tensor: int
    low: int
    high: int


class Transfer(NamedTuple):
    """One allreduce of a plan, of all its parts together, which have one type.

    key: its number in the plan, from 0, in rank 0's order of arrival. priority: lower is more urgent; equal ones keep
    the order of their keys.
    """

    key: int
    priority: int
    parts: tuple[Part, ...]
    size_bytes: int


Lanes = tuple[tuple[int, ...], ...]
"""Keys of a plan in sequences of fixed order, each key in one of them."""


def plan_transfers(policy: Policy | str, profile: Profile, cost: LinearCost | None = None) -> tuple[Transfer, ...]:
    """The transfers of one iteration, in order of their keys; every element of every tensor is in one of them.

    policy: as it is, or as it is written. cost: of a transfer; mg_wfbp needs it, tictac's "tac" uses it. Raises
    ValueError if mg_wfbp knows no cost.
    """
    if isinstance(policy, str):
        policy = parse_policy(policy)
    match policy:
        case Bsp():
            groups = _by_type(profile, [profile.arrivals])
        case Wfbp():
            groups = _by_type(profile, [(index,) for index in profile.arrivals])
        case MgWfbp():
            groups = _by_type(profile, _merged(profile, _cost_of(policy, cost)))
        case Fusion():
            groups = _fused(profile, policy)
        case P3():
            return _sliced(profile, lambda _: policy.slice_elements)
        case ByteScheduler():
            return _sliced(profile, lambda item_bytes: max(1, policy.partition_bytes // item_bytes))
        case TicTac():
            return _ordered(profile, policy, cost or LinearCost())
    return _numbered(profile, ((0, [_whole(profile, index) for index in group]) for group in groups))


def _cost_of(policy: MgWfbp, fitted: LinearCost | None) -> LinearCost:
    alpha, beta = policy.alpha_ns, policy.beta_ns_per_byte
    if fitted is None and (alpha is None or beta is None):
        raise ValueError("schedule mg_wfbp: needs alpha and beta, given or fitted: mg_wfbp:alpha=200us,beta=8")
    fallback = fitted or LinearCost()
    return LinearCost(
        fallback.alpha_ns if alpha is None else alpha, fallback.beta_ns_per_byte if beta is None else beta
    )


def _whole(profile: Profile, index: int) -> Part:
    return Part(index, 0, profile.tensors[index].elements)


def _numbered(profile: Profile, content: Iterable[tuple[int, list[Part]]]) -> tuple[Transfer, ...]:
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


def _by_type(profile: Profile, groups: Iterable[Sequence[int]]) -> list[tuple[int, ...]]:
    """The groups, each split where its tensors have several types: one transfer has one."""
    split = []
    for group in groups:
        kinds: dict[str, list[int]] = {}
        for index in group:
            kinds.setdefault(profile.tensors[index].dtype, []).append(index)
        split += [tuple(indices) for indices in kinds.values()]
    return split


def _merged(profile: Profile, cost: LinearCost) -> list[tuple[int, ...]]:
    """MG-WFBP's rule: tensors in order of arrival; a group takes in the next one, or is closed before it.

    A group isn't closed if by the arrival of the next tensor it has not begun, or has begun but isn't finished and
    begun less than alpha ago: then waiting costs less than another start-up.
    """
    groups: list[tuple[int, ...]] = []
    group: list[int] = []
    free_ns = 0.0  # when the transfer before the present group is finished
    for place, index in enumerate(profile.arrivals):
        group.append(index)
        start_ns = max(free_ns, profile.tensors[index].ready_ns)
        end_ns = start_ns + cost.time_ns(sum(profile.tensors[member].size_bytes for member in group))
        if place + 1 < len(profile.arrivals):
            next_ns = profile.tensors[profile.arrivals[place + 1]].ready_ns
            if next_ns < end_ns and (start_ns > next_ns or next_ns - start_ns < cost.alpha_ns):
                continue
        groups.append(tuple(group))
        group, free_ns = [], end_ns
    return groups


def _fused(profile: Profile, policy: Fusion) -> list[tuple[int, ...]]:
    """What becomes ready in one cycle, per type in order of arrival, up to the threshold; larger tensors alone."""
    groups: list[list[int]] = []
    open_group: dict[str, int] = {}  # type -> place in groups
    sizes: dict[int, int] = {}
    begin_ns = profile.tensors[profile.arrivals[0]].ready_ns if profile.tensors else 0
    cycle = 0
    for index in profile.arrivals:
        tensor = profile.tensors[index]
        if (now := (tensor.ready_ns - begin_ns) // policy.cycle_ns) != cycle:
            cycle, open_group = now, {}
        place = open_group.get(tensor.dtype)
        if place is None or sizes[place] + tensor.size_bytes > policy.threshold_bytes:
            place = open_group[tensor.dtype] = len(groups)
            groups.append([])
            sizes[place] = 0
        groups[place].append(index)
        sizes[place] += tensor.size_bytes
    return [tuple(group) for group in groups]


def _sliced(profile: Profile, slice_elements: Callable[[int], int]) -> tuple[Transfer, ...]:
    """Each tensor separately, in slices, as urgent as its layer is early. slice_elements: from the bytes of one."""

    def slices() -> Iterator[tuple[int, list[Part]]]:
        for index in profile.arrivals:
            tensor = profile.tensors[index]
            step = slice_elements(tensor.item_bytes)
            for low in range(0, tensor.elements, step):
                yield tensor.layer, [Part(index, low, min(low + step, tensor.elements))]

    return _numbered(profile, slices())


def _ordered(profile: Profile, policy: TicTac, cost: LinearCost) -> tuple[Transfer, ...]:
    rank = {layer: place for place, layer in enumerate(layer_order(profile, policy.order, cost))}
    return _numbered(
        profile, ((rank[profile.tensors[index].layer], [_whole(profile, index)]) for index in profile.arrivals)
    )


def classes_of(transfers: Sequence[Transfer], count: int) -> tuple[int, ...]:
    """A class for each transfer, 0 (most urgent) … count-1, for what knows only so many: streams, DSCP, queues.

    As many priorities as classes or fewer: one each. Else a transfer's class follows from the share of all bytes that
    are more urgent than it: half of them or more, the last class; a quarter or more, the one before; and so on. So what
    a transfer may have to wait for in its own class is at most about what goes before it anyway.
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
