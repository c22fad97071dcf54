"""Fixtures of pytest: a switch, jobs on it whose workers are sockets of the test, sequences under faults; and a table
of verdicts at the end of the run."""

from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.errors import JobError, SwitchaggError
from transport.links.addresses import parse_endpoint
from transport.switch.daemon_options import AUTO
from transport.testing.jobs import Job
from transport.testing.joined import JoinedSwitch
from transport.testing.sequences import MIXTURES, UnderFaults
from transport.testing.switches import Switch, SwitchUnderTest
from transport.testing.verdict_table import PacketTally, VerdictRow, by_switch, lines_of, without_repeats, write_csv

ALL = "all"
"""In place of data planes' names: each that can run here; the others are skipped, with the reason."""

ROWS_MOST = 60
"""A longer table has a row for each switch."""

ROW = "switchagg"
"""The property of a report that has its row of the table."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("switchagg", "live tests of a switch")
    group.addoption(
        "--dataplane",
        action="append",
        metavar="NAME",
        choices=[AUTO, ALL, *DATAPLANES],
        help=f"of the fixture `switch`: {AUTO} (default), {', '.join(DATAPLANES)}; several run each test with each; "
        f"{ALL}: each that can run here",
    )
    group.addoption(
        "--switch",
        metavar="tcp://HOST:PORT",
        help="instead: a switch that runs somewhere, such as `switchagg switch`, by its control address; ids, "
        "generations and slots of jobs are its own choice",
    )
    group.addoption(
        "--fault-seed", type=int, default=0, metavar="S", help="of `under_faults`: the same seed gives the same faults"
    )
    group.addoption(
        "--fault-mixtures",
        type=int,
        default=MIXTURES,
        metavar="N",
        help=f"of `under_faults`: how many mixtures of faults a sequence meets, beside each single one [{MIXTURES}]",
    )
    group.addoption(
        "--verdicts", type=Path, metavar="FILE.csv", help="write the table of verdicts and counters to this file, too"
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
    names = dataplanes_of(metafunc.config, metafunc.definition) if control_of(metafunc.config) is None else []
    if names and "dataplane" in metafunc.fixturenames and "dataplane" not in argument_names:
        metafunc.parametrize("dataplane", names)


def dataplanes_of(config: pytest.Config, item: pytest.Item | None = None) -> list[str]:
    """Those of the command line; else of the mark; none of both: []. The option is there only if the plugin was loaded
    before the command line was read."""
    names = _chosen(config, item)
    return list(dict.fromkeys(name for choice in names for name in (DATAPLANES if choice == ALL else [choice])))


def may_skip(config: pytest.Config, item: pytest.Item | None = None) -> bool:
    """Whether a data plane that can't run here is left out: it was not asked for by its name."""
    return ALL in _chosen(config, item)


def _chosen(config: pytest.Config, item: pytest.Item | None) -> list[str]:
    mark = item.get_closest_marker("dataplane") if item else None
    return list(config.getoption("dataplane", None) or (mark.args if mark else ()))


@pytest.fixture
def dataplane() -> str:
    """Name of the data plane of `switch`: of --dataplane, of the mark `dataplane`, or "auto"."""
    return AUTO


def control_of(config: pytest.Config) -> str | None:
    """--switch, if the plugin was loaded before the command line was read."""
    control: str | None = config.getoption("switch", None)
    return control


@pytest.fixture
def switch(dataplane: str, request: pytest.FixtureRequest) -> Iterator[SwitchUnderTest]:
    """A switch of its own for each test, on loopback; or that of --switch. Override it for a switch of yours: any
    SwitchUnderTest."""
    control = control_of(request.config)
    try:
        subject = Switch(dataplane) if control is None else JoinedSwitch(control)
    except SwitchaggError as error:
        if may_skip(request.config, request.node):
            pytest.skip(str(error))
        raise
    with subject:
        yield subject


@pytest.fixture
def job(switch: SwitchUnderTest) -> Callable[..., Job]:
    """Admits a job on `switch`: `job(workers=3, elements=8, generation=5)`, as `SwitchUnderTest.job`."""
    return switch.job


@pytest.fixture
def under_faults(switch: SwitchUnderTest, pytestconfig: pytest.Config) -> UnderFaults:
    """Runs a sequence of packets on `switch` under loss, repetition and reordering, as `UnderFaults`."""
    seed, mixtures = (pytestconfig.getoption(name, None) for name in ("fault_seed", "fault_mixtures"))
    return UnderFaults(switch, seed or 0, MIXTURES if mixtures is None else mixtures)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows what the switch said and counted; one whose switch can't be made, as of a P4 program with an
    error, why in one line. Each report of a test of a switch has its row."""
    report = yield
    switch = getattr(item, "switch", None) or getattr(item, "funcargs", {}).get("switch")
    if not isinstance(switch, SwitchUnderTest):
        switch = None
    if report.when == "call" and report.failed and switch is not None and hasattr(item, "funcargs"):
        report.sections.append(("switch", switch.report()))
    concerned = "switch" in getattr(item, "fixturenames", ()) or hasattr(item, "switch")
    error = call.excinfo.value if call.excinfo else None
    if concerned and report.when == "setup" and isinstance(error, SwitchaggError):
        report.longrepr = str(error)
    called = report.when == "call" and switch is not None  # others may have a fixture of this name
    if called or (concerned and report.when == "setup" and not report.passed):
        report.user_properties.append((ROW, _row_of(item, report, switch).saved()))
    return report


def _row_of(item: pytest.Item, report: pytest.TestReport, switch: SwitchUnderTest | None) -> VerdictRow:
    case = getattr(item, "callspec", None)
    plane = case.params.get("dataplane", "") if case else item.name if hasattr(item, "switch") else "not made"
    title = switch.title if switch else str(plane)
    name = item.nodeid.replace(f"[{case.id}]", "") if case and "dataplane" in case.params else item.nodeid
    why = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
    verdict = "error" if report.when == "setup" and report.failed else report.outcome
    return VerdictRow(name, title, verdict, why, switch.tally if switch else PacketTally())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table: a row for each test on each switch; for each switch if there are many, or with -q."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    reports = sorted(
        (report for report in reports if isinstance(report, pytest.TestReport)), key=lambda report: report.start
    )
    rows = [VerdictRow.of(saved) for report in reports for name, saved in report.user_properties if name == ROW]
    if not rows:
        return
    terminalreporter.section("verdicts")
    short = len(rows) > ROWS_MOST or terminalreporter.verbosity < 0
    for line in lines_of(by_switch(rows) if short else without_repeats(rows)):
        terminalreporter.write_line(line)
    if path := config.getoption("verdicts", None):
        write_csv(path, rows)
        terminalreporter.write_line(f"{path}: {len(rows)} tests")
