"""A trial from what was typed: the site that this machine allows, the run, its page and files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulation.experiments.tryout.try_comparison import turn_plan
from emulation.experiments.tryout.try_machines import Machines, MachinesSite, serve_node
from emulation.experiments.tryout.try_page import lines, write
from emulation.experiments.tryout.try_run import Trial, run
from emulation.experiments.tryout.try_site import EmulatedSite, LoopbackSite, Site, is_switch, scenario_of
from emulation.experiments.whatif.gains import parse_rates
from emulation.scenario.bounds import NetworkParameters
from emulation.scenario.errors import ScenarioError
from emulation.testbed.mininet.mininet_run import missing

LINKS = "200Mb/s"


@dataclass(frozen=True)
class HowToTry:
    """What was typed."""

    program: str
    arguments: tuple[str, ...]
    is_module: bool
    ranks: int
    links: str
    methods: str
    steps: int
    seed: int
    timeout_s: float
    delay_us: float
    machines: Machines | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Methods, without doubles. Raises ScenarioError."""
        from emulation.experiments.bench.allreduce.bench_methods import COMMA
        from transport.group.method_name import parse

        names = tuple(dict.fromkeys(name.strip() for name in COMMA.split(self.methods)))
        if len(names) < 2:
            raise ScenarioError(f"--methods {self.methods}: at least two, of which the first is the baseline")
        for name in names:
            try:
                parsed = parse(name)
            except ValueError as error:
                raise ScenarioError(f"--methods: {error}") from error
            if parsed.schedule:
                raise ScenarioError(f"--methods {name}: a schedule needs a line in the script: docs/training.md")
        return names

    @property
    def rate_bps(self) -> int:
        """0: unknown. Raises ScenarioError."""
        if self.machines is not None and not self.links:
            return 0
        try:
            (rate_bps,) = parse_rates(self.links or LINKS)
        except ValueError as error:
            raise ScenarioError(f"--links {self.links}: one rate, like 200Mb/s or 10Gb/s") from error
        return rate_bps


def try_here(
    how: HowToTry, folder: Path, loopback: bool, say: Callable[[str], None]
) -> tuple[dict[str, Any], list[str]]:
    """The document and its lines for the terminal; the files are written. Raises ScenarioError, RunFailed, OSError."""
    turn_plan(how.steps)
    names, delay_ns = how.names, round(1000 * how.delay_us)
    site, network, note = _site(how, names, loopback)
    if note:
        say(note)
    trial = Trial(
        *(how.program, how.arguments, how.is_module, names, how.steps, how.seed, how.timeout_s, delay_ns, network)
    )
    with site:
        document = run(trial, site, folder, say)
    if note:
        document["notes"].append(note)
    write(document, folder)
    return document, lines(document)


def _site(how: HowToTry, names: Sequence[str], loopback: bool) -> tuple[Site, NetworkParameters | None, str]:
    """The site, the links that were asked for, and what its user has to know."""
    if how.machines is not None:
        shared = any(map(is_switch, names)) and not how.machines.switch
        note = (
            "the switch runs on node 0 and shares its link, so it can't gain there what a switch in the network gains"
        )
        site = MachinesSite(how.machines, how.arguments, how.rate_bps, how.timeout_s)
        return site, None, note if shared else ""
    scenario = scenario_of(how.ranks, how.rate_bps, round(1000 * how.delay_us), names)
    if why := "--loopback" if loopback else missing():
        note = f"over loopback ({why}): ranks share it, so no method can gain anything; losses can be compared"
        return LoopbackSite(how.ranks), None, note
    return EmulatedSite(scenario), scenario.network, ""


def serve(how: HowToTry, folder: Path, say: Callable[[str], None]) -> None:
    """A node other than 0 of several machines, until node 0 is done. Raises RunFailed."""
    assert how.machines is not None
    serve_node(how.machines, how.program, how.arguments, folder, how.timeout_s, say)
