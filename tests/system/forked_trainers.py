"""Ranks that train in Mininet find PyTorch loaded."""

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from torch_forks import Forked

from emulation.testbed import netns


@pytest.fixture
def trainers_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    spawn = netns.spawn

    def forked(pid: int, command: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
        program = [word for word in command if word != "-P"]
        if program[0] != sys.executable or not any("emulation.testbed.trainers.trainer" in word for word in program):
            return spawn(pid, command, **options)
        return Forked(program, inside=pid, **options)

    monkeypatch.setattr(netns, "spawn", forked)
