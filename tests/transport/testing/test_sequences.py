"""Sequences under faults, and the table of verdicts: the same faults each time, few packets shown, right counters."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from dataplane_names import WITHOUT_P4

from switchagg.aggregator import Aggregator
from switchagg.dataplane import plane_kinds
from switchagg.dataplane.plane_kinds import PlaneKind
from switchagg.dataplane.reference import ReferencePlane
from switchagg.errors import SwitchaggError
from switchagg.testing import Job, Packet, Switch, UnderFaults, Unexpected
from transport.testing.faults import SINGLE_MOST, orders
from transport.testing.verdict_table import PacketTally, VerdictRow, by_switch, lines_of, without_repeats

pytest_plugins = ["pytester"]

TWO = {"workers": 2, "elements": 2, "window": 1}


def three_chunks(job: Job) -> Iterator[tuple[int, Packet]]:
    for chunk in range(3):
        for rank in range(2):
            yield rank, job.contribution(rank, chunk, [rank + 1, chunk])


def words(packets: int, seed: int, mixtures: int) -> list[str]:
    return [f"{order.faults}: {', '.join(map(str, order.arrivals))}" for order in orders(packets, seed, mixtures)]


def test_each_single_fault_then_mixtures_by_seed() -> None:
    assert words(2, 0, 0) == [
        "no fault: packet 0, packet 1",
        "packet 0 is lost: packet 1",
        "packet 0 is lost, and is sent again at the end: packet 1, packet 0, sent again after a loss",
        "packet 0 is sent again at the end: packet 0, packet 1, packet 0, sent again though it had arrived",
        "packet 0 comes again after packet 0: packet 0, packet 0, a second copy, packet 1",
        "packet 0 comes again after packet 1: packet 0, packet 1, packet 0, a second copy",
        "packet 0 comes after packet 1: packet 1, packet 0, overtaken by packet 1",
        "packet 1 is lost: packet 0",
        "packet 1 is lost, and is sent again at the end: packet 0, packet 1, sent again after a loss",
        "packet 1 is sent again at the end: packet 0, packet 1, packet 1, sent again though it had arrived",
        "packet 1 comes again after packet 1: packet 0, packet 1, packet 1, a second copy",
    ]
    assert words(9, 5, 20) == words(9, 5, 20)
    assert words(9, 5, 20)[-20:] != words(9, 6, 20)[-20:]
    assert len(words(40, 1, 3)) == 1 + SINGLE_MOST + 3
    kinds = "\n".join(words(9, 5, 20)[-20:])
    assert all(word in kinds for word in (", late", ", sent again after a loss", ", a second copy"))


@pytest.mark.dataplane(*WITHOUT_P4)
def test_a_right_switch_passes_and_what_it_counted_adds_up(under_faults: UnderFaults) -> None:
    raw = b"no packet"
    played = under_faults(lambda job: [*three_chunks(job), (0, raw)], **TWO)
    tally = under_faults.switch.tally
    assert tally.sequences == played == 1 + 7 * 10 + under_faults.mixtures
    assert sum(tally.counted.values()) == tally.packets_in
    assert tally.packets_out == 2 * tally.counted["broadcast"] + tally.counted["reply"]
    assert tally.counted["drop_short"] >= 1 + 7 * 10 - 2 * 1


class TakesOlder(Aggregator):
    """Forgets that packets of an older chunk are too late (S2)."""

    def _out_of_turn(self, packet: Packet) -> str:
        reason = super()._out_of_turn(packet)
        return "" if reason == "older" else reason


class WrongReply(Aggregator):
    """Answers who asks again with other sums (S4)."""

    def _answer(self, packet, values, *, again):  # type: ignore[no-untyped-def]
        return super()._answer(packet, values + again, again=again)


def failure(monkeypatch: pytest.MonkeyPatch, rule: type[Aggregator]) -> str:
    kind = PlaneKind("faulty", lambda slots, elements: ReferencePlane(slots, elements, rule), "")
    monkeypatch.setitem(plane_kinds.DATAPLANES, "faulty", kind)
    with Switch("faulty") as switch, pytest.raises(Unexpected) as caught:
        UnderFaults(switch)(three_chunks, **TWO)
    return str(caught.value)


def test_a_switch_that_fails_under_a_fault_alone_is_shown_by_the_fewest_packets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = failure(monkeypatch, TakesOlder).splitlines()
    assert lines[0].startswith("the sequence fails under faults: packet 0 ")
    assert lines[1] == "the smallest part of it found that fails, 3 packets:"
    assert lines[2].startswith("  ok    packet 1: rank 1 sent contribution job 1 ")
    assert lines[2].endswith("S3, S4: counted in, not all ranks are seen")
    assert lines[3].startswith("  ok    packet ")
    assert lines[4].startswith("  FAIL  packet ")
    assert "        the counter drop_older should have counted it (S2: older than what the slot version holds)" in lines


def test_a_wrong_value_is_named_with_its_packet_and_its_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    text = failure(monkeypatch, WrongReply)
    assert "3 packets:" in text
    assert text.startswith("the sequence fails under faults: packet 0 comes again after packet 1 ")
    assert "value[1]       expected 0, received 1  (S4: the sums)" in text
    assert "the counter" not in text


def test_a_check_of_one_s_own() -> None:
    def once(results: Mapping[int, Sequence[Packet]]) -> None:
        assert len(results[1]) < 2, "rank 1 got two results"

    with Switch("reference") as switch:
        run = UnderFaults(switch, mixtures=0)
        with pytest.raises(Unexpected, match=r"(?s)FAIL  packet 1.*the check fails after it: rank 1 got two"):
            run(lambda job: list(three_chunks(job))[:2], rule=None, check=once, **TWO)
        assert run(lambda job: list(three_chunks(job))[:1], rule=None, check=once, **TWO) == 5
        with pytest.raises(SwitchaggError, match="without a rule nothing is compared"):
            run(three_chunks, rule=None)
        with pytest.raises(SwitchaggError, match="the sequence has no packets"):
            run(lambda job: [])


TESTS = """
    import pytest

    def test_two(job):
        two = job(workers=2, elements=1)
        for rank in (0, 0, 1):
            two.contribute(rank, 0, 1)
        two.contribute(0, 0, 1, retransmission=True)
        two.contribute(0, 0, 1, generation=9)
        for port in two.workers:
            while port.receive(0):
                pass

    def test_sequence(under_faults):
        assert under_faults.seed == 4
        under_faults(lambda job: [(0, job.contribution(0, 0, 1))], workers=1, elements=1)

    def test_wrong(job):
        job(workers=1).expect_packets({0: b""})

    def test_no_switch():
        pass

    @pytest.mark.parametrize("switch", ["a word"])
    def test_of_another_kind(switch):
        pass
