"""`switchagg init`: a scenario and a training script to start from."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from emulation.cli.outcomes import outcomes

SCENARIO, SCRIPT = "mine.toml", "train.py"
_TEMPLATE = Path(__file__).with_name(SCENARIO)
_NEXT = """\
{scenario}: a scenario; its comments say what to change first
{script}: a training script, plain DDP but for one word

To try them:

  switchagg compare {scenario} --on sim     # in virtual time: less than a minute
  switchagg compare {scenario}              # in Mininet, where it can run

  switchagg switch &                        # a switch for your own training; it ends with: kill %1
  SWITCHAGG_SWITCH=tcp://127.0.0.1:5555 torchrun --standalone --nproc-per-node 2 {script}"""


def init(folder: Annotated[Path, typer.Argument(help="Where; made if it isn't there")] = Path()) -> None:
    """Write a scenario and a training script to start from, mine.toml and train.py, and say how to run them.

    What is there already is never overwritten.

    **Example**

    `switchagg init first`
    """
    with outcomes():
        from emulation.cli.start.shipped import shipped, text_for
        from emulation.scenario.errors import RunFailed

        scenario, script = folder / SCENARIO, folder / SCRIPT
        texts = {
            scenario: _TEMPLATE.read_text(encoding="utf-8"),
            script: text_for(shipped()["train_ddp.py"], SCRIPT),
        }
        for path in texts:
            if path.exists() or path.is_symlink():
                raise RunFailed(f"{path} is there already, nothing was written; another folder: switchagg init FOLDER")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path, text in texts.items():
                path.write_text(text, encoding="utf-8")
        except OSError as error:
            why = f"{error.filename}: cannot be written ({error.strerror})"
            raise RunFailed(f"{why}; another folder: switchagg init FOLDER") from error
        typer.echo(_NEXT.format(scenario=shlex.quote(str(scenario)), script=shlex.quote(str(script))))
