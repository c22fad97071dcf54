"""The project's targets beside what was measured. The module is pure: it turns a document into verdicts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from emulation.bench.allreduce.answer import bound, shaped
from emulation.bench.bandwidths import MEGABYTE
from emulation.bench.planes.packet_engine import exponent, scenario_speedups
from emulation.bench.sharding_rank import ALL_GATHER, REDUCE_SCATTER
from emulation.bench.sharding_times import together
from emulation.bench.text_table import columns
from emulation.mininet.launch import BY_SWITCH

BUCKET_BYTES = 25 * MEGABYTE
PAYLOAD_SHARE = 0.97  # of what a link's frames can carry
RATE_TARGETS = (100_000_000, 200_000_000, 500_000_000, 1_000_000_000)
PLAIN_MODES = ("plain dealer copy", "plain dealer no-copy", "plain push copy", "plain push no-copy")
BMV2_PPS = 38_000  # 32 values, 2 workers on veth, two cores: where simple_switch isn't here to be measured
IN_SWITCH = ", lost in the switch"
ROTATED = "rotated8 encode + decode"
_RIVALS = {"int32": "int32 on the same switch", "gloo": "Gloo in float32", "gloo~bf16": "Gloo in bf16"}

Verdict = dict[str, Any]


def judged(built: dict[str, Any]) -> list[Verdict]:
    """An entry per target that this document has a measurement for: what, target, measured, unit, met, and what
    limits it."""
    return [verdict for verdict in _all(built["parts"]) if verdict["measured"] is not None]


def _all(parts: dict[str, Any]) -> list[Verdict]:
    """Measured or not (None)."""
    matrix, unshaped, coded = (_rows(parts.get(name, [])) for name in ("allreduce", "unshaped", "codecs"))
    return [
        *_payload_limit(matrix),
        *_speedups(parts.get("allreduce", [])),
        *_xdp(matrix),
        *_unshaped(unshaped),
        *_codecs(coded),
        *_latency([*matrix, *unshaped]),
        *_loss(parts.get("loss", [])),
        *_racks(parts.get("racks", [])),
        *_numbers(parts.get("numbers", {})),
        *_planes(parts.get("planes", {})),
        *_ring(matrix),
        *_links(parts.get("links", {})),
        *_collectives(parts.get("collectives", {})),
        *_p4(parts.get("p4", {})),
        *_engine(parts.get("engine", {})),
        *_accuracies(parts.get("study", {}).get("rows", [])),
        *_checked([*matrix, *unshaped, *coded, *_rows(parts.get("loss", [])), *_rows(parts.get("racks", []))]),
    ]


def lines(verdicts: Sequence[Verdict]) -> list[str]:
    """The table for people."""
    rows = [cells(verdict) for verdict in verdicts]
    table = columns(("target", "wanted", "measured", ""), [row[:4] for row in rows])
    return [table[0], *(f"{line}  {row[4]}".rstrip() for line, row in zip(table[1:], rows, strict=True))]


def cells(verdict: Verdict) -> tuple[str, str, str, str, str]:
    """The cells of a row: what, wanted, measured, verdict, because."""
    measured = _text(verdict["measured"], verdict["unit"])
    wanted = f"{'≤' if verdict['at_most'] else '≥'} {_text(verdict['target'], verdict['unit'])}"
    return verdict["what"], wanted, measured, "met" if verdict["met"] else "MISSED", verdict["because"]


def _verdict(
    what: str, target: float, measured: float | None, unit: str, because: str = "", *, at_most: bool = False
) -> Verdict:
    met = None if measured is None else measured <= target if at_most else measured >= target
    verdict = {"what": what, "target": target, "measured": measured, "unit": unit, "at_most": at_most, "met": met}
    return {**verdict, "because": because}


def _rows(networks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for network in networks for row in network["rows"]]


def _find(rows: Sequence[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def _single_row(rows: Sequence[dict[str, Any]], **wanted: Any) -> dict[str, Any] | None:
    return next(iter(_find(rows, **wanted)), None)


def _value(row: dict[str, Any] | None, name: str) -> float | None:
    return None if row is None else float(row[name])


def _payload_limit(rows: Sequence[dict[str, Any]]) -> Iterator[Verdict]:
    for workers in (4, 8):
        for rate in RATE_TARGETS:
            row = _single_row(rows, name="switch:native", workers=workers, rate_bps=rate, size_bytes=BUCKET_BYTES)
            what = f"25 MB, n = {workers}, {rate // 1_000_000} Mb/s, native: of the payload limit"
            yield _verdict(what, PAYLOAD_SHARE, _value(row, "share_of_payload_limit"), "%", _limit(row))


def _speedups(networks: Sequence[dict[str, Any]]) -> Iterator[Verdict]:
    """As much of the bound as the payload limit's target leaves: Gloo cannot be slower than its own limit by merit."""
    for network in shaped(networks):
        topology = network["scenario"]["topology"]
        if (topology["workers"], topology["rate_bps"]) in ((4, RATE_TARGETS[-1]), (8, RATE_TARGETS[-1])):
            bucket_rows = _find(network["rows"], size_bytes=BUCKET_BYTES)
            switch, gloo = _single_row(bucket_rows, name="switch:native"), _fastest(bucket_rows, "gloo")
            what = (
                f"25 MB, n = {topology['workers']}, 1 Gb/s, native: speed-up over Gloo with the better of cubic and bbr"
            )
            yield _verdict(what, PAYLOAD_SHARE * bound(network), speedup(gloo, switch), "x", explained(gloo, switch))


