"""Generated tests of many packets: the same from the same seed, right on every data plane, failed by wrong programs."""

import shutil
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from dataplane_names import IN_PROCESS
from typer.testing import CliRunner

from emulation.cli.main import app
from p4vm.compile import compile_program, front_end
from p4vm.control.controlled_switch import ControlledSwitch
from p4vm.ir import ir_nodes as ir
from p4vm.python.python_engine import PythonEngine
from p4vm.stf.run import Result, run_text
from switchagg.dataplane.p4 import bmv2_plane
from switchagg.dataplane.p4.plane_program import PROGRAMS, defines
from switchagg.dataplane.p4.plane_traffic import (
    USUAL,
    Arrived,
    Evicted,
    LostPackets,
    Shape,
    Step,
    TrafficFaults,
    traffic,
)
from switchagg.dataplane.p4.traffic_files import stf, vector
from switchagg.dataplane.plane_kinds import DATAPLANES
from transport.testing.vectors import PlaneTarget, run_vector

PROGRAM = PROGRAMS / "v1model" / "switchagg.p4"
HARSH = TrafficFaults(loss=0.1, duplicate=0.15, reorder=0.15, straggler=0.05, reset=0.02)
SHAPE = Shape(seed=3, packets=150, workers=3, elements=1, window=2, jobs=2)


@cache
def happened(shape: Shape = SHAPE, faults: TrafficFaults = HARSH) -> list[Step]:
    return list(traffic(shape, faults))


def written(shape: Shape = SHAPE, faults: TrafficFaults = HARSH) -> str:
    return "\n".join(stf(happened(shape, faults), shape, "a test"))


@cache
def compiled(path: Path) -> ir.ProgramIr:
    return front_end(path, defines={"ELEMENTS": "1"})


def judged(text: str, program: Path = PROGRAM) -> Result:
    return run_text(ControlledSwitch(PythonEngine(compiled(program))), text, "t.stf")


def test_traffic_has_what_it_is_for() -> None:
    reasons: Counter[str] = Counter()
    whys: Counter[str] = Counter()
    for seed in range(4):
        for step in happened(Shape(seed, 400, 3, 1, 2, 2, 2), HARSH):
            whys[type(step).__name__] += 1
            if isinstance(step, Arrived):
                reasons[step.reason] += 1
                for why in ("first sending", "retransmission:", "second copy", "overtaken", "fell behind", "MAX"):
                    whys[why] += why in step.note
    assert set(reasons) == {
        *("absorbed", "broadcast", "reply"),
        *("drop_duplicate", "drop_older", "drop_generation", "drop_job"),
    }
    assert min(reasons.values()) >= 5, reasons
    assert min(whys.values()) >= 5, whys
    assert {"LostPackets", "Evicted", "AdmittedTraffic"} <= set(whys)


def test_a_network_without_faults() -> None:
    """Every chunk comes once from every rank: each n-th packet completes one."""
    steps = happened(Shape(packets=60, elements=1), TrafficFaults())
    arrived = [step for step in steps if isinstance(step, Arrived)]
    assert not any(isinstance(step, LostPackets | Evicted) for step in steps)
    assert Counter(step.reason for step in arrived) == {"absorbed": 40, "broadcast": 20}


def test_the_same_seed_gives_the_same_file() -> None:
    again = "\n".join(stf(traffic(SHAPE, HARSH), SHAPE, "a test"))
    assert again == written()
    assert again != written(Shape(4, 150, 3, 1, 2, 2))


@pytest.mark.parametrize("elements", [1, 33])
def test_our_program_passes(elements: int) -> None:
    """Both engines; 33 values take two passes."""
    shape = Shape(1, 60, 2, elements)
    text = written(shape, HARSH)
    backends = ("python", "native") if shutil.which("cc") else ("python",)
    for backend in backends:
        engine = compile_program(PROGRAM, backend=backend, defines=defines(elements, 2), optimize=0)
        result = run_text(ControlledSwitch(engine), text, "t.stf")
        assert result.failures == []
        assert result.packets_in == 60
        assert result.packets_out == text.count("\nexpect ") > 20
        engine.close()


@pytest.mark.parametrize("plane", IN_PROCESS)
def test_every_data_plane_passes(plane: str) -> None:
    if plane == "bmv2" and bmv2_plane.missing():
        pytest.skip(f"data plane bmv2: {bmv2_plane.missing()}")
    for seed in range(1 if plane == "bmv2" else 3):
        shape = Shape(seed, 20 if plane == "bmv2" else 150, 3, 1, 2, 2)
        text = "\n".join(vector(happened(shape, HARSH), shape, "a test"))
        assert run_vector(text, PlaneTarget(DATAPLANES[plane])) == shape.packets


