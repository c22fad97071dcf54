"""Names of what is measured: `switch:native`, `gloo:cubic`, `ring:bbr`. Parsed here, opened in `contestants.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from emulation.results import RunFailed
from emulation.scenario import ScenarioError

KINDS = ("switch", "gloo", "ring")
PLANES = ("native", "xdp", "batched", "reference")
CONTROLS = ("cubic", "bbr", "reno")
BEST = ("cubic", "bbr")  # of which the better one is the baseline


@dataclass(frozen=True)
class Method:
    """One contestant. variant: the switch's data plane, or the TCP congestion control of a host method."""

    kind: str
    variant: str

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.variant}"

    @property
    def core(self) -> str:
        """What runs the switch's workers: the compiled loop, or Python's beside the planes written in Python."""
        return "native" if self.variant in ("native", "xdp") else "python"


def parse(words: str, dataplane: str, congestion_control: Sequence[str]) -> tuple[list[Method], set[Method]]:
    """Methods of a comma-separated list, and the rivals among them: of each kind only the best rival is to be measured.

    dataplane: of a bare `switch`. congestion_control: of a bare `gloo` or `ring`; `best` makes rivals of BEST. A method
    named with its variant is no rival, and measured in any case; `kernel` is this machine's default. Raises
    ScenarioError.
    """
    found: list[Method] = []
    named: set[Method] = set()
    rivals: set[Method] = set()
    for word in (word.strip() for word in words.split(",")):
        kind, _, variant = word.partition(":")
        if kind not in KINDS:
            raise ScenarioError(f"--methods: '{word}' is unknown; allowed: {', '.join(KINDS)}, with :VARIANT")
        if kind == "switch":
            variants = [resolve_plane(variant or dataplane)]
        elif variant:
            variants = [check_control(variant)]
            named.add(Method(kind, variants[0]))
        elif "best" in congestion_control:
            variants = list(BEST)
            rivals |= {Method(kind, name) for name in BEST}
        else:
            variants = [check_control(name) for name in congestion_control]
        found += [Method(kind, name) for name in variants]
    return list(dict.fromkeys(found)), rivals - named


def check_control(name: str) -> str:
    """The name, `kernel` resolved. Raises ScenarioError if it is none that TCP could be asked for."""
    if name == "kernel":
        return kernel_control()
    if name not in CONTROLS:
        raise ScenarioError(f"congestion control '{name}' is unknown; allowed: best, kernel, {', '.join(CONTROLS)}")
    return name


def kernel_control() -> str:
    """This machine's default."""
    return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text(encoding="ascii").strip()


def resolve_plane(name: str) -> str:
    """A data plane by name; `auto`: the fastest in user space that loads here. Raises ScenarioError, RunFailed."""
    from switchagg.dataplane import DATAPLANES
    from switchagg.native.library import missing

    if name == "auto":
        return "native" if "native" in DATAPLANES and not missing() else "batched"
    if name not in PLANES:
        raise ScenarioError(f"data plane '{name}' is unknown; allowed: auto, {', '.join(PLANES)}")
    if name in ("native", "xdp") and (reason := missing()):
        raise RunFailed(f"data plane {name}: {reason}")
    return name
