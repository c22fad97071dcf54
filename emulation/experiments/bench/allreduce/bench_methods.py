"""Names of what is measured: `switch:native`, `gloo:cubic`, `ring:bbr`, `tree@zeromq`, `switch~lanes8+ef:native`.

A method as in `transport.group.method_name`, without a schedule; behind a colon its variant (an option of a codec has
an "="). Parsed here, opened in `contestants.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from emulation.scenario.errors import RunFailed
from emulation.scenario.scenario import Scenario, ScenarioError
from emulation.scenario.scenario_tables import Methods
from emulation.scenario.sweep_axes import SweepAxes
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.option_syntax import choices
from transport.group.method_name import METHODS, SECRET, MethodName
from transport.group.method_name import parse as parse_name
from transport.links.link_kinds import LINKS

COMMA = re.compile(r",(?!\s*\w+=)")  # a comma between a codec's options doesn't match
_METHOD, _VARIANT = re.compile("[@~+]"), re.compile("(.*?)(?::([^:=]*))?", re.DOTALL)
SLOTS, ELEMENTS = 4096, 360  # a switch to test data planes with: as `switchagg switch` makes it
CONTROLS = ("cubic", "bbr", "reno")
BEST = ("cubic", "bbr")  # of which the better one is the baseline


@dataclass(frozen=True)
class BenchMethod:
    """A candidate. variant: the switch's data plane, the congestion control of methods over the TCP mesh, or ""."""

    method: MethodName
    variant: str = ""

    @property
    def kind(self) -> str:
        """The method with its codec, whatever carries it."""
        codec = f"~{self.method.codec}" if self.method.codec else ""
        return self.method.method + codec + SECRET * self.method.secret

    @property
    def carrier(self) -> str:
        """The link that carries the method; "" for gloo."""
        return self.method.link

    @property
    def name(self) -> str:
        return str(self.method) + (f":{self.variant}" if self.variant else "")

    @property
    def core(self) -> str:
        """The loop of the switch's workers: the compiled one, or Python's beside the planes written in Python."""
        kind = DATAPLANES.get(self.variant)
        return "native" if kind is not None and kind.compiled else "python"

    def cell(self, scenario: Scenario, size_bytes: int) -> Scenario:
        """A scenario of one network as that of this method at one size alone, its variant among the options."""
        switch, topology = scenario.switch, scenario.topology
        if self.method.is_switch:
            switch = replace(switch, dataplane=self.variant)
        elif self.variant:
            topology = replace(topology, congestion_control=self.variant)
        workload = replace(scenario.workload, bucket_bytes=size_bytes)
        methods = Methods(mininet=(self.method,), sim=())
        return replace(
            scenario, methods=methods, topology=topology, workload=workload, switch=switch, sweep=SweepAxes()
        )


def parse(words: str, dataplane: str, congestion_control: Sequence[str]) -> tuple[list[BenchMethod], set[BenchMethod]]:
    """Methods of a comma-separated list, and the rivals among them: of each kind only the best rival is to be measured.

    dataplane: of a bare `switch`. congestion_control: of a bare `gloo`, or host method over TCP; `best` makes rivals of
    BEST. A method named with its variant is no rival, and measured in any case; `kernel` is this machine's default.
    Raises ScenarioError.
    """
    parsed_methods: list[BenchMethod] = []
    named: set[BenchMethod] = set()
    rivals: set[BenchMethod] = set()
    for word in (word.strip() for word in COMMA.split(words)):
        method, variant = _parts(word)
        if method.is_switch:
            variants = [resolve_plane(variant or dataplane)]
            if not LINKS[method.link].takes_plane(variants[0]):
                raise ScenarioError(f"--methods: {word}: the data plane {variants[0]} has no link {method.link}")
        elif method.link and not LINKS[method.link].congestion_control:
            if variant:
                raise ScenarioError(f"--methods: {word}: only TCP has a congestion control to choose")
            variants = [""]
        elif variant:
            variants = [check_control(variant)]
            named.add(BenchMethod(method, variants[0]))
        elif "best" in congestion_control:
            variants = list(BEST)
            rivals |= {BenchMethod(method, name) for name in BEST}
        else:
            variants = [check_control(name) for name in congestion_control]
        parsed_methods += [BenchMethod(method, name) for name in variants]
    return list(dict.fromkeys(parsed_methods)), rivals - named


def cut(word: str) -> tuple[str, str]:
    """A name without its variant, and that."""
    match = _VARIANT.fullmatch(word)
    assert match, "it matches anything"
    return match[1], match[2] or ""


def _parts(word: str) -> tuple[MethodName, str]:
    """Method and variant. Raises ScenarioError."""
    base, variant = cut(word)
    if (name := _METHOD.split(base, 1)[0]) not in METHODS:
        raise ScenarioError(f"--methods: '{word}' is unknown{choices(name, METHODS)}")
    try:
        method = parse_name(base)
    except ValueError as error:
        raise ScenarioError(f"--methods: {word}: {error}") from error
    if method.schedule:
        raise ScenarioError(f"--methods: {word}: schedules are for training; `switchagg compare` has them")
    return method, variant


def check_control(name: str) -> str:
    """The name, `kernel` resolved. Raises ScenarioError if it is none that TCP could be asked for."""
    if name == "kernel":
        return kernel_control()
    if name not in CONTROLS:
        raise ScenarioError(f"congestion control '{name}' is unknown{choices(name, ('best', 'kernel', *CONTROLS))}")
    return name


def kernel_control() -> str:
    """This machine's default."""
    return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text(encoding="ascii").strip()


def resolve_plane(name: str) -> str:
    """A data plane by name; `auto`: the fastest that passes its self-test. Raises ScenarioError, RunFailed."""
    from switchagg.dataplane.self_test import fastest
    from switchagg.native.library import missing

    if name == "auto":
        return fastest(SLOTS, ELEMENTS).name
    measured = [kind.name for kind in DATAPLANES.values() if kind.measured]
    if name not in measured:
        raise ScenarioError(f"data plane '{name}' is unknown{choices(name, ('auto', *measured))}")
    if DATAPLANES[name].compiled and (reason := missing()):
        raise RunFailed(f"data plane {name}: {reason}")
    return name
