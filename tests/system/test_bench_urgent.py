"""The benchmark of urgent calls over host methods: a row for each link."""

import pytest

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("requires_mininet")]


def test_a_link_has_a_row_of_medians() -> None:
    from tools.bench.urgent import CASES, measure

    said: list[str] = []
    head, row = measure(["tcp"], 2, 200_000_000, 4_000_000, said.append)
    assert head.split()[0] == "link"
    assert row.split()[0] == "tcp"
    assert all(float(value) > 0 for value in row.split()[1:])
    assert said == [f"tcp: {name}" for name, _, _ in CASES]
