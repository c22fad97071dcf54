"""OmniReduce: time of an allreduce against the share of blocks that are not zero."""

from collections.abc import Mapping

from emulation.experiments.reproduce.published import Published, PublishedCell

_WORKERS = (2, 4, 8)
_DENSITIES = {0: 1.0, 60: 0.4, 90: 0.1, 99: 0.01}
_MS = {
    2: {0: 15.3, 60: 9.0, 90: 3.8, 99: 1.85},
    4: {0: 16.0, 60: 11.4, 90: 5.5, 99: 2.3},
    8: {0: 15.5, 60: 12.3, 90: 7.7, 99: 2.9},
}
_MAP = 1 / 1024  # of the array: a count of 8 bits for each block of 256 values


def _moved(workers: int, sparsity: int) -> float:
    """Share of the array that codec `nonzero` sums: the blocks that some rank has, and the map."""
    return 1 - (1 - _DENSITIES[sparsity]) ** workers + _MAP


def _compute() -> Mapping[str, float]:
    dense, sparse = _moved(2, 0), _moved(2, 99)
    slope = (_MS[2][0] - _MS[2][99]) / (dense - sparse)
    start = _MS[2][0] - slope * dense
    return {
        f"{workers} workers, {sparsity} % zeros": start + slope * _moved(workers, sparsity)
        for workers in _WORKERS
        for sparsity in _DENSITIES
    }


RESULT = Published(
    name="omnireduce",
    title="OmniReduce: sparse allreduce",
    paper="Fei et al., Efficient Sparse Collective Communication and its Application to Accelerate Distributed Deep "
    "Learning, SIGCOMM",
    year=2021,
    source="figure 4, OmniReduce-GDR, as saved in notebook/benckmark-rdma.ipynb of sands-lab/omnireduce-experiments",
    conditions="100 MB tensors of blocks of 256 values, 100 Gb/s, as many aggregators as workers; blocks that aren't "
    "zero drawn by each worker at random",
    inputs="shares and sizes of blocks; our codec `nonzero`, which agrees on the blocks that some worker has and sums "
    "those, both ways",
    calibration="2 workers with 0 and 99 % zeros fix milliseconds per byte and per call",
    reading="medians of a plot, to 0.2 ms",
    unit="ms",
    cells=tuple(
        PublishedCell(
            f"{workers} workers, {sparsity} % zeros",
            milliseconds,
            f"{workers} workers",
            "calibrates" if workers == 2 and sparsity in (0, 99) else "judged",
        )
        for workers, row in _MS.items()
        for sparsity, milliseconds in row.items()
    ),
    compute=_compute,
    because="an OmniReduce worker sends only its own blocks that aren't zero and receives the union; ours must send "
    "the union too, and on a link that is as fast each way that costs nothing: their time follows the sum of the two, "
    "as if both passed one PCIe bus",
)
