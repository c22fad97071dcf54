"""Measurements of ranks as rows, nccl-tests' table, CSV and JSON (columns: docs/your-run.md). The module is pure."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from emulation.experiments.bench import bandwidths
from emulation.experiments.bench.hosts.hosts_plan import AVERAGES, BASELINE, HostsPlan
from emulation.results.whole_file import whole_file
from emulation.scenario.bounds import NetworkParameters, coded_share, loads, payload_share
from emulation.testbed.certificate.fidelity import rate_text
from switchagg.description import COMBINING, KINDS
from switchagg.join import JobTerms
from transport.group.method_name import MethodName
from transport.links.link_kinds import LINKS

SCHEMA = "switchagg-hosts-2"
ELEMENTS = 360
"""Values of a packet that fills an MTU of 1500: those of the switch, unless it was started with others."""

_COLUMNS = (
    ("size", "(B)", 13),
    ("count", "(elements)", 12),
    ("type", "", 10),
    ("redop", "", 8),
    ("root", "", 6),
    ("time", "(us)", 9),
    ("algbw", "(GB/s)", 8),
    ("busbw", "(GB/s)", 8),
    ("#wrong", "", 8),
    ("method", "", 20),
    ("vs gloo", "", 12),
    ("CPU", "(us/rank)", 11),
    ("bound", "(%)", 7),
    ("25 % … 75 %", "(us)", 20),
)
"""nccl-tests' columns come first, as its own of one kind of buffer: title, unit, width."""


def _laid_out(cells: Sequence[str]) -> str:
    """To the right, but for the method's name."""
    both = zip(cells, _COLUMNS, strict=True)
    return "".join(
        f"  {cell:<{width - 2}}" if name == "method" else cell.rjust(width) for cell, (name, _, width) in both
    )


@dataclass(frozen=True)
class RankHost:
    """Where a rank runs. host: name of its machine. address, interface: what faces MASTER_ADDR; interface "" if it has
    none. remote: its way to the switch leaves the machine. facts: of the machine (emulation/testbed/host.py)."""

    rank: int
    host: str
    pid: int
    address: str
    interface: str
    mtu_bytes: int
    remote: bool
    facts: dict[str, Any]


@dataclass(frozen=True)
class MethodMeasurements:
    """A rank's measurements of a method at a size. times_ns, cpu_ns: of each operation, block by block; tx, rx:
    bytes of its interface in an operation, None without one. wrong: elements, None if nothing was checked. digests: of
    sums that need not be exact, but the same on all ranks. by_gloo: the method handed the collective to Gloo."""

    times_ns: list[list[float]]
    cpu_ns: list[float]
    tx: float | None
    rx: float | None
    wrong: int | None
    digests: tuple[int, ...]
    by_gloo: bool


@dataclass(frozen=True)
class RowContext:
    """Context that rows need beside measurements. remote: ranks that reach the switch over its host's link. verify:
    whether sums are verified (`switchagg.job.PacketTerms`)."""

    plan: HostsPlan
    workers: int
    mtu_bytes: int
    remote: int
    verify: str = "auto"

    @property
    def room(self) -> int:
        """Values of a packet beside a sum's tag."""
        return JobTerms(verify=self.verify).resolved(ELEMENTS, self.workers).room


def row(
    setting: RowContext,
    cycle: int,
    name: MethodName,
    count: int,
    ranks: Sequence[MethodMeasurements],
    baseline: Sequence[MethodMeasurements] | None,
) -> dict[str, Any]:
    """The row of a method at a size. baseline: Gloo's measurements, in turn with it; None in Gloo's row, or without."""
    plan, size = setting.plan, count * setting.plan.item_bytes
    blocks = combined(ranks, plan.average)
    times = [time_ns for block in blocks for time_ns in block]
    spread = bandwidths.spread(times)
    bandwidth = bandwidths.algbw(size, spread.median)
    by_gloo = any(rank.by_gloo for rank in ranks) or name.method == BASELINE
    wrong = [rank.wrong for rank in ranks if rank.wrong is not None]
    differ = sum(rank.digests != ranks[0].digests for rank in ranks)
    least = None if by_gloo and name.method != BASELINE else bound_ns(setting, name, size)
    return {
        "cycle": cycle,
        "size_bytes": size,
        "count": count,
        "type": plan.datatype,
        "redop": plan.redop,
        "root": plan.shown_root,
        "method": str(name),
        "carried_by": BASELINE if by_gloo else str(name),
        "time_ns": {**vars(spread), "mean": fmean(times), "all": times},
        "algbw_bytes_per_s": bandwidth,
        "busbw_bytes_per_s": bandwidth * plan.kind.factor(setting.workers) if by_gloo or not name.is_switch else None,
        "wrong_elements": sum(wrong) + differ if wrong else None,
        "speedup_over_gloo": None
        if baseline is None or by_gloo
        else speedup(spread, bandwidths.spread([*chain.from_iterable(combined(baseline, plan.average))])),
        "cpu_ns_per_rank": fmean(cpu_ns for rank in ranks for cpu_ns in rank.cpu_ns),
        "wire_tx_bytes": max((rank.tx for rank in ranks if rank.tx is not None), default=None),
        "wire_rx_bytes": max((rank.rx for rank in ranks if rank.rx is not None), default=None),
        "bound_ns": least,
        "share_of_bound": None if least is None else least / spread.median,
    }


