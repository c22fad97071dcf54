"""Chaos in virtual time: right code comes through all kinds of faults, the same seed gives the same bytes, and broken
rules are found."""

from dataclasses import replace
from typing import Any, cast

import pytest

from emulation.experiments.chaos import chaos_page
from emulation.experiments.chaos.chaos_options import VIRTUAL, ChaosOptions
from emulation.experiments.chaos.chaos_run import ChaosResult
from emulation.experiments.chaos.rank_reports import RankFailed
from emulation.experiments.virtual_chaos.virtual_run import VirtualChaosRun
from emulation.scenario.errors import RunFailed
from emulation.sim.failover import moving_rank
from emulation.sim.failover.moving_rank import MovingRank
from switchagg.errors import AggregationFailed
from switchagg.failover.part_rows import PartRows

WITH_FALLBACK = ChaosOptions(5, 1e6, 3, "switch", VIRTUAL, 26, "ring", 1, lap_steps=12)
KILLS = replace(WITH_FALLBACK, events=4, standby=0, kinds=("switch-kill",))


def run(options: ChaosOptions) -> ChaosResult:
    return VirtualChaosRun(options, lambda _line: None).run()


@pytest.mark.parametrize("method", ["switch", "switch~lanes8"])
def test_sums_are_exact_and_nothing_hangs_with_a_fallback(method: str) -> None:
    result = run(replace(WITH_FALLBACK, method=method))
    assert result.faults == []
    assert len({record.event.kind for record in result.records}) >= 9
    assert result.sums_checked > 1000


def test_without_a_fallback_jobs_end_and_name_who_was_hit() -> None:
    result = run(replace(WITH_FALLBACK, fallback="", standby=0, events=12))
    assert result.faults == []
    assert result.starts > 3


def test_a_job_with_a_fallback_waits_for_ranks_that_stand_still() -> None:
    result = run(replace(KILLS, kinds=("worker-stop",), events=12, standby=1))
    assert result.faults == []
    assert {record.outcome for record in result.records} == {"went on"}


def test_the_same_seed_gives_the_same_bytes() -> None:
    options = replace(WITH_FALLBACK, events=6)
    texts = ["\n".join(chaos_page.result_lines(run(options))) for _ in range(2)]
    assert texts[0] == texts[1]
    assert texts[0] != "\n".join(chaos_page.result_lines(run(replace(options, seed=6))))


def test_rows_that_are_summed_twice_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(call: Any, rank: int, job: Any, _held: Any = None) -> PartRows:
        return PartRows(call, rank, job)

    monkeypatch.setattr(moving_rank, "PartRows", planted)
    assert run(KILLS).wrong_sums


def test_a_rank_that_never_moves_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = MovingRank.look
    monkeypatch.setattr(MovingRank, "look", lambda self: None if self.rank == 1 else right(self))
    result = run(replace(KILLS, events=1))
    assert any("event 0" in fault for fault in result.faults)


def test_other_methods_are_refused() -> None:
    with pytest.raises(RunFailed, match=r"--method ring: in virtual time chaos is of method switch"):
        ChaosOptions(1, place=VIRTUAL, method="ring")


def test_a_job_is_over_once_the_last_report_of_its_ranks_is_heard() -> None:
    run = VirtualChaosRun(KILLS, lambda _line: None)
    with run._open_site() as opened:
        site = cast(Any, opened)
        site.start_ranks(0, 0, -1)
        for rank in range(KILLS.workers):  # as when SIGCONT wakes them: between two looks
            site.simulation.ended(rank, AggregationFailed("the hosts are gone", job="job"))
        assert not run._over
        assert [rank for rank, report in run._reports() if isinstance(report, RankFailed)] == [0, 1, 2]
        assert run._over
        site.end_ranks()
