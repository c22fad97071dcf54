"""Says whether an exercise is solved, or what is still wrong: `python check.py 1` … `python check.py 6`.

An exercise's folder has its own `check.py`, whose `faults(folder)` looks at the files in that folder, yours or those of
`solution/`, and returns lines: the first says what is wrong, further ones why. Without lines the exercise is solved.
"""

import argparse
import runpy
import sys
import traceback
from pathlib import Path

LABS = Path(__file__).resolve().parent
PASSED, WRONG, USAGE = 0, 1, 2


def lab_of(number: str) -> Path:
    """Folder of an exercise. Raises ValueError."""
    folders = sorted(LABS.glob("[0-9]_*"))
    for folder in folders:
        if number in (folder.name[0], folder.name):
            return folder
    raise ValueError(f"no exercise {number}; there are {', '.join(folder.name for folder in folders)}")


def error_lines(error: Exception, folder: Path) -> list[str]:
    """An error that a file of the folder raised, with its place there; [] if no such file was involved."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_relative_to(folder):
        return [f"{Path(error.filename).name}:{error.lineno}: {error.msg}"]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_relative_to(folder) and path.name != "check.py":
            return [f"{path.name}:{frame.lineno}: {type(error).__name__}: {error}"]
    return []


def faults(lab: Path, folder: Path) -> list[str]:
    """The faults of an exercise's files in `folder`; [] if it is solved. Raises ImportError."""
    try:
        return list(runpy.run_path(str(lab / "check.py"))["faults"](folder))
    except ModuleNotFoundError:
        raise
    except Exception as error:
        lines = error_lines(error, folder)
        if not lines:
            raise
        return lines


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Is the exercise solved? Else: what is still wrong.")
    parser.add_argument("number", metavar="N", help="of the exercise, 1 to 6")
    parser.add_argument("--solution", action="store_true", help="look at the solution's files instead of yours")
    options = parser.parse_args(arguments)
    try:
        lab = lab_of(options.number)
    except ValueError as error:
        parser.error(str(error))
    folder = lab / "solution" if options.solution else lab
    try:
        lines = faults(lab, folder)
    except ModuleNotFoundError as error:
        print(f"{lab.name} needs {error.name}: pip install 'switchagg[emulation,p4]' scapy", file=sys.stderr)
        return USAGE
    if not lines:
        print(f"pass  {lab.name}")
        return PASSED
    print(f"wrong {lab.name}: {lines[0]}", *(f"      {line}" for line in lines[1:]), sep="\n")
    return WRONG


if __name__ == "__main__":
    sys.exit(main())
