"""The cost of a codec for a rank: its rate on one core; and a check that virtual time carries the counted bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from emulation.experiments.bench.codec_times import native_steps
from emulation.experiments.study.wire_bytes import ELEMENTS, CountedCompression
from emulation.results.results import percentile
from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.switch_simulation import SwitchSimulation
from switchagg.calls.array_calls import rounds_of
from switchagg.calls.chunked_call import row_of
from switchagg.codecs import Array, ArrayCodec, Codec
from switchagg.codecs.array_codec import Reduction, Tensor
from switchagg.codecs.compression import Compression
from switchagg.codecs.spec import parse_codec
from switchagg.lockstep import sum_together
from switchagg.native.native_codec import missing
from switchagg.native.native_exact import in_c

VALUES, SHAPE = 1 << 20, (1024, 1024)
TURNS = 5
MEASURED = 1 << 18
LINE_BPS, DELAY_NS = 1_000_000_000, 5_000


def rate(codec: str, workers: int, turns: int = TURNS) -> float:
    """Bytes of float32 per second that one core encodes and decodes, memory of feedback included.

    In CPU time, the median of a few calls of 4 MB, whose collectives bring what this rank gave. Rows are coded by the
    compiled core, if it is there and has the codec.
    """
    compression = Compression(in_c(parse_codec(codec)), 0, workers)
    values = np.random.default_rng(1).standard_normal(VALUES).astype(np.float32)
    steps = _steps(compression.spec.codec, values, workers)
    times = []
    for number in range(1 + turns):  # the first turn allocates
        array = values.copy()
        start_ns = time.process_time_ns()
        for reduction in compression.rounds(array, [Tensor("one", SHAPE)], number):
            if steps and reduction.codec is not None:
                for step in steps:
                    step()
            else:
                _carry(reduction, workers, number)
        times.append(time.process_time_ns() - start_ns)
    return 4e9 * VALUES / percentile([float(time_ns) for time_ns in times[1:]], 0.5)


def compiled(codec: str, workers: int) -> bool:
    """Whether the compiled core codes it."""
    spec = parse_codec(codec).for_workers(workers)
    return not missing(spec.codec) if isinstance(spec.codec, Codec) else in_c(spec) is not spec


def _steps(codec: Codec | ArrayCodec, values: Array, workers: int) -> Sequence[Callable[[], Any]]:
    """Codes, encoding and decoding by the compiled core; empty: it doesn't have this codec."""
    if not isinstance(codec, Codec) or missing(codec):
        return ()
    width = row_of(values.dtype, ELEMENTS, codec)[1]
    rows = np.resize(values, (-(-values.size // width), width))  # rows must be full
    return native_steps(codec, rows, workers, ELEMENTS)


def _carry(reduction: Reduction, workers: int, key: int) -> None:
    """Carry it out as if all ranks had given the same values."""
    if reduction.kind == "all_gather":
        shard = reduction.array.size // workers
        for rank in range(1, workers):
            reduction.array[rank * shard : (rank + 1) * shard] = reduction.array[:shard]
    if reduction.codec is not None and not reduction.is_plain:
        residual = reduction.residual
        for _ in rounds_of(reduction.array, ELEMENTS, workers, reduction.codec, key=key, residual=residual):
            pass


def vanishes_at_bps(rate_bytes_per_s: float, ratio: float) -> float:
    """The line rate above which a codec that isn't overlapped costs more time than it saves. ratio: bytes without it
    over bytes with it."""
    return max(0.0, 8 * rate_bytes_per_s * (1 - 1 / ratio))


def compute_ns(workload: str, batch_per_worker: int) -> int:
    """Forward and backward pass of a rank, alone on a core."""
    from emulation.workloads.replicas import Replicas  # imports PyTorch

    return Replicas(workload, 1, 1, batch_per_worker).measure_compute_ns()


def measured_bytes(codec: str, workers: int) -> dict[str, int]:
    """Bytes that rank 0's link carries for one sum through a switch in virtual time, and the same as counted: `up`,
    `down`, `counted_up`, `counted_down`."""
    spec, ranks, values = parse_codec(codec), range(workers), np.random.default_rng(1).standard_normal(MEASURED)
    tensors, left = [Tensor("one", (MEASURED,))], list(ranks)
    counted = [CountedCompression(spec, rank, workers) for rank in ranks]
    sum_together(counted, [values.astype(np.float32) for _ in ranks], tensors, 0, ELEMENTS)
    simulation = SwitchSimulation(SimulationConfig(workers, LinkConfig(LINE_BPS, DELAY_NS), codec=codec))

    def done(rank: int) -> None:
        left.remove(rank)
        if not left:
            simulation.network.stop()

    for rank in ranks:
        simulation.launch(rank, values.astype(np.float32), "sum", partial(done, rank), tensors=tensors)
    simulation.run(f"a sum through {codec}")
    up, down = simulation.wire_bytes(0)
    traffic = counted[0].traffic
    return {"up": up, "down": down, "counted_up": traffic.up, "counted_down": traffic.down}
