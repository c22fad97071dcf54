"""CollectiveParty and Execution: keys, early messages, disagreements, losses, timeouts, garbage, memory."""

import random
from typing import Any

import numpy as np
import pytest
from collective_net import Net, integers, run_once

from switchagg.calls.call_request import CallRequest
from switchagg.description import REQUESTED_OPS
from switchagg.native.library import missing
from tests.oracles.execution import Execution
from transport.collectives.collective import Task
from transport.collectives.collective_party import HEAD_BYTES, LOOKS, PATIENCE, CollectiveParty
from transport.collectives.collective_plan import Draft
from transport.collectives.collective_table import program
from transport.collectives.execution import NativeExecution
from transport.collectives.programs import CompiledProgram, ProgramCache
from transport.meshes.mesh import HEAD_BYTES_MAX

SECOND_NS = 1_000_000_000

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(params=[NativeExecution, Execution])
def kind_of_execution(request: pytest.FixtureRequest) -> Any:
    return request.param


def submit(net: Net, rank: int, elements: int = 40, algorithm: str = "ring", **values: Any) -> np.ndarray:
    array = np.full(elements, rank + 1, values.pop("dtype", np.int64))
    net.parties[rank].submit(
        CallRequest(values.pop("kind", "allreduce"), **values), algorithm, array, now_ns=net.now_ns
    )
    return array


# ---- keys


@pytest.mark.parametrize("seed", range(5))
def test_keyed_calls_match_in_any_local_order_and_keys_are_free_again(seed: int) -> None:
    net = Net(4, seed=seed, segment_bytes=64)
    calls = [("ring", 40), ("halving_doubling", 7), ("tree", 0), ("torus", 33), ("recursive_doubling", 21)]
    given = [[np.arange(elements) * (rank + 1) + key for key, (_, elements) in enumerate(calls)] for rank in range(4)]
    arrays = [[array.copy() for array in mine] for mine in given]
    for _ in range(2):
        for rank in range(4):
            for key in net.chance.sample(range(5), 5):
                net.parties[rank].submit(CallRequest("allreduce", key=key), calls[key][0], arrays[rank][key], now_ns=0)
                if net.chance.random() < 0.3:
                    net.run()  # others may be done with this key before the last rank begins
        net.run()
    assert net.failures() == [""] * 40
    for key in range(5):
        expected = 4 * np.sum([mine[key] for mine in given], axis=0)
        assert all(np.array_equal(arrays[rank][key], expected) for rank in range(4))


def test_a_rank_may_use_a_key_again_while_others_are_still_at_the_call_before() -> None:
    """A broadcast's root is done when its messages are out: the next ones of its key are held apart, sizes differ."""
    net = Net(3, segment_bytes=16)
    sizes = (10, 10, 3, 25)
    for elements in sizes:
        net.parties[0].submit(CallRequest("broadcast", key=9), "ring", np.arange(elements), now_ns=0)
        net.run()
    received = []
    for elements in sizes:
        for rank in (2, 1):
            received.append((elements, np.zeros(elements, np.int64)))
            net.parties[rank].submit(CallRequest("broadcast", key=9), "ring", received[-1][1], now_ns=0)
        net.run()
    assert net.failures() == [""] * 12
    assert all(np.array_equal(array, np.arange(elements)) for elements, array in received)


def test_the_next_call_under_a_key_may_overtake_in_another_class() -> None:
    root, other = (CollectiveParty(rank, 2, classes=(0, 7)) for rank in range(2))
    arrays = [np.full(10, value, np.float32) for value in (1, 2, 0, 0)]
    messages = []
    for number, priority in enumerate((7, 0)):
        root.submit(CallRequest("broadcast", key=1, priority=priority), "tree", arrays[number], now_ns=0)
        (message,) = root.messages_to_send()
        root.on_sent(message.ticket)
        messages.append((message.head, bytes(message.data)))
    other.submit(CallRequest("broadcast", key=1, priority=7), "tree", arrays[2], now_ns=0)
    assert other.place(0, messages[1][0], 40) is None
    for head, data in reversed(messages):
        other.receive(0, head, data, 1)
    assert len(other.events()) == 1
    other.submit(CallRequest("broadcast", key=1, priority=0), "tree", arrays[3], now_ns=2)
    assert len(other.events()) == 1
    assert [set(array) for array in arrays[2:]] == [{1}, {2}]


