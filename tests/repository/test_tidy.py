"""Style as ordinary tests: sizes, names, words.

Each check is a function from a tree of files to the faults found; each is shown a tree it must reject.
"""

import ast
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from repository_tree import PACKAGES, Tree, python_files, read_tree, repository, top_room

FILE_LINES_MAX = 600
CORE_FILE_LINES_MAX = 400  # the files of switchagg/ itself: each is read in one sitting
FUNCTION_LINES_MAX = 70
PARAMETERS_MAX = 8  # more go together, in a frozen dataclass with units

ROOM_FILES_MAX = 15  # Python files of a folder beside its __init__: more than a newcomer can take in at a look
SOURCE_SUFFIXES = {".py", ".c", ".h", ".p4", ".stf", ".toml", ".md", ".j2", ".sh", ""}
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "base", "manager", "misc"}

PARTICIPLES = re.compile(
    "(?i)_*(found|made|one|own|each|given|told|shown|asked|mine|ours|theirs|others|whole|kept|taken|written|begun|came|"
    "gone|heard|meant|wish|wished|those|these|sent|said|spoken)_*"
)
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3)) + r")\b")
OUT_OF_SUDO = re.compile(r"\bsudo (-\w+ )*(switchagg|torchrun)\b")  # it looks for programs in folders of its own
PRIVATE_PATHS = re.compile("(?<![A-Za-z0-9_.])/(" + "|".join(("wo" + "rk/", "tmp/pl" + "an", "ro" + "ot/")) + ")")


# ---- sizes and names


def long_files(tree: Tree) -> list[str]:
    faults = []
    for name, text in tree.items():
        path = Path(name)
        if path.suffix not in SOURCE_SUFFIXES or name == "LICENSE":
            continue
        core = path.parent.as_posix() == "switchagg" and path.suffix == ".py"
        limit = CORE_FILE_LINES_MAX if core else FILE_LINES_MAX
        if (lines := len(text.splitlines())) > limit:
            faults.append(f"{name}: {lines} lines, at most {limit}")
    return faults


def long_functions(tree: Tree) -> list[str]:
    return [
        f"{name}:{node.lineno}: {node.name} has {length} lines, at most {FUNCTION_LINES_MAX}"
        for name, module in python_files(tree)
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]


def long_parameter_lists(tree: Tree) -> list[str]:
    """Functions with too many parameters; those of commands are the user's options."""
    faults = []
    for name, module in python_files(tree):
        for node in ast.walk(module):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            args = node.args
            given = [each.arg for each in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
            count = len(given) - (given[:1] in (["self"], ["cls"]))
            command = name.startswith(("emulation/cli/", "p4/p4vm/cli/")) and "Annotated[" in ast.unparse(args)
            if count > PARAMETERS_MAX and not command:
                faults.append(f"{name}:{node.lineno}: {node.name} has {count} parameters, at most {PARAMETERS_MAX}")
    return faults


def vague_names(tree: Tree) -> list[str]:
    return [
        f"{name}: {part} says nothing; name it after what it does"
        for name in tree
        for part in Path(name).with_suffix("").parts
        if part in VAGUE_NAMES
    ]


def unclear_rooms(tree: Tree) -> list[str]:
    """Folders of modules that hold too many, or whose __init__ doesn't describe them."""
    modules: dict[str, list[str]] = {}
    for name in tree:
        if name.startswith(PACKAGES) and name.endswith(".py"):
            modules.setdefault(Path(name).parent.as_posix(), []).append(Path(name).name)
    faults = []
    for folder, names in sorted(modules.items()):
        if (count := len(names) - 1) > ROOM_FILES_MAX:
            faults.append(f"{folder}: {count} modules, at most {ROOM_FILES_MAX}")
        text = ast.get_docstring(ast.parse(tree.get(f"{folder}/__init__.py", ""))) or ""
        if len([line for line in text.splitlines() if line.strip()]) < 3:
            faults.append(f"{folder}/__init__.py: say in three lines what it is, who may import it, where to start")
    return faults


def files_of_one_name(tree: Tree) -> list[str]:
    """Tests that pytest takes for one module: of one name, in folders that are no packages."""
    names = [name for name in tree if re.fullmatch(r"(p4/)?tests/.*\.py", name) and not name.endswith("/conftest.py")]
    alone = [path for path in map(Path, names) if f"{path.parent.as_posix()}/__init__.py" not in tree]
    folders: dict[str, list[str]] = {}
    for path in alone:
        folders.setdefault(path.name, []).append(path.parent.as_posix())
    return [f"{name}: in {', '.join(found)}" for name, found in folders.items() if len(found) > 1]


def repeated_class_names(tree: Tree) -> list[str]:
    """Public classes of the packages whose name another class has, wherever it is."""
    places: dict[str, list[str]] = {}
    for name, module in python_files(tree):
        for node in module.body if top_room(name) else ():
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name)
    return [
        f"{name}: in {', '.join(files)}: a class name stands for one thing"
        for name, files in places.items()
        if len(files) > 1
    ]


def repeated_file_names(tree: Tree) -> list[str]:
    """Source files of a package whose name stands in several of its folders."""
    places: dict[tuple[str, str], list[str]] = {}
    for name, path in ((name, Path(name)) for name in tree):
        if top_room(name) and path.suffix in (".py", ".c") and not path.stem.startswith("__"):
            places.setdefault((top_room(name), path.name), []).append(name)
    return [f"{', '.join(files)}: a file's name says its subject" for files in places.values() if len(files) > 1]


