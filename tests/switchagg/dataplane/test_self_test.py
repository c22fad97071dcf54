"""The choice of the data plane: a plane that breaks any rule is passed over, with the packet that showed it."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dataplane_names import WITHOUT_P4

from switchagg.dataplane import self_test
from switchagg.dataplane.contract import DataPlane, Output
from switchagg.dataplane.plane_kinds import DATAPLANES, Make
from switchagg.dataplane.self_test import Choice, fastest, fault
from switchagg.errors import JobError
from switchagg.native import library
from switchagg.wire import MARKED, RANK_AT

Spoiled = Callable[["Spoiler", Any, int], list[Output]]


def take(monkeypatch: pytest.MonkeyPatch, name: str, make: Make) -> None:
    """Have the table make planes of this name in another way."""
    monkeypatch.setitem(DATAPLANES, name, replace(DATAPLANES[name], make=make))


class Spoiler:
    """The reference plane with a fault."""

    name = "spoiler"

    def __init__(self, slots: int, elements: int, process: Spoiled) -> None:
        self.inner = DATAPLANES["reference"](slots, elements)
        self.admit, self.evict, self.seen = self.inner.admit, self.inner.evict, self.inner.seen
        self._process = process

    @property
    def counters(self) -> dict[str, int]:
        return self.inner.counters

    def process(self, bundle: Any, port: int) -> list[Output]:
        return self._process(self, bundle, port)


def wrong_bit(plane: Spoiler, bundle: Any, port: int) -> list[Output]:
    outputs = [replace(output, bundle=output.bundle.copy()) for output in plane.inner.process(bundle, port)]
    for output in outputs:
        output.bundle[-1, -1] ^= 1
    return outputs


def wrong_port(plane: Spoiler, bundle: Any, port: int) -> list[Output]:
    return [Output(output.bundle, output.ports[:1]) for output in plane.inner.process(bundle, port)]


def silent(plane: Spoiler, bundle: Any, port: int) -> list[Output]:
    return []


def one_too_many(plane: Spoiler, bundle: Any, port: int) -> list[Output]:
    outputs = plane.inner.process(bundle, port)
    return outputs + outputs[-1:]


def uncounted(plane: Spoiler, bundle: Any, port: int) -> list[Output]:
    outputs = plane.inner.process(bundle, port)
    plane.counters["drop_older"] = 0
    return outputs


def no_second_version(plane: Spoiler, bundle: Any, port: int) -> list[Output]:
    bundle[:, 3] &= 0xFD
    return plane.inner.process(bundle, port)


def unmarked(plane: Spoiler, bundle: Any, port: int) -> list[Output]:
    bundle[:, RANK_AT] &= 0xFF - MARKED
    return plane.inner.process(bundle, port)


def crash(plane: Spoiler, bundle: Any, port: int) -> list[Output]:
    raise ZeroDivisionError("of  all\nthings")


FAULTS: list[tuple[Spoiled, str]] = [
    (wrong_bit, r"its self-test failed at packet \d+, "),
    (wrong_port, r"its self-test failed at packet \d+, "),
    (silent, r"its self-test failed at packet \d+, "),
    (one_too_many, r"its self-test failed at packet \d+, "),
    (no_second_version, r"its self-test failed at packet \d+, "),
    (unmarked, r"its self-test failed at packet \d+, "),
    (uncounted, r"its self-test failed: drop_older counts 0 packets, not [1-9]"),
    (crash, r"its self-test failed: ZeroDivisionError: of all things$"),
]


@pytest.mark.parametrize(("process", "words"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_plane_that_breaks_a_rule_is_not_chosen(
    process: Spoiled, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(monkeypatch, "native", lambda slots, elements: Spoiler(slots, elements, process))
    choice = fastest(64, 32)
    assert choice.name == "reference"
    assert list(choice.passed_over) == ["native"]
    assert re.match(words, choice.passed_over["native"])


@pytest.mark.parametrize("name", WITHOUT_P4)
@pytest.mark.parametrize(("slots", "elements"), [(4096, 360), (1, 1), (65_536, 16_000), (7, 9)])
def test_every_available_plane_passes(name: str, slots: int, elements: int) -> None:
    if name == "native" and (reason := library.missing()):
        assert fault(name, slots, elements) == reason
    else:
        assert fault(name, slots, elements) == ""


def test_the_fastest_that_passes_is_chosen() -> None:
    expected = "reference" if library.missing() else "native"
    assert fastest(4096, 360).name == expected


def test_a_missing_library_is_named_with_how_to_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_slots: int, _elements: int) -> DataPlane:
        raise JobError("data plane native: libswitchagg.so was not built; install a C compiler")

    take(monkeypatch, "native", missing)
    choice = fastest(64, 32)
    assert choice == Choice("reference", {"native": "libswitchagg.so was not built; install a C compiler"})
    assert str(choice) == "reference (native passed over: libswitchagg.so was not built; install a C compiler)"
    assert str(Choice("native", {})) == "native"


def test_its_packets_reach_every_verdict_and_pass_the_wrap_of_chunk_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    planes: list[DataPlane] = []
    chunks: set[int] = set()

    def kept(slots: int, elements: int) -> DataPlane:
        planes.append(DATAPLANES["reference"](slots, elements))
        return planes[-1]

    contribution = self_test.contribution

    def noted(*how: Any) -> Any:
        packet = contribution(*how)
        chunks.add(packet.chunk)
        return packet

    monkeypatch.setattr(self_test, "contribution", noted)
    assert self_test.difference(kept, 64, 32) == ""
    counters = planes[0].counters
    for outcome in [
        "absorbed",
        "broadcast",
        "reply",
        "drop_duplicate",
        "drop_older",
        "drop_short",
        "drop_magic",
        "drop_job",
    ]:
        assert counters[outcome] > 0, outcome
    for field in ["generation", "stream", "slot", "rank", "port", "result", "elements"]:
        assert counters[f"drop_{field}"] > 0, field
    assert min(chunks) == 0
    assert max(chunks) == 2**32 - 1


def test_the_self_test_is_deterministic() -> None:
    def run() -> list[bytes]:
        seen = []

        class Recorder(Spoiler):
            def process(self, bundle: Any, port: int) -> list[Output]:
                seen.append(np.ascontiguousarray(bundle).tobytes())
                return self.inner.process(bundle, port)

        assert self_test.difference(lambda slots, elements: Recorder(slots, elements, silent), 64, 32) == ""
        return seen

    assert run() == run()
