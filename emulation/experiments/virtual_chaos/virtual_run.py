"""A chaos run in virtual time: what `ChaosRun` draws, waits for and judges, on virtual ranks and switches.

The same seed and options give the same bytes of output, wherever it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from emulation.experiments.chaos.chaos_run import ChaosRun
from emulation.experiments.chaos.chaos_site import ChaosSite
from emulation.experiments.virtual_chaos.virtual_site import VirtualSite

LOOK_NS = 20_000_000


class VirtualChaosRun(ChaosRun):
    """See `ChaosRun`."""

    def _open_site(self) -> ChaosSite:
        self._virtual = VirtualSite(self.options)
        self._until_ns = 0
        return cast(ChaosSite, self._virtual)

    def _now_ns(self) -> int:
        return self._virtual.now_ns

    def _listen(self) -> None:
        """Nothing is to be opened."""

    def _listen_no_more(self) -> None:
        """Nothing is to be closed."""

    def _reports(self) -> list[tuple[int, Any]]:
        """Time passes: to the next look, or to what is due before."""
        due = [int(at_s * 1e9) + 1 for at_s, _ in self._undos]
        now_ns = self._now_ns()
        return self._virtual.advance(max(now_ns, min([now_ns + LOOK_NS, self._until_ns, *due])))

    def _wait_for(self, condition: Callable[[], bool], limit_s: float) -> bool:
        end_ns = self._now_ns() + round(limit_s * 1e9)
        while not condition():
            if self._now_ns() >= end_ns:
                return False
            self._until_ns = end_ns
            self._hear()
        return True

    @property
    def _over(self) -> bool:
        """Also every report has been heard: a rank that SIGCONT wakes may end before any time passes."""
        return self._virtual.all_heard and all(rank.status is not None for rank in self._virtual.ranks)

    def _status(self, rank: int) -> int | None:
        return self._virtual.ranks[rank].status

    def _end_of(self, rank: int) -> str:
        return f"rank {rank} ended with status {self._status(rank)}"

    def _note_hangs(self, limit_s: float) -> None:
        stages = "; ".join(f"rank {moving.rank} is {moving.stage.name}" for moving in self._virtual.simulation.ranks)
        silent = ", ".join(str(rank) for rank in range(self.options.workers) if self._status(rank) is None)
        self.result.hangs.append(
            f"{self._where}, start {self.result.starts}: rank {silent} neither went on nor ended within {limit_s:.0f} s"
            f" ({stages})"
        )
