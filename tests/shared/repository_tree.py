"""The files of this repository, as the checks of its style read them."""

import ast
import gc
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("switchagg/", "transport/", "emulation/", "p4/p4vm/")

Tree = dict[str, str]
"""Path below the root, with slashes -> text."""


def repository_files(root: Path) -> list[str]:
    """Files that git tracks or would add; without git, all that are not hidden or made by tools."""
    command = ["git", "-c", f"safe.directory={root}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=root, capture_output=True, check=True, timeout=300).stdout.decode()
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


@cache
def repository() -> Tree:
    """This repository's files, read once."""
    return read_tree(ROOT)


def python_files(tree: Tree) -> Iterator[tuple[str, ast.Module]]:
    for name, text in tree.items():
        if name.endswith(".py"):
            yield name, parsed(text)


@cache
def parsed(text: str) -> ast.Module:
    """A file's tree, for all checks: they only read it."""
    gc.disable()  # it would look through all the trees again and again: three quarters of the time
    try:
        return ast.parse(text)
    finally:
        gc.enable()


def top_room(name: str) -> str:  # of a source file; "" for other files
    return next((top for top in PACKAGES if name.startswith(top)), "")


def module_name(path: str) -> str:
    return path.removeprefix("p4/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def run_time_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below one, but for what is there for type checkers only."""
    pending = [node]
    while pending:
        node = pending.pop()
        yield node
        types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        pending += node.orelse if isinstance(node, ast.If) and types else ast.iter_child_nodes(node)


def imported(name: str, nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Line and dotted name of all that a file imports, also inside functions; `from a import b` gives a.b."""
    package = Path(name).parent.parts
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            origin = ".".join((*above, *filter(None, [node.module])))
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)
