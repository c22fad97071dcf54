"""The package's build: what a wheel and a source distribution carry, and what happens without the tools it wants."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from quick_compiler import programs, quick_compiler

from switchagg.native import headers, packet_terms
from switchagg.native.headers import ROOT

pytestmark = pytest.mark.long

PARTS = (
    "setup.py",
    "pyproject.toml",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "switchagg",
    "transport",
    "emulation",
    "p4",
    "examples",
    "tools",
)
LIBRARY = "switchagg/native/libswitchagg.so"
NOT_COPIED = shutil.ignore_patterns("__pycache__", "*.so", "*.bpf.o")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the sources, with nothing built."""
    if int(metadata.version("setuptools").partition(".")[0]) < 77:
        pytest.skip("needs setuptools 77 or newer in this environment")
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=NOT_COPIED)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def c_files() -> set[str]:
    """The compiled core's sources, and those of BPF programs."""
    paths = (path for folder in headers.FOLDERS for path in (ROOT / folder).rglob("*.[ch]"))
    return {path.relative_to(ROOT).as_posix() for path in paths}


def build(checkout: Path, *command: str, **environment: str) -> list[str]:
    """Runs setup.py, which must succeed whatever it can't build; returns its output."""
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", *command],
        cwd=checkout,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return [line.removeprefix("setup.py: ") for line in done.stdout.splitlines() if line.startswith("setup.py: ")]


def in_package(folder: Path, program: str) -> str:
    """What a program prints that imports the package from `folder`."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env={**os.environ, "PYTHONPATH": str(folder), "SWITCHAGG_NATIVE": ""},
        cwd=folder.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture
def quick(tmp_path: Path) -> dict[str, str]:
    return quick_compiler(tmp_path / "quick")


@pytest.fixture
def quickest(tmp_path: Path) -> dict[str, str]:
    """For a library that is asked for its ABI, and nothing else."""
    return quick_compiler(tmp_path / "quickest", but="abi.c")


def test_a_wheel_carries_the_library_and_serves_every_python(
    checkout: Path, tmp_path: Path, quick: dict[str, str]
) -> None:
    build(checkout, "bdist_wheel", "-d", str(tmp_path / "wheels"), **quick)
    (wheel,) = (tmp_path / "wheels").iterdir()
    assert "-py3-none-linux_" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "installed")
    assert {
        LIBRARY,
        "switchagg/PROTOCOL.md",
        "switchagg/protocol/codecs.md",
        "emulation/cli/main.py",
        "transport/worker/session.py",
    } <= names
    read = {name for name in c_files() if name.endswith(".h")}
    assert read == {name for name in names if name.endswith(".h")}  # Python reads them
    unwanted = ("setup.py", ".c")
    assert not [name for name in names if name.endswith(unwanted) or name.startswith(("tests/", "p4vm/"))]
    programs = {path.relative_to(ROOT).as_posix() for path in (ROOT / "switchagg/programs").rglob("*.*")}
    assert len(programs) > 20
    assert programs <= names
    examples = {path.relative_to(ROOT).as_posix() for path in (ROOT / "examples").rglob("*") if path.is_file()}
    examples = {f"emulation/{name}" for name in examples if "__pycache__" not in name}
    layers = {f"emulation/examples/{name}" for name in ("scapy/switchagg_scapy.py", "wireshark/switchagg.lua")}
    assert len(examples) > 10
    assert examples | layers | {"emulation/cli/start/mine.toml"} <= names
    assert {"LICENSE", "COPYING"} <= {name.rpartition("/")[2] for name in names if "/licenses/" in name}
    program = (
        "from emulation.cli.start.shipped import about, shipped\nprint({n: about(p) for n, p in shipped().items()})"
    )
    assert in_package(tmp_path / "installed", program) == in_package(ROOT, program)
    program = "from switchagg.dataplane.p4.plane_program import PROGRAMS\nprint(PROGRAMS)"
    assert in_package(tmp_path / "installed", program) == f"{tmp_path / 'installed/switchagg/programs'}"
    program = (
        "from switchagg.native import library\nfrom switchagg.dataplane.self_test import fastest\n"
        "print(library.missing(), library.LIBRARY, fastest(64, 360))"
    )
    assert in_package(tmp_path / "installed", program) == f"{tmp_path / 'installed' / LIBRARY} native"


def test_a_source_distribution_carries_what_is_compiled(checkout: Path, tmp_path: Path) -> None:
    build(checkout, "sdist", "-d", str(tmp_path / "sources"))
    (archive,) = (tmp_path / "sources").iterdir()
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    compiled = c_files()
    compiled |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "switchagg/programs").rglob("*.p4")}
    assert len(compiled) > 25
    assert compiled | {"setup.py", "pyproject.toml"} <= names


def test_the_p4_engine_is_a_wheel_of_its_own(checkout: Path, tmp_path: Path) -> None:
    setup = ["-c", "import setuptools; setuptools.setup()", "--quiet", "bdist_wheel", "-d", str(tmp_path)]
    subprocess.run([sys.executable, *setup], cwd=checkout / "p4", check=True, capture_output=True, timeout=300)
    (wheel,) = tmp_path.glob("p4vm-*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "installed")
    files = {path.relative_to(ROOT / "p4").as_posix() for path in (ROOT / "p4/p4vm").rglob("*.*")}
    assert {name for name in files if "__pycache__" not in name} <= names
    source = str(ROOT / "p4/tests/features/control_if_else.p4")
    program = (
        "import sys\nfor name in ('switchagg', 'transport', 'emulation'): sys.modules[name] = None\n"
        "from p4vm.compile import compile_program\nimport p4vm.cli.main, p4vm.front\n"
        f"print(compile_program({source!r}, backend='python').backend, p4vm.front.__file__)"
    )
    place = tmp_path / "installed/p4vm/front/__init__.py"
    assert in_package(tmp_path / "installed", program) == f"python {place}"


WITHOUT_P4VM = """import sys
class Finder:
    def __init__(self, finder): self.finder = finder
    def find_spec(self, name, *rest):
        return None if name.partition(".")[0] == "p4vm" else self.finder.find_spec(name, *rest)
    def __getattr__(self, name): return getattr(self.finder, name)
