"""Gains of each method for a run over the best host method on the same links, with the noise floor of that figure.

The result is a document of plain values, `SCHEMA`; page, figure and table are made from it alone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from hashlib import sha256
from math import hypot, inf
from typing import Any

from emulation.experiments.cells import Cell, CellStore, Record, run_cells, version
from emulation.experiments.progress_text import Log
from emulation.experiments.whatif.call_cost import (
    DIRECT_WORKERS,
    HOST_KEYS,
    CallCost,
    HostLink,
    call_cost,
    needs_of,
    scenario_of,
)
from emulation.experiments.whatif.forecast import MEASURED, SETTLING, Cost, Forecast, ForecastLimits, forecast
from emulation.experiments.whatif.recorded_run import RecordedCollective, RecordedRun
from emulation.scenario.errors import RunFailed
from emulation.scenario.profiles.profile_errors import ProfileError
from emulation.scenario.scenario_tables import AUTO, FIDELITY_LEVELS, PACKET_KEYS
from emulation.testbed.certificate.fidelity import rate_text
from switchagg.description import COMBINING, Kind
from switchagg.option_syntax import choices
from transport.group.method_name import MethodName, parse
from transport.ps.config import BSP
from transport.schedule.profile import LinearCost
from transport.schedule.schedule_model import NO_OVERHEAD, TransferOverhead
from transport.schedule.schedule_table import parse_policy

SCHEMA = "switchagg-whatif-2"
HOSTS = ("ring", "halving_doubling", "double_tree", "direct")
"""The methods from which `auto` chooses for each call; they and `auto` are the baselines."""
METHODS = (
    "switch",
    "switch~lanes16",
    "switch~lanes8",
    "auto~bf16",
    "auto~topk:ratio=0.01",
    "auto+bytescheduler",
    "switch+bytescheduler",
    "switch~lanes8+bytescheduler",
)
RATES_BPS = (10_000_000_000, 25_000_000_000, 100_000_000_000)
SIXTEEN_BITS = {"bfloat16": "bf16", "float16": "fp16"}
FLOOR = 2.0
"""A gain within so many standard deviations between seeds, of baseline and method together, isn't resolved."""
HIDDEN = 0.02
"""A run that waits for communication for less than this share of an iteration is limited by computing."""
_UNITS = {"gb/s": 1e9, "gbps": 1e9, "gbit": 1e9, "mb/s": 1e6, "mbps": 1e6, "mbit": 1e6, "tb/s": 1e12, "": 0.0}
_RATE = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*([a-z/]*)\s*")


@dataclass(frozen=True)
class Question:
    """A question about a run. delay_ns: of every link, one way. keys: of a scenario's [hosts] and [ps]. jitter: instead
    of the run's own; None: that. fidelity_level: as of a `Link`. limit_s: after which methods are left out; 0: none."""

    rates_bps: tuple[int, ...] = RATES_BPS
    methods: tuple[str, ...] = METHODS
    seeds: int = 5
    delay_ns: int = 1_000
    keys: Mapping[str, int | str] = field(default_factory=lambda: HOST_KEYS["tcp"])
    jitter: float | None = None
    fidelity_level: str = AUTO
    limit_s: float = 0.0


@dataclass(frozen=True)
class ForecastCell(Cell):
    """A method on a link. seeds: how many. deadline_s: by time.monotonic(), after which it isn't forecast."""

    run: RecordedRun
    method: MethodName
    link: HostLink
    seeds: int
    version: str
    deadline_s: float = inf
    code = "whatif"

    @property
    def title(self) -> str:  # type: ignore[override]
        return f"{rate_text(self.link.rate_bps)}: {self.method}"

    @property
    def decides(self) -> Record:
        run = sha256(repr(self.run).encode()).hexdigest()
        return {"run": run, "method": str(self.method), "link": asdict(self.link), "seeds": self.seeds}

    def check(self) -> None:
        """Raises TimeoutError after the deadline."""
        if time.monotonic() > self.deadline_s:
            raise TimeoutError


