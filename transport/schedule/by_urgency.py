"""Pure schedules in which the tensors that the next forward pass needs first overtake others, within a byte credit."""

from dataclasses import dataclass, replace

from switchagg.option_syntax import count, one_of, option, size
from transport.schedule.order import layer_order
from transport.schedule.policy import Policy, Tunable, TuningPoint
from transport.schedule.profile import LinearCost, Profile
from transport.schedule.schedule_plan import Transfer, numbered, sliced, whole_tensor


@dataclass(frozen=True)
class P3(Policy):
    """Priority-based parameter propagation: slices, those first that the next forward pass needs first.

    slice_elements: MXNet's default bound; smaller tensors travel whole. credit_bytes: as ByteScheduler's; 4 slices of
    float32, since ps-lite bounds messages instead.
    """

    name, label, urgent = "p3", "P3", True
    summary = "slices leave in the order of the next forward pass"
    slice_elements: int = option("slice", count(1), 40_000)
    credit_bytes: int = option("credit", size, 640_000)

    def plan(self, profile: Profile, cost: LinearCost | None) -> tuple[Transfer, ...]:
        return sliced(profile, lambda _: self.slice_elements)


@dataclass(frozen=True)
class TicTac(Policy):
    """Whole tensors in an order derived from the graph of layers (TicTac).

    order: "tac" weighs the computation that a tensor unlocks against the transfers still outstanding; where times
    aren't known, and with "tic", the number of transfers decides with which a tensor unlocks something.
    """

    name, label, urgent, reads_graph = "tictac", "TicTac", True, True
    summary = "tensors leave in the order in which the model's graph needs them"
    order: str = option("order", one_of("tic", "tac"), "tac")
    credit_bytes: int = option("credit", size, 4_000_000)

    @property
    def needs_cost(self) -> bool:
        return self.order == "tac"

    def plan(self, profile: Profile, cost: LinearCost | None) -> tuple[Transfer, ...]:
        rank = {layer: place for place, layer in enumerate(layer_order(profile, self.order, cost or LinearCost()))}
        return numbered(
            profile,
            ((rank[profile.tensors[index].layer], [whole_tensor(profile, index)]) for index in profile.arrivals),
        )


@dataclass(frozen=True)
class ByteScheduler(Policy):
    """Partitions of a size, those first that the next forward pass needs first, within a byte credit.

    The defaults are its own for parameter servers: 1,000,000 and 4,000,000 parameters, of 4 bytes. tune_steps: how many
    pairs of partition and credit the Bayesian optimiser may try while training runs; 0: none.
    """

    name, label, urgent = "bytescheduler", "ByteScheduler", True
    summary = "partitions leave in the order of the next forward pass, within a byte credit"
    partition_bytes: int = option("partition", size, 4_000_000)
    credit_bytes: int = option("credit", size, 16_000_000)
    tune_steps: int = option("tune", count(0), 0)

    def plan(self, profile: Profile, cost: LinearCost | None) -> tuple[Transfer, ...]:
        return sliced(profile, lambda item_bytes: max(1, self.partition_bytes // item_bytes))

    @property
    def tuning(self) -> Tunable | None:
        if not self.tune_steps:
            return None
        return Tunable(self.tune_steps, TuningPoint(self.partition_bytes, self.credit_bytes), self._at)

    def _at(self, point: TuningPoint) -> Policy:
        return replace(self, partition_bytes=point.partition_bytes, credit_bytes=point.credit_bytes)
