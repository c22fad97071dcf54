"""The benchmark of `make bench`: data planes, codecs, and allreduce on fixed networks, whose results stand in docs/.

One network is `switchagg bench allreduce`; here are all those whose results are kept beside each other.
"""

from __future__ import annotations

from typing import Any

from emulation.experiments.bench import bandwidths
from emulation.experiments.bench.allreduce import bench_methods
from emulation.experiments.bench.allreduce.allreduce_cells import ROUNDS, BenchRequest, OperationPace
from emulation.experiments.bench.bench_run import MEASURES, BenchMatrix, Measure, OnRow, run_allreduce
from emulation.experiments.cells import CellStore
from emulation.experiments.progress_text import Log
from emulation.testbed.mininet.launch import BY_LINKS, BY_SWITCH

RATES = (100_000_000, 200_000_000, 500_000_000, 1_000_000_000)
WORKERS = (2, 4, 8)
XDP_WORKER_BPS_MOST = 2_000_000_000  # all workers' rates together: beyond, two cores give out packet by packet
LOSSES = (0.0, 0.0001, 0.001, 0.01, 0.05)
RACK_WORKERS, RACKS, RACK_RATE_BPS, OVERSUBSCRIPTIONS = 8, 2, 200_000_000, (1, 4)
LOSS_RATE_BPS, LOSS_WORKERS, LOSS_BYTES = 200_000_000, 4, 4_000_000
WINDOW_SLOTS = 512
"""6 ms at 1 Gb/s: longer than a turn of nine processes on two cores, which 256 slots are not. Runs with loss have
fewer: a window is what queues at a link, 31 ms at 200 Mb/s, and each repair waits behind it."""
CODEC_WORKERS, CODEC_RATES = 4, (200_000_000, 1_000_000_000, 0)
QUICK_SIZES = (4096, 1_048_576, 25 * bandwidths.MEGABYTE)
HOSTS = "gloo:kernel,gloo,ring"  # Gloo as it comes, and with the better of cubic and bbr
MINUTES = {
    "planes": (0.3, 1),
    "numbers": (0.1, 0.5),
    "unshaped": (0.4, 2),
    "codecs": (0.9, 2.5),
    "loss": (1, 4),
    "racks": (0.4, 1),
    "verified": (0.4, 1.5),
    "exact": (0.6, 1.5),
    "allreduce": (0.8, 14),
}
"""Of a quick run and of a whole one."""
QUICK_PARTS = ("planes", "numbers", "unshaped", "allreduce")
"""Of a quick run that names none: two minutes."""


def _switches() -> str:
    """Our own methods that this machine can run, fastest first."""
    names = [f"switch:{bench_methods.resolve_plane('auto')}"]
    if not xdp_missing():
        names.append("switch:xdp")
    return ",".join(names)


def _left_out(log: Log) -> list[dict[str, Any]]:
    """An entry with the reason why the data plane xdp isn't among the methods; none if it is."""
    if not (reason := xdp_missing()):
        return []
    log(f"switch:xdp: left out: {reason}")
    return [{"title": "switch:xdp", "failures": {"switch:xdp": reason}, "rows": []}]


def xdp_missing() -> str:
    """Why the data plane xdp can't be measured here; "" if it can."""
    from switchagg.native import bpf, library

    return library.missing() or bpf.missing()


def _allreduce(quick: bool, log: Log, on_row: OnRow, store: CellStore) -> list[dict[str, Any]]:
    wanted: list[BenchRequest] = []
    shapes = ((2, 200_000_000), (4, 1_000_000_000))
    for workers, rate in shapes if quick else [(workers, rate) for workers in WORKERS for rate in RATES]:
        switch_names = _switches()
        if workers * rate > XDP_WORKER_BPS_MOST:
            switch_names = switch_names.removesuffix(",switch:xdp")
        wanted += BenchMatrix(
            [workers],
            [rate],
            QUICK_SIZES if quick else bandwidths.MATRIX_SIZES,
            f"{switch_names},{HOSTS}",
            window_slots=WINDOW_SLOTS,
            pace=OperationPace(cell_s=0.2, rounds=2) if quick else OperationPace(cell_s=0.6),
        ).requests()
    return [*run_allreduce(wanted, log, on_row, store), *_left_out(log)]


def _unshaped(quick: bool, log: Log, on_row: OnRow, store: CellStore) -> list[dict[str, Any]]:
    wanted = BenchMatrix(
        (4,) if quick else WORKERS,
        [0],
        QUICK_SIZES if quick else bandwidths.MATRIX_SIZES,
        f"{_switches()},{HOSTS}",
        window_slots=WINDOW_SLOTS,
        pace=OperationPace(cell_s=0.2 if quick else 1.0),
    ).requests()
    return [*run_allreduce(wanted, log, on_row, store), *_left_out(log)]


