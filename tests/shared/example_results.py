"""Results as a backend would return them, with round numbers; and a runner that returns them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emulation.results.results import Evaluation, IterationRecord, MethodResult
from emulation.scenario.scenario import Scenario, parse
from transport.group.method_name import MethodName
from transport.group.method_name import parse as parse_method

SCENARIO = parse(
    'name = "tiny"\ntitle = "A tiny one"\n[topology]\nworkers = 4\nrate_bps = 100_000_000\n'
    "[workload]\niterations = 4\nwarmup_iterations = 1\n",
    "tiny.toml",
)


@dataclass(frozen=True)
class FakeCertificate:
    valid: bool
    reasons: list[str]
    valid_rate_bps: int | None = None
    measures: dict[str, Any] = field(default_factory=dict)
    bounds: dict[str, Any] = field(default_factory=dict)


def result(method: str | MethodName, communication_ns: int, backend: str = "sim", **changes: Any) -> MethodResult:
    """4 iterations of 10 ms compute and fully exposed communication; the first, a warm-up, is 10 times slower."""
    durations = [(10_000_000 + communication_ns) * (10 if i == 0 else 1) for i in range(4)]
    starts = [sum(durations[:i]) for i in range(4)]
    values: dict[str, Any] = {
        "method": parse_method(str(method)),
        "backend": backend,
        "workers": 4,
        "iterations": [
            IterationRecord(i, starts[i], durations[i], 10_000_000, communication_ns, 2.0 - 0.5 * i) for i in range(4)
        ],
        "evaluations": [Evaluation(1, starts[1], 0.5, 1.5), Evaluation(3, sum(durations), 0.975, 0.25)],
        "parameters": 250_000,
        "gradient_bytes": 1_000_000,
        "wire_tx_bytes_per_rank": [3_000_000, 3_300_000, 3_000_000, 3_000_000],
        "wire_rx_bytes_per_rank": [3_000_000] * 4,
        "wire_iterations": 3,
        "retransmissions": 0,
        "switch_counters": {"accepted": 12} if str(method) == "switch" else {},
        "parameter_hash_per_rank": ["ab"] * 4,
        "certificate": None,
    }
    return MethodResult(**{**values, **changes})


def run_method(
    scenario: Scenario, method: MethodName, out_dir: Path, progress: Callable[[int, int, str], None]
) -> MethodResult:
    """A backend that takes no time: the switch is 1.5 times as fast as the baseline."""
    total = scenario.workload.iterations
    for done in range(total + 1):
        progress(done, total, "training")
    (out_dir / "kept.txt").write_text(str(method))
    return result(method, 100_000_000 if method.is_switch else 150_000_000)
