"""The generated pages of docs/reference, from the code that they describe.

`python -m tools.documents.reference [PAGE …]` writes them all, or those named: codecs, backend, environment, timeouts.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from emulation.report.table_kit import markdown
from switchagg.codecs import ARRAY_CODECS, CODECS, ArrayCodec, CallShape, Codec, names
from switchagg.codecs.codec import FLOAT32
from switchagg.codecs.spec import CodecSpec
from switchagg.native.native_codec import missing
from switchagg.native.native_exact import in_c
from transport.contracts import timeouts
from transport.torch.rendezvous import SwitchOptions

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "reference"
COMMAND = "python -m tools.documents.reference"
RANKS = (4, 64)
MANY = 4096
"""The most ranks of a job."""

INTERVALS = {
    "a (whole )?number ": "",
    r"above 0, up to (\d+)": r"(0,\1]",
    r"from 0 to below (\d+)": r"[0,\1)",
    r"above (\d+)": r">\1",
    r"from (\d+)": r"≥\1",
    "lanes16 or .*": "lanes…, rotated…",
}
"""Ranges of options as their errors have them, and as the page does."""

CODECS_HEAD = f"""# All codecs

Here you can look up every codec with its bits, limits and options; [Codecs](../codecs.md) says which one to take.
Switches and all host methods take every codec. *Bits* are those of a float32 value with {RANKS[0]} to {RANKS[1]} ranks,
and *ranks* is the largest number in a sum. Where *+ef* is *needed*, training may diverge without error feedback.
`{COMMAND}` writes this page.

## Every value, in fewer bits

Each packet is coded by itself. Where *rounding* is *random*, the mean of many roundings is the value. The compiled
core has {{in_c}}.

"""
ADDED_HEAD = """
## Whole arrays, summed

*Bits* are those of long dense arrays, with default options. The compiled core has {in_c}.

"""
GATHERED_HEAD = """
## Whole arrays, gathered

A switch can't sum these: every rank receives what all others send.

"""
COMMON = """
All codecs with *+ef* also have the options `least=1024` (sums of fewer values travel uncoded),
`warmup=0` (so many first sums travel uncoded) and, with `+ef`, `momentum=0` (momentum correction; 0.9 for `dgc`).
"""

ENVIRONMENT_HEAD = f"""# Settings of a job

Here you can look up the environment variables that a training job reads. Each is also a field of `SwitchOptions`, the
`pg_options` of `init_process_group` and `new_group`. If ranks have different values where these must be equal, all of
them end with an error that names the variable. `{COMMAND}` writes this page.

"""
EVERY_COMMAND_HEAD = """
## For every program

"""
EVERY_COMMAND = (
    ("`SWITCHAGG_NATIVE`", "", "`0`: go without the compiled core; a path: another build of it"),
    ("`SWITCHAGG_METRICS`", "", "`[HOST:]PORT`: rank r serves its counters to Prometheus at PORT + r"),
    ("`SWITCHAGG_SIM_THREADS`", "`1`", "threads that simulate the racks of one network in virtual time"),
    ("`SWITCHAGG_RDMA_PROVIDER`", "`soft`", "`verbs`: RDMA hardware, through pyverbs"),
    ("`SWITCHAGG_RDMA_SEGMENTS`", "`64`", "packets of user-space RDMA that the kernel takes in one send"),
    ("`SWITCHAGG_PYTHON`", "", "the Python in which Mininet's `mn` starts the switch"),
)
TIME_OUTS_HEAD = f"""# Time-outs

Here you can look up the time-outs that you can set, and what happens when they end. `{COMMAND}`
writes this page from `transport/contracts/timeouts.py`, which also has those that can't be set. All use
`CLOCK_MONOTONIC`, so setting a machine's clock changes nothing.
"""


def table(head: Sequence[str], rows: Iterable[Sequence[str]], between: str = ", ") -> str:
    """In Markdown; rows that differ in their first cell alone become one, whose first cell has them all."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for first, *rest in rows:
        alike.setdefault(tuple(rest), []).append(first)
    top, _, *lines = markdown(head, [(between.join(first), *rest) for rest, first in alike.items()])
    return "\n".join([top, "|---" * len(head) + "|", *lines]) + "\n"


def most_ranks(codec: Codec | ArrayCodec) -> str:
    most = max(ranks for ranks in range(1, MANY + 1) if not codec.fault(ranks))
    return str(most) if most < MANY else "any"


def feedback(codec: Codec | ArrayCodec) -> str:
    if not codec.lossy:
        return "-"
    if not getattr(codec, "feeds_back", True):
        return "refused"
    return "needed" if codec.needs_feedback else "possible"


