"""An exercise of the P4 tutorials (p4lang/tutorials), read as its folder has it: topology.json, entries, programs.

Of its Makefile the two lines are read that say which topology and which program it is about.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emulation.testbed import netns
from emulation.testbed.mininet import emulated_network
from emulation.testbed.mininet.shaping import UnfitError
from emulation.testbed.mn_cli import mn_nodes

_MAKE_LINE = r"^{}\s*[?:]?=\s*(\S+)"
_SWITCH_KEYS = {"program", "runtime_json", "cli_input"}
_END = re.compile(r"([A-Za-z]\w*)(?:-p(\d+))?")
_DELAY = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s)?")


@dataclass(frozen=True)
class ExerciseLink:
    """port_a, port_b: None at a host. delay: as tc reads it, "" for none. mbit: None for as fast as the machine is."""

    a: str
    b: str
    port_a: int | None
    port_b: int | None
    delay: str = ""
    mbit: float | None = None


@dataclass
class Exercise:
    """hosts: name -> ip, mac, commands. switches: name -> program, and json, commands (files of entries)."""

    hosts: dict[str, dict[str, Any]] = field(default_factory=dict)
    switches: dict[str, dict[str, str]] = field(default_factory=dict)
    links: list[ExerciseLink] = field(default_factory=list)


def read(folder: str | Path, first: str = "", layout: str = "") -> Exercise:
    """The exercise in `folder`. first: a folder in it (such as solution) whose programs and entries go before those of
    the same name elsewhere; layout: its topology file, where not the Makefile's. Raises UnfitError, one line."""
    home = Path(folder)
    if not home.is_dir():
        raise UnfitError(f"{home}: no folder; expected that of an exercise, with a topology.json")
    makefile = home / "Makefile"
    make = makefile.read_text(encoding="utf-8") if makefile.exists() else ""
    path = home / (layout or _assigned(make, "TOPO") or "topology.json")
    content = _content(path)
    exercise = Exercise()
    try:
        for name, host in content["hosts"].items():
            exercise.hosts[name] = {"ip": host["ip"], "mac": host["mac"], "commands": list(host.get("commands", ()))}
        for name, switch in content["switches"].items():
            exercise.switches[name] = _switch(home, first, name, switch, _assigned(make, "DEFAULT_PROG"))
        exercise.links = [_link(words) for words in content["links"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise UnfitError(f"{path}: no topology of the tutorials: {error!r}") from None
    except UnfitError as error:
        raise UnfitError(f"{path}: {error}") from None
    strange = (
        {end for link in exercise.links for end in (link.a, link.b)} - set(exercise.hosts) - set(exercise.switches)
    )
    if strange:
        raise UnfitError(f"{path}: a link to {min(strange)}, which is neither a host nor a switch")
    return exercise


def _assigned(make: str, name: str) -> str:
    match = re.search(_MAKE_LINE.format(name), make, re.MULTILINE)
    return match.group(1) if match else ""


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnfitError(f"{path}: can't be read: {error.strerror}") from None
    except ValueError as error:
        raise UnfitError(f"{path}: no JSON: {error}") from None
    if not isinstance(content, dict):
        raise UnfitError(f"{path}: expected {{hosts, switches, links}}")
    return content


def _switch(home: Path, first: str, name: str, content: dict[str, str], program: str) -> dict[str, str]:
    strange = sorted(set(content) - _SWITCH_KEYS)
    if strange == ["cpu_port"]:
        raise UnfitError(f"{name} has a cpu_port: its controller speaks P4Runtime; see docs/p4.md, make run")
    if strange:
        raise UnfitError(f"{name}: '{strange[0]}' is unknown here; expected some of {', '.join(sorted(_SWITCH_KEYS))}")
    if "program" in content:
        program = f"{Path(content['program']).stem}.p4"  # its compiled form is what they name
    if not program:
        programs = sorted(path.name for path in home.glob("*.p4"))
        if len(programs) != 1:
            raise UnfitError(
                f"{name}: which program? {home} has {', '.join(programs) or 'none'}; name it by DEFAULT_PROG"
            )
        program = programs[0]
    files = {"program": _file(home, first, name, program)}
    for key, option in (("runtime_json", "json"), ("cli_input", "commands")):
        if key in content:
            files[option] = _file(home, first, name, content[key])
    return files


def _file(home: Path, first: str, name: str, file: str) -> str:
    places = [home / first / Path(file).name] if first else []
    places.append(home / file)
    for place in places:
        if place.is_file():
            return str(place.resolve())
    raise UnfitError(f"{name}: there is no {' and no '.join(map(str, places))}")


def _link(words: Any) -> ExerciseLink:
    """[end, end, latency, Mb/s], the last two optional; a latency without unit is in ms."""
    if not isinstance(words, list) or not 2 <= len(words) <= 4:
        raise UnfitError(f"link {words}: expected [node, node, latency, Mb/s], the last two optional")
    ends = [_END.fullmatch(str(word)) for word in words[:2]]
    delay = _DELAY.fullmatch(str(words[2] if len(words) > 2 else 0))
    if not all(ends) or delay is None:
        raise UnfitError(f"link {words}: expected ends like h1 and s1-p2, and a latency like 5 (ms) or 5ms")
    (a, port_a), (b, port_b) = ((end.group(1), int(end.group(2) or 0)) for end in ends if end is not None)
    latency = f"{delay.group(1)}{delay.group(2) or 'ms'}" if float(delay.group(1)) else ""
    return ExerciseLink(a, b, port_a or None, port_b or None, latency, words[3] if len(words) == 4 else None)


class ExerciseHost(emulated_network.WorkerHost):
    """Its interface is eth0, and sends no bundles and no IPv6; then it gets the exercise's own commands."""

    def __init__(self, name: str, commands: tuple[str, ...] = (), **params: Any) -> None:
        self.commands = commands
        super().__init__(name, **params)

    def config(self, **params: Any) -> dict[str, Any]:
        result = super().config(**params)
        self.defaultIntf().rename("eth0")
        netns.run_script(self.pid, "ethtool -K eth0 rx off tx off sg off > /dev/null 2>&1 || :")
        for command in self.commands:
            if output := self.cmd(command).strip():
                print(f"{self.name}: {command}: {output}", file=sys.stderr)
        return result


class ExerciseTopo(emulated_network.Topo):
    """`--topo switchagg_exercise,FOLDER[,FIRST][,layout=FILE]`: see `read`."""

    def build(self, folder: str = ".", first: str = "", layout: str = "") -> None:
        exercise = read(folder, first, layout)
        for name, files in exercise.switches.items():
            self.addSwitch(name, **files)
        for name, host in exercise.hosts.items():
            self.addHost(name, cls=ExerciseHost, **host)
        for link in exercise.links:
            settings = {"delay": link.delay or None, "bw": link.mbit}
            shape = {word: value for word, value in settings.items() if value is not None}
            self.addLink(link.a, link.b, link.port_a, link.port_b, cls=mn_nodes.FastLink, **shape)
