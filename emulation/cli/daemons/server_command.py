"""`switchagg server`: one parameter server of a job, as a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from emulation.cli.daemons import shared_options as shared
from emulation.cli.outcomes import EXIT_USAGE, known, outcomes, stop

if TYPE_CHECKING:
    from transport.group.ps_group import PsOptions, PsServerHost

PARTING_S = 8.0
"""How long an interrupted server stays, so that its workers receive the reason."""

NETWORK = partial(typer.Option, rich_help_panel="Network")

Members = Annotated[
    str, typer.Option(metavar="HOST:PORT,…", help="Addresses of all workers, by rank, separated by commas")
]
Servers = Annotated[
    str, typer.Option(metavar="HOST:PORT,…", help="Addresses of all servers, in the same order everywhere")
]
KEYS = NETWORK(metavar="DIR", help="Folder of `switchagg keys`, over {keys}: only holders can connect, encrypted")
TOKEN_FILE = NETWORK(
    metavar="FILE", help="File with the members' secret  [default: SWITCHAGG_TOKEN, SWITCHAGG_TOKEN_FILE]"
)


def server(
    workers: Members,
    servers: Servers,
    number: Annotated[int, typer.Option("--number", "-n", min=0, help="Place of this server in --servers")] = 0,
    job: Annotated[str, typer.Option(help="Name of the job, as the workers have it")] = "ps",
    method: Annotated[str, typer.Option(help="Method of the workers; only ps has servers")] = "ps",
    link: Annotated[str, NETWORK(help="Link of the workers: {mesh}")] = "zeromq",
    keys: Annotated[Path | None, KEYS] = None,
    token_file: Annotated[Path | None, TOKEN_FILE] = None,
    timeout: Annotated[float, NETWORK(min=1, max=86_400, help="Seconds to wait for all members")] = 300.0,
    metrics: Annotated[str | None, shared.METRICS] = None,
    log_format: Annotated[str, shared.LOG_FORMAT] = "text",
    log_level: Annotated[str, shared.LOG_LEVEL] = "info",
    ready_file: Annotated[Path | None, shared.READY_FILE] = None,
    quiet: Annotated[bool, shared.QUIET] = False,
) -> None:
    """Run a parameter server until its job is done.

    Every server and every worker is started with the same two lists; a member's position in them is its identity. The
    workers bring the configuration (mode, slices, optimiser), which must be the same on all of them.

    **Examples**

    `switchagg server --workers 10.0.0.1:7000,10.0.0.2:7000 --servers 10.0.0.9:7000`

    Two servers on one host: `switchagg server -n 0 --workers … --servers 10.0.0.9:7000,10.0.0.9:7001` and the same
    with `-n 1`

    To refuse unknown senders: `export SWITCHAGG_TOKEN=$(openssl rand -hex 32)`, the same for all workers and servers

    Encrypted: `switchagg keys keys; switchagg server --keys keys --workers … --servers …`, and the same keys for the
    workers, `options=PsOptions(link={"keys": "keys"})`

    On the workers: `open_ps_group("zeromq", rank, workers, servers, job="ps")` of `transport.group.ps_group`, or
    `PsOptimizer` of `transport.torch.ps`

    **Exit code**: 0 the job is done; 1 it failed (one line says why); 130 it was interrupted, and told the workers.
    """
    places = _members(method, workers, servers, number)
    with outcomes():
        _check_link(link, keys)
        from transport.group.ps_group import PsOptions
        from transport.meshes.job_key import job_token
        from transport.meshes.mesh_opening import no_token_text

        events = shared.event_log("switchagg server", log_format, log_level)
        log = _discard if quiet else events.note
        secret = job_token(file=token_file or "")
        options = PsOptions(timeout, token=secret, link={} if keys is None else {"keys": keys}, log=log)
        if keys is None and not secret and (words := no_token_text([*places["--workers"], *places["--servers"]])):
            events.note(words, "exposed", "warning")
        _serve(
            link,
            number,
            places["--workers"],
            places["--servers"],
            job,
            options,
            Reports(ready_file, shared.metrics_option(metrics)),
        )


class Reports(NamedTuple):
    """Where a server reports: a file once it is ready, and an address for Prometheus."""

    ready_file: Path | None
    metrics: tuple[str, int] | None


def _check_link(link: str, keys: Path | None) -> None:
    from transport.group.method_name import links_of
    from transport.links.link_kinds import LINKS, links_with

    known("--link", link, links_of("ps"))
    if keys is not None and not LINKS[link].keys:
        stop(f"--keys: only {', '.join(links_with('keys'))} has keys, not {link}", EXIT_USAGE)


def _members(method: str, workers: str, servers: str, number: int) -> dict[str, list[tuple[str, int]]]:
    """The places of all, by option; exits with one line for what can't be."""
    known("--method", method, ["ps"])
    places = {"--workers": _places("--workers", workers), "--servers": _places("--servers", servers)}
    everybody = [*places["--workers"], *places["--servers"]]
    for place in everybody:
        if everybody.count(place) > 1:
            stop(f"--workers, --servers: {place[0]}:{place[1]} is there twice; every member needs its own", EXIT_USAGE)
    if number >= len(places["--servers"]):
        stop(f"--number {number}: there are {len(places['--servers'])} servers, numbered from 0", EXIT_USAGE)
    return places