def test_a_rank_that_makes_a_call_in_another_class_is_named_when_it_stalls() -> None:
    parties = [CollectiveParty(rank, 2, classes=(0, 7), call_timeout_ns=80) for rank in range(2)]
    for party, priority in zip(parties, (7, 0), strict=True):
        party.submit(CallRequest("allreduce", key=1, priority=priority), "ring", np.ones(10), now_ns=0)
    for message in parties[1].messages_to_send():
        parties[0].receive(1, message.head, message.data, 0)
    while parties[0].failure is None:
        parties[0].handle_timer(parties[0].next_deadline_ns() or 0)
    assert "in class 7, and rank 1 calls it in class 0" in str(parties[0].failure)


def test_call_numbers_and_keys_do_not_collide() -> None:
    net = Net(2)
    for rank, order in enumerate(((None, 0, None), (0, None, None))):
        for key in order:
            submit(net, rank, 5 if key is None else 9, key=key)
    net.run()
    assert net.failures() == [""] * 6


def test_a_key_in_use_or_out_of_range_is_refused_and_the_party_goes_on() -> None:
    net = Net(2)
    submit(net, 0, key=7)
    with pytest.raises(ValueError, match=r"key 7 is in use by ring allreduce with key 7 of 40 int64 \(sum\)"):
        submit(net, 0, key=7)
    for values, words in (({"key": -1}, "key -1"), ({"priority": 1 << 31}, "priority"), ({"op": "min"}, "op min")):
        with pytest.raises(ValueError, match=words):
            submit(net, 0, **values)
    with pytest.raises(ValueError, match="direct: 3 roots on 2 workers"):
        submit(Net(2, option=3), 0, algorithm="direct")
    submit(net, 1, key=7)
    net.run()
    assert net.failures() == ["", ""]


def test_priorities_go_out_with_the_messages_and_heads_are_short() -> None:
    party = CollectiveParty(0, 2, segment_bytes=16)
    party.submit(CallRequest("allreduce", priority=-3), "ring", np.zeros(10), now_ns=0)
    party.submit(CallRequest("allreduce", priority=5), "ring", np.zeros(1, np.float32), now_ns=0)
    messages = party.messages_to_send()
    assert [message.priority for message in messages] == [-3] * 3 + [5]
    assert {len(message.head) for message in messages} == {HEAD_BYTES}
    assert HEAD_BYTES <= HEAD_BYTES_MAX
    assert len({message.ticket for message in messages}) == 4
    assert party.messages_to_send() == []


# ---- memory


def test_messages_are_the_arrays_own_memory_until_they_are_sent(kind_of_execution: Any) -> None:
    """Recursive doubling sends what it then adds to: the sum waits for `on_sent`."""
    array = np.arange(4)
    execution = kind_of_execution(program(Task("allreduce", "recursive_doubling", 0, 2, 4), 8, 64), array)
    execution.start()
    (message,) = execution.messages_to_send()
    assert np.shares_memory(np.frombuffer(message.data, np.int64), array)
    execution.receive(1, 0, 0, np.full(4, 10).tobytes())
    assert array.tolist() == [0, 1, 2, 3]
    assert not execution.done
    execution.on_sent(message.node)
    assert array.tolist() == [10, 11, 12, 13]
    assert execution.done


def test_overwriting_messages_are_received_in_place_once_pending_sends_are_done(kind_of_execution: Any) -> None:
    array = np.arange(2)
    execution = kind_of_execution(program(Task("allreduce", "ring", 0, 2, 2), 8, 64), array)
    execution.start()
    (first,) = execution.messages_to_send()
    assert execution.place(1, 0, 0, 8) is None  # is to be added
    assert execution.place(1, 1, 0, 8) is None  # would overwrite what may not be sent yet
    execution.on_sent(first.node)
    assert execution.place(1, 1, 0, 4) is None  # another size: `receive` will say so
    memory = execution.place(1, 1, 0, 8)
    assert memory is not None
    assert execution.place(1, 1, 0, 8) is None
    memory[:] = (77).to_bytes(8, "little")
    execution.receive(1, 1, 0, memory)
    assert array[1] == 77
    execution.receive(1, 0, 0, (5).to_bytes(8, "little"))
    assert array.tolist() == [5, 77]


def test_an_unexpected_message_is_an_error(kind_of_execution: Any) -> None:
    execution = kind_of_execution(program(Task("allreduce", "ring", 0, 3, 9), 8, 64), np.arange(9))
    execution.start()
    assert execution.missing() == [2]
    assert not execution.expects(1)
    for arguments, words in (
        ((1, 0, 0, b""), "step 0, segment 0 is not expected"),
        ((2, 4, 0, b""), "step 4, segment 0 is not expected"),
        ((2, 0, 1, b""), "step 0, segment 1 is not expected"),
        ((2, 0, 0, bytes(23)), "step 0, segment 0 has 23 bytes, not 24"),
    ):
        with pytest.raises(ValueError, match=words):
            execution.receive(*arguments)
    execution.receive(2, 0, 0, bytes(24))
    with pytest.raises(ValueError, match="came twice"):
        execution.receive(2, 0, 0, bytes(24))