sys.meta_path[:] = map(Finder, sys.meta_path)
from emulation.cli.main import main
main()"""


def test_without_the_extra_p4_its_commands_and_planes_name_it() -> None:
    for words in (["p4", "check", "prog.p4", "--show"], ["p4"], ["switch", "--dataplane", "p4"]):
        command = [sys.executable, "-c", WITHOUT_P4VM, *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        assert "pip install 'switchagg[p4]'" in done.stderr
        assert done.stderr.count("\n") == 1


def test_without_a_compiler_the_package_is_installed_and_runs_on_python(checkout: Path, tmp_path: Path) -> None:
    said = build(checkout, "build_ext", "--inplace", PATH=programs(tmp_path / "empty"))
    assert said[0].startswith(
        f"{LIBRARY} was NOT built: no C compiler that works; get one by `apt install gcc libc6-dev`"
    )
    assert all("was NOT built: no clang" in line for line in said[1:])
    left = tmp_path / "left" / LIBRARY
    left.parent.mkdir(parents=True)
    left.write_bytes(b"built of other sources, some time ago")
    build(checkout, "build_ext", "--build-lib", str(tmp_path / "left"), PATH=str(tmp_path / "empty"))
    assert not left.exists()
    build(checkout, "bdist_wheel", "-d", str(tmp_path / "wheels"), PATH=str(tmp_path / "empty"))
    (wheel,) = (tmp_path / "wheels").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        assert LIBRARY not in archive.namelist()
    program = "from switchagg.dataplane.self_test import fastest\nprint(fastest(64, 360))"
    assert in_package(checkout, program).startswith(
        "reference (native passed over: libswitchagg.so was not built; install a C compiler"
    )


def test_where_no_compiler_is_on_the_path_that_of_ziglang_is_taken(
    checkout: Path, tmp_path: Path, quickest: dict[str, str]
) -> None:
    module = tmp_path / "ziglang" / "__main__.py"
    module.parent.mkdir()
    module.write_text(
        f"import os, sys\nassert sys.argv[1] == 'cc'\nos.execv({quickest['PATH'] + '/cc'!r}, ['cc', *sys.argv[2:]])\n"
    )
    empty = programs(tmp_path / "empty")
    said = build(checkout, "build_ext", "--inplace", PATH=empty, PYTHONPATH=str(tmp_path))
    assert said[0] == f"built {LIBRARY}"


def test_a_failing_compiler_leaves_the_earlier_library(checkout: Path, tmp_path: Path) -> None:
    (checkout / LIBRARY).write_bytes(b"the old one")
    broken = programs(
        tmp_path / "broken", gcc="echo broken >&2; exit 4", cc="exit 4", clang="echo error: no bpf; exit 1"
    )
    said = build(checkout, "build_ext", "--inplace", PATH=broken, CC="gcc")
    assert said[0].startswith(f"{LIBRARY} was NOT built")
    assert all("was NOT built: error: no bpf; the data plane xdp will say so" in line for line in said[1:])
    assert (checkout / LIBRARY).read_bytes() == b"the old one"
    assert not list((checkout / "switchagg/native").glob("*.bpf.o"))


def test_a_library_in_use_is_replaced_atomically_and_one_of_other_sources_is_reported(
    checkout: Path, quickest: dict[str, str]
) -> None:
    header = checkout / "switchagg/native/abi.h"
    text = header.read_text()
    line = next(line for line in text.splitlines() if line.startswith("#define SA_ABI "))
    header.write_text(text.replace(line, "#define SA_ABI 7777u"))
    place = checkout / LIBRARY
    place.write_bytes(b"the old one")
    with place.open("rb") as in_use:
        said = build(checkout, "build_ext", "--inplace", **quickest)
        assert f"built {LIBRARY}" in said
        assert in_use.read() == b"the old one"
        assert os.fstat(in_use.fileno()).st_ino != place.stat().st_ino
    assert place.read_bytes().startswith(b"\x7fELF")
    assert not list(place.parent.glob(".*"))
    assert not (checkout / "build").exists()
    header.write_text(text)
    program = "from switchagg.native import library\nprint(library.missing())"
    reported = in_package(checkout, program)
    assert reported.startswith("libswitchagg.so was built from other sources (ABI 7777, not ")
    assert reported.endswith("run make native in a checkout, or install switchagg again")
    (
        checkout / "switchagg/native" / packet_terms.HEADER
    ).unlink()  # else a struct would lack members, and C read beyond it
    assert in_package(checkout, program).startswith(f"{packet_terms.HEADER}, which the build writes, is missing; run ")
