"""Networks with all that is measured on them, as a command asks for them; parts of a benchmark, written and drawn."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emulation.experiments.bench import codec_times, document, plane_times
from emulation.experiments.bench.allreduce import bench_methods
from emulation.experiments.bench.allreduce.allreduce_cells import BenchRequest, OperationPace, measure
from emulation.experiments.bench.allreduce.answer import SUMMARY_HEADS, summary
from emulation.experiments.bench.allreduce.bench_methods import BenchMethod
from emulation.experiments.bench.document import MachineLoad, write
from emulation.experiments.cells import CELLS, Cell, CellStore, Record, run_cells, version
from emulation.experiments.progress_text import Log, Passing
from emulation.report.table_kit import columns
from emulation.results.results import plain
from emulation.scenario.bounds import elements_most, elements_that_fit
from emulation.scenario.errors import RunFailed
from emulation.scenario.scenario import ALLREDUCE, Scenario, ScenarioError
from emulation.scenario.scenario_tables import Faults, Methods, SwitchSettings, TopologyOptions, WorkloadOptions
from emulation.scenario.sweep_axes import SweepAxes
from emulation.testbed.certificate.fidelity import rate_text
from emulation.testbed.mininet.launch import BY_SWITCH
from emulation.testbed.mininet.shaping import NetworkSpec, UnfitError
from switchagg.option_syntax import choices

if TYPE_CHECKING:
    from emulation.experiments.bench.bench_figures import BenchFigure

OnRow = Callable[[dict[str, Any], dict[str, Any]], None]
Measure = Callable[[bool, Log, OnRow, CellStore], Any]
"""measure(quick, log, on_row, store): a part of a benchmark. store: of the cells of networks."""

DTYPES = ("float32", "int32")


@dataclass(frozen=True)
class BenchMatrix:
    """The matrix of a command: every method at every size, on a network for every number of workers and rate.

    methods, dataplane, congestion_control: as `bench_methods.parse` has them. elements None: as many as fill the MTU.
    iterations 0: as many as the pace has time for. loss, loss_by: as in BenchRequest. racks: so many
    with a leaf switch each, their up-links oversubscribed so many times; 0: one switch. verify: as of
    `switchagg.job.PacketTerms`.
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
    verify: str = "auto"

    def requests(self) -> list[BenchRequest]:
        """A request for each network. Raises ScenarioError, RunFailed."""
        if self.dtype not in DTYPES:
            raise ScenarioError(f"--dtype {self.dtype}: unknown{choices(self.dtype, DTYPES)}")
        mtu = self.mtu_bytes
        elements = elements_that_fit(mtu) if self.elements is None else self.elements
        if elements > (most := elements_most(mtu)):
            raise ScenarioError(f"--elements {elements}: an MTU of {mtu} bytes holds {most}")
        chosen, rivals = bench_methods.parse(self.methods, self.dataplane, self.congestion_control)
        try:
            scenarios = [self._scenario(n, rate, elements, chosen) for n in self.workers for rate in self.rates]
            for scenario in scenarios:
                scenario.links("switch")
        except ValueError as error:
            raise ScenarioError(f"--racks {self.racks}: {error}") from error
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
        if self.verify != "auto":
            title += f", verify {self.verify}"
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
            switch=SwitchSettings(elements=elements, window_slots=self.window_slots, verify=self.verify),
            sweep=SweepAxes((("workload.bucket_bytes", sizes),)) if len(sizes) > 1 else SweepAxes(),
        )


@dataclass(frozen=True)
class NetworkCell(Cell):
    """All that is measured on a network."""

    request: BenchRequest
    version: str = field(default_factory=lambda: version("bench"))
    code = "bench"

    @property
    def title(self) -> str:  # type: ignore[override]
        return f"{self.request.scenario.title}, {self.request.dtype}"

    @property
    def decides(self) -> Record:
        request = self.request
        methods, rivals = ([method.name for method in group] for group in (request.methods, request.rivals))
        pace = {"dtype": request.dtype, "pace": asdict(request.pace)}
        return {"network": plain(request.record), "methods": methods, "rivals": sorted(rivals), **pace}


