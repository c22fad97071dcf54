"""An option of a job is one field: a toy is in files, the environment, joins, status, the C core and virtual time."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from quick_compiler import quick_compiler

ROOT = Path(__file__).resolve().parents[2]
AFTER = "    backups: int = integer("
FIELD = '    toys: int = integer(0, 0, 9, "toys", "What a toy says")\n'

PROGRAM = """
import ctypes, os, subprocess, sys, threading
from pathlib import Path

from emulation.cli.daemons.switch_status import status_lines
from emulation.scenario.scenario import canonical, load, parse
from emulation.sim.simulated_run import simulation_config
from switchagg.errors import JobError
from switchagg.native import headers, library
from transport.control.control_client import query_status
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.torch.rendezvous import SwitchOptions
from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession

SCENARIO = 'name = "toys"\\ntitle = "Toys"\\n[switch]\\ntoys = 3\\n'
scenario = parse(SCENARIO, "toys.toml")
assert scenario.switch.toys == canonical(scenario)["switch"]["toys"] == 3
Path("toys.toml").write_text(SCENARIO)
assert load(Path("toys.toml"), {"switch.toys": 4}).switch.toys == 4
assert simulation_config(scenario).job().toys == 3

os.environ["SWITCHAGG_TOYS"] = "5"
assert SwitchOptions.from_environment().join_options(1.0).toys == 5
assert SwitchOptions.from_environment().alike()["SWITCHAGG_TOYS"] == 5

with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0))) as daemon:
    refusals = []
    def join(rank, toys):
        try:
            SwitchSession.join(daemon.control_endpoint, "toys", rank, 2, JoinOptions(toys=toys, timeout_s=3)).close()
        except JobError as error:
            refusals.append(str(error))
    ranks = [threading.Thread(target=join, args=(rank, 6 + rank)) for rank in range(2)]
    [rank.start() for rank in ranks], [rank.join() for rank in ranks]
    assert any("says toys is" in refusal for refusal in refusals), refusals
    with SwitchSession.join(daemon.control_endpoint, "job", 0, 1, JoinOptions(toys=7)) as session:
        job = session.job
        assert job.toys == 7
        assert any("toys 7" in line for line in status_lines(query_status(daemon.control_endpoint)))

assert library.job_struct(job).toys == 7
Path("toys.c").write_text(
    '#include <stddef.h>\\n#include <stdio.h>\\n#include "switchagg/native/rule/job.h"\\n'
    'int main(void) { printf("%zu", offsetof(struct sa_job, toys)); return 0; }\\n'
)
subprocess.run([sys.argv[1], f"-I{headers.ROOT}", "toys.c", "-o", "toys"], check=True)
offset = subprocess.run(["./toys"], check=True, capture_output=True, text=True).stdout
assert headers.struct("sa_job").toys.offset == int(offset)
print("toys everywhere")
"""


def test_a_toy_option_is_one_field(tmp_path: Path) -> None:
    compiler = quick_compiler(tmp_path / "compiler")
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.bpf.o", "*.bpf.c", "*.p4")
    for package in ("switchagg", "transport", "emulation"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    job = tmp_path / "switchagg/job.py"
    text = job.read_text(encoding="utf-8")
    assert text.count(AFTER) == 1
    job.write_text(text.replace(AFTER, FIELD + AFTER), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT / 'p4'}", **compiler}

    def run(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("setup.py", "--quiet", "build_ext", "--inplace")
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    assert "toys everywhere" in run("program.py", f"{compiler['PATH']}/cc")
    assert "What a toy says" in run("-m", "emulation.cli.main", "scenarios", "switch")
