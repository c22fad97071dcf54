"""examples/labs: the solution passes, a typical error is told. What the starting point is told stands in its README,
whose commands are run."""

import runpy
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

LABS = Path(__file__).parents[2] / "examples" / "labs"
CHECK = runpy.run_path(str(LABS / "check.py"))


@dataclass(frozen=True)
class Lab:
    """file, right, wrong: an edit of the solution; told: words of what is told of it."""

    name: str
    file: str
    right: str
    wrong: str
    told: tuple[str, ...]


LAB = {
    lab.name[0]: lab
    for lab in (
        Lab(
            "1_slot_rule",
            "rule.py",
            "return None  # older",
            "self.held[slot][version], self.seen[slot][version] = chunk, 0  # older",
            ("when they don't", "was an old copy", "S2"),
        ),
        Lab(
            "2_lost_packet",
            "by_hand.py",
            '(packet(1, chunk=0), "DROP")',
            '(packet(1, chunk=0), "REPLY")',
            ("you say REPLY, the switch does DROP", "S2: older"),
        ),
        Lab(
            "3_adder",
            "adder.p4",
            "meta.before & meta.rank != 0 || ",
            "",
            ("times (is its bit in meta.before?)",),
        ),
        Lab(
            "4_priority",
            "scenario.toml",
            "tictac",
            "p3:slice=4000",
            ("for communication 180.0 ms", "every slice is a call"),
        ),
        Lab(
            "5_dead_worker",
            "train.py",
            "            continue",
            "            step += 1\n            continue",
            ("has no sum of step 4",),
        ),
        Lab(
            "6_certificate",
            "answers.toml",
            "compute = 1.10",
            "compute = 1.14",
            ("speedup_at_equal_compute = 1.14 is not right", "no merit of either"),
        ),
    )
}


@pytest.fixture(scope="module")
def labs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, as learners have one."""
    return shutil.copytree(LABS, tmp_path_factory.mktemp("copy") / "labs")


def told(lab: Path, folder: Path) -> str:
    lines = CHECK["faults"](lab, folder)
    assert len(lines) <= 2
    return "\n".join(lines)


@pytest.mark.parametrize("number", LAB)
def test_the_solution_passes(number: str, labs: Path) -> None:
    lab = labs / LAB[number].name
    assert told(lab, lab / "solution") == ""


@pytest.mark.parametrize("number", LAB)
def test_a_typical_error_is_told(number: str, labs: Path) -> None:
    case = LAB[number]
    lab = labs / case.name
    wrong = shutil.copytree(lab / "solution", lab / "wrong")
    text = (wrong / case.file).read_text()
    assert text.count(case.right) == 1
    (wrong / case.file).write_text(text.replace(case.right, case.wrong))
    words = told(lab, wrong)
    assert [each for each in case.told if each not in words] == [], words
