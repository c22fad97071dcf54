"""`switchagg chaos`: real training that faults drawn from a seed meet."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emulation.cli.outcomes import EXIT_FAILED, EXIT_USAGE, outcomes, stop
from emulation.cli.progress import say

if TYPE_CHECKING:
    from emulation.experiments.chaos.chaos_run import ChaosRun

JOB, FAULTS, REPORTS = (partial(typer.Option, rich_help_panel=panel) for panel in ("The job", "Faults", "Reports"))

SECONDS = typer.Option(min=1, max=1e6, help="How long faults happen  [default: 600, without --events]")
SEED = typer.Option(min=0, help="Seed of the faults; the same seed and options give the same ones")
PLACE = typer.Option(
    metavar="namespaces|loopback|virtual",
    help="Hosts with links that can be cut, processes of this host, or virtual time",
)
METHOD = JOB(help="Method of summing, like switch, switch@zeromq, ring")
FALLBACK = JOB(metavar="METHOD", help="A host method, like ring, with which the job survives the loss of a switch")
STANDBY = JOB(help="Switches beside the first, with a --fallback")
ELASTIC = JOB("--elastic", help="Ranks go on without one that died, which starts again alone and joins")
LEASE = JOB(min=1, max=3600, help="Lease of the switches, in seconds")
STEPS = JOB(min=10, max=100_000, help="Steps of the undisturbed run, after which training begins anew")
EVENTS = FAULTS(min=0, help="End after so many faults; 0 means after --seconds alone")
KINDS = FAULTS(metavar="NAMES", help="Kinds of faults, like worker-kill,link-cut  [default: all; --list names them]")
GAP = FAULTS(min=0.1, max=3600, help="Mean seconds from a recovery to the next fault")
LIST = FAULTS("--list", help="List the kinds of faults and what is expected of each, and end")
SCHEDULE = FAULTS(min=0, help="Show the first so many faults, and do nothing")


def chaos(
    seconds: Annotated[float | None, SECONDS] = None,
    seed: Annotated[int, SEED] = 0,
    on: Annotated[str, PLACE] = "namespaces",
    workers: Annotated[int, JOB(help="Number of ranks")] = 4,
    method: Annotated[str, METHOD] = "switch",
    fallback: Annotated[str, FALLBACK] = "",
    standby: Annotated[int, STANDBY] = 0,
    elastic: Annotated[bool, ELASTIC] = False,
    lease: Annotated[float, LEASE] = 1.0,
    steps: Annotated[int, STEPS] = 60,
    kinds: Annotated[str, KINDS] = "",
    events: Annotated[int, EVENTS] = 0,
    gap: Annotated[float, GAP] = 2.0,
    schedule: Annotated[int, SCHEDULE] = 0,
    list_kinds: Annotated[bool, LIST] = False,
    report: Annotated[
        Path | None, REPORTS(metavar="DIR", help="Folder for chaos.txt, chaos.json and logs of ranks that went wrong")
    ] = None,
    json_file: Annotated[Path | None, REPORTS("--json", metavar="FILE", help="File for all of it as JSON")] = None,
) -> None:
    """Train while workers die, switches restart and links are cut.

    Real ranks train with DistributedDataParallel through a real switch daemon, and sum known integers beside. It checks
    sums, the parameters after each step, that every wait ends in time, and that nothing is left at the end.

    **Examples**

    `sudo $(which switchagg) chaos --seconds 60 --seed 7`

    `switchagg chaos --on loopback --kinds worker-kill,switch-kill --events 20`

    `switchagg chaos --seconds 60 --fallback ring --standby 1` : switches that die cost the job nothing

    `switchagg chaos --elastic --kinds worker-kill` : workers that die cost a step each

    `switchagg chaos --on virtual --fallback ring --events 100` : virtual time; the same seed gives the same bytes

    `switchagg chaos --seed 7 --schedule 20` : the faults that would happen

    **Exit code**: 0 if no sum was wrong, nothing hung, all came as expected and nothing is left; else 1.
    """
    with outcomes():
        from emulation.experiments.chaos import chaos_options
        from emulation.experiments.chaos import chaos_page as page
        from emulation.experiments.chaos.event_schedule import first_events, kinds_of
        from emulation.scenario.errors import RunFailed

        names = tuple(name.strip() for name in kinds.split(",") if name.strip())
        seconds = seconds or (0.0 if events else chaos_options.SECONDS)
        try:
            options = chaos_options.ChaosOptions(
                *(seed, seconds, workers, method, on, events, fallback, standby, names, lease, steps, gap),
                elastic=elastic,
            )
            possible = kinds_of(options)
        except RunFailed as error:
            stop(str(error), EXIT_USAGE)
        if list_kinds:
            typer.echo("\n".join(page.kind_lines(options, possible)))
            return
        if schedule:
            typer.echo("\n".join(page.schedule_lines(first_events(options, schedule))))
            return
        result = _run_kind(on)(options, say, report).run()
        typer.echo("\n".join(page.result_lines(result)))
        page.write(result, json_file, report)
    raise typer.Exit(EXIT_FAILED if result.faults else 0)


def _run_kind(place: str) -> Callable[..., ChaosRun]:
    """The kind of run at this place, which is entered."""
    from emulation.experiments.chaos.chaos_options import NAMESPACES, VIRTUAL

    if place == VIRTUAL:
        from emulation.experiments.virtual_chaos.virtual_run import VirtualChaosRun

        return VirtualChaosRun
    from emulation.experiments.chaos.chaos_run import ChaosRun

    if place == NAMESPACES:
        from emulation.testbed.netns import run_in_user_namespace

        run_in_user_namespace()  # a plain user becomes root of a namespace, where that is allowed
    return ChaosRun
