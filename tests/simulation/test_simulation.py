"""Right under any faults? Seeded worlds over the data planes; S1 to S8, W1 to W9, P5, F7.

A failure prints the one command that repeats it. `--seeds 10000` runs more worlds, `--seed S` one.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from dataplane_names import WITHOUT_P4

from simulation.checkers import Violation
from simulation.published_rule import PublishedRule
from simulation.world import ANY_ORDER, IN_ORDER_LOSS, Faults, World
from switchagg.dataplane.contract import DataPlane
from switchagg.dataplane.p4 import p4_plane
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.dataplane.reference import ReferencePlane
from switchagg.endpoint import Endpoint
from switchagg.native.library import missing
from switchagg.native.native_endpoint import NativeEndpoint
from switchagg.wire import Bundle

requires_native = pytest.mark.skipif(bool(missing()), reason=f"needs the compiled core: {missing()}")


@contextmanager
def replayable(test: str, seed: int, dataplane: str = "") -> Iterator[None]:
    """Name the command that replays a failing seed."""
    try:
        yield
    except AssertionError as error:
        which = f"{test} and {dataplane}" if dataplane else test
        command = f'python -m pytest tests/simulation -k "{which}" --seed {seed}'
        pytest.fail(f"{error}\nreplay: {command}", pytrace=not isinstance(error, Violation))


@pytest.mark.parametrize("dataplane", WITHOUT_P4)
def test_any_mixture_of_faults(dataplane: str, seed: int) -> None:
    with replayable("test_any_mixture_of_faults", seed, dataplane):
        World(seed, None, DATAPLANES[dataplane]).run()


@pytest.mark.skipif(bool(p4_plane.missing()), reason=f"data plane p4: {p4_plane.missing()}")
@pytest.mark.parametrize("seed", range(4))
def test_the_p4_program_leaves_the_same_trace(seed: int) -> None:
    """Few seeds: a program is compiled for each number of elements."""
    assert World(seed, None, DATAPLANES["p4"]).run() == World(seed, None, DATAPLANES["reference"]).run()


def test_any_order_delivery(seed: int) -> None:
    """20 % drop, 20 % duplication, any order, until the end."""
    with replayable("test_any_order_delivery", seed):
        World(seed, ANY_ORDER, DATAPLANES["reference"]).run()


@requires_native
def test_any_mixture_of_faults_with_endpoints_in_c(seed: int) -> None:
    """The same world as with endpoints in Python, packet for packet: the trace is the same."""
    with replayable("test_any_mixture_of_faults_with_endpoints_in_c", seed):
        trace = World(seed, None, DATAPLANES["native"], NativeEndpoint).run()
        if seed % 8 == 0:
            assert trace == World(seed, None, DATAPLANES["reference"]).run()


@requires_native
def test_any_order_delivery_with_endpoints_in_c(seed: int) -> None:
    with replayable("test_any_order_delivery_with_endpoints_in_c", seed):
        World(seed, ANY_ORDER, DATAPLANES["native"], NativeEndpoint).run()


@requires_native
@pytest.mark.parametrize("dataplane", WITHOUT_P4)
@pytest.mark.parametrize("faults", [ANY_ORDER, IN_ORDER_LOSS, Faults(corrupt=0.2)], ids=["any", "loss", "corrupt"])
def test_endpoints_leave_the_same_trace(dataplane: str, faults: Faults) -> None:
    for seed in range(5):
        traces = [World(seed, faults, DATAPLANES[dataplane], end).run() for end in (Endpoint, NativeEndpoint)]
        assert traces[0] == traces[1], seed


@pytest.mark.parametrize("dataplane", WITHOUT_P4)
@pytest.mark.parametrize("seed", range(5))
def test_the_same_seed_gives_the_same_trace(seed: int, dataplane: str) -> None:
    traces = {World(seed, None, DATAPLANES[name]).run() for name in ("reference", dataplane) for _ in range(2)}
    assert len(traces) == 1  # also across data planes
    assert World(seed + 1, None, DATAPLANES[dataplane]).run() not in traces


def failures(
    seeds: int, faults: Faults | None, plane: Callable[[int, int], DataPlane], **settings: Any
) -> Iterator[str]:
    """Names of the checkers that objected, one per failing world."""
    for seed in range(seeds):
        world = World(seed, faults, plane)
        for name, value in settings.items():
            setattr(world, name, value)
        try:
            world.run()
        except Violation as violation:
            yield str(violation).split(":")[0]


def test_the_published_rule_fails_when_packets_are_reordered() -> None:
    found = list(failures(60, ANY_ORDER, PublishedRule))
    assert len(found) >= 30
    assert "SlotIsolation" in found


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")  # wrong exponents are among what it does wrong
def test_the_published_rule_gives_wrong_sums_to_workers() -> None:
    """Without the checker inside the switch, the wrong sums reach training undetected."""

    class Blind:
        def sent(self, packet: object, rank: int) -> None: ...

        def combined(self, packet: object, below: object) -> None: ...

    assert "ExactSum" in failures(60, ANY_ORDER, PublishedRule, isolation=Blind())


def test_the_published_rule_holds_when_order_is_kept() -> None:
    """The simulator isn't simply cruel: on in-order links with loss the published rule is right."""
    assert not list(failures(60, IN_ORDER_LOSS, PublishedRule))


class Forgetful(ReferencePlane):
    """A switch that forgets which ranks it has seen: duplicates count twice."""

    def process(self, bundle: Bundle, port: int) -> Any:
        outputs = super().process(bundle, port)
        slots = self._aggregator._seen
        slots[:] = [[seen & (seen - 1) for seen in version] for version in slots]
        return outputs


class SilentPlane(ReferencePlane):
    """A switch that never answers a rank that asks again."""

    def process(self, bundle: Bundle, port: int) -> Any:
        return [output for output in super().process(bundle, port) if len(output.ports) > 1]


def test_checkers_can_fail() -> None:
    assert {"SlotIsolation", "Convergence"} & {next(failures(20, ANY_ORDER, Forgetful))}
    patient = replace(ANY_ORDER, heal_ns=2_000_000_000)
    assert "Convergence" in failures(20, patient, SilentPlane)
    corrupting = Faults(corrupt=0.3)
    assert not list(failures(20, corrupting, DATAPLANES["reference"]))
    unchecked = failures(20, corrupting, DATAPLANES["reference"], verify_checksums=False)
    assert any(name in ("ExactSum", "SlotIsolation") for name in unchecked)