MUTATIONS = {
    "seen is not reset for a new chunk": ("seen.p4", "meta.fresh == 1 ? 64w0 : ", ""),
    "held is compared the wrong way": (
        "held.p4",
        "hdr.chunk.chunk - chunk;",
        "chunk - hdr.chunk.chunk;",
    ),
    "sums are added to, not overwritten": (
        "sums.p4",
        "if (meta.before & meta.mask == 0) {",
        "if (meta.before & meta.mask == 1 << 40) {",
    ),
    "routes are not obeyed": ("admission.p4", "hdr.chunk.route == FROM_OWNER", "hdr.chunk.route == TO_OWNER"),
    "results have one size": ("results.p4", "hdr.chunk.route == TO_OWNER && owns == 0", "hdr.chunk.route == ALL"),
    "a repeated rank is added again": ("sums.p4", "meta.before & meta.rank != 0", "meta.before & meta.rank == 1 << 40"),
    "repeated packets are broadcast": ("verdict.p4", "if (meta.counted == 1) {", "if (meta.complete == 1) {"),
    "generations are not asked": (
        "admission.p4",
        "hdr.chunk.generation != meta.generation",
        "meta.generation != meta.generation",
    ),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_wrong_program_fails(mutation: str, tmp_path: Path) -> None:
    name, right, wrong = MUTATIONS[mutation]
    place = tmp_path / "p4"
    shutil.copytree(PROGRAMS, place)
    path = place / "v1model" / name
    text = path.read_text()
    assert text.count(right) == 1
    path.write_text(text.replace(right, wrong))
    assert any("expect" in failure for failure in judged(written(), path.with_name("switchagg.p4")).failures)


def test_each_line_is_judged() -> None:
    """Wrong in any value that must come out, or one packet fewer: the file fails."""
    lines = written(Shape(1, 20, 2, 1), USUAL).splitlines()
    expected = [place for place, line in enumerate(lines) if line.startswith("expect")]
    assert judged("\n".join(lines)).failures == []
    for place in (expected[0], expected[-1]):
        last = lines[place][-3]
        wrong = lines[place][:-3] + f"{int(last, 16) ^ 1:x} $"
        assert judged("\n".join([*lines[:place], wrong, *lines[place + 1 :]])).failures
        assert judged("\n".join([*lines[:place], *lines[place + 1 :]])).failures


# ---- the command


def test_command(tmp_path: Path) -> None:
    run = CliRunner().invoke
    made = tmp_path / "made.stf"
    options = ["--seed", "5", "--packets", "20", "--elements", "1", "--fault", "loss=0.2", "-o", str(made)]
    assert run(app, ["p4", "generate", *options]).exit_code == 0
    shape = Shape(5, 20, elements=1)
    assert made.read_text().splitlines()[2:] == written(shape, TrafficFaults(loss=0.2)).splitlines()[2:]
    tests = run(app, ["p4", "test", str(PROGRAM), str(made), "-D", "ELEMENTS=1", "--backend", "python"])
    assert (tests.exit_code, "20 packets in" in tests.output) == (0, True)
    assert run(app, ["p4", "generate", *options, "--format", "vector"]).exit_code == 0
    assert made.read_text().splitlines()[1] == "switch 2 1"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--fault", "lost=0.1"], "--fault lost: unknown; allowed: loss, duplicate"),
        (["--fault", "loss=much"], "expected a probability"),
        (["--fault", "loss=1"], "fault loss=1.0: 0 to 0.9"),
        (["--workers", "65"], "workers 65: 1 to 64"),
        (["--packets", "0"], "packets 0: 1 to"),
        (["--elements", "0"], "elements 0: 1 to"),
        (["--format", "pcap"], "--format pcap: unknown"),
        (["--window", "4096", "--jobs", "17"], "69632 slots in all: the program holds 65536"),
        (["--elements", "300"], "300 elements per packet: the program holds 256"),
        (["--rule", "missing.py"], "--rule missing.py: expected a Python file"),
    ],
)
def test_wrong_options(options: list[str], says: str, tmp_path: Path) -> None:
    ended = CliRunner().invoke(app, ["p4", "generate", "--packets", "2", *options, "-o", str(tmp_path / "x.stf")])
    assert ended.exit_code == 2 or "the program holds" in says
    assert ended.exit_code != 0
    assert says in ended.output
    assert not (tmp_path / "x.stf").exists()
