"""The schedule of a chaos run is a pure function of seed and options; the ledger sees parameters that differ."""

from dataclasses import replace
from itertools import islice

import pytest

from emulation.experiments.chaos.chaos_options import LOOPBACK, ChaosOptions, FaultOutcome, Survival
from emulation.experiments.chaos.chaos_result import quantiles
from emulation.experiments.chaos.event_schedule import events, first_events, kinds_of
from emulation.experiments.chaos.fault_kinds.fault_kind import ChaosEvent, is_named
from emulation.experiments.chaos.fault_kinds.fault_table import FAULT_KINDS
from emulation.experiments.chaos.rank_reports import StepDone
from emulation.experiments.chaos.step_ledger import LapHistory, StepLedger
from emulation.scenario.errors import RunFailed

FIRST = [
    "switch-restart switch 0",
    "worker-pause rank 3 for 0.17 s",
    "random-packets for 0.74 s",
    "replayed-packets for 0.64 s",
    "worker-kill rank 2",
    "link-cut rank 1 near for 2.86 s",
    "link-cut switch 0 far for 2.72 s",
    "link-flap rank 3 far for 0.32 s",
    "worker-kill rank 3",
    "switch-pause switch 0 for 0.42 s",
]
"""Of seed 1: on every machine and version of Python."""


def test_the_same_seed_gives_the_same_events() -> None:
    options = ChaosOptions(1)
    assert [str(event) for event in first_events(options, len(FIRST))] == FIRST
    assert first_events(options, 300) == first_events(ChaosOptions(1), 300)
    assert first_events(options, 300)[:7] == first_events(options, 7)
    assert first_events(ChaosOptions(2), 300) != first_events(options, 300)


def test_every_kind_comes_in_each_round_as_often_as_its_weight_says(seed: int) -> None:
    options = ChaosOptions(seed)
    deck = sum(kind.weight for kind in kinds_of(options))
    schedule = list(islice(events(options), 3 * deck))
    for first in range(0, 3 * deck, deck):
        names = [event.kind for event in schedule[first : first + deck]]
        assert {name: names.count(name) for name in FAULT_KINDS} == {
            name: kind.weight for name, kind in FAULT_KINDS.items()
        }


def test_events_keep_the_bounds_of_their_kinds(seed: int) -> None:
    options = ChaosOptions(seed, workers=3, lease_s=2.0, gap_s=1.0)
    for event in islice(events(options), 50):
        least, most = FAULT_KINDS[event.kind].span(options)
        assert 2.0 * least <= event.duration_s <= 2.0 * most
        assert 0.0 <= event.gap_s <= 1.75
        assert event.target in ("", "switch 0", "rank 0", "rank 1", "rank 2")
        assert event.number or not event.second


def test_a_run_has_only_what_its_place_and_method_can_meet() -> None:
    loopback = {kind.name for kind in kinds_of(ChaosOptions(0, place=LOOPBACK))}
    assert "worker-kill" in loopback
    assert not any(FAULT_KINDS[name].needs_network for name in loopback)
    assert not any(kind.needs_switch for kind in kinds_of(ChaosOptions(0, method="ring")))
    with pytest.raises(RunFailed, match=r"--kinds link-cut: switch on loopback"):
        kinds_of(ChaosOptions(0, place=LOOPBACK, kinds=("link-cut",)))
    with pytest.raises(RunFailed, match="did you mean 'worker-kill'"):
        kinds_of(ChaosOptions(0, kinds=("worker-kil",)))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"workers": 1}, "--workers 1: 2 to 64"),
        ({"place": "moon"}, "--on moon"),
        ({"method": "mlt"}, "may lack values"),
        ({"method": "switch+secret", "elastic": True}, "no rank can go on with secret sums"),
    ],
)
def test_impossible_options_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(RunFailed, match=message):
        ChaosOptions(0, **values)  # type: ignore[arg-type]


def test_every_kind_says_what_it_shall_come_to() -> None:
    for kind in FAULT_KINDS.values():
        assert {type(outcome) for outcome in kind.expected} == {FaultOutcome}


def test_a_fallback_survives_switches_and_not_workers() -> None:
    options = ChaosOptions(0, fallback="ring", standby=1)
    assert (options.survival, options.switches) == (Survival.FALLBACK, 2)
    kill = ChaosEvent(0, 0.0, "worker-kill", "rank 1", 0.0, "", 0)
    assert FAULT_KINDS["worker-kill"].outcome(kill, options) is FaultOutcome.ENDS
    cut = kill._replace(kind="link-cut")
    assert FAULT_KINDS["link-cut"].outcome(cut, options) is FaultOutcome.EITHER
    cut = cut._replace(target="switch 1")
    assert FAULT_KINDS["link-cut"].outcome(cut, options) is FaultOutcome.SAME_BITS
    assert {event.target for event in first_events(options, 200)} >= {"switch 0", "switch 1"}
    with pytest.raises(RunFailed, match="to go from one switch to the next a job needs a --fallback"):
        ChaosOptions(0, standby=1)


def test_host_methods_wait_for_a_silent_rank_and_end_with_a_dead_one() -> None:
    options = ChaosOptions(0, method="ring")
    outcomes = {}
    for event in first_events(options, 50):
        outcomes[event.kind] = FAULT_KINDS[event.kind].outcome(event, options)
    assert outcomes == {
        "worker-kill": FaultOutcome.ENDS,
        "worker-stop": FaultOutcome.EITHER,
        "worker-pause": FaultOutcome.SAME_BITS,
        "link-cut": FaultOutcome.EITHER,
        "link-flap": FaultOutcome.SAME_BITS,
    }


