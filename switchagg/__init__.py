"""The switch and its protocol: pure state machines, whose inputs are packets and the time. Needs NumPy only.

A worker and a switch without a network, to see how the parts fit together:

    job = JobConfig(job_id=1, generation=1, workers=1, elements=360, streams=(StreamConfig(0, window_slots=8),))
    switch = DATAPLANES["reference"](8, 360)  # slots, elements
    switch.admit(job, ports=[0])
    worker = Endpoint(job, rank=0)
    worker.submit(0, array_call(array, "sum", job))
    while worker.next_event() is None:
        for output in switch.process(worker.frames_to_send(now_ns), port=0):
            worker.receive(output.bundle, now_ns)

What is named here stays; everything else may change between minor versions. Names are looked up when they are first
used: `switchagg.errors` can be imported without NumPy, by programs that run on the system's Python.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from switchagg.aggregator import Aggregator, Decision, SlotView, Verdict
    from switchagg.calls.array_calls import array_call
    from switchagg.dataplane.contract import DataPlane, Output
    from switchagg.dataplane.plane_kinds import DATAPLANES
    from switchagg.endpoint import CallCompleted, Endpoint, StreamFailed
    from switchagg.errors import AggregationFailed, DecodeError, JobError, SwitchaggError
    from switchagg.job import JobConfig, StreamConfig
    from switchagg.wire import Op, Packet, decode, encode

__all__ = [
    "DATAPLANES",
    "AggregationFailed",
    "Aggregator",
    "CallCompleted",
    "DataPlane",
    "Decision",
    "DecodeError",
    "Endpoint",
    "JobConfig",
    "JobError",
    "Op",
    "Output",
    "Packet",
    "SlotView",
    "StreamConfig",
    "StreamFailed",
    "SwitchaggError",
    "Verdict",
    "array_call",
    "decode",
    "encode",
]

_HOMES = (
    "errors",
    "job",
    "wire",
    "aggregator",
    "dataplane.plane_kinds",
    "dataplane.contract",
    "calls.array_calls",
    "endpoint",
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in _HOMES:
            module = import_module(f"switchagg.{home}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module 'switchagg' has no attribute '{name}'")
