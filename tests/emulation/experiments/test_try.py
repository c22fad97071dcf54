"""`switchagg try`: what its comparison says of step times and losses, what it refuses, and what its ranks do."""

import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from torch_forks import Forked
from typer.testing import CliRunner

from emulation.cli.main import app
from emulation.experiments.tryout import try_comparison, try_page
from emulation.experiments.tryout.try_comparison import TurnPlan, compared, compared_losses, forecast_of, turn_plan
from emulation.experiments.tryout.try_machines import machines_of
from emulation.experiments.tryout.try_messages import ScriptPlace
from emulation.experiments.tryout.try_rank import backend_of
from emulation.experiments.tryout.try_run import least_exchange_ns
from emulation.experiments.tryout.try_site import method_variables, rank_command, scenario_of, torchrun_variables
from emulation.experiments.whatif.recorded_run import RecordedCollective, RecordedRun
from emulation.scenario.errors import ScenarioError
from tests.shared.html_page import STEPS, checked

MS = 1_000_000
SCRIPT = """
import sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("nccl")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    loss = model(torch.ones(2, 4) * step).square().mean()
    loss.backward()
    optimizer.step()
    loss.detach().zero_()
    print("mine", step)
    if sys.argv[1:] == [str(step)]:
        raise ValueError("no such sample")
"""


def place(program: Path, *arguments: str, **changes: Any) -> ScriptPlace:
    first = ScriptPlace(0, 1, str(program), list(arguments), False, "gloo", 3, {}, holds=[2, 4])
    variables = torchrun_variables(first, "127.0.0.1", 0) | {"GLOO_SOCKET_IFNAME": "lo"}
    return msgspec.structs.replace(first, environment=variables, **changes)


def reports(rank: ScriptPlace) -> tuple[list[dict[str, Any]], str]:
    """What a rank alone reports, with a command in store for each hold, and its log."""
    command = [word for word in rank_command(rank) if word != "-P"]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    said, log = Forked(command, **streams).communicate(b'{"order":"goon"}\n' * 4, timeout=60)
    return [json.loads(line) for line in said.splitlines()], log.decode()


def row(method: str, step_ms: list[float], plan: TurnPlan, **more: Any) -> dict[str, Any]:
    durations_ns = [round(MS * ms) for ms in step_ms]
    empty = {"forecast_ns": None, "least_exchange_ns": None, "sent_bytes": None, "certificate": None}
    step = try_comparison.step_summary(durations_ns, plan)
    losses = [1.0 / number for number in range(1, len(step_ms) + 1)]
    return {"method": method, "durations_ns": durations_ns, "losses": losses, "step": step, **empty, **more}


@pytest.mark.parametrize(("steps", "turns"), [(17, 3), (50, 5), (51, 5)])
def test_turns_share_the_steps_and_leave_out_the_first_of_each(steps: int, turns: int) -> None:
    plan = turn_plan(steps)
    assert plan.holds[0] == 5
    assert plan.holds[-1] == steps
    assert [end for _, end in plan.blocks] == list(plan.holds[1:])
    assert [begin - 1 for begin, _ in plan.blocks] == list(plan.holds[:-1])
    assert len(plan.blocks) == turns
    assert all(end - begin >= 3 for begin, end in plan.blocks)


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(ScenarioError, match="--steps 16: at least 17"):
        turn_plan(16)


def test_speedup_is_of_the_steps_that_count() -> None:
    plan = turn_plan(17)
    slow = [900.0] * 5 + [900, 30, 30, 30] * 3
    fast = [1.0] * 5 + [1, 20, 20, 20] * 3
    both = compared(row("gloo", slow, plan, forecast_ns=28e6), row("switch", fast, plan, forecast_ns=20e6))
    assert both["speedup"] == 1.5
    assert both["interval"] == [1.5, 1.5]
    assert both["resolved"]
    assert both["forecast"] == pytest.approx(1.4)
    noisy = [1.0] * 5 + [1, 20, 20, 20, 1, 60, 60, 60, 1, 25, 25, 25]
    assert not compared(row("gloo", slow, plan), row("switch", noisy, plan))["resolved"]