def test_both_sides_cut_a_range_into_the_same_segments() -> None:
    draft = Draft(0, 2, 10)
    draft.send(1, 3, 10)
    draft.receive(1, 0, 3, True)
    compiled = CompiledProgram(draft.plan(), 8, 20).lists  # two elements of 8 bytes fit
    assert compiled.labels[:4] == [(1, 0, number) for number in range(4)]
    assert (compiled.lows, compiled.highs) == ([3, 5, 7, 9, 0, 2], [5, 7, 9, 10, 2, 3])
    assert CompiledProgram(draft.plan(), 8, 1).nodes == 10  # an element at least


def test_programs_are_kept_up_to_a_number_of_nodes() -> None:
    cache = ProgramCache(nodes_max=50)
    made = CompiledProgram(Draft(0, 2, 0).plan(), 8)
    big = program(Task("allreduce", "ring", 0, 4, 4000), 8, 800)
    assert big.nodes == 120
    for key in "abc":
        cache.put(key, made)
    cache.put("big", big)
    assert cache.get("big") is big
    assert cache.get("a") is None
    assert cache.nodes == 120
    assert program(Task("allreduce", "ring", 0, 4, 4000), 8, 800) is big


# ---- disagreements


DIFFERENT: list[tuple[dict[str, Any], str]] = [
    ({"elements": 41}, "ring allreduce 0 of 41 int64 (sum)"),
    ({"dtype": np.float32}, "ring allreduce 0 of 40 float32 (sum)"),
    ({"op": "max"}, "ring allreduce 0 of 40 int64 (max)"),
    ({"requested_op": REQUESTED_OPS.index(("avg", ""))}, "ring allreduce 0 of 40 int64 (avg)"),
    ({"algorithm": "naive_ring"}, "naive_ring allreduce 0 of 40 int64 (sum)"),
    ({"kind": "all_gather"}, "ring all_gather 0 of 40 int64"),
    ({"kind": "broadcast", "root": 1}, "ring broadcast 0 of 40 int64 (root 1)"),
]


@pytest.mark.parametrize(("values", "words"), DIFFERENT)
@pytest.mark.parametrize("seed", [1, 2])
def test_ranks_that_call_different_things_all_fail_and_both_sides_are_named(
    values: dict[str, Any], words: str, seed: int
) -> None:
    net = Net(4, seed=seed)
    for rank in range(4):
        submit(net, rank, **(values if rank == 2 else {}))
    net.run()
    failures = net.failures()
    assert len(failures) == 4
    for failure in failures:
        assert words in failure
        assert "ring allreduce 0 of 40 int64 (sum)" in failure
        assert "rank 2 calls" in failure
        assert failure.count(" calls ") == 2
    assert net.delivered < 40


def test_a_root_is_only_a_root() -> None:
    """An allreduce has none: that of its request is no operation, and isn't compared."""
    net = Net(2)
    arrays = [submit(net, rank, root=rank) for rank in range(2)]
    net.run()
    assert net.failures() == ["", ""]
    assert all((array == 3).all() for array in arrays)


def test_segments_of_other_sizes_are_a_disagreement_too() -> None:
    net = Net(2)
    net.parties[1] = CollectiveParty(1, 2, segment_bytes=128)
    submit(net, 0)
    submit(net, 1)
    net.run()
    assert all("segments of" in failure for failure in net.failures())


def test_after_a_failure_every_call_fails_at_once() -> None:
    net = Net(2)
    submit(net, 0)
    submit(net, 0)
    submit(net, 1, elements=3)
    net.run()
    assert len(net.failures()) == 3
    submit(net, 1)
    net.run()
    assert len({end.failure.detail.partition(" (said by")[0] for ends in net.ends for end in ends if end.failure}) <= 2
    assert all(net.failures())
    assert all(party.next_deadline_ns() is None for party in net.parties)


def test_one_worker_has_its_result_at_once() -> None:
    for algorithm in ("ring", "naive_ring", "halving_doubling", "tree", "double_tree", "torus", "direct"):
        run_once("allreduce", algorithm, integers(1, 5, 1))


# ---- early messages


