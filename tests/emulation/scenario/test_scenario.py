"""Scenario files: strictness, messages, defaults, the shipped ones."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from emulation.scenario import key_reference
from emulation.scenario import scenario as scenarios
from emulation.scenario.scenario import ScenarioError, canonical, find, load, parse, shipped
from emulation.scenario.scenario_flows import own_hosts, places
from emulation.scenario.scenario_tables import TABLES
from emulation.scenario.workload_kinds import WORKLOADS
from tests.shared.canonical_scenario import from_canonical

ROOT = Path(__file__).resolve().parents[3]
MINIMAL = 'name = "tiny"\ntitle = "A tiny one"\n'


def message(text: str, **overrides: object) -> str:
    with pytest.raises(ScenarioError) as caught:
        parse(text, "tiny.toml", overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_minimal_scenario_has_documented_defaults() -> None:
    scenario = parse(MINIMAL, "tiny.toml")
    assert scenario.seed == 1
    assert scenario.topology.workers == 4
    assert scenario.topology.rate_bps == 200_000_000
    assert scenario.workload.compute_ns is None
    assert tuple(map(str, scenario.methods_for("mininet"))) == ("gloo", "switch")
    assert tuple(map(str, scenario.methods_for("sim"))) == ("ring", "switch")
    assert str(scenario.baseline_for("sim")) == "ring"


def test_whole_floats_are_integers() -> None:
    assert parse(MINIMAL + "[topology]\nrate_bps = 100e9\n", "t").topology.rate_bps == 100_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[topology]\nrate_bps = 5\n", r"\[topology\] rate_bps: 5 is out of range; allowed: 1000000 … 400000000000 \("),
        ("[topology]\nrate_bsp = 5\n", r"\[topology\] unknown key 'rate_bsp'; did you mean 'rate_bps'\?"),
        ("[topolgy]\nrate_bps = 5\n", r"unknown key 'topolgy'; did you mean 'topology'\?"),
        ("[zzz]\n", r"unknown key 'zzz'; allowed: name, title, seed, methods"),
        ("[faults]\nloss = 1.5\n", r"\[faults\] loss: 1.5 is out of range; allowed: 0 … 1 \(probability\)"),
        ("[faults]\nloss = nan\n", r"\[faults\] loss: nan is out of range"),
        ("[faults]\nloss = true\n", r"\[faults\] loss: True is not a number"),
        (
            '[topology]\nworkers = "four"\n',
            r"\[topology\] workers: 'four' is not a number; allowed: 1 … 4096 \(workers\)",
        ),
        ("[topology]\nworkers = 2.5\n", r"workers: 2.5 is not a whole number"),
        ("[topology]\nworkers = inf\n", r"workers: inf is not a whole number"),
        (
            '[workload]\nname = "fsdp"\n[methods]\nsim = ["ring+p3"]\n',
            r"\[methods\] sim: ring\+p3: not with \[workload\] name = 'fsdp', .*; allowed: a method without a schedule",
        ),
        ('[workload]\nname = "fsdp"\n[methods]\nmininet = ["ps"]\n', r"mininet: ps: not with .* any other method"),
        ('[methods]\nsim = ["rings"]\n', r"\[methods\] sim: method 'rings' is unknown; allowed: switch, gloo, ring, "),
        ("[methods]\nsim = [3]\n", r"\[methods\] sim: method '3' is unknown"),
        ('[methods]\nsim = ["ring@udp"]\n', r"'ring@udp': virtual time has a link of its own; leave out @udp"),
        (
            '[methods]\nsim = ["ring~lanes7"]\n',
            r"\[methods\] sim: codec 'lanes7' is unknown; allowed: fixed_point, lanes16",
        ),
        (
            '[methods]\nsim = ["ring~lanes4"]\n[topology]\nworkers = 8\n',
            r"\[methods\] sim: ring~lanes4: codec lanes4 can't sum 8 workers exactly; workers at most: lanes4 7",
        ),
        (
            '[methods]\nsim = ["ps~lanes8"]\n[ps]\nmode = "backup"\nbackups = 1\n',
            r"sim: ps~lanes8: coded sums need all workers, not \[ps\] mode = 'backup'; allowed: the other modes",
        ),
        (
            '[methods]\nsim = ["ps~topk+ef"]\n[ps]\nmode = "asp"\n[workload]\noptimizer = "sgd"\n',
            r"sim: ps~topk\+ef: codec topk\+ef: gradients for servers take codecs of rows, with \+ef or without",
        ),
        (
            '[methods]\nsim = ["ring~lanes8"]\n[workload]\nname = "fsdp"\n',
            r"sim: ring~lanes8: not with \[workload\] name = 'fsdp'.*; allowed: a method without a codec",
        ),
        ('[methods]\nmininet = ["switch@tcp"]\n', r"link 'tcp' can't carry it; allowed: udp, zeromq, rdma"),
        (
            "[sweep]\ntopology.rate = [1]\n",
            r"\[sweep\] 'topology.rate' is no key .* did you mean 'topology.rate_bps'\?",
        ),
        ("[sweep]\nmethods.sim = ['ring']\n", r"\[sweep\] 'methods.sim' is no key that can be swept"),
        ("[sweep]\ntopology.workers = []\n", r"topology.workers: \[\] is not allowed; allowed: a list of 1 to 1000"),
        ("[sweep]\ntopology.workers = true\n", r"topology.workers: True is not allowed; allowed: a list of 1 to 1000"),
        ("[sweep]\ntopology.workers = [2, [3]]\n", r"a list of 1 to 1000 numbers or words"),
        ("[sweep]\nseed = [2, 3, 2]\n", r"seed: 2 stands there twice; allowed: each value once"),
        ("[sweep]\nseed = [1, 2]\nzip = ['seed']\n", r"zip: \['seed'\] is not allowed; allowed: lists of keys"),
        ("[sweep]\nseed = [1]\nzip = [['seed', 'ps.servers']]\n", r"zip: 'ps.servers' has no values in this table"),
        (
            "[sweep]\nseed = [1, 2]\nps.servers = [1]\nzip = [['seed', 'ps.servers']]\n",
            r"zip: keys that go together need equally many values: seed has 2, ps.servers has 1",
        ),
        (
            "".join(["[sweep]\n", *(f"{k} = {list(range(1, 60))}\n" for k in ("seed", "ps.servers", "ps.backups"))]),
            r"205379 combinations; allowed: at most 100000",
        ),
        ('[methods]\nsim = "ring"\n', r"\[methods\] sim: 'ring' is not a list of methods"),
        ("[methods]\nsim = []\nmininet = []\n", r"\[methods\] both lists are empty"),
        ('[methods]\nsim = ["ring", "ring"]\n', r"names a method twice"),
        ('[workload]\nname = "digit"\n', r"\[workload\] name: 'digit' is unknown; allowed: digits, images, text"),
        (
            "[workload]\niterations = 5\nwarmup_iterations = 5\n",
            r"warmup_iterations: 5 is out of range; allowed: below iterations \(5\)",
        ),
        ("[switch]\nelements = 364\n", r"elements: 364 does not fit \[topology\] mtu_bytes = 1500; allowed: 32 … 363"),
        ("[topology]\npriority_queues = 4\n", r"priority_queues: 4 is not possible; allowed: 0 .* or 8"),
        ('[switch]\nauthenticate = "on"\n', r"\[switch\] authenticate: a scenario's switch has no keys"),
        ("[switch]\nwindow_slots = 16384\nstreams = 5\n", r"at most 65536 slots"),
        (
            '[topology]\ncongestion_control = "fast"\n',
            r"'fast' is unknown; allowed: best, kernel, cubic, reno, bbr, dctcp",
        ),
        ("[ps]\nservers = 65\n", r"\[ps\] servers: 65 is out of range; allowed: 0 … 64 \(servers\)"),
        ("[ps]\nserver = 1\n", r"\[ps\] unknown key 'server'; did you mean 'servers'\?"),
        ('[ps]\nmode = "backups"\n', r"\[ps\] mode: 'backups' is unknown; allowed: bsp, backup, ssp, asp, dc_asgd"),
        ('[ps]\nmode = "backup"\n', r"\[ps\] backups: 0 of 4 workers is out of range; allowed: 1 … 3 with mode"),
        ('[ps]\nmode = "backup"\nbackups = 4\n', r"\[ps\] backups: 4 of 4 workers is out of range; allowed: 1 … 3"),
        ("[ps]\nbackups = 1\n", r"\[ps\] backups: 1 is not possible with mode = 'bsp'; allowed: 0, or mode = 'backup'"),
        (
            "[ps]\nstaleness = 2\n",
            r"\[ps\] staleness: 2 is not possible with mode = 'bsp'; allowed: 0, or mode = 'ssp'",
        ),
        (
            '[ps]\nmode = "backup"\nbackups = 1\n[methods]\nmininet = ["ps+p3"]\n',
            r"mininet: ps\+p3: in real time schedules divide by all workers.*; allowed: ps, or mode = 'bsp'",
        ),
        (
            '[methods]\nsim = ["ps"]\n[ps]\nmode = "asp"\n',
            r"\[workload\] optimizer: 'adamw' is not possible with \[ps\] mode = 'asp', whose servers make .* 'sgd'",
        ),
        (
            '[methods]\nsim = ["ring", "ps+p3"]\n[ps]\nmode = "ssp"\n[workload]\noptimizer = "sgd"\n',
            r"\[methods\] ps\+p3: with \[ps\] mode = 'ssp' there are no sums to schedule; allowed: ps, .*mode = 'bsp'",
        ),
        ('[workload]\noptimizer = "adam"\n', r"\[workload\] optimizer: 'adam' is unknown; allowed: adamw, sgd"),
        ("[workload]\ncompute_ns = [1, 2]\n", r"compute_ns: 2 numbers for 4 workers; allowed: one for each"),
        (
            "[workload]\ncompute_ns = [1, 2, -3, 4]\n",
            r"\[workload\] compute_ns: -3 is out of range; allowed: 0 … .* \(ns\)",
        ),
        ("[workload]\ncompute_ns = {mean_ns = 5}\n", r"\[workload\] compute_ns: distribution: missing"),
        (
            '[workload]\ncompute_ns = {distribution = "gamma", mean_ns = 5, deviation_ns = 1}\n',
            r"compute_ns: distribution: 'gamma' is unknown; allowed: normal, lognormal, shifted_exponential",
        ),
        (
            '[workload]\ncompute_ns = {distribution = "shifted_exponential", mean_ns = 5, deviation_ns = 6}\n',
            r"compute_ns: deviation_ns: 6 is out of range; allowed with a shifted exponential: 0 … mean_ns \(5\)",
        ),
        ("[faults]\nstragglers = [{rank = 4}]\n", r"\[faults\] stragglers: rank: 4 is out of range; allowed: 0 … 3"),
        ("[faults]\nstragglers = [{rnk = 4}]\n", r"stragglers: unknown key 'rnk'; did you mean 'rank'\?"),
        ("[faults]\nstragglers = 3\n", r"stragglers: 3 is not allowed; allowed: a list of tables"),
        ("topology = 3\n", r"'topology' must be a table"),
        ("a b\n", r"not valid TOML"),
    ],
)
def test_bad_input_names_file_key_and_what_is_allowed(text: str, expected: str) -> None:
    found = message(MINIMAL + text)
    assert found.startswith("tiny.toml: ")
    assert re.search(expected, found), found


@pytest.mark.parametrize("missing", ["name", "title"])
def test_name_and_title_are_required(missing: str) -> None:
    text = "".join(line + "\n" for line in MINIMAL.splitlines() if not line.startswith(missing))
    assert message(text) == f"tiny.toml: {missing}: missing; every scenario has a name and a title"


@pytest.mark.parametrize("seed", ["-1", "4294967296", "1.0", '"1"', "true"])
def test_seed_is_a_32_bit_integer(seed: str) -> None:
    assert "allowed: integers 0 … 4294967295" in message(f"seed = {seed}\n" + MINIMAL)


def test_overrides_are_checked_like_the_file() -> None:
    scenario = parse(MINIMAL, "t", {"seed": 7, "topology.rate_bps": 10**9})
    assert (scenario.seed, scenario.topology.rate_bps) == (7, 10**9)
    assert "did you mean 'rate_bps'" in message(MINIMAL, **{"topology.rate_bp": 1})
    assert "unknown key 'topologi'" in message(MINIMAL, **{"topologi.rate_bps": 1})
    assert "must be a table" in message(MINIMAL, **{"name.x": 1})


def test_canonical_round_trips() -> None:
    scenario = parse(MINIMAL + '[methods]\nsim = ["switch"]\n[workload]\ncompute_ns = 5\n', "t")
    plain = canonical(scenario)
    assert "file" not in plain
    assert plain["methods"] == {"mininet": ["gloo", "switch"], "sim": ["switch"]}
    again = from_canonical(plain)
    assert again == dataclasses.replace(scenario, file="scenario")
    assert again.baseline_for("sim") is None


def test_unequal_compute_round_trips_through_json() -> None:
    text = '[workload]\ncompute_ns = {distribution = "normal", mean_ns = 5, deviation_ns = 1}\n'
    text += "[faults]\nstragglers = [{rank = 2, factor = 3}, {rank = 1, to_iteration = 7}]\n"
    scenario = parse(MINIMAL + text, "t")
    assert from_canonical(json.loads(json.dumps(canonical(scenario)))) == dataclasses.replace(scenario, file="scenario")
    assert "stragglers" not in canonical(parse(MINIMAL, "t"))["faults"]


def test_a_training_method_is_written_in_full_and_left_out_without_one() -> None:
    scenario = parse(MINIMAL + '[workload]\nsynchronisation = "diloco:period=20"\n', "t")
    assert scenario.workload.synchronisation == "diloco:period=20,rate=0.7,momentum=0.9"
    assert from_canonical(canonical(scenario)) == dataclasses.replace(scenario, file="scenario")
    assert "synchronisation" not in canonical(parse(MINIMAL + '[workload]\nsynchronisation = ""\n', "t"))["workload"]


@pytest.mark.parametrize(
    ("word", "text", "expected"),
    [
        ("diloco:H=8", "", "synchronisation: training method diloco: option 'H=8' is unknown; allowed: period=…, rate"),
        ("dpsgd", "", "synchronisation: dpsgd sends from host to host, whatever the method; allowed: the others"),
        ("easgd", '[workload]\nname = "fsdp"', "not with [workload] name = 'fsdp', whose ranks share a model"),
        (
            "easgd",
            '[methods]\nmininet = ["ring+p3"]',
            "not with [methods] mininet: ring+p3; allowed: methods without a",
        ),
        ("easgd", '[methods]\nmininet = ["gloo~bf16"]', "not with [methods] mininet: gloo~bf16; allowed: "),
        ("easgd", '[methods]\nmininet = ["ps"]\n[ps]\nservers = 2', "not with [methods] mininet: ps; allowed: "),
    ],
)
def test_what_a_training_method_does_not_go_with_is_refused(word: str, text: str, expected: str) -> None:
    assert expected in message(MINIMAL + text, **{"workload.synchronisation": word})


def test_parameter_server_options_appear_only_with_such_a_method() -> None:
    text = '[methods]\nsim = ["ring", "ps+p3"]\n[ps]\nmode = "backup"\nbackups = 2\nservers = 3\n'
    scenario = parse(MINIMAL + text, "t")
    assert canonical(scenario)["ps"] == {"servers": 3, "mode": "backup", "staleness": 0, "backups": 2}
    assert (scenario.network.servers, scenario.network.backups) == (3, 2)
    assert "ps" not in canonical(parse(MINIMAL + "[ps]\nservers = 3\n", "t"))


def test_an_optimizer_other_than_the_usual_one_is_told_of() -> None:
    text = '[methods]\nsim = ["ring", "ps"]\n[ps]\nmode = "ssp"\nstaleness = 2\n'
    text += '[workload]\ncompute_ns = 5\noptimizer = "sgd"\n'
    scenario = parse(MINIMAL + text, "t")
    assert [scenario.asynchronous(method) for method in scenario.methods.sim] == [False, True]
    assert canonical(scenario)["workload"]["optimizer"] == "sgd"
    assert scenarios._build(canonical(scenario), "t") == scenario
    assert scenario.network.backups == 3, "an answer waits for none of the others"
    assert "optimizer" not in canonical(parse(MINIMAL, "t"))["workload"]
    assert parse(MINIMAL + '[ps]\nmode = "asp"\n', "t").workload.optimizer == "adamw", "nobody reads [ps]"


def test_few_iterations_count_half_of_them() -> None:
    for iterations, warmup in ((2, 1), (5, 2), (9, 4), (10, 5), (100, 5)):
        assert parse(f"{MINIMAL}[workload]\niterations = {iterations}\n", "f").workload.warmup_iterations == warmup


def test_the_reference_says_of_every_key_what_the_parser_takes() -> None:
    usual = canonical(parse(MINIMAL, "f"))
    for table in key_reference.tables().values():
        for key in table.keys:
            assert key.about
            assert key.allowed
            if table.name in TABLES and key.default not in (key_reference.REQUIRED, key_reference.UNSET):
                told = parse(f"{MINIMAL}[{table.name}]\n{key.name} = {key.default}\n", "f")
                assert canonical(told) == usual, f"{table.name}.{key.name}"
            if table.name:
                assert list(key_reference.text(f"{table.name}.{key.name}"))[1].strip() == key.about
    with pytest.raises(
        ScenarioError,
        match=r"'topology.rate' is no shipped scenario, no table and no key; did you mean 'topology.rate_bps'",
    ):
        list(key_reference.text("topology.rate"))
    assert not shipped().keys() & key_reference.tables().keys(), "`switchagg scenarios NAME` shows either"


def test_the_page_of_scenarios_is_what_the_code_says() -> None:
    written = (ROOT / "docs/reference/scenario.md").read_text(encoding="utf-8")
    assert written == key_reference.markdown(), "run: switchagg scenarios --markdown > docs/reference/scenario.md"


def test_every_shipped_scenario_loads_under_its_own_name() -> None:
    assert {"quickstart", "text", "lossy", "sim_100g"} <= set(shipped())
    for name, path in shipped().items():
        scenario = load(path)
        assert scenario.name == name
        if scenario.methods_for("sim"):
            assert scenario.workload.compute_ns is not None, "byte-identical results in sim need a given compute time"


def test_find_accepts_bare_names_and_lists_shipped_scenarios(tmp_path: Path) -> None:
    assert find("quickstart") == find("quickstart.toml") == shipped()["quickstart"]
    mine = tmp_path / "mine.toml"
    mine.write_text(MINIMAL)
    assert find(str(mine)) == mine
    with pytest.raises(ScenarioError, match=r"^nowhere\.toml: no such file; shipped scenarios: .*quickstart"):
        find("nowhere.toml")
    with pytest.raises(ScenarioError, match="did you mean 'quickstart'"):
        find("quickstrat.toml")


def test_unreadable_file_is_one_line(tmp_path: Path) -> None:
    binary = tmp_path / "x.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScenarioError, match="not UTF-8 text"):
        load(binary)
    with pytest.raises(ScenarioError, match="cannot be read"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MINIMAL + "[faults]\nloss = 1" + "0" * 400, r"\[faults\] loss: 10+\.\.\.0+ is out of range; allowed: 0 … 1"),
        (MINIMAL + "[faults]\nloss = 1" + "0" * 5000, "not valid TOML"),
        (MINIMAL + "x = " + "[" * 5000, "not valid TOML"),
        (MINIMAL + "[workload]\nbatch_per_worker = 360", r"batch_per_worker: 360 on each of 4 .* allowed: 1 … 359"),
    ],
)
def test_input_that_python_s_own_parser_rejects_is_one_short_line(text: str, expected: str) -> None:
    with pytest.raises(ScenarioError, match=expected) as caught:
        parse(text, "t")
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["..", "../../elsewhere", "/tmp/x", "a/b", ".hidden", "a" * 101, "-rf"])
def test_a_name_that_is_no_folder_name_is_refused(name: str) -> None:
    assert "name: " in message(MINIMAL, name=name)


def test_find_says_why_a_path_is_no_scenario(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="a folder, not a scenario file"):
        find(str(tmp_path))
    with pytest.raises(ScenarioError, match="cannot be read: File name too long") as caught:
        find("a" * 5000)
    assert len(str(caught.value).partition("; shipped scenarios: ")[0]) < 300


def test_the_samples_of_digits_are_as_many_as_the_scenario_says() -> None:
    pytest.importorskip("torch")
    from emulation.workloads.workload import learning_task

    assert learning_task("digits").samples == WORKLOADS["digits"].samples


def test_the_default_window_fits_the_queue() -> None:
    """All that may be in flight fits into a port's queue; a window that is given is taken as it is."""
    jumbo = "[topology]\nmtu_bytes = 9000\nqueue_bytes = 1_000_000\n[switch]\nelements = 2200\n"
    head = 'name = "x"\ntitle = "x"\n'
    assert parse(head, "x.toml").switch.window_slots == 256
    window = parse(head + jumbo, "x.toml").switch.window_slots
    assert window == 1_000_000 // (2 * (14 + 28 + 20 + 4 * 2200))
    assert parse(head + jumbo + "window_slots = 300\n", "x.toml").switch.window_slots == 300


