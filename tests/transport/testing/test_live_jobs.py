"""`switchagg.testing`: what a switch does wrong is seen, and said field by field; what it does right passes."""

import socket
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from dataplane_names import WITHOUT_P4

from switchagg.dataplane import plane_kinds
from switchagg.dataplane.contract import Output
from switchagg.dataplane.plane_kinds import PlaneKind
from switchagg.dataplane.reference import ReferencePlane
from switchagg.errors import JobError, SwitchaggError
from switchagg.testing import (
    ANY,
    BROADCAST,
    DROP,
    REPLY,
    RESEND,
    UP,
    Job,
    Op,
    Packet,
    Route,
    Switch,
    SwitchUnderTest,
    Unexpected,
    encode,
)
from switchagg.wire import FLAG_RETRANSMISSION, FLAGS_AT, HEADER_BYTES, Bundle

MakeJob = Callable[..., Job]


class FaultyPlane(ReferencePlane):
    """The reference, and something done to each output."""

    def __init__(self, slots: int, elements: int, fault: Callable[[Output], Sequence[Output]]) -> None:
        super().__init__(slots, elements)
        self._fault = fault

    def process(self, bundle: Bundle, port: int) -> list[Output]:
        return [faulty for output in super().process(bundle, port) for faulty in self._fault(output)]


def changed(output: Output, at: int, value: int) -> Output:
    bundle = output.bundle.copy()
    bundle[:, at] = value
    return Output(bundle, output.ports)


