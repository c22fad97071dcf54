"""`switchagg compare` and `switchagg sweep`: a scenario with each of its methods, at one point or at many."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from emulation.cli.outcomes import outcomes
from emulation.cli.start.completion import scenario_names

ON = typer.Option(metavar="mininet|sim", help="Where it runs  [default: mininet where it can run]")
OUT = typer.Option(help="Folder for the results  [default: results/NAME]")
LEVEL = typer.Option(
    metavar="packet|flow|formula|auto",
    help="Detail of virtual time: every packet, calls as flows, a formula, or the finest that ends --within",
)
WITHIN = typer.Option(metavar="SECONDS", help="Limit of --fidelity-level auto for each method  [default: 60]")


def compare(
    scenario: Annotated[
        str,
        typer.Argument(
            help="A scenario file, or the name of a shipped scenario (`switchagg scenarios`)",
            autocompletion=scenario_names,
        ),
    ],
    on: Annotated[str | None, ON] = None,
    out: Annotated[Path | None, OUT] = None,
    seed: Annotated[int | None, typer.Option(help="Seed in place of the scenario's")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Value in place of the scenario's; may be repeated"),
    ] = None,
    fidelity_level: Annotated[str | None, LEVEL] = None,
    within: Annotated[int | None, WITHIN] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON on stdout")] = False,
) -> None:
    """Run a scenario with each of its methods: a table and a report.

    It writes results.json, report.html, timeline.json and figures.

    **Examples**

    `switchagg compare quickstart`

    `switchagg compare quickstart --on sim --set topology.rate_bps=10e9`

    `switchagg compare quickstart --fidelity-level auto --within 20`

    `switchagg compare mine.toml --on mininet --out results/mine --seed 3`

    **Exit code**: 0 done, 1 failed, 2 wrong scenario or usage, 3 done but certified INVALID, 4 done but DISTURBED.
    """
    with outcomes():
        if on == "mininet":
            from emulation.testbed.netns import run_in_user_namespace

            run_in_user_namespace()  # a plain user becomes root of a namespace, where that is allowed
        from emulation.testbed.nursery import Nursery

        with Nursery(["torch"]) as nursery:  # a second of another core, while we read the scenario
            from emulation.cli import compare_console as console
            from emulation.scenario import scenario as scenarios

            console.check_backend(on)
            path, overrides = scenarios.find(scenario), console.overrides(seed, setting or [])
            if fidelity_level is not None or within is not None:
                overrides |= console.fidelity_overrides(fidelity_level, within, on)
                on = "sim"
            loaded = scenarios.load(path, overrides)
            if loaded.sweep.axes:
                keys = ", ".join(f"--set {key}=…" for key, _ in loaded.sweep.axes)
                raise scenarios.ScenarioError(
                    f"{loaded.file}: [sweep] has {len(loaded.sweep.points)} combinations: run `switchagg sweep "
                    f"{scenario}`, or one of them with {keys}"
                )
            folder = out or Path("results") / loaded.name
            status = console.run(loaded, on, folder, ["switchagg", *sys.argv[1:]], as_json, nursery)
    raise typer.Exit(status)


SWEPT = typer.Argument(
    help="A scenario file with a [sweep], or the name of a shipped one", autocompletion=scenario_names
)

SETTING_OF_SWEEP = typer.Option(
    "--set", metavar="KEY=VALUE", help="Value in place of the scenario's; one value ends an axis"
)


def sweep(
    scenario: Annotated[str, SWEPT],
    on: Annotated[
        str | None,
        typer.Option(
            metavar="mininet|sim", help="Where it runs  [default: sim for scenarios that name methods for it]"
        ),
    ] = None,
    out: Annotated[Path | None, OUT] = None,
    setting: Annotated[list[str] | None, SETTING_OF_SWEEP] = None,
    jobs: Annotated[int, typer.Option(min=0, max=1024, help="Processes in virtual time; 0 means one on each core")] = 0,
    ray: Annotated[bool, typer.Option("--ray", help="Run on a Ray cluster (RAY_ADDRESS), or here by Ray")] = False,
    reports: Annotated[bool, typer.Option(help="Write a report of each combination, which takes seconds each")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print all summaries as JSON on stdout")] = False,
) -> None:
    """Run a scenario for each combination of values in its [sweep].

    It writes tables, a page and a report of each combination. Every run is kept in OUT/cells, and a run that is there
    isn't run again: the same command continues an interrupted sweep, and more values add to what is there.

    **In the file**

    `[sweep]`

    `topology.rate_bps = [1e9, 10e9]` : any key of a scenario that holds a number or a word

    `topology.workers = [4, 8]` : each rate is run with each number of workers

    `seed = [1, 2, 3]` : the page shows medians over seeds, with their spread

    `zip = [["topology.rate_bps", "topology.workers"]]` : the first with the first, the second with the second

    **Examples**

    `switchagg sweep scale`

    `switchagg sweep quickstart --on sim --set 'sweep.topology.rate_bps=[200e6, 1e9]' --set 'sweep.seed=[1, 2, 3]'`

    `RAY_ADDRESS=auto switchagg sweep mine.toml --ray --no-reports`

    **Files in OUT**: results.csv (and results.parquet, with pyarrow), sweep.json, sweep.html, sweep.png, cells/

    **Exit code**: 0 done, 1 failed, 2 wrong scenario or usage, 3 done but a run was INVALID, 4 DISTURBED.
    """
    remedy = f"the same command goes on from the runs in {out or 'results/NAME'}/cells"
    with outcomes(remedy):
        from emulation.cli import compare_console as console
        from emulation.scenario import scenario as scenarios

        console.check_backend(on)
        path, overrides = scenarios.find(scenario), console.overrides(None, setting or [])
        loaded = scenarios.load(path, overrides)
        if not loaded.sweep.axes:
            raise scenarios.ScenarioError(
                f"{loaded.file}: no key has several values; give some with --set 'sweep.topology.rate_bps=[1e9, 10e9]' "
                f"or in a table [sweep]; a single run: switchagg compare {scenario}"
            )
        if on == "mininet":
            from emulation.testbed.netns import run_in_user_namespace

            run_in_user_namespace()
        status = console.run_sweep(
            loaded,
            scenarios.load_variants(path, overrides),
            on or ("sim" if loaded.methods.sim and not loaded.workload.synchronisation else None),
            out or Path("results") / loaded.name,
            ["switchagg", *sys.argv[1:]],
            console.HowToSweep(jobs, ray, reports, as_json),
        )
    raise typer.Exit(status)
