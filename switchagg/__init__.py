"""The switch and its protocol: pure state machines, told packets and the time. Needs NumPy only.

A worker and a switch without a network, to see how the parts meet:

    job = JobConfig(job_id=1, generation=1, workers=1, elements=360, streams=(StreamConfig(0, window_slots=8),))
    switch = DATAPLANES["reference"](8, 360)  # slots, elements
    switch.admit(job, ports=[0])
    worker = Endpoint(job, rank=0)
    worker.submit(0, make_call(array, "sum", job))
    while worker.next_event() is None:
        for output in switch.process(worker.frames_to_send(now_ns), port=0):
            worker.receive(output.bundle, now_ns)

What is named here stays; everything else may change between minor versions.
"""

from switchagg.aggregator import Aggregator, Decision, SlotView, Verdict
from switchagg.call import make_call
from switchagg.dataplane import DATAPLANES, DataPlane, Output
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
    "decode",
    "encode",
    "make_call",
]