def _xdp(rows: Sequence[dict[str, Any]]) -> Iterator[Verdict]:
    for workers, rate in ((8, 200_000_000), (4, 500_000_000)):
        row = _single_row(rows, name="switch:xdp", workers=workers, rate_bps=rate, size_bytes=BUCKET_BYTES)
        what = f"25 MB, n = {workers}, {rate // 1_000_000} Mb/s, xdp: of the payload limit"
        yield _verdict(what, PAYLOAD_SHARE, _value(row, "share_of_payload_limit"), "%", _limit(row))


def _unshaped(rows: Sequence[dict[str, Any]]) -> Iterator[Verdict]:
    unshaped_rows = _find(rows, workers=4)
    switch = max(_find(unshaped_rows, name="switch:native"), key=_speed, default=None)
    ring = max(_find(unshaped_rows, method="ring"), key=_speed, default=None)
    what = "unshaped, n = 4, native, at its best size: Gb/s per worker"
    yield _verdict(what, 7.0, _speed(switch) * 8e-9 if switch else None, "Gb/s", _limit(switch))
    ratio = _speed(switch) / _speed(ring) if switch and ring else None
    because = f"ring: {_speed(ring) * 8e-9:.3g} Gb/s with {ring['variant']}" if ring else ""
    yield _verdict("the same, over an unshaped TCP ring at its best size", 1.0, ratio, "x", because)
    large = _single_row(unshaped_rows, name="switch:native", size_bytes=BUCKET_BYTES)
    for where, target_ns in (("worker", 450), ("switch", 200)):
        measured = _value(large, f"{where}_cpu_ns_per_packet")
        yield _verdict(f"25 MB, unshaped, n = 4: CPU per packet, {where}", target_ns, measured, "ns", at_most=True)