def parse_rates(text: str) -> tuple[int, ...]:
    """The rates in "10,25,100Gb/s": a number without a unit has the next one's. Raises ValueError."""
    rates: list[int] = []
    unit = 0.0
    for part in reversed(text.lower().split(",")):
        match = _RATE.fullmatch(part)
        unit = (_UNITS.get(match[2], -1.0) or unit) if match else -1.0
        if match is None or unit <= 0 or not 1e6 <= float(match[1]) * unit <= 4e11:
            raise ValueError(f"{part.strip()[:40]!r} is no rate; allowed: 1Mb/s to 400Gb/s, as in 10,25,100Gb/s")
        rates.append(round(float(match[1]) * unit))
    return tuple(reversed(rates))


def gains(
    run: RecordedRun,
    question: Question,
    log: Log = lambda _: None,
    *,
    store: CellStore | None = None,
    jobs: int = 1,
) -> dict[str, Any]:
    """The document. store, jobs: as of `run_cells`. It raises ValueError for an unknown method, ProfileError."""
    if question.jitter is not None:
        run = replace(run, jitter=question.jitter, measured=False)
    if question.fidelity_level not in FIDELITY_LEVELS:
        known = choices(question.fidelity_level, FIDELITY_LEVELS)
        raise ValueError(f"--fidelity-level {question.fidelity_level}: unknown{known}")
    if (mode := question.keys.get("ps.mode", BSP)) != BSP:
        raise ValueError(f"ps.mode: {mode}: in a forecast servers wait for all workers; allowed: {BSP}")
    if packets := next((key for key in question.keys if key.removeprefix("hosts.") in PACKET_KEYS), ""):
        raise ValueError(f"{packets}: a forecast knows transfers, and no packets; allowed: other keys of [hosts]")
    methods = [parse(text, virtual=True) for text in question.methods]
    hosts = [parse(f"{name}{_sent_codec(run)}") for name in (*HOSTS, "auto")]
    names = list(dict.fromkeys([*hosts, *methods]))
    store = store or CellStore()
    deadline_s = time.monotonic() + question.limit_s if question.limit_s else inf
    cells_by_rate: dict[int, list[ForecastCell]] = {}
    for rate_bps in question.rates_bps:
        link = HostLink(rate_bps, question.delay_ns, tuple(question.keys.items()), question.fidelity_level)
        scenario_of(link, run.workers, hosts[0])  # wrong keys are wrong for all methods
        cells_by_rate[rate_bps] = [
            ForecastCell(run, name, link, question.seeds, version("whatif"), deadline_s) for name in names
        ]
    cells = [cell for rate_cells in cells_by_rate.values() for cell in rate_cells]
    failed = run_cells(cells, forecast_cell, store, log, jobs=jobs, outcome=_outcome)
    links, left_out = [], dict[str, str]()
    for rate_bps, rate_cells in cells_by_rate.items():
        late = [cell for cell in rate_cells if failed.get(cell.title) == LATE]
        if late:
            names_late = ", ".join(str(cell.method) for cell in late)
            left_out[f"{rate_text(rate_bps)}, {names_late}"] = f"the limit of {question.limit_s:g} s {LATE}"
        faulty = [cell for cell in rate_cells if cell.title in failed and cell not in late]
        left_out |= {str(cell.method): failed[cell.title] for cell in faulty}
        rows = [record["row"] for cell in rate_cells if (record := store.find(cell))]
        if not late or any(row["method"] in map(str, hosts) for row in rows):
            links.append(_compared(rate_bps, rows, {str(name) for name in hosts}))
    if not links:
        raise ProfileError(f"{run.name}: no method was forecast within {question.limit_s:g} s; raise --limit, ask less")
    return {
        "schema": SCHEMA,
        "run": {
            "name": run.name,
            "workers": run.workers,
            "compute_ns": run.compute_ns,
            "slowest_ns": forecast(run, lambda collective: (0.0, NO_OVERHEAD), range(1, question.seeds + 1)).mean_ns,
            "exchanged_bytes": run.size_bytes,
            "collectives": len(run.collectives),
            "jitter": run.jitter,
            "jitter_measured": run.measured,
            "sent_as": run.sent_as or "float32",
            "notes": list(run.notes),
        },
        "question": {
            "seeds": question.seeds,
            "delay_ns": question.delay_ns,
            "keys": dict(question.keys),
            "iterations": MEASURED,
            "settling": SETTLING,
        },
        "links": links,
        "left_out": left_out,
    }


