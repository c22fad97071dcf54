"""From a file to an engine: what the cache keeps, what it must not trust, and what happens without a compiler."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from p4vm import cache as cache_module
from p4vm import compile as compiling
from p4vm.cache import Cache, Unwritable
from p4vm.compile import compile_program, front_end
from p4vm.native import build
from p4vm.source import P4Error

PROGRAM = """
#include <core.p4>
#include <v1model.p4>
#include "port.p4"
struct headers { }
struct metadata { }
parser Parse(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    state start { transition accept; }
}
control Nothing(inout headers hdr, inout metadata meta) { apply { } }
control In(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    apply { standard.egress_spec = PORT; }
}
control Out(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) { apply { } }
control Deparse(packet_out packet, in headers hdr) { apply { } }
V1Switch(Parse(), Nothing(), In(), Out(), Nothing(), Deparse()) main;
"""

needs_compiler = pytest.mark.skipif(build.compiler() is None, reason="needs a C compiler")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that sends everything to the port that its include file names."""
    (tmp_path / "port.p4").write_text("#ifndef PORT\n#define PORT 3\n#endif\n")
    path = tmp_path / "program.p4"
    path.write_text(PROGRAM)
    return path


@pytest.fixture(scope="module")
def with_runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder that has the compiled runtime."""
    folder = tmp_path_factory.mktemp("cache")
    build.runtime_object(build.needed_compiler(), Cache(folder))
    return folder


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was compiled by the front end, and by the C compiler, in order."""
    done: list[str] = []
    front, library = compiling._front_end, build.library_of

    def counting_front(*arguments: object) -> object:
        done.append("front")
        return front(*arguments)  # type: ignore[arg-type]

    def counting_library(*arguments: object) -> None:
        done.append("library")
        library(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(compiling, "_front_end", counting_front)
    monkeypatch.setattr(build, "library_of", counting_library)
    return done


def port_of(program: Path, cache: Path, **options: object) -> int:
    engine = compile_program(program, cache=cache, optimize=0, **options)  # type: ignore[arg-type]
    return engine.process(1, b"x")[0][0]


def test_compiles_again_what_has_changed_and_only_that(program: Path, tmp_path: Path, counted: list[str]) -> None:
    cache = tmp_path / "cache"
    assert port_of(program, cache, backend="python") == 3
    assert port_of(program, cache, backend="python") == 3
    assert counted == ["front"]
    (tmp_path / "port.p4").write_text("#define PORT 4\n")
    assert port_of(program, cache, backend="python") == 4
    program.write_text(PROGRAM.replace("= PORT", "= PORT + 1"))
    assert port_of(program, cache, backend="python") == 5
    assert len(counted) == 3
    assert port_of(program, cache, backend="python", defines={"OTHER": "1"}) == 5
    assert len(counted) == 4


def test_a_file_that_now_comes_first_is_included(program: Path, tmp_path: Path) -> None:
    late, early = tmp_path / "late", tmp_path / "early"
    late.mkdir()
    (tmp_path / "port.p4").rename(late / "port.p4")
    options = {"includes": [early, late], "backend": "python"}
    assert port_of(program, tmp_path / "cache", **options) == 3
    early.mkdir()
    (early / "port.p4").write_text("#define PORT 8\n")
    assert port_of(program, tmp_path / "cache", **options) == 8


@needs_compiler
@pytest.mark.parametrize("suffix", [".so", ".layout", ".program", ".files", ".o", ".sum"])
def test_what_is_damaged_is_made_anew(suffix: str, program: Path, with_runtime: Path, counted: list[str]) -> None:
    assert port_of(program, with_runtime, backend="native") == 3
    for path in with_runtime.glob(f"*{suffix}"):
        whole = path.read_bytes()
        path.unlink()  # this process may have it loaded
        path.write_bytes(whole[:-7] + b"damaged")
    before = len(counted)
    assert port_of(program, with_runtime, backend="native") == 3
    assert len(counted) - before == (0 if suffix in (".o", ".sum") else 1)


@needs_compiler
def test_code_that_others_could_write_is_not_loaded(program: Path, with_runtime: Path, counted: list[str]) -> None:
    others = set(with_runtime.glob("*.so"))
    assert port_of(program, with_runtime, backend="native") == 3
    (library,) = set(with_runtime.glob("*.so")) - others
    library.chmod(0o777)
    before = len(counted)
    assert port_of(program, with_runtime, backend="native") == 3
    assert counted[before:] == ["library"]
    assert library.stat().st_mode & 0o777 == 0o700


def test_the_folder_is_for_its_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Cache(tmp_path / "new").folder.stat().st_mode & 0o777 == 0o700
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    assert Cache(tmp_path / "open").folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(P4Error, match="can be written by others; set XDG_CACHE_HOME"):
        Cache(tmp_path / "new")


def test_the_oldest_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "FILES_MAX", 3)
    cache = Cache(tmp_path)
    for at, name in enumerate("dbeac"):
        cache.write(name, b"x")
        os.utime(cache.path(name), (at, at))
    cache.prune()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c", "e"]