def _codecs(rows: Sequence[dict[str, Any]]) -> Iterator[Verdict]:
    """Speed-ups at as many elements, which have 4 bytes in float32 and int32: float32 in and out, whatever travels."""
    bucket_rows = _find(rows, workers=4, size_bytes=BUCKET_BYTES)
    lanes = {codec: _find(bucket_rows, name=f"switch~{codec}:native") for codec in ("lanes8", "lanes16")}
    for rate, rivals in (
        (
            200_000_000,
            (
                ("lanes8", "int32", 3.8),
                ("lanes16", "int32", 1.95),
                ("lanes8", "gloo", 5.6),
                ("lanes8", "gloo~bf16", 2.8),
            ),
        ),
        (1_000_000_000, (("lanes8", "int32", 3.2), ("lanes16", "int32", 1.9))),
    ):
        here = _find(bucket_rows, rate_bps=rate)
        integers = _single_row(here, name="switch:native", type="int32")
        for codec, rival, target in rivals:
            switch = _single_row(lanes[codec], rate_bps=rate)
            baseline = integers if rival == "int32" else _fastest(here, rival)
            what = f"25 MB, n = 4, {rate // 1_000_000} Mb/s, switch~{codec}: elements/s over {_RIVALS[rival]}"
            because = "; ".join(filter(None, (explained(baseline, switch), _limit(switch))))
            yield _verdict(what, target, speedup(baseline, switch), "x", because)
    free = _find(bucket_rows, rate_bps=0)
    ring, coded_ring = _fastest(free, "ring"), _fastest(free, "ring~lanes8")
    for codec, target in (("lanes16", 1.2), ("lanes8", 2.0)):
        switch = _single_row(lanes[codec], rate_bps=0)
        because = "; ".join(filter(None, (_limit(switch), *map(_elements, (switch, ring, coded_ring)))))
        what = f"25 MB, unshaped, n = 4, switch~{codec}: elements/s over the TCP ring in float32"
        yield _verdict(what, target, speedup(ring, switch), "x", because)


def _elements(row: dict[str, Any] | None) -> str:
    return f"{row['name']}: {row['count'] * 1e3 / _median(row):.0f} M elements/s" if row else ""


def _latency(rows: Sequence[dict[str, Any]]) -> Iterator[Verdict]:
    small_rows = _find(rows, workers=4, size_bytes=4096)
    rates = sorted({row["rate_bps"] for row in small_rows})
    for rate in rates or [RATE_TARGETS[-1]]:
        here = _find(small_rows, rate_bps=rate)
        switch, gloo = _single_row(here, name="switch:native"), _fastest(here, "gloo")
        ratio = _median(switch) / _median(gloo) if switch and gloo else None
        because = f"{_median(switch) / 1e3:.0f} µs against {_median(gloo) / 1e3:.0f} µs" if switch and gloo else ""
        where = f"{rate // 1_000_000} Mb/s" if rate else "unshaped"
        yield _verdict(f"4 KB, n = 4, {where}, native: time over Gloo's", 0.5, ratio, "x", because, at_most=True)
        if rate == RATE_TARGETS[-1]:
            time_ns = _median(switch) if switch else None
            yield _verdict(f"4 KB, n = 4, native, {where}: time", 300_000, time_ns, "ns", _limit(switch), at_most=True)


def _loss(networks: Sequence[dict[str, Any]]) -> Iterator[Verdict]:
    method_shares = loss_shares(networks)
    shares = method_shares.get("switch:native")
    because = "" if shares else "lost in the switch: programs on the links can't be had here"
    shares = shares or method_shares.get(f"switch:native{IN_SWITCH}", {})
    for loss, target in ((0.001, 0.97), (0.01, 0.85)):
        what = f"loss {100 * loss:g} % per link, 200 Mb/s, n = 4: of the loss-free goodput"
        yield _verdict(what, target, shares.get(loss), "%", because if loss in shares else "")


def _racks(networks: Sequence[dict[str, Any]]) -> Iterator[Verdict]:
    for oversubscription in (1, 4):
        alike = [net for net in networks if net["scenario"]["topology"].get("oversubscription", 1) == oversubscription]
        row = _single_row(_rows(alike), name="switch:native", size_bytes=BUCKET_BYTES)
        ring = _single_row(_rows(alike), method="ring", size_bytes=BUCKET_BYTES)
        beside = "" if ring is None else f"the ring {ring['share_of_payload_limit']:.1%}"
        what = f"25 MB, 2 racks of 4, up-links {oversubscription}:1, 200 Mb/s, native: of the payload limit"
        yield _verdict(what, 0.95, _value(row, "share_of_payload_limit"), "%", beside)


def loss_shares(networks: Sequence[dict[str, Any]]) -> dict[str, dict[float, float]]:
    """Method name -> loss -> algbw as a share of the same method's without loss, on the same kind of links.

    Loss in the switch itself stands under the method's name and IN_SWITCH.
    """
    speeds: dict[str, dict[float, float]] = {}
    for network in networks:
        for row in network["rows"]:
            name = row["name"] + (IN_SWITCH if network["loss_by"] == BY_SWITCH else "")
            speeds.setdefault(name, {})[network["scenario"]["faults"]["loss"]] = _speed(row)
    return {
        name: {loss: speed / by_loss[0.0] for loss, speed in sorted(by_loss.items())}
        for name, by_loss in speeds.items()
        if by_loss.get(0.0)
    }