def combined(ranks: Sequence[MethodMeasurements], average: int) -> list[list[float]]:
    """Times of operations, over the ranks as -a says, block by block."""
    of: Callable[[Sequence[float]], float] = (lambda times: times[0], fmean, min, max)[average]
    blocks = zip(*(rank.times_ns for rank in ranks), strict=True)
    return [[of(times) for times in zip(*block, strict=True)] for block in blocks]


def speedup(times: bandwidths.Spread, baseline: bandwidths.Spread) -> dict[str, Any]:
    """Gloo's median time over the method's, so the ratio of two times of the table. resolved: their quartiles don't
    overlap."""
    resolved = times.p75 < baseline.p25 or baseline.p75 < times.p25
    return {"ratio": baseline.median / times.median, "resolved": resolved}


def bound_ns(setting: RowContext, name: MethodName, size: int) -> float | None:
    """The least time on links of the named rate: every byte as often as the method must send it, framed.

    Ranks have a link each, and so has the switch, over which the values of all ranks of other hosts come. The answer is
    None without a rate, and for types of 64 bits.
    """
    plan, kind = setting.plan, setting.plan.kind.kind
    if not plan.link_bps or plan.item_bytes == 8:
        return None
    share, sums = float(payload_share(name, ELEMENTS, setting.mtu_bytes)), kind in COMBINING
    network = NetworkParameters(setting.workers, plan.link_bps, setting.mtu_bytes, ELEMENTS)
    if sums and name.method != BASELINE:  # 16-bit floats travel as float32
        size = size * 4 // plan.item_bytes
        dtype, tag_elements = "int32" if plan.datatype == "int32" else "float32", ELEMENTS - setting.room
        share *= coded_share(name, dtype, ELEMENTS, setting.workers, 0 if plan.op == "max" else tag_elements)
    arrays = plan.kind.factor(setting.workers)  # an all-to-all keeps this factor
    if kind in KINDS:
        routed = not name.in_packets or LINKS[name.link].header_only
        arrays = float(max(loads(name.method, network, kind if routed else "allreduce").values()))
    of_rank = arrays * size / share * 8e9 / plan.link_bps
    if not name.is_switch:
        return of_rank
    return max(of_rank, setting.remote * size / share * 8e9 / (plan.switch_link_bps or plan.link_bps))


def heading(setting: RowContext, places: Sequence[RankHost]) -> list[str]:
    """Lines above the table."""
    plan, hosts = setting.plan, dict.fromkeys(place.host for place in places)
    lines = [
        f"# {plan.collective}, {setting.workers} ranks: {plan.iters} operations of each method and size, in turn, "
        f"{min(plan.rounds, plan.iters)} blocks each after {plan.warmup_iters} that don't count; times "
        f"{AVERAGES[plan.average]}",
    ]
    for place in places:
        at = f"{place.address} on {place.interface}, MTU {place.mtu_bytes}" if place.interface else place.address
        control = place.facts["tcp_congestion_control"]
        lines.append(f"#  Rank {place.rank:>2} Pid {place.pid:>6} on {place.host}: {at}, TCP {control}")
    for host in hosts:
        here = [place for place in places if place.host == host]
        if len(here) > 1:
            lines.append(
                f"# {len(here)} ranks share {here[0].facts['cpus_usable']} CPU cores of {host}, as does what they send"
            )
    if len({place.address for place in places}) == 1:
        lines.append("# All ranks have one address: no network lies between them, and no method can save bytes on one")
    if plan.link_bps:
        lines.append(f"# Bound: on links of {rate_text(plan.link_bps)}, as --link says")
    heads = ([title for title, _, _ in _COLUMNS], [unit for _, unit, _ in _COLUMNS])
    return [*lines, "#", *("#" + _laid_out(head)[1:] for head in heads)]


