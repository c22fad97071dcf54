"""Runs the commands of the documents as a reader pastes them, and holds the outputs that they show to be true.

    python tools/documents                        # quick commands of all pages
    python tools/documents --long docs/p4.md      # one page, also what takes minutes
    python tools/documents --list                 # what is not run, and why

A page's ```console blocks are one bash session, in a copy of the checkout of its own. `$ ` begins a command, which goes
on after `\\` and in a here-document; the lines below are its output: each stands, in this order, in what the command
writes. There any number matches any number, time units any time, byte units any size, an absolute path any path, `…`
and `...` anything. A command ends with 0, or, where a line `switchagg: …`, `p4vm: …` or `FAIL …` is shown, with another
status. One that ends in `&` is waited for until it has written what is shown, and ended with the page. `sudo` does what
sudo does: few variables, the system's PATH.

A comment before a block, `<!-- run: WORDS[, REASON] -->`, says what isn't so:

    long      takes minutes: run with --long          exact     numbers are compared, too
    never     isn't run; the reason follows           fails     its last command ends with a status but 0
    serves    its last command runs until Ctrl-C      root      needs root though nothing says sudo
    file NAME the block, of any language, becomes this file

As root each page has a network, a host name and processes of its own, so nothing of it can stay. `--plain` runs pages
as a user without rights. `--wheel` runs them from a wheel, in a folder without the checkout.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from pages import steps
from sessions import LONG_S, QUICK_S, ROOT, Outcome, Place, documents, folder_for, privileged, run_page

# What a wheel's user follows, and what `switchagg examples` gives them for it.
WHEEL_PAGES = ("README.md", "docs/p4.md", "docs/security.md")
COPIES = (
    "switchagg examples train_ddp.py --to examples",
    "switchagg examples train_priority.py --to examples",
    "switchagg examples finish_early --to examples/p4",
    "switchagg examples p4 && mkdir switchagg && mv p4 switchagg/programs",
)


@contextmanager
def wheel_environment() -> Iterator[Path]:
    """An environment with switchagg from a wheel of this checkout, and what it needs from the one that runs us."""
    with tempfile.TemporaryDirectory(prefix="switchagg-wheel-") as temporary, folder_for(Place()) as copy:
        Path(temporary).chmod(0o755)
        made, python = Path(temporary) / "environment", sys.executable
        pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        built = [*pip, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", temporary, ".", "./p4"]
        done = subprocess.run(built, cwd=copy, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"no wheel could be built:\n{done.stderr}")
        subprocess.run([python, "-m", "venv", "--without-pip", str(made)], check=True)
        wheels = map(str, Path(temporary).glob("*.whl"))
        pip += ["--python", str(made / "bin/python")]
        subprocess.run([*pip, "install", "--no-deps", "--no-index", *wheels], check=True)
        (packages,) = made.glob("lib/python*/site-packages")
        (packages / "needed.pth").write_text(f"{Path(sys.prefix) / packages.relative_to(made)}\n")
        for name in ("torchrun", "pytest"):
            script = made / "bin" / name
            script.write_text(f'#!/bin/sh\nexec {made}/bin/python {sys.prefix}/bin/{name} "$@"\n')
            script.chmod(0o755)
        yield made


def listed(pages: Sequence[str], place: Place) -> int:
    """Says what isn't run, and why."""
    for page in pages:
        text = (ROOT / page).read_text(encoding="utf-8")
        found = [(step, place.left_out(step)) for step in steps(text) if step.command]
        print(f"{page}: {sum(why is None for _, why in found)} of {len(found)} commands are run")
        for step, why in found:
            if why:
                print(f"  line {step.line}: {why}: {step.command.splitlines()[0]}")
    return 0


def report(page: str, place: Place) -> int:
    """Runs a page and prints what comes of it, as it comes; returns how many faults."""

    def tell(outcome: Outcome) -> None:
        what, command = "FAULT" if outcome.fault else "ok", outcome.step.command.splitlines()[0]
        print(f"{what:5s} {outcome.seconds:7.1f} s  {page}:{outcome.step.line}  {command}", flush=True)
        if outcome.fault or outcome.note:
            print(f"      {outcome.fault or outcome.note}", flush=True)

    return sum(bool(outcome.fault) for outcome in run_page(page, place, tell))


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("pages", nargs="*", help="default: all")
    options.add_argument("--long", action="store_true", help="also what takes minutes")
    options.add_argument("--list", action="store_true", help="say what isn't run, and why")
    options.add_argument("--plain", action="store_true", help="as a user without rights (needs root, to become it)")
    options.add_argument("--wheel", action="store_true", help="from a wheel, in a folder without the checkout")
    options.add_argument("--limit", type=float, metavar="SECONDS", help=f"of a command [{QUICK_S}; long ones {LONG_S}]")
    given = options.parse_args()
    if given.plain and not privileged():
        options.error("--plain: only root can become another user; a user without rights needs no --plain")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a page's processes and folder go with us
    place = Place(given.plain, given.long, limit_s=given.limit)
    named = [Path(page).resolve().relative_to(ROOT).as_posix() for page in given.pages]
    pages = named or (WHEEL_PAGES if given.wheel else documents())
    if given.list:
        return listed(pages, place)
    with wheel_environment() if given.wheel else nullcontext(place.programs) as programs:
        if given.wheel:
            place = replace(place, programs=programs, checkout=False, first=COPIES)
        faults = sum(report(page, place) for page in pages)
    print(f"{faults} faults" if faults else "all that was run is as the documents say")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