def test_losses_are_compared_step_by_step() -> None:
    other = [4.0, 3.5, 2.0, None, 1.0]
    assert compared_losses([4.0, 3.0, 2.25, 7.0, 1.0], other) == {
        "steps": 4,
        "largest": 0.5,
        "largest_at": 2,
        "last": [2.5625, 2.625],
        "all_steps": 5,
    }
    assert compared_losses([None], [1.0])["largest"] is None
    assert try_comparison.mean_losses([[1.0, None, 3.0], [3.0, None, None]]) == [2.0, None, 3.0]
    assert try_comparison.slowest_ns([[1, 5], [2, 3]]) == [2, 5]


def test_gloo_is_forecast_as_a_ring_in_the_scripts_own_type() -> None:
    rows = [{"method": name, "iteration_ns": number} for number, name in enumerate(("direct", "ring~bf16", "switch"))]
    document = {"links": [{"rows": rows}]}
    assert forecast_of(document, "gloo") == 1.0
    assert forecast_of(document, "switch") == 2.0
    assert forecast_of(document, "switch~lanes8") is None
    assert forecast_of(None, "gloo") is None


def test_links_carry_each_kind_of_collective_as_the_method_does() -> None:
    network = scenario_of(3, 200_000_000, 0, ["gloo", "switch"]).network
    calls = [RecordedCollective(kind, 3_000_000, 3, 0, 1) for kind in ("reduce_scatter", "all_gather")]
    sharded = RecordedRun("fsdp", 3, 1, tuple(calls))
    whole = RecordedRun("ddp", 3, 1, (RecordedCollective("allreduce", 3_000_000, 3, 0, 1),))
    ring, gloo = (least_exchange_ns(sharded, method, network) for method in ("ring", "gloo"))
    assert ring == pytest.approx(least_exchange_ns(whole, "ring", network), rel=0.01)
    assert gloo == pytest.approx(1.5 * ring, rel=0.03), "Gloo sends a reduce-scatter as an allreduce"


def test_page_and_table_stamp_what_the_certificate_does_not_bear(tmp_path: Path) -> None:
    plan = turn_plan(17)
    unfilled = {"measures": {"backlogged_gaps": 3}, "bounds": {"backlogged_gaps_least": 100}}
    bad = {"valid": False, "reasons": ["No link was full."], "valid_rate_bps": 50_000_000, **unfilled}
    methods = [row("gloo", [30.0] * 17, plan, sent_bytes=1000.0), row("switch", [20.0] * 17, plan, certificate=bad)]
    document = {
        **{"script": "train.py", "arguments": ["--epochs", "1"], "workers": 3, "place": "mininet", "rate_bps": 2e8},
        **{"steps": 17, "blocks": plan.blocks, "in_turn": True, "forecast": None, "why_no_forecast": "no collectives"},
        **{"methods": methods, "comparisons": [compared(*methods)], "notes": []},
    }
    said = "\n".join(try_page.lines(document))
    assert "INVALID, as said above: a step by switch is 1.50 times as fast as by gloo" in said
    assert "your script ran to its end and its losses count" in said
    assert "run it again with slower links (--links 50Mb/s) or larger gradients (--width 16000" in said
    busy = {**bad, "measures": {"backlogged_gaps": 100}, "valid_rate_bps": None}
    assert try_page.remedy({"methods": [{"certificate": busy}]}).endswith(
        "run it again with no other programs beside it"
    )
    assert "losses, switch and gloo: the same at all 17 steps" in said
    assert "no forecast: no collectives" in said
    unrated = {**bad, "valid_rate_bps": None}
    assert "slower links (--links RATE) or larger" in try_page.remedy({"methods": [{"certificate": unrated}]})
    page = try_page.write(document, tmp_path).read_text()
    checked(page, steps=(STEPS[0], STEPS[2], STEPS[1]))
    assert page.index("No link was full.") < page.index("What was measured nevertheless: a step by switch is 1.50")
    assert page.count("<svg") == 2
    assert json.loads((tmp_path / "try.json").read_text())["methods"][1]["step"]["median_ns"] == 20 * MS
    unknown = [{**one, "losses": [None] * 17} for one in methods]
    assert try_page.losses_figure({**document, "methods": unknown}) is None
    assert "is the loss NaN?" in try_page.losses_text(compared(*unknown)["losses"])
    diverged = [{**one, "losses": [2.0, 1.0] + [None] * 15} for one in methods]
    said = try_page.losses_text(compared(*diverged)["losses"])
    assert said == "the same at all 2 steps; 1.5 at the end; unknown, NaN or infinite at the other 15 steps"


