"""The figure of three kills: it is drawn only where no bit differs. Trainings need minutes: here they are made up."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from emulation.scenario.errors import RunFailed
from tools.bench import killed_training
from tools.bench.killed_training import Run

STEPS = 40
LOSSES = [math.exp(-step / 9).hex() for step in range(STEPS)]
PLAIN = Run([0.1 * step for step in range(STEPS)], LOSSES, digests={"a"})
KILLED = Run([0.2 * step for step in range(STEPS)], LOSSES, [1.0, 3.0, 5.0], [2.0, 4.0, 6.0], {"a"})


@pytest.fixture
def trains(monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], None]:
    """trains(run): what the training with kills leaves behind."""

    def given(run: Run) -> None:
        runs = iter((PLAIN, run))
        monkeypatch.setattr(killed_training._Training, "run", lambda _: next(runs))

    return given


def test_equal_trainings_are_drawn(trains: Callable[[Run], None], tmp_path: Path) -> None:
    trains(KILLED)
    runs = killed_training.measure(STEPS, 1.0, lambda line: None)
    killed_training.write(runs, tmp_path / "killed.png")
    assert (tmp_path / "killed.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (replace(KILLED, losses=[*LOSSES[:-1], math.nextafter(float.fromhex(LOSSES[-1]), 1).hex()]), "losses"),
        (replace(KILLED, losses=LOSSES[:-1]), "losses"),
        (replace(KILLED, digests={"a", "b"}), "parameters"),
        (replace(KILLED, returns_s=[2.0]), "3 kills, and 1 returns"),
    ],
)
def test_one_bit_is_enough_to_refuse(run: Run, words: str, trains: Callable[[Run], None]) -> None:
    trains(run)
    with pytest.raises(RunFailed, match=words):
        killed_training.measure(STEPS, 1.0, lambda line: None)
