"""A link is one file and one line in the table: a toy (toy_link.py) works everywhere without another edit."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from emulation.cli.daemons.switch_command import _check_choices
from emulation.cli.main import app
from emulation.experiments.bench.bench_figures import LINK_LINES
from emulation.scenario.bounds import elements_of, payload_share
from transport.group.group_opening import open_group
from transport.group.method_name import METHODS, MethodName, links_of, parse
from transport.links.link_kinds import LINKS
from transport.meshes.mesh_opening import bind_place
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession

ROOT = Path(__file__).resolve().parents[3]
SOON_S = 120.0


@pytest.fixture
def toy() -> Iterator[None]:
    from tests.transport.links.toy_link import TOY

    LINKS["toy"] = TOY
    yield
    del LINKS["toy"]


@pytest.mark.parametrize("name", LINKS)
def test_everything_the_table_names_exists(name: str) -> None:
    kind = LINKS[name]
    ends = [end for end in ("link", "place", "mesh", "switch", "worker") if getattr(kind, end)]
    assert all(callable(kind.opener(end)) for end in ends)
    assert ends
    kind.check_elements(kind.elements)


@pytest.mark.usefixtures("toy")
def test_method_names_include_it() -> None:
    assert all(links_of(method)[-1] == "toy" for method, one in METHODS.items() if one.end in ("mesh", "switch"))
    assert parse("ring@toy") == MethodName("ring", "toy")
    assert elements_of(parse("switch@toy"), 360, 1500) == 360
    assert payload_share(parse("ring@toy"), 360, 1500) == payload_share(parse("ring@udp"), 360, 1500)
    _check_choices("native", "toy", None)  # of the command line
    for command in ("switch", "server"):
        assert "rdma" in (said := CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).stdout)
        assert "toy" in said
    assert LINK_LINES.keys() >= set(LINKS) - {"toy"}  # as they were when it was imported


@pytest.mark.usefixtures("toy")
def test_the_switch_sums_over_it() -> None:
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), link="toy")) as daemon:

        def run(rank: int) -> list[float]:
            with SwitchSession.join(daemon.control_endpoint, "toy", rank, 2, JoinOptions(link="toy")) as session:
                assert session.job.elements == 100
                found: list[float] = session.allreduce(np.full(500, rank + 1, np.float32)).result(SOON_S).tolist()
                return found

        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(run, range(2))) == [[3.0] * 500] * 2


@pytest.mark.usefixtures("toy")
def test_host_methods_sum_over_it() -> None:
    places = [bind_place("toy", "127.0.0.1") for _ in range(3)]

    def run(rank: int) -> list[int]:
        group = open_group("ring", "toy", rank, [place.address for place in places], job="toy", bound=places[rank])
        try:
            found: list[int] = group.allreduce(np.full(1000, rank)).result(SOON_S).tolist()
            return found
        finally:
            group.close()

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(run, range(3))) == [[3] * 1000] * 3


def test_it_satisfies_the_contracts_of_links_and_meshes() -> None:
    """All but what is seen from another process, which the plugin isn't in."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.transport.links.toy_link"]
    command += ["tests/transport/contracts/test_link_contract.py", "tests/transport/contracts/test_mesh_contract.py"]
    command += ["-k", "[toy and not killed_process"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.split(" passed")[0].split()[-1]) > 40, done.stdout
