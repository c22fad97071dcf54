"""The compiled core believes every honest sum and no other one; see tampered_sums.c.

SWITCHAGG_TAMPERED=1000000 lengthens the search.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.native.core_sources import CORE, ROOT, planted, source

TRIALS = int(os.environ.get("SWITCHAGG_TAMPERED", "50000"))
FLAGS = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined", "-fno-sanitize-recover=all"]

BUGS = {
    "any rest is marks": ("verified_sums.c", "fits = rest == marks", "fits = 1", "a bit changed"),
    "no chunk in the pads": (
        "tag.c",
        "{{chunk, chunk}, {first",
        "{{chunk & 0, chunk & 0}, {first",
        "two results exchanged",
    ),
    "no code in the pads": ("tag.c", "(uint64_t)(uint32_t)code << 32", "0 * (uint64_t)code", "another code told"),
    "no mark needed": (
        "verified_sums.c",
        "fits = elsewhere && rest == 0",
        "fits = (elsewhere | 1) && rest == 0",
        "a code above all ranks'",
    ),
    "one limb read": (
        "verified_sums.c",
        "limb < SA_TAG_LIMBS; limb++) {\n        uint32_t element;",
        "limb < 2; limb++) {\n        uint32_t element;",
        "honest",
    ),
}


def wrong_verdicts(core: Path, folder: Path, trials: int) -> dict[str, int]:
    """How many verdicts on sums of each kind are wrong."""
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    files = [
        ROOT / "tests/native/tampered_sums.c",
        *(source(name, core) for name in ("verified_sums.c", "tag.c", "mask.c")),
    ]
    program = folder / "tampered_sums"
    command = [compiler, *FLAGS, f"-I{core}", *map(str, files), "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    done = subprocess.run([program, str(trials), "1"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = [line.split(": ") for line in done.stdout.splitlines()]
    assert all(int(counts.split()[2]) > trials / 5 for counts, _ in lines), done.stdout
    return {kind: int(counts.split()[0]) for counts, kind in lines}


def test_honest_sums_fit_and_no_others(tmp_path: Path) -> None:
    assert not any(wrong_verdicts(CORE, tmp_path, TRIALS).values())


@pytest.mark.parametrize("bug", BUGS)
def test_finds_a_planted_bug(bug: str, tmp_path: Path) -> None:
    file, right, wrong, kind = BUGS[bug]
    assert wrong_verdicts(planted(tmp_path, file, right, wrong), tmp_path, 200)[kind]
