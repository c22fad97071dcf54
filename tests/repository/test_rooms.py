"""Rooms form one direction: no two of a package import each other, at load, inside functions or for type checkers.

A room is a folder of a package, with all below it, or a file beside such folders. Tables that name what they open by
text (`transport.links.link_kinds`) are no imports.
"""

import ast
import re
from pathlib import Path

import pytest
from repository_tree import Tree, imported, module_name, parsed, python_files, repository, top_room

from switchagg.native.headers import FOLDERS

EMULATION = ("scenario", "results", "workloads", "sim", "testbed", "report", "experiments", "cli")
"""A room imports only those before it; emulation/mn_custom.py, which `mn` executes, stands outside."""

SUBJECTS = ("conformance", "exhaustive", "native", "oracles", "repository", "shared", "simulation", "system", "vectors")
"""Folders of tests that concern several rooms, or help several."""


def mutual_imports(tree: Tree) -> list[str]:
    """Pairs of rooms that import each other, as "package: one <-> other"."""
    imports: dict[tuple[str, str], set[tuple[str, ...]]] = {}
    for name, text in tree.items():
        package, _, module = module_name(name).partition(".")
        if name.endswith(".py") and top_room(name) and module:
            targets = imported(name.removeprefix("p4/"), ast.walk(parsed(text)))
            room = imports.setdefault((package, module.partition(".")[0]), set())
            room.update(tuple(target.split(".")[:2]) for _, target in targets)
    return [
        f"{package}: {room} <-> {other}"
        for package, room in sorted(imports)
        for neighbour, other in sorted(imports)
        if package == neighbour
        and room < other
        and (package, other) in imports[package, room]
        and (package, room) in imports[package, other]
    ]


def test_no_two_rooms_import_each_other() -> None:
    assert mutual_imports(repository()) == [], "move what both need below both"


def upward_imports(tree: Tree) -> list[str]:
    """Imports of a room of emulation from one that stands after it."""
    upward = []
    for name, module in python_files({name: text for name, text in tree.items() if name.startswith("emulation/")}):
        room = name.split("/")[1]
        after = EMULATION[EMULATION.index(room) + 1 :] if room in EMULATION else ()
        targets = {target for _, target in imported(name, ast.walk(module))}
        upward += [
            f"{name}: {target}"
            for target in sorted(targets)
            if target.split(".")[1:2] and target.split(".")[0] == "emulation" and target.split(".")[1] in after
        ]
    return upward


def test_rooms_of_emulation_import_only_those_before_them() -> None:
    assert upward_imports(repository()) == []
    planted = {"emulation/scenario/a.py": "if TYPE_CHECKING:\n    from emulation.results.results import MethodResult"}
    assert upward_imports(planted) == ["emulation/scenario/a.py: emulation.results.results.MethodResult"]


def upward_includes(tree: Tree) -> list[str]:
    """#includes of C from a room that stands after the file's own, or that no room has."""
    upward = []
    for name, text in tree.items():
        room = next((place for place, folder in enumerate(FOLDERS) if name.startswith(f"{folder}/")), None)
        if room is not None and name.endswith((".c", ".h")):
            below = tuple(f"{folder}/" for folder in FOLDERS[: room + 1])
            included = re.findall(r'^\s*#\s*include "(.+)"', text, re.MULTILINE)
            upward += [f"{name}: {header}" for header in included if not header.startswith(below)]
    return upward


def test_c_includes_only_what_stands_below() -> None:
    tree = repository()
    assert upward_includes(tree) == []
    planted = {
        "switchagg/native/rule/plane.c": '#include "transport/native/network/udp.h"',
        "transport/native/hosts/mesh.h": '#include "outbox.h"\n#include "switchagg/native/abi.h"',
        "transport/native/roce/qp.c": '  # include "emulation/sim/native/link.h"',
        "emulation/sim/native/link.c": '#include "transport/native/roce/roce_crc.h"\n#include <string.h>',
    }
    assert upward_includes(planted) == [
        "switchagg/native/rule/plane.c: transport/native/network/udp.h",
        "transport/native/hosts/mesh.h: outbox.h",
        "transport/native/roce/qp.c: emulation/sim/native/link.h",
    ]


@pytest.mark.parametrize(
    ("tree", "pairs"),
    [
        (
            {
                "p4/p4vm/front/a.py": "def f():\n    from p4vm.check.d import g",
                "p4/p4vm/front/b.py": "",
                "p4/p4vm/check/c.py": "if TYPE_CHECKING:\n    from ..front import b",
                "p4/p4vm/check/d.py": "",
            },
            ["p4vm: check <-> front"],
        ),
        (
            {
                "transport/a.py": "from transport.links import link",
                "transport/links/link.py": "from transport import a",
            },
            ["transport: a <-> links"],
        ),
        (
            {
                "emulation/sim/a.py": "from emulation.sim import b\nfrom transport.links import link",
                "emulation/sim/b.py": "import emulation.sim.a",
                "transport/links/link.py": "import emulation.sim",
                "p4/p4vm/__init__.py": "from p4vm.front import parser",
                "p4/p4vm/front/parser.py": "import p4vm",
            },
            [],
        ),
    ],
    ids=["lazily, and for types", "a file beside the folders", "in one room, or of two packages"],
)
def test_finds_rooms_that_import_each_other(tree: Tree, pairs: list[str]) -> None:
    assert mutual_imports(tree) == pairs


def roomless_tests(tree: Tree) -> list[str]:
    """Folders of tests named neither after the room that they test nor after a subject of several rooms."""
    modules = [Path(name).parent.parts[:2] for name in tree if name.endswith(".py")]
    folders = {Path(name).parent.parts[1:3] for name in tree if name.startswith("tests/") and name.endswith(".py")}
    return [
        "/".join(folder) for folder in sorted(folders) if folder and folder[0] not in SUBJECTS and folder not in modules
    ]


def test_folders_of_tests_are_named_after_rooms() -> None:
    assert roomless_tests(repository()) == [], "see CONTRIBUTING.md, where tests are"
    rooms = ("transport/links/link.py", "switchagg/wire.py", "tests/conftest.py", "tests/vectors/a.py")
    tests = (
        "switchagg/test_wire.py",
        "transport/links/test_link.py",
        "transport/udp/test_link.py",
        "wire/test_wire.py",
    )
    planted = dict.fromkeys((*rooms, *(f"tests/{name}" for name in tests)), "")
    assert roomless_tests(planted) == ["transport/udp", "wire"]
