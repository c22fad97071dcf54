"""The site that `make docs` builds with Sphinx: the repository's Markdown pages, and an API reference from docstrings.

Pages keep their paths of the repository, so that a link between two of them is the same on GitHub and in the site.
Docstrings are read as Markdown. The reference has a page for each package, with the public members of its modules.
"""

import posixpath
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import typer
from docutils import nodes
from markdown_it import MarkdownIt
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.errors import ConfigError
from sphinx.util.docutils import SphinxDirective
from typer.cli import get_docs_for_click
from typer.main import get_command

from emulation.cli.daemons.link_help import LinkCommand
from emulation.cli.main import app as commands

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)\s:#]+)")
# No program calls the members of a compiler's passes, commands or benchmarks: the reference has what their modules say.
MODULES_ALONE = re.compile(
    r"p4vm\.(c_code|cli|check|front|ir|lower|native|python)\b|emulation\.(experiments\.bench|cli|report)\b"
)
DECISIONS = "docs/decisions/README.md"
PACKAGE_FOLDERS = ("switchagg", "p4/p4vm", "transport", "emulation")
CAPTIONS = {
    "Guides": r"docs/[^/]+\.md|(switchagg/programs|p4|emulation/experiments/bench)/README\.md",
    "Results": r"docs/results/.*\.md",
    "Labs": r"examples/labs/.*\.md",
    "Reference": r"api/(commands|index)\.md|docs/reference/.*\.md"
    r"|.*/(PROTOCOL|protocol/.*|\w+_schema|vectors/README)\.md",
    "Project": r"ARCHITECTURE\.md|docs/decisions/README\.md|CONTRIBUTING\.md|CHANGELOG\.md",
}

project = "switchagg"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "README"
html_theme = "furo"
html_title = "switchagg"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_use_index = False
smartquotes = False
toc_object_entries = False
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_use_type_comments = False
autodoc_mock_imports = ["mininet", "pyverbs", "torchft"]

markdown = MarkdownIt("commonmark", {"html": False}).enable("table")


class Docstring(SphinxDirective):
    """A docstring, as Markdown."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        return [nodes.raw("", markdown.render("\n".join(self.content)), format="html")]


def as_markdown(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    lines[:] = [".. docstring::", "", *(f"   {line}" for line in lines), ""]


def link_full_names_only(app: Sphinx, doctree: nodes.document) -> None:
    """Types written without their module stay text: a short name may mean several classes."""
    for reference in list(doctree.findall(pending_xref)):
        if reference.get("refdomain") == "py":
            if "." in reference["reftarget"]:
                reference.attributes.pop("refspecific", None)  # or Sphinx compares it with the end of every name
            else:
                reference.replace_self(reference.children)


def tracked_files() -> list[str]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return sorted(name for name in listed.split("\0") if name and (ROOT / name).is_file())


def packages(names: list[str]) -> dict[str, list[str]]:
    """Package -> its modules, itself first."""
    found: dict[str, list[str]] = {}
    for name in names:
        if name.endswith(".py") and name.startswith(PACKAGE_FOLDERS) and not name.endswith("__main__.py"):
            module = name.removeprefix("p4/").removesuffix(".py").replace("/", ".")
            found.setdefault(module.rpartition(".")[0], []).append(module.removesuffix(".__init__"))
    return {package: sorted(modules) for package, modules in sorted(found.items())}


def api_page(package: str, modules: list[str]) -> str:
    members = "" if MODULES_ALONE.match(package) else "   :members:\n"
    lines = [f"# {package}\n"]
    for module in modules:
        title = "" if module == package else f"## {module}\n\n"
        lines.append(f"{title}```{{eval-rst}}\n.. automodule:: {module}\n{members}```\n")
    return "\n".join(lines)


def commands_page() -> str:
    """Every command with its options, as typer writes them."""
    command = get_command(commands)
    for each in command.commands.values():
        if isinstance(each, LinkCommand):
            each.name_links()
    with typer.Context(command, info_name="switchagg") as context:
        return get_docs_for_click(obj=command, ctx=context, name="switchagg", title="Commands")


def contents(pages: list[str], *options: str) -> str:
    return "\n".join(["", "```{toctree}", *options, *pages, "```", ""])


def copy_pages(folder: Path, names: list[str]) -> list[str]:
    """Copies the Markdown pages among `names`, and the files they link to; returns the pages."""
    pages = [name for name in names if name.endswith(".md")]
    linked = set(pages)
    for page in pages:
        targets = LINK.findall((ROOT / page).read_text(encoding="utf-8"))
        linked |= {posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) for target in targets}
    for name in linked.intersection(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return pages


def gather_pages(folder: Path) -> None:
    """Into an emptied `folder`: all pages, the reference's pages, and lists of both. Never the repository itself."""
    if ROOT.is_relative_to(folder.resolve()):
        raise ConfigError(f"{folder} holds the repository, and pages are gathered in an emptied folder; run: make docs")
    shutil.rmtree(folder)
    names = tracked_files()
    pages = copy_pages(folder, names)
    reference = packages(names)
    (folder / "api").mkdir()
    for package, modules in reference.items():
        (folder / f"api/{package}.md").write_text(api_page(package, modules))
    (folder / "api/commands.md").write_text(commands_page())
    (folder / "api/index.md").write_text("# API reference\n" + contents([f"/api/{package}" for package in reference]))
    decisions = [f"/{name}" for name in pages if name.startswith("docs/decisions/") and name != DECISIONS]
    with (folder / DECISIONS).open("a") as page:
        page.write(contents(decisions, ":hidden:"))
    with (folder / "README.md").open("a") as page:
        for caption, pattern in CAPTIONS.items():
            listed = [f"/{name}" for name in [*pages, "api/commands.md", "api/index.md"] if re.fullmatch(pattern, name)]
            page.write(contents(listed, ":hidden:", f":caption: {caption}"))


def add_index(app: Sphinx, error: Exception | None) -> None:
    if error is None:
        shutil.copy(Path(app.outdir) / "README.html", Path(app.outdir) / "index.html")


def setup(app: Sphinx) -> dict[str, Any]:
    gather_pages(Path(app.srcdir))
    app.add_directive("docstring", Docstring)
    app.connect("autodoc-process-docstring", as_markdown)
    app.connect("doctree-read", link_full_names_only)
    app.connect("build-finished", add_index)
    return {"parallel_read_safe": True}