def line(row_values: dict[str, Any]) -> str:
    """A row as a line of the table."""
    times, ratio = row_values["time_ns"], row_values["speedup_over_gloo"]
    method = row_values["method"] + ("[gloo]" if row_values["carried_by"] != row_values["method"] else "")
    wrong, share = row_values["wrong_elements"], row_values["share_of_bound"]
    return _laid_out(
        [
            *map(str, (row_values[key] for key in CSV_COLUMNS[1:6])),
            _us(times["median"]),
            _gb(row_values["algbw_bytes_per_s"]),
            _gb(row_values["busbw_bytes_per_s"]),
            "N/A" if wrong is None else str(wrong),
            method,
            _ratio(ratio),
            _us(row_values["cpu_ns_per_rank"]),
            "-" if share is None else f"{100 * share:.1f}",
            f"{_us(times['p25'])} … {_us(times['p75'])}",
        ]
    )


def closing(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Lines below the table: nccl-tests' last two."""
    wrong = sum(row_values["wrong_elements"] or 0 for row_values in rows)
    lines = [f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"]
    for method in dict.fromkeys(row_values["method"] for row_values in rows):
        busy = [row_values["busbw_bytes_per_s"] for row_values in rows if row_values["method"] == method]
        known = [rate for rate in busy if rate is not None]
        mean = f"{_gb(fmean(known))} GB/s" if len(known) == len(busy) else "not defined: it sends each byte once"
        lines.append(f"# Avg bus bandwidth    : {method} {mean}")
    return lines


def document(setting: RowContext, places: Sequence[RankHost], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The document that --json writes."""
    ranks = [{key: value for key, value in asdict(place).items() if key != "facts"} for place in places]
    machines = {place.host: place.facts for place in places}
    plan = asdict(setting.plan)
    return {"schema": SCHEMA, "plan": plan, "ranks": ranks, "machines": machines, "rows": list(rows)}


CSV_COLUMNS = (
    *("cycle", "size_bytes", "count", "type", "redop", "root", "method", "carried_by", "time_us", "time_mean_us"),
    *("time_min_us", "time_p25_us", "time_p75_us", "time_max_us", "operations", "algbw_GBps", "busbw_GBps", "wrong"),
    *("speedup_over_gloo", "speedup_resolved", "cpu_us_per_rank", "wire_tx_bytes", "wire_rx_bytes"),
    *("bound_us", "share_of_bound"),
)


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """A line for each row; what wasn't measured is empty. Raises OSError."""
    with whole_file(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(CSV_COLUMNS)
        for row_values in rows:
            writer.writerow(_cells(row_values))


def _cells(row_values: dict[str, Any]) -> list[Any]:
    times, busy, ratio = row_values["time_ns"], row_values["busbw_bytes_per_s"], row_values["speedup_over_gloo"]
    first = [row_values[key] for key in CSV_COLUMNS[:8]]  # as rows have them
    in_us = [times[key] / 1e3 for key in ("median", "mean", "least", "p25", "p75", "most")]
    least = row_values["bound_ns"]
    return [
        *first,
        *in_us,
        times["count"],
        row_values["algbw_bytes_per_s"] / 1e9,
        None if busy is None else busy / 1e9,
        row_values["wrong_elements"],
        None if ratio is None else ratio["ratio"],
        None if ratio is None else int(ratio["resolved"]),
        row_values["cpu_ns_per_rank"] / 1e3,
        row_values["wire_tx_bytes"],
        row_values["wire_rx_bytes"],
        None if least is None else least / 1e3,
        row_values["share_of_bound"],
    ]


def _us(time_ns: float) -> str:
    """As nccl-tests: as many decimals as seven characters hold."""
    return next((text for digits in (2, 1) if len(text := f"{time_ns / 1e3:.{digits}f}") <= 7), f"{time_ns / 1e3:.0f}")


def _ratio(speedup: dict[str, Any] | None) -> str:
    if speedup is None:
        return "-"
    return f"{speedup['ratio']:.2f}x" if speedup["resolved"] else "unresolved"


def _gb(bytes_per_s: float | None) -> str:
    """GB/s; nccl-tests' two decimals, but two figures more where a link is slow."""
    if bytes_per_s is None:
        return "-"
    return f"{bytes_per_s / 1e9:.2f}" if bytes_per_s >= 1e10 else f"{bytes_per_s / 1e9:.4f}"
