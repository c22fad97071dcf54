"""Frames to messages and back (R1, R2, R7)."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from switchagg.calls.array_calls import array_call
from switchagg.endpoint import Endpoint
from switchagg.job import JobConfig, StreamConfig
from switchagg.wire import Op, Packet, encode
from transport.rdma.frame_runs import FrameRun, Grouping
from transport.rdma.places import elements_for, first_places

JOB = JobConfig(3, 9, 2, elements_for(256), (StreamConfig(100, 6), StreamConfig(50, 4)))


def frames(chunks: list[tuple[int, int]]) -> np.ndarray:
    """A bundle with these chunks: (stream, number)."""
    values = np.zeros(JOB.elements, np.int32)
    rows = [encode(Packet(3, 9, s, 0, Op.SUM, *JOB.place(s, c), c, values)) for s, c in chunks]
    return np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), 256)


def test_a_call_becomes_few_messages() -> None:
    endpoint = Endpoint(JOB, 0)
    endpoint.submit(0, array_call(np.zeros(59 * 20, np.int32), "sum", JOB))
    assert Grouping(JOB, 4).runs(endpoint.frames_to_send(0)) == [FrameRun(0, 4, 0), FrameRun(4, 2, 4)]


def test_a_frame_that_is_not_consecutive_begins_a_message() -> None:
    chunks = [(0, 4), (0, 5), (0, 6), (0, 11), (0, 12), (1, 3), (1, 4), (0, 0), (0, 0)]
    assert Grouping(JOB, 128).runs(frames(chunks)) == [
        *(FrameRun(0, 3, 4), FrameRun(3, 1, 11), FrameRun(4, 1, 0)),  # chunk 11 ends the second turn
        *(FrameRun(5, 2, 15), FrameRun(7, 1, 0), FrameRun(8, 1, 0)),
    ]
    assert Grouping(JOB, 4).runs(frames([])) == []
    last_then_first = [(0, 11), (1, 0)]  # places 11 and 12, of two streams
    assert Grouping(JOB, 4).runs(frames(last_then_first)) == [FrameRun(0, 1, 11), FrameRun(1, 1, 12)]


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 40)), max_size=30), st.integers(1, 5))
def test_messages_cover_all_frames_in_order_at_their_places(chunks: list[tuple[int, int]], packets: int) -> None:
    found = [
        (run.row + i, run.place + i) for run in Grouping(JOB, packets).runs(frames(chunks)) for i in range(run.frames)
    ]
    firsts = first_places(JOB)
    wanted = [firsts[s] + c % (2 * JOB.streams[s].window_slots) for s, c in chunks]
    assert found == list(enumerate(wanted))
    assert all(run.frames <= packets for run in Grouping(JOB, packets).runs(frames(chunks)))


def test_a_completion_brings_frames_within_the_buffer_only() -> None:
    grouping = Grouping(JOB, 4)
    assert grouping.places == 20
    cases = [((0, 256), 1), ((0, 20 * 256), 20), ((19, 256), 1), ((19, 512), 0), ((20, 256), 0)]
    cases += [((0, 255), 0), ((0, 0), 0), ((1 << 32, 256), 0), ((0, 21 * 256), 0)]
    assert [grouping.frames_at(*case) for case, _ in cases] == [frames for _, frames in cases]