@contextmanager
def _metrics(number: int, address: tuple[str, int] | None) -> Iterator[list[PsServerHost]]:
    """Within it, counters of the server in the list are served. Raises SwitchaggError."""
    hosts: list[PsServerHost] = []
    if address is None:
        yield hosts
        return
    from transport.metrics.metrics_server import MetricsServer
    from transport.metrics.worker_metrics import server_families
    from transport.switch.event_log import print_line

    def collect() -> list[Any]:
        return [family for host in hosts for family in server_families(number, host.counters)]

    server = MetricsServer(address, collect, "--metrics")
    print_line(f"switchagg server metrics: {server.url}")
    try:
        yield hosts
    finally:
        server.close()


def _serve(
    link: str,
    number: int,
    workers: list[tuple[str, int]],
    servers: list[tuple[str, int]],
    job: str,
    options: PsOptions,
    reports: Reports,
) -> None:
    """Raises SwitchaggError if the job fails."""
    from transport.group.ps_group import open_ps_server
    from transport.switch.event_log import print_line

    where = f"{servers[number][0]}:{servers[number][1]}"
    met = f"{len(workers)} workers and {len(servers)} servers"
    print_line(f"switchagg server waiting: {link} {where}, job {job!r}, for {met}")
    with _metrics(number, reports.metrics) as measured:
        host = open_ps_server(link, number, workers, servers, job=job, options=options)
        measured.append(host)
        line = f"switchagg server ready: server {number} at {where} ({link}), job {job!r}, {met}"
        _await_end(host, line, job, reports.ready_file)


def _await_end(host: PsServerHost, line: str, job: str, ready_file: Path | None) -> None:
    """Say the line, then serve until the job is done. Raises SwitchaggError if it fails."""
    from switchagg.errors import SwitchaggError
    from transport.switch.event_log import print_line

    try:
        print_line(line)
        if ready_file is not None:
            ready_file.write_text(line + "\n")
        while not host.wait(0.5):
            pass
        if host.failure is not None:
            raise SwitchaggError(f"job {job}: {host.failure}")
        counted = host.counters
        print_line(
            f"switchagg server done: mode {host.config.mode}, {counted.get('pushes', 0)} slices pushed, "
            f"{counted['rx_bytes'] / 1e6:.1f} MB in, {counted['tx_bytes'] / 1e6:.1f} MB out"
        )
    except BaseException as error:
        if not isinstance(error, SwitchaggError):
            host.stop("interrupted" if isinstance(error, KeyboardInterrupt) else str(error))
            host.wait(PARTING_S)
        raise
    finally:
        host.close()


def _places(option: str, text: str) -> list[tuple[str, int]]:
    places = []
    for place in text.split(","):
        host, colon, port = place.strip().rpartition(":")
        if not colon or not host or not port.isdecimal() or not 1 <= int(port) <= 65_535:
            stop(f"{option} {place.strip()[:60]}: not understood; allowed: HOST:PORT,HOST:PORT,…", EXIT_USAGE)
        places.append((host, int(port)))
    return places


def _discard(line: str) -> None:
    pass
