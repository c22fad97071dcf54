"""Who imports whom: the core, packages, heavy libraries, and no cycles; test_rooms.py has the rooms.

Each check is a function from a tree of files to the faults found; each is shown a tree it must reject.
"""

import ast
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from repository_tree import Tree, imported, module_name, parsed, python_files, repository, run_time_nodes

CORE = {
    "wire",
    "job",
    "priority",
    "codecs",
    "aggregator",
    "endpoint",
    "window",
    "pacing",
    "errors",
    "calls",
    "partial_endpoint",
    "description",
    "layout",
    "option_syntax",
    "tag",
}
# Time, chance and input are parameters of the core; see ARCHITECTURE.md.
NOT_IN_CORE = {"time", "random", "socket", "threading", "asyncio", "logging"}
KEPT_APART = {"switchagg.aggregator": "endpoint", "switchagg.endpoint": "aggregator"}
MAY_NOT_IMPORT = {
    "switchagg": {"transport", "emulation"},
    "p4": {"switchagg", "transport", "emulation"},
    "transport": {"emulation"},
}
# Where a heavy or optional library may be imported; None: in tests alone. A folder ends in a slash.
HOMES: dict[str, tuple[str, ...]] = {
    "torch": (
        "transport/torch/",
        "examples/",
        "emulation/workloads/",
        "emulation/testbed/trainers/trainer.py",
        "emulation/testbed/trainers/ddp_trainer.py",
        "emulation/testbed/trainers/fsdp_trainer.py",
        "emulation/testbed/trainers/tensor_trainer.py",
        "emulation/testbed/trainers/pace.py",
        "emulation/experiments/bench/allreduce/gloo.py",
        "emulation/experiments/bench/hosts/hosts_rank.py",
        "emulation/experiments/study/method_training.py",
        "emulation/experiments/chaos/chaos_rank.py",
        "emulation/experiments/chaos/known_sums.py",
        "emulation/experiments/tryout/try_rank.py",
        "tools/bench/killed_training.py",
        "tools/bench/sharding_rank.py",  # the baseline is Gloo itself
    ),
    "zmq": (
        "tools/bench/plain_zeromq.py",  # the baseline is pyzmq itself
        "transport/control/",
        "transport/zeromq/",
    ),
    "mininet": ("emulation/testbed/mininet/emulated_network.py", "examples/mininet_workers.py"),
    "p4vm": ("p4/", "switchagg/dataplane/p4/", "emulation/cli/", "tools/bench/", "examples/"),
    "prometheus_client": ("transport/metrics/", "transport/switch/"),
    "lark": ("p4/p4vm/front/",),
    "pcpp": ("p4/p4vm/front/preprocess.py",),
    "scapy": ("tools/scapy/",),
    "pytest": (
        "transport/testing/fixtures.py",
        "transport/testing/vector_files.py",
        "examples/packet_test/",
        "examples/p4/",
    ),
    "grpc": ("p4/p4vm/p4runtime/",),
    "google": ("p4/p4vm/p4runtime/",),
    "p4": ("p4/p4vm/p4runtime/",),
}
DOOR, BEHIND_IT = "switchagg/testing/__init__.py", "transport.testing"  # users' name for what lies in a room above
NEEDS = {  # beside the standard library
    "switchagg": {"switchagg", "numpy", "p4vm"},
    "p4": {"p4vm", "numpy", "lark", "pcpp", "typer", "grpc", "google", "p4"},
}


def wrong_in_core(own: str, target: str) -> str | None:
    """What is wrong with core module `own` importing `target`."""
    package, _, rest = target.partition(".")
    if package in NOT_IN_CORE:
        return "time, chance and input are parameters of the core"
    if package == "switchagg":
        other = rest.partition(".")[0]
        if other not in CORE:
            return "the core imports only the core"
        if KEPT_APART.get(f"switchagg.{own}") == other:
            return "aggregator and endpoint share only wire, job and errors"
        return None
    return None if package == "numpy" or package in sys.stdlib_module_names else "the core needs numpy only"


def wrong_import(name: str, target: str) -> str | None:
    """What is wrong with file `name` importing `target`, or None."""
    path, top, package = Path(name), Path(name).parts[0], target.partition(".")[0]
    if top == "tests" or (name.startswith("p4/tests/") and package not in MAY_NOT_IMPORT[top]):
        return None
    if package in {"tests", "conftest"}:
        return "nothing imports tests"
    if top != "examples" and f"{target}.".startswith(f"{module_name(DOOR)}."):
        return f"a door for users; import {BEHIND_IT}"
    if name == DOOR and target.startswith(f"{BEHIND_IT}."):
        return None
    if package in MAY_NOT_IMPORT.get(top, ()):
        return f"{top} is below {package}"
    if package in HOMES and not any(
        name.startswith(home) if home.endswith("/") else name == home for home in HOMES[package]
    ):
        return f"{package} is imported only in {', '.join(HOMES[package]) or 'tests'}"
    if path.parent.as_posix() == "switchagg" and path.stem in CORE:
        return wrong_in_core(path.stem, target)
    if path.is_relative_to("switchagg/codecs") or path.is_relative_to("switchagg/option_syntax/"):
        return wrong_in_core("codecs", target)
    if top in NEEDS and package not in NEEDS[top] | sys.stdlib_module_names:
        return f"{top} needs {', '.join(sorted(NEEDS[top] - {top, 'p4vm'}))} only"
    return None


def wrong_imports(tree: Tree) -> list[str]:
    return [
        f"{name}:{line}: imports {target}: {fault}"
        for name, module in python_files(tree)
        for line, target in imported(name, ast.walk(module))
        if (fault := wrong_import(name, target))
    ]


# ---- import cycles

TOPS = ("switchagg", "p4/p4vm", "transport", "emulation")


