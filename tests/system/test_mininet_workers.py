"""Real training in Mininet hosts, as the guide shows it: at Mininet's prompt, and from Python."""

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch_forks import Forked

from emulation.testbed import netns

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("requires_mininet")]

ROOT = Path(__file__).resolve().parents[2]


def test_at_mininet_s_prompt(tmp_path: Path) -> None:
    """The guide's line: two hosts train to the loss that Gloo gives, through the switch."""
    if shutil.which("mn") is None:
        pytest.skip("needs Mininet's command mn")
    (line,) = re.findall(r"^\$ sudo (env .*--post \S+\.mn)$", (ROOT / "docs/attach.md").read_text(), re.MULTILINE)
    torchrun = tmp_path / "torchrun"
    torchrun.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT}/tests/shared/as_torchrun.py "$@"\n')
    torchrun.chmod(0o755)
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        ["bash", "-c", f"exec {line}"],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,  # left open: Mininet asks a closed one again and again
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said = "".join(process.stdout or ())
        assert process.wait(60) == 0, said
    finally:
        netns.end(process)
    assert "step   49  loss 0.0007" in said, said
    assert re.search(r"data plane: .*broadcast \d{4}", said), said


def test_from_python(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["mininet_workers.py", "--", str(ROOT / "examples/train_ddp.py"), "--steps", "2"])
    example = runpy.run_path(str(ROOT / "examples/mininet_workers.py"))

    def popen(host: Any, command: list[str], **options: Any) -> "subprocess.Popen[Any]":
        words = command[command.index("torch.distributed.run") + 1 :]
        return Forked([sys.executable, str(ROOT / "tests/shared/as_torchrun.py"), *words], inside=host.pid, **options)

    monkeypatch.setattr(example["WorkerHost"], "popen", popen)
    assert example["main"]() == 0
    said = capfd.readouterr().out
    assert "step    1  loss" in said
    assert re.search(r"data plane: .*broadcast \d{2}", said), said
