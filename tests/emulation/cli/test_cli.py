"""The command line: exit codes, one-line errors, what is printed where. The backend takes no time."""

import dataclasses
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import example_results
import pytest
from example_results import FakeCertificate, result
from typer.main import get_command
from typer.testing import CliRunner, Result

from emulation.cli.command_group import PANELS
from emulation.cli.daemons.switch_status import DETAILS_ARE_FOR, status_lines
from emulation.cli.doctor import EVERYTHING, MachineCheck
from emulation.cli.main import app, main
from emulation.experiments.compare import RUNNER_MODULES
from emulation.results.results import MethodResult
from emulation.scenario.errors import RunFailed
from emulation.scenario.scenario import shipped
from switchagg.join import JobTerms
from transport.control import control_messages
from transport.group.method_name import MethodName
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions

runner = CliRunner()
SCENARIO = (
    'name = "tiny"\ntitle = "A tiny one"\n[topology]\nworkers = 4\nrate_bps = 100_000_000\n'
    "[workload]\niterations = 4\nwarmup_iterations = 1\n"
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with tiny.toml to work in; both backends faked, Mininet missing."""
    (tmp_path / "tiny.toml").write_text(SCENARIO)
    monkeypatch.chdir(tmp_path)
    # it would replace this very process
    monkeypatch.setattr("emulation.testbed.netns.run_in_user_namespace", lambda: None)
    backend(monkeypatch, "sim", example_results.run_method)
    backend(monkeypatch, "mininet", example_results.run_method, missing="it needs root")
    return tmp_path


def backend(monkeypatch: pytest.MonkeyPatch, name: str, run_method: object, missing: str | None = None) -> None:
    module = ModuleType(RUNNER_MODULES[name])
    module.run_method = run_method  # type: ignore[attr-defined]
    module.missing = lambda: missing  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)


def invoke(*arguments: str) -> Result:
    return runner.invoke(app, list(arguments))


def one_line(result: Result) -> str:
    lines = [line for line in result.stderr.splitlines() if line.startswith("switchagg: ")]
    assert len(lines) == 1, result.stderr
    return lines[0]


def test_compare_prints_table_headline_certificate_and_report(here: Path) -> None:
    done = invoke("compare", "tiny.toml")
    assert done.exit_code == 0, done.stderr
    assert "One iteration takes" in done.stdout
    assert "97.50 %" in done.stdout
    assert "Over 4 workers on 100 Mb/s links, an iteration with the switch was" in done.stdout
    assert "ring and switch in virtual time (sim): Mininet cannot run here: it needs root" in done.stderr
    assert "ring: 0/4 iterations: training" in done.stderr
    assert "Certificate: none needed in virtual time" in done.stderr
    assert "Report: results/tiny/report.html" in done.stderr
    assert (here / "results" / "tiny" / "report.html").exists()


def test_json_on_stdout_is_json_alone(here: Path) -> None:
    done = invoke("compare", "tiny.toml", "--on", "sim", "--out", "mine", "--seed", "9", "--json")
    assert done.exit_code == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["report"] == "mine/report.html"
    assert summary["methods"]["switch"]["comparison"]["communication_speedup"] == 1.5
    assert json.loads((here / "mine" / "results.json").read_text())["scenario"]["seed"] == 9


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("nowhere",), "nowhere: no such file; shipped scenarios: "),
        (("tiny.toml", "--on", "moon"), "--on: 'moon' is unknown; allowed: mininet, sim"),
        (("tiny.toml", "--seed", "-1"), "tiny.toml: seed: -1 is out of range"),
        (("tiny.toml", "--set", "topology.rate_bps=5"), "tiny.toml: [topology] rate_bps: 5 is out of range; allowed:"),
        (("tiny.toml", "--set", "workload.name=foo"), "tiny.toml: [workload] name: 'foo' is unknown; allowed: digits"),
        (("tiny.toml", "--set", "rate"), "--set rate: not understood; allowed: TABLE.KEY=VALUE"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: tuple[str, ...], expected: str) -> None:
    done = invoke("compare", *arguments)
    assert done.exit_code == 2
    assert one_line(done).startswith(f"switchagg: {expected}")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("compare", "tiny.toml", "--frobnicate"),
            "switchagg: No such option: --frobnicate (see switchagg compare --help)",
        ),
        (("compare", "tiny.toml", "--sett", "seed=1"), "switchagg: No such option: --sett; did you mean '--set'?"),
        (("compare", "tiny.toml", "--seed", "x"), "switchagg: Invalid value for '--seed'"),
        (("compare",), "switchagg: Missing argument"),
        (("compute",), "switchagg: No such command 'compute'; allowed: doctor, init, examples, compare, "),
        (("bench", "alreduce"), "switchagg: No such command 'alreduce'; allowed: hosts, allreduce, "),
        (("switch", "--slots", "0"), "switchagg: Invalid value for '--slots'"),
        (("switch", "--lease", "nan"), "switchagg: Invalid value for '--lease'"),
    ],
)
def test_wrong_options_are_one_line_and_exit_code_2(
    arguments: tuple[str, ...], expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["switchagg", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith(expected)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("switch", "--dataplane", "magic"),
            "--dataplane magic: unknown; allowed: auto, native, reference, xdp",
        ),
        (
            ("switch", "--impair-down", "delay=1"),
            "--impair: 'delay=1' not understood; allowed: delay=1ms (units: ns, us, µs, ms, s)",
        ),
        (("switch", "--control", "udp://1.2.3.4:5"), "--control udp://1.2.3.4:5: not understood; allowed: tcp://"),
        (("switch", "--link", "smoke"), "--link smoke: unknown; allowed: udp, zeromq, rdma"),
        (("switch", "--packets", "4"), "--packets: only rdma has messages of packets, not udp"),
        (("switch", "--data", "1.2.3.4"), "--data 1.2.3.4: not understood; allowed: HOST:PORT"),
        (("status", "there"), "SWITCH there: not understood; allowed: tcp://"),
    ],
)
def test_wrong_addresses_are_one_line_and_exit_code_2(arguments: tuple[str, ...], expected: str) -> None:
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert one_line(done).startswith(f"switchagg: {expected}")


def test_settings_override_the_file(here: Path) -> None:
    done = invoke("compare", "tiny.toml", "--set", "topology.rate_bps=10e9", "--set", "workload.name=text")
    assert done.exit_code == 0, done.stderr
    scenario = json.loads((here / "results" / "tiny" / "results.json").read_text())["scenario"]
    assert (scenario["topology"]["rate_bps"], scenario["workload"]["name"]) == (10**10, "text")


def test_mininet_without_permission_says_how_to_fix_it(monkeypatch: pytest.MonkeyPatch) -> None:
    done = invoke("compare", "tiny.toml", "--on", "mininet")
    assert done.exit_code == 1
    assert one_line(done) == "switchagg: mininet cannot run here: it needs root; or use --on sim"


def test_failed_run_is_one_line_and_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_arguments: object) -> MethodResult:
        raise RunFailed("switch: rank 2 was killed by signal 9; see switch/rank-2.log")

    backend(monkeypatch, "sim", failing)
    done = invoke("compare", "tiny.toml", "--on", "sim")
    assert done.exit_code == 1
    assert one_line(done) == "switchagg: switch: rank 2 was killed by signal 9; see switch/rank-2.log"


def test_interrupt_is_one_line_and_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_arguments: object) -> MethodResult:
        raise KeyboardInterrupt

    backend(monkeypatch, "sim", interrupted)
    done = invoke("compare", "tiny.toml", "--on", "sim")
    assert done.exit_code == 130
    assert "interrupted" in one_line(done)


def test_an_invalid_certificate_is_printed_and_gives_exit_code_3(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    def unfaithful(_scenario: object, method: MethodName, _folder: Path, _progress: object) -> MethodResult:
        certificate = FakeCertificate(str(method) == "gloo", ["gap p99 61 %"], None)
        return result(method, 100_000_000, "mininet", certificate=certificate)

    backend(monkeypatch, "mininet", unfaithful)
    done = invoke("compare", "tiny.toml", "--on", "mininet")
    assert done.exit_code == 3
    assert "Certificate: INVALID: do not use these times" in done.stderr
    assert "INVALID, what was measured nevertheless: Over 4 workers" in done.stdout
    assert one_line(done) == "switchagg: switch: INVALID: gap p99 61 %"
    assert "<b>INVALID</b>" in (here / "results" / "tiny" / "report.html").read_text(encoding="utf-8")


def test_compute_that_differs_is_disturbed_named_and_gives_exit_code_4(
    monkeypatch: pytest.MonkeyPatch, here: Path
) -> None:
    def disturbed(_scenario: object, method: MethodName, _folder: Path, _progress: object) -> MethodResult:
        measures = (
            {"cpu_other_share": 0.47, "cpu_other_programs": [["ffmpeg", 0.31]]} if method.method == "gloo" else {}
        )
        found = result(method, 100_000_000, "mininet", certificate=FakeCertificate(True, [], None, measures))
        slower = [dataclasses.replace(one, compute_ns=12_000_000, duration_ns=112_000_000) for one in found.iterations]
        return dataclasses.replace(found, iterations=slower) if method.method == "gloo" else found

    backend(monkeypatch, "mininet", disturbed)
    done = invoke("compare", "tiny.toml", "--on", "mininet")
    assert done.exit_code == 4
    assert "Certificate: DISTURBED: compute was not alike" in done.stderr
    said = "Other programs had of the CPUs' time: with Gloo 47 % (ffmpeg 31 %)."
    assert one_line(done).endswith(said)
    assert "as fast at equal compute as with Gloo" in done.stdout
    page = (here / "results" / "tiny" / "report.html").read_text(encoding="utf-8")
    assert '<p class="number">1.00×: as fast at equal compute <small>the switch against Gloo</small></p>' in page  # noqa: RUF001
    assert page.count("Ranks computed for") == 1
    assert page.index("<b>DISTURBED</b>") < page.index("ffmpeg 31 %") < page.index("<nav")
    assert "<b>VALID</b>" not in page


def test_ranks_that_disagree_fail_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def differing(_scenario: object, method: MethodName, _folder: Path, _progress: object) -> MethodResult:
        return result(method, 100_000_000, parameter_hash_per_rank=["a", "b", "a", "a"])

    backend(monkeypatch, "sim", differing)
    done = invoke("compare", "tiny.toml", "--on", "sim", "--set", "methods.sim=['switch']")
    assert done.exit_code == 1
    assert "ended with different parameters" in one_line(done)


def test_doctor_prints_what_it_finds_and_returns_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [MachineCheck("numpy", False, "missing", "pip install numpy", EVERYTHING)]
    monkeypatch.setattr("emulation.cli.doctor.diagnose", lambda: found)
    done = invoke("doctor", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["findings"][0]["remedy"] == "pip install numpy"


def test_status_with_and_without_a_running_switch() -> None:
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=64, elements=32)) as daemon:
        done = invoke("status", daemon.control_endpoint)
        assert done.exit_code == 0, done.stderr
        assert done.stdout.splitlines()[:2] == ["0 of 64 slots in use", "no jobs"]
        assert json.loads(invoke("status", daemon.control_endpoint, "--json").stdout)["free_slots"] == 64
        absent = invoke("status", daemon.control_endpoint, "--job", "train")
        assert absent.exit_code == 1
        assert "no job 'train' runs or waits there" in one_line(absent)


def test_status_names_the_ranks_a_slot_waits_for() -> None:
    members = [control_messages.RankAddress(rank, "10.0.0.1", 7000 + rank) for rank in range(3)]
    slots = [control_messages.SlotStatus(4, 1, 9, [0, 2]), control_messages.SlotStatus(5, 0, 10, [0, 1, 2])]
    gone = [control_messages.DepartedMember(members[1], [12], "")]
    terms = JobTerms(elements=360, window_slots=(8,), slots_least=4, weight=2, job_priority=3)
    job = control_messages.JobStatus("train", 7, 3, 3, terms, 0, members, gone, slots, 64, "others come")
    waiting = {"other": control_messages.JobGathering([members[0]], [1], "")}
    lines = status_lines(
        control_messages.StatusAnswer(1, 16, 8, 1, 1, True, [job], waiting, {"requests": 2}, {"accepted": 0})
    )
    assert "8 of 16 slots in use" in lines
    assert "job 'train' (id 7, generation 3): 3 workers, 360 elements, 1 streams" in lines
    assert "  slots 0 to 7: 8 of 64 that it asks for" in lines
    assert "  terms: job_priority 3, weight 2, slots_least 4" in lines
    assert "  sums: not verified" in lines
    assert "  is asked to leave: others come" in lines
    assert "  rank 1 at 10.0.0.1:7001 has left" in lines
    assert "  slot 4 version 1 chunk 9: seen from [0, 2], waits for ranks 1" in lines
    assert not any("slot 5" in line for line in lines)
    assert "job 'other' waits; ranks missing: 1" in lines
    assert lines[-2:] == ["control plane: requests 2", "data plane: nothing yet"]
    unknown_sender = status_lines(control_messages.StatusAnswer(1, 16, 8, 2, 1, False, [], {}, {}, {}))
    assert unknown_sender == ["8 of 16 slots in use", f"jobs: 2 running, 1 waiting; {DETAILS_ARE_FOR}"]


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        (JobTerms(verify="on", key_check=7), "verified, key: token"),
        (JobTerms(verify="on"), "verified, key: job name; damage and faulty switches are noticed, forgers are not"),
        (JobTerms(verify="off"), "not verified"),
    ],
)
def test_status_says_what_protects_sums(terms: JobTerms, words: str) -> None:
    job = control_messages.JobStatus("train", 7, 3, 3, replace(terms, elements=360, window_slots=(8,)), 0, [], [], [])
    lines = status_lines(control_messages.StatusAnswer(1, 16, 8, 1, 0, True, [job], {}, {}, {}))
    assert any(line.startswith(f"  sums: {words}") for line in lines)
    assert "  terms: all as by default" in lines


def test_switch_reports_what_is_wrong_with_its_addresses() -> None:
    wrong = invoke("switch", "--data", "5556")
    assert wrong.exit_code == 2
    assert one_line(wrong) == "switchagg: --data 5556: not understood; allowed: HOST:PORT, like 10.0.0.1:5556"
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0))) as daemon:
        taken = invoke("switch", "--control", daemon.control_endpoint, "--data", "127.0.0.1:0")
    assert taken.exit_code == 1
    assert "Address already in use; choose another with --control" in one_line(taken)
    foreign = invoke("switch", "--control", "tcp://192.0.2.1:5555")  # whose data plane would be there, too
    assert "control address tcp://192.0.2.1:5555: no interface of this host has the address" in one_line(foreign)


def test_scenarios_and_the_tables_and_keys_of_their_files_are_shown() -> None:
    listed = invoke("scenarios")
    assert listed.exit_code == 0
    assert "  quickstart   " in listed.stdout
    assert "  topology   " in listed.stdout
    assert invoke("scenarios", "quickstart").stdout == shipped()["quickstart"].read_text()
    assert invoke("scenarios", "topology").stdout.startswith("[topology]: ")
    assert invoke("scenarios", "topology.workers").stdout.startswith("topology.workers = 4\n")
    assert "did you mean 'quickstart'?" in one_line(invoke("scenarios", "quickstrat"))
    assert "did you mean 'topology'?" in one_line(invoke("scenarios", "topolgy"))


def test_help_fits_one_screen_in_groups_with_a_sentence_for_each_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = invoke("--help").stdout.splitlines()
    assert len(lines) <= 45
    rows = [line.strip("│ ").split(maxsplit=1) for line in lines if line.startswith("│ ")]
    shown = {row[0]: row[1] for row in rows if not row[0].startswith("-")}
    present = get_command(app).commands  # type: ignore[attr-defined]
    assert list(shown) == [name for names in PANELS.values() for name in names if name in present]
    assert all(text[0].isupper() and text.endswith(".") for text in shown.values()), "one line each"


def test_every_command_has_an_example_and_panels_for_more_than_ten_options() -> None:
    commands = {f"switchagg {name}": command for name, command in get_command(app).commands.items() if name != "p4"}  # type: ignore[attr-defined]
    for group in ("switchagg bench", "switchagg study"):
        commands |= {f"{group} {name}": command for name, command in commands.pop(group).commands.items()}
    for words, command in commands.items():
        assert words in command.help, "an example"
        assert all(option.help or option.hidden for option in command.params), words
        options = [option.rich_help_panel for option in command.params if not option.hidden]
        assert max(map(options.count, options), default=0) <= 10, words


@pytest.mark.parametrize("words", [[], ["compare"], ["p4"], ["study", "accuracy"]], ids=str)
def test_help_is_complete_though_only_the_command_in_question_has_its_options_made(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["switchagg", *words, "--help"])
    with pytest.raises(SystemExit):
        main()
    brief = capsys.readouterr().out
    monkeypatch.setenv("_SWITCHAGG_COMPLETE", "")  # where all are made
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out == brief != ""


def test_help_imports_nothing_heavy_and_the_doctor_nothing_before_its_probes_run() -> None:
    code = (
        "import sys, emulation.cli.doctor\nfrom emulation.cli.main import app\n"
        "try: app(['compare', '--help'])\nexcept SystemExit as end: assert end.code == 0\n"
        "heavy = {'torch', 'numpy', 'matplotlib', 'jinja2', 'zmq', 'mininet'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    environment = {**os.environ, "TERM": "dumb"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "switchagg compare quickstart" in done.stdout


def test_a_speedup_beyond_its_bound_is_explained_below_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_fast(_scenario: object, method: MethodName, *_rest: object) -> MethodResult:
        return result(method, 150_000_000 if str(method) == "ring" else 90_000_000)

    backend(monkeypatch, "sim", too_fast)
    done = invoke("compare", "tiny.toml", "--on", "sim")
    assert "beyond it, see below" in " ".join(done.stdout.split())
    assert "It is beyond the bound: the part above 1.49 is no merit of the switch" in done.stdout
