"""Style as ordinary tests: sizes, names, who may import whom, protocol rules and their citations.

Each check is a function from a tree of files to the faults found; each is shown a tree it must reject.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROTOCOL, PROTOCOL_PAGES = "switchagg/PROTOCOL.md", ("switchagg/PROTOCOL.md", "switchagg/protocol/")

FILE_LINES_MAX = 600
CORE_FILE_LINES_MAX = 400  # the files of switchagg/ itself: each is read in one sitting
FUNCTION_LINES_MAX = 70
PARAMETERS_MAX = 8  # more go together, in a frozen dataclass with units

ROOM_FILES_MAX = 15  # Python files of a folder beside its __init__: more than a newcomer can take in at a look
PACKAGES = ("switchagg/", "transport/", "emulation/", "p4/p4vm/")
SOURCE_SUFFIXES = {".py", ".c", ".h", ".p4", ".stf", ".toml", ".md", ".j2", ".sh", ""}
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "base", "manager", "misc"}

PARTICIPLES = re.compile(
    "(?i)_*(found|made|one|own|each|given|told|shown|asked|mine|ours|theirs|others|whole|kept|taken|written|begun|came|"
    "gone|heard|meant|wish|wished|those|these|sent|said|spoken)_*"
)
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3)) + r")\b")
OUT_OF_SUDO = re.compile(r"\bsudo (-\w+ )*(switchagg|torchrun)\b")  # it looks for programs in folders of its own
PRIVATE_PATHS = re.compile("(?<![A-Za-z0-9_.])/(" + "|".join(("wo" + "rk/", "tmp/pl" + "an", "ro" + "ot/")) + ")")

CORE = {
    "wire",
    "job",
    "priority",
    "codecs",
    "aggregator",
    "endpoint",
    "window",
    "pacing",
    "errors",
    "calls",
    "partial_endpoint",
    "description",
    "layout",
    "option_syntax",
    "tag",
}
# Time, chance and input are parameters of the core; see ARCHITECTURE.md.
NOT_IN_CORE = {"time", "random", "socket", "threading", "asyncio", "logging"}
KEPT_APART = {"switchagg.aggregator": "endpoint", "switchagg.endpoint": "aggregator"}
MAY_NOT_IMPORT = {
    "switchagg": {"transport", "emulation"},
    "p4": {"switchagg", "transport", "emulation"},
    "transport": {"emulation"},
}
# Where a heavy or optional library may be imported; None: in tests alone. A folder ends in a slash.
HOMES: dict[str, tuple[str, ...]] = {
    "torch": (
        "transport/torch/",
        "examples/",
        "emulation/workloads/tasks/",
        "emulation/workloads/workload.py",
        "emulation/workloads/replicas.py",
        "emulation/testbed/trainers/trainer.py",
        "emulation/testbed/trainers/ddp_trainer.py",
        "emulation/testbed/trainers/fsdp_trainer.py",
        "emulation/testbed/trainers/tensor_trainer.py",
        "emulation/workloads/tensor_ranks.py",
        "emulation/workloads/units.py",
        "emulation/testbed/trainers/pace.py",
        "emulation/experiments/bench/allreduce/gloo.py",
        "emulation/experiments/bench/hosts/hosts_rank.py",
        "emulation/experiments/study/method_training.py",
        "emulation/experiments/chaos/chaos_rank.py",
        "emulation/experiments/chaos/known_sums.py",
        "tools/bench/sharding_rank.py",  # the baseline is Gloo itself
    ),
    "zmq": (
        "tools/bench/plain_zeromq.py",  # the baseline is pyzmq itself
        "transport/control/",
        "transport/zeromq/",
    ),
    "mininet": ("emulation/testbed/mininet/emulated_network.py", "examples/mininet_workers.py"),
    "p4vm": ("p4/", "switchagg/dataplane/p4/", "emulation/cli/", "tools/bench/", "examples/"),
    "prometheus_client": ("transport/metrics/", "transport/switch/"),
    "lark": ("p4/p4vm/front/",),
    "pcpp": ("p4/p4vm/front/preprocess.py",),
    "scapy": ("tools/scapy/",),
    "pytest": ("transport/testing/fixtures.py", "transport/testing/vector_files.py", "examples/packet_test/"),
    "grpc": ("p4/p4vm/p4runtime/",),
    "google": ("p4/p4vm/p4runtime/",),
    "p4": ("p4/p4vm/p4runtime/",),
}
DOOR, BEHIND_IT = "switchagg/testing/__init__.py", "transport.testing"  # users' name for what lies in a room above
NEEDS = {  # beside the standard library
    "switchagg": {"switchagg", "numpy", "p4vm"},
    "p4": {"p4vm", "numpy", "lark", "pcpp", "typer", "grpc", "google", "p4"},
}

Tree = dict[str, str]
"""Path below the root, with slashes -> text."""


# ---- the tree


def repository_files(root: Path) -> list[str]:
    """Files that git tracks or would add; without git, all that are not hidden or made by tools."""
    command = ["git", "-c", f"safe.directory={root}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=root, capture_output=True, check=True, timeout=60).stdout.decode()
        names = [name for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        made = ("results/", "build/", "dist/")
        found = (path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
        names = [name for name in found if not name.startswith((*made, ".")) and "__pycache__" not in name]
    return sorted(name for name in names if (root / name).is_file())


def read_tree(root: Path) -> Tree:
    """Text files of the repository; what is not UTF-8 (figures, captures) is left out."""
    tree = {}
    for name in repository_files(root):
        try:
            tree[name] = (root / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
    return tree


@pytest.fixture(scope="module")
def tree() -> Tree:
    return read_tree(ROOT)


def python_files(tree: Tree) -> Iterator[tuple[str, ast.Module]]:
    for name, text in tree.items():
        if name.endswith(".py"):
            yield name, parsed(text)


@cache
def parsed(text: str) -> ast.Module:
    """A file's tree, for all checks: they only read it."""
    return ast.parse(text)


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
            command = name.startswith(("emulation/cli/", "p4/p4vm/cli/")) and "typer.Option" in ast.unparse(args)
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


