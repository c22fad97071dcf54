"""A collective is a record and a line in the table: a toy in it is found by everything that deals with methods."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]

PROGRAM = """
import json, sys
from pathlib import Path
import toy_collective  # before anything reads the table
from typer.testing import CliRunner
from emulation.experiments import compare
from emulation.experiments.bench import bench_figures
from tools.documents import collective_costs
from emulation.experiments.bench.allreduce import bench_methods
from emulation.scenario.bounds import NetworkParameters, bound
from emulation.cli.main import app
from emulation.sim.network.simulations import SIMULATIONS
from transport.collectives.cost import predict, textbook
from transport.collectives.collective import LinkCost
from transport.group.method_name import links_of, parse

name = parse("toy@udp+p3")
assert (str(name), name.look.label, links_of("toy")[0]) == ("toy@udp+p3", "toy star", "tcp")
assert bound(parse("toy"), 1000, NetworkParameters(5, 10**9, 1500, 360)).traffic_factor == 4
assert textbook("toy", 3, 10.0) == (2, 40, 20)
assert predict("toy", 3, 10.0, LinkCost(1.0, 0.0)) == 2
assert "toy" in SIMULATIONS
assert "toy" in collective_costs.METHODS
assert [method.name for method in bench_methods.parse("toy:cubic", "auto", ["cubic"])[0]] == ["toy:cubic"]
assert bench_figures.look_of("toy:cubic")["color"] == "#123456"

Path("toy.toml").write_text(
    'name = "toy"\\ntitle = "A toy"\\n[methods]\\nsim = ["ring", "toy+p3", "toy"]\\n[topology]\\nworkers = 3\\n'
    '[workload]\\niterations = 2\\nwarmup_iterations = 1\\nbatch_per_worker = 4\\ncompute_ns = 1000000\\n'
)
compare.RUNNER_MODULES["sim"] = "emulation.sim.simulated_run"  # in this process, which alone knows the toy
done = CliRunner().invoke(app, ["compare", "toy.toml", "--on", "sim", "--out", "out"])
assert done.exit_code == 0, done.output
found = json.loads(Path("out/results.json").read_text())["methods"][2]
assert (found["method"], found["summary"]["bound"]["traffic_factor"]) == ("toy", 2.0)
assert found["summary"]["parameters_identical"]
report = Path("out/report.html").read_text()
assert "toy star, P3" in report and "everything passes rank 0" in report and "#123456" in report
"""


def run(folder: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "p4", HERE)))}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_command_line_cost_model_bounds_report_and_benchmark_include_it(tmp_path: Path) -> None:
    run(tmp_path, "-c", PROGRAM)


def test_its_plans_are_tested_like_all_others() -> None:
    words = (
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "toy_collective",
        "-k",
        "toy or (closed_formula and allreduce)",
    )
    said = run(ROOT, *words, "tests/transport/collectives/test_collective_plans.py")
    assert int(said.split(" passed")[0].split()[-1]) > 15