FAULTS: dict[str, tuple[Callable[[Output], Sequence[Output]], str]] = {
    "a wrong sum": (
        lambda output: [changed(output, HEADER_BYTES + 7, 23)],
        "rank 1 received: result job 1 generation 7 stream 0 chunk 0 slot 0 version 0 rank 1 [11, 23]\n"
        "    value[1]       expected 22, received 23",
    ),
    "RETRANSMISSION stays": (
        lambda output: [changed(output, FLAGS_AT, output.bundle[0, FLAGS_AT] | FLAG_RETRANSMISSION)],
        "    RETRANSMISSION expected False, received True",
    ),
    "one rank gets nothing": (
        lambda output: [Output(output.bundle, output.ports[:1])],
        "rank 1: nothing came, expected result job 1",
    ),
    "one gets it twice": (
        lambda output: [output, Output(output.bundle, output.ports[:1])],
        "rank 0: unexpected result",
    ),
    "a value too few": (
        lambda output: [Output(np.ascontiguousarray(output.bundle[:, :-4]), output.ports)],
        "    value[1]       expected 22, received nothing",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_switch_is_found_and_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    fault, says = FAULTS[name]
    kind = PlaneKind("faulty", lambda slots, elements: FaultyPlane(slots, elements, fault), "")
    monkeypatch.setitem(plane_kinds.DATAPLANES, "faulty", kind)
    with Switch("faulty") as switch:
        two = switch.job(workers=2, elements=2)
        two.contribute(0, 0, [1, 2])
        two.expect_nothing("absorbed")
        two.contribute(1, 0, [10, 20], retransmission=True)
        with pytest.raises(Unexpected, match="expected BROADCAST: a result for every rank") as caught:
            two.expect(BROADCAST, [11, 22])
        assert says in str(caught.value)
        assert str(caught.value).startswith("rank 1 sent: contribution job 1 generation 7 stream 0 chunk 0 slot 0")


def test_what_is_not_expected_fails(job: MakeJob) -> None:
    two = job()
    two.contribute(0, 0, 1)
    with pytest.raises(Unexpected, match="the counter drop_older should have counted it"):
        two.expect(DROP, counted="drop_older")
    two.contribute(1, 0, 2)
    with pytest.raises(Unexpected, match="rank 0: unexpected result"):
        two.expect(REPLY, 3)
    two.contribute(1, 0, 2)
    with pytest.raises(Unexpected, match="rank 1: unexpected result"):
        two.expect_nothing()
    two.expect(DROP)  # all that had come was named


@pytest.mark.dataplane(*WITHOUT_P4)
def test_routes_marks_generations_and_parents(job: MakeJob) -> None:
    two = job(elements=3)
    two.contribute(0, 0, 5, route=Route.FROM_OWNER, owner=0)
    two.contribute(1, 0, route=Route.FROM_OWNER, owner=0)
    two.expect(BROADCAST, 5)  # header-only for rank 0, which gave
    two.contribute(0, 1, [1, -5, 3], op=Op.MAX, tos=3)  # CE (G2)
    two.contribute(1, 1, [0, -4, 9], op=Op.MAX)
    two.expect(BROADCAST, [1, -4, 9], marked=True)
    two.restart(8)
    two.contribute(0, 0, 1)
    two.expect(DROP, counted="absorbed")  # the slot was cleared (S7)
    leaf = job(elements=1, parent_rank=5)
    leaf.contribute(0, 0, 1)
    leaf.contribute(1, 0, 2)
    leaf.expect(UP, 3, counted="up")
    assert leaf.parent is not None
    sums = replace(leaf.contribution(0, 0, 40), result=True)
    leaf.switch.deliver(leaf.parent[0], sums)
    leaf.expect_packets({0: sums, 1: sums})
    leaf.evict()
    leaf.contribute(0, 1, 1)
    leaf.expect(DROP, counted="drop_unknown_sender")


@pytest.mark.dataplane("reference")
def test_a_resent_result_is_told_packet_by_packet(job: MakeJob) -> None:
    three = job(workers=3, elements=2, window=1, backups=1)
    for chunk in range(2):
        three.contribute(0, chunk, [1, 1])
        three.contribute(1, chunk, [2, 2])
        three.expect(BROADCAST, [3, 3])
    three.contribute(0, 2, [1, 1], op=Op.MAX)
    with pytest.raises(SwitchaggError, match="say with expect_packets"):
        three.expect(RESEND, 3)
    three.expect_packets({2: three.contribution(0, 0, [3, 3], op=Op.MAX, result=True)}, counted="resend")


def test_any_values_are_those_that_came(job: MakeJob) -> None:
    one = job(workers=1)
    one.contribute(0, 0, 77)
    one.expect(BROADCAST, ANY)


def test_my_addresses_my_generation_my_numbers() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        mine = free.getsockname()
    with Switch("reference", slots=8) as switch:
        one = switch.job(1, addresses=[mine], generation=0xDEADBEEF, job_id=300, elements=1)
        assert one.workers[0].address == mine
        one.send(0, Packet(300, 0xDEADBEEF, 0, 0, Op.SUM, 0, 0, 0, np.array([9], np.int32)))
        one.expect(BROADCAST, 9)
        other = switch.job(1)
        assert (other.config.job_id, other.config.slots) == (1, (4, 8))
        with pytest.raises(JobError, match="this switch has 8"):
            switch.job(1)
        with pytest.raises(SwitchaggError, match=f"a worker's address 127.0.0.1:{mine[1]}: Address already in use"):
            switch.job(1, job_id=300, addresses=[mine])
        with pytest.raises(SwitchaggError, match="1 addresses for 2 workers"):
            switch.job(2, addresses=[mine])
        with pytest.raises(SwitchaggError, match="32 bits with a sign"):
            one.contribute(0, 1, 1 << 31)
        with pytest.raises(
            SwitchaggError, match=r"expect\(BROADCAST\) also needs the values .* expect\(BROADCAST, ANY\)"
        ):
            one.expect(BROADCAST)
        with pytest.raises(SwitchaggError, match="nothing was sent yet"):
            other.expect(REPLY, 1)
    with pytest.raises(SwitchaggError, match="isn't running"):
        one.contribute(0, 1, 1)


def test_a_switch_that_says_nothing_is_given_time() -> None:
    """As one of somebody else, that has neither counters nor a controller of ours."""

    class Elsewhere(SwitchUnderTest):
        def __init__(self, real: Switch) -> None:
            super().__init__()
            self.address = real.address
            self.admit = real.admit
            self.evict = real.evict

        def admit(self, job, addresses, parent=None): ...
        def evict(self, job_id: int) -> None: ...

    with Switch("reference") as real, Elsewhere(real) as switch:
        two = switch.job()
        two.contribute(0, 0, 1)
        two.expect(DROP)
        two.contribute(1, 0, 2)
        two.expect(BROADCAST, 3)
        assert real.seen(0, 0).ranks == (0, 1)
        with pytest.raises(SwitchaggError, match="does not say what its slots hold"):
            switch.seen(0, 0)
    encoded = encode(two.contribution(0, 0, 1))
    assert len(encoded) == HEADER_BYTES + 16