def test_goes_without_a_cache_where_none_can_be(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unwritable, match="set XDG_CACHE_HOME"):
        Cache(tmp_path / "file" / "folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert compile_program(program, backend="python").process(1, b"x") == [(3, b"x")]
    assert cache_module.default_cache().folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("choice", ["", "no-such-compiler"])
def test_without_a_compiler(
    choice: str, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", choice)
    assert compile_program(program, cache=tmp_path / "cache").backend == "python"
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "runs on the Python back end, which is slow" in said
    with pytest.raises(P4Error, match="install gcc or clang"):
        compile_program(program, backend="native", cache=tmp_path / "cache")


@needs_compiler
def test_a_compiler_that_fails_says_why(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "cc --no-such-option")
    with pytest.raises(P4Error, match=r"the C compiler .*cc fails: .*no-such-option"):
        compile_program(program, backend="native", cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").glob(".new-*"))


@needs_compiler
def test_two_at_once(program: Path, with_runtime: Path, counted: list[str]) -> None:
    program.write_text(PROGRAM.replace("= PORT", "= PORT + 2"))
    ports: list[int] = []
    threads = [threading.Thread(target=lambda: ports.append(port_of(program, with_runtime))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert ports == [5, 5, 5]


@needs_compiler
def test_a_start_from_the_cache_reads_no_p4(program: Path, with_runtime: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from p4vm.compile import compile_program;"
        "engine = compile_program(sys.argv[1], backend='native', cache=Path(sys.argv[2]), optimize=0);"
        "print(engine.process(1, b'x'), sorted({'lark', 'pcpp', 'p4vm.check.check_program'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, str(program), str(with_runtime)]
    first, done = (subprocess.run(command, capture_output=True, text=True, timeout=300) for _ in range(2))
    assert "'lark'" in first.stdout, first.stderr
    assert done.stdout == "[(3, b'x')] []\n", done.stderr


def test_faults(program: Path, tmp_path: Path) -> None:
    with pytest.raises(P4Error, match="there is no back end gpu; choose one of auto, native, python"):
        compile_program(program, backend="gpu")
    program.write_text(PROGRAM.replace("= PORT", "= "))
    for start in (front_end, lambda path: compile_program(path, cache=tmp_path / "cache")):
        with pytest.raises(P4Error, match=r"program\.p4:1\d:"):
            start(program)


@pytest.mark.parametrize("backend", ["python", pytest.param("native", marks=needs_compiler)])
def test_chains_that_macros_write_are_long(program: Path, backend: str, tmp_path: Path) -> None:
    total = "bit<9> one = 1; bit<9> total = " + " + ".join(["one"] * 300) + ";"
    arms = " else ".join(f"if (total == {at}) {{ standard.egress_spec = {at + 1}; }}" for at in range(1, 301))
    program.write_text(PROGRAM.replace("standard.egress_spec = PORT;", f"{total} {arms}"))
    assert compile_program(program, backend=backend, cache=tmp_path).process(1, b"x") == [(301, b"x")]


def test_a_file_without_a_program_is_named(program: Path) -> None:
    program.write_text("")
    with pytest.raises(P4Error, match=r"program\.p4:1:1: the program has no main"):
        front_end(program)
