"""What `examples/deploy/` installs: the unit is one that systemd takes, and the switch runs as it would there."""

import configparser
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "examples/deploy/switchagg-switch.service"
# As the unit runs it: no more rights, no new code, and the packages of the extra `switch` alone.
CONFINED = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
PR_SET_NO_NEW_PRIVS, PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 38, 65, 1
assert not libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
libc.prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0)  # Linux 6.3
class Deny:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "matplotlib", "jinja2", "sklearn", "lark", "pcpp", "mininet"}:
            raise ImportError(name)
sys.meta_path.insert(0, Deny())
from emulation.cli.main import main
main()
"""


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/switchagg/bin/switchagg", sys.executable))
    (tmp_path / f"{UNIT.name}.d").mkdir()
    for words in ("", (UNIT.parent / "xdp.conf").read_text()):
        (tmp_path / f"{UNIT.name}.d/xdp.conf").write_text(words)
        done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=300)
        assert UNIT.name not in done.stderr, done.stderr


def test_the_unit_s_command_runs_confined_until_sigterm() -> None:
    settings = configparser.RawConfigParser(strict=False)
    settings.read(UNIT)
    command, *words = shlex.split(settings["Service"]["ExecStart"])
    assert (Path(command).name, words) == ("switchagg", ["switch", "$OPTIONS"])
    (options,) = re.findall(r"^OPTIONS=(.*)$", (UNIT.parent / "switch.env").read_text(), re.MULTILINE)
    words = ["switch", *shlex.split(options.replace("10.0.0.9:5555", "127.0.0.1:0")), "--data", "127.0.0.1:0"]
    without = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    process = subprocess.Popen(
        [*without, sys.executable, "-c", CONFINED, *words],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/p4"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert "switchagg switch ready: control tcp://127.0.0.1:" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=300)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, errors) == (0, "")
