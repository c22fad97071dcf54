"""Results: what a run of one method measured, and the numbers derived from it.

`MethodResult` is what every backend's `run_method` returns. `document` turns the results of all methods into the
plain dict that is written to `results.json` (schema: `emulation/results_schema.md`); `write_json` is deterministic.
Nothing here reads a clock or the host: those facts live in `host.json`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emulation.fidelity import Certificate


class RunFailed(Exception):
    """A run could not start or finish: one line that says what failed and the remedy; exit code 1."""


@dataclass(frozen=True)
class IterationRecord:
    """One training iteration, over all ranks."""

    iteration: int  # 0 …
    start_ns: int  # since the start of training
    duration_ns: int  # slowest rank; evaluation excluded
    compute_ns: int  # forward + backward + optimiser, slowest rank
    communication_ns: int  # union of [bucket start, bucket completion]; the rank that waited least for stragglers
    loss: float  # training loss, mean over ranks


@dataclass(frozen=True)
class Evaluation:
    """Test set, after `iteration`."""

    iteration: int
    time_ns: int  # since the start of training; time spent evaluating excluded
    accuracy: float  # 0 … 1
    loss: float


@dataclass(frozen=True)
class MethodResult:
    """What one method did in one run. Lists per rank have `workers` entries."""

    method: str
    backend: str  # "mininet" | "sim"
    workers: int
    iterations: list[IterationRecord]
    evaluations: list[Evaluation]
    parameters: int
    gradient_bytes: int  # float32 bytes summed over ranks in one iteration
    wire_tx_bytes_per_rank: list[int]  # Ethernet frames without FCS, counted at the worker's interface …
    wire_rx_bytes_per_rank: list[int]
    wire_iterations: int  # … over this many iterations
    retransmissions: int  # all ranks
    switch_counters: dict[str, int]  # empty for host methods
    parameter_hash_per_rank: list[str]  # sha256 of the final parameters: all equal, or the run failed
    certificate: Certificate | None  # None in virtual time: exact by construction
    notes: list[str] = field(default_factory=list)  # one sentence each; shown in the report
    environment: dict[str, Any] = field(default_factory=dict)  # read back: links, offloads, congestion control
