"""Results that come before their chunks are sent (Q7), where several lie in one bundle."""

import numpy as np
import pytest

from switchagg.calls.array_calls import array_call, chunked_call
from switchagg.job import JobConfig, StreamConfig
from switchagg.partial_endpoint import PartialEndpoint
from switchagg.wire import Op, Packet, encode

JOB = JobConfig(1, 7, 3, 8, (StreamConfig(0, 2),), backups=1)


def result(chunk: int, present: int = 0b111) -> bytes:
    values = np.arange(8, dtype=np.int32)
    values[-1] = present
    slot, version = JOB.streams[0].first_slot + chunk % 2, chunk // 2 % 2
    return encode(Packet(1, 7, 0, 0, Op.SUM, slot, version, chunk, values, result=True))


def bundle(*frames: bytes) -> np.ndarray:
    return np.frombuffer(b"".join(frames), np.uint8).reshape(len(frames), -1)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_result_behind_that_of_its_slot_s_chunk_in_flight_is_kept(at_once: bool) -> None:
    endpoint = PartialEndpoint(JOB, 2)
    array = np.ones(2 * (8 - JOB.presence), np.int32)
    call = array_call(array, "sum", JOB)
    assert chunked_call(call, JOB).chunks == 2
    endpoint.submit(0, call)
    while len(endpoint.frames_to_send(0)):
        pass
    frames = [result(chunk) for chunk in (0, 1, 2, 3)]
    for each in [frames] if at_once else [[frame] for frame in frames]:
        endpoint.receive(bundle(*each), 1)
    assert endpoint.next_event() is not None
    assert endpoint.has_early(0, 2)
    sent = [tuple(map(int, row[12:20])) for row in endpoint.frames_to_send(2)]
    assert len(sent) == 2, "both chunks are passed"
    endpoint.receive(bundle(result(7), result(4)), 3)  # one of them lacks its slot's earlier chunk
    assert endpoint.has_early(0, 3)
    assert not endpoint.has_early(0, 4)
