"""examples/p4/finish_early: another rule from reference to program, tests that tell it from ours, and workers on it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from emulation.cli.p4_generate import rule_of
from emulation.experiments.compare import choose_plane
from emulation.scenario.errors import RunFailed
from emulation.scenario.scenario import load
from p4vm.compile import front_end
from p4vm.control.controlled_switch import ControlledSwitch
from p4vm.python.python_engine import PythonEngine
from p4vm.stf.run import Result, run_text
from switchagg.aggregator import Parent
from switchagg.dataplane.p4.p4_plane import P4Plane, missing
from switchagg.dataplane.p4.plane_program import PROGRAMS
from switchagg.dataplane.p4.plane_traffic import Shape, traffic
from switchagg.dataplane.p4.traffic_files import stf
from switchagg.errors import JobError
from switchagg.job import JobConfig, StreamConfig
from switchagg.wire import Op, Packet, encode

HERE = Path(__file__).parents[3] / "examples" / "p4" / "finish_early"
FEATURES = Path(__file__).parents[3] / "p4" / "tests" / "features"
OURS = PROGRAMS / "v1model"


def results(path: Path) -> Callable[[str], Result]:
    program = front_end(path, includes=[OURS], defines={"ELEMENTS": "1"})
    return lambda text: run_text(ControlledSwitch(PythonEngine(program)), text, "t.stf")


def test_its_program_keeps_its_rule_and_ours_does_not() -> None:
    changed, ours = results(HERE / "switchagg.p4"), results(OURS / "switchagg.p4")
    for workers in (1, 2, 3, 5):
        shape = Shape(workers, 120, workers, 1)
        text = "\n".join(stf(traffic(shape, reference=rule_of(HERE / "rule.py")), shape, "a test"))
        assert changed(text).failures == []
        if workers > 1:
            assert ours(text).failures


@pytest.mark.parametrize("backend", ["python"])
def test_a_sum_does_not_wait_for_the_last(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On data plane p4; a MAX does wait."""
    monkeypatch.setenv("SWITCHAGG_P4_PROGRAM", str(HERE / "switchagg.p4"))
    plane = P4Plane(1, 1, backend=backend)
    plane.admit(JobConfig(1, 7, 3, 1, (StreamConfig(0, 1),)), [0, 1, 2])

    def send(rank: int, chunk: int, op: Op) -> list[tuple[int, tuple[int, ...]]]:
        packet = Packet(1, 7, 0, rank, op, 0, chunk, chunk, np.array([10**rank], np.int32))
        outputs = plane.process(np.frombuffer(encode(packet), np.uint8)[np.newaxis, :], rank)
        return [(int(out.bundle[0, 20:].view(">i4")[0]), out.ports) for out in outputs]

    assert [send(rank, 0, Op.SUM) for rank in (0, 2, 1, 0)] == [[], [(101, (0, 1, 2))], [(101, (1,))], [(101, (0,))]]
    assert [send(rank, 1, Op.MAX) for rank in (0, 2, 1)] == [[], [], [(100, (0, 1, 2))]]


def test_a_program_of_another_rule_is_no_leaf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHAGG_P4_PROGRAM", str(HERE / "switchagg.p4"))
    with pytest.raises(JobError, match="our program for switches below another may not fit its rule"):
        P4Plane(1, 1, backend="python").admit(JobConfig(1, 7, 1, 1, (StreamConfig(0, 1),)), [0], Parent(1, 0))


def test_a_program_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHAGG_P4_PROGRAM", "nowhere.p4")
    assert missing() == "SWITCHAGG_P4_PROGRAM is nowhere.p4: there is no such file"


def test_a_program_that_is_no_switch_of_ours_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHAGG_P4_PROGRAM", str(FEATURES / "actions_at_top_level.p4"))
    with pytest.raises(JobError, match=r"it has no table SwitchIngress.layout.addresses, .* start from .* p4 test"):
        P4Plane(1, 1, backend="python").prepare()


def test_training_is_not_held_to_our_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """The self-test of data planes would refuse a program of another rule, if a user names one, and only then."""
    scenario = load(HERE / "training.toml")
    monkeypatch.setattr("emulation.experiments.compare.fault", lambda *_: "it fails its self-test")
    with pytest.raises(RunFailed, match="fails its self-test"):
        choose_plane(scenario, "mininet")
    monkeypatch.setenv("SWITCHAGG_P4_PROGRAM", str(HERE / "switchagg.p4"))
    assert choose_plane(scenario, "mininet").name == "p4"
