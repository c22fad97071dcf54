"""What `switchagg init --packet-tests` writes: two examples, the tests of any switch and a P4 program with its own."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

PROGRAM = "program"
_NEXT = """\
{folder}/test_switch.py: tests of a switch; its `my_sequence` is the first thing to change
{folder}/{program}: a P4 program to change, its rule in Python, and its tests

To run them, with a table of verdicts at the end:

  {pytest} {folder}                      # the fastest data plane here, and your P4 program
  {pytest} {folder} --dataplane all      # each data plane that can run here
  {pytest} {folder} --verdicts FILE.csv  # the table as a file, too
  {pytest} {folder}/{program}              # your P4 program alone
  {pytest} {folder}/test_switch.py --switch tcp://127.0.0.1:5555    # a switch that runs somewhere"""


def texts_of(folder: Path) -> dict[Path, str]:
    """Path in `folder` -> text. The tests name the folder where they will be."""
    from emulation.cli.start.shipped import shipped

    examples, texts = shipped(), {}
    for name, target in (("packet_test", folder), ("finish_early", folder / PROGRAM)):
        for path in examples[name].iterdir():
            if path.is_file() and path.suffix != ".pyc":
                text = path.read_text(encoding="utf-8")
                for place in ("examples/p4/finish_early", "examples/packet_test"):
                    text = text.replace(place, target.as_posix())
                texts[target / path.name] = text
    return texts


def next_steps(folder: Path) -> str:
    """How to run them, with the pytest of the environment that switchagg is installed in."""
    beside = Path(sys.executable).with_name("pytest")
    pytest = "pytest" if shutil.which("pytest") == str(beside) else f"{shlex.quote(sys.executable)} -m pytest"
    return _NEXT.format(folder=shlex.quote(folder.as_posix()), program=PROGRAM, pytest=pytest)
