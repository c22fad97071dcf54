"""The benchmark of the packet engine: what it measures of small worlds, and the page that it writes."""

from pathlib import Path
from typing import Any

import pytest

from emulation.scenario.errors import RunFailed
from switchagg.native import library
from tools.bench import engine_page, packet_engine
from tools.bench.packet_engine import EngineCase, exponent

DOCS = Path(__file__).parents[3] / "docs/results"


def part_of(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """All it measures, of worlds a hundredth as large, in this process."""
    for name, cases in (
        ("CASES", [EngineCase(2, 40_000, True, method="ring")]),
        ("SCALE", [EngineCase(workers, 100_000, False, method="ring") for workers in (2, 4, 8)]),
        ("LARGE", [EngineCase(4, 400_000, False, racks=2)]),
    ):
        monkeypatch.setattr(packet_engine, name, cases)
    monkeypatch.setattr(packet_engine, "_apart", lambda measured, case, _log: measured(case))
    return packet_engine.measure(True, print)


@pytest.mark.skipif(bool(library.missing()), reason=library.missing())
def test_small_worlds_are_measured_and_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    part = part_of(monkeypatch)
    (row,) = part["rows"]
    assert row["hops"] > 100
    assert row["virtual_ns"] > 0
    assert row["wrong_elements"] == 0
    assert any(line.startswith("switch, n = 4, 0.4 MB") for line in packet_engine.lines(part))

    (tmp_path / engine_page.PAGE).write_text((DOCS / engine_page.PAGE).read_text())
    page, figure = engine_page.write(part, tmp_path)
    before, after = ((folder / engine_page.PAGE).read_text() for folder in (DOCS, tmp_path))
    begin, end = "<!-- measured: written by `python -m tools.bench engine --docs` -->", "<!-- end -->"
    assert after.partition(begin)[0] == before.partition(begin)[0]
    assert after.partition(end)[2] == before.partition(end)[2]
    assert "\nring, n = 2, 0.1 MB " in after
    assert figure.read_bytes().startswith(b"\x89PNG")
    page.write_text("without a place")
    with pytest.raises(RunFailed, match=r"has no place for the results"):
        engine_page.write(part, tmp_path)


def test_the_exponent_is_the_slope_of_the_logarithms() -> None:
    rows = [{"events": events, "whole_cpu_ns": 3 * events**1.5} for events in (10, 1_000, 100_000)]
    assert exponent(rows, "whole_cpu_ns") == pytest.approx(1.5)
    assert exponent(rows[:1], "whole_cpu_ns") is None