"""


def test_the_table_of_a_run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(slots: int, elements: int) -> ReferencePlane:
        raise SwitchaggError("it is not installed")

    planes = {"good": PlaneKind("good", ReferencePlane, ""), "gone": PlaneKind("gone", missing, "")}
    monkeypatch.setattr("transport.testing.fixtures.DATAPLANES", planes)
    for name, kind in planes.items():
        monkeypatch.setitem(plane_kinds.DATAPLANES, name, kind)
    pytester.makepyfile(test_mine=TESTS)
    options = ["-p", "switchagg.testing", "-p", "no:cacheprovider", "--fault-seed", "4", "--fault-mixtures", "0"]
    done = pytester.runpytest(*options, "--dataplane", "all", "--verdicts", "table.csv")
    done.assert_outcomes(passed=4, failed=1, skipped=3)
    done.stdout.fnmatch_lines(["test_mine.py::test_two *good *passed * 5 * 3 * 1 * 1  generation 1"])
    done.stdout.fnmatch_lines(["all *gone *3 skipped *it is not installed", "table.csv: 6 tests"])
    with (pytester.path / "table.csv").open(newline="") as file:
        rows = {(row["test"].split("::")[1], row["switch"]): row for row in csv.DictReader(file)}
    assert rows["test_sequence", "good"]["sequences"] == "5"
    assert rows["test_sequence", "good"]["in"] == "6"
    assert rows["test_wrong", "good"]["verdict"] == "failed"
    assert len(rows) == 6
    quiet = pytester.runpytest(*options, "-q", "--dataplane", "good")
    quiet.stdout.fnmatch_lines(["all *good *1 failed, 2 passed * 5 * 11 *"])
    named = pytester.runpytest(*options, "--dataplane", "gone")
    named.assert_outcomes(passed=2, errors=3)
    named.stdout.fnmatch_lines(["_* ERROR at setup of test_two* _*", "it is not installed", "_*"], consecutive=True)


def test_rows_together() -> None:
    some = PacketTally(1, 2, 3, 4, {"absorbed": 1, "drop_duplicate": 5, "drop_older": 6})
    rows = [VerdictRow("a", "x", "passed", "", some), VerdictRow("b", "x", "passed", "", some)]
    rows += [
        VerdictRow("a", "y", "skipped", "not here", PacketTally()),
        VerdictRow("b", "y", "skipped", "not here", PacketTally()),
    ]
    assert [row.cells() for row in by_switch(rows)] == [
        ["all", "x", "2 passed", "2", "4", "6", "8", "10", "older 12"],
        ["all", "y", "2 skipped", "", "0", "0", "0", "0", "not here"],
    ]
    assert [row.test for row in without_repeats(rows)] == ["a", "b", "all"]
    assert VerdictRow.of(rows[0].saved()) == rows[0]
    assert len({len(line.split("older")[0]) for line in lines_of(rows)[1:3]}) == 1
    assert np.all([line == line.rstrip() for line in lines_of(rows)])


def test_a_file_of_the_table_is_where_it_is_asked_for(tmp_path: Path) -> None:
    from transport.testing.verdict_table import write_csv

    write_csv(tmp_path / "t.csv", [VerdictRow("a", "x", "passed", "", PacketTally(0, 1))])
    assert (tmp_path / "t.csv").read_text().splitlines()[1] == "a,x,passed,,1,0,0,0,"
