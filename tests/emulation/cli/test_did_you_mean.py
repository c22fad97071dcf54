"""A wrong name gets the known one that it is most like, whatever kind of name a user types."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path

import pytest
from typer.main import get_command

from emulation.cli.command_group import CommandGroup
from emulation.cli.main import app, main
from emulation.cli.start.shipped import shipped as examples
from emulation.experiments.chaos.chaos_options import PLACES
from emulation.experiments.chaos.event_schedule import FAULT_KINDS
from emulation.experiments.reproduce import catalogue
from emulation.experiments.whatif.call_cost import HOST_KEYS
from emulation.scenario import key_reference
from emulation.scenario.profiles.model_profile import shipped as models
from emulation.scenario.profiles.profile_formats import MAKERS
from emulation.scenario.scenario import shipped as scenarios
from emulation.scenario.scenario_tables import FIDELITY_LEVELS
from switchagg.codecs import ARRAY_CODECS, names
from switchagg.controller.quota import PeerQuota
from switchagg.dataplane.plane_kinds import DATAPLANES
from transport.environment import ELSEWHERE, PREFIX, fault_of_variables, variables
from transport.group.method_name import METHODS, links_of
from transport.schedule.schedule_table import POLICIES
from transport.switch.impairments import WORDS
from transport.torch.rendezvous import SwitchOptions

COMMANDS: dict[str, CommandGroup] = {"": get_command(app)}  # type: ignore[dict-item]
COMMANDS |= {name: group for name, group in COMMANDS[""].commands.items() if isinstance(group, CommandGroup)}  # type: ignore[misc]
OPTIONS = [word for parameter in COMMANDS[""].commands["compare"].params for word in parameter.opts if word[:2] == "--"]

KINDS: dict[str, tuple[Iterable[str], Callable[[str], list[str]]]] = {
    "commands": (COMMANDS[""].commands, lambda name: [name]),
    "commands of bench": (COMMANDS["bench"].commands, lambda name: ["bench", name]),
    "commands of p4": (COMMANDS["p4"].commands, lambda name: ["p4", name]),
    "options": (OPTIONS, lambda name: ["compare", "quickstart", name]),
    "scenarios": (scenarios(), lambda name: ["compare", name]),
    "scenarios, tables and keys": (key_reference.names(), lambda name: ["scenarios", name]),
    "keys": (
        [key.name for key in key_reference.tables()["topology"].keys],
        lambda name: ["compare", "quickstart", "--set", f"topology.{name}=1"],
    ),
    "values of keys": (
        ["digits", "images", "text"],
        lambda name: ["compare", "quickstart", "--set", f"workload.name={name}"],
    ),
    "methods": (METHODS, lambda name: ["compare", "quickstart", "--set", f"methods.sim=['{name}']"]),
    "methods of a benchmark": (METHODS, lambda name: ["bench", "hosts", "--ranks", "2", "--methods", name]),
    "codecs": ((*names(), *ARRAY_CODECS), lambda name: ["study", "accuracy", "--codec", name]),
    "schedules": (POLICIES, lambda name: ["whatif", "resnet50", "--methods", f"ring+{name}"]),
    "links": (links_of("switch"), lambda name: ["switch", "--link", name]),
    "data planes": (DATAPLANES, lambda name: ["switch", "--dataplane", name]),
    "faults of links": (WORDS, lambda name: ["switch", "--impair", f"{name}=1%"]),
    "quotas": ([entry.name for entry in fields(PeerQuota)], lambda name: ["switch", "--peer-quota", f"{name}=1"]),
    "models": (models(), lambda name: ["whatif", name]),
    "costs of hosts": (HOST_KEYS, lambda name: ["whatif", "resnet50", "--hosts", name]),
    "fidelity levels": (FIDELITY_LEVELS, lambda name: ["whatif", "resnet50", "--fidelity-level", name]),
    "kinds of sharing": (
        [name for name in MAKERS if len(name) > 2],
        lambda name: ["compare", "quickstart", "--set", f"workload.parallel={name}"],
    ),
    "examples": (examples(), lambda name: ["examples", name]),
    "published results": (catalogue.names(), lambda name: ["reproduce", name]),
    "faults of chaos": (FAULT_KINDS, lambda name: ["chaos", "--kinds", name]),
    "places of chaos": (PLACES, lambda name: ["chaos", "--on", name]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_name_gets_the_known_one_that_it_is_most_like(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    known, words = KINDS[kind]
    name = max(known, key=len)  # of the longest name one letter more than once
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("emulation.testbed.netns.run_in_user_namespace", lambda: None)
    monkeypatch.setattr(sys, "argv", ["switchagg", *words(f"{name[:-1]}{2 * name[-1]}")])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert (ended.value.code, said.count("\n")) == (2, 1), said
    assert f"; did you mean '{name}'?" in said


def test_a_variable_that_looks_like_one_of_ours_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    of_groups = {
        f"{PREFIX}{entry.name.upper()}" for entry in fields(SwitchOptions) if not entry.metadata.get("derived")
    }
    assert {*of_groups, *(f"{PREFIX}{name}" for name in ELSEWHERE)} == set(variables())
    monkeypatch.setenv("SWITCHAGG_OF_SOMEBODY_ELSE", "1")
    assert not fault_of_variables()
    monkeypatch.setenv("SWITCHAGG_METOD", "ring")
    with pytest.raises(ValueError, match=r"SWITCHAGG_METOD is no variable .* did you mean 'SWITCHAGG_METHOD'"):
        SwitchOptions.from_environment()
    monkeypatch.setattr(sys, "argv", ["switchagg", "scenarios"])
    with pytest.raises(SystemExit, match="2"):
        main()
