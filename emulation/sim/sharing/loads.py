"""The load and backlog of links over time, in at most 200 bins of equal length, whatever the length of a run."""

from collections.abc import Iterator
from typing import Any

from emulation.results.results import percentile
from emulation.sim.network.switched_network import SwitchedNetwork

BINS_MOST = 200
FIRST_BIN_NS = 100_000


class Loads:
    """The bytes that have left all links' queues, and those in the queues, sampled from now on. bin_ns doubles when
    bins are full."""

    def __init__(self, network: SwitchedNetwork) -> None:
        self.bin_ns = FIRST_BIN_NS
        self._network, self._time = network, network.time
        self._totals: dict[str, list[int]] = {_name(hop): [] for hop in network.links}
        self._queues: dict[str, list[int]] = {_name(hop): [] for hop in network.links}
        self._time.schedule(self._time.now_ns + self.bin_ns, self._sample)

    def bytes(self, name: str) -> list[int]:
        """The bytes of a direction of a link, "from-to", in each bin."""
        totals = self._totals[name]
        return [now - before for now, before in zip(totals, [0, *totals], strict=False)]

    def document(self) -> dict[str, Any]:
        """`link_loads` of a result, as `results_schema.md` has them."""
        return {"bin_ns": self.bin_ns, "links": list(self._links())}

    def _links(self) -> Iterator[dict[str, Any]]:
        for hop, link in self._network.links.items():
            queue = self._queues[_name(hop)] or [0]
            yield {
                "from": hop[0],
                "to": hop[1],
                "rate_bps": link.config.rate_bps,
                "bytes": self.bytes(_name(hop)),
                "queue_p50_bytes": round(percentile(queue, 0.5)),
                "queue_p99_bytes": round(percentile(queue, 0.99)),
                "marked_frames": link.marked_frames,
                "dropped_frames": link.faults["drop_queue"],
            }

    def _sample(self, _frame: None, _sender: int, _to: int) -> None:
        for hop, link in self._network.links.items():
            backlog_bytes = link.backlog_bytes(self._time.now_ns)
            self._totals[_name(hop)].append(link.sent_bytes - backlog_bytes)
            self._queues[_name(hop)].append(backlog_bytes)
        full = next(iter(self._totals.values()))
        if len(full) == BINS_MOST:
            self.bin_ns *= 2
            for values in (*self._totals.values(), *self._queues.values()):
                del values[::2]  # totals at the ends of the longer bins are left
        if self._time.pending:  # else nothing is left to happen, and the run shall end
            self._time.schedule(self._time.now_ns + self.bin_ns, self._sample)


def _name(hop: tuple[str, str]) -> str:
    return "-".join(hop)