def _numbers(part: dict[str, Any]) -> Iterator[Verdict]:
    for what in ("quantise", "dequantise", "lanes8 encode + decode"):
        row = _single_row(part.get("rows", []), what=what, implementation="native", size_bytes=BUCKET_BYTES)
        because = f"{row['bytes_per_s'] / 1e9:.3g} GB/s" if row else ""
        yield _verdict(f"{what}, 25 MB, one core: of memcpy", 0.5, _value(row, "share_of_memcpy"), "%", because)
    rotated = _single_row(part.get("rows", []), what=ROTATED, implementation="native", size_bytes=BUCKET_BYTES)
    speed = rotated["bytes_per_s"] / 1e9 if rotated else None
    yield _verdict(f"{ROTATED}, 25 MB of float32, one core", 3.0, speed, "GB/s")


def _planes(part: dict[str, Any]) -> Iterator[Verdict]:
    rows = _find(part.get("rows", []), plane="native", elements=256)
    worst = max((row["ns_per_packet"]["median"] for row in rows), default=None)
    yield _verdict("native, E = 256, one core, in memory: ns per packet", 100, worst, "ns", at_most=True)
    memory = part.get("worker_memory")
    share = memory["memory_bytes"] / memory["memory_limit_bytes"] if memory else None
    reserved = f"{memory['link_memory_bytes'] / 1e3:.0f} kB are reserved beside and never touched" if memory else ""
    because = f"{memory['memory_bytes'] / 1e3:.0f} kB; {reserved}" if memory else ""
    yield _verdict("worker memory beyond the tensor: of 2 × window × MTU", 1.0, share, "%", because, at_most=True)  # noqa: RUF001


def _ring(rows: Sequence[dict[str, Any]]) -> Iterator[Verdict]:
    """The ring of the host methods, which is the one over TCP."""
    for workers in (4, 8):
        for rate in RATE_TARGETS:
            bucket_rows = _find(rows, workers=workers, rate_bps=rate, size_bytes=BUCKET_BYTES)
            over_tcp = [row for row in bucket_rows if row["name"].startswith("ring:")]
            row, gloo = _fastest(over_tcp, "ring"), _fastest(bucket_rows, "gloo")
            where = f"25 MB, n = {workers}, {rate // 1_000_000} Mb/s, ring"
            yield _verdict(f"{where}: of its bound with framing", 0.95, _value(row, "share_of_bound"), "%", _limit(row))
            because = f"{_median(row) / 1e6:.1f} ms against {_median(gloo) / 1e6:.1f} ms" if row and gloo else ""
            yield _verdict(f"{where}: speed-up over Gloo", 1.0, speedup(gloo, row), "x", because)


def _links(part: dict[str, Any]) -> Iterator[Verdict]:
    rows = _find(part.get("rows", []), size_bytes=1 << 20)
    speeds = {row["name"]: float(row["bytes_per_s"]["median"]) for row in rows}
    plain = {name: speed for name, speed in speeds.items() if name in PLAIN_MODES}
    best = max(plain, key=lambda name: plain[name], default="")
    share = speeds["zeromq"] / plain[best] if best and "zeromq" in speeds else None
    because = f"{speeds['zeromq'] * 8e-9:.1f} Gb/s against {plain[best] * 8e-9:.1f} with {best}" if share else ""
    bounded = max((speed for name, speed in speeds.items() if name.endswith("bounded")), default=None)
    if share and bounded:
        because += f"; {bounded * 8e-9:.1f} with this side's buffers"
    yield _verdict("ZeroMQ, 1 MB messages on veth, unshaped: of plain pyzmq", 0.9, share, "%", because)
    for kind in ("RC", "UC"):
        writes = _find(part.get("writes", []), kind=kind)
        best_write = max(writes, key=lambda write: float(write["rdma_gbps"]["median"]), default=None)
        because = ", ".join(f"path MTU {write['mtu']}: {write['rdma_gbps']['median']:.1f} Gb/s" for write in writes)
        speed = best_write["rdma_gbps"]["median"] if best_write else None
        yield _verdict(f"RDMA WRITE, 1 MB messages on veth, unshaped, {kind}", 5.0, speed, "Gb/s", because)