def _sent_codec(run: RecordedRun) -> str:
    """The codec of a baseline: a run that sends 16 bits isn't compared with 32."""
    return f"~{SIXTEEN_BITS[run.sent_as]}" if run.sent_as else ""


LATE = "was reached (--limit)"


def forecast_cell(cell: ForecastCell) -> Record:
    """The row of a cell. Raises RunFailed where there is none: the run has nothing for the method's schedule, or the
    limit was reached (`LATE`)."""
    try:
        cell.check()
        return {"row": _row(cell)}
    except TimeoutError as error:
        raise RunFailed(LATE) from error
    except ValueError as error:
        raise RunFailed(str(error)) from error


def _outcome(record: Record) -> str:
    return f"{record['row']['iteration_ns'] / 1e6:.3g} ms"


def _row(cell: ForecastCell) -> dict[str, Any]:
    run, name, link = cell.run, cell.method, cell.link
    seeds = range(1, cell.seeds + 1)

    def forecast_if(
        latency: float = 1.0, link_time: float = 1.0, *, windows: bool = True, few: bool = True
    ) -> Forecast:
        weights = GainWeights(latency, link_time, windows)
        changed, cost, limits = rank_costs(run, name, link, weights)
        return forecast(changed, cost, seeds[:1] if few else seeds, replace(limits, check=cell.check))

    full = forecast_if(few=False)
    return {
        "method": str(name),
        "iterations_ns": list(full.iterations_ns),
        "iteration_ns": full.mean_ns,
        "spread": full.spread,
        "limit": _limit(forecast_if, slots=name.in_packets),
        "chosen": _chosen(run, name, link),
    }


@dataclass(frozen=True)
class GainWeights:
    """How much of latency and of time on links counts; windows: whether those of a switch's method hold it up."""

    latency: float = 1.0
    link_time: float = 1.0
    windows: bool = True


def rank_costs(
    run: RecordedRun,
    name: MethodName,
    link: HostLink,
    weights: GainWeights = GainWeights(),  # it is frozen
) -> tuple[RecordedRun, Cost, ForecastLimits]:
    """The run by a method, the costs of its collectives, and their limits, for `forecast`. Raises ValueError as
    `scheduled`."""
    credit_ns = None
    if name.schedule:
        policy = parse_policy(name.schedule)
        unit_cost = _cost_of(name, RecordedCollective("allreduce", 0, run.workers, 0, 0), link)
        run = run.scheduled(policy, LinearCost(unit_cost.alpha_ns, unit_cost.beta_ns_per_byte))
        if policy.credit_bytes is not None and not name.in_packets:
            credit_ns = policy.credit_bytes * unit_cost.beta_ns_per_byte
        elif any(collective.priority for collective in run.collectives):
            credit_ns = 1.0  # a switch's streams: urgent calls overtake at once, but for calls that have begun

    keys = dict(link.keys)

    def cost(collective: RecordedCollective) -> tuple[float, TransferOverhead]:
        return of_kind(collective.kind, collective.size_bytes, collective.ranks)

    @cache  # many exchanges are alike
    def of_kind(kind: Kind, size_bytes: int, ranks: int) -> tuple[float, TransferOverhead]:
        collective = RecordedCollective(kind, size_bytes, ranks, 0, 0)
        call = _cost_of(name, collective, link, collective.size_bytes)
        beta = call.beta_ns_per_byte if weights.windows else call.bound_ns_per_byte
        after_ns = weights.latency * call.later_ns(collective.size_bytes)
        needs = needs_of(
            name, collective.kind, collective.ranks, link, collective.size_bytes, beta * collective.size_bytes
        )
        link_ns = weights.link_time * beta * collective.size_bytes / (1 + needs.late_share)
        # A switch's stream agrees on the next call's scales once this one's are there: no overlap between calls.
        if name.in_packets:
            return link_ns + after_ns, TransferOverhead()
        host_ns = weights.latency * max(needs.host_ns, int(keys.get("hosts.call_ns", 0)))
        return link_ns, TransferOverhead(host_ns, link_ns * needs.late_share, after_ns)

    return run, cost, ForecastLimits(credit_ns, int(keys.get("hosts.calls_at_once", 0)))


