"""A benchmark's first sentences: how fast allreduce through the switch is beside Gloo, its bound, and where it stops
paying. The module is pure: it turns a document into sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from emulation.report.wording import (
    bound_text,
    bytes_text,
    count_text,
    faster_text,
    speedup_text,
    time_text,
    times_text,
)
from emulation.results.speedups import BEYOND_BOUND_FACTOR
from emulation.scenario.bounds import payload_share
from emulation.testbed.certificate.fidelity import rate_text
from transport.group.method_name import parse, traffic

SWITCHES = ("switch:native", "switch:reference")
WORKERS = 4
"""The headline is of the network with so many workers, or the nearest number."""

Network = dict[str, Any]


def shaped(networks: Sequence[Network]) -> list[Network]:
    """Networks with a rate, and with rows."""
    return [network for network in networks if network["rows"] and network["scenario"]["topology"]["rate_bps"]]


def over_gloo(network: Network) -> dict[int, float]:
    """Size -> how many times faster the switch is than Gloo with its faster congestion control."""
    gloo: dict[int, float] = {}
    for row in network["rows"]:
        if row["method"] == "gloo":
            median = row["time_ns"]["median"]
            gloo[row["size_bytes"]] = min(median, gloo.get(row["size_bytes"], median))
    return {
        row["size_bytes"]: gloo[row["size_bytes"]] / row["time_ns"]["median"]
        for row in network["rows"]
        if row["name"] in SWITCHES and row["size_bytes"] in gloo
    }


def bound(network: Network) -> float:
    """How many times faster than an ideal ring of hosts the switch can be with long arrays: bytes and framing."""
    topology, elements = network["scenario"]["topology"], network["scenario"]["switch"]["elements"]
    switch, gloo = (float(payload_share(parse(word), elements, topology["mtu_bytes"])) for word in ("switch", "gloo"))
    return float(traffic("gloo", topology["workers"])) * switch / gloo


def answer(built: dict[str, Any]) -> dict[str, Any] | None:
    """number, bound, what, stamp and further sentences; None where Gloo or the switch wasn't measured."""
    networks = shaped(built["parts"].get("allreduce", []))
    ratios = [(network, times) for network in networks if (times := over_gloo(network))]
    if not ratios:
        return None
    network, times = min(ratios, key=lambda entry: (abs(_workers(entry[0]) - WORKERS), -_rate(entry[0])))
    size = max(times)
    where = f"{bytes_text(size)} on {_workers(network)} workers at {rate_text(_rate(network))}"
    most = bound(network)
    beyond = ["What is beyond the bound is no merit of the switch: Gloo does not reach its own bound."]
    return {
        "number": speedup_text(times[size]),
        "bound": bound_text(times[size], most),
        "what": f"Allreduce of {where}: through the switch, and by Gloo with the better of two congestion controls.",
        "stamp": _stamp(network, size),
        "sentences": [*(beyond if times[size] > BEYOND_BOUND_FACTOR * most else []), _longest(ratios), _slower(ratios)],
    }


SUMMARY_HEADS = (
    "allreduce by the switch",
    "time",
    "of its bound",
    "over Gloo",
    "at most",
    "Gloo of its bound",
    "limited by",
)


def summary(built: dict[str, Any]) -> list[list[str]]:
    """A row under SUMMARY_HEADS for each shaped network, of the longest array that Gloo summed, too."""
    rows = []
    for network in shaped(built["parts"].get("allreduce", [])):
        if not (ratios := over_gloo(network)):
            continue
        size = max(ratios)
        longest = [row for row in network["rows"] if row["size_bytes"] == size]
        switch = next(row for row in longest if row["name"] in SWITCHES)
        gloo = max(row["share_of_bound"] for row in longest if row["method"] == "gloo")
        where = f"{bytes_text(size)}, n = {_workers(network)}, {rate_text(_rate(network))}"
        numbers = (
            f"{switch['share_of_bound']:.1%}",
            times_text(ratios[size]),
            times_text(bound(network)),
            f"{gloo:.1%}",
        )
        rows.append([where, time_text(switch["time_ns"]["median"]), *numbers, switch["limited_by"]])
    return rows


def _workers(network: Network) -> int:
    return int(network["scenario"]["topology"]["workers"])


def _rate(network: Network) -> int:
    return int(network["scenario"]["topology"]["rate_bps"])


def _stamp(network: Network, size: int) -> dict[str, str]:
    """Whether to trust the number: were the sums right, and what limited the switch."""
    rows = network["rows"]
    if wrong := sum(row["wrong_elements"] for row in rows):
        return {"kind": "invalid", "word": "WRONG", "text": f"{count_text(wrong)} elements of sums were wrong."}
    row = next(row for row in rows if row["name"] in SWITCHES and row["size_bytes"] == size)
    text = f"Every element of every sum was checked. What limited the switch: {row['limited_by']}"
    if row["limited_by"] == "cpu":
        return {
            "kind": "virtual",
            "word": "EXACT, NOT AT SPEED",
            "text": f"{text}, so the number says more about the machine than about the switch.",
        }
    return {
        "kind": "valid",
        "word": "EXACT",
        "text": f"{text}. The number is a median of {row['time_ns']['count']} operations.",
    }


def _longest(ratios: Sequence[tuple[Network, dict[int, float]]]) -> str:
    """The range over all rates, for each number of workers."""
    parts = []
    for workers in sorted({_workers(network) for network, _ in ratios}):
        here = [(network, times) for network, times in ratios if _workers(network) == workers]
        longest_ratios = [times[max(times)] for _, times in here]
        between = times_text(min(longest_ratios))
        if len(longest_ratios) > 1:
            between = f"{min(longest_ratios):.2f} to {times_text(max(longest_ratios))}"
        parts.append(f"{between} with {workers} workers (bound {times_text(bound(here[0][0]))})")
    return f"With the longest arrays, over all rates, the speed-up is {', '.join(parts)}."


def _slower(ratios: Sequence[tuple[Network, dict[int, float]]]) -> str:
    """Where it doesn't pay; a hundredth is noise."""
    lost = [
        f"{bytes_text(size)} on {_workers(network)} workers at {rate_text(_rate(network))} ({times_text(ratio)})"
        for network, times in ratios
        for size, ratio in sorted(times.items())
        if faster_text(ratio).endswith("slower")
    ]
    return (
        f"The switch was slower than Gloo for {'; '.join(lost)}." if lost else "The switch was never slower than Gloo."
    )