def rounding(codec: Codec) -> str:
    """Whether its words depend on the key of random rounding."""
    words = []
    for key in (1, 2):
        coding = codec.for_workers(2).begin(CallShape(FLOAT32, 1, 64, 2, key))
        values = np.linspace(-0.9, 0.9, codec.for_workers(2).row_values(FLOAT32, 64), dtype=np.float32)[np.newaxis]
        if codec.rounds:
            coding.agree(0, coding.prepare(values, slice(0, 1)))
        words.append(coding.encode(values, slice(0, 1)))
    return "nearest" if np.array_equal(*words) else "random"


def span(bits: Iterable[float]) -> str:
    return " to ".join(dict.fromkeys(f"{each:.3g}" for each in bits))


def row_codec(codec: Codec) -> list[str]:
    bits = span(codec.for_workers(ranks).bits(FLOAT32) for ranks in RANKS if not codec.fault(ranks))
    return [f"`{codec.name}`", bits, most_ranks(codec), rounding(codec), feedback(codec)]


def array_codec(kind: type[ArrayCodec]) -> list[str]:
    codec = kind()
    return [f"`{kind.name}`", span(map(codec.bits, RANKS)), most_ranks(codec), feedback(codec), options(codec)]


def allowed(option: Any) -> str:
    """The range of an option, from its error."""
    try:
        option.metadata["read"]("?")
    except ValueError as error:
        text = str(error)
        for words, sign in INTERVALS.items():
            text = re.sub(words, sign, text)
        return text
    raise AssertionError(option.name)


def options(codec: ArrayCodec) -> str:
    """Each with its default and range."""
    written = [entry for entry in fields(codec) if "word" in entry.metadata]
    return "; ".join(f"`{entry.metadata['word']}={entry.default}` {allowed(entry)}" for entry in written)


def codecs_page() -> str:
    rows = [CODECS[name] for name in names() if FLOAT32 in CODECS[name].dtypes]
    arrays = {adds: [kind for kind in ARRAY_CODECS.values() if kind.adds == adds] for adds in (True, False)}
    compiled = [f"`{kind.name}`" for kind in ARRAY_CODECS.values() if type(in_c(CodecSpec(kind())).codec) is not kind]
    in_python = [f"`{codec.name}`" for codec in rows if missing(codec)]
    head = ("codec", "bits", "ranks", "rounding", "+ef")
    array_head = ("codec", "bits", "ranks", "+ef", "options")
    return (
        CODECS_HEAD.format(in_c=f"all but {', '.join(in_python)}" if in_python else "all of them")
        + table(head, map(row_codec, rows))
        + ADDED_HEAD.format(in_c=", ".join(compiled) or "none of them")
        + table(array_head, map(array_codec, arrays[True]))
        + GATHERED_HEAD
        + table(array_head, map(array_codec, arrays[False]))
        + COMMON
    )


def backend_page() -> str:
    """It calls every collective on two ranks, half a minute."""
    measured = ROOT / "tests/transport/torch/test_feature_matrix.py"
    path = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests/shared")))}
    command = [sys.executable, str(measured)]
    return subprocess.run(command, env=path, check=True, stdout=subprocess.PIPE, text=True).stdout


def option_texts() -> dict[str, str]:
    """Each option of a PyTorch group with what its metadata, or the docstring below its field, says; its own first."""
    described: dict[str, str] = {}
    options = {option.name: option for option in fields(SwitchOptions) if not option.metadata.get("derived")}
    for kind in SwitchOptions.__mro__[:-1]:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(definition, ast.ClassDef)
        for statement, following in zip(definition.body, [*definition.body[1:], ast.Pass()], strict=True):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                docstring = getattr(getattr(following, "value", None), "value", "")
                option = options.get(statement.target.id)
                if option:
                    about = option.metadata.get("about") or " ".join(docstring.split())
                    described.setdefault(option.name, about)
    return described


def environment_page() -> str:
    defaults = {option.name: option.default for option in fields(SwitchOptions)}
    rows = [(f"`SWITCHAGG_{name.upper()}`", shown(defaults[name]), text) for name, text in option_texts().items()]
    head = ("variable", "default", "what it is")
    return ENVIRONMENT_HEAD + table(head, rows) + EVERY_COMMAND_HEAD + table(head, EVERY_COMMAND)


def shown(default: object) -> str:
    return "" if default in ("", ()) else f"`{default}`"


def timeouts_page() -> str:
    return TIME_OUTS_HEAD + "".join(f"\n## {title}\n\n{timeouts.table(part)}" for title, part in timeouts.PARTS.items())


PAGES: dict[str, Callable[[], str]] = {
    "codecs": codecs_page,
    "backend": backend_page,
    "environment": environment_page,
    "timeouts": timeouts_page,
}


def main() -> None:
    for name in sys.argv[1:] or PAGES:
        if name not in PAGES:
            sys.exit(f"reference: page '{name}' is unknown; there are: {', '.join(PAGES)}")
        (FOLDER / f"{name}.md").write_text(PAGES[name](), encoding="utf-8")
        print(f"docs/reference/{name}.md")


if __name__ == "__main__":
    main()
