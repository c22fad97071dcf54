"""Fixtures of pytest: a switch, and jobs on it whose workers are sockets of the test."""

from collections.abc import Callable, Generator, Iterator

import pytest

from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.errors import JobError
from transport.links.addresses import parse_endpoint
from transport.switch.daemon_options import AUTO
from transport.testing.jobs import Job
from transport.testing.joined import JoinedSwitch
from transport.testing.switches import Switch, SwitchUnderTest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("switchagg", "live tests of a switch")
    group.addoption(
        "--dataplane",
        action="append",
        metavar="NAME",
        choices=[AUTO, *DATAPLANES],
        help=f"of the fixture `switch`: {AUTO} (default), {', '.join(DATAPLANES)}; several run each test with each",
    )
    group.addoption(
        "--switch",
        metavar="tcp://HOST:PORT",
        help="instead: a switch that runs somewhere, such as `switchagg switch`, by its control address; ids, "
        "generations and slots of jobs are its own choice",
    )


def pytest_configure(config: pytest.Config) -> None:
    if (control := control_of(config)) is not None:
        if config.getoption("dataplane", None):
            raise pytest.UsageError("--switch has a data plane already: leave --dataplane out")
        try:
            parse_endpoint(control, "--switch")
        except JobError as error:
            raise pytest.UsageError(str(error)) from error
    config.addinivalue_line("markers", "dataplane(name, …): data planes that a test of `switch` runs with")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marks = metafunc.definition.iter_markers("parametrize")
    argument_names = {name.strip() for mark in marks for name in str(mark.args[0]).split(",")}
    names = dataplanes_of(metafunc.config, metafunc.definition)
    if names and "dataplane" in metafunc.fixturenames and "dataplane" not in argument_names:
        metafunc.parametrize("dataplane", names)


def dataplanes_of(config: pytest.Config, item: pytest.Item | None = None) -> list[str]:
    """Those of the command line; else of the mark; none of both: []. The option is there only if the plugin was loaded
    before the command line was read."""
    chosen = config.getoption("dataplane", None)
    mark = item.get_closest_marker("dataplane") if item else None
    return list(dict.fromkeys(chosen or (mark.args if mark else ())))


@pytest.fixture
def dataplane() -> str:
    """Name of the data plane of `switch`: of --dataplane, of the mark `dataplane`, or "auto"."""
    return AUTO


def control_of(config: pytest.Config) -> str | None:
    """--switch, if the plugin was loaded before the command line was read."""
    control: str | None = config.getoption("switch", None)
    return control


@pytest.fixture
def switch(dataplane: str, pytestconfig: pytest.Config) -> Iterator[SwitchUnderTest]:
    """A switch of its own for each test, on loopback; or that of --switch. Override it for a switch of yours: any
    SwitchUnderTest."""
    control = control_of(pytestconfig)
    with Switch(dataplane) if control is None else JoinedSwitch(control) as subject:
        yield subject


@pytest.fixture
def job(switch: SwitchUnderTest) -> Callable[..., Job]:
    """Admits a job on `switch`: `job(workers=3, elements=8, generation=5)`, as `SwitchUnderTest.job`."""
    return switch.job


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows what the switch said and counted."""
    report = yield
    switch = getattr(item, "funcargs", {}).get("switch")
    if report.when == "call" and report.failed and isinstance(switch, SwitchUnderTest):
        report.sections.append(("switch", switch.report()))
    return report