def identifiers_of(node: ast.AST) -> list[str]:
    """The names that a node of Python gives to something."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
            return [name]
    return []


def bare_participles(tree: Tree) -> list[str]:
    """Identifiers that are a participle or a pronoun: they don't say what they hold."""
    faults = []
    for name, module in python_files(tree):
        if not top_room(name):
            continue
        faults += [
            f"{name}: {identifier} says nothing; take the noun of what it holds"
            for node in ast.walk(module)
            for identifier in identifiers_of(node)
            if PARTICIPLES.fullmatch(identifier)
        ]
    return faults


def lines_matching(tree: Tree, pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()}"
        for name, text in tree.items()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def unfinished_work(tree: Tree) -> list[str]:
    return lines_matching(tree, UNFINISHED)


def private_paths(tree: Tree) -> list[str]:
    return lines_matching(tree, PRIVATE_PATHS)


def commands_out_of_sudo(tree: Tree) -> list[str]:
    """Commands of .venv as sudo doesn't find them: write sudo $(which switchagg)."""
    return lines_matching({name: text for name, text in tree.items() if "test_tidy" not in name}, OUT_OF_SUDO)


# ---- the tests

CHECKS: list[Callable[[Tree], list[str]]] = [
    long_files,
    long_functions,
    long_parameter_lists,
    vague_names,
    unclear_rooms,
    files_of_one_name,
    repeated_class_names,
    repeated_file_names,
    bare_participles,
    unfinished_work,
    private_paths,
    commands_out_of_sudo,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_repository_has_none_of(check: Callable[[Tree], list[str]]) -> None:
    assert len(repository()) > 10, "the list of files came back nearly empty"
    assert check(repository()) == []


ROOM = {"transport/links/__init__.py": '"""What.\n\nFor whom.\nWhere to start.\n"""\n'}
REJECTED: list[tuple[Callable[[Tree], list[str]], Tree]] = [
    (long_files, {"transport/links/udp_link.py": "x = 1\n" * 601}),
    (long_files, {"switchagg/wire.py": "x = 1\n" * 401}),
    (long_files, {"Makefile": "\n" * 601}),
    (long_functions, {"emulation/run.py": "def f():\n" + "    x = 1\n" * 70}),
    (long_functions, {"emulation/run.py": "class A:\n  async def f(self):\n" + "    x = 1\n" * 70}),
    (long_parameter_lists, {"transport/a.py": "def f(a, b, c, d, *, e, f, g, h, i):\n    pass"}),
    (long_parameter_lists, {"transport/a.py": "class A:\n  def f(self, a, b, c, d, e, f, g, h, i):\n    pass"}),
    (vague_names, {"transport/utils.py": ""}),
    (vague_names, {"transport/common/ring.py": ""}),
    (unclear_rooms, {"transport/links/udp_link.py": ""}),
    (unclear_rooms, {"transport/links/__init__.py": '"""One.\n\nTwo.\n"""'}),
    (unclear_rooms, ROOM | {f"transport/links/link_{number}.py": "" for number in range(ROOM_FILES_MAX + 1)}),
    (files_of_one_name, {"tests/transport/links/test_one.py": "", "tests/transport/worker/test_one.py": ""}),
    (repeated_class_names, {"transport/a.py": "class Packet: ...", "switchagg/b.py": "class Packet: ..."}),
    (repeated_file_names, {"transport/links/table.py": "", "transport/meshes/table.py": ""}),
    (bare_participles, {"transport/a.py": "def load(self, given): ..."}),
    (bare_participles, {"transport/a.py": "numbers = [each + 1 for each in range(9)]"}),
    (bare_participles, {"transport/a.py": "def f(a):\n    match a:\n        case 1 as one: ..."}),
    (unfinished_work, {"README.md": "TO" + "DO: write this"}),
    (unfinished_work, {"switchagg/job.py": "# " + "X" * 3 + " wrong"}),
    (private_paths, {"Makefile": "test:\n\tcd /wo" + "rk/main"}),
    (private_paths, {"tools/setup": "cp /ro" + "ot/.cache ."}),
    (commands_out_of_sudo, {"docs/a.md": "$ sudo -E switchagg switch"}),
]


@pytest.mark.parametrize(("check", "bad"), REJECTED, ids=lambda value: getattr(value, "__name__", ""))
def test_rejects(check: Callable[[Tree], list[str]], bad: Tree) -> None:
    assert len(check(bad)) == 1


ACCEPTED: Tree = {
    "switchagg/wire.py": "x = 1\n" * 400,
    "emulation/run.py": "def f():\n" + "    x = 1\n" * 69,
    "LICENSE": "\n" * 700,
} | {f"{folder}/__init__.py": ROOM["transport/links/__init__.py"] for folder in ("switchagg", "emulation")}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_accepts(check: Callable[[Tree], list[str]]) -> None:
    assert check(ACCEPTED) == []


def test_lists_new_and_tracked_files_but_not_ignored_ones(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True, capture_output=True, timeout=300)

    git("init", "-q")
    for name in ("tracked.py", "gone.py", "new.py", "ignored.log"):
        (tmp_path / name).write_text("x = 1\n")
    (tmp_path / ".gitignore").write_text("*.log\n")
    (tmp_path / "figure.png").write_bytes(b"\x89PNG\xff")
    git("add", "tracked.py", "gone.py")
    (tmp_path / "gone.py").unlink()
    assert sorted(read_tree(tmp_path)) == [".gitignore", "new.py", "tracked.py"]


def test_reads_a_tree_without_git(tmp_path: Path) -> None:
    (tmp_path / "switchagg").mkdir()
    (tmp_path / "switchagg" / "wire.py").write_text("x = 1\n")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "foreign.py").write_text("x = 1\n")
    assert sorted(read_tree(tmp_path)) == ["switchagg/wire.py"]
