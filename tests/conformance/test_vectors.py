"""Golden packets (tests/vectors/*.stf, format in its README) on every data plane: P6, S1 to S8 and H2 to H5."""

from pathlib import Path

import pytest
from dataplane_names import IN_PROCESS

from switchagg.dataplane.plane_kinds import DATAPLANES
from transport.testing.jobs import Unexpected
from transport.testing.vectors import PlaneTarget, run_vector, suits

VECTORS = sorted((Path(__file__).parent.parent / "vectors").glob("*.stf"))


@pytest.mark.parametrize(
    ("vector", "dataplane"),
    [
        pytest.param(vector, name, id=f"{vector.stem}-{name}")
        for vector in VECTORS
        for name in IN_PROCESS
        if suits(vector.read_text(), name)
    ],
)
def test_vector(vector: Path, dataplane: str) -> None:
    target = PlaneTarget(DATAPLANES[dataplane])
    packets = run_vector(vector.read_text(), target, vector.name)
    assert packets == sum(target.plane.counters.values())  # every packet is counted exactly once


def test_a_wrong_vector_fails() -> None:
    text = (VECTORS[0].parent / "s5_broadcast.stf").read_text()
    for wrong in (
        text.replace("00000008 ffffffff", "00000009 ffffffff"),
        text.replace("counter broadcast 1", "counter broadcast 2"),
        text.replace("seen 0 0 0 0,1", "seen 0 0 0 0"),
        "\n".join(line for line in text.splitlines() if not line.startswith("expect 1")),
    ):
        with pytest.raises(Unexpected):
            run_vector(wrong, PlaneTarget(DATAPLANES["reference"]))