def _codecs(quick: bool, log: Log, on_row: OnRow, store: CellStore) -> list[dict[str, Any]]:
    """The part `codecs`: equal counts in lanes, float32 and int32; ranks of one network sum arrays of one type."""
    plane = bench_methods.resolve_plane("auto")
    switch_names = f"switch:{plane},switch~lanes8:{plane},switch~lanes16:{plane}"
    wanted: list[BenchRequest] = []
    for rate in CODEC_RATES[1:] if quick else CODEC_RATES:
        hosts = "gloo,gloo~bf16" if rate else "ring,ring~lanes8"
        for dtype, names in (("float32", f"{switch_names},{hosts}"), ("int32", f"switch:{plane}")):
            wanted += BenchMatrix(
                [CODEC_WORKERS],
                [rate],
                [25 * bandwidths.MEGABYTE],
                names,
                dtype=dtype,
                window_slots=WINDOW_SLOTS,
                pace=OperationPace(cell_s=0.2, rounds=2) if quick else OperationPace(),
            ).requests()
    return run_allreduce(wanted, log, on_row, store)


def _loss(quick: bool, log: Log, on_row: OnRow, store: CellStore) -> list[dict[str, Any]]:
    """The same links with the same program at every interface; only its share of lost packets differs.

    The native switch can also lose packets itself, on links that keep their offloads; without BPF that is all there is.
    """
    from switchagg.native import bpf

    plane = bench_methods.resolve_plane("auto")
    entries: list[dict[str, Any]] = []
    arms = [(BY_LINKS, f"switch:{plane},gloo:cubic,gloo:bbr,ring:cubic,ring:bbr")]
    if plane == "native":
        arms.append((BY_SWITCH, "switch:native"))
    if reason := bpf.missing((bpf.LOSS,)):
        log(f"loss on the links, for all methods alike: left out: {reason}")
        del arms[0]
        entries.append({"title": "loss on the links", "failures": {"links": reason}, "rows": []})
    for loss_by, names in arms:
        for share in (0.0, 0.01) if quick else LOSSES:
            # a lossy connection opens its window to little, and slowly
            pace = OperationPace(cell_s=0.5 if quick else 4.0, rounds=2 if quick else ROUNDS, warmup_bytes=65_536)
            size_bytes = 1_000_000 if quick else LOSS_BYTES
            wanted = BenchMatrix(
                [LOSS_WORKERS], [LOSS_RATE_BPS], [size_bytes], names, pace=pace, loss=share, loss_by=loss_by
            ).requests()
            entries += run_allreduce(wanted, log, on_row, store)
    return entries


def _racks(quick: bool, log: Log, on_row: OnRow, store: CellStore) -> list[dict[str, Any]]:
    """Switches below a switch, beside a ring, over up-links as fast as their racks and as fast as one worker."""
    wanted: list[BenchRequest] = []
    for oversubscription in OVERSUBSCRIPTIONS:
        wanted += BenchMatrix(
            [RACK_WORKERS],
            [RACK_RATE_BPS],
            [4_000_000] if quick else [4_000_000, 25 * bandwidths.MEGABYTE],
            f"switch:{bench_methods.resolve_plane('auto')},ring",
            pace=OperationPace(cell_s=0.5, rounds=2) if quick else OperationPace(cell_s=2.0),
            racks=RACKS,
            oversubscription=oversubscription,
        ).requests()
    return run_allreduce(wanted, log, on_row, store)


def _verified(quick: bool, log: Log, on_row: OnRow, store: CellStore) -> list[dict[str, Any]]:
    """What tags cost a call (V4), bound 3 in E, and masks (X3): the same networks with and without them."""
    plane = bench_methods.resolve_plane("auto")
    switch = f"switch:{plane}"
    wanted: list[BenchRequest] = []
    for rate in CODEC_RATES[1:2] if quick else CODEC_RATES[:2]:
        for choice, names in (("off", switch), ("on", f"{switch},switch+secret:{plane}")):
            wanted += BenchMatrix(
                [CODEC_WORKERS],
                [rate],
                [25 * bandwidths.MEGABYTE],
                names,
                window_slots=WINDOW_SLOTS,
                pace=OperationPace(cell_s=0.2, rounds=2) if quick else OperationPace(cell_s=2.0),
                verify=choice,
            ).requests()
    return run_allreduce(wanted, log, on_row, store)


def _exact(quick: bool, log: Log, on_row: OnRow, store: CellStore) -> list[dict[str, Any]]:
    """What exact sums of values with a gradient's span cost, beside the same methods' own sums."""
    plane = bench_methods.resolve_plane("auto")
    wanted = BenchMatrix(
        [CODEC_WORKERS],
        CODEC_RATES[1:2] if quick else CODEC_RATES[:2],
        [25 * bandwidths.MEGABYTE],
        f"switch:{plane},switch~exact:{plane},ring,ring~exact,gloo,gloo~exact",
        window_slots=WINDOW_SLOTS,
        pace=OperationPace(cell_s=0.2, rounds=2) if quick else OperationPace(cell_s=2.0),
    ).requests()
    return run_allreduce(wanted, log, on_row, store)


PARTS: dict[str, Measure] = {
    **MEASURES,
    "unshaped": _unshaped,
    "codecs": _codecs,
    "loss": _loss,
    "racks": _racks,
    "verified": _verified,
    "exact": _exact,
    "allreduce": _allreduce,
}