def _collectives(part: dict[str, Any]) -> Iterator[Verdict]:
    by_algorithm = {row["algorithm"]: row for row in _find(part.get("rows", []), size_bytes=65_536)}
    ring, halving = by_algorithm.get("ring"), by_algorithm.get("halving_doubling")
    off = because = None
    if ring and halving:
        measured, model = (ring[name] / halving[name] for name in ("time_ns", "model_ns"))
        off = abs(measured / model - 1)
        because = f"{measured:.2f}x faster than the ring, by the model {model:.2f}x"
    what = "halving-doubling over ring, 64 KB, n = 8, 1 ms per link, virtual time: off the model's ratio"
    yield _verdict(what, 0.2, off, "%", because or "", at_most=True)
    decision = part.get("scheduler", {}).get("decision_ns", {}).get("median")
    yield _verdict("a decision of the scheduler", 5000, decision, "ns", at_most=True)
    sharded = part.get("sharded", [])
    for kind in (REDUCE_SCATTER, ALL_GATHER):
        share = _value(_single_row(sharded, method="switch", kind=kind), "share_of_bound")
        yield _verdict(f"{kind} of 25 MB, n = 4, 200 Mb/s: of its bound", 0.97, share, "%")
    both, rings = together(sharded, "switch"), together(sharded, "ring")
    because = f"a ring's: {rings:.2f}" if rings else ""
    what = "reduce-scatter and all-gather at once, over the longer alone"
    yield _verdict(what, 1.1, both, "x", because, at_most=True)


def _engine(part: dict[str, Any]) -> Iterator[Verdict]:
    for method, workers in itertools.product(("switch", "ring"), (8, 64)):
        for values, target in ((False, 10_000_000), (True, 3_000_000)):
            row = _single_row(part.get("rows", []), engine="compiled", method=method, workers=workers, values=values)
            what = f"packet engine, {method}, n = {workers}, {'with' if values else 'without'} values, one core"
            yield _verdict(what, target, _value(row, "hops_per_s"), "packets/s")
    for row in part.get("large", []):
        what = f"packet engine, {row['method']}, n = {row['workers']}, {row['size_bytes'] / 1e6:g} MB"
        yield _verdict(what, 60, row["whole_ns"] / 1e9, "s", at_most=True)
        yield _verdict(f"{what}: memory", 4, row["memory_bytes"] / 1e9, "GB", at_most=True)
    times = scenario_speedups(part)
    because = ", ".join(f"{method} {factor:.0f}x" for method, factor in times.items() if method != "all")
    yield _verdict("sim_100g without training, of Python's packet engine", 100, times.get("all"), "x", because)
    for method in ("switch", "ring"):
        rows = _find(part.get("scale", []), method=method)
        power = exponent(rows, "whole_cpu_ns") if any(row["workers"] == 1024 for row in rows) else None
        what = f"packet engine, {method}, n = 4 ... 1,024: power of events to which time grows"
        yield _verdict(what, 1.1, power, "", at_most=True)


def _p4(part: dict[str, Any]) -> Iterator[Verdict]:
    for backend, target in (("native", 1_000_000), ("python", 3_000)):
        row = _single_row(part.get("rows", []), backend=backend)
        rate = 1e9 / row["ns"]["median"] if row else None
        yield _verdict(f"P4 engine, {backend}, 32 values, in memory", target, rate, "packets/s")
    for kind, target_s in (("cold", 3.0), ("cached", 0.3)):
        start = _single_row(part.get("starts", []), backend="native", kind=kind)
        seconds = start["seconds"]["median"] if start else None
        yield _verdict(f"P4 program to ready, {kind}", target_s, seconds, "s", at_most=True)
    rows = {row["switch"]: row["pps"]["median"] for row in part.get("veth", [])}
    engine, bmv2 = rows.get("native"), rows.get("simple_switch", BMV2_PPS)
    because = f"{engine:,.0f} packets/s against {bmv2:,.0f}" if engine else ""
    if engine and "simple_switch" not in rows:
        because += ", bmv2's as published"
    yield _verdict("P4 switch on veth, 2 workers: of bmv2's rate", 3.0, engine and engine / bmv2, "x", because)