def test_messages_for_calls_not_made_yet_are_held_up_to_a_bound() -> None:
    net = Net(2, early_bytes_max=20_000)
    for _ in range(3):
        net.parties[0].submit(CallRequest("broadcast"), "tree", np.zeros(5000, np.uint8), now_ns=0)
    net.run()
    assert net.failures() == [""] * 3
    for _ in range(3):
        net.parties[1].submit(CallRequest("broadcast"), "tree", np.ones(5000, np.uint8), now_ns=0)
    net.run()  # what was held is given back
    assert net.failures() == [""] * 6
    for _ in range(3):
        net.parties[0].submit(CallRequest("broadcast"), "tree", np.zeros(5000, np.uint8), now_ns=0)
    net.run()
    assert net.failures() == [""] * 9
    net.parties[0].submit(CallRequest("broadcast"), "tree", np.zeros(5000, np.uint8), now_ns=0)
    net.run()
    assert "rank 0 is ahead of rank 1 by more than 20000 bytes of messages" in str(net.parties[1].failure)
    assert "said by rank 1" in str(net.parties[0].failure)


# ---- losses and timeouts


def run_timer(party: CollectiveParty) -> list[int]:
    """Call the timer whenever it is due until the party fails: all deadlines."""
    deadlines = []
    while (deadline_ns := party.next_deadline_ns()) is not None:
        deadlines.append(deadline_ns)
        party.handle_timer(deadline_ns - 1)
        assert party.failure is None
        party.handle_timer(deadline_ns)
    return deadlines


def test_a_lost_member_fails_the_calls_that_need_it_and_all_later_ones() -> None:
    net = Net(3)
    submit(net, 0)
    submit(net, 1)
    net.run()
    net.parties[0].lost(2, "it closed the connection", 5)
    net.run()
    assert net.failures() == [
        "job collective: rank 0 lost rank 2 in ring allreduce 0 of 40 int64 (sum): it closed the connection; "
        "missing ranks: 2",
        "job collective: rank 0 lost rank 2 in ring allreduce 0 of 40 int64 (sum): it closed the connection "
        "(said by rank 0); missing ranks: 2",
    ]
    submit(net, 1)
    net.run()
    assert "lost rank 2" in net.failures()[-1]


def test_a_member_passes_a_reported_failure_on_before_it_leaves() -> None:
    """Else rank 1 would blame rank 0, whose disconnect arrives before rank 2's message."""
    net = Net(3)
    for rank in range(3):
        submit(net, rank, 40 + (rank == 2))
    net.parties[2].fail("a disagreement", (2,))
    (to_0,) = (message for message in net.parties[2].messages_to_send() if message.to == 0)
    net.parties[0].receive(2, to_0.head, to_0.data, 1)
    (to_1,) = net.parties[0].messages_to_send()
    assert to_1.to == 1
    net.parties[1].receive(0, to_1.head, to_1.data, 2)
    net.parties[1].lost(0, "it left", 3)
    assert str(net.parties[1].failure) == "job collective: a disagreement (said by rank 2); missing ranks: 2"


def test_a_member_may_leave_after_sending_its_last_message() -> None:
    """Rank 0 of a chain is done first; the last one still waits for the middle, not for it."""
    net = Net(3, segment_bytes=64)
    submit(net, 0, kind="broadcast")
    array = submit(net, 2, kind="broadcast")
    net.run()
    net.parties[2].lost(0, "it left", 1)
    submit(net, 1, kind="broadcast")
    net.run()
    assert net.failures() == [""] * 3
    assert set(array) == {1}
    net = Net(3, segment_bytes=64)
    arrays = [submit(net, rank, kind="broadcast") for rank in range(3)]
    net.run()
    net.parties[1].lost(0, "it left", 1)
    assert net.failures() == [""] * 3
    assert set(arrays[2]) == {1}
    submit(net, 1)
    net.run()
    assert "rank 1 lost rank 0" in net.failures()[1 + 1]


def test_a_lost_member_that_still_expects_a_message_fails_the_call() -> None:
    net = Net(2)
    submit(net, 1, kind="broadcast", root=0)  # waits for rank 0
    net.parties[1].lost(0, "it died", 1)
    net.run()
    assert "rank 1 lost rank 0" in net.failures()[0]
    party = CollectiveParty(1, 3)
    party.submit(CallRequest("broadcast"), "ring", np.zeros(3), now_ns=0)  # will owe rank 2 what comes from rank 0
    party.lost(2, "it died", 1)
    assert "rank 1 lost rank 2" in str(party.events()[0].failure)


