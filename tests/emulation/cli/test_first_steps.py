"""What a newcomer types first: versions, completion in a shell, files to start from, examples copied out."""

import ast
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from emulation.cli.main import app
from emulation.cli.start.shipped import about, shipped
from emulation.scenario import scenario as scenarios
from emulation.scenario.profiles.model_profile import MODELS_FOLDER

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def completed(words: str) -> list[str]:
    """What bash is given for the last word."""
    environment = {
        "_SWITCHAGG_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    return CliRunner().invoke(app, [], env=environment, prog_name="switchagg").stdout.split()


def docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text())) or ""


def test_version_has_what_a_report_needs_and_imports_no_torch() -> None:
    code = (
        "import sys\nfrom emulation.cli.main import app\n"
        "try: app(['--version'])\nexcept SystemExit as end: assert not end.code\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith(f"switchagg {metadata.version('switchagg')}, ")
    assert first.endswith(f", {ROOT}")
    assert f"torch {metadata.version('torch')}, " in second
    assert "compiled core, " in second


def test_without_extras_the_command_says_what_to_install() -> None:
    code = "import sys; sys.modules['typer'] = None; import emulation.cli.main"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert (done.returncode, done.stderr) == (
        1,
        "switchagg: the Python package 'typer' is missing; run: pip install 'switchagg[emulation]'\n",
    )


def test_ctrl_c_while_the_commands_are_loaded_is_a_line() -> None:
    code = (
        "import sys\nclass Interrupted:\n    def find_spec(self, name, *_):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\nfrom emulation.cli.__main__ import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert (done.returncode, done.stderr) == (130, "switchagg: interrupted\n")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("switchagg comp", ["compare"]),
        ("switchagg compare qui", ["quickstart"]),
        ("switchagg compare mine.t", []),  # the shell goes on with files
        ("switchagg sweep sca", ["scale"]),
        ("switchagg scenarios to", ["topology"]),
        ("switchagg scenarios topology.work", ["topology.workers"]),
        ("switchagg examples fin", ["finish_early"]),
        ("switchagg bench allreduce --methods switch,halv", ["switch,halving_doubling"]),
        ("switchagg whatif x --methods ring,switch~lanes1", ["ring,switch~lanes16", "ring,switch~lanes10"]),
    ],
)
def test_a_shell_completes(words: str, expected: list[str]) -> None:
    assert completed(words) == expected


def test_init_writes_files_that_are_understood_and_says_how_to_run_them(here: Path) -> None:
    done = invoke("init", "my first")
    assert done.exit_code == 0, done.stderr
    scenario = scenarios.load(here / "my first" / "mine.toml")
    assert scenario.methods_for("sim")
    assert scenario.methods_for("mininet")
    assert not scenario.faults.of_packets
    assert scenario.topology.delay_ns == 0  # many kernels lack netem
    assert "switchagg compare 'my first/mine.toml' --on sim" in done.stdout
    assert "torchrun --standalone --nproc-per-node 2 'my first/train.py'" in done.stdout
    script = here / "my first" / "train.py"
    example = ROOT / "examples" / "train_ddp.py"
    assert docstring(script) == docstring(example).replace("examples/train_ddp.py", "train.py")
    assert script.read_text().partition('\n"""\n')[2] == example.read_text().partition('\n"""\n')[2]


def test_init_writes_a_scenario_of_a_model_and_network_of_ones_own(here: Path) -> None:
    (here / "my.toml").write_bytes((MODELS_FOLDER / "alexnet.toml").read_bytes())
    done = invoke("init", "mine", "--model", "my.toml", "--workers", "6", "--rate", "25Gb/s")
    assert done.exit_code == 0, done.stderr
    assert [path.name for path in (here / "mine").iterdir()] == ["mine.toml"]
    scenario = scenarios.load(here / "mine" / "mine.toml")
    assert (scenario.topology.workers, scenario.topology.rate_bps) == (6, 25_000_000_000)
    assert scenario.workload.profile == "../my.toml"
    invoke("init", "eight", "--workers", "8")
    assert scenarios.load(here / "eight" / "mine.toml").topology.workers == 8


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("--model", "gpt3", "--model: gpt3: no such file; shipped profiles: alexnet"),
        ("--rate", "fast", "--rate: 'fast' is no rate; allowed: 1Mb/s to 400Gb/s"),
        ("--rate", "1,2Gb/s", "--rate: '1,2Gb/s' has several"),
    ],
)
def test_init_refuses_what_it_does_not_know(here: Path, option: str, value: str, error: str) -> None:
    done = invoke("init", "mine", option, value)
    assert (done.exit_code, done.stderr.startswith(f"switchagg: {error}")) == (2, True)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("taken", ["mine.toml", "train.py"])
def test_init_overwrites_nothing(here: Path, taken: str) -> None:
    (here / taken).write_text("of somebody")
    done = invoke("init")
    assert done.exit_code == 1
    assert f"switchagg: {taken} is there already, nothing was written" in done.stderr
    assert [path.name for path in here.iterdir()] == [taken]
    assert (here / taken).read_text() == "of somebody"


@pytest.mark.parametrize("arguments", [("init", "taken"), ("examples", "p4", "--to", "taken")])
def test_a_place_that_cannot_be_written_is_named(here: Path, arguments: tuple[str, ...]) -> None:
    (here / "taken").write_text("a file, no folder")
    done = invoke(*arguments)
    assert done.exit_code == 1
    assert done.stderr.startswith("switchagg: taken")
    assert ": cannot be written (File exists); " in done.stderr


def test_examples_are_listed_and_copied_out(here: Path) -> None:
    listed = invoke("examples")
    assert listed.exit_code == 0, listed.stderr
    names = [line.split()[0] for line in listed.stdout.splitlines()]
    assert {"finish_early", "p4", "scapy", "sweep.ipynb", "train_ddp.py", "wireshark"} <= set(names)
    assert all(len(about(path)) > 10 and about(path)[-1] != ":" for path in shipped().values()), listed.stdout
    assert "The switch in P4" in listed.stdout
    for name in names:
        done = invoke("examples", name, "--to", "out")
        assert done.exit_code == 0, done.stderr
    assert (here / "out/p4/v1model/switchagg.p4").is_file()
    assert (here / "out/scapy/COPYING").is_file()
    assert not [path for path in (here / "out").rglob("*") if "__pycache__" in path.parts]
    assert "examples/train_ddp.py" not in docstring(here / "out/train_ddp.py")


def test_examples_overwrite_nothing_and_know_their_names(here: Path) -> None:
    assert invoke("examples", "train_ddp").exit_code == 0  # the suffix may be left out
    again = invoke("examples", "train_ddp.py")
    assert again.exit_code == 1
    assert "train_ddp.py is there already, and stays as it is" in again.stderr
    wrong = invoke("examples", "trian_ddp.py")
    assert wrong.exit_code == 2
    assert "; did you mean 'train_ddp.py'?" in wrong.stderr


def test_an_installation_without_examples_says_so(here: Path) -> None:
    from emulation.scenario.errors import RunFailed

    with pytest.raises(RunFailed, match="install switchagg again"):
        shipped(here / "emulation" / "examples")


def test_packet_tests_are_written_once(here: Path) -> None:
    """The page docs/packet-tests.md runs them, and breaks their program."""
    done = invoke("init", "my tests", "--packet-tests")
    assert done.exit_code == 0, done.stderr
    assert "pytest 'my tests'/program" in done.stdout
    again = invoke("init", "my tests", "--packet-tests")
    assert (again.exit_code, "is there already, nothing was written" in again.stderr) == (1, True)