def import_cycles(tree: Tree) -> list[str]:
    """Modules that import each other, by whatever ways, at load or inside functions."""
    ours = [name for name in tree if name.endswith(".py") and name.startswith(TOPS)]
    files = {module_name(name): (name, parsed(tree[name])) for name in ours}
    imports: dict[str, set[str]] = {}
    for own, (name, module) in files.items():
        targets = {target for _, target in imported(name.removeprefix("p4/"), run_time_nodes(module))}
        named = {target if target in files else target.rpartition(".")[0] for target in targets}
        imports[own] = (named & files.keys()) - {own}
    reached: dict[str, set[str]] = {}
    for start in files:
        pending, seen = [start], reached.setdefault(start, set())
        while pending:
            new = imports[pending.pop()] - seen
            seen |= new
            pending += new
    cycles = {frozenset(other for other in seen if start in reached[other]) for start, seen in reached.items()}
    remedy = "move what both need to one of them, or below both"
    return [f"{' <-> '.join(sorted(cycle))}: {remedy}" for cycle in cycles if cycle]


# ---- the tests

CHECKS: list[Callable[[Tree], list[str]]] = [wrong_imports, import_cycles]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_repository_has_none_of(check: Callable[[Tree], list[str]]) -> None:
    assert len(repository()) > 10, "the list of files came back nearly empty"
    assert check(repository()) == []


REJECTED: list[tuple[Callable[[Tree], list[str]], Tree]] = [
    (wrong_imports, {"switchagg/endpoint.py": "import time"}),
    (wrong_imports, {"switchagg/endpoint.py": "def f():\n    from random import random"}),
    (wrong_imports, {"switchagg/endpoint.py": "from switchagg.aggregator import Aggregator"}),
    (wrong_imports, {"switchagg/aggregator.py": "from . import endpoint"}),
    (wrong_imports, {"switchagg/aggregator.py": "from .endpoint import Endpoint"}),
    (wrong_imports, {"switchagg/wire.py": "from switchagg.controller.admission import Controller"}),
    (wrong_imports, {"switchagg/wire.py": "import msgspec"}),
    (wrong_imports, {"switchagg/dataplane/reference.py": "import msgspec"}),
    (wrong_imports, {"switchagg/dataplane/p4.py": "import lark"}),
    (wrong_imports, {"switchagg/dataplane/native.py": "def f():\n    import p4vm.engine"}),
    (wrong_imports, {"p4/p4vm/front/preprocess.py": "import msgspec"}),
    (wrong_imports, {"p4/p4vm/source.py": "from switchagg.errors import SwitchaggError"}),
    (wrong_imports, {"p4/tests/test_engine.py": "from emulation.cli.main import app"}),
    (wrong_imports, {"p4/p4vm/engine.py": "from switchagg.job import JobConfig"}),
    (wrong_imports, {"switchagg/controller/admission.py": "import transport.links.link"}),
    (wrong_imports, {"switchagg/__init__.py": "from emulation.scenario import scenario"}),
    (wrong_imports, {"switchagg/testing/__init__.py": "from transport.worker.session import SwitchSession"}),
    (wrong_imports, {"switchagg/dataplane/native.py": "from transport.testing.jobs import Job"}),
    (wrong_imports, {"transport/worker/session.py": "from switchagg.testing import Switch"}),
    (wrong_imports, {"transport/testing/switches.py": "import pytest"}),
    (wrong_imports, {"transport/worker/session.py": "from emulation.scenario.scenario import Scenario"}),
    (wrong_imports, {"transport/worker/session.py": "import torch.distributed as dist"}),
    (wrong_imports, {"transport/worker/session.py": "import zmq"}),
    (wrong_imports, {"transport/links/udp_link.py": "from mininet.net import Mininet"}),
    (wrong_imports, {"emulation/report/comparison_report.py": "from scapy.all import IP"}),
    (wrong_imports, {"emulation/report/comparison_report.py": "from tests.conftest import SEEDS_DEFAULT"}),
    (import_cycles, {"transport/a.py": "import transport.b", "transport/b.py": "from transport import a"}),
    (
        import_cycles,
        {
            "p4/p4vm/a.py": "from p4vm.room import c",
            "p4/p4vm/room/__init__.py": "",
            "p4/p4vm/room/b.py": "def f():\n    from p4vm.a import g",
            "p4/p4vm/room/c.py": "from .b import f",
        },
    ),
]


@pytest.mark.parametrize(("check", "bad"), REJECTED, ids=lambda value: getattr(value, "__name__", ""))
def test_rejects(check: Callable[[Tree], list[str]], bad: Tree) -> None:
    assert len(check(bad)) == 1


ACCEPTED: Tree = {
    "switchagg/wire.py": '"""Packets."""\nimport struct\n\nimport numpy as np\n\nfrom .job import JobConfig\n',
    "switchagg/endpoint.py": "from switchagg import wire\nfrom switchagg.errors import DecodeError\n",
    "switchagg/dataplane/reference.py": "import logging\n\nfrom switchagg.aggregator import Aggregator\n",
    "switchagg/dataplane/p4/p4.py": "from switchagg.job import JobConfig\n\nfrom p4vm.engine import Engine\n",
    "transport/torch/hook.py": "import torch\n\nfrom transport.worker.session import SwitchSession\n",
    "emulation/a.py": "from emulation import b\n",
    "emulation/b.py": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from emulation import a\n",
    "switchagg/testing/__init__.py": "from transport.testing.jobs import Job\n",
    "tests/test_hook.py": "import scapy.all\nimport torch\n\nfrom emulation.scenario import scenario\n",
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_accepts(check: Callable[[Tree], list[str]]) -> None:
    assert check(ACCEPTED) == []