def test_a_call_in_which_nothing_moves_fails_at_its_deadline_and_says_whom_it_waits_for() -> None:
    net = Net(3, call_timeout_ns=10 * SECOND_NS)
    assert net.parties[0].next_deadline_ns() is None
    submit(net, 0)
    submit(net, 1)
    net.run()
    deadlines = run_timer(net.parties[0])
    assert deadlines[0] == 10 * SECOND_NS // LOOKS  # then it is seen that messages left, and no more
    assert deadlines[-1] == deadlines[0] + 10 * SECOND_NS
    net.run()
    assert net.failures() == [
        "job collective: ring allreduce 0 of 40 int64 (sum) has not moved for 10 s on rank 0, waiting for rank 2; "
        "missing ranks: 2",
        "job collective: ring allreduce 0 of 40 int64 (sum) has not moved for 10 s on rank 0, waiting for rank 2 "
        "(said by rank 0); missing ranks: 2",
    ]
    assert "has not moved" in str(net.parties[2].failure)


def test_a_root_that_only_sends_moves_as_long_as_its_messages_leave() -> None:
    party = CollectiveParty(0, 2, segment_bytes=80, call_timeout_ns=10 * SECOND_NS)
    party.submit(CallRequest("broadcast"), "ring", np.arange(30), now_ns=0)
    messages = party.messages_to_send()
    assert len(messages) == 3
    for turn, message in enumerate(messages[:2], 1):
        party.on_sent(message.ticket)
        party.handle_timer(9 * turn * SECOND_NS)
        assert party.failure is None
    assert run_timer(party)[-1] == 28 * SECOND_NS
    assert "has not moved for 10 s on rank 0, waiting for its messages to rank 1 to leave" in str(party.failure)
    assert party.failure is not None
    assert party.failure.missing == (1,)


def test_a_slow_call_does_not_time_out_and_an_abandoned_one_does() -> None:
    net = Net(2, call_timeout_ns=10 * SECOND_NS)
    submit(net, 0, key=1)  # rank 1 never makes this one
    turns = 0
    while not net.failures() or not net.failures()[0]:
        net.now_ns += 9 * SECOND_NS
        turns += 1
        submit(net, 0, key=turns + 1)
        submit(net, 1, key=turns + 1)
        net.run()
        net.ends = [[end for end in ends if end.failure] for ends in net.ends]
        for party in net.parties:
            deadline_ns = party.next_deadline_ns()
            if deadline_ns is not None and deadline_ns <= net.now_ns:
                party.handle_timer(net.now_ns)
        net.run()
    assert net.now_ns == pytest.approx(PATIENCE * 10 * SECOND_NS, abs=18 * SECOND_NS)
    assert "with key 1 " in net.failures()[0]


# ---- garbage


def test_garbage_fails_the_job_and_names_its_sender() -> None:
    for head in (b"", b"x", bytes(HEAD_BYTES), bytes(64)):
        net = Net(3)
        submit(net, 0)
        net.parties[0].receive(1, head, b"abc", 0)
        net.run()
        assert "rank 1 sends rank 0 what is no message of a collective" in net.failures()[0]
        assert all(party.failure is not None for party in net.parties)


def test_no_message_makes_a_party_raise() -> None:
    chance = random.Random(5)
    arrays = [np.arange(30.0), np.arange(3, dtype=np.int32)]
    for turn in range(400):
        net = Net(2 + turn % 3, seed=turn, segment_bytes=40)
        workers = 2 + turn % 3
        algorithm = "direct" if turn % 2 else "ring"
        for rank in range(workers):
            net.parties[rank].submit(CallRequest("allreduce"), algorithm, arrays[turn % 5 == 0].copy(), now_ns=0)
        messages = net.parties[0].messages_to_send()
        message = chance.choice(messages)
        head = bytearray(message.head)
        for _ in range(chance.randrange(1, 4)):
            head[chance.randrange(len(head))] = chance.choice((0, 1, 255, chance.randrange(256)))
        data = bytes(message.data)[: chance.choice((None, 0, 5))]
        party = net.parties[message.to]
        size = chance.choice((len(data), 0, 1 << 40))
        memory = party.place(0, bytes(head), size)
        assert memory is None or len(memory) == size
        party.receive(0, bytes(head), data, 0)
        party.messages_to_send()
        party.events()
        party.handle_timer(1)
        party.on_sent(chance.getrandbits(40) | 1 << 50)


def test_text_from_other_members_is_escaped() -> None:
    net = Net(2)
    submit(net, 0)
    net.parties[1]._fail("\x1b[31mred\n" + "x" * 5000, ())
    net.run()
    text = str(net.failures()[0])
    assert "?[31mred?x" in text
    assert len(text) < 2200