def _accuracies(rows: Sequence[dict[str, Any]]) -> Iterator[Verdict]:
    """Targets of `switchagg study codecs`, which trains; the benchmark only reads its results."""
    digits, images = (_find(rows, workload=name, workers=4) for name in ("digits", "images"))
    coded, plain = (_single_row(digits, codec=name) for name in ("rotated8+ef", "float32"))
    below = 100 * (min(plain["accuracies"]) - coded["accuracy"]) if coded and plain else None
    what = "quickstart's net, n = 4, rotated8+ef: mean accuracy below the worst seed of float32"
    yield _verdict(what, 0.0, below, "points", _seeds(coded), at_most=True)
    for codec, name in (("lanes8+ef",) * 2, ("ternary+ef",) * 2, ("dgc",) * 2, ("cd_sgd", "CD-SGD")):
        row = next((row for row in images if (row["codec"] + ":").startswith((f"{codec}:", f"{codec}+"))), None)
        what = f"conv net, n = 4, {name}: mean accuracy over that of float32"
        yield _verdict(what, -0.5, _value(row, "points"), "points", _seeds(row))


def _seeds(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    spread = "" if row["points_spread"] is None else f", ± {row['points_spread']:.1f} from seed to seed"
    accuracy = f"{100 * row['accuracy']:.1f} % after {row['iterations']} iterations"
    return f"{row['codec']}: {accuracy}, {row['seeds']} seeds{spread}"


def _checked(rows: Sequence[dict[str, Any]]) -> Iterator[Verdict]:
    wrong = sum(row["wrong_elements"] for row in rows) if rows else None
    yield _verdict("wrong elements, all operations and ranks", 0, wrong, "", at_most=True)


def _fastest(rows: Sequence[dict[str, Any]], kind: str) -> dict[str, Any] | None:
    """The better congestion control, where several were measured."""
    return min(_find(rows, method=kind), key=_median, default=None)


def speedup(baseline: dict[str, Any] | None, switch: dict[str, Any] | None) -> float | None:
    """How many times faster `switch` is; None if either is missing."""
    return _median(baseline) / _median(switch) if baseline and switch else None


def explained(baseline: dict[str, Any] | None, switch: dict[str, Any] | None) -> str:
    """A speed-up as bound × how much more of its bound the switch reaches than the baseline."""
    if not baseline or not switch or not baseline["share_of_bound"] or not switch["share_of_bound"]:
        return ""
    bound = switch["bound_bytes_per_s"] / baseline["bound_bytes_per_s"]
    return (
        f"bound {bound:.3g}; {switch['name']} reaches {_text(switch['share_of_bound'], '%')} of its own, "
        f"{baseline['name']} {_text(baseline['share_of_bound'], '%')}"
    )


def _limit(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    idle = "" if row["cpu_idle_share"] is None else f", CPUs {row['cpu_idle_share']:.0%} idle"
    return f"limited by {row['limited_by']}{idle}"


def _speed(row: dict[str, Any]) -> float:
    return float(row["algbw_bytes_per_s"])


def _median(row: dict[str, Any]) -> float:
    return float(row["time_ns"]["median"])


_UNITS: dict[str, Callable[[float], str]] = {
    "%": lambda value: f"{100 * value:.1f} %",
    "x": lambda value: f"{value:.2f}x",
    "ns": lambda value: f"{value:.0f} ns",
    "Gb/s": lambda value: f"{value:.2f} Gb/s",
    "GB/s": lambda value: f"{value:.2f} GB/s",
    "GB": lambda value: f"{value:.2f} GB",
    "packets/s": lambda value: f"{value:,.0f} packets/s",
    "s": lambda value: f"{value:.2f} s",
    "points": lambda value: f"{value:.2f} points",
    "": lambda value: f"{value:g}",
}


def _text(value: float, unit: str) -> str:
    return _UNITS[unit](value)
