"""The C core as it is shipped, and on arm64 and big-endian machines (emulated), held to the models of the fuzz targets.

Under a fuzzer the core is built for the sanitizers; here with the flags of setup.py and with its clones for several
instruction sets. Other machines take a cross compiler and QEMU (Debian: gcc-aarch64-linux-gnu, gcc-s390x-linux-gnu,
qemu-user-static and the libc6-dev-*-cross that belong to them).
"""

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.native import fuzz_seeds
from tests.native.core_sources import CORE, ROOT, source
from tests.native.test_fuzz import SOURCES

MACHINES = {
    "this one": ("gcc", ""),
    "arm64": ("aarch64-linux-gnu-gcc", "qemu-aarch64-static"),
    "s390x, big-endian": ("s390x-linux-gnu-gcc", "qemu-s390x-static"),
}
FLAGS = ["-std=gnu11", "-O3", "-fno-math-errno", "-fno-trapping-math"]


def scripts(target: str, folder: Path) -> list[str]:
    """The seeds of the fuzz target, and each of them changed at random places."""
    folder.mkdir()
    fuzz_seeds.write(target, folder)
    rng = random.Random(1)
    for path in sorted(folder.iterdir()):
        original = path.read_bytes()
        for copy in range(10):
            changed = bytearray(original * rng.randint(1, 3))
            for _ in range(1 + len(changed) // 20):
                changed[rng.randrange(len(changed))] = rng.randrange(256)
            (folder / f"{path.name}-{copy}").write_bytes(changed)
    return [str(path) for path in sorted(folder.iterdir())]


@pytest.mark.parametrize("target", SOURCES)
@pytest.mark.parametrize("machine", MACHINES)
def test_portable_code_agrees_with_python(machine: str, target: str, tmp_path: Path) -> None:
    compiler, emulator = MACHINES[machine]
    if missing := [name for name in (compiler, emulator) if name and shutil.which(name) is None]:
        pytest.skip(f"needs {' and '.join(missing)}")
    sources = [
        ROOT / f"tests/native/{target}.c",
        ROOT / "tests/native/replay.c",
        *(source(name) for name in SOURCES[target]),
    ]
    static = ["-static"] if emulator else []
    command = [compiler, *static, *FLAGS, f"-I{CORE}", *map(str, sources), "-lm", "-o", str(tmp_path / "replay")]
    built = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr
    files = scripts(target, tmp_path / "scripts")
    run = [*([emulator] if emulator else []), str(tmp_path / "replay"), *files]
    done = subprocess.run(run, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{len(files)} replayed\n"
