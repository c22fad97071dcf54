"""A trial from what was typed: the site that this machine allows, the run, its page and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from emulation.experiments.tryout.try_comparison import turn_plan
from emulation.experiments.tryout.try_machines import Machines, MachinesSite
from emulation.experiments.tryout.try_page import lines, write
from emulation.experiments.tryout.try_run import Say, Trial, run
from emulation.experiments.tryout.try_site import EmulatedSite, LoopbackSite, Site, is_switch, scenario_of
from emulation.experiments.whatif.gains import parse_rates
from emulation.scenario.errors import ScenarioError
from emulation.testbed.mininet.mininet_run import missing

LINKS = "200Mb/s"
ON_NODE_0 = "the switch runs on node 0 and shares its link, so it can't gain there what a switch in the network gains"


def method_names(text: str) -> tuple[str, ...]:
    """Methods as --methods has them, without doubles. Raises ScenarioError."""
    from emulation.experiments.bench.allreduce.bench_methods import COMMA
    from transport.group.method_name import parse

    names = tuple(dict.fromkeys(name.strip() for name in COMMA.split(text)))
    if len(names) < 2:
        raise ScenarioError(f"--methods {text}: at least two, of which the first is the baseline")
    for name in names:
        try:
            parsed = parse(name)
        except ValueError as error:
            raise ScenarioError(f"--methods: {error}") from error
        if parsed.schedule:
            raise ScenarioError(f"--methods {name}: a schedule needs a line in the script: docs/training.md")
    return names


def try_here(
    trial: Trial, ranks: int, links: str, machines: Machines | None, folder: Path, loopback: bool, say: Say
) -> tuple[dict[str, Any], list[str]]:
    """The document and its lines for the terminal; the files are written. ranks: here. links: their rate, as typed.

    Raises ScenarioError, RunFailed, OSError.
    """
    turn_plan(trial.steps)
    try:
        (rate_bps,) = parse_rates(links or LINKS)
    except ValueError as error:
        raise ScenarioError(f"--links {links}: one rate, like 200Mb/s or 10Gb/s") from error
    if machines is None:
        site, note = _site(trial, ranks, rate_bps, loopback)
    else:
        site = MachinesSite(machines, trial.arguments, rate_bps if links else 0, trial.timeout_s)
        note = "" if machines.switch or not any(map(is_switch, trial.methods)) else ON_NODE_0
    if note:
        say(note)
    with site:
        document = run(trial, site, folder, say)
    document["notes"] += [note] * bool(note)
    write(document, folder)
    return document, lines(document)


def _site(trial: Trial, ranks: int, rate_bps: int, loopback: bool) -> tuple[Site, str]:
    """The site on this machine, and what its user has to know."""
    scenario = scenario_of(ranks, rate_bps, trial.delay_ns, trial.methods)
    if why := "--loopback" if loopback else missing():
        return LoopbackSite(ranks), f"over loopback ({why}): ranks share it, so losses can be compared, but times can't"
    return EmulatedSite(scenario), ""
