"""The cells that a study trains: workload, codec or training method, workers, seed and rate. The module is pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from emulation.experiments.cells import Cell, Record, version
from emulation.scenario.errors import ScenarioError
from switchagg.codecs import ARRAY_CODECS, CODECS
from switchagg.codecs.spec import CodecSpec, parse_codec
from switchagg.option_syntax import choices

FLOAT32 = "float32"
"""Sums without a codec, in float32, with which all others are compared."""

BASELINES = ("bf16", "fp16", "lanes16")
"""The 16-bit codec whose accuracy is to be reached: the first of these that was trained."""

COMMON = (
    FLOAT32,
    *BASELINES,
    "lanes8",
    "lanes8+ef",
    "lanes4",
    "lanes4+ef",
    "rotated8",
    "rotated8+ef",
    "thc+ef",
    "qsgd",
    "ternary",
    "ternary+ef",
    "twobit+ef",
    "onebit+ef",
    "sign",
    "agreed:ratio=0.1+ef",
    "randomk:ratio=0.1+ef",
    "powersgd:rank=4+ef",
    "topk:ratio=0.01+ef",
)
"""Every workload is trained with these by default, beside its own codecs."""

RATE_FACTORS = {
    "sign": 0.005,
    "onebit": 0.25,
    "twobit": 0.25,
    "dgc": 2.0,
    "efsign": 0.1,
    "randomk": 0.125,
    "topk": 0.5,
}
"""Every codec has the best of three learning rates; these codecs' rates are the workload's times this: their sums
aren't of a gradient's size, come late, or take the optimiser's momentum over."""

TUNING_SEED = 1000
"""The seed of runs that only choose a learning rate; no run that is reported has it."""


@dataclass(frozen=True)
class TrainingSetting:
    """How a workload is trained: SGD with momentum, its rate rising and falling as AdamW's does in scenarios.

    batch: of all workers together, so that one rate suits any number of them. rates: of which a method gets the best.
    codecs: codecs, training methods and `float32`.
    """

    workload: str
    workers: tuple[int, ...]
    batch: int
    iterations: int
    evaluate_every: int
    rates: tuple[float, ...]
    codecs: tuple[str, ...]
    momentum: float = 0.9


def _slow_starters(iterations: int) -> tuple[str, str]:
    """Codecs whose first steps differ: DGC sends more in a sixth of the run, CD-SGD all values in a tenth."""
    return (
        f"dgc:ratio=0.01,ramp={iterations // 6}+ef",
        f"cd_sgd:local_rate=0.03,warm_up={iterations // 10},period=5~ternary+ef",
    )


SETTINGS = (
    TrainingSetting("images", (4, 8), 64, 960, 60, (0.015, 0.03, 0.06), COMMON + _slow_starters(960)),
    TrainingSetting("digits", (4,), 128, 80, 10, (0.01, 0.02, 0.04), COMMON + _slow_starters(80)),
    TrainingSetting("small_text", (4,), 32, 480, 40, (0.05, 0.1, 0.2), COMMON + _slow_starters(480)),
)
_QUICK_CODECS = (FLOAT32, "bf16", "lanes16", "lanes8+ef", "rotated8+ef", "ternary+ef", "topk:ratio=0.01+ef")
QUICK = (
    TrainingSetting("images", (4,), 32, 40, 20, (0.03,), _QUICK_CODECS),
    TrainingSetting("digits", (4,), 32, 20, 10, (0.02,), _QUICK_CODECS),
)


@dataclass(frozen=True)
class StudyCell(Cell):
    """A run. codec: text of a spec, or of a training method, or `float32`; rate: the greatest learning rate."""

    workload: str
    codec: str
    workers: int
    seed: int
    rate: float
    batch_per_worker: int
    iterations: int
    evaluate_every: int
    momentum: float
    version: str = field(default_factory=lambda: version("study"))
    code = "study"

    @property
    def decides(self) -> dict[str, Any]:
        fields = asdict(self)
        del fields["version"]
        return {"cell": fields}

    @property
    def title(self) -> str:  # type: ignore[override]
        seed = "tuning" if self.seed == TUNING_SEED else f"seed {self.seed}"
        return f"{self.workload}, n = {self.workers}, {self.codec}, rate {self.rate:g}, {seed}"

    @property
    def spec(self) -> CodecSpec | None:
        """The codec's spec; None without a codec."""
        return spec_of(self.codec)


def name_of(text: str) -> str:
    """The codec's, or the training method's."""
    return re.split("[:+~]", text)[0]


def is_method(text: str) -> bool:
    """Whether it is written as a training method, not as a codec."""
    name = name_of(text)
    if name in {FLOAT32, *CODECS, *ARRAY_CODECS}:
        return False
    from transport.torch.training.training_methods import METHODS  # imports PyTorch

    return name in METHODS


