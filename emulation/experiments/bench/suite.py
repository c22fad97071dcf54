"""The parts of the benchmark, alone or all together: planes, numbers, unshaped, codecs, loss, racks, allreduce."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from emulation.experiments.bench import bandwidths, document
from emulation.experiments.bench.allreduce import bench_methods
from emulation.experiments.bench.allreduce.allreduce_cells import ROUNDS, BenchRequest, OperationPace, measure
from emulation.experiments.bench.allreduce.answer import SUMMARY_HEADS, summary
from emulation.experiments.bench.allreduce.bench_methods import BenchMethod
from emulation.experiments.bench.document import MachineLoad, write
from emulation.report.table_kit import columns
from emulation.scenario.bounds import elements_most, elements_that_fit
from emulation.scenario.errors import RunFailed
from emulation.scenario.scenario import ALLREDUCE, Scenario, ScenarioError
from emulation.scenario.scenario_tables import Faults, Methods, SwitchSettings, TopologyOptions, WorkloadOptions
from emulation.scenario.sweep_axes import SweepAxes
from emulation.testbed.certificate.fidelity import rate_text
from emulation.testbed.mininet.launch import BY_LINKS, BY_SWITCH
from emulation.testbed.mininet.shaping import NetworkSpec, UnfitError

Log = Callable[[str], None]
OnRow = Callable[[dict[str, Any], dict[str, Any]], None]

PARTS = (
    "planes",
    "numbers",
    "unshaped",
    "codecs",
    "loss",
    "racks",
    "allreduce",
)
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
    "allreduce": (0.8, 14),
}
DTYPES = ("float32", "int32")


@dataclass(frozen=True)
class BenchMatrix:
    """The matrix of a command: every method at every size, on a network for every number of workers and rate.

    methods, dataplane, congestion_control: as `bench_methods.parse` has them. elements None: as many as fill the MTU.
    iterations 0: as many as the pace has time for. loss, loss_by: as in BenchRequest. racks: so many
    with a leaf switch each, their up-links oversubscribed so many times; 0: one switch.
    """

    workers: Sequence[int]
    rates: Sequence[int]  # bit/s; 0: unshaped
    sizes: Sequence[int]  # bytes
    methods: str
    dataplane: str = "auto"
    congestion_control: Sequence[str] = ("best",)
    dtype: str = "float32"
    elements: int | None = None
    window_slots: int = 256
    mtu_bytes: int = 1500
    segments_max: int | None = None  # at None, as many as the links' burst holds
    iterations: int = 0
    warmup: int = 1
    pace: OperationPace = field(default_factory=OperationPace)
    loss: float = 0.0
    loss_by: str | None = None
    racks: int = 0
    oversubscription: float = 1.0

    def requests(self) -> list[BenchRequest]:
        """A request for each network. Raises ScenarioError, RunFailed."""
        if self.dtype not in DTYPES:
            raise ScenarioError(f"--dtype {self.dtype}: unknown; allowed: {', '.join(DTYPES)}")
        mtu = self.mtu_bytes
        elements = elements_that_fit(mtu) if self.elements is None else self.elements
        if elements > (most := elements_most(mtu)):
            raise ScenarioError(f"--elements {elements}: an MTU of {mtu} bytes holds {most}")
        chosen, rivals = bench_methods.parse(self.methods, self.dataplane, self.congestion_control)
        scenarios = [self._scenario(n, rate, elements, chosen) for n in self.workers for rate in self.rates]
        return [
            BenchRequest(
                scenario,
                tuple(chosen),
                frozenset(rivals),
                self.dtype,
                self.pace,
                self.segments_max or NetworkSpec.from_scenario(scenario).segments_max,
                self.loss_by,
            )
            for scenario in scenarios
        ]

    def _scenario(self, workers: int, rate_bps: int, elements: int, chosen: Sequence[BenchMethod]) -> Scenario:
        """The scenario of a network with all that is measured on it."""
        title = f"n = {workers}, {rate_text(rate_bps) if rate_bps else 'unshaped'}"
        if self.loss_by:
            title += f", {100 * self.loss:g} % lost{' in the switch' if self.loss_by == BY_SWITCH else ''}"
        sizes, topology = (
            tuple(self.sizes),
            TopologyOptions(workers=workers, rate_bps=rate_bps, mtu_bytes=self.mtu_bytes),
        )
        if self.racks:
            title += f", {self.racks} racks, up-links {self.oversubscription:g}:1"
            topology = replace(
                topology, kind="leaf_spine", racks=self.racks, oversubscription=float(self.oversubscription)
            )
        return Scenario(
            name=ALLREDUCE,
            title=title,
            seed=1,
            methods=Methods(mininet=tuple(dict.fromkeys(method.method for method in chosen)), sim=()),
            topology=topology,
            faults=Faults(loss=self.loss),
            workload=WorkloadOptions(ALLREDUCE, self.iterations, self.warmup, bucket_bytes=max(sizes), compute_ns=0),
            switch=SwitchSettings(elements=elements, window_slots=self.window_slots),
            sweep=SweepAxes((("workload.bucket_bytes", sizes),)) if len(sizes) > 1 else SweepAxes(),
        )


def run_allreduce(wanted: Sequence[BenchRequest], log: Log, on_row: OnRow) -> dict[str, Any]:
    """Networks one after the other; a network that can't be had is an entry with its reason. Raises UnfitError if none
    can: the reason is the machine's."""
    require()
    load, networks = MachineLoad(), []
    for request in wanted:
        networks.append(measure(request, log, partial(on_row, request.record)))
    return {"networks": networks, "load": load.measures()}


