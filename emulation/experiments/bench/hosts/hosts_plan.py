"""The plan of `switchagg bench hosts`, from nccl-tests' flags. The module is pure; all ranks have the same plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from emulation.experiments.bench import bandwidths
from emulation.experiments.bench.allreduce.bench_methods import COMMA
from emulation.experiments.bench.allreduce.exact_inputs import ExactInputs
from emulation.scenario.scenario import ScenarioError
from switchagg.description import COMBINING, ROOTED, Kind
from switchagg.option_syntax import choices
from transport.group.method_name import METHODS, MethodName
from transport.group.method_name import parse as parse_method

BASELINE = "gloo"
AVERAGES = ("of rank 0", "averaged over the ranks", "of the fastest rank", "of the slowest rank")
"""Times, by the value of -a."""
DTYPES = {
    **{name: name for name in ("float32", "float64", "float16", "bfloat16", "int32", "int64")},
    **{"float": "float32", "double": "float64", "half": "float16"},
}
"""nccl-tests' names, and PyTorch's."""
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float64": 8, "int64": 8}
WHOLE_MOST = {"float16": 2048, "bfloat16": 256}
"""All whole numbers up to this are exact."""
OPS = ("sum", "avg", "max", "min")


@dataclass(frozen=True)
class TimedCollective:
    """kind: as switchagg names it. factor: busbw over algbw, of so many ranks. shards: the array that is in shards."""

    kind: Kind
    factor: Callable[[int], float]
    shards: str = ""  # "input", "output"


COLLECTIVES = {
    "all_reduce": TimedCollective("allreduce", lambda n: 2 * (n - 1) / n),
    "reduce_scatter": TimedCollective("reduce_scatter", lambda n: (n - 1) / n, "output"),
    "all_gather": TimedCollective("all_gather", lambda n: (n - 1) / n, "input"),
    "broadcast": TimedCollective("broadcast", lambda n: 1.0),
    "reduce": TimedCollective("reduce", lambda n: 1.0),
    "alltoall": TimedCollective("all_to_all", lambda n: (n - 1) / n),
}
"""By nccl-tests' names; sizes are of the whole array, of which a rank gives or takes one nth where it is in shards."""


