"""How a link was shared, in both backends: what each of its users had over time, Jain's index; and times of flows."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

JOB = "job"  # the measured one, as a user of links
LOOK_NS = 10_000_000  # between two looks at what users of a link have had
BINS_MOST = 100
FAIR = 0.9
SMALL_BYTES = 100_000  # of short flows, those whose times are reported apart, as papers do


class FinishedFlow(NamedTuple):
    """A flow that had an end: its size and how long it took, the handshake included."""

    size_bytes: int
    time_ns: int


def jain(shares: Sequence[float]) -> float:
    """Jain's index, (Σx)² / (n Σx²): 1 where all have the same, 1/n where one has all; 1 of nothing."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def percentile(values: Sequence[int], part: float) -> int:
    """The least value that at least `part` of them don't exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0


def times(done: Sequence[FinishedFlow], unfinished: int, seconds: float) -> dict[str, Any]:
    """Times of flows that end, as `results_schema.md` has them, and the number of unfinished flows."""
    all_ns = [flow.time_ns for flow in done]
    document = {
        "goodput_bps": [sum(flow.size_bytes for flow in done) * 8 / seconds],
        "finished": len(done),
        "unfinished": unfinished,
        "time_p50_ns": percentile(all_ns, 0.5),
        "time_p99_ns": percentile(all_ns, 0.99),
    }
    small = [flow.time_ns for flow in done if flow.size_bytes <= SMALL_BYTES]
    return {**document, **({"small_time_p99_ns": percentile(small, 0.99)} if small else {})}


def shared_link(
    name: str, looks: Sequence[dict[str, int]], equals: Sequence[str], from_ns: int, queue: Sequence[int]
) -> dict[str, Any]:
    """A direction of a link, as `results_schema.md` has it.

    looks: each user's bytes until then, LOOK_NS apart, the last one at the end. equals: those of whom each should have
    the same, once all have begun, at from_ns. queue: in bytes, looked at from then on.
    """
    start = min(-(-from_ns // LOOK_NS), len(looks) - 1)
    step = max(1, -(-(len(looks) - 1) // BINS_MOST))
    ends = [*looks[::step], *([looks[-1]] if (len(looks) - 1) % step else [])]
    users = sorted(looks[-1], key=lambda user: (user not in equals, user))
    over_time = {user: [b.get(user, 0) - a.get(user, 0) for a, b in pairwise(ends)] for user in users}
    total = {user: looks[-1].get(user, 0) - looks[start].get(user, 0) for user in users}
    bin_ns = step * LOOK_NS
    return {
        "link": name,
        "bytes": total,
        "jain": jain([total.get(user, 0) for user in equals]),
        "bin_ns": bin_ns,
        "bytes_over_time": over_time,
        "queue_p50_bytes": percentile(queue, 0.5),
        "queue_p99_bytes": percentile(queue, 0.99),
        "converged_ns": _converged_ns([over_time.get(user, []) for user in equals], -(-from_ns // bin_ns), bin_ns),
    }


def busiest_shared(entry: dict[str, Any]) -> dict[str, Any] | None:
    """The link direction that carried most bytes, among those that other users share, from a method's results."""
    return max(entry.get("shared_links") or (), key=lambda link: sum(link["bytes"].values()), default=None)


def part_of_job(link: dict[str, Any]) -> float:
    """Shares of a shared link's bytes, from 0 to 1."""
    return float(link["bytes"].get(JOB, 0) / (sum(link["bytes"].values()) or 1))


def _converged_ns(counts: Sequence[list[int]], first: int, bin_ns: int) -> int | None:
    """From when on, counted from bin `first`, the index over ten bins stays at least FAIR; None: never."""
    spans = range(first, min(map(len, counts), default=0) - 9)
    unfair = [at for at in spans if jain([sum(counts_of_user[at : at + 10]) for counts_of_user in counts]) < FAIR]
    if not spans or (unfair and unfair[-1] == spans[-1]):
        return None
    return (unfair[-1] + 1 - first) * bin_ns if unfair else 0
