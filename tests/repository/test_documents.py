"""tools/documents: commands and outputs are read off pages as meant, what is wrong is found, and all pages are true."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools/documents"))

from pages import Step, missing_line, steps, unmarked_commands  # noqa: E402
from sessions import Outcome, Place, documents, privileged, run_page  # noqa: E402

pytestmark = pytest.mark.long

PAGE = r"""
```console
$ cd docs && \
    ls   # where we are
a.md
$ cat > b.md <<'END'
$ no command
END
$ sleep 9 &
```

<!-- run: long exact -->
```console
$ date
```

<!-- run: file x.toml -->
```toml
key = 1
```
"""


def test_steps_of_a_page() -> None:
    found = steps(PAGE)
    assert [step.command for step in found] == [
        "cd docs && \\\n    ls   # where we are",
        "cat > b.md <<'END'\n$ no command\nEND",
        "sleep 9 &",
        "date",
        "",
    ]
    assert [step.shown for step in found] == [["a.md"], [], [], [], ["key = 1"]]
    assert [step.in_background for step in found] == [False, False, True, False, False]
    assert (found[3].modes, found[4].file) == (frozenset({"long", "exact"}), "x.toml")


@pytest.mark.parametrize("mark", ["longish", "never"])
def test_a_mark_that_says_nothing_is_refused(mark: str) -> None:
    with pytest.raises(ValueError, match=f"run: {mark}"):
        steps(f"<!-- run: {mark} -->\n```console\n$ ls\n```\n")


@pytest.mark.parametrize(
    ("shown", "written", "exact"),
    [
        ("took 85.2 ms  (bound 1,024 B)", "took 1.02 s (bound 3.5 kB)", False),
        ("Report: /tmp/a/report.html", "Report: /home/b-c/d/report.html", False),
        ("job 6b0868b8… of 4", "job 12cc00af and more of 5", False),
        ("step    0  loss 2.4120", "step 0 loss 2.4120", True),
        ("." * 31 + " [100%]", "." * 31 + " [100%]", False),
        ("----- switch -----", "--------- switch ---------", False),
    ],
)
def test_lines_that_are_as_shown(shown: str, written: str, exact: bool) -> None:
    assert missing_line([shown], f"before\n\x1b[1m{written}\x1b[0m\nafter\n", exact) is None


@pytest.mark.parametrize(
    ("shown", "written", "exact"),
    [
        ("took 85.2 ms", "took 85.2 MB", False),
        ("Certificate: VALID", "Certificate: INVALID", False),
        ("step 0 loss 2.4120", "step 0 loss 2.4121", True),
        ("3 packets", "no packets", False),
        ("." * 31 + " [100%]", "." * 30 + "F [100%]", False),
    ],
)
def test_lines_that_are_not(shown: str, written: str, exact: bool) -> None:
    assert missing_line([shown], written, exact) == shown


def test_lines_stand_in_their_order() -> None:
    assert missing_line(["a", "...", "b"], "a\nx\nb\n", False) is None
    assert missing_line(["b", "a"], "a\nb\n", False) == "a"


def test_commands_are_in_blocks_that_are_run() -> None:
    found = {page: unmarked_commands((ROOT / page).read_text(encoding="utf-8")) for page in documents()}
    assert {page: lines for page, lines in found.items() if lines} == {}, "write ```console and $; a synopsis: ```text"
    assert unmarked_commands("```\n$ ls\n```\n```\nsudo ls\n```\n```text\nmake X\n```\n") == [2, 5]


alone = pytest.mark.skipif(not privileged(), reason="needs root: each page is run in a network of its own")


def run(tmp_path: Path, *lines: str, mark: str = "") -> list[Outcome]:
    page = tmp_path / "page.md"
    page.write_text("\n".join([mark, "```console", *lines, "```", ""]), encoding="utf-8")
    return run_page(str(page), Place(checkout=False, limit_s=1))


@alone
@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (("$ echo one", "two"), "has no such line: two"),
        (("$ false",), "ended with status 1"),
        (("$ nonesuch --help",), "ended with status 127"),
        (("$ echo switchagg: no", "switchagg: no"), "ended with status 0, though a refusal is shown"),
        (("$ sleep 5",), "did not end within 1 s"),
        (("$ exit 0",), "did not end within 1 s, or ended the session"),
        (("$ (trap '' HUP; setsid sleep 30 & )",), "left behind: sleep 30"),
        (("$ name=switchagg; sudo $name --help",), "ended with status 127"),  # sudo has a PATH of its own
    ],
)
def test_a_page_that_is_wrong(tmp_path: Path, lines: tuple[str, ...], fault: str) -> None:
    outcomes = run(tmp_path, *lines)
    assert [each.fault.startswith(fault) for each in outcomes if each.fault] == [True]


@alone
def test_a_page_that_is_right(tmp_path: Path) -> None:
    lines = ["$ cd /tmp", "$ export A=5", "$ pwd; echo $A", "/tmp", "7", "$ sh -c 'echo FAIL; exit 1'", "FAIL"]
    lines += [
        "$ sh -c 'sleep 0.2; echo ready; sleep 60' &",
        "ready",
        "$ ping -c 1 10.0.0.9",
        "1 packets transmitted, …",
    ]
    lines += ["$ sh -c 'echo ready; exec sleep 60'", "ready"]
    assert [each.fault for each in run(tmp_path, *lines, mark="<!-- run: serves -->")] == [""] * 7


def told(outcomes: list[Outcome]) -> list[str]:
    return [f"line {each.step.line}: {each.step.command}: {each.fault}" for each in outcomes if each.fault]


def commands(page: str) -> list[Step]:
    found = steps((ROOT / page).read_text(encoding="utf-8"))
    return [step for step in found if step.command and not Place().left_out(step)]


@alone
@pytest.mark.parametrize("page", [page for page in documents() if commands(page)])
def test_commands_of(page: str) -> None:
    """Quick ones (the others: make documents ARGS=--long), by a user without rights if the page asks for none."""
    asks_for_root = any("root" in step.modes or "sudo " in step.command for step in commands(page))
    outcomes = run_page(page, Place(plain=not asks_for_root))
    assert told(outcomes) == []
    assert len(outcomes) == len(commands(page))


def test_the_notebook_of_the_first_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.chdir(ROOT / "examples")
    cells = json.loads((ROOT / "examples/first_hours.ipynb").read_text(encoding="utf-8"))["cells"]
    codes = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in codes), "kept without what it showed"
    names: dict[str, Any] = {}
    for cell in codes:
        exec("".join(cell["source"]), names)
    faster = {line.get_label(): list(line.get_ydata()) for line in names["schedule_axes"].lines}
    assert faster["ring"] == [1, 1, 1]
    assert all(
        urgent > plain > 1 for urgent, plain in zip(faster["switch+bytescheduler"], faster["switch"], strict=True)
    )
    assert (names["faults"], bool(names["by_ours"])) == ([], True)
    assert names["ours"][0] > names["finishing_early"][0] > names["broken"][0]
