"""`switchagg switch`, which runs a switch for real workers, and `switchagg status`, which asks one."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from emulation.cli.daemons import shared_options as shared
from emulation.cli.daemons.shared_options import check_endpoint, event_log, keys_in, metrics_option
from emulation.cli.outcomes import EXIT_FAILED, EXIT_USAGE, known, outcomes, stop
from switchagg.dataplane.plane_kinds import DATAPLANES

if TYPE_CHECKING:
    from switchagg.controller.quota import PeerQuota
    from transport.switch.impairments import Impairments

PLANES = "; ".join(
    ("auto: the fastest that works here", *(f"{kind.name}: {kind.summary}" for kind in DATAPLANES.values()))
)
PACKETS, MEMBERS, RACKS, FAULTS = (
    partial(typer.Option, rich_help_panel=panel)
    for panel in ("Packets", "Workers and their jobs", "Racks: a tree of switches", "Faults, for experiments")
)

CONTROL = typer.Option(
    metavar="tcp://HOST:PORT",
    help=f"Address that workers join at  [default: {shared.SWITCH}; with --keys all addresses of this host]",
)
DATA = typer.Option(
    metavar="HOST:PORT",
    help="Address of the data plane  [default: the host of --control, and port 5556, a free one or the link's]",
)
LINK = typer.Option(help="Transport of the packets: {switch}")
KEYS = typer.Option(
    metavar="DIR",
    help="Folder of `switchagg keys`. Only holders of its keys can connect, and traffic is encrypted (over "
    "{without_keys}: control messages only)",
)
SLOTS = typer.Option(min=1, max=65_536, help="Slots for all jobs together")
ELEMENTS = PACKETS(
    min=1, max=16_000, help="Most int32 values in a packet  [default: {elements}: what fills an MTU of 1500]"
)
SEGMENTS = PACKETS(min=1, max=64, help="Packets per send; a shaper must have room for such a burst")
BUNDLE = PACKETS(
    min=1,
    max=128,
    help="Over {messages}: most packets in a message of results; workers on the kernel's rxe need 1  [default: 16]",
)
INTERFACE = PACKETS(help="Interface that the data plane xdp attaches to; may be repeated  [default: by --data]")
MULTICAST = PACKETS(metavar="INTERFACE", help="Send each result once; the kernel copies it at this interface (BPF)")
ADVERTISE = MEMBERS(metavar="HOST:PORT", help="Data address that workers are given, if it isn't the one of --data")
LEASE = MEMBERS(min=1, max=3600, help="A worker that is silent for so many seconds counts as dead")
DRAIN = MEMBERS(min=0, max=3600, help="After SIGTERM, jobs may leave for so many seconds")
PEER_QUOTA = MEMBERS(
    metavar="QUOTA",
    help="Most that one address may have (127.0.0.1 is exempt); job_slots limits every job  [default: "
    "joins=256,jobs=64,slots=half of --slots]",
)
PARENT = RACKS(metavar="tcp://HOST:PORT", help="Control address of the switch above; this one serves a rack below it")
NAME = RACKS(help="With --parent: the name that its workers set in SWITCHAGG_VIA  [default: its data address]")
IMPAIR = FAULTS(metavar="FAULTS", help="Bad links in both directions, like loss=1%,delay=1ms; for native (xdp: loss)")
IMPAIR_UP = FAULTS(metavar="FAULTS", help="The same from workers to the switch only; it overrides --impair")
IMPAIR_DOWN = FAULTS(metavar="FAULTS", help="The same from the switch to workers only; it overrides --impair")

SWITCH_HELP = """Run a switch on this host; workers need only its address.

It runs until Ctrl-C; after SIGTERM its jobs may leave first. Without keys it serves this host alone, until you name an
address that other hosts reach: then these hosts may forge packets.

**Examples**

`switchagg switch`

`switchagg switch --control tcp://10.0.0.1:5555` : for workers on other hosts

`sudo $(which switchagg) switch --dataplane xdp --control tcp://10.0.0.1:5555 --data 10.0.0.1:5556 --interface eth0`

`switchagg keys keys; switchagg switch --link zeromq --keys keys` : encrypted; the workers need keys, too

`switchagg switch --impair "rate=200mbit,delay=1ms,jitter=100us,queue=1mb,ecn=200kb" --impair-down loss=1%`

`switchagg switch --metrics 9464 --log-format json` : counters for Prometheus, on this host; events as lines of JSON

On the workers: `SWITCHAGG_SWITCH=tcp://10.0.0.1:5555 torchrun ... train.py`

