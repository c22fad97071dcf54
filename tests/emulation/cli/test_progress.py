"""Progress on stderr: one line for every tenth of the way in a log, bars on a terminal."""

import pytest

from emulation.cli.progress import bars, lines
from emulation.testbed.host import host_facts


def test_lines_are_few_however_many_iterations(capsys: pytest.CaptureFixture[str]) -> None:
    with lines() as report:
        report("gloo", 0, 150, "building the network")
        report("gloo", 0, 150, "starting 4 workers")
        for done in range(1, 151):
            report("gloo", done, 150, f"{done} s of virtual time")
        report("switch", 0, 150, "")
    out, err = capsys.readouterr()
    assert out == ""
    said = err.splitlines()
    assert said[:2] == ["gloo: 0/150 iterations: building the network", "gloo: 0/150 iterations: starting 4 workers"]
    assert said[-2:] == ["gloo: 150/150 iterations: 150 s of virtual time", "switch: 0/150 iterations"]
    assert len(said) == 2 + 1 + 10 + 1


def test_a_log_is_not_silent_for_long(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter((0.0, 10.0, 31.0, 31.0))
    monkeypatch.setattr("emulation.cli.progress.time.monotonic", lambda: next(seconds))
    with lines() as report:
        for note in ("1 s", "2 s", "3 s"):
            report("ring", 1, 100, note)
    assert capsys.readouterr().err.splitlines() == ["ring: 1/100 iterations: 1 s", "ring: 1/100 iterations: 3 s"]


def test_bars_show_each_method(capsys: pytest.CaptureFixture[str]) -> None:
    with bars() as report:
        report("gloo", 3, 10, "training")
        report("switch", 10, 10, "training")
    out, err = capsys.readouterr()
    assert out == ""
    assert "gloo" in err
    assert "10/10" in err


def test_host_facts_hold_what_results_must_not() -> None:
    facts = host_facts(["switchagg", "compare"])
    assert facts["command"] == ["switchagg", "compare"]
    assert facts["cpus_usable"] >= 1
    assert facts["packages"]["numpy"]
    assert facts["kernel"].startswith("Linux ")
    assert facts["started"].endswith("+00:00")
