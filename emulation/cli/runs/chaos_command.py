"""`switchagg chaos`: real training that faults drawn from a seed meet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emulation.cli.outcomes import EXIT_FAILED, EXIT_USAGE, outcomes, stop

if TYPE_CHECKING:
    from emulation.experiments.chaos.chaos_run import ChaosRun

Seconds = Annotated[
    float | None, typer.Option(min=1, max=1e6, help="How long events happen  [default: 600, without --events]")
]
Seed = Annotated[int, typer.Option(min=0, help="Of the events: the same seed and options give the same ones")]
Method = Annotated[str, typer.Option(help="Of summing: switch, switch@zeromq, ring, …")]
Fallback = Annotated[
    str, typer.Option(metavar="METHOD", help="A host method, as ring, to survive the loss of a switch")
]
Standby = Annotated[int, typer.Option(help="Switches beside the first, with a --fallback")]
Elastic = Annotated[
    bool, typer.Option("--elastic", help="Ranks go on without one that died, which starts again alone and joins")
]
Place = Annotated[
    str,
    typer.Option(
        metavar="namespaces|loopback|virtual",
        help="Hosts with links that can be cut; processes of this host; virtual time",
    ),
]
Events = Annotated[int, typer.Option(min=0, help="End after so many; 0: after --seconds alone")]
Kinds = Annotated[
    str, typer.Option(metavar="NAMES", help="Like worker-kill,link-cut  [default: all; --list names them]")
]
Lease = Annotated[float, typer.Option(min=1, max=3600, help="Of the switches, in seconds")]
Steps = Annotated[int, typer.Option(min=10, max=100_000, help="Of the undisturbed run; then training begins anew")]
Gap = Annotated[float, typer.Option(min=0.1, max=3600, help="Mean seconds from a recovery to the next event")]
JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="All of it for programs")]
Report = Annotated[
    Path | None, typer.Option(metavar="DIR", help="chaos.txt, chaos.json, and the logs of ranks that went wrong")
]
ListKinds = Annotated[bool, typer.Option("--list", help="The kinds of faults and what is expected of each")]
Schedule = Annotated[int, typer.Option(min=0, help="Show the first so many events, and do nothing")]


def chaos(
    seconds: Seconds = None,
    seed: Seed = 0,
    workers: Annotated[int, typer.Option(help="Ranks")] = 4,
    method: Method = "switch",
    fallback: Fallback = "",
    standby: Standby = 0,
    elastic: Elastic = False,
    on: Place = "namespaces",
    events: Events = 0,
    kinds: Kinds = "",
    lease: Lease = 1.0,
    steps: Steps = 60,
    gap: Gap = 2.0,
    json_file: JsonFile = None,
    report: Report = None,
    list_kinds: ListKinds = False,
    schedule: Schedule = 0,
) -> None:
    """Train, while workers and switches are killed, stopped and restarted, links cut, and bad packets sent.

    Real ranks train with DistributedDataParallel through a real switch daemon, and sum known integers beside. Sums,
    parameters after each step, the bound of every wait, and what is left at the end, are checked.

    **Examples**

    `sudo $(which switchagg) chaos --seconds 60 --seed 7`

    `switchagg chaos --on loopback --kinds worker-kill,switch-kill --events 20`

    `switchagg chaos --seconds 60 --fallback ring --standby 1` : switches that die cost the job nothing

    `switchagg chaos --elastic --kinds worker-kill` : workers that die cost a step each

    `switchagg chaos --on virtual --fallback ring --events 100` : in virtual time, the same bytes from the same seed

    `switchagg chaos --seed 7 --schedule 20` : what would happen

    **Exit code**: 0 if no sum was wrong, nothing hung, all came as expected and nothing is left; else 1.
    """
    with outcomes():
        from emulation.experiments.chaos import chaos_page as page
        from emulation.experiments.chaos.chaos_options import SECONDS, ChaosOptions
        from emulation.experiments.chaos.event_schedule import first_events, kinds_of
        from emulation.scenario.errors import RunFailed

        names = tuple(name.strip() for name in kinds.split(",") if name.strip())
        seconds = seconds or (0.0 if events else SECONDS)
        try:
            options = ChaosOptions(
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
        result = _run_kind(on)(options, lambda line: typer.echo(line, err=True), report).run()
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