def spec_of(text: str) -> CodecSpec | None:
    """The spec of a codec, or of a training method's codec; None without one. Raises ValueError."""
    if is_method(text):
        from transport.torch.training.training_methods import parse_method

        return parse_method(text).spec
    return None if text == FLOAT32 else parse_codec(text)


def checked(words: Sequence[str]) -> list[str]:
    """Codecs as a user has named them, as they are written. Raises ScenarioError."""
    try:
        return [_checked(word) for word in words]
    except ValueError as error:
        raise ScenarioError(f"--codec {error}") from error


def _checked(word: str) -> str:
    if not is_method(word):
        return word if word == FLOAT32 else str(parse_codec(word))
    from transport.torch.training.training_methods import parse_method

    method = parse_method(word)
    if not method.allreduces:
        raise ValueError(f"{word}: what its ranks exchange is no sum")
    return str(method)


def settings(
    base: Sequence[TrainingSetting], workloads: Sequence[str], workers: Sequence[int], codecs: Sequence[str]
) -> list[TrainingSetting]:
    """The settings of these workloads (or of all), with these numbers of workers and codecs where some are named.

    Raises ScenarioError.
    """
    names = [setting.workload for setting in base]
    for name in workloads:
        if name not in names:
            raise ScenarioError(f"--workload '{name}': unknown to this study{choices(name, names)}")
    chosen = [setting for setting in base if not workloads or setting.workload in workloads]
    words = checked(codecs)
    for setting in chosen:
        for number in workers:
            if setting.batch % number:
                raise ScenarioError(
                    f"--workers {number}: {setting.workload} has {setting.batch} samples an iteration for all"
                )
    return [
        replace(setting, workers=tuple(workers) or setting.workers, codecs=tuple(words or checked(setting.codecs)))
        for setting in chosen
    ]


def rates_of(setting: TrainingSetting, codec: str) -> list[float]:
    """Learning rates that are tried for a codec."""
    factor = RATE_FACTORS.get(name_of(codec), 1.0)
    return [rate * factor for rate in setting.rates]


def momentum_of(setting: TrainingSetting, codec: str) -> float:
    """The optimiser's momentum: 0 where the codec corrects the momentum itself."""
    spec = spec_of(codec)
    return 0.0 if spec is not None and spec.momentum > 0 else setting.momentum


def cell(setting: TrainingSetting, codec: str, workers: int, seed: int, rate: float) -> StudyCell:
    return StudyCell(
        setting.workload,
        codec,
        workers,
        seed,
        rate,
        setting.batch // workers,
        setting.iterations,
        setting.evaluate_every,
        momentum_of(setting, codec),
    )


def warning(codec: str) -> str:
    """The reason against this codec; "" if there is none."""
    spec = spec_of(codec)
    return "" if spec is None else spec.warning


def can(codec: str, workers: int) -> str:
    """Why a codec can't sum so many workers; "" if it can."""
    try:
        _ = (spec := spec_of(codec)) and spec.for_workers(workers)
    except ValueError as error:
        return str(error)
    return ""


def tuning_cells(chosen: Sequence[TrainingSetting]) -> Iterator[StudyCell]:
    """Runs that choose a rate where there are several: with the fewest workers, on a seed of their own."""
    for setting in chosen:
        for codec in setting.codecs:
            rates, workers = rates_of(setting, codec), min(setting.workers)
            if len(rates) > 1 and not can(codec, workers):
                yield from (cell(setting, codec, workers, TUNING_SEED, rate) for rate in rates)


def best_rates(
    chosen: Sequence[TrainingSetting], find: Callable[[StudyCell], Record | None]
) -> dict[tuple[str, str], float]:
    """(workload, codec) -> the rate whose run ended with the lowest held-out loss; the middle one where none ended.
    find: the record of a run that has ended."""
    best = {}
    for setting in chosen:
        for codec in setting.codecs:
            rates, workers = rates_of(setting, codec), min(setting.workers)
            ended = {rate: find(cell(setting, codec, workers, TUNING_SEED, rate)) for rate in rates}
            losses = {rate: run["loss"] for rate, run in ended.items() if run is not None and run["loss"] is not None}
            middle = rates[len(rates) // 2]
            best[setting.workload, codec] = min(losses, key=lambda rate: losses[rate]) if losses else middle
    return best


def reported_cells(
    chosen: Sequence[TrainingSetting], seeds: int, best: dict[tuple[str, str], float]
) -> Iterator[StudyCell]:
    """Runs that count, seed by seed, so that a study that is cut short has something of each codec."""
    for setting in chosen:
        for workers in setting.workers:
            for seed in range(1, seeds + 1):
                for codec in setting.codecs:
                    if not can(codec, workers):
                        yield cell(setting, codec, workers, seed, best[setting.workload, codec])
