"""`switchagg init`: a scenario and a training script to start from, a scenario of one's own model, or packet tests."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from emulation.cli.outcomes import EXIT_USAGE, outcomes, stop

SCENARIO, SCRIPT = "mine.toml", "train.py"
_TEMPLATE, _MODEL_TEMPLATE = Path(__file__).with_name(SCENARIO), Path(__file__).with_name("model.toml")
_NEXT = """\
{scenario}: a scenario; its comments say what to change first
{script}: a training script, plain DDP but for one word

To try them:

  switchagg compare {scenario} --on sim     # in virtual time: less than a minute
  switchagg compare {scenario}              # in Mininet, where it can run

  switchagg try {script} --width 16000 --batch 256   # what the switch gains this script

  switchagg switch &                        # a switch for your own training; it ends with: kill %1
  SWITCHAGG_SWITCH=tcp://127.0.0.1:5555 torchrun --standalone --nproc-per-node 2 {script}"""


_NEXT_WITH_MODEL = """\
{scenario}: {model} on your network; its comments say what else can be changed

To see what the switch would gain:

  switchagg compare {scenario}              # in virtual time, packet by packet"""


def init(
    folder: Annotated[Path, typer.Argument(help="The folder to write into; it is made if it isn't there")] = Path(),
    model: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="A shipped model, like resnet50, or a profile of your own model")
    ] = "",
    workers: Annotated[int, typer.Option(min=0, max=4096, help="The number of workers; 0: as the template says")] = 0,
    rate: Annotated[str, typer.Option(metavar="RATE", help="The rate of each worker's link, like 25Gb/s")] = "",
    packet_tests: Annotated[
        bool, typer.Option("--packet-tests", help="Write tests of a switch, packet by packet, and a P4 program")
    ] = False,
) -> None:
    """Write a scenario and a training script to start from.

    They are mine.toml and train.py, and it prints how to run them. With `--model` the scenario has that model in place
    of real training. With `--packet-tests` it writes tests of a switch in place of both: pytest sends packets to a live
    switch, and to a P4 program of yours. Files that exist are never overwritten.

    **Examples**

    `switchagg init first`

    `switchagg init mine --model resnet50 --workers 16 --rate 25Gb/s`

    `switchagg init mine --packet-tests`
    """
    if packet_tests and (model or workers or rate):
        stop("--packet-tests writes no scenario: leave --model, --workers and --rate out", EXIT_USAGE)
    with outcomes():
        from emulation.cli.start.packet_tests import next_steps, texts_of
        from emulation.cli.start.shipped import shipped, text_for

        if packet_tests:
            _write(texts_of(folder))
            typer.echo(next_steps(folder))
            return
        scenario, script = folder / SCENARIO, folder / SCRIPT
        template = (_MODEL_TEMPLATE if model else _TEMPLATE).read_text(encoding="utf-8")
        texts = {scenario: _with_values(template, _topology_values(workers, rate) | _model_value(model, folder))}
        if not model:
            texts[script] = text_for(shipped()["train_ddp.py"], SCRIPT)
        _write(texts)
        says = _NEXT_WITH_MODEL if model else _NEXT
        typer.echo(says.format(scenario=shlex.quote(str(scenario)), script=shlex.quote(str(script)), model=model))


def _topology_values(workers: int, rate: str) -> dict[str, str]:
    from emulation.experiments.whatif.gains import parse_rates

    values = {"workers": str(workers)} if workers else {}
    if rate:
        try:
            rates = parse_rates(rate)
        except ValueError as error:
            stop(f"--rate: {error}", EXIT_USAGE)
        if len(rates) > 1:
            stop(f"--rate: {rate!r} has several; several rates are a sweep: switchagg sweep --help", EXIT_USAGE)
        values["rate_bps"] = f"{rates[0]:_}"
    return values


def _model_value(model: str, folder: Path) -> dict[str, str]:
    """The key for a shipped model, or for a file as its path from `folder`. A fault in it ends the command."""
    if not model:
        return {}
    from emulation.scenario.profiles.model_profile import shipped as models
    from emulation.scenario.profiles.profile_errors import ProfileError
    from emulation.scenario.profiles.profile_formats import load

    try:
        load(model, Path.cwd(), 2)
    except ProfileError as error:
        stop(f"--model: {error}", EXIT_USAGE)
    name = model if model in models() else os.path.relpath(model, folder)
    return {"profile": f'"{name}"'}


def _with_values(template: str, values: dict[str, str]) -> str:
    """`template` with values of keys replaced, its comments where they were."""
    lines = []
    for line in template.splitlines():
        key, _, after = line.partition(" = ")
        if key in values:
            _, hash_sign, comment = after.partition("#")
            column = line.index("#") if hash_sign else 0
            line = f"{key} = {values[key]}".ljust(column) + hash_sign + comment
        lines.append(line)
    return "\n".join([*lines, ""])


def _write(texts: dict[Path, str]) -> None:
    """Writes new files, and their folders. Raises RunFailed, and writes none, if one of them exists."""
    from emulation.scenario.errors import RunFailed

    for path in texts:
        if path.exists() or path.is_symlink():
            raise RunFailed(f"{path} is there already, nothing was written; another folder: switchagg init FOLDER")
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        why = f"{error.filename}: cannot be written ({error.strerror})"
        raise RunFailed(f"{why}; another folder: switchagg init FOLDER") from error
