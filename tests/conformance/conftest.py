"""Skips, with the reason, what runs over a data plane that this machine lacks."""

from pathlib import Path

import pytest

from switchagg.dataplane.p4 import bmv2_plane, p4_plane


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reasons = {"p4": p4_plane.missing(), "bmv2": bmv2_plane.missing()}
    here = Path(__file__).parent
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        for value in parameters.values():
            if isinstance(value, str) and reasons.get(value) and here in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=f"data plane {value}: {reasons[value]}"))