def require() -> None:
    """Raises UnfitError in one line where no network can be built: not root, or a program is missing."""
    from emulation.testbed.mininet import mininet_run

    if reason := mininet_run.missing():
        raise UnfitError(f"this benchmark needs emulated links: {reason.replace(', or run it with --on sim', '')}")


def documented(parts: dict[str, Any], load: dict[str, Any], quick: bool = False) -> dict[str, Any]:
    """The document of some parts, with the facts of this machine."""
    return document.build(parts, document.machine(), load, quick)


def run(
    parts: Sequence[str], quick: bool, out: Path, log: Log, print_line: Callable[[str], None], on_row: OnRow
) -> Iterator[str]:
    """Runs parts, writes OUT/bench.json after each and figures in the end; yields the lines of the summary.

    Alone, a part replaces its own in a document that is there, and the others stay. Raises UnfitError, RunFailed.
    """
    path = out / "bench.json"
    if any(part in ("unshaped", "codecs", "loss", "racks", "allreduce") for part in parts):
        require()
    minutes = {part: MINUTES[part][0 if quick else 1] for part in parts}
    log(
        f"{len(parts)} of {len(PARTS)} parts, about {sum(minutes.values()):.0f} minutes: "
        + ", ".join(f"{part} ({most:g} min)" for part, most in minutes.items())
        + f"; results in {path}"
    )
    require_folder(out)
    other_parts = _other_parts(path, parts, quick)
    load, parts_document = MachineLoad(), dict(other_parts)
    for part in parts:
        begun_s = time.monotonic()
        parts_document[part] = MEASURES[part](quick, log, on_row)
        log(f"{part}: done in {time.monotonic() - begun_s:.0f} s")
        write(path, documented(parts_document, load.measures(), quick))
        print_line("")
    built = document.read(path)
    if rows := summary(built):
        yield from columns(SUMMARY_HEADS, rows)
    for figure in draw(built, out):
        yield str(figure)
    yield str(path)
    failed, gave_up = document.failures(parts_document, parts)
    yield from gave_up
    if failed:
        raise RunFailed(f"not everything could be measured: {'; '.join(failed)}")


def require_folder(folder: Path) -> None:
    """Make the folder of results before anything is measured for it. Raises OSError: nothing can be written there."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def _other_parts(path: Path, parts: Sequence[str], quick: bool) -> dict[str, Any]:
    """Parts of an earlier run of the same extent that aren't measured now."""
    if not path.exists() or set(parts) == set(PARTS):
        return {}
    earlier = document.read(path)
    if earlier["quick"] != quick:
        raise RunFailed(f"{path} holds a {'quick' if earlier['quick'] else 'full'} run; give another folder with --out")
    return {name: part for name, part in earlier["parts"].items() if name not in parts}


def draw(built: dict[str, Any], out: Path) -> list[Path]:
    """Writes the figures that the document has numbers for, and a page with all of it."""
    from emulation.experiments.bench.bench_figures import draw_all
    from emulation.experiments.bench.bench_page import write_page
    from emulation.report import figure_kit

    figures = draw_all(built)
    paths = [*figure_kit.write(figures, out), out / "bench.html"]
    write_page(built, figures, paths[-1])
    return paths


# ---- the parts


def _planes(quick: bool, log: Log, _on_row: OnRow) -> dict[str, Any]:
    from emulation.experiments.bench import plane_times

    return plane_times.measure(quick, log)


def _numbers(quick: bool, log: Log, _on_row: OnRow) -> dict[str, Any]:
    from emulation.experiments.bench import codec_times

    return codec_times.measure(quick, log)


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


def _allreduce(quick: bool, log: Log, on_row: OnRow) -> list[dict[str, Any]]:
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
    return [*run_allreduce(wanted, log, on_row)["networks"], *_left_out(log)]


def _unshaped(quick: bool, log: Log, on_row: OnRow) -> list[dict[str, Any]]:
    wanted = BenchMatrix(
        (4,) if quick else WORKERS,
        [0],
        QUICK_SIZES if quick else bandwidths.MATRIX_SIZES,
        f"{_switches()},{HOSTS}",
        window_slots=WINDOW_SLOTS,
        pace=OperationPace(cell_s=0.2 if quick else 1.0),
    ).requests()
    return [*run_allreduce(wanted, log, on_row)["networks"], *_left_out(log)]


def _codecs(quick: bool, log: Log, on_row: OnRow) -> list[dict[str, Any]]:
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
    networks: list[dict[str, Any]] = run_allreduce(wanted, log, on_row)["networks"]
    return networks


def _loss(quick: bool, log: Log, on_row: OnRow) -> list[dict[str, Any]]:
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
            entries += run_allreduce(wanted, log, on_row)["networks"]
    return entries


def _racks(quick: bool, log: Log, on_row: OnRow) -> list[dict[str, Any]]:
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
    networks: list[dict[str, Any]] = run_allreduce(wanted, log, on_row)["networks"]
    return networks


MEASURES: dict[str, Callable[[bool, Log, OnRow], Any]] = {
    "planes": _planes,
    "numbers": _numbers,
    "unshaped": _unshaped,
    "codecs": _codecs,
    "loss": _loss,
    "racks": _racks,
    "allreduce": _allreduce,
}