def top_room(name: str) -> str:  # of a source file; "" for other files
    return next((top for top in PACKAGES if name.startswith(top)), "")


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


# ---- who imports whom


def imported(name: str, module: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything a file imports, also inside functions; `from a import b` gives a.b."""
    package = Path(name).parent.parts
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            origin = ".".join((*above, *filter(None, [node.module])))
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def wrong_in_core(own: str, target: str) -> str | None:
    """What is wrong with core module `own` importing `target`."""
    package, _, rest = target.partition(".")
    if package in NOT_IN_CORE:
        return "time, chance and input are parameters of the core"
    if package == "switchagg":
        other = rest.partition(".")[0]
        if other not in CORE:
            return "the core imports only the core"
        if KEPT_APART.get(f"switchagg.{own}") == other:
            return "aggregator and endpoint share only wire, job and errors"
        return None
    return None if package == "numpy" or package in sys.stdlib_module_names else "the core needs numpy only"


def wrong_import(name: str, target: str) -> str | None:
    """What is wrong with file `name` importing `target`, or None."""
    path, top, package = Path(name), Path(name).parts[0], target.partition(".")[0]
    if top == "tests" or (name.startswith("p4/tests/") and package not in MAY_NOT_IMPORT[top]):
        return None
    if package in {"tests", "conftest"}:
        return "nothing imports tests"
    if top != "examples" and f"{target}.".startswith(f"{module_name(DOOR)}."):
        return f"a door for users; import {BEHIND_IT}"
    if name == DOOR and target.startswith(f"{BEHIND_IT}."):
        return None
    if package in MAY_NOT_IMPORT.get(top, ()):
        return f"{top} is below {package}"
    if package in HOMES and not any(
        name.startswith(home) if home.endswith("/") else name == home for home in HOMES[package]
    ):
        return f"{package} is imported only in {', '.join(HOMES[package]) or 'tests'}"
    if path.parent.as_posix() == "switchagg" and path.stem in CORE:
        return wrong_in_core(path.stem, target)
    if path.is_relative_to("switchagg/codecs") or path.is_relative_to("switchagg/option_syntax/"):
        return wrong_in_core("codecs", target)
    if top in NEEDS and package not in NEEDS[top] | sys.stdlib_module_names:
        return f"{top} needs {', '.join(sorted(NEEDS[top] - {top, 'p4vm'}))} only"
    return None


def wrong_imports(tree: Tree) -> list[str]:
    return [
        f"{name}:{line}: imports {target}: {fault}"
        for name, module in python_files(tree)
        for line, target in imported(name, module)
        if (fault := wrong_import(name, target))
    ]


# ---- import cycles

TOPS = ("switchagg", "p4/p4vm", "transport", "emulation")


class _AtRunTime(ast.NodeTransformer):
    """Takes away what is imported for type checkers only."""

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        return node.orelse if "TYPE_CHECKING" in ast.unparse(node.test) else self.generic_visit(node)


def module_name(path: str) -> str:
    return path.removeprefix("p4/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def import_cycles(tree: Tree) -> list[str]:
    """Modules that import each other, by whatever ways, at load or inside functions."""
    ours = [name for name in tree if name.endswith(".py") and name.startswith(TOPS)]
    files = {module_name(name): (name, ast.parse(tree[name])) for name in ours}  # trees of its own: it prunes them
    imports: dict[str, set[str]] = {}
    for own, (name, module) in files.items():
        targets = {target for _, target in imported(name.removeprefix("p4/"), _AtRunTime().visit(module))}
        named = {target if target in files else target.rpartition(".")[0] for target in targets}
        imports[own] = (named & files.keys()) - {own}
    reached: dict[str, set[str]] = {}
    for start in files:
        pending, seen = [start], reached.setdefault(start, set())
        while pending:
            new = imports[pending.pop()] - seen
            seen |= new
            pending += new
    cycles = {frozenset(other for other in seen if start in reached[other]) for start, seen in reached.items()}
    remedy = "move what both need to one of them, or below both"
    return [f"{' <-> '.join(sorted(cycle))}: {remedy}" for cycle in cycles if cycle]


# ---- the protocol's rules

# A rule is defined where its number opens a line, a list item, a table row or a heading, perhaps in bold.
RULE_DEFINITION = re.compile(r"^[\s|#>*-]*([PSHWFCRVL][1-9]\d?)\b", re.MULTILINE)
RULE_CITATION = re.compile(r"(?<![\w/.\\-])([PSHWFCRVL][1-9]\d?)(?![\w-])")
RULE_RANGE = re.compile(r"\b([PSHWFCRVL])(\d{1,2}) to \1(\d{1,2})\b")
CITING_SUFFIXES = (".py", ".c", ".h", ".p4", ".stf")


def rules_cited(line: str) -> Iterator[str]:
    yield from RULE_CITATION.findall(line)
    for letter, first, last in RULE_RANGE.findall(line):
        yield from (f"{letter}{number}" for number in range(int(first), int(last) + 1))


def citations(tree: Tree) -> dict[str, str]:
    """Rule number -> one place that cites it. This file does not count."""
    found: dict[str, str] = {}
    for name, text in tree.items():
        if name.endswith(CITING_SUFFIXES) and name != "tests/repository/test_tidy.py":
            for number, line in enumerate(text.splitlines(), 1):
                for rule in rules_cited(line):
                    found.setdefault(rule, f"{name}:{number}")
    return found


def rules_of(tree: Tree) -> set[str]:
    return {rule for name in tree if name.startswith(PROTOCOL_PAGES) for rule in RULE_DEFINITION.findall(tree[name])}


def unknown_rules(tree: Tree) -> list[str]:
    defined = rules_of(tree)
    return [f"{place}: {rule} is not in {PROTOCOL}" for rule, place in citations(tree).items() if rule not in defined]


def uncited_rules(tree: Tree) -> list[str]:
    cited, rules = citations(tree), sorted(rules_of(tree)) or ["no rule"]
    return [f"{PROTOCOL}: {rule} is cited by no source and no test" for rule in rules if rule not in cited]


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
    wrong_imports,
    import_cycles,
]
PROTOCOL_CHECKS = [unknown_rules, uncited_rules]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_repository_has_none_of(check: Callable[[Tree], list[str]], tree: Tree) -> None:
    assert len(tree) > 10, "the list of files came back nearly empty"
    assert check(tree) == []


@pytest.mark.parametrize("check", PROTOCOL_CHECKS, ids=lambda check: check.__name__)
def test_the_protocol_has_none_of(check: Callable[[Tree], list[str]], tree: Tree) -> None:
    assert check(tree) == []


RULES = "## Rules\n- **S1** one\n| W2 | two |\n"
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
    (wrong_imports, {"switchagg/endpoint.py": "import time"}),
    (wrong_imports, {"switchagg/endpoint.py": "def f():\n    from random import random"}),
    (wrong_imports, {"switchagg/endpoint.py": "from switchagg.aggregator import Aggregator"}),
    (wrong_imports, {"switchagg/aggregator.py": "from . import endpoint"}),
    (wrong_imports, {"switchagg/aggregator.py": "from .endpoint import Endpoint"}),
    (wrong_imports, {"switchagg/wire.py": "from switchagg.controller.admission import Controller"}),
    (wrong_imports, {"switchagg/wire.py": "import msgspec"}),
    (wrong_imports, {"switchagg/dataplane/reference.py": "import msgspec"}),
    (wrong_imports, {"switchagg/dataplane/p4.py": "import lark"}),
    (wrong_imports, {"switchagg/dataplane/native.py": "def f():\n    import p4vm.engine"}),
    (wrong_imports, {"p4/p4vm/front/preprocess.py": "import msgspec"}),
    (wrong_imports, {"p4/p4vm/source.py": "from switchagg.errors import SwitchaggError"}),
    (wrong_imports, {"p4/tests/test_engine.py": "from emulation.cli.main import app"}),
    (wrong_imports, {"p4/p4vm/engine.py": "from switchagg.job import JobConfig"}),
    (wrong_imports, {"switchagg/controller/admission.py": "import transport.links.link"}),
    (wrong_imports, {"switchagg/__init__.py": "from emulation.scenario import scenario"}),
    (wrong_imports, {"switchagg/testing/__init__.py": "from transport.worker.session import SwitchSession"}),
    (wrong_imports, {"switchagg/dataplane/native.py": "from transport.testing.jobs import Job"}),
    (wrong_imports, {"transport/worker/session.py": "from switchagg.testing import Switch"}),
    (wrong_imports, {"transport/testing/switches.py": "import pytest"}),
    (wrong_imports, {"transport/worker/session.py": "from emulation.scenario.scenario import Scenario"}),
    (wrong_imports, {"transport/worker/session.py": "import torch.distributed as dist"}),
    (wrong_imports, {"transport/worker/session.py": "import zmq"}),
    (wrong_imports, {"transport/links/udp_link.py": "from mininet.net import Mininet"}),
    (wrong_imports, {"emulation/report/comparison_report.py": "from scapy.all import IP"}),
    (wrong_imports, {"emulation/report/comparison_report.py": "from tests.conftest import SEEDS_DEFAULT"}),
    (import_cycles, {"transport/a.py": "import transport.b", "transport/b.py": "from transport import a"}),
    (
        import_cycles,
        {
            "p4/p4vm/a.py": "from p4vm.room import c",
            "p4/p4vm/room/__init__.py": "",
            "p4/p4vm/room/b.py": "def f():\n    from p4vm.a import g",
            "p4/p4vm/room/c.py": "from .b import f",
        },
    ),
    (unknown_rules, {PROTOCOL: RULES, "switchagg/wire.py": '"""Keeps S1 and S3."""'}),
    (unknown_rules, {PROTOCOL: RULES, "switchagg/wire.py": '"""Keeps S1 to S2, and W2."""'}),
    (uncited_rules, {PROTOCOL: RULES, "switchagg/wire.py": '"""Keeps S1."""'}),
    (uncited_rules, {PROTOCOL: "no rule here\n"}),
]


@pytest.mark.parametrize(("check", "bad"), REJECTED, ids=lambda value: getattr(value, "__name__", ""))
def test_rejects(check: Callable[[Tree], list[str]], bad: Tree) -> None:
    assert len(check(bad)) == 1


ACCEPTED: Tree = {
    PROTOCOL: RULES,
    "switchagg/protocol/control.md": "- **L1** three\n",
    "switchagg/wire.py": '"""Packets (S1, L1)."""\nimport struct\n\nimport numpy as np\n\nfrom .job import JobConfig\n',
    "switchagg/endpoint.py": "from switchagg import wire\nfrom switchagg.errors import DecodeError\n# W2\n"
    + "\n" * 397,
    "switchagg/dataplane/reference.py": "import logging\n\nfrom switchagg.aggregator import Aggregator\n",
    "switchagg/dataplane/p4/p4.py": "from switchagg.job import JobConfig\n\nfrom p4vm.engine import Engine\n",
    "transport/torch/hook.py": "import torch\n\nfrom transport.worker.session import SwitchSession\n",
    "emulation/a.py": "from emulation import b\n",
    "emulation/b.py": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from emulation import a\n",
    "switchagg/testing/__init__.py": '"""What.\n\nFor whom.\nWhere.\n"""\nfrom transport.testing.jobs import Job\n',
    "tests/test_hook.py": "import scapy.all\nimport torch\n\nfrom emulation.scenario import scenario\n",
    "emulation/run.py": "def f():\n" + "    x = 1\n" * 69,
    "LICENSE": "\n" * 700,
} | {
    f"{folder}/__init__.py": '"""What.\n\nFor whom.\nWhere to start.\n"""\n'
    for folder in ("switchagg", "switchagg/dataplane", "switchagg/dataplane/p4", "transport/torch", "emulation")
}


@pytest.mark.parametrize("check", CHECKS + PROTOCOL_CHECKS, ids=lambda check: check.__name__)
def test_accepts(check: Callable[[Tree], list[str]]) -> None:
    assert check(ACCEPTED) == []


def test_lists_new_and_tracked_files_but_not_ignored_ones(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True, capture_output=True, timeout=60)

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