def _limit(forecast_if: Callable[..., Forecast], slots: bool) -> str:
    """The resource without which an iteration would gain most. slots: whether its method has windows of slots."""
    now_ns = forecast_if().mean_ns
    exposed_ns = now_ns - forecast_if(latency=0.0, link_time=0.0).mean_ns
    if exposed_ns < HIDDEN * now_ns:
        return "compute"
    if slots and now_ns - forecast_if(windows=False).mean_ns > 0.1 * exposed_ns:
        return "slots"
    without_latency, without_link = forecast_if(latency=0.0), forecast_if(link_time=0.0)
    return "latency" if without_latency.mean_ns < without_link.mean_ns else "link"


def _hosts_of(name: MethodName) -> list[MethodName]:
    return [replace(name, method=host) for host in HOSTS] if name.method == "auto" else [name]


def _cost_of(name: MethodName, collective: RecordedCollective, link: HostLink, size_bytes: int = 1 << 24) -> CallCost:
    """auto: the cheapest for so many bytes. A codec is of sums alone."""
    plain = name if collective.kind in COMBINING else replace(name, codec="")
    costs = [
        call_cost(replace(method, schedule=""), collective.kind, collective.ranks, link)
        for method in _hosts_of(plain)
        if method.method != "direct" or collective.ranks <= DIRECT_WORKERS or name.method == "direct"
    ]
    return min(costs, key=lambda cost: cost.time_ns(size_bytes))


def _chosen(run: RecordedRun, name: MethodName, link: HostLink) -> str:
    """The methods that auto takes, most often first; "" for other methods."""
    if name.method != "auto":
        return ""
    counts: dict[str, int] = {}
    for collective in run.collectives:
        cost = partial(_cost_of, collective=collective, link=link, size_bytes=collective.size_bytes)
        hosts = [
            method for method in _hosts_of(name) if method.method != "direct" or collective.ranks <= DIRECT_WORKERS
        ]
        best = min(hosts, key=lambda method: cost(method).time_ns(collective.size_bytes))
        counts[best.method] = counts.get(best.method, 0) + 1
    return " and ".join(sorted(counts, key=lambda method: -counts[method]))


def _compared(rate_bps: int, rows: Sequence[dict[str, Any]], hosts: set[str]) -> dict[str, Any]:
    """The rows of a link with what each gains over the fastest of `hosts`, as a share of its iteration."""
    candidates = [row for row in rows if row["method"] in hosts]
    if not candidates:
        raise ProfileError("no host method can be forecast for this run")
    base = min(candidates, key=lambda row: row["iteration_ns"])
    for row in rows:
        row["gain"] = 1 - row["iteration_ns"] / base["iteration_ns"]
        row["floor"] = FLOOR * hypot(base["spread"], row["spread"]) * row["iteration_ns"] / base["iteration_ns"]
        row["resolved"] = abs(row["gain"]) > row["floor"]
    return {"rate_bps": rate_bps, "baseline": base["method"], "rows": list(rows)}


def words(row: dict[str, Any]) -> str:
    """A row's gain for people."""
    text = f"{100 * row['gain']:+.1f} % ± {100 * row['floor']:.1f}"
    return text if row["resolved"] else f"unresolved ({text})"