def run_allreduce(wanted: Sequence[BenchRequest], log: Log, on_row: OnRow, store: CellStore) -> list[dict[str, Any]]:
    """An entry for each network, measured one after the other; of a network that can't be had, with the reason.

    store: of those that an interrupted command has measured. Raises UnfitError where no network can be had at all.
    """
    require()

    def measure_cell(cell: NetworkCell) -> Record:
        return {"entry": measure(cell.request, log, partial(on_row, cell.request.record))}

    cells = [NetworkCell(request) for request in wanted]
    failed = run_cells(cells, measure_cell, store, log)
    return [
        record["entry"]
        if (record := store.find(cell))
        else {**cell.request.record, "failures": {"network": failed[cell.title]}, "rows": []}
        for cell in cells
    ]


def require() -> None:
    """Raises UnfitError in one line where no network can be built: not root, or a program is missing."""
    from emulation.testbed.mininet import mininet_run

    if reason := mininet_run.missing():
        raise UnfitError(f"this benchmark needs emulated links: {reason.replace(', or run it with --on sim', '')}")


def run(
    measures: Mapping[str, Measure],
    quick: bool,
    out: Path,
    log: Log,
    print_line: Callable[[str], None],
    on_row: OnRow,
    drawing: Callable[[dict[str, Any], Path], list[Path]] | None = None,
) -> Iterator[str]:
    """Runs parts, writes OUT/bench.json after each and figures in the end; yields the lines of the summary.

    drawing: instead of `draw`. Other parts of a document that is there stay. Networks that have been measured are kept
    in OUT/cells until all is done. Raises UnfitError, RunFailed.
    """
    path, store = out / "bench.json", CellStore(out / CELLS)
    require_folder(out)
    other_parts = _other_parts(path, measures, quick)
    load, parts_document = MachineLoad(), dict(other_parts)
    for name, measure_part in measures.items():
        begun_s = time.monotonic()
        parts_document[name] = measure_part(quick, log, on_row, store)
        log(Passing(f"{name}: done in {time.monotonic() - begun_s:.0f} s"))
        write(path, document.build(parts_document, document.machine(), load.measures(), quick))
        print_line("")
    built = document.read(path)
    if rows := summary(built):
        yield from columns(SUMMARY_HEADS, rows)
    for figure in (drawing or draw)(built, out):
        yield str(figure)
    yield str(path)
    failed, gave_up = document.failures(parts_document, tuple(measures))
    yield from gave_up
    if failed:
        raise RunFailed(f"not everything could be measured: {'; '.join(failed)}")
    store.clear(version("bench"))


MEASURES: dict[str, Measure] = {
    "planes": lambda quick, log, *_: plane_times.measure(quick, log),
    "numbers": lambda quick, log, *_: codec_times.measure(quick, log),
}
"""The parts that need no network."""


def require_folder(folder: Path) -> None:
    """Make the folder of results before anything is measured for it. Raises OSError: nothing can be written there."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def _other_parts(path: Path, parts: Iterable[str], quick: bool) -> dict[str, Any]:
    """Parts of an earlier run of the same extent that aren't measured now."""
    if not path.exists():
        return {}
    earlier = document.read(path)
    other_parts = {name: part for name, part in earlier["parts"].items() if name not in parts}
    if other_parts and earlier["quick"] != quick:
        raise RunFailed(f"{path} holds a {'quick' if earlier['quick'] else 'full'} run; give another folder with --out")
    return other_parts


def draw(built: dict[str, Any], out: Path, figures: Mapping[str, BenchFigure] | None = None) -> list[Path]:
    """Writes the figures that the document has numbers for, and a page with all of it. figures: in place of a user's
    benchmark's."""
    from emulation.experiments.bench import bench_figures
    from emulation.experiments.bench.bench_page import write_page
    from emulation.report import figure_kit

    figures = figures or bench_figures.FIGURES
    drawn = bench_figures.draw_all(built, figures)
    paths = [*figure_kit.write(drawn, out), out / "bench.html"]
    write_page(built, drawn, paths[-1], figures)
    return paths