def test_an_elastic_job_loses_a_step_where_others_end_and_takes_back_a_killed_worker() -> None:
    options = ChaosOptions(3, fallback="ring", kinds=("worker-kill", "switch-kill"), elastic=True)
    ends = first_events(replace(options, elastic=False), 40)
    for event, same in zip(first_events(options, 40), ends, strict=True):
        outcome = FAULT_KINDS[event.kind].outcome(event, options)
        assert outcome is (FaultOutcome.STEP if event.kind == "worker-kill" else FaultOutcome.SAME_BITS)
        assert event._replace(duration_s=same.duration_s) == same
        assert event.duration_s > 0.0
    alone = replace(options, fallback="")
    assert {FAULT_KINDS[event.kind].outcome(event, alone) for event in ends} == {FaultOutcome.STEP}


def test_an_error_must_name_who_was_hit() -> None:
    kill = ChaosEvent(0, 0.0, "worker-kill", "rank 2", 0.0, "", 0)
    text = "rank 0 of 4): allreduce failed: rank 2 at 127.0.0.1:51824: no heartbeat for 4 s; missing ranks: 2"
    assert is_named(FAULT_KINDS["worker-kill"], kill, 0, text)
    assert not is_named(FAULT_KINDS["worker-kill"], kill, 0, text.replace("2", "3"))
    assert not is_named(FAULT_KINDS["worker-kill"], kill, 0, "rank 2 of 4: connection reset")
    gone = "switch tcp://10.79.0.5:5555 has not answered for 1.0 s: it or the path is down"
    switch = ChaosEvent(0, 0.0, "switch-kill", "switch 0", 1.0, "", 0)
    assert is_named(FAULT_KINDS["switch-kill"], switch, 3, gone)
    assert not is_named(FAULT_KINDS["switch-kill"], switch, 3, text)
    cut = ChaosEvent(0, 0.0, "link-cut", "rank 2", 3.0, "near", 0)
    assert is_named(FAULT_KINDS["link-cut"], cut, 2, gone)
    assert not is_named(FAULT_KINDS["link-cut"], cut, 1, gone)


def done(
    step: int, sha256: str, begun_ns: int = 0, done_ns: int = 0, workers: int = 2, generation: int = 0
) -> StepDone:
    return StepDone(step, begun_ns, done_ns, sha256, 7, workers, generation)


def test_parameters_that_differ_are_seen() -> None:
    ledger = StepLedger(2, 10)
    ledger.learn(3, "a")
    assert ledger.note(0, done(3, "a")) == ledger.note(1, done(13, "a")) == ""
    assert ledger.note(1, done(3, "b")) == "step 3: parameters of rank 1 aren't those of the undisturbed run"
    assert ledger.note(0, done(4, "c")) == ""
    assert ledger.note(1, done(4, "d")) == "step 4: parameters of rank 1 aren't those of rank 0"
    ledger.undisturbed = None
    assert ledger.note(0, done(23, "e")) == ledger.note(1, done(23, "e")) == ""
    assert (ledger.steps, ledger.sums) == (3, 49)


def test_a_job_goes_on_once_all_ranks_have_done_a_step_that_they_began_later() -> None:
    ledger = StepLedger(2, 10)
    ledger.note(0, done(0, "a", 100, 200))
    ledger.note(1, done(0, "a", 110, 210))
    assert ledger.first_done_ns(100) == 210
    assert ledger.first_done_ns(105) is None
    ledger.note(0, done(1, "a", 200, 300))
    assert ledger.first_done_ns(105) is None
    ledger.restart(1)
    assert ledger.first_done_ns(0) is None
    ledger.note(0, done(1, "a", 400, 500))
    ledger.note(1, done(1, "a", 400, 510))
    assert ledger.first_done_ns(300) == 510


def test_steps_that_an_elastic_job_did_again_are_counted_and_count_as_they_were_the_last_time() -> None:
    ledger = StepLedger(3, 2, elastic=True)
    for step in range(3):
        for rank in range(3):
            assert not ledger.note(rank, done(step, f"{step}", workers=3))
    assert not ledger.note(2, done(3, "lost", workers=3))  # and is killed then
    for rank in range(2):
        ledger.note_failed(3, 0)
        assert not ledger.note(rank, done(3, "b", 50, 60 + rank, generation=1))
    assert (ledger.generation, ledger.steps) == (1, 4)
    ledger.note_failed(4, 1)
    assert ledger.first_done_ns(50) == 61
    assert ledger.first_done_ns(50, 3) is None
    assert ledger.note(0, done(4, "c", generation=2)) == ""
    assert ledger.note(1, done(4, "d", generation=2)) == "step 4: parameters of rank 1 aren't those of rank 0"
    assert ledger.laps() == [
        LapHistory(0, 0, ((3, 2),), ["0", "1"]),
        LapHistory(0, 2, ((3, 1), (2, 1)), ["2", "b"]),
        LapHistory(0, 4, ((2, 1),), ["d"]),
    ]
    assert ledger.steps_discarded == 2


def test_quantiles_are_values_that_occurred() -> None:
    assert quantiles([1.0]) == (1.0, 1.0, 1.0)
    assert quantiles([float(number) for number in range(1, 201)]) == (100.5, 198.0, 200.0)