**Keys of --impair**: loss, duplicate, reorder, corrupt (a share of packets), delay, jitter, span (how late reordered
packets are), rate, queue, ecn (bytes in the queue above which packets are marked), seed"""


def switch(
    control: Annotated[str | None, CONTROL] = None,
    data: Annotated[str | None, DATA] = None,
    link: Annotated[str, LINK] = "udp",
    dataplane: Annotated[str, typer.Option(help=PLANES)] = "auto",
    keys: Annotated[Path | None, KEYS] = None,
    slots: Annotated[int, SLOTS] = 4096,
    advertise: Annotated[str | None, ADVERTISE] = None,
    lease: Annotated[float, LEASE] = 4.0,
    drain: Annotated[float, DRAIN] = 5.0,
    peer_quota: Annotated[str | None, PEER_QUOTA] = None,
    elements: Annotated[int | None, ELEMENTS] = None,
    segments: Annotated[int, SEGMENTS] = 16,
    packets: Annotated[int | None, BUNDLE] = None,
    interface: Annotated[list[str] | None, INTERFACE] = None,
    multicast: Annotated[str, MULTICAST] = "",
    metrics: Annotated[str | None, shared.METRICS] = None,
    metrics_names: Annotated[bool, shared.METRICS_NAMES] = False,
    log_format: Annotated[str, shared.LOG_FORMAT] = "text",
    log_level: Annotated[str, shared.LOG_LEVEL] = "info",
    ready_file: Annotated[Path | None, shared.READY_FILE] = None,
    quiet: Annotated[bool, shared.QUIET] = False,
    parent: Annotated[str | None, PARENT] = None,
    name: Annotated[str, NAME] = "",
    impair: Annotated[str | None, IMPAIR] = None,
    impair_up: Annotated[str | None, IMPAIR_UP] = None,
    impair_down: Annotated[str | None, IMPAIR_DOWN] = None,
) -> None:
    with outcomes():
        from transport.switch.daemon import run_switch
        from transport.switch.daemon_options import DaemonOptions

        _check_choices(dataplane, link, packets)
        options = DaemonOptions(
            **_switch_addresses(control, data, parent, dataplane, link, loaded := keys_in(keys)),
            link=link,
            keys=loaded,
            packets=packets or DaemonOptions.packets,
            dataplane=dataplane,
            slots=slots,
            elements=elements,
            advertise=None if advertise is None else _host_port("--advertise", advertise),
            lease_s=lease,
            drain_s=drain,
            peer_quota=_peer_quota(peer_quota or ""),
            segments_max=segments,
            multicast=multicast,
            parent=parent or "",
            name=name,
            metrics=metrics_option(metrics),
            metrics_names=metrics_names,
            interfaces=interface or (),
            impairments=_impairments(impair, impair_up, impair_down),
        )
        log = event_log("switchagg switch", log_format, log_level)
        status = run_switch(options, ready_file=ready_file, quiet=quiet, log=log)
    raise typer.Exit(status)


def _switch_addresses(
    control: str | None, data: str | None, parent: str | None, dataplane: str, link: str, keys: Any
) -> dict[str, Any]:
    """Control and data address, as named or by default, and whether a free port will do: where none is named, but for
    the control port of a root, which workers have to know."""
    from transport.links.link_kinds import LINKS
    from transport.switch.daemon_options import default_addresses

    if control is not None:
        check_endpoint("--control", control)
    bind_control, bind_data = default_addresses(dataplane, link, keys, control or _facing(parent))
    return {
        "bind_control": bind_control,
        "bind_data": bind_data if data is None else _host_port("--data", data),
        "any_control_port": control is None and parent is not None,
        "any_data_port": data is None and LINKS[link].port is None,
    }


def _facing(parent: str | None) -> str | None:
    """Control address of a switch below another, where none is named: on the way to it."""
    from transport.links.addresses import facing, parse_endpoint, resolve_host
    from transport.switch.daemon_options import CONTROL_PORT

    if parent is None:
        return None
    check_endpoint("--parent", parent)
    host, port = parse_endpoint(parent)
    local_host = facing(resolve_host(host), port)
    return f"tcp://{local_host}:{0 if (local_host, CONTROL_PORT) == (resolve_host(host), port) else CONTROL_PORT}"


def _check_choices(dataplane: str, link: str, packets: int | None) -> None:
    from transport.group.method_name import links_of
    from transport.links.link_kinds import LINKS, links_with

    known("--dataplane", dataplane, ("auto", *DATAPLANES))
    known("--link", link, links_of("switch"))
    if packets is not None and not LINKS[link].messages:
        stop(f"--packets: only {', '.join(links_with('messages'))} has messages of packets, not {link}", EXIT_USAGE)


def _impairments(both: str | None, up: str | None, down: str | None) -> Impairments | None:
    """None if none are asked for."""
    from switchagg.errors import JobError
    from transport.switch.impairments import parse_impairments

    if both is None and up is None and down is None:
        return None
    try:
        return parse_impairments(both or "", up or "", down or "")
    except JobError as error:
        stop(f"--impair: {error}", EXIT_USAGE)


def _peer_quota(text: str) -> PeerQuota:
    from switchagg.controller.quota import parse_peer_quota

    try:
        return parse_peer_quota(text)
    except ValueError as error:
        stop(f"--peer-quota: {error}", EXIT_USAGE)


def _host_port(option: str, text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        stop(f"{option} {text}: not understood; allowed: HOST:PORT, like 10.0.0.1:5556", EXIT_USAGE)
    return host, int(port)


def status(
    address: shared.Switch = shared.SWITCH,
    job: Annotated[
        str | None, typer.Option(help="Show this job's slots, too: the ranks that each chunk has come from")
    ] = None,
    keys: shared.KeysOfSwitch = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout")] = False,
) -> None:
    """Ask a running switch for its jobs, members and counters.

    On its own host, the user that runs it and root see all; elsewhere holders of its keys do. Others see how many jobs
    it has and how many slots are free.

    **Examples**

    `switchagg status tcp://10.0.0.1:5555`

    `switchagg status tcp://10.0.0.1:5555 --job train` : which ranks does the job wait for?
    """
    with outcomes():
        import msgspec

        from emulation.cli.daemons.switch_status import DETAILS_ARE_FOR, status_lines
        from transport.control.control_client import query_status

        check_endpoint("SWITCH", address)
        answer = query_status(address, job, keys=keys_in(keys))
        if as_json:
            typer.echo(json.dumps(msgspec.to_builtins(answer), sort_keys=True))
        else:
            typer.echo("\n".join(status_lines(answer)))
        if job is not None and not answer.details:
            stop(f"{address}: jobs are told {DETAILS_ARE_FOR.removeprefix('more ')}", EXIT_FAILED)
        if job is not None and job not in {running.name for running in answer.jobs} | set(answer.waiting):
            stop(f"{address}: no job {job!r} runs or waits there", EXIT_FAILED)
