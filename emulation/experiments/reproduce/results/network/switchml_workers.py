"""SwitchML's speed-up over host allreduce against the number of workers."""

from collections.abc import Mapping

from emulation.experiments.reproduce.published import Published, PublishedCell
from emulation.experiments.reproduce.timed import allreduce_ns

_WORKERS = (4, 8, 16)
_SIZE_BYTES = 1 << 20
_AT_100 = {4: 2834 / 1383, 8: 2823 / 1251, 16: 2812 / 974}
_AT_10 = {4: 283 / 189, 8: 283 / 165, 16: 283 / 150}


def _compute() -> Mapping[str, float]:
    reproduced = dict[str, float]()
    switch_ns = dict[int, int]()
    for workers in _WORKERS:
        switch_ns[workers] = allreduce_ns("switch", workers, 10e9, _SIZE_BYTES)
        speedup = allreduce_ns("ring", workers, 10e9, _SIZE_BYTES) / switch_ns[workers]
        reproduced[f"10 Gb/s, {workers} workers, over NCCL-TCP"] = speedup
        reproduced[f"100 Gb/s, {workers} workers, over NCCL-RDMA"] = speedup
        reproduced[f"SwitchML, {workers} workers over 4"] = switch_ns[4] / switch_ns[workers]
    lost = _AT_100[4] / reproduced["100 Gb/s, 4 workers, over NCCL-RDMA"]
    for workers in _WORKERS:
        reproduced[f"100 Gb/s, {workers} workers, over NCCL-RDMA"] *= lost
    return reproduced


RESULT = Published(
    name="switchml_workers",
    title="SwitchML over ring allreduce, by workers",
    paper="Sapio et al., Scaling Distributed Machine Learning with In-Network Aggregation, NSDI",
    year=2021,
    source="10 Gb/s: figure 3 (top), bars SwitchML DPDK 256 and NCCL-TCP; 100 Gb/s: the figure in the README of "
    "p4lang/p4app-switchML, SwitchML RDMA and NCCL-RDMA",
    conditions="a microbenchmark of aggregated tensor elements per second",
    inputs="workers and link rates; the ring and the switch by packets, on links without delay, where a faster link "
    "changes neither's share of it",
    calibration="“100 Gb/s, 4 workers” fixes how far NCCL-RDMA stays below the ring's bound there",
    reading="bars measured in pixels: 100 Gb/s to 0.4 %, 10 Gb/s to 3 %",
    unit="speed-up",
    cells=(
        *(PublishedCell(f"10 Gb/s, {n} workers, over NCCL-TCP", round(_AT_10[n], 2), "10 Gb/s") for n in _WORKERS),
        PublishedCell("100 Gb/s, 4 workers, over NCCL-RDMA", round(_AT_100[4], 2), "100 Gb/s", "calibrates"),
        *(PublishedCell(f"100 Gb/s, {n} workers, over NCCL-RDMA", round(_AT_100[n], 2), "100 Gb/s") for n in (8, 16)),
        PublishedCell("SwitchML, 8 workers over 4", round(2823 / 2834, 3), "flat"),
        PublishedCell("SwitchML, 16 workers over 4", round(2812 / 2834, 3), "flat"),
    ),
    compute=_compute,
)
