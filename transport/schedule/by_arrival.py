"""Schedules that send first come, first served: they differ in what a transfer consists of. This module is pure."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from switchagg.option_syntax import option, per_byte, size, time_ns
from transport.schedule.policy import Policy
from transport.schedule.profile import LinearCost, Profile
from transport.schedule.schedule_plan import Transfer, fifo


@dataclass(frozen=True)
class Bsp(Policy):
    """Everything fused into one transfer, after the backward pass: no overlap. Other policies are compared with it."""

    name, label = "bsp", "BSP"
    summary = "everything fused leaves after the backward pass"

    def plan(self, profile: Profile, cost: LinearCost | None) -> tuple[Transfer, ...]:
        return fifo(profile, [profile.arrivals])


@dataclass(frozen=True)
class Wfbp(Policy):
    """Wait-free backpropagation (Poseidon): each tensor alone, as soon as its gradient exists, first come first."""

    name, label = "wfbp", "WFBP"
    summary = "each tensor leaves as soon as its gradient is there, first come, first served"

    def plan(self, profile: Profile, cost: LinearCost | None) -> tuple[Transfer, ...]:
        return fifo(profile, [(index,) for index in profile.arrivals])


@dataclass(frozen=True)
class MgWfbp(Policy):
    """Merged-gradient WFBP (MG-WFBP): tensors are merged where waiting costs less than a start-up.

    alpha_ns, beta_ns_per_byte: cost of a transfer; None: as fitted on this job's group.
    """

    name, label = "mg_wfbp", "MG-WFBP"
    summary = "tensors leave as they come, merged where waiting costs less than a start-up"
    alpha_ns: float | None = option("alpha", time_ns, None)
    beta_ns_per_byte: float | None = option("beta", per_byte, None)

    @property
    def needs_cost(self) -> bool:
        return self.alpha_ns is None or self.beta_ns_per_byte is None

    def with_cost(self, fit: Callable[[], LinearCost]) -> Policy:
        if not self.needs_cost:
            return self
        cost = self._cost(fit())
        return replace(self, alpha_ns=cost.alpha_ns, beta_ns_per_byte=cost.beta_ns_per_byte)

    def _cost(self, fitted: LinearCost) -> LinearCost:
        alpha, beta = self.alpha_ns, self.beta_ns_per_byte
        return LinearCost(
            fitted.alpha_ns if alpha is None else alpha, fitted.beta_ns_per_byte if beta is None else beta
        )

    def plan(self, profile: Profile, cost: LinearCost | None) -> tuple[Transfer, ...]:
        """Tensors in order of arrival; a group takes in the next one, or is closed before it.

        A group isn't closed if by the arrival of the next tensor it has not begun, or has begun but isn't finished and
        begun less than alpha ago: then waiting costs less than another start-up.
        """
        if cost is None and self.needs_cost:
            raise ValueError("schedule mg_wfbp: needs alpha and beta, given or fitted: mg_wfbp:alpha=200us,beta=8")
        cost = self._cost(cost or LinearCost())
        groups: list[list[int]] = []
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
            groups.append(group)
            group, free_ns = [], end_ns
        return fifo(profile, groups)


@dataclass(frozen=True)
class Fusion(Policy):
    """Tensor fusion (Horovod): what became ready within a cycle leaves together at its end, up to a threshold.

    The defaults are Horovod's; every transfer waits for the end of a cycle, and so on average for half of one.
    """

    name, label = "fusion", "fusion"
    summary = "tensors leave fused up to a threshold"
    threshold_bytes: int = option("threshold", size, 128 << 20)
    cycle_ns: int = option("cycle", time_ns, 1_000_000)

    def plan(self, profile: Profile, cost: LinearCost | None) -> tuple[Transfer, ...]:
        """Tensors ready in one cycle, per type in order of arrival, up to the threshold; larger tensors alone."""
        groups: list[list[int]] = []
        open_group: dict[str, int] = {}  # type -> place in groups
        sizes: dict[int, int] = {}
        begin_ns = profile.tensors[profile.arrivals[0]].ready_ns if profile.tensors else 0
        cycle = 0
        for index in profile.arrivals:
            tensor = profile.tensors[index]
            if (now := (tensor.ready_ns - begin_ns) // self.cycle_ns) != cycle:
                cycle, open_group = now, {}
            place = open_group.get(tensor.dtype)
            if place is None or sizes[place] + tensor.size_bytes > self.threshold_bytes:
                place = open_group[tensor.dtype] = len(groups)
                groups.append([])
                sizes[place] = 0
            groups[place].append(index)
            sizes[place] += tensor.size_bytes
        return fifo(profile, groups)
