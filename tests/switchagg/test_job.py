"""job: W2, S7 and what a JobConfig refuses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchagg.errors import AggregationFailed
from switchagg.job import JobConfig, StreamConfig


def job(**changes: object) -> JobConfig:
    fields: dict[str, object] = {
        "job_id": 1,
        "generation": 1,
        "workers": 4,
        "elements": 360,
        "streams": (StreamConfig(0, 8), StreamConfig(8, 3)),
    }
    return JobConfig(**{**fields, **changes})  # type: ignore[arg-type]


@given(st.integers(0, 2**40), st.integers(0, 1))
def test_place_follows_from_stream_and_chunk(chunk: int, stream: int) -> None:
    config = job().streams[stream]
    slot, version = job().place(stream, chunk)
    assert slot == config.first_slot + chunk % config.window_slots
    assert version == (chunk // config.window_slots) % 2
    assert job().place(stream, chunk + config.window_slots) == (slot, 1 - version)


def test_slots_span_the_streams() -> None:
    assert job().slots == (0, 11)
    assert job(streams=(StreamConfig(20, 4), StreamConfig(10, 4))).slots == (10, 24)


@pytest.mark.parametrize(
    "changes",
    [
        {"job_id": -1},
        {"job_id": 65536},
        {"generation": 2**32},
        {"workers": 0},
        {"workers": 4097},
        {"elements": 0},
        {"elements": 16_001},
        {"streams": ()},
        {"streams": (StreamConfig(0, 1),) * 2},
        {"streams": (StreamConfig(0, 8), StreamConfig(7, 2))},
        {"streams": tuple(StreamConfig(i, 1) for i in range(257))},
        {"rto_max_ns": 1 << 61},
        {"rto_min_ns": 0},
        {"rto_min_ns": 3_000_000_000},
        {"rto_initial_ns": 2_000_000_000},
        {"retry_limit": 0},
    ],
)
def test_impossible_values_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes)) if "streams" not in changes else "slot|streams"):
        job(**changes)


@pytest.mark.parametrize(("first", "window"), [(0, 0), (-1, 1), (65536, 1), (65535, 2), (0, 65537)])
def test_impossible_streams_are_refused(first: int, window: int) -> None:
    with pytest.raises(ValueError, match="slot"):
        StreamConfig(first, window)


@pytest.mark.parametrize("priority", [-(1 << 31) - 1, 1 << 31])
def test_priorities_fit_the_compiled_core(priority: int) -> None:
    with pytest.raises(ValueError, match="priority"):
        StreamConfig(0, 1, priority)


def test_giving_up_names_the_place_and_the_missing_ranks() -> None:
    error = AggregationFailed("no result", job="net", generation=3, stream=1, slot=9, chunk=77, missing=(2, 5))
    assert str(error) == "job net (generation 3, stream 1, slot 9, chunk 77): no result; missing ranks: 2, 5"
    assert str(AggregationFailed("the switch is gone", job=4)) == "job 4: the switch is gone"
