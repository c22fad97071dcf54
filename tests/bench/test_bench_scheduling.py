"""The benchmark of the scheduler's decisions: its rows, not its times."""

from emulation.bench.scheduling import TRANSFERS, _plan, decision_cost


def test_rows() -> None:
    found = decision_cost(iterations=5)
    assert [(row["transfers"], row["matched_by"]) for row in found["rows"]] == [
        (count, kind) for count in TRANSFERS for kind in ("key", "order")
    ]
    assert all(0 < row["decision_ns"]["least"] <= row["decision_ns"]["median"] for row in found["rows"])
    assert all(len(_plan(count)) == count for count in TRANSFERS)