@dataclass(frozen=True)
class HostsPlan:
    """sizes: bytes, as asked for. methods: in order, Gloo first where it is the baseline. iters: timed operations of a
    method and size, in `rounds` blocks. warmup_iters: before each block. agg_iters: begun together, then waited for.
    check: operations whose every element is checked. average: an index of AVERAGES. timeout_s: of an operation.
    link_bps, switch_link_bps: of a rank's link and of the switch's; 0: not known. switch: its control address.

    Raises ScenarioError for what can't be.
    """

    sizes: tuple[int, ...]
    methods: tuple[str, ...]
    collective: str = "all_reduce"
    datatype: str = "float32"
    op: str = "sum"
    root: int = 0
    iters: int = 20
    warmup_iters: int = 5
    agg_iters: int = 1
    rounds: int = 4
    run_cycles: int = 1
    check: int = 1
    average: int = 1
    timeout_s: float = 120.0
    link_bps: int = 0
    switch_link_bps: int = 0
    switch: str = ""

    def __post_init__(self) -> None:
        for option, value, allowed in (
            ("--collective", self.collective, tuple(COLLECTIVES)),
            ("-d", self.datatype, tuple(dict.fromkeys(DTYPES.values()))),
            ("-o", self.op, OPS),
        ):
            if value not in allowed:
                raise ScenarioError(f"{option} {value}: not measured here{choices(value, allowed)}")
        for name in self.names:
            if reason := self._refused(name):
                raise ScenarioError(f"--methods {name}: {reason}")

    @property
    def names(self) -> tuple[MethodName, ...]:
        return tuple(map(parse_method, self.methods))

    @property
    def kind(self) -> TimedCollective:
        return COLLECTIVES[self.collective]

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES.get(self.datatype, 4)

    @property
    def redop(self) -> str:
        """As tables have it."""
        return self.op if self.kind.kind in COMBINING else "none"

    @property
    def shown_root(self) -> int:
        return self.root if self.kind.kind in ROOTED else -1

    def counts(self, workers: int) -> list[int]:
        """Elements of the whole array at each size: as many as fit, the same for each rank, each count once."""
        shard_counts = {max(1, size // self.item_bytes // workers) * workers for size in self.sizes}
        full_counts = {max(1, size // self.item_bytes) for size in self.sizes}
        return sorted(full_counts if self.kind.kind in ("allreduce", "broadcast", "reduce") else shard_counts)

    def greatest(self, workers: int) -> int:
        """Greatest of the inputs' whole numbers with which no sum over some ranks is rounded."""
        return max(1, min(ExactInputs.GREATEST, WHOLE_MOST.get(self.datatype, 1 << 20) // workers))

    def differences(self, other: HostsPlan) -> list[str]:
        """Differences of the other plan, flag by flag."""
        self_fields, other_fields = asdict(self), asdict(other)
        return [
            f"{name} {other_fields[name]} instead of {self_fields[name]}"
            for name in self_fields
            if self_fields[name] != other_fields[name] and name != "switch"  # each has its own way there
        ]

    def _refused(self, name: MethodName) -> str:
        """Why a method doesn't do this; "" if it does."""
        if name.schedule:
            return "schedules are for training: `switchagg compare` has them"
        if name.method == BASELINE and name.codec:
            return f"Gloo's {name.codec} is a hook of DDP; -d float16 or -d bfloat16 sums 16 bits"
        if self.kind.kind == "all_to_all" and name.method != BASELINE:
            return "only Gloo has an all-to-all: switchagg leaves it to it; --methods gloo"
        if name.method == "ps" and self.kind.kind != "allreduce":
            return f"parameter servers have no {self.collective}, only all_reduce"
        if self.agg_iters > 1 and name.spec and name.spec.feedback:
            return "a codec with feedback sums an array's values once at a time: -m 1"
        coded = name.codec and name.codec != "fixed_point"
        if coded and (self.collective, self.datatype, self.op) != ("all_reduce", "float32", "sum"):
            return "codecs are measured with all_reduce of float32, -o sum"
        return ""

    def unchecked(self, name: MethodName) -> bool:
        """Whether sums may lack values."""
        return METHODS[name.method].loses


def methods_of(words: str, baseline: bool) -> tuple[str, ...]:
    """Names of a comma-separated list, each once, Gloo first. Raises ScenarioError."""
    names = []
    for word in (word.strip() for word in COMMA.split(words)):
        try:
            names.append(str(parse_method(word)))
        except ValueError as error:
            raise ScenarioError(f"--methods {word}: {error}") from error
    return tuple(dict.fromkeys([BASELINE] * baseline + names))


def sizes(least: str, most: str, factor: float, step: str | None) -> tuple[int, ...]:
    """Bytes, from -b to -e by -f, or by -i. Raises ScenarioError."""
    try:
        first, last = bandwidths.parse_size(least), bandwidths.parse_size(most)
        if step is None or last < first:
            return tuple(bandwidths.sizes(first, last, factor))
        return tuple(range(first, last + 1, bandwidths.parse_size(step)))
    except ValueError as error:
        raise ScenarioError(f"-b, -e, -f, -i: {error}") from error


def rate(option: str, text: str | None) -> int:
    """Bits per second; 0 where none is named. Raises ScenarioError."""
    try:
        return bandwidths.parse_rate(text) if text else 0
    except ValueError as error:
        raise ScenarioError(f"{option}: {error}") from error


def same_or_raise(plans: Sequence[HostsPlan]) -> None:
    """Raises ScenarioError that names the first rank with other flags, and which."""
    for rank, plan in enumerate(plans):
        if other := plans[0].differences(plan):
            raise ScenarioError(
                f"rank {rank} was started with {', '.join(other)} of rank 0: give every rank the same flags"
            )
