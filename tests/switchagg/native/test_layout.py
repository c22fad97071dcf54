"""What Python reads out of the C headers, asked of the C compiler; and that the headers are such as it can read."""

import ctypes
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from switchagg.description import WORDS
from switchagg.native import headers, libbpf
from transport.meshes.mesh import HEAD_BYTES_MAX
from transport.rdma.verbs import QPState

INCLUDED = headers.sources(".h")
AGREED = {
    "SA_WORDS": WORDS,
    "SA_HEAD_BYTES_MAX": HEAD_BYTES_MAX,
    **{f"SA_QPS_{state.name}": state.value for state in QPState},
}
"""What Python has of its own: it works without the core."""


def read() -> dict[str, int]:
    """C expression -> what Python reads for it."""
    values = {}
    for name in headers._expressions():
        try:
            values[f"(int64_t)({name})"] = getattr(headers, name)
        except (NameError, SyntaxError, TypeError, ValueError, AttributeError):
            continue  # a macro of code
    for name in headers._bodies():
        struct = headers.struct(name)
        if struct.complete:
            values[f"sizeof(struct {name})"] = ctypes.sizeof(struct)
        for field in (field for field, _ in struct._fields_ if not field.startswith("padding_")):
            place = getattr(struct, field)
            values[f"offsetof(struct {name}, {field})"] = place.offset
            values[f"sizeof(((struct {name} *)0)->{field})"] = place.size
    return values


def test_structs_and_constants_are_read_as_the_compiler_reads_them(tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    values = read()
    assert len(values) > 1_500
    lines = "\n".join(f'    printf("%lld\\n", (long long)({expression}));' for expression in values)
    names = ("<stddef.h>", "<stdio.h>", *(f'"{path.relative_to(headers.ROOT)}"' for path in INCLUDED))
    source = "".join(f"#include {name}\n" for name in names)
    (tmp_path / "layout.c").write_text(f"{source}int main(void) {{\n{lines}\n    return 0;\n}}\n")
    built = subprocess.run(
        [compiler, "-std=gnu11", "-w", f"-I{headers.ROOT}", "layout.c", "-o", "layout"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    printed = subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True).stdout.split()
    differing = {
        expression: (value, said)
        for (expression, value), said in zip(values.items(), map(int, printed), strict=True)
        if (value - said) % (1 << 64)
    }
    assert differing == {}


LIBBPF = {
    "bpf_link_create_opts": libbpf.LinkOptions,
    "bpf_test_run_opts": libbpf.TestOptions,
    "bpf_tc_hook": libbpf.TcHook,
    "bpf_tc_opts": libbpf.TcOptions,
    "bpf_prog_info": libbpf.ProgramInfo,
    "bpf_map_info": libbpf.MapInfo,
}


def test_the_fields_of_libbpf_s_structures_lie_where_its_headers_have_them(tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None or not Path("/usr/include/bpf/libbpf.h").exists():
        pytest.skip("needs a C compiler and libbpf-dev")
    places = {
        f"offsetof(struct {name}, {field}), sizeof(((struct {name} *)0)->{field})": getattr(kind, field)
        for name, kind in LIBBPF.items()
        for field, _ in kind._fields_
    }
    lines = "".join(f'    printf("%zu %zu\\n", {expression});\n' for expression in places)
    includes = "".join(f"#include <{name}>\n" for name in ("stddef.h", "stdio.h", "bpf/bpf.h", "bpf/libbpf.h"))
    (tmp_path / "layout.c").write_text(f"{includes}int main(void) {{\n{lines}    return 0;\n}}\n")
    subprocess.run([compiler, "layout.c", "-o", "layout"], cwd=tmp_path, check=True)
    printed = subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert {name: f"{place.offset} {place.size}" for name, place in places.items()} == dict(
        zip(places, printed, strict=True)
    )


def test_python_s_own_numbers_are_c_s() -> None:
    assert {name: getattr(headers, name) for name in AGREED} == AGREED


def test_every_exported_function_has_a_prototype_to_read() -> None:
    exported = re.compile(r"^SA_EXPORT [^;{(]*?(\w+)\(", re.MULTILINE)
    names = [name for path in headers.sources(".c") for name in exported.findall(path.read_text())]
    assert len(names) > 120
    for name in names:
        headers.declare(SimpleNamespace(), name)
    with pytest.raises(AttributeError, match="no header of the compiled core declares sa_nothing"):
        headers.declare(SimpleNamespace(), "sa_nothing")


def test_no_two_headers_give_a_name_two_meanings() -> None:
    meanings = defaultdict(set)
    for path in INCLUDED:
        text = path.read_text()
        for enum in re.findall(r"\benum ?\w* ?\{([^}]*)\}", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)):
            for name in re.findall(r"(?:^|,)\s*(\w+)", enum):
                meanings[name].add(enum)
        for name, value in re.findall(r"^#define (\w+) (\S+)", text, re.MULTILINE):
            meanings[name].add(value)
        for name in re.findall(r"\bstruct (\w+) \{", text):
            meanings[f"struct {name}"].add(path)
    assert [name for name, found in meanings.items() if len(found) > 1] == ["SA_AVX512", "SIM_GAP_BYTES"]


def test_functions_for_several_instruction_sets_are_such_as_clang_can_link() -> None:
    """Each has a resolver, which is global, and other files don't find those that aren't static."""
    declared = re.compile(r"^SA_VECTORISED ([^(]*?)(\w+)\(", re.MULTILINE)
    found = [one for path in headers.sources(".c") for one in declared.findall(path.read_text())]
    names = [name for _, name in found]
    assert len(names) > 20
    assert {name for name in names if names.count(name) > 1} == set()
    assert [name for kind, name in found if not kind.startswith("static ")] == []