def test_a_sweep_runs_the_scenario_with_each_value(tmp_path: Path) -> None:
    path = tmp_path / "scale.toml"
    path.write_text(MINIMAL + "[sweep]\ntopology.workers = [2, 4.0, 8]\nseed = 5\n", encoding="utf-8")
    variants = scenarios.load_variants(path)
    assert [(v.topology.workers, v.seed, v.sweep) for _, v in variants] == [
        (n, 5, scenarios.SweepAxes()) for n in (2, 4, 8)
    ]
    assert [point for point, _ in variants] == [{"topology.workers": n, "seed": 5} for n in (2, 4, 8)]
    assert "sweep" not in scenarios.canonical(variants[0][1])
    whole = scenarios.load(path)
    assert scenarios.canonical(whole)["sweep"] == {"topology.workers": [2, 4, 8], "seed": [5]}
    assert from_canonical(scenarios.canonical(whole)).sweep == whole.sweep


def test_keys_of_a_sweep_are_combined_or_go_together(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    text = (
        '[sweep]\ntopology.workers = [2, 4]\nseed = [1, 2]\n"topology.delay_ns" = [5, 6]\n'
        'zip = [["topology.workers", "topology.delay_ns"]]\n'
    )
    path.write_text(MINIMAL + text, encoding="utf-8")

    def found(**overrides: object) -> list[tuple[int, int, int]]:
        given = {name.replace("__", "."): value for name, value in overrides.items()}
        return [(v.topology.workers, v.topology.delay_ns, v.seed) for _, v in scenarios.load_variants(path, given)]

    assert found() == [(2, 5, 1), (2, 5, 2), (4, 6, 1), (4, 6, 2)]
    assert found(topology__delay_ns=9) == [(2, 9, 1), (2, 9, 2), (4, 9, 1), (4, 9, 2)]
    assert found(seed=7, sweep__zip=[]) == [(n, delay, 7) for n in (2, 4) for delay in (5, 6)]
    assert found(seed=7, sweep__topology__workers=[3, 8]) == [(3, 5, 7), (8, 6, 7)]


def test_an_override_of_the_swept_number_ends_the_sweep(tmp_path: Path) -> None:
    path = tmp_path / "scale.toml"
    path.write_text(MINIMAL + "[sweep]\ntopology.workers = [2, 4]\n", encoding="utf-8")
    assert [v.topology.workers for _, v in scenarios.load_variants(path, {"topology.workers": 3})] == [3]
    assert not scenarios.load(path, {"topology.workers": 3}).sweep.axes


def test_a_value_of_a_sweep_is_checked_as_the_key_is(tmp_path: Path) -> None:
    path = tmp_path / "scale.toml"
    path.write_text(MINIMAL + "[sweep]\ntopology.workers = [2, 400]\n", encoding="utf-8")
    with pytest.raises(scenarios.ScenarioError, match="workers: 400 hosts in all"):
        scenarios.load_variants(path)


def test_flows_have_hosts_of_their_own_or_a_rank_s() -> None:
    text = (
        'name = "t"\ntitle = "T"\n[methods]\nmininet = []\n[[flows]]\nkind = "cubic"\ncount = 2\n[[flows]]\n'
        'kind = "short"\nfrom_rank = 1\nto_rank = -1\n[[flows]]\nkind = "incast"\ncount = 3\nto_rank = 2\n'
    )
    scenario = parse(text, "t")
    assert from_canonical(canonical(scenario)).flows == scenario.flows
    assert places(scenario.flows, 6) == [((6, 7), 0), ((1,), 8), ((9, 10, 11), 2)]
    assert (own_hosts(scenario.flows), own_hosts(scenario.flows[2:])) == (6, 3)
    assert "flows" not in canonical(parse('name = "t"\ntitle = "T"\n', "t"))


@pytest.mark.parametrize(
    ("flow", "said"),
    [
        (
            'kind = "vegas"',
            r"\[\[flows\]\] kind: 'vegas' is unknown; allowed: cubic, reno, bbr, dcqcn, roce, short, incast",
        ),
        ("count = 2", r"\[\[flows\]\] kind: missing"),
        ('kind = "cubic"\nto_rank = 4', r"to_rank: 4 is out of range; allowed: -1 … 3"),
        ('kind = "cubic"\nfrom_rank = 0', r"from_rank: 0 is where they go to; allowed: another rank, or -1"),
        ('kind = "cubic"\nstart_ns = 5\nstop_ns = 5', r"stop_ns: 5 is not after start_ns = 5"),
        ('kind = "cubic"\ncount = 61', r"workers: 65 hosts in all, with .* too many for Mininet; allowed: 64, or"),
        (
            'kind = "short"\nfrom_rank = 1\n[[flows]]\nkind = "bbr"\nfrom_rank = 1\necn = 0',
            r"ecn: 0 and 1 of flows from rank 1; allowed in Mininet: the same, or from_rank = -1",
        ),
    ],
)
def test_flows_that_can_t_be_are_refused(flow: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        parse(f'name = "t"\ntitle = "T"\n[[flows]]\n{flow}\n', "t")


@pytest.mark.parametrize(
    ("topology", "said"),
    [
        ("workers = 65", r"65 workers or switches send to one switch of method switch; allowed: 64, in more racks or"),
        ('kind = "leaf_spine"\nracks = 8\nworkers = 512', r"64 workers or switches send .* allowed: 63, in more racks"),
        ('kind = "leaf_spine"\nracks = 65\nworkers = 130', r"65 workers or switches send .* allowed: 64, in more"),
        ('kind = "fat_tree"\nracks = 128\nworkers = 4096', r"on each of 4096 .* 1437 workers \(1437 images"),
        ('kind = "leaf_spine"\nracks = 8\nworkers = 128\n[methods]\nsim = ["esa"]', r"esa: its packets name 64 ranks"),
    ],
)
def test_more_workers_than_switches_have_places_for_are_refused(topology: str, said: str) -> None:
    methods = "" if "[methods]" in topology else "\n[methods]"
    with pytest.raises(ScenarioError, match=said):
        parse(f'name = "t"\ntitle = "T"\n[topology]\n{topology}{methods}\nmininet = []\n', "t")


def test_other_jobs_are_named_and_kept_in_results() -> None:
    head = 'name = "t"\ntitle = "T"\n[methods]\nmininet = []\n'
    scenario = parse(head + '[[jobs]]\nname = "a"\n[[jobs]]\nname = "b"\non = [0, 1]\n', "t")
    again = from_canonical(canonical(scenario))
    assert (again.jobs, again.switch) == (scenario.jobs, scenario.switch)
    assert not {"slots", "shares", "weight"} & set(canonical(parse(head, "t"))["switch"])


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("weight = 2", r"\[\[jobs\]\] name: missing"),
        ('name = "a"\nweight = 0', r"\[\[jobs\]\] weight: 0 is out of range; allowed: 1 … 1000"),
        ('name = "a"\non = [0, 4]', r"\[\[jobs\]\] on: 4 is out of range; allowed: 0 … 3"),
        ('name = "a"\non = [0, 0]', r"names a rank twice"),
        ('name = "a"\n[[jobs]]\nname = "a"', r"'a' is there twice"),
        ('name = "a"\nstart_ns = 2\nstop_ns = 1', r"stop_ns: 1 is not after start_ns = 2"),
        ('name = "a"\nstop_ns = 1\nsums = 3', r"sums: 3 beside stop_ns = 1; allowed: one of the two"),
        ('name = "a"\n[switch]\nslots = 3', r"\[switch\] slots: 3 are too few; allowed: 4 or more"),
        ('name = "a"\n[switch]\nbackups = 1', r"partial sums never are"),
    ],
)
def test_other_jobs_that_can_not_be_are_refused(job: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        parse(f'name = "t"\ntitle = "T"\n[methods]\nmininet = []\n[[jobs]]\n{job}\n', "t")