def test_the_method_decides_on_the_backend() -> None:
    assert [backend_of("gloo", name) for name in (None, "nccl", "switchagg")] == ["gloo"] * 3
    assert [backend_of("switch", name) for name in (None, "nccl", "gloo")] == ["switchagg"] * 3
    assert backend_of("nccl", "cuda:nccl") == "cuda:nccl"
    assert method_variables("switch~lanes8", "tcp://10.0.0.254:5555") == {
        "SWITCHAGG_METHOD": "switch~lanes8",
        "SWITCHAGG_LINK": "",
        "SWITCHAGG_CODEC": "",
        "SWITCHAGG_SWITCH": "tcp://10.0.0.254:5555",
    }
    assert not method_variables("gloo", "")
    rank = torchrun_variables(ScriptPlace(5, 6, "a.py", [], False, "gloo", 1, {}), "10.0.0.1", 29501, local=2)
    assert {rank[name] for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE")} == {"5", "1", "2", "6"}


def test_a_rank_tells_times_and_losses_and_ends_after_the_last_step(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    (first, second), log = reports(place(script))
    assert first["event"] == second["event"] == "stepsdone"
    assert len(first["durations_ns"]) == len(second["losses"]) == 2
    assert first["losses"][1] > 0, "the script has set it to 0 after the backward pass"
    assert "mine 2" in log
    assert "mine 4" not in log


def test_a_script_that_fails_or_ends_early_says_why(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    (_, failed), log = reports(place(script, "2"))
    line = SCRIPT[: SCRIPT.index("raise")].count("\n") + 1
    assert failed == {"event": "commandfailed", "message": f"{script}, line {line}: ValueError: no such sample"}
    assert "Traceback" in log
    (_, early), _ = reports(place(script, holds=[5, 17]))
    assert (
        "ended after 6 steps of an optimizer and 6 losses with a backward pass; 17 steps are needed" in early["message"]
    )
    script.write_text("")
    ((idle,), _) = reports(place(script, holds=[5]))
    assert "ended after 0 steps of an optimizer and 0 losses with a backward pass" in idle["message"]
    assert "an optimizer of torch.optim must step in the process that torchrun starts" in idle["message"]
    script.write_text(SCRIPT.replace("dist.init", "0 and dist.init").replace("DistributedDataParallel(torch", "(torch"))
    ((alone,), _) = reports(place(script, trace=str(tmp_path / "recording"), warmup=1, recorded=2))
    assert alone["message"].startswith(f"{script}: its ranks exchange nothing: call init_process_group")


def test_a_script_that_catches_everything_is_recorded_and_ends(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        SCRIPT.replace("for step in range(6):", "step = 1\nwhile True:\n  try:").replace("\n    ", "\n      ")
    )
    script.write_text(f"{script.read_text()}  except BaseException:\n    pass\n")
    (recorded,), _ = reports(place(script, trace=str(tmp_path / "recording"), warmup=1, recorded=2))
    assert recorded["event"] == "runrecorded"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.py"], "nowhere.py: no such file"),
        (["--methods", "gloo", "a.py"], "--methods gloo: at least two"),
        (["--methods", "gloo,swich", "a.py"], "swich"),
        (["--methods", "gloo,switch+p3", "a.py"], "a schedule needs a line in the script"),
        (["--links", "1,2Gb/s", "a.py"], "--links 1,2Gb/s: one rate"),
        (["--steps", "3", "a.py"], "--steps 3: at least 17"),
        (["--switch", "tcp://10.0.0.1:5555", "a.py"], "are of several machines: --nnodes 2 or more"),
        (["--nnodes", "2", "a.py"], "--rendezvous (none): HOST:PORT of node 0"),
        (["--nnodes", "2", "--node-rank", "2", "--rendezvous", "127.0.0.1:1", "a.py"], "--node-rank 2: 0 to 1"),
    ],
)
def test_wrong_words_are_one_line(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWITCHAGG_IN_USER_NAMESPACE", "1")  # it is this process that answers
    (tmp_path / "a.py").touch()
    done = CliRunner().invoke(app, ["try", *words])
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_rendezvous_has_torchruns_port_by_default() -> None:
    assert machines_of(3, 1, 2, "127.0.0.1", "").port == 29_500
    assert machines_of(2, 0, 1, "127.0.0.1:1234", "").port == 1234
